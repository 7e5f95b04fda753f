//! A replica that has acknowledged is promoted.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Client, Durability};
use leasehold_testkit::{Flavor, SentinelGroup, SentinelSettings, wait_until, wait_until_async};

use super::replicated::{Replicated, flavors, until_online};
use crate::common::{SOON, few_or, soon};

const MS: Duration = Duration::from_millis(1);
const ONE: Durability = Durability::Replicas(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_other_has_the_lock_at_the_promoted_replica_while_its_guard_is_valid() {
    let mut group = Replicated::start(flavors()[0], 1);
    let mut longest = Duration::ZERO;
    for round in 0..few_or(5, 50) {
        let builder = group.builder().durability(ONE).lease(600 * MS);
        let client = builder.connect().await.unwrap();
        let guard = client.mutex("name").lock().await.unwrap();
        // Somewhere between two renewals; in each other round the last of them are not acknowledged.
        tokio::time::sleep(MS * fastrand::u32(0..300)).await;
        if round % 2 == 1 {
            group.freeze();
            tokio::time::sleep(MS * fastrand::u32(0..500)).await;
        }
        let ended = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&ended);
        let look = std::thread::spawn(move || {
            let mut last = Instant::now();
            while !ends.load(Ordering::Relaxed) {
                let now = Instant::now();
                if guard.is_valid() {
                    last = now;
                }
                std::thread::sleep(MS / 5);
            }
            last
        });
        group.primary.kill();
        let began = Instant::now();
        group.thaw();
        let promoted = &group.replicas[0];
        promoted.cli(&["REPLICAOF", "NO", "ONE"]);
        let rival = Client::connect(&promoted.url()).await.unwrap();
        let rival = soon("the rival has it", rival.mutex("name").lock()).await;
        let taken = Instant::now();
        ended.store(true, Ordering::Relaxed);
        let last = look.join().unwrap();
        assert!(last < taken, "round {round}: both for {:?}", last - taken);
        longest = longest.max(last.saturating_duration_since(began));
        drop(rival);
        // The roles are changed.
        let Replicated { primary, replicas } = &mut group;
        std::mem::swap(primary, &mut replicas[0]);
        replicas[0].restart();
        let port = primary.port().to_string();
        replicas[0].cli(&["REPLICAOF", "127.0.0.1", &port]);
        until_online(primary, 1);
    }
    assert!(
        longest > 100 * MS,
        "no guard outlived its server: {longest:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_goes_on_after_a_failover_and_is_acknowledged_by_those_that_are_left() {
    let flavor = *flavors().last().unwrap();
    let settings = SentinelSettings::new().args(&["--appendonly", "yes"]);
    let group = SentinelGroup::start_with(flavor, settings);
    let builder = Client::builder()
        .url(group.url())
        .durability_timeout(3000 * MS);
    let client = builder.lease(6000 * MS).connect().await.unwrap();
    // Redis 7.0 has no other.
    let policies = match flavor {
        Flavor::Redis => vec![ONE],
        Flavor::Valkey => vec![ONE, Durability::Aof],
    };
    let mut held = Vec::new();
    for policy in &policies {
        let mutex = client.mutex(format!("{policy}")).durability(*policy);
        let guard = soon("a lock", mutex.lock()).await.unwrap();
        let before = guard.durability().at.expect("it was acknowledged");
        held.push((guard, before));
    }
    let promoted = tokio::task::block_in_place(|| group.failover());
    let begun = Instant::now();
    for (guard, before) in &held {
        let is_new = || {
            let at = guard.durability().at;
            at.is_some_and(|at| at > begun && at > *before)
        };
        wait_until_async(4 * SOON, "it is acknowledged anew", is_new).await;
        assert!(guard.is_valid());
    }
    let asked = if policies.len() == 1 {
        "wait"
    } else {
        "waitaof"
    };
    let there = || group.server(promoted).calls().get(asked).copied() > Some(0);
    wait_until(SOON, "at the promoted server", there);
    for policy in policies {
        let mutex = client.mutex(format!("next {policy}")).durability(policy);
        let next = soon("another lock", mutex.lock()).await.unwrap();
        assert!(next.durability().at.is_some());
    }
    for (guard, _) in held {
        assert!(guard.verify().await.unwrap() > 1000 * MS);
    }
}
