//! The kinds of locks, one file for each kind and aspect.

#[path = "../common/mod.rs"]
mod common;

mod election;
mod fair_mutex;
mod fair_mutex_waits;
mod fenced_mutex;
mod fenced_mutex_wire;
mod fenced_store;
mod growth;
mod latch;
mod leased_semaphore_scripts;
mod leased_semaphore_wire;
mod locked;
mod locked_right;
mod multi_lock;
mod mutex;
mod mutex_cancel;
mod mutex_wire;
mod once_per;
mod plain_mutex;
mod run;
mod rw_lock;
mod rw_lock_leases;
mod rw_lock_modes;
mod rw_lock_modes_wire;
mod rw_lock_wire;
mod semaphore;
mod shared_holds;
mod spin_mutex;
