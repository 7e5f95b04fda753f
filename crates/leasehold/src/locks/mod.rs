//! The kinds of locks, one file each, and the guard of a hold. No I/O here: they pass requests to the engine.

mod acknowledged;
mod asking;
mod bounds;
mod election;
mod fair_mutex;
mod fenced_mutex;
mod fenced_store;
mod guard;
mod handle;
mod latch;
mod leader;
mod leader_record;
mod leased_semaphore;
mod multi_guard;
mod multi_lock;
mod mutex;
mod numbers;
mod once_per;
mod owned;
mod part;
mod plain_mutex;
mod run;
mod rw_guard;
mod rw_lock;
mod semaphore;
mod spin_mutex;
mod term;

pub use election::Election;
pub use fair_mutex::{Fair, FairMutex, FairMutexGuard};
pub use fenced_mutex::FencedMutex;
pub use fenced_store::FencedStore;
pub use guard::{
    Detached, Exclusive, Fenced, FencedMutexGuard, Guard, MutexGuard, Permit, PermitGuard, Plain,
    PlainMutexGuard, PlainPermit, Read, ReadGuard, SemaphoreGuard, Spin, SpinMutexGuard, Write,
    WriteGuard,
};
pub use latch::Latch;
pub use leader::{Leader, LeaderWatch};
pub(crate) use leader_record::LeaderRecord;
pub use leased_semaphore::LeasedSemaphore;
pub use multi_guard::MultiGuard;
pub use multi_lock::MultiLock;
pub use mutex::Mutex;
pub use part::Part;
pub use plain_mutex::PlainMutex;
pub use rw_lock::RwLock;
pub use semaphore::Semaphore;
pub use spin_mutex::SpinMutex;
pub use term::Term;
