//! The way of every `lock()`: the first attempt, a wait in the queue, or re-entry.

use std::{
    future::{Future, poll_fn},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::time::Instant;

use crate::{
    Error,
    backend::{Acquired, Counted, Failure},
    backoff::Backoff,
    clock::Tick,
    config::SELF_WAIT_WARNING,
    engine::claim::ask::{TooLate, ask_server, no_answer, still_ours},
    engine::claim::pending_release::abandon,
    engine::claim::ticket::Ticket,
    engine::env::Env,
    engine::hold::held::Held,
    engine::hold::spec::{Patience, Spec},
    engine::hold::{Granted, Hold, lease},
    engine::local::answer::{AnswerFuture, WaitResult},
    engine::local::locked::Locked,
    engine::queue::driver::HEAR_AFTER,
    engine::queue::map::Queues,
    engine::queue::release::write_count,
    engine::queue::state::ask_to_join,
    engine::queue::{Life, Phase, Queue, QueueState, Start},
    kind::Access,
    name::LockId,
    story,
};

/// A wait in the queue. Dropping it leaves the queue.
pub(crate) struct WaitTicket {
    pub(crate) queue: Arc<Queue>,
    pub(crate) number: i64,
    pub(crate) answered: AnswerFuture,
}

/// The state of the queue for a newcomer.
enum Admission {
    /// No actor has the name in this process: ask the server.
    Attempt(Arc<Queue>),
    /// Wait in the queue.
    Wait(WaitTicket),
    /// This owner holds it already, and has entered once more.
    Inside(Held),
    /// The newcomer shares the hold of other readers of this process.
    Joined {
        held: Held,
        /// Readers have joined it often enough without a pause of their tasks.
        runs_long: bool,
    },
    /// Held, and the newcomer does not wait.
    Busy,
}

/// The result of a newcomer's first attempt.
enum FirstAttempt {
    Held(Held),
    Wait(WaitTicket),
    /// The server may have said how long the holder's lease lasts.
    Busy(Option<Duration>),
}

impl FirstAttempt {
    /// With what the server has said of the holder.
    fn said(self, answer: &Acquired) -> FirstAttempt {
        match (self, answer) {
            (FirstAttempt::Busy(_), Acquired::Held { ttl, .. }) => FirstAttempt::Busy(*ttl),
            (first, _) => first,
        }
    }
}

/// Asks for a name and waits for it, as patiently as told. The way of every `lock()`. Where each task that waits has an entry,
/// `id` is [of this one](LockId::for_caller).
pub(crate) fn acquire(
    queues: &Arc<Queues>,
    id: &LockId,
    spec: Spec,
    patience: Patience,
) -> impl Future<Output = WaitResult> {
    let until = match patience {
        // A wait that is too long for the clock has no end.
        Patience::For(wait) => Instant::now().checked_add(wait),
        Patience::Once => Some(latest_answer(queues)),
        Patience::Forever => None,
    };
    acquire_until(queues, id, spec, patience, until)
}

/// As [`acquire`], without a wait for a holder, and with an answer by then.
pub(crate) fn ask_once(
    queues: &Arc<Queues>,
    id: &LockId,
    spec: Spec,
    until: Instant,
) -> impl Future<Output = WaitResult> {
    acquire_until(queues, id, spec, Patience::Once, Some(until))
}

async fn acquire_until(
    queues: &Arc<Queues>,
    id: &LockId,
    spec: Spec,
    patience: Patience,
    until: Option<Instant>,
) -> WaitResult {
    queues.check_open()?;
    // Read only once the time is up, so never without a limit.
    let began = until.map_or(Tick::MAX, |_| queues.clock.now());
    let mut wait = match enter(queues, id, spec, patience)? {
        Admission::Busy => return Ok(busy(queues, id, spec, None)),
        Admission::Joined { held, runs_long } => {
            if runs_long {
                let_others_run().await;
            }
            return Ok(Some(held));
        }
        Admission::Inside(held) => return count_entry(queues, held, spec, patience, until).await,
        Admission::Wait(wait) => {
            story::waits(id, true);
            wait
        }
        Admission::Attempt(queue) => {
            let attempt = first_attempt(Arc::clone(queues), Arc::clone(&queue), spec, patience);
            // Finished in the background if this future is dropped: the request may be on its way, and its id must be settled (B5, bug 45).
            let attempt = queues.finish(attempt).asks_for(&id.name);
            // From here on the attempt can see whether its caller is still there (bugs 179, 201).
            if let Phase::InFlight(caller) = &mut queue.lock().phase {
                *caller = Some(attempt.caller());
            }
            let first = match until {
                None => attempt.await?,
                Some(until) => match queues.by(until, attempt).await {
                    Some(first) => first?,
                    // The attempt goes on without its caller, and gives back what it gets.
                    None => return Err(no_answer(queues, id, spec)),
                },
            };
            match first {
                FirstAttempt::Held(held) => {
                    if spec.access == Access::Shared && held.hold().counted() > 1 {
                        let_others_run().await; // those that were let in with it, before it uses the next budget, too
                    }
                    return Ok(Some(held));
                }
                FirstAttempt::Busy(left) => return Ok(busy(queues, id, spec, left)),
                FirstAttempt::Wait(wait) => {
                    story::waits(id, false);
                    wait
                }
            }
        }
    };
    match wait.answer(queues, spec, until, began).await? {
        // An owner that was let in beside itself: Redisson's users read the count on the server.
        Some(held) if spec.owner.is_some() && held.hold().counted() > 1 => {
            count_entry(queues, held, spec, patience, until).await
        }
        None => Ok(busy(queues, id, spec, None)),
        held => Ok(held),
    }
}

/// A request that fails by the operation timeout says why a little later.
const WHY: Duration = Duration::from_millis(250);

/// By then a caller that does not wait has an answer. An attempt that is under way, its own or another's, may take two operation timeouts, and
/// goes on without it.
pub(crate) fn latest_answer(env: &Env) -> Instant {
    Instant::now() + env.config.operation_timeout + WHY
}

/// The answer to a caller that does not get the lock in its time: `None`. Its log is told what is known of the holder.
pub(crate) fn busy(
    queues: &Queues,
    id: &LockId,
    spec: Spec,
    left: Option<Duration>,
) -> Option<Held> {
    if story::is_on() {
        let holds = if spec.waits.is_in_turn() {
            queues.held(&id.of_task(0))
        } else {
            queues.held(id)
        };
        let here = holds.first();
        let left = here.map_or(left, |hold| hold.standing().ok());
        story::busy(&id.name, here.map(|hold| hold.spec().place), left);
    }
    None
}

/// A task that does nothing but read waits for nothing: after so many reads it lets others run.
const READS_AT_ONCE: u32 = 8;

/// The other tasks of the caller's runtime run before it goes on. (tokio's own way asks for I/O first, which costs more than a read.)
async fn let_others_run() {
    let mut done = false;
    poll_fn(|cx| {
        if done {
            return Poll::Ready(());
        }
        done = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn enter(
    queues: &Arc<Queues>,
    id: &LockId,
    spec: Spec,
    patience: Patience,
) -> Result<Admission, Error> {
    let once = patience == Patience::Once;
    loop {
        // Between these two lines the queue may leave the map, so its life is looked at under its lock.
        let queue = queues.find_or_make(id);
        let mut state = queue.lock();
        if state.life == Life::Removed {
            continue; // Q3
        }
        // B6: under the lock, so that a queue that `close` did not see refuses by itself.
        if queues.is_closed() || state.life == Life::Closing {
            if matches!(state.phase, Phase::Idle) {
                queue.close(queues, &mut state);
            }
            return Err(Error::Closed);
        }
        // Before the line of waiters: an owner that waited behind them would wait for itself.
        if let Some(inside) = enter_again(&state, id, &spec) {
            return inside;
        }
        if !state.shared.is_empty()
            && let Some(held) = state.join(&spec, queues.clock.now())
        {
            return Ok(Admission::Joined {
                held,
                runs_long: state.handoffs.is_multiple_of(READS_AT_ONCE),
            });
        }
        if once && state.is_taken(&spec) {
            return Ok(Admission::Busy);
        }
        // A caller that asks once has the server's word now, and leaves no turn to others.
        let steps_back = !once
            && queues
                .redisson_fairness
                .left_to_others(id, &queues.clock)
                .is_some();
        match &state.phase {
            Phase::Idle if steps_back => {
                let wait = state.line_up(
                    &queue,
                    spec,
                    once,
                    false,
                    queues.events.begin_wait(&queues.clock),
                );
                // It listens before it asks: a release of Redisson's then counts it among ours.
                queue.go_on(queues, state, Start::Listen);
                return Ok(Admission::Wait(wait));
            }
            // Q1: from here on callers of this name wait for this attempt.
            Phase::Idle => {
                state.phase = Phase::InFlight(None);
                drop(state);
                return Ok(Admission::Attempt(queue));
            }
            // `is_taken` said no though the driver sleeps: it has no waiter left, or must first report our number of permits. It is woken, and asks.
            Phase::WaitingRemote if once => queue.driver_wake().notify_one(),
            _ => {}
        }
        // Q2: the phase is not idle, so an actor will answer this waiter.
        let began = queues.events.begin_wait(&queues.clock);
        let wait = state.line_up(&queue, spec, once, false, began);
        drop(state);
        if let Some(fair_queue) = queues.fair_queue(id) {
            fair_queue.changed(); // it may have been about to leave
        }
        return Ok(Admission::Wait(wait));
    }
}

/// An owner that has the name enters once more, in memory.
fn enter_again(state: &QueueState, id: &LockId, spec: &Spec) -> Option<Result<Admission, Error>> {
    let hold = match &state.phase {
        Phase::Held(hold) if spec.owner.is_some() && hold.spec().owner == spec.owner => hold,
        _ => state.shared.of_owner(spec.owner)?,
    };
    if let Some(remedy) = spec.is_to_stay_out(&hold.spec()) {
        return Some(Err(Error::Reentered {
            name: id.name.shared(),
            held_at: hold.spec().place,
            remedy,
        }));
    }
    let reads = spec.reads_under(&hold.spec());
    // Its last guard may have gone a moment ago: then the owner waits like any other.
    hold.enter_counted(reads)?;
    Some(Ok(Admission::Inside(Held::inside(Arc::clone(hold), reads))))
}

/// Has the server count an owner's entry. The entry is its caller's from the beginning, so that it is over as soon as the caller
/// leaves: an owner without a guard holds nothing.
async fn count_entry(
    queues: &Arc<Queues>,
    entry: Held,
    spec: Spec,
    patience: Patience,
    until: Option<Instant>,
) -> WaitResult {
    let hold = entry.hold();
    let counted = queues.finish(tell_count(Arc::clone(queues), Arc::clone(hold), patience));
    let counted = match until {
        None => counted.await,
        Some(until) => match queues.by(until, counted).await {
            Some(counted) => counted,
            None => Err(no_answer(queues, hold.id(), spec)),
        },
    };
    counted.map(|()| Some(entry))
}

/// Tells the server how often the owner of a hold has entered. Waits as long as `patience` allows, at most until the hold is lost.
async fn tell_count(queues: Arc<Queues>, hold: Arc<Hold>, patience: Patience) -> Result<(), Error> {
    let name = &hold.id().name;
    let mut backoff = Backoff::of_request();
    let mut silent = false;
    let began = queues.clock.now();
    loop {
        let sent = queues.clock.now();
        let failure = match write_count(&queues, &hold).await {
            Ok(Counted::Written | Counted::OthersWait) => break,
            Ok(Counted::NotOurs) => {
                hold.answered_not_ours(sent);
                break;
            }
            Err(failure) => failure,
        };
        // A later refusal does not undo what an unanswered request may have written (bug 6).
        // The count is absolute, so writing it again is harmless.
        silent |= failure.is_ambiguous();
        if hold.standing().is_err() {
            break;
        }
        let waited = queues.clock.now().since(began);
        let once = patience == Patience::Once;
        if failure.is_final() || once && waited >= queues.config.operation_timeout {
            return Err(failure.after_silence(silent).into_error(
                format!("enter {name:?} again"),
                hold.standing().unwrap_or_default(),
            ));
        }
        queues.sleep(backoff.next()).await;
    }
    hold.check().map(drop)
}

/// The attempt of a newcomer that found the queue idle. On any way out the queue goes on without it (Q2).
async fn first_attempt(
    queues: Arc<Queues>,
    queue: Arc<Queue>,
    spec: Spec,
    patience: Patience,
) -> Result<FirstAttempt, Error> {
    if spec.access == Access::Shared
        && let Some(held) = ask_to_join(&queues, &queue, &spec).await
    {
        return Ok(FirstAttempt::Held(held));
    }
    let operation_timeout = queues.config.operation_timeout;
    let mut attempt = Attempt {
        ticket: Ticket::new(&queues, spec.terms()),
        late: TooLate::new(spec),
        began: queues.clock.now(),
        queues,
        queue,
        spec,
        patience,
    };
    let mut backoff = Backoff::of_request();
    loop {
        let sent = attempt.queues.clock.now();
        let answer = attempt.send(sent).await;
        let waited = attempt.queues.clock.now().since(attempt.began);
        attempt = match attempt.answered(answer, sent) {
            AfterAnswer::Ended(ended) => return ended,
            AfterAnswer::Now(attempt) => attempt,
            AfterAnswer::AfterPause(attempt) => {
                let mut pause = backoff.next();
                if patience == Patience::Once {
                    // Not beyond its time, in which it asks once more.
                    pause = pause.min(operation_timeout.saturating_sub(waited));
                }
                attempt.queues.sleep(pause).await;
                attempt
            }
        };
    }
}

/// A first attempt, and the lease id that it asks for.
struct Attempt {
    queues: Arc<Queues>,
    queue: Arc<Queue>,
    spec: Spec,
    patience: Patience,
    ticket: Ticket,
    late: TooLate,
    began: Tick,
}

/// How a first attempt goes on after an answer.
enum AfterAnswer {
    Ended(Result<FirstAttempt, Error>),
    Now(Attempt),
    AfterPause(Attempt),
}

impl Attempt {
    async fn send(&mut self, sent: Tick) -> Result<Acquired, Failure> {
        // Without an entry in the queue: this process does not listen yet. So no grant can name this ask.
        self.ticket.ask(sent);
        let step = self.spec.request(&self.queue.id, self.ticket.lease());
        let answer = ask_server(&self.queues, &self.queues.watchdog.restarts, (step, sent)).await;
        match &answer {
            // A refusal for good carried nothing out: only an earlier copy can be owed (B5).
            Err(failure) if failure.is_final() => self.ticket.refused(),
            Err(failure) => self.ticket.failed(failure),
            Ok(Acquired::Granted { .. }) => return answer,
            Ok(_) => {
                self.ticket.answered(self.spec.permits);
                self.ticket.refused();
            }
        }
        self.ticket.renew_if_given_up(&self.queues);
        answer
    }

    fn answered(mut self, answer: Result<Acquired, Failure>, sent: Tick) -> AfterAnswer {
        let (queues, queue) = (Arc::clone(&self.queues), Arc::clone(&self.queue));
        let now = queues.clock.now();
        let is_late = self.patience == Patience::Once
            && now.since(self.began) >= queues.config.operation_timeout;
        let mut state = queue.lock();
        if answer.is_ok()
            && let Some(remote) = &mut state.remote
        {
            remote.answered();
        }
        match answer {
            // First of all, before the server's answer counts: a hold that began now would have no end (B6, bug 18).
            _ if state.life == Life::Closing => self.ends(state, Error::Closed),
            // Its caller was dropped while the answer was under way: a hold would only be seen by others as taken (bug 179).
            Ok(Acquired::Granted { .. }) if !state.is_wanted() => {
                queue.leave_granted(&queues, state, self.ticket);
                AfterAnswer::Ended(Ok(FirstAttempt::Busy(None)))
            }
            Ok(Acquired::Granted { remaining, tokens }) => {
                let granted = self.ticket.granted(sent, remaining, tokens);
                if let Some(hold) = queue.begin_hold(&queues, &state, granted, self.spec) {
                    hold.note_start(self.began);
                    let first = queue.install_first(&queues, state, hold, &granted);
                    return AfterAnswer::Ended(Ok(first));
                }
                match self.late.again(now.since(sent)) {
                    Ok(()) => AfterAnswer::Now(self),
                    Err(failure) => {
                        let error = queue.error(failure, self.spec);
                        self.ends(state, error)
                    }
                }
            }
            Ok(Acquired::GivenUp) => {
                // The server says so only of a lease id that was given up. Another id is as good.
                // Nothing is owed of the old id: the server has its tombstone (B4).
                self.ticket = Ticket::new(&queues, self.spec.terms());
                AfterAnswer::AfterPause(self)
            }
            Ok(held) => self.held(state, &held, now, is_late),
            Err(failure) => self.failed(state, failure, now, is_late),
        }
    }

    /// Another has the name, or it may be this very client that has it still.
    fn held(
        self,
        mut state: Locked<'_, QueueState>,
        answer: &Acquired,
        now: Tick,
        is_late: bool,
    ) -> AfterAnswer {
        let (queues, queue) = (Arc::clone(&self.queues), Arc::clone(&self.queue));
        let once = self.patience == Patience::Once;
        if once && *answer == Acquired::Unset {
            // Waiting would be for a number that no program may ever set (bug 156).
            let error = queue.no_permits(self.spec);
            return self.ends(state, error);
        }
        if once && answer.is_unsettled() && state.is_wanted() {
            if is_late {
                let error = queue.error(still_ours(), self.spec);
                return self.ends(state, error);
            }
            // For waiters whose time is up meanwhile.
            // The name is to be free in a moment, so the caller asks again within its time (bug 257).
            state.remote().failed(&still_ours(), now);
            return AfterAnswer::AfterPause(self);
        }
        queue.note_unset(&queues, &mut state, answer);
        state.remote().answered_held(now, answer.is_unsettled());
        AfterAnswer::Ended(Ok(self.waits(state).said(answer)))
    }

    fn failed(
        self,
        mut state: Locked<'_, QueueState>,
        failure: Failure,
        now: Tick,
        is_late: bool,
    ) -> AfterAnswer {
        // The verdict looks back: an earlier send without an answer makes any failure ambiguous (bug 6).
        if failure.is_final() || is_late {
            let failure = self.ticket.verdict(failure);
            let error = self.queue.error(failure, self.spec);
            return self.ends(state, error);
        }
        // For waiters whose time is up meanwhile.
        state.remote().failed(&failure, now);
        if self.patience == Patience::Once {
            return AfterAnswer::AfterPause(self);
        }
        AfterAnswer::Ended(Ok(self.waits(state)))
    }

    /// The queue goes on under the same ticket.
    fn waits(self, state: Locked<'_, QueueState>) -> FirstAttempt {
        let Attempt {
            queues,
            queue,
            ticket,
            spec,
            patience,
            began,
            ..
        } = self;
        queue.wait_remote(&queues, state, ticket, spec, patience, began)
    }

    fn ends(self, state: Locked<'_, QueueState>, error: Error) -> AfterAnswer {
        self.queue.leave_attempt(&self.queues, state, &self.ticket);
        AfterAnswer::Ended(Err(error))
    }
}

impl Queue {
    /// A first attempt ends without a hold and without a wait.
    pub(crate) fn leave_attempt(
        self: &Arc<Self>,
        queues: &Arc<Queues>,
        state: Locked<'_, QueueState>,
        ticket: &Ticket,
    ) {
        if let Some(pending_release) = ticket.pending_release() {
            abandon(queues, &self.id, pending_release);
        }
        self.go_on(queues, state, Start::Ask);
    }

    /// A first attempt has its hold.
    fn install_first(
        self: &Arc<Self>,
        queues: &Arc<Queues>,
        mut state: Locked<'_, QueueState>,
        hold: Arc<Hold>,
        granted: &Granted,
    ) -> FirstAttempt {
        state.took(queues, &hold);
        if hold.spec().access.is_exclusive() {
            drop(state);
        } else {
            // A shared hold is no phase of the queue (Q1), so the waiters behind it get a driver.
            self.go_on(queues, state, Start::Ask);
        }
        hold.installed(granted);
        // A guard from here on: if the caller is gone, its drop releases the name.
        FirstAttempt::Held(Held::new(hold))
    }

    /// A first attempt was granted after its caller had gone: the next waiter asks under this ticket, or it is given up.
    pub(crate) fn leave_granted(
        self: &Arc<Self>,
        queues: &Arc<Queues>,
        mut state: Locked<'_, QueueState>,
        ticket: Ticket,
    ) {
        let old = state.remote().take_over(ticket);
        debug_assert!(old.is_none(), "a queue has one ticket (B5)");
        self.go_on(queues, state, Start::Ask);
    }

    /// A first attempt found the name held by another process, or the server out of reach. The queue takes its ticket over, with the
    /// newcomer in front, if it waits. A driver goes on if a caller waits, or the ticket is open: else the server has nothing of us.
    fn wait_remote(
        self: &Arc<Self>,
        queues: &Arc<Queues>,
        mut state: Locked<'_, QueueState>,
        ticket: Ticket,
        spec: Spec,
        patience: Patience,
        began: Tick,
    ) -> FirstAttempt {
        let trouble = state.remote().trouble.is_some();
        let old = state.remote().take_over(ticket);
        debug_assert!(old.is_none(), "a queue has one ticket (B5)");
        // In front of all that wait: it came before them, since they have waited for its attempt.
        let first = if patience == Patience::Once || !state.is_wanted() {
            FirstAttempt::Busy(None)
        } else {
            FirstAttempt::Wait(state.line_up(self, spec, false, true, began))
        };
        let start = if trouble {
            Start::Recover
        } else if state.try_once > 0 {
            Start::Ask // for those that came while this attempt was under way: the name may be free since
        } else {
            Start::Listen
        };
        self.go_on(queues, state, start);
        first
    }

    pub(crate) fn error(&self, failure: Failure, spec: Spec) -> Error {
        let free = lease::free_for_users(&self.id, spec.lease());
        failure.into_error(format!("lock {:?}", self.id.name), free)
    }
}

impl WaitTicket {
    /// Waits to be answered.
    async fn answer(
        &mut self,
        queues: &Queues,
        spec: Spec,
        until: Option<Instant>,
        began: Tick,
    ) -> WaitResult {
        // After lining up: when the background runtime ends, it tells the waiters in the queues.
        queues.check_background()?;
        let mut warn_at = Some(Instant::now() + SELF_WAIT_WARNING);
        let mut attend_at = Some(Instant::now() + HEAR_AFTER);
        loop {
            let alarm = [attend_at, warn_at, until].into_iter().flatten().min();
            tokio::select! {
                biased;
                answer = &mut self.answered => return answer,
                () = sleep_until(queues, alarm) => {}
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                let out_of_time = self.queue.out_of_time(queues, spec, began);
                // The holder by now may be this caller's own guard, which came in the same instant.
                let answer = (&mut self.answered).now_or_never();
                return answer.unwrap_or(out_of_time);
            }
            let now = Instant::now();
            if attend_at.is_some_and(|at| now >= at) {
                attend_at = self.queue.attend(self.number).map(|pause| now + pause);
            }
            if warn_at.is_some_and(|at| now >= at) {
                self.queue.warn_of_long_wait(queues, spec);
                warn_at = None;
            }
        }
    }
}

async fn sleep_until(queues: &Queues, alarm: Option<Instant>) {
    match alarm {
        Some(at) => {
            queues
                .sleep_here(at.saturating_duration_since(Instant::now()))
                .await;
        }
        None => std::future::pending().await,
    }
}

impl Drop for WaitTicket {
    fn drop(&mut self) {
        // Q5: an answer may be there, with a guard in it. Declared before the queue's lock, it is dropped after it.
        let (was_unanswered, _answer) = self.answered.close();
        let mut state = self.queue.lock();
        let at = state
            .waiters
            .binary_search_by_key(&self.number, |waiter| waiter.number);
        let at = match at {
            Ok(at) => {
                let waiter = state.waiters.remove(at);
                if waiter.as_ref().is_some_and(|w| w.once) {
                    state.try_once -= 1;
                }
                at
            }
            // Another task found the slot closed and removed the entry before this lock. Tasks do so at the front only: it was the first.
            Err(_) if was_unanswered => 0,
            Err(_) => {
                // It was served. A driver would check whether others wait; a holder of this process does not.
                if matches!(state.phase, Phase::Idle | Phase::Held(_)) {
                    drop(self.queue.stop_listening(&self.queue.queues, &mut state));
                }
                return;
            }
        };
        self.queue.waiter_left(&mut state, at == 0);
    }
}
