//! The differences between the kinds of locks in memory: when one can be taken, and which clients wait in order. A file
//! per kind.

mod fair_mutex;
mod fenced_mutex;
pub(super) mod leased_semaphore;
mod mutex;
mod plain_mutex;
mod rw_lock;

use std::{sync::Arc, time::Duration};

use crate::{
    kind::{Access, LockKind},
    owner::LeaseId,
};

/// A hold in the store.
pub(crate) struct StoredHold {
    pub(crate) client: Arc<str>,
    pub(crate) lease: LeaseId,
    pub(crate) access: Access,
    pub(crate) holds: u32,
    pub(crate) ends: Duration,
}

/// The kinds that this backend knows: one line for each.
pub(super) fn rules(kind: LockKind) -> &'static dyn Rules {
    match kind {
        LockKind::Mutex | LockKind::SpinMutex => &mutex::MutexRules,
        LockKind::FencedMutex => &fenced_mutex::FencedMutexRules,
        LockKind::RwLock => &rw_lock::RwLockRules,
        LockKind::PlainMutex => &plain_mutex::PlainMutexRules,
        // No holds are kept of the other two (`store/numbers.rs`).
        LockKind::LeasedSemaphore | LockKind::Semaphore | LockKind::Latch => {
            &leased_semaphore::LeasedSemaphoreRules
        }
        LockKind::FairMutex => &fair_mutex::FairMutexRules,
    }
}

/// When a lock of one kind can be taken.
pub(super) trait Rules: Sync {
    /// Whether it can be taken beside the present holds, of this many permits.
    fn fits(&self, held: &[StoredHold], access: Access, permits: i64) -> bool;

    /// Whether a newcomer with this access gives way to a queued client with that access.
    fn gives_way(&self, _newcomer: Access, _queued: Access) -> bool {
        false
    }

    /// The owner field of a client's hold.
    fn owner(&self, client: &str, _access: Access, lease: LeaseId) -> String {
        format!("{client}:{lease}")
    }

    /// Whether clients that wait stand in a queue, and are given the lock in its order. (If not, all race for it.)
    fn has_queue(&self) -> bool {
        true
    }

    /// Whether each waiting task has an entry there, and no newcomer is served before one.
    fn is_in_turn(&self) -> bool {
        false
    }

    /// Whether each grant has fencing tokens.
    fn has_tokens(&self) -> bool {
        false
    }

    /// Whether the server keeps how often the holder has entered.
    fn counts(&self) -> bool {
        true
    }

    /// When another attempt is of use, if no wake-up comes: the time left of the lease that ends last.
    fn ends(&self, held: &[StoredHold]) -> Option<Duration> {
        held.iter().map(|held| held.ends).max()
    }
}
