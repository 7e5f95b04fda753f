//! The events of a client's leases, for users who watch them.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use tokio::sync::broadcast::{
    self,
    error::{RecvError, TryRecvError},
};

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

/// Hears the events of a client: [`Client::events`](crate::Client::events) makes it.
#[derive(Debug)]
pub struct EventListener(broadcast::Receiver<Event>);

impl EventListener {
    /// Waits for the next event.
    ///
    /// # Errors
    /// [`Lagged`](RecvError::Lagged): so many were missed, since this listener was more than 4096 behind; it goes on with the
    /// oldest that is left. [`Closed`](RecvError::Closed): the client is gone, and all its events were heard.
    ///
    /// # Cancel safety
    /// Cancel safe: an event that was not returned is returned by the next call.
    pub async fn recv(&mut self) -> Result<Event, RecvError> {
        let event = pin!(self.0.recv());
        // Other listeners wait for it, too: a waker that panics must not keep it from them.
        callout::shielded(event).await
    }

    /// The next event, if there is one already.
    ///
    /// # Errors
    /// [`Empty`](TryRecvError::Empty): there is none yet. Else as [`recv`](EventListener::recv).
    pub fn try_recv(&mut self) -> Result<Event, TryRecvError> {
        self.0.try_recv()
    }
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

    pub(crate) fn listen(&self) -> EventListener {
        self.watched.store(true, Ordering::Relaxed);
        EventListener(self.sender.subscribe())
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
