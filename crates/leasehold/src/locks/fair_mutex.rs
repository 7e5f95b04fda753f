//! The re-entrant mutual exclusion lock that serves its waiters in the order of their requests.
//!
//! Promise: as of a [`Mutex`](crate::Mutex); and of all that wait, on this server and in whichever process, the first is next,
//! Redisson's `RFairLock` included. Keys: `docs/keys.md`. Source: Redisson `RedissonFairLock`.

use std::{future::Future, sync::Arc, time::Duration};

use super::{
    handle::{Handle, at_most, lease_settings, never_busy, owner_settings},
    part::{Part, exclusive_part},
    run::run_verbs,
};
use crate::{
    Error, Guard,
    engine::core::Core,
    engine::hold::spec::{Patience, Waits},
    kind::{Access, LockKind},
};

/// A re-entrant mutual exclusion lock on a name that is given to the task that has waited longest, shared with Redisson's
/// `RFairLock` of the same name.
///
/// A handle: cheap to clone, no I/O until it is locked. Verbs and settings are those of a [`Mutex`](crate::Mutex).
///
/// | wait | method |
/// |---|---|
/// | as long as it takes | [`lock`](FairMutex::lock) |
/// | not at all | [`try_lock`](FairMutex::try_lock) |
/// | up to `wait` | [`try_lock_for`](FairMutex::try_lock_for) |
///
/// # Order
///
/// Each task that waits has a place of its own in one queue on the server, in which Redisson's threads stand as well. (All calls
/// of one [`Owner`](crate::Owner) have one place together.) A call that is refused learns to hear wake-ups, and takes its place with
/// its next request: calls that begin within two round trips of each other may change places.
/// No newcomer overtakes a waiter, also not in the same process: no lease is passed on in memory, and
/// [`handoff`](FairMutex::handoff) has no effect. Take a `Mutex` where throughput counts more than order. As a
/// [`Part`] of a multi-lock it has a place as any other waiter, from when the multi-lock comes to that part.
///
/// # Waiters that die
///
/// A waiter of this library whose process is gone is passed over at once, when a client of this library releases: the
/// server knows that it hears nothing any more. A waiter whose connection broke has its place back when it is heard again within the
/// [`fair_wait_timeout`](crate::ClientBuilder::fair_wait_timeout), 5 s. Redisson's waiters subscribe after they have taken their
/// places; one that is not heard costs the others that time, and several of them cost it once. Where Redisson releases, and its next is dead, a
/// waiter of this library finds out within one and a half times that time. Redisson's `forceUnlock` of a lock that this library holds tells
/// only the waiter that is next: one of this library hears it once it has been the first of its process for a second, and else finds out within
/// one to 1.2 [`poll_every`](crate::ClientBuilder::poll_every), 10 to 12 s. A process that is stopped is heard,
/// and may let the lock expire in its hands; its other tasks are passed over when it has not kept their places for 20 s. A client that waits only among its own kind sends one command
/// per [`poll_every`](crate::ClientBuilder::poll_every), and one at the end of each holder's lease that is not released, for all its tasks
/// together. While the server refuses what they ask, or does not let them hear, each task asks for itself, about twice a second.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use std::time::Duration;
/// use leasehold::Client;
///
/// let client = Client::connect("memory:").await?;
/// let mutex = client.fair_mutex("turnstile");
/// let guard = mutex.lock().await?;
/// let first = tokio::spawn(mutex.lock());
/// while mutex.status().await?.waiting_here < 1 {
///     tokio::task::yield_now().await;
/// }
/// assert!(mutex.try_lock().await?.is_none());
/// guard.release().await?;
/// // It is the first waiter's now, and no newcomer's.
/// assert!(mutex.try_lock().await?.is_none());
/// drop(first.await.unwrap()?);
/// assert!(mutex.try_lock_for(Duration::from_secs(1)).await?.is_some());
/// # Ok(()) }
/// ```
///
/// # Source
/// Redisson `RFairLock`. Where we differ: a waiter that is cancelled, or gives up, leaves no place behind; none asks again and
/// again while the first is slow; the deadlines of waiters that live are moved on, so that a long hold costs none its place; the server gives
/// the lock to our waiters at once, in the release.
#[must_use = "a handle does nothing until it is asked"]
#[derive(Clone)]
#[doc(alias("RFairLock", "getFairLock"))]
pub struct FairMutex {
    handle: Handle,
}

/// A hold on a [`FairMutex`].
pub type FairMutexGuard = Guard<Fair>;

/// Stands for a fair mutex in [`FairMutexGuard`].
#[derive(Debug)]
pub enum Fair {}

lease_settings!(
    FairMutex,
    "The holder, how many clients wait in the queue, and how many tasks of this one."
);
owner_settings!(FairMutex);
exclusive_part!(FairMutex);
run_verbs!(FairMutex, "fair_mutex(\"turnstile\")");

impl FairMutex {
    pub(crate) fn new(core: &Arc<Core>, name: &str) -> FairMutex {
        let handle = Handle::new(core, LockKind::FairMutex, name);
        FairMutex {
            handle: handle.with(|settings| settings.waits = Waits::InTurn),
        }
    }

    /// Waits for the lock, as long as it takes, and returns the guard that holds it.
    ///
    /// A server that cannot be reached, loads its data, is busy or full is waited for like a holder.
    /// [`try_lock_for`](FairMutex::try_lock_for) bounds the wait.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// Cancel safe. Dropping the future gives up the place in the queue; a request under way is seen to its end in
    /// the background, and a hold that it brings is released.
    ///
    /// # Source
    /// Redisson `RFairLock#lock()`.
    #[track_caller]
    pub fn lock(
        &self,
    ) -> impl Future<Output = Result<FairMutexGuard, Error>> + Send + 'static + use<> {
        never_busy(self.ask(Patience::Forever))
    }

    /// Takes the lock if it is free now and no other waits for it; `None` if not. It takes no place in the queue.
    ///
    /// Waits for the server's answer, and for a release of this process under way.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    #[doc = super::bounds::ends_once!()]
    ///
    /// # Cancel safety
    /// As [`lock`](FairMutex::lock).
    ///
    /// # Source
    /// Redisson `RFairLock#tryLock()`.
    #[track_caller]
    pub fn try_lock(
        &self,
    ) -> impl Future<Output = Result<Option<FairMutexGuard>, Error>> + Send + 'static + use<> {
        self.ask(Patience::Once)
    }

    /// Waits for the lock, up to `wait`; `None` if it was held.
    ///
    /// `wait` counts from the first poll. [`Duration::ZERO`] asks once, as [`try_lock`](FairMutex::try_lock). When it is over, the
    /// place in the queue is given up.
    ///
    /// # Errors
    /// As [`lock`](FairMutex::lock), but when `wait` is over: `None` if the name was still held, by the last answer since the call began; an error
    /// if the server could not be asked.
    ///
    #[doc = super::bounds::ends_for!()]
    ///
    /// # Cancel safety
    /// As [`lock`](FairMutex::lock).
    ///
    /// # Source
    /// Redisson `RFairLock#tryLock(long, TimeUnit)`.
    #[track_caller]
    pub fn try_lock_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<FairMutexGuard>, Error>> + Send + 'static + use<> {
        self.ask(at_most(wait))
    }

    /// Takes it from its holder and gives it to the next in the queue. `false` if it was free. As
    /// [`Client::force_unlock`](crate::Client::force_unlock) of a mutex otherwise.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let mutex = client.fair_mutex("order:42");
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
    ) -> impl Future<Output = Result<Option<FairMutexGuard>, Error>> + Send + 'static + use<> {
        self.handle.ask(Access::Exclusive, patience)
    }
}
