//! The kinds of locks, one file each, and the guard of a hold. No I/O here: they pass requests to the engine.

mod fenced_mutex;
mod fenced_store;
mod guard;
mod handle;
mod leased_semaphore;
mod mutex;
mod plain_mutex;
mod rw_lock;
mod spin_mutex;

pub use fenced_mutex::FencedMutex;
pub use fenced_store::FencedStore;
pub use guard::{
    Detached, Exclusive, Fenced, FencedMutexGuard, Guard, MutexGuard, Permit, PermitGuard, Plain,
    PlainMutexGuard, Read, ReadGuard, Spin, SpinMutexGuard, Write, WriteGuard,
};
pub use leased_semaphore::LeasedSemaphore;
pub use mutex::Mutex;
pub use plain_mutex::PlainMutex;
pub use rw_lock::RwLock;
pub use spin_mutex::SpinMutex;
