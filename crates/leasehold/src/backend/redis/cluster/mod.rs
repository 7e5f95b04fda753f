//! Leases on a Redis or Valkey Cluster: a table of slots over many servers. A backend over backends.
//!
//! ```text
//! slots     which slot a key is in, and what a node says of the owners of slots
//! nodes     the nodes that are known, and which of them has each slot
//! table     asks who has which slot, when there is reason to
//! scan      there is reason to in each interval in which locks are held
//! redirect  what a node says instead of carrying a step out
//! route     sends a step to the node that has its slot, and follows
//! listeners      wake-ups, each heard at the node that has the slot of its name
//! link      what is asked of the cluster as a whole
//! labels    the labels of clients, each at the node of its own slot
//! walk      all nodes one after the other: finding locks, and looking at several
//! given     the URL of a cluster
//! ```

mod given;
mod labels;
mod link;
mod listeners;
mod nodes;
mod redirect;
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
    node::NodeSteps,
    repeats::{self, Lately, Replaceable},
    router::{AskRule, NodeAnswer, Route, Router},
    sharding::{Chosen, Sharding},
    silence::Silence,
    subscriptions::{Elsewhere, Hearing},
};
use crate::{
    backend::{
        Failure, Inspection, Release, ReleaseReply, Reply, ServerLink, Sink, WakeUpSteps,
        find::{FindPage, FoundPage, all_of},
    },
    background::BackgroundRuntime,
    clock::{Clock, Instant},
    config::Config,
    error::{Error, Invalid},
    kind::LockKind,
    name::{LockId, Name},
    outage::Outage,
};
pub(crate) use given::GivenCluster;
use listeners::{ClusterListeners, NodeSink};
use nodes::{NodeSettings, Nodes, TableChange};
use route::LATE;
use scan::Scan;
#[cfg(feature = "sim")]
pub(crate) use slots::slot;
#[cfg(not(feature = "sim"))]
use slots::slot;
use table::SlotTable;

/// A client of a cluster.
#[derive(Clone)]
pub(crate) struct Cluster {
    shared: Arc<ClusterCore>,
}

/// The state that all steps of a client share.
pub(super) struct ClusterCore {
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
}

impl ClusterCore {
    /// The table has changed.
    fn tell(self: &Arc<Self>, change: TableChange) {
        if change.forgotten {
            self.sink.restarted(crate::backend::Restarted::Whole);
        }
        // Not only where `change` says so: a MOVED before this table has counted a change, too.
        if !self.lately.is_settled(self.nodes.changes()) {
            repeats::repeat(self);
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

impl Drop for ClusterCore {
    fn drop(&mut self) {
        // The task that asks for the table finds that the client has ended.
        self.table.ask();
    }
}

/// A node that stood still had been replaced without knowing it yet: what it has confirmed is done once more where the name is by now.
impl Replaceable for ClusterCore {
    fn lately(&self) -> &Lately {
        &self.lately
    }

    fn background(&self) -> &BackgroundRuntime {
        &self.background
    }

    fn changes(&self) -> u64 {
        self.nodes.changes()
    }

    fn server_of(&self, name: &Name) -> Option<u64> {
        let owner = self.nodes.owner(slot(name.wire()));
        owner.map(|node| node.number.into())
    }

    fn give_back(self: &Arc<Self>, release: Release) -> Reply<ReleaseReply> {
        let way = Route::patient(slot(release.id.name.wire()), AskRule::Never);
        self.send(way, move |at| at.release(release.clone()))
    }
}

impl Router for Cluster {
    type Servers = ClusterCore;

    const HAS_SEVERAL: bool = true;

    fn slot(&self, key: &str) -> u16 {
        slot(key)
    }

    fn send<T: Send + 'static>(
        &self,
        way: Route,
        step: impl Fn(&NodeSteps) -> Reply<T> + Send + Sync + 'static,
    ) -> Reply<NodeAnswer<T>> {
        self.shared.send_openly(way, step)
    }

    fn replaceable(&self) -> Option<&Arc<ClusterCore>> {
        Some(&self.shared)
    }

    /// The node that has answered late may have stood still.
    fn looked_again(&self, since: Instant) -> Option<Reply<()>> {
        (since.elapsed() >= LATE).then(|| self.identify())
    }

    fn steps(&self) -> NodeSteps {
        self.shared.nodes.any().redis.steps.clone()
    }

    fn page(&self, step: FindPage) -> Reply<FoundPage> {
        Box::pin(walk::page(Arc::clone(&self.shared), step))
    }

    fn inspect_each(&self, ids: Vec<LockId>) -> Reply<Vec<(LockId, Inspection)>> {
        let shared = Arc::clone(&self.shared);
        let inspections = ids.iter().map(|id| {
            let (way, id) = (
                Route::patient(slot(id.name.wire()), AskRule::MayFollow),
                id.clone(),
            );
            shared.send(way, move |at| at.inspect(id.clone()))
        });
        let inspections: Vec<_> = inspections.collect();
        Box::pin(async move {
            let mut found = all_of(&ids, inspections).await?;
            let mut all: Vec<_> = found.iter_mut().map(|(_, found)| found).collect();
            // Labels only: `leasehold ls` once had all connections of a node listed for each lock (bug 254).
            labels::add(&shared, &mut all, None).await;
            Ok(found)
        })
    }

    fn labelled(&self, slot: u16, mut found: Inspection) -> Reply<Inspection> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let lock_at = shared.nodes.owner(slot);
            labels::add(&shared, &mut [&mut found], lock_at).await;
            Ok(found)
        })
    }

    fn serves(&self, id: &LockId) -> Result<(), Invalid> {
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

    /// In the slot of the name, or one script could not see both.
    fn keeps(&self, name: &Name, key: &Name) -> Result<(), Invalid> {
        let [of_name, of_key] = [name, key].map(|it| slot(it.wire()));
        if of_name == of_key {
            return Ok(());
        }
        let value = format!("{:?}, in slot {of_key} of the cluster", key.shown());
        let limit = format!("in slot {of_name}, as {:?} is", name.shown());
        let tag = name.shown();
        let remedy = if name.wire().contains('{') {
            "give the key the hash tag of the name".to_owned()
        } else {
            format!("put the name into the key in braces, such as \"{{{tag}}}:data\"")
        };
        Err(Invalid::new("key", value, limit).remedy(remedy))
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
        let way = Route::once(slot(id.name.wire()));
        self.shared.send(way, move |at| at.classic_listeners(&of))
    }

    fn heard(&self) -> Reply<()> {
        let nodes = self.shared.nodes.all();
        let all: Vec<_> = nodes.iter().map(|node| node.redis.heard()).collect();
        Box::pin(join_all(all).map(|_| Ok(())))
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
