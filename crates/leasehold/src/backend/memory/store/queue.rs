//! The clients that wait for a lock, in order, and how it is passed on to them.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{Store, rules};
use crate::{
    backend::{Acquire, Grant, Keep, KeptEntries, WakeUp},
    kind::Access,
    name::LockId,
    owner::LeaseId,
};

/// A client that waits, and the request that a grant to it answers (B3).
pub(super) struct Queued {
    pub(super) client: Arc<str>,
    pub(super) grant: Grant,
}

impl Queued {
    fn is(&self, client: &Arc<str>, lease: LeaseId) -> bool {
        self.client == *client && self.grant.lease == lease
    }
}

impl Store {
    /// The entries of clients that do not listen go, but for the one that asks: those clients are gone, and others have waited for them in vain.
    pub(super) fn forget_unheard(&mut self, id: &LockId, asks: Option<&Arc<str>>) {
        let subscribers = self.subscribers(id);
        let is_heard = |queued: &Queued| {
            asks == Some(&queued.client) || subscribers.iter().any(|s| s.client == queued.client)
        };
        let Some(queue) = self.queues.get_mut(id) else {
            return;
        };
        let before = queue.len();
        queue.retain(is_heard);
        if queue.len() < before && !rules(id.kind).is_in_turn() {
            self.tell_all(id);
        }
    }

    /// Whether another client that waits goes before this request.
    pub(super) fn is_behind(&self, client: &Arc<str>, step: &Acquire) -> bool {
        let mut queue = self.queues.get(&step.id).into_iter().flatten();
        if rules(step.id.kind).is_in_turn() {
            queue
                .next()
                .is_some_and(|first| !first.is(client, step.lease))
        } else if self.held_by(&step.id).is_empty() {
            // A client that waits gives a free lock to the first. (A client that comes may be faster.)
            step.entry.is_some() && queue.next().is_some_and(|first| first.client != *client)
        } else {
            self.gives_way(&step.id, step.access)
        }
    }

    /// Whether a client that waits goes before others that would join the holders.
    pub(super) fn gives_way(&self, id: &LockId, wants: Access) -> bool {
        let mut queue = self.queues.get(id).into_iter().flatten();
        queue.any(|queued| rules(id.kind).gives_way(wants, queued.grant.access))
    }

    /// Gives an entry to a lease id. If it has an entry, it keeps that, with the latest ask (B3).
    pub(super) fn queue(&mut self, client: &Arc<str>, id: &LockId, grant: Grant) {
        let queue = self.queues.entry(id.clone()).or_default();
        match queue
            .iter_mut()
            .find(|queued| queued.is(client, grant.lease))
        {
            Some(queued) => queued.grant.ask = queued.grant.ask.max(grant.ask),
            None => queue.push_back(Queued {
                client: Arc::clone(client),
                grant,
            }),
        }
    }

    /// Whether it had an entry.
    pub(super) fn leave_queue(&mut self, client: &Arc<str>, id: &LockId, lease: LeaseId) -> bool {
        let Some(queue) = self.queues.get_mut(id) else {
            return false;
        };
        let before = queue.len();
        queue.retain(|queued| !queued.is(client, lease));
        let left = queue.len() < before;
        if queue.is_empty() {
            self.queues.remove(id);
        }
        left
    }

    pub(super) fn is_queued(&self, client: &Arc<str>, id: &LockId, lease: LeaseId) -> bool {
        let mut queue = self.queues.get(id).into_iter().flatten();
        queue.any(|queued| queued.is(client, lease))
    }

    pub(super) fn has_queue(&self, id: &LockId) -> bool {
        self.queues.get(id).is_some_and(|queue| !queue.is_empty())
    }

    /// Gives the lock to the first in the queue, and to those behind it that can have it too. Returns how long the first has it; `None` if
    /// there is none.
    pub(super) fn give_to_next(&mut self, id: &LockId) -> Option<Duration> {
        self.forget_unheard(id, None);
        let mut given = None;
        while let Some(next) = self.queues.get(id).and_then(|queue| queue.front())
            && self.fits(id, next.grant.access)
        {
            let next = self.queues.get_mut(id).and_then(VecDeque::pop_front);
            let Some(Queued { client, mut grant }) = next else {
                break;
            };
            self.hold(&client, id, grant.access, (grant.lease, grant.lease_ms));
            // Reserved at the grant and not at the ask: tokens grow in the order of the grants.
            grant.tokens = self.tokens(id);
            given = given.or(Some(Duration::from_millis(grant.lease_ms)));
            // The hold stands, also if its message is lost: the waiter finds that it holds when it asks again (B3).
            self.tell(&client, id, WakeUp::Granted(grant));
        }
        if given.is_some() {
            self.tell_first(id);
        }
        given
    }

    /// The first in the queue watches the holder, for all: it would be the next to have the lock (L1). It is told when the lease ends, if it
    /// does not look before by itself; or that no client holds it.
    pub(super) fn tell_first(&mut self, id: &LockId) {
        let ends = self.held_by(id).iter().map(|held| held.ends).min();
        let wake_up = match ends {
            Some(ends) => WakeUp::Watch(ends.saturating_sub(self.clock)),
            None => WakeUp::TryAgain,
        };
        let first = self.queues.get(id).and_then(|queue| queue.front());
        if let Some(client) = first.map(|first| Arc::clone(&first.client)) {
            self.tell(&client, id, wake_up);
        }
    }

    /// Keeps the entries of a client's tasks, and sees to it that the next has the lock when it is free.
    pub(crate) fn keep(&mut self, client: &Arc<str>, step: &Keep) -> KeptEntries {
        let id = &step.id;
        let mut missing = Vec::new();
        for entry in &step.entries {
            let mut queue = self.queues.get_mut(id).into_iter().flatten();
            match queue.find(|queued| queued.is(client, entry.lease)) {
                Some(queued) => queued.grant.ask = queued.grant.ask.max(entry.ask),
                None => missing.push(entry.lease),
            }
        }
        let ttl = if self.held_by(id).is_empty() {
            self.give_to_next(id)
        } else {
            let ends = rules(id.kind).ends(self.held_by(id));
            ends.map(|ends| ends.saturating_sub(self.clock))
        };
        KeptEntries {
            ttl,
            foreign: false,
            missing,
        }
    }
}
