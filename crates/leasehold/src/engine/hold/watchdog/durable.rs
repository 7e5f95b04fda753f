//! Renewals that others than the server are to acknowledge.
//!
//! They wait for these, and for the renewals before them. The word that a hold is not ours any more does not wait: the server itself is
//! asked first, with all others. A hold that is ours is then renewed, and only what is acknowledged moves its end (B1).

use std::{future::Future, sync::Arc};

use futures_util::{TryFutureExt, future::Either};

use super::{Watchdog, renew};
use crate::{
    backend::{Confirmation, Failure, Renew, Renewal},
    durability::Durability,
    engine::{env::Env, hold::Hold},
};

/// Sends the renewals of these by policy, all of one server. They are no part of what is under way: their answers come late, and may keep no
/// other from being renewed.
pub(super) fn go_on(env: &Arc<Env>, watchdog: &Arc<Watchdog>, mut ours: Vec<Arc<Hold>>) {
    while let Some(policy) = ours.first().map(|hold| hold.durability) {
        let (those, rest) = ours.into_iter().partition(|hold| hold.durability == policy);
        ours = rest;
        let (strong, watchdog) = (Arc::clone(env), Arc::clone(watchdog));
        env.spawn(async move {
            renew(&strong, &watchdog, those, policy, (None, None)).await;
        });
    }
}

/// Asks for these renewals. The answers are those that move an end, and what was acknowledged of each.
pub(super) fn renewals(
    env: &Env,
    asked: Arc<[Renew]>,
    policy: Durability,
) -> impl Future<Output = Result<(Vec<Renewal>, Vec<Confirmation>), Failure>> + Send + 'static + use<>
{
    if policy.is_primary() {
        return Either::Left(
            env.backend
                .renew(asked)
                .map_ok(|renewals| (renewals, Vec::new())),
        );
    }
    let (unmet, confirming) = (env.config.unmet, env.backend.confirm(asked, policy));
    Either::Right(confirming.map_ok(move |said| {
        let believed = said.iter().map(|said| said.believed(unmet));
        (believed.collect(), said)
    }))
}
