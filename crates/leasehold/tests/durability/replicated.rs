//! A primary and its replicas, without sentinels.

use leasehold::{Client, ClientBuilder};
use leasehold_testkit::{Flavor, Server, wait_until, wait_until_async};

use crate::common::SOON;

/// A primary, and those that follow it.
pub(crate) struct Replicated {
    pub(crate) primary: Server,
    pub(crate) replicas: Vec<Server>,
}

/// Every sort of server there is.
pub(crate) fn flavors() -> Vec<Flavor> {
    let flavors = Flavor::available();
    assert!(!flavors.is_empty(), "no real server: run scripts/test");
    flavors
}

/// So that a replica is there soon.
pub(crate) const TIMING: [&str; 4] = [
    "--repl-diskless-sync-delay",
    "0",
    "--repl-ping-replica-period",
    "1",
];

impl Replicated {
    /// Blocks until all are in sync.
    pub(crate) fn start(flavor: Flavor, replicas: usize) -> Replicated {
        let primary = Server::start_with(flavor, &TIMING);
        let port = primary.port().to_string();
        let of = ["--replicaof", "127.0.0.1", &port];
        let args = [&TIMING[..], &of[..]].concat();
        let replicas = (0..replicas).map(|_| Server::start_with(flavor, &args));
        let group = Replicated {
            replicas: replicas.collect(),
            primary,
        };
        group.until_online(group.replicas.len());
        group
    }

    pub(crate) fn until_online(&self, replicas: usize) {
        until_online(&self.primary, replicas);
    }

    pub(crate) fn builder(&self) -> ClientBuilder {
        Client::builder().url(self.primary.url())
    }

    pub(crate) fn freeze(&self) {
        self.replicas.iter().for_each(Server::freeze);
    }

    pub(crate) fn thaw(&self) {
        self.replicas.iter().for_each(Server::thaw);
    }

    /// How often the primary was asked to wait.
    pub(crate) fn waits(&self) -> u64 {
        let calls = self.primary.calls();
        let of = |name| calls.get(name).copied().unwrap_or(0);
        of("wait") + of("waitaof")
    }
}

/// Waits until a client waits for replicas. (A `WAIT` is counted as a call when it has been answered.)
pub(crate) async fn until_waiting(server: &Server) {
    let waits = || {
        let info: String = redis::from_redis_value(server.cli(&["INFO", "clients"])).unwrap();
        info.contains("blocked_clients:1")
    };
    wait_until_async(SOON, "it waits", waits).await;
}

/// Waits until so many replicas are in sync, and acknowledge.
pub(crate) fn until_online(primary: &Server, replicas: usize) {
    wait_until(SOON, "the replicas are in sync", || {
        let info = primary.cli(&["INFO", "replication"]);
        let info: String = redis::from_redis_value(info).unwrap();
        info.matches("state=online").count() == replicas
    });
    // A replica that has just come may take a second to acknowledge anything.
    primary.cli(&["SET", "warm", "", "PX", "1"]);
    let replicas = replicas.to_string();
    primary.cli(&["WAIT", &replicas, "5000"]);
}
