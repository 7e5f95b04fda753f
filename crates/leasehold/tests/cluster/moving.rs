//! Slots that are moved by the old protocol, and left open.

use std::time::{Duration, Instant};

use leasehold::{Client, ErrorKind, Guard};
use leasehold_testkit::Cluster;

use super::{flavors, slot, until_heard_at, until_unheard};
use crate::common::SOON;

const PRIMARIES: [usize; 3] = [0, 1, 2];

const LEASE: Duration = Duration::from_secs(2);

async fn client(cluster: &Cluster) -> Client {
    Client::builder()
        .url(cluster.url())
        .lease(LEASE)
        .operation_timeout(Duration::from_millis(500))
        .connect()
        .await
        .unwrap()
}

async fn on(cluster: &Cluster, sharded: bool) -> Client {
    let builder = Client::builder().url(cluster.url());
    let builder = builder.sharded_channels(sharded).lease(LEASE);
    builder.connect().await.unwrap()
}

/// Names of one slot.
fn names(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|i| format!("{{slot}}:{i}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_in_an_open_slot_is_renewed_and_a_lock_there_waits() {
    for flavor in flavors() {
        let cluster = Cluster::start(flavor);
        let client = client(&cluster).await;
        let mut guards = Vec::new();
        for name in names(100) {
            guards.push(client.mutex(name).lock().await.unwrap());
        }
        // A writer's lease is in one key. Those of a reader may be parted, and are then renewed when all are there.
        let mut writers = Vec::new();
        for name in names(10) {
            let name = format!("{name}:rw");
            writers.push(client.rw_lock(name).write().await.unwrap());
        }
        let slot = slot(&cluster, "{slot}");
        let from = cluster.primary_of(slot);
        let to = (from + 1) % 3;
        cluster.open(slot, to);
        cluster.move_keys(slot, 55);
        let opened = Instant::now();

        let began = Instant::now();
        let refused = client.mutex("{slot}:new").try_lock().await.unwrap_err();
        assert!(
            began.elapsed() < Duration::from_secs(1),
            "{:?}",
            began.elapsed()
        );
        assert_eq!(refused.kind(), ErrorKind::Rejected);
        let said = refused.to_string();
        assert!(
            said.contains(&slot.to_string()) && said.contains("--cluster fix"),
            "{said}"
        );
        let waits = client.mutex("{slot}:new");
        let waits = tokio::spawn(async move { waits.lock().await });
        // A release there is repeated until the slot has arrived.
        drop(guards.pop());

        tokio::time::sleep_until((opened + 3 * LEASE).into()).await;
        assert!(guards.iter().all(Guard::is_valid), "{flavor}");
        assert!(writers.iter().all(Guard::is_valid), "{flavor}");
        assert!(!waits.is_finished());
        cluster.close(slot);
        let closed = Instant::now();
        let waited = tokio::time::timeout(Duration::from_secs(1), waits).await;
        waited
            .expect("within a second")
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();
        let last = client.mutex("{slot}:99");
        let last = tokio::time::timeout(SOON, last.lock())
            .await
            .unwrap()
            .unwrap();
        println!("{flavor}: all go on after {:?}", closed.elapsed());
        guards.push(last);
        for writer in writers {
            writer.verify().await.unwrap();
            writer.release().await.unwrap();
        }
        for guard in guards {
            guard.verify().await.unwrap();
            guard.release().await.unwrap();
        }
    }
}

/// A node lets nobody listen whose slot it has not got: the waiter asks the one that it names, within its own time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_comes_with_an_old_table_listens_at_the_new_owner() {
    for flavor in flavors() {
        let cluster = Cluster::start(flavor);
        let slot = slot(&cluster, "name");
        let (holds, waits) = (on(&cluster, true).await, on(&cluster, true).await);
        // It knows the owner, and has a place to hear at.
        drop(waits.mutex("name").lock().await.unwrap());
        let guard = holds.mutex("name").lock().await.unwrap();
        for _ in 0..4 {
            let before = cluster.primary_of(slot);
            cluster.migrate(slot, (before + 1) % 3);
            let waiting = waits.mutex("name").try_lock_for(Duration::from_secs(30));
            let waiter = tokio::spawn(waiting);
            until_heard_at(&cluster, (before + 1) % 3, &PRIMARIES, "name", true).await;
            waiter.abort();
            until_unheard(&cluster, &PRIMARIES, "name", true).await;
        }
        guard.release().await.unwrap();
    }
}
