//! Waiters whose process does nothing else, and slots and primaries that change meanwhile: the next release wakes them.

use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold_testkit::{Cluster, wait_until_async};

use super::{SHARDED, flavors, slot};
use crate::common::{
    SOON, few_or,
    kinds::Row,
    late::{in_time, unless_late_async},
    soon,
};

/// The change of the node at which the waiter listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Moved,
    /// Moved by hand, and the release was sent while the slot was open.
    MovedMeanwhile,
    Planned,
    Killed,
}

/// All keys of a lock are in this slot, and so is this name.
const NAME: &str = "order:1";

async fn on(cluster: &Cluster, sharded: bool) -> Client {
    let builder = Client::builder().url(cluster.url());
    builder.sharded_channels(sharded).connect().await.unwrap()
}

/// Whether anybody listens there for the name.
fn is_heard_at(cluster: &Cluster, node: usize, sharded: bool) -> bool {
    let list = if sharded { "SHARDCHANNELS" } else { "CHANNELS" };
    let pattern = format!("*{{{NAME}}}*");
    let channels = cluster.command(node, &["PUBSUB", list, &pattern]);
    !redis::from_redis_value::<Vec<String>>(channels)
        .unwrap()
        .is_empty()
}

/// Waits until the waiter listens there, and nowhere else.
async fn until_heard_at(cluster: &Cluster, nodes: &[usize], at: Option<usize>, sharded: bool) {
    let is_right = |node: &usize| is_heard_at(cluster, *node, sharded) == (Some(*node) == at);
    let is_heard = || nodes.iter().all(is_right);
    wait_until_async(SOON, &format!("it is heard at {at:?} alone"), is_heard).await;
}

/// How much of the stream of writes a node has.
fn offset(cluster: &Cluster, node: usize) -> u64 {
    let info = cluster.command(node, &["INFO", "replication"]);
    let info: String = redis::from_redis_value(info).unwrap();
    let mut fields = info.lines().filter_map(|line| line.split_once(':'));
    let (_, offset) = fields
        .find(|(name, _)| *name == "master_repl_offset")
        .unwrap();
    offset.trim().parse().unwrap()
}

/// How long after the release the waiter has the lock.
async fn woken_after(cluster: &mut Cluster, row: Row, sharded: bool, change: Change) -> Duration {
    let case = format!("{row:?}, {change:?}, sharded {sharded}");
    let (holds, waits) = (on(cluster, sharded).await, on(cluster, sharded).await);
    let guard = row.lock(&holds, NAME).lock().await.unwrap();
    let lock = row.lock(&waits, NAME);
    let waiter = tokio::spawn(async move { (lock.lock().await.unwrap(), Instant::now()) });
    let slot = slot(cluster, NAME);
    let before = cluster.primary_of(slot);
    let mut nodes: Vec<usize> = (0..6).collect();
    until_heard_at(cluster, &nodes, Some(before), sharded).await;
    let looks = row.lock(&holds, NAME);
    soon("it stands in line", async {
        while looks.status().await.queue.is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;

    let primaries = cluster.primaries();
    let to = *primaries.iter().find(|it| **it != before).unwrap();
    let after = match change {
        Change::Moved => {
            cluster.migrate(slot, to);
            to
        }
        Change::MovedMeanwhile => {
            cluster.open(slot, to);
            to
        }
        Change::Planned => cluster.fail_over(before),
        Change::Killed => {
            let (replica, written) = (cluster.partner(before), offset(cluster, before));
            let has_all = || offset(cluster, replica) >= written;
            wait_until_async(SOON, "the replica has all", has_all).await;
            cluster.kill(before);
            nodes.retain(|node| *node != before);
            cluster.wait_for_successor(before)
        }
    };
    // The node ends the subscription, or the connection: the waiter follows though it has sent nothing.
    let is_told = sharded || change == Change::Killed;
    if is_told && change != Change::MovedMeanwhile {
        until_heard_at(cluster, &nodes, Some(after), sharded).await;
    }
    // The holder learns of it by itself.
    soon("it is held", async {
        while let Err(error) = guard.verify().await {
            assert!(error.is_unreachable(), "{case}: {error}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let released = if change == Change::MovedMeanwhile {
        let release = tokio::spawn(guard.release());
        tokio::time::sleep(Duration::from_millis(20)).await;
        cluster.close(slot);
        release.await.unwrap().unwrap();
        Instant::now()
    } else {
        let now = Instant::now();
        guard.release().await.unwrap();
        now
    };
    let (guard, woken) = soon("it is woken", waiter).await.unwrap();
    guard.release().await.unwrap();
    until_heard_at(cluster, &nodes, None, sharded).await;
    woken.saturating_duration_since(released)
}

/// From the release to the guard.
const MOST: Duration = Duration::from_millis(300);

async fn wakes(changes: &[Change], rows: &[(Row, usize)]) {
    for flavor in flavors() {
        let mut cluster = Cluster::start(flavor);
        for sharded in SHARDED {
            for (&change, &(row, rounds)) in changes
                .iter()
                .flat_map(|change| rows.iter().map(move |row| (change, row)))
            {
                let case = format!("{flavor}, {row:?}, {change:?}, sharded {sharded}");
                let mut longest = Duration::ZERO;
                for _ in 0..rounds {
                    unless_late_async(&case, MOST, async || {
                        let took = woken_after(&mut cluster, row, sharded, change).await;
                        if matches!(change, Change::Planned | Change::Killed) {
                            cluster.settle();
                        }
                        in_time(took, MOST)?;
                        longest = longest.max(took);
                        Ok(())
                    })
                    .await;
                }
                println!("{case}: {rounds} times, at most {longest:?}");
            }
        }
    }
}

/// Classic messages are heard at any node, so a client learns of the move with its next request: it is counted at the owner again then. A
/// subscription to sharded ones is ended by the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_waiter_is_woken_after_its_slot_has_moved() {
    let rounds = few_or(2, 20);
    let changes = [Change::Moved, Change::MovedMeanwhile];
    wakes(&changes, &[(Row::Mutex, rounds), (Row::Fair, rounds)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_waiter_is_woken_after_a_failover() {
    let rounds = few_or(1, 20);
    wakes(
        &[Change::Planned],
        &[(Row::Mutex, rounds), (Row::Fair, rounds)],
    )
    .await;
    wakes(
        &[Change::Killed],
        &[(Row::Mutex, rounds), (Row::Fair, few_or(0, 20))],
    )
    .await;
}
