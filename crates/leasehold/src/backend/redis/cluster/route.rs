//! Sends a step to the node that has the slot, and follows where nodes send it on.

use std::{sync::Arc, time::Duration};

use super::{
    ClusterCore,
    nodes::Node,
    redirect::{NoAddress, NoOwner, Redirect, SlotOpen},
};
use crate::{
    backend::{
        Failure, Reply,
        redis::{
            node::NodeSteps,
            router::{AskRule, NodeAnswer, Route},
        },
    },
    backoff::Backoff,
    clock::Instant,
};

/// So often one step is sent on.
const REDIRECTS: u32 = 5;

/// An answer that took longer may be from before a failover of which this client has not heard: there is reason to ask.
pub(super) const LATE: Duration = Duration::from_millis(300);

/// Before a step is sent again that the cluster cannot carry out now.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(200));

impl ClusterCore {
    /// Sends a step along its way. All outcomes say what the server may hold.
    pub(super) fn send<T: Send + 'static>(
        self: &Arc<Self>,
        way: Route,
        step: impl Fn(&NodeSteps) -> Reply<T> + Send + Sync + 'static,
    ) -> Reply<T> {
        let answer = self.send_openly(way, step);
        Box::pin(async move { Ok(answer.await?.value) })
    }

    pub(super) fn send_openly<T: Send + 'static>(
        self: &Arc<Self>,
        way: Route,
        step: impl Fn(&NodeSteps) -> Reply<T> + Send + Sync + 'static,
    ) -> Reply<NodeAnswer<T>> {
        // Before the request is sent: the lock that it may bring is seen by the next scan (bug 253).
        self.scan.begin();
        // No wait where the owner is known: a step is on its way before this returns.
        let node = self.nodes.owner(way.slot);
        // Sent by its first poll, as by any backend.
        let first = node.map(|node| (step(&node.redis.steps), node));
        let shared = Arc::clone(self);
        Box::pin(async move {
            let began = Instant::now();
            let failed = match first {
                Some((answer, node)) => match answer.await {
                    Ok(value) => {
                        // The node may owe an answer about its table still: by this one it is within reach again.
                        node.note_answer();
                        if !way.waits_for_copies && began.elapsed() >= LATE {
                            shared.table.ask();
                        }
                        return Ok(NodeAnswer {
                            value,
                            by: node.number.into(),
                            partly: None,
                        });
                    }
                    Err(failure) => Some((failure, node)),
                },
                None => None,
            };
            // Seldom, so it takes no room in every request.
            let going = GoingOn {
                shared,
                way,
                step,
                began,
            };
            Box::pin(going.on(failed)).await
        })
    }

    /// The node that has the slot. Waits for the first table.
    pub(super) async fn owner(&self, slot: u16) -> Result<Arc<Node>, Failure> {
        if let Some(node) = self.nodes.owner(slot) {
            return Ok(node);
        }
        let asked = self
            .background
            .within(self.timeout, self.table.asked())
            .await;
        // Looked for again also if the question failed: a MOVED in answer to another step may have named it meanwhile.
        if let Some(node) = self.nodes.owner(slot) {
            return Ok(node);
        }
        Err(match asked {
            Some(Err(failure)) => failure,
            Some(Ok(())) if self.nodes.is_unnamed(slot) => {
                Failure::NotNow(Arc::new(NoAddress { slot }))
            }
            Some(Ok(())) => Failure::NotNow(Arc::new(NotServed { slot })),
            // The step itself has not left this client, so the caller may say that nothing was changed.
            None => Failure::NotSent(Arc::new(NoTable)),
        })
    }
}

/// A step that was not carried out at once.
struct GoingOn<S> {
    shared: Arc<ClusterCore>,
    way: Route,
    step: S,
    began: Instant,
}

impl<S> GoingOn<S> {
    async fn on<T: Send + 'static>(
        self,
        mut failed: Option<(Failure, Arc<Node>)>,
    ) -> Result<NodeAnswer<T>, Failure>
    where
        S: Fn(&NodeSteps) -> Reply<T> + Send + Sync + 'static,
    {
        let (mut sent_on, mut backoff) = (0, AGAIN);
        loop {
            if let Some((failure, node)) = failed.take() {
                let why = match self.follow(failure, &node).await? {
                    FollowUp::NodeAnswer(answer) => return Ok(answer),
                    // At once, without a pause: the node has named the owner.
                    FollowUp::Again(_) if sent_on < REDIRECTS => {
                        sent_on += 1;
                        None
                    }
                    FollowUp::Again(failure) => Some(self.no_owner(&failure)),
                    FollowUp::NotNow(failure) => Some(failure),
                };
                if let Some(failure) = why {
                    let pause = backoff.next();
                    // Without patience the first refusal is the answer: the engine repeats such a step, after pauses of its own.
                    let patience = if self.way.is_patient {
                        self.shared.timeout
                    } else {
                        Duration::ZERO
                    };
                    if self.began.elapsed() + pause >= patience {
                        return Err(failure);
                    }
                    // A new table ends the pause.
                    let asked = self.shared.table.asked();
                    let _ = self.shared.background.within(pause, asked).await;
                    // The next round may begin at another node, so its redirects count anew.
                    sent_on = 0;
                }
            }
            let node = match self.shared.owner(self.way.slot).await {
                Ok(node) => node,
                Err(failure) => return Err(failure),
            };
            // Not measured as the first answer is: a redirect or a pause before this has had the table asked for.
            match (self.step)(&node.redis.steps).await {
                Ok(value) => {
                    return Ok(NodeAnswer {
                        value,
                        by: node.number.into(),
                        partly: None,
                    });
                }
                Err(failure) => failed = Some((failure, node)),
            }
        }
    }

    /// Decides how to go on after a failure of a node.
    async fn follow<T: Send + 'static>(
        &self,
        failure: Failure,
        node: &Node,
    ) -> Result<FollowUp<T>, Failure>
    where
        S: Fn(&NodeSteps) -> Reply<T> + Send + Sync + 'static,
    {
        let Route { slot, ask, .. } = self.way;
        let open = || Failure::NotNow(Arc::new(SlotOpen { slot }));
        let nowhere = || Failure::NotNow(Arc::new(NoAddress { slot }));
        match Redirect::of(&failure, &node.address) {
            Some(Redirect::Moved(address)) => {
                // MOVED says that nothing was carried out, so the same request may go to the owner.
                self.shared.moved(slot, address);
                Ok(FollowUp::Again(failure))
            }
            Some(Redirect::Ask(address)) if ask == AskRule::MayFollow => {
                let node = self.shared.nodes.named(address);
                // ASKING and the step go in one write: a node forgets ASKING after the next command, which may be another task's.
                match (self.step)(&node.redis.steps.asking()).await {
                    Ok(value) => Ok(FollowUp::NodeAnswer(NodeAnswer {
                        value,
                        by: node.number.into(),
                        partly: Some(open()),
                    })),
                    // The new node refuses it, too, while some of its keys are still to come.
                    Err(failure) if Redirect::of(&failure, &node.address).is_some() => {
                        Ok(FollowUp::NotNow(open()))
                    }
                    Err(failure) => Err(failure),
                }
            }
            Some(Redirect::Ask(_) | Redirect::Open) => Ok(FollowUp::NotNow(open())),
            Some(Redirect::Nowhere) => {
                self.shared.table.ask();
                Ok(FollowUp::NotNow(nowhere()))
            }
            Some(Redirect::Down) => {
                self.shared.table.ask();
                // A node that has lost its id is asked where it was, and knows of no slot: the table says more than its answer.
                let is_unnamed = self.shared.nodes.is_unnamed(slot);
                Ok(FollowUp::NotNow(if is_unnamed {
                    nowhere()
                } else {
                    failure
                }))
            }
            Some(Redirect::Torn) => Err(Failure::Ambiguous(Arc::new(SlotOpen { slot }))),
            None => match failure {
                // There is no connection. Another node may have the slot by now.
                Failure::NotSent(_) => {
                    self.shared.table.ask();
                    Ok(match self.shared.nodes.owner(slot) {
                        Some(owner) if owner.number != node.number => FollowUp::Again(failure),
                        _ => FollowUp::NotNow(failure),
                    })
                }
                // Not sent again from here: the caller knows what a copy would do to its lease id (B4).
                Failure::Ambiguous(_) => {
                    self.shared.table.ask();
                    Err(failure)
                }
                Failure::NotNow(_) | Failure::Rejected(_) => Err(failure),
            },
        }
    }

    fn no_owner(&self, failure: &Failure) -> Failure {
        let (slot, cause) = (self.way.slot, Arc::clone(failure.cause()));
        Failure::NotNow(Arc::new(NoOwner { slot, cause }))
    }
}

/// How a step goes on after a failure.
enum FollowUp<T> {
    NodeAnswer(NodeAnswer<T>),
    /// The same to the node that has the slot by now.
    Again(Failure),
    NotNow(Failure),
}

#[derive(Debug, thiserror::Error)]
#[error(
    "no node of the cluster serves slot {slot}, in which the name is; see to it with redis-cli --cluster fix host:port"
)]
struct NotServed {
    slot: u16,
}

#[derive(Debug, thiserror::Error)]
#[error("no node of the cluster has said yet which slots it has")]
struct NoTable;
