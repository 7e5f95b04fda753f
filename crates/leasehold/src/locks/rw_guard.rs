//! How a hold on a read-write lock changes: the writer reads on, and a reader that may upgrade becomes the writer.

use std::{future::Future, panic::Location, time::Duration};

use super::guard::{Guard, ReadGuard, WriteGuard};
use super::handle::at_most;
use crate::{
    Error,
    engine::queue::{self, Patience},
};

/// A hold on an [`RwLock`](crate::RwLock) that reads beside others, and may become the writer's: one at a time.
///
/// The upgrade is one step on the server: no other writes between what was read under this guard and what is written under the
/// guard that [`upgrade`](Guard::upgrade) returns. Two that read and both want to write cannot wait for each other, since the second
/// waits for its [`upgradeable_read`](crate::RwLock::upgradeable_read).
///
/// ```text
///                     readers ──────────┐ beside it
/// upgradeable_read() ─► UpgradeableGuard ┴── upgrade(): until the readers have left ──► WriteGuard
///                              │                                                          │
///                              └──────── downgrade() ────────► ReadGuard ◄── downgrade() ─┘
/// ```
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::Client;
///
/// let client = Client::connect("memory:").await?;
/// let lock = client.rw_lock("catalogue");
/// let guard = lock.upgradeable_read().await?;
/// let beside = lock.read().await?; // readers come and go
/// assert!(lock.try_upgradeable_read().await?.is_none()); // one at a time
/// # let outdated = true;
/// drop(beside);
/// if outdated {
///     let writes = guard.upgrade().await?; // what was read is still so
///     let reads = writes.downgrade().await?; // others may read what was written
///     reads.release().await?;
/// }
/// # Ok(()) }
/// ```
pub type UpgradeableGuard = Guard<Upgradeable>;

/// Stands for readers that may upgrade in [`UpgradeableGuard`].
#[derive(Debug)]
pub enum Upgradeable {}

/// A second guard, which reads, on a hold that may do more.
fn read<K>(guard: &Guard<K>) -> Result<ReadGuard, Error> {
    let hold = guard.hold();
    hold.check()?;
    Ok(Guard::new(guard.held().read()))
}

/// Only the reader stays. The server is told, unless another guard of the hold may still write.
async fn downgrade<K>(mut guard: Guard<K>) -> Result<ReadGuard, Error> {
    let reads = read(&guard)?.goes_on(&mut guard);
    guard.release().await?;
    reads.hold().check()?;
    Ok(reads)
}

impl Guard<super::Write> {
    /// Reads under this write lock: a second guard on the same hold, counted in memory. No I/O.
    ///
    /// While a guard of the hold may write, no other reads or writes. When the last of those is gone, the guards that read go on
    /// beside other readers, as after [`downgrade`](Guard::downgrade).
    ///
    /// # Errors
    /// [`Error::Lost`] if the hold is over; [`Error::Reentered`] if the lock was told to refuse re-entry.
    ///
    /// # Source
    /// Redisson `RedissonReadLock`: a thread may read what it writes. Where we differ: it shares the writer's lease.
    pub fn read(&self) -> Result<ReadGuard, Error> {
        self.check_reentry()?;
        read(self)
    }

    /// Ends the writing, and reads on without a gap: no other writes in between. Readers that wait are let in, up to the next writer
    /// that waits.
    ///
    /// Other guards that write under this hold ([`reenter`](Guard::reenter)) keep it: then the server is told when the last of them is
    /// gone. The lease goes on, and ends no sooner. If the server does not answer, the request is repeated for the operation timeout
    /// here, then in the background: this guard is good all the time, and others wait meanwhile.
    ///
    /// # Errors
    /// [`Error::Lost`]: the lease was lost; another holder may have been at work meanwhile.
    ///
    /// # Cancel safety
    /// Dropping the future gives all of it up, the read lock too.
    ///
    /// # Source
    /// Redisson: `readLock().lock()` and then `writeLock().unlock()` of the same thread. Where we differ: those that wait are
    /// told at once (Redisson's sleep until the lease ends).
    pub async fn downgrade(self) -> Result<ReadGuard, Error> {
        downgrade(self).await
    }
}

impl Guard<Upgradeable> {
    /// Reads with a second guard on the same hold, counted in memory. No I/O. It does not keep this one from becoming the writer: hand
    /// it to code of the same flow of control only.
    ///
    /// # Errors
    /// As [`WriteGuard::read`](Guard::read).
    pub fn read(&self) -> Result<ReadGuard, Error> {
        self.check_reentry()?;
        read(self)
    }

    /// Gives up the right to write, and reads on: another may have its [`upgradeable_read`](crate::RwLock::upgradeable_read).
    ///
    /// # Errors
    /// [`Error::Lost`]: the lease was lost.
    ///
    /// # Cancel safety
    /// Dropping the future gives all of it up.
    pub async fn downgrade(self) -> Result<ReadGuard, Error> {
        downgrade(self).await
    }

    /// Waits until all other readers have left, as long as it takes, and becomes the writer in one step: no other has written since
    /// this guard was taken. New readers wait meanwhile, unless they are [preferred](crate::RwPolicy::PreferReaders), or Redisson's.
    ///
    /// A reader of Redisson's that leaves tells no waiter: beside such, the server is asked every 50 to 150 ms.
    ///
    /// # Errors
    /// - [`Error::Lost`]: the lease was lost while it waited.
    /// - Any other, as [`Mutex::lock`](crate::Mutex::lock): the read lock is given back too.
    ///
    /// # Cancel safety
    /// Dropping the future gives all of it back, the read lock too, in the background; whether the server had upgraded it or not. To
    /// keep the read lock, wait with [`try_upgrade_for`](Guard::try_upgrade_for).
    ///
    /// # Source
    /// `parking_lot::RwLockUpgradableReadGuard::upgrade`. Redisson has none.
    #[track_caller]
    pub fn upgrade(mut self) -> impl Future<Output = Result<WriteGuard, Error>> + Send + 'static {
        let place = Location::caller();
        async move {
            let answer = upgrade(&mut self, Patience::Forever, place).await?;
            answer.ok_or(Error::Closed)
        }
    }

    /// Becomes the writer if no other reads now; else the guard comes back as it was. A reader whose guard was dropped, and not
    /// released, may still be on its way out.
    ///
    /// # Errors
    /// As [`upgrade`](Guard::upgrade).
    ///
    /// # Cancel safety
    /// As [`upgrade`](Guard::upgrade).
    #[track_caller]
    pub fn try_upgrade(
        self,
    ) -> impl Future<Output = Result<Result<WriteGuard, UpgradeableGuard>, Error>> + Send + 'static
    {
        self.upgrade_or_keep(Patience::Once, Location::caller())
    }

    /// Waits up to `wait` until all other readers have left; if they have not, the guard comes back as it was.
    ///
    /// It comes back as well if the server cannot be reached or has not answered by then, and the name may be upgraded there: then no
    /// other reads until this guard is gone or downgraded, and the next upgrade is done at once.
    ///
    /// # Errors
    /// As [`upgrade`](Guard::upgrade), but for a server that does not answer in time.
    ///
    /// # Cancel safety
    /// As [`upgrade`](Guard::upgrade).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// use std::time::Duration;
    ///
    /// let lock = client.rw_lock("catalogue");
    /// let other = lock.read().await?;
    /// let guard = lock.upgradeable_read().await?;
    /// let Err(guard) = guard.try_upgrade().await? else { panic!("another reads") };
    /// let Err(guard) = guard.try_upgrade_for(Duration::from_millis(10)).await? else { panic!("it still does") };
    /// drop(other);
    /// let writes = guard.upgrade().await?;
    /// # drop(writes);
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn try_upgrade_for(
        self,
        wait: Duration,
    ) -> impl Future<Output = Result<Result<WriteGuard, UpgradeableGuard>, Error>> + Send + 'static
    {
        self.upgrade_or_keep(at_most(wait), Location::caller())
    }

    async fn upgrade_or_keep(
        mut self,
        patience: Patience,
        place: &'static Location<'static>,
    ) -> Result<Result<WriteGuard, UpgradeableGuard>, Error> {
        match upgrade(&mut self, patience, place).await {
            // The time is up before the server has answered. Upgraded there or not, the lease id holds the name, at least to read.
            Err(error) if error.is_unreachable() && matches!(patience, Patience::For(_)) => {
                self.hold().check()?;
                Ok(Err(self))
            }
            Err(error) => Err(error),
            Ok(writes) => Ok(writes.ok_or(self)),
        }
    }
}

async fn upgrade(
    guard: &mut UpgradeableGuard,
    patience: Patience,
    place: &'static Location<'static>,
) -> Result<Option<WriteGuard>, Error> {
    let hold = guard.hold();
    let got = tokio::select! {
        biased;
        reason = guard.lost() => Err(hold.lost_error(reason)),
        got = queue::upgrade(hold, patience, place) => got,
    };
    Ok(got?.map(|held| Guard::new(held).goes_on(guard)))
}
