//! One lease of this process, from the grant to the end: the state machine behind every guard.
//!
//! Acquire, renew, hand over and release are steps of this one machine, so a renewal cannot outlive a release
//! (redisson#7272): a renewal carries the lease id it was made for, the id changes or the term ends before a
//! release is sent, and an answer for another id is dropped.
//!
//! Locks are taken in this order: queue, hold, watchdog list.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    LostReason,
    backend::{self, Renewal},
    client::Core,
    clock::Tick,
    events::EventKind,
    lease::{self, End, Standing, Term},
    owner::LeaseId,
    queue::{Queue, Spec},
    watchdog::WatchedAt,
};

#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) core: Arc<Core>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) term: Term,
    /// Wakes those who wait for the loss.
    pub(crate) over: Notify,
    pub(crate) watched_at: WatchedAt,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    lease: LeaseId,
    spec: Spec,
    /// Guards of the present holder. Zero: the last one is on its way out.
    guards: u32,
    /// How many of them are counted on the server.
    counted: u32,
    /// When the present holder came in; `max_hold` counts from here.
    since: Tick,
    /// The acquisition was sent more than once, so a late copy of it may still be under way.
    resent: bool,
}

/// What the watchdog finds when it looks at a hold.
pub(crate) enum Look {
    /// Renew it. If the lease may end before the answer is due: when.
    Renew {
        end: Option<Tick>,
    },
    /// Nothing to do before.
    Later(Tick),
    Over,
}

/// What is left when a guard has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Holds {
        holds: u32,
        /// What to write on the server, if that changed.
        count: Option<u32>,
    },
    Nobody,
}

impl Hold {
    /// A lease that was granted to a request sent at `sent`. Nobody holds it yet: see [`seat`](Hold::seat).
    pub(crate) fn new(
        core: &Arc<Core>,
        queue: &Arc<Queue>,
        lease: LeaseId,
        spec: Spec,
        sent: Tick,
        resent: bool,
    ) -> Arc<Hold> {
        Arc::new(Hold {
            core: Arc::clone(core),
            queue: Arc::clone(queue),
            term: Term::until(lease::valid_until(sent, spec.lease())),
            over: Notify::new(),
            watched_at: WatchedAt::default(),
            state: Mutex::new(State {
                lease,
                spec,
                guards: 0,
                counted: 0,
                since: sent,
                resent,
            }),
        })
    }

    /// A holder comes in, with one guard.
    pub(crate) fn seat(&self, spec: Spec, now: Tick) {
        let mut state = self.state.lock();
        state.spec = spec;
        state.guards = 1;
        state.counted = 1;
        state.since = now;
        if let Some(cap) = state.cap() {
            // A fresh term; shortening it cannot fail.
            if let Standing::Valid(until) = self.term.look(now) {
                self.term.set(until.min(cap), now);
            }
        }
    }

    /// Puts the hold on the watchdog's list. `sent` is when its lease was last asked for.
    pub(crate) fn watch(self: &Arc<Self>, sent: Tick) {
        let next = self.state.lock().next(sent);
        match next {
            Next::Renew(every) => self.core.watchdog.renew(self, every, sent),
            Next::Look(at) => self.core.watchdog.look_at(self, at),
        }
    }

    /// The same lease under a new id and a new term, after the server kept it for us.
    pub(crate) fn renew_as(&self, lease: LeaseId, until: Tick) {
        let mut state = self.state.lock();
        state.lease = lease;
        state.resent = false;
        self.term.restart(until);
    }

    pub(crate) fn lease(&self) -> LeaseId {
        self.state.lock().lease
    }

    pub(crate) fn spec(&self) -> Spec {
        self.state.lock().spec
    }

    /// Whether a late copy of the acquisition may still be under way; asked once, by the release.
    pub(crate) fn was_resent(&self) -> bool {
        self.state.lock().resent
    }

    pub(crate) fn is_over(&self) -> bool {
        self.term.is_over()
    }

    pub(crate) fn renew_every(&self) -> Duration {
        self.spec().renew_every()
    }

    /// One more guard for the present holder, counted in memory. `None` when the last one is on its way out.
    pub(crate) fn enter(&self) -> Option<()> {
        let mut state = self.state.lock();
        if state.guards == 0 {
            return None;
        }
        state.guards += 1;
        Some(())
    }

    /// One more guard, counted on the server too; answers the count to write there.
    pub(crate) fn enter_counted(&self) -> Option<u32> {
        let mut state = self.state.lock();
        if state.guards == 0 {
            return None;
        }
        state.guards += 1;
        state.counted += 1;
        Some(state.counted)
    }

    /// One guard less.
    pub(crate) fn leave(&self, counted: bool) -> Left {
        let mut state = self.state.lock();
        state.guards = state.guards.saturating_sub(1);
        if counted {
            state.counted = state.counted.saturating_sub(1);
        }
        match state.guards {
            0 => Left::Nobody,
            holds => Left::Holds {
                holds,
                // The server counts at least one as long as anybody is in.
                count: (counted && state.counted > 0).then_some(state.counted),
            },
        }
    }

    /// A guard that came back because its release could not be sent.
    pub(crate) fn come_back(&self) {
        let mut state = self.state.lock();
        state.guards = 1;
        state.counted = 1;
    }

    /// Whether the holder may rely on it now; tells everybody if this look is the first to see its end.
    pub(crate) fn standing(self: &Arc<Self>) -> Result<Duration, End> {
        let now = self.core.clock.now();
        match self.term.look(now) {
            Standing::Valid(until) => Ok(until.since(now)),
            Standing::JustExpired => {
                self.on_lost(LostReason::Expired);
                Err(End::Lost(self.told(LostReason::Expired)))
            }
            Standing::Ended(End::Lost(reason)) => Err(End::Lost(self.told(reason))),
            Standing::Ended(End::Released) => Err(End::Released),
        }
    }

    /// Ends the hold here without a word to the server, where the name frees itself when its lease ends.
    pub(crate) fn forsake(self: &Arc<Self>) {
        if self.term.end(End::Released) {
            self.core.watchdog.forget(self);
            self.queue.vacate(&self.core, self);
        }
    }

    /// What the server counts for the present holder.
    pub(crate) fn counted(&self) -> u32 {
        self.state.lock().counted.max(1)
    }

    /// Ends the hold as lost, unless it has ended before.
    pub(crate) fn lose(self: &Arc<Self>, reason: LostReason) {
        if self.term.end(End::Lost(reason)) {
            self.on_lost(reason);
        }
    }

    fn on_lost(self: &Arc<Self>, reason: LostReason) {
        let reason = self.told(reason);
        self.core.watchdog.forget(self);
        self.over.notify_waiters();
        self.core
            .events
            .tell(&self.queue.name, self.lease(), EventKind::Lost(reason));
        tracing::warn!(name = %self.queue.name, %reason, "lease lost");
        self.queue.vacate(&self.core, self);
    }

    /// A term that ran out because of `max_hold` says so.
    fn told(&self, reason: LostReason) -> LostReason {
        let state = self.state.lock();
        match (reason, state.cap()) {
            (LostReason::Expired, Some(cap)) if self.core.clock.now() >= cap => LostReason::MaxHold,
            _ => reason,
        }
    }

    /// The watchdog's look: renew, wait, or it is over.
    pub(crate) fn look(self: &Arc<Self>, now: Tick) -> Look {
        let Some(until) = self.valid_until(now) else {
            return Look::Over;
        };
        let state = self.state.lock();
        if state.spec.is_fixed() || state.cap().is_some_and(|cap| until >= cap) {
            return Look::Later(until); // as long as it may ever be
        }
        Look::Renew {
            end: self.close_end(until, now, &state),
        }
    }

    /// What to ask the server for at its renewal; `None` if it is over.
    pub(crate) fn due(self: &Arc<Self>, now: Tick) -> Option<Due> {
        let until = self.valid_until(now)?;
        let state = self.state.lock();
        let mut lease = state.spec.lease();
        if let Some(cap) = state.cap() {
            lease = lease.min(cap.since(now) + lease::margin(lease));
        }
        Some(Due {
            lease: state.lease,
            lease_ms: crate::config::millis(lease),
            end: self.close_end(until, now, &state),
        })
    }

    /// Until when it can be relied on; `None` if it is over, which this tells everybody if it is the first to see it.
    fn valid_until(self: &Arc<Self>, now: Tick) -> Option<Tick> {
        match self.term.look(now) {
            Standing::Valid(until) => Some(until),
            Standing::JustExpired => {
                self.on_lost(LostReason::Expired);
                None
            }
            Standing::Ended(_) => None,
        }
    }

    /// The end of the lease, if a renewal might have no answer before it: once for its turn, once for its answer, and
    /// once for good measure.
    fn close_end(&self, until: Tick, now: Tick, state: &State) -> Option<Tick> {
        let patience = patience(state.spec.renew_every(), self.core.config.operation_timeout);
        (until < now.after(3 * patience)).then_some(until)
    }

    /// The answer to a renewal that was sent at `sent`. Returns the interval, if all there is to do is to renew it
    /// again.
    pub(crate) fn renewed(
        self: &Arc<Self>,
        asked: &Due,
        renewal: Renewal,
        sent: Tick,
    ) -> Option<Duration> {
        let now = self.core.clock.now();
        let state = self.state.lock();
        if state.lease != asked.lease {
            return None; // it went on under another id meanwhile
        }
        let events = &self.core.events;
        match renewal {
            Renewal::Extended => {
                let lease = Duration::from_millis(asked.lease_ms);
                let until = lease::valid_until(sent, lease);
                let until = state.cap().map_or(until, |cap| until.min(cap));
                let next = state.next(sent);
                drop(state);
                match self.term.prolong(until, now) {
                    Standing::Valid(_) => {
                        events.tell(&self.queue.name, asked.lease, EventKind::Renewed);
                        match next {
                            Next::Renew(every) => return Some(every),
                            Next::Look(at) => self.core.watchdog.look_at(self, at),
                        }
                    }
                    Standing::JustExpired => self.on_lost(LostReason::Expired),
                    Standing::Ended(_) => {}
                }
            }
            Renewal::Lost => {
                drop(state);
                self.lose(LostReason::Replaced);
            }
            Renewal::Unknown => {
                // At once after a silence, soon after a refusal.
                let patience =
                    patience(state.spec.renew_every(), self.core.config.operation_timeout);
                let again = now.after(patience / 8).max(sent.after(patience));
                drop(state);
                events.tell(&self.queue.name, asked.lease, EventKind::RenewalFailed);
                if let Some(until) = self.valid_until(now) {
                    self.core.watchdog.look_at(self, again.min(until));
                }
            }
        }
        None
    }
}

/// What to ask the server for.
pub(crate) struct Due {
    lease: LeaseId,
    lease_ms: u64,
    /// If the lease may end before the answer is due: when.
    pub(crate) end: Option<Tick>,
}

impl Due {
    pub(crate) fn renew<'a>(&self, hold: &'a Hold) -> backend::Renew<'a> {
        backend::Renew {
            name: &hold.queue.name,
            lease: self.lease,
            lease_ms: self.lease_ms,
        }
    }
}

/// What comes next for a lease.
enum Next {
    /// Its renewal, once in this interval, and nothing else.
    Renew(Duration),
    /// A look at it.
    Look(Tick),
}

impl State {
    /// When `max_hold` ends the present holder's time.
    fn cap(&self) -> Option<Tick> {
        self.spec.max_hold().map(|most| self.since.after(most))
    }

    /// What comes next for a lease that was asked for at `sent`.
    fn next(&self, sent: Tick) -> Next {
        let every = self.spec.renew_every();
        match self.cap() {
            _ if self.spec.is_fixed() => {
                let end = lease::valid_until(sent, self.spec.lease());
                Next::Look(self.cap().map_or(end, |cap| end.min(cap)))
            }
            Some(cap) => Next::Look(sent.after(every).min(cap)),
            None => Next::Renew(every),
        }
    }
}

/// A renewal gets a third of the interval, so that at least three fit into what is left of the lease.
pub(crate) fn patience(renew_every: Duration, operation_timeout: Duration) -> Duration {
    (renew_every / 3)
        .max(Duration::from_millis(1))
        .min(operation_timeout)
}
