//! Holds that share the lock with others: readers', and permits'.
//!
//! They are no phase of the queue (Q1): while they last, an attempt or a driver may ask the server for more. The readers of
//! this process share one hold. Within the hand-off budget the next one joins it in memory; when that is used up, it asks
//! the server whether a writer waits.

use std::sync::Arc;

use crate::{
    backend::Counted,
    clock::Tick,
    engine::hold::Hold,
    engine::hold::held::Held,
    engine::hold::spec::Spec,
    engine::local::locked::Locked,
    engine::local::sharers::is_fresh,
    engine::queue::count::write_count,
    engine::queue::map::Queues,
    engine::queue::{Life, Phase, Queue, QueueState, Start},
    kind::Access,
};

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
        let latest = state.shared.latest();
        let asked = state
            .remote
            .as_ref()
            .is_some_and(|remote| remote.may_have());
        let Some(lease) = latest.filter(|_| once && !asked) else {
            return false;
        };
        state.phase = Phase::Releasing(lease);
        true
    }
}

impl Locked<'_, QueueState> {
    /// The release of a shared hold begins. A newcomer waits for it first, if nothing else is there.
    pub(crate) fn share_ends(&mut self, hold: &Arc<Hold>, now: Tick) {
        let began = self.since;
        if let Some(remote) = &mut self.remote
            && matches!(hold.spec().access, Access::Permits(_))
        {
            remote.turns.gives_back(now, began);
        }
        self.shared.release(hold);
        let rests = match &self.phase {
            Phase::Idle => true,
            Phase::Releasing(lease) => self.waiters.is_empty() && self.shared.is_releasing(*lease),
            _ => false,
        };
        if rests {
            self.phase = Phase::Releasing(hold.lease);
        }
    }

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
pub(crate) async fn ask_to_join(
    core: &Arc<Queues>,
    queue: &Arc<Queue>,
    spec: &Spec,
) -> Option<Held> {
    let asked = core.clock.now();
    let hold = {
        let state = queue.lock();
        state.hold_to_share(spec, asked).cloned()
    };
    // An entry from here on, so that the hold is not released meanwhile.
    let entry = hold.as_ref().and_then(Held::join)?;
    let hold = Arc::clone(entry.hold());
    match write_count(core, &hold).await {
        Ok(Counted::Written) if hold.standing().is_ok() => {}
        Ok(Counted::NotOurs) => {
            hold.lose(hold.not_ours());
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
