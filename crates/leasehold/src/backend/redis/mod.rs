//! Leases on a Redis or Valkey server. The only files that name the redis crate are in this folder.
//!
//! Commands and subscriptions travel on connections of their own ("lanes"): an unsubscription that the
//! server sends unasked must never be taken for the answer to a command. Each runtime that sends commands has a lane,
//! and so has the client's home, where renewals are sent and subscriptions are heard.

mod commands;
mod failure;
mod kinds;
mod lanes;
mod script;
mod subscriptions;
mod target;

use std::{fmt, sync::Arc, time::Duration};

use redis::Value;

pub(crate) use target::{Login, Target};

use crate::{
    backend::{
        Acquire, Acquired, Backend, Count, Counted, Extend, Failure, Inspection, Permits, Release,
        ReleaseReply, Renew, Renewal, Reply, Sink,
    },
    config::Config,
    error::Error,
    home::Home,
    kind::{Access, LockKind},
    name::LockId,
    owner::LeaseId,
};
use commands::Commands;
use kinds::wire;
use script::{Call, unexpected};
use subscriptions::Subscriptions;

/// One client of a server.
pub(crate) struct Redis {
    client: Arc<str>,
    commands: Arc<Commands>,
    subscriptions: Subscriptions,
    shown: String,
}

impl Redis {
    pub(crate) async fn connect(
        target: Target,
        client: &Arc<str>,
        label: &str,
        config: &Config,
        sink: Arc<dyn Sink>,
        home: &Home,
    ) -> Result<Redis, Error> {
        let shown = target.to_string();
        let target = Arc::new(target);
        let connection_name = format!("{CONNECTION_NAME}:{client}:{label}");
        let commands =
            Commands::connect(Arc::clone(&target), connection_name, config, home).await?;
        Ok(Redis {
            client: Arc::clone(client),
            commands: Arc::new(commands),
            subscriptions: Subscriptions::new(target, client, config, sink, home),
            shown,
        })
    }
}

impl Backend for Redis {
    fn acquire(&self, step: Acquire) -> Reply<Acquired> {
        wire(step.id.kind).acquire(self, step)
    }

    fn release(&self, step: Release) -> Reply<ReleaseReply> {
        wire(step.id.kind).release(self, step)
    }

    fn renew(&self, batch: &[Renew<'_>]) -> Reply<Vec<Renewal>> {
        let Some(first) = batch.first() else {
            return Box::pin(std::future::ready(Ok(Vec::new())));
        };
        let kind = first.id.kind;
        if batch.iter().all(|renew| renew.id.kind == kind) {
            return wire(kind).renew(self, batch);
        }
        let runs: Vec<_> = batch
            .chunk_by(|a, b| a.id.kind == b.id.kind)
            .map(|run| wire(run[0].id.kind).renew(self, run))
            .collect();
        Box::pin(async move {
            let answers = futures_util::future::try_join_all(runs).await?;
            Ok(answers.concat())
        })
    }

    fn extend(&self, step: Extend) -> Reply<Option<Duration>> {
        wire(step.id.kind).extend(self, step)
    }

    fn count(&self, step: Count) -> Reply<Counted> {
        wire(step.id.kind).count(self, step)
    }

    fn inspect(&self, id: LockId) -> Reply<Inspection> {
        wire(id.kind).inspect(self, id)
    }

    fn force_unlock(&self, id: LockId) -> Reply<Vec<String>> {
        wire(id.kind).force_unlock(self, id)
    }

    fn owner(&self, kind: LockKind, access: Access, lease: LeaseId) -> String {
        wire(kind).owner(self, access, lease)
    }

    fn permits(&self, id: LockId, step: Permits) -> Reply<i64> {
        wire(id.kind).permits(self, id, step)
    }

    fn listen(&self, id: LockId) -> Reply<()> {
        self.subscriptions.listen(id)
    }

    fn unlisten(&self, id: &LockId) -> Reply<()> {
        self.subscriptions.unlisten(id)
    }

    fn heard(&self) -> Reply<()> {
        self.subscriptions.heard()
    }

    fn prepare(&self) {
        self.commands.prepare();
    }
}

impl Redis {
    /// Calls a script, and reads its reply.
    fn call<T: Send + 'static>(
        &self,
        call: Call,
        read: impl FnOnce(&Value) -> Option<T> + Send + 'static,
    ) -> Reply<T> {
        let commands = Arc::clone(&self.commands);
        Box::pin(async move {
            let reply = commands.call(call).await?;
            read(&reply).ok_or_else(|| Failure::Rejected(Arc::new(unexpected(&reply))))
        })
    }

    /// Calls a script that reads who holds a lock, and adds what the holders' clients call themselves.
    fn inspect(
        &self,
        call: Call,
        read: impl FnOnce(&Value) -> Option<Inspection> + Send + 'static,
    ) -> Reply<Inspection> {
        let found = self.call(call, read);
        let commands = Arc::clone(&self.commands);
        Box::pin(async move {
            let mut found = found.await?;
            if !found.owners.is_empty() {
                let mut list = redis::cmd("CLIENT");
                list.arg("LIST").arg("TYPE").arg("NORMAL");
                // A holder without a label is still an answer.
                let list = commands.command(&list).await.ok();
                let list = list.and_then(|reply| kinds::text(&reply));
                let list = list.unwrap_or_default();
                for held in &mut found.owners {
                    let client = held.owner.split(':').next().unwrap_or_default();
                    held.label = label(&list, client);
                }
            }
            Ok(found)
        })
    }
}

/// What the client of this uuid calls itself, from the answer to `CLIENT LIST`.
fn label(list: &str, client: &str) -> Option<String> {
    let prefix = format!(" name={CONNECTION_NAME}:{client}:");
    let (_, rest) = list.split_once(&prefix)?;
    rest.split([' ', '\n']).next().map(str::to_owned)
}

/// How our connections are called in `CLIENT LIST`: this, the client's uuid, its label.
const CONNECTION_NAME: &str = "leasehold";

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
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
