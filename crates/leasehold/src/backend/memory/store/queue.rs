//! The clients that wait for a lock, in order, and how it is passed on to them.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{Store, StoredHold, rules};
use crate::{
    backend::{Acquire, Acquired, Grant, QueueEntry, WakeUp},
    kind::Access,
    name::LockId,
    owner::LeaseId,
};

/// The clients that wait for a name, next first.
#[derive(Default)]
pub(super) struct Waiting {
    pub(super) entries: VecDeque<Queued>,
    pub(super) ends: Duration,
}

/// A client that waits looks after so long at the latest, as far as the server knows; `waiting.lua` says the same.
const ASKS_WITHIN: Duration = Duration::from_secs(12);

/// An entry, and the request that a grant to it answers (B3).
pub(super) struct Queued {
    pub(super) client: Arc<str>,
    pub(super) grant: Grant,
    /// Of a kind that is served in turn: until when its client has kept it, and since when that is over or it is not heard.
    pub(super) kept_until: Duration,
    pub(super) silent_since: Option<Duration>,
}

impl Queued {
    pub(super) fn is(&self, client: &Arc<str>, lease: LeaseId) -> bool {
        self.client == *client && self.grant.lease == lease
    }
}

impl Store {
    /// Whether a client waits that goes first. The entries before it of such that hear nothing go: those are gone, and who stands behind them
    /// has been waiting in vain. `may_join` of `rw_lock/queue.lua` does the same.
    pub(super) fn gives_way(&mut self, id: &LockId, wants: Access) -> bool {
        let subscribers = self.subscribers(id);
        let Some(waiting) = self.queues.get_mut(id) else {
            return false;
        };
        let (before, mut gives_way) = (waiting.entries.len(), false);
        waiting.entries.retain(|queued| {
            // Only up to the first that is heard: the entries behind it have not kept this newcomer out.
            if gives_way || !rules(id.kind).gives_way(wants, queued.grant.access) {
                return true;
            }
            gives_way = subscribers.iter().any(|s| s.client == queued.client);
            gives_way
        });
        let is_shorter = waiting.entries.len() < before;
        if waiting.entries.is_empty() {
            self.queues.remove(id);
        }
        if is_shorter {
            self.tell_all(id);
        }
        gives_way
    }

    /// Whether another client that hears it is the first in the queue.
    pub(super) fn is_behind_another(&self, client: &Arc<str>, id: &LockId) -> bool {
        let entries = self.queues.get(id).and_then(|all| all.entries.front());
        entries.is_some_and(|first| first.client != *client && self.hears(id, &first.client))
    }

    pub(super) fn held_by_others(&self, id: &LockId) -> Acquired {
        let ends = rules(id.kind).ends(self.held_by(id));
        Acquired::Held {
            given_up: false,
            unsettled: false,
            ttl: ends.map(|ends| ends.saturating_sub(self.clock)),
            silent: self.held_by(id).iter().any(StoredHold::is_foreign),
        }
    }

    fn hears(&self, id: &LockId, client: &Arc<str>) -> bool {
        self.subscribers(id).iter().any(|s| s.client == *client)
    }

    /// Gives an entry to a lease id. If it has an entry, it keeps that, with the latest ask (B3).
    pub(super) fn queue(
        &mut self,
        client: &Arc<str>,
        id: &LockId,
        mut grant: Grant,
        entry: QueueEntry,
    ) {
        grant.ask = entry.ask;
        let ends = self.clock + Duration::from_millis(entry.keep_ms);
        let kept_until = self.kept_until(entry.keep_ms);
        let waiting = self.queues.entry(id.clone()).or_default();
        // The queue outlives its latest visitor by that, however long its entries stand (L3).
        waiting.ends = waiting.ends.max(ends);
        let mut entries = waiting.entries.iter_mut();
        match entries.find(|queued| queued.is(client, grant.lease)) {
            // Its place stays, and so do its terms: a late copy must not move the ask back, nor shorten its time.
            Some(queued) => {
                queued.grant.ask = queued.grant.ask.max(grant.ask);
                queued.kept_until = queued.kept_until.max(kept_until);
            }
            None => waiting.entries.push_back(Queued {
                client: Arc::clone(client),
                grant,
                kept_until,
                silent_since: None,
            }),
        }
    }

    /// Whether it had an entry.
    pub(super) fn leave_queue(&mut self, client: &Arc<str>, id: &LockId, lease: LeaseId) -> bool {
        let Some(waiting) = self.queues.get_mut(id) else {
            return false;
        };
        let before = waiting.entries.len();
        waiting.entries.retain(|queued| !queued.is(client, lease));
        let left = waiting.entries.len() < before;
        if waiting.entries.is_empty() {
            self.queues.remove(id);
        }
        left
    }

    pub(super) fn is_queued(&self, client: &Arc<str>, id: &LockId, lease: LeaseId) -> bool {
        self.queues
            .get(id)
            .is_some_and(|waiting| waiting.entries.iter().any(|q| q.is(client, lease)))
    }

    pub(super) fn waiting(&self, id: &LockId) -> usize {
        self.queues
            .get(id)
            .map_or(0, |waiting| waiting.entries.len())
    }

    pub(super) fn is_given_up(&self, client: &Arc<str>, lease: LeaseId) -> bool {
        self.gone.contains_key(&(Arc::clone(client), lease))
    }

    /// Gives the lock to the first in the queue that hears it, and to those behind it that can have it too. Returns how long the first has
    /// it; `None` if there is none.
    pub(super) fn give_to_next(&mut self, id: &LockId) -> Option<Duration> {
        let given = self.pass_on(id);
        // The next behind it watches the new holder from now on, and must know its end (L1).
        if given.is_some() {
            self.tell_first(id);
        }
        given
    }

    /// This step has taken a lock that was free, or not. If it reads, the holder before has died, and no release lets in the readers that
    /// wait.
    pub(super) fn let_in_behind(&mut self, id: &LockId, step: &Acquire, was_free: bool) {
        if was_free && !step.access.is_exclusive() && rules(id.kind).has_queue() {
            self.give_to_next(id);
        }
    }

    /// The first in the queue that hears it watches the holder, for all: it would be the next to have the lock (L1). It is told when the
    /// lease ends, if it does not look before by itself; or that no client holds it.
    pub(super) fn tell_first(&mut self, id: &LockId) {
        let held = self.held_by(id).iter().map(|held| held.ends);
        let wake_up = match held.min().map(|ends| ends.saturating_sub(self.clock)) {
            Some(left) if left >= ASKS_WITHIN => return,
            Some(left) => WakeUp::Watch(left),
            None => WakeUp::TryAgain,
        };
        let mut entries = self.queues.get(id).into_iter().flat_map(|all| &all.entries);
        let subscribers = self.subscribers(id);
        let first =
            entries.find_map(|queued| subscribers.iter().find(|s| s.client == queued.client));
        if let Some(first) = first.filter(|_| !self.cut) {
            let told = (Arc::clone(first), id.clone(), wake_up);
            self.outbox.push(told);
        }
    }

    fn pass_on(&mut self, id: &LockId) -> Option<Duration> {
        let (mut given, mut at) = (None, 0);
        if rules(id.kind).is_in_turn() {
            self.forget_dead(id, &[]);
        }
        loop {
            let queued = self.queues.get(id).and_then(|all| all.entries.get(at));
            let Some(queued) = queued else {
                return given;
            };
            if queued.silent_since.is_some() {
                at += 1; // it keeps its entry for a while, and is passed over
                continue;
            }
            let access = queued.grant.access;
            // Beside readers, a writer that hears nothing keeps none out.
            let is_gone = self.fits(id, Access::Shared) && !self.hears(id, &queued.client);
            if !self.fits(id, access) && !is_gone {
                return given;
            }
            // Taken out for good: an entry that cannot be served (given up, or not heard) would else meet each release.
            let Some(Queued {
                client, mut grant, ..
            }) = self.take_entry(id, at)
            else {
                return given;
            };
            // B4, and a client that hears nothing is gone.
            let subscriber = self.subscribers(id);
            let subscriber = subscriber
                .into_iter()
                .find(|subscriber| subscriber.client == client);
            let given_up = self.is_given_up(&client, grant.lease);
            let holds = self.ours(&client, id, grant.lease).is_some();
            let (false, Some(subscriber)) = (given_up || holds, subscriber) else {
                continue;
            };
            self.hold(&client, id, access, (grant.lease, grant.lease_ms));
            // Reserved at the grant and not at the ask: tokens grow in the order of the grants.
            grant.tokens = self.tokens(id);
            // The hold stands, also if its message is lost: the waiter finds that it holds when it asks again (B3).
            if !self.cut {
                self.outbox
                    .push((subscriber, id.clone(), WakeUp::Granted(grant)));
            }
            // Of the first alone. The loop goes on: readers behind a reader get in together.
            given = given.or(Some(Duration::from_millis(grant.lease_ms)));
        }
    }

    fn take_entry(&mut self, id: &LockId, at: usize) -> Option<Queued> {
        let waiting = self.queues.get_mut(id)?;
        let entry = waiting.entries.remove(at);
        if waiting.entries.is_empty() {
            self.queues.remove(id);
        }
        entry
    }
}

#[cfg(test)]
mod tests;
