//! The environment of every part of a client: its clock, settings, backend and events; a place for background work, timers,
//! and the end of what was begun. A simulation replaces what stands behind it.

pub(crate) mod drain;
pub(crate) mod finish;
pub(crate) mod unsettled;

use std::{
    fmt,
    future::Future,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Error,
    backend::{Backend, Failure, Once},
    background::{BackgroundRuntime, Resident},
    clock::Clock,
    config::{Config, millis},
    durations::humane,
    engine::env::finish::Finish,
    engine::env::unsettled::Unsettled,
    error::{Cause, Invalid},
    events::Events,
    outage::Seldom,
    owner::LeaseId,
};

/// No answer came in the time that the caller gave; why there is no connection, if there is none.
#[derive(Debug)]
struct TimeIsUp(Option<Cause>);

impl fmt::Display for TimeIsUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no answer in the time that was given")?;
        self.0.as_ref().map_or(Ok(()), |why| write!(f, ": {why}"))
    }
}

impl std::error::Error for TimeIsUp {}

#[derive(Debug)]
pub(crate) struct Env {
    pub(crate) uuid: Arc<str>,
    pub(crate) clock: Clock,
    pub(crate) config: Config,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) events: Arc<Events>,
    background: BackgroundRuntime,
    tasks: TaskTracker,
    /// How many handles of this client its callers have. Tasks in the background have its parts without one.
    handles: AtomicUsize,
    /// The last of the handles has gone.
    unused: Arc<Notify>,
    closed: AtomicBool,
    /// Leaders end their terms at once: the client gives everything back.
    closing: CancellationToken,
    lets_expire: AtomicBool,
    pub(crate) unsettled: Arc<Unsettled>,
    /// When a user was last told that a lock was accepted that was not acknowledged.
    pub(crate) warned_of_unmet: Seldom,
}

impl Env {
    pub(crate) fn new(
        uuid: Arc<str>,
        clock: Clock,
        config: Config,
        backend: Box<dyn Backend>,
        background: BackgroundRuntime,
    ) -> Arc<Env> {
        let events = Arc::new(Events::new(config.observers.clone(), &clock));
        Arc::new(Env {
            uuid,
            clock,
            config,
            backend,
            events,
            background,
            tasks: TaskTracker::new(),
            handles: AtomicUsize::new(0),
            unused: Arc::default(),
            closed: AtomicBool::new(false),
            closing: CancellationToken::new(),
            lets_expire: AtomicBool::new(false),
            unsettled: Arc::default(),
            warned_of_unmet: Seldom::default(),
        })
    }

    /// Where the background work runs.
    #[cfg(feature = "blocking")]
    pub(crate) fn background(&self) -> &BackgroundRuntime {
        &self.background
    }

    /// Tells the resident when the background runtime ends.
    pub(crate) fn tell_at_end(&self, resident: Weak<dyn Resident>) {
        self.background.tell_at_end(resident);
    }

    /// The failure of a caller whose time is up before the server has answered its request.
    pub(crate) fn time_is_up(&self) -> Failure {
        let has_reached = self.backend.has_reached();
        let cause = Arc::new(TimeIsUp(self.backend.trouble()));
        if has_reached {
            Failure::Ambiguous(cause)
        } else {
            // A request that gets a connection from here on gives back at once what it is granted: this caller is gone.
            Failure::NotSent(cause)
        }
    }

    /// Runs something on the background runtime. From any thread, with or without a runtime; if the background runtime is gone it
    /// does nothing.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        // In a fork the locks are the parent's, and not to be given back.
        if self.background.check_process().is_ok() {
            // Counted, so that a shutdown and the drop of the last handle wait for it (bugs 45, 172).
            self.tasks.spawn_on(work, self.background.handle());
        }
    }

    /// The same, for work that no shutdown and no handle waits for.
    pub(crate) fn spawn_apart(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.background.handle().spawn(work));
    }

    /// Completes after `time`, by a timer of the background runtime: whichever runtime polls it, and also if the one ends that polled
    /// it before.
    pub(crate) fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send + use<> {
        self.background.sleep(time)
    }

    /// Completes after `time`, by a timer of whichever runtime polls it, so that it does even if the background runtime is gone.
    pub(crate) async fn sleep_here(&self, time: Duration) {
        self.background.sleep_here(time).await;
    }

    /// The output of `work`, or `None` if that takes longer than `time`, measured as [`sleep`](Env::sleep) does.
    pub(crate) async fn within<F: Future>(&self, time: Duration, work: F) -> Option<F::Output> {
        self.background.within(time, work).await
    }

    /// The output of `work`, or `None` if there is none by then. By a timer of the caller, if it has a runtime.
    pub(crate) async fn by<F: Future>(&self, until: Instant, work: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            // The work is polled first: an answer that is there when the time is up still counts.
            output = work => Some(output),
            () = self.sleep_here(until.saturating_duration_since(Instant::now())) => None,
        }
    }

    /// Work that is carried out to its end whether or not a caller waits for it.
    pub(crate) fn finish<F>(self: &Arc<Self>, work: F) -> Finish<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        Finish::new(self, self.tasks.token(), work)
    }

    /// Whether anything new may be begun.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        self.check_background()
    }

    /// Whether the servers may be asked for a lease of this length: one of a quorum that has restarted has no vote for as long as the
    /// longest lasts (QB6).
    pub(crate) fn check_longest(&self, what: &'static str, lease: Duration) -> Result<(), Error> {
        let most = self.backend.longest_lease();
        let Some(most) = most.filter(|most| lease > *most) else {
            return Ok(());
        };
        let limit = format!("at most {}, the longest lease on this quorum", humane(most));
        Err(Invalid::new(what, humane(lease), limit)
            .remedy(
                "take a shorter one, or give all clients of the quorum a longer longest_lease(d)",
            )
            .into())
    }

    /// Whether the background runtime is there to answer waiters.
    pub(crate) fn check_background(&self) -> Result<(), Error> {
        self.background.check().map_err(|_gone| Error::ThreadGone)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether this client leaves what it holds to expire.
    pub(crate) fn lets_expire(&self) -> bool {
        self.lets_expire.load(Ordering::Acquire)
    }

    pub(crate) fn let_expire(&self) {
        self.lets_expire.store(true, Ordering::Release);
    }

    /// From here on nothing new is begun.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// The same for a client that gives back what it holds: a leader ends its term now, and not when the grace is over.
    pub(crate) fn begin_closing(&self) {
        self.closing.cancel();
    }

    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// How long a tombstone must outlive the last copy of a request.
    pub(crate) fn tombstone_ms(&self) -> u64 {
        millis(self.config.lease.max(Duration::from_secs(30)))
    }

    /// The identity of a new request about a number.
    pub(crate) fn once(&self) -> Once {
        Once {
            number: LeaseId::next(),
            // Longer than it is repeated.
            keep_ms: self.tombstone_ms().max(millis(self.patience() * 2)),
        }
    }

    /// For how long a request that may be repeated is.
    pub(crate) fn patience(&self) -> Duration {
        self.config.operation_timeout * 3
    }

    /// How many tasks are under way.
    pub(crate) fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// Completes when no task is left. Tasks are begun all the same.
    pub(crate) fn all_done(&self) -> impl Future<Output = ()> + Send + 'static {
        // `wait` ends only on a closed tracker, and a closed tracker takes new tasks all the same.
        self.tasks.close();
        let tasks = self.tasks.clone();
        async move { tasks.wait().await }
    }

    /// Completes when all is heard that the server has said until now, and what that wakes has had a turn.
    pub(crate) async fn heard(&self) {
        // Messages that were lost with their connection were heard as far as they ever will be.
        let _ = self.backend.heard().await;
        let turns = async {
            for _ in 0..2 {
                tokio::task::yield_now().await;
            }
        };
        let _ = self.background.handle().spawn(turns).await;
    }
}
