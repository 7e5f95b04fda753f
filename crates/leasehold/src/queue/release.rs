//! The end of a guard: the lease passes on in memory, or goes back to the server.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use super::{
    Queue, Seat, Spec,
    attempt::{Attempt, abandon},
    driver::Start,
    enter::write_count,
};
use crate::{
    Error, ErrorKind, LostReason,
    backend::{self, Failure, Next, Release},
    clock::Tick,
    events::EventKind,
    guard::Released,
    hold::{Hold, Left},
    lease::{self, End, Standing},
    owner::LeaseId,
};

/// The end of a guard.
pub(crate) enum Gone {
    /// Nothing is left to do.
    Done(Released),
    /// The server must be told.
    ToServer(Arc<Hold>, ReleaseWork),
}

pub(crate) type ReleaseWork = Pin<Box<dyn Future<Output = Result<Released, Error>> + Send>>;

/// A guard goes: the last one passes the lease on in memory, or to the server.
pub(crate) fn let_go(hold: Arc<Hold>, counted: bool) -> Gone {
    if let Left::Holds { holds, count } = hold.leave(counted) {
        if count.is_some() && !hold.is_over() {
            let told = Arc::clone(&hold);
            hold.core.spawn(async move {
                // Only for those who look at the server: the count there does not decide anything.
                let _ = write_count(&told).await;
            });
        }
        return Gone::Done(Released::StillHeld { holds });
    }
    let core = Arc::clone(&hold.core);
    let queue = Arc::clone(&hold.queue);
    // Before the look, so that what is found valid below was valid then, and nobody needs to be told.
    let now = core.clock.now();
    if let Err(End::Lost(reason)) = hold.standing() {
        // The server may still hold it for a moment, or for longer if a renewal got through whose answer did not.
        let name = queue.name.clone();
        let core_ = Arc::clone(&core);
        let lease = hold.lease();
        if !matches!(reason, LostReason::Replaced | LostReason::ClientShutdown) {
            abandon(&core_, &name, lease, None);
        }
        return Gone::Done(Released::WasLost(reason));
    }
    let spec = hold.spec();
    let mut state = queue.state.lock();
    let next_spec = state.first();
    let passes = spec.handoff.is_on() && next_spec.is_some_and(|next| spec.serves(&next));
    if passes
        && state.row < spec.handoff.max_in_row
        && now.since(state.row_since) < spec.handoff.max_time()
        && enough_left(&hold, spec, now)
        && state.seat_first(&hold, now)
    {
        state.row += 1;
        drop(state);
        core.events
            .tell(&queue.name, hold.lease(), EventKind::HandedOver);
        return Gone::Done(Released::Released);
    }
    // To the server. From here on the lease id is not relied on any more (Q4).
    // Not `standing()`: under the queue's lock nobody may be told of a loss.
    let until = match hold.term.look(now) {
        Standing::Valid(until) => until,
        _ => now,
    };
    hold.term.end(End::Released);
    core.watchdog.forget(&hold);
    state.seat = Seat::Busy;
    let listening = state.listening();
    let next = next_spec.map(|next_spec| Next {
        lease: LeaseId::next(),
        lease_ms: next_spec.lease_ms(),
        keep: passes,
        line: listening.then(|| core.line(next_spec.lease())),
    });
    if let (Some(next), Some(line)) = (next, &mut state.line) {
        line.ticket = next.line.map(|_| next.lease);
        line.place = next.line;
        line.granted = false;
    }
    drop(state);
    let step = Release {
        name: queue.name.clone(),
        lease: hold.lease(),
        next,
        tombstone_ms: hold.was_resent().then(|| core.tombstone_ms()),
        listening,
    };
    let work = release_work(Arc::clone(&hold), step, until);
    Gone::ToServer(hold, Box::pin(work))
}

/// A lease is handed on while most of it is left, so that its renewal is never the next holder's first worry.
fn enough_left(hold: &Arc<Hold>, spec: Spec, now: Tick) -> bool {
    match hold.term.look(now) {
        Standing::Valid(until) => until.since(now) > spec.lease() / 3,
        _ => false,
    }
}

/// Brings a release to the server. `until` is when the lease would have ended here.
async fn release_work(hold: Arc<Hold>, step: Release, until: Tick) -> Result<Released, Error> {
    let core = Arc::clone(&hold.core);
    let queue = Arc::clone(&hold.queue);
    let mut attempt = Attempt::new(&core, &step.name, step.lease);
    let began = core.clock.now();
    loop {
        let sent = core.clock.now();
        let failure = match core.backend.release(step.clone()).await {
            Ok(answer) => {
                // "Not ours" to a repeated request means that an earlier copy released it, or that it expired
                // on the way: either way we held it until we let go, and nobody holds it for us now.
                let lost = answer == backend::Released::NotOurs && !attempt.ambiguous;
                core.events
                    .tell(&step.name, step.lease, EventKind::Released);
                queue.released(&hold, &step, answer, sent);
                return Ok(if lost {
                    Released::WasLost(LostReason::Replaced)
                } else {
                    Released::Released
                });
            }
            Err(failure) => failure,
        };
        attempt.failed(&failure);
        let waited = core.clock.now().since(began);
        let hopeless = matches!(failure, Failure::Rejected(_));
        if hopeless || waited >= core.config.operation_timeout {
            let left = until.since(core.clock.now());
            if attempt.ambiguous || left.is_zero() {
                hold.term.restart(until);
                hold.term.end(End::Lost(LostReason::Unconfirmed));
                // The driver of the next will wait for what the server still holds.
                queue.pass_on(&core);
            } else {
                queue.take_back(&hold, until);
            }
            hold.come_back();
            let doing = format!("release {:?}", step.name);
            let free = left + lease::margin(hold.spec().lease());
            return Err(attempt.verdict(failure).into_error(doing, free));
        }
        attempt.pause().await;
    }
}

/// A release that nobody waits for: tried until the lease has ended anyway.
pub(crate) async fn release_at_last(hold: Arc<Hold>, work: ReleaseWork) {
    let mut work = work;
    while let Err(error) = work.await {
        tracing::warn!(name = %hold.queue.name, %error, "not released yet");
        if error.kind() == ErrorKind::Rejected {
            // What the server refuses now it may refuse for ever; the name frees itself.
            hold.leave(true);
            hold.forsake();
            return;
        }
        match let_go(Arc::clone(&hold), true) {
            Gone::Done(_) => return,
            Gone::ToServer(_, again) => work = again,
        }
    }
}

impl Queue {
    /// The server answered a release.
    fn released(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        step: &Release,
        answer: backend::Released,
        sent: Tick,
    ) {
        let core = &hold.core;
        let now = core.clock.now();
        let mut state = self.state.lock();
        let start = match (answer, step.next) {
            (backend::Released::Kept, Some(next)) => {
                let until = lease::valid_until(sent, Duration::from_millis(next.lease_ms));
                if now < until {
                    hold.renew_as(next.lease, until);
                    state.row = 0;
                    state.row_since = now;
                    state.not_in_line();
                    if state.seat_first(hold, now) {
                        drop(state);
                        hold.watch(sent);
                        let events = &core.events;
                        events.tell(&self.name, next.lease, EventKind::HandedOver);
                        return;
                    }
                    hold.term.end(End::Released);
                }
                // Nobody wants it any more, or it took too long to hear: give it back for good.
                abandon(core, &self.name, next.lease, None);
                Start::Ask
            }
            (backend::Released::Granted { lease }, _) => Start::Park { asked: sent, lease },
            (backend::Released::Freed { others }, _) if others > 0 => Start::GiveWay,
            _ => Start::Ask,
        };
        self.go_on(core, state, start);
    }

    /// A release that never left: the hold goes on.
    fn take_back(self: &Arc<Self>, hold: &Arc<Hold>, until: Tick) {
        let mut state = self.state.lock();
        hold.term.restart(until);
        state.seat = Seat::Held(Arc::clone(hold));
        state.not_in_line();
        drop(state);
        hold.core.watchdog.look_at(hold, hold.core.clock.now());
    }
}
