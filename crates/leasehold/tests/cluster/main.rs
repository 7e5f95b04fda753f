//! Clusters: what holders and waiters notice of slots that move and of primaries that are replaced.

#[path = "../common/mod.rs"]
mod common;

mod channels;
mod crowd;
mod databases;
mod failover;
mod find;
mod idle;
mod labels;
mod moving;
mod reached;
mod redisson;
mod redisson_kinds;
mod refused;
mod renewal;
mod scan;
mod taken_over;

use std::ops::RangeInclusive;

use leasehold_testkit::{Cluster, Flavor, wait_until_async};

use common::SOON;

/// The slot of a name.
fn slot(cluster: &Cluster, name: &str) -> u16 {
    cluster.slot(name)
}

/// So many names that the primary has.
fn names_at(cluster: &Cluster, primary: usize, count: usize) -> Vec<String> {
    let ranges = slots_at(cluster, primary);
    let names = (0..).map(|i| format!("order:{i}"));
    let is_there = |name: &String| ranges.iter().any(|it| it.contains(&slot(cluster, name)));
    names.filter(is_there).take(count).collect()
}

/// Which slots the primary has, by itself.
fn slots_at(cluster: &Cluster, primary: usize) -> Vec<RangeInclusive<u16>> {
    let nodes = cluster.command(primary, &["CLUSTER", "NODES"]);
    let nodes: String = redis::from_redis_value(nodes).unwrap();
    let own = nodes.lines().find(|line| line.contains("myself")).unwrap();
    let slots = own
        .split(' ')
        .skip(8)
        .filter(|slots| !slots.starts_with('['));
    let range = |slots: &str| {
        let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
        first.parse().unwrap()..=last.parse().unwrap()
    };
    slots.map(range).collect()
}

/// Sharded channels, and those of the whole cluster.
const SHARDED: [bool; 2] = [true, false];

/// On which a mutex tells that it is free.
fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// How many listen there at a node.
fn listeners(cluster: &Cluster, node: usize, channel: &str, sharded: bool) -> u64 {
    if sharded {
        cluster.shard_subscribers(node, channel)
    } else {
        cluster.subscribers(node, channel)
    }
}

/// Waits until one listens at one node, and none at the others of these.
async fn until_heard_at(cluster: &Cluster, node: usize, of: &[usize], name: &str, sharded: bool) {
    let channel = channel(name);
    let is_heard = || {
        let counts =
            |&of: &usize| listeners(cluster, of, &channel, sharded) == u64::from(of == node);
        of.iter().all(counts)
    };
    wait_until_async(SOON, "it listens there, and nowhere else", is_heard).await;
}

/// Waits until none listens at any of these nodes.
async fn until_unheard(cluster: &Cluster, of: &[usize], name: &str, sharded: bool) {
    let channel = channel(name);
    let is_unheard = || {
        of.iter()
            .all(|&of| listeners(cluster, of, &channel, sharded) == 0)
    };
    wait_until_async(SOON, "nobody listens", is_unheard).await;
}

fn flavors() -> Vec<Flavor> {
    common::flavors(0)
}
