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
mod exchange;
mod failure;
mod fenced_store;
mod find;
mod handshake;
mod hang_up;
mod kinds;
mod labels;
mod link;
mod login;
mod node;
mod pubsub;
mod renew;
mod repeats;
mod replicas;
mod report;
mod restart;
mod rights;
mod router;
mod script;
mod script_runner;
mod server_link;
mod sharding;
mod silence;
#[cfg(feature = "sim")]
mod simulated;
mod steps;
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
#[cfg(feature = "sim")]
pub use exchange::simulated::{AnswerForm, PlayedConnection};
#[cfg(feature = "redis-1")]
pub(crate) use redis::ConnectionInfo;
#[cfg(feature = "sim")]
pub use redis::Value;
#[cfg(feature = "sim")]
pub(crate) use simulated::simulated;
pub(crate) use target::Login;

use crate::{
    backend::{
        Inspection, Reply, ServerLink, Sink, WakeUpSteps,
        find::{FindPage, FoundPage},
    },
    background::BackgroundRuntime,
    clock::Clock,
    config::Config,
    durability::Durability,
    error::Error,
    name::LockId,
    outage::Outage,
};
use commands::Commands;
use discovery::Discovery;
use durable::DurableConnections;
use labels::ClientLabel;
use node::NodeSteps;
use repeats::{Repeats, Replaceable};
use restart::RestartLog;
use router::{NodeAnswer, Route, Router};
use script_runner::ScriptRunner;
use subscriptions::{Hearing, Subscriptions};

/// A client of a server.
#[derive(Clone)]
pub(crate) struct Redis {
    steps: NodeSteps,
    /// Where another server may take the place of this one.
    repeats: Option<Arc<Repeats>>,
    outage: Arc<Outage>,
    shown: Arc<str>,
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
        let connections = Arc::clone(&commands.connections);
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
            steps: NodeSteps {
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
                durable: Some(Arc::new(durable)),
            },
            repeats: None,
            outage,
            shown: shown.into(),
        }
    }

    /// A server of its own, whose place another may take, or the same with older data: what it confirmed is given back there once more. A
    /// cluster and a majority see to that above their servers.
    pub(crate) fn repeating(mut self, background: &BackgroundRuntime) -> Redis {
        self.repeats = Some(Repeats::new(&self.steps, background));
        self
    }

    /// `None` in a simulation, which has no connections.
    fn commands(&self) -> Option<&Arc<Commands>> {
        self.steps.runner.commands()
    }

    fn is_in_trouble(&self) -> bool {
        self.trouble().is_some()
    }

    /// Whether it can do what a policy asks for.
    pub(crate) fn is_able(&self, policy: Durability) -> Reply<()> {
        self.steps.is_able(policy)
    }

    /// The server is not to be used any more: those that wait for a connection are told so.
    fn abandon(&self, successor: Option<&Redis>) {
        if let Some(commands) = self.commands() {
            commands.connections.abandon();
        }
        if let Some(connections) = &self.steps.durable {
            connections.abandon();
        }
        let successor = successor.map(|redis| &*redis.shown);
        // The node may never answer again, and no answer would end its outage then (bug 241).
        self.outage.is_over_by(successor);
    }

    /// Connects now.
    pub(crate) async fn connect(&self) -> Result<(), Error> {
        self.dial().await.map_err(|failure| {
            failure.into_error(format!("connect to {}", self.shown), Duration::ZERO)
        })
    }
}

impl Router for Redis {
    type Servers = Repeats;

    fn send<T: Send + 'static>(
        &self,
        _: Route,
        step: impl Fn(&NodeSteps) -> Reply<T> + Send + Sync + 'static,
    ) -> Reply<NodeAnswer<T>> {
        // Read before the send. If a restart comes in between, a release counts for the server of before, and is repeated once too often (B4).
        let by = self.repeats.as_ref().map_or(0, |repeats| repeats.changes());
        let answer = step(&self.steps);
        Box::pin(async move {
            let value = answer.await?;
            Ok(NodeAnswer {
                value,
                by,
                partly: None,
            })
        })
    }

    fn replaceable(&self) -> Option<&Arc<Repeats>> {
        self.repeats.as_ref()
    }

    fn steps(&self) -> NodeSteps {
        self.steps.clone()
    }

    fn page(&self, step: FindPage) -> Reply<FoundPage> {
        find::find(&self.steps.runner, &step)
    }

    fn inspect_each(&self, ids: Vec<LockId>) -> Reply<Vec<(LockId, Inspection)>> {
        find::inspect_all(&self.steps.runner, ids)
    }
}

impl WakeUpSteps for Redis {
    fn listen(&self, id: LockId) -> Reply<()> {
        self.steps.subscriptions.listen(id)
    }

    fn unlisten(&self, id: &LockId) -> Reply<()> {
        self.steps.subscriptions.unlisten(id)
    }

    fn classic_listeners(&self, id: &LockId) -> Reply<u64> {
        self.steps.classic_listeners(id)
    }

    fn heard(&self) -> Reply<()> {
        self.steps.subscriptions.heard()
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}
