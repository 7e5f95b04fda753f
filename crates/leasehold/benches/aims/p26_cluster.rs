//! P26 to P28: what does a cluster cost?
//!
//! Unit of P26: the median time of an uncontended pair on a cluster, as a ratio to one on one server, in turns. All servers share one core, so the
//! same two scripts by the redis crate stand beside it, at that primary and at that server: what the servers have part in. Of P27: how long a name
//! is without a holder when it passes to another process (P6, hand-off off), as a ratio to one server, in turns, with replicas and without. Of P28: the CPU of all nodes
//! together, in percent of a core, while 100,000 names are renewed (P8).

use std::{
    thread,
    time::{Duration, Instant},
};

use leasehold_testkit::{Cluster, Flavor, Server};
use tokio::sync::Mutex;

use crate::{
    contend,
    float::{median, micros},
    p6_handover,
    p8_renewal::{Cost, NAMES, PERIODS},
    raw::{Keys, Raw},
    stage::{self, Stage, cpu_time, percent},
    table::{Aim, Table},
    turns,
    worker::Worker,
};

const ROUNDS: usize = 31;
const RELAYS: usize = 15;

/// How long idle nodes are watched.
const IDLE: Duration = Duration::from_secs(10);

fn cluster(stage: &Stage) -> Cluster {
    let cluster = Cluster::start(Flavor::Redis);
    cluster.nodes().iter().for_each(|node| stage.put(node));
    cluster
}

pub(crate) fn pair(stage: &Stage, table: &mut Table) {
    const NAME: &str = "bench:p26:a";
    let mut cluster = cluster(stage);
    let (runtime, rounds) = (stage::one_thread(), stage.rounds(ROUNDS));
    for who in ["a cluster", "a cluster without its replicas"] {
        let node = cluster.primary_of(cluster.slot(NAME));
        let urls = [cluster.url(), stage.url(), cluster.node(node).url()];
        let (ratio, ours, one, part, there, here) = stage::on(&runtime, async move {
            let [cluster, server, node] = urls;
            let ours = stage::connect(&cluster).await.mutex(NAME);
            let one = stage::connect(&server).await.mutex(NAME);
            let pairs =
                turns::medians(rounds, || contend::pair(&ours), || contend::pair(&one)).await;
            let there = Mutex::new((Raw::connect(&node).await, Keys::new(NAME)));
            let here = Mutex::new((Raw::connect(&server).await, Keys::new(NAME)));
            let raw = turns::medians(rounds, || raw_pair(&there), || raw_pair(&here)).await;
            (pairs.0, pairs.1, pairs.2, raw.0, raw.1, raw.2)
        });
        table.row(
            "P26",
            format!("uncontended pair: {who} / one server, p50"),
            (ratio, "×"),
            Aim::AtMost(1.05),
            format!(
                "{ours:.0} µs, {one:.0} µs; the two scripts by the redis crate {part:.3} ×: {there:.0} µs, {here:.0} µs; median of \
                 {rounds} rounds"
            ),
        );
        (3..6).for_each(|replica| cluster.kill(replica));
    }
}

async fn raw_pair(raw: &Mutex<(Raw, Keys)>) {
    let (raw, keys) = &mut *raw.lock().await;
    raw.pair(keys).await;
}

pub(crate) fn handover(stage: &Stage, table: &mut Table) {
    let mut cluster = cluster(stage);
    for who in ["a cluster", "a cluster without its replicas"] {
        let mut there = p6_handover::relay_on(&cluster.url());
        let mut here = p6_handover::relay_on(&stage.url());
        let (mut ratios, mut ours, mut ones) = (Vec::new(), Vec::new(), Vec::new());
        let rounds = stage.rounds(RELAYS);
        // The first round warms up.
        for round in 0..=rounds {
            let there = micros(p6_handover::change(stage, &mut there));
            let here = micros(p6_handover::change(stage, &mut here));
            if round > 0 {
                ratios.push(there / here);
                ours.push(there);
                ones.push(here);
            }
        }
        table.row(
            "P27",
            format!(
                "release → other process holds, 64 wait, hand-off off: {who} / one server, p50"
            ),
            (median(&ratios), "×"),
            Aim::AtMost(1.1),
            format!(
                "{:.0} µs, {:.0} µs; median of {rounds} rounds",
                median(&ours),
                median(&ones)
            ),
        );
        (3..6).for_each(|replica| cluster.kill(replica));
    }
}

pub(crate) fn leases(stage: &Stage, table: &mut Table) {
    let cluster = cluster(stage);
    let mut holder = Worker::start(&format!("hold {} bench:p28", cluster.url()));
    let nodes: Vec<u32> = cluster.nodes().iter().map(Server::pid).collect();
    let spent = || nodes.iter().copied().map(cpu_time).sum::<Duration>();
    let (began, before) = (Instant::now(), spent());
    thread::sleep(stage.time(IDLE));
    let idle = percent(spent().saturating_sub(before), began.elapsed());
    holder.order(&format!("take {NAMES}"));
    holder.answer();
    // What the replicas do they are told, and it is no renewal more.
    let primaries: Vec<&Server> = cluster.nodes()[..3].iter().collect();
    let rounds = if stage.is_short() { 1 } else { PERIODS };
    let groups = [nodes[..3].to_vec(), nodes[3..].to_vec(), vec![holder.pid()]];
    let cost = Cost::of(&primaries, &groups, rounds);
    let (primaries, replicas) = (cost.percent(0), cost.percent(1));
    holder.order("valid");
    let valid = holder.answer();
    table.row(
        "P28",
        "100,000 held names, 30 s renewed every 10 s: CPU of a cluster's six nodes",
        (primaries + replicas, "% of a core"),
        Aim::AtMost(6.0),
        format!(
            "its primaries {primaries:.2} %, their replicas {replicas:.2} %; all six {idle:.2} % when they hold nothing; client {:.2} %; \
             {valid} are held",
            cost.percent(2)
        ),
    );
}
