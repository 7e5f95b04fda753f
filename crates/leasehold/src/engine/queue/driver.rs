//! Asks for the name on behalf of all its waiters in this process.

pub(crate) mod request;
pub(crate) mod wait;

use std::{sync::Arc, time::Duration};

use crate::{
    backend::{Acquired, Failure},
    backoff::Backoff,
    clock::Tick,
    config::millis,
    engine::claim::ask::{TooLate, ask_server, still_ours},
    engine::claim::debt::{Debt, abandon, may_owe},
    engine::claim::ticket::Ticket,
    engine::hold::Granted,
    engine::local::locked::Locked,
    engine::queue::driver::request::Sending,
    engine::queue::driver::wait::Pause,
    engine::queue::map::Queues,
    engine::queue::{Queue, QueueState, Start},
};

/// A lease of more round trips than this does not end on the way.
const LONG_ENOUGH: u64 = 8;

/// A place is kept for at most this long until the server has confirmed that its client does not listen any more. Only
/// fairness depends on it, and a connection that stands still must not keep the name from the next.
const UNSUBSCRIBED: Duration = Duration::from_millis(20);

/// Starts a driver, in the background.
pub(crate) fn start(core: &Arc<Queues>, queue: &Arc<Queue>, start: Start) {
    core.spawn(drive(Arc::clone(core), Arc::clone(queue), start));
}

/// Asks for the name until a waiter of this process holds it, or none is left.
pub(crate) async fn drive(core: Arc<Queues>, queue: Arc<Queue>, start: Start) {
    let mut driver = Driver::new(&core, &queue, start);
    // For a release of this process, before the first waiter is asked for.
    let mut waited = matches!(start, Start::AskNow);
    loop {
        if queue.lock().first_live_waiter().is_none() {
            return driver.leave().await;
        }
        if !waited && queue.waits_for_a_release() {
            return; // and the release goes on with the queue
        }
        waited &= !matches!(driver.next, Step::Ask);
        driver.next = match driver.next {
            Step::Ask => match driver.left_to_others() {
                Some(way) => driver.give_way(way).await,
                None => driver.ask().await,
            },
            Step::Listen => driver.listen().await,
            Step::Wait(left) => driver.wait(Pause::For(driver.until_told(left))).await,
            Step::Look(pause) => {
                let next = driver.wait(Pause::For(pause)).await;
                driver.untold = false;
                next
            }
            Step::Turn { left, foreign } => driver.wait(Pause::UntilTold { left, foreign }).await,
            Step::ListenOwn => driver.listen_own().await,
            Step::Recover => {
                core.sleep(driver.backoff.next()).await;
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
    core: &'a Arc<Queues>,
    queue: &'a Arc<Queue>,
    number: u32,
    next: Step,
    backoff: Backoff,
    /// How often in a row it has looked by itself.
    looks: u32,
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
    /// No holder tells when the name is free: look after this pause.
    Look(Duration),
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
    fn new(core: &'a Arc<Queues>, queue: &'a Arc<Queue>, start: Start) -> Self {
        let mut state = queue.lock();
        state.driver = state.driver.wrapping_add(1);
        Driver {
            core,
            queue,
            number: state.driver,
            next: match start {
                Start::Ask | Start::AskNow => Step::Ask,
                Start::Recover => Step::Recover,
                Start::Wait { until } if state.is_listening() => {
                    Step::Wait(Some(until.since(core.clock.now())))
                }
                // Not queued, because not subscribed yet: do both.
                Start::Listen | Start::Wait { .. } => Step::Listen,
            },
            backoff: Backoff::of_request(),
            looks: 0,
            held_until: Tick::MAX,
            untold: false,
            late: None,
        }
    }

    /// Asks the server for the name, and for a place in its queue if wake-ups are heard.
    async fn ask(&mut self) -> Step {
        self.give_up_other_terms().await;
        let Some(Sending {
            step,
            sent,
            was_granted,
            given,
            listening,
        }) = Sending::of_first(self.core, self.queue, &mut self.late)
        else {
            return Step::Ask; // no waiter, or another one, is the first: find that again
        };
        let (lease, lease_ms, access) = (step.lease, step.lease_ms, step.access);
        let said = step.permits;
        // A task that was not heard for a while may have its place still.
        let queued = step.place.is_some() || self.queue.id.is_of_task();
        let answer = ask_server(self.core, step).await;
        let now = self.core.clock.now();
        let mut state = self.queue.lock();
        if let Ok(answer) = &answer {
            self.queue.note_unset(self.core, &mut state, answer);
        }
        let once = state.first_asks_once();
        let Some(ticket) = state.remote().ticket(lease) else {
            return Step::Ask;
        };
        // It is asked again, as after no answer.
        let unsettled = answer.as_ref().is_ok_and(Acquired::is_unsettled);
        if answer.is_ok() && !(unsettled && once) {
            ticket.answered(said);
        }
        match answer {
            Ok(Acquired::Granted { remaining, tokens }) => {
                let granted = ticket.granted(sent, remaining, tokens);
                state.remote().answered();
                self.note_untold(listening && sent < self.held_until);
                self.granted(state, &granted, lease_ms, now.since(sent))
            }
            Ok(Acquired::Held {
                ttl,
                silent,
                given_up,
                unsettled,
            }) => {
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
                state.refuse_try_once(self.queue, access, given);
                state.remote().said_held(now, unsettled);
                self.held_by_another(&mut state, left, silent, given_up)
            }
            Ok(Acquired::Unset) => {
                ticket.refused();
                state.refuse_try_once(self.queue, access, given);
                state.remote().said_held(now, false);
                self.held_by_another(&mut state, None, false, false)
            }
            Ok(Acquired::GivenUp) => self.given_up(state),
            Err(failure) => {
                ticket.failed(&failure);
                self.failed(&mut state, &failure)
            }
        }
    }

    /// B2: a place keeps its terms. A waiter with other terms takes another id, once the old one is given up: in one step, since a driver
    /// that stopped in between would lose the debt (B5).
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
        if let Some(hold) = self.queue.seat(self.core, &mut state, *granted) {
            drop(state);
            hold.seated(granted);
            if hold.spec().access.is_exclusive() {
                return Step::Exit;
            }
            return Step::Ask; // for the next, if one waits
        }
        if self.core.clock.now() >= granted.until {
            self.granted_too_late(&mut state, lease_ms, took);
        }
        // The first waiter now, if there is one, may ask for something else.
        Step::Ask
    }

    /// A waiter has the name, perhaps `early`: before the end that its holder had. If no message said so, that went to a classic channel.
    fn note_untold(&mut self, early: bool) {
        if std::mem::take(&mut self.untold) && early {
            self.queue.freed_unheard(self.core);
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
        let debt = state.remote().give_up();
        drop(state);
        if let Some(debt) = debt {
            abandon(self.core, &self.queue.id, debt);
        }
        Step::Recover
    }

    /// The server says that another owner holds the name, a `silent` one or not; `left` of its lease remains. `given_up`: as in
    /// [`Acquired::Held`].
    fn held_by_another(
        &mut self,
        state: &mut Locked<'_, QueueState>,
        left: Option<Duration>,
        silent: bool,
        given_up: bool,
    ) -> Step {
        self.core.watchdog.needs_label(Duration::ZERO);
        let listening = state.is_listening();
        let remote = state.remote();
        let unsettled = remote.is_unsettled();
        if listening && !unsettled {
            // Not before wake-ups are heard: where they are refused, each pause is longer than the one before.
            self.backoff.reset();
        }
        let now = self.core.clock.now();
        self.held_until = left.map_or(Tick::MAX, |left| now.after(left));
        if given_up {
            remote.renew_ticket(self.core); // the backend owes what the server has of it
        }
        remote.answered();
        remote.turns.shared = true;
        let granted = remote.granted;
        let own = remote.own.is_some() && remote.own == remote.ticket.as_ref().map(Ticket::lease);
        // It may have been given to us after that answer (B5); or the first waiter wants less, or came later.
        if granted || state.first_asks_once() {
            Step::Ask
        } else if unsettled && listening {
            // What is settled frees the name for its waiters; if it was not what held the name, none is told.
            Step::Look(self.backoff.next())
        } else if self.queue.id.is_of_task() && listening {
            if silent && !own {
                Step::ListenOwn
            } else {
                Step::Turn {
                    left,
                    foreign: silent,
                }
            }
        } else if let Some(pause) = self.look_after(state, silent && listening, left) {
            Step::Look(pause)
        } else if listening {
            Step::Wait(left)
        } else {
            Step::Listen
        }
    }

    /// No answer, or a refusal. A refusal for good is every waiter's answer. All else is waited out, by each waiter up to its
    /// own patience (L4).
    fn failed(&mut self, state: &mut Locked<'_, QueueState>, failure: &Failure) -> Step {
        self.untold = false;
        let Some(spec) = state.first_live_waiter() else {
            return Step::Ask;
        };
        let now = self.core.clock.now();
        let remote = state.remote();
        let lasts = remote.failed(failure, now);
        let cannot_hear = remote.cannot_hear();
        let verdict = match &remote.ticket {
            Some(ticket) => ticket.verdict(failure.clone()),
            None => failure.clone(),
        };
        if self.core.backend.gives_up_failures() {
            remote.renew_ticket(self.core);
        }
        if failure.is_final() {
            state.answer_all(&self.queue.error(verdict, spec));
        } else if lasts.is_none() && cannot_hear {
            self.queue.warn_of_deafness(self.core, failure);
        } else if lasts >= Some(self.core.config.operation_timeout) {
            state.answer_try_once(&Err(self.queue.error(verdict, spec)));
        }
        Step::Recover
    }

    /// No waiter is left: gives up the ticket and the subscription of this process. The queue goes on if a waiter came meanwhile.
    async fn leave(&mut self) {
        let (debt, _leaving) = {
            let mut state = self.queue.lock();
            let remote = state.remote();
            (remote.give_up(), remote.leaving.take())
        };
        // First the subscription, then the place: a release in between takes a client that listens without a place for a waiter
        // of Redisson's, and wakes all.
        let unheard = {
            let mut state = self.queue.lock();
            self.queue.stop_listening(self.core, &mut state)
        };
        if let Some(unheard) = unheard {
            let _ = self.core.within(UNSUBSCRIBED, unheard).await;
        }
        if let Some(debt) = debt {
            self.give_up(debt).await;
        }
        self.queue.go_on(self.core, self.queue.lock(), Start::Ask);
    }

    /// Tells the server once here, so that the next caller finds the name free; if need be, again in the background.
    async fn give_up(&self, debt: Debt) {
        let (core, id) = (self.core, &self.queue.id);
        if !may_owe(core) {
            return;
        }
        let release = debt.release(core, id, core.is_listening(id));
        let _settling = core.unsettled.begin(&id.name);
        if let Err(failure) = core.backend.release(release).await {
            let copies = debt.copies || failure.is_ambiguous();
            abandon(core, id, Debt { copies, ..debt });
        }
    }
}
