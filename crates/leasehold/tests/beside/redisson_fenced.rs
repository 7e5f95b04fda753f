//! Beside the real Redisson, on the JVM: its fenced lock and ours lock each other out, wake each other, and number their
//! holders together.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use crate::common::{
    flavors, int, keys, late::Control, redisson::Redisson, release, servers, soon, wait_until_idle,
};
use futures_util::future::join_all;
use leasehold::{Client, FencedMutex, Handoff, LostReason};
use leasehold_testkit::{Server, wait_until_async};

/// Long enough that a waiter that is not woken is noticed.
const LEASE: Duration = Duration::from_secs(30);
const WOKEN: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_secs(10);

const CHANNEL: &str = "redisson_lock__channel:{name}";
const TOKEN: &str = "redisson_lock_token:{name}";

/// As it must be said beside Redisson: the key of the tokens has no end.
async fn client_of(server: &Server) -> Client {
    let builder = Client::builder().url(server.url()).token_retention(None);
    builder.connect().await.unwrap()
}

async fn until_heard_by(server: &Server, count: u64) {
    let what = format!("{count} processes listen");
    wait_until_async(SOON, &what, || {
        let reply = server.cli(&["PUBSUB", "NUMSUB", CHANNEL]);
        let (_, heard): (String, u64) = redis::from_redis_value(reply).unwrap();
        heard == count
    })
    .await;
}

fn token(answer: &str) -> u64 {
    answer.parse().unwrap_or_else(|_| panic!("{answer}"))
}

/// A grant by Java, and one by us.
async fn turn(java: &mut Redisson, mutex: &FencedMutex, before: &mut u64) {
    let theirs = token(&java.obey("fenced name lock").await);
    assert_eq!(java.obey("fenced name unlock").await, "unlocked");
    let guard = mutex.lock().await.unwrap();
    let ours = guard.token();
    release(guard).await;
    assert!(
        *before < theirs && theirs < ours,
        "{before}, {theirs}, {ours}"
    );
    *before = ours;
}

#[tokio::test]
async fn a_thousand_turns_of_java_and_rust_have_a_thousand_growing_tokens() {
    for server in servers() {
        let machine = Control::start();
        let client = client_of(&server).await;
        let mut java = Redisson::start(&server, LEASE).await;
        let mutex = client.fenced_mutex("name");
        let mut last = 0;
        for _ in 0..250 {
            turn(&mut java, &mutex, &mut last).await;
        }
        // A server that has lost everything: what is next begins with one of ours.
        server.cli(&["FLUSHALL"]);
        let guard = mutex.lock().await.unwrap();
        assert!(guard.token() > last);
        last = guard.token();
        release(guard).await;
        for _ in 0..250 {
            turn(&mut java, &mutex, &mut last).await;
        }
        assert_eq!(token(&java.obey("fenced name token").await), last + 64);
        assert_eq!(int(&server, &["PTTL", TOKEN]), -1, "for Redisson's sake");
        wait_until_idle(&client).await;
        let (mut left, late) = (keys(&server), machine.latest());
        // A request that has no answer in 2 s leaves a tombstone, which ends by itself.
        if late > Duration::from_secs(1) {
            left.retain(|key| !key.contains(":gone:"));
        }
        assert_eq!(left, [TOKEN], "this machine was late by {late:?}");
    }
}

#[tokio::test]
async fn a_key_that_redisson_made_keeps_no_end_whatever_we_say() {
    for server in servers() {
        let mut java = Redisson::start(&server, LEASE).await;
        assert_eq!(java.obey("fenced name lock").await, "1");
        assert_eq!(java.obey("fenced name unlock").await, "unlocked");
        let client = Client::connect(&server.url()).await.unwrap();
        let guard = client.fenced_mutex("name").lock().await.unwrap();
        assert!(guard.token() > 1);
        assert_eq!(int(&server, &["PTTL", TOKEN]), -1);
        release(guard).await;
    }
}

#[tokio::test]
async fn each_is_locked_out_by_the_other_and_woken_by_its_release() {
    for server in servers() {
        let client = client_of(&server).await;
        let mut java = Redisson::start(&server, LEASE).await;
        let mutex = client.fenced_mutex("name");

        let guard = mutex.lock().await.unwrap();
        let first = guard.token();
        assert_eq!(java.obey("fenced name try 1").await, "none");
        assert_eq!(
            java.obey("try name 0").await,
            "false",
            "nor as a plain lock"
        );
        java.order("fenced name lock");
        until_heard_by(&server, 1).await;
        let freed = Instant::now();
        release(guard).await;
        let second = token(&java.answer().await);
        assert!(freed.elapsed() < WOKEN, "{:?}", freed.elapsed());

        assert!(mutex.try_lock().await.unwrap().is_none());
        let waiter = tokio::spawn(mutex.lock());
        until_heard_by(&server, 1).await;
        let freed = Instant::now();
        assert_eq!(java.obey("fenced name unlock").await, "unlocked");
        let guard = soon("woken", waiter).await.unwrap().unwrap();
        assert!(freed.elapsed() < WOKEN, "{:?}", freed.elapsed());
        assert!(first < second && second < guard.token());
        release(guard).await;
        wait_until_idle(&client).await;
        assert_eq!(keys(&server), [TOKEN]);
    }
}

#[tokio::test]
async fn what_redisson_unlocks_by_force_goes_on_with_a_larger_token() {
    const SHORT: Duration = Duration::from_secs(3);
    for server in servers() {
        let client = client_of(&server).await;
        let mut java = Redisson::start(&server, LEASE).await;
        let mutex = client.fenced_mutex("name").lease(SHORT);
        let guard = mutex.lock().await.unwrap();
        let old = guard.token();
        assert_eq!(java.obey("fenced name force").await, "true");
        let theirs = token(&java.obey("fenced name lock").await);
        assert!(theirs > old);
        assert_eq!(guard.lost().await, LostReason::Replaced);
        assert!(mutex.force_unlock().await.unwrap());
        let next = mutex.lock().await.unwrap();
        assert!(next.token() > theirs);
    }
}

/// Counts in the file as `Fenced.java` does: each holder sees a smaller token there than its own.
async fn count(mutex: FencedMutex, file: PathBuf, times: usize) {
    for _ in 0..times {
        let guard = mutex.lock().await.unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let (number, before) = text.split_once(' ').unwrap();
        let number: u64 = number.parse().unwrap();
        assert!(token(before) < guard.token(), "{before}, {}", guard.token());
        tokio::time::sleep(Duration::from_millis(1)).await; // the window in which an update would be lost
        std::fs::write(&file, format!("{} {}", number + 1, guard.token())).unwrap();
        release(guard).await;
    }
}

#[tokio::test]
async fn no_update_is_lost_and_no_token_goes_back_between_two_processes_of_each_kind() {
    const THREADS: usize = 3;
    const TIMES: usize = 60;
    for server in flavors(1).into_iter().map(Server::start) {
        let file = server.dir().join("number");
        std::fs::write(&file, "0 0").unwrap();
        for handoff in [Handoff::default(), Handoff::off()] {
            let clients = [client_of(&server).await, client_of(&server).await];
            let mut java = [
                Redisson::start(&server, LEASE).await,
                Redisson::start(&server, LEASE).await,
            ];
            for jvm in &mut java {
                jvm.order(&format!(
                    "fenced name count {} {THREADS} {TIMES}",
                    file.display()
                ));
            }
            let tasks = clients.iter().cycle().take(2 * THREADS).map(|client| {
                let mutex = client.fenced_mutex("name").handoff(handoff);
                tokio::spawn(count(mutex, file.clone(), TIMES))
            });
            for task in join_all(tasks).await {
                task.unwrap();
            }
            for jvm in &mut java {
                assert_eq!(jvm.answer().await, "counted");
            }
            for client in &clients {
                wait_until_idle(client).await;
            }
        }
        let counted = std::fs::read_to_string(&file).unwrap();
        let counted = counted.split(' ').next().unwrap();
        assert_eq!(counted, (2 * 4 * THREADS * TIMES).to_string());
        assert_eq!(keys(&server), [TOKEN]);
    }
}
