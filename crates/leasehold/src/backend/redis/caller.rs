//! Calls scripts in the name of a client, and reads their replies.

use std::sync::Arc;

use redis::Value;

use super::{
    commands::Commands,
    failure::in_words,
    script::{Call, unexpected},
};
use crate::{
    backend::{Failure, Inspection, Reply},
    config::{Config, millis},
    error::Cause,
};

/// The name of this library's connections in `CLIENT LIST`: this, the client's uuid, its label.
pub(super) const CONNECTION_NAME: &str = "leasehold";

/// Calls scripts for one client.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) client: Arc<str>,
    /// How long fencing tokens are kept; zero: for ever.
    pub(super) token_ms: u64,
    /// After how long without being heard a waiter of a fair mutex is dead.
    pub(super) dead_ms: u64,
    /// Several locks are looked at together, and the labels are added to all at once.
    leaves_labels: bool,
    commands: Arc<Commands>,
}

impl Caller {
    pub(super) fn new(client: &Arc<str>, config: &Config, commands: Commands) -> Caller {
        Caller {
            client: Arc::clone(client),
            token_ms: config.token_retention.map_or(0, millis),
            dead_ms: millis(config.fair_wait_timeout),
            leaves_labels: false,
            commands: Arc::new(commands),
        }
    }

    /// The same, whose looks leave the labels to [`add_labels`](Caller::add_labels).
    pub(super) fn without_labels(&self) -> Caller {
        Caller {
            leaves_labels: true,
            ..self.clone()
        }
    }

    /// Makes the first connection now.
    pub(super) async fn connect(&self) -> Result<(), Failure> {
        self.commands.connect().await
    }

    /// Leases are held that will have to be renewed from home.
    pub(super) fn prepare(&self) {
        self.commands.prepare();
    }

    /// From here on a connection is made only while a command waits for it.
    pub(super) fn shut(&self) {
        self.commands.shut();
    }

    /// No caller is left: what is under way goes on from home.
    pub(super) fn bring_home(&self) {
        self.commands.bring_home();
    }

    /// Why there is no connection, as long as there is none.
    pub(super) fn trouble(&self) -> Option<Cause> {
        self.commands.trouble()
    }

    /// The server that was reached last, if it has said which one it is.
    pub(super) fn identity(&self) -> Option<String> {
        self.commands.identity()
    }

    /// Asks the server which one it is.
    pub(super) fn identify(&self) -> Reply<()> {
        let commands = Arc::clone(&self.commands);
        Box::pin(async move { commands.identify().await })
    }

    /// Whether there has ever been a connection.
    pub(super) fn has_worked(&self) -> bool {
        self.commands.has_worked()
    }

    /// Calls a script, and reads its reply.
    pub(super) fn call<T: Send + 'static>(
        &self,
        call: Call,
        read: impl FnOnce(&Value) -> Option<T> + Send + 'static,
    ) -> Reply<T> {
        let commands = Arc::clone(&self.commands);
        Box::pin(async move {
            let reply = commands.call(call).await?;
            read(&reply).ok_or_else(|| Failure::Rejected(in_words(unexpected(&reply))))
        })
    }

    /// Calls a script that reads the holders of a lock, and adds the labels of the holders' clients.
    pub(super) fn inspect(
        &self,
        call: Call,
        read: impl FnOnce(&Value) -> Option<Inspection> + Send + 'static,
    ) -> Reply<Inspection> {
        let found = self.call(call, read);
        let caller = self.clone();
        Box::pin(async move {
            let mut found = found.await?;
            if !caller.leaves_labels {
                caller.add_labels(&mut [&mut found]).await;
            }
            Ok(found)
        })
    }

    /// Adds the labels of the holders' clients, which the server is asked for once.
    pub(super) async fn add_labels(&self, found: &mut [&mut Inspection]) {
        if found.iter().all(|found| found.owners.is_empty()) {
            return;
        }
        let mut list = redis::cmd("CLIENT");
        list.arg("LIST").arg("TYPE").arg("NORMAL");
        // A holder without a label is still an answer.
        let list = self.commands.command(&list).await.ok();
        let list = list.and_then(|reply| text(&reply)).unwrap_or_default();
        for held in found.iter_mut().flat_map(|found| &mut found.owners) {
            let client = held.owner.split(':').next().unwrap_or_default();
            held.label = label(&list, client);
        }
    }
}

/// The label of the client with this uuid, from the answer to `CLIENT LIST`.
fn label(list: &str, client: &str) -> Option<String> {
    let prefix = format!(" name={CONNECTION_NAME}:{client}:");
    let (_, rest) = list.split_once(&prefix)?;
    rest.split([' ', '\n']).next().map(str::to_owned)
}

/// A reply that is a text. Other clients may have written any bytes; invalid UTF-8 is replaced.
pub(super) fn text(reply: &Value) -> Option<String> {
    match reply {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_is_found_in_the_client_list() {
        let list = "id=3 addr=1.2.3.4:5 name=other db=0\nid=4 addr=1.2.3.4:6 name=leasehold:ab-1:host:42 db=0\n";
        assert_eq!(label(list, "ab-1").as_deref(), Some("host:42"));
        assert_eq!(label(list, "ab-2"), None);
    }
}
