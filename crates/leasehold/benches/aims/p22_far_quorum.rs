//! P22: what does a majority of servers cost that are a millisecond away?
//!
//! Unit: the median time of an uncontended pair on five servers, as a ratio to one of them, each 1 ms away, each way.

use std::time::Duration;

use leasehold_testkit::Server;

use crate::{
    contend, far,
    stage::{self, Stage},
    table::{Aim, Table},
    turns,
};

const ROUNDS: usize = 7;
const EACH_WAY: Duration = Duration::from_millis(1);

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let servers = stage.five();
    let away = |server: &Server| format!("redis://{}/", far::away(server.addr(), EACH_WAY));
    let urls: Vec<String> = servers.servers().iter().map(away).collect();
    let one = urls[0].clone();
    let rounds = stage.rounds(ROUNDS);
    let (ratio, ours, beside) = stage::on(&stage::one_thread(), async move {
        let ours = stage::majority(urls).await.mutex("bench:p22:five");
        let beside = stage::connect(&one).await.mutex("bench:p22:one");
        turns::medians(rounds, || contend::pair(&ours), || contend::pair(&beside)).await
    });
    table.row(
        "P22",
        "uncontended pair, servers 1 ms away: five / one, p50",
        (ratio, "×"),
        Aim::AtMost(1.25),
        format!("{ours:.0} µs, {beside:.0} µs; median of {rounds} rounds"),
    );
}
