//! A server of a simulation, as the simulation handles it: one, one of a majority, or all nodes of a cluster.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;

use crate::{
    backend::{
        Backend, Sink,
        redis::{self, slot},
        simulated::{
            cluster::SlotOwners,
            hint::Hint,
            keys::ScriptServer,
            request::{Answer, Network, Request},
            scripts::Scripts,
            snapshot::{Held, Snapshot},
        },
    },
    clock::Clock,
    config::Config,
    kind::LockKind,
    name::{LockId, Name},
    world,
};

/// Keys on which the real scripts run, and the ways there, which the simulation is.
#[derive(Clone, Debug)]
pub struct SimulatedServer(Arc<Scripts>);

impl Request {
    /// The server carries it out now: the answer, and the wake-ups that it causes.
    pub fn execute(&self, server: &SimulatedServer) -> (Answer, Vec<Hint>) {
        let answer = self.step.execute(&server.0);
        (answer, server.0.take_hints())
    }

    /// The server whose place another has taken carries it out, as it goes on.
    pub fn execute_before(&self, server: &SimulatedServer) -> Answer {
        server.0.as_before(|| self.execute(server).0)
    }
}

impl SimulatedServer {
    /// A server whose requests this network carries.
    pub fn alone(keys: Arc<Mutex<dyn ScriptServer>>, network: Arc<dyn Network>) -> SimulatedServer {
        SimulatedServer(Arc::new(Scripts::new(keys, network)))
    }

    /// A cluster, to each of whose nodes there is a way. So many of them have slots at first.
    pub fn cluster(
        keys: Arc<Mutex<dyn ScriptServer>>,
        ways: Vec<Arc<dyn Network>>,
        primaries: u8,
    ) -> SimulatedServer {
        SimulatedServer(Arc::new(Scripts::of_cluster(keys, ways, primaries)))
    }

    /// A server that votes beside others: a majority of them decides.
    pub fn voter(keys: Arc<Mutex<dyn ScriptServer>>, network: Arc<dyn Network>) -> SimulatedServer {
        SimulatedServer(Arc::new(Scripts::of_voter(keys, network)))
    }

    /// The clock of the client that connects now.
    pub(crate) fn clock() -> Clock {
        world::clock().map_or(Clock::Boot, Clock::Simulated)
    }

    pub(crate) fn called(&self) -> String {
        let called = self.0.way_to(0).called();
        called.unwrap_or_else(|| "simulated".to_owned())
    }

    pub(crate) fn client(
        &self,
        client: &Arc<str>,
        config: &Config,
        sink: Arc<dyn Sink>,
    ) -> Box<dyn Backend> {
        redis::simulated(&self.0, client, config, sink, self.called())
    }

    /// The server's clock shows `now` from here on.
    pub fn set_clock(&self, now: Duration) {
        self.0.set_clock(now);
    }

    /// The locks, and who waits for them and listens.
    pub fn snapshot(&self) -> Snapshot {
        self.0.snapshot()
    }

    /// All holders of a name, of every kind.
    pub fn holders(&self, name: &str) -> Vec<Held> {
        let mut held = self.0.snapshot().held;
        held.retain(|held| &*held.name == name);
        held
    }

    /// Sets how many permits a semaphore has.
    pub fn set_permits(&self, kind: LockKind, name: &str, permits: i64) {
        if let Some(id) = id(kind, name) {
            self.0.set_number(&id, permits);
        }
    }

    /// A client of another library takes a plain mutex for so long, if it is free; `None`: it gives it back.
    pub fn visit(&self, name: &str, lease: Option<Duration>) -> bool {
        id(LockKind::PlainMutex, name).is_some_and(|id| self.0.visit(&id, lease))
    }

    /// The count of a latch; how many permits are free of a semaphore without leases.
    pub fn number(&self, kind: LockKind, name: &str) -> i64 {
        id(kind, name).map_or(0, |id| self.0.number(&id))
    }

    /// An operator deletes a latch; the wake-ups of that.
    pub fn open(&self, name: &str) -> Vec<Hint> {
        if let (Some(id), Some(inspector)) = (id(LockKind::Latch, name), self.0.inspector()) {
            inspector.open(&id);
        }
        self.0.take_hints()
    }

    /// An operator gives back the permits of a holder that never will; the wake-ups of that.
    pub fn give_back(&self, held: &Held) -> Vec<Hint> {
        let id = id(LockKind::Semaphore, &held.name);
        if let (Some(id), Some(inspector)) = (id, self.0.inspector()) {
            inspector.give_back(&id, held);
        }
        self.0.take_hints()
    }

    /// Another node of a cluster has the slot of a name from now on; those of which `know` says so have heard of it. The wake-ups of that, at
    /// the node that had it.
    pub fn move_slot(&self, name: &str, to: u8, know: impl Fn(u8) -> bool) -> Vec<Hint> {
        let Some(cluster) = self.slots() else {
            return Vec::new();
        };
        let slot_of_it = slot(name);
        let from = cluster.owner(slot_of_it);
        cluster.move_slot(slot_of_it, to, know);
        // A node ends the sharded subscriptions of a slot that it gives away, and tells those that listen.
        if from != to {
            self.0.move_slots(|id| slot(id.name.wire()) == slot_of_it);
        }
        self.0.take_hints()
    }

    /// A replica takes the place of a node of a cluster; those of which `know` says so have heard of it. The wake-ups of that, at that node.
    pub fn replace_node(&self, node: u8, by: u8, know: impl Fn(u8) -> bool) -> Vec<Hint> {
        let Some(cluster) = self.slots() else {
            return Vec::new();
        };
        // Looked up before the replacement, after which the node has no slot any more.
        let was_there = |id: &LockId| cluster.owner(slot(id.name.wire())) == node;
        let known = self.0.known.lock().clone();
        let moved: Vec<u16> = known
            .into_iter()
            .filter(was_there)
            .map(|id| slot(id.name.wire()))
            .collect();
        cluster.replace(node, by, know);
        self.0
            .move_slots(|id| moved.contains(&slot(id.name.wire())));
        self.0.take_hints()
    }

    /// A replica is about to take the place of the one server, or of a node of a cluster, which goes on answering late until it hears of that.
    pub fn depose(&self, node: u8, by: u8) {
        self.0.deposes(node, by);
    }

    /// The nodes of a cluster that have no slot.
    pub fn replicas(&self) -> Vec<u8> {
        let slots = self.slots();
        slots.map_or_else(Vec::new, |slots| slots.replicas().collect())
    }

    /// The slot of a name begins to be moved.
    pub fn open_slot(&self, name: &str, to: u8, is_there: bool) {
        if let Some(slots) = self.slots() {
            slots.open(slot(name), to, is_there);
        }
    }

    /// Which node of a cluster has the slot of a name.
    pub fn node_of(&self, name: &str) -> u8 {
        self.slots().map_or(0, |slots| slots.owner(slot(name)))
    }

    /// A node of a cluster hears of all that has changed.
    pub fn node_hears(&self, node: u8) {
        self.0.hears(node);
    }

    fn slots(&self) -> Option<&SlotOwners> {
        self.0.cluster()
    }

    /// The keys were changed, and by no request.
    pub fn keys_changed(&self) {
        self.0.changed();
    }

    /// The client's connection for wake-ups is gone.
    pub fn disconnect(&self, client: &str) {
        self.0.disconnect(client);
    }

    /// It restarts without its data.
    pub fn forget(&self) {
        self.0.forget();
    }

    /// The client is connected to it again, and finds that it has restarted without its data, or that another has its place.
    pub fn tell_restart(&self, client: &str) {
        self.0.tell_restart(client);
    }

    /// The wake-ups of a client that listens again after a gap.
    pub fn after_gap(&self, client: &str) -> Vec<Hint> {
        self.0.after_gap(client)
    }
}

fn id(kind: LockKind, name: &str) -> Option<LockId> {
    let name = Name::new(name).ok()?;
    Some(LockId::new(kind, name))
}
