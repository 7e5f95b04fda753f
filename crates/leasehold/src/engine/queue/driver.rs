//! Asks for the name on behalf of all its waiters in this process.

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::FutureExt;

use crate::{
    backend::{Acquire, Acquired, Failure, Reply},
    backoff::{Backoff, stretched},
    clock::Tick,
    config::{PollRange, millis},
    engine::claim::ask::{TooLate, ask_server, still_ours},
    engine::claim::pending_release::{PendingRelease, abandon, may_owe},
    engine::claim::ticket::Ticket,
    engine::hold::spec::Spec,
    engine::hold::{Granted, Hold},
    engine::local::locked::Locked,
    engine::queue::map::Queues,
    engine::queue::{Phase, Queue, QueueState, Start},
    kind::Access,
    name::Name,
    outage::DANGER,
    user_callback,
};

/// A lease of more round trips than this does not end on the way.
const LONG_ENOUGH: u64 = 8;

/// An entry is kept for at most this long until the server has confirmed that its client does not listen any more. Only
/// fairness depends on it, and a connection that stands still must not keep the name from the next.
const UNSUBSCRIBED: Duration = Duration::from_millis(20);

/// Starts a driver, in the background.
pub(crate) fn start(queues: &Arc<Queues>, queue: &Arc<Queue>, start: Start) {
    queues.spawn(drive(Arc::clone(queues), Arc::clone(queue), start));
}

/// Asks for the name until a waiter of this process holds it, or none is left.
pub(crate) async fn drive(queues: Arc<Queues>, queue: Arc<Queue>, start: Start) {
    let mut driver = Driver::new(&queues, &queue, start);
    // A release of this process has just been answered, so the first ask waits for no other one.
    let mut waited = matches!(start, Start::AskNow);
    loop {
        // In each round: the waiter that it asked for may be dropped at any time, and no caller waits for its driver to end (bug 21).
        if queue.lock().first_live_waiter().is_none() {
            return driver.leave().await;
        }
        // While a shared hold is released and the first waiter asks only once, the queue is left to that release. Its answer starts the
        // next driver, which asks before it yields again (`waited`).
        if !waited && queue.leave_to_release() {
            return; // and the release goes on with the queue
        }
        waited &= !matches!(driver.next, Step::Ask);
        driver.next = match driver.next {
            Step::Ask => match driver.left_to_others() {
                Some(way) => driver.give_way(way).await,
                None => driver.ask().await,
            },
            Step::Listen => driver.listen().await,
            Step::Wait(left) => driver.wait(Pause::For(driver.until_notified(left))).await,
            Step::Poll(pause) => {
                let next = driver.wait(Pause::For(pause)).await;
                // A poll waits for no message, so its end says nothing of a message that was missed.
                driver.untold = false;
                next
            }
            Step::Turn { left, foreign } => {
                driver.wait(Pause::UntilNotified { left, foreign }).await
            }
            Step::ListenOwn => driver.listen_own().await,
            // The same pauses for all failures: a driver without them asked 37,000 times a second (bug 18).
            Step::Recover => {
                queues.sleep(driver.backoff.next()).await;
                Step::Ask
            }
            Step::Exit => Step::Exit,
        };
        if matches!(driver.next, Step::Exit) {
            return; // the queue is the holder's now
        }
    }
}

struct Driver<'a> {
    queues: &'a Arc<Queues>,
    queue: &'a Arc<Queue>,
    number: u32,
    next: Step,
    backoff: Backoff,
    /// How often in a row it has polled.
    polls: u32,
    /// Until when the holder's lease lasts, of which the server said so last.
    held_until: Tick,
    /// No message ended its wait.
    untold: bool,
    /// Grants that came too late, for the lease that is asked for now.
    late: Option<TooLate>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask,
    Listen,
    /// Wait for a wake-up, at most until the holder's lease ends.
    Wait(Option<Duration>),
    /// No holder tells when the name is free: poll after this pause.
    Poll(Duration),
    /// Wait until its turn has come, behind a holder whose lease ends in so long; beside clients of another library or not.
    Turn {
        left: Option<Duration>,
        foreign: bool,
    },
    /// Hear what clients of Redisson's say to the next waiter.
    ListenOwn,
    /// The server gave no usable answer: ask again in a moment.
    Recover,
    /// A waiter has the guard.
    Exit,
}

impl<'a> Driver<'a> {
    fn new(queues: &'a Arc<Queues>, queue: &'a Arc<Queue>, start: Start) -> Self {
        let mut state = queue.lock();
        // A driver that sleeps on after its successor was made finds another number here, and leaves (Q1).
        state.driver = state.driver.wrapping_add(1);
        Driver {
            queues,
            queue,
            number: state.driver,
            next: match start {
                Start::Ask | Start::AskNow => Step::Ask,
                Start::Recover => Step::Recover,
                Start::Listen => Step::Listen,
            },
            backoff: Backoff::of_request(),
            polls: 0,
            held_until: Tick::MAX,
            untold: false,
            late: None,
        }
    }

    /// Asks the server for the name, and for an entry in its queue if wake-ups are heard.
    async fn ask(&mut self) -> Step {
        self.give_up_other_terms().await;
        let Some(Sending {
            step,
            sent,
            was_granted,
            given,
            listening,
        }) = Sending::of_first(self.queues, self.queue, &mut self.late)
        else {
            return Step::Ask; // no waiter, or another one, is the first: find that again
        };
        let (lease, lease_ms, access) = (step.lease, step.lease_ms, step.access);
        let said = step.permits;
        // A task that was not heard for a while may have its entry still.
        let queued = step.entry.is_some() || self.queue.id.is_of_task();
        // The queue's lock is free meanwhile: waiters may leave, and a grant may overtake this answer.
        let answer = ask_server(self.queues, &self.queues.watchdog.restarts, (step, sent)).await;
        let now = self.queues.clock.now();
        let mut state = self.queue.lock();
        if let Ok(answer) = &answer {
            self.queue.note_unset(self.queues, &mut state, answer);
        }
        let once = state.first_asks_once();
        // Another answer has settled this id already: a grant by message, or a shutdown (B6).
        let Some(ticket) = state.remote().ticket(lease) else {
            return Step::Ask;
        };
        // A pending release of this client may be what holds the name: then "held" is no answer for who asks only once (bug 257).
        let unsettled = answer.as_ref().is_ok_and(Acquired::is_unsettled);
        // Only an answer proves that the server knows the request. The id is owed until then (bugs 6, 39).
        if answer.is_ok() && !(unsettled && once) {
            ticket.answered(said);
        }
        match answer {
            Ok(Acquired::Granted { remaining, tokens }) => {
                let granted = ticket.granted(sent, remaining, tokens);
                // B1: the lease runs from the send, whenever this answer is read (bug 17).
                state.remote().answered();
                self.note_unnotified(listening && sent < self.held_until);
                self.granted(state, &granted, lease_ms, now.since(sent))
            }
            Ok(Acquired::Held {
                ttl,
                silent,
                unsettled,
            }) => {
                // With an entry the server may still grant this id, so the ticket stays open (bug 144).
                if !queued {
                    ticket.refused();
                }
                if unsettled && once {
                    return self.failed(&mut state, &still_ours());
                }
                let took = now.since(sent);
                // A lease of many round trips is not too short (L4): this process was stopped when its turn came.
                let is_short = lease_ms <= LONG_ENOUGH * millis(took).max(1);
                if was_granted && self.queue.id.is_of_task() && is_short {
                    self.granted_too_late(&mut state, lease_ms, took);
                }
                // Counted from the send: this process may have been stopped since.
                let left = ttl.map(|ttl| ttl.saturating_sub(now.since(sent)));
                // Only those that came before the send are told: for the others the answer is too old (bug 166).
                state.refuse_try_once(self.queue, access, given);
                state.remote().answered_held(now, unsettled);
                self.held_by_another(&mut state, left, silent)
            }
            Ok(Acquired::Unset) => {
                ticket.refused();
                state.refuse_try_once(self.queue, access, given);
                state.remote().answered_held(now, false);
                self.held_by_another(&mut state, None, false)
            }
            Ok(Acquired::GivenUp) => self.given_up(state),
            Err(failure) => {
                ticket.failed(&failure);
                self.failed(&mut state, &failure)
            }
        }
    }

    /// B2: an entry keeps its terms. A waiter with other terms takes another id, once the old one is given up: in one step, since a driver
    /// that stopped in between would lose the pending release (B5).
    async fn give_up_other_terms(&mut self) {
        let old = {
            let mut state = self.queue.lock();
            let terms = state.first_live_waiter().map(|spec| spec.terms());
            let remote = state.remote();
            terms.and_then(|terms| remote.give_up_other(terms))
        };
        if let Some(old) = old {
            self.give_up(old).await;
        }
    }

    /// The first waiter has what was `granted`, in an answer that took so long.
    fn granted(
        &mut self,
        mut state: Locked<'_, QueueState>,
        granted: &Granted,
        lease_ms: u64,
        took: Duration,
    ) -> Step {
        self.backoff.reset();
        if let Some(hold) = self.queue.install(self.queues, &mut state, *granted) {
            // Q5: what follows calls observers and wakers.
            drop(state);
            hold.installed(granted);
            if hold.spec().access.is_exclusive() {
                return Step::Exit;
            }
            return Step::Ask; // for the next, if one waits
        }
        // Else the waiter has left meanwhile, and its lease is not to blame.
        if self.queues.clock.now() >= granted.until {
            self.granted_too_late(&mut state, lease_ms, took);
        }
        // The ticket stays: asked for again under the same id, the server says `Granted` again; without a waiter `leave` gives it up.
        // (The first waiter now, if there is one, may ask for something else.)
        Step::Ask
    }

    /// A waiter has the name, perhaps `early`: before the end that its holder had. If no message said so, that went to a classic channel.
    fn note_unnotified(&mut self, early: bool) {
        if std::mem::take(&mut self.untold) && early {
            self.queue.freed_without_message(self.queues);
        }
    }

    /// The lock was given to this task, and is over already, says the answer to an ask that `took` so long.
    fn granted_too_late(
        &mut self,
        state: &mut Locked<'_, QueueState>,
        lease_ms: u64,
        took: Duration,
    ) {
        if let Some(late) = &mut self.late
            && let Err(failure) = late.again(took)
            && let Some(spec) = state.first_live_waiter()
            // A waiter with another lease may have come to the front since (bug 38).
            && spec.lease_ms() == lease_ms
        {
            // Only this waiter's lease is too short (L4), and it is the one that was asked for.
            self.late = None;
            let error = self.queue.error(failure, spec);
            state.answer_first(error);
        }
    }

    /// The server says so only of a lease id that was given up (another id is as good).
    fn given_up(&self, mut state: Locked<'_, QueueState>) -> Step {
        let pending_release = state.remote().give_up();
        drop(state);
        if let Some(pending_release) = pending_release {
            abandon(self.queues, &self.queue.id, pending_release);
        }
        Step::Recover
    }

    /// The server says that another owner holds the name, a `silent` one or not; `left` of its lease remains.
    fn held_by_another(
        &mut self,
        state: &mut Locked<'_, QueueState>,
        left: Option<Duration>,
        silent: bool,
    ) -> Step {
        // A client that waits is named by `status`, too.
        self.queues.watchdog.needs_label(Duration::ZERO);
        let listening = state.is_listening();
        let remote = state.remote();
        let unsettled = remote.is_unsettled();
        if listening && !unsettled {
            // Not before wake-ups are heard: where they are refused, each pause is longer than the one before.
            self.backoff.reset();
        }
        let now = self.queues.clock.now();
        self.held_until = left.map_or(Tick::MAX, |left| now.after(left));
        remote.renew_ticket(self.queues);
        remote.answered();
        remote.turns.shared = true;
        let granted = remote.granted;
        let own = remote.own.is_some() && remote.own == remote.ticket.as_ref().map(Ticket::lease);
        // The server may have granted our ticket after this answer (B5). Or the first waiter asks only once, and this answer did not refuse
        // it: it came later, or wants less. In both cases the driver asks again.
        // A message that came before its answer must not be slept through (bug 115).
        if granted || state.first_asks_once() {
            Step::Ask
        } else if unsettled && listening {
            // A lease id that is given up frees the name for its waiters; if it did not hold the name, no waiter is told.
            Step::Poll(self.backoff.next())
        } else if self.queue.id.is_of_task() && listening {
            if silent && !own {
                Step::ListenOwn
            } else {
                Step::Turn {
                    left,
                    foreign: silent,
                }
            }
        } else if let Some(pause) = self.poll_after(state, silent && listening, left) {
            Step::Poll(pause)
        } else if listening {
            Step::Wait(left)
        } else {
            Step::Listen
        }
    }

    /// No answer, or a refusal. A refusal for good is every waiter's answer. All else is waited out, by each waiter up to its
    /// own patience (L4).
    fn failed(&mut self, state: &mut Locked<'_, QueueState>, failure: &Failure) -> Step {
        // A wait that ended in a failure says nothing of messages.
        self.untold = false;
        let Some(spec) = state.first_live_waiter() else {
            return Step::Ask;
        };
        let now = self.queues.clock.now();
        let remote = state.remote();
        let lasts = remote.failed(failure, now);
        let cannot_hear = remote.cannot_hear();
        let verdict = match &remote.ticket {
            Some(ticket) => ticket.verdict(failure.clone()),
            None => failure.clone(),
        };
        remote.renew_ticket(self.queues);
        if failure.is_final() {
            // Each of them would get the same refusal, after a request of its own.
            state.answer_all(&self.queue.error(verdict, spec));
        } else if lasts.is_none() && cannot_hear {
            // The name can be asked for, only not listened for: callers wait on, by polls (bugs 43, 54).
            self.queue.warn_of_deafness(self.queues, failure);
        } else if lasts >= Some(self.queues.config.operation_timeout) {
            // `try_lock` promises an answer within the operation timeout. Waiters have patience of their own (L4).
            state.answer_try_once(&Err(self.queue.error(verdict, spec)));
        }
        Step::Recover
    }

    /// No waiter is left: gives up the ticket and the subscription of this process. The queue goes on if a waiter came meanwhile.
    async fn leave(&mut self) {
        let (pending_release, _leaving) = {
            let mut state = self.queue.lock();
            let remote = state.remote();
            // Dropped at the end: a request of this process that is sent meanwhile may be told of this very id (bug 257).
            (remote.give_up(), remote.leaving.take())
        };
        // First the subscription, then the entry: a release in between takes a client that listens without an entry for a waiter
        // of Redisson's, and wakes all.
        let unheard = {
            let mut state = self.queue.lock();
            self.queue.stop_listening(self.queues, &mut state)
        };
        if let Some(unheard) = unheard {
            // Not for ever: a server that never confirms it must not keep the entry alive (L3).
            let _ = self.queues.within(UNSUBSCRIBED, unheard).await;
        }
        if let Some(pending_release) = pending_release {
            self.give_up(pending_release).await;
        }
        self.queue.go_on(self.queues, self.queue.lock(), Start::Ask);
    }

    /// Tells the server once here, so that the next caller finds the name free; if need be, again in the background.
    async fn give_up(&self, pending_release: PendingRelease) {
        let (queues, id) = (self.queues, &self.queue.id);
        // A client that has never reached its server owes nothing there.
        if !may_owe(queues) {
            return;
        }
        let release = pending_release.release(queues, id, queues.is_listening(id));
        // Until the answer, requests of this process may be told of this very lease id (bug 257).
        let _settling = queues.unsettled.begin(&id.name);
        if let Err(failure) = queues.backend.release(release).await {
            // A copy of this release may arrive late, so the next one leaves a tombstone for it (B4).
            let copies = pending_release.copies || failure.is_ambiguous();
            abandon(
                queues,
                id,
                PendingRelease {
                    copies,
                    ..pending_release
                },
            );
        }
    }
}

// The request of a driver, on behalf of the first waiter.

/// A request of a driver, and how things stood when it was sent.
pub(crate) struct Sending {
    pub(crate) step: Acquire,
    pub(crate) sent: Tick,
    pub(crate) was_granted: bool,
    pub(crate) given: i64,
    pub(crate) listening: bool,
}

impl Sending {
    /// The request for the first waiter; `None`: there is no waiter, or one with other terms than the ticket's.
    pub(crate) fn of_first(
        queues: &Queues,
        queue: &Queue,
        late: &mut Option<TooLate>,
    ) -> Option<Sending> {
        let mut state = queue.lock();
        let spec = state.first_live_waiter()?;
        if late
            .as_ref()
            .is_none_or(|late| late.limit() != spec.limit())
        {
            *late = Some(TooLate::new(spec));
        }
        let (listening, given) = (state.is_listening(), state.given());
        let permits = state.permits_to_report();
        let remote = state.remote();
        // A ticket keeps its lease id for as long as it is asked for: its entry in the server's queue goes with it (B5).
        let ticket = remote.ticket_for(queues, spec.terms())?;
        let sent = queues.clock.now();
        let ask = ticket.ask(sent);
        // They may differ from ask to ask, since no belief rests on them: a late copy says a number late, and changes no hold.
        let spec = Spec { permits, ..spec };
        let mut step = spec.request(&queue.id, ticket.lease());
        // Permits are raced for.
        step.entry = (listening && !matches!(spec.access, Access::Permits(_)))
            .then(|| ticket.entry(queues, ask));
        let was_granted = remote.granted;
        // It is asked for again, by one that waits.
        remote.leaving = None;
        remote.asks();
        Some(Sending {
            step,
            sent,
            was_granted,
            given,
            listening,
        })
    }
}

// How a driver waits: it is told, or it polls.

/// A lease that ends is over on the server by so much later.
pub(crate) const AFTER_THE_END: Duration = Duration::from_millis(2);

/// How long a driver waits for a wake-up.
pub(crate) enum Pause {
    For(Duration),
    /// The heartbeat of its fair queue polls for it: when the holder's lease ends, at the latest.
    UntilNotified {
        left: Option<Duration>,
        foreign: bool,
    },
}

impl Driver<'_> {
    /// How long a waiter that is told waits: until the end of the holder's lease, of which `left` remains, or for the poll
    /// interval.
    pub(crate) fn until_notified(&self, left: Option<Duration>) -> Duration {
        let poll = stretched(self.queues.config.poll_every);
        left.map_or(poll, |left| poll.min(left + AFTER_THE_END))
    }

    /// The pause of a waiter that polls, beside a holder that is `silent` or not and of whose lease `left` remains.
    /// `None`: it is told.
    pub(crate) fn poll_after(
        &mut self,
        state: &mut Locked<'_, QueueState>,
        silent: bool,
        left: Option<Duration>,
    ) -> Option<Duration> {
        let first = state.first_live_waiter();
        let Some(backoff) = first.and_then(|first| first.waits.backoff(silent)) else {
            self.polls = 0;
            return None;
        };
        let pause = backoff.pause(self.polls);
        self.polls += 1;
        self.backoff.reset();
        Some(left.map_or(pause, |left| pause.min(left + AFTER_THE_END)))
    }

    /// Learns to hear wake-ups; after that the server must be asked once more.
    pub(crate) async fn listen(&mut self) -> Step {
        {
            let mut state = self.queue.lock();
            let first = state.first_live_waiter();
            if first.is_some_and(|first| !first.waits.listens()) {
                return Step::Ask; // and so learn how long the holder's lease lasts
            }
            let remote = state.remote();
            if !remote.subscription.asks() {
                return Step::Ask;
            }
        }
        let answer = if let Some(fair_queue) = self.queues.fair_queue(&self.queue.id) {
            fair_queue.listen(self.queues, self.queue.id.task()).await
        } else {
            let answer = self.queues.backend.listen(self.queue.id.clone()).await;
            answer.map(|()| true)
        };
        // A message that was sent before the subscription was there did not come here: so the server is asked once more (L1).
        let mut state = self.queue.lock();
        let is_heard = answer.as_ref().is_ok_and(|is_open| *is_open);
        state.remote().subscription.answered(is_heard);
        match answer {
            Ok(_) => Step::Ask,
            Err(failure) => self.failed(&mut state, &failure),
        }
    }

    /// For how long others are to try first.
    pub(crate) fn left_to_others(&self) -> Option<Duration> {
        let mut state = self.queue.lock();
        let first = state.first_live_waiter()?;
        // A caller that asks once is to have the server's word, and what was granted is ours already.
        if state.first_asks_once() || state.remote().granted {
            return None;
        }
        let now = self.queues.clock.now();
        // Beside Redisson's waiters the turns that a release tells of are enough.
        let told = self
            .queues
            .redisson_fairness
            .holds_to_tell(&self.queue.id, 1, now);
        let races = matches!(first.access, Access::Permits(_)) && told.is_none();
        let race = state.remote().turns.left(now).filter(|_| races);
        race.max(
            self.queues
                .redisson_fairness
                .left_to_others(&self.queue.id, &self.queues.clock),
        )
    }

    /// Lets others try first for so long, unless it is woken.
    pub(crate) async fn give_way(&mut self, way: Duration) -> Step {
        let mut wake = pin!(self.queue.driver_wake().notified());
        // Registered before the poll: a message in between wakes it (L1).
        wake.as_mut().enable();
        if self.left_to_others().is_some() {
            tokio::select! {
                biased;
                () = wake => {}
                () = self.queues.sleep(way) => {}
            }
        }
        Step::Ask
    }

    /// Learns to hear what a client of Redisson's says to this waiter alone. If that is refused, it polls.
    pub(crate) async fn listen_own(&mut self) -> Step {
        if let Some(heard) = self.queue.hear_own() {
            let _ = heard.await;
        }
        Step::Ask
    }

    /// Waits for a wake-up, at most this long.
    pub(crate) async fn wait(&mut self, pause: Pause) -> Step {
        let mut until = match pause {
            Pause::For(pause) => self.queues.clock.now().after(pause),
            // The heartbeat of the fair queue polls for all its waiters, so this one has no alarm of its own.
            Pause::UntilNotified { .. } => Tick::MAX,
        };
        loop {
            let mut wake = pin!(self.queue.driver_wake().notified());
            {
                let mut state = self.queue.lock();
                // The grant came between the answer and this wait (bug 115).
                if state.remote().granted {
                    return Step::Ask;
                }
                // The driver sleeps only for a waiter that waits on. If the first asks only once, the server has not been asked for it yet.
                // Waiters that ask only once and stand behind a patient one are refused by that alone: `i64::MIN` stands for no answer.
                state.refuse_try_once(self.queue, Access::Exclusive, i64::MIN);
                // Waiters may have left and come since it asked: it sleeps only for what its ticket asks for.
                let first = state.first_live_waiter().map(|first| first.terms());
                let unsaid = state.is_unreported(state.permits_to_report());
                if state.first_asks_once() || first.is_none() || first != state.asked() || unsaid {
                    return Step::Ask;
                }
                // The message may be late: it only brings the next poll nearer.
                if let Some(ends) = state.remote().watched.take() {
                    until = until.min(ends.after(AFTER_THE_END));
                    self.held_until = self.held_until.min(ends);
                }
                // Under the lock, so that a wake-up from here on is for this driver and not for its successor.
                wake.as_mut().enable();
                // The first waiter wants the ticket.
                state.remote().leaving = None;
                state.phase = Phase::WaitingRemote;
            }
            match pause {
                Pause::For(_) => tokio::select! {
                    biased;
                    () = wake => self.untold = false,
                    () = self.queues.sleep(until.since(self.queues.clock.now())) => self.untold = true,
                },
                Pause::UntilNotified { left, foreign } => {
                    // Only now that it waits, since the heartbeat asks for those.
                    if let Some(fair_queue) = self.queues.fair_queue(&self.queue.id) {
                        fair_queue.waits(self.queues, left, foreign);
                    }
                    wake.await;
                }
            }
            let mut state = self.queue.lock();
            // A hold that was installed by message has the queue, or a newer driver has (bug 37).
            if state.driver != self.number {
                return Step::Exit;
            }
            state.phase = Phase::InFlight(None);
            let is_listening = state.is_listening();
            if state.remote().watched.is_none() || !is_listening {
                return Step::Ask;
            }
            // Woken only to learn when the holder's lease ends: it sleeps again, up to that.
        }
    }
}

// How the queue of a name hears of the server: wake-ups, their loss, and the end of a subscription.

/// How often a release checks whether a client waits on a classic channel, where ours are sharded (Redisson before 3.27): neither wakes the other.
const CHECK_EVERY: Duration = Duration::from_secs(5);

impl Queue {
    /// After a release: whether a client waits that was not told of it.
    pub(super) fn check_for_classic(&self, queues: &Arc<Queues>) {
        let backend = &queues.backend;
        if !backend.is_sharded() || !queues.classic[0].may(queues.clock.now(), CHECK_EVERY) {
            return;
        }
        let (name, heard) = (self.id.name.clone(), backend.classic_listeners(&self.id));
        let client = Arc::clone(queues);
        queues.spawn_apart(async move {
            if heard.await.is_ok_and(|clients| clients > 0) {
                client.warn_of_classic(&name, "a client waits on a classic channel");
            }
        });
    }

    /// A waiter has the name, and no message said that it is free: its holder may have told a classic channel, which is warned of.
    pub(super) fn freed_without_message(&self, queues: &Arc<Queues>) {
        if queues.backend.is_sharded() {
            let (name, client) = (self.id.name.clone(), Arc::clone(queues));
            // Not under the queue's lock.
            queues.spawn_apart(async move {
                client.warn_of_classic(&name, "it became free without a message");
            });
        }
    }

    /// The waiters are answered, and do not hear: each poll ends that trouble and begins another, so it is told once in a while, of
    /// all that wait. A server that cannot be used at all is told of by itself.
    pub(crate) fn warn_of_deafness(&self, queues: &Queues, failure: &Failure) {
        let (name, cause) = (self.id.name.clone(), Arc::clone(failure.cause()));
        let is_outage =
            queues.backend.outage().is_on() || queues.backend.trouble_of(&self.id).is_some();
        if is_outage || !queues.warned_of_deafness.may_warn(queues.clock.now()) {
            return;
        }
        // Not under the queue's lock: a subscriber may wait for a thread that waits for that.
        queues.spawn(async move {
            user_callback::catch_panic(|| {
                tracing::warn!(target: DANGER, %name, %cause, "cannot hear when the name is free, and polls");
            });
        });
    }

    /// The driver is told to ask the server: now, or when the lease of the holder that it watches is over.
    pub(crate) fn poll_now(&self, watched: Option<Tick>) {
        let mut state = self.lock();
        // An idle queue has no driver, and the holder's queue asks when it gives the name back.
        if !matches!(state.phase, Phase::Idle | Phase::Held(_)) {
            if let Some(remote) = &mut state.remote {
                // `None` outweighs an end that was told before: the name may be free now.
                remote.watched = watched;
            }
            self.driver_wake().notify_one();
        }
    }

    /// The server does not let this client hear wake-ups for the name any more: its driver has to subscribe again.
    pub(crate) fn became_deaf(&self) {
        let mut state = self.lock();
        let Some(remote) = &mut state.remote else {
            return;
        };
        if remote.subscription.ended() {
            // Woken at once: no other event tells it that the messages have ended (bug 67).
            self.driver_wake().notify_one();
        }
    }

    /// From now on this task hears what clients of Redisson's say to it alone. `None`: it does not wait, or hears that already.
    pub(crate) fn hear_own(self: &Arc<Self>) -> Option<Reply<()>> {
        let (old, own) = {
            let mut state = self.lock();
            let remote = state.remote();
            let lease = remote.ticket.as_ref()?.lease();
            if remote.own == Some(lease) {
                return None;
            }
            (remote.own.replace(lease), lease)
        };
        let backend = &self.queues.backend;
        // Redisson's channel of one waiter is named by the waiter's lease id: `of_task` makes that name.
        // A lease id is never used again, so its channel would stay subscribed for good (bug 21).
        if let Some(old) = old {
            drop(backend.unlisten(&self.id.of_task(old.get())));
        }
        let (queue, id) = (Arc::clone(self), self.id.of_task(own.get()));
        let heard = sent(backend.listen(id.clone()));
        Some(Box::pin(async move {
            let answer = heard.await;
            let remote = queue.lock().remote.as_ref().and_then(|remote| remote.own);
            if remote != Some(own) {
                // It has left meanwhile, and the answer may be late or lost.
                drop(queue.queues.backend.unlisten(&id));
            }
            answer
        }))
    }

    /// Without waiters there is nothing to hear. The reply says when the server has taken note; it may be dropped.
    pub(crate) fn stop_listening(
        &self,
        queues: &Arc<Queues>,
        state: &mut QueueState,
    ) -> Option<Reply<()>> {
        let remote = state.remote.as_mut()?;
        // A waiter that came while its driver left hears on by this subscription (bug 93).
        if !state.waiters.is_empty() {
            return None;
        }
        let may_be_there = remote.subscription.close();
        if self.id.is_of_task() {
            // Also after a refusal, which closes this task's part and leaves it among those that listen.
            if let Some(own) = remote.own.take() {
                drop(queues.backend.unlisten(&self.id.of_task(own.get())));
            }
            if let Some(fair_queue) = queues.fair_queue(&self.id) {
                fair_queue.unlisten(self.id.task());
            }
            return None;
        }
        may_be_there.then(|| queues.backend.unlisten(&self.id))
    }
}

/// A request that has left when this returns: what is asked for later comes behind it.
pub(crate) fn sent<T: Send + 'static>(mut reply: Reply<T>) -> Reply<T> {
    match (&mut reply).now_or_never() {
        Some(answer) => Box::pin(std::future::ready(answer)),
        None => reply,
    }
}

impl Queues {
    fn warn_of_classic(&self, name: &Name, sign: &str) {
        if self.classic[1].may_warn(self.clock.now()) {
            user_callback::catch_panic(|| {
                tracing::warn!(target: "leasehold", %name, "{sign}, and ours are sharded: clients of one lock that differ in that do not \
                    wake each other. Redisson before 3.27 in cluster mode uses classic ones: say sharded_channels(false) in all programs of ours");
            });
        }
    }
}

// How a process learns that a hold of its own was taken from it, while tasks of it wait for the lock.

/// After so long a task that waits behind a holder of its process has this listen: most waits are over by then, and cost the server nothing.
pub(crate) const HEAR_AFTER: Duration = Duration::from_secs(1);

/// Where there was nothing to do for a task that waits, it polls again after this time.
const AGAIN: Duration = Duration::from_secs(1);

/// A message has a hold verified once in this time. A younger hold is verified when it is so old: the message may be a late word
/// of the release before.
const DOUBT_EVERY: Duration = Duration::from_millis(50);

impl Queue {
    /// The holds of this process may have been taken from it: they are verified, once in a while. `forced`: by force, says the server.
    pub(crate) fn doubt_holders(&self, forced: bool) {
        let now = self.queues.clock.now();
        let (holds, at) = {
            let mut state = self.lock();
            let holds = state.all_held();
            // No renewal of a short lease is to come late by this.
            let every = holds.iter().map(|hold| hold.spec().ask_every()).min();
            let Some(latest) = every.map(|every| now.after(DOUBT_EVERY.min(every / 8))) else {
                return;
            };
            let young_until = if forced {
                now
            } else {
                state.since.after(DOUBT_EVERY)
            };
            let remote = state.remote();
            if remote.doubted > now {
                return; // the server is going to be asked
            }
            let at = young_until.max(remote.doubted.after(DOUBT_EVERY));
            remote.doubted = at.min(latest).max(now);
            (holds, remote.doubted)
        };
        for hold in holds {
            hold.doubt(at);
        }
    }

    /// This task has waited for a while. If a holder of its process has the lock, the process hears from now on if it is taken from that.
    /// Returns after which time it is to poll again; `None`: that is all.
    pub(crate) fn attend(self: &Arc<Self>, number: i64) -> Option<Duration> {
        if let Some(fair_queue) = self.queues.fair_queue(&self.id) {
            // Redisson tells the next in turn alone that a lock was unlocked by force.
            if !fair_queue.is_next(self.id.task()) {
                return Some(AGAIN);
            }
            if let Some(heard) = self.hear_own() {
                let queue = Arc::clone(self);
                self.queues.spawn(async move {
                    let _ = heard.await;
                    queue.driver_wake().notify_one();
                });
            }
            return None;
        }
        let mut state = self.lock();
        let Phase::Held(hold) = &state.phase else {
            // Its driver hears as long as a task waits, or is about to subscribe.
            return (!state.is_listening()).then_some(AGAIN);
        };
        let waits = hold.spec().waits;
        if !waits.listens() {
            // Only the first polls, as often as it would if another process held it.
            if state.first_number() != Some(number) {
                return Some(AGAIN);
            }
            drop(state);
            self.doubt_holders(true);
            return waits.backoff(true).map(PollRange::usual);
        }
        if state.is_listening() {
            return None;
        }
        // The first asks for all that wait: else a server that refuses would be asked once for each.
        if state.first_number() == Some(number) && state.remote().subscription.asks_first() {
            // Under the lock: if the last waiter leaves, that is asked for behind this.
            let heard = sent(self.queues.backend.listen(self.id.clone()));
            drop(state);
            self.queues.spawn(hear(Arc::clone(self), heard));
        }
        // The request may fail: then a later look of the first waiter sends the next.
        Some(AGAIN)
    }
}

/// Has the process hear wake-ups although a holder of its own has the lock.
async fn hear(queue: Arc<Queue>, heard: Reply<()>) {
    let answer = heard.await;
    let is_heard = {
        let mut state = queue.lock();
        let is_held = matches!(state.phase, Phase::Held(_));
        // If the last waiter has left meanwhile, it was closed again.
        let is_heard = state.remote().subscription.answered(answer.is_ok());
        // A driver asks by itself.
        is_heard && is_held
    };
    if is_heard {
        // For what happened before.
        queue.doubt_holders(true);
    }
}

impl QueueState {
    /// All holds of this queue.
    pub(crate) fn all_held(&self) -> Vec<Arc<Hold>> {
        let exclusive = match &self.phase {
            Phase::Held(hold) => Some(hold),
            _ => None,
        };
        let all = exclusive.into_iter().chain(self.shared.all());
        all.map(Arc::clone).collect()
    }
}
