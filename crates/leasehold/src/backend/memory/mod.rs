//! Leases in memory, on tokio time: the readable specification of what the scripts in `backend/redis` do,
//! the embedded store of the demo, and what users' own tests run on.

mod server;
pub(crate) mod store;

use std::{
    fmt,
    future::Future,
    sync::{Arc, Weak},
    time::Duration,
};

pub use server::MemoryServer;

#[cfg(feature = "sim")]
use crate::sim;
use crate::{
    backend::{
        Acquire, Acquired, Backend, Failure, Inspection, Release, ReleaseReply, Renew, Renewal,
        Reply, Sink,
    },
    config::Config,
    name::Name,
    owner::LeaseId,
};
use store::{Store, Subscriber};

/// One client of a [`MemoryServer`].
pub(crate) struct Memory {
    server: MemoryServer,
    client: Arc<str>,
    subscriber: Arc<Subscriber>,
    timeout: Duration,
}

impl Memory {
    pub(crate) fn new(
        server: MemoryServer,
        client: &Arc<str>,
        label: String,
        config: &Config,
        sink: Arc<dyn Sink>,
    ) -> Memory {
        let subscriber = Arc::new(Subscriber::new(client, sink));
        server.join(client, label);
        Memory {
            server,
            client: Arc::clone(client),
            subscriber,
            timeout: config.operation_timeout,
        }
    }

    /// One step, with the faults the server is told to show.
    fn step<T: Clone + fmt::Debug + Send + 'static>(
        &self,
        what: What,
        step: impl Fn(&mut Store, &Arc<str>) -> Result<T, Failure> + Send + 'static,
    ) -> Reply<T> {
        let server = self.server.clone();
        let client = Arc::clone(&self.client);
        let timeout = self.timeout;
        #[cfg(feature = "sim")]
        if self.server.network().is_some() {
            let answer = self.send(what, move |store| step(store, &client));
            return Box::pin(in_time(timeout, answer));
        }
        let _ = what;
        Box::pin(async move {
            let carried_out = server.carry_out(move |store| step(store, &client));
            in_time(timeout, carried_out).await
        })
    }

    /// Through the simulated network. A request leaves when it is first polled, as on a real server.
    #[cfg(feature = "sim")]
    fn send<T: Clone + fmt::Debug + Send + 'static>(
        &self,
        (kind, about, what): What,
        step: impl Fn(&mut Store) -> Result<T, Failure> + Send + 'static,
    ) -> Reply<T> {
        let (server, client) = (self.server.clone(), Arc::clone(&self.client));
        Box::pin(async move {
            let (request, answer) = sim::Request::new(&client, kind, about, what, step);
            if let Some(network) = server.network() {
                network.send(request);
            }
            answer.await
        })
    }
}

async fn in_time<T>(
    timeout: Duration,
    answer: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    #[cfg(feature = "sim")]
    sim::set_timer(tokio::time::Instant::now() + timeout);
    match tokio::time::timeout(timeout, answer).await {
        Ok(answer) => answer,
        Err(elapsed) => Err(Failure::Ambiguous(Arc::new(elapsed))),
    }
}

/// A step in words, for the simulation.
#[cfg(feature = "sim")]
type What = (
    sim::Kind,
    Vec<(Arc<str>, u64)>,
    Box<dyn fmt::Debug + Send + Sync>,
);
#[cfg(not(feature = "sim"))]
#[derive(Clone, Copy)]
struct What;

macro_rules! what {
    ($kind:ident, $name:expr, $lease:expr, $what:expr) => {{
        #[cfg(feature = "sim")]
        {
            let about = vec![($name.shared(), $lease)];
            let what: Box<dyn fmt::Debug + Send + Sync> = Box::new($what);
            (sim::Kind::$kind, about, what)
        }
        #[cfg(not(feature = "sim"))]
        What
    }};
}

impl Backend for Memory {
    fn acquire(&self, step: Acquire) -> Reply<Acquired> {
        let what = what!(Acquire, step.name, step.lease.get(), step.clone());
        self.step(what, move |store, client| Ok(store.acquire(client, &step)))
    }

    fn release(&self, step: Release) -> Reply<ReleaseReply> {
        let what = what!(Release, step.name, step.lease.get(), step.clone());
        self.step(what, move |store, client| Ok(store.release(client, &step)))
    }

    fn renew(&self, batch: &[Renew<'_>]) -> Reply<Vec<Renewal>> {
        let batch: Vec<_> = batch
            .iter()
            .map(|renew| (renew.name.clone(), renew.lease, renew.lease_ms))
            .collect();
        #[cfg(feature = "sim")]
        let what: What = {
            let about = batch
                .iter()
                .map(|(name, lease, _)| (name.shared(), lease.get()));
            (sim::Kind::Renew, about.collect(), Box::new(batch.clone()))
        };
        #[cfg(not(feature = "sim"))]
        let what = What;
        self.step(what, move |store, client| {
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

    fn extend(&self, name: Name, lease: LeaseId, lease_ms: u64) -> Reply<Option<Duration>> {
        let what = what!(Extend, name, lease.get(), format!("{lease_ms} ms"));
        self.step(what, move |store, client| {
            Ok(store.extend(client, &name, lease, lease_ms))
        })
    }

    fn count(&self, name: Name, lease: LeaseId, holds: u32) -> Reply<bool> {
        let what = what!(Count, name, lease.get(), format!("{holds} holds"));
        self.step(what, move |store, client| {
            Ok(store.count(client, &name, lease, holds))
        })
    }

    fn inspect(&self, name: Name) -> Reply<Inspection> {
        let what = what!(Inspect, name, 0, "");
        self.step(what, move |store, _| Ok(store.inspect(&name)))
    }

    fn force_unlock(&self, name: Name) -> Reply<Vec<String>> {
        let what = what!(ForceUnlock, name, 0, "");
        self.step(what, move |store, _| Ok(store.force_unlock(&name)))
    }

    fn listen(&self, name: Name) -> Reply<()> {
        let subscriber = Arc::clone(&self.subscriber);
        let what = what!(Listen, name, 0, "");
        self.step(what, move |store, client| {
            store.listen(client, &name, &subscriber);
            Ok(())
        })
    }

    fn unlisten(&self, name: &Name) -> Reply<()> {
        #[cfg(feature = "sim")]
        if let Some(network) = self.server.network() {
            let (client, name) = (Arc::clone(&self.client), name.clone());
            let (kind, about, what) = what!(Unlisten, name, 0, "");
            let step = move |store: &mut Store| {
                store.unlisten(&client, &name);
                Ok(())
            };
            let (request, answer) = sim::Request::new(&self.client, kind, about, what, step);
            network.send(request);
            return answer;
        }
        self.server.unlisten(&self.client, name);
        Box::pin(std::future::ready(Ok(())))
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
type Listener = Weak<Subscriber>;
