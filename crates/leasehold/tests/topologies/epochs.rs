//! A server that may have forgotten what it was told: what is held there is verified at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use leasehold::{Client, Event, EventKind, LostReason, MemoryServer, MutexGuard};
use leasehold_testkit::{Flavor, Server, wait_until, wait_until_async};
use tokio::net::{TcpListener, TcpStream};

use crate::common::{
    SOON, int,
    late::{in_time, unless_late_async},
    own_names::GivenBack,
    servers, soon,
};

/// No renewal comes to help.
const LONG: Duration = Duration::from_secs(600);

/// A client with long leases that counts events of a kind.
pub(crate) async fn counting(
    url: &str,
    counts: fn(&EventKind) -> bool,
) -> (Client, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    let observe = move |event: &Event| {
        counter.fetch_add(usize::from(counts(&event.kind)), Ordering::Relaxed);
    };
    let builder = Client::builder().url(url).lease(LONG).observe(observe);
    (builder.connect().await.unwrap(), count)
}

/// So many names, every third with a fixed lease.
pub(crate) async fn take(client: &Client, names: std::ops::Range<usize>) -> Vec<MutexGuard> {
    let mut guards = Vec::with_capacity(names.len());
    for names in names.collect::<Vec<_>>().chunks(500) {
        let locks = names.iter().map(|&i| {
            let mutex = client.mutex(format!("name{i}"));
            let mutex = if i % 3 == 0 {
                mutex.fixed_lease(LONG)
            } else {
                mutex
            };
            mutex.lock()
        });
        guards.extend(
            join_all(locks)
                .await
                .into_iter()
                .map(|guard| guard.unwrap()),
        );
    }
    guards
}

/// Waits until a client of ours is connected again.
fn until_connected(server: &Server) -> Instant {
    wait_until(SOON, "the client is connected again", || {
        is_connected(server)
    });
    Instant::now()
}

fn is_connected(server: &Server) -> bool {
    let list = server.cli(&["CLIENT", "LIST"]);
    let list: String = redis::from_redis_value(list).unwrap();
    list.contains(" name=leasehold:")
}

fn is_failover(kind: &EventKind) -> bool {
    matches!(
        kind,
        EventKind::Lost {
            reason: LostReason::Failover,
            ..
        }
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_holds_on_a_server_that_restarts_empty_are_told_within_a_second() {
    const MOST: Duration = Duration::from_secs(1);
    for mut server in servers() {
        unless_late_async("all are told", MOST, async || {
            let (client, told) = counting(&server.url(), is_failover).await;
            let guards = take(&client, 0..10_000).await;
            assert_eq!(told.load(Ordering::Relaxed), 0);
            server.restart();
            let connected = until_connected(&server);
            wait_until(SOON, "all are told", || {
                told.load(Ordering::Relaxed) == guards.len()
            });
            let took = connected.elapsed();
            println!("{}: {took:?}", server.flavor());
            assert!(guards.iter().all(|guard| !guard.is_valid()));
            in_time(took, MOST)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_on_a_server_that_restarts_with_its_data_stay_valid() {
    for flavor in Flavor::available() {
        let mut server = Server::start_with(flavor, &["--appendonly", "yes"]);
        let is_renewed = |kind: &EventKind| matches!(kind, EventKind::Renewed { .. });
        let (client, renewed) = counting(&server.url(), is_renewed).await;
        let guards = take(&client, 0..300).await;
        server.restart();
        // Two thirds of them are verified by a renewal.
        wait_until_async(SOON, "all are verified", || {
            renewed.load(Ordering::Relaxed) >= 200
        })
        .await;
        for guard in &guards {
            guard.verify().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_broke_to_a_server_that_goes_on_verifies_nothing() {
    for server in servers() {
        let client = Client::builder()
            .url(server.url())
            .lease(LONG)
            .connect()
            .await
            .unwrap();
        // No lock has a fixed lease, which is looked at every ten seconds.
        let locks = (0..10).map(|i| client.mutex(format!("name{i}")).lock());
        let guards: Vec<_> = join_all(locks)
            .await
            .into_iter()
            .map(Result::unwrap)
            .collect();
        wait_until(SOON, "it has connections", || is_connected(&server));
        let scripts = || server.calls().get("evalsha").copied();
        let before = scripts();
        server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        until_connected(&server);
        // The handshake has been heard by then, and with it what follows.
        client
            .mutex("other")
            .try_lock()
            .await
            .unwrap()
            .unwrap()
            .detach();
        assert_eq!(
            scripts(),
            before.map(|before| before + 1),
            "{}",
            server.flavor()
        );
        assert!(guards.iter().all(MutexGuard::is_valid));
    }
}

/// An address whose new connections lead to the server at this port, while old ones go on: as behind a balancer.
async fn balancer(to: &Arc<AtomicU16>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    let to = Arc::clone(to);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let port = to.load(Ordering::Relaxed);
            tokio::spawn(async move {
                if let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await {
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                }
            });
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_server_of_before_answers_confirms_nothing_at_the_new_one() {
    let [old, new] = [Server::start(Flavor::Redis), Server::start(Flavor::Redis)];
    let to = Arc::new(AtomicU16::new(old.addr().port()));
    let (client, _) = counting(&balancer(&to).await, is_failover).await;
    let held = take(&client, 0..6).await;
    // The watchdog's connection is made anew there. It is younger than a second, so it is not left at once.
    old.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    until_connected(&old);
    to.store(new.addr().port(), Ordering::Relaxed);
    // This runtime's leads to the new one. (Its lock may be verified at the old one, and be told lost.)
    let _other = client.mutex("other").lock().await.unwrap();
    for guard in &held {
        assert_eq!(soon("the loss", guard.lost()).await, LostReason::Failover);
    }
}

/// A user that may not ask by `INFO` in which epoch the server is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_server_does_not_say_its_epoch_each_reconnect_verifies() {
    for flavor in Flavor::available() {
        let user = [
            "--user", "worker", "on", ">pw", "~*", "&*", "+@all", "-info",
        ];
        let mut server = Server::start_with(flavor, &user);
        let url = format!("redis://worker:pw@{}/", server.addr());
        let (client, told) = counting(&url, is_failover).await;
        let guards = take(&client, 0..10).await;
        let scripts = || server.calls().get("evalsha").copied().unwrap_or_default();
        let before = scripts();
        server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        wait_until_async(SOON, "they are verified", || scripts() > before).await;
        for guard in &guards {
            guard.verify().await.unwrap();
        }
        server.restart();
        wait_until_async(SOON, "all are told", || told.load(Ordering::Relaxed) == 10).await;
    }
}

/// Each reconnect may have led to another server, which is asked for as much as is believed, and not for more (bug 311).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_server_does_not_say_its_epoch_a_fixed_lease_ends_all_the_same() {
    const LONGER: Duration = Duration::from_secs(600);
    for flavor in Flavor::available() {
        let user = [
            "--user", "worker", "on", ">pw", "~*", "&*", "+@all", "-info",
        ];
        let server = Server::start_with(flavor, &user);
        let url = format!("redis://worker:pw@{}/", server.addr());
        let client = Client::connect(&url).await.unwrap();
        let fixed = client.mutex("fixed").fixed_lease(SOON);
        let guard = fixed.lock().await.unwrap();
        guard.extend(LONGER).await.unwrap();
        let began = Instant::now();
        let believed = guard.remaining();
        let scripts = || server.calls().get("evalsha").copied().unwrap_or_default();
        for _ in 0..10 {
            let before = scripts();
            server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            wait_until_async(SOON, "it is verified", || scripts() > before + 1).await;
        }
        let since = began.elapsed();
        let there = Duration::from_millis(int(&server, &["PTTL", "fixed"]).try_into().unwrap());
        assert!(
            guard.remaining() <= believed.saturating_sub(since),
            "{flavor}"
        );
        assert!(there + since < LONGER + LONGER / 50, "{flavor}: {there:?}");
        assert!(guard.remaining() <= there, "{flavor}: {there:?}");
    }
}

/// The subscription leads to a server that hears and is not counted, or that is told nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_subscription_is_made_anew_at_a_server_that_was_a_replica_meanwhile() {
    for server in servers() {
        let holder = Client::connect(&server.url()).await.unwrap();
        let guard = holder.mutex("name").lock().await.unwrap();
        let client = Client::connect(&server.url()).await.unwrap();
        let mutex = client.mutex("name");
        let waiter = tokio::spawn(async move { mutex.lock().await.unwrap() });
        crate::common::until_listening(&holder, 1).await;
        let subscribers = || {
            let list: String =
                redis::from_redis_value(server.cli(&["CLIENT", "LIST", "TYPE", "pubsub"])).unwrap();
            let ids = list
                .split_whitespace()
                .filter(|word| word.starts_with("id="));
            ids.map(str::to_owned).collect::<Vec<_>>()
        };
        let before = subscribers();
        server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
        server.cli(&["REPLICAOF", "NO", "ONE"]);
        server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        // The next request finds that it is in another epoch.
        while client.status("name").await.is_err() {}
        wait_until_async(SOON, "another subscription", || {
            let now = subscribers();
            !now.is_empty() && now != before
        })
        .await;
        guard.verify().await.unwrap();
        drop(guard);
        drop(soon("the waiter is woken", waiter).await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_memory_server_that_restarts_empty_is_noticed_at_once() {
    let server = MemoryServer::new();
    let client = Client::builder().memory(&server).connect().await.unwrap();
    let other = Client::builder().memory(&server).connect().await.unwrap();
    let guard = client.mutex("name").lock().await.unwrap();
    let fixed = client
        .mutex("fixed")
        .fixed_lease(Duration::from_secs(9))
        .lock()
        .await
        .unwrap();
    let lock = other.mutex("name").lock();
    let waiter = tokio::spawn(lock);
    crate::common::until_listening(&client, 1).await;
    let began = tokio::time::Instant::now();
    server.restart_empty();
    assert_eq!(guard.lost().await, LostReason::Failover);
    assert_eq!(fixed.lost().await, LostReason::Failover);
    waiter.await.unwrap().unwrap().verify().await.unwrap();
    assert!(
        began.elapsed() < Duration::from_millis(100),
        "{:?}",
        began.elapsed()
    );
    // A lock that is taken from then on is lost as ever.
    let guard = client.mutex("later").lock().await.unwrap();
    server.expire("later");
    assert!(guard.verify().await.is_err());
    assert_eq!(guard.lost().await, LostReason::Replaced);
}

/// It has a snapshot of before, in which a name is held that its caller has given back since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_only_its_caller_uses_is_not_held_by_another_after_a_restart_with_older_data() {
    for flavor in Flavor::available() {
        let older = ["--save", "3600 1", "--dbfilename", "older.rdb"];
        let mut server = Server::start_with(flavor, &older);
        let client = Client::connect(&server.url()).await.unwrap();
        let all = GivenBack::after(&client, "older", || _ = server.cli(&["SAVE"])).await;
        server.kill();
        server.restart();
        all.are_had_again().await;
    }
}

/// It has a snapshot of before, in which a lease ends sooner than its holder was told (bug 300).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_was_made_longer_lasts_as_long_after_a_restart_with_older_data() {
    for flavor in Flavor::available() {
        let older = ["--save", "3600 1", "--dbfilename", "older.rdb"];
        let mut server = Server::start_with(flavor, &older);
        let client = Client::connect(&server.url()).await.unwrap();
        let lock = |name| client.mutex(name).fixed_lease(Duration::from_secs(20));
        let (idle, asks) = (
            lock("idle").lock().await.unwrap(),
            lock("asks").lock().await.unwrap(),
        );
        server.cli(&["SAVE"]);
        for guard in [&idle, &asks] {
            guard.extend(Duration::from_secs(60)).await.unwrap();
        }
        server.kill();
        server.restart();
        // Its holder asks before the watchdog does, or after.
        while asks.verify().await.is_err() {
            assert!(asks.is_valid());
        }
        for (name, guard) in [("idle", &idle), ("asks", &asks)] {
            let is_there = || {
                let ends = Duration::from_millis(int(&server, &["PTTL", name]).try_into().unwrap());
                ends > Duration::from_secs(50) && guard.remaining() <= ends
            };
            wait_until_async(
                SOON,
                "the server has it for as long as is believed",
                is_there,
            )
            .await;
            assert!(guard.is_valid());
        }
    }
}
