//! Where wake-ups are heard: each at the node that has the slot of its name, since a release counts the listeners there, and no others.
//!
//! On sharded channels a node ends a subscription, or refuses it, once another has the slot. On classic ones it says nothing, and goes on.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use redis::RedisError;
use tokio::time::Instant as TokioInstant;

use super::{ClusterCore, nodes::Node, redirect::Redirect, slots::slot};
use crate::{
    backend::{
        Failure, Reply, Restarted, Sink, WakeUp, WakeUpSteps,
        listening::{ListenedName, Listening, Place},
        redis::{
            failure::said,
            sharding,
            subscriptions::{Elsewhere, EndedAtOnce},
        },
    },
    background::sleep_until,
    clock::Instant,
    name::LockId,
};

/// After a node has refused a listener, or could not be reached.
const PAUSE: Duration = Duration::from_millis(100);

/// After a node has said that another has the slot.
const PAUSE_SENT_ON: Duration = Duration::from_millis(10);

#[derive(Default)]
pub(super) struct ClusterListeners {
    names: Listening<Arc<Node>>,
}

impl Place for Arc<Node> {
    type Number = u32;

    fn number(&self) -> u32 {
        self.number
    }
}

impl ListenedName<Arc<Node>> {
    /// Moves if the slot has another owner.
    fn settle(&mut self, shared: &Arc<ClusterCore>, id: &LockId) {
        let Some(owner) = shared.nodes.owner(slot(id.name.wire())) else {
            return;
        };
        if !self.is_nowhere() && !self.is_followed && !self.is_at(owner.number) {
            self.is_followed = true;
            move_on(shared, id, self.number);
        }
    }
}

/// The sink for all that is heard at one node.
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
            || shared.listeners.names.hears(id, self.number);
        if counts {
            shared.sink.wake(id, wake_up);
        }
    }

    /// Of all nodes: what is held at the others is found as it was.
    fn restarted(&self, change: Restarted) {
        if let Some(shared) = self.shared.upgrade() {
            shared.sink.restarted(change);
        }
    }

    fn cut_off(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.table.ask();
            shared.sink.cut_off();
        }
    }
}

impl Elsewhere for NodeSink {
    fn unheard(&self, id: &LockId, refusal: Option<&RedisError>) {
        if let Some(shared) = self.shared.upgrade() {
            shared.listeners.unheard(&shared, id, self.number, refusal);
        }
    }
}

impl fmt::Debug for NodeSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} of a cluster", self.number)
    }
}

impl ClusterListeners {
    pub(super) fn listen(&self, shared: &Arc<ClusterCore>, id: LockId) -> Reply<()> {
        let node = shared.nodes.owner(slot(id.name.wire()));
        let (number, left) = self.names.begin(&id, node.clone());
        if let Some(left) = left {
            // Not waited for: it is asked for at once, and a node that is replaced may never answer.
            drop(left.redis.unlisten(&id));
        }
        let answer = node.map(|node| (node.redis.listen(id.clone()), node));
        let shared = Arc::clone(shared);
        Box::pin(async move {
            let heard = match answer {
                Some((answer, node)) => match answer.await {
                    // The slot moved under way: the waiter's caller is spared a failure that it could do nothing about.
                    Err(failure) if shared.is_elsewhere(&id, &failure, &node) => {
                        shared.listeners.at_owner(&shared, &id, number).await
                    }
                    heard => heard,
                },
                None => shared.listeners.at_owner(&shared, &id, number).await,
            };
            if heard.is_err() {
                shared.table.ask();
                if let Some(node) = shared.listeners.names.end_of(&id, number) {
                    // It may have been carried out, and no other would end it later.
                    drop(node.redis.unlisten(&id));
                }
            } else if let Some(listener) = shared.listeners.names.lock().get_mut(&id) {
                // The slot may have moved meanwhile.
                listener.settle(&shared, &id);
            }
            heard
        })
    }

    /// Listens at the owner of the slot, once it is known, and at the one that it names instead, within the time of a step.
    async fn at_owner(
        &self,
        shared: &Arc<ClusterCore>,
        id: &LockId,
        number: u64,
    ) -> Result<(), Failure> {
        let began = Instant::now();
        loop {
            let node = shared.owner(slot(id.name.wire())).await?;
            let (answer, left) = {
                let mut names = self.names.lock();
                let Some(listener) = names.get_mut(id).filter(|it| it.number == number) else {
                    // Another call listens by now, or no waiter is left: this one has nothing to tell, and nothing to take back.
                    return Ok(());
                };
                let left = listener.moves_to(Arc::clone(&node));
                // Under the lock: an end that the node tells at once (`unheard`) must find it written down here.
                (node.redis.listen(id.clone()), left)
            };
            if let Some(left) = left {
                drop(left.redis.unlisten(id));
            }
            let Err(failure) = answer.await else {
                return Ok(());
            };
            let is_elsewhere = shared.is_elsewhere(id, &failure, &node);
            if !is_elsewhere || began.elapsed() >= shared.timeout {
                return Err(failure);
            }
            // A new table ends the pause.
            let _ = shared.background.within(PAUSE, shared.table.asked()).await;
        }
    }

    pub(super) fn unlisten(&self, id: &LockId) -> Reply<()> {
        match self.names.end(id) {
            Some(node) => node.redis.unlisten(id),
            None => Box::pin(std::future::ready(Ok(()))),
        }
    }

    /// A node does not let this client listen any more. Its waiter is to be heard at the owner of the slot, and woken there.
    fn unheard(
        &self,
        shared: &Arc<ClusterCore>,
        id: &LockId,
        node: u32,
        refusal: Option<&RedisError>,
    ) {
        let (left, number) = {
            let mut names = self.names.lock();
            let Some(listener) = names.get_mut(id) else {
                return;
            };
            let Some(left) = listener.ended_at(node) else {
                return;
            };
            let is_followed = std::mem::replace(&mut listener.is_followed, true);
            (left, (!is_followed).then_some(listener.number))
        };
        shared.table.ask();
        // A MOVED among the refusals names the owner, so the task that follows need not wait for the table.
        if let Some(refusal) = refusal {
            shared.is_sent_on(id, refusal, &left);
        }
        if let Some(number) = number {
            move_on(shared, id, number);
        }
    }

    /// Moves those whose slot has another owner.
    pub(super) fn settle(&self, shared: &Arc<ClusterCore>) {
        for (id, listener) in self.names.lock().iter_mut() {
            listener.settle(shared, id);
        }
    }

    /// Listens at the owner of the slot, and then no more at the one before. Returns the pause before it is looked at again; `None`: it is done.
    async fn follow(
        &self,
        shared: &Arc<ClusterCore>,
        id: &LockId,
        number: u64,
    ) -> Option<Duration> {
        let owner = shared.nodes.owner(slot(id.name.wire()));
        let (answer, owner) = {
            let mut names = self.names.lock();
            let listener = names.get_mut(id).filter(|it| it.number == number)?;
            match owner {
                Some(owner) if !listener.is_at(owner.number) => {
                    listener.asks_at(Arc::clone(&owner));
                    (owner.redis.listen(id.clone()), owner)
                }
                None if listener.is_nowhere() => {
                    shared.table.ask();
                    return Some(PAUSE);
                }
                // Heard at the owner, or at the old node while no node has the slot: a change of the table begins a new task.
                _ => {
                    listener.is_followed = false;
                    return None;
                }
            }
        };
        let failed = answer.await.err();
        let left = {
            let mut names = self.names.lock();
            match names.get_mut(id) {
                Some(listener) if listener.number == number => {
                    let is_there = listener.is_asked_at(owner.number);
                    // The caller's own request may have led there meanwhile, and is not to be taken back.
                    let is_at_owner = listener.is_at(owner.number);
                    listener.asks_no_more();
                    if let Some(failure) = failed {
                        // Without an answer it may come about all the same.
                        if said(failure.cause()).is_none() && !is_at_owner {
                            drop(owner.redis.unlisten(id));
                        }
                        drop(names);
                        shared.table.ask();
                        // The table learns which owner it names.
                        shared.is_elsewhere(id, &failure, &owner);
                        let now = shared.nodes.owner(slot(id.name.wire()));
                        let is_sent_on = now.is_some_and(|now| now.number != owner.number);
                        return Some(if is_sent_on { PAUSE_SENT_ON } else { PAUSE });
                    }
                    // The node may have ended it at once, or the name has moved on.
                    if !is_there {
                        if !is_at_owner {
                            drop(owner.redis.unlisten(id));
                        }
                        return Some(PAUSE_SENT_ON);
                    }
                    listener.moves_to(owner)
                }
                Some(listener)
                    if listener.is_at(owner.number) || listener.is_asked_at(owner.number) =>
                {
                    return None;
                }
                // No waiter is left, or one listens elsewhere.
                _ => {
                    drop(owner.redis.unlisten(id));
                    return None;
                }
            }
        };
        if let Some(left) = left {
            drop(left.redis.unlisten(id));
        }
        // A message sent meanwhile may not have been heard, or not counted.
        shared.sink.wake(id, WakeUp::TryAgain);
        // A slot may have moved on meanwhile: looked at again.
        Some(PAUSE)
    }
}

impl ClusterCore {
    /// Whether a node was not to be listened to since another has the slot, or none now. The table learns of it.
    fn is_elsewhere(self: &Arc<Self>, id: &LockId, failure: &Failure, node: &Node) -> bool {
        let cause = failure.cause();
        let is_sent_on = |refusal: &RedisError| self.is_sent_on(id, refusal, node);
        cause.is::<EndedAtOnce>() || said(cause).is_some_and(is_sent_on)
    }

    fn is_sent_on(self: &Arc<Self>, id: &LockId, refusal: &RedisError, node: &Node) -> bool {
        if let Some(Redirect::Moved(address)) = Redirect::read(refusal, &node.address) {
            self.moved(slot(id.name.wire()), address);
        }
        sharding::is_elsewhere(refusal)
    }
}

/// Starts the task that follows a slot.
fn move_on(shared: &Arc<ClusterCore>, id: &LockId, number: u64) {
    let (weak, id) = (Arc::downgrade(shared), id.clone());
    drop(shared.background.handle().spawn(async move {
        while let Some(shared) = weak.upgrade() {
            let Some(pause) = shared.listeners.follow(&shared, &id, number).await else {
                return;
            };
            // Not held during the pause: a client that ends meanwhile is not kept by the task.
            drop(shared);
            sleep_until(TokioInstant::now() + pause).await;
        }
    }));
}
