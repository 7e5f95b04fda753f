//! The steps of locks, the same for all topologies: a router finds the server, and each step is a call of its kind's script there.

use std::{sync::Arc, time::Duration};

use super::{
    fenced_store,
    kinds::wire,
    node::{NodeSteps, about},
    renew, repeats,
    router::{AskRule, NodeAnswer, Route, Router},
};
use crate::{
    backend::{
        Acquire, Acquired, Confirmation, Count, Counted, Downgrade, Extend, Failure, FencedSteps,
        ForceUnlock, Inspection, Keep, KeptEntries, LockSteps, NumberSteps, Once, Permits, Release,
        ReleaseReply, Renew, Renewal, Reply,
        fenced::{FencedRead, FencedWrite, Written},
        find::{FindPage, FoundPage},
    },
    clock::Instant,
    durability::Durability,
    error::Invalid,
    kind::{Access, LockKind},
    name::{LockId, Name},
    owner::LeaseId,
};

/// Sends a step that is tried again within the time of its caller.
fn patient<R: Router, T: Send + 'static>(
    router: &R,
    name: &Name,
    ask: AskRule,
    step: impl Fn(&NodeSteps) -> Reply<T> + Send + Sync + 'static,
) -> Reply<T> {
    let answer = router.send(Route::patient(router.slot(name.wire()), ask), step);
    Box::pin(async move { Ok(answer.await?.value) })
}

/// Sends a step that the engine repeats.
fn once<R: Router, T: Send + 'static>(
    router: &R,
    name: &Name,
    step: impl Fn(&NodeSteps) -> Reply<T> + Send + Sync + 'static,
) -> Reply<T> {
    let answer = router.send(Route::once(router.slot(name.wire())), step);
    Box::pin(async move { Ok(answer.await?.value) })
}

impl<R: Router> LockSteps for R {
    fn acquire(&self, step: Acquire) -> Reply<Acquired> {
        let way = Route::once(self.slot(step.id.name.wire()));
        let (name, servers) = (step.id.name.clone(), self.replaceable().cloned());
        let ask = move |at: &NodeSteps| {
            about!(at, Acquire, step.id, step.lease.get(), step);
            wire(step.id.kind).acquire(&at.runner, step.clone())
        };
        // The clock is read before the send: a release that is repeated from now on may give back the very holder that the answer names
        // (bug 295).
        let began = Instant::now();
        let again = R::HAS_SEVERAL.then(|| (self.clone(), ask.clone()));
        let answer = self.send(way, ask);
        Box::pin(async move {
            let NodeAnswer { value, by, .. } = answer.await?;
            // A late "held" only has its caller wait on. But it may speak of a lease that this client gives back there (bug 295).
            if !matches!(value, Acquired::Granted { .. }) {
                let may_be_ours =
                    |servers: Arc<_>| repeats::may_be_held(&*servers, &name, began, by);
                return Ok(value.or_unsettled(|| servers.is_some_and(may_be_ours)));
            }
            let again =
                again.and_then(|(router, ask)| Some((router.looked_again(began)?, router, ask)));
            let Some((looked_again, router, ask)) = again else {
                return Ok(value);
            };
            // The name has been granted, so no failure may say that it was not.
            let ambiguous = |failure: Failure| Failure::Ambiguous(Arc::clone(failure.cause()));
            looked_again.await.map_err(ambiguous)?;
            // Under the same lease id: the owner finds the hold, or takes it now. The engine counts from its own send, before both (B1).
            match router.send(way, ask).await.map_err(ambiguous)?.value {
                // The id was granted once, and may be held there still. And the holder may be a lease that this client is giving back (bug 317).
                Acquired::Held { .. } => Err(Failure::Ambiguous(Arc::new(GrantedBefore))),
                again => Ok(again),
            }
        })
    }

    fn release(&self, mut step: Release) -> Reply<ReleaseReply> {
        step.listening &= !R::HAS_SEVERAL;
        let way = Route::once(self.slot(step.id.name.wire()));
        let servers = self.replaceable().cloned();
        let again = servers.and_then(|servers| Some((servers, repeats::again(&step)?)));
        let answer = self.send(way, move |at| at.release(step.clone()));
        Box::pin(async move {
            let NodeAnswer { value, by, .. } = answer.await?;
            // Only a confirmed release is noted: the engine repeats one without an answer as a pending release, wherever the primary is
            // then (B5).
            if let Some((servers, again)) = again {
                repeats::confirmed(&servers, again, by);
            }
            Ok(value)
        })
    }

    fn renew(&self, batch: Arc<[Renew]>) -> Reply<Vec<Renewal>> {
        renew::renew(self, batch)
    }

    fn extend(&self, step: Extend) -> Reply<Option<Duration>> {
        let way = Route::patient(self.slot(step.id.name.wire()), AskRule::MayFollow);
        let answer = self.send(way, move |at| {
            about!(at, Extend, step.id, step.lease.get(), step);
            wire(step.id.kind).extend(&at.runner, step.clone())
        });
        Box::pin(async move {
            let NodeAnswer { value, partly, .. } = answer.await?;
            match partly {
                Some(failure) if value.is_none() => Err(failure),
                _ => Ok(value),
            }
        })
    }

    fn count(&self, mut step: Count) -> Reply<Counted> {
        step.listening &= !R::HAS_SEVERAL;
        let name = step.id.name.clone();
        // A node that is getting the slot may have a part of the keys, and a step that changes them would take the rest for none.
        patient(self, &name, AskRule::Never, move |at| {
            let mut step = step.clone();
            step.listening |= at.subscriptions.is_counted(&step.id);
            about!(at, Count, step.id, step.lease.get(), step);
            wire(step.id.kind).count(&at.runner, step)
        })
    }

    fn downgrade(&self, step: Downgrade) -> Reply<bool> {
        let name = step.id.name.clone();
        patient(self, &name, AskRule::Never, move |at| {
            about!(at, Downgrade, step.id, step.lease.get(), step);
            wire(step.id.kind).downgrade(&at.runner, step.clone())
        })
    }

    fn inspect(&self, id: LockId) -> Reply<Inspection> {
        let slot = self.slot(id.name.wire());
        let way = Route::patient(slot, AskRule::MayFollow);
        let found = self.send(way, move |at| at.inspect(id.clone()));
        let router = R::HAS_SEVERAL.then(|| self.clone());
        Box::pin(async move {
            let found = found.await?.value;
            match router {
                Some(router) => router.labelled(slot, found).await,
                None => Ok(found),
            }
        })
    }

    fn find(&self, step: FindPage) -> Reply<FoundPage> {
        self.page(step)
    }

    fn inspect_all(&self, ids: Vec<LockId>) -> Reply<Vec<(LockId, Inspection)>> {
        self.inspect_each(ids)
    }

    fn force_unlock(&self, step: ForceUnlock) -> Reply<Vec<String>> {
        let name = step.id.name.clone();
        patient(self, &name, AskRule::Never, move |at| {
            about!(at, ForceUnlock, step.id, 0, "");
            wire(step.id.kind).force_unlock(&at.runner, &step)
        })
    }

    fn owner(&self, kind: LockKind, access: Access, lease: LeaseId) -> String {
        // Made of the client's uuid and the lease id, so the connections of every server say the same.
        wire(kind).owner(&self.steps().runner, access, lease)
    }

    fn supports(&self, id: &LockId) -> Result<(), Invalid> {
        self.serves(id)
    }

    fn confirm(&self, batch: Arc<[Renew]>, policy: Durability) -> Reply<Vec<Confirmation>> {
        renew::confirm(self, batch, policy)
    }

    fn confirms(&self) -> Result<(), &'static str> {
        Ok(())
    }

    fn can_confirm(&self, id: &LockId, policy: Durability) -> Reply<()> {
        once(self, &id.name, move |at| at.is_able(policy))
    }

    fn keep(&self, step: Keep) -> Reply<KeptEntries> {
        let name = step.id.name.clone();
        once(self, &name, move |at| {
            about!(at, Keep, step.id, step.entries.iter().map(|it| (step.id.name.shared(), it.lease.get())) => step);
            wire(step.id.kind).keep(&at.runner, step.clone())
        })
    }
}

impl<R: Router> NumberSteps for R {
    fn permits(&self, id: LockId, step: Permits, of_once: Once) -> Reply<i64> {
        let name = id.name.clone();
        patient(self, &name, AskRule::Never, move |at| {
            about!(at, Permits, id, of_once.number.get(), step);
            wire(id.kind).permits(&at.runner, id.clone(), step, of_once)
        })
    }
}

impl<R: Router> FencedSteps for R {
    fn keeps_data(&self, name: &Name, key: &Name) -> Result<(), Invalid> {
        self.keeps(name, key)
    }

    fn write(&self, step: FencedWrite) -> Reply<Written> {
        let name = step.name.clone();
        patient(self, &name, AskRule::Never, move |at| {
            fenced_store::write(&at.runner, &step)
        })
    }

    fn read(&self, step: FencedRead) -> Reply<Option<Vec<u8>>> {
        let name = step.name.clone();
        patient(self, &name, AskRule::Never, move |at| {
            fenced_store::read(&at.runner, &step)
        })
    }
}

#[derive(Debug, thiserror::Error)]
#[error("a node of the cluster granted it just before another took its place; try again")]
struct GrantedBefore;
