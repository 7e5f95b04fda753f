//! Who has which slot: asked when an answer says that it has changed, or a connection has ended, once more a moment later; while locks are
//! held in each interval (`scan.rs`); and at no other time.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{
    ClusterCore,
    nodes::{Node, TableChange},
    slots::{SlotRange, ranges},
};
use crate::{
    backend::{Failure, ServerLink},
    background::sleep_until,
};

/// The table is asked for no more often than this.
const EVERY: Duration = Duration::from_millis(200);

/// The nodes are asked one after the other: the next in this time, or when a question has failed.
const NEXT_AFTER: Duration = Duration::from_millis(300);

/// As long as a node is out of reach, the others are asked again: at first as often as may be, after so many times seldom.
const OFTEN: u32 = 100;
const SELDOM: Duration = Duration::from_secs(2);

/// A node may answer that has not heard of a change yet. After so long all have: then it is asked for once more.
const ALL_KNOW: Duration = Duration::from_secs(1);

/// The questions that were asked.
#[derive(Clone, Debug, Default)]
struct TableRounds {
    /// How many have begun, and the number of the last that has ended.
    begun: u64,
    ended: u64,
    /// Why the last had no answer.
    failed: Option<Failure>,
}

/// Asks for the table, one question at a time.
#[derive(Default)]
pub(super) struct SlotTable {
    wanted: Arc<Notify>,
    rounds: watch::Sender<TableRounds>,
    /// The number of the node that has answered last.
    answered: AtomicU32,
}

impl SlotTable {
    /// It may have changed. Waits for nothing.
    pub(super) fn ask(&self) {
        self.wanted.notify_one();
    }

    /// Has it asked for, and completes with the answer.
    pub(super) async fn asked(&self) -> Result<(), Failure> {
        let mut rounds = self.rounds.subscribe();
        // An answer to a question that is under way may be from before what its caller has met.
        let begun = rounds.borrow_and_update().begun;
        // After the count is read: an answer that comes at once would else be waited for twice.
        self.ask();
        // The sender is here, so this does not fail.
        match rounds.wait_for(|rounds| rounds.ended > begun).await {
            Ok(rounds) => rounds.failed.clone().map_or(Ok(()), Err),
            Err(_) => Ok(()),
        }
    }
}

/// Ends with the client.
pub(super) fn watch(shared: &Arc<ClusterCore>) {
    let (wanted, scan) = (Arc::clone(&shared.table.wanted), Arc::clone(&shared.scan));
    let weak = Arc::downgrade(shared);
    drop(shared.background.handle().spawn(async move {
        let is_busy = || weak.upgrade().is_some_and(|shared| shared.sink.is_busy());
        let mut asked = Instant::now();
        loop {
            let is_reason = tokio::select! {
                biased;
                () = wanted.notified() => true,
                () = scan.due(asked, is_busy) => false,
            };
            asked = Instant::now();
            if ask_while_needed(&weak, is_reason).await.is_none() {
                return;
            }
        }
    }));
}

/// Asks once, again as long as a node is out of reach, and then once more if there was reason to, or something has changed. `None`: the client
/// has ended.
async fn ask_while_needed(weak: &Weak<ClusterCore>, is_reason: bool) -> Option<()> {
    // The first table tells of no change.
    let (mut times, mut once_more) = (0, is_reason && weak.upgrade()?.nodes.has_table());
    loop {
        // From the question on, not from its answer: a slow node does not make the pauses longer.
        let next = Instant::now() + if times < OFTEN { EVERY } else { SELDOM };
        once_more |= ask_once(&weak.upgrade()?).await;
        times += 1;
        let wanted = Arc::clone(&weak.upgrade()?.table.wanted);
        let is_wanted = tokio::select! {
            biased;
            () = sleep_until(next) => false,
            // Not before its time.
            () = wanted.notified() => {
                let soon = next.min(Instant::now() + EVERY);
                sleep_until(soon).await;
                true
            }
        };
        // Taken up anew after each pause: this task must not keep alive a client whose last handle is gone.
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
            biased;
            () = sleep_until(Instant::now() + ALL_KNOW) => {}
            () = wanted.notified() => once_more = true,
        }
    }
}

/// Whether something has changed.
async fn ask_once(shared: &Arc<ClusterCore>) -> bool {
    shared.table.rounds.send_modify(|rounds| rounds.begun += 1);
    let (has_changed, failed) = match ask_nodes(shared).await {
        Ok(change) => {
            shared.outage.is_over();
            // Before those that wait in `asked` go on: they may send to a new owner, whose holds must be known as doubtful by then.
            shared.tell(change);
            (change.any, None)
        }
        Err(failure) => {
            // A refusal is no outage: each step that meets it says so to its caller.
            if !failure.is_final() {
                shared.outage.goes_on(failure.cause());
            }
            (false, Some(failure))
        }
    };
    shared.listeners.settle(shared);
    shared.table.rounds.send_modify(|rounds| {
        rounds.ended = rounds.begun;
        rounds.failed = failed;
    });
    has_changed
}

/// The first answer counts. Another node begins each time, lest one that has not heard of a change is asked for ever; one that is out of reach or
/// silent comes last, and before it one to which there is no connection yet.
async fn ask_nodes(shared: &Arc<ClusterCore>) -> Result<TableChange, Failure> {
    let mut nodes = shared.nodes.primaries();
    fastrand::shuffle(&mut nodes);
    let order = |node: &Arc<Node>| {
        let was_last = shared.table.answered.load(Ordering::Relaxed) == node.number;
        let is_new = !node.redis.has_reached();
        (
            node.redis.is_in_trouble(),
            node.is_silent(),
            was_last,
            is_new,
        )
    };
    // A stable sort, so nodes that are alike stay shuffled.
    nodes.sort_by_cached_key(order);
    // Trouble sorts last, so all primaries that are known are in trouble: the seeds may still lead to others.
    if nodes.first().is_none_or(|node| node.redis.is_in_trouble()) {
        nodes.extend(shared.nodes.seeds());
        nodes.sort_by_key(|node| node.number);
        nodes.dedup_by_key(|node| node.number);
        nodes.sort_by_cached_key(order);
    }
    let mut nodes = nodes.into_iter();
    let (mut asks, mut failed) = (FuturesUnordered::new(), None::<Failure>);
    loop {
        match nodes.next() {
            Some(node) => asks.push(async move { (slots_of(&node).await, node) }),
            None if asks.is_empty() => {
                return Err(failed.unwrap_or_else(|| Failure::NotSent(Arc::new(NoNode))));
            }
            None => {}
        }
        let next = sleep_until(Instant::now() + NEXT_AFTER);
        tokio::select! {
            biased;
            Some((answer, node)) = asks.next() => match answer {
                Ok(ranges) => {
                    // Questions to slower nodes are dropped here, and stay noted: such a node counts as silent until its next answer.
                    shared.table.answered.store(node.number, Ordering::Relaxed);
                    return Ok(shared.nodes.told(ranges));
                }
                // A failure that may pass wins: the node is most likely coming up, or going.
                Err(failure) if failed.as_ref().is_none_or(Failure::is_final) => failed = Some(failure),
                Err(_) => {}
            },
            () = next => {}
        }
    }
}

async fn slots_of(node: &Node) -> Result<Vec<SlotRange>, Failure> {
    node.is_asked(true);
    let ranges = ask_for_slots(node).await;
    node.is_asked(false);
    ranges
}

async fn ask_for_slots(node: &Node) -> Result<Vec<SlotRange>, Failure> {
    // Before a table is believed, since scripts and subscriptions are sent from then on.
    node.redis.steps.runner.choose().await?;
    let mut command = redis::cmd("CLUSTER");
    let reply = node
        .redis
        .steps
        .runner
        .command(command.arg("SLOTS"))
        .await?;
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
