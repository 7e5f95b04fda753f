//! The guards: the proofs of holds, given back without a wait when they are dropped.

use std::{
    fmt,
    time::{Duration, Instant},
};

use super::table::rows;
use crate::{
    Acknowledged, Detached, Error, Exclusive, Fair, Fenced, LostReason, Permit, Plain, PlainPermit,
    Read, Released, Spin, Write, background::BackgroundRuntime,
};

/// [`leasehold::Guard`](crate::Guard) for threads: a hold on a name, for as long as it lasts.
///
/// The watchdog renews its lease while the guard lives, on a thread of the library. Give it back with [`release`](Guard::release) to
/// learn the result, or drop it, on any thread, also where a tokio scheduler polls: a drop does not wait for the server.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), leasehold::Error> {
/// use std::time::Duration;
///
/// let client = leasehold::blocking::Client::connect("memory:")?;
/// let guard = client.mutex("order:42").lock()?;
/// guard.ensure(Duration::from_secs(5))?; // enough for what follows
/// let answer = guard.run(|| 6 * 7)?; // an error if the lease was lost meanwhile
/// assert_eq!(answer, 42);
/// guard.release()?;
/// # Ok(()) }
/// ```
#[must_use = "the name is released as soon as the guard is dropped, also by `let _ =`: bind it, as in `let guard =`"]
#[clippy::has_significant_drop]
pub struct Guard<K = Exclusive> {
    inner: crate::Guard<K>,
    background: BackgroundRuntime,
}

/// [`leasehold::MultiGuard`](crate::MultiGuard) for threads: a hold on several names.
#[must_use = "the names are released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct MultiGuard {
    inner: crate::MultiGuard,
    background: BackgroundRuntime,
}

macro_rules! names {
    ($($name:ident $mark:ident $of:literal)*) => {
        $(#[doc = concat!("A hold of a thread on ", $of, ".")]
        pub type $name = Guard<$mark>;)*
    };
}
names! {
    MutexGuard Exclusive "a [`Mutex`](super::Mutex)"
    FencedMutexGuard Fenced "a [`FencedMutex`](super::FencedMutex)"
    FairMutexGuard Fair "a [`FairMutex`](super::FairMutex)"
    PlainMutexGuard Plain "a [`PlainMutex`](super::PlainMutex)"
    SpinMutexGuard Spin "a [`SpinMutex`](super::SpinMutex)"
    ReadGuard Read "an [`RwLock`](super::RwLock), which reads"
    WriteGuard Write "an [`RwLock`](super::RwLock), which writes"
    PermitGuard Permit "permits of a [`LeasedSemaphore`](super::LeasedSemaphore)"
    SemaphoreGuard PlainPermit "permits of a [`Semaphore`](super::Semaphore)"
}

/// The rows of every guard.
macro_rules! guard_rows {
    ($kind:ident) => {
        rows!($kind:
            plain is_valid() -> bool, "Whether the hold can be relied on now. Once `false`, `false` for ever.";
            plain remaining() -> Duration, "How long the hold can be relied on if no renewal follows; zero if it is lost.";
            plain valid_until() -> Instant, "Until when the hold can be relied on if no renewal follows.";
            plain ensure(min: Duration) -> Result<(), Error>, "Checks that at least `min` of the lease is left, before a step that must not be interrupted.";
            verb lost() -> LostReason, "Waits until the hold is lost, and says how. For a thread that watches another one's work.";
            verb at_risk(left: Duration) -> (), "Waits until no more than `left` of the lease remains, or until the hold is lost.";
            verb verify() -> Duration, "Asks the server whether this hold still has the name, and for how long.";
            verb extend(lease: Duration) -> (), "Makes a fixed lease last at least `lease` from now.";
            moves release() -> Released, "Gives the name back. Fails exactly when the lease had ended before: then the work may not have been alone.";
        );

        /// Runs `work` on this thread. Its output, if the hold is valid before and after. The name stays held.
        ///
        /// A loss does not stop a thread: long work asks [`ensure`](Self::ensure) before each step that counts.
        ///
        /// # Errors
        /// [`Error::Lost`]: the hold was over before, and `work` did not run; or it was over when `work` had returned, which then may not
        /// have been alone.
        pub fn run<T>(&self, work: impl FnOnce() -> T) -> Result<T, Error> {
            self.ensure(Duration::ZERO)?;
            let output = self.inner.in_its_span(work);
            // Work of a thread cannot be stopped: a loss meanwhile is told when it has ended.
            self.ensure(Duration::ZERO)?;
            Ok(output)
        }

        /// Runs `work`, and gives the name back.
        pub(super) fn run_to_end<T>(self, work: impl FnOnce(&Self) -> T) -> Result<T, Error> {
            let output = self.run(|| work(&self))?;
            // The work is done, and no failure of the release undoes it. A loss that only the release finds is told by an event.
            let _ = self.release();
            Ok(output)
        }
    };
}

impl<K> Guard<K> {
    pub(super) fn new(inner: crate::Guard<K>, background: &BackgroundRuntime) -> Guard<K> {
        let background = background.clone();
        Guard { inner, background }
    }

    guard_rows!(Guard);
    rows!(Guard:
        plain name() -> &str, "The name that is held.";
        plain owner() -> String, "The owner field of this hold on the server.";
        plain durability() -> Acknowledged, "What replicas, or the disk, have acknowledged of this hold, and when.";
    );

    /// Enters again: a second guard on the same hold, counted in memory. No I/O.
    ///
    /// # Errors
    /// As [`leasehold::Guard::reenter`](crate::Guard::reenter).
    pub fn reenter(&self) -> Result<Guard<K>, Error> {
        Ok(Guard::new(self.inner.reenter()?, &self.background))
    }

    /// Leaves the name held on the server, by no guard, until its lease ends: see [`leasehold::Guard::detach`](crate::Guard::detach).
    pub fn detach(self) -> Detached {
        self.inner.detach()
    }
}

impl MultiGuard {
    pub(super) fn new(inner: crate::MultiGuard, background: &BackgroundRuntime) -> MultiGuard {
        let background = background.clone();
        MultiGuard { inner, background }
    }

    guard_rows!(MultiGuard);
    rows!(MultiGuard:
        plain names() -> Vec<&str>, "The names that are held, in the order in which they were taken.";
        plain owners() -> Vec<String>, "The owner fields of the parts on their servers.";
        plain token(name: &str) -> Option<u64>, "The fencing token of the part with this name, if it has one.";
    );

    /// Enters again: a second guard on the same holds. No I/O.
    ///
    /// # Errors
    /// As [`leasehold::MultiGuard::reenter`](crate::MultiGuard::reenter).
    pub fn reenter(&self) -> Result<MultiGuard, Error> {
        Ok(MultiGuard::new(self.inner.reenter()?, &self.background))
    }

    /// Leaves the names held on their servers: see [`leasehold::MultiGuard::detach`](crate::MultiGuard::detach).
    pub fn detach(self) -> Vec<Detached> {
        self.inner.detach()
    }
}

impl Guard<Fenced> {
    rows!(Guard:
        plain token() -> u64, "The fencing token of this hold: larger than that of every holder before.";
    );
}

impl Guard<Permit> {
    rows!(Guard:
        plain permits() -> u32, "How many permits it holds.";
    );
}

impl Guard<PlainPermit> {
    rows!(Guard:
        plain permits() -> u32, "How many permits it holds.";
    );
}

impl Guard<Write> {
    rows!(Guard:
        moves downgrade() -> Guard<Read>, "Ends the writing, and reads on without a gap: no other writes in between.";
    );

    /// Reads under this write lock: a second guard on the same hold. No I/O.
    ///
    /// # Errors
    /// As [`leasehold::Guard::read`](crate::Guard::read).
    pub fn read(&self) -> Result<Guard<Read>, Error> {
        Ok(Guard::new(self.inner.read()?, &self.background))
    }
}

impl<K> fmt::Debug for Guard<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
