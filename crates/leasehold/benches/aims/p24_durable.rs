//! P24 and P25: what does a lock cost that a replica must have?
//!
//! Unit of P24: the median time of an uncontended pair with `Durability::Replicas(1)`, as a ratio to one with `Primary` on the same primary of two
//! replicas, in turns. Of P25: pairs a second of 100 tasks, each with a name of its own, as a ratio to the same with `Primary`, in turns.

use std::{future::Future, time::Instant};

use futures_util::future::join_all;
use leasehold::{Client, Durability, Mutex};
use leasehold_testkit::{Flavor, SentinelGroup};

use crate::{
    contend,
    float::median,
    stage::{self, Stage},
    table::{Aim, Table},
    turns,
};

const ROUNDS: usize = 31;
const TASKS: usize = 100;

/// Pairs of each task in a round.
const PAIRS: usize = 10;

/// A primary and its replicas, and the URL of the primary.
fn replicated(stage: &Stage) -> (SentinelGroup, String) {
    let group = SentinelGroup::start(Flavor::Redis);
    let all = group.servers().iter().chain(group.sentinels());
    all.for_each(|server| stage.put(server));
    let url = group.server(group.primary()).url();
    (group, url)
}

pub(crate) fn pair(stage: &Stage, table: &mut Table) {
    let (_group, url) = replicated(stage);
    let (runtime, rounds) = (stage::one_thread(), stage.rounds(ROUNDS));
    let (ratio, durable, plain) = stage::on(&runtime, async move {
        let client = stage::connect(&url).await;
        let durable = client
            .mutex("bench:p24:a")
            .durability(Durability::Replicas(1));
        let plain = client.mutex("bench:p24:b");
        turns::medians(rounds, || contend::pair(&durable), || contend::pair(&plain)).await
    });
    table.row(
        "P24",
        "uncontended pair: Replicas(1) / Primary, p50".to_owned(),
        (ratio, "×"),
        Aim::AtMost(2.2),
        format!("{durable:.0} µs, {plain:.0} µs; median of {rounds} rounds"),
    );
}

pub(crate) fn tasks(stage: &Stage, table: &mut Table) {
    let (_group, url) = replicated(stage);
    let (runtime, rounds) = (stage::one_thread(), stage.rounds(ROUNDS));
    let (ratio, durable, plain) = stage::on(&runtime, async move {
        let client = stage::connect(&url).await;
        let durable = Tasks::new(&client, Durability::Replicas(1));
        let plain = Tasks::new(&client, Durability::Primary);
        let (mut ratios, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        // The first round warms up.
        for round in 0..=rounds {
            let (with, without) = (rate(durable.pairs()).await, rate(plain.pairs()).await);
            if round > 0 {
                ratios.push(with / without);
                ours.push(with);
                theirs.push(without);
            }
        }
        (median(&ratios), median(&ours), median(&theirs))
    });
    table.row(
        "P25",
        format!("{TASKS} tasks, a name each, pairs/s: Replicas(1) / Primary"),
        (ratio, "×"),
        Aim::AtLeast(0.4),
        format!("{durable:.0}/s, {plain:.0}/s; median of {rounds} rounds"),
    );
}

struct Tasks(Vec<Mutex>);

impl Tasks {
    fn new(client: &Client, policy: Durability) -> Tasks {
        let names = (0..TASKS).map(|i| format!("bench:p25:{policy}:{i}"));
        Tasks(
            names
                .map(|name| client.mutex(name).durability(policy))
                .collect(),
        )
    }

    async fn pairs(&self) {
        let tasks = self.0.iter().map(|mutex| {
            let mutex = mutex.clone();
            tokio::spawn(async move {
                for _ in 0..PAIRS {
                    contend::pair(&mutex).await;
                }
            })
        });
        for task in join_all(tasks.collect::<Vec<_>>()).await {
            task.expect("no task panics");
        }
    }
}

/// Pairs a second.
async fn rate(all: impl Future<Output = ()>) -> f64 {
    let began = Instant::now();
    all.await;
    let pairs = u32::try_from(TASKS * PAIRS).expect("a few");
    f64::from(pairs) / began.elapsed().as_secs_f64()
}
