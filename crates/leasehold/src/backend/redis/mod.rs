//! Leases on a Redis or Valkey server. The only files that name the redis crate are in this folder.
//!
//! Commands and subscriptions travel on connections of their own ("lanes"): an unsubscription that the
//! server sends unasked must never be taken for the answer to a command. Each runtime that sends commands has a lane,
//! and so has the client's home, which sends renewals and hears subscriptions.

mod caller;
mod commands;
mod failure;
mod fenced_store;
mod kinds;
mod lanes;
mod script;
mod subscriptions;
mod target;

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::{OptionFuture, join_all};
pub(crate) use target::{Login, Target};

use crate::{
    backend::{
        Acquire, Acquired, Backend, Count, Counted, Extend, Inspection, Permits, Release,
        ReleaseReply, Renew, Renewal, Reply, Sink,
        fenced::{FencedRead, FencedWrite, Written},
    },
    callout,
    config::Config,
    error::Error,
    home::Home,
    kind::{Access, LockKind},
    name::LockId,
    owner::LeaseId,
};
use caller::{CONNECTION_NAME, Caller};
use commands::Commands;
use kinds::wire;
use subscriptions::Subscriptions;

/// One client of a server.
pub(crate) struct Redis {
    caller: Caller,
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
            caller: Caller::new(client, config, commands),
            subscriptions: Subscriptions::new(target, client, config, sink, home),
            shown,
        })
    }
}

impl Backend for Redis {
    fn acquire(&self, step: Acquire) -> Reply<Acquired> {
        wire(step.id.kind).acquire(&self.caller, step)
    }

    fn release(&self, mut step: Release) -> Reply<ReleaseReply> {
        // Also a subscription that is on its way to its end.
        step.listening |= self.subscriptions.is_counted(&step.id);
        wire(step.id.kind).release(&self.caller, step)
    }

    fn renew(&self, batch: &[Renew<'_>]) -> Reply<Vec<Renewal>> {
        let Some(first) = batch.first() else {
            return Box::pin(std::future::ready(Ok(Vec::new())));
        };
        let kind = first.id.kind;
        if batch.iter().all(|renew| renew.id.kind == kind) {
            return wire(kind).renew(&self.caller, batch);
        }
        let asked = batch.len();
        let of_kinds = LockKind::ALL.map(|kind| {
            let of_kind = batch.iter().enumerate();
            let of_kind = of_kind.filter(|(_, renew)| renew.id.kind == kind);
            let (at, renews): (Vec<usize>, Vec<Renew<'_>>) = of_kind.unzip();
            let answer = (!at.is_empty()).then(|| wire(kind).renew(&self.caller, &renews));
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
                    Some(Err(failure)) => {
                        let cause = failure.cause();
                        callout::quietly(|| {
                            tracing::warn!(names = at.len(), %cause, "leases of one kind not renewed");
                        });
                    }
                    None => {}
                }
            }
            Ok(renewals)
        })
    }

    fn extend(&self, step: Extend) -> Reply<Option<Duration>> {
        wire(step.id.kind).extend(&self.caller, step)
    }

    fn count(&self, mut step: Count) -> Reply<Counted> {
        step.listening |= self.subscriptions.is_counted(&step.id);
        wire(step.id.kind).count(&self.caller, step)
    }

    fn inspect(&self, id: LockId) -> Reply<Inspection> {
        wire(id.kind).inspect(&self.caller, id)
    }

    fn force_unlock(&self, id: LockId) -> Reply<Vec<String>> {
        wire(id.kind).force_unlock(&self.caller, id)
    }

    fn owner(&self, kind: LockKind, access: Access, lease: LeaseId) -> String {
        wire(kind).owner(&self.caller, access, lease)
    }

    fn permits(&self, id: LockId, step: Permits) -> Reply<i64> {
        wire(id.kind).permits(&self.caller, id, step)
    }

    fn write(&self, step: FencedWrite) -> Reply<Written> {
        fenced_store::write(&self.caller, &step)
    }

    fn read(&self, step: FencedRead) -> Reply<Option<Vec<u8>>> {
        fenced_store::read(&self.caller, &step)
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
        self.caller.prepare();
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}
