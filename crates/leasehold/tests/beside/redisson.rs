//! Beside the real Redisson, on the JVM: both lock each other out, and wake each other up.

use std::{
    future::Future,
    path::Path,
    time::{Duration, Instant},
};

use crate::common;
use crate::common::{
    assert_nothing_left, int,
    redisson::{Redisson, count},
    servers, wait_until_idle,
    wire::script_calls,
};
use futures_util::future::join_all;
use leasehold::{Client, Guard, Handoff, LostReason, Released};
use leasehold_testkit::{Server, wait_until_async};

/// Long enough that a waiter that is not woken is noticed.
const LEASE: Duration = Duration::from_secs(30);
const WOKEN: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_secs(10);

const CHANNEL: &str = "redisson_lock__channel:{name}";

async fn client_of(server: &Server) -> Client {
    Client::connect(&server.url()).await.unwrap()
}

async fn wait_until_heard_by(server: &Server, count: u64) {
    let what = format!("{count} processes listen");
    wait_until_async(SOON, &what, || {
        let reply = server.cli(&["PUBSUB", "NUMSUB", CHANNEL]);
        let (_, heard): (String, u64) = redis::from_redis_value(reply).unwrap();
        heard == count
    })
    .await;
}

async fn each_is_locked_out_by_the_other(prefix: &str, rest: &str) {
    for server in servers() {
        let builder = Client::builder().url(server.url()).name_prefix(prefix);
        let client = builder.connect().await.unwrap();
        let mut java = Redisson::start(&server, LEASE).await;
        let mutex = client.mutex(rest);

        let guard = mutex.lock().await.unwrap();
        assert_eq!(java.obey("try name 0").await, "false");
        java.order("lock name");
        wait_until_heard_by(&server, 1).await;
        let freed = Instant::now();
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        assert_eq!(java.answer().await, "locked");
        assert!(freed.elapsed() < WOKEN, "{:?}", freed.elapsed());

        assert!(mutex.try_lock().await.unwrap().is_none());
        let held = client
            .status(rest)
            .await
            .unwrap()
            .holder()
            .cloned()
            .unwrap();
        assert_eq!(held.holds, 1);
        let waiter = tokio::spawn(mutex.lock());
        wait_until_heard_by(&server, 1).await;
        let freed = Instant::now();
        assert_eq!(java.obey("unlock name").await, "unlocked");
        let guard = waiter.await.unwrap().unwrap();
        assert!(freed.elapsed() < WOKEN, "{:?}", freed.elapsed());
        drop(guard);
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "a lock beside Redisson").await;
    }
}

#[tokio::test]
async fn each_is_locked_out_by_the_other_and_woken_by_its_release() {
    each_is_locked_out_by_the_other("", "name").await;
}

/// Redisson's side has the whole name, as a `NameMapper` of its own makes it.
#[tokio::test]
async fn a_prefix_is_to_redisson_a_part_of_the_name() {
    each_is_locked_out_by_the_other("na", "me").await;
}

/// A read, a pause and a write under the lock by two processes of either kind: no update is lost, no process starves.
async fn nothing_is_lost(server: &Server, handoff: Handoff, file: &Path) {
    const THREADS: usize = 3;
    const TIMES: usize = 60;
    let clients = [client_of(server).await, client_of(server).await];
    let mut java = [
        Redisson::start(server, LEASE).await,
        Redisson::start(server, LEASE).await,
    ];
    std::fs::write(file, "0").unwrap();
    for jvm in &mut java {
        jvm.order(&format!("count name {} {THREADS} {TIMES}", file.display()));
    }
    let tasks = clients.iter().cycle().take(2 * THREADS);
    let tasks = tasks.map(|client| count(client.clone(), handoff, file.to_owned(), TIMES));
    let longest = join_all(tasks.map(tokio::spawn)).await;
    for jvm in &mut java {
        assert_eq!(jvm.answer().await, "counted");
    }
    let counted = std::fs::read_to_string(file).unwrap();
    assert_eq!(counted, (4 * THREADS * TIMES).to_string());
    // A waiter that was not woken would wait for a lease, or for the poll interval.
    for longest in longest {
        let longest = longest.unwrap();
        assert!(longest < SOON, "somebody waited {longest:?}");
    }
    for client in &clients {
        wait_until_idle(client).await;
    }
    assert_nothing_left(server, "counting beside Redisson").await;
}

#[tokio::test]
async fn no_update_is_lost_between_two_processes_of_each_kind() {
    for server in servers() {
        let file = server.dir().join("number");
        nothing_is_lost(&server, Handoff::default(), &file).await;
        nothing_is_lost(&server, Handoff::off(), &file).await;
    }
}

#[tokio::test]
async fn the_name_of_a_killed_jvm_is_free_when_its_lease_ends() {
    const SHORT: Duration = Duration::from_secs(2);
    for server in servers() {
        let client = client_of(&server).await;
        let mut java = Redisson::start(&server, SHORT).await;
        assert_eq!(java.obey("lock name").await, "locked");
        let waiter = tokio::spawn(client.mutex("name").lock());
        wait_until_heard_by(&server, 1).await;
        tokio::time::sleep(2 * SHORT).await; // Redisson renews it, the time itself is what is tested
        assert!(!waiter.is_finished(), "taken from a living holder");
        java.kill();
        let killed = Instant::now();
        drop(waiter.await.unwrap().unwrap());
        let late = killed.elapsed();
        assert!(late < SHORT + Duration::from_millis(200), "{late:?}");
        wait_until_idle(&client).await;
    }
}

#[tokio::test]
async fn what_redisson_unlocks_by_force_is_lost_at_the_next_renewal() {
    const SHORT: Duration = Duration::from_secs(3);
    for server in servers() {
        let client = client_of(&server).await;
        let mut java = Redisson::start(&server, LEASE).await;
        let guard = client.mutex("name").lease(SHORT).lock().await.unwrap();
        let waiter = tokio::spawn(client_of(&server).await.mutex("name").lock());
        wait_until_heard_by(&server, 1).await;
        assert_eq!(java.obey("force name").await, "true");
        // It publishes that the name is free, as every unlock does.
        let next = tokio::time::timeout(WOKEN, waiter).await.expect("woken");
        let next = next.unwrap().unwrap();
        assert_eq!(guard.lost().await, LostReason::Replaced);
        assert!(next.is_valid());
        common::assert_lost(guard.release().await, LostReason::Replaced);
        next.verify().await.unwrap();
    }
}

/// A Java thread was told of the end of a long lease. The next in our queue has a short one, and dies.
#[tokio::test]
async fn a_java_thread_that_waits_hears_of_a_shorter_lease_of_ours() {
    for server in servers() {
        let (first, next) = (client_of(&server).await, client_of(&server).await);
        let mut java = Redisson::start(&server, LEASE).await;
        macro_rules! play {
            ($kind:ident, $verb:ident, $java:literal, $queue:literal, $channel:literal) => {
                let long = || first.$kind("name").$verb();
                let short = || next.$kind("name").fixed_lease(SHORT).$verb();
                let words = [concat!($java, "lock name"), concat!($java, "unlock name")];
                let keys = [$queue, $channel];
                behind_ours(&server, &mut java, keys, words, long, short).await;
            };
        }
        play!(
            mutex,
            lock,
            "",
            "leasehold:{name}:queue",
            "redisson_lock__channel:{name}"
        );
        play!(
            rw_lock,
            write,
            "write ",
            "leasehold:{name}:rw:queue",
            "redisson_rwlock:{name}"
        );
    }
}

const SHORT: Duration = Duration::from_millis(400);

/// The name goes to either side by chance: until ours was first.
async fn behind_ours<K: Send + 'static, L, S>(
    server: &Server,
    java: &mut Redisson,
    [queue, channel]: [&str; 2],
    [lock, unlock]: [&str; 2],
    long: impl Fn() -> L,
    short: impl Fn() -> S,
) where
    L: Future<Output = Result<Guard<K>, leasehold::Error>>,
    S: Future<Output = Result<Guard<K>, leasehold::Error>> + Send + 'static,
{
    let heard = || {
        let reply = server.cli(&["PUBSUB", "NUMSUB", channel]);
        let (_, heard): (String, u64) = redis::from_redis_value(reply).unwrap();
        heard
    };
    loop {
        let long = long().await.unwrap();
        let short = tokio::spawn(short());
        let in_line = || int(server, &["LLEN", queue]) == 1;
        wait_until_async(SOON, "ours is in line", in_line).await;
        let before = heard();
        java.order(lock);
        wait_until_async(SOON, "the thread listens", || heard() > before).await;
        // It asks once more, and then it sleeps.
        let mut asked = 0;
        while asked != script_calls(server) {
            asked = script_calls(server);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        long.release().await.unwrap();
        let ours = tokio::time::timeout(SHORT, short).await;
        let since = Instant::now();
        let was_first = ours.is_ok();
        if let Ok(guard) = ours {
            drop(guard.unwrap().unwrap().detach());
        }
        assert_eq!(java.answer().await, "locked");
        let late = since.elapsed();
        assert_eq!(java.obey(unlock).await, "unlocked");
        assert!(late < WOKEN, "{late:?}");
        if was_first {
            return;
        }
    }
}
