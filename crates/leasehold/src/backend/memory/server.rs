//! The store itself, and its fault injection.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::store::{Store, Subscriber};
use crate::{
    backend::{Failure, Restarted, WakeUp},
    clock::{Clock, Tick},
    error::Cause,
    name::LockId,
};

/// A server in this process: leases in memory, on tokio time.
///
/// Each client of it behaves like a process of its own, so a test can let several contend. It answers as a Redis
/// server with this library's scripts does: one suite of tests asks both. With tokio's paused clock, thirty seconds
/// pass at once. And it shows faults on demand, so that a test can see how its program handles a lost lock.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, LostReason, MemoryServer};
///
/// let server = MemoryServer::new();
/// let client = Client::builder().memory(&server).connect().await?;
/// let guard = client.mutex("order:42").lock().await?;
/// assert_eq!(server.names(), ["order:42"]);
/// server.expire("order:42"); // the server forgets the holder
/// assert!(guard.verify().await.is_err());
/// assert_eq!(guard.lost().await, LostReason::Replaced);
/// # Ok(()) }
/// ```
///
/// Faults, and what a program then sees of them:
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), leasehold::Error> {
/// use std::time::Duration;
/// use leasehold::{Client, MemoryServer};
///
/// let server = MemoryServer::new();
/// let client = Client::builder().memory(&server).connect().await?;
/// let mutex = client.mutex("order:42");
/// server.fail(1); // the next request is refused before it is carried out
/// assert!(mutex.status().await.unwrap_err().is_unreachable());
/// server.drop_replies(1); // it is carried out, and its answer is lost
/// assert!(mutex.status().await.unwrap_err().is_unreachable());
///
/// server.delay(Duration::from_millis(5)); // a slow network
/// let guard = mutex.lock().await?;
/// server.cut(true); // and now none: renewals do not arrive
/// guard.lost().await;
/// server.cut(false);
///
/// let guard = mutex.lock().await?;
/// server.step_clock(Duration::from_secs(40)); // past the end of each lease
/// assert!(guard.verify().await.is_err());
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct MemoryServer(Arc<Shared>);

struct Shared {
    store: Mutex<Store>,
    faults: Mutex<Faults>,
    /// Notified when a fault is taken back.
    healed: Notify,
    origin: Instant,
    /// When it restarted last; zero: never.
    restarted: AtomicU64,
}

#[derive(Debug, Default)]
struct Faults {
    drop_replies: usize,
    fail: usize,
    delay: Duration,
    cut: bool,
}

impl Default for Shared {
    fn default() -> Self {
        let mut store = Store::default();
        let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        store.set_epoch(epoch.unwrap_or_default());
        Shared {
            store: Mutex::new(store),
            faults: Mutex::default(),
            healed: Notify::new(),
            origin: Instant::now(),
            restarted: AtomicU64::new(0),
        }
    }
}

impl MemoryServer {
    /// An empty server.
    pub fn new() -> MemoryServer {
        MemoryServer::default()
    }

    /// `memory:` is a server of its own, `memory:NAME` one for the whole process; anything else is none.
    pub(crate) fn from_url(url: &str) -> Option<MemoryServer> {
        static NAMED: LazyLock<Mutex<HashMap<String, MemoryServer>>> =
            LazyLock::new(Mutex::default);
        match url.strip_prefix("memory:")? {
            "" => Some(MemoryServer::new()),
            // Kept for as long as the process runs: a later client of this name finds the locks of those before.
            name => Some(NAMED.lock().entry(name.to_owned()).or_default().clone()),
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        Clock::Tokio(self.0.origin)
    }

    /// A name that no other server of this process has.
    pub(crate) fn called(&self) -> String {
        format!("memory:{:p}", Arc::as_ptr(&self.0))
    }

    /// The names that are held now.
    pub fn names(&self) -> Vec<String> {
        let mut store = self.0.store.lock();
        // Only the clock takes out holds that have ended, and no step may have set it since.
        store.set_clock(self.0.origin.elapsed());
        let mut names: Vec<_> = store
            .held
            .keys()
            .map(|id| id.name.wire().to_owned())
            .collect();
        names.dedup();
        names
    }

    /// Lets the server forget the holder of a name, as an eviction does. `false` if there is none.
    ///
    /// No client is told: the holder learns it from its next renewal, waiters at the end of its lease.
    pub fn expire(&self, name: &str) -> bool {
        let mut store = self.0.store.lock();
        let before = store.held.len();
        store.held.retain(|id, _| id.name.wire() != name);
        store.held.len() < before
    }

    /// The next `count` operations are carried out, but their answers get lost.
    pub fn drop_replies(&self, count: usize) {
        self.0.faults.lock().drop_replies = count;
    }

    /// The next `count` operations are refused before they are carried out.
    pub fn fail(&self, count: usize) {
        self.0.faults.lock().fail = count;
    }

    /// Delays each operation by `each_way`, each way.
    pub fn delay(&self, each_way: Duration) {
        self.0.faults.lock().delay = each_way;
    }

    /// While on, no operation arrives and no message is delivered.
    pub fn cut(&self, on: bool) {
        self.0.faults.lock().cut = on;
        self.0.store.lock().cut = on;
        if !on {
            self.0.healed.notify_waiters();
            // Messages of the cut are lost; clients that listen are told that there may have been some.
            let mut store = self.0.store.lock();
            store.tell_everyone();
            let outbox = std::mem::take(&mut store.outbox);
            drop(store);
            deliver(outbox);
        }
    }

    /// The server restarts without its data, as one that keeps nothing on disk, or a replica that had nothing yet and takes its place.
    ///
    /// Its clients notice that at once, as on a real server when they are connected again: each verifies what it holds, and holders
    /// are told [`LostReason::Failover`](crate::LostReason::Failover). In a [quorum](crate::ClientBuilder::quorum_memory) its vote does not
    /// count for a while.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, LostReason, MemoryServer};
    ///
    /// let server = MemoryServer::new();
    /// let client = Client::builder().memory(&server).connect().await?;
    /// let guard = client.mutex("order:42").lock().await?;
    /// server.restart_empty();
    /// assert_eq!(guard.lost().await, LostReason::Failover);
    /// # Ok(()) }
    /// ```
    pub fn restart_empty(&self) {
        let now = self.clock().now();
        // First: a client that finds the store empty must find this server in quarantine as well (QB6).
        self.0.restarted.store(now.nanos(), Ordering::Release);
        let (outbox, clients) = {
            let mut store = self.0.store.lock();
            store.forget();
            // The messages of the gap are lost.
            let ids: Vec<LockId> = store.listeners.keys().cloned().collect();
            for id in ids {
                store.tell_all(&id);
            }
            (std::mem::take(&mut store.outbox), store.clients())
        };
        // Before the messages, and not under the lock: a client that verifies at once asks this store.
        for client in clients {
            client.sink.restarted(Restarted::Whole);
        }
        deliver(outbox);
    }

    /// The server's clock jumps ahead: leases end sooner than their holders think.
    pub fn step_clock(&self, ahead: Duration) {
        self.0.store.lock().ahead += ahead;
    }

    /// When it restarted last; zero: never, so it has forgotten nothing.
    pub(crate) fn restarted(&self) -> Tick {
        Tick::from_nanos(self.0.restarted.load(Ordering::Acquire))
    }

    pub(crate) fn join(&self, client: &Arc<Subscriber>, label: String) {
        let mut store = self.0.store.lock();
        let joined = (label, Arc::downgrade(client));
        store.connected.insert(Arc::clone(&client.client), joined);
    }

    pub(crate) fn part(&self, client: &Arc<str>) {
        self.0.store.lock().connected.remove(client);
    }

    pub(crate) fn show(&self, client: &Arc<str>, lasts: Duration) {
        self.0.store.lock().show(client, lasts);
    }

    pub(crate) fn unlisten(&self, client: &Arc<str>, id: &LockId) {
        self.0.store.lock().unlisten(client, id);
    }

    /// Carries out one step, with the faults of the moment.
    pub(crate) async fn carry_out<T>(
        &self,
        step: impl FnOnce(&mut Store) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        loop {
            // Made before the look: so it hears a `notify_waiters` that comes between the look and the wait.
            let healed = self.0.healed.notified();
            if !self.0.faults.lock().cut {
                break;
            }
            healed.await;
        }
        let (fail, drop_reply, delay) = {
            let mut faults = self.0.faults.lock();
            let fail = faults.fail > 0;
            faults.fail -= usize::from(fail);
            // A step is refused or loses its answer: a step that is refused has none to lose.
            let drop_reply = !fail && faults.drop_replies > 0;
            faults.drop_replies -= usize::from(drop_reply);
            (fail, drop_reply, faults.delay)
        };
        if fail {
            return Err(Failure::NotSent(fault("refused by MemoryServer::fail")));
        }
        if delay.is_zero() {
            // A real server is at least one poll away: code that relies on an answer at once is wrong.
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(delay).await;
        }
        let (answer, outbox) = {
            let mut store = self.0.store.lock();
            // At the moment of the step, after the delay: what has ended by then is gone, as on a server.
            store.set_clock(self.0.origin.elapsed());
            let answer = step(&mut store);
            (answer, std::mem::take(&mut store.outbox))
        };
        // Not under the lock: a wake-up runs the engine, which may ask this store at once.
        deliver(outbox);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if drop_reply {
            // The wake-ups were delivered: they travel on another connection than the answer.
            let cause = fault("the answer was dropped by MemoryServer::drop_replies");
            return Err(Failure::Ambiguous(cause));
        }
        answer
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Fault(&'static str);

fn fault(message: &'static str) -> Cause {
    Arc::new(Fault(message))
}

fn deliver(outbox: Vec<(Arc<Subscriber>, LockId, WakeUp)>) {
    for (subscriber, id, wake_up) in outbox {
        subscriber.sink.wake(&id, wake_up);
    }
}

impl fmt::Debug for MemoryServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryServer")
            .field("names", &self.names())
            .finish_non_exhaustive()
    }
}
