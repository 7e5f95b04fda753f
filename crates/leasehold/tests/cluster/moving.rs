//! Slots that are moved by the old protocol, and left open.

use std::time::{Duration, Instant};

use leasehold::{Client, ErrorKind, Guard};
use leasehold_testkit::{Cluster, wait_until_async};

use super::{flavors, slot};
use crate::common::SOON;

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

/// Classic messages are heard at any node; the waiter is counted at the owner again once the slot has moved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_waiter_is_woken_after_its_slot_has_moved() {
    for flavor in flavors() {
        let cluster = Cluster::start(flavor);
        let (holds, waits) = (client(&cluster).await, client(&cluster).await);
        let slot = slot(&cluster, "name");
        for round in 0..3 {
            let guard = holds.mutex("name").lock().await.unwrap();
            let before = cluster.primary_of(slot);
            let mutex = waits.mutex("name");
            let waiter =
                tokio::spawn(
                    async move { mutex.lock().await.map(|guard| (guard, Instant::now())) },
                );
            let channel = "redisson_lock__channel:{name}";
            let listens = || cluster.subscribers(before, channel) > 0;
            wait_until_async(SOON, "it listens", listens).await;
            cluster.migrate(slot, (before + 1) % 3);
            let released = Instant::now();
            guard.release().await.unwrap();
            let (guard, woken) = tokio::time::timeout(SOON, waiter)
                .await
                .unwrap()
                .unwrap()
                .unwrap();
            let took = woken - released;
            assert!(
                took < Duration::from_millis(300),
                "{flavor}, round {round}: {took:?}"
            );
            guard.release().await.unwrap();
        }
    }
}
