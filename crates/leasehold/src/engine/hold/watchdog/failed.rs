//! Renewals that have no answer.

use std::{sync::Arc, time::Duration};

use super::Watchdog;
use crate::{
    backend::{Failure, Renewal},
    callout,
    clock::Tick,
    durations::about,
    engine::{
        env::Env,
        hold::{Due, Hold},
    },
};

#[derive(Debug, thiserror::Error)]
#[error("no answer within {}", about(*.0))]
pub(super) struct Late(pub(super) Duration);

/// Those of a batch that have no answer, and this patience: they are asked about again, together, until their leases end.
impl Watchdog {
    pub(super) fn failed(
        &self,
        env: &Env,
        due: &[(Due, Arc<Hold>)],
        failure: &Failure,
        sent: Tick,
        patience: impl Fn(Duration) -> bool,
    ) {
        let those = || due.iter().filter(|(due, _)| patience(due.patience));
        // All else is the server's trouble, and told with it.
        if failure.is_final() && self.warned.may_warn(env.clock.now()) {
            callout::quietly(|| {
                tracing::warn!(
                    target: "leasehold",
                    names = those().count(),
                    cause = &**failure.cause() as &dyn std::error::Error,
                    "leases not renewed, trying again until they end"
                );
            });
        }
        for (due, hold) in those() {
            hold.renewed(due, Renewal::Unknown, sent);
        }
    }
}
