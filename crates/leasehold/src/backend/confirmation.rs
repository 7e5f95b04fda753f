//! What servers have acknowledged.

use std::sync::Arc;

use super::{Failure, Renewal};
use crate::{
    durability::{Missed, Unmet},
    error::Cause,
};

/// The answer to [`LockSteps::confirm`](super::LockSteps::confirm).
#[derive(Clone, Debug)]
pub(crate) struct Confirmation {
    /// The server's own answers.
    pub(crate) renewals: Vec<Renewal>,
    /// How many replicas had these renewals when it was answered.
    pub(crate) replicas: u32,
    pub(crate) on_disk: bool,
    /// Fewer had them than the policy says.
    pub(crate) missed: Option<Missed>,
}

impl Confirmation {
    /// The answers that move an end. What was not acknowledged is unknown, unless the client takes the server's own word.
    pub(crate) fn believed(&self, unmet: Unmet) -> Vec<Renewal> {
        let counts = self.missed.is_none() || unmet == Unmet::Accept;
        let believed = |renewal: &Renewal| match renewal {
            Renewal::Extended if !counts => Renewal::Unknown,
            other => *other,
        };
        self.renewals.iter().map(believed).collect()
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
