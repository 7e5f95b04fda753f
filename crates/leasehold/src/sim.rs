//! Hooks for the deterministic simulation in `sim/`, and for no other user: no promise of this crate covers them.
//!
//! The simulation runs the real engine over the memory backend, or over the real scripts ([`scripts`]). It carries every request itself, says what time
//! it is, hands out the numbers, and looks at guards and at the store from outside without changing either.
//! Outside a simulation ([`enter`] was not called on this thread) nothing here does anything.

mod scripts;

use std::{
    cell::{Cell, RefCell},
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};

use crate::{
    Access, Guard, LostReason, MemoryServer,
    backend::{Failure, Reply, Sink, WakeUp, memory::store::Store},
    clock::{Clock, Tick},
    engine::hold::Hold,
    name::LockId,
};

pub use crate::backend::memory::store::look::{Held, Snapshot};
pub(crate) use scripts::Scripts;
pub use scripts::{Message, ScriptServer, Value};

/// Carries what clients send. Called while the client runs; must not wait.
pub trait Network: Send + Sync {
    /// A request leaves its client.
    fn send(&self, request: Request);
}

/// The clock that a simulated client's leases are measured on: a number that the simulation writes.
#[derive(Clone, Debug, Default)]
pub struct SimClock(Arc<AtomicU64>);

impl SimClock {
    /// The clock shows `nanos` from here on, unless it is past that.
    pub fn set(&self, nanos: u64) {
        self.0.fetch_max(nanos, Ordering::Relaxed);
    }

    /// The engine's reading. Each look is a nanosecond later than the one before, so that nothing depends on which
    /// of two equal instants comes first.
    pub(crate) fn now(&self) -> Tick {
        Tick::from_nanos(self.0.fetch_add(1, Ordering::Relaxed))
    }

    /// The reading, which grows with each look that the engine takes.
    pub fn reading(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn peek(&self) -> Tick {
        Tick::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// Which client the code that runs now belongs to.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its uuid.
    pub client: Arc<str>,
    /// Its clock.
    pub clock: SimClock,
}

thread_local! {
    static IDENTITY: RefCell<Option<Identity>> = const { RefCell::new(None) };
    static LEASES: Cell<Option<u64>> = const { Cell::new(None) };
    static TIMERS: RefCell<Vec<Instant>> = const { RefCell::new(Vec::new()) };
}

/// In a simulation: something happens on this thread's runtime then. tokio does not say when its next timer is due.
pub fn set_timer(end: Instant) {
    if LEASES.get().is_some() {
        TIMERS.with_borrow_mut(|timers| timers.push(end));
    }
}

/// The timers that were set since this was called last.
pub fn take_timers(mut each: impl FnMut(Instant)) {
    TIMERS.with_borrow_mut(|timers| timers.drain(..).for_each(&mut each));
}

/// A simulation begins on this thread: lease ids count on from this one.
pub fn enter(before: u64) {
    LEASES.set(Some(before));
}

/// A client that connects to a simulated server from here on is this one.
pub fn identify(identity: Option<Identity>) {
    IDENTITY.set(identity);
}

pub(crate) fn uuid() -> Option<Arc<str>> {
    IDENTITY.with_borrow(|identity| identity.as_ref().map(|is| Arc::clone(&is.client)))
}

pub(crate) fn clock() -> Option<Clock> {
    IDENTITY.with_borrow(|identity| {
        let clock = identity.as_ref().map(|is| is.clock.clone());
        clock.map(Clock::Simulated)
    })
}

pub(crate) fn next_lease() -> Option<u64> {
    let next = LEASES.get()? + 1;
    LEASES.set(Some(next));
    Some(next)
}

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the steps of backend/mod.rs")]
pub enum Kind {
    Acquire,
    Release,
    Renew,
    Keep,
    Extend,
    Count,
    Downgrade,
    Inspect,
    ForceUnlock,
    Permits,
    Write,
    Read,
    Listen,
    Unlisten,
}

impl Kind {
    /// Travels on the connection for wake-ups.
    pub fn is_subscription(self) -> bool {
        matches!(self, Kind::Listen | Kind::Unlisten)
    }
}

/// A request on its way: may be carried out at any time, any number of times, or never.
pub struct Request {
    /// The client that asks.
    pub client: Arc<str>,
    /// The kind of the request.
    pub kind: Kind,
    /// Which name and under which lease id. One for most kinds, any number for a renewal.
    pub about: Vec<(Arc<str>, u64)>,
    what: Box<dyn fmt::Debug + Send + Sync>,
    step: Box<dyn Step>,
}

/// How a request ends without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// It never left.
    NotSent,
    /// It may have been carried out.
    Ambiguous,
}

/// An answer on its way back. Dropped, it is lost.
pub struct Answer {
    /// In words.
    pub text: Box<dyn fmt::Debug + Send>,
    deliver: Box<dyn FnOnce() + Send>,
}

impl Answer {
    /// Reaches the client.
    pub fn deliver(self) {
        (self.deliver)();
    }
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
                WakeUp::TryAgain | WakeUp::Turns(_) | WakeUp::Watch(_) | WakeUp::Deaf => None,
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

pub(crate) trait Step: Send {
    fn execute(&self, store: &mut Store, scripts: Option<&Scripts>) -> Answer;
    fn fail(&self, how: NoAnswer);
    fn is_awaited(&self) -> bool;
}

type Awaited<T> = Arc<Mutex<Option<oneshot::Sender<Result<T, Failure>>>>>;

struct Sent<T, F> {
    step: F,
    awaited: Awaited<T>,
}

impl<T, F> Step for Sent<T, F>
where
    T: Clone + fmt::Debug + Send + 'static,
    F: Fn(&mut Store, Option<&Scripts>) -> Result<T, Failure> + Send,
{
    fn execute(&self, store: &mut Store, scripts: Option<&Scripts>) -> Answer {
        let answer = (self.step)(store, scripts);
        let awaited = Arc::clone(&self.awaited);
        Answer {
            text: Box::new(answer.clone()),
            deliver: Box::new(move || {
                if let Some(awaited) = awaited.lock().take() {
                    let _ = awaited.send(answer);
                }
            }),
        }
    }

    fn fail(&self, how: NoAnswer) {
        let failure = match how {
            NoAnswer::NotSent => Failure::NotSent(Arc::new(Unconnected)),
            NoAnswer::Ambiguous => Failure::Ambiguous(Arc::new(Unconnected)),
        };
        if let Some(awaited) = self.awaited.lock().take() {
            let _ = awaited.send(Err(failure));
        }
    }

    fn is_awaited(&self) -> bool {
        let awaited = self.awaited.lock();
        awaited.as_ref().is_some_and(|sender| !sender.is_closed())
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the connection is gone")]
struct Unconnected;

/// A step, and the answer that its client waits for.
pub(crate) fn step<T: Clone + fmt::Debug + Send + 'static>(
    step: impl Fn(&mut Store, Option<&Scripts>) -> Result<T, Failure> + Send + 'static,
) -> (Box<dyn Step>, Reply<T>) {
    let (sender, answered) = oneshot::channel();
    let awaited = Arc::new(Mutex::new(Some(sender)));
    let answer = async move {
        match answered.await {
            Ok(answer) => answer,
            // Lost on the way: the caller gives up by its own clock.
            Err(_) => std::future::pending().await,
        }
    };
    (Box::new(Sent { step, awaited }), Box::pin(answer))
}

impl Request {
    /// A request, and the answer that its client waits for.
    pub(crate) fn new<T: Clone + fmt::Debug + Send + 'static>(
        client: &Arc<str>,
        kind: Kind,
        about: Vec<(Arc<str>, u64)>,
        what: impl fmt::Debug + Send + Sync + 'static,
        carry_out: impl Fn(&mut Store) -> Result<T, Failure> + Send + 'static,
    ) -> (Request, Reply<T>) {
        let (step, answer) = step(move |store, _| carry_out(store));
        let request = Request {
            client: Arc::clone(client),
            kind,
            about,
            what: Box::new(what),
            step,
        };
        (request, answer)
    }

    /// The same request on the keys of scripts; this one is its twin's.
    pub(crate) fn on_keys(self, on_keys: Box<dyn Step>) -> Request {
        let twin = Some(self.step);
        let kind = self.kind;
        Request {
            step: Box::new(scripts::Both {
                kind,
                on_keys,
                twin,
            }),
            ..self
        }
    }

    /// The server carries it out now: the answer, and the wake-ups that it causes.
    pub fn execute(&self, server: &MemoryServer) -> (Answer, Vec<Hint>) {
        let scripts = server.scripts().map(Arc::as_ref);
        server.carry_out_simulated(|store| self.step.execute(store, scripts))
    }

    /// Tells its client that there will be no answer.
    pub fn fail(&self, how: NoAnswer) {
        self.step.fail(how);
    }

    /// Whether its client still waits for an answer, and has none.
    pub fn is_awaited(&self) -> bool {
        self.step.is_awaited()
    }

    /// In words.
    pub fn what(&self) -> &dyn fmt::Debug {
        &*self.what
    }
}

impl MemoryServer {
    /// A server whose requests this network carries.
    pub fn simulated(network: Arc<dyn Network>) -> MemoryServer {
        MemoryServer::with_network(network, None)
    }

    /// The same, on the real scripts.
    pub fn simulated_on(
        keys: Arc<Mutex<dyn ScriptServer>>,
        network: Arc<dyn Network>,
    ) -> MemoryServer {
        let scripts = Arc::new(Scripts::new(keys, network));
        let network = Arc::clone(&scripts) as Arc<dyn Network>;
        MemoryServer::with_network(network, Some(scripts))
    }
}

/// Looks at a guard from outside, without keeping it or its client alive and without changing anything.
#[derive(Clone, Debug)]
pub struct Probe(Weak<Hold>);

/// The result of a look through a [`Probe`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// `is_valid()` would answer `true` now, and for this long.
    Valid(Duration),
    /// Its time is over.
    Expired,
    /// Lost, and noticed.
    Lost(LostReason),
    /// Released, or gone altogether.
    Released,
}

impl Probe {
    /// The answer that [`Guard::is_valid`] would give at this moment of its client's clock.
    pub fn look(&self) -> Look {
        let Some(hold) = self.0.upgrade() else {
            return Look::Released;
        };
        let Clock::Simulated(clock) = &hold.core.clock else {
            return Look::Released;
        };
        hold.term.peek(clock.peek())
    }

    /// How it shares its name with others.
    pub fn access(&self) -> Access {
        let hold = self.0.upgrade();
        hold.map_or(Access::Exclusive, |hold| hold.spec().access)
    }

    /// The fencing token of the present holder; zero of a kind that has none.
    pub fn token(&self) -> u64 {
        self.0.upgrade().map_or(0, |hold| hold.token())
    }

    /// The lease id of the hold, as it is now.
    pub fn lease(&self) -> u64 {
        self.0.upgrade().map_or(0, |hold| hold.lease.get())
    }
}

impl<K> Guard<K> {
    /// The same guard, without its kind.
    pub fn erased(self) -> Guard {
        Guard::new(self.into_held())
    }

    /// The same guard, of the kind that it was before it was [`erased`](Guard::erased).
    pub fn retyped<J>(self) -> Guard<J> {
        Guard::new(self.into_held())
    }

    /// See [`Probe`].
    pub fn probe(&self) -> Probe {
        Probe(Arc::downgrade(self.hold()))
    }
}
