//! P11: what does a fencing token cost?
//!
//! Unit: the median time of an uncontended pair of a fenced mutex, as a ratio to that of a mutex.

use crate::{
    contend,
    stage::{self, Stage},
    table::{Aim, Table},
    turns,
};

const ROUNDS: usize = 31;

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let (url, rounds) = (stage.url(), stage.rounds(ROUNDS));
    let (ratio, ours, beside) = stage::on(&stage::one_thread(), async move {
        let client = stage::connect(&url).await;
        let fenced = client.fenced_mutex("bench:p11:fenced");
        let mutex = client.mutex("bench:p11:mutex");
        let pair = || async {
            let guard = fenced.lock().await.expect("a guard");
            guard.release().await.expect("the server answers");
        };
        turns::medians(rounds, pair, || contend::pair(&mutex)).await
    });
    table.row(
        "P11",
        "uncontended pair: fenced mutex / mutex, p50",
        (ratio, "×"),
        Aim::AtMost(1.10),
        format!("{ours:.0} µs, {beside:.0} µs; median of {rounds} rounds"),
    );
}
