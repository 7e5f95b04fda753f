//! What renewals cost.

use std::time::{Duration, Instant};

use leasehold::{Client, Guard};
use leasehold_testkit::Cluster;

use super::flavors;
use crate::common::few_or;

const LEASE: Duration = Duration::from_secs(3);
/// The watchdog renews them all once in this time, or a little sooner.
const EVERY: Duration = Duration::from_secs(1);
const SLOTS: usize = 100;
const NAMES: usize = 2000;

fn scripts(cluster: &Cluster) -> u64 {
    let of = |node: usize| cluster.node(node).calls()["evalsha"];
    cluster.primaries().into_iter().map(of).sum()
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
        // Those taken last are renewed for the second time.
        tokio::time::sleep(2 * EVERY).await;
        let (began, before) = (Instant::now(), scripts(&cluster));
        tokio::time::sleep(EVERY * few_or(2, 10)).await;
        let (times, scripts) = (began.elapsed().as_secs_f64(), scripts(&cluster) - before);
        let each = f64::from(u32::try_from(scripts).unwrap()) / times;
        println!("{flavor}: {each:.0} scripts a second for {NAMES} names in {SLOTS} slots");
        assert!(each < 2.5 * 100.0, "{each:.0}");
        assert!(held.iter().all(Guard::is_valid));
    }
}
