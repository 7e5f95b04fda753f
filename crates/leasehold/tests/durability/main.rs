//! Locks that replicas, or the disk, must have before their holders go on.

#[path = "../common/mod.rs"]
mod common;

mod acknowledged;
mod failovers;
mod refused;
mod replicated;
