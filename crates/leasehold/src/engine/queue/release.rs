//! The end of a guard: the lease passes on in memory, or goes back to the server.

use std::{sync::Arc, time::Duration};

use crate::{
    Error, LostReason, Released,
    backend::{Failure, InARow, Next, Release, ReleaseReply},
    backoff::Backoff,
    clock::Tick,
    engine::{
        claim::debt::{self, Debt, check_known, left_to_expire},
        env::{finish::Finish, unsettled::Settling},
        hold::{
            Gone, Hold, Left,
            lease::{self, End},
        },
        local::sharers::enough_left,
        queue::{
            Phase, Queue, Start,
            count::write_count_in_background,
            downgrade::{Downgrading, begin_downgrade},
            released::{NextTicket, next},
        },
    },
    events::EventKind,
    kind::Access,
    story,
};

/// The end of a guard.
pub(crate) enum ReleaseStep {
    /// Nothing is left to do.
    Done(Result<Released, Error>),
    /// The server must be told.
    ToServer(Releasing),
    /// The server must be told that only readers are left.
    Downgrade(Downgrading),
}

/// A guard goes: the last one passes the lease on in memory, or to the server.
pub(crate) fn begin_release(queue: &Arc<Queue>, hold: Arc<Hold>, guard: Gone) -> ReleaseStep {
    let core = &queue.core;
    if let Some(step) = others_stay(queue, &hold, guard) {
        return step;
    }
    // Before the look, so that a hold found valid below was valid then, and no loss needs to be told.
    let now = core.clock.now();
    if let Err(end) = hold.standing() {
        // The server may still hold it for a moment, or for longer if a renewal got through and its answer did not (B5).
        hold.settle();
        let reason = match end {
            End::Lost(reason) => reason,
            End::Released => LostReason::Unconfirmed,
        };
        return ReleaseStep::Done(Err(hold.lost_error(reason)));
    }
    let mut state = queue.lock();
    // Under the lock: it may have been downgraded a moment ago.
    let (spec, since) = hold.spec_and_since();
    let in_a_row = if spec.access == Access::Shared {
        1
    } else {
        state.handoffs + 1
    };
    let known = core.beside.holds_to_tell(&queue.id, in_a_row, now);
    let may_pass = spec.handoff.is_on()
        && spec.access != Access::Shared
        && state.handoffs < spec.handoff.max_in_row
        && now.since(state.since) < spec.handoff.max_time()
        && enough_left(&hold, &spec, now)
        && !(state.turn_is_over() && (spec.access.is_exclusive() || known.is_some()));
    if may_pass && state.hand_over(&hold, &spec, since, now) {
        state.handoffs += 1;
        queue.waiter_left(&mut state, true);
        drop(state);
        core.events.tell();
        return ReleaseStep::Done(Ok(Released::Freed));
    }
    // To the server. From here on the lease id is not relied on any more (Q4), and nothing takes that back (B1).
    // Not `standing()`: under the queue's lock no loss may be told. The next look at the hold tells it.
    let until = hold.term.ends_at().unwrap_or(now);
    if !hold.term.end(End::Released) {
        drop(state);
        hold.settle();
        let reason = match hold.standing() {
            Err(End::Lost(reason)) => reason,
            _ => LostReason::Expired,
        };
        return ReleaseStep::Done(Err(hold.lost_error(reason)));
    }
    hold.settled_by_release();
    core.watchdog.forget(&hold);
    let is_permits = matches!(spec.access, Access::Permits(_));
    let next = if spec.access.is_exclusive() {
        state.phase = Phase::Releasing(hold.lease);
        state.since = now;
        next(core, &mut state, &spec)
    } else {
        state.share_ends(&hold, now);
        None // waiters of this queue have a driver
    };
    let goes_on = next.is_some() || is_permits && !state.waiters.is_empty();
    drop(state);
    let holds = known.or(goes_on.then_some(in_a_row));
    let settling = || core.unsettled.begin(&queue.id.name);
    let settling = queue.id.is_of_task().then(settling);
    ReleaseStep::ToServer(Releasing {
        queue: Arc::clone(queue),
        holds: holds.map(|holds| core.beside.in_a_row(&queue.id, holds, now)),
        hold,
        next,
        until,
        began: now,
        held: now.since(since),
        is_told: false,
        silent: None,
        _settling: settling,
    })
}

/// A guard goes, and others keep the hold; `None`: it was the last.
fn others_stay(queue: &Arc<Queue>, hold: &Arc<Hold>, guard: Gone) -> Option<ReleaseStep> {
    let left = hold.leave(guard);
    if let Left::Holds { holds, .. } | Left::Readers { holds } = left
        && let Err(end) = hold.standing()
    {
        return Some(ReleaseStep::Done(match end {
            End::Lost(reason) => Err(hold.lost_error(reason)), // the last guard settles it
            // The last guard has let go since this one left, on another thread: it was held until then (bug 292).
            End::Released => Ok(Released::StillHeld { holds }),
        }));
    }
    match left {
        Left::Nothing => None,
        Left::Holds { holds, count } => {
            write_count_in_background(&queue.core, hold, count);
            Some(ReleaseStep::Done(Ok(Released::StillHeld { holds })))
        }
        Left::Readers { holds } => {
            let done = ReleaseStep::Done(Ok(Released::StillHeld { holds }));
            Some(begin_downgrade(queue, hold).map_or(done, ReleaseStep::Downgrade))
        }
    }
}

/// A release on its way to the server.
pub(crate) struct Releasing {
    queue: Arc<Queue>,
    hold: Arc<Hold>,
    next: Option<NextTicket>,
    /// As in [`Release`].
    holds: Option<InARow>,
    /// Until when the lease would have been believed.
    until: Tick,
    began: Tick,
    /// How long its holder had it.
    held: Duration,
    /// The end of the hold has been told.
    is_told: bool,
    /// When a send first had no answer, so that it may have been carried out.
    silent: Option<Tick>,
    /// Where each task has a queue of its own, no other queue of this process waits for this release: a request of theirs may be told of this hold.
    _settling: Option<Settling>,
}

/// The server's answer to a release, with the state that the queue needs to go on.
pub(crate) struct ReleaseAnswer {
    pub(crate) answer: ReleaseReply,
    pub(crate) sent: Tick,
    pub(crate) queued: bool,
}

impl Releasing {
    /// For a caller that waits for the answer.
    pub(crate) fn finish(self) -> Finish<Result<Released, Error>> {
        let core = Arc::clone(&self.queue.core);
        core.finish(self.run())
    }

    /// For a guard that was dropped.
    pub(crate) fn in_background(self) {
        let core = Arc::clone(&self.queue.core);
        core.spawn(async move {
            let _ = self.run().await;
        });
    }

    /// Tells the server. A caller that waits has an answer within the operation timeout; a release that is not confirmed by
    /// then goes on in the background.
    async fn run(mut self) -> Result<Released, Error> {
        let core = Arc::clone(&self.queue.core);
        let mut backoff = Backoff::of_request();
        loop {
            let failure = match self.send().await {
                Ok(answered) => return self.answered(&answered),
                Err(failure) if failure.is_final() => {
                    self.give_up(&failure);
                    return Ok(self.unconfirmed());
                }
                Err(failure) => failure,
            };
            if core.clock.now().since(self.began) >= core.config.operation_timeout {
                self.answer_try_once(failure);
                self.tell_end(|held| EventKind::Unconfirmed { held });
                let unconfirmed = self.unconfirmed();
                core.spawn(self.run_on(backoff));
                return Ok(unconfirmed);
            }
            core.sleep(backoff.next()).await;
        }
    }

    /// Goes on telling the server, until the lease has ended there anyway.
    async fn run_on(mut self, mut backoff: Backoff) {
        let core = Arc::clone(&self.queue.core);
        let over = lease::free_within(self.hold.longest());
        loop {
            core.sleep(backoff.next()).await;
            match self.send().await {
                Ok(answered) => {
                    let _ = self.answered(&answered);
                    return;
                }
                Err(failure) if failure.is_final() || core.clock.now().since(self.began) > over => {
                    return self.give_up(&failure);
                }
                Err(failure) => self.answer_try_once(failure),
            }
        }
    }

    /// Tells the waiters that ask only once that the server gives no answer. Nothing was sent for them.
    fn answer_try_once(&self, failure: Failure) {
        let queue = &self.queue;
        let error = queue.error(failure.into_unsent(), self.hold.spec());
        let mut state = queue.lock();
        // Else the hold was shared, and the waiters have an actor of their own.
        if matches!(&state.phase, Phase::Releasing(lease) if *lease == self.hold.lease) {
            state.answer_try_once(&Err(error));
        }
    }

    fn unconfirmed(&self) -> Released {
        let free_within = lease::free_for_users(&self.queue.id, self.hold.longest());
        Released::Unconfirmed { free_within }
    }

    /// Tells how the hold has ended, once.
    fn tell_end(&mut self, kind: impl FnOnce(Duration) -> EventKind) {
        if !self.is_told {
            self.is_told = true;
            let (events, id) = (&self.queue.core.events, &self.queue.id);
            events.note(id, self.hold.lease, [kind(self.held)]);
            events.tell();
        }
    }

    /// Sends it once.
    async fn send(&mut self) -> Result<ReleaseAnswer, Failure> {
        let sent = self.queue.core.clock.now();
        if let Some(first) = self.silent {
            check_known(&self.queue.core, &self.queue.id, first)?;
        }
        let step = self.step(sent);
        let queued = step.next.is_some_and(|next| next.place.is_some());
        let answer = self.queue.core.backend.release(step).await;
        let answer = answer.inspect_err(|failure| self.failed(failure, sent))?;
        Ok(ReleaseAnswer {
            answer,
            sent,
            queued,
        })
    }

    /// The request that is sent at `sent`. Each send is an ask of its own for the next ticket (B3).
    fn step(&self, sent: Tick) -> Release {
        let (core, queue) = (&self.queue.core, &self.queue);
        let (next, listening) = {
            let mut state = queue.lock();
            let listening = state.is_listening();
            let next = self.next.and_then(|NextTicket { lease, stays }| {
                let remote = state.remote();
                remote.asks();
                let ticket = remote.ticket(lease)?;
                let ask = ticket.ask(sent);
                let terms = ticket.terms();
                Some(Next {
                    access: terms.access,
                    lease,
                    lease_ms: terms.lease_ms,
                    stays,
                    place: listening.then(|| ticket.place(core, ask)),
                })
            });
            (next, listening)
        };
        let debt = Debt::of(&self.hold);
        let copies = debt.copies || self.silent.is_some();
        Release {
            next,
            held: true,
            tombstone_ms: copies.then(|| core.tombstone_ms()),
            listening,
            holds: self.holds,
            ..Release::giving_back(&queue.id, debt.access, debt.lease)
        }
    }

    /// A send had no usable answer.
    fn failed(&mut self, failure: &Failure, sent: Tick) {
        if failure.is_ambiguous() {
            self.silent.get_or_insert(sent);
        }
        let (core, queue) = (&self.queue.core, &self.queue);
        let mut state = queue.lock();
        let remote = state.remote();
        // For waiters whose time is up meanwhile.
        remote.failed(failure, core.clock.now());
        if let Some(next) = self.next
            && let Some(ticket) = remote.ticket(next.lease)
        {
            ticket.failed(failure);
        }
    }

    /// The server has answered: the lease id is over (B5), and the queue goes on.
    fn answered(mut self, answered: &ReleaseAnswer) -> Result<Released, Error> {
        // "Not ours" can mean that an earlier copy of the release was carried out, or that the lease expired on the way: either
        // way the holder had it until it let go. If neither can be, the name was taken from it. (A copy of an acquisition takes
        // nothing away.)
        let core = &self.queue.core;
        let may_be_repeated = self.silent.is_some() || core.config.may_duplicate;
        let is_lost = answered.answer == ReleaseReply::NotOurs
            && !may_be_repeated
            // Its caller was told that it was not confirmed, and has gone on.
            && !self.is_told
            && core.clock.now() < self.until;
        let reason = self.hold.not_ours();
        self.tell_end(|held| {
            if is_lost {
                EventKind::Lost { reason, held }
            } else {
                EventKind::Released { held }
            }
        });
        let queue = &self.queue;
        if is_lost {
            story::lost(&queue.id, self.hold.lease, reason);
        }
        queue.released(
            &self.hold,
            (self.next, self.holds),
            answered,
            self.silent.is_some(),
        );
        if is_lost {
            return Err(self.hold.lost_error(reason));
        }
        Ok(Released::Freed)
    }

    /// The server refuses it for good, or has not answered until the lease had ended there.
    fn give_up(&mut self, failure: &Failure) {
        self.tell_end(|held| EventKind::Unconfirmed { held });
        let (core, queue) = (&self.queue.core, &self.queue);
        let said = if queue.id.kind.never_ends() {
            "the server may not have given the permits back; if so, they are lost until a user adds as many"
        } else {
            "not released, left to expire"
        };
        left_to_expire(&queue.id.name, failure, said);
        if !failure.is_final() {
            // A renewal that was held back may have prolonged it meanwhile (B5).
            debt::abandon(core, &queue.id, Debt::of(&self.hold));
        }
        queue.after_release(core, queue.lock(), self.hold.lease, Start::Ask);
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        // The runtime that was to carry it out is gone.
        self.tell_end(|held| EventKind::Unconfirmed { held });
    }
}
