//! The locks of a server in memory, as one table: holds, numbers, tokens, and a queue of waiting clients for each. No I/O, no clock of its own.
//!
//! Each step is carried out when it is asked for, once, in the order of the requests: so the tombstones and the numbers of asks with which the scripts in
//! `backend/redis` meet late copies (B3, B4) are not needed here. A client that is gone does not listen, and an entry of its goes at the next step.

mod fenced;
mod find;
mod numbers;
mod queue;
mod release;

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::{Arc, Weak},
    time::Duration,
};

use fenced::Fences;
use queue::Queued;

use super::kinds::{StoredHold, rules};
use crate::{
    backend::{
        Acquire, Acquired, ConnectedClients, Count, Counted, Extend, Failure, ForceUnlock, Grant,
        Inspection, KnownClient, Owned, QUEUED_MOST, QueuedOwner, Renew, Renewal, Sink, WakeUp,
        fenced::Tokens,
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
    /// The clients that wait, next first.
    queues: HashMap<LockId, VecDeque<Queued>>,
    pub(super) listeners: HashMap<LockId, Vec<Listener>>,
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
    /// How far it has been stepped ahead.
    pub(super) ahead: Duration,
    /// Messages do not get through.
    pub(super) cut: bool,
}

impl Store {
    /// Sets the server's clock to `now`. Leases that have ended by then are gone.
    pub(crate) fn set_clock(&mut self, now: Duration) {
        self.clock = now + self.ahead;
        let now = self.clock;
        self.held.retain(|_, held| {
            held.retain(|held| held.ends > now);
            !held.is_empty()
        });
        self.done.retain(|_, (_, until)| *until > now);
        self.labels.retain(|_, (_, until)| *until > now);
        // Permits have no end: a number stays until a client sets another.
        self.fences.set_clock(now);
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
        // ConnectedClients are told apart from data: who listens, and who is connected, stays.
        self.held.clear();
        self.queues.clear();
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

    /// A client hears this, if it listens and messages get through.
    fn tell(&mut self, client: &Arc<str>, id: &LockId, wake_up: WakeUp) {
        let mut subscribers = self.subscribers(id).into_iter();
        if !self.cut
            && let Some(subscriber) = subscribers.find(|s| s.client == *client)
        {
            self.outbox.push((subscriber, id.clone(), wake_up));
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
        let id = &step.id;
        if id.kind.never_ends() {
            return self.take(client, step);
        }
        if let Some(granted) = self.again(client, step) {
            return granted;
        }
        // Before the look whether enough are free.
        if let Some(permits) = step.permits {
            self.provide(id, permits);
        }
        self.forget_unheard(id, Some(client));
        let is_free = self.held_by(id).is_empty();
        if self.fits(id, step.access) && !self.is_behind(client, step) {
            self.hold(client, id, step.access, (step.lease, step.lease_ms));
            // B4: a lease id that holds has no entry.
            self.leave_queue(client, id, step.lease);
            if is_free && !step.access.is_exclusive() {
                // The holder before has died, and no release lets in the readers that wait.
                self.give_to_next(id);
            }
            return Acquired::Granted {
                remaining: Duration::from_millis(step.lease_ms),
                tokens: self.tokens(id),
            };
        }
        if let Some(entry) = step.entry.filter(|_| rules(id.kind).has_queue()) {
            let grant = Grant {
                access: step.access,
                lease: step.lease,
                lease_ms: step.lease_ms,
                ask: entry.ask,
                tokens: Tokens::NONE,
            };
            self.queue(client, id, grant);
        }
        if is_free {
            // A reader gets in behind the first, in the same step.
            self.give_to_next(id);
            if let Some(granted) = self.again(client, step) {
                return granted;
            }
            if matches!(step.access, Access::Permits(_)) && !self.permits.contains_key(id) {
                return Acquired::Unset;
            }
        }
        let ends = rules(id.kind).ends(self.held_by(id));
        Acquired::Held {
            ttl: ends.map(|ends| ends.saturating_sub(self.clock)),
            silent: false,
            unsettled: false,
        }
    }

    /// The answer to a lease id that holds already.
    fn again(&mut self, client: &Arc<str>, step: &Acquire) -> Option<Acquired> {
        let now = self.clock;
        let held = self.ours(client, &step.id, step.lease)?;
        held.ends = held.ends.max(now + Duration::from_millis(step.lease_ms));
        let remaining = held.ends.saturating_sub(now);
        let tokens = self.tokens(&step.id);
        Some(Acquired::Granted { remaining, tokens })
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
        self.forget_unheard(&step.id, Some(client));
        if self.gives_way(&step.id, step.access) {
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
        let entries = || self.queues.get(id).into_iter().flatten();
        let queue = entries().take(QUEUED_MOST).map(|entry| QueuedOwner {
            owner: rules(id.kind).owner(&entry.client, entry.grant.access, entry.grant.lease),
            access: entry.grant.access,
            client: self.known(&entry.client),
        });
        Inspection {
            owners: owners.collect(),
            // Of a fair mutex the clients in its queue are counted, as `fair_mutex/inspect.lua` does: each listens to a channel of its own.
            listeners: if rules(id.kind).is_in_turn() {
                let clients: HashSet<_> = entries().map(|entry| &entry.client).collect();
                clients.len() as u64
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
            idle: None,
            is_named: label.is_some(),
        }
    }

    pub(crate) fn connections(&self) -> ConnectedClients {
        let clients = self.connected.keys();
        ConnectedClients {
            idle: clients
                .map(|client| (client.to_string(), Duration::ZERO))
                .collect(),
            all: true,
        }
    }

    pub(crate) fn force_unlock(&mut self, step: &ForceUnlock) -> Vec<String> {
        let id = &step.id;
        let holders = self.held_by(id).iter().map(|held| {
            let owner = rules(id.kind).owner(&held.client, held.access, held.lease);
            (owner, Some(held.ends.saturating_sub(self.clock)))
        });
        if !step.means(&holders.collect::<Vec<_>>()) {
            return Vec::new();
        }
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
