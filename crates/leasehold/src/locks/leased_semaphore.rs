//! A number of permits, each held under a lease.
//!
//! Promise: at any moment the valid guards of a name hold no more permits than it has, among all processes on this
//! server, Redisson's `RPermitExpirableSemaphore` included. Keys: `docs/keys.md`. Source: Redisson
//! `RedissonPermitExpirableSemaphore`.

use std::{future::Future, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::ready};

use super::{
    handle::{Handle, at_most, lease_settings, never_busy},
    numbers::so_many,
    part::Part,
};
use crate::{
    Error, PermitGuard,
    backend::Permits,
    engine::core::Core,
    engine::hold::spec::Patience,
    kind::{Access, LockKind},
};

/// A number of permits under one name, each held under a lease that is renewed, shared with Redisson's
/// `RPermitExpirableSemaphore` of the same name.
///
/// A handle: cheap to clone, no I/O until it is used. A semaphore has no permits until a client sets them. Say how many with
/// [`permits`](LeasedSemaphore::permits) in each program. A permit whose holder dies comes back when its lease ends;
/// nothing needs to be called.
///
/// | wait | one permit | several |
/// |---|---|---|
/// | as long as it takes | [`acquire`](LeasedSemaphore::acquire) | [`acquire_many`](LeasedSemaphore::acquire_many) |
/// | not at all | [`try_acquire`](LeasedSemaphore::try_acquire) | [`try_acquire_many`](LeasedSemaphore::try_acquire_many) |
/// | up to `wait` | [`try_acquire_for`](LeasedSemaphore::try_acquire_for) | [`try_acquire_many_for`](LeasedSemaphore::try_acquire_many_for) |
///
/// # Order
///
/// In one process first come, first served: a request for many is not overtaken by those for fewer. Processes race for what
/// becomes free, as Redisson's do.
///
/// # Clocks
///
/// Redisson writes the end of a permit by the clock of its JVM; we use the server's. A JVM whose clock is ahead takes our
/// permits back too early by as much: keep the clocks together, or the lease long.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::Client;
///
/// let client = Client::connect("memory:").await?;
/// let semaphore = client.leased_semaphore("reports").permits(2);
/// let one = semaphore.acquire().await?;
/// let two = semaphore.acquire().await?;
/// assert!(semaphore.try_acquire().await?.is_none());
/// one.release().await?;
/// assert_eq!(semaphore.available_permits().await?, 1);
/// # drop(two);
/// # Ok(()) }
/// ```
#[must_use = "a handle does nothing until it is asked"]
#[derive(Clone)]
#[doc(alias("RPermitExpirableSemaphore"))]
pub struct LeasedSemaphore {
    handle: Handle,
}

lease_settings!(LeasedSemaphore, "Who holds permits, and how many are free.");

impl LeasedSemaphore {
    pub(crate) fn new(core: &Arc<Core>, name: &str) -> LeasedSemaphore {
        LeasedSemaphore {
            handle: Handle::new(core, LockKind::LeasedSemaphore, name),
        }
    }

    /// The same semaphore with this many permits, where no client has set how many there are.
    ///
    /// Each request for a permit says the number to the server, so it is also set after a restart that forgot it. (A guard
    /// from before learns of that restart at its next renewal.) Where there is a number already, nothing is changed; [`permits_exactly`](LeasedSemaphore::permits_exactly) changes it.
    /// Permits that are out count among them. 1 to 2147483647.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let two = client.leased_semaphore("exports").permits(2);
    /// let one = two.acquire().await?; // there are two from now on
    /// assert_eq!(two.available_permits().await?, 1);
    /// let three = client.leased_semaphore("exports").permits_exactly(3);
    /// let another = three.acquire().await?; // there are three from now on
    /// assert_eq!(two.available_permits().await?, 1);
    /// # drop((one, another));
    /// # Ok(()) }
    /// ```
    ///
    /// # Source
    /// Redisson `RPermitExpirableSemaphore#trySetPermits`, at each request.
    pub fn permits(&self, permits: u32) -> LeasedSemaphore {
        self.providing(Permits::TrySet(permits))
    }

    /// The same semaphore with this many permits from each of its requests on, however many there were.
    ///
    /// If more are out than that, none is free until enough have come back; no holder loses one. Where two programs say
    /// different numbers, the last request counts: let all of them say the same. 1 to 2147483647.
    ///
    /// # Source
    /// Redisson `RPermitExpirableSemaphore#setPermits`, at each request where the number differs.
    pub fn permits_exactly(&self, permits: u32) -> LeasedSemaphore {
        self.providing(Permits::Set(permits))
    }

    fn providing(&self, permits: Permits) -> LeasedSemaphore {
        LeasedSemaphore {
            handle: self
                .handle
                .with(|settings| settings.permits = Some(permits)),
        }
    }

    /// Waits for a permit, as long as it takes: for ever, and with a warning, if no client ever sets how many there are.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// Cancel safe. Dropping the future gives up the place in the queue; a request under way is seen to its end in
    /// the background and what it brings is released.
    ///
    /// # Source
    /// Redisson `RPermitExpirableSemaphore#acquire`. Where we differ: the lease is renewed, and waiters queue in memory.
    #[track_caller]
    pub fn acquire(
        &self,
    ) -> impl Future<Output = Result<PermitGuard, Error>> + Send + 'static + use<> {
        self.acquire_many(1)
    }

    /// Takes a permit if one is free now; `None` if none is, or if other tasks of this process wait for permits.
    ///
    /// # Errors
    /// [`Error::Rejected`] if no client has set how many permits there are; else as [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    #[doc = super::bounds::ends_once!()]
    ///
    /// # Cancel safety
    /// As [`acquire`](LeasedSemaphore::acquire).
    #[track_caller]
    pub fn try_acquire(
        &self,
    ) -> impl Future<Output = Result<Option<PermitGuard>, Error>> + Send + 'static + use<> {
        self.try_acquire_many(1)
    }

    /// Waits up to `wait` for a permit; `None` if none became free.
    ///
    /// `wait` counts from the first poll.
    ///
    /// # Errors
    /// [`Error::Rejected`] if until then no client has set how many permits there are; else as
    /// [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    ///
    #[doc = super::bounds::ends_for!()]
    ///
    /// # Cancel safety
    /// As [`acquire`](LeasedSemaphore::acquire).
    #[track_caller]
    pub fn try_acquire_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<PermitGuard>, Error>> + Send + 'static + use<> {
        self.try_acquire_many_for(1, wait)
    }

    /// Waits for so many permits at once, as long as it takes: all of them, or none. 1 to 1024.
    ///
    /// If the semaphore never has so many, this waits for ever, and so do the tasks of this process that ask after it: they are
    /// not overtaken. [`try_acquire_many_for`](LeasedSemaphore::try_acquire_many_for) bounds that. More than
    /// [`permits_exactly(n)`](LeasedSemaphore::permits_exactly) says are refused; a wait for more than [`permits(n)`](LeasedSemaphore::permits)
    /// says is warned of after 5 s, since others may have set more.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the number is out of bounds, or more than `permits_exactly(n)` says; else as [`acquire`](LeasedSemaphore::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](LeasedSemaphore::acquire).
    #[track_caller]
    pub fn acquire_many(
        &self,
        permits: u32,
    ) -> impl Future<Output = Result<PermitGuard, Error>> + Send + 'static + use<> {
        never_busy(self.ask(permits, Patience::Forever))
    }

    /// Takes so many permits if they are free now, all of them or none. 1 to 1024.
    ///
    /// # Errors
    /// As [`acquire_many`](LeasedSemaphore::acquire_many) and [`try_acquire`](LeasedSemaphore::try_acquire).
    ///
    #[doc = super::bounds::ends_once!()]
    ///
    /// # Cancel safety
    /// As [`acquire`](LeasedSemaphore::acquire).
    #[track_caller]
    pub fn try_acquire_many(
        &self,
        permits: u32,
    ) -> impl Future<Output = Result<Option<PermitGuard>, Error>> + Send + 'static + use<> {
        self.ask(permits, Patience::Once)
    }

    /// Waits up to `wait` for so many permits, all of them or none. 1 to 1024.
    ///
    /// # Errors
    /// As [`acquire_many`](LeasedSemaphore::acquire_many) and [`try_acquire_for`](LeasedSemaphore::try_acquire_for).
    ///
    #[doc = super::bounds::ends_for!()]
    ///
    /// # Cancel safety
    /// As [`acquire`](LeasedSemaphore::acquire).
    #[track_caller]
    pub fn try_acquire_many_for(
        &self,
        permits: u32,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<PermitGuard>, Error>> + Send + 'static + use<> {
        self.ask(permits, at_most(wait))
    }

    /// Sets how many permits there are, unless that was done before. `false` if so.
    ///
    /// # Errors
    /// The name is no good, or the server gives no usable answer: it may have set them.
    ///
    /// # Cancel safety
    /// Dropping it does not take the request back.
    ///
    /// # Source
    /// Redisson `RPermitExpirableSemaphore#trySetPermits`.
    pub async fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        let step = Permits::TrySet(permits);
        Ok(self.change(step, "set the permits of").await? == 1)
    }

    /// Sets how many permits there are, taken and free together. If fewer than are taken, none is free until enough
    /// have come back.
    ///
    /// # Errors
    /// As [`try_set_permits`](LeasedSemaphore::try_set_permits).
    ///
    /// # Cancel safety
    /// Dropping it does not take the request back.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// use std::time::Duration;
    ///
    /// let semaphore = client.leased_semaphore("encoders");
    /// assert!(semaphore.try_set_permits(3).await?); // only by the first who asks
    /// semaphore.set_permits(5).await?;
    /// let three = semaphore.acquire_many(3).await?;
    /// assert_eq!(three.permits(), 3);
    /// assert!(semaphore.try_acquire_many(3).await?.is_none());
    /// assert!(semaphore.try_acquire_many_for(3, Duration::from_millis(10)).await?.is_none());
    /// assert!(semaphore.try_acquire_for(Duration::from_secs(1)).await?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Source
    /// Redisson `RPermitExpirableSemaphore#setPermits`.
    pub async fn set_permits(&self, permits: u32) -> Result<(), Error> {
        let step = Permits::Set(permits);
        self.change(step, "set the permits of").await.map(drop)
    }

    /// Adds permits; takes some away, if the number is negative. How many are free then.
    ///
    /// Sent once: repeated after an error it may count twice.
    ///
    /// # Errors
    /// As [`try_set_permits`](LeasedSemaphore::try_set_permits).
    ///
    /// # Cancel safety
    /// Dropping it does not take the request back.
    ///
    /// # Source
    /// Redisson `RPermitExpirableSemaphore#addPermits`.
    pub async fn add_permits(&self, permits: i32) -> Result<i64, Error> {
        self.change(Permits::Add(permits), "add permits to").await
    }

    /// Takes away all permits that are free now, and says how many: there are so many fewer from then on. Permits that are
    /// taken stay with their holders, and come back.
    ///
    /// Sent once: repeated after an error it may take what has come back since.
    ///
    /// # Errors
    /// As [`try_set_permits`](LeasedSemaphore::try_set_permits): they may be gone.
    ///
    /// # Cancel safety
    /// Dropping it does not take the request back.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let semaphore = client.leased_semaphore("encoders");
    /// semaphore.set_permits(5).await?;
    /// assert_eq!(semaphore.add_permits(1).await?, 6);
    /// let held = semaphore.acquire().await?;
    /// assert_eq!(semaphore.drain_permits().await?, 5); // the rest
    /// assert!(semaphore.force_unlock().await?); // and take back the one that is out
    /// # drop(held);
    /// # Ok(()) }
    /// ```
    ///
    /// # Source
    /// Redisson `RSemaphore#drainPermits`, which `RPermitExpirableSemaphore` lacks.
    pub async fn drain_permits(&self) -> Result<u32, Error> {
        let drained = self.change(Permits::Drain, "drain the permits of").await?;
        Ok(u32::try_from(drained).unwrap_or(u32::MAX))
    }

    /// How many permits are free now. Negative, if more were taken away than are free.
    ///
    /// # Errors
    /// The name is no good, or the server gives no usable answer.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Source
    /// Redisson `RPermitExpirableSemaphore#availablePermits`.
    pub async fn available_permits(&self) -> Result<i64, Error> {
        self.change(Permits::Available, "count the permits of")
            .await
    }

    /// Takes all permits that are out from their holders. `false` if none was.
    ///
    /// Holders of ours learn it at their next renewal or [`verify`](crate::Guard::verify), a third of their lease later at worst; until
    /// then they believe that they hold them. Make sure that they are dead first.
    ///
    /// # Errors
    /// The name is no good, or the server does not answer: it may have given them back.
    ///
    /// # Cancel safety
    /// Dropping it does not take the request back.
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        self.handle.force_unlock().await
    }

    async fn change(&self, step: Permits, doing: &str) -> Result<i64, Error> {
        let id = self.handle.id()?;
        // Sent once: the server remembers no request about these numbers, so a copy would count again.
        self.handle.core().permits(id, step, doing).await
    }

    /// So many permits as a part of a [`MultiLock`](crate::MultiLock). 1 to 1024; the first use refuses another number.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let semaphore = client.leased_semaphore("encoders");
    /// semaphore.set_permits(5).await?;
    /// let both = client.multi_lock([semaphore.part(2), "film:7".into()]).lock().await?;
    /// assert!(both.is_valid());
    /// # Ok(()) }
    /// ```
    pub fn part(&self, permits: u32) -> Part {
        Part::of(&self.handle, so_many(permits))
    }

    #[track_caller]
    fn ask(
        &self,
        permits: u32,
        patience: Patience,
    ) -> impl Future<Output = Result<Option<PermitGuard>, Error>> + Send + 'static + use<> {
        match so_many(permits) {
            Ok(access) => self.handle.ask(access, patience).left_future(),
            Err(invalid) => ready(Err(invalid)).right_future(),
        }
    }
}

impl PermitGuard {
    /// How many permits it holds.
    pub fn permits(&self) -> u32 {
        match self.hold().spec().access {
            Access::Permits(count) => count.into(),
            _ => 1,
        }
    }
}
