//! In a cluster each lock is acknowledged by the replicas of the node that has its name.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use leasehold::{Client, ClientBuilder, Durability, Error, Guard, LostReason};
use leasehold_testkit::{Cluster, ClusterSettings, Failover, Flavor, wait_until, wait_until_async};

use super::replicated::{flavors, until_waiting};
use crate::common::{SOON, few_or, flavors as some, int, soon};

const MS: Duration = Duration::from_millis(1);
const ONE: Durability = Durability::Replicas(1);

fn builder(cluster: &Cluster, policy: Durability) -> ClientBuilder {
    Client::builder().url(cluster.url()).durability(policy)
}

/// So many names that the primary has.
fn names_at(cluster: &Cluster, primary: usize, count: usize) -> Vec<String> {
    let names = (0..).map(|i| format!("order:{i}"));
    let there = names.filter(|name| cluster.primary_of(cluster.slot(name)) == primary);
    there.take(count).collect()
}

fn waits(cluster: &Cluster, node: usize) -> u64 {
    let calls = cluster.node(node).calls();
    let of = |name| calls.get(name).copied().unwrap_or(0);
    of("wait") + of("waitaof")
}

/// A replica may have found its primary just now.
async fn until_met(client: &Client, name: &str) {
    let met = async { while client.mutex(name).lock().await.is_err() {} };
    soon("its replica acknowledges", met).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_policy_is_kept_at_the_node_of_each_name() {
    for flavor in flavors() {
        let aof = ["--appendonly", "yes", "--appendfsync", "everysec"];
        let cluster = Cluster::start_with(flavor, ClusterSettings::new().args(&aof));
        let names: Vec<String> = (0..3).flat_map(|i| names_at(&cluster, i, 2)).collect();
        for policy in [ONE, Durability::Majority, Durability::Aof] {
            let builder = builder(&cluster, policy).durability_timeout(5 * SOON / 10);
            let client = match builder.lease(1500 * MS).connect().await {
                // Redis 7.0.
                Err(error) if policy == Durability::Aof && flavor == Flavor::Redis => {
                    let said = error.to_string();
                    assert!(said.contains("WAITAOF") && said.contains("7.2"), "{said}");
                    continue;
                }
                connected => connected.unwrap(),
            };
            let before = [0, 1, 2].map(|node| waits(&cluster, node));
            let guards = names.iter().map(|name| client.mutex(name).lock());
            let guards = soon("all are acknowledged", join_all(guards)).await;
            let guards: Vec<Guard> = guards.into_iter().map(Result::unwrap).collect();
            let after = [0, 1, 2].map(|node| waits(&cluster, node));
            assert!(
                (0..3).all(|i| after[i] > before[i]),
                "{before:?}, {after:?}"
            );
            let first: Vec<Option<Instant>> =
                guards.iter().map(|guard| guard.durability().at).collect();
            assert!(first.iter().all(Option::is_some), "{flavor}, {policy}");
            let is_renewed = || {
                let at = guards.iter().map(|guard| guard.durability().at);
                at.zip(&first).all(|(at, first)| at > *first)
            };
            wait_until_async(SOON, "their renewals are acknowledged", is_renewed).await;
            for guard in guards {
                let told = guard.durability();
                let is_met = told.on_disk || told.replicas == 1;
                assert!(is_met && guard.is_valid(), "{flavor}: {told:?}");
                guard.release().await.unwrap();
            }
            let both = client.multi_lock([&names[0], &names[2], &names[4]]);
            drop(
                soon("a multi-lock of three nodes", both.lock())
                    .await
                    .unwrap(),
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_replica_of_one_primary_concerns_no_name_of_another() {
    for flavor in some(1) {
        let timeout = 900 * MS;
        let cluster = Cluster::start(flavor);
        let builder = builder(&cluster, ONE).durability_timeout(timeout);
        let client = builder.lease(1500 * MS).connect().await.unwrap();
        let [there, elsewhere] = [0, 1].map(|i| names_at(&cluster, i, 21));
        let mut held = Vec::new();
        for name in there[1..].iter().chain(&elsewhere[1..]) {
            until_met(&client, name).await;
            held.push(client.mutex(name).lock().await.unwrap());
        }
        let others = held.split_off(20);
        cluster.lag(0);
        let mut fastest = Duration::MAX;
        for _ in 0..2 {
            let began = Instant::now();
            let refused = client.mutex(&there[0]).lock().await.unwrap_err();
            fastest = fastest.min(began.elapsed());
            assert!(matches!(refused, Error::Rejected { .. }), "{refused:?}");
            let said = refused.to_string();
            assert!(said.contains("within 900ms"), "{flavor}: {said}");
            let exists = || int(cluster.node(0), &["EXISTS", &there[0]]);
            wait_until(SOON, "the name is free", || exists() == 0);
            // At the same time.
            let began = Instant::now();
            let guard = client.mutex(&elsewhere[0]).lock().await.unwrap();
            assert!(began.elapsed() < timeout / 2, "{:?}", began.elapsed());
            guard.release().await.unwrap();
        }
        assert!(fastest >= timeout, "{flavor}: after {fastest:?}");
        assert!(fastest <= timeout + 50 * MS, "{flavor}: after {fastest:?}");
        for guard in held {
            assert_eq!(guard.lost().await, LostReason::Expired, "{flavor}");
        }
        // Renewed each half a second, and not only when the other node has answered.
        let oldest = || {
            let ages = others
                .iter()
                .map(|guard| guard.durability().at.unwrap().elapsed());
            ages.max().unwrap()
        };
        let (began, mut longest) = (Instant::now(), Duration::ZERO);
        while began.elapsed() < 1000 * MS {
            longest = longest.max(oldest());
            tokio::time::sleep(5 * MS).await;
        }
        assert!(longest < 1000 * MS, "{flavor}: {longest:?}");
        assert!(others.iter().all(Guard::is_valid), "{flavor}");
    }
}

/// An acknowledged hold is looked for at the replica itself, so that no rival has to come in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_name_is_free_at_a_promoted_replica_while_its_guard_is_valid() {
    for flavor in some(1) {
        let mut cluster = Cluster::start(flavor);
        let (mut outlived, mut lost) = (0, 0);
        for round in 0..few_or(3, 50) {
            let builder = builder(&cluster, ONE).durability_timeout(300 * MS);
            let client = builder.lease(700 * MS).connect().await.unwrap();
            let primary = cluster.primaries()[round / 3 % 3];
            let mut held = Vec::new();
            for name in names_at(&cluster, primary, 8) {
                until_met(&client, &name).await;
                held.push((client.mutex(&name).lock().await.unwrap(), name));
                tokio::time::sleep(MS * fastrand::u32(0..60)).await;
            }
            let how = if round % 3 == 0 {
                Failover::Planned
            } else {
                // Their last renewals are not acknowledged.
                let replica = cluster.cut_off(primary);
                tokio::time::sleep(MS * fastrand::u32(0..500)).await;
                if round % 3 == 2 {
                    // Nor is any from now on.
                    cluster.kill(primary);
                }
                cluster.thaw(replica);
                Failover::Takeover
            };
            held.retain(|(guard, _)| guard.is_valid());
            let promoted = cluster.fail_over_by(primary, how);
            let began = Instant::now();
            let node = cluster.node(promoted);
            while began.elapsed() < 800 * MS {
                for (guard, name) in &held {
                    let is_free = int(node, &["EXISTS", name]) == 0;
                    // Asked after the server was: it has been free since then.
                    let is_overlap = is_free && guard.is_valid();
                    assert!(!is_overlap, "{flavor}, round {round}: {name}");
                }
                tokio::time::sleep(MS).await;
            }
            for (guard, name) in held {
                outlived += usize::from(guard.is_valid());
                lost += usize::from(!guard.is_valid());
                drop(guard);
                let rival = Client::connect(&cluster.url()).await.unwrap();
                drop(
                    soon("another has it", rival.mutex(name).lock())
                        .await
                        .unwrap(),
                );
            }
            cluster.settle();
        }
        println!("{flavor}: {outlived} went on, {lost} were lost");
        assert!(outlived > 0 && lost > 0, "{flavor}: {outlived}, {lost}");
    }
}

/// The renewal stands behind another that waits, so it comes to the old node when the slot has gone. Not on Valkey: it moves no slot whose
/// replica stands still.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_whose_slot_moves_while_it_waits_is_acknowledged_at_the_new_node() {
    let flavor = flavors()[0];
    let cluster = Cluster::start(flavor);
    let builder = builder(&cluster, ONE).durability_timeout(5 * SOON / 10);
    let client = builder.lease(2000 * MS).connect().await.unwrap();
    let [other, name] = [0, 1].map(|i| names_at(&cluster, 0, 2).remove(i));
    let slot = cluster.slot(&name);
    for is_left_open in [false, true] {
        let from = cluster.primary_of(slot);
        let to = 1 - from;
        let other = if from == 0 {
            other.clone()
        } else {
            names_at(&cluster, 1, 1).remove(0)
        };
        until_met(&client, &other).await;
        until_met(&client, &name).await;
        let replica = cluster.lag(from);
        let mutex = client.mutex(&other);
        let first = tokio::spawn(async move { mutex.lock().await });
        until_waiting(cluster.node(from)).await;
        let mutex = client.mutex(&name);
        let second = tokio::spawn(async move { mutex.lock().await });
        wait_until(SOON, "it has the name", || {
            int(cluster.node(from), &["EXISTS", &name]) == 1
        });
        if is_left_open {
            cluster.open(slot, to);
            assert_eq!(cluster.move_keys(slot, 9), 1);
        } else {
            cluster.migrate(slot, to);
        }
        assert!(!first.is_finished() && !second.is_finished());
        let before = waits(&cluster, to);
        cluster.thaw(replica);
        let first = soon("the one that waited", first).await.unwrap().unwrap();
        let second = soon("the one that moved", second).await.unwrap().unwrap();
        assert!(waits(&cluster, to) > before, "{flavor}: it is asked there");
        let told = second.durability();
        assert!(
            told.replicas == 1 && told.at.is_some(),
            "{flavor}: {told:?}"
        );
        if is_left_open {
            // Longer than the lease.
            tokio::time::sleep(2500 * MS).await;
            assert!(second.is_valid(), "{flavor}: its renewals are acknowledged");
            cluster.close(slot);
        }
        assert!(second.verify().await.is_ok(), "{flavor}");
        second.release().await.unwrap();
        first.release().await.unwrap();
    }
}
