//! Holders whose process does nothing else, and a primary that is replaced without a word to it: the table is asked for while they hold.

use std::{
    io::Write,
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Client, LostReason};
use leasehold_testkit::Cluster;

use super::{flavors, names_at};
use crate::common::{few_or, soon};

/// The fate of the primary that is replaced.
#[derive(Clone, Copy, Debug)]
enum Old {
    Well,
    StandsStill,
}

/// Looks each 10 ms, and knows its longest pause: how much of a bound in real time this machine has taken for itself.
struct Calm(Arc<AtomicU64>);

impl Calm {
    fn watch() -> Calm {
        let longest = Arc::<AtomicU64>::default();
        let of_task = Arc::downgrade(&longest);
        tokio::spawn(async move {
            let mut before = Instant::now();
            while let Some(longest) = of_task.upgrade() {
                let ms = u64::try_from(before.elapsed().as_millis()).unwrap();
                longest.fetch_max(ms, Ordering::Relaxed);
                before = Instant::now();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        Calm(longest)
    }

    fn was(&self) -> bool {
        self.0.load(Ordering::Relaxed) < 100
    }
}

/// For how long two are valid. `None`: this machine stood still meanwhile.
async fn both_valid(cluster: &mut Cluster, holds: &Client, old: Old) -> Option<Duration> {
    let primary = cluster.primaries()[0];
    let name = names_at(cluster, primary, 1).remove(0);
    let replica = cluster.cut_off(primary);
    // The replica is never told of it.
    let guard = holds.mutex(&name).lock().await.unwrap();
    if matches!(old, Old::StandsStill) {
        cluster.freeze(primary);
    }
    // It is carried out before anything else, as the replica goes on.
    let mut socket = TcpStream::connect(cluster.addr(replica)).unwrap();
    socket.write_all(b"CLUSTER FAILOVER TAKEOVER\r\n").unwrap();
    cluster.thaw(replica);
    assert_eq!(cluster.wait_for_successor(primary), replica);
    let calm = Calm::watch();
    let rival = Client::connect(&cluster.url()).await.unwrap();
    let other = soon("the successor gives it", rival.mutex(&name).lock())
        .await
        .unwrap();
    let both = Instant::now();
    let lost = soon("it is told", guard.lost()).await;
    let took = both.elapsed();
    assert_eq!(lost, LostReason::Failover, "{old:?}");
    assert!(other.is_valid());
    let calm = calm.was();
    other.release().await.unwrap();
    cluster.settle();
    println!("{old:?}: both were valid for {took:?}");
    (calm || took < Duration::from_millis(2500)).then_some(took)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_holder_learns_of_a_failover_within_2_5_seconds() {
    let rounds = few_or(1, 20);
    for flavor in flavors() {
        let mut cluster = Cluster::start(flavor);
        let holds = Client::connect(&cluster.url()).await.unwrap();
        for old in [Old::Well, Old::StandsStill] {
            let mut longest = Duration::ZERO;
            for round in 0..rounds {
                let took = loop {
                    if let Some(took) = both_valid(&mut cluster, &holds, old).await {
                        break took;
                    }
                };
                assert!(
                    took < Duration::from_millis(2500),
                    "{flavor}, {old:?}, {round}: {took:?}"
                );
                longest = longest.max(took);
            }
            println!("{flavor}, {old:?}: {rounds} of {rounds}, at most {longest:?}");
        }
    }
}

/// How often all nodes together were asked for the table.
fn scans(cluster: &Cluster) -> u64 {
    let calls = |node| {
        let info = cluster.command(node, &["INFO", "commandstats"]);
        let info: String = redis::from_redis_value(info).unwrap();
        let calls = info.split_once("cmdstat_cluster|slots:calls=");
        let calls = calls.and_then(|(_, rest)| rest.split(',').next());
        calls.map_or(0, |calls| calls.parse().unwrap())
    };
    (0..6).map(calls).sum()
}

/// How often in so many intervals, and a half more.
async fn scans_in(cluster: &Cluster, intervals: u32) -> u64 {
    let before = scans(cluster);
    tokio::time::sleep(EVERY * intervals + EVERY / 2).await;
    scans(cluster) - before
}

const EVERY: Duration = Duration::from_millis(200);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_is_asked_for_while_a_lock_is_held_or_waited_for_and_not_by_an_idle_client() {
    for flavor in flavors() {
        let cluster = Cluster::start(flavor);
        let scanning = Client::builder().url(cluster.url()).scan_interval(EVERY);
        let client = scanning.connect().await.unwrap();
        let names: Vec<String> = (0..3).flat_map(|at| names_at(&cluster, at, 1)).collect();
        // The scans that the first requests cause are over then.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(scans_in(&cluster, 3).await, 0, "{flavor}: it holds nothing");
        let guard = client.mutex(&names[0]).lock().await.unwrap();
        let held = scans_in(&cluster, 5).await;
        assert!((2..=6).contains(&held), "{flavor}: {held} while it holds");
        let rival = Client::builder()
            .url(cluster.url())
            .scan_interval(Duration::ZERO);
        let rival = rival.connect().await.unwrap();
        let other = rival.mutex(&names[1]).lock().await.unwrap();
        guard.release().await.unwrap();
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(
            scans_in(&cluster, 3).await,
            0,
            "{flavor}: it has let go, or never asks"
        );
        let waiter = tokio::spawn(client.mutex(&names[1]).lock());
        let waits = scans_in(&cluster, 5).await;
        assert!((2..=6).contains(&waits), "{flavor}: {waits} while it waits");
        other.release().await.unwrap();
        soon("it has it", waiter)
            .await
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();
        println!("{flavor}: {held} while it holds, {waits} while it waits, in 5 intervals");
    }
}
