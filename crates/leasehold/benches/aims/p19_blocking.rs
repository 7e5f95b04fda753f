//! P19: what does a lock cost a thread?
//!
//! Unit: the median time of an uncontended pair of `leasehold::blocking` on a plain thread, as a ratio to that of a task.

use std::time::Instant;

use leasehold::blocking;

use crate::{
    contend,
    float::{median, micros},
    stage::{self, Stage},
    table::{Aim, Table},
};

/// Pairs in a row before it is the other's turn: short, so that noise meets both.
const PAIRS: usize = 200;
const ROUNDS: usize = 31;

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let (url, rounds) = (stage.url(), stage.rounds(ROUNDS));
    let runtime = stage::one_thread();
    let client = stage::on(&runtime, async move { stage::connect(&url).await });
    let here = blocking::Client::from(client.clone()).mutex("bench:p19:thread");
    let mutex = client.mutex("bench:p19:task");
    let (mut ratios, mut ours, mut beside) = (Vec::new(), Vec::new(), Vec::new());
    // The first round warms up.
    for round in 0..=rounds {
        let (mut thread, mut task) = (Vec::new(), Vec::new());
        for turn in 0..2 {
            if (round + turn) % 2 == 0 {
                for _ in 0..PAIRS {
                    let began = Instant::now();
                    let guard = here.lock().expect("a guard");
                    guard.release().expect("the server answers");
                    thread.push(micros(began.elapsed()));
                }
            } else {
                let mutex = mutex.clone();
                task = stage::on(&runtime, async move {
                    let mut took = Vec::new();
                    for _ in 0..PAIRS {
                        let began = Instant::now();
                        contend::pair(&mutex).await;
                        took.push(micros(began.elapsed()));
                    }
                    took
                });
            }
        }
        if round > 0 {
            let (thread, task) = (median(&thread), median(&task));
            ratios.push(thread / task);
            ours.push(thread);
            beside.push(task);
        }
    }
    let (ours, beside) = (median(&ours), median(&beside));
    table.row(
        "P19",
        "uncontended pair: a plain thread / a task, p50",
        (median(&ratios), "×"),
        Aim::AtMost(2.0),
        format!("{ours:.0} µs, {beside:.0} µs; median of {rounds} rounds"),
    );
}
