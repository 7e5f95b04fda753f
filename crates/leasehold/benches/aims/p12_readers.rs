//! P12: do the readers of one process share their hold?
//!
//! Unit: reads per second of 32 tasks on one name, as a multiple of those of one task alone; commands for each.

use std::time::Duration;

use crate::{
    contend::per_acquisition,
    float::median,
    stage::{self, Stage},
    table::{Aim, Table},
    turns,
};

const ROUNDS: usize = 7;
const TIME: Duration = Duration::from_secs(1);

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let runtime = stage::one_thread();
    let client = runtime.block_on(stage::connect(&stage.url()));
    let time = stage.time(TIME);
    let (mut gains, mut rates, mut alone, mut commands) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..=stage.rounds(ROUNDS) {
        let lock = client.rw_lock("bench:p12");
        let pair = move || {
            let lock = lock.clone();
            async move {
                let guard = lock.read().await.expect("a guard");
                // Others read meanwhile, as they do where reading takes time.
                tokio::task::yield_now().await;
                guard.release().await.expect("the server answers");
            }
        };
        let one = stage::on(&runtime, turns::rate(1, time / 2, pair.clone()));
        let before = stage.commands();
        let (all, reads) = stage::on(&runtime, turns::rate(32, time, pair));
        // The first round warms up.
        if round > 0 {
            commands.push(per_acquisition(stage.commands() - before, reads));
            gains.push(all / one.0);
            rates.push(all);
            alone.push(one.0);
        }
    }
    table.row(
        "P12",
        "32 readers of one process: reads/s ÷ one task's",
        (median(&gains), "×"),
        Aim::AtLeast(50.0),
        format!("{:.0}/s, one task {:.0}/s", median(&rates), median(&alone)),
    );
    table.row(
        "P12",
        "32 readers of one process: commands per read",
        (median(&commands), ""),
        Aim::AtMost(0.05),
        "one task: 2",
    );
}
