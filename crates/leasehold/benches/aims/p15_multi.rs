//! P15: what do five names at once cost?
//!
//! Unit: the median time of an uncontended pair of a multi-lock of five names of one server, as a ratio to that of a mutex.

use crate::{
    contend,
    stage::{self, Stage},
    table::{Aim, Table},
    turns,
};

const ROUNDS: usize = 31;
const NAMES: [&str; 5] = [
    "bench:p15:a",
    "bench:p15:b",
    "bench:p15:c",
    "bench:p15:d",
    "bench:p15:e",
];

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let (url, rounds) = (stage.url(), stage.rounds(ROUNDS));
    let (ratio, ours, beside) = stage::on(&stage::one_thread(), async move {
        let client = stage::connect(&url).await;
        let all = client.multi_lock(NAMES);
        let mutex = client.mutex("bench:p15:mutex");
        let pair = || async {
            let guard = all.lock().await.expect("a guard");
            guard.release().await.expect("the server answers");
        };
        turns::medians(rounds, pair, || contend::pair(&mutex)).await
    });
    table.row(
        "P15",
        "uncontended pair: five names at once / one mutex, p50",
        (ratio, "×"),
        Aim::AtMost(1.8),
        format!("{ours:.0} µs, {beside:.0} µs; median of {rounds} rounds"),
    );
}
