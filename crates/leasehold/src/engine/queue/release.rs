//! The end of a guard: the lease passes on in memory, or goes back to the server.

use std::{sync::Arc, time::Duration};

use crate::{
    Error, LostReason, Released,
    backend::{Count, Counted, Downgrade, Failure, InARow, Next, Release, ReleaseReply},
    backoff::Backoff,
    clock::Tick,
    engine::claim::pending_release,
    engine::claim::pending_release::{PendingRelease, check_known, left_to_expire},
    engine::env::finish::Finish,
    engine::env::unsettled::Settling,
    engine::hold::lease::End,
    engine::hold::spec::Spec,
    engine::hold::{Gone, Hold, Left, lease},
    engine::local::locked::Locked,
    engine::local::sharers::is_fresh,
    engine::local::turns::Turns,
    engine::queue::map::Queues,
    engine::queue::{Life, Phase, Queue, QueueState, Start},
    events::EventKind,
    kind::{Access, LockKind},
    owner::LeaseId,
    story, user_callback,
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
    let queues = &queue.queues;
    // Only the last guard decides: those before it leave without a word to the server.
    if let Some(step) = others_stay(queue, &hold, guard) {
        return step;
    }
    // Before the check, so that a hold found valid below was valid then, and no loss needs to be told.
    let now = queues.clock.now();
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
    // Of readers `handoffs` counts those that joined, and together they are one hold.
    let in_a_row = if spec.access == Access::Shared {
        1
    } else {
        state.handoffs + 1
    };
    let known = queues
        .redisson_fairness
        .holds_to_tell(&queue.id, in_a_row, now);
    let may_pass = spec.handoff.is_on()
        && spec.access != Access::Shared
        && state.handoffs < spec.handoff.max_in_row
        && now.since(state.since) < spec.handoff.max_time()
        && is_fresh(&hold, &spec, now)
        && !(state.turn_is_over() && (spec.access.is_exclusive() || known.is_some()));
    // In memory, so neither the server nor another process is asked. The budget keeps them from waiting for ever.
    if may_pass && state.hand_over(&hold, &spec, since, now) {
        state.handoffs += 1;
        // Q5: observers are called once the queue is unlocked.
        queue.waiter_left(&mut state, true);
        drop(state);
        queues.events.tell();
        return ReleaseStep::Done(Ok(Released::Freed));
    }
    // To the server. From here on the lease id is not relied on any more (Q4), and nothing takes that back (B1).
    // Not `standing()`: under the queue's lock no loss may be told. The next check of the hold tells it.
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
    // B5: from here on this release alone gives the lease id up, until the server has confirmed it.
    hold.settled_by_release();
    queues.watchdog.forget(&hold);
    let is_permits = matches!(spec.access, Access::Permits(_));
    let next = if spec.access.is_exclusive() {
        // Newcomers wait for the answer: asked beside the release, the server would call the name held (Q1).
        state.phase = Phase::Releasing(hold.lease);
        state.since = now;
        next(queues, &mut state, &spec)
    } else {
        state.share_ends(&hold, now);
        None // waiters of this queue have a driver
    };
    let goes_on = next.is_some() || is_permits && !state.waiters.is_empty();
    drop(state);
    // A process whose own tasks go on could keep Redisson's waiters out: it tells how many holds it has had.
    let holds = known.or(goes_on.then_some(in_a_row));
    let settling = || queues.unsettled.begin(&queue.id.name);
    // Bug 290: to the other tasks of this process the name is being given back, not held.
    let settling = queue.id.is_of_task().then(settling);
    // A name that does not stay is asked for behind the release. Only a reader may come in beside those that it lets in.
    let next = next.filter(|next| next.stays || queue.id.kind == LockKind::RwLock);
    ReleaseStep::ToServer(Releasing {
        queue: Arc::clone(queue),
        holds: holds.map(|holds| queues.redisson_fairness.in_a_row(&queue.id, holds, now)),
        hold,
        next,
        until,
        began: now,
        held: now.since(since),
        is_reported: false,
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
            write_count_in_background(&queue.queues, hold, count);
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
    /// The end of the hold has been reported.
    is_reported: bool,
    /// When a send first had no answer, so that it may have been carried out.
    silent: Option<Tick>,
    /// Where each task has a queue of its own, other tasks' requests do not wait for this release, and the server may tell them of this hold.
    _settling: Option<Settling>,
}

/// The server's answer to a release, with the state that the queue needs to go on.
pub(crate) struct ReleaseAnswer {
    pub(crate) answer: ReleaseReply,
    pub(crate) sent: Tick,
}

impl Releasing {
    /// For a caller that waits for the answer.
    pub(crate) fn finish(self) -> Finish<Result<Released, Error>> {
        let queues = Arc::clone(&self.queue.queues);
        queues.finish(self.run())
    }

    /// For a guard that was dropped.
    pub(crate) fn in_background(self) {
        let queues = Arc::clone(&self.queue.queues);
        queues.spawn(async move {
            let _ = self.run().await;
        });
    }

    /// Tells the server. A caller that waits has an answer within the operation timeout; a release that is not confirmed by
    /// then goes on in the background.
    async fn run(mut self) -> Result<Released, Error> {
        let queues = Arc::clone(&self.queue.queues);
        let mut backoff = Backoff::of_request();
        // Under the same lease id each time: a release that was carried out already does no harm (B4).
        loop {
            let failure = match self.send().await {
                Ok(answered) => return self.answered(&answered),
                Err(failure) if failure.is_final() => {
                    self.give_up(&failure);
                    // No error: the caller has let go, and a lease ends by itself.
                    return Ok(self.unconfirmed());
                }
                Err(failure) => failure,
            };
            if queues.clock.now().since(self.began) >= queues.config.operation_timeout {
                // Callers that do not wait get the server's trouble, not the name of a holder that is gone (bug 22).
                self.answer_try_once(failure);
                self.tell_end(|held| EventKind::Unconfirmed { held });
                let unconfirmed = self.unconfirmed();
                queues.spawn(self.run_on(backoff));
                return Ok(unconfirmed);
            }
            queues.sleep(backoff.next()).await;
        }
    }

    /// Goes on telling the server, until the lease has ended there anyway.
    async fn run_on(mut self, mut backoff: Backoff) {
        let queues = Arc::clone(&self.queue.queues);
        // The longest that it ever had: after `extend` the name is held for that long (bug 44).
        let over = lease::free_within(self.hold.longest());
        loop {
            queues.sleep(backoff.next()).await;
            match self.send().await {
                Ok(answered) => {
                    let _ = self.answered(&answered);
                    return;
                }
                Err(failure)
                    if failure.is_final() || queues.clock.now().since(self.began) > over =>
                {
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
        if !self.is_reported {
            self.is_reported = true;
            let (events, id) = (&self.queue.queues.events, &self.queue.id);
            events.note(id, self.hold.lease, [kind(self.held)]);
            events.tell();
        }
    }

    /// Sends it once.
    async fn send(&mut self) -> Result<ReleaseAnswer, Failure> {
        let sent = self.queue.queues.clock.now();
        // Permits without a lease: the server remembers for a while only that a copy was carried out (bugs 98, 203).
        if let Some(first) = self.silent {
            check_known(&self.queue.queues, &self.queue.id, first)?;
        }
        let step = self.step(sent);
        let answer = self.queue.queues.backend.release(step).await;
        let answer = answer.inspect_err(|failure| self.failed(failure, sent))?;
        Ok(ReleaseAnswer { answer, sent })
    }

    /// The request that is sent at `sent`. Each send is an ask of its own for the next ticket (B3).
    fn step(&self, sent: Tick) -> Release {
        let (queues, queue) = (&self.queue.queues, &self.queue);
        let (next, listening) = {
            let mut state = queue.lock();
            let listening = state.is_listening();
            let next = self.next.and_then(|NextTicket { lease, stays }| {
                let remote = state.remote();
                remote.asks();
                let ticket = remote.ticket(lease)?;
                ticket.ask(sent);
                let terms = ticket.terms();
                Some(Next {
                    access: terms.access,
                    lease,
                    lease_ms: terms.lease_ms,
                    stays,
                })
            });
            (next, listening)
        };
        let pending_release = PendingRelease::of(&self.hold);
        // A tombstone costs a key for half a minute, so only where a copy may be under way (B4).
        let copies = pending_release.copies || self.silent.is_some();
        Release {
            next,
            held: true,
            tombstone_ms: copies.then(|| queues.tombstone_ms()),
            listening,
            holds: self.holds,
            ..Release::giving_back(&queue.id, pending_release.access, pending_release.lease)
        }
    }

    /// A send had no usable answer.
    fn failed(&mut self, failure: &Failure, sent: Tick) {
        if failure.is_ambiguous() {
            // The first one counts: from then on "not ours" may be the work of that copy.
            self.silent.get_or_insert(sent);
        }
        let (queues, queue) = (&self.queue.queues, &self.queue);
        let mut state = queue.lock();
        let remote = state.remote();
        // For waiters whose time is up meanwhile.
        remote.failed(failure, queues.clock.now());
        if let Some(next) = self.next
            && let Some(ticket) = remote.ticket(next.lease)
        {
            ticket.failed(failure);
        }
    }

    /// The server has answered: the lease id is over (B5), and the queue goes on.
    fn answered(mut self, answered: &ReleaseAnswer) -> Result<Released, Error> {
        // "Not ours" can mean that an earlier copy of the release was carried out, or that the lease expired on the way: in both cases
        // the holder had it until it let go. If no copy was sent and the lease had not ended, the name was taken from it. (A copy of an
        // acquisition takes nothing away.)
        let queues = &self.queue.queues;
        let may_be_repeated = self.silent.is_some() || queues.config.may_duplicate;
        let is_lost = answered.answer == ReleaseReply::NotOurs
            && !may_be_repeated
            // Its caller was told that it was not confirmed, and has gone on.
            && !self.is_reported
            && queues.clock.now() < self.until;
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
        let (queues, queue) = (&self.queue.queues, &self.queue);
        let said = if queue.id.kind.never_ends() {
            "the server may not have given the permits back; if so, they are lost until a user adds as many"
        } else {
            "not released, left to expire"
        };
        left_to_expire(&queue.id.name, failure, said);
        if !failure.is_final() {
            // A renewal that was held back may have prolonged it meanwhile (B5).
            // Not after a refusal for good: each repetition would get the same.
            pending_release::abandon(queues, &queue.id, PendingRelease::of(&self.hold));
        }
        queue.after_release(queues, queue.lock(), self.hold.lease, Start::Ask);
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        // The runtime that was to carry it out is gone.
        self.tell_end(|held| EventKind::Unconfirmed { held });
    }
}

// How a queue goes on after a release.

impl Queue {
    /// The server answered a release.
    pub(crate) fn released(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        (next, holds): (Option<NextTicket>, Option<InARow>),
        answered: &ReleaseAnswer,
        silent: bool,
    ) {
        let queues = &self.queues;
        let ReleaseAnswer { answer, sent } = *answered;
        // Before the lock: it sends a request.
        self.check_for_classic(queues);
        let is_permits = matches!(hold.spec().access, Access::Permits(_));
        let now = queues.clock.now();
        let mut state = self.lock();
        self.note_who_waits(&mut state, answered, holds, is_permits, now);
        if let Some(next) = next
            && let Some(ticket) = state.remote().ticket(next.lease)
        {
            match answer {
                // B1: the server of before has said so. The next one is asked, under the same lease id (bug 315).
                ReleaseReply::Kept { .. } if queues.watchdog.restarts.is_from_before(sent) => {}
                ReleaseReply::Kept { remaining, tokens } => {
                    // B1: the time left is that of the reply to this very send.
                    let granted = ticket.granted(sent, remaining, tokens);
                    if let Some(kept) = self.install(queues, &mut state, granted) {
                        if kept.spec().access.is_exclusive() {
                            drop(state);
                        } else {
                            self.go_on(queues, state, Start::Ask);
                        }
                        kept.watch(sent);
                        queues.events.tell();
                        return;
                    }
                }
                // The ticket is closed only if every send had an answer: after a silence an earlier copy may have taken the name for it (B5).
                _ if !silent => ticket.refused(),
                _ => {}
            }
        }
        let start = match answer {
            // A spin lock's waiters do not listen, so other processes may wait unseen: they get a turn.
            ReleaseReply::Freed { turns, .. }
                if !state.waiters.is_empty() && !hold.spec().waits.listens() =>
            {
                queues
                    .redisson_fairness
                    .leave_turns(&self.id, turns.max(1), now, None);
                Start::Ask
            }
            _ => Start::Ask,
        };
        self.after_release(queues, state, hold.lease, start);
    }

    /// Notes what the answer to a release says of other processes, and of Redisson's waiters.
    fn note_who_waits(
        &self,
        state: &mut QueueState,
        answered: &ReleaseAnswer,
        holds: Option<InARow>,
        is_permits: bool,
        now: Tick,
    ) {
        let queues = &self.queues;
        let ReleaseAnswer { answer, sent, .. } = *answered;
        let began = state.since;
        if let ReleaseReply::Freed { others, turns } = answer
            && others + u64::from(turns) > 0
        {
            // The server tells how many turns to leave. Where it was asked and cannot tell, this process leaves one; where it was not asked,
            // or none took the turns before, it leaves none.
            // Bug 240: a Redisson that listens at a replica is counted by no primary.
            let asked = holds.is_some_and(|it| it.holds > 0) && !is_permits;
            let turns = turns.max(u32::from(asked));
            if turns > 0 {
                let unseen = others == 0 && holds.is_some_and(|it| it.beside_unseen);
                queues.redisson_fairness.note_unseen(&self.id, unseen);
                queues
                    .redisson_fairness
                    .leave_turns(&self.id, turns, now, Some(sent));
            }
            if is_permits && others > 0 {
                queues
                    .redisson_fairness
                    .lets_ours_first(&self.id, now, sent);
            }
        }
        if let Some(remote) = &mut state.remote {
            remote.answered();
            match answer {
                ReleaseReply::Granted { .. } => {
                    remote.note_held_by_another(now);
                    remote.turns.shared = true;
                }
                ReleaseReply::Kept { .. } => {
                    remote.turns.shared = queues
                        .redisson_fairness
                        .holds_to_tell(&self.id, 1, now)
                        .is_some();
                }
                ReleaseReply::Freed {
                    others: 0,
                    turns: 0,
                } => remote.turns = Turns::new(),
                ReleaseReply::Freed { others, .. } => {
                    remote.turns.shared = true;
                    if is_permits && others > 0 {
                        remote.turns.races(now, began);
                    }
                }
                ReleaseReply::NotOurs => {}
            }
        }
    }

    /// The queue goes on after this release, unless another actor has it meanwhile: then the hold was shared.
    pub(crate) fn after_release(
        self: &Arc<Self>,
        queues: &Arc<Queues>,
        mut state: Locked<'_, QueueState>,
        lease: LeaseId,
        start: Start,
    ) {
        // Waiters that stood behind this release of a shared hold are to ask now, without a turn of others between.
        let start = match (start, state.shared.released(lease)) {
            (Start::Ask, true) => Start::AskNow,
            (other, _) => other,
        };
        if matches!(&state.phase, Phase::Releasing(present) if *present == lease) {
            self.go_on(queues, state, start);
        }
    }
}

/// The ticket under which this process goes on after a release, which is its ask.
#[derive(Clone, Copy)]
pub(crate) struct NextTicket {
    pub(crate) lease: LeaseId,
    /// The name may stay with this process.
    pub(crate) stays: bool,
}

/// How this process goes on after the release, if a waiter is left: under a ticket of its own. A release that may give it the name is an
/// ask of it (B3).
pub(crate) fn next(
    queues: &Arc<Queues>,
    state: &mut Locked<'_, QueueState>,
    spec: &Spec,
) -> Option<NextTicket> {
    // A shutdown has answered all waiters, or is about to.
    if state.life != Life::Open {
        return None; // B6
    }
    let waiter = state.first_live_waiter()?;
    let held_until = state.since;
    let remote = state.remote();
    remote.note_held_by_another(held_until);
    if !waiter.waits.listens() || waiter.waits.is_in_turn() {
        // Clients that do not listen cannot be seen: what is kept here would be kept from them for ever. And where the
        // order is the server's, the next ask is one of many.
        return None;
    }
    // A holder's queue has no ticket (B5), so there is none with other terms.
    let ticket = remote.ticket_for(queues, waiter.terms())?;
    Some(NextTicket {
        lease: ticket.lease(),
        stays: spec.serves(&waiter) && spec.handoff.is_on(),
    })
}

// A hold that writes goes on as a reader's: the last of its guards that could write is gone, and others read on.
//
// It keeps its lease id, and the server keeps at least a reader's hold for it all the time. In this process it is a reader's
// before the server is told; a lease id that reads never writes again, so a late copy of the request changes nothing (B4).

/// A downgrade on its way to the server.
pub(crate) struct Downgrading {
    queue: Arc<Queue>,
    hold: Arc<Hold>,
    began: Tick,
}

/// Only guards that read are left of `hold`: from here on it is shared in this process. `None` if it is over, or if a guard that may
/// write has come meanwhile.
pub(crate) fn begin_downgrade(queue: &Arc<Queue>, hold: &Arc<Hold>) -> Option<Downgrading> {
    let queues = &queue.queues;
    let now = queues.clock.now();
    let mut state = queue.lock();
    let wrote = matches!(&state.phase, Phase::Held(there) if Arc::ptr_eq(there, hold));
    // Another guard that may write has come, or the last one has gone, since this one was counted.
    if !wrote || !hold.turn_to_read() {
        return None;
    }
    // Readers of this process come in before the server is told: to others it is a writer's until then, which only keeps them out.
    state.shared.add(hold);
    if is_fresh(hold, &hold.spec(), now) {
        state.admit_readers(hold);
    }
    queue.go_on(queues, state, Start::Ask);
    Some(Downgrading {
        queue: Arc::clone(queue),
        hold: Arc::clone(hold),
        began: now,
    })
}

impl Downgrading {
    /// For a caller that waits for the answer.
    pub(crate) fn finish(self) -> Finish<Result<Released, Error>> {
        let queues = Arc::clone(&self.queue.queues);
        queues.finish(async move {
            let hold = Arc::clone(&self.hold);
            self.run().await;
            let holds = hold.counted();
            Ok(Released::StillHeld { holds })
        })
    }

    /// For a guard that was dropped.
    pub(crate) fn in_background(self) {
        let queues = Arc::clone(&self.queue.queues);
        queues.spawn(self.run_on());
    }

    /// Tells the server, for the operation timeout here, and after that in the background.
    async fn run(self) {
        let queues = Arc::clone(&self.queue.queues);
        // Until the server knows, readers of other processes are kept out. No two hold by that.
        let mut backoff = Backoff::of_request();
        while !self.send(&queues).await {
            if queues.clock.now().since(self.began) >= queues.config.operation_timeout {
                return self.in_background();
            }
            queues.sleep(backoff.next()).await;
        }
    }

    /// Goes on telling the server, for as long as the hold lasts.
    async fn run_on(self) {
        let queues = Arc::clone(&self.queue.queues);
        let mut backoff = Backoff::of_request();
        while !self.send(&queues).await {
            queues.sleep(backoff.next()).await;
        }
    }

    /// Sends it once. Whether nothing is left to do.
    async fn send(&self, queues: &Arc<Queues>) -> bool {
        let hold = &self.hold;
        if hold.is_over() {
            return true; // its release takes it from the server in whichever form
        }
        let step = Downgrade {
            id: hold.id().clone(),
            lease: hold.lease,
            holds: hold.counted(),
        };
        let sent = queues.clock.now();
        match queues.backend.downgrade(step).await {
            Ok(true) => true,
            // The lease id reads in this process already, so no guard of it can have written since (bug 199).
            Ok(false) => hold.answered_not_ours(sent),
            Err(failure) if failure.is_final() => {
                user_callback::catch_panic(|| {
                    tracing::warn!(target: "leasehold", name = %hold.id().name, cause = %failure.cause(), "not downgraded: others wait for its release");
                });
                true
            }
            Err(_) => false,
        }
    }
}

// How often a hold was entered, as the server is told.

/// Only for readers of the server's keys: the count there decides nothing.
pub(crate) fn write_count_in_background(
    queues: &Arc<Queues>,
    hold: &Arc<Hold>,
    count: Option<u32>,
) {
    if count.is_some() && !hold.is_over() {
        let (client, counted) = (Arc::clone(queues), Arc::clone(hold));
        queues.spawn(async move {
            let _ = write_count(&client, &counted).await;
        });
    }
}

pub(crate) async fn write_count(queues: &Queues, hold: &Arc<Hold>) -> Result<Counted, Failure> {
    let count = Count {
        id: hold.id().clone(),
        access: hold.spec().access,
        lease: hold.lease,
        // All of it each time, not a difference: requests may overtake each other (bugs 31, 205).
        holds: hold.counted(),
        reads: hold.readers(),
        listening: queues.is_listening(hold.id()),
    };
    queues.backend.count(count).await
}
