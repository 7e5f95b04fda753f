//! Beside the real Redisson, which asks the same sentinels, before and after another server becomes the primary.

use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold_testkit::{SentinelGroup, Server};

use super::sentinel_failover::again;
use crate::common::{
    SOON, assert_nothing_left, flavors, keys,
    redisson::{Redisson, share},
    soon, until_waiting_here, wait_until_idle,
};

/// Long enough that a waiter that is not woken is noticed.
const LEASE: Duration = Duration::from_secs(30);

/// How many processes listen for the name.
fn heard(server: &Server) -> u64 {
    let reply = server.cli(&["PUBSUB", "NUMSUB", "redisson_lock__channel:{name}"]);
    let (_, heard): (String, u64) = redis::from_redis_value(reply).unwrap();
    heard
}

async fn share_on(when: &str, server: &Server, client: &Client, java: &mut Redisson) {
    let when = format!("{}, {when}", server.flavor());
    share(&when, &|| heard(server), server.dir(), client, java).await;
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
        share_on("before", group.server(old), &client, &mut java).await;

        // A client waits while the servers change.
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

        share_on("after", new, &client, &mut java).await;
        wait_until_idle(&client).await;
        assert_nothing_left(new, "a failover beside Redisson").await;
    }
}
