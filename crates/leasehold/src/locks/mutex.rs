//! The re-entrant mutual exclusion lock.
//!
//! Promise: at any moment at most one guard per name is valid, among all processes on this server, Redisson's
//! `RLock` included. Keys: `docs/keys.md`. Source: Redisson `RedissonLock`.

use std::{future::Future, sync::Arc, time::Duration};

use super::{
    handle::{Handle, at_most, lease_settings, never_busy, owner_settings},
    once_per::once_per_verb,
    part::{Part, exclusive_part},
    run::run_verbs,
};
use crate::{
    Error, MutexGuard,
    engine::core::Core,
    engine::hold::spec::Patience,
    kind::{Access, LockKind},
};

/// A re-entrant mutual exclusion lock on a name, shared with Redisson's `RLock` of the same name.
///
/// A handle: cheap to clone, no I/O until it is locked. Each `lock()` is a new owner unless it says otherwise
/// ([`owned_by`](Mutex::owned_by)), so that two tasks, or two branches of a `join!`, exclude each other.
///
/// | wait | method |
/// |---|---|
/// | as long as it takes | [`lock`](Mutex::lock) |
/// | not at all | [`try_lock`](Mutex::try_lock) |
/// | up to `wait` | [`try_lock_for`](Mutex::try_lock_for) |
/// | and do one thing | [`run`](Mutex::run), [`run_for`](Mutex::run_for) |
///
/// Waiters of one process are served first come first served. So are processes that run this library; a
/// newcomer may be faster than all when a holder has died, and Redisson's waiters race for the name as they do
/// among themselves.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use std::time::Duration;
/// use leasehold::Client;
///
/// let client = Client::connect("memory:").await?;
/// let mutex = client.mutex("order:42");
/// let guard = mutex.lock().await?;
/// assert!(mutex.try_lock().await?.is_none());
/// assert!(mutex.try_lock_for(Duration::from_millis(10)).await?.is_none());
/// drop(guard); // or guard.release().await?, which returns the result
/// assert!(mutex.try_lock().await?.is_some());
/// # Ok(()) }
/// ```
#[must_use = "a handle does nothing until it is asked"]
#[derive(Clone)]
#[doc(alias("RLock", "getLock", "reentrant", "watchdog"))]
pub struct Mutex {
    handle: Handle,
}

lease_settings!(Mutex, "The holders, and how many wait.");
owner_settings!(Mutex);
exclusive_part!(Mutex);
run_verbs!(Mutex, "mutex(\"order:42\")");
once_per_verb!(Mutex, "mutex(\"report\")");

impl Mutex {
    pub(crate) fn new(core: &Arc<Core>, name: &str) -> Mutex {
        Mutex {
            handle: Handle::new(core, LockKind::Mutex, name),
        }
    }

    /// Waits for the lock, as long as it takes, and returns the guard that holds it.
    ///
    /// A server that cannot be reached, loads its data, is busy or full is waited for like a holder.
    /// [`try_lock_for`](Mutex::try_lock_for) bounds the wait.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the name or a setting is not valid; nothing was sent.
    /// - [`Error::Rejected`]: the server refuses for good, for instance because another type stands under the name, or the
    ///   lease is over each time before the answer is here. The name is as it was.
    /// - [`Error::Reentered`]: the owner holds it, and re-entry is off.
    /// - [`Error::Lost`]: the owner held it and entered again, and its hold ended before the server's answer was here.
    /// - [`Error::Closed`]: the client was shut down.
    ///
    /// # Cancel safety
    /// Cancel safe. Dropping the future gives up the place in the queue; a request under way is seen to its end in
    /// the background, and a hold that it brings is released. A future that is polled once and kept blocks the other waiters of
    /// its own process, as that of a tokio mutex does.
    ///
    /// # Source
    /// Redisson `RLock#lock()`. Where we differ: waiters queue in memory, and processes on the server.
    #[track_caller]
    pub fn lock(&self) -> impl Future<Output = Result<MutexGuard, Error>> + Send + 'static + use<> {
        never_busy(self.ask(Patience::Forever))
    }

    /// Takes the lock if it is free now; `None` if it is held.
    ///
    /// Waits for the server's answer, and for an attempt or a release of this process under way, but for no
    /// holder. If a task of this process waits for the name already, the answer is the last that the server gave.
    ///
    /// # Errors
    /// As [`lock`](Mutex::lock), but a silent server is an error after the operation timeout. So is a name that the server calls held while this
    /// client gives up a lease of it that may be meant: [`Error::Ambiguous`], try again. `None` is said of other holders alone.
    ///
    #[doc = super::bounds::ends_once!()]
    ///
    /// # Cancel safety
    /// As [`lock`](Mutex::lock).
    ///
    /// # Source
    /// Redisson `RLock#tryLock()`.
    #[track_caller]
    #[doc(alias("tryLock"))]
    pub fn try_lock(
        &self,
    ) -> impl Future<Output = Result<Option<MutexGuard>, Error>> + Send + 'static + use<> {
        self.ask(Patience::Once)
    }

    /// Waits for the lock, up to `wait`; `None` if it was held.
    ///
    /// `wait` counts from the first poll. [`Duration::ZERO`] asks once, as [`try_lock`](Mutex::try_lock).
    ///
    /// # Errors
    /// As [`lock`](Mutex::lock), but when `wait` is over: `None` if the name was still held, by the last answer since the call began; an error
    /// if the server could not be asked.
    ///
    #[doc = super::bounds::ends_for!()]
    ///
    /// # Cancel safety
    /// As [`lock`](Mutex::lock).
    ///
    /// # Source
    /// Redisson `RLock#tryLock(long, TimeUnit)`.
    #[track_caller]
    #[doc(alias("tryLock"))]
    pub fn try_lock_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<MutexGuard>, Error>> + Send + 'static + use<> {
        self.ask(at_most(wait))
    }

    /// Takes it from its holder: see [`Client::force_unlock`](crate::Client::force_unlock).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let mutex = client.mutex("order:42");
    /// let guard = mutex.lock().await?; // of a holder that is dead, say
    /// assert!(mutex.force_unlock().await?);
    /// assert!(!guard.is_valid()); // a holder of this client learns it at once
    /// # Ok(()) }
    /// ```
    #[doc(alias("forceUnlock"))]
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        self.handle.force_unlock().await
    }

    #[track_caller]
    fn ask(
        &self,
        patience: Patience,
    ) -> impl Future<Output = Result<Option<MutexGuard>, Error>> + Send + 'static + use<> {
        self.handle.ask(Access::Exclusive, patience)
    }
}
