//! Where wake-ups are heard: each at the node that has the slot of its name, since a release counts the listeners there, and no others.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use super::{ClusterCore, nodes::Node, slots::slot};
use crate::{
    backend::{EpochChange, Failure, Reply, Sink, WakeUp, WakeUpSteps},
    name::LockId,
};

/// After a node has refused a listener, or could not be reached.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(super) struct ClusterEars {
    heard_at: Mutex<HashMap<LockId, HeardAt>>,
    numbers: AtomicU64,
}

struct HeardAt {
    /// `None`: it is not known yet which node has the slot.
    node: Option<Arc<Node>>,
    /// Tells a listener from the one before.
    number: u64,
    is_moving: bool,
}

/// The sink of one node.
pub(super) struct NodeSink {
    pub(super) shared: Weak<ClusterCore>,
    pub(super) number: u32,
}

impl Sink for NodeSink {
    fn wake(&self, id: &LockId, wake_up: WakeUp) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        // A message is heard at each node that is listened to. A grant counts once: the other copy could be taken for one that comes late.
        let counts = !matches!(wake_up, WakeUp::Granted(_) | WakeUp::Deaf)
            || shared.ears.hears(id, self.number);
        if counts {
            shared.sink.wake(id, wake_up);
        }
    }

    /// Of all nodes: what is held at the others is found as it was.
    fn epoch(&self, change: EpochChange) {
        if let Some(shared) = self.shared.upgrade() {
            shared.sink.epoch(change);
        }
    }

    fn cut_off(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.table.ask();
            shared.sink.cut_off();
        }
    }
}

impl fmt::Debug for NodeSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} of a cluster", self.number)
    }
}

impl ClusterEars {
    fn hears(&self, id: &LockId, number: u32) -> bool {
        let heard_at = self.heard_at.lock();
        let node = heard_at.get(id).and_then(|ear| ear.node.as_ref());
        node.is_some_and(|node| node.number == number)
    }

    pub(super) fn listen(&self, shared: &Arc<ClusterCore>, id: LockId) -> Reply<()> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let node = shared.nodes.owner(slot(id.name.wire()));
        let before = self.heard_at.lock().insert(
            id.clone(),
            HeardAt {
                node: node.clone(),
                number,
                is_moving: false,
            },
        );
        let before = before.and_then(|ear| ear.node);
        if let Some(before) = before
            && node
                .as_ref()
                .is_none_or(|node| node.number != before.number)
        {
            drop(before.redis.unlisten(&id));
        }
        let answer = node.map(|node| node.redis.listen(id.clone()));
        let shared = Arc::clone(shared);
        Box::pin(async move {
            let heard = match answer {
                Some(answer) => answer.await,
                None => shared.ears.first(&shared, &id, number).await,
            };
            if heard.is_err() {
                shared.table.ask();
                let gone = shared.ears.remove(&id, number);
                if let Some(node) = gone {
                    // It may have been carried out, and no other would end it later.
                    drop(node.redis.unlisten(&id));
                }
            } else {
                // The slot may have moved meanwhile.
                shared.ears.settle(&shared);
            }
            heard
        })
    }

    /// Listens once it is known where.
    async fn first(
        &self,
        shared: &Arc<ClusterCore>,
        id: &LockId,
        number: u64,
    ) -> Result<(), Failure> {
        let node = shared.owner(slot(id.name.wire())).await?;
        let answer = {
            let mut heard_at = self.heard_at.lock();
            let Some(ear) = heard_at.get_mut(id).filter(|ear| ear.number == number) else {
                return Ok(());
            };
            ear.node = Some(Arc::clone(&node));
            node.redis.listen(id.clone())
        };
        answer.await
    }

    fn remove(&self, id: &LockId, number: u64) -> Option<Arc<Node>> {
        let mut heard_at = self.heard_at.lock();
        if heard_at.get(id)?.number != number {
            return None;
        }
        heard_at.remove(id)?.node
    }

    pub(super) fn unlisten(&self, id: &LockId) -> Reply<()> {
        let ear = self.heard_at.lock().remove(id);
        match ear.and_then(|ear| ear.node) {
            Some(node) => node.redis.unlisten(id),
            None => Box::pin(std::future::ready(Ok(()))),
        }
    }

    /// Moves those whose slot has another owner.
    pub(super) fn settle(&self, shared: &Arc<ClusterCore>) {
        for (id, ear) in self.heard_at.lock().iter_mut() {
            let owner = shared.nodes.owner(slot(id.name.wire()));
            let (Some(owner), Some(node)) = (owner, &ear.node) else {
                continue;
            };
            if ear.is_moving || owner.number == node.number {
                continue;
            }
            ear.is_moving = true;
            let (weak, id, number) = (Arc::downgrade(shared), id.clone(), ear.number);
            drop(shared.home.handle().spawn(async move {
                while let Some(shared) = weak.upgrade() {
                    if shared.ears.follow(&shared, &id, number).await {
                        return;
                    }
                    drop(shared);
                    tokio::time::sleep(PAUSE).await;
                }
            }));
        }
    }

    /// Listens at the owner of the slot, and then no more at the one before. Whether it is done.
    async fn follow(&self, shared: &Arc<ClusterCore>, id: &LockId, number: u64) -> bool {
        let owner = shared.nodes.owner(slot(id.name.wire()));
        {
            let mut heard_at = self.heard_at.lock();
            let Some(ear) = heard_at.get_mut(id).filter(|ear| ear.number == number) else {
                return true;
            };
            let is_there = match (&owner, &ear.node) {
                (Some(owner), Some(node)) => owner.number == node.number,
                _ => true,
            };
            if is_there {
                ear.is_moving = false;
                return true;
            }
        }
        let Some(owner) = owner else { return true };
        if owner.redis.listen(id.clone()).await.is_err() {
            shared.table.ask();
            return false;
        }
        let before = {
            let mut heard_at = self.heard_at.lock();
            match heard_at.get_mut(id) {
                Some(ear) if ear.number == number => {
                    // A slot may have moved on meanwhile: looked at again.
                    ear.node.replace(owner)
                }
                Some(ear)
                    if ear
                        .node
                        .as_ref()
                        .is_some_and(|it| it.number == owner.number) =>
                {
                    return true;
                }
                // No waiter is left, or one listens elsewhere.
                _ => {
                    drop(owner.redis.unlisten(id));
                    return true;
                }
            }
        };
        if let Some(before) = before {
            drop(before.redis.unlisten(id));
        }
        // What was said meanwhile may not have been heard, or not counted.
        shared.sink.wake(id, WakeUp::TryAgain);
        false
    }
}
