//! The servers of a world: one, or those of a quorum, each with a clock of its own. Here all times are the world's.

use std::{sync::Arc, time::Duration};

use leasehold::sim::{Held, Network, SimulatedServer, Snapshot};
use parking_lot::Mutex;

use crate::{
    config::Config,
    dice::mix,
    invariants::nanos,
    keys::Keyspace,
    shared::NAMES,
    wire::{Outbox, Wire},
    world::World,
};

pub struct Server {
    pub keys: SimulatedServer,
    /// How fast its clock runs, in parts of a million of the world's.
    rate: u64,
    /// When it lost its data last.
    pub forgot_at: u64,
    /// For good.
    pub is_gone: bool,
    /// The holds that it had when it lost its data. Holders believe in these votes until they end.
    pub forgotten: Vec<Held>,
}

impl Server {
    pub fn new(keys: SimulatedServer, rate: u64) -> Server {
        Server {
            keys,
            rate,
            forgot_at: 0,
            is_gone: false,
            forgotten: Vec::new(),
        }
    }

    /// A server of a quorum. Its name, and so whose coordinator it is, depends on the seed.
    pub fn of_quorum(config: &Config, outbox: &Arc<Outbox>, at: u8) -> Server {
        let wire = Wire {
            outbox: Arc::clone(outbox),
            server: at,
            called: Some(format!("memory:{}.{at}", config.seed)),
        };
        // With the clients' rates, any two clocks are within 1 %.
        let drift = mix(config.seed, 0x00C1_0C00 + u64::from(at)) % 10_001;
        let network = Arc::new(wire) as Arc<dyn Network>;
        let keys = Arc::new(Mutex::new(Keyspace::default()));
        let server = SimulatedServer::voter(keys, network);
        Server::new(server, 995_000 + drift)
    }

    pub fn set_clock(&self, now: u64) {
        let local = u128::from(now) * u128::from(self.rate) / 1_000_000;
        let local = u64::try_from(local).unwrap_or(u64::MAX);
        self.keys.set_clock(Duration::from_nanos(local));
    }

    fn in_world_time(&self, mut held: Held) -> Held {
        let ends = u128::from(nanos(&held)) * 1_000_000 / u128::from(self.rate);
        held.ends = Duration::from_nanos(u64::try_from(ends).unwrap_or(u64::MAX));
        held
    }

    pub fn holders(&self, name: &str) -> Vec<Held> {
        let held = self.keys.holders(name).into_iter();
        held.map(|held| self.in_world_time(held)).collect()
    }

    pub fn snapshot(&self) -> Snapshot {
        let mut seen = self.keys.snapshot();
        let held = seen.held.into_iter();
        seen.held = held.map(|held| self.in_world_time(held)).collect();
        seen
    }

    /// It restarts without its data, which it returns.
    pub fn forget(&mut self, now: u64) -> Vec<Held> {
        let held = self.snapshot().held;
        self.forgotten.retain(|held| nanos(held) > now);
        self.forgotten.extend(held.iter().cloned());
        self.keys.forget();
        self.forgot_at = now;
        held
    }
}

impl World {
    /// The server of a world that has one.
    pub fn server(&self) -> &SimulatedServer {
        &self.servers[0].keys
    }

    /// The server whose data stands behind a way: the nodes of a cluster share it.
    pub fn of_lane(&self, lane: u8) -> usize {
        if self.config.nodes > 0 {
            0
        } else {
            usize::from(lane)
        }
    }

    /// The name of a client that listens there.
    pub fn listener(&self, client: u8, lane: u8) -> String {
        let letter = World::letter(client);
        if self.config.nodes > 0 {
            format!("{letter}@{lane}")
        } else {
            letter.to_owned()
        }
    }

    pub fn is_quorum(&self) -> bool {
        self.servers.len() > 1
    }

    /// So many votes make a hold.
    pub fn need(&self) -> usize {
        self.servers.len() / 2 + 1
    }

    /// The servers that are not gone for good.
    pub fn living(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter().filter(|server| !server.is_gone)
    }

    /// The hold of one lease of one client on a majority, until the end of the vote that is the last needed.
    /// `forgotten`: also votes that servers have forgotten.
    pub fn majority(&self, name: u8, letter: &str, lease: u64, forgotten: bool) -> Option<Held> {
        let name = NAMES[usize::from(name)];
        let is_it = |held: &Held| *held.client == *letter && held.lease == lease;
        let mut votes: Vec<Held> = Vec::new();
        for server in &self.servers {
            let now = server.holders(name).into_iter().filter(is_it);
            let before = server.forgotten.iter().cloned();
            let before = before.filter(|it| forgotten && *it.name == *name && is_it(it));
            votes.extend(now.chain(before).max_by_key(|held| held.ends));
        }
        votes.sort_by_key(|held| std::cmp::Reverse(held.ends));
        votes.into_iter().nth(self.need() - 1)
    }
}
