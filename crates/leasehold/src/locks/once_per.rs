//! Work at most once per interval: the name stays taken for that long from its start, however the work ends.
//!
//! The arithmetic is that of `leasehold run --at-least`: see [`AtLeast`].

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::sync::oneshot;

use super::{guard::Guard, handle::Settings};
use crate::{
    Error, Owner,
    at_least::{AtLeast, Rest},
    clock::Tick,
    config::{Handoff, check_interval, check_lease, check_max_hold, check_renewed},
    durations::humane,
    engine::hold::Hold,
    error::Invalid,
};

/// After that long without an answer it is asked again.
const PATIENCE_MAX: Duration = Duration::from_secs(2);

/// No lease is shorter, so no extension by it changes one.
const SHORTEST: Duration = Duration::from_millis(1);

/// How long the name stays taken, if the settings allow that.
pub(super) fn kept(interval: Duration, settings: &Settings) -> Result<AtLeast, Error> {
    let interval = check_interval(interval)?;
    let lease = check_lease("lease", settings.lease)?;
    check_renewed(lease)?;
    if let Some(most) = settings.max_hold
        && check_max_hold(most, true)? < interval
    {
        let limit = format!("at least the interval, which is {}", humane(interval));
        return Err(Invalid::new("max_hold", humane(most), limit)
            .remedy("lengthen it, or leave it out: it would free the name before its interval ends")
            .into());
    }
    Ok(AtLeast::new(interval, lease, Duration::ZERO))
}

/// The settings of the hold.
pub(super) fn apply(settings: &mut Settings, kept: &AtLeast) {
    settings.lease = kept.first();
    settings.fixed = true;
    // A hold that is handed over in memory would be released before its interval ends.
    settings.handoff = Handoff::off();
    // Of an owner of its own: one that entered again would run the work, and leave the name to the outer hold.
    settings.owner = Some(Owner::new().id());
}

/// Runs the work under a hold that is new, and has the name stay taken.
pub(super) async fn run<K, F: Future>(
    guard: Guard<K>,
    kept: AtLeast,
    work: Pin<Box<F>>,
) -> Result<F::Output, Error> {
    if guard.remaining() < kept.first() / 10 * 9 {
        // It was granted some time ago. The interval begins now.
        guard.extend(kept.first()).await?;
    }
    let taken = Taken::begin(guard, kept);
    let output = match &taken.guard {
        Some(guard) => guard.run(work).await?,
        None => return Err(Error::Closed), // it is there until `end`
    };
    taken.end().await;
    Ok(output)
}

/// A hold whose name stays taken for its time, also if this is dropped in a panic.
struct Taken<K> {
    guard: Option<Guard<K>>,
    kept: AtLeast,
    began: Tick,
    heartbeat: Heartbeat,
}

impl<K> Taken<K> {
    fn begin(guard: Guard<K>, kept: AtLeast) -> Taken<K> {
        Taken {
            kept,
            began: guard.hold().env().clock.now(),
            heartbeat: Heartbeat::start(guard.hold(), kept),
            guard: Some(guard),
        }
    }

    fn rest(&self, guard: &Guard<K>) -> Rest {
        let held = guard.hold().env().clock.now().since(self.began);
        self.kept.rest(held, guard.remaining())
    }

    /// Waits, if the lease would last for longer than it should, and then gives the name back.
    async fn end(mut self) {
        let Some(guard) = &self.guard else { return };
        if self.heartbeat.end().await && self.rest(guard) != Rest::Over {
            // An extension without an answer may have been carried out. The answer to this one says what is left.
            let patience = self.heartbeat.patience;
            let _ = guard
                .hold()
                .env()
                .within(patience, guard.extend(SHORTEST))
                .await;
        }
        if let Rest::Outlasts(rest) = self.rest(guard) {
            tokio::select! {
                () = guard.hold().env().sleep_here(rest) => {}
                _ = guard.lost() => {}
            }
        }
        // Before its time the drop of `self` detaches the guard: the name stays taken until the lease ends by itself.
        if self.rest(guard) == Rest::Over
            && let Some(guard) = self.guard.take()
        {
            // As after `run`: the work is done.
            let _ = guard.release().await;
        }
    }
}

impl<K> Drop for Taken<K> {
    fn drop(&mut self) {
        // The heartbeat stops first: an extension would keep the name beyond its time.
        self.heartbeat.stop.take();
        let Some(guard) = self.guard.take() else {
            return;
        };
        if self.rest(&guard) != Rest::Over {
            guard.detach();
        }
    }
}

/// Extends the lease when its end comes close. In the background, so that work that blocks its runtime costs no lease.
struct Heartbeat {
    /// Dropped: it stops.
    stop: Option<oneshot::Sender<()>>,
    /// Dropped by the heartbeat at its end.
    ended: oneshot::Receiver<()>,
    /// Whether an extension was ever sent.
    asked: Arc<AtomicBool>,
    patience: Duration,
}

impl Heartbeat {
    fn start(hold: &Arc<Hold>, kept: AtLeast) -> Heartbeat {
        let (stop, mut stopped) = oneshot::channel();
        let (ends, ended) = oneshot::channel();
        let asked = Arc::<AtomicBool>::default();
        let patience = (kept.every() / 3).clamp(SHORTEST, PATIENCE_MAX);
        let keeps = keep(Arc::clone(hold), kept, patience, Arc::clone(&asked));
        // Apart: it ends with its hold, so a shutdown need not wait for it.
        hold.env().spawn_apart(async move {
            // The drop of the sender tells that the heartbeat has ended, whichever way.
            let _ends: oneshot::Sender<()> = ends;
            tokio::select! {
                biased;
                _ = &mut stopped => {}
                () = keeps => {}
            }
        });
        Heartbeat {
            stop: Some(stop),
            ended,
            asked,
            patience,
        }
    }

    /// Stops it. Whether an extension was ever sent.
    async fn end(&mut self) -> bool {
        self.stop.take();
        let _ = (&mut self.ended).await;
        self.asked.load(Ordering::Acquire)
    }
}

async fn keep(hold: Arc<Hold>, kept: AtLeast, patience: Duration, asked: Arc<AtomicBool>) {
    let env = hold.env();
    let every = kept.every();
    // Where the network is slow, an earlier extension is answered while a later one is under way. Neither undoes the other (B2).
    let mut under_way = FuturesUnordered::new();
    while let Ok(left) = hold.standing() {
        let early = left.saturating_sub(kept.extend_at());
        if !asked.load(Ordering::Acquire) && !early.is_zero() {
            // A timer stands still while the machine sleeps, and the lease does not. So no sleep is long.
            env.sleep(early.min(every)).await;
            continue;
        }
        asked.store(true, Ordering::Release);
        under_way.push(hold.extend(kept.extension()));
        match env.within(patience, under_way.next()).await {
            // From then on as any other lease.
            Some(Some(Ok(()))) => {
                under_way.clear();
                env.sleep(kept.extension() / 3).await;
            }
            Some(_) => env.sleep(patience).await,
            None => {}
        }
    }
}

/// The verb, of the kinds that a cron job would take.
macro_rules! once_per_verb {
    ($kind:ident, $make:literal) => {
        impl $kind {
            /// Runs `work` at most once per `interval`, among all that ask for this name: asks once, and keeps the name taken for the
            /// interval. `None` if it is taken: then `work` was dropped without having been polled.
            ///
            /// The interval counts from the moment at which the name was taken. The name stays taken for that long also if `work`
            /// returns an `Err`, panics, or is dropped, and if this process dies: the first lease is as long as the interval.
            /// Work that takes longer is never beside another: its lease is extended by that of this lock (30 s unless told
            /// otherwise), a third of it before its end; then the name is free when the work ends, or after a crash one such
            /// lease later. `shutdown` with `ReleaseAll` gives back what is held while the work runs.
            ///
            /// As a rule it returns when `work` ends. Work that ends in the last third of the interval, and less than a third of the lease
            /// before its end, waits for that end. 1 s to 366 days, in whole milliseconds. Callers on several hosts may ask at times that differ: each within the interval
            /// after the first is told `None`. Let a job that starts every minute say 50 s.
            ///
            /// The name has an owner of its own: one that this task holds by another verb is taken.
            ///
            /// # Errors
            /// - [`Error::Invalid`](crate::Error::Invalid): the name, the interval or a setting is not valid, or
            ///   `max_hold` is shorter than the interval; nothing was sent.
            /// - [`Error::Lost`](crate::Error::Lost): the lease was lost before `work` had finished: see [`run`](Self::run).
            /// - Any other, as `try_lock`: `work` was not polled. After [`Error::Ambiguous`](crate::Error::Ambiguous) the name
            ///   may be taken, until this client has given it back.
            ///
            /// # Time
            /// Whether `work` runs is known when `try_lock` would have answered.
            ///
            /// # Cancel safety
            /// Dropping the future before `work` begins is as dropping `try_lock()`. Later it drops `work` where that stands, and
            /// the name stays taken for the interval, or until the lease ends if it was extended.
            ///
            /// # Examples
            /// ```
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
            /// # async fn report() -> u32 { 42 }
            /// use std::time::Duration;
            ///
            /// let client = leasehold::Client::connect("memory:").await?;
            #[doc = concat!("let lock = client.", $make, ";")]
            /// let hour = Duration::from_secs(3600);
            /// assert_eq!(lock.run_once_per(hour, report()).await?, Some(42));
            /// assert_eq!(lock.run_once_per(hour, report()).await?, None); // not in this hour
            /// # Ok(()) }
            /// ```
            ///
            /// # Source
            /// `ShedLock`'s `lockAtLeastFor`, where a crash counts to `lockAtMostFor`. The command's `run --at-least --skip-if-held`.
            #[track_caller]
            #[doc(alias("lockAtLeastFor", "cron", "throttle"))]
            pub fn run_once_per<F: std::future::Future>(
                &self,
                interval: std::time::Duration,
                work: F,
            ) -> impl std::future::Future<Output = Result<Option<F::Output>, crate::Error>> + use<F>
            {
                let kept = super::once_per::kept(interval, &self.handle.settings);
                let core = self.handle.core();
                let kept =
                    kept.and_then(|kept| core.check_longest("interval", interval).map(|()| kept));
                let asked = kept.map(|kept| {
                    let change = |settings: &mut _| super::once_per::apply(settings, &kept);
                    let handle = self.handle.with(change);
                    ($kind { handle }.try_lock(), kept)
                });
                let work = Box::pin(work);
                async move {
                    let (asked, kept) = asked?;
                    match asked.await? {
                        Some(guard) => super::once_per::run(guard, kept, work).await.map(Some),
                        None => Ok(None),
                    }
                }
            }
        }
    };
}
pub(super) use once_per_verb;
