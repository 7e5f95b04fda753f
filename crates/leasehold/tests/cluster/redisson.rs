//! Beside the real Redisson in cluster mode, with its defaults: both wake each other on sharded channels.

use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold_testkit::{Cluster, wait_until_async};

use super::{channel, flavors, listeners, slot};
use crate::common::{
    SOON,
    redisson::{Redisson, share},
    soon, until_waiting_here, wait_until_idle,
};

/// Long enough that a waiter that is not woken is noticed.
const LEASE: Duration = Duration::from_secs(30);

async fn share_at(when: &str, cluster: &Cluster, client: &Client, java: &mut Redisson) {
    let owner = cluster.primary_of(slot(cluster, "name"));
    let heard = || listeners(cluster, owner, &channel("name"), true);
    let when = format!("{}, {when}", cluster.node(owner).flavor());
    share(&when, &heard, cluster.node(owner).dir(), client, java).await;
}

/// Until Redisson takes names where the slot is now.
pub(crate) async fn until_it_follows(java: &mut Redisson) {
    let began = Instant::now();
    while java.obey("try name 0").await != "true" {
        assert!(began.elapsed() < SOON, "it is still at the old node");
    }
    unlock(java).await;
}

/// Redisson refuses to ask while it learns that a slot has moved ("hasn't been discovered yet").
async fn unlock(java: &mut Redisson) {
    let began = Instant::now();
    loop {
        let answer = java.obey("unlock name").await;
        if answer == "unlocked" {
            return;
        }
        assert!(began.elapsed() < SOON, "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redisson_and_we_exclude_and_wake_each_other_on_sharded_channels() {
    for flavor in flavors() {
        let cluster = Cluster::start(flavor);
        let client = Client::connect(&cluster.url()).await.unwrap();
        let mut java = Redisson::start_on(&cluster, LEASE, "").await;
        share_at("before", &cluster, &client, &mut java).await;

        // A client waits while its slot moves, and while its primary is replaced.
        let slot = slot(&cluster, "name");
        for is_failover in [false, true] {
            assert_eq!(java.obey("lock name").await, "locked");
            let waiter = tokio::spawn(client.mutex("name").lock());
            until_waiting_here(&client, 1).await;
            let before = cluster.primary_of(slot);
            if is_failover {
                cluster.fail_over(before);
            } else {
                cluster.migrate(slot, (before + 1) % 3);
            }
            let after = cluster.primary_of(slot);
            let heard = || listeners(&cluster, after, &channel("name"), true) == 1;
            wait_until_async(SOON, "it listens there", heard).await;
            assert!(!waiter.is_finished(), "Redisson holds it");
            let freed = Instant::now();
            unlock(&mut java).await;
            let guard = soon("its turn", waiter).await.unwrap().unwrap();
            println!("failover {is_failover}: ours after {:?}", freed.elapsed());
            guard.release().await.unwrap();
            until_it_follows(&mut java).await;
            share_at("after", &cluster, &client, &mut java).await;
        }
        wait_until_idle(&client).await;
    }
}
