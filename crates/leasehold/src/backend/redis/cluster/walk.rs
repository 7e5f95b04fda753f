//! All nodes, one after the other: finding locks, and looking at several.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use super::{ClusterCore, nodes::Node, redirect::Redirect};
use crate::{
    address::shown,
    backend::{
        Failure,
        find::{Cursor, FindPage, FoundPage},
        redis::find,
    },
    error::Cause,
};

/// Reads one page of the keys of one node; its cursor tells of which.
pub(super) async fn page(shared: Arc<ClusterCore>, step: FindPage) -> Result<FoundPage, Failure> {
    if !shared.nodes.has_table() {
        shared.table.asked().await?;
    }
    let Some((mut node, mut here)) = place(&shared, step.cursor) else {
        return Ok(FoundPage::default());
    };
    let ask = |node: &Node, cursor| {
        let step = FindPage {
            cursor,
            ..step.clone()
        };
        find::find(&node.redis.steps.runner, &step)
    };
    let mut answer = ask(&node, here).await;
    if let Err(failure) = &answer {
        let redirect = Redirect::of(failure, &node.address);
        if redirect.is_some() || matches!(failure, Failure::NotNow(_)) {
            // Another node may have its place. A graceful failover ends no connection, so a client that only finds hears of it by this alone.
            let asked = shared.table.asked();
            // Without an answer the nodes are where they were, as far as is known.
            let _ = shared.background.within(shared.timeout, asked).await;
        } else if !failure.is_final() {
            // Its connection may have ended while the client was idle: the next one tells whether the node is there.
            shared.table.ask();
        }
        if redirect.is_some() || !failure.is_final() {
            (node, here) = place(&shared, step.cursor).unwrap_or((node, here));
            answer = ask(&node, here).await;
        }
    }
    let mut page = match answer {
        Ok(page) => page,
        Err(failure) if here.others == 0 => return Err(failure),
        // The others may answer: their locks are not to be hidden by this one.
        Err(failure) => {
            let (address, slots) = (shown(&node.address), shared.nodes.slots_of(&node));
            let part = |cause| -> Cause {
                Arc::new(PartMissing {
                    address,
                    slots,
                    cause,
                })
            };
            return Ok(FoundPage {
                cursor: here.behind_server(),
                failed: Some(failure.reported_by(part)),
                ..FoundPage::default()
            });
        }
    };
    let keys = page.cursor.keys;
    page.cursor = match keys {
        0 => here.behind_server(),
        keys => Cursor { keys, ..here },
    };
    Ok(page)
}

/// The node that a cursor names by its place among the primaries, and the cursor there. Where they are others by now, that is the first: of
/// those that are left any may have been read, or not.
fn place(shared: &ClusterCore, cursor: Cursor) -> Option<(Arc<Node>, Cursor)> {
    let primaries = shared.nodes.primaries();
    let mut hasher = DefaultHasher::new();
    for node in &primaries {
        node.address.hash(&mut hasher);
    }
    let servers = hasher.finish();
    let from = if cursor.servers == servers {
        cursor
    } else {
        Cursor::default()
    };
    let node = primaries.get(usize::from(from.server))?;
    let here = Cursor {
        // Never more: each has a slot at least, of 16,384.
        others: u16::try_from(primaries.len() - 1).unwrap_or(u16::MAX),
        servers,
        ..from
    };
    Some((Arc::clone(node), here))
}

/// A node has not answered.
#[derive(Debug, thiserror::Error)]
#[error("{address}, and so the locks in its {slots} of 16384 slots, are left out: {cause}")]
struct PartMissing {
    address: String,
    slots: usize,
    cause: Cause,
}
