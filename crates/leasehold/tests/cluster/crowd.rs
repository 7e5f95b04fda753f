//! Tasks that contend for names, while the cluster changes under them.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Client, Error, LostReason};
use leasehold_testkit::{Cluster, Failover, wait_until_async};

use super::flavors;
use crate::common::wait_until_idle;

const MS: Duration = Duration::from_millis(1);

const TASKS: usize = 200;
const NAMES: usize = 50;
const MOVED: usize = 20;

/// Each slot that moves stays open for so long.
const OPEN: Duration = Duration::from_millis(50);

/// How long a failover may take: some 3 s on an idle machine.
const FAILOVER: Duration = Duration::from_secs(60);

/// A hold, as its holder saw it.
#[derive(Clone, Debug)]
struct Hold {
    name: usize,
    task: usize,
    from: Instant,
    /// The last look that found it valid.
    to: Instant,
    lease: String,
    released: Instant,
    forgotten: bool,
}

type Holds = Arc<Mutex<Vec<Hold>>>;

fn all(holds: &Holds) -> Vec<Hold> {
    holds.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

async fn contend(client: Client, task: usize, ends: Arc<AtomicBool>, holds: Holds) {
    let name = task % NAMES;
    let mutex = client.mutex(format!("name{name}"));
    while !ends.load(Ordering::Relaxed) {
        let guard = mutex.lock().await.unwrap();
        let (from, lease) = (Instant::now(), guard.owner());
        let mut to = from;
        for _ in 0..3 {
            tokio::time::sleep(MS).await;
            let now = Instant::now();
            if guard.is_valid() {
                to = now;
            }
        }
        let forgotten = match guard.release().await {
            Err(Error::Lost { reason, .. }) => reason == LostReason::Failover,
            _ => false,
        };
        let hold = Hold {
            name,
            task,
            from,
            to,
            lease,
            released: Instant::now(),
            forgotten,
        };
        holds
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(hold);
    }
}

/// Waits until each task has had its name again.
async fn until_all_had_it(holds: &Holds) {
    let since = Instant::now();
    let tasks = || {
        let holds = all(holds);
        let since = holds.iter().filter(|hold| hold.from > since);
        since.map(|hold| hold.task).collect::<BTreeSet<_>>()
    };
    wait_until_async(FAILOVER, "all tasks go on", || tasks().len() == TASKS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_go_on_and_no_two_hold_while_slots_move_and_primaries_are_replaced() {
    for flavor in flavors() {
        let mut cluster = Cluster::start(flavor);
        let clients = [
            Client::connect(&cluster.url()).await.unwrap(),
            Client::connect(&cluster.url()).await.unwrap(),
        ];
        let (ends, holds) = (Arc::<AtomicBool>::default(), Holds::default());
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let client = clients[task % 2].clone();
                tokio::spawn(contend(client, task, Arc::clone(&ends), Arc::clone(&holds)))
            })
            .collect();
        until_all_had_it(&holds).await;

        // Slots that move.
        let primaries = cluster.primaries();
        cluster = tokio::task::spawn_blocking(move || {
            let slots: BTreeSet<u16> = (0..MOVED)
                .map(|i| cluster.slot(&format!("name{i}")))
                .collect();
            for slot in slots {
                let from = cluster.primary_of(slot);
                let at = primaries.iter().position(|at| *at == from).unwrap();
                cluster.migrate_slowly(slot, primaries[(at + 1) % primaries.len()], OPEN);
            }
            cluster
        })
        .await
        .unwrap();
        until_all_had_it(&holds).await;

        // A planned failover forgets nothing.
        cluster = tokio::task::spawn_blocking(move || {
            cluster.fail_over_by(0, Failover::Planned);
            cluster
        })
        .await
        .unwrap();
        until_all_had_it(&holds).await;

        // A name may have two holders if the replica of a killed primary had not been told of the first.
        let killed = Instant::now();
        cluster = tokio::task::spawn_blocking(move || {
            cluster.kill(1);
            cluster.wait_for_successor(1);
            cluster
        })
        .await
        .unwrap();
        until_all_had_it(&holds).await;

        ends.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.unwrap();
        }
        let mut holds = all(&holds);
        holds.sort_by_key(|hold| hold.from);
        let forgotten: BTreeSet<_> = holds
            .iter()
            .filter(|hold| hold.forgotten)
            .map(|hold| hold.lease.clone())
            .collect();
        let is_told = |hold: &&Hold| {
            let under_way = hold.from < killed + 20 * MS && hold.released + 20 * MS > killed;
            !under_way && !forgotten.contains(&hold.lease)
        };
        for name in 0..NAMES {
            let of_name = holds
                .iter()
                .filter(|hold| hold.name == name)
                .filter(is_told);
            let of_name: Vec<_> = of_name.collect();
            for pair in of_name.windows(2) {
                assert!(pair[0].to <= pair[1].from, "both valid: {pair:?}");
            }
        }
        for client in &clients {
            wait_until_idle(client).await;
        }
        println!(
            "{flavor}: {} holds, {} forgotten",
            holds.len(),
            forgotten.len()
        );
    }
}
