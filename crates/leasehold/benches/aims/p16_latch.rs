//! P16: how soon do a thousand waiters of one process hear that a latch has opened?
//!
//! Unit: from the call of `count_down` until the last of them goes on, the median of the rounds.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::{
    float::{median, micros},
    raw::Raw,
    stage::{self, Stage},
    table::{Aim, Table},
};

const ROUNDS: usize = 15;
const WAITERS: usize = 1000;

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let (url, rounds) = (stage.url(), stage.rounds(ROUNDS));
    let (times, calls) = stage::on(&stage::one_thread(), async move {
        let client = stage::connect(&url).await;
        let opener = stage::connect(&url).await;
        let mut raw = Raw::connect(&url).await;
        let (mut times, mut calls) = (Vec::new(), Vec::new());
        for round in 0..=rounds {
            let name = format!("bench:p16:{round}");
            let latch = client.latch(&name);
            assert!(latch.try_set_count(1).await.expect("an answer"));
            let mut waiters = JoinSet::new();
            for _ in 0..WAITERS {
                let latch = latch.clone();
                waiters.spawn(async move {
                    latch.wait().await.expect("it opens");
                    Instant::now()
                });
            }
            while latch.status().await.expect("an answer").waiting_here < WAITERS {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let began = Instant::now();
            raw.publish("bench:p16", "").await;
            calls.push(micros(began.elapsed()));
            let began = Instant::now();
            opener.latch(&name).count_down().await.expect("an answer");
            let last = waiters.join_all().await.into_iter().max();
            // The first round warms up.
            if round > 0 {
                times.push(micros(last.expect("a thousand") - began) / 1000.0);
            }
        }
        (times, calls)
    });
    table.row(
        "P16",
        format!("a latch opens for {WAITERS} waiters of one process: the last goes on"),
        (median(&times), "ms"),
        Aim::AtMost(5.0),
        format!(
            "a raw call {:.0} µs; median of {rounds} rounds",
            median(&calls)
        ),
    );
}
