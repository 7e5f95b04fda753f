//! Beside the real Redisson, redis-py, node-redlock and pottery.

#[path = "../common/mod.rs"]
mod common;

mod plain_peers;
mod plain_peers_quorum;
mod redisson;
mod redisson_fair;
mod redisson_fenced;
mod redisson_forced;
mod redisson_latch;
mod redisson_multi;
mod redisson_old;
mod redisson_permits;
mod redisson_rw;
mod redisson_semaphore;
mod redisson_spin;
