//! Steps of a node that stood still, and had been replaced without knowing it yet: they are done once more where the name is by now.

use std::sync::Arc;

use super::{
    ClusterCore,
    route::{AskRule, LATE, NodeAnswer, Route},
    slots::slot,
};
use crate::{
    backend::{
        Acquire, Acquired, Failure, LockSteps, Release, ReleaseReply, Reply,
        redis::{Redis, repeats},
    },
    clock::Instant,
    name::Name,
};

/// Where the answer is late, the table is asked for, and then the owner, under the same lease id.
pub(super) fn acquire(shared: &Arc<ClusterCore>, step: Acquire) -> Reply<Acquired> {
    let way = Route::once(&step.id.name);
    let name = step.id.name.clone();
    let ask = move |redis: &Redis| redis.acquire(step.clone());
    let shared = Arc::clone(shared);
    let (began, answer) = (Instant::now(), shared.send_openly(way, ask.clone()));
    Box::pin(async move {
        let NodeAnswer { value, by, .. } = answer.await?;
        // A late "held" only has its caller wait on. But it may speak of a lease that this client gives back there (bug 295).
        if began.elapsed() < LATE || !matches!(value, Acquired::Granted { .. }) {
            return Ok(value.or_unsettled(|| shared.may_be_held(&name, began, by)));
        }
        // It has been granted, so no failure says that it has not.
        let ambiguous = |failure: Failure| Failure::Ambiguous(Arc::clone(failure.cause()));
        shared.table.asked().await.map_err(ambiguous)?;
        // Under the same lease id: the owner finds the hold, or takes it now. The engine counts from its own send, before both (B1).
        shared.send(way, ask).await.map_err(ambiguous)
    })
}

/// It is noted for some seconds: the node that takes the place of this one may not know of it.
pub(super) fn release(shared: &Arc<ClusterCore>, step: Release) -> Reply<ReleaseReply> {
    let way = Route::once(&step.id.name);
    let again = repeats::again(&step);
    let shared = Arc::clone(shared);
    let answer = shared.send_openly(way, move |redis| redis.release(step.clone()));
    Box::pin(async move {
        let NodeAnswer { value, by, .. } = answer.await?;
        if let Some(release) = again {
            // A node that stood still may have answered after its successor took the slot, which knows nothing of it (bug 235).
            let is_due = || !shared.is_owner(way.slot, by);
            if shared.lately.confirmed(release, by.into(), is_due) {
                shared.give_back_again();
            }
        }
        Ok(value)
    })
}

impl ClusterCore {
    fn is_owner(&self, slot: u16, node: u32) -> bool {
        let owner = self.nodes.owner(slot);
        owner.is_none_or(|owner| owner.number == node)
    }

    /// Whether the node of this number may have called held what this client has given back at another.
    fn may_be_held(&self, name: &Name, since: Instant, answered_by: u32) -> bool {
        let is_due = |_: &Release, by| by != u64::from(answered_by);
        let changes = if self.is_owner(slot(name.wire()), answered_by) {
            self.nodes.changes()
        } else {
            u64::MAX // a table named it, and then another did not: what is due at this node is not repeated
        };
        self.lately.may_be_held(name, since, changes, is_due)
    }

    /// Gives back at the owner, in the background, what was given back at a node that is not the owner any more.
    pub(super) fn give_back_again(self: &Arc<Self>) {
        let again = repeats::until_all(
            Arc::downgrade(self),
            self.background.clone(),
            |shared| &shared.lately,
            |shared| Box::pin(async move { shared.give_back_once().await }),
        );
        drop(self.background.handle().spawn(again));
    }

    async fn give_back_once(self: &Arc<Self>) -> bool {
        let is_due = |release: &Release, by| {
            let owner = self.nodes.owner(slot(release.id.name.wire()));
            owner.is_some_and(|owner| u64::from(owner.number) != by)
        };
        let give_back = |release: Release| {
            let way = Route {
                slot: slot(release.id.name.wire()),
                ask: AskRule::Never,
                patience: self.timeout,
                late: LATE,
            };
            self.send(way, move |redis| redis.release(release.clone()))
        };
        // Read before the first is sent: a change while they are under way must leave these to be looked at again.
        let changes = self.nodes.changes();
        self.lately.repeat(changes, is_due, give_back).await
    }
}
