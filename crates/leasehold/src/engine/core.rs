//! All handles of a client share this: its backend, its queues, its watchdog, and the runtime of its background work.

use std::{
    ops::Deref,
    sync::{Arc, Weak},
    time::Duration,
};

use crate::{
    Error, LostReason,
    backend::{
        Backend, ForceUnlock, Inspection, Permits,
        fenced::{FencedRead, FencedWrite, Written},
    },
    background::{BackgroundRuntime, Resident},
    backoff::Backoff,
    clock::Clock,
    config::Config,
    engine::env::Env,
    engine::env::drain::CallerRef,
    engine::fair::fair_queues::FairQueues,
    engine::hold::watchdog::Watchdog,
    engine::hold::{SHUTDOWN_MARGIN, watchdog},
    engine::latch_waiters::AllLatchWaiters,
    engine::queue::driver,
    engine::queue::map::Queues,
    engine::wakeup::WakeUps,
    name::LockId,
};

/// The engine that all handles of a client share.
#[derive(Debug)]
pub(crate) struct Core {
    env: Arc<Env>,
    pub(crate) queues: Arc<Queues>,
    pub(crate) fair: Arc<FairQueues>,
    pub(crate) latch_waiters: Arc<AllLatchWaiters>,
    pub(crate) watchdog: Arc<Watchdog>,
}

/// A client's engine in the hands of a caller.
pub(crate) type ClientRef = CallerRef<Core>;

impl Deref for Core {
    type Target = Arc<Env>;

    fn deref(&self) -> &Arc<Env> {
        &self.env
    }
}

impl AsRef<Env> for Core {
    fn as_ref(&self) -> &Env {
        &self.env
    }
}

impl Core {
    /// A client's engine, on a backend that tells `wake_ups` what it hears. Its watchdog runs on `background`.
    pub(crate) fn start(
        uuid: Arc<str>,
        clock: Clock,
        config: Config,
        backend: Box<dyn Backend>,
        wake_ups: &WakeUps,
        background: BackgroundRuntime,
    ) -> Arc<Core> {
        let env = Env::new(uuid, clock, config, backend, background);
        let watchdog = Arc::<Watchdog>::default();
        let fair = Arc::<FairQueues>::default();
        let queues = Queues::new(&env, &watchdog, Arc::clone(&fair) as _, driver::start);
        let core = Arc::new(Core {
            fair,
            latch_waiters: AllLatchWaiters::new(&env),
            queues: Arc::clone(&queues),
            watchdog: Arc::clone(&watchdog),
            env,
        });
        // Weak, and of the parts: a guard may outlive all handles, and keeps the queues and what these need, but not `Core`.
        wake_ups.connect(&core);
        let residents: [Weak<dyn Resident>; 2] = [
            Arc::downgrade(&core.queues) as _,
            Arc::downgrade(&core.latch_waiters) as _,
        ];
        for resident in residents {
            core.tell_at_end(resident);
        }
        let queues = Arc::downgrade(&queues);
        let is_busy = move || queues.upgrade().is_some_and(|queues| queues.len() > 0);
        // Apart: the watchdog runs until the client ends, and a shutdown waits for all other tasks.
        core.spawn_apart(watchdog::run(watchdog, Arc::downgrade(&core.env), is_busy));
        core
    }

    /// Asks what the server says of a name.
    pub(crate) async fn inspect(&self, id: &LockId) -> Result<Inspection, Error> {
        let found = self.backend.inspect(id.clone()).await;
        let found = found.map(|found| self.looked_at(found));
        found.map_err(|failure| failure.into_read_error(format!("look at {:?}", id.name)))
    }

    /// Adds to a fresh answer who gave it, and when.
    pub(crate) fn looked_at(&self, found: Inspection) -> Inspection {
        Inspection {
            server: self.backend.server(),
            looked: self.clock.now(),
            ..found
        }
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

    /// The same for a kind whose requests may be repeated: until there is an answer, for a few operation timeouts, whether or
    /// not the caller waits.
    pub(crate) async fn permits_once(
        self: &Arc<Self>,
        id: &LockId,
        step: Permits,
        doing: &'static str,
    ) -> Result<i64, Error> {
        let (core, id) = (Arc::clone(self), id.clone());
        // All sends have the same identity: the server counts the request once, however many copies it gets (bug 98).
        let once = self.once();
        let work = async move {
            let patience = core.patience();
            let began = core.clock.now();
            let (mut silent, mut backoff) = (false, Backoff::of_request());
            loop {
                let answer = core.backend.permits(id.clone(), step, once).await;
                let failure = match answer {
                    Ok(number) => return Ok(number),
                    Err(failure) => failure,
                };
                silent |= failure.is_ambiguous();
                if !failure.is_final() {
                    core.sleep(backoff.next()).await;
                }
                // After the pause: this future may not have been polled for longer than the server keeps its answer.
                if failure.is_final() || core.clock.now().since(began) >= patience {
                    let failure = failure.after_silence(silent);
                    return Err(
                        failure.into_error(format!("{doing} {:?}", id.name), Duration::ZERO)
                    );
                }
            }
        };
        self.check_background()?;
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

    pub(crate) async fn force_unlock(&self, step: ForceUnlock) -> Result<bool, Error> {
        let id = &step.id;
        // Before the send: a hold that begins later is not the hold that is taken away (bug 23).
        let before = self.queues.held(id);
        let owners = match self.backend.force_unlock(step.clone()).await {
            Ok(owners) => owners,
            Err(failure) => {
                // It may have been carried out: the holds of before must not go on believing.
                if failure.is_ambiguous() {
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
        if grace.is_none() {
            self.let_expire();
        }
        // The mark comes first: a queue that is made from here on refuses its newcomer by itself (B6).
        self.close();
        self.queues.close();
        self.fair.wake_heartbeats();
        self.latch_waiters.close(&Error::Closed);
        // Before the first wait: a shutdown whose future is dropped ends the client, too (bug 78).
        let ending = Ending(self);
        if let Some(grace) = grace {
            self.begin_closing();
            let _ = self.within(grace, self.all_released()).await;
        }
        let holds = self.queues.holds();
        let some = !holds.is_empty();
        for hold in holds {
            // Each loss has its lease id given up, a margin later: work that `run` is dropping is gone by then.
            hold.lose(LostReason::ClientShutdown);
        }
        let done = self.all_done();
        let margin = if some {
            SHUTDOWN_MARGIN
        } else {
            Duration::ZERO
        };
        // Each lost lease id is given up a margin after its loss, by a request that may take the operation timeout.
        let patience = self.config.operation_timeout + margin;
        let _ = self.within(patience, done).await;
        drop(ending);
    }

    /// Waits until nothing is held.
    async fn all_released(&self) {
        let mut events = self.events.listen(&self.clock);
        while !self.queues.holds().is_empty() {
            tokio::select! {
                biased;
                _ = events.recv() => {}
                // A loss is told before its queue lets go of the hold, so an event alone may be too early a sign.
                () = self.sleep(Duration::from_millis(50)) => {}
            }
        }
    }
}

/// The end of a shutdown, also of one whose future is dropped: what is held then is left to expire.
struct Ending<'a>(&'a Arc<Core>);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let Ending(core) = self;
        let left = core.queues.holds();
        if !left.is_empty() {
            // Before the losses: each asks whether its lease id is to be given up (`Hold::on_lost`).
            core.let_expire();
        }
        for hold in left {
            hold.lose(LostReason::ClientShutdown);
        }
        drop(core.all_done());
        core.watchdog.close();
        core.backend.shut();
    }
}
