//! The proof that all parts of a multi-lock are held.

use std::{
    fmt,
    time::{Duration, Instant},
};

use futures_util::future::{join_all, select_all};

use super::guard::{Detached, Guard};
use crate::{
    Error, LostReason, Released,
    engine::hold::held::Held,
    engine::multi::{release_all, release_in_background},
    kind::LockKind,
    story::Scope,
};

/// A hold on all names of a [`MultiLock`](crate::MultiLock), for as long as all of them last.
///
/// While it lives the watchdog renews each lease (unless it is fixed). A part that is lost loses the whole; the others stay held
/// until the guard goes. Give it back with [`release`](MultiGuard::release) to learn the result, or drop it: all names are passed
/// on in the background, from any thread (at the end of a program see [`Guard`](crate::Guard#at-the-end-of-a-program)).
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, Released};
///
/// let client = Client::connect("memory:").await?;
/// let guard = client.multi_lock(["b", "a"]).lock().await?;
/// assert_eq!(guard.names(), ["a", "b"]);
/// assert!(guard.is_valid());
/// let answer = guard.run(async { 6 * 7 }).await?;
/// assert_eq!(answer, 42);
/// assert_eq!(guard.release().await?, Released::Freed);
/// # Ok(()) }
/// ```
#[must_use = "the names are released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct MultiGuard {
    /// In the order in which they were taken.
    parts: Vec<Guard>,
    /// Around the hold, if `tracing` is to tell of it.
    pub(super) scope: Scope,
}

impl MultiGuard {
    pub(super) fn new(held: Vec<Held>) -> MultiGuard {
        let parts: Vec<Guard> = held.into_iter().map(Guard::new).collect();
        let leases = parts.iter().map(|part| part.hold().lease);
        let scope = Scope::of_holds(parts.iter().map(Guard::name), leases);
        MultiGuard { parts, scope }
    }

    /// The names that are held, in the order in which they were taken.
    pub fn names(&self) -> Vec<&str> {
        self.parts.iter().map(Guard::name).collect()
    }

    /// The owner fields of the parts on their servers, in the order of [`names`](MultiGuard::names).
    pub fn owners(&self) -> Vec<String> {
        self.parts.iter().map(Guard::owner).collect()
    }

    /// The fencing token of the part with this name, if that is a [`FencedMutex`](crate::FencedMutex).
    pub fn token(&self, name: &str) -> Option<u64> {
        let mut fenced = self.parts.iter().map(Guard::hold).filter(|hold| {
            let id = hold.id();
            id.kind == LockKind::FencedMutex && **id.name.shown() == *name
        });
        fenced.next().map(|hold| hold.token())
    }

    /// Whether all parts can be relied on now. Once `false`, `false` for ever.
    ///
    /// An atomic load for each part and a look at the clock; no I/O. See [`Guard::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.parts.iter().all(Guard::is_valid)
    }

    /// How long all parts can be relied on if no renewal follows; zero if one is lost.
    pub fn remaining(&self) -> Duration {
        let all = self.parts.iter().map(Guard::remaining);
        all.min().unwrap_or(Duration::ZERO)
    }

    /// Until when all parts can be relied on if no renewal follows: see [`Guard::valid_until`].
    pub fn valid_until(&self) -> Instant {
        Instant::now() + self.remaining()
    }

    /// Checks that at least `min` of each lease is left, before a step that must not be interrupted.
    ///
    /// # Errors
    /// As [`Guard::ensure`], of the first part that fails.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// use leasehold::Part;
    ///
    /// let ledger = client.fenced_mutex("ledger");
    /// let both = client.multi_lock([Part::from("a"), ledger.into()]).lock().await?;
    /// both.ensure(std::time::Duration::from_secs(5))?; // enough of each lease for what follows
    /// assert!(both.remaining() > both.verify().await? / 2 && both.valid_until() > std::time::Instant::now());
    /// assert!(both.token("ledger").is_some() && both.owners().len() == 2);
    /// let inner = both.reenter()?;
    /// # drop(inner);
    /// # Ok(()) }
    /// ```
    pub fn ensure(&self, min: Duration) -> Result<(), Error> {
        self.parts.iter().try_for_each(|part| part.ensure(min))
    }

    /// Waits until a part is lost, and says how.
    ///
    /// Completes before the server can give that name to another owner: see [`Guard::lost`]. [`ensure`](MultiGuard::ensure)
    /// says which part it was.
    ///
    /// # Cancel safety
    /// Cancel safe. Made for `select!`.
    pub async fn lost(&self) -> LostReason {
        self.first_lost().await.1
    }

    async fn first_lost(&self) -> (usize, LostReason) {
        let all = self.parts.iter().map(|part| Box::pin(part.lost()));
        let (reason, at, _) = select_all(all).await;
        (at, reason)
    }

    /// The error that says which part was lost, once one is.
    pub(super) async fn lost_error(&self) -> Error {
        let (at, reason) = self.first_lost().await;
        self.parts[at].hold().lost_error(reason)
    }

    /// Waits until no more than `left` of the shortest lease remains, or until a part is lost: see [`Guard::at_risk`].
    ///
    /// # Cancel safety
    /// Cancel safe. Made for `select!`.
    pub async fn at_risk(&self, left: Duration) {
        let all = self.parts.iter().map(|part| Box::pin(part.at_risk(left)));
        select_all(all).await;
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let mut all = self.parts.iter();
        all.try_for_each(|part| part.hold().check().map(drop))
    }

    /// Asks each server whether the parts are still held, and for how long at least.
    ///
    /// # Errors
    /// As [`Guard::verify`]. All parts are asked; if several fail, all of them are in [`Error::Several`].
    ///
    /// # Cancel safety
    /// Cancel safe. It only reads.
    pub async fn verify(&self) -> Result<Duration, Error> {
        let all = join_all(self.parts.iter().map(Guard::verify)).await;
        let left: Vec<Duration> = Error::all(all)?;
        Ok(left.into_iter().min().unwrap_or(Duration::ZERO))
    }

    /// Makes the fixed leases of all parts last at least `lease` from now. No lease ends sooner than before.
    ///
    /// # Errors
    /// As [`Guard::extend`]. All parts are tried; if several fail, all of them are in [`Error::Several`].
    ///
    /// # Cancel safety
    /// As [`Guard::extend`].
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// use std::time::Duration;
    ///
    /// let locks = client.multi_lock(["a", "b"]).fixed_lease(Duration::from_millis(100));
    /// let both = locks.lock().await?;
    /// both.extend(Duration::from_millis(200)).await?; // from now
    /// both.at_risk(Duration::from_millis(50)).await; // completes 50 ms before the end,
    /// println!("{}", both.lost().await); // and this at the end
    /// let detached = locks.lock().await?.detach(); // held until their leases end, by no guard
    /// assert_eq!(detached.len(), 2);
    /// # Ok(()) }
    /// ```
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        // Each part is asked, also behind a part that fails: the others' leases are to last.
        let all = join_all(self.parts.iter().map(|part| part.extend(lease))).await;
        Error::all(all).map(drop)
    }

    /// Enters all parts again: a second guard on the same holds, counted in memory.
    ///
    /// # Errors
    /// As [`Guard::reenter`], of the first part that fails; then none is entered.
    pub fn reenter(&self) -> Result<MultiGuard, Error> {
        // If a part is lost, the entries that were made before it are given back by their drop.
        let parts: Result<Vec<_>, _> = self.parts.iter().map(Guard::reenter).collect();
        Ok(MultiGuard {
            parts: parts?,
            // A second entry begins no span: the hold has its own already.
            scope: Scope::default(),
        })
    }

    /// Gives all names back, also those behind one that was lost. Fails exactly when a lease had ended before: then the work
    /// may not have been alone.
    ///
    /// [`Released::Unconfirmed`] if a server does not answer, with the longest time of all parts: see [`Guard::release`].
    ///
    /// # Errors
    /// [`Error::Lost`] with the name of the part that was lost before; [`Error::Several`] with one for each, if more were. The
    /// [`kind`](Error::kind) of both is [`ErrorKind::Lost`](crate::ErrorKind::Lost).
    ///
    /// # Cancel safety
    /// Cancel safe: once called, the release is carried out in the background whether or not its caller waits.
    ///
    /// # Source
    /// Redisson `RedissonMultiLock#unlock`. Where we differ: it goes on past an error, and reports them all.
    pub async fn release(mut self) -> Result<Released, Error> {
        let answers = release_all(self.take()).await;
        let answers: Vec<Released> = Error::all(answers)?;
        Ok(answers.into_iter().fold(Released::Freed, worse))
    }

    /// Leaves all names held on the server, by no guard: see [`Guard::detach`]. In the order of [`names`](MultiGuard::names).
    pub fn detach(mut self) -> Vec<Detached> {
        let parts = std::mem::take(&mut self.parts);
        parts.into_iter().map(Guard::detach).collect()
    }

    fn take(&mut self) -> Vec<Held> {
        let parts = std::mem::take(&mut self.parts);
        parts.into_iter().map(Guard::into_held).collect()
    }

    /// The parts by themselves, for the simulation, which looks at each.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn probes(&self) -> Vec<crate::sim::Probe> {
        self.parts.iter().map(Guard::probe).collect()
    }
}

/// The answer that says less of what is free.
fn worse(one: Released, other: Released) -> Released {
    let rank = |released: Released| match released {
        Released::Freed => (0, Duration::ZERO, 0),
        Released::StillHeld { holds } => (1, Duration::ZERO, holds),
        Released::Unconfirmed { free_within } => (2, free_within, 0),
    };
    if rank(other) > rank(one) { other } else { one }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        release_in_background(self.take());
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiGuard")
            .field("names", &self.names())
            .field("owners", &self.owners())
            .field("remaining", &self.remaining())
            .finish()
    }
}
