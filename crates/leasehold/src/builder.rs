//! The settings of a client, and how it connects.

use std::{fmt, io, sync::Arc, time::Duration};

use crate::{
    Client, Error,
    backend::{Backend, memory, memory::MemoryServer, redis},
    clock::Clock,
    config::{Config, Handoff, millis},
    engine::{core::Core, wakeup::WakeUps},
    error::Invalid,
    home::Home,
    owner::client_uuid,
};

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
    /// - [`Error::Invalid`]: the URL is not valid; nothing was sent.
    /// - [`Error::NotSent`]: the server cannot be reached within the connect timeout (5 s).
    /// - [`Error::Rejected`]: it can be reached, but refuses the client, or is not Redis or Valkey.
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

    /// After how long a waiter that hears nothing asks again: this, and up to a fifth more. Default: 10 s.
    pub fn poll_every(mut self, every: Duration) -> Self {
        self.config.poll_every = every;
        self
    }

    /// How leases are passed on within this process. Default: 64 in a row or for 20 ms, whichever ends first.
    pub fn handoff(mut self, handoff: Handoff) -> Self {
        self.config.handoff = handoff;
        self
    }

    /// Says that something between this client and the server may send a request twice, such as a proxy that repeats
    /// requests. Default: `false`.
    ///
    /// Each release then leaves a tombstone on the server for half a minute (`docs/keys.md`), so that a second copy of a
    /// request of before cannot take the name again.
    pub fn may_duplicate(mut self, may: bool) -> Self {
        self.config.may_duplicate = may;
        self
    }

    /// How long the last fencing token of a name is kept on the server after its last use, and the newest token that a
    /// [`FencedStore`](crate::FencedStore) has seen after its last write; `None`: for ever. Default: 7 days.
    ///
    /// At least 1 ms, at most 366 days. The longest retention of all clients of a name counts, and a key without an end keeps
    /// none. If the last token is lost, the next one is the time on the server's clock in microseconds, which is larger as
    /// well. Only Redisson would begin at 1: where its clients take fenced locks, say `None`.
    pub fn token_retention(mut self, retention: Option<Duration>) -> Self {
        self.config.token_retention = retention;
        self
    }

    /// The label of this client in [`Status`](crate::Status). Default: `host:pid`.
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
        let core = Core::start(uuid, clock, config, backend, &wake_ups, home);
        Ok(Client::new(core))
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
