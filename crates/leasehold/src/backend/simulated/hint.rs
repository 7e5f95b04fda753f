//! A wake-up that the simulation carries.

use std::sync::Arc;

use crate::{
    backend::{Sink, WakeUp},
    name::LockId,
};

/// A client's connection for wake-ups.
pub(crate) trait Hears: Send + Sync {
    fn sink(&self) -> &Arc<dyn Sink>;
    /// It is gone.
    fn cut(&self);
    /// The server has ended a subscription, or refuses to take it up again.
    fn ended(&self, id: &LockId, refusal: Option<&str>);
}

/// A wake-up on its way to a client. Dropped, it is lost.
#[derive(Clone)]
pub struct Hint {
    /// The client that it is for.
    pub client: Arc<str>,
    /// About which name.
    pub name: Arc<str>,
    /// The lease id that the name was given to; `None`: try again.
    pub granted: Option<u64>,
    /// It says that the client is not heard any more where it listens: a connection that is not cut does not lose that.
    pub ends: bool,
    id: LockId,
    says: Says,
}

#[derive(Clone)]
enum Says {
    WakeUp(Arc<dyn Sink>, WakeUp),
    Ended(Arc<dyn Hears>, Option<String>),
}

impl Hint {
    pub(crate) fn new(client: &str, sink: Arc<dyn Sink>, id: LockId, wake_up: WakeUp) -> Hint {
        Hint {
            client: at_any_node(client).into(),
            name: id.name.shared(),
            granted: match wake_up {
                WakeUp::Granted(grant) => Some(grant.lease.get()),
                WakeUp::TryAgain
                | WakeUp::Turns(_)
                | WakeUp::Watch(_)
                | WakeUp::Forced
                | WakeUp::Deaf => None,
            },
            ends: false,
            id,
            says: Says::WakeUp(sink, wake_up),
        }
    }

    pub(crate) fn ended(
        client: &str,
        hears: Arc<dyn Hears>,
        id: LockId,
        refusal: Option<String>,
    ) -> Hint {
        Hint {
            client: at_any_node(client).into(),
            name: id.name.shared(),
            granted: None,
            ends: true,
            id,
            says: Says::Ended(hears, refusal),
        }
    }

    /// Reaches the client, whose code it runs.
    pub fn deliver(self) {
        match self.says {
            Says::WakeUp(sink, wake_up) => sink.wake(&self.id, wake_up),
            Says::Ended(hears, refusal) => hears.ended(&self.id, refusal.as_deref()),
        }
    }
}

/// The client of one that listens at a node.
pub(crate) fn at_any_node(listener: &str) -> &str {
    listener.split('@').next().unwrap_or(listener)
}
