//! The kinds of locks, one file each, and the guard of a hold. No I/O here: they pass requests to the engine.

mod guard;
mod handle;
mod leased_semaphore;
mod mutex;
mod rw_lock;

pub use guard::{
    Detached, Exclusive, Guard, MutexGuard, Permit, PermitGuard, Read, ReadGuard, Write, WriteGuard,
};
pub use leased_semaphore::LeasedSemaphore;
pub use mutex::Mutex;
pub use rw_lock::RwLock;
