//! What the tests share: a world to lock in, memory or a real server, and clients of it.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]

use std::time::Duration;

use leasehold::{Client, ClientBuilder, MemoryServer};
use leasehold_testkit::{Flavor, Server};

/// Where the leases live.
pub enum World {
    Memory(MemoryServer),
    Server(Box<Server>),
}

impl World {
    /// The memory backend, and every real server there is.
    pub fn all() -> Vec<World> {
        let mut worlds = vec![World::Memory(MemoryServer::new())];
        for flavor in Flavor::available() {
            worlds.push(World::Server(Box::new(Server::start(flavor))));
        }
        assert!(
            worlds.len() > 1,
            "no real server to test on: run scripts/test"
        );
        worlds
    }

    pub fn name(&self) -> String {
        match self {
            World::Memory(_) => "memory".to_owned(),
            World::Server(server) => server.flavor().to_string(),
        }
    }

    /// Settings for a client of this world.
    pub fn builder(&self) -> ClientBuilder {
        match self {
            World::Memory(server) => Client::builder().memory(server),
            World::Server(server) => Client::builder().url(server.url()),
        }
    }

    /// A client, as a process of its own would be.
    pub async fn client(&self) -> Client {
        self.builder().connect().await.expect("the server is up")
    }

    /// The names that are held.
    pub fn held(&self) -> Vec<String> {
        match self {
            World::Memory(server) => server.names(),
            World::Server(server) => keys(server)
                .into_iter()
                .filter(|key| !key.starts_with("leasehold:"))
                .collect(),
        }
    }
}

/// Every key on the server.
pub fn keys(server: &Server) -> Vec<String> {
    redis::from_redis_value(server.cli(&["KEYS", "*"])).expect("KEYS answers with strings")
}

/// Waits until the client keeps nothing: no queue, no watchdog entry, no task.
pub async fn wait_until_idle(client: &Client) {
    leasehold_testkit::wait_until_async(Duration::from_secs(10), "the client to be idle", || {
        client.footprint() == leasehold::Footprint::default()
    })
    .await;
}
