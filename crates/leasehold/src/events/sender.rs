//! The sending side of events: what is noted under locks is told without them, to observers inline and to listeners by a channel.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::broadcast;

use super::{Event, EventKind, EventListener};
use crate::{
    Error, callout,
    clock::{Clock, Tick},
    name::LockId,
    owner::LeaseId,
    story,
};

impl Event {
    /// Tells `tracing`.
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
            EventKind::Renewed { .. } => say!("renewed"),
            EventKind::RenewalFailed => say!("not renewed, tries again"),
            EventKind::HandedOver { held } => say!("handed over to the next waiter here", ?held),
            EventKind::Released { held } => say!("released", ?held),
            EventKind::Unconfirmed { held } => say!("given back, but not confirmed", ?held),
            EventKind::Detached { held } => say!("detached", ?held),
            // A loss is told by its finder, a call by `locks/asking.rs`.
            EventKind::Lost { .. } | EventKind::Asked | EventKind::Answered { .. } => {}
        }
    }
}

/// How far a slow listener may lag before it misses events.
const BACKLOG: usize = 4096;

/// Hears each event inline: a user's function, or the metrics.
pub(crate) trait Observe: Send + Sync {
    fn event(&self, event: &Event);

    /// This client leads an election, until the hold of that name ends.
    fn leads(&self, _election: &str) {}
}

impl<F: Fn(&Event) + Send + Sync> Observe for F {
    fn event(&self, event: &Event) {
        self(event);
    }
}

/// The observers of a client; or why what was given for one is not valid, for when it connects.
#[derive(Clone, Default)]
pub(crate) struct Observers {
    all: Vec<Arc<dyn Observe>>,
    invalid: Option<Error>,
}

impl Observers {
    pub(crate) fn add(&mut self, observer: Result<Arc<dyn Observe>, Error>) {
        match observer {
            Ok(observer) => self.all.push(observer),
            Err(error) => self.invalid = Some(error),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.invalid.clone().map_or(Ok(()), Err)
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} observers", self.all.len())
    }
}

/// The sending side. Costs one load per event while there is neither a listener nor an observer.
///
/// An event is noted where its order is certain, under the locks that make it so, and sent without them: a send calls wakers.
#[derive(Debug)]
pub(crate) struct Events {
    /// When the first listener came, of those that there are; an observer is one from the beginning. Zero: there is none.
    since: AtomicU64,
    observers: Observers,
    /// An observer has panicked, and that was told.
    has_panicked: AtomicBool,
    /// Whether the channel may have a receiver.
    is_heard: AtomicBool,
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
    pub(crate) fn new(observers: Observers, clock: &Clock) -> Self {
        let since = if observers.all.is_empty() {
            Tick::default()
        } else {
            clock.now().max(Tick::from_nanos(1))
        };
        Events {
            since: AtomicU64::new(since.nanos()),
            observers,
            has_panicked: AtomicBool::new(false),
            is_heard: AtomicBool::new(false),
            sender: broadcast::Sender::new(BACKLOG),
            noted: Mutex::default(),
        }
    }

    pub(crate) fn listen(&self, clock: &Clock) -> EventListener {
        let now = clock.now().nanos().max(1);
        let _noted = self.noted.lock();
        let listener = EventListener(self.sender.subscribe());
        self.is_heard.store(true, Ordering::Relaxed);
        if !self.has_listener() {
            self.since.store(now, Ordering::Relaxed);
        }
        listener
    }

    /// Whether a listener or an observer hears it.
    pub(crate) fn has_listener(&self) -> bool {
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

    /// Notes an event that stands for itself, and sends it. Without a lock.
    pub(crate) fn note_and_tell(&self, id: &LockId, lease: LeaseId, at: Instant, kind: EventKind) {
        let event = Event {
            at,
            name: id.name.shared(),
            lock: id.kind,
            lease: lease.get(),
            kind,
        };
        let mut noted = self.noted.lock();
        noted.events.push_back(event);
        self.send_noted(noted);
    }

    /// Sends what is noted. If another thread is at it, that one goes on with it.
    pub(crate) fn tell(&self) {
        if self.is_watched() {
            self.send_noted(self.noted.lock());
        }
    }

    fn send_noted<'a>(&'a self, mut noted: MutexGuard<'a, Noted>) {
        if noted.is_sending {
            return;
        }
        noted.is_sending = true;
        while let Some(event) = noted.events.pop_front() {
            drop(noted);
            callout::quietly(|| event.say());
            for observer in &self.observers.all {
                self.call(|| observer.event(&event));
            }
            if self.is_heard.load(Ordering::Relaxed) {
                // An error means that there is no listener any more.
                callout::quietly(|| drop(self.sender.send(event)));
            }
            noted = self.noted.lock();
        }
        noted.is_sending = false;
        if self.is_heard.load(Ordering::Relaxed) && self.sender.receiver_count() == 0 {
            self.is_heard.store(false, Ordering::Relaxed);
            if self.observers.all.is_empty() {
                self.since.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Tells the observers, not the listeners, that this client leads an election.
    pub(crate) fn leads(&self, election: &str) {
        for observer in &self.observers.all {
            self.call(|| observer.leads(election));
        }
    }

    /// Calls an observer. Its panic ends here, and the first of them is told.
    fn call(&self, call: impl FnOnce()) {
        let mut is_done = false;
        callout::quietly(|| {
            call();
            is_done = true;
        });
        if !is_done && !self.has_panicked.swap(true, Ordering::Relaxed) {
            callout::quietly(
                || tracing::warn!(target: "leasehold", "an observer has panicked; no lock is harmed, and it goes on hearing events"),
            );
        }
    }
}
