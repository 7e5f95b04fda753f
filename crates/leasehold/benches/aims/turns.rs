//! Two workloads on one connection, in turns: how long one takes as a ratio to the other.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use crate::{
    float::{median, micros},
    stage,
};

/// Pairs in a row before it is the other's turn: short, so that noise meets both.
const PAIRS: usize = 200;

/// The median of the ratios of both medians, and both medians in microseconds.
pub(crate) async fn medians<A: Future<Output = ()>, B: Future<Output = ()>>(
    rounds: usize,
    ours: impl Fn() -> A,
    beside: impl Fn() -> B,
) -> (f64, f64, f64) {
    let (mut ratios, mut firsts, mut seconds) = (Vec::new(), Vec::new(), Vec::new());
    // The first round warms up.
    for round in 0..=rounds {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for turn in 0..2 {
            for _ in 0..PAIRS {
                let began = Instant::now();
                if (round + turn) % 2 == 0 {
                    ours().await;
                    first.push(micros(began.elapsed()));
                } else {
                    beside().await;
                    second.push(micros(began.elapsed()));
                }
            }
        }
        if round > 0 {
            let (first, second) = (median(&first), median(&second));
            ratios.push(first / second);
            firsts.push(first);
            seconds.push(second);
        }
    }
    (median(&ratios), median(&firsts), median(&seconds))
}

/// How often a second so many tasks do this, again and again for so long, and how often they did it in all.
pub(crate) async fn rate<F: Future<Output = ()> + Send + 'static>(
    tasks: usize,
    time: Duration,
    pair: impl Fn() -> F + Clone + Send + 'static,
) -> (f64, u64) {
    let began = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let pair = pair.clone();
        running.spawn(async move {
            let mut count = 0;
            while began.elapsed() < time {
                pair().await;
                count += 1;
            }
            count
        });
    }
    let counts = running.join_all().await;
    let all = counts.iter().sum();
    (stage::rate(all, began.elapsed()), all)
}
