//! Latches beside the real Redisson, on the JVM: each counts and sees the other's count, and each wakes the other.

use std::time::Duration;

use crate::common::{SOON, redisson::Redisson, servers, soon, wait_until_idle, wire::monotonic};
use leasehold::{Client, Latch};
use leasehold_testkit::{Server, wait_until_async};

const LEASE: Duration = Duration::from_secs(30);
const CHANNEL: &str = "redisson_countdownlatch__channel__{name}";
const ROUNDS: usize = 50;

async fn latch(server: &Server) -> (Client, Latch) {
    // Long enough that a waiter that is not woken is noticed.
    let builder = Client::builder().url(server.url()).poll_every(LEASE);
    let client = builder.connect().await.unwrap();
    let latch = client.latch("name");
    (client, latch)
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

fn wait(latch: &Latch) -> tokio::task::JoinHandle<Duration> {
    let latch = latch.clone();
    tokio::spawn(async move {
        latch.wait().await.unwrap();
        monotonic()
    })
}

/// Java's wait is over: when, on the clock that all processes share.
async fn went_on(java: &mut Redisson) -> Duration {
    let answer = java.answer().await;
    let at = answer.strip_prefix("true ").expect("it is open");
    Duration::from_nanos(at.parse().unwrap())
}

fn p50(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let (p50, most) = (times[times.len() / 2], times[times.len() - 1]);
    eprintln!("{what}: p50 {p50:?}, most {most:?}");
    assert!(p50 < Duration::from_millis(100), "{what}: {times:?}");
}

#[tokio::test]
async fn each_sees_what_the_other_has_set_and_counted() {
    for server in servers() {
        let (client, latch) = latch(&server).await;
        let mut java = Redisson::start(&server, LEASE).await;
        assert!(latch.try_set_count(5).await.unwrap());
        assert_eq!(java.obey("latch name set 9").await, "false");
        assert_eq!(java.obey("latch name count").await, "5");
        assert_eq!(java.obey("latch name down").await, "counted down");
        assert_eq!(latch.count().await.unwrap(), 4);
        assert_eq!(latch.count_down_by(3).await.unwrap(), 1);
        assert_eq!(java.obey("latch name count").await, "1");
        assert_eq!(java.obey("latch name down").await, "counted down");
        assert_eq!(latch.count().await.unwrap(), 0);
        assert_eq!(java.obey("latch name set 2").await, "true");
        assert!(!latch.try_set_count(3).await.unwrap());
        assert_eq!(latch.status().await.unwrap().count, Some(2));
        assert!(latch.delete().await.unwrap());
        assert_eq!(java.obey("latch name delete").await, "false");
        assert_eq!(java.obey("latch name count").await, "0");
        // A latch of ours that Java counts down leaves the name to a semaphore of Java's, and that is ours, too.
        assert!(latch.try_set_count(1).await.unwrap());
        assert_eq!(java.obey("latch name down").await, "counted down");
        assert_eq!(java.obey("semaphore name set 1").await, "true");
        let permit = client.semaphore("name").acquire().await.unwrap();
        permit.release().await.unwrap();
        wait_until_idle(&client).await;
    }
}

#[tokio::test]
async fn java_waits_and_is_woken_when_rust_counts_down() {
    for server in servers() {
        let (client, latch) = latch(&server).await;
        let mut java = Redisson::start(&server, LEASE).await;
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            latch.try_set_count(2).await.unwrap();
            java.order("latch name wait 30000");
            until_heard_by(&server, 1).await;
            latch.count_down().await.unwrap();
            let began = monotonic();
            latch.count_down().await.unwrap();
            times.push(went_on(&mut java).await.saturating_sub(began));
            until_heard_by(&server, 0).await;
        }
        p50("Rust counts down, Java goes on", times);
        wait_until_idle(&client).await;
    }
}

#[tokio::test]
async fn rust_waits_and_is_woken_when_java_counts_down() {
    for server in servers() {
        let (client, latch) = latch(&server).await;
        let mut java = Redisson::start(&server, LEASE).await;
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            assert_eq!(java.obey("latch name set 2").await, "true");
            let waits = wait(&latch);
            until_heard_by(&server, 1).await;
            assert_eq!(java.obey("latch name down").await, "counted down");
            assert!(!waits.is_finished());
            let began = monotonic();
            java.order("latch name down");
            let woken = soon("woken", waits).await.unwrap();
            times.push(woken.saturating_sub(began));
            assert_eq!(java.answer().await, "counted down");
            until_heard_by(&server, 0).await;
        }
        p50("Java counts down, Rust goes on", times);
        wait_until_idle(&client).await;
    }
}

#[tokio::test]
async fn a_deleted_latch_keeps_no_waiter_of_either() {
    for server in servers() {
        let (client, latch) = latch(&server).await;
        let mut java = Redisson::start(&server, LEASE).await;
        let mut other = Redisson::start(&server, LEASE).await;
        latch.try_set_count(3).await.unwrap();
        java.order("latch name wait 30000");
        let waits = wait(&latch);
        until_heard_by(&server, 2).await;
        assert!(latch.delete().await.unwrap());
        soon("woken by ours", waits).await.unwrap();
        went_on(&mut java).await;
        // And ours by Redisson's, which leaves its own where they are.
        latch.try_set_count(3).await.unwrap();
        let waits = wait(&latch);
        until_heard_by(&server, 1).await;
        assert_eq!(other.obey("latch name delete").await, "true");
        soon("woken by theirs", waits).await.unwrap();
        wait_until_idle(&client).await;
    }
}
