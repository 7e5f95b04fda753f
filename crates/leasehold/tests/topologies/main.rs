//! Servers that are replaced: one that restarts empty, and groups whose sentinels name another primary.

#[path = "../common/mod.rs"]
mod common;

mod epochs;
mod redisson;
mod sentinel;
mod sentinel_anew;
mod sentinel_failover;
mod sentinel_late;
mod uncounted;
