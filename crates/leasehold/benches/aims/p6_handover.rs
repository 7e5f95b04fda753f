//! P6: how long is a name without a holder when it passes from one process to another?
//!
//! Unit: from the call of `release()` in one process to the guard in another one's hands, in round trips: the
//! median time of one raw script call, taken in the same pace (a call every few milliseconds, as here) and in the
//! same run. The least possible is one: half a trip there, half a trip to the other. Five processes of 13 tasks: 64 wait.

use std::time::Duration;

use leasehold::Handoff;
use tokio::task::JoinSet;

use crate::{
    float::{median, quantile},
    raw::{Keys, Raw},
    stage::{self, Stage},
    table::{Aim, Table},
    worker::{self, Worker},
};

const PROCESSES: usize = 5;
const TASKS: usize = 13;
const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_secs(3);
/// How long each holder keeps the name, so that the line is complete again.
const HOLD: Duration = Duration::from_millis(1);
const RAW_CALLS: usize = 200;

/// One hold, in nanoseconds of the clock that all share.
#[derive(Clone, Copy)]
struct Hold {
    process: usize,
    from: u64,
    /// When `release()` was called.
    until: u64,
}

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    measure(stage, table, false);
    measure(stage, table, true);
}

fn measure(stage: &Stage, table: &mut Table, handoff: bool) {
    let runtime = stage::one_thread();
    let url = stage.url();
    let mut raw = runtime.block_on(Raw::connect(&url));
    let mut keys = Keys::new("bench:p6:free");
    let role = format!("relay {url} bench:p6:{handoff} {handoff}");
    let mut workers: Vec<Worker> = (0..PROCESSES).map(|_| Worker::start(&role)).collect();
    let (mut paced, mut tight, mut changes) = (Vec::new(), Vec::new(), Vec::new());
    let mut overlaps = 0;
    for round in 0..=stage.rounds(ROUNDS) {
        let calls = stage::on(&runtime, {
            let (mut raw, mut keys) = (raw.clone(), Keys::new("bench:p6:paced"));
            async move {
                let mut calls = Vec::new();
                for _ in 0..RAW_CALLS / 2 {
                    tokio::time::sleep(HOLD).await;
                    calls.extend(raw.pair(&mut keys).await);
                }
                calls
            }
        });
        let holds = one_round(&mut workers, stage.time(TIME));
        let quick = runtime.block_on(async {
            let mut calls = Vec::new();
            for _ in 0..RAW_CALLS {
                calls.extend(raw.pair(&mut keys).await);
            }
            calls
        });
        // The first round warms up.
        if round > 0 {
            paced.extend(calls);
            tight.extend(quick);
            for pair in holds.windows(2) {
                if pair[1].from < pair[0].until {
                    overlaps += 1;
                } else if pair[1].process != pair[0].process {
                    changes.push(pair[1].from - pair[0].until);
                }
            }
        }
    }
    assert_eq!(overlaps, 0, "two held the name at once: this is no lock");
    let trip = median(&paced);
    let tight = median(&tight);
    let p50 = Duration::from_nanos(quantile(&mut changes, 0.5));
    let p99 = Duration::from_nanos(quantile(&mut changes, 0.99));
    let trips = |time: Duration| time.as_secs_f64() / trip.as_secs_f64();
    let who = if handoff {
        "default hand-off"
    } else {
        "hand-off off"
    };
    let seen = changes.len();
    table.row(
        "P6",
        format!("release → other process holds, 64 wait, {who}: p50"),
        (trips(p50), "trips"),
        Aim::AtMost(1.5),
        format!(
            "{p50:.0?}; a raw round trip {trip:.0?} (back to back {tight:.0?}); {seen} changes"
        ),
    );
    table.row(
        "P6",
        format!("release → other process holds, 64 wait, {who}: p99"),
        (trips(p99), "trips"),
        Aim::AtMost(5.0),
        format!(
            "{p99:.0?}; the raw round trip's p99 {:.0?}",
            quantile(&mut paced, 0.99)
        ),
    );
}

fn one_round(workers: &mut [Worker], time: Duration) -> Vec<Hold> {
    for worker in workers.iter_mut() {
        worker.order(&time.as_nanos().to_string());
    }
    let mut holds = Vec::new();
    for (process, worker) in workers.iter_mut().enumerate() {
        for hold in worker.answer().split_whitespace() {
            let (from, until) = hold.split_once('-').expect("two instants");
            holds.push(Hold {
                process,
                from: from.parse().expect("an instant"),
                until: until.parse().expect("an instant"),
            });
        }
    }
    holds.sort_by_key(|hold| hold.from);
    // While tasks come and go, fewer than 64 wait.
    let edge = holds.len() / 10;
    holds[edge..holds.len() - edge].to_vec()
}

/// A process whose tasks take the name, keep it for a moment and pass it on. Order: for how many nanoseconds.
/// Answer: all holds.
pub(crate) async fn work(url: &str, words: &[&str]) {
    let [name, handoff] = words else {
        panic!("relay: name, hand-off");
    };
    let client = stage::connect(url).await;
    let mut mutex = client.mutex(name);
    if *handoff == "false" {
        mutex = mutex.handoff(Handoff::off());
    }
    worker::say("ready");
    while let Some(order) = worker::heard().await {
        let end = stage::monotonic() + order.parse::<u64>().expect("a length");
        let mut running = JoinSet::new();
        for _ in 0..TASKS {
            let mutex = mutex.clone();
            running.spawn(async move {
                let mut holds = Vec::new();
                while stage::monotonic() < end {
                    let guard = mutex.lock().await.expect("a guard");
                    let from = stage::monotonic();
                    tokio::time::sleep(HOLD).await;
                    let until = stage::monotonic();
                    guard.release().await.expect("the server answers");
                    holds.push(format!("{from}-{until}"));
                }
                holds
            });
        }
        let mut holds = Vec::new();
        while let Some(task) = running.join_next().await {
            holds.extend(task.expect("the task does not panic"));
        }
        worker::say(&holds.join(" "));
    }
}
