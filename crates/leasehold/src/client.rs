//! The client: one constructor per kind of lock, and its requests to the server.

use std::{collections::HashSet, fmt, sync::Arc, time::Duration};

use futures_util::future::join_all;

use crate::{
    Election, Error, EventListener, FairMutex, FencedMutex, FencedStore, Find, Finding, Latch,
    LeasedSemaphore, MultiLock, Mutex, Part, PlainMutex, RwLock, Semaphore, SpinMutex, Status,
    backend::{ForceUnlock, SeenHolder},
    engine::core::{ClientRef, Core},
    error::Invalid,
    examine, find,
    kind::LockKind,
    locks::LeaderRecord,
    name::{LockId, Name},
};

/// A connection to the server that holds the leases, shared by everything that locks through it.
///
/// Cheap to clone; clones are the same client, and may be used from any number of tokio runtimes, at once or one
/// after the other: in a `static`, for instance. On a real server renewals, wake-ups and reconnecting run on one
/// thread of Leasehold's own per process, so leases are renewed whether the runtimes of their holders are
/// blocked, busy or ended. A process that hangs therefore keeps its locks: see
/// [`max_hold`](crate::Mutex::max_hold).
///
/// A client's background work ends when its last clone, lock handle and guard are gone, and the server has confirmed that it holds
/// nothing of theirs. While it does not answer it is asked again, until any lease that it may hold for them has ended: for a
/// [`Semaphore`] that takes a day. The thread stays. The drop of the last of them waits for that work, at most 100 ms, so that a
/// program may end by it: see [`Guard`](crate::Guard#at-the-end-of-a-program) and [`linger`](crate::ClientBuilder::linger).
///
/// Each of these runtimes needs I/O *and* time (`enable_all`, or `enable_io` and `enable_time`), or calls panic or fail there.
/// A client of `memory:` lives on the runtime that connected it, which must outlive the guards.
///
/// It takes one connection for each runtime that locks through it, closed when that runtime ends, one for
/// renewals, and one to hear wake-ups from the first wait on.
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
///
/// A client serves all locks of a program, of all kinds:
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// let orders = client.mutex("order:42");
/// let ledger = client.fenced_mutex("ledger");
/// let balance = client.fenced_store("ledger"); // data that refuses writers whose token is old
/// let prices = client.rw_lock("prices");
/// let encoders = client.leased_semaphore("encoders");
/// let tickets = client.semaphore("tickets");
/// let turnstile = client.fair_mutex("turnstile");
/// let counter = client.spin_mutex("counter");
/// let legacy = client.plain_mutex("legacy"); // beside redis-py, redsync, ShedLock, …
/// let accounts = client.multi_lock(["account:3", "account:7"]);
/// let scheduler = client.election("scheduler"); // one leader, and others that wait to take over
/// let shards = client.latch("shards");
///
/// assert!(!client.id().is_empty()); // the first half of each owner on the server
/// # let _ = (orders, ledger, balance, prices, encoders, tickets, turnstile, counter, legacy, accounts, scheduler, shards);
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[doc(alias("RedissonClient", "pool"))]
pub struct Client {
    core: ClientRef,
}

/// How [`Client::shutdown`] treats held locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Give holders `grace` to release by themselves, then release the locks that are still held.
    ReleaseAll {
        /// How long to wait for the holders.
        grace: Duration,
    },
    /// Stop renewing: each name frees itself when its lease ends.
    LetExpire,
}

impl Client {
    pub(crate) fn new(core: &Arc<Core>) -> Client {
        Client {
            core: ClientRef::new(core),
        }
    }

    /// Where its background work runs.
    #[cfg(feature = "blocking")]
    pub(crate) fn background(&self) -> &crate::background::BackgroundRuntime {
        self.core.background()
    }

    /// The uuid of this client: the first half of each of its owner fields on the server.
    pub fn id(&self) -> &str {
        &self.core.uuid
    }

    /// A re-entrant mutual exclusion lock on a name. No I/O; the first use refuses a bad name.
    #[track_caller]
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(&self.core, name.as_ref())
    }

    /// A mutex whose guards carry fencing tokens. No I/O; the first use refuses a bad name.
    pub fn fenced_mutex(&self, name: impl AsRef<str>) -> FencedMutex {
        FencedMutex::new(&self.core, name.as_ref())
    }

    /// Data on the server that is written under the fencing tokens of `name`. No I/O; the first use refuses a bad name.
    pub fn fenced_store(&self, name: impl AsRef<str>) -> FencedStore {
        FencedStore::new(&self.core, name.as_ref())
    }

    /// An election of one leader among all that campaign for `name`, with a value that others can read. No I/O; the first use refuses a bad name.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        let name = name.as_ref();
        Election::new(
            &self.fenced_mutex(name),
            LeaderRecord::new(&self.core, name),
        )
    }

    /// A lock for many readers or one writer. No I/O; the first use refuses a bad name.
    pub fn rw_lock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(&self.core, name.as_ref())
    }

    /// Permits, each held under a lease. No I/O; the first use refuses a bad name.
    pub fn leased_semaphore(&self, name: impl AsRef<str>) -> LeasedSemaphore {
        LeasedSemaphore::new(&self.core, name.as_ref())
    }

    /// The lock that many libraries share: `SET name token NX PX`. No I/O; the first use refuses a bad name.
    pub fn plain_mutex(&self, name: impl AsRef<str>) -> PlainMutex {
        PlainMutex::new(&self.core, name.as_ref())
    }

    /// A mutex for names that are taken for microseconds: its waiters ask again and again. No I/O; the first use refuses a
    /// bad name.
    pub fn spin_mutex(&self, name: impl AsRef<str>) -> SpinMutex {
        SpinMutex::new(&self.core, name.as_ref())
    }

    /// Several names at once, all or nothing, with one guard: mutexes of this client, or [`Part`]s of several kinds and clients. No I/O;
    /// the first use refuses a bad name, or a name twice.
    pub fn multi_lock<P: Into<Part>>(&self, parts: impl IntoIterator<Item = P>) -> MultiLock {
        MultiLock::new(&self.core, parts.into_iter().map(Into::into))
    }

    /// Permits without a lease: a crash loses those of its process. No I/O; the first use refuses a bad name.
    pub fn semaphore(&self, name: impl AsRef<str>) -> Semaphore {
        Semaphore::new(&self.core, name.as_ref())
    }

    /// A count that tasks wait for until it is zero. No I/O; the first use refuses a bad name.
    pub fn latch(&self, name: impl AsRef<str>) -> Latch {
        Latch::new(&self.core, name.as_ref())
    }

    /// A mutex whose waiters are served in the order in which they asked. No I/O; the first use refuses a bad name.
    pub fn fair_mutex(&self, name: impl AsRef<str>) -> FairMutex {
        FairMutex::new(&self.core, name.as_ref())
    }

    /// The holders of a mutex, and how many wait for it. The other kinds have a `status` of their own.
    ///
    /// # Errors
    /// The name is not valid, or the server does not answer. It only reads.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let guard = client.mutex("order:42").lock().await?;
    /// let status = client.status("order:42").await?;
    /// assert_eq!(status.holders.len(), 1);
    /// assert_eq!(status.holders[0].owner, guard.owner());
    /// # Ok(()) }
    /// ```
    pub async fn status(&self, name: impl AsRef<str>) -> Result<Status, Error> {
        self.mutex(name).status().await
    }

    /// The locks whose names match a pattern, of all kinds, ours and Redisson's: `*` for all, as `SCAN … MATCH` reads it. No I/O; each
    /// [`next`](Find::next) reads a page of the server's keys. The time that this takes grows with the number of all keys.
    ///
    /// Only locks are listed, and none that cannot be told from data:
    /// - a mutex, a fair one and a fenced one are told apart by who waits and by tokens; else each is a mutex, as a spin mutex always is;
    /// - a leased semaphore is listed while permits are out, and any semaphore or latch while a client waits, as far as the server knows;
    /// - another library's [`PlainMutex`] is listed if it has an end, and its value is like a token. So may be a session's key.
    ///
    /// [`docs::keys`](crate::docs::keys) says what is taken for a lock, and which rights this needs.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let guard = client.mutex("order:42").lock().await?;
    /// let mut find = client.find("*");
    /// while let Some(page) = find.next().await? {
    ///     for lock in page {
    ///         println!("{} is held by {:?}", lock.name, lock.holder());
    ///     }
    /// }
    /// # drop(guard); Ok(()) }
    /// ```
    pub fn find(&self, pattern: impl AsRef<str>) -> Find {
        Find::new(&self.core, pattern.as_ref())
    }

    /// Whether the servers may be trusted with locks: what each says of its role, memory, persistence, replicas, cluster and clock, how long it takes to
    /// answer, and whether its sentinels are at one. Of each server the worst first; of a cluster each primary is asked, of a majority each server; a server in memory has nothing to say.
    ///
    /// It only reads, by `INFO`, `CONFIG GET`, `SLOWLOG GET`, `CLUSTER`, `TIME` and 50 `PING`s, and its sentinels by `SENTINEL MASTER`, for people and for the start of a program. What the server's
    /// user may not ask is [`NotAllowed`](crate::Level::NotAllowed), and no fault. `leasehold doctor` prints it, and tries a lock as well.
    ///
    /// # Errors
    /// No server has answered. If some have, each that has not is a [`Danger`](crate::Level::Danger) among the findings; of a majority, a
    /// [`Warning`](crate::Level::Warning).
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Examples
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, Level};
    ///
    /// let client = Client::connect("redis://127.0.0.1/").await?;
    /// for finding in client.examine().await? {
    ///     if finding.level >= Level::Warning {
    ///         eprintln!("{}: {}; {}", finding.server, finding.what, finding.leads_to);
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Source
    /// The settings are those of [`docs::operating`](crate::docs::operating).
    pub async fn examine(&self) -> Result<Vec<Finding>, Error> {
        let reports = join_all(self.core.backend.reports()).await;
        let failed = reports.iter().map(|report| report.answers.as_ref().err());
        if let Some(failed) = failed.collect::<Option<Vec<_>>>()
            && let Some(failure) = failed.first().copied().cloned()
        {
            return Err(failure.into_read_error("examine the server".to_owned()));
        }
        let mut all: Vec<_> = reports.iter().flat_map(examine::findings).collect();
        // Each node of a cluster knows the same of it.
        let mut seen = HashSet::new();
        all.retain(|finding| finding.word != "cluster" || seen.insert(finding.what.clone()));
        all.extend(examine::clocks(&reports));
        Ok(all)
    }

    /// Frees a mutex: takes it from its holder. `false` if it was free. The other kinds have a `force_unlock` of their own.
    ///
    /// Make sure that the holder is dead first: until it learns of the loss, it believes that it is alone. A holder that uses this
    /// library learns it within 100 ms while a task of its own client has waited for the name for a second or longer. Else its client listens
    /// to nothing, and the holder learns it at its next renewal or [`verify`](crate::Guard::verify), a third of its lease later at
    /// worst. Waiters of other processes are served at once; those of the holder's own client wait behind it in memory, and go on
    /// when it learns it. Called through the holder's client, it tells both at once.
    ///
    /// # Errors
    /// The name is not valid, or the server does not answer: it may have freed the name.
    ///
    /// # Cancel safety
    /// Dropping it does not take the request back.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, LostReason, MemoryServer};
    ///
    /// let server = MemoryServer::new();
    /// let connect = || Client::builder().memory(&server).connect();
    /// let (holder, operator) = (connect().await?, connect().await?);
    /// let guard = holder.mutex("order:42").lock().await?;
    /// assert!(operator.force_unlock("order:42").await?);
    /// assert!(guard.verify().await.is_err());
    /// assert_eq!(guard.lost().await, LostReason::Replaced);
    /// # Ok(()) }
    /// ```
    ///
    /// # Source
    /// Redisson `RLock#forceUnlock`.
    pub async fn force_unlock(&self, name: impl AsRef<str>) -> Result<bool, Error> {
        self.mutex(name).force_unlock().await
    }

    /// Takes a lock away from the holders that a look at it showed, and passes it on: only if these still hold it, all of them, and none was
    /// renewed since the look. `false`: it is not as it was seen, and was left as it is (of a majority a few votes may be gone, and are asked for again by its holder); look again.
    ///
    /// So what an operator has looked at, and found dead, is what is taken away: between the look and the break the lock may have changed
    /// hands, or its holder may have come back. A holder that the server cannot hear (a network that is cut) looks as a dead one does, and
    /// believes in its lease until what [remained](crate::Holder::remaining) of it has ended. Of a majority, each server decides by itself;
    /// the lock is taken if a majority has it as it was seen.
    ///
    /// # Errors
    /// The lock is a semaphore, whose permits are taken all at once, or a latch, which has no holder ([`Error::Invalid`]; nothing is
    /// sent). The server does not answer: it may have freed the name.
    ///
    /// # Cancel safety
    /// Dropping it does not take the request back.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let guard = client.mutex("order:42").lock().await?;
    /// let seen = client.status("order:42").await?;
    /// guard.release().await?;
    /// let guard = client.mutex("order:42").lock().await?; // another holder by now
    /// assert!(!client.force_unlock_if(&seen).await?);
    /// guard.verify().await?;
    ///
    /// let seen = client.status("order:42").await?;
    /// assert!(client.force_unlock_if(&seen).await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Source
    /// Redisson has only `RLock#forceUnlock`, which takes the lock from the holder of that moment.
    pub async fn force_unlock_if(&self, seen: &Status) -> Result<bool, Error> {
        if matches!(
            seen.kind,
            LockKind::LeasedSemaphore | LockKind::Semaphore | LockKind::Latch
        ) {
            let limit = "a lock whose holders have leases of their own";
            let invalid = Invalid::new("the kind of lock", seen.kind.to_string(), limit);
            return Err(invalid
                .remedy(
                    "take all permits with `force_unlock` of the semaphore; a latch has no holder",
                )
                .into());
        }
        if seen.holders.is_empty() {
            return Ok(false);
        }
        let name = Name::under(&self.core.config.name_prefix, &seen.name)?;
        let since = self.core.clock.now().since(seen.looked.0);
        // The clocks of both sides may differ a little. A renewal moves an end by a third of the lease.
        let slack = since / 64 + Duration::from_millis(10);
        let mut holders = Vec::with_capacity(seen.holders.len());
        for holder in &seen.holders {
            // Votes of a majority end apart.
            let votes = seen.votes.iter().filter_map(|vote| vote.holder.as_ref());
            let votes = votes.filter(|vote| vote.owner == holder.owner);
            let longest = votes.filter_map(|vote| vote.remaining).max();
            let left = holder
                .remaining
                .map(|left| longest.map_or(left, |most| most.max(left)));
            if left.is_some_and(|left| left + slack < since) {
                return Ok(false); // the lease that was seen is over: what there is now is not as it was
            }
            holders.push(SeenHolder {
                owner: holder.owner.clone(),
                left: left.map(|left| left.saturating_sub(since) + slack),
            });
        }
        let step = ForceUnlock {
            id: LockId::new(seen.kind, name),
            seen: holders.into(),
        };
        self.core.force_unlock(step).await
    }

    /// Adds to locks that [`find`](Client::find) has found which of their holders are connected, and for how long they have sent nothing
    /// ([`Holder::connected`](crate::Holder::connected), [`Holder::idle`](crate::Holder::idle)). It asks each server once for the list of its
    /// connections, since such a list is long. A holder that came and went between the two looks may count as gone:
    /// [`status`](Client::status) looks at one lock at once.
    ///
    /// # Errors
    /// The server does not answer. It only reads. Where the user may not list connections, or on a majority, nothing is added.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let guard = client.mutex("order:42").lock().await?;
    /// let mut found = Vec::new();
    /// let mut find = client.find("order:*");
    /// while let Some(page) = find.next().await? {
    ///     found.extend(page);
    /// }
    /// client.fill_connected(&mut found).await?;
    /// assert_eq!(found[0].holders[0].connected, Some(true));
    /// # drop(guard); Ok(()) }
    /// ```
    ///
    /// # Source
    /// [`CLIENT LIST`](https://redis.io/docs/latest/commands/client-list/).
    pub async fn fill_connected(&self, found: &mut [Status]) -> Result<(), Error> {
        let connections = self.core.backend.connections().await;
        let connections = connections
            .map_err(|failure| failure.into_read_error("list the connections".to_owned()))?;
        for holder in found.iter_mut().flat_map(|lock| &mut lock.holders) {
            holder.connected_by(&connections);
        }
        Ok(())
    }

    /// Looks again at locks that [`find`](Client::find) has found, and takes those out that are none any more: at as many as a screen shows, since
    /// each costs the server about 50 µs. Whether holders are connected stays as it was; [`fill_connected`](Client::fill_connected) asks for it.
    ///
    /// # Errors
    /// The server does not answer, or refuses. It only reads; `found` is as it was.
    ///
    /// # Cancel safety
    /// Cancel safe: `found` is as it was.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let (one, other) = (client.mutex("order:1").lock().await?, client.mutex("order:2").lock().await?);
    /// let mut found = client.find("order:*").next().await?.unwrap_or_default();
    /// assert_eq!(found.len(), 2);
    /// one.release().await?;
    /// client.look_again(&mut found).await?;
    /// assert_eq!(found.len(), 1);
    /// # drop(other); Ok(()) }
    /// ```
    pub async fn look_again(&self, found: &mut Vec<Status>) -> Result<(), Error> {
        find::look_again(&self.core, found).await
    }

    /// The events of this client's locks from now on. [`Event`](crate::Event) says which of them start a hold, and which end it.
    /// [`ClientBuilder::observe`](crate::ClientBuilder::observe) hears them at less cost, and misses none.
    ///
    /// A listener that lags more than 4096 events behind misses some (and is told how many).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::EventKind;
    ///
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let mut events = client.events();
    /// let guard = client.mutex("order:42").lock().await?;
    /// assert_eq!(events.recv().await.unwrap().kind, EventKind::Asked);
    /// let event = events.recv().await.unwrap();
    /// assert!(matches!(event.kind, EventKind::Acquired { .. }));
    /// assert_eq!(&*event.name, "order:42");
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn events(&self) -> EventListener {
        self.core.events.listen(&self.core.clock)
    }

    /// Shuts the client down: waiters get [`Error::Closed`], and nothing new is begun.
    ///
    /// With [`ReleaseAll`](Shutdown::ReleaseAll) guards are renewed as before during the grace; those that are left after it are
    /// lost ([`LostReason::ClientShutdown`](crate::LostReason::ClientShutdown)) and their names released. With
    /// [`LetExpire`](Shutdown::LetExpire) they are lost at once, and their names free themselves. Returns when the server
    /// has been told, or could not be within the operation timeout: then it is told in the background, for as long as a client that was
    /// dropped would do that (see [`Client`]). `status` and `force_unlock` go on working.
    ///
    /// # Cancel safety
    /// Dropping it leaves the client closed; leases that are still held expire.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use std::time::Duration;
    /// use leasehold::{Client, ErrorKind, Shutdown};
    ///
    /// let client = Client::connect("memory:").await?;
    /// let guard = client.mutex("order:42").lock().await?;
    /// client.shutdown(Shutdown::ReleaseAll { grace: Duration::from_millis(10) }).await;
    /// assert!(!guard.is_valid()); // it was still held after the grace
    /// let error = client.mutex("order:42").lock().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Closed);
    /// # Ok(()) }
    /// ```
    pub async fn shutdown(&self, how: Shutdown) {
        let grace = match how {
            Shutdown::ReleaseAll { grace } => Some(grace),
            Shutdown::LetExpire => None,
        };
        self.core.shutdown(grace).await;
    }

    /// Where the primary of a name is now. With `asks` one of its replicas is asked to take its place: for `leasehold drill --failover`, and
    /// for no other program. Only sentinels and clusters do that.
    #[doc(hidden)]
    pub async fn fail_over(&self, name: &str, asks: bool) -> Result<String, Error> {
        let backend = &self.core.backend;
        backend.can_fail_over().map_err(|why| {
            let invalid = Invalid::new("the server", why, "one that a replica can replace");
            invalid.remedy("give the address of its sentinels, or of its cluster")
        })?;
        let name = Name::under(&self.core.config.name_prefix, name)?;
        let id = LockId::new(LockKind::Mutex, name);
        let answer = backend.fail_over(&id, asks).await;
        answer.map_err(|failure| failure.into_error("ask for a failover", Duration::ZERO))
    }

    /// The things that this client keeps in memory, for tests that look for leaks.
    #[doc(hidden)]
    pub fn footprint(&self) -> Footprint {
        Footprint {
            queues: self.core.queues.len() + self.core.latch_waiters.len(),
            watched: self.core.watchdog.len(),
            tasks: self.core.tasks(),
            waiting: self.core.queues.waiting_drivers()
                + self.core.fair.waiting_heartbeats()
                + self.core.latch_waiters.waiting_drivers(),
            asking: self.core.queues.asking(),
        }
    }

    /// Completes when this client has heard all messages that its server has sent until now, and the tasks that these wake
    /// have had a turn, for tests that wait until nothing is under way.
    #[doc(hidden)]
    pub async fn heard(&self) {
        self.core.heard().await;
    }
}

/// See [`Client::footprint`].
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    pub queues: usize,
    pub watched: usize,
    pub tasks: usize,
    /// How many of the tasks are drivers that wait for a wake-up, or heartbeats of their entries.
    pub waiting: usize,
    /// How many queues have a request under way, that of a caller included.
    pub asking: usize,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("id", &self.core.uuid)
            .field("backend", &self.core.backend)
            .finish_non_exhaustive()
    }
}
