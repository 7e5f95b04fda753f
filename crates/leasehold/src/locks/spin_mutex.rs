//! The re-entrant mutual exclusion lock whose waiters ask again and again.
//!
//! Promise: as of a [`Mutex`](crate::Mutex), with which it shares its names: only the waiters differ. Keys: `docs/keys.md`.
//! Source: Redisson `RedissonSpinLock`.

use std::{future::Future, sync::Arc, time::Duration};

use super::{
    handle::{Handle, at_most, lease_settings, never_busy, owner_settings},
    part::{Part, exclusive_part},
    run::run_verbs,
};
use crate::{
    Error, SpinMutexGuard,
    config::PollRange,
    engine::core::Core,
    engine::hold::spec::{Patience, Waits},
    kind::{Access, LockKind},
};

/// A re-entrant mutual exclusion lock on a name, for names that are taken for microseconds and seldom waited for: a waiting
/// process subscribes to nothing, and asks again and again. Shared with Redisson's `RSpinLock` of the same name.
///
/// A handle: cheap to clone, no I/O until it is locked. Verbs and settings are those of a [`Mutex`](crate::Mutex). The server does not
/// tell the two apart: on one name they exclude each other, and the release of either wakes the waiters of the mutex; a
/// waiter of the spin mutex finds out by itself. **Do not mix them** on a name that is wanted all the time: while clients wait for the
/// mutex, each release gives the name to the next of them, and a waiter of the spin mutex may never find it free.
///
/// | wait | method |
/// |---|---|
/// | as long as it takes | [`lock`](SpinMutex::lock) |
/// | not at all | [`try_lock`](SpinMutex::try_lock) |
/// | up to `wait` | [`try_lock_for`](SpinMutex::try_lock_for) |
///
/// # Order, and what waiting costs
///
/// A process that waits asks after 1 ms, then after up to 2, 4, … and 128 ms ([`backoff`](SpinMutex::backoff)), however many of its tasks
/// wait: some 15 commands in a second while the holder stays. A mutex costs a subscription when the wait begins, and nothing from then on.
/// Tasks of one process are served first come first served, and pass the lease on in memory, up to the
/// [`Handoff`](crate::Handoff) budget. Then the name is free for 1 to 3 ms, and processes race for it in no order: where a name
/// is wanted all the time, one of them can wait long. Take a `Mutex` there.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use std::time::Duration;
/// use leasehold::Client;
///
/// let client = Client::connect("memory:").await?;
/// let mutex = client.spin_mutex("sequence:invoice");
/// let guard = mutex.lock().await?;
/// assert!(mutex.try_lock().await?.is_none());
/// assert!(mutex.try_lock_for(Duration::from_millis(10)).await?.is_none());
/// drop(guard); // or guard.release().await?, which returns the result
/// assert!(mutex.try_lock().await?.is_some());
/// # Ok(()) }
/// ```
///
/// # Source
/// Redisson `RSpinLock` with `ExponentialBackOff`. Where we differ: waiters of one process queue in memory and ask as one; a
/// release tells Redisson's `RLock` waiters.
#[must_use = "a handle does nothing until it is asked"]
#[derive(Clone)]
#[doc(alias("RSpinLock", "getSpinLock"))]
pub struct SpinMutex {
    handle: Handle,
}

lease_settings!(
    SpinMutex,
    "The holder, and how many wait for a mutex of this name: clients that wait for a spin mutex are not seen."
);
owner_settings!(SpinMutex);
exclusive_part!(SpinMutex);
run_verbs!(SpinMutex, "spin_mutex(\"sequence:invoice\")");

impl SpinMutex {
    pub(crate) fn new(core: &Arc<Core>, name: &str) -> SpinMutex {
        let handle = Handle::new(core, LockKind::SpinMutex, name);
        SpinMutex {
            handle: handle.with(|settings| settings.waits = Waits::Polls(PollRange::SPIN)),
        }
    }

    /// The same lock, whose waiters ask after other pauses: the first after `first`, the next after up to twice as long, and
    /// so on to `most`; at random, but never after less than `first`.
    ///
    /// 1 ms to 60 s, in whole milliseconds. Default: 1 ms to 128 ms, as Redisson's. A lease that ends sooner is looked at when
    /// it ends.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// use std::time::Duration;
    ///
    /// let patient = client.spin_mutex("order:42").backoff(Duration::from_millis(100), Duration::from_secs(1));
    /// let guard = patient.lock().await?;
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn backoff(&self, first: Duration, most: Duration) -> SpinMutex {
        SpinMutex {
            handle: self
                .handle
                .with(|settings| settings.backoff = Some((first, most))),
        }
    }

    /// Waits for the lock, as long as it takes, and returns the guard that holds it.
    ///
    /// A server that cannot be reached, loads its data, is busy or full is waited for like a holder.
    /// [`try_lock_for`](SpinMutex::try_lock_for) bounds the wait.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// Cancel safe. Dropping the future leaves nothing on the server; a request under way is seen to its end in the background,
    /// and a hold that it brings is released.
    ///
    /// # Source
    /// Redisson `RSpinLock#lock()`.
    #[track_caller]
    pub fn lock(
        &self,
    ) -> impl Future<Output = Result<SpinMutexGuard, Error>> + Send + 'static + use<> {
        never_busy(self.ask(Patience::Forever))
    }

    /// Takes the lock if it is free now; `None` if it is held.
    ///
    /// Waits for the server's answer, and for an attempt or a release of this process under way, but for no
    /// holder. If a task of this process waits for the name already, the answer is the last that the server gave.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    #[doc = super::bounds::ends_once!()]
    ///
    /// # Cancel safety
    /// As [`lock`](SpinMutex::lock).
    ///
    /// # Source
    /// Redisson `RSpinLock#tryLock()`.
    #[track_caller]
    pub fn try_lock(
        &self,
    ) -> impl Future<Output = Result<Option<SpinMutexGuard>, Error>> + Send + 'static + use<> {
        self.ask(Patience::Once)
    }

    /// Waits for the lock, up to `wait`; `None` if it was held.
    ///
    /// `wait` counts from the first poll. [`Duration::ZERO`] asks once, as [`try_lock`](SpinMutex::try_lock).
    ///
    /// # Errors
    /// As [`lock`](SpinMutex::lock), but when `wait` is over: `None` if the name was still held, by the last answer since the call began; an error
    /// if the server could not be asked.
    ///
    #[doc = super::bounds::ends_for!()]
    ///
    /// # Cancel safety
    /// As [`lock`](SpinMutex::lock).
    ///
    /// # Source
    /// Redisson `RSpinLock#tryLock(long, TimeUnit)`.
    #[track_caller]
    pub fn try_lock_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<SpinMutexGuard>, Error>> + Send + 'static + use<> {
        self.ask(at_most(wait))
    }

    /// Takes it from its holder, as [`Mutex::force_unlock`](crate::Mutex::force_unlock) of the same name does.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let mutex = client.spin_mutex("order:42");
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
    ) -> impl Future<Output = Result<Option<SpinMutexGuard>, Error>> + Send + 'static + use<> {
        self.handle.ask(Access::Exclusive, patience)
    }
}
