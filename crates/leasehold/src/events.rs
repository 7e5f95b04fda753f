//! The events of a client's leases, for users who watch them.

mod sender;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::broadcast::{
    self,
    error::{RecvError, TryRecvError},
};

use crate::{LostReason, kind::LockKind};
#[cfg(feature = "metrics")]
pub(crate) use sender::Observe;
pub(crate) use sender::{Events, Observers};

/// Something that happened to a lease of this client, or to a call that asks for one.
///
/// # Calls
///
/// A call for a lock (`lock`, `try_lock`, `try_lock_for`, `run`, `acquire`, …) tells [`Asked`](EventKind::Asked) at its first poll,
/// and [`Answered`](EventKind::Answered) once, with the [`Outcome`]: also if its future is dropped. A call for several locks tells both for
/// each. A call that is refused for what it was given (a name, a setting) asks for nothing, and tells neither; so does the wait for a latch.
/// Calls and holds are counted apart: an owner that enters again is answered, and starts no hold. Of calls that were under way
/// when a listener came, it may hear the answers.
///
/// # Holds
///
/// The other events tell of *holds*: the time in which one holder of this client has a lease. A hold has exactly one start and exactly one
/// end, and they come in this order. So on one [`lease`](Event::lease) starts and ends alternate, and counters made of them add up: starts minus
/// ends is how many holds there are now.
///
/// | start: has a [`wait`](EventKind::wait) | end: has a [`held`](EventKind::held) | between |
/// |---|---|---|
/// | [`Acquired`](EventKind::Acquired) | [`Released`](EventKind::Released) | [`Renewed`](EventKind::Renewed) |
/// | [`TakenOver`](EventKind::TakenOver) | [`HandedOver`](EventKind::HandedOver) | [`RenewalFailed`](EventKind::RenewalFailed) |
/// | | [`Lost`](EventKind::Lost) | |
/// | | [`Unconfirmed`](EventKind::Unconfirmed) | |
/// | | [`Detached`](EventKind::Detached) | |
///
/// - Guards that share a hold are one: the readers of this process that share a lease, re-entries, and
///   [`read`](crate::WriteGuard::read) under a writer. It starts with the first of them, and ends with the last.
/// - Each guard of a semaphore has a hold of its own, with however many permits. A multi-lock has one for each part.
/// - A downgrade goes on with the hold.
/// - A guard that is dropped is released in the background, and its end is told when the server has answered. So an end may come
///   later than the next start of another name.
/// - `max_hold` and a fixed lease that ends by itself end as [`Lost`](EventKind::Lost), with the reason.
/// - A guard that is forgotten ([`std::mem::forget`]) has no end before the client has one. A latch has no holds.
///
/// A listener hears what happens from then on: of leases that were held before, only their ends.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// let client = leasehold::Client::connect("memory:").await?;
/// let mut events = client.events();
/// client.mutex("order:42").run(async { /* … */ }).await?;
///
/// let (mut held_now, mut waited, mut held) = (0, Vec::new(), Vec::new());
/// while let Ok(event) = events.try_recv() {
///     if let Some(wait) = event.kind.wait() {
///         held_now += 1;
///         waited.push(wait);
///     }
///     if let Some(time) = event.kind.held() {
///         held_now -= 1;
///         held.push(time);
///     }
/// }
/// assert_eq!((held_now, waited.len(), held.len()), (0, 1, 1));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Event {
    /// When it was noticed here.
    pub at: Instant,
    /// The name.
    pub name: Arc<str>,
    /// The kind of lock: names of several kinds are apart.
    pub lock: LockKind,
    /// The number of the lease, the second half of the owner field on the server. Zero where there is none: of
    /// [`Asked`](EventKind::Asked), and of [`Answered`](EventKind::Answered) without a grant.
    pub lease: u64,
    /// The kind of the event.
    pub kind: EventKind,
}

/// The kinds of events. [`Event`] says which of them start a hold, and which end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// A call asks for the lock.
    Asked,
    /// The call that asked has its answer, or its future was dropped. Each [`Asked`](EventKind::Asked) has exactly one.
    Answered {
        /// The answer.
        outcome: Outcome,
        /// The time since it asked, at its first poll.
        wait: Duration,
    },
    /// A start: the server gave the lock to this client.
    Acquired {
        /// How long its caller had waited; counted from the client's first listener at the earliest.
        wait: Duration,
    },
    /// A start: the lease was passed on in memory, from another holder of this process. Its [`HandedOver`](EventKind::HandedOver)
    /// comes just before.
    TakenOver {
        /// As in [`Acquired`](EventKind::Acquired).
        wait: Duration,
    },
    /// The server extended the lease. `left / lease` is two thirds as long as renewals are on time; a third tells that
    /// one was missed, and zero is a loss.
    Renewed {
        /// How much of the lease before was left when the answer came, a margin for clocks taken off.
        left: Duration,
        /// The length of the lease.
        lease: Duration,
    },
    /// A renewal got no answer; it is tried again until the lease ends.
    RenewalFailed,
    /// An end: the lease was passed to the next waiter of this process, in memory.
    HandedOver {
        /// How long the holder had it.
        held: Duration,
    },
    /// An end: it went back to the server.
    Released {
        /// How long the holder had it, until its last guard was gone.
        held: Duration,
    },
    /// An end: it was given back, and the server has not confirmed that within the operation timeout. The request is repeated in the
    /// background, and the name is free when the lease ends at the latest.
    Unconfirmed {
        /// As in [`Released`](EventKind::Released).
        held: Duration,
    },
    /// An end: [`Guard::detach`](crate::Guard::detach) left it on the server, by no guard.
    Detached {
        /// How long the holder had it.
        held: Duration,
    },
    /// An end: the lease was lost; [`LostReason::Replaced`] or [`Failover`](LostReason::Failover) also if only the release found that the
    /// name was not ours any more.
    Lost {
        /// How it was lost.
        reason: LostReason,
        /// How long the holder had it, until the loss was found.
        held: Duration,
    },
}

impl EventKind {
    /// How long the holder had waited, if the event starts a hold.
    pub fn wait(&self) -> Option<Duration> {
        match *self {
            EventKind::Acquired { wait } | EventKind::TakenOver { wait } => Some(wait),
            _ => None,
        }
    }

    /// How long the holder had it, if the event ends a hold.
    pub fn held(&self) -> Option<Duration> {
        match *self {
            EventKind::HandedOver { held }
            | EventKind::Released { held }
            | EventKind::Unconfirmed { held }
            | EventKind::Detached { held }
            | EventKind::Lost { held, .. } => Some(held),
            _ => None,
        }
    }
}

/// The answer to a call for a lock.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use std::sync::{Arc, Mutex};
/// use leasehold::{Client, EventKind, Outcome};
///
/// let outcomes = Arc::new(Mutex::new(Vec::new()));
/// let heard = Arc::clone(&outcomes);
/// let observe = move |event: &leasehold::Event| {
///     if let EventKind::Answered { outcome, .. } = event.kind {
///         heard.lock().unwrap().push(outcome);
///     }
/// };
/// let client = Client::builder().url("memory:").observe(observe).connect().await?;
/// let guard = client.mutex("order:42").lock().await?;
/// assert!(client.mutex("order:42").try_lock().await?.is_none());
/// assert_eq!(*outcomes.lock().unwrap(), [Outcome::Granted, Outcome::Busy]);
/// assert_eq!(Outcome::GivenUp.as_str(), "given_up"); // for labels
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// It has the lock.
    Granted,
    /// `None`: the lock was held for as long as the caller was willing to wait.
    Busy,
    /// Its future was dropped before there was an answer.
    GivenUp,
    /// An error.
    Failed,
}

impl Outcome {
    /// A word for labels: `granted`, `busy`, `given_up`, `failed`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Outcome::Granted => "granted",
            Outcome::Busy => "busy",
            Outcome::GivenUp => "given_up",
            Outcome::Failed => "failed",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Hears the events of a client: [`Client::events`](crate::Client::events) makes it, and shows [`recv`](EventListener::recv).
#[must_use = "a listener hears nothing unless it is asked"]
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
        self.0.recv().await
    }

    /// The next event, if there is one already.
    ///
    /// # Errors
    /// [`Empty`](TryRecvError::Empty): there is none yet. Else as [`recv`](EventListener::recv).
    pub fn try_recv(&mut self) -> Result<Event, TryRecvError> {
        self.0.try_recv()
    }
}
