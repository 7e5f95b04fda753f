//! The holders of a lock, and those that wait for it, for users.

use std::time::{Duration, SystemTime};

use crate::{
    backend::{self, ConnectedClients, Inspection, Owned, QueuedOwner},
    clock::Tick,
    kind::{Access, LockKind},
    name::LockId,
    owner::LeaseId,
};

/// The holders of a lock, and how many clients and tasks wait for it.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// let client = leasehold::Client::connect("memory:").await?;
/// let prices = client.rw_lock("prices");
/// let guard = prices.read().await?;
/// let status = prices.status().await?;
/// println!("{} ({}) on {}, {} wait", status.name, status.kind, status.server, status.waiting_clients);
/// for holder in &status.holders {
///     println!("{} {:?}: {:?} left", holder.owner, holder.access, holder.remaining);
/// }
/// for leasehold::ServerVote { server, holder, .. } in &status.votes {
///     println!("{server} says {holder:?}"); // one server of a quorum
/// }
/// for waiter in &status.queue {
///     println!("then {:?}, since {:?}", waiter.label, waiter.since);
/// }
/// assert_eq!(status.holders.len(), 1);
/// assert!(status.holder().is_some()); // the only one, or the first
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The name.
    pub name: String,
    /// The kind of lock that was looked at.
    pub kind: LockKind,
    /// The holders; none if it is free. The readers of one process are one holder. Of a leased semaphore at most 1000: those
    /// whose leases end first. Empty for a semaphore without leases, whose holders the server does not know, and for a latch.
    pub holders: Vec<Holder>,
    /// How many permits are free; `None` for a kind that has none.
    pub available: Option<i64>,
    /// The count of a latch; `None` for any other kind.
    pub count: Option<u64>,
    /// The last fencing token that was given or reserved; `None` for a kind that has none, or if it is not there (any more).
    pub token: Option<u64>,
    /// How many clients listen for it to become free, Redisson's included. Where the server does not tell (to a user without
    /// `PUBSUB`; on Valkey 9.1 if there are 8, 15, 16, 29 to 32, 57 to 64 …, which it miscounts) those in our own queue; 0 of a semaphore or latch.
    pub waiting_clients: u64,
    /// The places in the server's queue, next first, at most 100: one for each client of this library that waits, of a fair mutex
    /// one for each task, or thread of Redisson's. A place outlives a client that died by half a minute. Empty for a semaphore, a
    /// latch, or a spin mutex, which have no queue. Redisson's clients have places at a fair mutex only: at other kinds they race.
    pub queue: Vec<QueuedClient>,
    /// How many tasks of this client wait for it.
    pub waiting_here: usize,
    /// The server that was asked: its address, without a user or a password.
    pub server: String,
    /// Of a quorum: the word of each server, in the order in which they were given. Else empty.
    pub votes: Vec<ServerVote>,
    /// Whether it says that it is a replica, which may not know yet what its primary does; `false` where `INFO` is not permitted.
    pub replica: bool,
    /// When the server was asked, by the clock of the client that asked.
    pub(crate) looked: Uncompared<Tick>,
}

/// A fact beside what a look shows: looks that show the same are equal, also if it differs.
#[derive(Clone, Copy, Debug, Eq)]
pub(crate) struct Uncompared<T>(pub(crate) T);

impl<T> PartialEq for Uncompared<T> {
    fn eq(&self, _other: &Uncompared<T>) -> bool {
        true
    }
}

/// A holder of a lock, as the server knows it. [`Status`] has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner field: `<client uuid>:<lease id>`, or `<client uuid>:<thread id>` for Redisson; a writer's ends with `:write`.
    /// Of a leased semaphore: the id of the first permit. Of a plain mutex that another library holds: its token.
    pub owner: String,
    /// The client's uuid; empty where the server does not know it: of Redisson's permits, and of another library.
    pub client: String,
    /// The label that the client gave itself (`host:pid` unless told otherwise), also when it has crashed; `None` for Redisson, or where
    /// the server's rules keep labels from their readers or writers ([keys](crate::docs::keys#permissions)).
    pub label: Option<String>,
    /// Whether the server has a connection of its client. `Some(false)`: none. Then the client has ended, or was cut off, or the
    /// server has restarted or closed the connection, and the client comes back within ten seconds. If it does not, the lease ends after
    /// what [remains](Holder::remaining). `None`: that cannot be told, as of Redisson, or was not asked, as by [`Find`](crate::Find).
    pub connected: Option<bool>,
    /// For how long the server has received nothing from its client, in whole seconds; `None` where `connected` is not `Some(true)`, and on
    /// a server in memory.
    pub idle: Option<Duration>,
    /// The thread of Redisson's that holds it; `None` for others.
    pub thread: Option<u64>,
    /// How it shares the lock with others.
    pub access: Access,
    /// How often the owner has entered; of readers, how many shared the hold when the server was last told. Of a read-write lock
    /// up to 100.
    pub holds: u64,
    /// When the lease was first asked for, by the clock of the client that asked; `None` for Redisson.
    pub since: Option<SystemTime>,
    /// The time left of the lease; `None` if it has no end.
    pub remaining: Option<Duration>,
    /// Its client has written, with its label, that its connections have names.
    is_named: Uncompared<bool>,
}

/// A label is written each ten seconds, a little later on a slow network.
const SILENT: Duration = Duration::from_secs(12);

/// A waiter, as the server knows it. [`Status`] has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuedClient {
    /// Under which owner field it asks: as [`Holder::owner`].
    pub owner: String,
    /// The client's uuid.
    pub client: String,
    /// The label that the client gave itself, as [`Holder::label`].
    pub label: Option<String>,
    /// Whether the server has a connection of its client, as [`Holder::connected`]. A waiter that died stands here until it would be served.
    pub connected: Option<bool>,
    /// How it wants to share the lock with others.
    pub access: Access,
    /// Since when it has asked under this owner field, by the clock of its client; `None` for Redisson.
    pub since: Option<SystemTime>,
    /// The thread of Redisson's that waits; `None` for others.
    pub thread: Option<u64>,
}

impl Status {
    /// The server's answer about a lock for which `waiting_here` tasks of this client wait.
    pub(crate) fn new(id: &LockId, found: Inspection, waiting_here: usize) -> Status {
        let is_latch = id.kind == LockKind::Latch;
        Status {
            name: id.name.shown().to_string(),
            kind: id.kind,
            holders: found.owners.into_iter().map(Holder::new).collect(),
            available: found.available.filter(|_| !is_latch),
            count: found
                .available
                .filter(|_| is_latch)
                .and_then(|count| u64::try_from(count).ok()),
            token: found.token,
            waiting_clients: found.listeners,
            queue: found.queue.into_iter().map(QueuedClient::new).collect(),
            waiting_here,
            server: found.server,
            votes: found.votes.into_iter().map(ServerVote::new).collect(),
            replica: found.is_replica,
            looked: Uncompared(found.looked),
        }
    }

    /// The only holder, of a kind that has one at a time; else the first. `None` if it is free.
    pub fn holder(&self) -> Option<&Holder> {
        self.holders.first()
    }
}

/// The word of one server of a quorum about a lock; see [`ClientBuilder::quorum`](crate::ClientBuilder::quorum).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerVote {
    /// Its address, without a user or a password.
    pub server: String,
    /// Its holder there; `None`: it is free, or the server gave no answer.
    pub holder: Option<Holder>,
    /// Why there is no answer; `None`: there is one.
    pub trouble: Option<String>,
    /// The server has restarted, and has no vote for so long. `None`: it may vote.
    pub quarantine: Option<Duration>,
}

impl ServerVote {
    fn new(vote: backend::SeenVote) -> ServerVote {
        let (holder, trouble) = match vote.answer {
            Ok(owned) => (owned.map(Holder::new), None),
            Err(why) => (None, Some(why)),
        };
        ServerVote {
            server: vote.server,
            holder,
            trouble,
            quarantine: vote.quarantine,
        }
    }
}

impl Holder {
    /// Whether its client is connected, and has sent nothing for 12 s: its process stands still, or its network. A client that holds or waits
    /// writes its label each ten seconds; `false` of one that may not, and where [`idle`](Holder::idle) is not known.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?; // or redis://127.0.0.1/
    /// let guard = client.mutex("order:42").lock().await?;
    /// let status = client.status("order:42").await?;
    /// assert!(!status.holders[0].is_silent()); // after a SIGSTOP, for instance, it would be
    /// # drop(guard); Ok(()) }
    /// ```
    pub fn is_silent(&self) -> bool {
        self.is_named.0 && self.idle.is_some_and(|idle| idle >= SILENT)
    }

    /// Adds what the servers tell of connections.
    pub(crate) fn connected_by(&mut self, connections: &ConnectedClients) {
        match connections.idle.get(&self.client) {
            Some(idle) => (self.connected, self.idle) = (Some(true), Some(*idle)),
            None if connections.all && self.is_named.0 => self.connected = Some(false),
            None => {}
        }
    }

    fn new(held: Owned) -> Holder {
        let by = By::new(&held.owner, held.client.uuid.as_deref());
        Holder {
            client: by.client,
            label: held.client.label,
            connected: held.client.connected,
            idle: held.client.idle,
            is_named: Uncompared(held.client.is_named),
            thread: by.thread,
            access: held.access,
            holds: held.holds,
            since: by.since,
            remaining: held.ttl,
            owner: held.owner,
        }
    }
}

impl QueuedClient {
    fn new(queued: QueuedOwner) -> QueuedClient {
        let by = By::new(&queued.owner, queued.client.uuid.as_deref());
        QueuedClient {
            client: by.client,
            label: queued.client.label,
            connected: queued.client.connected,
            access: queued.access,
            since: by.since,
            thread: by.thread,
            owner: queued.owner,
        }
    }
}

const UUID_CHARS: usize = 36;

/// The parts of an owner field.
struct By {
    client: String,
    since: Option<SystemTime>,
    thread: Option<u64>,
}

impl By {
    /// `uuid`: as the label of its client says it.
    fn new(owner: &str, uuid: Option<&str>) -> By {
        let (client, number) = if let Some((client, field)) = owner.split_once(':') {
            let number = field.split(':').next().unwrap_or_default();
            (client, number.parse::<u64>().ok())
        } else {
            // Of ours, the second half of a permit's id.
            let half = uuid.and_then(|_| owner.get(16..));
            let number = half.and_then(|half| u64::from_str_radix(half, 16).ok());
            (uuid.unwrap_or_default(), number)
        };
        let since = number.and_then(|number| LeaseId::from(number).made_at());
        By {
            // Another library's token may have a colon, too.
            client: number.map_or("", |_| client).to_owned(),
            since,
            // Lease ids of ours tell a time, for which thread ids of Java are too small. Another library's token follows no uuid.
            thread: number.filter(|_| since.is_none() && client.len() == UUID_CHARS),
        }
    }
}
