//! A connection that takes what is sent and never answers, though new ones work: a load balancer has lost track of it.

use std::time::{Duration, Instant};

use crate::common::{flavors, of_the_whole, sentinel::Sentinel, soon};
use leasehold::{Client, ClientBuilder, Error, Released};
use leasehold_testkit::{Cluster, Flavor, Primaries, Proxy, Server};

const TIMEOUT: Duration = Duration::from_millis(500);

/// Within so long a new connection has carried an answer.
const AT_ONCE: Duration = Duration::from_millis(100);

/// Servers, each behind a balancer.
enum Wired {
    One(#[allow(dead_code, reason = "it runs")] Server, Proxy),
    /// The Sentinel names the balancer.
    Sentinel(Sentinel, #[allow(dead_code, reason = "it runs")] Server, Proxy),
    Cluster(Cluster),
    Quorum(Primaries),
}

impl Wired {
    fn one(flavor: Flavor) -> Wired {
        let server = Server::start(flavor);
        let proxy = Proxy::start(server.addr());
        Wired::One(server, proxy)
    }

    fn sentinel(flavor: Flavor) -> Wired {
        let Wired::One(server, proxy) = Wired::one(flavor) else {
            unreachable!()
        };
        let sentinel = Sentinel::start(flavor);
        let mut link = redis::Client::open(sentinel.url())
            .and_then(|client| client.get_connection())
            .unwrap();
        let mut monitor = redis::cmd("SENTINEL");
        monitor.arg(&["MONITOR", "main", "127.0.0.1"]);
        let monitor = monitor.arg(proxy.addr().port()).arg(1);
        monitor.query::<()>(&mut link).unwrap();
        Wired::Sentinel(sentinel, server, proxy)
    }

    fn builder(&self) -> ClientBuilder {
        let builder = Client::builder().operation_timeout(TIMEOUT);
        match self {
            Wired::One(_, proxy) => builder.url(proxy.url()),
            Wired::Sentinel(sentinel, ..) => {
                builder.url(format!("redis-sentinel://{}/?master=main", sentinel.addr()))
            }
            Wired::Cluster(cluster) => builder.url(cluster.url()),
            Wired::Quorum(servers) => builder.quorum(servers.urls()).persistent_servers(true),
        }
    }

    fn proxies(&self) -> Vec<&Proxy> {
        match self {
            Wired::One(_, proxy) | Wired::Sentinel(_, _, proxy) => vec![proxy],
            Wired::Cluster(cluster) => (0..6).map(|node| cluster.proxy(node)).collect(),
            Wired::Quorum(servers) => (0..servers.len()).map(|it| servers.proxy(it)).collect(),
        }
    }

    fn hang(&self) {
        self.proxies().iter().for_each(|proxy| proxy.hang(None));
    }
}

/// One call finds out. Every other has an answer at once: of its name or another, from this runtime or at home.
async fn one_call_finds_out(wired: Wired) {
    let rounds = of_the_whole(20);
    let mut late = Vec::new();
    for round in 0..rounds {
        let client = wired.builder().connect().await.unwrap();
        let (asked, mut others) = (format!("asked:{round}"), Vec::new());
        // In a cluster they are at each of its nodes.
        for other in 0..4 {
            let name = format!("other:{round}:{other}");
            let guard = soon("a lock", client.mutex(&name).lock()).await.unwrap();
            guard.release().await.unwrap();
            others.push(name);
        }
        let held = client.mutex(format!("held:{round}")).lock().await.unwrap();
        wired.hang();
        let began = Instant::now();
        let first = client.mutex(&asked).try_lock().await;
        assert!(matches!(first, Err(Error::Ambiguous { .. })), "{first:?}");
        let found_out = began.elapsed();
        assert!(found_out < TIMEOUT * 3 / 2, "{found_out:?}");
        for name in [vec![asked], others].concat() {
            let began = Instant::now();
            let guard = soon("a lock", client.mutex(&name).lock()).await.unwrap();
            let took = began.elapsed();
            assert_eq!(guard.release().await.unwrap(), Released::Freed);
            let both = began.elapsed();
            if both > AT_ONCE {
                late.push(format!(
                    "{name}: locked after {took:?}, released after {both:?}"
                ));
            }
        }
        assert_eq!(held.release().await.unwrap(), Released::Freed);
    }
    assert!(late.is_empty(), "of {rounds} rounds: {late:#?}");
}

#[tokio::test]
async fn one_call_finds_out_that_a_connection_hangs() {
    for flavor in flavors(0) {
        one_call_finds_out(Wired::one(flavor)).await;
    }
}

#[tokio::test]
async fn one_call_finds_out_that_a_connection_hangs_to_the_primary_of_sentinels() {
    for flavor in flavors(1) {
        one_call_finds_out(Wired::sentinel(flavor)).await;
    }
}

#[tokio::test]
async fn one_call_finds_out_that_the_connections_to_a_cluster_hang() {
    for flavor in flavors(0) {
        one_call_finds_out(Wired::Cluster(Cluster::behind_proxies(flavor))).await;
    }
}

#[tokio::test]
async fn one_call_finds_out_that_the_connections_to_a_quorum_hang() {
    for flavor in flavors(1) {
        let servers = Primaries::start(3, flavor).behind_proxies();
        one_call_finds_out(Wired::Quorum(servers)).await;
    }
}
