//! Many readers, or one writer.
//!
//! Promise: at any moment the valid guards of a name are any number of readers' or one writer's, among all processes on
//! this server, Redisson's `RReadWriteLock` included. Keys: `docs/keys.md`. Source: Redisson `RedissonReadLock`,
//! `RedissonWriteLock`.

use std::{future::Future, sync::Arc, time::Duration};

use super::{
    handle::{Handle, at_most, lease_settings, never_busy, owner_settings},
    part::Part,
};
use crate::{
    Error, ReadGuard, WriteGuard,
    engine::core::Core,
    engine::hold::spec::Patience,
    kind::{Access, LockKind},
};

/// A lock on a name for many readers or one writer, shared with Redisson's `RReadWriteLock` of the same name.
///
/// A handle: cheap to clone, no I/O until it is locked. The readers of one process share one hold on the server: while
/// no writer waits, the next reader costs no I/O. Each hold has a lease of its own, so a reader that dies keeps
/// writers out for its lease and no longer, however many others read.
///
/// | wait | to read | to write |
/// |---|---|---|
/// | as long as it takes | [`read`](RwLock::read) | [`write`](RwLock::write) |
/// | not at all | [`try_read`](RwLock::try_read) | [`try_write`](RwLock::try_write) |
/// | up to `wait` | [`try_read_for`](RwLock::try_read_for) | [`try_write_for`](RwLock::try_write_for) |
///
/// # Order
///
/// Readers and writers are let in by turns, so that neither starves: a writer that waits, here or in another process,
/// keeps new readers out, and gets in when the readers inside have left. The hand-off budget
/// ([`handoff`](RwLock::handoff): 64 in a row, or 20 ms) bounds the readers of this process that are let in without asking
/// the server; after that the next one asks whether a writer waits. Redisson's readers and writers look at no queue: they race
/// with ours as they do among themselves, so that readers of ours that never end may keep a writer of Redisson's out.
///
/// # From one to the other
///
/// [`downgrade`](crate::Guard::downgrade) makes a writer a reader in a single step on the server: no other writes in between.
/// [`WriteGuard::read`](crate::Guard::read) reads under the own write lock. No reader becomes a writer: take
/// [`write`](RwLock::write) from the start, or release the read lock, write-lock, and check again what was read.
///
/// # Beside Redisson's readers
///
/// A JVM that reads may shorten the leases of our readers to its own `lockWatchdogTimeout`. So a reader relies on no more than
/// [`redisson_watchdog`](crate::ClientBuilder::redisson_watchdog) (30 s): a longer [`lease`](RwLock::lease) is that long for a reader, and renewed in time for it.
/// A longer [`fixed_lease`](RwLock::fixed_lease) is refused to readers. A writer that has one is lost that long after it went on as a reader.
///
/// # Reading twice
///
/// A task that reads and asks to read again may wait for a writer that waits for this task. Pass the guard on, take a second
/// one with [`reenter`](crate::Guard::reenter), or lock through an [`Owner`](crate::Owner), which may always enter again. A task
/// that asks to write while it reads waits for itself: it releases the read lock first. So does one that
/// asks to read while it writes: it calls [`read`](crate::Guard::read) on its guard.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::Client;
///
/// let client = Client::connect("memory:").await?;
/// let lock = client.rw_lock("catalogue");
/// let one = lock.read().await?;
/// let two = lock.read().await?; // beside the first
/// assert!(lock.try_write().await?.is_none());
/// one.release().await?;
/// two.release().await?;
/// let writer = lock.write().await?;
/// assert!(lock.try_read().await?.is_none());
/// # use std::time::Duration;
/// let wait = Duration::from_millis(10);
/// assert!(lock.try_read_for(wait).await?.is_none());
/// assert!(lock.try_write_for(wait).await?.is_none());
/// assert!(lock.force_unlock().await?); // takes it from the writer
/// # drop(writer);
/// # Ok(()) }
/// ```
#[must_use = "a handle does nothing until it is asked"]
#[derive(Clone)]
#[doc(alias("RReadWriteLock", "getReadWriteLock"))]
pub struct RwLock {
    handle: Handle,
}

lease_settings!(
    RwLock,
    "The holders: each process that reads, or the writer."
);
owner_settings!(RwLock);

impl RwLock {
    pub(crate) fn new(core: &Arc<Core>, name: &str) -> RwLock {
        RwLock {
            handle: Handle::new(core, LockKind::RwLock, name),
        }
    }

    /// Waits until this caller may read, as long as it takes.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// Cancel safe. Dropping the future gives up the place in the queue; a request under way is seen to its end in
    /// the background, and a hold that it brings is released.
    ///
    /// # Source
    /// Redisson `RReadWriteLock#readLock`. Where we differ: a writer that waits goes first.
    #[track_caller]
    pub fn read(&self) -> impl Future<Output = Result<ReadGuard, Error>> + Send + 'static + use<> {
        never_busy(self.reader(Patience::Forever))
    }

    /// Reads if that is possible now; `None` while a writer is inside, or waits.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    #[doc = super::bounds::ends_once!()]
    ///
    /// # Cancel safety
    /// As [`read`](RwLock::read).
    #[track_caller]
    pub fn try_read(
        &self,
    ) -> impl Future<Output = Result<Option<ReadGuard>, Error>> + Send + 'static + use<> {
        self.reader(Patience::Once)
    }

    /// Waits up to `wait` until this caller may read; `None` if a writer was inside, or waited.
    ///
    /// `wait` counts from the first poll.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # async fn run(client: leasehold::Client) -> Result<(), leasehold::Error> {
    /// let prices = client.rw_lock("prices");
    /// if let Some(reading) = prices.try_read_for(Duration::from_millis(200)).await? {
    ///     // No writer is inside until `reading` is dropped.
    ///     drop(reading);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    ///
    #[doc = super::bounds::ends_for!()]
    ///
    /// # Cancel safety
    /// As [`read`](RwLock::read).
    #[track_caller]
    pub fn try_read_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<ReadGuard>, Error>> + Send + 'static + use<> {
        self.reader(at_most(wait))
    }

    /// Waits until this caller is alone and may write, as long as it takes.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// As [`read`](RwLock::read).
    ///
    /// # Source
    /// Redisson `RReadWriteLock#writeLock`. Where we differ: waiters queue in memory, and processes on the server.
    #[track_caller]
    pub fn write(
        &self,
    ) -> impl Future<Output = Result<WriteGuard, Error>> + Send + 'static + use<> {
        never_busy(self.writer(Patience::Forever))
    }

    /// Writes if that is possible now; `None` while others read or write.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    #[doc = super::bounds::ends_once!()]
    ///
    /// # Cancel safety
    /// As [`read`](RwLock::read).
    #[track_caller]
    pub fn try_write(
        &self,
    ) -> impl Future<Output = Result<Option<WriteGuard>, Error>> + Send + 'static + use<> {
        self.writer(Patience::Once)
    }

    /// Waits up to `wait` until this caller may write; `None` if others read or wrote.
    ///
    /// `wait` counts from the first poll.
    ///
    /// # Errors
    /// As [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    ///
    #[doc = super::bounds::ends_for!()]
    ///
    /// # Cancel safety
    /// As [`read`](RwLock::read).
    #[track_caller]
    pub fn try_write_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<WriteGuard>, Error>> + Send + 'static + use<> {
        self.writer(at_most(wait))
    }

    /// Its reader's side as a part of a [`MultiLock`](crate::MultiLock).
    pub fn read_part(&self) -> Part {
        Part::of(&self.handle, Ok(Access::Shared))
    }

    /// Its writer's side as a part of a [`MultiLock`](crate::MultiLock).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let (prices, stock) = (client.rw_lock("prices"), client.rw_lock("stock"));
    /// let both = client.multi_lock([prices.read_part(), stock.write_part()]).lock().await?;
    /// assert!(stock.try_read().await?.is_none());
    /// # drop(both);
    /// # Ok(()) }
    /// ```
    pub fn write_part(&self) -> Part {
        Part::of(&self.handle, Ok(Access::Exclusive))
    }

    /// Frees the lock: takes it from its readers or its writer. `false` if it was free.
    ///
    /// Holders that use this library learn it at their next renewal or [`verify`](crate::Guard::verify), a third of their lease later
    /// at worst; until then they believe that they hold it. Make sure that they are dead first. Waiters of other processes are served
    /// at once; those of a holder's own client wait behind it in memory, and go on when it learns it.
    ///
    /// # Errors
    /// The name is not valid, or the server does not answer: it may have freed the name.
    ///
    /// # Cancel safety
    /// Dropping it does not take the request back.
    ///
    /// # Source
    /// Redisson `RReadWriteLock`'s `forceUnlock` of either half.
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        self.handle.force_unlock().await
    }

    #[track_caller]
    fn reader(
        &self,
        patience: Patience,
    ) -> impl Future<Output = Result<Option<ReadGuard>, Error>> + Send + 'static + use<> {
        self.handle.ask(Access::Shared, patience)
    }

    #[track_caller]
    fn writer(
        &self,
        patience: Patience,
    ) -> impl Future<Output = Result<Option<WriteGuard>, Error>> + Send + 'static + use<> {
        self.handle.ask(Access::Exclusive, patience)
    }
}
