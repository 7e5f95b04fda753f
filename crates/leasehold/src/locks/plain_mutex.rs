//! The mutual exclusion lock of `SET name token NX PX`.
//!
//! Promise: at any moment at most one guard per name is valid, among all processes on this server, and beside each library
//! that takes a name with `SET … NX PX` and gives it back only where it finds its own token. Keys: `docs/keys.md`. Source:
//! Redis documentation, "Distributed Locks with Redis", the lock of one instance.

use std::{future::Future, sync::Arc, time::Duration};

use super::{
    handle::{Handle, at_most, lease_settings, never_busy, owner_settings},
    once_per::once_per_verb,
    part::{Part, exclusive_part},
    run::run_verbs,
};
use crate::{
    Error, PlainMutexGuard,
    config::PollRange,
    engine::core::Core,
    engine::hold::spec::{Patience, Waits},
    kind::{Access, LockKind},
};

/// A mutual exclusion lock on a name that other libraries share: a string with the holder's token, set by
/// `SET name token NX PX` and deleted by the holder that finds its own token there.
///
/// So do redis-py's `Lock`, redsync, node-redlock, bsm/redislock, rslock and `ShedLock`; any of them and this library exclude
/// each other on one name. Between processes of this library alone, [`Mutex`](crate::Mutex) does the same, and shares its
/// names with Redisson.
///
/// A handle: cheap to clone, no I/O until it is locked. Verbs and settings are those of a `Mutex`: each `lock()` is a new
/// owner, leases are renewed, losses are told. The server keeps no hold count; how often an owner has entered is known in
/// its process only.
///
/// | wait | method |
/// |---|---|
/// | as long as it takes | [`lock`](PlainMutex::lock) |
/// | not at all | [`try_lock`](PlainMutex::try_lock) |
/// | up to `wait` | [`try_lock_for`](PlainMutex::try_lock_for) |
///
/// # Order, and what waiting costs
///
/// While a client of this library holds the name, waiters of this library are told: they stand in a queue, and an idle waiting
/// process asks once in ten seconds. Another library tells no waiter when it gives the name back. While it has the name,
/// each waiting process asks again after 50 to 150 ms ([`backoff`](PlainMutex::backoff)), and the first that asks after
/// its release gets it. The other way round, a waiter of another library looks by itself and cannot be seen: it gets the name when no
/// client of this library waits for it.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use std::time::Duration;
/// use leasehold::Client;
///
/// let client = Client::connect("memory:").await?;
/// let mutex = client.plain_mutex("order:42"); // redis-py: r.lock("order:42", timeout=30)
/// let guard = mutex.lock().await?;
/// assert!(mutex.try_lock().await?.is_none());
/// assert!(mutex.try_lock_for(Duration::from_millis(10)).await?.is_none());
/// drop(guard); // or guard.release().await?, which returns the result
/// assert!(mutex.try_lock().await?.is_some());
/// # Ok(()) }
/// ```
///
/// # Source
/// Redis documentation, "Distributed Locks with Redis": `SET resource token NX PX`, and compare-and-delete. Where we differ: a
/// request that is repeated finds its own lease, and a lease id that was given up never holds again.
#[must_use = "a handle does nothing until it is asked"]
#[derive(Clone)]
#[doc(alias("redsync", "redlock", "NewMutex"))]
pub struct PlainMutex {
    handle: Handle,
}

lease_settings!(
    PlainMutex,
    "The holder, and how many clients of this library wait."
);
owner_settings!(PlainMutex);
exclusive_part!(PlainMutex);
run_verbs!(PlainMutex, "plain_mutex(\"order:42\")");
once_per_verb!(PlainMutex, "plain_mutex(\"report\")");

impl PlainMutex {
    pub(crate) fn new(core: &Arc<Core>, name: &str) -> PlainMutex {
        let handle = Handle::new(core, LockKind::PlainMutex, name);
        PlainMutex {
            handle: handle
                .with(|settings| settings.waits = Waits::NotifiedOrPolls(PollRange::PLAIN)),
        }
    }

    /// The same lock, whose waiters look after other pauses while another library holds it: the first after `first`, the
    /// next after up to twice as long, and so on to `most`; at random, but never after less than `first`.
    ///
    /// 1 ms to 60 s, in whole milliseconds. Default: 50 ms to 150 ms, about as often as other libraries ask. A lease that
    /// ends sooner is looked at when it ends.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// use std::time::Duration;
    ///
    /// let patient = client.plain_mutex("order:42").backoff(Duration::from_millis(100), Duration::from_secs(1));
    /// let guard = patient.lock().await?;
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn backoff(&self, first: Duration, most: Duration) -> PlainMutex {
        PlainMutex {
            handle: self
                .handle
                .with(|settings| settings.backoff = Some((first, most))),
        }
    }

    /// Waits for the lock, as long as it takes, and returns the guard that holds it.
    ///
    /// A server that cannot be reached, loads its data, is busy or full is waited for like a holder.
    /// [`try_lock_for`](PlainMutex::try_lock_for) bounds the wait. A lock that another library took without an end is waited for
    /// until it is deleted.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock). [`Error::Rejected`] if a lock of another kind stands under the name: a
    /// hash of a mutex, or a number without an end, which is a semaphore's. It names both kinds; the server is as it was.
    ///
    /// # Cancel safety
    /// Cancel safe. Dropping the future gives up the place in the queue; a request under way is seen to its end in
    /// the background, and a hold that it brings is released.
    ///
    /// # Source
    /// redis-py `Lock.acquire`. Where we differ: waiters queue in memory, and processes of ours on the server.
    #[track_caller]
    pub fn lock(
        &self,
    ) -> impl Future<Output = Result<PlainMutexGuard, Error>> + Send + 'static + use<> {
        never_busy(self.ask(Patience::Forever))
    }

    /// Takes the lock if it is free now; `None` if it is held.
    ///
    /// Waits for the server's answer, and for an attempt or a release of this process under way, but for no
    /// holder. If a task of this process waits for the name already, the answer is the last that the server gave.
    ///
    /// # Errors
    /// As [`lock`](PlainMutex::lock), but a silent server is an error, as with [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    #[doc = super::bounds::ends_once!()]
    ///
    /// # Cancel safety
    /// As [`lock`](PlainMutex::lock).
    ///
    /// # Source
    /// redis-py `Lock.acquire(blocking=False)`.
    #[track_caller]
    pub fn try_lock(
        &self,
    ) -> impl Future<Output = Result<Option<PlainMutexGuard>, Error>> + Send + 'static + use<> {
        self.ask(Patience::Once)
    }

    /// Waits for the lock, up to `wait`; `None` if it was held.
    ///
    /// `wait` counts from the first poll. [`Duration::ZERO`] asks once, as [`try_lock`](PlainMutex::try_lock).
    ///
    /// # Errors
    /// As [`lock`](PlainMutex::lock), but when `wait` is over: `None` if the name was still held, by the last answer since the call began; an error
    /// if the server could not be asked.
    ///
    #[doc = super::bounds::ends_for!()]
    ///
    /// # Cancel safety
    /// As [`lock`](PlainMutex::lock).
    ///
    /// # Source
    /// redis-py `Lock.acquire(blocking_timeout=…)`.
    #[track_caller]
    pub fn try_lock_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<PlainMutexGuard>, Error>> + Send + 'static + use<> {
        self.ask(at_most(wait))
    }

    /// Takes it from its holder, of whichever library: see [`Client::force_unlock`](crate::Client::force_unlock). Another library
    /// learns it when it releases or extends its lock, if at all.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let mutex = client.plain_mutex("order:42");
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
    ) -> impl Future<Output = Result<Option<PlainMutexGuard>, Error>> + Send + 'static + use<> {
        self.handle.ask(Access::Exclusive, patience)
    }
}
