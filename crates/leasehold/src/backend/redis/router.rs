//! Which server a step goes to: the one difference between a server and a cluster. Above it all topologies take the same steps (`steps.rs`).

use std::{fmt, sync::Arc};

use super::{node::NodeSteps, repeats::Replaceable};
use crate::{
    backend::{
        Failure, Inspection, Reply, ServerLink, WakeUpSteps,
        find::{FindPage, FoundPage},
    },
    clock::Instant,
    error::Invalid,
    name::{LockId, Name},
};

/// Which answers of a node count that has not got the slot yet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AskRule {
    /// None: a step that takes or gives would see a part of the lock's keys, and take the others for none.
    Never,
    /// A step that only moves an end forward, or reads.
    MayFollow,
}

/// How a step is sent.
#[derive(Clone, Copy)]
pub(super) struct Route {
    pub(super) slot: u16,
    pub(super) ask: AskRule,
    /// It is tried again within the time of its caller where the topology says "not now". Steps that the engine repeats are not.
    pub(super) is_patient: bool,
    /// Its answer is held back until replicas, or disks, have it: a late one says nothing about the topology.
    pub(super) waits_for_copies: bool,
}

impl Route {
    /// For a step that takes or gives, and that the engine repeats.
    pub(super) fn once(slot: u16) -> Route {
        Route {
            slot,
            ask: AskRule::Never,
            is_patient: false,
            waits_for_copies: false,
        }
    }

    /// For a step that is tried again within the time of its caller.
    pub(super) fn patient(slot: u16, ask: AskRule) -> Route {
        Route {
            ask,
            is_patient: true,
            ..Route::once(slot)
        }
    }
}

/// An answer, and the number of the server that gave it.
pub(super) struct NodeAnswer<T> {
    pub(super) value: T,
    pub(super) by: u64,
    /// Set if the server is still getting the slot. A step that has not found its lock there fails with this: the lock may be at the old node.
    pub(super) partly: Option<Failure>,
}

/// Knows the servers of a topology.
pub(super) trait Router:
    ServerLink + WakeUpSteps + Clone + fmt::Debug + Send + Sync + 'static
{
    /// The servers of which one may take the place of another.
    type Servers: Replaceable;

    /// Names of one slot may be at two servers, while it moves. And each server knows by itself whether it counts this client among the
    /// listeners: the engine, which knows only that it listens, is not asked.
    const HAS_SEVERAL: bool = false;

    /// Names of the same slot are at the same server.
    fn slot(&self, _key: &str) -> u16 {
        0
    }

    /// Sends a step along its way. All outcomes say what the server may hold.
    fn send<T: Send + 'static>(
        &self,
        way: Route,
        step: impl Fn(&NodeSteps) -> Reply<T> + Send + Sync + 'static,
    ) -> Reply<NodeAnswer<T>>;

    /// `None` where nothing is given back to a successor.
    fn replaceable(&self) -> Option<&Arc<Self::Servers>>;

    /// A grant that was asked for then may come from a server that had been replaced. Completes when it is known which server is there;
    /// `None`: the answer came soon enough.
    fn looked_again(&self, _since: Instant) -> Option<Reply<()>> {
        None
    }

    /// The steps at any of the servers.
    fn steps(&self) -> NodeSteps;

    /// Reads one page of the keys of the servers.
    fn page(&self, step: FindPage) -> Reply<FoundPage>;

    fn inspect_each(&self, ids: Vec<LockId>) -> Reply<Vec<(LockId, Inspection)>>;

    /// Adds labels that only other servers know.
    fn labelled(&self, _slot: u16, found: Inspection) -> Reply<Inspection> {
        Box::pin(std::future::ready(Ok(found)))
    }

    /// See [`LockSteps::supports`].
    fn serves(&self, _id: &LockId) -> Result<(), Invalid> {
        Ok(())
    }

    /// See [`FencedSteps::keeps_data`].
    fn keeps(&self, _name: &Name, _key: &Name) -> Result<(), Invalid> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
