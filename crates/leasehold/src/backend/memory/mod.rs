//! Leases in memory, on tokio time: the embedded store of the demo, and a store for users' own tests. The conformance suite holds it and the servers
//! to the same answers.

mod kinds;
mod server;
pub(crate) mod store;

use std::{fmt, future::Future, sync::Arc, time::Duration};

pub use server::MemoryServer;

use crate::{
    backend::{
        Acquire, Acquired, Backend, ConnectedClients, Count, Counted, Downgrade, Extend, Failure,
        FencedSteps, ForceUnlock, Inspection, Keep, KeptEntries, LockSteps, NumberSteps, Once,
        Permits, Release, ReleaseReply, Renew, Renewal, Reply, ServerFacts, ServerLink, Sink,
        WakeUpSteps,
        fenced::{FencedRead, FencedWrite, Written},
        find::{FindPage, FoundPage},
    },
    config::Config,
    kind::{Access, LockKind},
    name::LockId,
    outage::Outage,
    owner::LeaseId,
};
use store::{Store, Subscriber};

/// A client of a [`MemoryServer`].
pub(crate) struct Memory {
    server: MemoryServer,
    client: Arc<str>,
    subscriber: Arc<Subscriber>,
    timeout: Duration,
    /// How long fencing tokens are kept.
    retention: Option<Duration>,
    outage: Arc<Outage>,
}

pub(crate) fn client_of(
    server: MemoryServer,
    client: &Arc<str>,
    label: String,
    config: &Config,
    sink: Arc<dyn Sink>,
) -> Box<dyn Backend> {
    Box::new(Memory::new(server, client, label, config, sink))
}

impl Memory {
    fn new(
        server: MemoryServer,
        client: &Arc<str>,
        label: String,
        config: &Config,
        sink: Arc<dyn Sink>,
    ) -> Memory {
        let subscriber = Arc::new(Subscriber::new(client, sink));
        server.join(&subscriber, label);
        let outage = Outage::new("memory".to_owned(), server.clock());
        Memory {
            server,
            client: Arc::clone(client),
            subscriber,
            timeout: config.operation_timeout,
            retention: config.token_retention,
            outage: Arc::new(outage),
        }
    }

    /// Carries out a step, with the faults the server is told to show.
    fn step<T: Clone + fmt::Debug + Send + 'static>(
        &self,
        step: impl FnOnce(&mut Store, &Arc<str>) -> Result<T, Failure> + Send + 'static,
    ) -> Reply<T> {
        let server = self.server.clone();
        let client = Arc::clone(&self.client);
        let timeout = self.timeout;
        let outage = Arc::clone(&self.outage);
        Box::pin(async move {
            let carried_out = server.carry_out(move |store| step(store, &client));
            let answer = in_time(timeout, carried_out).await;
            match &answer {
                // A refusal is an answer, and ends an outage as any other.
                Err(Failure::NotSent(cause) | Failure::Ambiguous(cause)) => outage.goes_on(cause),
                _ => outage.is_over(),
            }
            answer
        })
    }
}

async fn in_time<T>(
    timeout: Duration,
    answer: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(timeout, answer).await {
        Ok(answer) => answer,
        // The step may be carried out at this very moment: the time says only that no answer has come.
        Err(elapsed) => Err(Failure::Ambiguous(Arc::new(elapsed))),
    }
}

/// Requests are about locks as the server knows them.
impl LockSteps for Memory {
    fn acquire(&self, mut step: Acquire) -> Reply<Acquired> {
        // A spin mutex is a mutex on the server, and all tasks that wait for a fair mutex ask for the same lock.
        step.id = step.id.on_server();
        let retention = self.retention;
        self.step(move |store, client| {
            // The store has holds apart for each kind. On a server another kind's key is in the way, and the script refuses it.
            store.check_kind(&step.id)?;
            let store = store.keep_tokens(retention);
            Ok(store.acquire(client, &step))
        })
    }

    fn release(&self, mut step: Release) -> Reply<ReleaseReply> {
        step.id = step.id.on_server();
        let retention = self.retention;
        self.step(move |store, client| {
            let store = store.keep_tokens(retention);
            Ok(store.release(client, &step))
        })
    }

    fn renew(&self, batch: Arc<[Renew]>) -> Reply<Vec<Renewal>> {
        let batch: Vec<Renew> = batch
            .iter()
            .map(|renew| Renew {
                id: renew.id.clone().on_server(),
                ..renew.clone()
            })
            .collect();
        self.step(move |store, client| {
            let answers = batch.iter().map(|renew| store.renew(client, renew));
            Ok(answers.collect())
        })
    }

    fn extend(&self, mut step: Extend) -> Reply<Option<Duration>> {
        step.id = step.id.on_server();
        // No look at the kind, as with each step on a hold that is there: holds are stored by kind, so no other kind's is found.
        self.step(move |store, client| Ok(store.extend(client, &step)))
    }

    fn count(&self, mut step: Count) -> Reply<Counted> {
        step.id = step.id.on_server();
        self.step(move |store, client| Ok(store.count(client, &step)))
    }

    fn downgrade(&self, step: Downgrade) -> Reply<bool> {
        self.step(move |store, client| Ok(store.downgrade(client, &step)))
    }

    fn inspect(&self, id: LockId) -> Reply<Inspection> {
        let id = id.on_server();
        self.step(move |store, _| {
            store.check_kind(&id)?;
            Ok(store.inspect(&id))
        })
    }

    fn find(&self, step: FindPage) -> Reply<FoundPage> {
        self.step(move |store, _| Ok(store.find(&step)))
    }

    fn force_unlock(&self, mut step: ForceUnlock) -> Reply<Vec<String>> {
        step.id = step.id.on_server();
        let retention = self.retention;
        self.step(move |store, _| {
            store.check_kind(&step.id)?;
            let store = store.keep_tokens(retention);
            Ok(store.force_unlock(&step))
        })
    }

    fn keep(&self, step: Keep) -> Reply<KeptEntries> {
        self.step(move |store, client| {
            store.check_kind(&step.id)?;
            Ok(store.keep(client, &step))
        })
    }

    fn owner(&self, kind: LockKind, access: Access, lease: LeaseId) -> String {
        kinds::rules(kind).owner(&self.client, access, lease)
    }
}

impl WakeUpSteps for Memory {
    fn listen(&self, id: LockId) -> Reply<()> {
        let subscriber = Arc::clone(&self.subscriber);
        self.step(move |store, client| {
            store.listen(client, &id, &subscriber);
            Ok(())
        })
    }

    fn unlisten(&self, id: &LockId) -> Reply<()> {
        // Here and not within the reply, which callers drop without a poll.
        self.server.unlisten(&self.client, id);
        Box::pin(std::future::ready(Ok(())))
    }
}

impl NumberSteps for Memory {
    fn permits(&self, id: LockId, step: Permits, once: Once) -> Reply<i64> {
        self.step(move |store, client| {
            store.check_kind(&id)?;
            Ok(store.permits(client, &id, step, once))
        })
    }
}

impl FencedSteps for Memory {
    fn write(&self, step: FencedWrite) -> Reply<Written> {
        let retention = self.retention;
        self.step(move |store, _| store.keep_tokens(retention).write(&step))
    }

    fn read(&self, step: FencedRead) -> Reply<Option<Vec<u8>>> {
        self.step(move |store, _| store.read(&step))
    }
}

impl ServerLink for Memory {
    /// At once, past the network and its faults: no lock depends on it.
    fn show(&self, lasts_ms: u64) -> Reply<()> {
        let lasts = Duration::from_millis(lasts_ms);
        self.server.show(&self.client, lasts);
        Box::pin(std::future::ready(Ok(())))
    }

    fn server(&self) -> String {
        self.server.called()
    }

    fn connections(&self) -> Reply<ConnectedClients> {
        self.step(|store, _| Ok(store.connections()))
    }

    fn has_reached(&self) -> bool {
        true
    }

    fn outage(&self) -> &Outage {
        &self.outage
    }

    fn said(&self) -> ServerFacts {
        ServerFacts {
            started: self.server.restarted(),
            is_replica: false,
        }
    }

    fn trouble(&self) -> Option<crate::error::Cause> {
        None
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.server.part(&self.client);
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory")
    }
}
