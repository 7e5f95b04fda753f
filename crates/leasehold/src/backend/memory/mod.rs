//! Leases in memory, on tokio time: the readable specification of what the scripts in `backend/redis` do,
//! the embedded store of the demo, and what users' own tests run on.

mod server;
mod store;

use std::{
    fmt,
    sync::{Arc, Weak},
};

pub use server::MemoryServer;

use crate::{
    backend::{
        Acquire, Acquired, Backend, Failure, Inspection, Release, Released, Renew, Renewal, Reply,
    },
    config::Config,
    name::Name,
    owner::LeaseId,
    wakeup::WakeUps,
};
use store::{Ears, Store};

/// One client of a [`MemoryServer`].
pub(crate) struct Memory {
    server: MemoryServer,
    client: Arc<str>,
    ears: Arc<Ears>,
    timeout: std::time::Duration,
}

impl Memory {
    pub(crate) fn new(
        server: MemoryServer,
        client: &Arc<str>,
        label: String,
        config: &Config,
        wake_ups: Arc<WakeUps>,
    ) -> Memory {
        let ears = Arc::new(Ears::new(client, wake_ups));
        server.join(client, label);
        Memory {
            server,
            client: Arc::clone(client),
            ears,
            timeout: config.operation_timeout,
        }
    }

    /// One step, with the faults the server is told to show.
    fn step<T: Send + 'static>(
        &self,
        step: impl FnOnce(&mut Store, &Arc<str>) -> Result<T, Failure> + Send + 'static,
    ) -> Reply<T> {
        let server = self.server.clone();
        let client = Arc::clone(&self.client);
        let timeout = self.timeout;
        Box::pin(async move {
            let carried_out = server.carry_out(move |store| step(store, &client));
            match tokio::time::timeout(timeout, carried_out).await {
                Ok(answer) => answer,
                Err(elapsed) => Err(Failure::Ambiguous(Arc::new(elapsed))),
            }
        })
    }
}

impl Backend for Memory {
    fn acquire(&self, step: Acquire) -> Reply<Acquired> {
        self.step(move |store, client| Ok(store.acquire(client, &step)))
    }

    fn release(&self, step: Release) -> Reply<Released> {
        self.step(move |store, client| Ok(store.release(client, &step)))
    }

    fn renew(&self, batch: &[Renew<'_>]) -> Reply<Vec<Renewal>> {
        let batch: Vec<_> = batch
            .iter()
            .map(|renew| (renew.name.clone(), renew.lease, renew.lease_ms))
            .collect();
        self.step(move |store, client| {
            let answers = batch.iter().map(|(name, lease, lease_ms)| {
                let (lease, lease_ms) = (*lease, *lease_ms);
                store.renew(
                    client,
                    &Renew {
                        name,
                        lease,
                        lease_ms,
                    },
                )
            });
            Ok(answers.collect())
        })
    }

    fn extend(
        &self,
        name: Name,
        lease: LeaseId,
        lease_ms: u64,
    ) -> Reply<Option<std::time::Duration>> {
        self.step(move |store, client| Ok(store.extend(client, &name, lease, lease_ms)))
    }

    fn count(&self, name: Name, lease: LeaseId, holds: u32) -> Reply<bool> {
        self.step(move |store, client| Ok(store.count(client, &name, lease, holds)))
    }

    fn inspect(&self, name: Name) -> Reply<Inspection> {
        self.step(move |store, _| Ok(store.inspect(&name)))
    }

    fn force_unlock(&self, name: Name) -> Reply<Vec<String>> {
        self.step(move |store, _| Ok(store.force_unlock(&name)))
    }

    fn listen(&self, name: Name) -> Reply<()> {
        let ears = Arc::clone(&self.ears);
        self.step(move |store, client| {
            store.listen(client, &name, &ears);
            Ok(())
        })
    }

    fn unlisten(&self, name: &Name) {
        self.server.unlisten(&self.client, name);
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

/// The server keeps no client alive.
type Listener = Weak<Ears>;
