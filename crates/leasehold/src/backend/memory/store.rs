//! What the scripts in `backend/redis` do, in Rust: the readable specification. No I/O, no clock of its own.

#[cfg(feature = "sim")]
pub(crate) mod look;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::Listener;
use crate::{
    backend::{
        Acquire, Acquired, Grant, Inspection, Place, Release, ReleaseReply, Renew, Renewal, Sink,
        WakeUp,
    },
    name::Name,
    owner::LeaseId,
};

/// What one client hears.
pub(crate) struct Subscriber {
    pub(super) client: Arc<str>,
    pub(super) sink: Arc<dyn Sink>,
}

impl Subscriber {
    pub(crate) fn new(client: &Arc<str>, sink: Arc<dyn Sink>) -> Subscriber {
        Subscriber {
            client: Arc::clone(client),
            sink,
        }
    }
}

#[derive(Default)]
pub(crate) struct Store {
    pub(super) held: BTreeMap<Name, HeldHash>,
    queues: BTreeMap<Name, Waiting>,
    pub(super) listeners: HashMap<Name, Vec<Listener>>,
    /// Lease ids that were given up, until then.
    gone: HashMap<(Arc<str>, LeaseId), Duration>,
    pub(super) labels: HashMap<Arc<str>, String>,
    /// Messages of the present step, told after it.
    pub(super) outbox: Vec<(Arc<Subscriber>, Name, WakeUp)>,
    /// What the server's clock shows: the time since the server began.
    clock: Duration,
    /// How far it has been stepped ahead.
    pub(super) ahead: Duration,
    /// Messages do not get through.
    pub(super) cut: bool,
}

pub(super) struct HeldHash {
    client: Arc<str>,
    lease: LeaseId,
    holds: u32,
    ends: Duration,
}

/// The clients that wait for a name, next first.
#[derive(Default)]
struct Waiting {
    places: VecDeque<Queued>,
    ends: Duration,
}

/// One of them, and the ask that a grant to it answers (B3).
struct Queued {
    client: Arc<str>,
    grant: Grant,
}

impl Queued {
    fn is(&self, client: &Arc<str>, lease: LeaseId) -> bool {
        self.client == *client && self.grant.lease == lease
    }
}

impl Store {
    /// The server's clock shows `now` from here on. What has ended by then is gone.
    pub(crate) fn set_clock(&mut self, now: Duration) {
        self.clock = now + self.ahead;
        let now = self.clock;
        self.held.retain(|_, held| held.ends > now);
        self.gone.retain(|_, until| *until > now);
        self.queues.retain(|_, waiting| waiting.ends > now);
    }

    fn ours(&mut self, client: &Arc<str>, name: &Name, lease: LeaseId) -> Option<&mut HeldHash> {
        self.held
            .get_mut(name)
            .filter(|held| held.client == *client && held.lease == lease)
    }

    fn hold(&mut self, client: &Arc<str>, name: &Name, lease: LeaseId, lease_ms: u64) {
        let held = HeldHash {
            client: Arc::clone(client),
            lease,
            holds: 1,
            ends: self.clock + Duration::from_millis(lease_ms),
        };
        self.held.insert(name.clone(), held);
    }

    /// Gives a place to a lease id. One that has a place keeps it, with the latest ask (B3).
    fn queue(&mut self, client: &Arc<str>, name: &Name, mut grant: Grant, place: Place) {
        grant.ask = place.ask;
        let ends = self.clock + Duration::from_millis(place.keep_ms);
        let waiting = self.queues.entry(name.clone()).or_default();
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

    fn leave_queue(&mut self, client: &Arc<str>, name: &Name, lease: LeaseId) {
        if let Some(waiting) = self.queues.get_mut(name) {
            waiting.places.retain(|queued| !queued.is(client, lease));
            if waiting.places.is_empty() {
                self.queues.remove(name);
            }
        }
    }

    fn is_queued(&self, client: &Arc<str>, name: &Name, lease: LeaseId) -> bool {
        self.queues
            .get(name)
            .is_some_and(|waiting| waiting.places.iter().any(|q| q.is(client, lease)))
    }

    fn waiting(&self, name: &Name) -> usize {
        self.queues
            .get(name)
            .map_or(0, |waiting| waiting.places.len())
    }

    fn is_given_up(&self, client: &Arc<str>, lease: LeaseId) -> bool {
        self.gone.contains_key(&(Arc::clone(client), lease))
    }

    /// Gives the name to the first in the queue that hears it. How long it has the name; `None` if there is none.
    fn give_to_next(&mut self, name: &Name) -> Option<Duration> {
        loop {
            let waiting = self.queues.get_mut(name)?;
            let first = waiting.places.pop_front();
            if waiting.places.is_empty() {
                self.queues.remove(name);
            }
            let Queued { client, grant } = first?;
            // B4, and a client that hears nothing is gone.
            let subscriber = self.subscriber(name);
            let subscriber = subscriber
                .into_iter()
                .find(|subscriber| subscriber.client == client);
            let (false, Some(subscriber)) = (self.is_given_up(&client, grant.lease), subscriber)
            else {
                continue;
            };
            self.hold(&client, name, grant.lease, grant.lease_ms);
            if !self.cut {
                self.outbox
                    .push((subscriber, name.clone(), WakeUp::Granted(grant)));
            }
            return Some(Duration::from_millis(grant.lease_ms));
        }
    }

    fn subscriber(&self, name: &Name) -> Vec<Arc<Subscriber>> {
        let listeners = self.listeners.get(name);
        listeners.map_or_else(Vec::new, |all| {
            all.iter().filter_map(Listener::upgrade).collect()
        })
    }

    pub(super) fn tell_all(&mut self, name: &Name) {
        if self.cut {
            return;
        }
        for subscriber in self.subscriber(name) {
            self.outbox
                .push((subscriber, name.clone(), WakeUp::TryAgain));
        }
    }

    pub(crate) fn acquire(&mut self, client: &Arc<str>, step: &Acquire) -> Acquired {
        let (now, lease) = (self.clock, Duration::from_millis(step.lease_ms));
        // In this order (B3, B4): it holds; it was given up; the name is free; its place.
        if let Some(held) = self.ours(client, &step.name, step.lease) {
            held.ends = held.ends.max(now + lease);
            let remaining = held.ends.saturating_sub(now);
            return Acquired::Granted { remaining };
        }
        if self.is_given_up(client, step.lease) {
            return Acquired::GivenUp;
        }
        if let Some(held) = self.held.get(&step.name) {
            let ttl = Some(held.ends.saturating_sub(now));
            if let Some(place) = step.place {
                let grant = Grant {
                    lease: step.lease,
                    lease_ms: step.lease_ms,
                    ask: place.ask,
                };
                self.queue(client, &step.name, grant, place);
            }
            return Acquired::Held { ttl };
        }
        self.hold(client, &step.name, step.lease, step.lease_ms);
        self.leave_queue(client, &step.name, step.lease);
        Acquired::Granted { remaining: lease }
    }

    pub(crate) fn release(&mut self, client: &Arc<str>, step: &Release) -> ReleaseReply {
        let (name, now) = (&step.name, self.clock);
        if let Some(ms) = step.tombstone_ms {
            let until = now + Duration::from_millis(ms);
            self.gone.insert((Arc::clone(client), step.lease), until);
        }
        self.leave_queue(client, name, step.lease);
        if self.ours(client, name, step.lease).is_none() {
            return match step.next {
                Some(next) => {
                    self.ours(client, name, next.lease)
                        .map_or(ReleaseReply::NotOurs, |held| ReleaseReply::Kept {
                            remaining: held.ends.saturating_sub(now),
                        })
                }
                None => ReleaseReply::NotOurs,
            };
        }
        // B4: a late copy of this release must not revive a `next` that was given up meanwhile.
        let next = step
            .next
            .filter(|next| !self.is_given_up(client, next.lease));
        let others = self
            .subscriber(name)
            .len()
            .saturating_sub(usize::from(step.listening));
        if let Some(next) = next
            && next.keep
            && others == 0
            && self.waiting(name) == 0
        {
            self.hold(client, name, next.lease, next.lease_ms);
            return ReleaseReply::Kept {
                remaining: Duration::from_millis(next.lease_ms),
            };
        }
        let next_waits = next.is_some_and(|next| self.is_queued(client, name, next.lease));
        self.held.remove(name);
        let granted = self.give_to_next(name);
        if (granted.is_some() || others > 0)
            && !next_waits
            && let Some(next) = next
            && let Some(place) = next.place
        {
            let grant = Grant {
                lease: next.lease,
                lease_ms: next.lease_ms,
                ask: place.ask,
            };
            self.queue(client, name, grant, place);
        }
        if let Some(lease) = granted {
            return ReleaseReply::Granted { lease };
        }
        self.tell_all(name);
        ReleaseReply::Freed {
            others: others as u64,
        }
    }

    pub(crate) fn renew(&mut self, client: &Arc<str>, renew: &Renew<'_>) -> Renewal {
        let ends = self.clock + Duration::from_millis(renew.lease_ms);
        match self.ours(client, renew.name, renew.lease) {
            Some(held) => {
                held.ends = held.ends.max(ends);
                Renewal::Extended
            }
            None => Renewal::Lost,
        }
    }

    pub(crate) fn extend(
        &mut self,
        client: &Arc<str>,
        name: &Name,
        lease: LeaseId,
        lease_ms: u64,
    ) -> Option<Duration> {
        let now = self.clock;
        let held = self.ours(client, name, lease)?;
        held.ends = held.ends.max(now + Duration::from_millis(lease_ms));
        Some(held.ends.saturating_sub(now))
    }

    pub(crate) fn count(
        &mut self,
        client: &Arc<str>,
        name: &Name,
        lease: LeaseId,
        holds: u32,
    ) -> bool {
        let ours = self.ours(client, name, lease);
        ours.map(|held| held.holds = holds).is_some()
    }

    pub(crate) fn inspect(&self, name: &Name) -> Inspection {
        let held = self.held.get(name);
        Inspection {
            owners: held
                .map(|held| (format!("{}:{}", held.client, held.lease), held.holds.into()))
                .into_iter()
                .collect(),
            ttl: held.map(|held| held.ends.saturating_sub(self.clock)),
            listeners: self.subscriber(name).len() as u64,
            label: held.and_then(|held| self.labels.get(&held.client).cloned()),
        }
    }

    pub(crate) fn force_unlock(&mut self, name: &Name) -> Vec<String> {
        let Some(held) = self.held.remove(name) else {
            return Vec::new();
        };
        if self.give_to_next(name).is_none() {
            self.tell_all(name);
        }
        vec![format!("{}:{}", held.client, held.lease)]
    }

    pub(crate) fn listen(&mut self, client: &Arc<str>, name: &Name, subscriber: &Arc<Subscriber>) {
        let listeners = self.listeners.entry(name.clone()).or_default();
        listeners.retain(|subscriber| {
            subscriber
                .upgrade()
                .is_some_and(|subscriber| subscriber.client != *client)
        });
        listeners.push(Arc::downgrade(subscriber));
    }

    pub(crate) fn unlisten(&mut self, client: &Arc<str>, name: &Name) {
        if let Some(listeners) = self.listeners.get_mut(name) {
            listeners.retain(|subscriber| {
                subscriber
                    .upgrade()
                    .is_some_and(|subscriber| subscriber.client != *client)
            });
            if listeners.is_empty() {
                self.listeners.remove(name);
            }
        }
    }
}
