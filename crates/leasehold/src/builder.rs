//! The settings of a client, and how it connects.

mod durability;
mod given;
mod in_process;
mod login;
mod observers;
mod quorum;
mod server;

use std::{io, sync::Arc, time::Duration};

#[cfg(feature = "tls")]
use crate::tls::Tls;
use crate::{
    Client, ClusterNodes, Error, Sentinel,
    backend::{Backend, memory::MemoryServer, redis},
    background::BackgroundRuntime,
    clock::Clock,
    config::{Config, Handoff, millis},
    engine::{core::Core, wakeup::WakeUps},
    owner::client_uuid,
    stderr_warning,
};

use in_process::InProcess;

const DEFAULT_URL: &str = "redis://127.0.0.1/";

impl Client {
    /// Connects with default settings.
    ///
    /// | URL | |
    /// |---|---|
    /// | `redis://[user][:password@]host[:port][/database]` | Redis or Valkey; `valkey://` is the same |
    /// | `rediss://…`, `valkeys://…` | the same over TLS, with the feature `tls`; see `Tls` for certificates |
    /// | `redis-sentinel://[user:password@]host[:port],…[/database]?master=name` | where sentinels say, see [`Sentinel`](crate::Sentinel); `rediss-sentinel://` over TLS; `valkey-…` are the same |
    /// | `redis-cluster://[user:password@]host[:port],…[/database]` | a cluster, of which these are some nodes, see [`ClusterNodes`](crate::ClusterNodes); `rediss-cluster://` over TLS; `valkey-…` are the same |
    /// | `redlock://[user[:password]@]a,b,c[/database]` | a majority of several servers, each `host[:port]`; see [`ClientBuilder::quorum`] |
    /// | `redlocks://…` | the same over TLS |
    /// | `redis+unix:///path/to.sock[?db=0&user=…&pass=…]` | over a Unix socket; `valkey+unix://`, `unix://` are the same, and redis-py's `unix://user:password@/path?db=0` is understood |
    /// | `memory:` | a store of its own in this process, for tests and demos: it locks no other process out |
    /// | `memory:NAME` | a store that all clients of this process share under this name |
    ///
    /// In memory there is no login and no TLS: a user, a password, a database and certificates mean nothing.
    ///
    /// A URL that chooses memory is warned about, once per process: by `tracing`, or on standard error if the program has no subscriber.
    /// [`ClientBuilder::memory`] chooses it without a warning.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the URL is not valid; nothing was sent.
    /// - [`Error::NotSent`]: the server cannot be reached within the connect timeout (5 s).
    /// - [`Error::Rejected`]: it can be reached, but refuses the client, is not Redis or Valkey, or its certificate is not to be
    ///   trusted.
    ///
    /// # Cancel safety
    /// Cancel safe: the connection is closed.
    pub async fn connect(url: &str) -> Result<Client, Error> {
        Client::builder().url(url).connect().await
    }

    /// Settings first: [`ClientBuilder`] shows all of them.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }
}

/// Settings of a [`Client`]. Everything is checked at once in [`connect`](ClientBuilder::connect).
///
/// # Examples
/// ```no_run
/// # async fn example() -> Result<(), leasehold::Error> {
/// use std::time::Duration;
/// use leasehold::{Client, Handoff};
///
/// let client = Client::builder()
///     .url("redis://cache.internal/")
///     .username("orders")
///     .password(std::env::var("REDIS_PASSWORD").unwrap_or_default())
///     .database(3)
///     .label("orders-7") // in `leasehold status`
///     .name_prefix("shop:") // others use this server, too
///     .lease(Duration::from_secs(15))
///     .renew_every(Duration::from_secs(4))
///     .connect_timeout(Duration::from_secs(2))
///     .operation_timeout(Duration::from_secs(1))
///     .poll_every(Duration::from_secs(20)) // should a wake-up be lost
///     .handoff(Handoff::off())
///     .fair_wait_timeout(Duration::from_secs(3))
///     .linger(Duration::from_millis(500)) // for releases under way at the end of `main`
///     .token_retention(None) // beside Redisson's fenced locks
///     .may_duplicate(true) // behind a proxy that repeats requests
///     .check_server(false) // it evicts, and that is known
///     .connect()
///     .await?;
/// # drop(client); Ok(()) }
/// ```
///
/// In memory, for tests:
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, MemoryServer};
///
/// let server = MemoryServer::new();
/// let client = Client::builder().memory(&server).connect().await?;
/// assert!(client.mutex("order:42").try_lock().await?.is_some());
/// # Ok(()) }
/// ```
///
/// # From a configuration file
/// With the feature `serde` it can be read, by itself or in settings of yours. The fields are named as the methods, and all of them
/// may be left out. Durations are texts: `"10s"`, `"500ms"`, `"1m 30s"`, in weeks, days or less. A field with another name is refused. A `null`
/// stands for the default, as if the field was left out: the builder's `token_retention(None)` is `"forever"`.
///
#[cfg_attr(feature = "serde", doc = "```")]
#[cfg_attr(not(feature = "serde"), doc = "```ignore")]
/// use leasehold::ClientBuilder;
///
/// let settings: ClientBuilder = toml::from_str(
///     r#"
///     url = "redis://cache.internal/"
///     password = "open sesame"
///     lease = "15s"
///     renew_every = "5s"
///     handoff = { max_in_row = 64, max_time = "20ms" }
///     token_retention = "forever"                     # or a duration
///     "#,
/// )?;
/// assert!(!format!("{settings:?}").contains("sesame"));
/// // settings.connect().await?
/// # Ok::<(), toml::de::Error>(())
/// ```
///
/// With the feature `tls` also `tls = { root_file = "…", pinned = ["…"], client_cert_file = "…", client_key_file = "…", server_name = "…" }`, whose fields
/// are those of `Tls`.
#[derive(Clone, Default)]
#[must_use = "a builder does nothing until connect()"]
pub struct ClientBuilder {
    url: Option<String>,
    memory: Option<InProcess>,
    sentinel: Option<Sentinel>,
    cluster: Option<ClusterNodes>,
    quorum: Option<quorum::Given>,
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

    /// Keep the leases in this store instead of on a server. Unlike a URL that says `memory:`, this is not warned about.
    pub fn memory(mut self, server: &MemoryServer) -> Self {
        self.memory = Some(InProcess::Memory(server.clone()));
        self
    }

    /// The user to log in as; wins over the URL's. Without a password it logs in with an empty one, which suits a user of the
    /// server that needs none.
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.login.username = Some(username.into());
        self
    }

    /// The password to log in with; wins over the URL's. Never shown in a log, a `Debug` or an error.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.login.password = Some(password.into());
        self
    }

    /// The database to select; wins over the URL's. A cluster has 0 alone, but for Valkey 9 with `cluster-databases`.
    pub fn database(mut self, database: u32) -> Self {
        self.login.database = Some(database);
        self
    }

    /// The certificates for TLS. The URL must be one that speaks it, such as `rediss://`. Feature `tls`.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, Tls};
    ///
    /// let tls = Tls::new().root_file("/etc/ssl/our-authority.pem");
    /// let client = Client::builder().url("rediss://cache.internal/").tls(tls).connect().await?;
    /// # drop(client); Ok(()) }
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.login.tls = Some(tls);
        self
    }

    /// How long to try to connect. Default: 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout = timeout;
        self
    }

    /// How long a command may go unanswered. If nothing else is heard on its connection either, the next goes on a new one. Default: 2 s.
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

    /// After how long a waiter that hears nothing asks again: this, and up to a fifth more. Default: 10 s.
    pub fn poll_every(mut self, every: Duration) -> Self {
        self.config.poll_every = every;
        self
    }

    /// For how long at most waiters of a fair mutex that have died keep the others waiting. Default: 5 s.
    ///
    /// A waiter that the server knows to be gone costs 200 ms, or 7.5 s behind a holder of Redisson's. The timeout is for Redisson's
    /// waiters, and for clients that were cut off. Each waiter writes it into its deadline on the server, as Redisson's
    /// `fairLockWaitTimeout`.
    pub fn fair_wait_timeout(mut self, timeout: Duration) -> Self {
        self.config.fair_wait_timeout = timeout;
        self
    }

    /// For how long at most the drop of a client's last handle (client, lock or guard) waits for the releases of dropped guards that are
    /// under way. Default: 100 ms; zero: not at all.
    ///
    /// It blocks the thread, also of an async caller, mostly for a round trip or two at the end of `main`. A client of `memory:` never waits.
    /// **Names that are not given back by then stay taken.** Too short is 100 ms for hundreds of guards, and for four round trips to a
    /// server far away: [`Guard`](crate::Guard#at-the-end-of-a-program). More costs nothing while the server answers.
    pub fn linger(mut self, most: Duration) -> Self {
        self.config.linger = most;
        self
    }

    /// How leases are passed on within this process. Default: 64 in a row or for 20 ms, whichever ends first.
    pub fn handoff(mut self, handoff: Handoff) -> Self {
        self.config.handoff = handoff;
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
        // Boxed: it would make the future of each caller larger.
        Box::pin(self.connect_at(BackgroundRuntime::thread)).await
    }

    /// A client that connects when it is first used: a service may start before its server does. No I/O.
    ///
    /// The settings are checked now, the server's answers when there are some:
    ///
    /// | the server | `try_lock()` | `try_lock_for(d)` | `lock()` |
    /// |---|---|---|---|
    /// | is not there | [`NotSent`](Error::NotSent) after the operation timeout | waits for it, up to `d`; then [`NotSent`](Error::NotSent) | waits for it |
    /// | is there, and not ready: it loads its data, is a replica, is busy, its memory is full, … | [`Rejected`](Error::Rejected) after the operation timeout | waits for it, up to `d`; then [`Rejected`](Error::Rejected) | waits for it |
    /// | refuses this client: wrong password, a node of a cluster, no certificate that it trusts, … | [`Rejected`](Error::Rejected) | [`Rejected`](Error::Rejected) | [`Rejected`](Error::Rejected) |
    ///
    /// So do the verbs of the other kinds, and all other requests. Of [`Rejected`](Error::Rejected),
    /// [`is_unreachable`](Error::is_unreachable) is false. After a refusal the next call tries to connect again. Once
    /// it has been connected, a client is as one of [`connect`](ClientBuilder::connect), and waits also for a server that refuses it.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use std::time::Duration;
    /// use leasehold::Client;
    ///
    /// // No server is there yet.
    /// let client = Client::builder()
    ///     .url("redis://127.0.0.1:1/")
    ///     .operation_timeout(Duration::from_millis(100))
    ///     .connect_lazily()?;
    /// let refused = client.mutex("order:42").try_lock().await;
    /// assert!(refused.unwrap_err().is_unreachable());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`]: a setting or the URL is not valid. [`Error::NotSent`]: the thread of this library cannot be started;
    /// its `source` is the system's [`io::Error`].
    ///
    /// # Panics
    /// For `memory:`, outside a tokio runtime.
    pub fn connect_lazily(self) -> Result<Client, Error> {
        Ok(self.prepare(BackgroundRuntime::thread)?.client())
    }

    /// Connects, with a background runtime that this makes for a client of a real server.
    pub(crate) async fn connect_at(
        self,
        background: impl FnOnce() -> io::Result<BackgroundRuntime>,
    ) -> Result<Client, Error> {
        let prepared = self.prepare(background)?;
        match &prepared.backing {
            Backing::Memory(..) => {}
            Backing::Server(redis, _) => redis.connect().await?,
            Backing::Cluster(cluster, _) => cluster.connect().await?,
            Backing::Quorum(quorum) => quorum.quorum.connect().await?,
        }
        // After the connection is there: only the server can say whether it knows WAITAOF, and lets its user ask.
        durability::check(&prepared.backing, prepared.config.durability).await?;
        Ok(prepared.client())
    }

    fn prepare(
        self,
        background: impl FnOnce() -> io::Result<BackgroundRuntime>,
    ) -> Result<Prepared, Error> {
        let mut config = self.config.clone();
        // Before anything is made: a setting that is refused starts no thread.
        config.check()?;
        // As `check_lease` cuts the leases of single locks.
        config.lease = Duration::from_millis(millis(config.lease));
        let uuid: Arc<str> = client_uuid().into();
        let quorum = quorum::Given::of(self.quorum.clone(), self.url.as_deref())?;
        if quorum.is_some() && self.names_another() {
            return Err(quorum::beside_another_server());
        }
        // Made before the engine, since the backend wants a sink: the engine is put into it by `Core::start`.
        let wake_ups = Arc::new(WakeUps::default());
        let url = self.url.as_deref().unwrap_or(DEFAULT_URL);
        given::check_characters(url)?;
        let label = given::label(self.label.clone())?;
        config.label.clone_from(&label);
        let memory = match &self.memory {
            Some(server) => Some(server.clone()),
            // The URL is that of the quorum then, or the default, and chooses no memory.
            None if quorum.is_some() => None,
            None => MemoryServer::from_url(&given::in_small_letters(url))
                .inspect(|_| stderr_warning::memory_was_chosen())
                .map(InProcess::Memory),
        };
        let sink = Arc::clone(&wake_ups);
        let backing = if let Some(quorum) = quorum {
            let client = (&uuid, &*label, &config);
            Backing::Quorum(quorum.prepare(client, &self.login, sink, background)?)
        } else if let Some(server) = memory {
            let clock = server.clock();
            let backend = server.client(&uuid, label, &config, sink);
            Backing::Memory(backend, clock)
        } else {
            self.server((&uuid, &label, &config), sink, background)?
        };
        let prepared = Prepared {
            uuid,
            config,
            wake_ups,
            backing,
        };
        prepared.with_durability()
    }
}

/// A client that lacks at most its connection.
struct Prepared {
    uuid: Arc<str>,
    config: Config,
    wake_ups: Arc<WakeUps>,
    backing: Backing,
}

/// Where the leases of a client live.
enum Backing {
    Memory(Box<dyn Backend>, Clock),
    Server(Box<redis::Redis>, BackgroundRuntime),
    Cluster(redis::Cluster, BackgroundRuntime),
    Quorum(quorum::PreparedQuorum),
}

impl Prepared {
    fn client(self) -> Client {
        let (backend, clock, background): (Box<dyn Backend>, Clock, BackgroundRuntime) = match self
            .backing
        {
            Backing::Memory(backend, clock) => (backend, clock, BackgroundRuntime::here()),
            Backing::Server(backend, background) => (backend, Clock::Boot, background),
            Backing::Cluster(backend, background) => (Box::new(backend), Clock::Boot, background),
            Backing::Quorum(quorum) => (Box::new(quorum.quorum), quorum.clock, quorum.background),
        };
        let core = Core::start(
            self.uuid,
            clock,
            self.config,
            backend,
            &self.wake_ups,
            background,
        );
        Client::new(&core)
    }
}
