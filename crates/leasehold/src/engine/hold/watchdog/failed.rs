//! Renewals that have no answer.

use std::{
    future::Future,
    sync::{Arc, Weak},
    time::Duration,
};

use super::Watchdog;
use crate::{
    backend::{Confirmation, Failure, Renewal},
    clock::Tick,
    durations::about,
    engine::{
        env::Env,
        hold::{Due, Hold},
    },
    user_callback,
};

#[derive(Debug, thiserror::Error)]
#[error("no answer within {}", about(*.0))]
pub(super) struct Late(pub(super) Duration);

/// All have been asked about again. An answer that a hold is not ours, or ends sooner than was believed (QB1), counts, however late it is heard,
/// unless the server was replaced since.
pub(super) async fn late(
    due: Vec<(Due, Weak<Hold>)>,
    answer: impl Future<Output = Result<(Vec<Renewal>, Vec<Confirmation>), Failure>>,
    sent: Tick,
) {
    let Ok((renewals, _)) = answer.await else {
        return;
    };
    for ((due, hold), renewal) in due.into_iter().zip(renewals) {
        if matches!(renewal, Renewal::Lost | Renewal::Shortened(_))
            && let Some(hold) = hold.upgrade()
        {
            hold.renewed(&due, renewal, sent);
        }
    }
}

/// Asks again for the renewals of a batch that have no answer, and whose patience `patience` selects, until their leases end.
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
            user_callback::catch_panic(|| {
                tracing::warn!(
                    target: "leasehold",
                    names = those().count(),
                    cause = &**failure.cause() as &dyn std::error::Error,
                    "leases not renewed, trying again until they end"
                );
            });
        }
        for (due, hold) in those() {
            // B1: no answer ends no lease. It is asked for again, until a check finds its end.
            hold.renewed(due, Renewal::Unknown, sent);
        }
    }
}
