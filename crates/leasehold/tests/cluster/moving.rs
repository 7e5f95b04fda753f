//! Slots that are moved by the old protocol, and left open.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Client, ErrorKind, Guard, Released};
use leasehold_testkit::{Cluster, Flavor};

use super::{flavors, slot, until_heard_at, until_unheard};
use crate::common::{SOON, few_or, soon};

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
        // A writer's lease is in one key. The keys of a reader may be parted, and are then renewed when all are there.
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

/// Where slots are moved at once with their keys, nobody notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pairs_go_on_while_their_slot_is_moved_at_once() {
    let (pairs, longest) = few_or((300, SOON), (1000, Duration::from_millis(100)));
    for flavor in Flavor::available() {
        if flavor != Flavor::Valkey {
            continue;
        }
        let cluster = Arc::new(Cluster::start(flavor));
        let client = client(&cluster).await;
        let slot = slot(&cluster, "{slot}");
        let ends = Arc::<AtomicBool>::default();
        let moving = {
            let (cluster, ends) = (Arc::clone(&cluster), Arc::clone(&ends));
            tokio::task::spawn_blocking(move || {
                let mut moves = 0;
                while !ends.load(Ordering::Relaxed) {
                    let at = cluster.primary_of(slot);
                    cluster.migrate_atomically(slot..=slot, (at + 1) % 3);
                    moves += 1;
                }
                moves
            })
        };
        let tasks = names(4).map(|name| {
            let mutex = client.mutex(name);
            tokio::spawn(async move {
                let mut took = Vec::new();
                for _ in 0..pairs / 4 {
                    let began = Instant::now();
                    let guard = mutex.lock().await.unwrap();
                    guard.release().await.unwrap();
                    took.push(began.elapsed());
                    // There are some moves meanwhile.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                took
            })
        });
        let mut took = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            took.extend(task.await.unwrap());
        }
        ends.store(true, Ordering::Relaxed);
        let moves = moving.await.unwrap();
        took.sort_unstable();
        let (middle, most) = (took[took.len() / 2], took[took.len() - 1]);
        println!(
            "{flavor}: {moves} moves, half of the pairs within {middle:?}, all within {most:?}"
        );
        assert!(moves > 1 && most < longest, "{moves} moves, {most:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_goes_to_the_wrong_caller_while_a_slot_moves() {
    for flavor in flavors() {
        let cluster = Arc::new(Cluster::start(flavor));
        // However long a busy machine leaves the slot open, an answer comes within this time.
        let patient = Client::builder().url(cluster.url()).operation_timeout(SOON);
        let client = patient.connect().await.unwrap();
        let slot = slot(&cluster, "{slot}");
        let ends = Arc::<AtomicBool>::default();
        let tasks = names(few_or(200, 1000)).map(|name| {
            let (mutex, ends) = (client.fenced_mutex(&name), Arc::clone(&ends));
            tokio::spawn(async move {
                let (mut pairs, mut last) = (0_u32, 0);
                while !ends.load(Ordering::Relaxed) {
                    // Nobody else takes it, so it is free, and its own.
                    let guard = mutex.lock().await.unwrap();
                    assert!(guard.token() > last, "{name}");
                    last = guard.token();
                    let status = mutex.status().await.unwrap();
                    assert_eq!(status.holders[0].owner, guard.owner(), "{name}");
                    assert_eq!(guard.release().await.unwrap(), Released::Freed, "{name}");
                    pairs += 1;
                }
                pairs
            })
        });
        let tasks: Vec<_> = tasks.collect();
        let moved = Arc::clone(&cluster);
        tokio::task::spawn_blocking(move || {
            for _ in 0..few_or(4, 20) {
                let at = moved.primary_of(slot);
                moved.migrate_slowly(slot, (at + 1) % 3, Duration::from_millis(50));
                std::thread::sleep(Duration::from_millis(200));
            }
        })
        .await
        .unwrap();
        ends.store(true, Ordering::Relaxed);
        let mut pairs = 0;
        for task in tasks {
            pairs += soon("it goes on", task).await.unwrap();
        }
        println!("{flavor}: {pairs} pairs");
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
