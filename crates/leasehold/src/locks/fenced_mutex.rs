//! The mutual exclusion lock whose holders are numbered.
//!
//! Promise: that of the mutex; and the tokens of its holders grow strictly in the order of their grants, Redisson's
//! `RFencedLock` included. Keys: `docs/keys.md`. Source: Redisson `RedissonFencedLock`; Kleppmann, "How to do distributed
//! locking", 2016.

use std::{future::Future, sync::Arc, time::Duration};

use super::{
    handle::{Handle, at_most, lease_settings, never_busy, owner_settings},
    once_per::once_per_verb,
    part::{Part, exclusive_part},
    run::run_verbs,
};
use crate::{
    Error, FencedMutexGuard,
    engine::core::Core,
    engine::hold::spec::Patience,
    kind::{Access, LockKind},
};

/// A re-entrant mutual exclusion lock on a name, whose guards carry fencing tokens; shared with Redisson's `RFencedLock` of the
/// same name.
///
/// A holder that pauses past its lease may act on after the next one has begun. No lock can prevent that; the resource can: it
/// remembers the newest [`token`](crate::Guard::token) that it has seen, and refuses older ones. Everything else is as with a
/// [`Mutex`](crate::Mutex).
///
/// | wait | method |
/// |---|---|
/// | as long as it takes | [`lock`](FencedMutex::lock) |
/// | not at all | [`try_lock`](FencedMutex::try_lock) |
/// | up to `wait` | [`try_lock_for`](FencedMutex::try_lock_for) |
///
/// # Tokens
/// Each grant has a token larger than those of all grants before, also if the key of the last token has ended, was deleted or
/// flushed, or got lost in a failover: a token is the larger of the last one plus 1 and the time on the server's clock in
/// microseconds. Only a lost key *and* a clock that is behind the last token (it jumped back, or is that of a replica; tokens run
/// ahead of it by a millisecond at most) let them go back. With a grant the client reserves 65
/// tokens, so that a lease that passes from task to task in memory has a new token each time without a request: after 64
/// hand-offs in a row the server is asked, even if [`handoff`](FencedMutex::handoff) allows more. Re-entry keeps the token.
///
/// The key of the last token stays for seven days after the last grant
/// ([`ClientBuilder::token_retention`](crate::ClientBuilder::token_retention)).
///
/// # The resource
/// | where the data is | how it refuses a stale token |
/// |---|---|
/// | Redis, Valkey | [`FencedStore`](crate::FencedStore), or a script of your own |
/// | a SQL database | a column, or a row, with the newest token: see below, and `examples/fenced_sql.rs` |
/// | a service | passes the token on to one of these |
///
/// ```sql
/// -- In the transaction that writes, first of all. No row is changed: the token is stale, roll back.
/// INSERT INTO fences (name, token) VALUES ($1, $2)
///     ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE fences.token <= excluded.token;
/// ```
///
/// The row's lock keeps older holders out until the transaction commits. SQLite and PostgreSQL take this statement, and it makes
/// the row of a new name. For MySQL see `examples/fenced_sql.rs`.
///
/// # Beside Redisson
/// Its grants take the next number, so they grow together. It numbers re-entry, too: the outer holder's token is not the
/// newest then. Its key has no end, and keeps none. Where ours would end and Redisson's client be the next, it would begin at 1:
/// clients beside it say `token_retention(None)`. After a flush let a client of ours be the first. A
/// [`Mutex`](crate::Mutex) or `RLock` of the same name excludes this one, for Redisson keeps both at the same key; but its
/// holders have no token, and the two kinds race instead of queueing. Give each kind names of its own.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, ErrorKind};
///
/// let client = Client::connect("memory:").await?;
/// let mutex = client.fenced_mutex("order:42");
/// let orders = client.fenced_store("order:42"); // refuses stale tokens
///
/// let guard = mutex.lock().await?;
/// let old = guard.token();
/// orders.set("order:42:state", "paid", old).await?;
/// guard.release().await?;
///
/// let guard = mutex.lock().await?;
/// assert!(guard.token() > old);
/// orders.set("order:42:state", "sent", guard.token()).await?;
/// let late = orders.set("order:42:state", "paid", old).await.unwrap_err();
/// assert_eq!(late.kind(), ErrorKind::Stale);
/// assert_eq!(orders.get("order:42:state").await?.unwrap(), b"sent");
/// # Ok(()) }
/// ```
#[must_use = "a handle does nothing until it is asked"]
#[derive(Clone)]
#[doc(alias("RFencedLock", "getFencedLock", "fencing"))]
pub struct FencedMutex {
    handle: Handle,
}

lease_settings!(FencedMutex, "The holders, and how many wait.");
owner_settings!(FencedMutex);
exclusive_part!(FencedMutex);
run_verbs!(FencedMutex, "fenced_mutex(\"ledger\")");
once_per_verb!(FencedMutex, "fenced_mutex(\"report\")");

impl FencedMutex {
    pub(crate) fn new(core: &Arc<Core>, name: &str) -> FencedMutex {
        FencedMutex {
            handle: Handle::new(core, LockKind::FencedMutex, name),
        }
    }

    /// Waits for the lock, as long as it takes, and returns the guard that holds it.
    ///
    /// A server that cannot be reached, loads its data, is busy or full is waited for like a holder.
    /// [`try_lock_for`](FencedMutex::try_lock_for) bounds the wait.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the name or a setting is not valid; nothing was sent.
    /// - [`Error::Rejected`]: the server refuses for good, for instance because another type stands under the name or under the key of its tokens, or the
    ///   lease is over each time before the answer is here. The name is as it was.
    /// - [`Error::Reentered`]: the owner holds it, and re-entry is off.
    /// - [`Error::Lost`]: the owner held it and entered again, and its hold ended before the server's answer was here.
    /// - [`Error::Closed`]: the client was shut down.
    ///
    /// # Cancel safety
    /// Cancel safe. Dropping the future gives up the place in the queue; a request under way is seen to its end in
    /// the background, and a hold that it brings is released.
    ///
    /// # Source
    /// Redisson `RFencedLock#lockAndGetToken()`. Where we differ: waiters queue in memory, and processes on the server; a token is
    /// never below the server's clock; re-entry keeps the token; the key of the last token has an end.
    #[track_caller]
    pub fn lock(
        &self,
    ) -> impl Future<Output = Result<FencedMutexGuard, Error>> + Send + 'static + use<> {
        never_busy(self.ask(Patience::Forever))
    }

    /// Takes the lock if it is free now; `None` if it is held.
    ///
    /// Waits for the server's answer, and for an attempt or a release of this process under way, but for no
    /// holder. If a task of this process waits for the name already, the answer is the last that the server gave.
    ///
    /// # Errors
    /// As [`lock`](FencedMutex::lock), but a silent server is an error after the operation timeout. So is a name that the server calls held while this
    /// client gives up a lease of it that may be meant: [`Error::Ambiguous`], try again. `None` is said of other holders alone.
    ///
    #[doc = super::bounds::ends_once!()]
    ///
    /// # Cancel safety
    /// As [`lock`](FencedMutex::lock).
    ///
    /// # Source
    /// Redisson `RFencedLock#tryLockAndGetToken()`, which waits, against its contract.
    #[track_caller]
    pub fn try_lock(
        &self,
    ) -> impl Future<Output = Result<Option<FencedMutexGuard>, Error>> + Send + 'static + use<>
    {
        self.ask(Patience::Once)
    }

    /// Waits for the lock, up to `wait`; `None` if it was held.
    ///
    /// `wait` counts from the first poll. [`Duration::ZERO`] asks once, as [`try_lock`](FencedMutex::try_lock).
    ///
    /// # Errors
    /// As [`lock`](FencedMutex::lock), but when `wait` is over: `None` if the name was still held, by the last answer since the call began; an error
    /// if the server could not be asked.
    ///
    #[doc = super::bounds::ends_for!()]
    ///
    /// # Cancel safety
    /// As [`lock`](FencedMutex::lock).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// use std::time::Duration;
    ///
    /// let mutex = client.fenced_mutex("ledger");
    /// let guard = mutex.try_lock().await?;
    /// assert!(guard.is_some());
    /// assert!(mutex.try_lock_for(Duration::from_millis(10)).await?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Source
    /// Redisson `RFencedLock#tryLockAndGetToken(long, TimeUnit)`.
    #[track_caller]
    pub fn try_lock_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<FencedMutexGuard>, Error>> + Send + 'static + use<>
    {
        self.ask(at_most(wait))
    }

    /// Takes it from its holder: see [`Client::force_unlock`](crate::Client::force_unlock). The last token stays, so that the next
    /// holder's is larger.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let mutex = client.fenced_mutex("order:42");
    /// let guard = mutex.lock().await?; // of a holder that is dead, say
    /// assert!(mutex.force_unlock().await?);
    /// assert!(!guard.is_valid()); // a holder of this client learns it at once
    /// # Ok(()) }
    /// ```
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        self.handle.force_unlock().await
    }

    #[track_caller]
    fn ask(
        &self,
        patience: Patience,
    ) -> impl Future<Output = Result<Option<FencedMutexGuard>, Error>> + Send + 'static + use<>
    {
        self.handle.ask(Access::Exclusive, patience)
    }
}
