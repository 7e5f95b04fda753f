//! The events of a client's leases, for users who watch them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use tokio::sync::broadcast;

use crate::{LostReason, callout, name::Name, owner::LeaseId};

/// Something that happened to a lease of this client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Event {
    /// When it was noticed here.
    pub at: Instant,
    /// The name.
    pub name: Arc<str>,
    /// The number of the lease, the second half of the owner field on the server.
    pub lease: u64,
    /// The kind of the event.
    pub kind: EventKind,
}

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// The server gave the name to this client.
    Acquired,
    /// The lease was passed to the next waiter of this process, in memory.
    HandedOver,
    /// The server extended the lease.
    Renewed,
    /// A renewal got no answer; it is tried again until the lease ends.
    RenewalFailed,
    /// The name went back to the server.
    Released,
    /// The lease was lost.
    Lost(LostReason),
}

/// How far a slow listener may lag before it misses events.
const BACKLOG: usize = 4096;

/// The sending side. Costs one load per event while there is no listener.
#[derive(Debug)]
pub(crate) struct Events {
    watched: AtomicBool,
    sender: broadcast::Sender<Event>,
}

impl Events {
    pub(crate) fn new() -> Self {
        Events {
            watched: AtomicBool::new(false),
            sender: broadcast::Sender::new(BACKLOG),
        }
    }

    pub(crate) fn listen(&self) -> broadcast::Receiver<Event> {
        self.watched.store(true, Ordering::Relaxed);
        self.sender.subscribe()
    }

    pub(crate) fn tell(&self, name: &Name, lease: LeaseId, kind: EventKind) {
        if self.watched.load(Ordering::Relaxed) {
            let event = Event {
                at: Instant::now(),
                name: name.shared(),
                lease: lease.get(),
                kind,
            };
            // An error means that there is no listener any more.
            callout::quietly(|| drop(self.sender.send(event)));
        }
    }
}
