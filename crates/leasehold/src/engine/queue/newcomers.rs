//! Newcomers: where one waits, and what it may be told without a request.
//!
//! `None` in answer to a newcomer that does not wait rests on what is so now: a task of this process has the lock, or waits for it and is
//! served before; or the server said so in reply to a request that was sent after the newcomer had come.

use std::sync::Arc;

use crate::{
    clock::Tick,
    engine::hold::spec::Spec,
    engine::local::answer,
    engine::local::waiters::Waiter,
    engine::queue::enter::WaitTicket,
    engine::queue::{Phase, Queue, QueueState},
};

impl QueueState {
    /// Whether the caller of the attempt under way still waits for its outcome. Else no hold begins: others would be told of it.
    pub(crate) fn is_wanted(&self) -> bool {
        match &self.phase {
            Phase::InFlight(Some(caller)) => caller.strong_count() > 0,
            _ => true,
        }
    }

    /// No caller of this process wants the lock here any more, and the server has not been told so yet.
    pub(crate) fn is_leaving(&mut self) -> bool {
        match &self.phase {
            Phase::Releasing(..) => true,
            Phase::InFlight(Some(_)) => !self.is_wanted(),
            // A newcomer that begins its attempt has nothing at the server yet.
            Phase::InFlight(None) | Phase::WaitingRemote => {
                self.remote.is_some() && self.first_live_waiter().is_none()
            }
            Phase::Idle | Phase::Held(_) => false,
        }
    }

    /// Whether a newcomer that does not wait can be refused without a request: a task of this process has the name, or waits for it and
    /// is served before. A driver without a waiter knows nothing: it has not looked since the last one left. Nor what a newcomer changes
    /// that says how many permits there are.
    pub(crate) fn is_taken(&mut self, spec: &Spec) -> bool {
        match &self.phase {
            Phase::WaitingRemote => {
                self.first_live_waiter().is_some() && !self.is_unsaid(spec.permits)
            }
            phase => phase.is_held(),
        }
    }

    /// Adds a waiter: behind the others, or as the `first` of them.
    pub(crate) fn line_up(
        &mut self,
        queue: &Arc<Queue>,
        spec: Spec,
        once: bool,
        first: bool,
        began: Tick,
    ) -> WaitTicket {
        let (answer, answered) = answer::slot();
        let number = if first {
            self.numbers.start -= 1;
            self.numbers.start
        } else {
            self.numbers.end += 1;
            self.numbers.end - 1
        };
        let last = self.waiters.back();
        self.differ = last.is_some_and(|last| self.differ || last.spec.permits != spec.permits);
        let waiter = Waiter {
            number,
            spec,
            began,
            once,
            answer,
        };
        self.try_once += u32::from(once);
        if first {
            self.waiters.push_front(waiter);
        } else {
            self.waiters.push_back(waiter);
        }
        // The driver sleeps only for what it has said.
        if matches!(self.phase, Phase::WaitingRemote) && self.is_unsaid(spec.permits) {
            queue.driver_wake().notify_one();
        }
        WaitTicket {
            queue: Arc::clone(queue),
            number,
            answered,
        }
    }
}
