//! The rows of `kinds.rs` that a quorum of servers has, and worlds that are quorums.

use leasehold::{Client, ClientBuilder, MemoryServer};
use leasehold_testkit::{Flavor, Primaries, Server};

pub use crate::conformance::common::kinds::{AnyGuard, AnyLock, MAY_BE_DROPPED, Row};

pub const ROWS: [Row; 4] = [Row::Mutex, Row::Plain, Row::Spin, Row::Multi];

/// Where the leases live.
pub enum World {
    /// On no single server.
    Memory(Majority),
    /// Never: what is asked of a server is asked of one.
    #[allow(dead_code, reason = "the suite knows both")]
    Server(Box<Server>),
}

pub enum Majority {
    OfMemory(Vec<MemoryServer>),
    OfServers(Primaries),
}

impl World {
    pub fn all() -> Vec<World> {
        let memory = |of| (0..of).map(|_| MemoryServer::new()).collect();
        let mut worlds = vec![Majority::OfMemory(memory(3)), Majority::OfMemory(memory(5))];
        for (of, flavor) in [3, 5].into_iter().zip(Flavor::available()) {
            worlds.push(Majority::OfServers(Primaries::start(of, flavor)));
        }
        worlds.into_iter().map(World::Memory).collect()
    }

    pub fn name(&self) -> String {
        match self {
            World::Memory(Majority::OfMemory(servers)) => format!("{} in memory", servers.len()),
            World::Memory(Majority::OfServers(servers)) => format!("{} servers", servers.len()),
            World::Server(_) => unreachable!(),
        }
    }

    pub fn builder(&self) -> ClientBuilder {
        match self {
            World::Memory(Majority::OfMemory(servers)) => Client::builder().quorum_memory(servers),
            World::Memory(Majority::OfServers(servers)) => {
                let builder = Client::builder().quorum(servers.urls());
                builder.persistent_servers(true)
            }
            World::Server(_) => unreachable!(),
        }
    }

    pub async fn client(&self) -> Client {
        self.builder().connect().await.expect("the servers are up")
    }
}

/// A network to the servers, whose first loses replies.
pub struct Network {
    builder: ClientBuilder,
    first: Option<MemoryServer>,
}

impl Network {
    pub fn to(world: &World) -> Network {
        Network {
            builder: world.builder(),
            first: match world {
                World::Memory(Majority::OfMemory(servers)) => servers.first().cloned(),
                _ => None,
            },
        }
    }

    pub fn builder(&self) -> ClientBuilder {
        self.builder.clone()
    }

    pub fn lose_replies(&self, count: usize) {
        if let Some(first) = &self.first {
            first.drop_replies(count);
        }
    }

    pub fn heal(&self) {
        self.lose_replies(0);
    }
}
