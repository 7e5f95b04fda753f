//! A count that tasks wait for until it is zero.
//!
//! Promise: a wait ends only after the count was zero, or the latch was gone, at some moment of the wait; each count-down counts
//! once, however often it is sent; and a lost message keeps no waiter waiting for longer than the poll interval. Keys:
//! `docs/keys.md`. Source: Redisson `RedissonCountDownLatch`.

use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::handle::Handle;
use crate::{
    Error, Status, backend::Permits, engine::core::Core, error::Invalid, kind::LockKind,
    name::LockId,
};

/// A count under one name, which tasks wait for until it is zero, shared with Redisson's `RCountDownLatch` of the same name.
///
/// Nothing is held: there is no guard, and a process that dies leaves the count as it is. A process that was to count down and died is
/// waited for until another counts for it, or the latch is deleted: bound the wait with [`wait_for`](Latch::wait_for).
///
/// A handle: cheap to clone, no I/O until it is used. A latch that is not set has the count 0, and keeps no task waiting:
/// [`try_set_count`](Latch::try_set_count) comes first. When it is zero it is gone, and may be set again. A task that waits hears of
/// zero, and then looks: if the latch is set anew before that look, it waits on. So give each round a name of its own.
///
/// # The cost of waiting
///
/// A process that waits has one subscription per name, and reads the count once per poll interval (10 s), however many tasks wait.
/// A single message wakes them all.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::Client;
///
/// let client = Client::connect("memory:").await?;
/// let latch = client.latch("import:42");
/// assert!(latch.try_set_count(2).await?); // false if it is set already
/// let waits = tokio::spawn({
///     let latch = latch.clone();
///     async move { latch.wait().await }
/// });
/// assert_eq!(latch.count_down().await?, 1);
/// assert_eq!(latch.count_down().await?, 0);
/// waits.await.unwrap()?;
/// # Ok(()) }
/// ```
///
/// # Source
/// Redisson `RCountDownLatch`. Where we differ: [`delete`](Latch::delete) wakes all that wait, Redisson's included, and a repeated
/// count-down counts once.
#[must_use = "a handle does nothing until it is asked"]
#[derive(Clone)]
#[doc(alias("RCountDownLatch"))]
pub struct Latch {
    handle: Handle,
}

impl Latch {
    pub(crate) fn new(core: &Arc<Core>, name: &str) -> Latch {
        Latch {
            handle: Handle::new(core, LockKind::Latch, name),
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Sets the count, unless there is one; then `false`. At least 1: a latch without a count is open already.
    ///
    /// # Errors
    /// The name or the count is not valid, or the server gives no usable answer: it may have been set.
    ///
    /// # Cancel safety
    /// Once polled, it is carried out whether or not its caller waits; and not twice, if its answer is lost.
    ///
    /// # Source
    /// Redisson `RCountDownLatch#trySetCount`.
    pub async fn try_set_count(&self, count: u32) -> Result<bool, Error> {
        let count = at_least_one("count", count, "a latch without a count is open already")?;
        let step = Permits::TrySet(count);
        Ok(self.change(step, "set the count of").await? == 1)
    }

    /// Counts down by one, and says what is left. At zero, and of a latch that is not set, nothing is changed.
    ///
    /// # Errors
    /// The name is not valid, or the server gives no usable answer for a few operation timeouts: it may have counted, once.
    ///
    /// # Cancel safety
    /// Once polled, it is carried out whether or not its caller waits; and not twice, if its answer is lost.
    ///
    /// # Source
    /// Redisson `RCountDownLatch#countDown`.
    pub async fn count_down(&self) -> Result<u64, Error> {
        self.count_down_by(1).await
    }

    /// Counts down by so many at once, at most to zero, and says what is left. At least 1.
    ///
    /// # Errors
    /// As [`count_down`](Latch::count_down); [`Error::Invalid`] for 0.
    ///
    /// # Cancel safety
    /// As [`count_down`](Latch::count_down).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// use std::time::Duration;
    ///
    /// let latch = client.latch("shards");
    /// latch.try_set_count(3).await?;
    /// assert_eq!((latch.name(), latch.count_down_by(2).await?), ("shards", 1));
    /// assert_eq!((latch.count().await?, latch.status().await?.count), (1, Some(1)));
    /// assert!(!latch.wait_for(Duration::from_millis(10)).await?); // not zero yet
    /// assert!(latch.delete().await?); // or give it up: those that wait go on
    /// # Ok(()) }
    /// ```
    pub async fn count_down_by(&self, by: u32) -> Result<u64, Error> {
        let by = at_least_one(
            "the number to count down by",
            by,
            "leave the call out, or read count()",
        )?;
        let left = self.change(Permits::CountDown(by), "count down").await?;
        Ok(u64::try_from(left).unwrap_or(0))
    }

    /// The count; 0 of a latch that is not set.
    ///
    /// # Errors
    /// The name is not valid, or the server gives no usable answer.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Source
    /// Redisson `RCountDownLatch#getCount`.
    pub async fn count(&self) -> Result<u64, Error> {
        let count = self.handle.core();
        let count = count.permits(self.id()?, Permits::Available, "read the count of");
        Ok(u64::try_from(count.await?).unwrap_or(0))
    }

    /// Waits until the count is zero, or the latch is deleted, as long as it takes. A latch that is not set keeps no task waiting.
    ///
    /// A server that cannot be reached, loads its data or is busy is waited for.
    ///
    /// # Errors
    /// The name is not valid, the server refuses for good (a lock of another kind stands there), or the client is shut down.
    ///
    /// # Cancel safety
    /// Cancel safe. The last one that leaves takes the subscription with it.
    ///
    /// # Source
    /// Redisson `RCountDownLatch#await`. Where we differ: a lost message does not keep it waiting for ever, and neither does a
    /// deleted latch.
    pub async fn wait(&self) -> Result<(), Error> {
        let core = self.handle.core();
        core.latch_waiters.wait(self.id()?, None).await.map(drop)
    }

    /// Waits up to `wait` for that; `false` if the count was not zero by then.
    ///
    /// `wait` counts from the first poll. With a `wait` of zero it only looks.
    ///
    /// # Errors
    /// As [`wait`](Latch::wait); and if the server has not answered in all that time, or its connection is known to be gone at the
    /// end of it.
    ///
    /// # Cancel safety
    /// As [`wait`](Latch::wait).
    pub async fn wait_for(&self, wait: Duration) -> Result<bool, Error> {
        if wait.is_zero() {
            return Ok(self.count().await? == 0);
        }
        // `None`: a wait that the clock cannot count is one without an end.
        let until = Instant::now().checked_add(wait);
        self.handle
            .core()
            .latch_waiters
            .wait(self.id()?, until)
            .await
    }

    /// Deletes the latch: all that wait for it go on. `false` if it was not set.
    ///
    /// # Errors
    /// The name is not valid, or the server gives no usable answer: it may be gone.
    ///
    /// # Cancel safety
    /// As [`try_set_count`](Latch::try_set_count).
    ///
    /// # Source
    /// Redisson `RCountDownLatch#delete`, which leaves all that wait where they are.
    pub async fn delete(&self) -> Result<bool, Error> {
        Ok(self.change(Permits::Delete, "delete").await? == 1)
    }

    /// The count, and how many clients and tasks wait.
    ///
    /// # Errors
    /// The name is not valid, or the server does not answer. It only reads.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn status(&self) -> Result<Status, Error> {
        let (core, id) = (self.handle.core(), self.id()?);
        let found = core.inspect(id).await?;
        Ok(Status::new(id, found, core.latch_waiters.waiting(id)))
    }

    fn id(&self) -> Result<&LockId, Error> {
        self.handle.id()
    }

    async fn change(&self, step: Permits, doing: &'static str) -> Result<i64, Error> {
        let core = self.handle.core();
        // Repeated until it is answered: the server remembers the request, and a late copy counts nothing more (bug 98).
        core.permits_once(self.id()?, step, doing).await
    }
}

fn at_least_one(what: &'static str, number: u32, remedy: &'static str) -> Result<u32, Error> {
    match NonZeroU32::new(number) {
        Some(number) => Ok(number.get()),
        None => Err(Invalid::new(what, "0", "at least 1").remedy(remedy).into()),
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latch")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}
