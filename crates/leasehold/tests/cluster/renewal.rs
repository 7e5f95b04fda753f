//! The cost of renewals.

use std::time::Duration;

use leasehold::{Client, Guard};
use leasehold_testkit::{Cluster, wait_until_async};

use super::flavors;
use crate::common::{SOON, few_or};

/// Renewed each second.
const LEASE: Duration = Duration::from_secs(3);
const SLOTS: u64 = 100;
const NAMES: u64 = 2000;

/// How often the primaries were asked to do it, by programs or by scripts.
fn calls(cluster: &Cluster, command: &str) -> u64 {
    let of = |node: usize| cluster.node(node).calls().get(command).copied();
    cluster.primaries().into_iter().filter_map(of).sum()
}

/// Waits until all were renewed so many times more, and returns by how many scripts.
async fn renewed(cluster: &Cluster, times: u64) -> u64 {
    // Nothing else calls it.
    let renewals = || calls(cluster, "pexpireat");
    let (before, scripts) = (renewals(), calls(cluster, "evalsha"));
    for time in 1..=times {
        let all = || renewals() >= before + time * NAMES;
        wait_until_async(SOON, "all are renewed", all).await;
    }
    calls(cluster, "evalsha") - scripts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_one_slot_are_renewed_by_one_script_whenever_they_were_taken() {
    for flavor in flavors() {
        let cluster = Cluster::start(flavor);
        let builder = Client::builder().url(cluster.url()).lease(LEASE);
        let client = builder.connect().await.unwrap();
        let mut held = Vec::new();
        for i in 0..NAMES {
            // Each in another slot than the one before.
            let mutex = client.mutex(format!("{{slot {}}} {i}", i % SLOTS));
            held.push(mutex.lock().await.unwrap());
        }
        // From the second time on each has the turn of its slot.
        renewed(&cluster, 2).await;
        let times = few_or(2, 10);
        let scripts = renewed(&cluster, times).await;
        println!("{flavor}: {scripts} scripts for {NAMES} names in {SLOTS} slots, {times} times");
        assert!(scripts < 5 * SLOTS * times / 2, "{scripts}");
        assert!(held.iter().all(Guard::is_valid));
    }
}
