//! What all handles of a client share: its backend, its queues, its watchdog, and the home of its background work.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio_util::task::TaskTracker;

use crate::{
    Error, LostReason,
    backend::{
        Backend, Failure, Inspection, Once, Permits,
        fenced::{FencedRead, FencedWrite, Written},
    },
    clock::Clock,
    config::{Config, millis},
    engine::{
        claim::pauses::Pauses,
        env::{finish::Finish, linger::Handles},
        gates::Gates,
        hold::{
            SHUTDOWN_MARGIN,
            watchdog::{self, Watchdog},
        },
        queue::map::Queues,
        wakeup::WakeUps,
    },
    error::Cause,
    events::Events,
    home::{Home, Resident},
    name::LockId,
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

/// What all handles of a client share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) uuid: Arc<str>,
    pub(crate) clock: Clock,
    pub(crate) config: Config,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) queues: Queues,
    pub(crate) gates: Gates,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) events: Events,
    pub(crate) home: Home,
    pub(crate) tasks: TaskTracker,
    pub(crate) handles: Handles,
    closed: AtomicBool,
    lets_expire: AtomicBool,
}

impl Core {
    /// What a caller is told whose time is up before the server has answered its request.
    pub(crate) fn time_is_up(&self) -> Failure {
        let has_reached = self.backend.has_reached();
        let cause = Arc::new(TimeIsUp(self.backend.trouble()));
        if has_reached {
            Failure::Ambiguous(cause)
        } else {
            // What connects from here on gives back at once what it may get: this caller is gone.
            Failure::NotSent(cause)
        }
    }

    /// A client's engine, on a backend that tells `wake_ups` what it hears. Its watchdog runs at `home`.
    pub(crate) fn start(
        uuid: Arc<str>,
        clock: Clock,
        config: Config,
        backend: Box<dyn Backend>,
        wake_ups: &WakeUps,
        home: Home,
    ) -> Arc<Core> {
        let core = Arc::new(Core {
            uuid,
            clock,
            config,
            backend,
            queues: Queues::new(),
            gates: Gates::default(),
            watchdog: Arc::default(),
            events: Events::new(),
            home,
            tasks: TaskTracker::new(),
            handles: Handles::default(),
            closed: AtomicBool::new(false),
            lets_expire: AtomicBool::new(false),
        });
        wake_ups.connect(Arc::downgrade(&core));
        let resident: Weak<dyn Resident> = Arc::downgrade(&core) as _;
        core.home.tell_at_end(resident);
        let watchdog = Arc::clone(&core.watchdog);
        let home = core.home.handle();
        home.spawn(watchdog::run(watchdog, Arc::downgrade(&core)));
        core
    }

    /// Runs something in the background, at home. From any thread, with or without a runtime; if the home is gone it
    /// does nothing.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        // In a fork the locks are the parent's, and not to be given back.
        if self.home.check_process().is_ok() {
            self.tasks.spawn_on(work, self.home.handle());
        }
    }

    /// Completes after `time`, by a timer of the home: whichever runtime polls it, and also if the one ends that polled
    /// it before.
    pub(crate) fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send + use<> {
        self.home.sleep(time)
    }

    /// Completes after `time`, by a timer of whichever runtime polls it, so that it does even if the home is gone.
    pub(crate) async fn sleep_here(&self, time: Duration) {
        self.home.sleep_here(time).await;
    }

    /// What `work` gives, or `None` if that takes longer than `time`, measured as [`sleep`](Core::sleep) does.
    pub(crate) async fn within<F: Future>(&self, time: Duration, work: F) -> Option<F::Output> {
        self.home.within(time, work).await
    }

    /// Whether anything new may be begun.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        self.check_home()
    }

    /// Whether the home is there to answer waiters.
    pub(crate) fn check_home(&self) -> Result<(), Error> {
        self.home.check().map_err(|_gone| Error::ThreadGone)
    }

    /// Work that is carried out to its end whether or not a caller waits for it.
    pub(crate) fn finish<F>(self: &Arc<Self>, work: F) -> Finish<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        Finish::new(self, self.tasks.token(), work)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// How long a tombstone must outlive the last copy of a request.
    pub(crate) fn tombstone_ms(&self) -> u64 {
        millis(self.config.lease.max(Duration::from_secs(30)))
    }

    /// Whether this client leaves what it holds to expire.
    pub(crate) fn lets_expire(&self) -> bool {
        self.lets_expire.load(Ordering::Acquire)
    }

    /// What the server says of a name.
    pub(crate) async fn inspect(&self, id: &LockId) -> Result<Inspection, Error> {
        let found = self.backend.inspect(id.clone()).await;
        let server = self.backend.server();
        let found = found.map(|found| Inspection { server, ..found });
        found.map_err(|failure| failure.into_read_error(format!("look at {:?}", id.name)))
    }

    /// Reads or changes how many permits there are, or a count. It is sent once.
    pub(crate) async fn permits(
        &self,
        id: &LockId,
        step: Permits,
        doing: &str,
    ) -> Result<i64, Error> {
        let answer = self.backend.permits(id.clone(), step, self.once()).await;
        answer.map_err(|failure| {
            let doing = format!("{doing} {:?}", id.name);
            if matches!(step, Permits::Available) {
                failure.into_read_error(doing)
            } else {
                failure.into_error(doing, Duration::ZERO)
            }
        })
    }

    /// The identity of a new request about a number.
    pub(crate) fn once(&self) -> Once {
        Once {
            number: LeaseId::next(),
            // Longer than it is repeated.
            keep_ms: self
                .tombstone_ms()
                .max(millis(self.config.operation_timeout * 2 * REPEATED)),
        }
    }

    /// The same for a kind whose requests may be repeated: until there is an answer, for a few operation timeouts, whether or
    /// not the caller waits.
    pub(crate) async fn permits_once(
        self: &Arc<Self>,
        id: &LockId,
        step: Permits,
        doing: &'static str,
    ) -> Result<i64, Error> {
        let (core, id) = (Arc::clone(self), id.clone());
        let once = self.once();
        let work = async move {
            let patience = core.config.operation_timeout * REPEATED;
            let began = core.clock.now();
            let (mut silent, mut pauses) = (false, Pauses::default());
            loop {
                let answer = core.backend.permits(id.clone(), step, once).await;
                let failure = match answer {
                    Ok(number) => return Ok(number),
                    Err(failure) => failure,
                };
                silent |= matches!(failure, Failure::Ambiguous(_));
                let failure = match failure {
                    // An earlier copy may have been carried out.
                    Failure::NotSent(cause) | Failure::NotNow(cause) if silent => {
                        Failure::Ambiguous(cause)
                    }
                    other => other,
                };
                if !failure.is_final() {
                    pauses.pause(&core).await;
                }
                // After the pause: this future may not have been polled for longer than the server keeps its answer.
                if failure.is_final() || core.clock.now().since(began) >= patience {
                    return Err(
                        failure.into_error(format!("{doing} {:?}", id.name), Duration::ZERO)
                    );
                }
            }
        };
        self.check_home()?;
        self.finish(work).await
    }

    /// Writes data under a fencing token. It is sent once: what an answer that is lost leaves open is the caller's to judge.
    pub(crate) async fn write(&self, step: FencedWrite) -> Result<Written, Error> {
        let doing = format!(
            "write {:?} under token {} of {:?}",
            step.key, step.token, step.name
        );
        let answer = self.backend.write(step).await;
        answer.map_err(|failure| failure.into_error(doing, Duration::ZERO))
    }

    pub(crate) async fn read(&self, step: FencedRead) -> Result<Option<Vec<u8>>, Error> {
        let doing = format!("read {:?} of {:?}", step.key, step.name);
        let answer = self.backend.read(step).await;
        answer.map_err(|failure| failure.into_read_error(doing))
    }

    pub(crate) async fn force_unlock(&self, id: &LockId) -> Result<bool, Error> {
        let before = self.queues.held(id);
        let owners = match self.backend.force_unlock(id.clone()).await {
            Ok(owners) => owners,
            Err(failure) => {
                // It may have been carried out: the holds of before must not go on believing.
                if matches!(failure, Failure::Ambiguous(_)) {
                    for hold in before {
                        hold.lose(LostReason::Unconfirmed);
                    }
                }
                let doing = format!("unlock {:?} by force", id.name);
                return Err(failure.into_error(doing, Duration::ZERO));
            }
        };
        // Nor the hold of ours that it ended; but a newer one may be there by now, and goes on.
        for hold in self.queues.held(id) {
            if owners.iter().any(|owner| hold.is_owner(owner)) {
                hold.lose(LostReason::Replaced);
            }
        }
        Ok(!owners.is_empty())
    }

    /// Ends everything. `grace`: gives holders so long to let go by themselves, then releases what is left; `None`: leaves
    /// what is held to expire.
    pub(crate) async fn shutdown(self: &Arc<Self>, grace: Option<Duration>) {
        self.lets_expire.fetch_or(grace.is_none(), Ordering::AcqRel);
        self.closed.store(true, Ordering::SeqCst);
        self.queues.close();
        self.gates.close(&Error::Closed);
        let ending = Ending(self);
        if let Some(grace) = grace {
            let _ = self.within(grace, self.all_released()).await;
        }
        let holds = self.queues.holds();
        let some = !holds.is_empty();
        for hold in holds {
            // Each loss has its lease id given up, a margin later: work that `run` is dropping is gone by then.
            hold.lose(LostReason::ClientShutdown);
        }
        self.tasks.close();
        let margin = if some {
            SHUTDOWN_MARGIN
        } else {
            Duration::ZERO
        };
        let patience = self.config.operation_timeout + margin;
        let _ = self.within(patience, self.tasks.wait()).await;
        drop(ending);
    }

    /// How many tasks are under way.
    pub(crate) fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// Completes when all is heard that the server has said until now, and what that wakes has had a turn.
    pub(crate) async fn heard(&self) {
        // What was lost with its connection was heard as far as it ever will be.
        let _ = self.backend.heard().await;
        let turns = async {
            for _ in 0..2 {
                tokio::task::yield_now().await;
            }
        };
        let _ = self.home.handle().spawn(turns).await;
    }

    /// Waits until nothing is held.
    async fn all_released(&self) {
        let mut events = self.events.listen(&self.clock);
        while !self.queues.holds().is_empty() {
            tokio::select! {
                biased;
                _ = events.recv() => {}
                () = self.sleep(Duration::from_millis(50)) => {}
            }
        }
    }
}

impl Resident for Core {
    fn thread_gone(&self) {
        self.queues.thread_gone();
        self.gates.close(&Error::ThreadGone);
    }
}

/// A request that may be repeated is, for so many operation timeouts.
const REPEATED: u32 = 3;

/// The end of a shutdown, also of one whose future is dropped: what is held then is left to expire.
struct Ending<'a>(&'a Arc<Core>);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let Ending(core) = self;
        let left = core.queues.holds();
        if !left.is_empty() {
            core.lets_expire.store(true, Ordering::Release);
        }
        for hold in left {
            hold.lose(LostReason::ClientShutdown);
        }
        core.tasks.close();
        core.watchdog.close();
        core.backend.shut();
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.watchdog.close();
    }
}
