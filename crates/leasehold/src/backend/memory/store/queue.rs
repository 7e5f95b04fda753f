//! The clients that wait for a lock, in order, and how it is passed on to them.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{Store, rules};
use crate::{
    backend::{Grant, Place, WakeUp},
    kind::Access,
    name::LockId,
    owner::LeaseId,
};

/// The clients that wait for a name, next first.
#[derive(Default)]
pub(super) struct Waiting {
    pub(super) places: VecDeque<Queued>,
    pub(super) ends: Duration,
}

/// One of them, and the ask that a grant to it answers (B3).
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
    /// Whether a client waits that goes first. One that hears nothing is gone.
    pub(super) fn gives_way(&self, id: &LockId, wants: Access) -> bool {
        let places = self.queues.get(id).into_iter().flat_map(|all| &all.places);
        let mut first =
            places.filter(|queued| rules(id.kind).gives_way(wants, queued.grant.access));
        first.any(|queued| self.hears(id, &queued.client))
    }

    /// Takes out the places of clients that would go first and are gone. Those that stand behind them have been waiting in vain.
    pub(super) fn forget_gone(&mut self, id: &LockId, wants: Access) {
        let listening = self.subscribers(id);
        let Some(waiting) = self.queues.get_mut(id) else {
            return;
        };
        let is_alive = |queued: &Queued| listening.iter().any(|s| s.client == queued.client);
        let first = |queued: &Queued| rules(id.kind).gives_way(wants, queued.grant.access);
        let before = waiting.places.len();
        waiting
            .places
            .retain(|queued| !first(queued) || is_alive(queued));
        if waiting.places.len() < before {
            self.tell_all(id);
        }
    }

    fn hears(&self, id: &LockId, client: &Arc<str>) -> bool {
        self.subscribers(id).iter().any(|s| s.client == *client)
    }

    /// Gives a place to a lease id. One that has a place keeps it, with the latest ask (B3).
    pub(super) fn queue(&mut self, client: &Arc<str>, id: &LockId, mut grant: Grant, place: Place) {
        grant.ask = place.ask;
        let ends = self.clock + Duration::from_millis(place.keep_ms);
        let waiting = self.queues.entry(id.clone()).or_default();
        waiting.ends = waiting.ends.max(ends);
        let mut places = waiting.places.iter_mut();
        match places.find(|queued| queued.is(client, grant.lease)) {
            Some(queued) => queued.grant.ask = queued.grant.ask.max(grant.ask),
            None => waiting.places.push_back(Queued {
                client: Arc::clone(client),
                grant,
            }),
        }
    }

    /// Whether it had a place.
    pub(super) fn leave_queue(&mut self, client: &Arc<str>, id: &LockId, lease: LeaseId) -> bool {
        let Some(waiting) = self.queues.get_mut(id) else {
            return false;
        };
        let before = waiting.places.len();
        waiting.places.retain(|queued| !queued.is(client, lease));
        let left = waiting.places.len() < before;
        if waiting.places.is_empty() {
            self.queues.remove(id);
        }
        left
    }

    pub(super) fn is_queued(&self, client: &Arc<str>, id: &LockId, lease: LeaseId) -> bool {
        self.queues
            .get(id)
            .is_some_and(|waiting| waiting.places.iter().any(|q| q.is(client, lease)))
    }

    pub(super) fn waiting(&self, id: &LockId) -> usize {
        self.queues
            .get(id)
            .map_or(0, |waiting| waiting.places.len())
    }

    pub(super) fn is_given_up(&self, client: &Arc<str>, lease: LeaseId) -> bool {
        self.gone.contains_key(&(Arc::clone(client), lease))
    }

    /// Gives the lock to the first in the queue that hears it, and to those behind it that can have it too. Returns how long
    /// the first has it; `None` if there is none.
    pub(super) fn give_to_next(&mut self, id: &LockId) -> Option<Duration> {
        let mut given = None;
        loop {
            let Some(waiting) = self.queues.get_mut(id) else {
                return given;
            };
            let first = waiting.places.front().map(|first| first.grant.access);
            if first.is_none_or(|access| !self.fits(id, access)) {
                return given;
            }
            let Some(Queued { client, mut grant }) = self.next_in_queue(id) else {
                return given;
            };
            // B4, and a client that hears nothing is gone.
            let subscriber = self.subscribers(id);
            let subscriber = subscriber
                .into_iter()
                .find(|subscriber| subscriber.client == client);
            let (false, Some(subscriber)) = (self.is_given_up(&client, grant.lease), subscriber)
            else {
                continue;
            };
            self.hold(&client, id, grant.access, (grant.lease, grant.lease_ms));
            grant.tokens = self.tokens(id);
            if !self.cut {
                self.outbox
                    .push((subscriber, id.clone(), WakeUp::Granted(grant)));
            }
            given = given.or(Some(Duration::from_millis(grant.lease_ms)));
        }
    }

    fn next_in_queue(&mut self, id: &LockId) -> Option<Queued> {
        let waiting = self.queues.get_mut(id)?;
        let first = waiting.places.pop_front();
        if waiting.places.is_empty() {
            self.queues.remove(id);
        }
        first
    }
}
