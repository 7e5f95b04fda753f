//! What a node has done that stood still, and had been replaced without knowing it yet: done once more where the name is by now.

use std::{sync::Arc, time::Instant};

use super::{
    ClusterCore,
    route::{AskRule, LATE, Route},
    slots::slot,
};
use crate::backend::{
    Acquire, Acquired, Failure, LockSteps, Release, ReleaseReply, Reply,
    redis::{Redis, repeats},
};

/// Where the answer is late, the table is asked for, and then the owner, under the same lease id.
pub(super) fn acquire(shared: &Arc<ClusterCore>, step: Acquire) -> Reply<Acquired> {
    let way = Route::once(&step.id.name);
    let ask = move |redis: &Redis| redis.acquire(step.clone());
    let shared = Arc::clone(shared);
    let (began, answer) = (Instant::now(), shared.send(way, ask.clone()));
    Box::pin(async move {
        let answer = answer.await?;
        if began.elapsed() < LATE || !matches!(answer, Acquired::Granted { .. }) {
            return Ok(answer);
        }
        // It has been granted, so no failure says that it has not.
        let ambiguous = |failure: Failure| Failure::Ambiguous(Arc::clone(failure.cause()));
        shared.table.asked().await.map_err(ambiguous)?;
        shared.send(way, ask).await.map_err(ambiguous)
    })
}

/// It is noted for some seconds: the node that takes the place of this one may not know of it.
pub(super) fn release(shared: &Arc<ClusterCore>, step: Release) -> Reply<ReleaseReply> {
    let way = Route::once(&step.id.name);
    let noted = shared.owner_number(way.slot).zip(repeats::again(&step));
    let shared = Arc::clone(shared);
    let answer = shared.send(way, move |redis| redis.release(step.clone()));
    Box::pin(async move {
        let answer = answer.await?;
        if let Some((by, release)) = noted {
            shared.lately.confirmed(release, by);
            if shared.owner_number(way.slot) != Some(by) {
                shared.give_back_again();
            }
        }
        Ok(answer)
    })
}

impl ClusterCore {
    fn owner_number(&self, slot: u16) -> Option<u32> {
        self.nodes.owner(slot).map(|node| node.number)
    }

    /// What was given back at a node that is not the owner any more is given back at the owner, in the background.
    pub(super) fn give_back_again(self: &Arc<Self>) {
        let shared = Arc::clone(self);
        drop(self.home.handle().spawn(async move {
            let is_due = |release: &Release, by| {
                let owner = shared.owner_number(slot(release.id.name.wire()));
                owner.is_some_and(|owner| owner != by)
            };
            let give_back = |release: Release| {
                let way = Route {
                    slot: slot(release.id.name.wire()),
                    ask: AskRule::Never,
                    patience: shared.timeout,
                    late: LATE,
                };
                shared.send(way, move |redis| redis.release(release.clone()))
            };
            shared.lately.repeat(is_due, give_back).await;
        }));
    }
}
