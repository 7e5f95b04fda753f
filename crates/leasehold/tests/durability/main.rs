//! Locks that replicas, or the disk, must have before their holders go on.

#[path = "../common/mod.rs"]
mod common;

mod acknowledged;
mod cluster;
mod failovers;
mod forgotten;
mod heard_at_a_replica;
mod refused;
mod replicated;
