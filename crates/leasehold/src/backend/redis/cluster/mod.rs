//! Leases on a Redis or Valkey Cluster: a table of slots over many servers. A backend over backends.
//!
//! ```text
//! slots     which slot a key is in, and what a node says of the owners of slots
//! nodes     the nodes that are known, and which of them has each slot
//! table     asks who has which slot, when there is reason to
//! scan      there is reason to in each interval in which locks are held
//! redirect  what a node says instead of carrying a step out
//! route     sends a step to the node that has its slot, and follows
//! renew     one script for the names of each slot
//! again     what a node has done that had been replaced
//! listeners      wake-ups, each heard at the node that has the slot of its name
//! fenced    data beside a token: in the slot of its name
//! link      what is asked of the cluster as a whole
//! labels    the labels of clients, each at the node of its own slot
//! walk      all nodes one after the other: finding locks, and looking at several
//! given     the URL of a cluster
//! ```

mod again;
mod fenced;
mod given;
mod labels;
mod link;
mod listeners;
mod nodes;
mod redirect;
mod renew;
mod route;
mod scan;
pub(super) mod slots;
mod table;
mod walk;

use std::{
    fmt,
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::join_all, stream::FuturesUnordered};

use super::{
    Redis,
    discovery::{Address, GivenServer},
    labels::ClientLabel,
    repeats::Lately,
    sharding::{Chosen, Sharding},
    silence::Silence,
    subscriptions::{Elsewhere, Hearing},
};
use crate::{
    backend::{
        Acquire, Acquired, Confirmation, Count, Counted, Downgrade, Extend, Failure, Inspection,
        Keep, KeptEntries, LockSteps, NumberSteps, Once, Permits, Release, ReleaseReply, Renew,
        Renewal, Reply, ServerLink, Sink, WakeUpSteps,
        find::{FindPage, FoundPage, all_of},
    },
    background::BackgroundRuntime,
    clock::Clock,
    config::Config,
    durability::Durability,
    error::{Error, Invalid},
    kind::{Access, LockKind},
    name::{LockId, Name},
    outage::Outage,
    owner::LeaseId,
};
pub(crate) use given::GivenCluster;
use listeners::{ClusterListeners, NodeSink};
use nodes::{NodeSettings, Nodes, TableChange};
use redirect::SlotOpen;
use route::{AskRule, LATE, Route};
use scan::Scan;
#[cfg(feature = "sim")]
pub(crate) use slots::slot;
#[cfg(not(feature = "sim"))]
use slots::slot;
use table::SlotTable;

/// A client of a cluster.
pub(crate) struct Cluster {
    shared: Arc<ClusterCore>,
}

/// The state that all steps of a client share.
struct ClusterCore {
    nodes: Nodes,
    table: SlotTable,
    scan: Arc<Scan>,
    listeners: ClusterListeners,
    lately: Lately,
    sink: Arc<dyn Sink>,
    background: BackgroundRuntime,
    timeout: Duration,
    connect_timeout: Duration,
    outage: Outage,
    shown: String,
    chosen: Chosen,
    label: ClientLabel,
}

impl Cluster {
    /// Connects when it is first used, or by [`connect`](Cluster::connect).
    pub(crate) fn new(
        given: GivenCluster,
        client: &Arc<str>,
        label: &str,
        config: &Config,
        sink: Arc<dyn Sink>,
        background: &BackgroundRuntime,
    ) -> Cluster {
        let of_nodes = NodeSettings {
            client: Arc::clone(client),
            label: label.to_owned(),
            config: config.clone(),
            background: background.clone(),
        };
        let make = move |server: GivenServer, hearing, sink| {
            let NodeSettings {
                client,
                label,
                config,
                background,
            } = &of_nodes;
            Redis::hearing(server, (client, hearing), label, config, sink, background)
        };
        let label = ClientLabel::new(client, label);
        Cluster::over(make, given, label, config, sink, background)
    }

    /// The same over nodes that are made so.
    pub(super) fn over(
        make: impl Fn(GivenServer, Hearing, Arc<dyn Sink>) -> Redis + Send + Sync + 'static,
        given: GivenCluster,
        label: ClientLabel,
        config: &Config,
        sink: Arc<dyn Sink>,
        background: &BackgroundRuntime,
    ) -> Cluster {
        let shown = given.to_string();
        // All nodes share the choice: a client that listened on classic channels at one would miss what is published on sharded ones.
        let chosen = Chosen::by(config.sharded_channels.map(Sharding::of_setting));
        // Shared by all nodes: a balancer that hangs one connection has most likely hung the others as well (bug 260).
        let silence = Silence::default();
        let shared = Arc::new_cyclic(|weak: &Weak<ClusterCore>| {
            // Weak, since the core owns the nodes: their sinks would else keep it, and its connections, for ever.
            let (weak, of_nodes) = (Weak::clone(weak), chosen.clone());
            let make = move |server, number| {
                let sink = Arc::new(NodeSink {
                    shared: Weak::clone(&weak),
                    number,
                });
                let elsewhere: Arc<dyn Elsewhere> = Arc::clone(&sink) as _;
                let hearing = Hearing {
                    chosen: of_nodes.clone(),
                    elsewhere: Some(elsewhere),
                    silence: silence.clone(),
                };
                make(server, hearing, sink)
            };
            ClusterCore {
                nodes: Nodes::new(given, Box::new(make)),
                table: SlotTable::default(),
                scan: Arc::new(Scan::new(config.scan_interval)),
                listeners: ClusterListeners::default(),
                lately: Lately::default(),
                sink,
                background: background.clone(),
                timeout: config.operation_timeout,
                connect_timeout: config.connect_timeout,
                outage: Outage::new(shown.clone(), Clock::Boot),
                shown,
                chosen,
                label,
            }
        });
        table::watch(&shared);
        Cluster { shared }
    }

    /// Connects to one of the nodes that were given, and learns of the others.
    pub(crate) async fn connect(&self) -> Result<(), Error> {
        let connected = self.shared.dial().await;
        connected.map_err(|failure| {
            failure.into_error(format!("connect to {}", self.shared.shown), Duration::ZERO)
        })
    }

    /// A step that the engine repeats.
    fn step<T: Send + 'static>(
        &self,
        id: &LockId,
        step: impl Fn(&Redis) -> Reply<T> + Send + Sync + 'static,
    ) -> Reply<T> {
        self.shared.send(Route::once(&id.name), step)
    }

    /// A step that is tried again within the time of its caller.
    fn patient<T: Send + 'static>(
        &self,
        name: &Name,
        ask: AskRule,
        step: impl Fn(&Redis) -> Reply<T> + Send + Sync + 'static,
    ) -> Reply<T> {
        self.shared.send(self.patiently(name, ask), step)
    }

    /// Inspects a lock, without the labels of its clients.
    fn inspect_unlabelled(&self, id: LockId) -> Reply<Inspection> {
        let name = id.name.clone();
        self.patient(&name, AskRule::MayFollow, move |redis| {
            redis.inspect(id.clone())
        })
    }

    fn patiently(&self, name: &Name, ask: AskRule) -> Route {
        Route {
            slot: slot(name.wire()),
            ask,
            patience: self.shared.timeout,
            late: LATE,
        }
    }
}

impl ClusterCore {
    /// The table has changed.
    fn tell(self: &Arc<Self>, change: TableChange) {
        if change.forgotten {
            self.sink.restarted(crate::backend::Restarted::All);
        }
        // Not only where `change` says so: a MOVED before this table has counted a change, too.
        if !self.lately.is_settled(self.nodes.changes()) {
            self.give_back_again();
        }
    }

    /// A node has said that another has this slot.
    fn moved(self: &Arc<Self>, slot: u16, address: Address) {
        self.nodes.moved(slot, address);
        // A MOVED names one slot, and a failover moves many: the table knows the rest.
        self.table.ask();
    }

    async fn dial(self: &Arc<Self>) -> Result<(), Failure> {
        let seeds = self.nodes.seeds();
        let mut dials: FuturesUnordered<_> = seeds.iter().map(|seed| seed.redis.dial()).collect();
        let mut failed = None::<Failure>;
        while let Some(dialled) = dials.next().await {
            match dialled {
                Ok(()) => {
                    let asked = pin!(self.table.asked());
                    let asked = self.background.within(self.connect_timeout, asked).await;
                    return asked.unwrap_or_else(|| Err(Failure::NotSent(Arc::new(NoneAnswers))));
                }
                // A refusal is kept before a seed that is out of reach: only the refusal tells the user what to change.
                Err(failure) if failed.as_ref().is_none_or(|it| !it.is_final()) => {
                    failed = Some(failure);
                }
                Err(_) => {}
            }
        }
        Err(failed.unwrap_or_else(|| Failure::NotSent(Arc::new(NoneAnswers))))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The task that asks for the table finds that the client has ended.
        self.shared.table.ask();
    }
}

impl LockSteps for Cluster {
    fn acquire(&self, step: Acquire) -> Reply<Acquired> {
        again::acquire(&self.shared, step)
    }

    fn release(&self, mut step: Release) -> Reply<ReleaseReply> {
        // Each node knows by itself whether this client is counted there.
        step.listening = false;
        again::release(&self.shared, step)
    }

    fn renew(&self, batch: &[Renew]) -> Reply<Vec<Renewal>> {
        renew::renew(&self.shared, batch)
    }

    fn extend(&self, step: Extend) -> Reply<Option<Duration>> {
        let way = self.patiently(&step.id.name, AskRule::MayFollow);
        let answer = self
            .shared
            .send_openly(way, move |redis| redis.extend(step.clone()));
        Box::pin(async move {
            let answer = answer.await?;
            // The rest of the lock may be at the other node still. It is not lost by that.
            if answer.asked && answer.value.is_none() {
                return Err(Failure::NotNow(Arc::new(SlotOpen { slot: way.slot })));
            }
            Ok(answer.value)
        })
    }

    fn count(&self, mut step: Count) -> Reply<Counted> {
        // As in `release`: the engine knows whether this client listens, not at which node.
        step.listening = false;
        let name = step.id.name.clone();
        // A node that is getting the slot may have a part of the keys, and a step that changes them would take the rest for none.
        self.patient(&name, AskRule::Never, move |redis| {
            redis.count(step.clone())
        })
    }

    fn downgrade(&self, step: Downgrade) -> Reply<bool> {
        let name = step.id.name.clone();
        self.patient(&name, AskRule::Never, move |redis| {
            redis.downgrade(step.clone())
        })
    }

    fn inspect(&self, id: LockId) -> Reply<Inspection> {
        let (shared, name) = (Arc::clone(&self.shared), id.name.clone());
        let found = self.inspect_unlabelled(id);
        Box::pin(async move {
            let mut found = found.await?;
            let lock_at = shared.nodes.owner(slot(name.wire()));
            labels::add(&shared, &mut [&mut found], lock_at).await;
            Ok(found)
        })
    }

    fn inspect_all(&self, ids: Vec<LockId>) -> Reply<Vec<(LockId, Inspection)>> {
        let shared = Arc::clone(&self.shared);
        let inspections: Vec<_> = ids
            .iter()
            .map(|id| self.inspect_unlabelled(id.clone()))
            .collect();
        Box::pin(async move {
            let mut found = all_of(&ids, inspections).await?;
            let mut all: Vec<_> = found.iter_mut().map(|(_, found)| found).collect();
            // Labels only: `leasehold ls` once had all connections of a node listed for each lock (bug 254).
            labels::add(&shared, &mut all, None).await;
            Ok(found)
        })
    }

    fn find(&self, step: FindPage) -> Reply<FoundPage> {
        Box::pin(walk::find(Arc::clone(&self.shared), step))
    }

    fn force_unlock(&self, id: LockId) -> Reply<Vec<String>> {
        let name = id.name.clone();
        self.patient(&name, AskRule::Never, move |redis| {
            redis.force_unlock(id.clone())
        })
    }

    fn owner(&self, kind: LockKind, access: Access, lease: LeaseId) -> String {
        // An owner field is made of the client's uuid and the lease id, so each node's connections say the same.
        self.shared.nodes.any().redis.owner(kind, access, lease)
    }

    fn supports(&self, id: &LockId) -> Result<(), Invalid> {
        let name = id.name.wire();
        if id.kind != LockKind::Latch || !name.contains('{') {
            return Ok(());
        }
        let limit = "a name without a hash tag in a cluster: the channel of the latch would be in another slot";
        Err(
            Invalid::new("the name of a latch", format!("{name:?}"), limit)
                .remedy("leave the braces out"),
        )
    }

    fn confirm(&self, batch: &[Renew], policy: Durability) -> Reply<Vec<Confirmation>> {
        renew::confirm(&self.shared, batch, policy)
    }

    fn confirms(&self) -> Result<(), &'static str> {
        Ok(())
    }

    fn can_confirm(&self, id: &LockId, policy: Durability) -> Reply<()> {
        self.step(id, move |redis| redis.is_able(policy))
    }

    fn keep(&self, step: Keep) -> Reply<KeptEntries> {
        self.step(&step.id.clone(), move |redis| redis.keep(step.clone()))
    }
}

impl WakeUpSteps for Cluster {
    fn listen(&self, id: LockId) -> Reply<()> {
        self.shared.listeners.listen(&self.shared, id)
    }

    fn unlisten(&self, id: &LockId) -> Reply<()> {
        self.shared.listeners.unlisten(id)
    }

    fn is_sharded(&self) -> bool {
        self.shared.chosen.get() == Sharding::Sharded
    }

    fn classic_listeners(&self, id: &LockId) -> Reply<u64> {
        let of = id.clone();
        self.step(id, move |redis| redis.classic_listeners(&of))
    }

    fn heard(&self) -> Reply<()> {
        let nodes = self.shared.nodes.all();
        let all: Vec<_> = nodes.iter().map(|node| node.redis.heard()).collect();
        Box::pin(join_all(all).map(|_| Ok(())))
    }
}

impl NumberSteps for Cluster {
    fn permits(&self, id: LockId, step: Permits, once: Once) -> Reply<i64> {
        let name = id.name.clone();
        self.patient(&name, AskRule::Never, move |redis| {
            redis.permits(id.clone(), step, once)
        })
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shared.shown)
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "no node of the cluster has answered; check their addresses, or wait longer, with connect_timeout or --connect-timeout"
)]
struct NoneAnswers;
