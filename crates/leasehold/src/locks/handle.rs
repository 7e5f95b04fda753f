//! The common part of all handles: the client, the name, and the settings that kinds share.

use std::{future::Future, panic::Location, sync::Arc, time::Duration};

use futures_util::FutureExt;

use super::{asking, numbers::check_permits};
use crate::{
    Error, Guard, Status,
    backend::{ForceUnlock, Permits},
    config::{Handoff, check_lease, check_max_hold, check_renewed},
    durability::{Durability, refused},
    engine::core::{ClientRef, Core},
    engine::durable,
    engine::fair::fair_queues::try_in_turn,
    engine::hold::spec::{Patience, Spec, Waits},
    engine::queue::enter,
    kind::{Access, LockKind},
    name::{LockId, Name},
    owner::{self, OwnerId},
    story::{self, Scope},
};

/// A lock of some kind, with its settings. No I/O; the first use refuses a bad name.
#[derive(Clone)]
pub(super) struct Handle {
    core: ClientRef,
    id: Result<LockId, Error>,
    /// As it was given, for `name()`.
    given: Arc<str>,
    pub(super) settings: Settings,
}

/// How a lock is held. The setters are written by [`lease_settings`] and [`owner_settings`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) lease: Duration,
    pub(super) fixed: bool,
    pub(super) max_hold: Option<Duration>,
    pub(super) handoff: Handoff,
    pub(super) reentrant: bool,
    pub(super) owner: Option<OwnerId>,
    pub(super) waits: Waits,
    /// The first pause and the longest, if they are not those of `waits`.
    pub(super) backoff: Option<(Duration, Duration)>,
    /// How many permits there are.
    pub(super) permits: Option<Permits>,
    pub(super) durability: Durability,
}

impl Handle {
    pub(super) fn new(core: &Arc<Core>, kind: LockKind, name: &str) -> Handle {
        // A bad name is kept as an error, which the first use returns: so a constructor needs no `Result`.
        let id = match Name::under(&core.config.name_prefix, name) {
            Ok(name) => supported(core, kind, name),
            Err(error) => Err(error),
        };
        let given = match &id {
            Ok(id) => id.name.shared(),
            Err(_) => name.into(),
        };
        let settings = Settings {
            lease: core.config.lease,
            handoff: core.config.handoff,
            fixed: false,
            max_hold: None,
            reentrant: true,
            owner: None,
            waits: Waits::Notified,
            backoff: None,
            permits: None,
            durability: core.config.durability,
        };
        Handle {
            core: ClientRef::new(core),
            id,
            given,
            settings,
        }
    }

    pub(super) fn with(&self, change: impl FnOnce(&mut Settings)) -> Handle {
        let mut handle = self.clone();
        change(&mut handle.settings);
        handle
    }

    pub(super) fn name(&self) -> &str {
        &self.given
    }

    pub(super) fn id(&self) -> Result<&LockId, Error> {
        self.id.as_ref().map_err(Error::clone)
    }

    pub(super) fn core(&self) -> &ClientRef {
        &self.core
    }

    pub(super) async fn status(&self) -> Result<Status, Error> {
        let id = self.id()?;
        let found = self.core.inspect(id).await?;
        Ok(Status::new(id, found, self.core.queues.waiting(id)))
    }

    pub(super) async fn force_unlock(&self) -> Result<bool, Error> {
        let (id, seen) = (self.id()?.clone(), Arc::default());
        self.core.force_unlock(ForceUnlock { id, seen }).await
    }

    /// Asks for a hold. Not an `async fn`, so that the place in the user's code is known.
    #[track_caller]
    pub(super) fn ask<K>(
        &self,
        access: Access,
        patience: Patience,
    ) -> impl Future<Output = Result<Option<Guard<K>>, Error>> + Send + 'static + use<K> {
        let spec = self.spec(access, Location::caller());
        // The future counts as a handle: no client is drained while a call of it is under way.
        let core = self.core.clone();
        let id = self.id.clone();
        async move {
            let mut spec = spec?;
            if !matches!(access, Access::Permits(_)) {
                // Only now, since the scope is where the future runs, not where it was made.
                spec.owner = spec.owner.or_else(owner::scoped);
            }
            let mut id = id?;
            if spec.waits == Waits::InTurn {
                // Only now that the owner is known: all its calls share one entry.
                id = id.for_caller(&spec);
            }
            let parts = std::iter::once((&***core, &id));
            let asking = asking::begin(parts, || Scope::of_lock(&id, access));
            let scope = asking.as_ref().map(|asking| asking.scope());
            let patience = if spec.durability.is_primary() {
                patience
            } else {
                Box::pin(durable::begin(&core, &id, spec, patience)).await?
            };
            let held = if spec.waits == Waits::InTurn && patience == Patience::Once {
                // Boxed: it would make the future of each task that waits larger.
                let asked = Box::pin(try_in_turn(&core.queues, &core.fair, &id, spec));
                Box::pin(story::around(scope, asked)).await
            } else if scope.is_some_and(Scope::is_wanted) {
                let asked = Box::pin(enter::acquire(&core.queues, &id, spec, patience));
                Box::pin(story::around(scope, asked)).await
            } else {
                enter::acquire(&core.queues, &id, spec, patience).await
            };
            let held = durable::confirmed(held).await;
            if let Some(mut asking) = asking {
                asking.answered(held.as_ref().map(Option::as_slice));
            }
            Ok(held?.map(Guard::begin))
        }
    }

    pub(super) fn spec(
        &self,
        access: Access,
        place: &'static Location<'static>,
    ) -> Result<Spec, Error> {
        let settings = &self.settings;
        let what = if settings.fixed {
            "fixed_lease"
        } else {
            "lease"
        };
        let mut lease = check_lease(what, settings.lease)?;
        // A kind that these servers cannot keep is refused as that, not for the length of its lease.
        if self.id.is_ok() {
            self.core.check_longest(what, settings.lease)?;
        }
        if let Some(most) = settings.max_hold {
            lease = lease.min(check_max_hold(most, settings.fixed)?);
        }
        let config = &self.core.config;
        let renew_every = if settings.fixed {
            config.check_fixed(what, access, lease)?;
            Duration::ZERO
        } else {
            // No more is asked for than a reader may believe (B1).
            lease = config.believed(access, lease);
            check_renewed(lease)?;
            config.renew_every(lease)
        };
        let permits = check_permits(settings.permits, access)?;
        let waits = match settings.backoff {
            Some((first, most)) => settings.waits.with(first, most)?,
            None => settings.waits,
        };
        Ok(Spec {
            access,
            lease: lease.into(),
            renew_every: renew_every.into(),
            max_hold: settings.max_hold.unwrap_or_default().into(),
            // The order is the server's: no lease passes on in memory before tasks of other processes.
            handoff: if settings.waits == Waits::InTurn {
                Handoff::off()
            } else {
                settings.handoff
            },
            owner: settings.owner,
            reentrant: settings.reentrant,
            durability: self.durability()?,
            waits,
            permits,
            place,
        })
    }
}

impl Handle {
    /// Who must have the lock; refused where no server could keep that.
    fn durability(&self) -> Result<Durability, Error> {
        let policy = self.settings.durability;
        policy.check()?;
        let why = match &self.id {
            _ if policy.is_primary() => return Ok(policy),
            Ok(id) if id.kind.never_ends() => Err("permits of a semaphore have no lease to renew"),
            _ if self.settings.fixed => Err(
                "a fixed lease is not renewed, and only a renewal is acknowledged; max_hold(d) ends a renewed one",
            ),
            _ => self.core.backend.confirms(),
        };
        why.map(|()| policy).map_err(|why| refused(policy, why))
    }
}

/// The lock, if there can be such a one where the locks of this client are kept.
pub(super) fn supported(core: &Core, kind: LockKind, name: Name) -> Result<LockId, Error> {
    let id = LockId::new(kind, name);
    core.backend.supports(&id)?;
    Ok(id)
}

/// The verb of a caller that waits for ever, and so is never told that the lock is held.
///
/// Adapters of futures keep the future that they are given once; an `async` block would keep it twice, and a task that
/// waits for a lock is mostly this future (docs/performance.md, P2).
pub(super) fn never_busy<G>(
    asked: impl Future<Output = Result<Option<G>, Error>>,
) -> impl Future<Output = Result<G, Error>> {
    asked.map(|answer| answer?.ok_or(Error::Closed))
}

/// The patience of a `…_for(wait)` call.
pub(super) fn at_most(wait: Duration) -> Patience {
    if wait.is_zero() {
        Patience::Once
    } else {
        Patience::For(wait)
    }
}

/// The settings of every kind that is held under a lease, and the requests about its name.
macro_rules! lease_settings {
    ($kind:ident, $status:literal) => {
        impl $kind {
            /// The name.
            pub fn name(&self) -> &str {
                self.handle.name()
            }

            /// The same lock with a lease of this length, renewed as long as the guard lives, instead of the client's.
            ///
            /// After a crash the lock stays taken for this long. 1 ms to 366 days, in whole milliseconds.
            /// Redisson's `lockWatchdogTimeout`.
            ///
            /// # Examples
            /// ```
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
            /// let client = leasehold::Client::connect("memory:").await?;
            /// use std::time::Duration;
            /// use leasehold::Handoff;
            ///
            /// let mutex = client.mutex("order:42");
            /// assert_eq!(mutex.name(), "order:42");
            /// // Renewed as long as the guard lives; after a crash taken for 10 s, and by no guard for longer than an hour.
            /// let mutex = mutex.lease(Duration::from_secs(10)).max_hold(Duration::from_secs(3600));
            /// let mutex = mutex.handoff(Handoff::off()); // each release goes to the server
            /// let guard = mutex.lock().await?;
            /// let status = mutex.status().await?;
            /// assert_eq!(status.holder().map(|holder| &*holder.owner), Some(&*guard.owner()));
            /// guard.release().await?;
            /// // Not renewed: it ends after 5 s.
            /// let guard = mutex.fixed_lease(Duration::from_secs(5)).lock().await?;
            /// # drop(guard);
            /// # Ok(()) }
            /// ```
            pub fn lease(&self, lease: std::time::Duration) -> $kind {
                $kind {
                    handle: self.handle.with(|settings| {
                        settings.lease = lease;
                        settings.fixed = false;
                    }),
                }
            }

            /// The same lock with a fixed lease: it ends after `lease`, and is not renewed.
            ///
            /// 1 ms to 366 days, in whole milliseconds. [`Guard::extend`](crate::Guard::extend) moves the end. Redisson's
            /// `leaseTime`.
            pub fn fixed_lease(&self, lease: std::time::Duration) -> $kind {
                $kind {
                    handle: self.handle.with(|settings| {
                        settings.lease = lease;
                        settings.fixed = true;
                    }),
                }
            }

            /// The same lock with an end to its renewals: no holder keeps it longer than this.
            ///
            /// The guard is then lost with [`LostReason::MaxHold`](crate::LostReason::MaxHold), and its hold is released a
            /// margin later. Against stuck holders and forgotten guards. Turns hand-off off. 1 ms to 366 days, with a renewed lease
            /// at least 3 ms; the lease is no longer than that.
            pub fn max_hold(&self, most: std::time::Duration) -> $kind {
                $kind {
                    handle: self.handle.with(|settings| settings.max_hold = Some(most)),
                }
            }

            /// The same lock with another budget for passing a lease on in memory, or sharing it there.
            pub fn handoff(&self, handoff: crate::Handoff) -> $kind {
                $kind {
                    handle: self.handle.with(|settings| settings.handoff = handoff),
                }
            }

            /// The same lock, which `policy` must have before its holder goes on, instead of the client's policy.
            ///
            /// [`Durability`](crate::Durability) says what each is worth.
            ///
            /// # Examples
            /// ```no_run
            /// # async fn example() -> Result<(), leasehold::Error> {
            /// use leasehold::{Client, Durability};
            ///
            /// let client = Client::connect("redis://cache.internal/").await?;
            /// let mutex = client.mutex("order:42").durability(Durability::Replicas(1));
            /// let guard = mutex.lock().await?; // a replica has it, too
            /// # drop(guard); Ok(()) }
            /// ```
            pub fn durability(&self, policy: crate::Durability) -> $kind {
                $kind {
                    handle: self.handle.with(|settings| settings.durability = policy),
                }
            }

            #[doc = $status]
            ///
            /// # Errors
            /// The name is not valid, or the server does not answer. It only reads.
            ///
            /// # Cancel safety
            /// Cancel safe.
            pub async fn status(&self) -> Result<crate::Status, crate::Error> {
                self.handle.status().await
            }
        }

        impl std::fmt::Debug for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($kind))
                    .field("name", &self.handle.name())
                    .field("lease", &self.handle.settings.lease)
                    .field("fixed", &self.handle.settings.fixed)
                    .finish_non_exhaustive()
            }
        }
    };
}
pub(super) use super::owned::owner_settings;
pub(super) use lease_settings;
