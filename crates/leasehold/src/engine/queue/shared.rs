//! Holds that share the lock with others: readers', and permits'.
//!
//! They are no phase of the queue (Q1): while they last, an attempt or a driver may ask the server for more. The readers of
//! this process share one hold. Within the hand-off budget the next one joins it in memory; when that is used up, it asks
//! the server whether a writer waits.

use std::sync::Arc;

use crate::{
    LostReason,
    backend::Counted,
    clock::Tick,
    engine::{
        core::Core,
        hold::{Hold, held::Held, spec::Spec},
        local::locked::Locked,
        queue::{Life, Phase, Queue, QueueState, driver::Start, enter::write_count},
    },
    kind::Access,
    owner::{LeaseId, OwnerId},
};

/// Such holds of one queue. Boxed, since most queues have none.
#[derive(Debug, Default)]
pub(crate) struct SharedHolds(Option<Box<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    holds: Vec<Arc<Hold>>,
    /// Releases under way, the latest last; by a caller, if there is one.
    releasing: Vec<LeaseId>,
}

impl SharedHolds {
    pub(crate) fn all(&self) -> &[Arc<Hold>] {
        self.0.as_ref().map_or(&[], |inner| &inner.holds)
    }

    /// Nothing is held, and nothing is being given back.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn add(&mut self, hold: &Arc<Hold>) {
        self.0.get_or_insert_default().holds.push(Arc::clone(hold));
    }

    /// `false` if it was not there.
    pub(crate) fn remove(&mut self, hold: &Arc<Hold>) -> bool {
        let Some(inner) = &mut self.0 else {
            return false;
        };
        let before = inner.holds.len();
        inner.holds.retain(|there| !Arc::ptr_eq(there, hold));
        let found = inner.holds.len() < before;
        self.tidy();
        found
    }

    /// It is being given back from now on.
    pub(crate) fn release(&mut self, hold: &Arc<Hold>) {
        let inner = self.0.get_or_insert_default();
        inner.holds.retain(|there| !Arc::ptr_eq(there, hold));
        inner.releasing.push(hold.lease);
    }

    /// Whether this lease is being given back.
    pub(crate) fn is_releasing(&self, lease: LeaseId) -> bool {
        let mut releasing = self.0.iter().flat_map(|inner| &inner.releasing);
        releasing.any(|there| *there == lease)
    }

    /// It has been given back. `false` if it was not there.
    pub(crate) fn released(&mut self, lease: LeaseId) -> bool {
        let found = self.is_releasing(lease);
        if let Some(inner) = &mut self.0 {
            inner.releasing.retain(|there| *there != lease);
        }
        self.tidy();
        found
    }

    /// The phase of the queue when no other actor has it: it gives back the hold that was released last.
    pub(crate) fn rest(&self) -> Phase {
        let latest = self.0.as_ref().and_then(|inner| inner.releasing.last());
        latest.map_or(Phase::Idle, |lease| Phase::Releasing(*lease))
    }

    fn tidy(&mut self) {
        let is_empty = |inner: &Inner| inner.holds.is_empty() && inner.releasing.is_empty();
        if self.0.as_deref().is_some_and(is_empty) {
            self.0 = None;
        }
    }

    pub(crate) fn of_owner(&self, owner: Option<OwnerId>) -> Option<&Arc<Hold>> {
        let mut all = self.all().iter();
        all.find(|hold| owner.is_some() && hold.spec().owner == owner)
    }
}

/// Whether enough is left of a hold for others to share it. Not a look: under the queue's lock no loss may be told.
pub(crate) fn is_fresh(hold: &Hold, spec: &Spec, now: Tick) -> bool {
    let fresh = |until: Tick| now < until && until.since(now) > spec.lease() / 3;
    hold.term.ends_at().is_some_and(fresh)
}

impl QueueState {
    /// The hold of this process that another reader can share; the budget is not checked.
    fn hold_to_share(&self, spec: &Spec, now: Tick) -> Option<&Arc<Hold>> {
        if spec.access != Access::Shared || spec.owner.is_some() {
            return None;
        }
        self.shared.all().iter().rev().find(|hold| {
            let there = hold.spec();
            is_fresh(hold, &there, now) && there.owner.is_none() && there.serves(spec)
        })
    }

    /// Lets a reader in without asking the server, if no task of this process waits that it would keep out and the budget
    /// allows it.
    pub(crate) fn join(&mut self, spec: &Spec, now: Tick) -> Option<Held> {
        let budget = spec.handoff.is_on()
            && self.handoffs < spec.handoff.max_in_row
            && now.since(self.since) < spec.handoff.max_time();
        if !budget || !self.waiters.is_empty() {
            return None;
        }
        let held = Held::join(self.hold_to_share(spec, now)?)?;
        self.handoffs += 1;
        Some(held)
    }
}

impl Queue {
    /// Whether the first waiter asks only once, and a release is under way that it may wait for: the queue goes on when the
    /// release is answered.
    pub(crate) fn waits_for_a_release(&self) -> bool {
        let mut state = self.lock();
        let once = state.first_asks_once();
        let rest = state.shared.rest();
        let asked = state
            .remote
            .as_ref()
            .is_some_and(|remote| remote.may_have());
        if !once || asked || !matches!(rest, Phase::Releasing(..)) {
            return false;
        }
        state.phase = rest;
        true
    }
}

impl Locked<'_> {
    /// Lets in the next waiting readers, up to the first waiter that cannot share the hold.
    pub(crate) fn admit_readers(&mut self, hold: &Arc<Hold>) {
        let there = hold.spec();
        if there.access != Access::Shared || there.owner.is_some() {
            return;
        }
        while self
            .first_live_waiter()
            .is_some_and(|next| next.owner.is_none() && there.serves(&next))
        {
            let Some(entry) = Held::join(hold) else {
                return;
            };
            let Some(waiter) = self.pop_waiter() else {
                self.drop_later(entry);
                return;
            };
            self.deliver_shared(waiter, entry);
        }
    }
}

/// The budget for letting readers in unasked is used up: asks the server whether a writer waits. If none does, this one and
/// those behind it share the hold that this process has. `None`: ask for another hold.
pub(crate) async fn ask_to_join(core: &Arc<Core>, queue: &Arc<Queue>, spec: &Spec) -> Option<Held> {
    let asked = core.clock.now();
    let hold = {
        let state = queue.lock();
        state.hold_to_share(spec, asked).cloned()
    };
    // An entry from here on, so that the hold is not released meanwhile.
    let entry = hold.as_ref().and_then(Held::join)?;
    let hold = Arc::clone(entry.hold());
    match write_count(&hold).await {
        Ok(Counted::Written) if hold.standing().is_ok() => {}
        Ok(Counted::NotOurs) => {
            hold.lose(LostReason::Replaced);
            return None;
        }
        // A writer waits; or there is no usable answer, which the next request says as well.
        _ => return None,
    }
    let mut state = queue.lock();
    if state.life != Life::Open {
        return None; // B6
    }
    state.handoffs = 0;
    state.since = asked;
    state.admit_readers(&hold);
    queue.go_on(core, state, Start::Ask);
    Some(entry)
}
