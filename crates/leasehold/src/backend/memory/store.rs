//! The scripts of `backend/redis`, in Rust: the readable specification. No I/O, no clock of its own.

mod fenced;
mod find;
mod numbers;
mod queue;
mod release;
#[cfg(feature = "sim")]
pub(crate) mod snapshot;
mod turns;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
    time::Duration,
};

use fenced::Fences;
use queue::Waiting;

use super::kinds::{StoredHold, rules};
use crate::{
    backend::{
        Acquire, Acquired, Count, Counted, Extend, Failure, Grant, Inspection, KnownClient, Owned,
        QUEUED_MOST, QueuedOwner, Renew, Renewal, Sink, WakeUp, fenced::Tokens,
    },
    kind::{Access, LockKind},
    name::LockId,
    owner::LeaseId,
};

/// The server keeps no client alive.
type Listener = Weak<Subscriber>;

/// A client that listens, and the sink of its wake-ups.
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

#[derive(Debug, thiserror::Error)]
#[error(
    "the name is held as a {is}, and not as a {asked} (WRONGTYPE); use another name, or the same kind of lock in all programs"
)]
struct WrongKind {
    is: LockKind,
    asked: LockKind,
}

#[derive(Default)]
pub(crate) struct Store {
    pub(super) held: BTreeMap<LockId, Vec<StoredHold>>,
    /// How many permits there are, by semaphore: in all, or without leases those that are free; the count, by latch.
    pub(super) permits: HashMap<LockId, i64>,
    queues: BTreeMap<LockId, Waiting>,
    pub(super) listeners: HashMap<LockId, Vec<Listener>>,
    /// Lease ids that were given up, until then.
    gone: HashMap<(Arc<str>, LeaseId), Duration>,
    /// The answers to requests that are not to be carried out twice, and until when they are kept.
    done: HashMap<(Arc<str>, LeaseId), (i64, Duration)>,
    fences: Fences,
    /// The clients that are connected, and how each calls itself.
    pub(super) connected: HashMap<Arc<str>, (String, Listener)>,
    /// The labels of clients that hold or wait, and until when they are kept.
    labels: HashMap<Arc<str>, (String, Duration)>,
    /// Messages of the present step, told after it.
    pub(super) outbox: Vec<(Arc<Subscriber>, LockId, WakeUp)>,
    /// The reading of the server's clock: the time since the server began.
    clock: Duration,
    /// A client of a fair mutex that is not heard for so long is dead.
    dead_after: Duration,
    /// How far it has been stepped ahead.
    pub(super) ahead: Duration,
    /// Messages do not get through.
    pub(super) cut: bool,
}

impl Store {
    /// Sets the server's clock to `now`. Leases and tombstones that have ended by then are gone.
    pub(crate) fn set_clock(&mut self, now: Duration) {
        self.clock = now + self.ahead;
        let now = self.clock;
        self.held.retain(|_, held| {
            held.retain(|held| held.ends > now);
            !held.is_empty()
        });
        self.done.retain(|_, (_, until)| *until > now);
        self.gone.retain(|_, until| *until > now);
        self.labels.retain(|_, (_, until)| *until > now);
        // Permits have no end: a number stays until a client sets another.
        self.fences.set_clock(now);
        self.queues.retain(|_, waiting| waiting.ends > now);
    }

    /// All clients that listen to anything are to ask again.
    pub(super) fn tell_everyone(&mut self) {
        let ids: Vec<LockId> = self.listeners.keys().cloned().collect();
        for id in ids {
            self.tell_all(&id);
        }
    }

    /// The clock began at this time, since 1970.
    pub(super) fn set_epoch(&mut self, epoch: Duration) {
        self.fences.epoch = epoch;
    }

    /// An error if the name is another kind's.
    pub(crate) fn check_kind(&self, id: &LockId) -> Result<(), Failure> {
        let is_there = |kind: &LockKind| {
            let other = LockId::new(*kind, id.name.clone());
            *kind != id.kind
                && (self.held.contains_key(&other) || self.permits.contains_key(&other))
        };
        match LockKind::ALL.iter().find(|kind| is_there(kind)) {
            Some(&is) => Err(Failure::Rejected(Arc::new(WrongKind {
                is,
                asked: id.kind,
            }))),
            None => Ok(()),
        }
    }

    fn held_by(&self, id: &LockId) -> &[StoredHold] {
        self.held.get(id).map_or(&[], Vec::as_slice)
    }

    fn ours(&mut self, client: &Arc<str>, id: &LockId, lease: LeaseId) -> Option<&mut StoredHold> {
        let held = self.held.get_mut(id)?;
        held.iter_mut()
            .find(|held| held.client == *client && held.lease == lease)
    }

    fn hold(&mut self, client: &Arc<str>, id: &LockId, access: Access, lease: (LeaseId, u64)) {
        let (lease, lease_ms) = lease;
        self.held.entry(id.clone()).or_default().push(StoredHold {
            client: Arc::clone(client),
            lease,
            access,
            holds: 1,
            ends: self.clock + Duration::from_millis(lease_ms),
        });
    }

    fn drop_hold(&mut self, client: &Arc<str>, id: &LockId, lease: LeaseId) {
        if let Some(held) = self.held.get_mut(id) {
            held.retain(|held| held.client != *client || held.lease != lease);
            if held.is_empty() {
                self.held.remove(id);
            }
        }
    }

    fn fits(&self, id: &LockId, access: Access) -> bool {
        let permits = self.permits.get(id).copied().unwrap_or(0);
        rules(id.kind).fits(self.held_by(id), access, permits)
    }

    fn subscribers(&self, id: &LockId) -> Vec<Arc<Subscriber>> {
        let listeners = self.listeners.get(id);
        listeners.map_or_else(Vec::new, |all| {
            all.iter().filter_map(Listener::upgrade).collect()
        })
    }

    /// The clients that are connected, in the same order each time.
    pub(super) fn clients(&self) -> Vec<Arc<Subscriber>> {
        let clients = self.connected.values();
        let mut clients: Vec<_> = clients.filter_map(|(_, client)| client.upgrade()).collect();
        clients.sort_by(|a, b| a.client.cmp(&b.client));
        clients
    }

    /// A restart without data.
    pub(crate) fn forget(&mut self) {
        // Connections are told apart from data: who listens, and who is connected, stays.
        self.held.clear();
        self.queues.clear();
        self.gone.clear();
        self.fences.forget();
        self.done.clear();
        self.labels.clear();
        self.permits.clear();
    }

    pub(super) fn tell_all(&mut self, id: &LockId) {
        if self.cut {
            return;
        }
        for subscriber in self.subscribers(id) {
            self.outbox.push((subscriber, id.clone(), WakeUp::TryAgain));
        }
    }

    /// It was taken from these by force: their clients hear it, if they listen.
    fn tell_holders(&mut self, id: &LockId, held: &[StoredHold]) {
        if self.cut {
            return;
        }
        for subscriber in self.subscribers(id) {
            if held.iter().any(|held| held.client == subscriber.client) {
                self.outbox.push((subscriber, id.clone(), WakeUp::Forced));
            }
        }
    }

    pub(crate) fn acquire(&mut self, client: &Arc<str>, step: &Acquire) -> Acquired {
        let (id, now) = (&step.id, self.clock);
        if id.kind.never_ends() {
            return self.take(client, step);
        }
        // In this order (B3, B4): it holds; it was given up; the lock can be had; its entry.
        if let Some(held) = self.ours(client, id, step.lease) {
            if held.access != step.access {
                // A late copy: it was downgraded since, and a lease id never changes back from a reader to a writer (B4).
                return self.held_by_others(id);
            }
            held.ends = held.ends.max(now + Duration::from_millis(step.lease_ms));
            let remaining = held.ends.saturating_sub(now);
            let tokens = self.tokens(id);
            return Acquired::Granted { remaining, tokens };
        }
        if self.is_given_up(client, step.lease) {
            return Acquired::GivenUp;
        }
        // After the tombstone: a late copy must not set how many permits there are. Before the look whether enough are free.
        if let Some(permits) = step.permits {
            self.provide(id, permits);
        }
        let in_turn = self.is_its_turn(client, step);
        let is_free = self.held_by(id).is_empty();
        let fits = self.fits(id, step.access) && (is_free || !self.gives_way(id, step.access));
        // A client that waits gives a free lock to the first in the queue. (A client that comes may be faster.)
        let gives = is_free && step.entry.is_some() && !rules(id.kind).is_in_turn();
        let gives = gives && self.is_behind_another(client, id);
        if in_turn && fits && !gives {
            self.hold(client, id, step.access, (step.lease, step.lease_ms));
            // B4: a lease id that holds has no entry.
            self.leave_queue(client, id, step.lease);
            self.let_in_behind(id, step, is_free);
            return Acquired::Granted {
                remaining: Duration::from_millis(step.lease_ms),
                tokens: self.tokens(id),
            };
        }
        // Before the lock is given to the next: a reader that has an entry gets in behind the first, in the same step.
        if let Some(entry) = step.entry.filter(|_| rules(id.kind).has_queue()) {
            let grant = Grant {
                access: step.access,
                lease: step.lease,
                lease_ms: step.lease_ms,
                ask: entry.ask,
                tokens: Tokens::NONE,
            };
            self.queue(client, id, grant, entry);
        }
        if gives {
            self.give_to_next(id);
            return self.acquire(client, step); // it holds, or another does
        }
        if matches!(step.access, Access::Permits(_)) && is_free && !self.permits.contains_key(id) {
            return Acquired::Unset;
        }
        self.held_by_others(id)
    }

    pub(crate) fn renew(&mut self, client: &Arc<str>, renew: &Renew) -> Renewal {
        let ends = self.clock + Duration::from_millis(renew.lease_ms);
        match self.ours(client, &renew.id, renew.lease) {
            Some(held) => {
                held.ends = held.ends.max(ends);
                Renewal::Extended
            }
            // No holds are stored of a semaphore without leases, so none can be missing.
            None if renew.id.kind.never_ends() => Renewal::Extended,
            None => Renewal::Lost,
        }
    }

    pub(crate) fn extend(&mut self, client: &Arc<str>, step: &Extend) -> Option<Duration> {
        let now = self.clock;
        if step.id.kind.never_ends() {
            return Some(Duration::from_millis(step.lease_ms));
        }
        let held = self.ours(client, &step.id, step.lease)?;
        held.ends = held.ends.max(now + Duration::from_millis(step.lease_ms));
        Some(held.ends.saturating_sub(now))
    }

    pub(crate) fn count(&mut self, client: &Arc<str>, step: &Count) -> Counted {
        if step.id.kind.never_ends() {
            return Counted::Written;
        }
        let Some(held) = self.ours(client, &step.id, step.lease) else {
            return Counted::NotOurs;
        };
        if rules(step.id.kind).counts() {
            held.holds = step.holds;
        }
        // It overtook the downgrade of its lease.
        let writes_yet = !step.access.is_exclusive() && held.access.is_exclusive();
        if writes_yet || self.gives_way(&step.id, step.access) {
            Counted::OthersWait
        } else {
            Counted::Written
        }
    }

    pub(crate) fn inspect(&self, id: &LockId) -> Inspection {
        let owners = self.held_by(id).iter().map(|held| Owned {
            owner: rules(id.kind).owner(&held.client, held.access, held.lease),
            access: held.access,
            holds: held.holds.into(),
            ttl: Some(held.ends.saturating_sub(self.clock)),
            client: self.known(&held.client),
        });
        let entries = self.queues.get(id).into_iter().flat_map(|all| &all.entries);
        let queue = entries.take(QUEUED_MOST).map(|entry| QueuedOwner {
            owner: rules(id.kind).owner(&entry.client, entry.grant.access, entry.grant.lease),
            access: entry.grant.access,
            client: self.known(&entry.client),
        });
        Inspection {
            owners: owners.collect(),
            // Of a fair mutex the clients in its queue are counted, as `fair_mutex/inspect.lua` does: each listens to a channel of its own.
            listeners: if rules(id.kind).is_in_turn() {
                self.waiting_clients(id)
            } else {
                self.subscribers(id).len() as u64
            },
            available: numbers::is_number(id.kind).then(|| self.available(id)),
            token: self.fences.last(id),
            queue: queue.collect(),
            ..Inspection::default()
        }
    }

    /// A client's label is kept for so long.
    pub(super) fn show(&mut self, client: &Arc<str>, lasts: Duration) {
        if let Some((label, _)) = self.connected.get(client) {
            let label = (label.clone(), self.clock + lasts);
            self.labels.insert(Arc::clone(client), label);
        }
    }

    fn known(&self, client: &Arc<str>) -> KnownClient {
        let connected = self.connected.get(client).map(|(label, _)| label);
        let label = self.labels.get(client).map(|(label, _)| label);
        KnownClient {
            uuid: label.map(|_| client.to_string()),
            label: label.or(connected).cloned(),
            // Unknown, unless a connection or a label of it was seen here: clients of other libraries have neither.
            connected: (connected.or(label)).map(|_| connected.is_some()),
        }
    }

    pub(crate) fn force_unlock(&mut self, id: &LockId) -> Vec<String> {
        let Some(held) = self.held.remove(id) else {
            return Vec::new();
        };
        // Waiters of a fair mutex hear only of their own turn, so no others are told.
        if self.give_to_next(id).is_none() && !rules(id.kind).is_in_turn() {
            self.tell_all(id);
        }
        self.tell_holders(id, &held);
        held.iter()
            .map(|held| rules(id.kind).owner(&held.client, held.access, held.lease))
            .collect()
    }

    pub(crate) fn listen(&mut self, client: &Arc<str>, id: &LockId, subscriber: &Arc<Subscriber>) {
        let listeners = self.listeners.entry(id.clone()).or_default();
        // A client listens once, however often it says so: a release counts clients.
        listeners.retain(|subscriber| {
            subscriber
                .upgrade()
                .is_some_and(|subscriber| subscriber.client != *client)
        });
        listeners.push(Arc::downgrade(subscriber));
    }

    pub(crate) fn unlisten(&mut self, client: &Arc<str>, id: &LockId) {
        if let Some(listeners) = self.listeners.get_mut(id) {
            listeners.retain(|subscriber| {
                subscriber
                    .upgrade()
                    .is_some_and(|subscriber| subscriber.client != *client)
            });
            if listeners.is_empty() {
                self.listeners.remove(id);
            }
        }
    }
}
