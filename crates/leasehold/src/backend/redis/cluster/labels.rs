//! The labels of clients: each at the node of its own slot. Whether a client is connected, the nodes of its lock and of its label know, to
//! which it sends something in each ten seconds in which it holds or waits.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::future::{join, join_all};

use super::{ClusterCore, nodes::Node, slots::slot};
use crate::{
    backend::{
        Inspection,
        redis::{
            labels::{ClientAnswers, begins_of},
            node::NodeSteps,
            router::Route,
        },
    },
    name::label_key,
};

/// Adds what the cluster knows of the clients of some locks. `lock_at`: the node of the lock, where connections are to be looked at, too.
pub(super) async fn add(
    shared: &Arc<ClusterCore>,
    found: &mut [&mut Inspection],
    lock_at: Option<Arc<Node>>,
) {
    let begins = begins_of(found);
    if begins.is_empty() {
        return;
    }
    // A command may name keys of one slot only.
    let mut by_slot: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for begin in begins {
        by_slot
            .entry(slot(&label_key(&begin)))
            .or_default()
            .push(begin);
    }
    let mut nodes = BTreeMap::new();
    if let Some(lock_at) = lock_at {
        let of_labels = by_slot.keys().filter_map(|slot| shared.nodes.owner(*slot));
        nodes.extend(of_labels.chain([lock_at]).map(|node| (node.number, node)));
    }
    let labels = by_slot.into_iter().map(|(slot, begins)| {
        let ask = move |at: &NodeSteps| at.runner.labels_of(begins.clone());
        shared.send(Route::once(slot), ask)
    });
    let labels = join_all(labels.collect::<Vec<_>>());
    let lists = nodes
        .values()
        .map(|node| node.redis.steps.runner.connections());
    let (labels, lists) = join(labels, join_all(lists.collect::<Vec<_>>())).await;
    let clients = ClientAnswers {
        // A label that cannot be read fails nothing: its client is shown without a name.
        labels: labels.into_iter().flatten().flatten().collect(),
        lists,
        lists_all: true,
    };
    clients.tell(&shared.label, found);
}
