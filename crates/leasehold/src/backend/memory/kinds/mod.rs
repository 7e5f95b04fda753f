//! What differs between the kinds of locks in memory: when one can be taken, and who waits in order. One file per kind.

pub(super) mod leased_semaphore;
mod mutex;
mod rw_lock;

use std::{sync::Arc, time::Duration};

use crate::{
    kind::{Access, LockKind},
    owner::LeaseId,
};

/// One hold.
pub(in crate::backend::memory) struct StoredHold {
    pub(in crate::backend::memory) client: Arc<str>,
    pub(in crate::backend::memory) lease: LeaseId,
    pub(in crate::backend::memory) access: Access,
    pub(in crate::backend::memory) holds: u32,
    pub(in crate::backend::memory) ends: Duration,
}

/// The kinds that this backend knows: one line for each.
pub(super) fn rules(kind: LockKind) -> &'static dyn Rules {
    match kind {
        LockKind::Mutex => &mutex::MutexRules,
        LockKind::RwLock => &rw_lock::RwLockRules,
        LockKind::LeasedSemaphore => &leased_semaphore::LeasedSemaphoreRules,
    }
}

/// When a lock of one kind can be taken.
pub(super) trait Rules: Sync {
    /// Whether it can be taken beside what is held, of so many permits.
    fn fits(&self, held: &[StoredHold], access: Access, permits: i64) -> bool;

    /// Whether one that wants this lets those go first that stand in the queue for that.
    fn gives_way(&self, _newcomer: Access, _queued: Access) -> bool {
        false
    }

    /// What stands for a hold of a client.
    fn owner(&self, client: &str, _access: Access, lease: LeaseId) -> String {
        format!("{client}:{lease}")
    }

    /// Whether clients that wait stand in a queue, and are given the lock in its order. (If not, all race for it.)
    fn has_queue(&self) -> bool {
        true
    }

    /// When another look is of use, if no wake-up comes: what is left of the lease that ends last.
    fn ends(&self, held: &[StoredHold]) -> Option<Duration> {
        held.iter().map(|held| held.ends).max()
    }
}
