//! A lease id that is given up: the server is told so until it has confirmed it (B5).

use std::{sync::Arc, time::Duration};

use super::pauses::Pauses;
use crate::{
    backend::{Failure, Release},
    callout,
    engine::core::Core,
    engine::lease,
    kind::Access,
    name::{LockId, Name},
    owner::LeaseId,
};

/// A lease id that must be given up on the server (B5).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Debt {
    pub(crate) access: Access,
    pub(crate) lease: LeaseId,
    pub(crate) lease_ms: u64,
    /// A copy of a request that could take the name may still be under way: leave a tombstone (B4).
    pub(crate) copies: bool,
}

impl Debt {
    /// The request that settles it.
    pub(super) fn release(&self, core: &Core, id: &LockId, listening: bool) -> Release {
        Release {
            id: id.clone(),
            access: self.access,
            lease: self.lease,
            next: None,
            tombstone_ms: self.copies.then(|| core.tombstone_ms()),
            listening,
            holds: None,
        }
    }
}

/// Gives a lease id up for good, in the background (B5).
pub(crate) fn abandon(core: &Arc<Core>, id: &LockId, debt: Debt) {
    if may_owe(core) {
        core.spawn(settle(Arc::clone(core), id.clone(), debt));
    }
}

/// Whether the server may have anything of this client. A client that never had a connection has sent nothing; and the actor
/// that gives up a lease id has the outcome of its last request (Q1), so none is still to be sent.
pub(super) fn may_owe(core: &Core) -> bool {
    core.backend.has_reached()
}

/// A refusal needs a hand. All else is the server's trouble, and is told with it, not once for each lease.
pub(super) fn left_to_expire(name: &Name, failure: &Failure, said: &str) {
    let cause = failure.cause();
    callout::quietly(|| {
        if failure.is_final() {
            tracing::warn!(target: "leasehold", %name, %cause, "{said}");
        } else {
            tracing::debug!(target: "leasehold", %name, %cause, "{said}");
        }
    });
}

/// Tells the server that a lease id is given up, until it has confirmed that, or until any lease that an earlier request
/// took has expired.
pub(super) async fn settle(core: Arc<Core>, id: LockId, debt: Debt) {
    let lease = Duration::from_millis(debt.lease_ms);
    // A late copy of its requests may take the name, or a place, for as long as a tombstone would last; and have it for a
    // lease after that.
    let over = lease::free_within(lease + Duration::from_millis(core.tombstone_ms()));
    let began = core.clock.now();
    let mut debt = debt;
    let mut pauses = Pauses::default();
    loop {
        let release = debt.release(&core, &id, core.queues.is_listening(&id));
        let Err(failure) = core.backend.release(release).await else {
            return;
        };
        // Earlier requests may be late as well.
        debt.copies |= matches!(failure, Failure::Ambiguous(_));
        // A lease id whose release the server refuses for good expires.
        if failure.is_final() || core.clock.now().since(began) > over {
            let said = "a lease could not be given up, and was left to expire";
            return left_to_expire(&id.name, &failure, said);
        }
        let ago = core.clock.now().since(began);
        core.sleep(pauses.of_debt(ago)).await;
    }
}
