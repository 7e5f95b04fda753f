//! A memory server in a simulation: see `sim.rs`.

use std::{sync::Arc, time::Duration};

use super::{MemoryServer, Shared, Store};
use crate::{
    backend::{
        Restarted,
        memory::store::snapshot::{Held, Snapshot},
        redis::slot,
        simulated::{
            cluster::SlotOwners,
            hint::Hint,
            request::{Answer, Network, Request},
            scripts::Scripts,
        },
    },
    clock::Tick,
    kind::LockKind,
    name::{LockId, Name},
};

impl Request {
    /// The server carries it out now: the answer, and the wake-ups that it causes.
    pub fn execute(&self, server: &MemoryServer) -> (Answer, Vec<Hint>) {
        let scripts = server.scripts().map(Arc::as_ref);
        server.carry_out_simulated(|store| self.step.execute(store, scripts))
    }
}

impl MemoryServer {
    pub(crate) fn with_network(
        network: Arc<dyn Network>,
        scripts: Option<Arc<Scripts>>,
    ) -> MemoryServer {
        MemoryServer(Arc::new(Shared {
            network: Some(network),
            scripts,
            // Its clock begins at zero, so that a world can be replayed.
            store: parking_lot::Mutex::default(),
            ..Shared::default()
        }))
    }

    pub(crate) fn network(&self) -> Option<&Arc<dyn Network>> {
        self.0.network.as_ref()
    }

    /// When it restarted last, as this client knows it.
    pub(crate) fn started(&self, client: &str) -> Tick {
        let network = self.network();
        network.map_or_else(
            || self.restarted(),
            |network| Tick::from_nanos(network.restarted(client)),
        )
    }

    pub(crate) fn scripts(&self) -> Option<&Arc<Scripts>> {
        self.0.scripts.as_ref()
    }

    pub(crate) fn carry_out_simulated<T>(
        &self,
        step: impl FnOnce(&mut Store) -> T,
    ) -> (T, Vec<Hint>) {
        let mut store = self.0.store.lock();
        let done = step(&mut store);
        let hints = match self.scripts() {
            None => store.take_hints(),
            Some(scripts) => scripts.take_hints(),
        };
        (done, hints)
    }

    /// The server's clock shows `now` from here on.
    #[doc(hidden)]
    pub fn set_clock(&self, now: Duration) {
        match self.scripts() {
            None => self.0.store.lock().set_clock(now),
            Some(scripts) => scripts.set_clock(now),
        }
    }

    /// Everything that the store keeps.
    #[doc(hidden)]
    pub fn snapshot(&self) -> Snapshot {
        let scripts = self.scripts().map(|scripts| scripts.snapshot());
        scripts.unwrap_or_else(|| self.0.store.lock().snapshot())
    }

    /// All holders of a name, of every kind.
    #[doc(hidden)]
    pub fn holders(&self, name: &str) -> Vec<Held> {
        if let Some(scripts) = self.scripts() {
            let mut held = scripts.snapshot().held;
            held.retain(|held| &*held.name == name);
            return held;
        }
        let store = self.0.store.lock();
        let ids = store.held.keys().filter(|id| id.name.wire() == name);
        ids.flat_map(|id| store.held(id)).collect()
    }

    /// Sets how many permits a semaphore has.
    #[doc(hidden)]
    pub fn set_permits(&self, kind: LockKind, name: &str, permits: i64) {
        if let Ok(name) = Name::new(name) {
            let id = LockId::new(kind, name);
            match self.scripts() {
                None => drop(self.0.store.lock().permits.insert(id, permits)),
                Some(scripts) => scripts.set_number(&id, permits),
            }
        }
    }

    /// A client of another library takes a plain mutex for so long, if it is free; `None`: it gives it back.
    #[doc(hidden)]
    pub fn visit(&self, name: &str, lease: Option<Duration>) -> bool {
        let kind = LockKind::PlainMutex;
        let id = Name::new(name).map(|name| LockId::new(kind, name));
        id.is_ok_and(|id| match self.scripts() {
            None => self.0.store.lock().visit(&id, lease),
            Some(scripts) => scripts.visit(&id, lease),
        })
    }

    /// The count of a latch; how many permits are free of a semaphore without leases.
    #[doc(hidden)]
    pub fn number(&self, kind: LockKind, name: &str) -> i64 {
        let id = number_at(kind, name);
        id.map_or(0, |id| match self.scripts() {
            Some(scripts) => scripts.number(&id),
            None => self.0.store.lock().count_of(&id),
        })
    }

    /// An operator deletes a latch; the wake-ups of that.
    #[doc(hidden)]
    pub fn open(&self, name: &str) -> Vec<Hint> {
        let id = number_at(LockKind::Latch, name);
        let open = |id| {
            let inspector = self.scripts().and_then(|scripts| scripts.inspector());
            let open = |store: &mut Store| match inspector {
                None => store.open(&id),
                Some(inspector) => inspector.open(&id),
            };
            self.carry_out_simulated(open).1
        };
        id.map_or_else(Vec::new, open)
    }

    /// An operator gives back the permits of a holder that never will; the wake-ups of that.
    #[doc(hidden)]
    pub fn give_back(&self, held: &Held) -> Vec<Hint> {
        let id = number_at(LockKind::Semaphore, &held.name);
        let give_back = |id| {
            let inspector = self.scripts().and_then(|scripts| scripts.inspector());
            let give_back = |store: &mut Store| match inspector {
                None => store.give_back(&id, held),
                Some(inspector) => inspector.give_back(&id, held),
            };
            self.carry_out_simulated(give_back).1
        };
        id.map_or_else(Vec::new, give_back)
    }

    /// Another node of a cluster has the slot of a name from now on; those of which `know` says so have heard of it. The wake-ups of that, at
    /// the node that had it.
    #[doc(hidden)]
    pub fn move_slot(&self, name: &str, to: u8, know: impl Fn(u8) -> bool) -> Vec<Hint> {
        let Some((scripts, cluster)) = self.cluster() else {
            return Vec::new();
        };
        let slot_of_it = slot(name);
        let from = cluster.owner(slot_of_it);
        cluster.move_slot(slot_of_it, to, know);
        // A node ends the sharded subscriptions of a slot that it gives away, and tells those that listen.
        if from != to {
            scripts.move_slots(|id| slot(id.name.wire()) == slot_of_it);
        }
        scripts.take_hints()
    }

    /// A replica takes the place of a node of a cluster; those of which `know` says so have heard of it. The wake-ups of that, at that node.
    #[doc(hidden)]
    pub fn replace_node(&self, node: u8, by: u8, know: impl Fn(u8) -> bool) -> Vec<Hint> {
        let Some((scripts, cluster)) = self.cluster() else {
            return Vec::new();
        };
        // Looked up before the replacement, after which the node has no slot any more.
        let was_there = |id: &LockId| cluster.owner(slot(id.name.wire())) == node;
        let known = scripts.known.lock().clone();
        let moved: Vec<u16> = known
            .into_iter()
            .filter(was_there)
            .map(|id| slot(id.name.wire()))
            .collect();
        cluster.replace(node, by, know);
        scripts.move_slots(|id| moved.contains(&slot(id.name.wire())));
        scripts.take_hints()
    }

    /// A replica is about to take the place of a node of a cluster, which goes on answering late until it hears of that.
    #[doc(hidden)]
    pub fn depose(&self, node: u8, by: u8) {
        if let Some((scripts, _)) = self.cluster() {
            scripts.deposes(node, by);
        }
    }

    /// The nodes of a cluster that have no slot.
    #[doc(hidden)]
    pub fn replicas(&self) -> Vec<u8> {
        let cluster = self.cluster();
        cluster.map_or_else(Vec::new, |(_, cluster)| cluster.replicas().collect())
    }

    /// The slot of a name begins to be moved.
    #[doc(hidden)]
    pub fn open_slot(&self, name: &str, to: u8, is_there: bool) {
        if let Some((_, cluster)) = self.cluster() {
            cluster.open(slot(name), to, is_there);
        }
    }

    /// Which node of a cluster has the slot of a name.
    #[doc(hidden)]
    pub fn node_of(&self, name: &str) -> u8 {
        let cluster = self.cluster();
        cluster.map_or(0, |(_, cluster)| cluster.owner(slot(name)))
    }

    /// A node of a cluster hears of all that has changed.
    #[doc(hidden)]
    pub fn node_hears(&self, node: u8) {
        if let Some((scripts, _)) = self.cluster() {
            scripts.hears(node);
        }
    }

    fn cluster(&self) -> Option<(&Arc<Scripts>, &SlotOwners)> {
        let scripts = self.scripts()?;
        Some((scripts, scripts.cluster()?))
    }

    /// The keys were changed, and by no request.
    #[doc(hidden)]
    pub fn keys_changed(&self) {
        if let Some(scripts) = self.scripts() {
            scripts.changed();
        }
    }

    /// The client's connection for wake-ups is gone.
    #[doc(hidden)]
    pub fn disconnect(&self, client: &str) {
        match self.scripts() {
            None => self.0.store.lock().disconnect(client),
            Some(scripts) => scripts.disconnect(client),
        }
    }

    /// It restarts without its data.
    #[doc(hidden)]
    pub fn forget(&self) {
        match self.scripts() {
            None => self.0.store.lock().forget_but_semaphores(),
            Some(scripts) => scripts.forget(),
        }
    }

    /// The client is connected to it again, and finds that it has restarted without its data.
    #[doc(hidden)]
    pub fn tell_restart(&self, client: &str) {
        if let Some(scripts) = self.scripts() {
            return scripts.tell_restart(client);
        }
        // Told without the lock of the store: a sink calls the engine, which may ask this server at once.
        let clients = self.0.store.lock().clients();
        if let Some(client) = clients.iter().find(|its| &*its.client == client) {
            client.sink.restarted(Restarted::All);
        }
    }

    /// The wake-ups of a client that listens again after a gap.
    #[doc(hidden)]
    pub fn after_gap(&self, client: &str) -> Vec<Hint> {
        match self.scripts() {
            Some(scripts) => scripts.after_gap(client),
            None => self.0.store.lock().after_gap(client),
        }
    }
}

fn number_at(kind: LockKind, name: &str) -> Option<LockId> {
    let name = Name::new(name).ok()?;
    Some(LockId::new(kind, name))
}
