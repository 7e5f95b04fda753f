//! Clusters: what holders and waiters notice of slots that move and of primaries that are replaced.

#[path = "../common/mod.rs"]
mod common;

mod crowd;
mod failover;
mod moving;
mod reached;
mod refused;

use leasehold_testkit::{Cluster, Flavor};

/// The slot of a name.
fn slot(cluster: &Cluster, name: &str) -> u16 {
    cluster.slot(name)
}

/// So many names that the primary has.
fn names_at(cluster: &Cluster, primary: usize, count: usize) -> Vec<String> {
    let names = (0..).map(|i| format!("order:{i}"));
    let there = names.filter(|name| cluster.primary_of(slot(cluster, name)) == primary);
    there.take(count).collect()
}

fn flavors() -> Vec<Flavor> {
    common::flavors(0)
}
