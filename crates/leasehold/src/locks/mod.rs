//! The kinds of locks, one file each, and the guard of a hold. No I/O here: they pass requests to the engine.

mod fenced_mutex;
mod fenced_store;
mod guard;
mod handle;
mod leased_semaphore;
mod mutex;
mod rw_lock;

pub use fenced_mutex::FencedMutex;
pub use fenced_store::FencedStore;
pub use guard::{
    Detached, Exclusive, Fenced, FencedMutexGuard, Guard, MutexGuard, Permit, PermitGuard, Read,
    ReadGuard, Write, WriteGuard,
};
pub use leased_semaphore::LeasedSemaphore;
pub use mutex::Mutex;
pub use rw_lock::RwLock;
