//! The holders of a lock, for users.

use std::time::{Duration, SystemTime};

use crate::{
    backend::{Inspection, Owned},
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
/// println!("{} ({}), {} wait", status.name, status.kind, status.waiting_clients);
/// for holder in &status.holders {
///     println!("{} {:?}: {:?} left", holder.owner, holder.access, holder.remaining);
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
    /// whose leases end first. Of a semaphore without leases those of this library, for a day after they were heard of last: the
    /// server does not know Redisson's. A latch has none.
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
    /// How many tasks of this client wait for it.
    pub waiting_here: usize,
}

/// A holder of a lock, as the server knows it. [`Status`] has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner field: `<client uuid>:<lease id>`, or `<client uuid>:<thread id>` for Redisson; a writer's ends with `:write`.
    /// Of a leased semaphore: the id of the first permit. Of a plain mutex that another library holds: its token.
    pub owner: String,
    /// The client's uuid; empty where the server does not know it.
    pub client: String,
    /// The label that the client gave itself (`host:pid` unless told otherwise); `None` for Redisson, a client that is
    /// gone, or where `CLIENT LIST` is not permitted.
    pub label: Option<String>,
    /// How it shares the lock with others.
    pub access: Access,
    /// How often the owner has entered; of readers, how many shared the hold when the server was last told. Of a read-write lock
    /// up to 100.
    pub holds: u64,
    /// When the lease was first asked for, by the clock of the client that asked; `None` for Redisson.
    pub since: Option<SystemTime>,
    /// The time left of the lease; `None` if it has no end.
    pub remaining: Option<Duration>,
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
            waiting_here,
        }
    }

    /// The only holder, of a kind that has one at a time; else the first. `None` if it is free.
    pub fn holder(&self) -> Option<&Holder> {
        self.holders.first()
    }
}

impl Holder {
    fn new(held: Owned) -> Holder {
        let (client, number) = held.owner.split_once(':').unwrap_or(("", ""));
        let number = number.split(':').next().unwrap_or_default();
        let number = number.parse::<u64>().ok().map(LeaseId::from);
        Holder {
            // Another library's token may have a colon, too.
            client: number.map_or("", |_| client).to_owned(),
            label: held.label,
            access: held.access,
            holds: held.holds,
            since: number.and_then(LeaseId::made_at),
            remaining: held.ttl,
            owner: held.owner,
        }
    }
}
