//! Carries wake-ups from the backend to the queues.
//!
//! A wake-up is a hint: it may be lost, late, or for a lease that is no more. It grants nothing that the server did not
//! grant, and no waiter depends on it for longer than the poll interval.

use std::sync::{OnceLock, Weak};

use crate::{
    backend::{Sink, WakeUp},
    engine::core::Core,
    kind::LockKind,
    name::LockId,
};

/// The sink of a client's backend. Exists before the client does, hence the cell.
#[derive(Debug, Default)]
pub(crate) struct WakeUps(OnceLock<Weak<Core>>);

impl WakeUps {
    pub(super) fn connect(&self, core: Weak<Core>) {
        // A second client for the same backend would be a bug of this library; the first one stays.
        let _ = self.0.set(core);
    }
}

impl Sink for WakeUps {
    fn wake(&self, id: &LockId, wake_up: WakeUp) {
        if let Some(core) = self.0.get().and_then(Weak::upgrade) {
            match id.kind {
                LockKind::Latch => core.gates.wake(id, wake_up),
                LockKind::FairMutex => core.fair.wake(&core.queues, id, wake_up),
                _ => core.queues.wake(id, wake_up),
            }
        }
    }
}
