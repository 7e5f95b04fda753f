//! The line of this process for one name.
//!
//! A name that anybody in this process holds, wants or gives back has one queue, and the queue has one seat.
//! Whoever has the seat is the only one who talks to the server about that name; everybody else waits in
//! memory, first come first served. The seat is taken by an attempt, by the holder, by a release under way, or
//! by a *driver*: a task that stands in the line of processes on behalf of all who wait here.
//!
//! Invariants, cited by number elsewhere:
//!
//! - **Q1** At most one attempt, hold, release or driver per queue: the seat. (A driver whose waiter was given the name
//!   over its head does nothing more than to end.)
//! - **Q2** A queue with waiters has its seat taken, so somebody will call them.
//! - **Q3** A queue leaves the map under its own lock, with nobody in it; who finds it afterwards looks again.
//! - **Q4** Once a release was sent, its lease id is never relied on again; the server may keep the name for
//!   this client, but under the next id.
//! - **Q5** A guard is never dropped under a queue's lock.

mod attempt;
mod driver;
mod enter;
mod release;

use std::{
    collections::{HashMap, VecDeque},
    hash::BuildHasher,
    ops::Range,
    panic::Location,
    sync::Arc,
    time::Duration,
};

use attempt::abandon;
use driver::{Start, drive};
pub(crate) use enter::acquire;
use enter::{Place, Turn, go_inside};
pub(crate) use release::{Gone, let_go, release_at_last};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::{
    Error, LostReason,
    backend::{Failure, Line, WakeUp},
    client::Core,
    clock::{Span, Tick},
    config::{Handoff, SELF_WAIT_WARNING, millis},
    events::EventKind,
    guard::Guard,
    hold::Hold,
    lease,
    name::Name,
    owner::{LeaseId, OwnerId},
};

/// What somebody asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    pub(crate) lease: Span,
    /// Zero: a fixed lease, never renewed.
    pub(crate) renew_every: Span,
    /// Zero: no end.
    pub(crate) max_hold: Span,
    pub(crate) handoff: Handoff,
    pub(crate) owner: Option<OwnerId>,
    pub(crate) reentrant: bool,
    /// Where in the user's code.
    pub(crate) place: &'static Location<'static>,
}

impl Spec {
    pub(crate) fn is_fixed(&self) -> bool {
        self.renew_every == Span::ZERO
    }

    pub(crate) fn lease(&self) -> Duration {
        self.lease.get()
    }

    pub(crate) fn renew_every(&self) -> Duration {
        self.renew_every.get()
    }

    pub(crate) fn max_hold(&self) -> Option<Duration> {
        (self.max_hold != Span::ZERO).then(|| self.max_hold.get())
    }

    fn lease_ms(&self) -> u64 {
        millis(self.lease())
    }

    /// Whether a lease taken for `self` serves `other` as it is. A fixed lease never does: who asks for ten
    /// seconds gets ten seconds from now.
    fn serves(&self, other: &Spec) -> bool {
        !self.is_fixed()
            && self.lease == other.lease
            && self.renew_every == other.renew_every
            && self.max_hold == Span::ZERO
            && other.max_hold == Span::ZERO
    }
}

/// How long somebody is willing to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    Once,
    For(Duration),
    Forever,
}

/// The queues of a client, by name.
#[derive(Debug)]
pub(crate) struct Queues {
    shards: Box<[Shard]>,
    hasher: Hashing,
}

/// One part of the map, so that names do not wait for each other's locks.
type Shard = Mutex<HashMap<Name, Arc<Queue>, Hashing>>;

#[cfg(not(feature = "sim"))]
type Hashing = std::hash::RandomState;
/// The same order in each run.
#[cfg(feature = "sim")]
type Hashing = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

const SHARDS: usize = 16;

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) name: Name,
    state: Mutex<State>,
    /// Wakes the driver.
    bell: Notify,
}

#[derive(Debug)]
struct State {
    seat: Seat,
    /// Their numbers grow from front to back, and none is given twice.
    waiters: VecDeque<Waiter>,
    /// The numbers given so far.
    numbers: Range<i64>,
    /// How many of the waiters ask only once.
    hasty: u32,
    /// The number of the present driver; one with another number has had its day.
    driver: u32,
    /// Hand-offs since the server was last asked, and since when.
    row: u32,
    row_since: Tick,
    /// Only while somebody waits; boxed, since most names are never contended.
    line: Option<Box<InLine>>,
    /// This queue has left the map (Q3).
    gone: bool,
}

#[derive(Debug)]
enum Seat {
    Free,
    /// Somebody talks to the server and will be done soon.
    Busy,
    /// Another process holds the name; the driver waits for it.
    Parked,
    Held(Arc<Hold>),
}

/// What the queue knows of the line of processes on the server.
#[derive(Debug, Default)]
struct InLine {
    /// Wake-ups are heard.
    listening: bool,
    /// The lease id this process asks under.
    ticket: Option<LeaseId>,
    /// Its place in the line of processes, as it was taken.
    place: Option<Line>,
    /// The driver waits for its turn.
    parked: Option<Parked>,
    /// The server has given the name to the ticket, and the driver must look into it.
    granted: bool,
    /// Why the last attempt had no answer.
    trouble: Option<Failure>,
}

/// What a driver leaves behind while it waits, so that it need not be woken to be served.
#[derive(Clone, Copy, Debug)]
struct Parked {
    /// When the place in line was last confirmed: a grant counts from here (L1).
    asked: Tick,
    resent: bool,
}

#[derive(Debug)]
struct Waiter {
    number: i64,
    spec: Spec,
    /// Does not wait for holders, only for attempts and releases under way.
    once: bool,
    call: oneshot::Sender<Answer>,
}

type Answer = Result<Option<Guard>, Error>;

type Locked<'a> = parking_lot::MutexGuard<'a, State>;

impl Line {
    /// Whether a lease that was given for this place serves as it is, so long after the place was last confirmed.
    fn serves(&self, spec: &Spec, age: Duration) -> bool {
        let lease = Duration::from_millis(self.lease_ms);
        let fresh_enough = if spec.is_fixed() { 20 } else { 3 };
        lease == spec.lease() && age < lease / fresh_enough
    }
}

impl Queues {
    pub(crate) fn new() -> Queues {
        Queues {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: Hashing::default(),
        }
    }

    fn shard(&self, name: &Name) -> &Shard {
        let hash = self.hasher.hash_one(name);
        &self.shards[usize::try_from(hash >> 32).unwrap_or(0) % SHARDS]
    }

    fn find(&self, name: &Name) -> Option<Arc<Queue>> {
        self.shard(name).lock().get(name).cloned()
    }

    fn find_or_make(&self, name: &Name) -> Arc<Queue> {
        let mut shard = self.shard(name).lock();
        if let Some(queue) = shard.get(name) {
            return Arc::clone(queue);
        }
        let queue = Arc::new(Queue {
            name: name.clone(),
            state: Mutex::new(State {
                seat: Seat::Free,
                waiters: VecDeque::new(),
                numbers: 0..0,
                hasty: 0,
                driver: 0,
                row: 0,
                row_since: Tick::MAX,
                line: None,
                gone: false,
            }),
            bell: Notify::new(),
        });
        shard.insert(name.clone(), Arc::clone(&queue));
        queue
    }

    /// Takes a queue out of the map. Call under the queue's lock (Q3).
    fn remove(&self, queue: &Arc<Queue>) {
        let mut shard = self.shard(&queue.name).lock();
        if shard
            .get(&queue.name)
            .is_some_and(|q| Arc::ptr_eq(q, queue))
        {
            shard.remove(&queue.name);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// How many wait for the name in this process.
    pub(crate) fn waiting(&self, name: &Name) -> usize {
        self.find(name)
            .map_or(0, |queue| queue.state.lock().waiters.len())
    }

    /// All holds of this process.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        let mut holds = Vec::new();
        for shard in &self.shards {
            let queues: Vec<Arc<Queue>> = shard.lock().values().cloned().collect();
            holds.extend(queues.iter().filter_map(|queue| queue.holder()));
        }
        holds
    }

    /// The hold of this process on a name.
    pub(crate) fn held(&self, name: &Name) -> Option<Arc<Hold>> {
        self.find(name)?.holder()
    }

    /// The backend heard something about a name.
    pub(crate) fn wake(&self, core: &Arc<Core>, name: &Name, wake_up: WakeUp) {
        let queue = self.find(name);
        if let Some(queue) = &queue {
            let state = queue.state.lock();
            match wake_up {
                WakeUp::TryAgain => {
                    if !matches!(state.seat, Seat::Held(_) | Seat::Free) {
                        queue.bell.notify_one();
                    }
                    return;
                }
                WakeUp::Granted(lease) => {
                    if state.line.as_ref().is_some_and(|l| l.ticket == Some(lease)) {
                        queue.granted(core, state, lease);
                        return;
                    }
                    if matches!(&state.seat, Seat::Held(hold) if hold.lease() == lease) {
                        return; // we asked and know already
                    }
                }
            }
        }
        if let WakeUp::Granted(lease) = wake_up {
            // Nobody waits for it any more: give it on at once.
            abandon(core, name, lease, None);
        }
    }

    /// Calls everybody who waits and tells them that the client is closed.
    pub(crate) fn close(&self) {
        for shard in &self.shards {
            let queues: Vec<Arc<Queue>> = shard.lock().values().cloned().collect();
            for queue in queues {
                queue.state.lock().dismiss_all(&Error::Closed);
                queue.bell.notify_one();
            }
        }
    }
}

impl State {
    fn line_up(&mut self, queue: &Arc<Queue>, spec: Spec, once: bool, first: bool) -> Place {
        let (call, called) = oneshot::channel();
        let number = if first {
            self.numbers.start -= 1;
            self.numbers.start
        } else {
            self.numbers.end += 1;
            self.numbers.end - 1
        };
        let waiter = Waiter {
            number,
            spec,
            once,
            call,
        };
        self.hasty += u32::from(once);
        if first {
            self.waiters.push_front(waiter);
        } else {
            self.waiters.push_back(waiter);
        }
        Place {
            queue: Arc::clone(queue),
            number,
            called,
        }
    }

    /// What the first one who is still there asks for.
    fn first(&mut self) -> Option<Spec> {
        while self.waiters.front().is_some_and(|w| w.call.is_closed()) {
            self.next();
        }
        self.waiters.front().map(|w| w.spec)
    }

    fn next(&mut self) -> Option<Waiter> {
        let waiter = self.waiters.pop_front()?;
        self.hasty -= u32::from(waiter.once);
        Some(waiter)
    }

    /// Those who ask only once have their answer: somebody holds it.
    fn dismiss_hasty(&mut self) {
        if self.hasty == 0 {
            return;
        }
        self.hasty = 0;
        let (hasty, patient): (VecDeque<_>, VecDeque<_>) =
            self.waiters.drain(..).partition(|w| w.once);
        self.waiters = patient;
        for waiter in hasty {
            let _ = waiter.call.send(Ok(None));
        }
    }

    /// The lease id that stood in line has become a lease, or is none any more.
    fn not_in_line(&mut self) {
        if let Some(line) = &mut self.line {
            line.ticket = None;
            line.place = None;
            line.parked = None;
            line.granted = false;
            line.trouble = None;
        }
    }

    fn listening(&self) -> bool {
        self.line.as_ref().is_some_and(|line| line.listening)
    }

    /// Gives the hold to the first waiter who takes it.
    fn seat_first(&mut self, hold: &Arc<Hold>, now: Tick) -> bool {
        while let Some(waiter) = self.next() {
            if waiter.call.is_closed() {
                continue;
            }
            hold.seat(waiter.spec, now);
            match waiter.call.send(Ok(Some(Guard::new(Arc::clone(hold))))) {
                Ok(()) => {
                    self.hold(hold);
                    return true;
                }
                // It left this very moment. Q5: the guard must not act on its drop.
                Err(Ok(Some(guard))) => drop(guard.defuse()),
                Err(_) => {}
            }
        }
        false
    }

    /// The seat is a holder's.
    fn hold(&mut self, hold: &Arc<Hold>) {
        self.seat = Seat::Held(Arc::clone(hold));
        let owner = hold.spec().owner;
        if owner.is_some() && self.waiters.iter().any(|w| w.spec.owner == owner) {
            self.let_inside(hold, owner);
        }
        self.dismiss_hasty();
    }

    /// Waiters of the same owner enter with it, or they would wait for themselves.
    fn let_inside(&mut self, hold: &Arc<Hold>, owner: Option<OwnerId>) {
        let mut rest = VecDeque::new();
        for waiter in self.waiters.drain(..) {
            if waiter.spec.owner != owner || waiter.call.is_closed() {
                rest.push_back(waiter);
            } else if !waiter.spec.reentrant {
                let _ = waiter.call.send(Err(Error::Reentered {
                    name: hold.queue.name.shared(),
                    held_at: hold.spec().place,
                }));
            } else if hold.enter_counted().is_some() {
                let hold = Arc::clone(hold);
                let core = Arc::clone(&hold.core);
                core.spawn(async move {
                    let guard = go_inside(hold).await;
                    let _ = waiter.call.send(guard.map(Some));
                });
            }
        }
        self.hasty = u32::try_from(rest.iter().filter(|w| w.once).count()).unwrap_or(0);
        self.waiters = rest;
    }

    /// Everybody gets the same answer.
    fn dismiss_all(&mut self, error: &Error) {
        self.hasty = 0;
        for waiter in self.waiters.drain(..) {
            let _ = waiter.call.send(Err(error.clone()));
        }
    }
}

impl Queue {
    fn holder(&self) -> Option<Arc<Hold>> {
        match &self.state.lock().seat {
            Seat::Held(hold) => Some(Arc::clone(hold)),
            _ => None,
        }
    }

    /// The server has given the name to the ticket. If the first who waits can have it as it is, it is his at once;
    /// the driver, whose hop this saves, only learns that it is not needed any more. If not, the driver sees to it.
    fn granted(self: &Arc<Self>, core: &Arc<Core>, mut state: Locked<'_>, ticket: LeaseId) {
        if let Some((parked, place)) = state.line.as_ref().and_then(|l| l.parked.zip(l.place))
            && let Some(spec) = state.first()
            && place.serves(&spec, core.clock.now().since(parked.asked))
            && let Some(hold) = self.seat(core, &mut state, ticket, &spec, parked)
        {
            state.driver = state.driver.wrapping_add(1);
            drop(state);
            self.seated(core, &hold, parked.asked);
        } else if let Some(line) = &mut state.line {
            line.granted = true;
        }
        self.bell.notify_one();
    }

    /// The name is ours under this ticket: gives it to the first who waits, if that is what he asks for. To be followed by
    /// [`seated`](Queue::seated) without the lock.
    fn seat(
        self: &Arc<Self>,
        core: &Arc<Core>,
        state: &mut State,
        ticket: LeaseId,
        spec: &Spec,
        Parked { asked, resent }: Parked,
    ) -> Option<Arc<Hold>> {
        let first = state.first()?;
        if first.lease() != spec.lease() || first.is_fixed() != spec.is_fixed() || core.is_closed()
        {
            return None;
        }
        let now = core.clock.now();
        let hold = Hold::new(core, self, ticket, *spec, asked, resent);
        if !state.seat_first(&hold, now) {
            return None;
        }
        state.row = 0;
        state.row_since = now;
        state.not_in_line();
        if state.waiters.is_empty() && state.line.take().is_some_and(|line| line.listening) {
            core.backend.unlisten(&self.name);
        }
        Some(hold)
    }

    fn seated(&self, core: &Arc<Core>, hold: &Arc<Hold>, asked: Tick) {
        hold.watch(asked);
        core.events
            .tell(&self.name, hold.lease(), EventKind::Acquired);
    }

    /// A newcomer's attempt was granted.
    fn take_first(
        self: &Arc<Self>,
        core: &Arc<Core>,
        lease: LeaseId,
        spec: Spec,
        sent: Tick,
        resent: bool,
    ) -> Turn {
        let hold = Hold::new(core, self, lease, spec, sent, resent);
        let now = core.clock.now();
        hold.seat(spec, now);
        let mut state = self.state.lock();
        state.row = 0;
        state.row_since = now;
        state.hold(&hold);
        drop(state);
        hold.watch(sent);
        core.events.tell(&self.name, lease, EventKind::Acquired);
        if core.is_closed() {
            hold.lose(LostReason::ClientShutdown);
        }
        // A guard from here on: should nobody take it, its drop releases the name (D5).
        Turn::Guard(Guard::new(hold))
    }

    /// A newcomer's attempt found the name held by another process.
    fn held_elsewhere(self: &Arc<Self>, core: &Arc<Core>, spec: Spec, patience: Patience) -> Turn {
        let mut state = self.state.lock();
        let turn = if patience == Patience::Once {
            Turn::Busy
        } else {
            Turn::Place(state.line_up(self, spec, false, true))
        };
        state.dismiss_hasty();
        self.go_on(core, state, Start::Listen);
        turn
    }

    /// The seat is given up; the waiters, if any, get a driver.
    fn pass_on(self: &Arc<Self>, core: &Arc<Core>) {
        self.go_on(core, self.state.lock(), Start::Ask);
    }

    /// The holder has lost the name or left it to expire: the seat is free for the next.
    pub(crate) fn vacate(self: &Arc<Self>, core: &Arc<Core>, hold: &Arc<Hold>) {
        let state = self.state.lock();
        if matches!(&state.seat, Seat::Held(there) if Arc::ptr_eq(there, hold)) {
            self.go_on(core, state, Start::Ask);
        }
    }

    /// Whoever has the seat is done with it: a driver for those who wait, or the end of the queue (Q2, Q3).
    fn go_on(self: &Arc<Self>, core: &Arc<Core>, mut state: Locked<'_>, start: Start) {
        if state.waiters.is_empty() {
            self.close(core, &mut state);
        } else {
            state.seat = Seat::Busy;
            drop(state);
            core.spawn(drive(Arc::clone(core), Arc::clone(self), start));
        }
    }

    /// Nobody holds, wants or gives back the name in this process.
    fn close(self: &Arc<Self>, core: &Arc<Core>, state: &mut State) {
        state.seat = Seat::Free;
        state.gone = true;
        core.queues.remove(self);
        let Some(line) = state.line.take() else {
            return;
        };
        if line.listening {
            core.backend.unlisten(&self.name);
        }
        if let (Some(ticket), Some(place)) = (line.ticket, line.place) {
            abandon(core, &self.name, ticket, Some(place));
        }
    }

    /// The time of a patient waiter is up.
    fn out_of_time(&self, spec: Spec) -> Answer {
        let state = self.state.lock();
        match state.line.as_ref().and_then(|line| line.trouble.clone()) {
            // Held by somebody, as far as we know.
            None => Ok(None),
            Some(failure) => {
                let free = lease::free_within(spec.lease());
                Err(failure.into_error(format!("lock {:?}", self.name), free))
            }
        }
    }

    fn warn_of_self_wait(&self, spec: Spec) {
        let holder = match &self.state.lock().seat {
            Seat::Held(hold) => hold.spec().place,
            _ => return,
        };
        tracing::warn!(
            name = %self.name,
            waiting_at = %spec.place,
            held_at = %holder,
            "waiting for {SELF_WAIT_WARNING:?} for a name that this process holds itself; if the holder waits \
             for this, it waits for ever: pass the guard on, or lock through an Owner"
        );
    }
}
