//! The steps at one server, as far as a server has to know more than its scripts do.

use std::sync::Arc;

use super::{
    durable::DurableConnections, kinds::wire, restart::RestartLog, script_runner::ScriptRunner,
    subscriptions::Subscriptions,
};
use crate::{
    backend::{self, Confirmation, Inspection, Release, ReleaseReply, Renew, Renewal, Reply},
    durability::Durability,
    name::LockId,
};

/// In a simulation: notes which names the next request is about.
macro_rules! about {
    ($redis:ident, $kind:ident, $id:expr, $lease:expr, $what:expr) => {
        about!($redis, $kind, $id, [($id.name.shared(), $lease)] => $what)
    };
    ($redis:ident, $kind:ident, $id:expr, $names:expr => $what:expr) => {
        #[cfg(feature = "sim")]
        if let Some(transport) = $redis.runner.transport() {
            transport.is_about(&$id, || $crate::backend::simulated::request::About {
                kind: $crate::backend::simulated::request::Kind::$kind,
                names: $names.into_iter().collect(),
                what: Box::new($what.clone()),
            });
        }
    };
}

pub(super) use about;

/// Carries steps out at one server.
#[derive(Clone)]
pub(super) struct NodeSteps {
    pub(super) runner: ScriptRunner,
    pub(super) subscriptions: Arc<Subscriptions>,
    pub(super) restarts: Arc<RestartLog>,
    /// Not in a simulation.
    pub(super) durable: Option<Arc<DurableConnections>>,
}

impl NodeSteps {
    /// The same at a node of a cluster, asked for names that it has not got yet.
    pub(super) fn asking(&self) -> NodeSteps {
        NodeSteps {
            runner: self.runner.asking(),
            ..self.clone()
        }
    }

    pub(super) fn release(&self, mut step: Release) -> Reply<ReleaseReply> {
        // Also a subscription that is on its way to its end.
        step.listening |= if step.id.task() == 0 {
            self.subscriptions.is_counted(&step.id)
        } else {
            // The tasks that wait for a fair mutex hear their grants on one channel of the client, which stands under task 0.
            self.subscriptions.is_counted(&step.id.of_task(0))
        };
        if let Some(in_a_row) = &mut step.holds {
            // A waiter of Redisson's that listens at a replica is counted by no primary (bug 240). Without a replica all are counted.
            in_a_row.beside_unseen &= self.restarts.replicas.any();
        }
        about!(self, Release, step.id, step.lease.get(), step);
        wire(step.id.kind).release(&self.runner, step)
    }

    /// Renewals of one kind.
    pub(super) fn renew(&self, batch: &[Renew]) -> Reply<Vec<Renewal>> {
        let Some(first) = batch.first() else {
            return Box::pin(std::future::ready(Ok(Vec::new())));
        };
        about!(self, Renew, first.id, batch.iter().map(|it| (it.id.name.shared(), it.lease.get())) => batch.to_vec());
        wire(first.id.kind).renew(&self.runner, batch)
    }

    pub(super) fn inspect(&self, id: LockId) -> Reply<Inspection> {
        about!(self, Inspect, id, 0, "");
        wire(id.kind).inspect(&self.runner, id)
    }

    pub(super) fn confirm(&self, batch: &[Renew], policy: Durability) -> Reply<Vec<Confirmation>> {
        match &self.durable {
            Some(connections) => connections.confirm(batch, policy, self.runner.asks),
            None => Box::pin(std::future::ready(Err(backend::cannot_confirm()))),
        }
    }

    /// How many clients listen to the channel of this name, if that is a classic one.
    pub(super) fn classic_listeners(&self, id: &LockId) -> Reply<u64> {
        self.runner.listeners(wire(id.kind).channel(&id.name))
    }

    /// Whether the server can do what a policy asks for.
    pub(super) fn is_able(&self, policy: Durability) -> Reply<()> {
        match &self.durable {
            Some(connections) => connections.can_confirm(policy),
            None => Box::pin(std::future::ready(Err(backend::cannot_confirm()))),
        }
    }
}
