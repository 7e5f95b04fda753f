//! All nodes, one after the other: finding locks, and looking at several.

use std::sync::Arc;

use super::ClusterCore;
use crate::backend::{
    Failure,
    find::{FindPage, FoundPage},
    redis::find,
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
    let mut page = find::find(&node.redis.steps.runner, &step).await?;
    // Never more: each has a slot at least, of 16,384.
    page.cursor.others = u16::try_from(primaries.len() - 1).unwrap_or(u16::MAX);
    page.cursor.server = match (page.cursor.keys, at == page.cursor.others) {
        (0, true) => 0,
        (0, false) => at + 1,
        _ => at,
    };
    Ok(page)
}
