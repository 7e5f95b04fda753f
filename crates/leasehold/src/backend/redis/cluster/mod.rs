//! Leases on a Redis or Valkey Cluster: a table of slots over many servers. A backend over backends.
//!
//! ```text
//! slots     which slot a key is in, and what a node says of the owners of slots
//! nodes     the nodes that are known, and which of them has each slot
//! table     asks who has which slot, when there is reason to
//! redirect  what a node says instead of carrying a step out
//! route     sends a step to the node that has its slot, and follows
//! renew     one script for the names of each slot
//! again     what a node has done that had been replaced
//! ears      wake-ups, each heard at the node that has the slot of its name
//! link      what is asked of the cluster as a whole
//! walk      all nodes one after the other: finding locks, and looking at several
//! given     the URL of a cluster
//! ```

mod again;
mod ears;
mod given;
mod link;
mod nodes;
mod redirect;
mod renew;
mod route;
mod slots;
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
    finder::Address,
    labels::ClientLabel,
    repeats::Lately,
    sharding::{Chosen, Sharding},
    silence::Silence,
    subscriptions::{Elsewhere, Hearing},
};
use crate::{
    backend::{
        Acquire, Acquired, Confirmation, Count, Counted, Downgrade, Extend, Failure, FencedSteps,
        Inspection, Keep, KeptPlaces, LockSteps, NumberSteps, Once, Permits, Release, ReleaseReply,
        Renew, Renewal, Reply, ServerLink, Sink, WakeUpSteps,
        fenced::{FencedRead, FencedWrite, Written},
        find::{FindPage, FoundPage},
    },
    clock::Clock,
    config::Config,
    durability::Durability,
    error::{Error, Invalid},
    home::Home,
    kind::{Access, LockKind},
    name::{LockId, Name},
    outage::Outage,
    owner::LeaseId,
};
use ears::{ClusterEars, NodeSink};
pub(crate) use given::GivenCluster;
use nodes::{MayHaveForgotten, NodeSettings, Nodes};
use redirect::SlotOpen;
use route::{AskRule, LATE, Route};
use slots::slot;
use table::SlotTable;

/// One client of a cluster.
pub(crate) struct Cluster {
    shared: Arc<ClusterCore>,
}

/// What all its steps share.
struct ClusterCore {
    nodes: Nodes,
    table: SlotTable,
    ears: ClusterEars,
    lately: Lately,
    sink: Arc<dyn Sink>,
    home: Home,
    timeout: Duration,
    connect_timeout: Duration,
    outage: Outage,
    shown: String,
    label_slot: u16,
}

impl Cluster {
    /// Connects when it is first used, or by [`connect`](Cluster::connect).
    pub(crate) fn new(
        given: GivenCluster,
        client: &Arc<str>,
        label: &str,
        config: &Config,
        sink: Arc<dyn Sink>,
        home: &Home,
    ) -> Cluster {
        let shown = given.to_string();
        let of_nodes = NodeSettings {
            client: Arc::clone(client),
            label: label.to_owned(),
            config: config.clone(),
            home: home.clone(),
        };
        let chosen = Chosen::by(config.sharded_channels.map(Sharding::of_setting));
        let silence = Silence::default();
        let shared = Arc::new_cyclic(|weak: &Weak<ClusterCore>| {
            let weak = Weak::clone(weak);
            let make = move |server, number| {
                let sink = Arc::new(NodeSink {
                    shared: Weak::clone(&weak),
                    number,
                });
                let elsewhere: Arc<dyn Elsewhere> = Arc::clone(&sink) as _;
                let hearing = Hearing {
                    chosen: chosen.clone(),
                    elsewhere: Some(elsewhere),
                    silence: silence.clone(),
                };
                let NodeSettings {
                    client,
                    label,
                    config,
                    home,
                } = &of_nodes;
                Redis::hearing(server, (client, hearing), label, config, sink, home)
            };
            ClusterCore {
                nodes: Nodes::new(given, Box::new(make)),
                table: SlotTable::default(),
                ears: ClusterEars::default(),
                lately: Lately::default(),
                sink,
                home: home.clone(),
                timeout: config.operation_timeout,
                connect_timeout: config.connect_timeout,
                outage: Outage::new(shown.clone(), Clock::Boot),
                shown,
                label_slot: slot(ClientLabel::new(client, label).key()),
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
    fn tell(self: &Arc<Self>, MayHaveForgotten(forgotten): MayHaveForgotten) {
        if forgotten {
            self.sink.epoch(crate::backend::EpochChange::All);
            self.give_back_again();
        }
    }

    /// A node has said that another has this slot.
    fn moved(self: &Arc<Self>, slot: u16, address: Address) {
        self.nodes.moved(slot, address);
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
                    let asked = self.home.within(self.connect_timeout, asked).await;
                    return asked.unwrap_or_else(|| Err(Failure::NotSent(Arc::new(NoneAnswers))));
                }
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

    fn renew(&self, batch: &[Renew<'_>]) -> Reply<Vec<Renewal>> {
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
        step.listening = false;
        let name = step.id.name.clone();
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
        let name = id.name.clone();
        self.patient(&name, AskRule::MayFollow, move |redis| {
            redis.inspect(id.clone())
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

    fn confirm(&self, batch: &[Renew<'_>], policy: Durability) -> Reply<Vec<Confirmation>> {
        renew::confirm(&self.shared, batch, policy)
    }

    fn confirms(&self) -> Result<(), &'static str> {
        Ok(())
    }

    fn can_confirm(&self, id: &LockId, policy: Durability) -> Reply<()> {
        self.step(id, move |redis| redis.is_able(policy))
    }

    fn keep(&self, step: Keep) -> Reply<KeptPlaces> {
        self.step(&step.id.clone(), move |redis| redis.keep(step.clone()))
    }
}

impl WakeUpSteps for Cluster {
    fn listen(&self, id: LockId) -> Reply<()> {
        self.shared.ears.listen(&self.shared, id)
    }

    fn unlisten(&self, id: &LockId) -> Reply<()> {
        self.shared.ears.unlisten(id)
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

impl FencedSteps for Cluster {
    fn keeps_data(&self, name: &Name, key: &Name) -> Result<(), Invalid> {
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

    fn write(&self, step: FencedWrite) -> Reply<Written> {
        let name = step.name.clone();
        self.patient(&name, AskRule::Never, move |redis| {
            redis.write(step.clone())
        })
    }

    fn read(&self, step: FencedRead) -> Reply<Option<Vec<u8>>> {
        let name = step.name.clone();
        self.patient(&name, AskRule::Never, move |redis| redis.read(step.clone()))
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
