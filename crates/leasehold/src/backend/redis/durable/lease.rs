//! Leases that wait to be confirmed.

use tokio::sync::oneshot;

use crate::{
    backend::{Confirmation, Failure, Renew},
    kind::{Access, LockKind},
    name::LockId,
    owner::LeaseId,
};

/// Leases that are confirmed together, for one caller. Of a cluster they are in one slot.
pub(super) struct BatchEntry {
    pub(super) leases: Vec<Unconfirmed>,
    /// The node has not got their slot yet.
    pub(super) asks: bool,
    pub(super) answer: oneshot::Sender<Result<Vec<Confirmation>, Failure>>,
}

/// A [`Renew`] of its own.
pub(super) struct Unconfirmed {
    pub(super) id: LockId,
    access: Access,
    lease: LeaseId,
    lease_ms: u64,
}

impl Unconfirmed {
    pub(super) fn of(renew: &Renew<'_>) -> Unconfirmed {
        Unconfirmed {
            id: renew.id.clone(),
            access: renew.access,
            lease: renew.lease,
            lease_ms: renew.lease_ms,
        }
    }

    pub(super) fn renew(&self) -> Renew<'_> {
        // A permit that was taken in this very millisecond would not be written again. Its end is never moved nearer (B2).
        let later = u64::from(self.id.kind == LockKind::LeasedSemaphore && self.lease_ms > 0);
        Renew {
            id: &self.id,
            access: self.access,
            lease: self.lease,
            lease_ms: self.lease_ms + later,
        }
    }
}
