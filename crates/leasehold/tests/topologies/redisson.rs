//! Beside the real Redisson, which asks the same sentinels, before and after another server becomes the primary.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use leasehold::{Client, Handoff, MutexGuard};
use leasehold_testkit::{SentinelGroup, Server, wait_until_async};

use super::sentinel_failover::again;
use crate::common::{
    SOON, assert_nothing_left, flavors, keys, of_the_whole,
    redisson::{Redisson, count},
    soon, until_waiting_here, wait_until_idle,
};

/// Long enough that a waiter that is not woken is noticed.
const LEASE: Duration = Duration::from_secs(30);

/// Of 50 hand-overs half are quicker.
const AIM: Duration = Duration::from_millis(100);
const HAND_OVERS: usize = 50;

/// That count, on each side.
const TASKS: usize = 3;

async fn until_heard_by(server: &Server, count: u64) {
    let what = format!("{count} processes listen");
    wait_until_async(SOON, &what, || {
        let reply = server.cli(&["PUBSUB", "NUMSUB", "redisson_lock__channel:{name}"]);
        let (_, heard): (String, u64) = redis::from_redis_value(reply).unwrap();
        heard == count
    })
    .await;
}

/// From our release to Redisson's hold.
async fn to_redisson(server: &Server, guard: MutexGuard, java: &mut Redisson) -> Duration {
    assert_eq!(java.obey("try name 0").await, "false");
    until_heard_by(server, 0).await;
    java.order("lock name");
    until_heard_by(server, 1).await;
    let freed = Instant::now();
    guard.release().await.unwrap();
    assert_eq!(java.answer().await, "locked");
    freed.elapsed()
}

/// From the order to unlock to our hold.
async fn to_us(server: &Server, client: &Client, java: &mut Redisson) -> (MutexGuard, Duration) {
    let mutex = client.mutex("name");
    assert!(mutex.try_lock().await.unwrap().is_none());
    until_heard_by(server, 0).await;
    let waiter = tokio::spawn(mutex.lock());
    until_heard_by(server, 1).await;
    let freed = Instant::now();
    java.order("unlock name");
    let guard = soon("its turn", waiter).await.unwrap().unwrap();
    let took = freed.elapsed();
    assert_eq!(java.answer().await, "unlocked");
    (guard, took)
}

fn assert_soon(what: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let (half, most) = (took[took.len() / 2], took[took.len() - 1]);
    println!("{what}: p50 {half:?}, longest {most:?}");
    assert!(half < AIM, "{what}: p50 {half:?}");
}

/// Each locks the other out and wakes it, and what both count together is exact.
async fn share(when: &str, server: &Server, client: &Client, java: &mut Redisson) {
    let when = format!("{}, {when}", server.flavor());
    let mut guard = client.mutex("name").lock().await.unwrap();
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..HAND_OVERS {
        theirs.push(to_redisson(server, guard, java).await);
        let (next, took) = to_us(server, client, java).await;
        ours.push(took);
        guard = next;
    }
    guard.release().await.unwrap();
    assert_soon(&format!("{when}, from us to Redisson"), theirs);
    assert_soon(&format!("{when}, from Redisson to us"), ours);

    let times = of_the_whole(100);
    let file = server.dir().join("number");
    std::fs::write(&file, "0").unwrap();
    java.order(&format!("count name {} {TASKS} {times}", file.display()));
    let counts = (0..TASKS).map(|_| count(client.clone(), Handoff::default(), file.clone(), times));
    join_all(counts).await;
    assert_eq!(java.answer().await, "counted");
    let counted = std::fs::read_to_string(&file).unwrap();
    assert_eq!(counted, (2 * TASKS * times).to_string());
}

/// Until what each takes is taken at the new primary.
async fn until_both_are_at(new: &Server, client: &Client, java: &mut Redisson) {
    let began = Instant::now();
    let is_there = |name: &String| keys(new).contains(name);
    for look in 0.. {
        let (ours, theirs) = (format!("ours{look}"), format!("theirs{look}"));
        let guard = client.mutex(&*ours).lock().await.unwrap();
        let said = java.obey(&format!("try {theirs} 0")).await;
        let are_there = is_there(&ours) && is_there(&theirs);
        // A release at the old primary is forgotten, as is what it gives back.
        drop(guard.release().await);
        java.obey(&format!("unlock {theirs}")).await;
        if are_there {
            println!("both are there after {:?}", began.elapsed());
            return;
        }
        assert!(began.elapsed() < SOON, "still at the old primary: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redisson_and_we_exclude_and_wake_each_other_before_and_after_a_failover() {
    for flavor in flavors(1) {
        let mut group = SentinelGroup::start(flavor);
        let client = Client::connect(&group.url()).await.unwrap();
        let mut java = Redisson::start_in(&group, LEASE).await;
        let old = group.primary();
        share("before", group.server(old), &client, &mut java).await;

        // One waits while the servers change.
        assert_eq!(java.obey("lock name").await, "locked");
        let waiter = tokio::spawn(client.mutex("name").lock());
        until_waiting_here(&client, 1).await;
        let new = group.failover();
        group.settle();
        let new = again(group.server(new));
        until_both_are_at(new, &client, &mut java).await;
        assert!(!waiter.is_finished(), "Redisson holds it");
        assert_eq!(java.obey("unlock name").await, "unlocked");
        let guard = soon("its turn", waiter).await.unwrap().unwrap();
        guard.release().await.unwrap();

        share("after", new, &client, &mut java).await;
        wait_until_idle(&client).await;
        assert_nothing_left(new, "a failover beside Redisson").await;
    }
}
