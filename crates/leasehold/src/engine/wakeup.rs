//! Carries wake-ups from the backend to the queues.
//!
//! A wake-up is a hint: it may be lost, late, or for a lease that is no more. It grants nothing that the server did not
//! grant, and no waiter depends on it for longer than the poll interval.

use std::sync::{Arc, OnceLock, Weak};

use crate::{
    backend::{Restarted, Sink, WakeUp},
    engine::{
        core::Core, fair::fair_queues::FairQueues, latch_waiters::AllLatchWaiters,
        queue::map::Queues,
    },
    kind::LockKind,
    name::LockId,
};

/// The sink of a client's backend. Exists before the client does, hence the cell.
#[derive(Debug, Default)]
pub(crate) struct WakeUps(OnceLock<Woken>);

/// The parts of a client that hear of locks.
#[derive(Debug)]
struct Woken {
    queues: Weak<Queues>,
    fair: Weak<FairQueues>,
    latch_waiters: Weak<AllLatchWaiters>,
}

impl WakeUps {
    pub(super) fn connect(&self, core: &Core) {
        // A second client for the same backend would be a bug of this library; the first one stays.
        let _ = self.0.set(Woken {
            queues: Arc::downgrade(&core.queues),
            fair: Arc::downgrade(&core.fair),
            latch_waiters: Arc::downgrade(&core.latch_waiters),
        });
    }
}

impl Sink for WakeUps {
    fn wake(&self, id: &LockId, wake_up: WakeUp) {
        let Some(woken) = self.0.get() else { return };
        if id.kind == LockKind::Latch {
            if let Some(latch_waiters) = woken.latch_waiters.upgrade() {
                latch_waiters.wake(id, wake_up);
            }
        } else if let Some(queues) = woken.queues.upgrade() {
            match woken.fair.upgrade() {
                Some(fair) if id.kind == LockKind::FairMutex => fair.wake(&queues, id, wake_up),
                _ => queues.wake(id, wake_up),
            }
        }
    }

    /// Holds are verified. Waiters are told to ask when they are heard again, on the new subscription.
    fn restarted(&self, restarted: Restarted) {
        if let Some(queues) = self.0.get().and_then(|woken| woken.queues.upgrade()) {
            queues.watchdog.note_restart(queues.clock.now(), restarted);
        }
    }

    fn cut_off(&self) {
        if let Some(queues) = self.0.get().and_then(|woken| woken.queues.upgrade()) {
            queues.watchdog.wake_up();
        }
    }

    fn is_busy(&self) -> bool {
        let Some(woken) = self.0.get() else {
            return false;
        };
        let queues = woken.queues.upgrade();
        let latch_waiters = woken.latch_waiters.upgrade();
        queues.is_some_and(|queues| queues.len() > 0)
            || latch_waiters.is_some_and(|latch_waiters| latch_waiters.len() > 0)
    }
}
