//! The methods that concern the cluster as a whole.

use std::sync::Arc;

use futures_util::future::{BoxFuture, join_all};

use super::{
    Cluster,
    slots::{replica, slot},
};
use crate::{
    address::shown,
    backend::{
        ConnectedClients, Failure, Reply, ServerLink,
        redis::{router::Route, script_runner::ScriptRunner},
        report::ServerReport,
    },
    durability::Durability,
    error::Cause,
    name::LockId,
    outage::Outage,
};

impl Cluster {
    /// Whether its primaries can do what a policy asks for. A primary that is out of reach is asked when its first lock is asked for.
    pub(crate) async fn is_able(&self, policy: Durability) -> Result<(), Failure> {
        let primaries = self.shared.nodes.primaries();
        let able = primaries.iter().map(|node| node.redis.is_able(policy));
        let able = join_all(able.collect::<Vec<_>>()).await;
        let refused = able
            .into_iter()
            .filter_map(Result::err)
            .find(Failure::is_final);
        refused.map_or(Ok(()), Err)
    }
}

impl ServerLink for Cluster {
    /// At the node of the label's own slot.
    fn show(&self, lasts_ms: u64) -> Reply<()> {
        let way = Route::once(slot(self.shared.label.key()));
        self.shared.send(way, move |at| at.runner.show(lasts_ms))
    }

    fn reports(&self) -> Vec<BoxFuture<'static, ServerReport>> {
        let nodes = &self.shared.nodes;
        let mut primaries = nodes.primaries();
        if primaries.is_empty() {
            primaries.push(nodes.any()); // no node has told yet which there are
        }
        primaries.iter().map(|node| node.redis.report()).collect()
    }

    fn can_fail_over(&self) -> Result<(), &'static str> {
        Ok(())
    }

    fn fail_over(&self, id: &LockId, asks: bool) -> Reply<String> {
        let (shared, slot) = (Arc::clone(&self.shared), slot(id.name.wire()));
        Box::pin(async move {
            let primary = shared.owner(slot).await?;
            if asks {
                let mut ask = redis::cmd("CLUSTER");
                let nodes = primary.redis.steps.runner.command(ask.arg("SLOTS")).await?;
                let replica = replica(&nodes, slot, &primary.address);
                let replica = replica.ok_or_else(|| Failure::NotNow(Arc::new(NoReplica)))?;
                let replica = shared.nodes.named(replica);
                let mut ask = redis::cmd("CLUSTER");
                let runner = &replica.redis.steps.runner;
                runner.command(ask.arg("FAILOVER")).await?;
            }
            Ok(shown(&primary.address))
        })
    }

    fn connections(&self) -> Reply<ConnectedClients> {
        let primaries = self.shared.nodes.primaries();
        let runners: Vec<_> = primaries
            .iter()
            .map(|node| node.redis.steps.runner.clone())
            .collect();
        Box::pin(async move {
            let lists = join_all(runners.iter().map(ScriptRunner::clients)).await;
            let mut all = ConnectedClients {
                all: !lists.is_empty(),
                ..ConnectedClients::default()
            };
            for list in lists {
                // A node that does not answer hides only who is at no other.
                let list = list.unwrap_or_default();
                all.all &= list.all;
                for (client, idle) in list.idle {
                    let known = all.idle.entry(client).or_insert(idle);
                    *known = idle.min(*known);
                }
            }
            Ok(all)
        })
    }

    fn has_reached(&self) -> bool {
        self.shared
            .nodes
            .all()
            .iter()
            .any(|node| node.redis.has_reached())
    }

    /// As long as no node can be reached.
    fn trouble(&self) -> Option<Cause> {
        let mut trouble = None;
        for node in self.shared.nodes.all() {
            // A single node without trouble ends the search: the cluster as a whole can be used.
            trouble = Some(node.redis.trouble()?);
        }
        trouble
    }

    fn trouble_of(&self, id: &LockId) -> Option<Cause> {
        match self.shared.nodes.owner(slot(id.name.wire())) {
            Some(owner) => owner.redis.trouble(),
            None => self.trouble(),
        }
    }

    fn outage(&self) -> &Outage {
        &self.shared.outage
    }

    fn server(&self) -> String {
        self.shared.shown.clone()
    }

    fn server_of(&self, id: &LockId) -> String {
        let owner = self.shared.nodes.owner(slot(id.name.wire()));
        owner.map_or_else(|| self.server(), |node| node.redis.server())
    }

    /// The smallest id of its nodes, which all clients see alike.
    fn identity(&self) -> Option<String> {
        self.shared.nodes.id()
    }

    fn identify(&self) -> Reply<()> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move { shared.table.asked().await })
    }

    fn shard(&self, id: &LockId) -> Option<u32> {
        let owner = self.shared.nodes.owner(slot(id.name.wire()));
        owner.map(|node| node.number)
    }

    fn hash_slot(&self, id: &LockId) -> Option<u16> {
        Some(slot(id.name.wire()))
    }

    fn dial(&self) -> Reply<()> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move { shared.dial().await })
    }

    fn prepare(&self) {
        for node in self.shared.nodes.primaries() {
            node.redis.prepare();
        }
    }

    fn move_to_background(&self) {
        for node in self.shared.nodes.all() {
            node.redis.move_to_background();
        }
    }

    fn shut(&self) {
        self.shared.nodes.shut();
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the primary that has the slot of this name has no replica that could take its place")]
struct NoReplica;
