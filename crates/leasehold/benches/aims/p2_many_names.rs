//! P2: do many locks at once get out of one connection what is in it?
//!
//! Unit: pairs per second of 100 and of 1000 tasks, each on a name of its own, through one client, as a ratio to
//! the same scripts on one connection of the redis crate alone.

use std::time::{Duration, Instant};

use leasehold::Client;
use tokio::task::JoinSet;

use crate::{
    contend,
    float::median,
    raw::{Keys, Raw},
    stage::{self, Stage},
    table::{Aim, Table},
};

const ROUNDS: usize = 9;
const TIME: Duration = Duration::from_millis(800);

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    for tasks in [100, 1000] {
        let runtime = stage::one_thread();
        let (url, rounds, time) = (stage.url(), stage.rounds(ROUNDS), stage.time(TIME));
        let (ratio, ours, theirs) = stage::on(&runtime, async move {
            let client = stage::connect(&url).await;
            let raw = Raw::connect(&url).await;
            let (mut ratios, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
            for round in 0..=rounds {
                let (first, second) = if round % 2 == 0 {
                    let first = ours_at_once(&client, tasks, time).await;
                    (first, raw_at_once(&raw, tasks, time).await)
                } else {
                    let second = raw_at_once(&raw, tasks, time).await;
                    (ours_at_once(&client, tasks, time).await, second)
                };
                // The first round warms up.
                if round > 0 {
                    ratios.push(first / second);
                    ours.push(first);
                    theirs.push(second);
                }
            }
            (median(&ratios), median(&ours), median(&theirs))
        });
        table.row(
            "P2",
            format!("{tasks} tasks on as many names: pairs/s ours / raw"),
            (ratio, "×"),
            Aim::AtLeast(0.95),
            format!("ours {ours:.0}/s, raw {theirs:.0}/s; median of {rounds} rounds"),
        );
    }
}

async fn ours_at_once(client: &Client, tasks: usize, time: Duration) -> f64 {
    let mut running = JoinSet::new();
    let end = Instant::now() + time;
    for task in 0..tasks {
        let mutex = client.mutex(format!("bench:p2:ours:{task}"));
        running.spawn(async move {
            let mut pairs = 0;
            while Instant::now() < end {
                contend::pair(&mutex).await;
                pairs += 1;
            }
            pairs
        });
    }
    sum(running, time).await
}

async fn raw_at_once(raw: &Raw, tasks: usize, time: Duration) -> f64 {
    let mut running = JoinSet::new();
    let end = Instant::now() + time;
    for task in 0..tasks {
        let mut raw = raw.clone();
        let mut keys = Keys::new(&format!("bench:p2:free:{task}"));
        running.spawn(async move {
            let mut pairs = 0;
            while Instant::now() < end {
                raw.pair(&mut keys).await;
                pairs += 1;
            }
            pairs
        });
    }
    sum(running, time).await
}

async fn sum(mut running: JoinSet<u64>, time: Duration) -> f64 {
    let began = Instant::now();
    let mut pairs = 0;
    while let Some(task) = running.join_next().await {
        pairs += task.expect("the task does not panic");
    }
    // The last pairs end a little after the time.
    stage::rate(pairs, began.elapsed().max(time))
}
