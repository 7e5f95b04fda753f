//! P20: what does it cost to be watched?
//!
//! Unit: a client with metrics, for an installed recorder, and an observer, as a ratio to one with neither: the median time of an
//! uncontended pair, taken in turns; and the time of a pair of a hot name, of 32 tasks in one process.

use std::sync::atomic::{AtomicU64, Ordering};

use leasehold::{Client, ClientBuilder, Event, metrics::Metrics};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

use crate::{
    contend::{contend, pair},
    float::median,
    stage::{self, Stage},
    table::{Aim, Table},
    turns,
};

const ROUNDS: usize = 61;
const HOT_ROUNDS: usize = 15;
const TASKS: usize = 32;
const TIME: std::time::Duration = std::time::Duration::from_millis(500);

fn watched(url: &str) -> ClientBuilder {
    static EVENTS: AtomicU64 = AtomicU64::new(0);
    Client::builder()
        .url(url)
        .metrics(Metrics::new().class("order:").class("bench:"))
        .observe(|_: &Event| {
            EVENTS.fetch_add(1, Ordering::Relaxed);
        })
}

fn record() -> metrics_exporter_prometheus::PrometheusHandle {
    let mut builder = PrometheusBuilder::new();
    for (metric, buckets) in leasehold::metrics::BUCKETS {
        let matcher = Matcher::Full((*metric).to_owned());
        let with_buckets = builder.set_buckets_for_metric(matcher, buckets);
        builder = with_buckets.expect("buckets");
    }
    builder.install_recorder().expect("the first recorder")
}

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let recorded = record();
    let runtime = stage::one_thread();
    let url = stage.url();
    let (watched, plain) = runtime.block_on(async {
        let plain = stage::connect(&url).await;
        (stage::connect_with(watched(&url)).await, plain)
    });
    let rounds = stage.rounds(ROUNDS);
    let (a, b) = (watched.mutex("bench:p20:a"), plain.mutex("bench:p20:b"));
    let (ratio, ours, beside) = stage::on(&runtime, async move {
        turns::medians(rounds, || pair(&a), || pair(&b)).await
    });
    recorded.run_upkeep();
    table.row(
        "P20",
        "uncontended pair: metrics and an observer / neither",
        (ratio, "×"),
        Aim::AtMost(1.05),
        format!("{ours:.1} µs, {beside:.1} µs; median of {rounds} rounds"),
    );
    let rounds = stage.rounds(HOT_ROUNDS);
    let (mut ratios, mut ours, mut beside) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=rounds {
        let rate = |client: &Client, name: &str| {
            let mutex = client.mutex(name);
            let contended = async move { contend(&mutex, TASKS, 0, TIME).await };
            let rate = stage::rate(stage::on(&runtime, contended).sum(), TIME);
            recorded.run_upkeep();
            rate
        };
        let (one, other) = if round % 2 == 0 {
            let one = rate(&watched, "bench:p20:hot");
            (one, rate(&plain, "bench:p20:hot, too"))
        } else {
            let other = rate(&plain, "bench:p20:hot, too");
            (rate(&watched, "bench:p20:hot"), other)
        };
        // The first round warms up.
        if round > 0 {
            ratios.push(other / one);
            ours.push(one);
            beside.push(other);
        }
    }
    table.row(
        "P20",
        format!("one name, {TASKS} tasks, 1 process: time per acquisition, metrics and an observer / neither"),
        (median(&ratios), "×"),
        Aim::AtMost(1.2),
        format!("{:.0}/s, {:.0}/s; median of {rounds} rounds", median(&ours), median(&beside)),
    );
}
