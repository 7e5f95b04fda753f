//! P13: how fast do permits pass from task to task?
//!
//! Unit: acquisitions per second of 32 tasks of one process for 8 permits, as a multiple of those of one task alone;
//! commands for each. Of both semaphores.

use std::{future::Future, time::Duration};

use tokio::runtime::Runtime;

use crate::{
    contend::per_acquisition,
    float::median,
    stage::{self, Stage},
    table::{Aim, Table},
    turns,
};

const ROUNDS: usize = 7;
const TIME: Duration = Duration::from_secs(1);
const PERMITS: u32 = 8;

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let runtime = stage::one_thread();
    let client = runtime.block_on(stage::connect(&stage.url()));
    let leased = client.leased_semaphore("bench:p13:leased");
    let plain = client.semaphore("bench:p13:plain");
    runtime.block_on(async {
        leased.set_permits(PERMITS).await.expect("an answer");
        plain.try_set_permits(PERMITS).await.expect("an answer");
    });
    measure(stage, table, &runtime, "leased semaphore", move || {
        let permits = leased.clone();
        async move {
            let guard = permits.acquire().await.expect("a permit");
            guard.release().await.expect("the server answers");
        }
    });
    measure(stage, table, &runtime, "semaphore", move || {
        let permits = plain.clone();
        async move {
            let guard = permits.acquire().await.expect("a permit");
            guard.release().await.expect("the server answers");
        }
    });
}

fn measure<F: Future<Output = ()> + Send + 'static>(
    stage: &Stage,
    table: &mut Table,
    runtime: &Runtime,
    who: &str,
    pair: impl Fn() -> F + Clone + Send + 'static,
) {
    let time = stage.time(TIME);
    let (mut gains, mut rates, mut alone, mut commands) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..=stage.rounds(ROUNDS) {
        let one = stage::on(runtime, turns::rate(1, time / 2, pair.clone()));
        let before = stage.commands();
        let (all, holds) = stage::on(runtime, turns::rate(32, time, pair.clone()));
        // The first round warms up.
        if round > 0 {
            commands.push(per_acquisition(stage.commands() - before, holds));
            gains.push(all / one.0);
            rates.push(all);
            alone.push(one.0);
        }
    }
    table.row(
        "P13",
        format!("{who} of {PERMITS}, 32 tasks, 1 process: acquisitions/s ÷ one task's"),
        (median(&gains), "×"),
        Aim::AtLeast(25.0),
        format!("{:.0}/s, one task {:.0}/s", median(&rates), median(&alone)),
    );
    table.row(
        "P13",
        format!("{who} of {PERMITS}, 32 tasks, 1 process: commands per acquisition"),
        (median(&commands), ""),
        Aim::AtMost(0.1),
        "one task: 2",
    );
}
