//! Primaries that are replaced, frozen, or have forgotten.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use leasehold::{Client, Guard, LostReason, MutexGuard};
use leasehold_testkit::{Cluster, ClusterSettings};

use super::{flavors, names_at};
use crate::common::{
    few_or,
    late::{in_time, unless_late_async},
    soon,
};

async fn client(cluster: &Cluster, lease: Duration) -> Client {
    Client::builder()
        .url(cluster.url())
        .lease(lease)
        .connect()
        .await
        .unwrap()
}

async fn hold_all(client: &Client, names: &[String]) -> Vec<MutexGuard> {
    let mut guards = Vec::new();
    for some in names.chunks(100) {
        let locks = some.iter().map(|name| client.mutex(name).lock());
        guards.extend(try_join_all(locks).await.unwrap());
    }
    guards
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_forgotten_is_told_lost_and_nothing_else() {
    let quarter = few_or(50, 2500);
    for flavor in flavors() {
        let mut cluster = Cluster::start(flavor);
        let client = client(&cluster, Duration::from_secs(30)).await;
        let mut names = names_at(&cluster, 0, 3 * quarter);
        let forgotten = names.split_off(quarter);
        names.extend(names_at(&cluster, 1, quarter));
        let held = hold_all(&client, &names).await;
        let replica = cluster.cut_off(0);
        let gone = hold_all(&client, &forgotten).await;
        cluster.kill(0);
        cluster.thaw(replica);
        cluster.wait_for_successor(0);
        let promoted = Instant::now();
        for guard in &gone {
            let lost = soon("it is told", guard.lost()).await;
            assert_eq!(lost, LostReason::Failover);
        }
        let took = promoted.elapsed();
        let (all, gone) = (held.len() + gone.len(), gone.len());
        println!("{flavor}: {gone} of {all} are told after {took:?}");
        assert!(took < Duration::from_secs(2), "{took:?}");
        for some in held.chunks(100) {
            try_join_all(some.iter().map(Guard::verify)).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_node_delays_no_other_nodes_renewals() {
    for flavor in flavors() {
        // Else the others serve nobody either, as long as a slot has no primary.
        let settings = ClusterSettings::new().args(&["--cluster-require-full-coverage", "no"]);
        let cluster = Cluster::start_with(flavor, settings);
        let lease = Duration::from_secs(3);
        let client = client(&cluster, lease).await;
        let mut held = [Vec::new(), Vec::new(), Vec::new()];
        for (primary, held) in held.iter_mut().enumerate() {
            for name in names_at(&cluster, primary, 30) {
                held.push(client.mutex(&name).lock().await.unwrap());
            }
        }
        // The least time that is left, in two leases, to the names of the other two primaries.
        let shortest = async || {
            let (began, mut shortest) = (Instant::now(), lease);
            while began.elapsed() < 2 * lease {
                for guard in held[1].iter().chain(&held[2]) {
                    shortest = shortest.min(guard.remaining());
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            shortest
        };
        let before = shortest().await;
        // Nobody takes its place: it keeps its names, and tells nothing of them.
        cluster.freeze(3);
        cluster.freeze(0);
        let most = Duration::from_millis(50);
        unless_late_async("renewals beside a frozen node", most, async || {
            let shortest = shortest().await;
            println!("{flavor}: at least {shortest:?} were left, and {before:?} before");
            in_time(before.saturating_sub(shortest), most)
        })
        .await;
        for guard in &held[0] {
            assert!(!guard.is_valid());
        }
        cluster.thaw(0);
        cluster.thaw(3);
        for guard in held.into_iter().skip(1).flatten() {
            guard.release().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_has_lost_its_scripts_is_sent_them_again() {
    for flavor in flavors() {
        let cluster = Cluster::start(flavor);
        let client = client(&cluster, Duration::from_secs(30)).await;
        for primary in [0, 1] {
            let name = names_at(&cluster, primary, 1).remove(0);
            client
                .mutex(&name)
                .lock()
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
            cluster.command(primary, &["SCRIPT", "FLUSH"]);
            let guard = client.mutex(&name).try_lock().await.unwrap();
            assert!(guard.as_ref().is_some_and(Guard::is_valid));
        }
    }
}
