//! Who has which slot: asked when an answer says that it has changed, or a connection has ended, once more a moment later, and at no other
//! time.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{
    ClusterCore,
    nodes::{MayHaveForgotten, Node},
    slots::ranges,
};
use crate::backend::Failure;

/// Asked no more often than that.
const EVERY: Duration = Duration::from_millis(200);

/// One node is asked after the other, in this time or when the one before has failed.
const NEXT_AFTER: Duration = Duration::from_millis(300);

/// As long as a node is out of reach, the others are asked again: at first as often as may be, after so many times seldom.
const OFTEN: u32 = 100;
const SELDOM: Duration = Duration::from_secs(2);

/// A node may answer that has not heard of a change yet. After so long all have: then it is asked for once more.
const ALL_KNOW: Duration = Duration::from_secs(1);

/// The questions that were asked.
#[derive(Clone, Debug, Default)]
struct TableRounds {
    count: u64,
    /// Why the last had no answer.
    failed: Option<Failure>,
}

/// Asks for the table, one question at a time.
#[derive(Default)]
pub(super) struct SlotTable {
    wanted: Arc<Notify>,
    rounds: watch::Sender<TableRounds>,
}

impl SlotTable {
    /// It may have changed. Waits for nothing.
    pub(super) fn ask(&self) {
        self.wanted.notify_one();
    }

    /// Has it asked for, and completes with the answer.
    pub(super) async fn asked(&self) -> Result<(), Failure> {
        let mut rounds = self.rounds.subscribe();
        let now = rounds.borrow_and_update().count;
        self.ask();
        // The sender is here, so this does not fail.
        match rounds.wait_for(|rounds| rounds.count != now).await {
            Ok(rounds) => rounds.failed.clone().map_or(Ok(()), Err),
            Err(_) => Ok(()),
        }
    }
}

/// Ends with the client.
pub(super) fn watch(shared: &Arc<ClusterCore>) {
    let (wanted, weak) = (Arc::clone(&shared.table.wanted), Arc::downgrade(shared));
    drop(shared.home.handle().spawn(async move {
        loop {
            wanted.notified().await;
            if ask_while_needed(&weak).await.is_none() {
                return;
            }
        }
    }));
}

/// Asks once, again as long as a node is out of reach, and then once more. `None`: the client has ended.
async fn ask_while_needed(weak: &Weak<ClusterCore>) -> Option<()> {
    // The first table tells of no change.
    let (mut times, mut once_more) = (0, weak.upgrade()?.nodes.has_table());
    loop {
        let next = Instant::now() + if times < OFTEN { EVERY } else { SELDOM };
        ask_once(&weak.upgrade()?).await;
        times += 1;
        let wanted = Arc::clone(&weak.upgrade()?.table.wanted);
        let is_wanted = tokio::select! {
            () = tokio::time::sleep_until(next) => false,
            // Not before its time.
            () = wanted.notified() => {
                let soon = next.min(Instant::now() + EVERY);
                tokio::time::sleep_until(soon).await;
                true
            }
        };
        let shared = weak.upgrade()?;
        let is_in_trouble = |node: &Arc<Node>| node.redis.is_in_trouble();
        if is_wanted || shared.nodes.primaries().iter().any(is_in_trouble) {
            once_more = true;
            continue;
        }
        drop(shared);
        if !std::mem::take(&mut once_more) {
            return Some(());
        }
        tokio::select! {
            () = tokio::time::sleep(ALL_KNOW) => {}
            () = wanted.notified() => once_more = true,
        }
    }
}

async fn ask_once(shared: &Arc<ClusterCore>) {
    let failed = match ask_nodes(shared).await {
        Ok(changed) => {
            shared.outage.is_over();
            shared.tell(changed);
            None
        }
        Err(failure) => {
            if !failure.is_final() {
                shared.outage.goes_on(failure.cause());
            }
            Some(failure)
        }
    };
    shared.ears.settle(shared);
    shared.table.rounds.send_modify(|rounds| {
        rounds.count += 1;
        rounds.failed = failed;
    });
}

/// The first answer counts.
async fn ask_nodes(shared: &Arc<ClusterCore>) -> Result<MayHaveForgotten, Failure> {
    let mut nodes = shared.nodes.primaries();
    fastrand::shuffle(&mut nodes);
    nodes.sort_by_key(|node| node.redis.is_in_trouble());
    if nodes.first().is_none_or(|node| node.redis.is_in_trouble()) {
        nodes.extend(shared.nodes.seeds());
        nodes.sort_by_key(|node| node.number);
        nodes.dedup_by_key(|node| node.number);
        nodes.sort_by_key(|node| node.redis.is_in_trouble());
    }
    let mut nodes = nodes.into_iter();
    let (mut asks, mut failed) = (FuturesUnordered::new(), None::<Failure>);
    loop {
        match nodes.next() {
            Some(node) => asks.push(slots_of(node)),
            None if asks.is_empty() => {
                return Err(failed.unwrap_or_else(|| Failure::NotSent(Arc::new(NoNode))));
            }
            None => {}
        }
        let next = tokio::time::sleep(NEXT_AFTER);
        tokio::select! {
            biased;
            Some(answer) = asks.next() => match answer {
                Ok(ranges) => return Ok(shared.nodes.told(ranges)),
                // One that may pass wins: the node is most likely coming up, or going.
                Err(failure) if failed.as_ref().is_none_or(Failure::is_final) => failed = Some(failure),
                Err(_) => {}
            },
            () = next => {}
        }
    }
}

async fn slots_of(node: Arc<Node>) -> Result<Vec<super::slots::SlotRange>, Failure> {
    // Before a table is believed, since scripts and subscriptions are sent from then on.
    node.redis.choose().await?;
    let mut command = redis::cmd("CLUSTER");
    let reply = node.redis.caller.command(command.arg("SLOTS")).await?;
    match ranges(&reply, &node.address) {
        Some(ranges) if !ranges.is_empty() => Ok(ranges),
        _ => Err(Failure::NotNow(Arc::new(NoSlots))),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("no node of the cluster is known; give some of its nodes")]
struct NoNode;

#[derive(Debug, thiserror::Error)]
#[error(
    "the node knows of no slots yet; see to the cluster, such as with redis-cli --cluster check host:port"
)]
struct NoSlots;
