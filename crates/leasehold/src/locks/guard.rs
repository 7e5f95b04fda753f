//! The proof of a hold.

use std::{
    fmt,
    marker::PhantomData,
    mem,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    Error, LostReason, Released, config::check_extension, engine::hold::Hold,
    engine::hold::held::Held, engine::hold::lease::End, error::NO_REENTRY, story::Scope,
};

/// A hold on a name, for as long as it lasts.
///
/// While the guard lives the watchdog renews its lease (unless the lease is fixed). The guard knows at any
/// moment whether the hold can still be relied on, and it knows before the server can give the name to
/// another owner, even with the network down: [`is_valid`](Guard::is_valid) costs one atomic load and a look
/// at the clock, [`lost`](Guard::lost) is a future for `select!`, and [`run`](Guard::run) stops work at that moment.
///
/// Give it back with [`release`](Guard::release) to learn the result, or drop it: the name is passed on
/// in the background, from any thread, with or without a runtime. A guard that is forgotten (`mem::forget`, a
/// cycle of `Arc`s) is renewed as long as the process lives; [`max_hold`](crate::Mutex::max_hold) bounds that.
///
/// # At the end of a program
///
/// The drop of a client's last handle (client, lock or guard) waits for the releases under way, at most 100 ms
/// ([`linger`](crate::ClientBuilder::linger)). So the return of `main` gives back what guards held. **A name that is not given back then
/// stays taken until its lease ends** (permits of a `Semaphore` are lost): some of hundreds of guards, on loopback too; a program's
/// first lock, 25 ms or more of round trip away, for the background thread still connects; all after
/// [`process::exit`](std::process::exit) or a signal, or in a `static`. There, await `release()` or [`shutdown`](crate::Client::shutdown) before. A larger `linger` helps the first two.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, Released};
///
/// let client = Client::connect("memory:").await?;
/// let guard = client.mutex("order:42").lock().await?;
/// assert!(guard.is_valid());
/// let answer = guard.run(async { 6 * 7 }).await?;
/// assert_eq!(answer, 42);
/// assert_eq!(guard.release().await.unwrap(), Released::Freed);
/// # Ok(()) }
/// ```
#[must_use = "the name is released as soon as the guard is dropped, also by `let _ =`: bind it, as in `let guard =`"]
#[clippy::has_significant_drop]
pub struct Guard<K = Exclusive> {
    held: Held,
    kind: PhantomData<fn() -> K>,
}

/// A hold on a [`Mutex`](crate::Mutex).
pub type MutexGuard = Guard<Exclusive>;

/// A hold on a [`FencedMutex`](crate::FencedMutex).
pub type FencedMutexGuard = Guard<Fenced>;

/// A reader's hold on an [`RwLock`](crate::RwLock).
pub type ReadGuard = Guard<Read>;

/// The writer's hold on an [`RwLock`](crate::RwLock).
pub type WriteGuard = Guard<Write>;

/// A hold on permits of a [`LeasedSemaphore`](crate::LeasedSemaphore).
pub type PermitGuard = Guard<Permit>;

/// Stands for a mutex in [`MutexGuard`].
#[derive(Debug)]
pub enum Exclusive {}

/// Stands for a fenced mutex in [`FencedMutexGuard`].
#[derive(Debug)]
pub enum Fenced {}

/// Stands for readers in [`ReadGuard`].
#[derive(Debug)]
pub enum Read {}

/// Stands for writers in [`WriteGuard`].
#[derive(Debug)]
pub enum Write {}

/// Stands for permits in [`PermitGuard`].
#[derive(Debug)]
pub enum Permit {}

/// A hold on a [`PlainMutex`](crate::PlainMutex).
pub type PlainMutexGuard = Guard<Plain>;

/// A hold on a [`SpinMutex`](crate::SpinMutex).
pub type SpinMutexGuard = Guard<Spin>;

/// Stands for a plain mutex in [`PlainMutexGuard`].
#[derive(Debug)]
pub enum Plain {}

/// Stands for a spin mutex in [`SpinMutexGuard`].
#[derive(Debug)]
pub enum Spin {}

/// A hold on permits of a [`Semaphore`](crate::Semaphore).
pub type SemaphoreGuard = Guard<PlainPermit>;

/// Stands for permits without a lease in [`SemaphoreGuard`].
#[derive(Debug)]
pub enum PlainPermit {}

/// The hold of a guard after [`Guard::detach`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Detached {
    /// The name.
    pub name: Arc<str>,
    /// The owner field that holds it on the server.
    pub owner: String,
    /// How long it can still be relied on.
    pub remaining: Duration,
}

impl<K> Guard<K> {
    pub(crate) fn new(held: Held) -> Guard<K> {
        Guard {
            held,
            kind: PhantomData,
        }
    }

    /// The guard of a caller that has waited for it.
    pub(super) fn begin(mut held: Held) -> Guard<K> {
        let it = held.hold();
        held.scope = Scope::of_hold(it.id(), it.lease, || it.owner(), || it.token());
        Guard::new(held)
    }

    /// Has the span of another guard, since the hold goes on.
    pub(super) fn goes_on<L>(mut self, before: &mut Guard<L>) -> Guard<K> {
        self.held.scope = mem::take(&mut before.held.scope);
        self
    }

    pub(crate) fn into_held(self) -> Held {
        self.held
    }

    pub(super) fn held(&self) -> &Held {
        &self.held
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        self.held.hold()
    }

    /// The name that is held.
    pub fn name(&self) -> &str {
        self.hold().id().name.shown()
    }

    /// The owner field of this hold on the server: `<client uuid>:<lease id>`, with `:write` behind it for a writer; of a
    /// leased semaphore the id of the first permit.
    pub fn owner(&self) -> String {
        self.hold().owner()
    }

    /// Whether the hold can be relied on now. Once `false`, `false` for ever.
    ///
    /// An atomic load and a look at the clock; no I/O. True means that the server gives the name to no other
    /// before [`valid_until`](Guard::valid_until), unless it forgets the key (see [guarantees](crate::docs::guarantees)).
    pub fn is_valid(&self) -> bool {
        self.hold().standing().is_ok()
    }

    /// How long the hold can be relied on if no renewal follows; zero if it is lost.
    pub fn remaining(&self) -> Duration {
        self.hold().standing().unwrap_or(Duration::ZERO)
    }

    /// Until when the hold can be relied on if no renewal follows.
    ///
    /// An [`Instant`] stands still while the machine sleeps, so it is a deadline for timers and requests, not
    /// proof: after a pause, ask [`is_valid`](Guard::is_valid).
    pub fn valid_until(&self) -> Instant {
        // Worked out anew in each call: an `Instant` stands still while the machine sleeps, and our clock goes on.
        Instant::now() + self.remaining()
    }

    /// Checks that at least `min` of the lease is left, before a step that must not be interrupted.
    ///
    /// # Errors
    /// [`Error::TooShort`] with the time left, [`Error::Lost`] if it is over.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let guard = client.mutex("order:42").lock().await?;
    /// assert_eq!(guard.name(), "order:42");
    /// guard.ensure(std::time::Duration::from_secs(5))?; // enough for what follows
    /// assert!(guard.remaining() > guard.verify().await? / 2 && guard.valid_until() > std::time::Instant::now());
    /// let inner = guard.reenter()?; // for nested code; the name is free when both are gone
    /// assert_eq!(inner.owner(), guard.owner());
    /// # Ok(()) }
    /// ```
    pub fn ensure(&self, min: Duration) -> Result<(), Error> {
        // The check that finds the end tells it to all that wait for the loss (`Hold::standing`), not to this caller alone.
        let left = self.hold().check()?;
        if left < min {
            return Err(Error::TooShort {
                name: self.hold().id().name.shared(),
                left,
                wanted: min,
            });
        }
        Ok(())
    }

    /// Waits until the hold is lost, and says how.
    ///
    /// Completes before the server can give the name to another owner: at the latest at
    /// [`valid_until`](Guard::valid_until), which ends 1 % of the lease and 2 ms before the server's key. It sets a
    /// timer on the runtime that polls it, and so needs only that runtime to make progress.
    ///
    /// # Cancel safety
    /// Cancel safe. Made for `select!`.
    pub async fn lost(&self) -> LostReason {
        loop {
            let mut over = pin!(self.hold().over.notified());
            // Registered before the check, so that an end in between is heard.
            over.as_mut().enable();
            match self.hold().standing() {
                // The watchdog tells; a timer of the caller's runtime does so even if the watchdog cannot.
                Ok(left) => tokio::select! {
                    () = over => {}
                    () = self.hold().env().sleep_here(left) => {}
                },
                Err(End::Lost(reason)) => return reason,
                // Only while another task is inside `release`, which takes the guard: no caller is left to ask.
                Err(End::Released) => return LostReason::Unconfirmed,
            }
        }
    }

    /// Waits until no more than `left` of the lease remains, or until the hold is lost. A renewed lease comes that close to its
    /// end only if renewals fail.
    ///
    /// For work that needs time to stop: `at_risk(Duration::from_secs(5))` completes five seconds before
    /// [`lost`](Guard::lost). With a `left` of more than two thirds of the lease it completes before the next renewal,
    /// although nothing is wrong.
    ///
    /// # Cancel safety
    /// Cancel safe. Made for `select!`.
    pub async fn at_risk(&self, left: Duration) {
        loop {
            let remaining = self.remaining();
            if remaining <= left {
                return;
            }
            tokio::select! {
                // A renewal may have moved the end meanwhile, so it looks again.
                () = self.hold().env().sleep_here(remaining.saturating_sub(left)) => {}
                _ = self.lost() => return,
            }
        }
    }

    /// Asks the server whether this hold still has the name, and for how long.
    ///
    /// With a healthy server [`is_valid`](Guard::is_valid) is enough. This finds losses that only the server
    /// knows of: a name unlocked by force, evicted, or forgotten in a failover. If the name is gone, the guard is lost.
    ///
    /// # Errors
    /// [`Error::Lost`] if the hold does not have it; a server error if there is no answer, which changes nothing.
    ///
    /// # Cancel safety
    /// Cancel safe. It only reads.
    pub async fn verify(&self) -> Result<Duration, Error> {
        self.hold().verify().await
    }

    /// Makes a fixed lease last at least `lease` from now. It never ends sooner than before.
    ///
    /// Several calls at once are fine: they may reach the server in any order, and the latest end counts.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the lease is out of bounds, or is renewed by the watchdog and needs no extension.
    /// - [`Error::Lost`]: it is over; the server may have given the name away.
    /// - Any other: no usable answer. The guard relies on the end it had; the server may hold the name for longer.
    ///
    /// # Cancel safety
    /// Dropping it leaves the guard with the end it had; the server may hold the name for longer.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// use std::time::Duration;
    ///
    /// let mutex = client.fenced_mutex("report").fixed_lease(Duration::from_millis(100));
    /// let guard = mutex.lock().await?;
    /// guard.extend(Duration::from_millis(200)).await?; // from now
    /// guard.at_risk(Duration::from_millis(50)).await; // completes 50 ms before the end,
    /// println!("{} by token {}", guard.lost().await, guard.token()); // and this at the end
    /// let guard = mutex.lock().await?;
    /// let detached = guard.detach(); // held until its lease ends, by no guard
    /// assert!(mutex.try_lock().await?.is_none() && &*detached.name == "report");
    /// # Ok(()) }
    /// ```
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let spec = self.hold().spec();
        let lease = check_extension(lease, spec.is_fixed())?;
        let config = &self.hold().env().config;
        // A reader's lease is believed for a bounded time only, and its holder is promised all of it (B1).
        config.check_fixed("lease", spec.access, lease)?;
        self.hold().extend(lease).await
    }

    /// Enters again: a second guard on the same hold, counted in memory.
    ///
    /// The name is free when the last of them is gone. For nested code that can be handed a guard; see
    /// [`Owner`](crate::Owner) for code that cannot.
    ///
    /// # Errors
    /// [`Error::Lost`] if the hold is over; [`Error::Reentered`] if the mutex was told to refuse re-entry.
    pub fn reenter(&self) -> Result<Guard<K>, Error> {
        self.check_reentry()?;
        Ok(Guard::new(self.held.reenter()))
    }

    pub(super) fn check_reentry(&self) -> Result<(), Error> {
        self.hold().check()?;
        let spec = self.hold().spec();
        if spec.reentrant {
            return Ok(());
        }
        Err(Error::Reentered {
            name: self.hold().id().name.shared(),
            held_at: spec.place,
            remedy: NO_REENTRY,
        })
    }

    /// Gives the name back. Fails exactly when the lease had ended before: then the work may not have been alone.
    ///
    /// If the server does not answer, the request is repeated under the same lease id, which cannot do harm: for the
    /// operation timeout here, then in the background until the lease has ended there.
    ///
    /// # Errors
    /// [`Error::Lost`]: the lease was lost before; another holder may have been at work meanwhile.
    ///
    /// # Cancel safety
    /// Cancel safe: once called, the release is carried out in the background whether or not its caller waits.
    ///
    /// # Source
    /// Redisson `RedissonLock#unlockInnerAsync`. Where we differ: a release repeated after a lost reply says
    /// "freed" without a latch key, because a lease id is never used again.
    pub async fn release(mut self) -> Result<Released, Error> {
        // The span of the hold ends with the answer, not where the release begins.
        let _until_then = mem::take(&mut self.held.scope);
        self.held.give_back().await
    }

    /// Leaves the name held on the server, by no guard: it is not renewed any more and frees itself when its
    /// lease ends. If other guards share the hold, they keep it, and this one only leaves.
    ///
    /// Permits of a [`Semaphore`](crate::Semaphore) have no lease, and stay taken.
    ///
    /// For work at most once per interval: take a [`fixed_lease`](crate::Mutex::fixed_lease) of the interval, which counts from the
    /// start of the work, and detach it. A renewed lease counts from its last renewal before that.
    pub fn detach(self) -> Detached {
        let detached = Detached {
            name: self.hold().id().name.shared(),
            owner: self.owner(),
            remaining: self.remaining(),
        };
        self.held.detach();
        detached
    }
}

impl Guard<Fenced> {
    /// The fencing token of this hold: larger than that of every holder before, and smaller than that of every holder after.
    ///
    /// Send it with each write to the resource that the lock protects; the resource refuses a token that is smaller than
    /// one it has seen ([`FencedStore`](crate::FencedStore) is one that does, and [`FencedMutex`](crate::FencedMutex) shows a
    /// database). It is below 2⁵³, the same for all guards of one hold, and does not change by renewals. No I/O.
    pub fn token(&self) -> u64 {
        self.hold().token()
    }
}

impl<K> fmt::Debug for Guard<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &self.name())
            .field("owner", &self.owner())
            .field("remaining", &self.remaining())
            .finish()
    }
}
