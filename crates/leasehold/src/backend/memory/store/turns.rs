//! The kinds whose waiting tasks have an entry each, and are served in turn.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::{Store, rules};
use crate::{
    backend::{Acquire, Keep, KeptEntries},
    name::LockId,
    owner::LeaseId,
};

impl Store {
    /// A client that is not heard for so long is dead, and so are its waiters.
    pub(crate) fn dead_after(&mut self, timeout: Duration) -> &mut Store {
        self.dead_after = timeout;
        self
    }

    /// Until when an entry is kept that is asked about now, and again every third of this time.
    pub(super) fn kept_until(&self, keep_ms: u64) -> Duration {
        self.clock + Duration::from_millis(keep_ms / 2) + self.dead_after
    }

    /// Whether this request may have the lock, as far as the order goes. If not, the free lock is given to the one whose turn it is.
    pub(super) fn is_its_turn(&mut self, client: &Arc<str>, step: &Acquire) -> bool {
        let id = &step.id;
        if !rules(id.kind).is_in_turn() || !self.held_by(id).is_empty() {
            return true;
        }
        // This request is a sign of life, also where its client's subscription is not counted yet.
        self.forget_dead(id, &[(Arc::clone(client), step.lease)]);
        let entries = self.queues.get(id).into_iter().flat_map(|all| &all.entries);
        let mut living =
            entries.filter(|queued| queued.silent_since.is_none() || queued.is(client, step.lease));
        match living.next() {
            // It may be given to the first, or find that one gone: then the lock is free still, and this request may have it.
            Some(first) if !first.is(client, step.lease) => {
                self.give_to_next(id);
                self.held_by(id).is_empty()
            }
            _ => true,
        }
    }

    /// Notes who is not heard (except those in `alive`: they ask), and takes out who was given up, or is dead.
    pub(super) fn forget_dead(&mut self, id: &LockId, alive: &[(Arc<str>, LeaseId)]) {
        let heard: BTreeSet<Arc<str>> = self
            .subscribers(id)
            .iter()
            .map(|subscriber| Arc::clone(&subscriber.client))
            .collect();
        let (now, dead_after) = (self.clock, self.dead_after);
        let Some(waiting) = self.queues.get_mut(id) else {
            return;
        };
        let gone = &self.gone;
        waiting.entries.retain_mut(|queued| {
            let lease = queued.grant.lease;
            let asks = alive
                .iter()
                .any(|(client, lease)| queued.is(client, *lease));
            // A stopped client listens, too.
            let is_there = queued.kept_until > now && heard.contains(&queued.client);
            queued.silent_since = if asks || is_there {
                None
            } else {
                // Silence counts from when it was first noted, and not from the latest look.
                Some(queued.silent_since.unwrap_or(now))
            };
            let dead = queued
                .silent_since
                .is_some_and(|since| now.saturating_sub(since) >= dead_after);
            !dead && !gone.contains_key(&(Arc::clone(&queued.client), lease))
        });
        if waiting.entries.is_empty() {
            self.queues.remove(id);
        }
    }

    /// Keeps the entries of a client's tasks, and sees to it that the next has the lock when it is free.
    pub(crate) fn keep(&mut self, client: &Arc<str>, step: &Keep) -> KeptEntries {
        let id = &step.id;
        let alive: Vec<_> = step
            .entries
            .iter()
            .map(|entry| (Arc::clone(client), entry.lease))
            .collect();
        self.forget_dead(id, &alive);
        let mut missing = Vec::new();
        let ends = self.clock + Duration::from_millis(step.end_ms);
        let kept_until = self.kept_until(step.end_ms);
        for entry in &step.entries {
            let waiting = self.queues.get_mut(id);
            let found = waiting.and_then(|waiting| {
                waiting.ends = waiting.ends.max(ends);
                let mut entries = waiting.entries.iter_mut();
                entries.find(|queued| queued.is(client, entry.lease))
            });
            match found {
                Some(queued) => {
                    queued.grant.ask = queued.grant.ask.max(entry.ask);
                    queued.kept_until = queued.kept_until.max(kept_until);
                }
                None => missing.push(entry.lease),
            }
        }
        // After the entries are kept: the next may be one of this client's, which was passed over until now.
        let ttl = if self.held_by(id).is_empty() {
            // If no entry can be served now, another look is of use when the silent ones count as dead.
            self.give_to_next(id).or(Some(self.dead_after))
        } else {
            let ends = rules(id.kind).ends(self.held_by(id));
            ends.map(|ends| ends.saturating_sub(self.clock))
        };
        KeptEntries {
            ttl,
            // Only a plain mutex of this store is ever held by another library's client (`Store::visit`).
            foreign: false,
            missing,
        }
    }

    /// How many clients wait in the queue.
    pub(super) fn waiting_clients(&self, id: &LockId) -> u64 {
        let entries = self.queues.get(id).into_iter().flat_map(|all| &all.entries);
        let clients: BTreeSet<&Arc<str>> = entries.map(|queued| &queued.client).collect();
        clients.len() as u64
    }
}
