//! The entries of tasks that wait for a lock whose order is the server's.

use std::time::Duration;

use crate::{name::LockId, owner::LeaseId};

/// Keeps the entries of this client's tasks in the queue for one lock.
#[derive(Clone, Debug)]
pub(crate) struct Keep {
    pub(crate) id: LockId,
    pub(crate) entries: Vec<KeptEntry>,
    /// How long the queue outlives its last visitor.
    pub(crate) end_ms: u64,
}

/// The entry of one task. This is an ask for it: a grant may name it (B3).
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptEntry {
    pub(crate) lease: LeaseId,
    pub(crate) lease_ms: u64,
    pub(crate) ask: u32,
}

/// The result of keeping entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeptEntries {
    /// When another poll is of use, if no wake-up comes; `None`: the holder's lease has no end.
    pub(crate) ttl: Option<Duration>,
    /// Clients of another library hold the lock, or wait for it. They tell only one waiter.
    pub(crate) foreign: bool,
    /// Tasks that do not wait (any more): they hold the lock, or their entry is lost. In order.
    pub(crate) missing: Vec<LeaseId>,
}
