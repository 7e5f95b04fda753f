//! A renewal, what it came to, and what servers have acknowledged of it.

use std::{sync::Arc, time::Duration};

use super::Failure;
use crate::{
    durability::{Missed, Unmet},
    error::Cause,
    kind::Access,
    name::LockId,
    owner::LeaseId,
};

/// Extends one lease.
#[derive(Clone, Debug)]
pub(crate) struct Renew {
    pub(crate) id: LockId,
    pub(crate) access: Access,
    pub(crate) lease: LeaseId,
    /// Zero: only look whether it is still ours.
    pub(crate) lease_ms: u64,
}

/// The result of one renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// Still ours, and extended if that was asked for: at least the length asked for was left then (B1).
    Extended,
    /// Some servers of a quorum have forgotten it: it ends within so long of the send, unless they take it up again (QB1).
    Shortened(Duration),
    /// The server says that the name is not ours.
    Lost,
    /// This entry has no answer: another type stands under the name, or the server refuses its kind.
    Unknown,
}

/// The answer to one entry of [`LockSteps::confirm`](super::LockSteps::confirm).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Confirmation {
    /// The server's own answer.
    pub(crate) renewal: Renewal,
    /// How many replicas had this renewal when it was answered.
    pub(crate) replicas: u32,
    pub(crate) on_disk: bool,
    /// Fewer had it than the policy says.
    pub(crate) missed: Option<Missed>,
}

impl Confirmation {
    /// This entry has no answer.
    pub(crate) const NONE: Confirmation = Confirmation {
        renewal: Renewal::Unknown,
        replicas: 0,
        on_disk: false,
        missed: None,
    };

    /// The answer that moves an end. A renewal that was not acknowledged is unknown, unless the client takes the server's own word.
    pub(crate) fn believed(&self, unmet: Unmet) -> Renewal {
        match self.renewal {
            // "Unknown" moves no end, and is asked again. "Lost" is believed without any replica: the server itself says it (bug 246).
            Renewal::Extended if self.missed.is_some() && unmet == Unmet::GiveBack => {
                Renewal::Unknown
            }
            other => other,
        }
    }
}

/// Of a backend that has refused every policy before.
pub(crate) fn cannot_confirm() -> Failure {
    #[derive(Debug, thiserror::Error)]
    #[error("no server here acknowledges for another")]
    struct CannotConfirm;
    let cause: Cause = Arc::new(CannotConfirm);
    Failure::Rejected(cause)
}
