//! P21: what do sentinels cost a lock?
//!
//! Unit: the median time of an uncontended pair on the primary that sentinels name, as a ratio to the same primary by its own URL, in turns; and to
//! a server without replicas, to which it has nothing to send.

use leasehold_testkit::{Flavor, SentinelGroup};

use crate::{
    contend,
    stage::{self, Stage},
    table::{Aim, Table},
    turns,
};

const ROUNDS: usize = 31;

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let group = SentinelGroup::start(Flavor::Redis);
    let all = group.servers().iter().chain(group.sentinels());
    all.for_each(|server| stage.put(server));
    let primary = group.server(group.primary()).url();
    let runtime = stage::one_thread();
    for (beside, url) in [
        ("the same primary by its URL", primary),
        ("one server", stage.url()),
    ] {
        let (by_sentinels, rounds) = (group.url(), stage.rounds(ROUNDS));
        let (ratio, ours, theirs) = stage::on(&runtime, async move {
            let ours = stage::connect(&by_sentinels).await.mutex("bench:p21:a");
            let theirs = stage::connect(&url).await.mutex("bench:p21:b");
            turns::medians(rounds, || contend::pair(&ours), || contend::pair(&theirs)).await
        });
        table.row(
            "P21",
            format!("uncontended pair: by sentinels / {beside}, p50"),
            (ratio, "×"),
            Aim::AtMost(1.05),
            format!("{ours:.0} µs, {theirs:.0} µs; median of {rounds} rounds"),
        );
    }
}
