//! The simulation's view of the store, and its changes to it from outside.

use std::{sync::Arc, time::Duration};

use super::{Listener, Store, StoredHold};
use crate::{
    backend::{Release, ReleaseReply, WakeUp, simulated::hint::Hint},
    kind::{Access, LockKind},
    name::LockId,
    owner::LeaseId,
};

/// A hold on a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The name.
    pub name: Arc<str>,
    /// The holder's client.
    pub client: Arc<str>,
    /// Its lease id.
    pub lease: u64,
    /// How it shares its name with others.
    pub access: Access,
    /// How often it has entered.
    pub holds: u32,
    /// When its lease ends, on the server's clock.
    pub ends: Duration,
}

/// Everything that the store keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The holders, by name.
    pub held: Vec<Held>,
    /// Entries in queues: name, client, lease id; next first.
    pub queued: Vec<(Arc<str>, Arc<str>, u64)>,
    /// The entries that are passed over, since their clients are not there.
    pub passed_over: Vec<(Arc<str>, Arc<str>, u64)>,
    /// The clients that listen: name, client.
    pub listeners: Vec<(Arc<str>, Arc<str>)>,
    /// How many tombstones there are.
    pub tombstones: usize,
}

impl Store {
    pub(crate) fn snapshot(&self) -> Snapshot {
        let entries = || {
            self.queues.iter().flat_map(|(id, waiting)| {
                let entries = waiting.entries.iter();
                entries.map(|queued| {
                    let lease = queued.grant.lease.get();
                    let entry = (id.name.shared(), Arc::clone(&queued.client), lease);
                    (entry, queued.silent_since.is_some())
                })
            })
        };
        let passed_over = entries().filter_map(|(entry, silent)| silent.then_some(entry));
        let mut passed_over: Vec<_> = passed_over.collect();
        passed_over.sort();
        let mut queued: Vec<_> = entries().map(|(entry, _)| entry).collect();
        // By name; each queue keeps its order.
        queued.sort_by(|a, b| a.0.cmp(&b.0));
        let mut listeners: Vec<_> = self
            .listeners
            .iter()
            .flat_map(|(id, subscriber)| {
                subscriber
                    .iter()
                    .filter_map(Listener::upgrade)
                    .map(|subscriber| (id.name.shared(), Arc::clone(&subscriber.client)))
            })
            .collect();
        listeners.sort();
        Snapshot {
            held: self.held.keys().flat_map(|id| self.held(id)).collect(),
            queued,
            passed_over,
            listeners,
            tombstones: self.gone.len(),
        }
    }

    pub(crate) fn held(&self, id: &LockId) -> Vec<Held> {
        // A visitor of another library has no guard whose end the simulation could compare.
        let ours = self.held_by(id).iter().filter(|held| !held.is_foreign());
        let held = ours.map(|held| Held {
            name: id.name.shared(),
            client: Arc::clone(&held.client),
            lease: held.lease.get(),
            access: held.access,
            holds: held.holds,
            ends: held.ends,
        });
        held.collect()
    }

    /// A client of another library takes a plain mutex for so long, if it is free; `None`: it gives it back, and tells no
    /// client. Whether it has it then, or had it.
    pub(crate) fn visit(&mut self, id: &LockId, lease: Option<Duration>) -> bool {
        let there = self.held_by(id);
        let Some(lease) = lease else {
            let had = there.iter().any(StoredHold::is_foreign);
            if had {
                self.held.remove(id);
            }
            return had;
        };
        let is_free = there.is_empty();
        if is_free {
            let foreign = StoredHold {
                client: "".into(),
                lease: LeaseId::from(0),
                access: Access::Exclusive,
                holds: 1,
                ends: self.clock + lease,
            };
            self.held.insert(id.clone(), vec![foreign]);
        }
        is_free
    }

    pub(crate) fn count_of(&self, id: &LockId) -> i64 {
        self.permits.get(id).copied().unwrap_or(0)
    }

    pub(crate) fn open(&mut self, id: &LockId) {
        self.permits.remove(id);
        self.tell_all(id);
    }

    pub(crate) fn give_back(&mut self, id: &LockId, held: &Held) {
        let release = |lease| Release {
            held: true,
            ..Release::giving_back(id, held.access, LeaseId::from(lease))
        };
        // Permits that the server takes for given back already are given back under another lease id.
        if let ReleaseReply::NotOurs = self.release(&held.client, &release(held.lease)) {
            self.release(&held.client, &release(held.lease | 1 << 40));
        }
    }

    /// The client's connection for wake-ups is gone.
    pub(crate) fn disconnect(&mut self, client: &str) {
        for listeners in self.listeners.values_mut() {
            listeners.retain(|subscriber| {
                subscriber
                    .upgrade()
                    .is_some_and(|subscriber| &*subscriber.client != client)
            });
        }
        self.listeners.retain(|_, listeners| !listeners.is_empty());
    }

    /// A restart without data, after which semaphores are set again at once; a latch is not.
    pub(crate) fn forget_but_semaphores(&mut self) {
        let mut permits = std::mem::take(&mut self.permits);
        permits.retain(|id, _| id.kind != LockKind::Latch);
        self.forget();
        self.permits = permits;
    }

    pub(crate) fn take_hints(&mut self) -> Vec<Hint> {
        let outbox = std::mem::take(&mut self.outbox).into_iter();
        let hint = |(subscriber, id, wake_up): (Arc<super::Subscriber>, LockId, WakeUp)| {
            Hint::new(
                &subscriber.client,
                Arc::clone(&subscriber.sink),
                id,
                wake_up,
            )
        };
        outbox.map(hint).collect()
    }

    /// The wake-ups of a client that listens again after a gap: every name that it listens for may have changed.
    pub(crate) fn after_gap(&self, client: &str) -> Vec<Hint> {
        let mut hints: Vec<Hint> = Vec::new();
        for (id, listeners) in &self.listeners {
            for subscriber in listeners.iter().filter_map(Listener::upgrade) {
                if &*subscriber.client == client {
                    let sink = Arc::clone(&subscriber.sink);
                    hints.push(Hint::new(
                        &subscriber.client,
                        sink,
                        id.clone(),
                        WakeUp::TryAgain,
                    ));
                }
            }
        }
        // In one order, or a seed would play another schedule in each run (bug 180).
        hints.sort_by(|a, b| a.name.cmp(&b.name));
        hints
    }
}
