//! How a hold on a read-write lock changes: the writer reads on.

use super::guard::{Guard, ReadGuard};
use crate::Error;

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
        self.beside()
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
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let lock = client.rw_lock("catalogue");
    /// let writes = lock.write().await?;
    /// let also = writes.read()?; // under the same hold
    /// let reads = writes.downgrade().await?;
    /// assert!(lock.try_read().await?.is_some()); // beside it
    /// # drop((also, reads));
    /// # Ok(()) }
    /// ```
    ///
    /// # Source
    /// Redisson: `readLock().lock()` and then `writeLock().unlock()` of the same thread. Where we differ: those that wait are
    /// told at once (Redisson's sleep until the lease ends).
    pub async fn downgrade(mut self) -> Result<ReadGuard, Error> {
        // The reader comes first, so the hold is never without a guard, and the release only downgrades it.
        // Not by `read()`: a downgrade is no second entry, and `reentrant(false)` does not refuse it.
        let reads = self.beside()?.goes_on(&mut self);
        self.release().await?;
        // The server may have answered the downgrade by saying that the hold is lost.
        reads.hold().check()?;
        Ok(reads)
    }

    /// A second guard on the same hold, which reads.
    fn beside(&self) -> Result<ReadGuard, Error> {
        self.hold().check()?;
        Ok(Guard::new(self.held().read()))
    }
}
