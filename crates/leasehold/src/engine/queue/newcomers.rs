//! Newcomers: where one waits, and what it may be told without a request.
//!
//! `None` in answer to a newcomer that does not wait rests on what is so now: a task of this process has the lock, or waits for it and is
//! served before; or the server said so in reply to a request that was sent after the newcomer had come.

use std::sync::Arc;

use super::{
    Phase, Queue, QueueState, Spec, answer,
    enter::WaitTicket,
    waiters::{WaitLane, Waiter},
};
use crate::{clock::Tick, kind::Access};

impl QueueState {
    /// Whether the caller of the attempt under way still waits for its outcome. Else no hold begins: others would be told of it.
    pub(super) fn is_wanted(&self) -> bool {
        match &self.phase {
            Phase::InFlight(Some(caller)) => caller.strong_count() > 0,
            _ => true,
        }
    }

    /// No caller of this process wants the lock here any more, and the server has not been told so yet.
    pub(super) fn is_leaving(&mut self) -> bool {
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

    /// Where a newcomer waits.
    fn lane(&self, spec: &Spec) -> WaitLane {
        if spec.access.upgrades().is_some() {
            return WaitLane::Upgrade;
        }
        if spec.ahead {
            return WaitLane::Ahead;
        }
        // Readers pass those that wait for an upgradeable read, but not a writer behind these.
        let passes = |waiter: &Waiter| waiter.spec.access == Access::Upgradeable;
        let last = self.waiters.iter().rev();
        let mut last = last.take_while(|waiter| waiter.lane == WaitLane::Upgradeable);
        let behind = match spec.access {
            Access::Upgradeable => true,
            Access::Shared => !last.all(passes),
            _ => last.next().is_some(),
        };
        if behind {
            WaitLane::Upgradeable
        } else {
            WaitLane::InTurn
        }
    }

    /// Whether a newcomer that does not wait can be refused without a request: a task of this process has the name, or waits for it and
    /// is served before. A driver without a waiter knows nothing: it has not looked since the last one left. Nor what a newcomer changes
    /// that says how many permits there are.
    pub(super) fn is_taken(&mut self, spec: &Spec) -> bool {
        match &self.phase {
            Phase::WaitingRemote => {
                self.first_live_waiter(); // takes those out that have left
                let lane = self.lane(spec);
                self.waiters.front().is_some_and(|first| lane >= first.lane)
                    && !self.is_unsaid(spec.permits)
            }
            phase => phase.is_held(),
        }
    }

    /// Adds a waiter to its lane: behind the others, or as the `first` of them.
    pub(super) fn line_up(
        &mut self,
        queue: &Arc<Queue>,
        spec: Spec,
        once: bool,
        first: bool,
        began: Tick,
    ) -> WaitTicket {
        let (answer, answered) = answer::slot();
        let lane = self.lane(&spec);
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
            lane,
            number,
            spec,
            began,
            once,
            answer,
        };
        self.try_once += u32::from(once);
        let rank = waiter.rank();
        let behind = self.waiters.back().is_none_or(|last| last.rank() < rank);
        let at = if behind {
            self.waiters.len()
        } else {
            self.waiters.partition_point(|there| there.rank() < rank)
        };
        self.waiters.insert(at, waiter);
        // The driver sleeps only for what its ticket asks for, and what it has said.
        let is_asked = behind || at > 0 || self.asked() == Some(spec.terms());
        if matches!(self.phase, Phase::WaitingRemote) && (!is_asked || self.is_unsaid(spec.permits))
        {
            queue.driver_wake().notify_one();
        }
        WaitTicket {
            queue: Arc::clone(queue),
            lane,
            number,
            answered,
        }
    }
}
