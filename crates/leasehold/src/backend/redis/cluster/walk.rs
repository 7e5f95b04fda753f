//! All nodes, one after the other: finding locks, and looking at several.

use std::sync::Arc;

use super::ClusterCore;
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
    // In the order of their addresses, since the cursor names a node by its place. A failover between two pages may shift that.
    let primaries = shared.nodes.primaries();
    let at = step.cursor.server;
    let Some(node) = primaries.get(usize::from(at)) else {
        return Ok(FoundPage::default());
    };
    let here = Cursor {
        // Never more: each has a slot at least, of 16,384.
        others: u16::try_from(primaries.len() - 1).unwrap_or(u16::MAX),
        ..step.cursor
    };
    let mut answer = find::find(&node.redis.steps.runner, &step).await;
    // Its connection may have ended while the client was idle: the next one tells whether the node is there.
    if answer.as_ref().is_err_and(|failure| !failure.is_final()) {
        answer = find::find(&node.redis.steps.runner, &step).await;
    }
    let mut page = match answer {
        Ok(page) => page,
        Err(failure) if here.others == 0 => return Err(failure),
        // The others may answer: their locks are not to be hidden by this one.
        Err(failure) => {
            let (address, slots) = (shown(&node.address), shared.nodes.slots_of(node));
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

/// A node has not answered.
#[derive(Debug, thiserror::Error)]
#[error("{address}, and so the locks in its {slots} of 16384 slots, are left out: {cause}")]
struct PartMissing {
    address: String,
    slots: usize,
    cause: Cause,
}
