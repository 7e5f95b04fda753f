//! Leases on a Redis or Valkey server. The only files that name the redis crate are in this folder.
//!
//! Commands and subscriptions travel on connections of their own ("connections"): an unsubscription that the
//! server sends unasked must never be taken for the answer to a command. Each runtime that sends commands has a connection,
//! and so has the client's background runtime, which sends renewals and hears subscriptions.

mod cluster;
mod commands;
mod connect;
mod connections;
mod discovery;
mod durable;
mod failure;
mod fenced_store;
mod find;
mod handshake;
mod hang_up;
mod kinds;
mod labels;
mod link;
mod login;
mod pubsub;
mod repeats;
mod replicas;
mod restart;
mod rights;
mod script;
mod script_runner;
mod server_link;
mod sharding;
mod silence;
#[cfg(feature = "sim")]
mod simulated;
mod subscriptions;
mod target;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "tls")]
mod tls_trouble;
#[cfg(feature = "sim")]
mod transport;
mod unix;

use std::{fmt, sync::Arc, time::Duration};

#[cfg(feature = "sim")]
pub(crate) use cluster::slot;
pub(crate) use cluster::{Cluster, GivenCluster};
pub(crate) use discovery::GivenServer;
use futures_util::future::{OptionFuture, join_all};
#[cfg(feature = "redis-1")]
pub(crate) use redis::ConnectionInfo;
#[cfg(feature = "sim")]
pub use redis::Value;
#[cfg(feature = "sim")]
pub(crate) use simulated::simulated;
pub(crate) use target::Login;

#[cfg(feature = "sim")]
use crate::backend::simulated::request::{About, Kind};
use crate::{
    backend::{
        self, Acquire, Acquired, Confirmation, Count, Counted, Downgrade, Extend, Failure,
        FencedSteps, Inspection, Keep, KeptEntries, LockSteps, NumberSteps, Once, Permits, Release,
        ReleaseReply, Renew, Renewal, Reply, ServerLink, Sink, WakeUpSteps,
        fenced::{FencedRead, FencedWrite, Written},
        find::{FindPage, FoundPage},
    },
    background::BackgroundRuntime,
    clock::{Clock, Instant},
    config::Config,
    durability::Durability,
    error::Error,
    kind::{Access, LockKind},
    name::LockId,
    outage::Outage,
    owner::LeaseId,
    user_callback,
};
use commands::Commands;
use discovery::Discovery;
use durable::DurableConnections;
use kinds::wire;
use labels::ClientLabel;
use repeats::Repeats;
use restart::RestartLog;
use script_runner::ScriptRunner;
use subscriptions::{Hearing, Subscriptions};

/// In a simulation: notes which names the next request is about.
macro_rules! about {
    ($redis:ident, $kind:ident, $id:expr, $lease:expr, $what:expr) => {
        about!($redis, $kind, $id, [($id.name.shared(), $lease)] => $what)
    };
    ($redis:ident, $kind:ident, $id:expr, $names:expr => $what:expr) => {
        #[cfg(feature = "sim")]
        if let Some(transport) = $redis.runner.transport() {
            transport.is_about(&$id, || About {
                kind: Kind::$kind,
                names: $names.into_iter().collect(),
                what: Box::new($what.clone()),
            });
        }
    };
}

/// A client of a server.
#[derive(Clone)]
pub(crate) struct Redis {
    runner: ScriptRunner,
    subscriptions: Arc<Subscriptions>,
    /// Where another server may take the place of this one.
    repeats: Option<Arc<Repeats>>,
    restarts: Arc<RestartLog>,
    /// Not in a simulation.
    durable: Option<Arc<DurableConnections>>,
    outage: Arc<Outage>,
    shown: String,
}

impl Redis {
    /// Connects when it is first used, or by [`connect`](Redis::connect).
    pub(crate) fn new(
        place: impl Into<GivenServer>,
        client: &Arc<str>,
        label: &str,
        config: &Config,
        sink: Arc<dyn Sink>,
        background: &BackgroundRuntime,
    ) -> Redis {
        Redis::hearing(
            place,
            (client, Hearing::default()),
            label,
            config,
            sink,
            background,
        )
    }

    /// The same for a node of a cluster, whose wake-ups travel on such channels.
    pub(super) fn hearing(
        place: impl Into<GivenServer>,
        (client, hearing): (&Arc<str>, Hearing),
        label: &str,
        config: &Config,
        sink: Arc<dyn Sink>,
        background: &BackgroundRuntime,
    ) -> Redis {
        let restarts = RestartLog::new(Arc::clone(&sink), hearing.silence.clone());
        let discovery = Discovery::new(place.into(), background, &restarts);
        let shown = discovery.to_string();
        let label = ClientLabel::new(client, label).of_node(discovery.is_node());
        let name = label.connection_name().to_owned();
        let outage = Arc::new(Outage::new(shown.clone(), Clock::Boot));
        let outages = Arc::clone(&outage);
        let lead = (Arc::clone(&discovery), Arc::clone(&restarts));
        let more = {
            let (lead, name) = (lead.clone(), name.clone());
            let (background, outages) = (background.clone(), Arc::clone(&outages));
            let config = Config {
                // `WAIT` holds its answer back for up to the durability timeout, and the server's own time comes on top of that.
                operation_timeout: config.operation_timeout + config.durability_timeout,
                // The connections for commands have asked, and have warned of a server that may forget.
                check_server: false,
                ..config.clone()
            };
            move || {
                Commands::new(
                    lead.clone(),
                    name.clone(),
                    &config,
                    &background,
                    Arc::clone(&outages),
                )
            }
        };
        let commands = Commands::new(lead, name, config, background, outages);
        let connections = commands.connections();
        connections.follow();
        connections.poll_discovery();
        let runner = ScriptRunner::new(client, label, config, commands).on(hearing.chosen.clone());
        let durable = DurableConnections::new(
            &runner,
            &restarts,
            background,
            config.durability_timeout,
            more,
        );
        let lead = (discovery, &*restarts);
        Redis {
            runner,
            restarts: Arc::clone(&restarts),
            subscriptions: Arc::new(Subscriptions::new(
                lead,
                (client, hearing),
                config,
                sink,
                background,
                &connections,
            )),
            repeats: None,
            durable: Some(Arc::new(durable)),
            outage,
            shown,
        }
    }

    /// A server of its own, whose place another may take, or the same with older data: what it confirmed is given back there once more. A
    /// cluster and a majority see to that above their servers.
    pub(crate) fn repeating(mut self, background: &BackgroundRuntime) -> Redis {
        self.repeats = Some(Repeats::new(&self.runner, &self.restarts, background));
        self
    }

    /// The same node of a cluster, asked for names that it has not got yet.
    fn asking(&self) -> Redis {
        Redis {
            runner: self.runner.asking(),
            ..self.clone()
        }
    }

    fn is_in_trouble(&self) -> bool {
        self.trouble().is_some()
    }

    /// Has this node say on which channels the clients of its cluster wake each other, if that is not known yet. Before any other step.
    pub(super) async fn choose(&self) -> Result<(), Failure> {
        self.runner.choose().await
    }

    /// Whether it can do what a policy asks for.
    pub(crate) fn is_able(&self, policy: Durability) -> Reply<()> {
        match &self.durable {
            Some(connections) => connections.can_confirm(policy),
            None => Box::pin(std::future::ready(Err(backend::cannot_confirm()))),
        }
    }

    /// The server is not to be used any more: those that wait for a connection are told so.
    fn abandon(&self, successor: Option<&Redis>) {
        self.runner.abandon();
        if let Some(connections) = &self.durable {
            connections.abandon();
        }
        let successor = successor.map(|redis| redis.shown.as_str());
        // The node may never answer again, and no answer would end its outage then (bug 241).
        self.outage.is_over_by(successor);
    }

    /// Connects now.
    pub(crate) async fn connect(&self) -> Result<(), Error> {
        let connected = self.runner.connect().await;
        connected.map_err(|failure| {
            failure.into_error(format!("connect to {}", self.shown), Duration::ZERO)
        })
    }
}

impl LockSteps for Redis {
    fn acquire(&self, step: Acquire) -> Reply<Acquired> {
        about!(self, Acquire, step.id, step.lease.get(), step);
        let Some(repeats) = self.repeats.clone() else {
            return wire(step.id.kind).acquire(&self.runner, step);
        };
        // The clock is read before the send: a release that is repeated from now on may give back the very holder that the answer names
        // (bug 295).
        let (name, began) = (step.id.name.clone(), Instant::now());
        let answer = wire(step.id.kind).acquire(&self.runner, step);
        Box::pin(async move {
            let answer = answer.await?;
            Ok(answer.or_unsettled(|| repeats.may_be_held(&name, began)))
        })
    }

    fn release(&self, mut step: Release) -> Reply<ReleaseReply> {
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
        let Some(repeats) = self.repeats.clone() else {
            return wire(step.id.kind).release(&self.runner, step);
        };
        // The number is read before the send. If a restart comes in between, the release counts for the server of before, and is repeated
        // once too often (B4).
        let (again, by) = (repeats::again(&step), repeats.server());
        let answer = wire(step.id.kind).release(&self.runner, step);
        Box::pin(async move {
            let answer = answer.await?;
            // Only a confirmed release is noted: the engine repeats one without an answer as a pending release, wherever the primary is
            // then (B5).
            if let Some(again) = again {
                repeats.confirmed(again, by);
            }
            Ok(answer)
        })
    }

    fn renew(&self, batch: &[Renew]) -> Reply<Vec<Renewal>> {
        let Some(first) = batch.first() else {
            return Box::pin(std::future::ready(Ok(Vec::new())));
        };
        about!(self, Renew, first.id, batch.iter().map(|it| (it.id.name.shared(), it.lease.get())) => batch.to_vec());
        let kind = first.id.kind;
        if batch.iter().all(|renew| renew.id.kind == kind) {
            return wire(kind).renew(&self.runner, batch);
        }
        let asked = batch.len();
        // All kinds are sent side by side, so a mixed batch takes one round trip, too.
        let of_kinds = LockKind::ALL.map(|kind| {
            let of_kind = batch.iter().cloned().enumerate();
            let of_kind = of_kind.filter(|(_, renew)| renew.id.kind == kind);
            let (at, renews): (Vec<usize>, Vec<Renew>) = of_kind.unzip();
            let answer = (!at.is_empty()).then(|| wire(kind).renew(&self.runner, &renews));
            async move { (at, OptionFuture::from(answer).await) }
        });
        Box::pin(async move {
            // A refusal of one kind says nothing about another.
            let mut renewals = vec![Renewal::Unknown; asked];
            for (at, answer) in join_all(of_kinds).await {
                match answer {
                    Some(Ok(answers)) => {
                        for (at, renewal) in at.into_iter().zip(answers) {
                            renewals[at] = renewal;
                        }
                    }
                    // All else is the server's trouble, and told with it.
                    Some(Err(failure)) if failure.is_final() => {
                        let cause = failure.cause();
                        user_callback::catch_panic(|| {
                            tracing::warn!(target: "leasehold", names = at.len(), %cause, "leases of one kind not renewed");
                        });
                    }
                    _ => {}
                }
            }
            Ok(renewals)
        })
    }

    fn extend(&self, step: Extend) -> Reply<Option<Duration>> {
        about!(self, Extend, step.id, step.lease.get(), step);
        wire(step.id.kind).extend(&self.runner, step)
    }

    fn count(&self, mut step: Count) -> Reply<Counted> {
        step.listening |= self.subscriptions.is_counted(&step.id);
        about!(self, Count, step.id, step.lease.get(), step);
        wire(step.id.kind).count(&self.runner, step)
    }

    fn downgrade(&self, step: Downgrade) -> Reply<bool> {
        about!(self, Downgrade, step.id, step.lease.get(), step);
        wire(step.id.kind).downgrade(&self.runner, step)
    }

    fn inspect(&self, id: LockId) -> Reply<Inspection> {
        about!(self, Inspect, id, 0, "");
        wire(id.kind).inspect(&self.runner, id)
    }

    fn find(&self, step: FindPage) -> Reply<FoundPage> {
        find::find(&self.runner, &step)
    }

    fn inspect_all(&self, ids: Vec<LockId>) -> Reply<Vec<(LockId, Inspection)>> {
        find::inspect_all(&self.runner, ids)
    }

    fn force_unlock(&self, id: LockId) -> Reply<Vec<String>> {
        about!(self, ForceUnlock, id, 0, "");
        wire(id.kind).force_unlock(&self.runner, id)
    }

    fn owner(&self, kind: LockKind, access: Access, lease: LeaseId) -> String {
        wire(kind).owner(&self.runner, access, lease)
    }

    fn keep(&self, step: Keep) -> Reply<KeptEntries> {
        about!(self, Keep, step.id, step.entries.iter().map(|it| (step.id.name.shared(), it.lease.get())) => step);
        wire(step.id.kind).keep(&self.runner, step)
    }

    fn confirm(&self, batch: &[Renew], policy: Durability) -> Reply<Vec<Confirmation>> {
        match &self.durable {
            Some(connections) => connections.confirm(batch, policy, self.runner.asks),
            None => Box::pin(std::future::ready(Err(backend::cannot_confirm()))),
        }
    }

    fn confirms(&self) -> Result<(), &'static str> {
        Ok(())
    }

    fn can_confirm(&self, _id: &LockId, policy: Durability) -> Reply<()> {
        self.is_able(policy)
    }
}

impl WakeUpSteps for Redis {
    fn listen(&self, id: LockId) -> Reply<()> {
        self.subscriptions.listen(id)
    }

    fn unlisten(&self, id: &LockId) -> Reply<()> {
        self.subscriptions.unlisten(id)
    }

    fn classic_listeners(&self, id: &LockId) -> Reply<u64> {
        self.runner.listeners(wire(id.kind).channel(&id.name))
    }

    fn heard(&self) -> Reply<()> {
        self.subscriptions.heard()
    }
}

impl NumberSteps for Redis {
    fn permits(&self, id: LockId, step: Permits, once: Once) -> Reply<i64> {
        about!(self, Permits, id, once.number.get(), step);
        wire(id.kind).permits(&self.runner, id, step, once)
    }
}

impl FencedSteps for Redis {
    fn write(&self, step: FencedWrite) -> Reply<Written> {
        fenced_store::write(&self.runner, &step)
    }

    fn read(&self, step: FencedRead) -> Reply<Option<Vec<u8>>> {
        fenced_store::read(&self.runner, &step)
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}
