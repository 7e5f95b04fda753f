//! Several locks, of several kinds and clients, held by one holder.
//!
//! Promise: a valid guard holds all of its parts, each of them as its own kind promises, among all processes, Redisson's
//! included; a caller that does not get a guard holds none. Keys: those of the parts. Source: Redisson `RedissonMultiLock`.

use std::{fmt, future::Future, panic::Location, sync::Arc, time::Duration};

use futures_util::future::join_all;

use super::{
    asking,
    handle::{Handle, Settings, at_most, never_busy},
    multi_guard::MultiGuard,
    part::{Part, PartLock},
    run::run_verbs,
};
use crate::{
    Error, Handoff, Owner, Status,
    engine::core::Core,
    engine::hold::spec::{Patience, Waits},
    engine::multi,
    engine::multi::MemberRequest,
    error::Invalid,
    kind::{Access, LockKind},
    owner,
    story::{self, Scope},
};

/// The most names of one multi-lock: each is a request of its own, of those that travel together.
const NAMES_MOST: usize = 100;

/// Several names at once, all or nothing, with one guard. Shared with Redisson's `RedissonMultiLock`, and with each of its locks.
///
/// A handle: cheap to clone, no I/O until it is locked. Its parts are mutexes of any kind, readers, writers and leased permits ([`Part`]), of one client or of several;
/// a part alone and the same part in a multi-lock exclude each other. Each part is held under a lease of its own.
///
/// | wait | method |
/// |---|---|
/// | as long as it takes | [`lock`](MultiLock::lock) |
/// | not at all | [`try_lock`](MultiLock::try_lock) |
/// | up to `wait` | [`try_lock_for`](MultiLock::try_lock_for) |
///
/// # Order, and what waiting costs
///
/// All parts are asked for side by side, in one round trip. If one is held, those behind it are given back at once, and the
/// caller waits for it in that lock's own queue, **with those before it in its hands**. Then it asks for the rest again. The order
/// of the parts is the same in every process: by name, then by the `run_id` of the server. So multi-locks never wait for each other in a
/// circle, and none starves where its parts do not. `try_lock` waits for no holder, and keeps nothing if one part is held.
///
/// So a free part may be held for a moment by a caller that does not get them all: a `try_lock` of another caller is refused then.
/// Two that try the same parts at the same moment may both be refused.
///
/// Two things can still wait for themselves. A task that holds a name and asks for a multi-lock with a smaller one, while another
/// does the reverse: take all names by one multi-lock. And one name on two servers whose `run_id` a user may not ask for (`INFO`): then its order
/// is by address, and a warning says so. Programs that call the servers by other addresses may wait in another order. Allow `INFO`, or use
/// [`try_lock_for`](MultiLock::try_lock_for), whose wait has an end.
///
/// A restart gives a server a new `run_id`, which may turn the order of one name on two servers. A caller that waits then, with parts in its
/// hands, gives them back and begins anew, within a second of when it has reached the server again.
///
/// # If a part is lost
///
/// Then the guard is lost as a whole: [`is_valid`](MultiGuard::is_valid), [`lost`](MultiGuard::lost) and
/// [`run`](MultiGuard::run) say so. The other parts stay held until the guard goes.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, Released};
///
/// let client = Client::connect("memory:").await?;
/// let both = client.multi_lock(["account:7", "account:3"]);
/// let guard = both.lock().await?;
/// assert!(client.mutex("account:3").try_lock().await?.is_none());
/// assert_eq!(guard.release().await?, Released::Freed);
///
/// let one = client.mutex("account:3").lock().await?;
/// assert!(both.try_lock().await?.is_none()); // and account:7 is free
/// assert!(client.mutex("account:7").try_lock().await?.is_some());
/// # drop(one); Ok(()) }
/// ```
///
/// # Source
/// Redisson `RedissonMultiLock`. Where we differ: one step on the server instead of one per lock; one order instead of the
/// caller's, so no deadlock, and no retry after a random pause; a release goes on past errors and reports them all; a fixed
/// lease is checked for its owner when it is extended. `RedissonFasterMultiLock` (one hash for a group) is another protocol.
#[must_use = "a handle does nothing until it is asked"]
#[derive(Clone)]
#[doc(alias("RedissonMultiLock", "getMultiLock"))]
pub struct MultiLock {
    /// In the order in which they are taken.
    parts: Result<Arc<[(Handle, Access)]>, Error>,
}

impl MultiLock {
    pub(crate) fn new(core: &Arc<Core>, parts: impl IntoIterator<Item = Part>) -> MultiLock {
        let parts = parts.into_iter().map(|Part(lock)| match lock {
            PartLock::Name(name) => {
                let handle = Handle::new(core, LockKind::Mutex, &name);
                Ok((handle, Access::Exclusive))
            }
            PartLock::Lock(handle, access) => access.map(|access| (*handle, access)),
        });
        let parts: Result<Vec<_>, Error> = parts.collect();
        MultiLock {
            // A part that is not valid is kept as an error, which the first use returns: so a constructor needs no `Result`.
            parts: parts.and_then(in_order),
        }
    }

    /// The names, in the order in which they are taken; none if one of them is not valid.
    pub fn names(&self) -> Vec<&str> {
        let parts = self.parts.as_deref().unwrap_or_default();
        parts.iter().map(|(handle, _)| handle.name()).collect()
    }

    /// The same with leases of this length for all parts, renewed as long as the guard lives: see
    /// [`Mutex::lease`](crate::Mutex::lease).
    pub fn lease(&self, lease: Duration) -> MultiLock {
        self.with(|settings| {
            settings.lease = lease;
            settings.fixed = false;
        })
    }

    /// The same with fixed leases for all parts: they end after `lease`, counted from when the last name was taken, and are not
    /// renewed. While a caller waits for a name, it keeps those that it has.
    ///
    /// 1 ms to 366 days, in whole milliseconds. [`MultiGuard::extend`] moves the end. Redisson's `leaseTime`.
    pub fn fixed_lease(&self, lease: Duration) -> MultiLock {
        self.with(|settings| {
            settings.lease = lease;
            settings.fixed = true;
        })
    }

    /// The same with an end to renewals: see [`Mutex::max_hold`](crate::Mutex::max_hold). It counts for each name from when that
    /// was taken.
    pub fn max_hold(&self, most: Duration) -> MultiLock {
        self.with(|settings| settings.max_hold = Some(most))
    }

    /// The same with another budget for passing leases on in memory.
    pub fn handoff(&self, handoff: Handoff) -> MultiLock {
        self.with(|settings| settings.handoff = handoff)
    }

    /// The same, which refuses re-entry with [`Error::Reentered`] if `false`. Default: `true`.
    pub fn reentrant(&self, reentrant: bool) -> MultiLock {
        self.with(|settings| settings.reentrant = reentrant)
    }

    /// The same, taken by this owner, which may enter parts again that it holds, alone or in a multi-lock. Permits have no owner.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// use std::time::Duration;
    /// use leasehold::{Handoff, Owner};
    ///
    /// let owner = Owner::new();
    /// let both = client.multi_lock(["b", "a"]).owned_by(&owner);
    /// assert_eq!(both.names(), ["a", "b"]); // in the order in which they are taken
    /// let both = both.lease(Duration::from_secs(10)).max_hold(Duration::from_secs(3600)).handoff(Handoff::off());
    /// let guard = both.lock().await?;
    /// assert!(both.reentrant(false).lock().await.is_err());
    /// guard.release().await?;
    /// let short = both.fixed_lease(Duration::from_secs(5)); // not renewed
    /// let guard = short.try_lock_for(Duration::from_secs(1)).await?;
    /// assert_eq!(short.status().await?.len(), 2);
    /// assert!(guard.is_some() && short.force_unlock().await?);
    /// # Ok(()) }
    /// ```
    pub fn owned_by(&self, owner: &Owner) -> MultiLock {
        self.with(|settings| settings.owner = Some(owner.id()))
    }

    /// Waits for all of the names, as long as it takes, and returns the guard that holds them.
    ///
    /// While it waits for one name, it holds those that come before that in the order of all multi-locks.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: no name or more than 100, a name twice on one server, or a name or a setting that is not valid;
    ///   nothing was sent.
    /// - Any that the [`lock`](crate::Mutex::lock) of a part has. Parts that were taken are given back in the background.
    /// - [`Error::Rejected`] also if leases are over, again and again, before the last name is taken.
    ///
    /// # Cancel safety
    /// Cancel safe. Dropping the future gives up its place in a queue, and gives back what it has; a request under way is seen
    /// to its end in the background, and what it brings is released.
    ///
    /// # Source
    /// Redisson `RedissonMultiLock#lock()`.
    #[track_caller]
    pub fn lock(&self) -> impl Future<Output = Result<MultiGuard, Error>> + Send + 'static + use<> {
        never_busy(self.ask(Patience::Forever))
    }

    /// Takes all of the names if they are free now; `None` if one of them is held. Then this holds none of them.
    ///
    /// Waits for the server's answer, and for attempts or releases of this process under way, but for no holder.
    ///
    /// # Errors
    /// As [`lock`](MultiLock::lock), but a silent server is an error: see [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    #[doc = super::bounds::ends_once!(of several)]
    ///
    /// # Cancel safety
    /// As [`lock`](MultiLock::lock).
    ///
    /// # Source
    /// Redisson `RedissonMultiLock#tryLock()`.
    #[track_caller]
    pub fn try_lock(
        &self,
    ) -> impl Future<Output = Result<Option<MultiGuard>, Error>> + Send + 'static + use<> {
        self.ask(Patience::Once)
    }

    /// Waits for all of the names, up to `wait` in all; `None` if one of them was held. Then this holds none of them.
    ///
    /// `wait` counts from the first poll. [`Duration::ZERO`] asks once, as [`try_lock`](MultiLock::try_lock).
    ///
    /// # Errors
    /// As [`lock`](MultiLock::lock), but when `wait` is over: `None` if a name was still held, by the last answer since the call began; an error
    /// if the server could not be asked.
    ///
    #[doc = super::bounds::ends_for!(of several)]
    ///
    /// # Cancel safety
    /// As [`lock`](MultiLock::lock).
    ///
    /// # Source
    /// Redisson `RedissonMultiLock#tryLock(long, TimeUnit)`.
    #[track_caller]
    pub fn try_lock_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<MultiGuard>, Error>> + Send + 'static + use<> {
        self.ask(at_most(wait))
    }

    /// The holders of each part, in the order of [`names`](MultiLock::names), and how many wait for it.
    ///
    /// # Errors
    /// A name is not valid, or a server does not answer. It only reads.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn status(&self) -> Result<Vec<Status>, Error> {
        let parts = self.parts.clone()?;
        let all = join_all(parts.iter().map(|(handle, _)| handle.status()));
        all.await.into_iter().collect()
    }

    /// Frees each part: takes it from its holders, whether or not they hold it by a multi-lock. `false` if all were free. See
    /// [`Client::force_unlock`](crate::Client::force_unlock).
    ///
    /// # Errors
    /// A name is not valid, or a server does not answer: it may have freed the name. The other names are freed all the same.
    ///
    /// # Cancel safety
    /// Dropping it does not take the requests back.
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        let parts = self.parts.clone()?;
        let all = join_all(parts.iter().map(|(handle, _)| handle.force_unlock()));
        // Not `try_join_all`: all errors are told, and the first of them leaves no other name as it is.
        let freed: Vec<bool> = Error::all(all.await)?;
        Ok(freed.contains(&true))
    }

    fn with(&self, change: impl Fn(&mut Settings)) -> MultiLock {
        let parts = self.parts.as_ref().map_err(Error::clone);
        let changed = parts.map(|parts| {
            let parts = parts.iter();
            let parts = parts.map(|(handle, access)| (handle.with(&change), *access));
            parts.collect()
        });
        MultiLock { parts: changed }
    }

    #[track_caller]
    fn ask(
        &self,
        patience: Patience,
    ) -> impl Future<Output = Result<Option<MultiGuard>, Error>> + Send + 'static + use<> {
        // Before the `async` block: in it, the place would be one in this file, and not in the user's code.
        let requests = self.requests(Location::caller());
        async move {
            let mut requests = requests?;
            for request in &mut requests {
                // Permits have no owner, so none of them is entered again.
                if !matches!(request.spec.access, Access::Permits(_)) {
                    // Only now, since the scope is where the future runs, not where it was made.
                    request.spec.owner = request.spec.owner.or_else(owner::scoped);
                }
                if request.spec.waits == Waits::InTurn {
                    // A part that is a fair mutex is waited for by an entry of this caller, as where it is locked alone.
                    request.id = request.id.for_caller(&request.spec);
                }
            }
            let parts = requests.iter().map(|part| (&***part.core, &part.id));
            let names = requests.iter().map(|part| &**part.id.name.shown());
            let asking = asking::begin(parts, || Scope::of_locks(names));
            let scope = asking.as_ref().map(|asking| asking.scope());
            let acquiring = multi::acquire(&mut requests, patience);
            // Boxed only where a subscriber wants the span: else the future of each task that waits would be larger.
            let held = if scope.is_some_and(Scope::is_wanted) {
                Box::pin(story::around(scope, Box::pin(acquiring))).await
            } else {
                acquiring.await
            };
            if let Some(mut asking) = asking {
                let all = held.as_ref().map(|held| held.as_deref().unwrap_or(&[]));
                asking.answered(all);
            }
            Ok(held?.map(MultiGuard::new))
        }
    }

    fn requests(&self, place: &'static Location<'static>) -> Result<Vec<MemberRequest>, Error> {
        let parts = self.parts.as_ref().map_err(Error::clone)?;
        let request = |(handle, access): &(Handle, Access)| {
            Ok(MemberRequest {
                core: handle.core().clone(),
                id: handle.id()?.clone(),
                spec: handle.spec(*access, place)?,
            })
        };
        parts.iter().map(request).collect()
    }
}

run_verbs!(MultiLock, "multi_lock([\"account:7\", \"account:3\"])");

/// Sorts them into the order of all multi-locks of all processes; no name twice on one server, for a caller would wait for
/// itself.
fn in_order(parts: Vec<(Handle, Access)>) -> Result<Arc<[(Handle, Access)]>, Error> {
    if parts.is_empty() || parts.len() > NAMES_MOST {
        let (what, limit) = ("the number of names", format!("between 1 and {NAMES_MOST}"));
        let invalid = Invalid::new(what, parts.len().to_string(), limit);
        return Err(invalid
            .remedy("lock one name that stands for all of them")
            .into());
    }
    let mut keyed = Vec::with_capacity(parts.len());
    for part in parts {
        let name = part.0.id()?.name.clone();
        keyed.push(((name, part.0.core().backend.server()), part));
    }
    // By the address that was given; `order_by_server` orders members of one name anew when they are asked for.
    keyed.sort_by(|(one, _), (other, _)| one.cmp(other));
    for pair in keyed.windows(2) {
        let [(one, _), (other, _)] = pair else {
            continue;
        };
        if one == other {
            return Err(multi::twice(one.0.shown()));
        }
    }
    Ok(keyed.into_iter().map(|(_, part)| part).collect())
}

impl fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiLock")
            .field("names", &self.names())
            .finish_non_exhaustive()
    }
}
