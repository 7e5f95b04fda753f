//! P23: what does a lock on a majority of servers cost beside its ten scripts?
//!
//! Unit: the median time of an uncontended pair on five servers, as a ratio to the same scripts, sent by the redis crate alone to the five side by
//! side; the third answer is enough there, too.

use std::future::Future;

use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use tokio::sync::Mutex;

use crate::{
    contend,
    raw::{Keys, Raw},
    stage::{self, Stage},
    table::{Aim, Table},
    turns,
};

const ROUNDS: usize = 31;

/// A connection to each server.
struct ByHand {
    servers: Vec<(Raw, Keys)>,
    /// So many answers are waited for.
    need: usize,
}

impl ByHand {
    async fn connect(urls: &[String], name: &str, need: usize) -> ByHand {
        let servers = join_all(urls.iter().map(|url| Raw::connect(url))).await;
        let servers = servers.into_iter().map(|raw| (raw, Keys::new(name)));
        ByHand {
            servers: servers.collect(),
            need,
        }
    }

    async fn pair(&mut self) {
        let ByHand { servers, need } = self;
        for (_, keys) in servers.iter_mut() {
            keys.next_lease();
        }
        let taken = servers.iter_mut().map(|(raw, keys)| raw.acquire(keys));
        first(taken.collect(), *need).await;
        let given = servers.iter_mut().map(|(raw, keys)| raw.release(keys));
        first(given.collect(), *need).await;
    }
}

/// The first answers; the others are not waited for.
async fn first<F: Future<Output = ()>>(all: FuturesUnordered<F>, need: usize) {
    all.take(need).collect::<()>().await;
}

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let servers = stage.five();
    let runtime = stage::one_thread();
    for (need, which) in [
        (3, "the third answer decides"),
        (5, "all five are waited for"),
    ] {
        let (urls, rounds) = (servers.urls(), stage.rounds(ROUNDS));
        let (ratio, ours, by_hand) = stage::on(&runtime, async move {
            let by_hand = ByHand::connect(&urls, "bench:p23:free", need).await;
            let by_hand = Mutex::new(by_hand);
            let ours = stage::majority(urls).await.mutex("bench:p23:ours");
            let pair = || async { by_hand.lock().await.pair().await };
            turns::medians(rounds, || contend::pair(&ours), pair).await
        });
        table.row(
            "P23",
            format!("uncontended pair on five servers: ours / by hand, {which}, p50"),
            (ratio, "×"),
            Aim::AtMost(1.15),
            format!("ours {ours:.0} µs, by hand {by_hand:.0} µs; median of {rounds} rounds"),
        );
    }
}
