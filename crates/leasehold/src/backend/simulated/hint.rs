//! A wake-up that the simulation carries.

use std::sync::Arc;

use crate::{
    backend::{Sink, WakeUp},
    name::LockId,
};

/// A wake-up on its way to a client. Dropped, it is lost.
#[derive(Clone)]
pub struct Hint {
    /// The client that it is for.
    pub client: Arc<str>,
    /// About which name.
    pub name: Arc<str>,
    /// The lease id that the name was given to; `None`: try again.
    pub granted: Option<u64>,
    sink: Arc<dyn Sink>,
    wake_up: (LockId, WakeUp),
}

impl Hint {
    pub(crate) fn new(client: &Arc<str>, sink: Arc<dyn Sink>, id: LockId, wake_up: WakeUp) -> Hint {
        Hint {
            client: Arc::clone(client),
            name: id.name.shared(),
            granted: match wake_up {
                WakeUp::Granted(grant) => Some(grant.lease.get()),
                WakeUp::TryAgain
                | WakeUp::Turns(_)
                | WakeUp::Watch(_)
                | WakeUp::Forced
                | WakeUp::Deaf => None,
            },
            sink,
            wake_up: (id, wake_up),
        }
    }

    /// Reaches the client, whose code it runs.
    pub fn deliver(self) {
        let (id, wake_up) = self.wake_up;
        self.sink.wake(&id, wake_up);
    }
}
