//! A connection that takes what is sent and never answers, though new ones work: a load balancer has lost track of it.

use std::time::{Duration, Instant};

use crate::common::{
    SOON, flavors, keys,
    late::{in_time, unless_late_async},
    of_the_whole,
    sentinel::Sentinel,
    soon,
    wire::until_queued,
};
use futures_util::future::join_all;
use leasehold::{Client, ClientBuilder, Error, Released};
use leasehold_testkit::{Cluster, Flavor, Primaries, Proxy, Server, wait_until_async};

const TIMEOUT: Duration = Duration::from_millis(500);

/// Within so long a new connection has carried an answer.
const AT_ONCE: Duration = Duration::from_millis(100);

/// Servers, each behind a balancer.
enum Wired {
    One(#[allow(dead_code, reason = "it runs")] Server, Proxy),
    /// The Sentinel names the balancer.
    Sentinel(
        Sentinel,
        #[allow(dead_code, reason = "it runs")] Server,
        Proxy,
    ),
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

    /// Returns once nothing has travelled for a while. A majority ends a step before the others have answered, and an answer that arrives
    /// after the hang shows its connection alive for a timeout more.
    async fn until_quiet(&self) {
        let bytes = || {
            let proxies = self.proxies();
            let of = |proxy: &&Proxy| proxy.bytes_to_server() + proxy.bytes_to_client();
            proxies.iter().map(of).sum::<u64>()
        };
        let (mut before, mut since) = (bytes(), Instant::now());
        while since.elapsed() < AT_ONCE {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let now = bytes();
            if now != before {
                (before, since) = (now, Instant::now());
            }
        }
    }

    fn hang(&self) {
        self.proxies().iter().for_each(|proxy| proxy.hang(None));
    }
}

/// How long a lock and its release take.
async fn cycle(client: &Client, name: &str) -> Duration {
    let began = Instant::now();
    let guard = soon("a lock", client.mutex(name).lock()).await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
    began.elapsed()
}

/// The first call finds out. Every other has an answer at once: of its name or another, from this runtime or in the background.
async fn one_call_finds_out(wired: Wired) {
    let rounds = of_the_whole(20);
    let mut late = Vec::new();
    for round in 0..rounds {
        unless_late_async("a call finds out", TIMEOUT * 3 / 2, async || {
            let client = wired.builder().connect().await.unwrap();
            let (asked, mut others) = (format!("asked:{round}"), Vec::new());
            // In a cluster they are at each of its nodes.
            for other in 0..4 {
                let name = format!("other:{round}:{other}");
                cycle(&client, &name).await;
                others.push(name);
            }
            let held = client.mutex(format!("held:{round}")).lock().await.unwrap();
            wired.until_quiet().await;
            wired.hang();
            let began = Instant::now();
            let first = client.mutex(&asked).try_lock().await;
            assert!(matches!(first, Err(Error::Ambiguous { .. })), "{first:?}");
            let found_out = began.elapsed();
            for name in [vec![asked], others].concat() {
                // Beside it, a client that has hung nowhere: it connects, too.
                let control = async {
                    let client = wired.builder().connect().await.unwrap();
                    cycle(&client, &format!("control:{name}")).await;
                };
                let control = async {
                    let began = Instant::now();
                    control.await;
                    began.elapsed()
                };
                let (took, control) = tokio::join!(cycle(&client, &name), control);
                if took > AT_ONCE.max(3 * control) {
                    late.push(format!("{name}: {took:?}, beside {control:?}"));
                }
            }
            assert_eq!(held.release().await.unwrap(), Released::Freed);
            in_time(found_out, TIMEOUT * 3 / 2)
        })
        .await;
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

/// Of a client on several runtimes each has a connection, and so has its background runtime.
#[tokio::test]
async fn what_one_runtime_finds_out_costs_the_others_no_timeout() {
    for flavor in flavors(1) {
        let wired = Wired::one(flavor);
        let client = wired.builder().connect().await.unwrap();
        let other = Elsewhere::new(&client);
        other.cycle("other").await;
        wired.hang();
        let first = client.mutex("first").try_lock().await;
        assert!(matches!(first, Err(Error::Ambiguous { .. })), "{first:?}");
        let took = other.cycle("other").await;
        assert!(took < TIMEOUT / 2, "{took:?}");
    }
}

/// Another runtime, on a thread of its own.
struct Elsewhere(Client, Option<tokio::runtime::Runtime>);

impl Elsewhere {
    fn new(client: &Client) -> Elsewhere {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        Elsewhere(client.clone(), Some(runtime))
    }

    /// How long a lock and its release take there.
    async fn cycle(&self, name: &'static str) -> Duration {
        let client = self.0.clone();
        let runtime = self.1.as_ref().unwrap();
        let cycle = runtime.spawn(async move { cycle(&client, name).await });
        soon("a lock and its release", cycle).await.unwrap()
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        if let Some(runtime) = self.1.take() {
            runtime.shutdown_background();
        }
    }
}

/// Renewals travel on a connection of their own. Theirs is the first to be found out here.
#[tokio::test]
async fn a_hold_outlives_connections_that_hang_and_its_release_is_confirmed_at_once() {
    let lease = 6 * TIMEOUT;
    for flavor in flavors(0) {
        let wired = Wired::one(flavor);
        let client = wired.builder().lease(lease).connect().await.unwrap();
        let guard = client.mutex("held").lock().await.unwrap();
        let renewed = async || {
            let before = guard.valid_until() + TIMEOUT;
            wait_until_async(SOON, "it is renewed", || guard.valid_until() > before).await;
        };
        renewed().await;
        wired.hang();
        renewed().await;
        let began = Instant::now();
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        assert!(began.elapsed() < TIMEOUT / 2, "{:?}", began.elapsed());
    }
}

/// A waiter is told on a connection that only listens. It is replaced, and nobody waits for the poll interval.
#[tokio::test]
async fn a_waiter_hears_again_once_a_command_has_found_out() {
    for flavor in flavors(1) {
        let wired = Wired::one(flavor);
        let Wired::One(server, _) = &wired else {
            unreachable!()
        };
        let client = wired.builder().connect().await.unwrap();
        let theirs = Client::connect(&server.url()).await.unwrap();
        let held = theirs.mutex("name").lock().await.unwrap();
        let waiting = tokio::spawn({
            let mutex = client.mutex("name");
            async move { mutex.lock().await }
        });
        until_queued(server, 1).await;
        wired.hang();
        let first = client.mutex("other").try_lock().await;
        assert!(matches!(first, Err(Error::Ambiguous { .. })), "{first:?}");
        // The connection that hangs is still one that listens, for the server.
        let inbox = format!("leasehold:{{name}}:grant:{}", client.id());
        let listens = || numsub(server, &inbox) == 2;
        wait_until_async(TIMEOUT, "it listens anew", listens).await;
        held.release().await.unwrap();
        let began = Instant::now();
        let guard = soon("the waiter", waiting).await.unwrap().unwrap();
        assert!(began.elapsed() < TIMEOUT / 2, "{:?}", began.elapsed());
        guard.release().await.unwrap();
    }
}

/// Its answer is the next on the connection, behind one that was heard while it waited.
#[tokio::test]
async fn a_connection_that_hangs_between_two_answers_is_found_out() {
    let way = Duration::from_millis(100);
    for flavor in flavors(0) {
        let wired = Wired::one(flavor);
        let Wired::One(_, proxy) = &wired else {
            unreachable!()
        };
        let client = wired.builder().connect().await.unwrap();
        client
            .mutex("a")
            .lock()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        proxy.delay(way);
        let (first, second) = (client.mutex("a"), client.mutex("b"));
        let second = async {
            tokio::time::sleep(way).await;
            let second = second.try_lock().await;
            assert!(matches!(second, Err(Error::Ambiguous { .. })), "{second:?}");
            // The connection is given up a timeout after its last word.
            tokio::time::sleep(2 * way).await;
        };
        let first = async {
            let guard = first.try_lock().await.unwrap();
            // The second's answer is on its way.
            proxy.hang(None);
            guard
        };
        let (guard, ()) = tokio::join!(first, second);
        proxy.delay(Duration::ZERO);
        let began = Instant::now();
        let third = client.mutex("c").try_lock().await.unwrap();
        assert!(began.elapsed() < TIMEOUT / 2, "{:?}", began.elapsed());
        drop((guard, third));
    }
}

/// All connections are silent then, new ones too.
#[tokio::test]
async fn a_server_that_stands_still_gets_few_connections_and_no_hold_is_lost() {
    const TASKS: u64 = 40;
    for flavor in flavors(1) {
        let wired = Wired::one(flavor);
        let Wired::One(server, proxy) = &wired else {
            unreachable!()
        };
        let client = wired.builder().lease(12 * TIMEOUT).connect().await.unwrap();
        let other = Elsewhere::new(&client);
        other.cycle("other").await;
        let held = client.mutex("held").lock().await.unwrap();
        let before = proxy.accepted();
        server.freeze();
        let calls = (0..TASKS).map(|task| {
            let mutex = client.mutex(format!("name:{task}"));
            async move { mutex.lock().await }
        });
        let calls = tokio::spawn(join_all(calls));
        tokio::time::sleep(3 * TIMEOUT).await;
        server.thaw();
        for call in soon("all calls", calls).await.unwrap() {
            drop(call.unwrap());
        }
        other.cycle("other").await;
        // Each of the connections, the background runtime's, and the one that listens, once.
        let made = proxy.accepted() - before;
        assert!(made <= 4, "{made} connections were made");
        assert_eq!(held.release().await.unwrap(), Released::Freed);
        // A tombstone is left for each that had no answer.
        let locks = || keys(server).iter().any(|key| key.starts_with("name:"));
        wait_until_async(SOON, "all is given back", || !locks()).await;
    }
}

/// How many connections listen to a channel.
fn numsub(server: &Server, channel: &str) -> u64 {
    let counted = server.cli(&["PUBSUB", "NUMSUB", channel]);
    let (_, listening): (String, u64) = redis::from_redis_value(counted).unwrap();
    listening
}
