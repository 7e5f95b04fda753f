//! The client: connections, settings, and one constructor per kind of lock.

use std::{
    fmt,
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::sync::broadcast;
use tokio_util::task::TaskTracker;

use crate::{
    Error, Event, LostReason, Mutex,
    backend::{Backend, Failure, memory, memory::MemoryServer, redis},
    clock::Clock,
    config::{Config, Handoff, millis},
    error::Invalid,
    events::Events,
    finish::{Awaited, Finish},
    hold::SHUTDOWN_MARGIN,
    home::Home,
    name::Name,
    owner::{LeaseId, client_uuid},
    queue::Queues,
    wakeup::WakeUps,
    watchdog::{self, Watchdog},
};

/// A connection to the server that holds the leases, shared by everything that locks through it.
///
/// Cheap to clone; clones are the same client, and may be used from any number of tokio runtimes, at once or one
/// after the other: in a `static`, for instance. On a real server renewals, wake-ups and reconnecting run on one
/// thread of Leasehold's own per process, so leases are renewed whether the runtimes of their holders are
/// blocked, busy or ended. A process that hangs therefore keeps its locks: see
/// [`max_hold`](crate::Mutex::max_hold). What a client does in the background ends when the last client, mutex and
/// guard are gone; the thread stays.
///
/// A client of `memory:` lives on the runtime that connected it, which must outlive the guards.
///
/// It takes one connection for each runtime that locks through it, closed when that runtime ends, one for
/// renewals, and one to hear wake-ups when somebody first waits.
///
/// # Examples
/// ```no_run
/// # async fn example() -> Result<(), leasehold::Error> {
/// use leasehold::Client;
///
/// let client = Client::connect("redis://127.0.0.1/").await?;
/// let guard = client.mutex("order:42").lock().await?;
/// // … only one process in the world is here …
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Client {
    core: Arc<Core>,
}

/// How to leave: see [`Client::shutdown`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Give holders `grace` to let go by themselves, then release what is left.
    ReleaseAll {
        /// How long to wait for the holders.
        grace: Duration,
    },
    /// Stop renewing: each name frees itself when its lease ends.
    LetExpire,
}

/// Who holds a name, and how many wait.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The name.
    pub name: String,
    /// Who holds it; `None` if it is free.
    pub holder: Option<Holder>,
    /// How many clients listen for it to become free, Redisson's included.
    pub waiting_clients: u64,
    /// How many tasks of this client wait for it.
    pub waiting_here: usize,
}

/// The holder of a name, as the server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner field: `<client uuid>:<lease id>`, or `<client uuid>:<thread id>` for Redisson.
    pub owner: String,
    /// The client's uuid.
    pub client: String,
    /// What the client calls itself (`host:pid` unless told otherwise); `None` for Redisson, a client that is
    /// gone, or where `CLIENT LIST` is not permitted.
    pub label: Option<String>,
    /// How often the owner has entered.
    pub holds: u64,
    /// Since when, by the clock of the client that asked for the lease; `None` for Redisson.
    pub since: Option<SystemTime>,
    /// What is left of the lease; `None` if somebody removed its end.
    pub remaining: Option<Duration>,
}

impl Client {
    /// Connects with default settings.
    ///
    /// | URL | |
    /// |---|---|
    /// | `redis://[user][:password@]host[:port][/database]` | Redis or Valkey; `valkey://` is the same |
    /// | `redis+unix:///path/to.sock[?db=0&user=…&pass=…]` | over a Unix socket; `valkey+unix://`, `unix://` are the same |
    /// | `memory:` | a store of its own in this process, for tests and demos |
    /// | `memory:NAME` | a store that all clients of this process share under this name |
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the URL is no good; nothing was sent.
    /// - [`Error::NotSent`]: the server cannot be reached within the connect timeout (5 s).
    /// - [`Error::Rejected`]: it can be reached, but refuses us, or is not Redis.
    ///
    /// # Cancel safety
    /// Cancel safe: the connection is closed.
    pub async fn connect(url: &str) -> Result<Client, Error> {
        Client::builder().url(url).connect().await
    }

    /// Settings first.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use std::time::Duration;
    /// use leasehold::{Client, Handoff};
    ///
    /// let client = Client::builder()
    ///     .url("memory:")
    ///     .lease(Duration::from_secs(15))
    ///     .renew_every(Duration::from_secs(5))
    ///     .handoff(Handoff::off())
    ///     .connect()
    ///     .await?;
    /// # drop(client); Ok(()) }
    /// ```
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// The uuid of this client: the first half of each of its owner fields on the server.
    pub fn id(&self) -> &str {
        &self.core.uuid
    }

    /// A re-entrant mutual exclusion lock on a name. No I/O; a bad name is refused when it is used.
    #[track_caller]
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(Arc::clone(&self.core), name.as_ref())
    }

    /// Who holds a name.
    ///
    /// # Errors
    /// The name is no good, or the server does not answer. It only reads.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn status(&self, name: impl AsRef<str>) -> Result<Status, Error> {
        self.core.status(&Name::new(name.as_ref())?).await
    }

    /// Frees a name, whoever holds it. `false` if nobody did.
    ///
    /// A holder of ours learns it at its next renewal or [`verify`](crate::Guard::verify), a third of its
    /// lease later at worst; until then it believes that it is alone. Make sure that it is dead first.
    ///
    /// # Errors
    /// The name is no good, or the server does not answer: it may have freed the name.
    ///
    /// # Cancel safety
    /// Dropping it does not take the request back.
    ///
    /// # Source
    /// Redisson `RLock#forceUnlock`.
    pub async fn force_unlock(&self, name: impl AsRef<str>) -> Result<bool, Error> {
        self.core.force_unlock(&Name::new(name.as_ref())?).await
    }

    /// What happens to the leases of this client from now on.
    ///
    /// A listener that lags more than 4096 events behind misses some (and is told how many).
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.core.events.listen()
    }

    /// Leaves in good order: nobody waits, nothing is renewed, and nothing new is begun.
    ///
    /// Waiters get [`Error::Closed`], and guards that are left are lost
    /// ([`LostReason::ClientShutdown`]). Returns when the server has been told, or could not be within the
    /// operation timeout.
    ///
    /// # Cancel safety
    /// Dropping it leaves the client closed, and what is held to expire.
    pub async fn shutdown(&self, how: Shutdown) {
        self.core.shutdown(how).await;
    }

    /// What this client keeps in memory, for tests that look for leaks.
    #[doc(hidden)]
    pub fn footprint(&self) -> Footprint {
        Footprint {
            queues: self.core.queues.len(),
            watched: self.core.watchdog.len(),
            tasks: self.core.tasks.len(),
            waiting: self.core.queues.waiting_drivers(),
        }
    }

    /// Completes when this client has heard all that its server has said to it until now, and what that wakes has had a
    /// turn, for tests that wait until nothing is under way.
    #[doc(hidden)]
    pub async fn heard(&self) {
        // What was lost with its connection was heard as far as it ever will be.
        let _ = self.core.backend.heard().await;
        let turns = async {
            for _ in 0..2 {
                tokio::task::yield_now().await;
            }
        };
        let _ = self.core.home.handle().spawn(turns).await;
    }
}

/// See [`Client::footprint`].
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    pub queues: usize,
    pub watched: usize,
    pub tasks: usize,
    /// How many of the tasks are drivers that wait for a wake-up.
    pub waiting: usize,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("id", &self.core.uuid)
            .field("backend", &self.core.backend)
            .finish_non_exhaustive()
    }
}

/// Settings of a [`Client`]. Everything is checked at once in [`connect`](ClientBuilder::connect).
#[derive(Clone, Default)]
#[must_use = "a builder does nothing until connect()"]
pub struct ClientBuilder {
    url: Option<String>,
    memory: Option<MemoryServer>,
    login: redis::Login,
    label: Option<String>,
    config: Config,
}

impl ClientBuilder {
    /// Where the server is; see [`Client::connect`]. Default: `redis://127.0.0.1/`.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// Keep the leases in this store instead of on a server.
    pub fn memory(mut self, server: &MemoryServer) -> Self {
        self.memory = Some(server.clone());
        self
    }

    /// The user to log in as; wins over the URL's.
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.login.username = Some(username.into());
        self
    }

    /// The password to log in with; wins over the URL's. Never shown in a log, a `Debug` or an error.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.login.password = Some(password.into());
        self
    }

    /// The database to select; wins over the URL's.
    pub fn database(mut self, database: u32) -> Self {
        self.login.database = Some(database);
        self
    }

    /// How long to try to connect. Default: 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout = timeout;
        self
    }

    /// How long a command may go unanswered. Default: 2 s.
    pub fn operation_timeout(mut self, timeout: Duration) -> Self {
        self.config.operation_timeout = timeout;
        self
    }

    /// How long a name outlives a holder that stops renewing it. Default: 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = lease;
        self
    }

    /// How often a lease is renewed, at most a third of it. Default: a third.
    pub fn renew_every(mut self, every: Duration) -> Self {
        self.config.renew_every = Some(every);
        self
    }

    /// How often a waiter that hears nothing asks again, at most. Default: 10 s.
    pub fn poll_every(mut self, every: Duration) -> Self {
        self.config.poll_every = every;
        self
    }

    /// How leases are passed on within this process. Default: 64 in a row, for 20 ms.
    pub fn handoff(mut self, handoff: Handoff) -> Self {
        self.config.handoff = handoff;
        self
    }

    /// Says that something between this client and the server may send a request twice, such as a proxy that repeats
    /// requests. Default: `false`.
    ///
    /// Each release then leaves a marker on the server for half a minute (`docs/keys.md`), so that a second copy of a
    /// request of before cannot take the name again.
    pub fn may_duplicate(mut self, may: bool) -> Self {
        self.config.may_duplicate = may;
        self
    }

    /// What this client is called in [`Status`]. Default: `host:pid`.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// As [`Client::connect`], and [`Error::Invalid`] for settings that do not fit each other.
    ///
    /// # Panics
    /// On a tokio runtime without I/O or time (`enable_all`); for `memory:`, outside a tokio runtime.
    ///
    /// # Cancel safety
    /// Cancel safe: the connection is closed.
    pub async fn connect(self) -> Result<Client, Error> {
        self.connect_at(Home::thread).await
    }

    /// Connects, with a home of this making for a client of a real server.
    pub(crate) async fn connect_at(
        self,
        home: impl FnOnce() -> io::Result<Home>,
    ) -> Result<Client, Error> {
        let mut config = self.config;
        config.check()?;
        config.lease = Duration::from_millis(millis(config.lease));
        let uuid: Arc<str> = client_uuid().into();
        let wake_ups = Arc::new(WakeUps::default());
        let url = self.url.as_deref().unwrap_or("redis://127.0.0.1/");
        let memory = match self.memory {
            Some(server) => Some(server),
            None => MemoryServer::from_url(url),
        };
        let (backend, clock, home): (Box<dyn Backend>, Clock, Home) = if let Some(server) = memory {
            let clock = server.clock();
            let label = self.label.unwrap_or_else(default_label);
            let backend = memory::Memory::new(server, &uuid, label, &config, wake_ups.clone());
            (Box::new(backend), clock, Home::here())
        } else {
            let label = self.label.unwrap_or_else(default_label);
            if !label.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(Invalid::new(
                    "label",
                    format!("{label:?}"),
                    "printable ASCII without spaces",
                )
                .remedy("the server refuses other connection names")
                .into());
            }
            let target = redis::Target::parse(url, &self.login)?;
            let home = home().map_err(|error| Error::NotSent {
                doing: "start the thread of this client".into(),
                source: Arc::new(error),
            })?;
            let wake_ups = Arc::clone(&wake_ups);
            let backend =
                redis::Redis::connect(target, &uuid, &label, &config, wake_ups, &home).await?;
            (Box::new(backend), Clock::Boot, home)
        };
        let core = Arc::new(Core {
            uuid,
            clock,
            config,
            backend,
            queues: Queues::new(),
            watchdog: Arc::default(),
            events: Events::new(),
            awaited: Awaited::default(),
            home,
            tasks: TaskTracker::new(),
            closed: AtomicBool::new(false),
            lets_expire: AtomicBool::new(false),
        });
        wake_ups.connect(Arc::downgrade(&core));
        let watchdog = Arc::clone(&core.watchdog);
        let home = core.home.handle();
        home.spawn(watchdog::run(watchdog, Arc::downgrade(&core)));
        Ok(Client { core })
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the URL: it may carry a password.
        f.debug_struct("ClientBuilder")
            .field("config", &self.config)
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}

fn default_label() -> String {
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let mut label = format!("{host}:{}", std::process::id());
    label.retain(|c| c.is_ascii_graphic());
    label
}

/// What all handles of a client share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) uuid: Arc<str>,
    pub(crate) clock: Clock,
    pub(crate) config: Config,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) queues: Queues,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) events: Events,
    /// Work of callers that others wait for.
    pub(crate) awaited: Awaited,
    home: Home,
    tasks: TaskTracker,
    closed: AtomicBool,
    lets_expire: AtomicBool,
}

impl Core {
    /// Runs something in the background, at home. From any thread, with or without a runtime; if the home is gone it
    /// does nothing.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        // In a fork the locks are the parent's, and not to be given back.
        if self.home.check_process().is_ok() {
            self.tasks.spawn_on(work, self.home.handle());
        }
    }

    /// Completes after `time`, by a timer of the home: whichever runtime polls it, and whatever becomes of the one
    /// that polled it before.
    pub(crate) fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send + use<> {
        self.home.sleep(time)
    }

    /// Completes after `time`, by a timer of whichever runtime polls it, so that it does even if the home is gone.
    pub(crate) async fn sleep_here(&self, time: Duration) {
        self.home.sleep_here(time).await;
    }

    /// What `work` gives, or `None` if that takes longer than `time`, measured as [`sleep`](Core::sleep) does.
    pub(crate) async fn within<F: Future>(&self, time: Duration, work: F) -> Option<F::Output> {
        self.home.within(time, work).await
    }

    /// Whether anything new may be begun.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        self.home.check().map_err(|_gone| Error::ThreadGone)
    }

    /// Work that is carried out to its end whether or not anybody waits for it (D5).
    pub(crate) fn finish<F>(self: &Arc<Self>, work: F) -> Finish<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        Finish::new(self, self.tasks.token(), work)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// How long a tombstone must outlive the last copy of a request.
    pub(crate) fn tombstone_ms(&self) -> u64 {
        millis(self.config.lease.max(Duration::from_secs(30)))
    }

    /// Whether this client leaves what it holds to expire.
    pub(crate) fn lets_expire(&self) -> bool {
        self.lets_expire.load(Ordering::Acquire)
    }

    pub(crate) async fn status(&self, name: &Name) -> Result<Status, Error> {
        let found = self.backend.inspect(name.clone()).await;
        let found = found
            .map_err(|failure| failure.into_error(format!("look at {name:?}"), Duration::ZERO))?;
        let holder = found.owners.into_iter().next().map(|(owner, holds)| {
            let (client, number) = owner.split_once(':').unwrap_or((&owner, ""));
            let number = number.parse::<u64>().ok().map(LeaseId::from);
            Holder {
                client: client.to_owned(),
                label: found.label,
                holds,
                since: number.and_then(LeaseId::made_at),
                remaining: found.ttl,
                owner,
            }
        });
        Ok(Status {
            name: name.as_str().to_owned(),
            holder,
            waiting_clients: found.listeners,
            waiting_here: self.queues.waiting(name),
        })
    }

    pub(crate) async fn force_unlock(&self, name: &Name) -> Result<bool, Error> {
        let before = self.queues.held(name);
        let owners = match self.backend.force_unlock(name.clone()).await {
            Ok(owners) => owners,
            Err(failure) => {
                // It may have been carried out: the hold of before must not go on believing.
                if let (Failure::Ambiguous(_), Some(hold)) = (&failure, before) {
                    hold.lose(LostReason::Unconfirmed);
                }
                let doing = format!("unlock {name:?} by force");
                return Err(failure.into_error(doing, Duration::ZERO));
            }
        };
        // Nor the hold of ours that it ended; but a newer one may be there by now, and goes on.
        if let Some(hold) = self.queues.held(name)
            && owners.contains(&format!("{}:{}", self.uuid, hold.lease))
        {
            hold.lose(LostReason::Replaced);
        }
        Ok(!owners.is_empty())
    }

    async fn shutdown(self: &Arc<Self>, how: Shutdown) {
        self.lets_expire
            .fetch_or(how == Shutdown::LetExpire, Ordering::AcqRel);
        self.closed.store(true, Ordering::SeqCst);
        self.queues.close(self);
        if let Shutdown::ReleaseAll { grace } = how {
            let _ = self.within(grace, self.all_released()).await;
        }
        let holds = self.queues.holds();
        let some = !holds.is_empty();
        for hold in holds {
            // Each loss has its lease id given up, a margin later: work that `run` is dropping is gone by then.
            hold.lose(LostReason::ClientShutdown);
        }
        self.tasks.close();
        let margin = if some {
            SHUTDOWN_MARGIN
        } else {
            Duration::ZERO
        };
        let patience = self.config.operation_timeout + margin;
        let _ = self.within(patience, self.tasks.wait()).await;
        self.watchdog.close();
    }

    /// Waits until nothing is held.
    async fn all_released(&self) {
        let mut events = self.events.listen();
        while !self.queues.holds().is_empty() {
            tokio::select! {
                _ = events.recv() => {}
                () = self.sleep(Duration::from_millis(50)) => {}
            }
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.watchdog.close();
    }
}
