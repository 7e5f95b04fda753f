//! Slots whose nodes stand still, are dead, or are taken over by a node that knows nothing of them.

use std::time::{Duration, Instant};

use leasehold::{Client, LostReason, MutexGuard, Released};
use leasehold_testkit::{Cluster, ClusterSettings, Failover};

use super::{flavors, names_at};
use crate::common::{SOON, few_or, own_names::OwnNames, soon};

/// The others go on without the slots of a dead primary.
fn partial() -> ClusterSettings {
    ClusterSettings::new().args(&["--cluster-require-full-coverage", "no"])
}

async fn client(cluster: &Cluster) -> Client {
    Client::connect(&cluster.url()).await.unwrap()
}

/// A primary stands still with a release in its socket, is replaced, and carries it out as it goes on, before it hears that it was. The one
/// in its place is told, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_given_back_at_a_primary_that_had_been_replaced_is_given_back() {
    for flavor in flavors() {
        let mut cluster = Cluster::start(flavor);
        for round in 0..few_or(3, 10) {
            let primary = cluster.primaries()[0];
            let name = names_at(&cluster, primary, 1).remove(0);
            // Else the release fails before the node goes on.
            let patient = Client::builder().url(cluster.url()).operation_timeout(SOON);
            let (holds, wants) = (patient.connect().await.unwrap(), client(&cluster).await);
            let guard = holds.mutex(&name).lock().await.unwrap();
            // The replica has it by then.
            tokio::time::sleep(Duration::from_millis(200)).await;
            cluster.freeze(primary);
            let release = tokio::spawn(guard.release());
            cluster.wait_for_successor(primary);
            cluster.thaw(primary);
            let (thawed, released) = (Instant::now(), release.await.unwrap());
            let last = soon("it is free", wants.mutex(&name).lock()).await.unwrap();
            let took = thawed.elapsed();
            println!("{flavor}, round {round}: {released:?}, and free after {took:?}");
            assert!(took < Duration::from_secs(4), "{took:?}");
            assert_eq!(last.release().await.unwrap(), Released::Freed);
            cluster.settle();
        }
    }
}

/// A primary stands still with renewals in its socket until the leases that it knows are over. Then it says that nobody has them, and its
/// successor has renewed them meanwhile (bug 310).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_primary_that_was_replaced_has_forgotten_loses_no_hold() {
    const LEASE: Duration = Duration::from_secs(4);
    for flavor in flavors() {
        let mut cluster = Cluster::start(flavor);
        for _ in 0..few_or(2, 10) {
            let primary = cluster.primaries()[0];
            let client = Client::builder().url(cluster.url()).lease(LEASE);
            // Its renewals wait for longer than the failover takes, and it hears soon of that.
            let client = client.operation_timeout(LEASE * 3 / 4);
            let client = client.scan_interval(LEASE / 8).connect().await.unwrap();
            let mut guards = Vec::new();
            for name in names_at(&cluster, primary, 20) {
                guards.push(client.mutex(&name).lock().await.unwrap());
                tokio::time::sleep(LEASE / 60).await;
            }
            // The replica has them.
            let probe = format!("{{{}}}probe", names_at(&cluster, primary, 1)[0]);
            cluster.node(primary).cli(&["SET", &probe, "1"]);
            cluster.node(primary).cli(&["WAIT", "1", "5000"]);
            let over = Instant::now() + LEASE;
            cluster.freeze(primary);
            cluster.wait_for_successor(primary);
            tokio::time::sleep(over.saturating_duration_since(Instant::now())).await;
            guards.retain(MutexGuard::is_valid);
            cluster.thaw(primary);
            // When it is a replica, it has answered what lay in its socket.
            cluster.settle();
            println!("{flavor}: {} were renewed", guards.len());
            for guard in &guards {
                let verified = guard.verify().await;
                assert!(verified.is_ok(), "{flavor}: {verified:?}");
            }
        }
    }
}

/// `None` says that another has it, and nobody can say that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_whose_nodes_are_dead_is_not_told_held() {
    for flavor in flavors() {
        for settings in [ClusterSettings::new(), partial()] {
            let mut cluster = Cluster::start_with(flavor, settings);
            let [name, other] = [0, 1].map(|at| names_at(&cluster, at, 1).remove(0));
            let (holds, waits) = (client(&cluster).await, client(&cluster).await);
            let guard = holds.mutex(&name).lock().await.unwrap();
            let (mutex, multi) = (waits.mutex(&name), waits.multi_lock([&name, &other]));
            let wait = Duration::from_secs(3);
            let waiting = tokio::spawn(mutex.try_lock_for(wait));
            let all = tokio::spawn(multi.try_lock_for(wait));
            tokio::time::sleep(Duration::from_millis(500)).await;
            cluster.kill(cluster.partner(0));
            cluster.kill(0);
            let answer = waiting.await.unwrap().map(|guard| guard.is_some());
            println!("{flavor}: {answer:?}");
            assert!(answer.is_err(), "{answer:?}");
            let answer = all.await.unwrap().map(|guard| guard.is_some());
            assert!(answer.is_err(), "{answer:?}");
            drop(guard);
        }
    }
}

/// A node is lost with its data, and another is given its slots, as `--cluster fix` does. It has slots already, so it is no replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_in_slots_that_are_taken_over_without_their_keys_are_told_lost_at_once() {
    for flavor in flavors() {
        let mut cluster = Cluster::start_with(flavor, partial());
        let name = names_at(&cluster, 0, 1).remove(0);
        let client = client(&cluster).await;
        let gone = client.mutex(&name).lock().await.unwrap();
        let other = names_at(&cluster, 1, 1).remove(0);
        let kept = client.mutex(other).lock().await.unwrap();
        cluster.kill(cluster.partner(0));
        cluster.kill(0);
        // The client learns that it is dead, and no more.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let slot = cluster.slot(&name).to_string();
        let id = cluster.id(1).to_owned();
        for node in [1, 2] {
            cluster.command(node, &["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        }
        cluster.command(1, &["CLUSTER", "BUMPEPOCH"]);
        let taken_over = Instant::now();
        let lost = soon("it is told", gone.lost()).await;
        let took = taken_over.elapsed();
        println!("{flavor}: told after {took:?}");
        assert_eq!(lost, LostReason::Failover);
        assert!(took < Duration::from_secs(2), "{took:?}");
        kept.verify().await.unwrap();
    }
}

/// As with sentinels: nobody else holds what is given back at the new primary once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_only_its_caller_uses_is_not_held_by_another_after_a_forced_failover() {
    for flavor in flavors() {
        let mut cluster = Cluster::start(flavor);
        for round in 0..few_or(2, 10) {
            let client = client(&cluster).await;
            let names = OwnNames::of(&client, &format!("alone {round}"), 84).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
            cluster.fail_over_by(cluster.primaries()[0], Failover::Force);
            tokio::time::sleep(Duration::from_secs(3)).await;
            assert_eq!(names.told_held().await, [""; 0], "{flavor}, round {round}");
            cluster.settle();
        }
    }
}
