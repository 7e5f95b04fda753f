//! The sending side of events: what is noted under locks is told without them, to observers inline and to listeners by a channel.

use std::{
    collections::{HashSet, VecDeque},
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
    Error,
    clock::{Clock, Tick},
    name::LockId,
    owner::LeaseId,
    story, user_callback,
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
            // A loss is told by the task that finds it, a call by `locks/asking.rs`.
            EventKind::Lost { .. } | EventKind::Asked | EventKind::Answered { .. } => {}
        }
    }
}

/// How far a slow listener may lag before it misses events, and how many events wait for slow observers.
const BACKLOG: usize = 4096;

/// For how long a caller tells what others have noted, before a thread goes on with it.
const TELLS_MOST: Duration = Duration::from_millis(5);

/// Hears each event inline: a user's function, or the metrics.
pub(crate) trait Observe: Send + Sync {
    fn event(&self, event: &Event);

    /// This client leads an election, until the hold of that name ends.
    fn leads(&self, _election: &str) {}

    /// So many events were dropped before this one, since the observers are slower than events come.
    fn dropped(&self, _events: u64) {}
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
    /// Which of them is the metrics.
    #[cfg(feature = "metrics")]
    metrics: Option<usize>,
    invalid: Option<Error>,
}

impl Observers {
    pub(crate) fn add(&mut self, observer: Arc<dyn Observe>) {
        self.all.push(observer);
    }

    /// The metrics, in place of those that were given before: two would count each event twice.
    #[cfg(feature = "metrics")]
    pub(crate) fn set_metrics(&mut self, metrics: Result<Arc<dyn Observe>, Error>) {
        self.invalid = None;
        match (metrics, self.metrics) {
            (Ok(metrics), Some(at)) => self.all[at] = metrics,
            (Ok(metrics), None) => {
                self.metrics = Some(self.all.len());
                self.add(metrics);
            }
            (Err(error), _) => self.invalid = Some(error),
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
///
/// A thread that finds events noted calls the observers, one thread at a time. A caller does so for [`TELLS_MOST`]; then the observers are
/// slower than events come, or slow, and a thread goes on, also with the next ones, so that no caller and no renewal pays for them. At most [`BACKLOG`] events wait. What
/// does not fit is dropped as a pair: a start with its end, and a question with its answer, so that counters add up.
#[derive(Debug)]
pub(crate) struct Events {
    /// When the first listener came, of those that there are; an observer is one from the beginning. Zero: there is none.
    since: AtomicU64,
    observers: Observers,
    /// An observer has panicked, and that was told.
    has_panicked: AtomicBool,
    /// Whether the channel may have a receiver.
    has_receivers: AtomicBool,
    sender: broadcast::Sender<Event>,
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    events: VecDeque<Event>,
    /// A thread sends them, and goes on until none is left.
    is_sending: bool,
    /// The observers took long for the events that were told last: a thread tells the next.
    is_slow: bool,
    /// Holds whose start was dropped: so are their ends.
    untold: HashSet<u64>,
    /// Events that were dropped, and not yet said so.
    dropped: u64,
    has_warned: bool,
}

impl Noted {
    /// Whether it is told.
    fn take(&mut self, event: Event) -> bool {
        let has_room = self.events.len() < BACKLOG;
        let (is_reported, with_it) = match event.kind {
            // Its answer is not told either: the call knows.
            EventKind::Asked => (has_room, 2),
            // Of a question that was told, so it is told beyond the backlog as well: `waiting` would never go down again.
            EventKind::Answered { .. } => (true, 0),
            // The end of a start that was told fits in always, or counters of holds would not add up.
            kind if kind.held().is_some() => (!self.untold.remove(&event.lease), 0),
            kind if kind.wait().is_some() => {
                if !has_room {
                    self.untold.insert(event.lease);
                }
                (has_room, 2)
            }
            _ => (has_room && !self.untold.contains(&event.lease), 1),
        };
        if is_reported {
            self.events.push_back(event);
        } else {
            self.dropped += with_it;
        }
        is_reported
    }
}

impl Events {
    pub(crate) fn new(observers: Observers, clock: &Clock) -> Self {
        let since = if observers.all.is_empty() {
            Tick::default()
        } else {
            // Counted from one, since zero says that there is no listener.
            clock.now().max(Tick::from_nanos(1))
        };
        Events {
            since: AtomicU64::new(since.nanos()),
            observers,
            has_panicked: AtomicBool::new(false),
            has_receivers: AtomicBool::new(false),
            sender: broadcast::Sender::new(BACKLOG),
            noted: Mutex::default(),
        }
    }

    pub(crate) fn listen(&self, clock: &Clock) -> EventListener {
        let now = clock.now().nanos().max(1);
        // Under the lock, as `sent` is: that one turns telling off when the last receiver has gone, and must see this one.
        let _noted = self.noted.lock();
        let listener = EventListener(self.sender.subscribe());
        self.has_receivers.store(true, Ordering::Relaxed);
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

    /// How long a wait has taken that began then. If it began before anything watched, and no listener has heard of it: zero.
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
        // Before the lock: it may be waited for.
        let at = Instant::now();
        let events = kinds.into_iter().map(|kind| Event {
            at,
            name: id.name.shared(),
            lock: id.kind,
            lease: lease.get(),
            kind,
        });
        let mut noted = self.noted.lock();
        for event in events {
            noted.take(event);
        }
    }

    /// Notes an event that stands for itself, and sends it. Without a lock. Whether it is told.
    pub(crate) fn note_and_tell(
        self: &Arc<Self>,
        id: &LockId,
        lease: LeaseId,
        at: Instant,
        kind: EventKind,
    ) -> bool {
        let event = Event {
            at,
            name: id.name.shared(),
            lock: id.kind,
            lease: lease.get(),
            kind,
        };
        let mut noted = self.noted.lock();
        let is_reported = noted.take(event);
        self.send_noted(noted);
        is_reported
    }

    /// Sends what is noted. If another thread is at it, that one goes on with it.
    pub(crate) fn tell(self: &Arc<Self>) {
        if self.is_watched() {
            self.send_noted(self.noted.lock());
        }
    }

    fn send_noted<'a>(self: &'a Arc<Self>, mut noted: MutexGuard<'a, Noted>) {
        // Also where an observer locks something itself: its events are told by the call that it is in, in their order.
        if noted.is_sending {
            return;
        }
        // Stays set while a thread goes on apart: no second sender may overtake it, or events would come out of order.
        noted.is_sending = true;
        if noted.is_slow && !noted.events.is_empty() {
            drop(noted);
            return self.go_on_apart();
        }
        // Without observers there is no code of users here but `tracing` and wakers, and no clock need be read.
        let began = (!self.observers.all.is_empty()).then(Instant::now);
        while let Some(event) = noted.events.pop_front() {
            noted = self.send(noted, event);
            if began.is_some_and(|began| began.elapsed() > TELLS_MOST) {
                noted.is_slow = true;
                if !noted.events.is_empty() {
                    drop(noted);
                    return self.go_on_apart();
                }
            }
        }
        self.sent(noted);
    }

    /// The observers are slow: a thread tells the rest, and ends when nothing is left.
    fn go_on_apart(self: &Arc<Self>) {
        let events = Arc::clone(self);
        let goes_on = move || {
            let (began, mut told) = (Instant::now(), 0);
            let mut noted = events.noted.lock();
            while let Some(event) = noted.events.pop_front() {
                noted = events.send(noted, event);
                told += 1;
            }
            // Slow is a millisecond for each event. If they are quicker by now, callers tell the next ones themselves again.
            noted.is_slow = began.elapsed() > TELLS_MOST / 5 * told;
            events.sent(noted);
        };
        let thread = std::thread::Builder::new().name("leasehold-observers".into());
        if thread.spawn(goes_on).is_err() {
            // The thread that notes the next event goes on.
            self.noted.lock().is_sending = false;
        }
    }

    /// Sends one, without the lock.
    fn send<'a>(&'a self, mut noted: MutexGuard<'a, Noted>, event: Event) -> MutexGuard<'a, Noted> {
        // Told with the first event behind the gap, so that an observer can place it.
        let dropped = std::mem::take(&mut noted.dropped);
        let warns = dropped > 0 && !std::mem::replace(&mut noted.has_warned, true);
        drop(noted);
        if warns {
            user_callback::catch_panic(
                || tracing::warn!(target: "leasehold", "observers are slower than events come, which are dropped; hand them to a channel, and do the work elsewhere"),
            );
        }
        user_callback::catch_panic(|| event.say());
        for observer in &self.observers.all {
            if dropped > 0 {
                self.call(|| observer.dropped(dropped));
            }
            self.call(|| observer.event(&event));
        }
        if self.has_receivers.load(Ordering::Relaxed) {
            // An error means that there is no listener any more.
            user_callback::catch_panic(|| drop(self.sender.send(event)));
        }
        self.noted.lock()
    }

    fn sent(&self, mut noted: MutexGuard<'_, Noted>) {
        noted.is_sending = false;
        if self.has_receivers.load(Ordering::Relaxed) && self.sender.receiver_count() == 0 {
            self.has_receivers.store(false, Ordering::Relaxed);
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
        user_callback::catch_panic(|| {
            call();
            is_done = true;
        });
        if !is_done && !self.has_panicked.swap(true, Ordering::Relaxed) {
            user_callback::catch_panic(
                || tracing::warn!(target: "leasehold", "an observer has panicked; no lock is harmed, and it goes on hearing events"),
            );
        }
    }
}
