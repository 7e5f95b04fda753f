//! The events of a client's leases, for users who watch them.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::broadcast::{
    self,
    error::{RecvError, TryRecvError},
};

use crate::{
    LostReason, callout,
    clock::{Clock, Tick},
    kind::LockKind,
    name::LockId,
    owner::LeaseId,
    story,
};

/// Something that happened to a lease of this client.
///
/// # Holds
///
/// Events tell of *holds*: the time in which one holder of this client has a lease. A hold has exactly one start and exactly one
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
    /// The number of the lease, the second half of the owner field on the server.
    pub lease: u64,
    /// The kind of the event.
    pub kind: EventKind,
}

/// The kinds of events. [`Event`] says which of them start a hold, and which end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
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
    /// The server extended the lease.
    Renewed,
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
    /// An end: the lease was lost; [`LostReason::Replaced`] also if only the release found that the name was not ours any more.
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

impl Event {
    /// Tells `tracing`. A loss is a warning, which its finder gives.
    fn say(&self) {
        let Event {
            name, lock, lease, ..
        } = self;
        macro_rules! say {
            ($said:literal $(, $($field:tt)+)?) => {{
                // Not in the span that happens to be open: this may be another holder's thread.
                tracing::debug!(target: "leasehold", parent: None, %name, kind = %lock, lease, $($($field)+,)? $said);
            }};
        }
        match self.kind {
            EventKind::Acquired { wait } => say!("granted", ?wait, by = "the server"),
            EventKind::TakenOver { wait } => say!("granted", ?wait, by = "the holder before"),
            EventKind::Renewed => say!("renewed"),
            EventKind::RenewalFailed => say!("not renewed, tries again"),
            EventKind::HandedOver { held } => say!("handed over to the next waiter here", ?held),
            EventKind::Released { held } => say!("released", ?held),
            EventKind::Unconfirmed { held } => say!("given back, but not confirmed", ?held),
            EventKind::Detached { held } => say!("detached", ?held),
            EventKind::Lost { .. } => {}
        }
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

/// How far a slow listener may lag before it misses events.
const BACKLOG: usize = 4096;

/// The sending side. Costs one load per event while there is no listener.
///
/// An event is noted where its order is certain, under the locks that make it so, and sent without them: a send calls wakers.
#[derive(Debug)]
pub(crate) struct Events {
    /// When the first listener came, of those that there are. Zero: there is none.
    since: AtomicU64,
    sender: broadcast::Sender<Event>,
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    events: VecDeque<Event>,
    /// A thread sends them, and goes on until none is left.
    is_sending: bool,
}

impl Events {
    pub(crate) fn new() -> Self {
        Events {
            since: AtomicU64::new(0),
            sender: broadcast::Sender::new(BACKLOG),
            noted: Mutex::default(),
        }
    }

    pub(crate) fn listen(&self, clock: &Clock) -> EventListener {
        let now = clock.now().nanos().max(1);
        let _noted = self.noted.lock();
        let listener = EventListener(self.sender.subscribe());
        if !self.has_listener() {
            self.since.store(now, Ordering::Relaxed);
        }
        listener
    }

    fn has_listener(&self) -> bool {
        self.since.load(Ordering::Relaxed) != 0
    }

    /// Whether a listener, or a subscriber of `tracing`, may want to hear it.
    pub(crate) fn is_watched(&self) -> bool {
        self.has_listener() || story::is_on()
    }

    /// The beginning of a wait, for [`waited`](Events::waited): now, if a listener is to learn how long it takes.
    pub(crate) fn begin_wait(&self, clock: &Clock) -> Tick {
        if self.is_watched() {
            clock.now()
        } else {
            Tick::from_nanos(0)
        }
    }

    /// How long a wait has taken that began then. One that began before anything watched, and that no listener has heard of: zero.
    pub(crate) fn waited(&self, began: Tick, now: Tick) -> Duration {
        if began == Tick::from_nanos(0) && !self.has_listener() {
            return Duration::ZERO;
        }
        let since = Tick::from_nanos(self.since.load(Ordering::Relaxed));
        now.since(began.max(since))
    }

    /// Events that nothing comes between. To be followed by [`tell`](Events::tell), without a lock.
    pub(crate) fn note(
        &self,
        id: &LockId,
        lease: LeaseId,
        kinds: impl IntoIterator<Item = EventKind>,
    ) {
        if !self.is_watched() {
            return;
        }
        let at = Instant::now();
        let events = kinds.into_iter().map(|kind| Event {
            at,
            name: id.name.shared(),
            lock: id.kind,
            lease: lease.get(),
            kind,
        });
        self.noted.lock().events.extend(events);
    }

    /// Sends what is noted. If another thread is at it, that one goes on with it.
    pub(crate) fn tell(&self) {
        if !self.is_watched() {
            return;
        }
        let mut noted = self.noted.lock();
        if noted.is_sending {
            return;
        }
        noted.is_sending = true;
        while let Some(event) = noted.events.pop_front() {
            drop(noted);
            callout::quietly(|| event.say());
            // An error means that there is no listener any more.
            callout::quietly(|| drop(self.sender.send(event)));
            noted = self.noted.lock();
        }
        noted.is_sending = false;
        if self.sender.receiver_count() == 0 {
            self.since.store(0, Ordering::Relaxed);
        }
    }
}
