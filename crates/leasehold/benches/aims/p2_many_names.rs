//! P2: do many locks at once get out of one connection what is in it?
//!
//! Unit: pairs per second of 100 and of 1000 tasks, each on a name of its own, through one client, as a ratio to
//! the same scripts on one connection of the redis crate alone.

use std::time::{Duration, Instant};

use leasehold::Client;
use tokio::task::JoinSet;

use crate::{
    contend,
    float::{float, median, micros},
    raw::{Keys, Raw},
    stage::{self, Stage},
    table::{Aim, Table},
};

const ROUNDS: usize = 9;
const TIME: Duration = Duration::from_millis(800);

/// The figures of one side.
#[derive(Default)]
struct Side {
    pairs: u64,
    rates: Vec<f64>,
    client: Duration,
    server: Duration,
}

impl Side {
    fn add(&mut self, (pairs, time): (u64, Duration), [client, server]: [Duration; 2]) -> f64 {
        let rate = stage::rate(pairs, time);
        self.pairs += pairs;
        self.rates.push(rate);
        self.client += client;
        self.server += server;
        rate
    }

    fn told(&self, who: &str) -> String {
        let each = |work: Duration| micros(work) / float(self.pairs);
        format!(
            "{who} {:.0}/s at {:.1} µs of client and {:.1} of server CPU",
            median(&self.rates),
            each(self.client),
            each(self.server)
        )
    }
}

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    for tasks in [100, 1000] {
        let runtime = stage::one_thread();
        let client = runtime.block_on(stage::connect(&stage.url()));
        let raw = runtime.block_on(Raw::connect(&stage.url()));
        let time = stage.time(TIME);
        let work = || [std::process::id(), stage.server.pid()].map(stage::cpu_time);
        let (mut ratios, mut ours, mut theirs) = (Vec::new(), Side::default(), Side::default());
        for round in 0..=stage.rounds(ROUNDS) {
            let mut rates = [0.0; 2];
            // The two sides take turns to go first.
            for turn in 0..2 {
                let (client, raw) = (client.clone(), raw.clone());
                let before = work();
                let is_ours = (round + turn) % 2 == 0;
                let made = stage::on(&runtime, async move {
                    if is_ours {
                        ours_at_once(&client, tasks, time).await
                    } else {
                        raw_at_once(&raw, tasks, time).await
                    }
                });
                let after = work();
                let spent = [0, 1].map(|at| after[at].saturating_sub(before[at]));
                let side = if is_ours { &mut ours } else { &mut theirs };
                // The first round warms up.
                if round > 0 {
                    rates[usize::from(!is_ours)] = side.add(made, spent);
                }
            }
            if round > 0 {
                ratios.push(rates[0] / rates[1]);
            }
        }
        table.row(
            "P2",
            format!("{tasks} tasks on as many names: pairs/s ours / raw"),
            (median(&ratios), "×"),
            Aim::AtLeast(0.95),
            format!("{}; {}", ours.told("ours"), theirs.told("raw")),
        );
    }
}

async fn ours_at_once(client: &Client, tasks: usize, time: Duration) -> (u64, Duration) {
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

async fn raw_at_once(raw: &Raw, tasks: usize, time: Duration) -> (u64, Duration) {
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

pub(crate) async fn sum(mut running: JoinSet<u64>, time: Duration) -> (u64, Duration) {
    let began = Instant::now();
    let mut pairs = 0;
    while let Some(task) = running.join_next().await {
        pairs += task.expect("the task does not panic");
    }
    // The last pairs end a little after the time.
    (pairs, began.elapsed().max(time))
}
