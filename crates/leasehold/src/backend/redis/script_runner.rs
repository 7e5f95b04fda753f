//! Calls scripts in the name of a client, and reads their replies.

use std::{fmt, sync::Arc};

use redis::{Cmd, RedisResult, Value};

use super::{
    commands::Commands,
    failure::in_words,
    labels::{self, ClientLabel},
    script::{Call, unexpected},
    sharding::Chosen,
};
use crate::{
    backend::{ConnectedClients, Failure, Inspection, Renew, Reply, ServerFacts},
    config::{Config, millis},
    error::Cause,
};

/// Calls scripts for one client.
#[derive(Clone)]
#[allow(clippy::struct_excessive_bools, reason = "none follows from another")]
pub(super) struct ScriptRunner {
    pub(super) client: Arc<str>,
    label: Arc<ClientLabel>,
    /// How long fencing tokens are kept; zero: for ever.
    pub(super) token_ms: u64,
    /// The ids of permits are written as text, which Redisson before 3.17 finds.
    pub(super) text_permit_ids: bool,
    /// After how long without being heard a waiter of a fair mutex is dead.
    pub(super) dead_ms: u64,
    /// Several locks are looked at together, or in a cluster, and the labels are added to all at once.
    leaves_labels: bool,
    /// The server is a node of a cluster.
    pub(super) in_cluster: bool,
    /// Calls go to a node of a cluster that has not got the slot yet.
    pub(super) asks: bool,
    commands: Arc<Commands>,
    chosen: Chosen,
    #[cfg(feature = "sim")]
    transport: Option<super::transport::Transport>,
}

impl ScriptRunner {
    pub(super) fn new(
        client: &Arc<str>,
        label: ClientLabel,
        config: &Config,
        commands: Commands,
    ) -> ScriptRunner {
        ScriptRunner {
            client: Arc::clone(client),
            in_cluster: label.of_node,
            // The cluster adds them.
            leaves_labels: label.of_node,
            label: Arc::new(label),
            token_ms: config.token_retention.map_or(0, millis),
            text_permit_ids: config.text_permit_ids,
            dead_ms: millis(config.fair_wait_timeout),
            asks: false,
            commands: Arc::new(commands),
            chosen: Chosen::default(),
            #[cfg(feature = "sim")]
            transport: None,
        }
    }

    /// The same, whose scripts name channels of the sort that is chosen.
    pub(super) fn on(self, chosen: Chosen) -> ScriptRunner {
        ScriptRunner { chosen, ..self }
    }

    /// Asks this node which sort that is, if it is still to be chosen.
    pub(super) async fn choose(&self) -> Result<(), Failure> {
        if let Some(commands) = self.commands().filter(|_| !self.chosen.is_made()) {
            self.chosen.choose(commands.sharding().await?);
        }
        Ok(())
    }

    /// The same, whose inspections leave the labels to [`add_labels`](ScriptRunner::add_labels).
    pub(super) fn without_labels(&self) -> ScriptRunner {
        ScriptRunner {
            leaves_labels: true,
            ..self.clone()
        }
    }

    /// The same, to a node of a cluster that has not got the slot yet.
    pub(super) fn asking(&self) -> ScriptRunner {
        ScriptRunner {
            asks: true,
            ..self.clone()
        }
    }

    /// Sends a plain command. (A simulation knows one: `CLUSTER SLOTS`.)
    pub(super) async fn command(&self, command: &redis::Cmd) -> Result<Value, Failure> {
        #[cfg(feature = "sim")]
        if let Some(transport) = &self.transport {
            return transport.slots().await;
        }
        self.commands.command(command).await
    }

    /// `None` in a simulation, which has no connections.
    #[cfg_attr(
        not(feature = "sim"),
        expect(clippy::unnecessary_wraps, reason = "of the simulation")
    )]
    pub(super) fn commands(&self) -> Option<&Arc<Commands>> {
        #[cfg(feature = "sim")]
        if self.transport.is_some() {
            return None;
        }
        Some(&self.commands)
    }

    /// Why there is no connection, as long as there is none.
    pub(super) fn trouble(&self) -> Option<Cause> {
        #[cfg(feature = "sim")]
        if let Some(transport) = &self.transport {
            return transport.trouble();
        }
        self.commands.connections.trouble()
    }

    /// The facts that the server has told of itself.
    pub(super) fn said(&self) -> ServerFacts {
        #[cfg(feature = "sim")]
        if let Some(transport) = &self.transport {
            return transport.said();
        }
        self.commands.connections.said()
    }

    /// Calls a script, and reads its reply.
    pub(super) fn call<T: Clone + fmt::Debug + Send + 'static>(
        &self,
        call: Call,
        read: impl Fn(&Value) -> Option<T> + Send + 'static,
    ) -> Reply<T> {
        #[cfg(feature = "sim")]
        if let Some(transport) = &self.transport {
            return transport.call(&call, self.asks, read);
        }
        let commands = Arc::clone(&self.commands);
        let call = call.on(self.chosen.get());
        let call = if self.asks { call.asking() } else { call };
        Box::pin(async move {
            let reply = commands.call(call).await?;
            // A reply of the wrong shape is final: the request was carried out, and another try gets the same (`classify`).
            read(&reply).ok_or_else(|| Failure::Rejected(in_words(unexpected(&reply))))
        })
    }

    /// Calls a script that reads the holders of a lock, and adds what else the server knows of their clients.
    pub(super) fn inspect(
        &self,
        call: Call,
        read: impl Fn(&Value) -> Option<Inspection> + Send + 'static,
    ) -> Reply<Inspection> {
        // A refusal leaves nothing half done, so a user that may only look is not asked for the rights to change.
        let found = self.call(call.only_reads(), read);
        let runner = self.clone();
        Box::pin(async move {
            let mut found = found.await?;
            if !runner.leaves_labels {
                labels::add(&runner.commands, &runner.label, &mut [&mut found], true).await;
            }
            Ok(found)
        })
    }

    /// Adds the labels of the clients of these locks.
    pub(super) async fn add_labels(&self, found: &mut [&mut Inspection]) {
        labels::add(&self.commands, &self.label, found, false).await;
    }

    /// How many clients listen to a classic channel.
    pub(super) fn listeners(&self, channel: String) -> Reply<u64> {
        let Some(commands) = self.commands().cloned() else {
            return Box::pin(std::future::ready(Ok(0)));
        };
        Box::pin(async move {
            let mut ask = redis::cmd("PUBSUB");
            // The server answers with the channel, and its count behind it: so the last value counts.
            ask.arg("NUMSUB").arg(channel);
            let answer = commands.command(&ask).await?;
            Ok(match answer {
                Value::Array(counted) => match counted.last() {
                    // Valkey 9.1 counts some numbers of clients as a negative number (bug 126).
                    Some(Value::Int(count)) => u64::try_from(*count).unwrap_or(0),
                    _ => 0,
                },
                _ => 0,
            })
        })
    }

    /// The labels that it has of clients whose uuids begin so, of one slot where it is a node.
    pub(super) fn labels_of(&self, begins: Vec<String>) -> Reply<Vec<(String, String)>> {
        let Some(commands) = self.commands().cloned() else {
            return Box::pin(std::future::ready(Ok(Vec::new())));
        };
        Box::pin(async move { labels::ask_for_labels(&commands, &begins).await })
    }

    /// The clients that are connected to the server.
    pub(super) async fn clients(&self) -> Result<ConnectedClients, Failure> {
        match self.commands() {
            Some(commands) => labels::clients(commands, &self.label).await,
            None => Ok(ConnectedClients::default()),
        }
    }

    /// Its connections; empty: it does not tell.
    pub(super) async fn connections(&self) -> String {
        match self.commands() {
            Some(commands) => labels::list_of(commands).await,
            None => String::new(),
        }
    }

    /// Calls on other connections, one behind the other, and a command behind them. `leases`: what they are about.
    pub(super) async fn all_on(
        &self,
        commands: &Commands,
        (calls, leases): (&[Call], impl Iterator<Item = &Renew>),
        last: &Cmd,
    ) -> Result<Vec<RedisResult<Value>>, Failure> {
        #[cfg(feature = "sim")]
        if let Some(transport) = &self.transport {
            return transport.all(leases, calls, last).await;
        }
        drop(leases);
        commands.all(calls, last).await
    }

    /// A command on other connections.
    pub(super) async fn command_on(
        &self,
        commands: &Commands,
        command: &Cmd,
    ) -> Result<Value, Failure> {
        #[cfg(feature = "sim")]
        if let Some(transport) = &self.transport {
            return transport.command(command).await;
        }
        commands.command(command).await
    }

    /// Writes the label of this client.
    pub(super) fn show(&self, lasts_ms: u64) -> Reply<()> {
        let Some(commands) = self.commands().cloned() else {
            return Box::pin(std::future::ready(Ok(())));
        };
        let label = Arc::clone(&self.label);
        Box::pin(async move { labels::show(&commands, &label, lasts_ms).await })
    }
}

/// In a simulation: without connections, and so without labels.
#[cfg(feature = "sim")]
impl ScriptRunner {
    pub(super) fn carried_by(self, transport: &super::transport::Transport) -> ScriptRunner {
        ScriptRunner {
            transport: Some(transport.clone()),
            leaves_labels: true,
            ..self
        }
    }

    pub(super) fn transport(&self) -> Option<&super::transport::Transport> {
        self.transport.as_ref()
    }

    /// The same, in the name of another client.
    pub(super) fn called(&self, client: &Arc<str>) -> ScriptRunner {
        ScriptRunner {
            client: Arc::clone(client),
            ..self.clone()
        }
    }
}
