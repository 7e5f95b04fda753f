//! The re-entrant mutual exclusion lock.
//!
//! Promise: at any moment at most one guard per name is valid, among all processes on this server, Redisson's
//! `RLock` included. Keys: `docs/keys.md`. Source: Redisson `RedissonLock`.

use std::{fmt, future::Future, panic::Location, sync::Arc, time::Duration};

use crate::{
    Error, Guard, Owner, Status,
    config::{Handoff, check_lease, check_max_hold},
    engine::core::Core,
    engine::queue::{self, Patience, Spec},
    error::Invalid,
    name::Name,
    owner::{self, OwnerId},
};

/// A re-entrant mutual exclusion lock on a name, shared with Redisson's `RLock` of the same name.
///
/// A handle: cheap to clone, no I/O until it is locked. Each `lock()` is a new owner unless it says otherwise
/// ([`owned_by`](Mutex::owned_by)), so that two tasks, or two branches of a `join!`, exclude each other.
///
/// | wait | method |
/// |---|---|
/// | as long as it takes | [`lock`](Mutex::lock) |
/// | not at all | [`try_lock`](Mutex::try_lock) |
/// | so long | [`try_lock_for`](Mutex::try_lock_for) |
///
/// Waiters of one process are served first come first served. So are processes that run this library; a
/// newcomer may be faster than all when a holder has died, and Redisson's waiters race for the name as they do
/// among themselves.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use std::time::Duration;
/// use leasehold::Client;
///
/// let client = Client::connect("memory:").await?;
/// let mutex = client.mutex("order:42");
/// let guard = mutex.lock().await?;
/// assert!(mutex.try_lock().await?.is_none());
/// assert!(mutex.try_lock_for(Duration::from_millis(10)).await?.is_none());
/// drop(guard); // or guard.release().await?, which tells what became of it
/// assert!(mutex.try_lock().await?.is_some());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Mutex {
    core: Arc<Core>,
    name: Result<Name, Error>,
    /// As it was given, for `name()`.
    given: Arc<str>,
    lease: Duration,
    fixed: bool,
    max_hold: Option<Duration>,
    handoff: Handoff,
    reentrant: bool,
    owner: Option<OwnerId>,
}

impl Mutex {
    pub(crate) fn new(core: Arc<Core>, name: &str) -> Mutex {
        let name_ = Name::new(name);
        let given = match &name_ {
            Ok(name) => name.shared(),
            Err(_) => name.into(),
        };
        Mutex {
            lease: core.config.lease,
            handoff: core.config.handoff,
            core,
            name: name_,
            given,
            fixed: false,
            max_hold: None,
            reentrant: true,
            owner: None,
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.given
    }

    /// The same lock with a fixed lease: it ends after `lease`, and is not renewed.
    ///
    /// 1 ms to 366 days, in whole milliseconds. [`Guard::extend`] moves the end. Redisson's `leaseTime`.
    #[must_use]
    pub fn fixed_lease(&self, lease: Duration) -> Mutex {
        Mutex {
            lease,
            fixed: true,
            ..self.clone()
        }
    }

    /// The same lock with a lease of this length, renewed as long as the guard lives, instead of the client's.
    ///
    /// It is how long the name stays taken after a crash. 1 ms to 366 days, in whole milliseconds. Redisson's
    /// `lockWatchdogTimeout`.
    #[must_use]
    pub fn lease(&self, lease: Duration) -> Mutex {
        Mutex {
            lease,
            fixed: false,
            ..self.clone()
        }
    }

    /// The same lock with an end to its renewals: no holder keeps it longer than this.
    ///
    /// The guard is then lost with [`LostReason::MaxHold`](crate::LostReason::MaxHold), and the name is released a margin
    /// later. Against stuck holders and forgotten guards. Turns hand-off off. 1 ms to 366 days, a renewed lease at least 3 ms;
    /// the lease is no longer than that.
    #[must_use]
    pub fn max_hold(&self, most: Duration) -> Mutex {
        Mutex {
            max_hold: Some(most),
            ..self.clone()
        }
    }

    /// The same lock, which refuses re-entry with [`Error::Reentered`] if `false`.
    ///
    /// Redisson's `RNonReentrantLock`. Default: `true`.
    #[must_use]
    pub fn reentrant(&self, reentrant: bool) -> Mutex {
        Mutex {
            reentrant,
            ..self.clone()
        }
    }

    /// The same lock with another budget for passing the lease on in memory.
    #[must_use]
    pub fn handoff(&self, handoff: Handoff) -> Mutex {
        Mutex {
            handoff,
            ..self.clone()
        }
    }

    /// The same lock, taken by this owner, who may enter it again.
    ///
    /// The nested guard shares the lease of the outer one, whatever lease it asks for, and the hold count is
    /// written to the server as Redisson does.
    #[must_use]
    pub fn owned_by(&self, owner: &Owner) -> Mutex {
        Mutex {
            owner: Some(owner.id()),
            ..self.clone()
        }
    }

    /// Waits for the lock, as long as it takes, and returns the guard that holds it.
    ///
    /// A server that cannot be reached, loads its data, is busy or full is waited for like a holder.
    /// [`try_lock_for`](Mutex::try_lock_for) bounds the wait.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the name or a setting is no good; nothing was sent.
    /// - [`Error::Rejected`]: the server refuses for good, for instance because another type stands under the name, or the
    ///   lease is over each time before the answer is here. It is as it was.
    /// - [`Error::Reentered`]: the owner holds it, and re-entry is off.
    /// - [`Error::Lost`]: the owner held it and entered again, and its hold ended before the server's answer was here.
    /// - [`Error::Closed`]: the client was shut down.
    ///
    /// # Cancel safety
    /// Cancel safe. Dropping the future gives up the place in the queue; a request under way is seen to its end in
    /// the background and what it brings is released.
    ///
    /// # Source
    /// Redisson `RLock#lock()`. Where we differ: waiters queue in memory, and processes on the server.
    #[track_caller]
    pub fn lock(&self) -> impl Future<Output = Result<Guard, Error>> + Send + 'static + use<> {
        let asked = self.ask(Patience::Forever);
        async move {
            // Who waits for ever is never told "busy".
            asked.await?.ok_or(Error::Closed)
        }
    }

    /// Takes the lock if it is free now; `None` if somebody holds it.
    ///
    /// Waits for the server's answer, and for an attempt or a release of this process under way, but for no
    /// holder. If a task of this process waits for the name already, it answers what the server last said.
    ///
    /// # Errors
    /// As [`lock`](Mutex::lock), but a silent server is given the operation timeout; a few of those, if other tasks of this process
    /// are in the middle of the same name. [`try_lock_for`](Mutex::try_lock_for) has a bound.
    ///
    /// # Cancel safety
    /// As [`lock`](Mutex::lock).
    ///
    /// # Source
    /// Redisson `RLock#tryLock()`.
    #[track_caller]
    pub fn try_lock(
        &self,
    ) -> impl Future<Output = Result<Option<Guard>, Error>> + Send + 'static + use<> {
        self.ask(Patience::Once)
    }

    /// Waits for the lock, at most for `wait`; `None` if it was held.
    ///
    /// `wait` counts from the first poll. [`Duration::ZERO`] asks once, as [`try_lock`](Mutex::try_lock).
    ///
    /// # Errors
    /// As [`lock`](Mutex::lock), but if the server has said nothing all the time, that is an error when `wait` is over.
    ///
    /// # Cancel safety
    /// As [`lock`](Mutex::lock).
    ///
    /// # Source
    /// Redisson `RLock#tryLock(long, TimeUnit)`.
    #[track_caller]
    pub fn try_lock_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<Guard>, Error>> + Send + 'static + use<> {
        self.ask(if wait.is_zero() {
            Patience::Once
        } else {
            Patience::For(wait)
        })
    }

    /// Who holds it: see [`Client::status`](crate::Client::status).
    pub async fn status(&self) -> Result<Status, Error> {
        let name = self.name.as_ref().map_err(Error::clone)?;
        let found = self.core.inspect(name).await?;
        Ok(Status::new(name, found, self.core.queues.waiting(name)))
    }

    /// Frees it, whoever holds it: see [`Client::force_unlock`](crate::Client::force_unlock).
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        self.core
            .force_unlock(self.name.as_ref().map_err(Error::clone)?)
            .await
    }

    /// Not an `async fn`, so that the place in the user's code is known.
    #[track_caller]
    fn ask(
        &self,
        patience: Patience,
    ) -> impl Future<Output = Result<Option<Guard>, Error>> + Send + 'static + use<> {
        let spec = self.spec(Location::caller());
        let core = Arc::clone(&self.core);
        let name = self.name.clone();
        async move {
            let mut spec = spec?;
            // Only now, since the scope is where the future runs, not where it was made.
            spec.owner = spec.owner.or_else(owner::scoped);
            let held = queue::acquire(&core, &name?, spec, patience).await?;
            Ok(held.map(Guard::new))
        }
    }

    fn spec(&self, place: &'static Location<'static>) -> Result<Spec, Error> {
        let mut lease = check_lease("lease", self.lease)?;
        if let Some(most) = self.max_hold {
            lease = lease.min(check_max_hold(most, self.fixed)?);
        }
        let renew_every = if self.fixed {
            Duration::ZERO
        } else {
            self.core.config.renew_every(lease)
        };
        if !self.fixed && renew_every < Duration::from_millis(1) {
            let value = format!("{lease:?}");
            return Err(Invalid::new("lease", value, "at least 3ms")
                .remedy("take a longer one, or one that is not renewed, with fixed_lease(d)")
                .into());
        }
        Ok(Spec {
            lease: lease.into(),
            renew_every: renew_every.into(),
            max_hold: self.max_hold.unwrap_or_default().into(),
            handoff: self.handoff,
            owner: self.owner,
            reentrant: self.reentrant,
            place,
        })
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex")
            .field("name", &self.given)
            .field("lease", &self.lease)
            .field("fixed", &self.fixed)
            .finish_non_exhaustive()
    }
}
