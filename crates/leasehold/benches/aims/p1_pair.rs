//! P1: what does an uncontended lock cost?
//!
//! Unit: the median time of `lock().await` and `release().await` by one task, as a ratio to the same two scripts
//! sent by the redis crate alone. Both sides send two commands, so all above 1 is what we add on the client.

use std::time::Instant;

use tokio::runtime::Runtime;

use crate::{
    contend,
    float::{median, micros},
    raw::{Keys, Raw},
    stage::{self, Stage},
    table::{Aim, Table},
};

/// Pairs in a row before it is the other's turn: short, so that noise meets both.
const PAIRS: usize = 500;
const ROUNDS: usize = 31;

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    compare(stage, table, "current_thread", &stage::one_thread(), 1.05);
    compare(stage, table, "multi_thread(2)", &stage::two_threads(), 1.10);
}

fn compare(stage: &Stage, table: &mut Table, flavor: &str, runtime: &Runtime, aim: f64) {
    let (url, rounds) = (stage.url(), stage.rounds(ROUNDS));
    let (ratio, ours, raw) = stage::on(runtime, async move {
        let client = stage::connect(&url).await;
        let mutex = client.mutex("bench:p1:ours");
        let mut raw = Raw::connect(&url).await;
        let mut keys = Keys::new("bench:p1:free");
        let (mut ratios, mut ours_p50, mut raw_p50) = (Vec::new(), Vec::new(), Vec::new());
        // The first round warms up.
        for round in 0..=rounds {
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            // The two sides take turns to go first, so that neither always finds the caches the other left.
            for turn in 0..2 {
                if (round + turn) % 2 == 0 {
                    for _ in 0..PAIRS {
                        let began = Instant::now();
                        contend::pair(&mutex).await;
                        ours.push(micros(began.elapsed()));
                    }
                } else {
                    for _ in 0..PAIRS {
                        let began = Instant::now();
                        raw.pair(&mut keys).await;
                        theirs.push(micros(began.elapsed()));
                    }
                }
            }
            if round > 0 {
                let (ours, theirs) = (median(&ours), median(&theirs));
                ratios.push(ours / theirs);
                ours_p50.push(ours);
                raw_p50.push(theirs);
            }
        }
        (median(&ratios), median(&ours_p50), median(&raw_p50))
    });
    table.row(
        "P1",
        format!("uncontended pair, 1 task, {flavor}: p50 ours / raw"),
        (ratio, "×"),
        Aim::AtMost(aim),
        format!("ours {ours:.0} µs, raw {raw:.0} µs; median of {rounds} rounds"),
    );
}
