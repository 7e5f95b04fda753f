//! Renewals that others than the server are to acknowledge.

use std::{future::Future, sync::Arc};

use futures_util::{TryFutureExt, future::Either};

use super::{Watchdog, renew, shards::by_shard};
use crate::{
    backend::{Confirmation, Failure, Renew, Renewal},
    durability::Durability,
    engine::{env::Env, hold::Hold},
};

/// Sends those of a batch that others are to acknowledge, by policy, and returns the rest. They are no part of what is under way:
/// their answers come late, and may keep no other from being renewed.
pub(super) fn send(
    env: &Arc<Env>,
    watchdog: &Arc<Watchdog>,
    mut batch: Vec<Arc<Hold>>,
) -> Vec<Arc<Hold>> {
    while let Some(first) = batch.iter().find(|hold| !hold.durability.is_primary()) {
        let policy = first.durability;
        let (those, rest) = batch
            .into_iter()
            .partition(|hold| hold.durability == policy);
        batch = rest;
        // The replicas of one node of a cluster are not to be waited for by the holds of another.
        for (_, those) in by_shard(those, |hold| env.backend.shard(hold.id())) {
            let (strong, watchdog) = (Arc::clone(env), Arc::clone(watchdog));
            env.spawn(async move {
                renew(&strong, &watchdog, those, policy, (None, None)).await;
            });
        }
    }
    batch
}

/// Asks for these renewals. The answers are those that move an end, and what was acknowledged of each.
pub(super) fn renewals(
    env: &Env,
    asked: &[Renew<'_>],
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
