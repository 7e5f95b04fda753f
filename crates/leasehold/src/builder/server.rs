//! Settings that say what the server is like: who else uses it, how it was set up, and what stands before it.

use std::{io, sync::Arc, time::Duration};

use super::{Backing, ClientBuilder, login};
use crate::{
    ClusterNodes, Error, Sentinel,
    backend::{
        Sink,
        redis::{Cluster, GivenCluster, GivenServer, Redis},
    },
    background::BackgroundRuntime,
    config::Config,
    error::Invalid,
};

impl ClientBuilder {
    /// Asks these sentinels where the server is, in place of a URL. The user, the password, the database and TLS of the builder are those
    /// of the primary.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, Sentinel};
    ///
    /// let sentinel = Sentinel::new(["sentinel-1", "sentinel-2", "sentinel-3"]).master("main");
    /// let client = Client::builder().sentinel(sentinel).connect().await?;
    /// # drop(client); Ok(()) }
    /// ```
    ///
    /// # Source
    /// Redisson `Config#useSentinelServers`.
    #[doc(alias("useSentinelServers", "MASTER_NAME"))]
    pub fn sentinel(mut self, sentinel: Sentinel) -> Self {
        self.sentinel = Some(sentinel);
        self
    }

    /// Asks these nodes of a Redis or Valkey Cluster for the others, in place of a URL. The user, the password and TLS of the builder are those
    /// of all nodes.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, ClusterNodes};
    ///
    /// let nodes = ClusterNodes::new(["node-1:6379", "node-2:6379", "node-3:6379"]);
    /// let client = Client::builder().cluster(nodes).connect().await?;
    /// # drop(client); Ok(()) }
    /// ```
    ///
    /// # Source
    /// Redisson `Config#useClusterServers`.
    #[doc(alias("useClusterServers"))]
    pub fn cluster(mut self, nodes: ClusterNodes) -> Self {
        self.cluster = Some(nodes);
        self
    }

    /// Whether the clients of a cluster wake each other on sharded channels. Default: if the node that is asked first knows them (Redis 7, Valkey).
    ///
    /// A message on a sharded channel goes to the node that has the name, and to its replicas; one on a classic channel goes to all nodes. **All
    /// clients of a cluster must choose alike**, Redisson's too: who listens on the one sort is not woken on the other, and looks by itself only each
    /// [`poll_every`](ClientBuilder::poll_every). The default is Redisson's. Say `false` on all sides while nodes of Redis 6 are in the cluster, or
    /// where the user of one program has not the [rights](crate::docs::keys#permissions) to sharded channels. It means nothing outside of a cluster.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// use leasehold::Client;
    ///
    /// // Beside a Redisson with shardedSubscriptionMode: OFF.
    /// let builder = Client::builder().url("redis-cluster://node-1,node-2").sharded_channels(false);
    /// let client = builder.connect().await?;
    /// # drop(client); Ok(()) }
    /// ```
    ///
    /// # Source
    /// Redisson `ClusterServersConfig#setShardedSubscriptionMode`.
    #[doc(alias("ShardedSubscriptionMode", "setShardedSubscriptionMode"))]
    pub fn sharded_channels(mut self, sharded: bool) -> Self {
        self.config.sharded_channels = Some(sharded);
        self
    }

    /// How often a client of a cluster asks who has which slot, while it holds locks or waits for them. Default: 2 s; zero: never, but when a node
    /// says that a slot has moved, or a connection has ended.
    ///
    /// A primary may be replaced while the client is still connected to it, and has nothing to send. Locks that the new primary was never told of
    /// may then be held by two, until the client has asked: **for this long, and half a second more at most**. With zero that lasts until its next renewal, a
    /// third of the lease. Each question is a `CLUSTER SLOTS` to one node. A client that neither holds nor waits asks nothing. Outside of a
    /// cluster this setting means nothing.
    ///
    /// At least 200 ms, or zero; at most 366 days.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// use std::time::Duration;
    /// use leasehold::Client;
    ///
    /// let builder = Client::builder().url("redis-cluster://node-1,node-2");
    /// let client = builder.scan_interval(Duration::from_millis(500)).connect().await?;
    /// # drop(client); Ok(()) }
    /// ```
    ///
    /// # Source
    /// Redisson `ClusterServersConfig#setScanInterval`, whose default is 5 s.
    #[doc(alias("scanInterval", "setScanInterval"))]
    pub fn scan_interval(mut self, every: Duration) -> Self {
        self.config.scan_interval = every;
        self
    }

    /// Whether a server is named but by the URL.
    pub(super) fn names_another(&self) -> bool {
        self.sentinel.is_some() || self.cluster.is_some() || login::names_server(&self.login)
    }

    /// The connections to the server, or to the servers of a group.
    pub(super) fn server(
        &self,
        (client, label, config): (&Arc<str>, &str, &Config),
        sink: Arc<dyn Sink>,
        background: impl FnOnce() -> io::Result<BackgroundRuntime>,
    ) -> Result<Backing, Error> {
        // Invalid settings are refused before a thread is started.
        let given = match self.given_cluster()? {
            Some(cluster) => Ok(cluster),
            // `Err` is no failure here: it stands for a server that is no cluster.
            None => Err(self.place()?),
        };
        let background = background().map_err(|error| Error::NotSent {
            doing: "start the thread of this client".into(),
            source: Arc::new(error),
        })?;
        Ok(match given {
            Ok(cluster) => {
                let cluster = Cluster::new(cluster, client, label, config, sink, &background);
                Backing::Cluster(cluster, background)
            }
            Err(place) => {
                let redis = Redis::new(place, client, label, config, sink, &background);
                // Its successor may not have heard of the last releases, so they are repeated there. A cluster and a quorum have ways of their own.
                let redis = redis.repeating(&background);
                Backing::Server(Box::new(redis), background)
            }
        })
    }

    /// The cluster, if one is given.
    fn given_cluster(&self) -> Result<Option<GivenCluster>, Error> {
        let Some(nodes) = &self.cluster else {
            let of_url = self.url.as_deref();
            let of_url = of_url.and_then(|url| GivenCluster::parse(url, &self.login));
            return of_url.transpose();
        };
        if self.url.is_some() || self.sentinel.is_some() || login::names_server(&self.login) {
            let limit = "the only place that names the server";
            let invalid = Invalid::new("cluster", "given beside another server", limit);
            return Err(invalid
                .remedy(
                    "leave the other out, or say redis-cluster://host:6379,host:6379 in the URL",
                )
                .into());
        }
        GivenCluster::of(nodes, &self.login).map(Some)
    }

    /// Where the server is.
    fn place(&self) -> Result<GivenServer, Error> {
        let Some(sentinel) = &self.sentinel else {
            return login::server(self.url.as_deref(), &self.login);
        };
        if self.url.is_some() || login::names_server(&self.login) {
            let limit = "the only place that names the server";
            let invalid = Invalid::new("sentinel", "given beside another server", limit);
            return Err(invalid
                .remedy("leave the other out, or say redis-sentinel://host:26379/?master=name in the URL")
                .into());
        }
        GivenServer::named_by(sentinel, &self.login)
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

    /// The shortest `lockWatchdogTimeout` of the Redisson clients that take read locks on the names that this client reads. Default: 30 s, as there.
    ///
    /// A JVM that reads renews its own lease and changes that of other readers: before Redisson 4.4.0 it sets each reader's lease to this time, ours too; newer ones
    /// set the whole lock to it, which ends early if the JVM dies then. We are not told of it. So a reader
    /// of ours believes its lease for no longer than this, whether such a JVM is there or not: a longer [`lease`](ClientBuilder::lease) is
    /// this long for a reader, and renewed each third of it, and a longer [`fixed_lease`](crate::RwLock::fixed_lease) is refused with
    /// [`Error::Invalid`]. Writers and other kinds are as they were.
    ///
    /// Say less if a JVM has less. Say as much as your longest lease if no Redisson reads these names. 1 ms to 366 days.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use std::time::Duration;
    /// use leasehold::Client;
    ///
    /// let minute = Duration::from_secs(60);
    /// let beside = Client::builder().url("memory:").connect().await?;
    /// assert!(beside.rw_lock("prices").fixed_lease(minute).read().await.is_err());
    /// let alone = Client::builder().url("memory:").redisson_watchdog(minute).connect().await?;
    /// let guard = alone.rw_lock("prices").fixed_lease(minute).read().await?;
    /// # drop(guard); Ok(()) }
    /// ```
    ///
    /// # Source
    /// Redisson `Config#setLockWatchdogTimeout`, of the others.
    #[doc(alias("lockWatchdogTimeout", "setLockWatchdogTimeout"))]
    pub fn redisson_watchdog(mut self, shortest: Duration) -> Self {
        self.config.redisson_watchdog = shortest;
        self
    }

    /// Whether the ids of this client's permits stand on the server as text, as Redisson before 3.17 writes them. Default: no, as Redisson does since.
    ///
    /// Permits are counted and waited for alike in either form. It only matters where a program in Java releases or extends a permit of ours by its id
    /// ([`Guard::owner`](crate::Guard::owner)): each Redisson finds ids of its own form. [`Status`](crate::Status) shows both alike.
    ///
    /// # Source
    /// Redisson `RPermitExpirableSemaphore#release(permitId)`, before 3.17.
    pub fn text_permit_ids(mut self, as_text: bool) -> Self {
        self.config.text_permit_ids = as_text;
        self
    }

    /// The label of this client in [`Status`](crate::Status), also after a crash. All users of the server can read it. Default: `host:pid`; at
    /// most 256 printable ASCII characters without spaces.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Whether the client is one of memory, and so lives on the runtime that connects it.
    #[cfg(feature = "blocking")]
    pub(crate) fn is_of_memory(&self) -> bool {
        let url = self.url.as_deref().unwrap_or_default();
        if let Some(quorum) = &self.quorum {
            return quorum.is_of_memory();
        }
        self.memory.is_some() || super::given::in_small_letters(url).starts_with("memory:")
    }

    /// Puts this before each name on the server, such as `"app:"`. Default: nothing.
    ///
    /// It is part of the name there, in all keys and channels: `order:42` behind the prefix `app:`, and `app:order:42` without
    /// one, are the same lock. Users see the name without it: in guards, errors,
    /// events, logs and [`Status`](crate::Status). The keys of a [`FencedStore`](crate::FencedStore) get it, too. A
    /// [`MemoryServer`](crate::MemoryServer) is a server: its methods take, and give, names with the prefix.
    ///
    /// Prefix and name have at most 1024 bytes together, and the rules for a name hold for both together. Redisson's
    /// `NameMapper` is used for the same.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, MemoryServer};
    ///
    /// let server = MemoryServer::new();
    /// let shop = Client::builder().memory(&server).name_prefix("shop:").connect().await?;
    /// let guard = shop.mutex("order:42").lock().await?;
    /// assert_eq!(guard.name(), "order:42");
    /// assert_eq!(server.names(), ["shop:order:42"]);
    ///
    /// let plain = Client::builder().memory(&server).connect().await?;
    /// assert!(plain.mutex("shop:order:42").try_lock().await?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Source
    /// Redisson `Config#setNameMapper`.
    #[doc(alias("NameMapper", "setNameMapper"))]
    pub fn name_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.config.name_prefix = prefix.into();
        self
    }

    /// Whether to look, at connect, if the server may forget locks, and to warn if it may. Default: `true`.
    ///
    /// It may if it deletes keys when its memory is full: a `maxmemory-policy` other than `noeviction`, with a `maxmemory`. It also may
    /// if it is a replica. Such a server is no error. A warning by `tracing` says what to do: once per client, and again when a server says
    /// something else after a reconnect. The server is asked by `INFO` only, in the handshake of each connection. Where the user may
    /// not ask, there is no warning.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// use leasehold::Client;
    ///
    /// // A rented server that evicts, behind a proxy that repeats requests: both are known.
    /// let builder = Client::builder().url("redis://rented/").check_server(false).may_duplicate(true);
    /// let client = builder.connect().await?;
    /// # drop(client); Ok(()) }
    /// ```
    pub fn check_server(mut self, check: bool) -> Self {
        self.config.check_server = check;
        self
    }

    /// Says that something between this client and the server may send a request twice, such as a proxy that repeats
    /// requests. Default: `false`.
    ///
    /// Each release then leaves a tombstone on the server for half a minute ([keys](crate::docs::keys)), so that a second copy of a
    /// request of before cannot take the name again. Without it such a copy costs others a lease of waiting; of a
    /// [`Semaphore`](crate::Semaphore), which has no lease, it takes permits that no guard holds, until
    /// [`add_permits`](crate::Semaphore::add_permits) gives them back.
    pub fn may_duplicate(mut self, may: bool) -> Self {
        self.config.may_duplicate = may;
        self
    }
}
