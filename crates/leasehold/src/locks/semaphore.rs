//! A number of permits, held without a lease.
//!
//! Promise: at any moment the guards of a name hold no more permits than it has, among all processes on this server,
//! Redisson's `RSemaphore` included; and a lost reply neither loses a permit nor takes one twice. Keys: `docs/keys.md`.
//! Source: Redisson `RedissonSemaphore`.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::ready};

use super::{
    handle::{Handle, at_most, never_busy},
    numbers::so_many,
};
use crate::{
    Error, Handoff, SemaphoreGuard, Status,
    backend::Permits,
    config::NO_LEASE,
    engine::{core::Core, hold::spec::Patience},
    kind::{Access, LockKind},
};

/// A number of permits under one name, held without a lease, shared with Redisson's `RSemaphore` of the same name.
///
/// **A crash loses permits.** The server knows how many are free, and no holder and no end: a process that dies keeps its permits
/// for ever, and no client can see that it does. [`add_permits`](Semaphore::add_permits) gives them back by hand.
/// [`LeasedSemaphore`](crate::LeasedSemaphore) gives them back when a lease ends. Take this kind only to share a name with
/// `RSemaphore`, or if processes do not die.
///
/// A handle: cheap to clone, no I/O until it is used. A semaphore has no permits until a client sets them. Say how many
/// with [`permits`](Semaphore::permits) in each program.
///
/// | wait | one permit | several |
/// |---|---|---|
/// | as long as it takes | [`acquire`](Semaphore::acquire) | [`acquire_many`](Semaphore::acquire_many) |
/// | not at all | [`try_acquire`](Semaphore::try_acquire) | [`try_acquire_many`](Semaphore::try_acquire_many) |
/// | up to `wait` | [`try_acquire_for`](Semaphore::try_acquire_for) | [`try_acquire_many_for`](Semaphore::try_acquire_many_for) |
///
/// # The guards of a semaphore
///
/// A dropped guard gives its permits back, in the background. **A process that ends before the server has confirmed it loses the
/// permits, as a crash does.** The return of `main` waits for it, a hundred milliseconds at most; `process::exit` and
/// some others do not ([`Guard`](crate::Guard#at-the-end-of-a-program)). Nothing is renewed and no time ends a hold:
/// [`is_valid`](crate::Guard::is_valid) is true until the client is shut down, and [`verify`](crate::Guard::verify) asks no server,
/// since none knows who holds. So a guard learns neither of a restart that forgot the semaphore nor of its deletion.
///
/// The server keeps what became of each request for a minute, so that no repeated request counts twice. A request that had no answer
/// is repeated for half of that. If there is no answer by then, its permits may be lost. A request that was not sent, because
/// there is no connection, is repeated for a day.
///
/// # Order
///
/// In one process first come, first served: a request for many is not overtaken by those for fewer. Processes race for what
/// becomes free, as Redisson's do.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::Client;
///
/// let client = Client::connect("memory:").await?;
/// let semaphore = client.semaphore("downloads").permits(3);
/// let two = semaphore.acquire_many(2).await?;
/// assert!(semaphore.try_acquire_many(2).await?.is_none());
/// assert_eq!(semaphore.drain_permits().await?, 1); // nothing more begins
/// two.release().await?;
/// assert_eq!(semaphore.available_permits().await?, 2);
/// # Ok(()) }
/// ```
#[must_use = "a handle does nothing until it is asked"]
#[derive(Clone)]
#[doc(alias("RSemaphore"))]
pub struct Semaphore {
    handle: Handle,
}

impl Semaphore {
    pub(crate) fn new(core: &Arc<Core>, name: &str) -> Semaphore {
        let handle = Handle::new(core, LockKind::Semaphore, name);
        Semaphore {
            // The server keeps no lease: for so long a hold is believed here before it is looked at again.
            handle: handle.with(|settings| settings.lease = NO_LEASE),
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// The same semaphore with another budget for passing permits on in memory.
    pub fn handoff(&self, handoff: Handoff) -> Semaphore {
        Semaphore {
            handle: self.handle.with(|settings| settings.handoff = handoff),
        }
    }

    /// The same semaphore with this many permits, where no client has set how many there are.
    ///
    /// Each request for a permit says the number to the server, so it is also set after a restart that forgot it. Guards from before come on
    /// top, and each adds its permits when it is dropped. Where there is a number already, nothing is changed. 1 to 2147483647.
    ///
    /// The server does not know how many permits have been taken. So there is no `permits_exactly`, as
    /// [`LeasedSemaphore`](crate::LeasedSemaphore::permits_exactly) has: change the number with
    /// [`add_permits`](Semaphore::add_permits).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let semaphore = client.semaphore("downloads").permits(3);
    /// let one = semaphore.acquire().await?; // there are three from now on
    /// assert_eq!(semaphore.available_permits().await?, 2);
    /// # one.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Source
    /// Redisson `RSemaphore#trySetPermits`, at each request.
    pub fn permits(&self, permits: u32) -> Semaphore {
        let permits = Some(Permits::TrySet(permits));
        Semaphore {
            handle: self.handle.with(|settings| settings.permits = permits),
        }
    }

    /// Waits for a permit, as long as it takes: for ever, and with a warning, if no client ever sets how many there are.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// Cancel safe. Dropping the future gives up the place in the queue; a request under way is seen to its end in
    /// the background and what it brings is given back.
    ///
    /// # Source
    /// Redisson `RSemaphore#acquire`. Where we differ: a lost reply loses no permit, a lost message keeps no waiter waiting for
    /// longer than the poll interval, and waiters queue in memory.
    #[track_caller]
    pub fn acquire(
        &self,
    ) -> impl Future<Output = Result<SemaphoreGuard, Error>> + Send + 'static + use<> {
        self.acquire_many(1)
    }

    /// Takes a permit if one is free now; `None` if none is, or if other tasks of this process wait for permits.
    ///
    /// # Errors
    /// [`Error::Rejected`] if no client has set how many permits there are; else as [`Mutex::try_lock`](crate::Mutex::try_lock). Permits that it may have taken are given back.
    ///
    #[doc = super::bounds::ends_once!()]
    ///
    /// # Cancel safety
    /// As [`acquire`](Semaphore::acquire).
    #[track_caller]
    pub fn try_acquire(
        &self,
    ) -> impl Future<Output = Result<Option<SemaphoreGuard>, Error>> + Send + 'static + use<> {
        self.try_acquire_many(1)
    }

    /// Waits up to `wait` for a permit; `None` if none became free.
    ///
    /// `wait` counts from the first poll.
    ///
    /// # Errors
    /// [`Error::Rejected`] if until then no client has set how many permits there are; else as
    /// [`Mutex::try_lock_for`](crate::Mutex::try_lock_for). Permits that it may have taken are given back.
    ///
    #[doc = super::bounds::ends_for!()]
    ///
    /// # Cancel safety
    /// As [`acquire`](Semaphore::acquire).
    #[track_caller]
    pub fn try_acquire_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<SemaphoreGuard>, Error>> + Send + 'static + use<> {
        self.try_acquire_many_for(1, wait)
    }

    /// Waits for so many permits at once, as long as it takes: all of them, or none. 1 to 1024.
    ///
    /// If the semaphore never has so many, this waits for ever, and so do the tasks of this process that ask after it: they are
    /// not overtaken. [`try_acquire_many_for`](Semaphore::try_acquire_many_for) bounds that.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the number is out of bounds; else as [`acquire`](Semaphore::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Semaphore::acquire).
    #[track_caller]
    pub fn acquire_many(
        &self,
        permits: u32,
    ) -> impl Future<Output = Result<SemaphoreGuard, Error>> + Send + 'static + use<> {
        never_busy(self.ask(permits, Patience::Forever))
    }

    /// Takes so many permits if they are free now, all of them or none. 1 to 1024.
    ///
    /// # Errors
    /// As [`acquire_many`](Semaphore::acquire_many) and [`try_acquire`](Semaphore::try_acquire).
    ///
    #[doc = super::bounds::ends_once!()]
    ///
    /// # Cancel safety
    /// As [`acquire`](Semaphore::acquire).
    #[track_caller]
    pub fn try_acquire_many(
        &self,
        permits: u32,
    ) -> impl Future<Output = Result<Option<SemaphoreGuard>, Error>> + Send + 'static + use<> {
        self.ask(permits, Patience::Once)
    }

    /// Waits up to `wait` for so many permits, all of them or none. 1 to 1024.
    ///
    /// # Errors
    /// As [`acquire_many`](Semaphore::acquire_many) and [`try_acquire_for`](Semaphore::try_acquire_for).
    ///
    #[doc = super::bounds::ends_for!()]
    ///
    /// # Cancel safety
    /// As [`acquire`](Semaphore::acquire).
    #[track_caller]
    pub fn try_acquire_many_for(
        &self,
        permits: u32,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<SemaphoreGuard>, Error>> + Send + 'static + use<> {
        self.ask(permits, at_most(wait))
    }

    /// Sets how many permits there are, unless that was done before. `false` if so.
    ///
    /// Permits that are out, of a semaphore that was deleted meanwhile, come on top of them.
    ///
    /// # Errors
    /// The name is not valid, or the server gives no usable answer: it may have set them.
    ///
    /// # Cancel safety
    /// Once polled, it is carried out whether or not its caller waits; and not twice, if its answer is lost.
    ///
    /// # Source
    /// Redisson `RSemaphore#trySetPermits`.
    pub async fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        let step = Permits::TrySet(permits);
        Ok(self.change(step, "set the permits of").await? == 1)
    }

    /// Adds permits; takes some away, if the number is negative. How many are free then.
    ///
    /// # Errors
    /// As [`try_set_permits`](Semaphore::try_set_permits).
    ///
    /// # Cancel safety
    /// As [`try_set_permits`](Semaphore::try_set_permits).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// use std::time::Duration;
    /// use leasehold::Handoff;
    ///
    /// let semaphore = client.semaphore("mailers").handoff(Handoff::off());
    /// assert!(semaphore.try_set_permits(2).await?); // only by the first who asks
    /// let two = semaphore.acquire_many(2).await?;
    /// assert_eq!((semaphore.name(), two.permits()), ("mailers", 2));
    /// assert!(semaphore.try_acquire().await?.is_none());
    /// assert!(semaphore.try_acquire_for(Duration::from_millis(10)).await?.is_none());
    /// assert!(semaphore.try_acquire_many_for(2, Duration::from_millis(10)).await?.is_none());
    /// assert_eq!(semaphore.add_permits(1).await?, 1);
    /// assert_eq!(semaphore.status().await?.available, Some(1));
    /// # Ok(()) }
    /// ```
    ///
    /// # Source
    /// Redisson `RSemaphore#addPermits`. Where we differ: an end of the semaphore (`expire`) stays.
    pub async fn add_permits(&self, permits: i32) -> Result<i64, Error> {
        self.change(Permits::Add(permits), "add permits to").await
    }

    /// Takes away all permits that are free now, and says how many: there are so many fewer from then on. Permits that are
    /// taken stay with their holders, and come back.
    ///
    /// # Errors
    /// As [`try_set_permits`](Semaphore::try_set_permits): they may be gone.
    ///
    /// # Cancel safety
    /// As [`try_set_permits`](Semaphore::try_set_permits).
    ///
    /// # Source
    /// Redisson `RSemaphore#drainPermits`.
    pub async fn drain_permits(&self) -> Result<u32, Error> {
        let drained = self.change(Permits::Drain, "drain the permits of").await?;
        Ok(u32::try_from(drained).unwrap_or(u32::MAX))
    }

    /// How many permits are free now. Negative, if more were taken away than are free.
    ///
    /// # Errors
    /// The name is not valid, or the server gives no usable answer.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Source
    /// Redisson `RSemaphore#availablePermits`.
    pub async fn available_permits(&self) -> Result<i64, Error> {
        let (core, id) = (self.handle.core(), self.handle.id()?);
        let step = Permits::Available;
        core.permits(id, step, "count the permits of").await
    }

    /// How many permits are free, and how many clients wait. The server knows no holders.
    ///
    /// # Errors
    /// The name is not valid, or the server does not answer. It only reads.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn status(&self) -> Result<Status, Error> {
        self.handle.status().await
    }

    async fn change(&self, step: Permits, doing: &'static str) -> Result<i64, Error> {
        let id = self.handle.id()?;
        // Repeated until it is answered: the server remembers the request, and a copy changes nothing.
        self.handle.core().permits_once(id, step, doing).await
    }

    #[track_caller]
    fn ask(
        &self,
        permits: u32,
        patience: Patience,
    ) -> impl Future<Output = Result<Option<SemaphoreGuard>, Error>> + Send + 'static + use<> {
        match so_many(permits) {
            Ok(access) => self.handle.ask(access, patience).left_future(),
            Err(invalid) => ready(Err(invalid)).right_future(),
        }
    }
}

impl SemaphoreGuard {
    /// How many permits it holds.
    pub fn permits(&self) -> u32 {
        match self.hold().spec().access {
            Access::Permits(count) => count.into(),
            _ => 1,
        }
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}
