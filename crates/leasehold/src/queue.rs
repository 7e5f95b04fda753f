//! The line of this process for one name.
//!
//! A name that anybody in this process holds, wants or gives back has one queue, and the queue has one seat.
//! Whoever has the seat is the only one who talks to the server about that name; everybody else waits in
//! memory, first come first served. The seat is taken by an attempt, by the holder, by a release under way, or
//! by a *driver*: a task that stands in the line of processes on behalf of all who wait here.
//!
//! Invariants, cited by number elsewhere:
//!
//! - **Q1** At most one attempt, hold, release or driver per queue: the seat.
//! - **Q2** A queue with waiters has its seat taken, so somebody will call them.
//! - **Q3** A queue leaves the map under its own lock, with nobody in it; who finds it afterwards looks again.
//! - **Q4** Once a release was sent, its lease id is never relied on again; the server may keep the name for
//!   this client, but under the next id.
//! - **Q5** A guard is never dropped under a queue's lock.

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    hash::{BuildHasher, RandomState},
    ops::Range,
    panic::Location,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::{
    Error, LostReason,
    backend::{self, Abandon, Acquire, Acquired, Failure, Line, Next, Release, WakeUp},
    client::Core,
    clock::Tick,
    config::{Handoff, SELF_WAIT_WARNING, millis},
    error::Cause,
    events::EventKind,
    guard::{Guard, Released},
    hold::{Hold, Left},
    lease::{self, End},
    name::Name,
    owner::{LeaseId, OwnerId},
};

/// What somebody asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    pub(crate) lease: Duration,
    /// Zero: a fixed lease, never renewed.
    pub(crate) renew_every: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) handoff: Handoff,
    pub(crate) owner: Option<OwnerId>,
    pub(crate) reentrant: bool,
    /// Where in the user's code.
    pub(crate) place: &'static Location<'static>,
}

impl Spec {
    pub(crate) fn is_fixed(&self) -> bool {
        self.renew_every.is_zero()
    }

    fn lease_ms(&self) -> u64 {
        millis(self.lease)
    }

    /// Whether a lease taken for `self` serves `other` as it is. A fixed lease never does: who asks for ten
    /// seconds gets ten seconds from now.
    fn serves(&self, other: &Spec) -> bool {
        !self.is_fixed()
            && self.lease == other.lease
            && self.renew_every == other.renew_every
            && self.max_hold.is_none()
            && other.max_hold.is_none()
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
    shards: Box<[Mutex<HashMap<Name, Arc<Queue>>>]>,
    hasher: RandomState,
}

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
    /// The server has given the name to the ticket.
    granted: bool,
    /// Why the last attempt had no answer.
    trouble: Option<Failure>,
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

/// A place in the queue. Dropping it leaves the queue.
struct Place {
    queue: Arc<Queue>,
    number: i64,
    called: oneshot::Receiver<Answer>,
}

/// What a newcomer finds.
enum Entry {
    /// The seat: talk to the server.
    Seat(Arc<Queue>),
    /// A place in the queue.
    Place(Place),
    /// This owner holds it already.
    Inside(Arc<Hold>),
    /// Held, and the newcomer does not wait.
    Busy,
}

/// What the first attempt of a newcomer leads to.
enum Turn {
    Guard(Guard),
    Place(Place),
    Busy,
}

impl Queues {
    pub(crate) fn new() -> Queues {
        Queues {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
        }
    }

    fn shard(&self, name: &Name) -> &Mutex<HashMap<Name, Arc<Queue>>> {
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
        if shard.get(&queue.name).is_some_and(|q| Arc::ptr_eq(q, queue)) {
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

    /// The hold of this process on a name.
    pub(crate) fn held(&self, name: &Name) -> Option<Arc<Hold>> {
        match &self.find(name)?.state.lock().seat {
            Seat::Held(hold) => Some(Arc::clone(hold)),
            _ => None,
        }
    }

    /// The backend heard something about a name.
    pub(crate) fn wake(&self, core: &Arc<Core>, name: &Name, wake_up: WakeUp) {
        let queue = self.find(name);
        if let Some(queue) = &queue {
            let mut state = queue.state.lock();
            match wake_up {
                WakeUp::TryAgain => {
                    if !matches!(state.seat, Seat::Held(_) | Seat::Free) {
                        queue.bell.notify_one();
                    }
                    return;
                }
                WakeUp::Granted(lease) => {
                    match &mut state.line {
                        Some(line) if line.ticket == Some(lease) => {
                            line.granted = true;
                            queue.bell.notify_one();
                            return;
                        }
                        _ => {}
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

/// Asks for a name and waits for it, as patiently as told. The way of every `lock()`.
pub(crate) async fn acquire(
    core: &Arc<Core>,
    name: &Name,
    spec: Spec,
    patience: Patience,
) -> Answer {
    if core.is_closed() {
        return Err(Error::Closed);
    }
    let until = match patience {
        Patience::For(wait) => tokio::time::Instant::now().checked_add(wait),
        _ => None,
    };
    let mut place = match enter(core, name, spec, patience)? {
        Entry::Busy => return Ok(None),
        Entry::Inside(hold) => return core.finish(go_inside(hold)).await.map(Some),
        Entry::Place(place) => place,
        Entry::Seat(queue) => {
            let turn = core.finish(first_turn(Arc::clone(core), queue, spec, patience));
            let turn = match until {
                None => turn.await?,
                Some(until) => match tokio::time::timeout_at(until, turn).await {
                    Ok(turn) => turn?,
                    Err(elapsed) => {
                        let failure = Failure::Ambiguous(Arc::new(elapsed));
                        let free = lease::free_within(spec.lease);
                        return Err(failure.into_error(format!("lock {name:?}"), free));
                    }
                },
            };
            match turn {
                Turn::Guard(guard) => return Ok(Some(guard)),
                Turn::Busy => return Ok(None),
                Turn::Place(place) => place,
            }
        }
    };
    place.wait(spec, until).await
}

fn enter(
    core: &Arc<Core>,
    name: &Name,
    spec: Spec,
    patience: Patience,
) -> Result<Entry, Error> {
    let once = patience == Patience::Once;
    loop {
        let queue = core.queues.find_or_make(name);
        let mut state = queue.state.lock();
        if state.gone {
            continue; // Q3
        }
        match &state.seat {
            Seat::Free => {
                state.seat = Seat::Busy;
                drop(state);
                return Ok(Entry::Seat(queue));
            }
            Seat::Held(hold) if spec.owner.is_some() && hold.spec().owner == spec.owner => {
                if !spec.reentrant {
                    return Err(Error::Reentered {
                        name: name.shared(),
                        held_at: hold.spec().place,
                    });
                }
                if hold.enter_counted().is_some() {
                    return Ok(Entry::Inside(Arc::clone(hold)));
                }
            }
            Seat::Held(_) | Seat::Parked if once => return Ok(Entry::Busy),
            _ => {}
        }
        let place = state.line_up(&queue, spec, once, false);
        return Ok(Entry::Place(place));
    }
}

/// Tells the server that an owner has entered again. The caller has been counted already.
async fn go_inside(hold: Arc<Hold>) -> Result<Guard, Error> {
    // From here on a guard, so that every way out takes the count back.
    let guard = Guard::new(Arc::clone(&hold));
    let name = &hold.queue.name;
    let written = write_count(&hold).await;
    match written {
        Ok(true) => {}
        Ok(false) => hold.lose(LostReason::Replaced),
        Err(failure) => {
            return Err(failure.into_error(format!("enter {name:?} again"), guard.remaining()));
        }
    }
    guard.ensure(Duration::ZERO)?;
    Ok(guard)
}

async fn write_count(hold: &Arc<Hold>) -> Result<bool, Failure> {
    let (name, lease) = (hold.queue.name.clone(), hold.lease());
    hold.core.backend.count(name, lease, hold.counted()).await
}

/// The attempt of a newcomer who found the seat free.
async fn first_turn(
    core: Arc<Core>,
    queue: Arc<Queue>,
    spec: Spec,
    patience: Patience,
) -> Result<Turn, Error> {
    let lease = LeaseId::next();
    let mut attempt = Attempt::new(&core, &queue.name, lease);
    let give_up = match patience {
        Patience::Forever => spec.lease,
        Patience::For(wait) => wait.min(spec.lease),
        Patience::Once => core.config.operation_timeout,
    };
    let began = core.clock.now();
    let failure = loop {
        match attempt.send(spec, None).await {
            Ok(Try::Granted { sent }) => {
                return Ok(queue.take_first(&core, lease, spec, sent, attempt.resent()));
            }
            Ok(Try::Held { .. }) => {
                return Ok(queue.held_elsewhere(&core, spec, patience));
            }
            Err(failure) => {
                let spent = core.clock.now().since(began);
                let budget = match &failure {
                    Failure::Rejected(_) => Duration::ZERO,
                    Failure::NotSent(_) => give_up.min(core.config.operation_timeout),
                    Failure::Ambiguous(_) => give_up,
                };
                if spent >= budget || core.is_closed() {
                    break failure;
                }
                attempt.pause().await;
            }
        }
    };
    attempt.give_up(None);
    queue.pass_on(&core);
    let free = lease::free_within(spec.lease);
    Err(failure.into_error(format!("lock {:?}", queue.name), free))
}

/// The sends of one lease id, which may be many.
struct Attempt<'a> {
    core: &'a Arc<Core>,
    name: &'a Name,
    lease: LeaseId,
    /// Answered or not, this many times.
    sends: u32,
    /// At least one send had no answer, so a copy of it may still be under way.
    ambiguous: bool,
    failures: u32,
}

enum Try {
    Granted { sent: Tick },
    Held { ttl: Option<Duration>, sent: Tick },
}

impl<'a> Attempt<'a> {
    fn new(core: &'a Arc<Core>, name: &'a Name, lease: LeaseId) -> Self {
        Attempt {
            core,
            name,
            lease,
            sends: 0,
            ambiguous: false,
            failures: 0,
        }
    }

    /// Asks once. A grant that is over before its answer is here is asked for again, a few times.
    async fn send(&mut self, spec: Spec, line: Option<Line>) -> Result<Try, Failure> {
        let mut late = 0;
        loop {
            let sent = self.core.clock.now();
            self.sends += 1;
            let step = Acquire {
                name: self.name.clone(),
                lease: self.lease,
                lease_ms: spec.lease_ms(),
                line,
            };
            match self.core.backend.acquire(step).await {
                Ok(Acquired::Granted) => {
                    self.failures = 0;
                    let now = self.core.clock.now();
                    if now < lease::valid_until(sent, spec.lease) {
                        return Ok(Try::Granted { sent });
                    }
                    late += 1;
                    self.ambiguous = true;
                    if late == LATE_GRANTS {
                        let slow = TooSlow {
                            lease: spec.lease,
                            took: now.since(sent),
                        };
                        return Err(Failure::Rejected(Arc::new(slow)));
                    }
                }
                Ok(Acquired::Held { ttl }) => {
                    self.failures = 0;
                    return Ok(Try::Held { ttl, sent });
                }
                Ok(Acquired::Abandoned) => {
                    // Ours alone, and we abandon only what we stop asking for.
                    let cause: Cause = Arc::new(AbandonedHere);
                    return Err(Failure::Rejected(cause));
                }
                Err(failure) => {
                    self.failures += 1;
                    self.ambiguous |= matches!(failure, Failure::Ambiguous(_));
                    return Err(failure);
                }
            }
        }
    }

    /// Before the next try after a failure: 10 ms, doubling up to half a second.
    async fn pause(&self) {
        let ms = 10_u64 << self.failures.min(6).saturating_sub(1);
        let ms = ms.min(500);
        tokio::time::sleep(Duration::from_millis(ms / 2 + fastrand::u64(0..=ms / 2))).await;
    }

    fn resent(&self) -> bool {
        self.ambiguous
    }

    /// Stops asking. If the server may have heard, it is told in the background.
    fn give_up(&self, line: Option<Line>) {
        if self.ambiguous || line.is_some() {
            abandon(self.core, self.name, self.lease, line);
        }
    }
}

/// So often may a grant be over before its answer is here.
const LATE_GRANTS: u32 = 3;

#[derive(Debug, thiserror::Error)]
#[error("the lease of {lease:?} is over before the answer is here, which took {took:?}; take a longer one")]
struct TooSlow {
    lease: Duration,
    took: Duration,
}

#[derive(Debug, thiserror::Error)]
#[error("this lease was given up already; please report this as a bug of leasehold")]
struct AbandonedHere;

/// Gives a lease id up for good, in the background, until the server has heard or is free of it anyway.
fn abandon(core: &Arc<Core>, name: &Name, lease: LeaseId, line: Option<Line>) {
    let work = abandon_work(Arc::clone(core), name.clone(), lease, line);
    core.spawn(work);
}

async fn abandon_work(core: Arc<Core>, name: Name, lease: LeaseId, line: Option<Line>) {
    let step = Abandon {
        name,
        lease,
        line,
        tombstone_ms: core.tombstone_ms(),
    };
    let began = core.clock.now();
    let mut attempt = Attempt::new(&core, &step.name, lease);
    while let Err(failure) = core.backend.abandon(step.clone()).await {
        if matches!(failure, Failure::Rejected(_)) {
            return;
        }
        attempt.failures += 1;
        if core.clock.now().since(began) > Duration::from_millis(step.tombstone_ms) {
            return;
        }
        attempt.pause().await;
    }
}

impl Place {
    /// Waits to be called.
    async fn wait(&mut self, spec: Spec, until: Option<tokio::time::Instant>) -> Answer {
        let mut warn_at = Some(tokio::time::Instant::now() + SELF_WAIT_WARNING);
        loop {
            let alarm = match (warn_at, until) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            tokio::select! {
                biased;
                answer = &mut self.called => return answer.unwrap_or(Err(Error::Closed)),
                () = sleep_until(alarm) => {}
            }
            if until.is_some_and(|until| tokio::time::Instant::now() >= until) {
                return self.queue.out_of_time(spec);
            }
            self.queue.warn_of_self_wait(spec);
            warn_at = None;
        }
    }
}

async fn sleep_until(alarm: Option<tokio::time::Instant>) {
    match alarm {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        let at = state
            .waiters
            .binary_search_by_key(&self.number, |w| w.number);
        if let Ok(at) = at {
            if state.waiters.remove(at).is_some_and(|w| w.once) {
                state.hasty -= 1;
            }
            if state.waiters.is_empty() {
                // The driver has nobody to stand in line for.
                self.queue.bell.notify_one();
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
        // A guard from here on: should nobody take it, its drop releases the name (D5).
        Turn::Guard(Guard::new(hold))
    }

    /// A newcomer's attempt found the name held by another process.
    fn held_elsewhere(
        self: &Arc<Self>,
        core: &Arc<Core>,
        spec: Spec,
        patience: Patience,
    ) -> Turn {
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
        if matches!(&state.seat, Seat::Held(held) if Arc::ptr_eq(held, hold)) {
            self.go_on(core, state, Start::Ask);
        }
    }

    /// Whoever has the seat is done with it: a driver for those who wait, or the end of the queue (Q2, Q3).
    fn go_on(
        self: &Arc<Self>,
        core: &Arc<Core>,
        mut state: parking_lot::MutexGuard<'_, State>,
        start: Start,
    ) {
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
                let free = lease::free_within(spec.lease);
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

/// The end of a guard.
pub(crate) enum Gone {
    /// Nothing is left to do.
    Done(Released),
    /// The server must be told.
    ToServer(Arc<Hold>, ReleaseWork),
}

pub(crate) type ReleaseWork = Pin<Box<dyn Future<Output = Result<Released, Error>> + Send>>;

/// A guard goes: the last one passes the lease on in memory, or to the server.
pub(crate) fn let_go(hold: Arc<Hold>, counted: bool) -> Gone {
    if let Left::Holds { holds, count } = hold.leave(counted) {
        if count.is_some() && !hold.is_over() {
            let told = Arc::clone(&hold);
            hold.core.spawn(async move {
                // Only for those who look at the server: the count there does not decide anything.
                let _ = write_count(&told).await;
            });
        }
        return Gone::Done(Released::StillHeld { holds });
    }
    let core = Arc::clone(&hold.core);
    let queue = Arc::clone(&hold.queue);
    if let Err(End::Lost(reason)) = hold.standing() {
        // The server may still hold it for a moment, or for longer if a renewal got through whose answer did not.
        let name = queue.name.clone();
        let core_ = Arc::clone(&core);
        let lease = hold.lease();
        if !matches!(reason, LostReason::Replaced | LostReason::ClientShutdown) {
            abandon(&core_, &name, lease, None);
        }
        return Gone::Done(Released::WasLost(reason));
    }
    let now = core.clock.now();
    let spec = hold.spec();
    let mut state = queue.state.lock();
    let next_spec = state.first();
    let passes = spec.handoff.is_on() && next_spec.is_some_and(|next| spec.serves(&next));
    if passes
        && state.row < spec.handoff.max_in_row
        && now.since(state.row_since) < spec.handoff.max_time
        && enough_left(&hold, spec, now)
        && state.seat_first(&hold, now)
    {
        state.row += 1;
        drop(state);
        core.events
            .tell(&queue.name, hold.lease(), EventKind::HandedOver);
        return Gone::Done(Released::Released);
    }
    // To the server. From here on the lease id is not relied on any more (Q4).
    let until = now.after(hold.standing().unwrap_or_default());
    hold.term.end(End::Released);
    core.watchdog.forget(&hold);
    state.seat = Seat::Busy;
    let listening = state.listening();
    let next = next_spec.map(|next_spec| Next {
        lease: LeaseId::next(),
        lease_ms: next_spec.lease_ms(),
        keep: passes,
        line: listening.then(|| core.line(next_spec.lease)),
    });
    if let (Some(next), Some(line)) = (next, &mut state.line) {
        line.ticket = next.line.map(|_| next.lease);
        line.place = next.line;
        line.granted = false;
    }
    drop(state);
    let step = Release {
        name: queue.name.clone(),
        lease: hold.lease(),
        next,
        tombstone_ms: hold.was_resent().then(|| core.tombstone_ms()),
        listening,
    };
    let work = release_work(Arc::clone(&hold), step, until);
    Gone::ToServer(hold, Box::pin(work))
}

/// A lease is handed on while most of it is left, so that its renewal is never the next holder's first worry.
fn enough_left(hold: &Arc<Hold>, spec: Spec, now: Tick) -> bool {
    match hold.term.look(now) {
        lease::Standing::Valid(until) => until.since(now) > spec.lease / 3,
        _ => false,
    }
}

/// Brings a release to the server. `until` is when the lease would have ended here.
async fn release_work(hold: Arc<Hold>, step: Release, until: Tick) -> Result<Released, Error> {
    let core = Arc::clone(&hold.core);
    let queue = Arc::clone(&hold.queue);
    let mut attempt = Attempt::new(&core, &step.name, step.lease);
    let began = core.clock.now();
    loop {
        let sent = core.clock.now();
        let failure = match core.backend.release(step.clone()).await {
            Ok(answer) => {
                // "Not ours" to a repeated request means that an earlier copy released it, or that it expired
                // on the way: either way we held it until we let go, and nobody holds it for us now.
                let lost = answer == backend::Released::NotOurs && !attempt.ambiguous;
                core.events.tell(&step.name, step.lease, EventKind::Released);
                queue.released(&hold, &step, answer, sent);
                return Ok(if lost {
                    Released::WasLost(LostReason::Replaced)
                } else {
                    Released::Released
                });
            }
            Err(failure) => failure,
        };
        attempt.failures += 1;
        attempt.ambiguous |= matches!(failure, Failure::Ambiguous(_));
        let spent = core.clock.now().since(began);
        let hopeless = matches!(failure, Failure::Rejected(_));
        if hopeless || spent >= core.config.operation_timeout {
            let left = until.since(core.clock.now());
            if attempt.ambiguous || left.is_zero() {
                hold.term.restart(until);
                hold.term.end(End::Lost(LostReason::Unconfirmed));
                // The driver of the next will wait for what the server still holds.
                queue.pass_on(&core);
            } else {
                queue.take_back(&hold, until);
            }
            hold.come_back();
            let doing = format!("release {:?}", step.name);
            let free = left + lease::margin(hold.spec().lease);
            return Err(failure.into_error(doing, free));
        }
        attempt.pause().await;
    }
}

/// A release that nobody waits for: tried until the lease has ended anyway.
pub(crate) async fn release_at_last(hold: Arc<Hold>, work: ReleaseWork) {
    let mut work = work;
    while let Err(error) = work.await {
        tracing::warn!(name = %hold.queue.name, %error, "not released yet");
        if error.kind() == crate::ErrorKind::Rejected {
            // What the server refuses now it may refuse for ever; the name frees itself.
            hold.leave(true);
            hold.forsake();
            return;
        }
        match let_go(Arc::clone(&hold), true) {
            Gone::Done(_) => return,
            Gone::ToServer(_, again) => work = again,
        }
    }
}

impl Queue {
    /// The server answered a release.
    fn released(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        step: &Release,
        answer: backend::Released,
        sent: Tick,
    ) {
        let core = &hold.core;
        let now = core.clock.now();
        let mut state = self.state.lock();
        let start = match (answer, step.next) {
            (backend::Released::Kept, Some(next)) => {
                let until = lease::valid_until(sent, Duration::from_millis(next.lease_ms));
                if now < until {
                    hold.renew_as(next.lease, until);
                    state.row = 0;
                    state.row_since = now;
                    state.not_in_line();
                    if state.seat_first(hold, now) {
                        drop(state);
                        hold.watch(sent);
                        let events = &core.events;
                        events.tell(&self.name, next.lease, EventKind::HandedOver);
                        return;
                    }
                    hold.term.end(End::Released);
                }
                // Nobody wants it any more, or it took too long to hear: give it back for good.
                abandon(core, &self.name, next.lease, None);
                Start::Ask
            }
            (backend::Released::Granted, _) => Start::Park { asked: sent },
            (backend::Released::Freed { others }, _) if others > 0 => Start::StepBack,
            _ => Start::Ask,
        };
        self.go_on(core, state, start);
    }

    /// A release that never left: the hold goes on.
    fn take_back(self: &Arc<Self>, hold: &Arc<Hold>, until: Tick) {
        let mut state = self.state.lock();
        hold.term.restart(until);
        state.seat = Seat::Held(Arc::clone(hold));
        state.not_in_line();
        drop(state);
        hold.core.watchdog.watch(hold, hold.core.clock.now());
    }
}

/// Where a driver begins.
#[derive(Clone, Copy, Debug)]
enum Start {
    /// Ask the server.
    Ask,
    /// The server was asked just now: first learn to hear, then ask.
    Listen,
    /// The release put us in line already.
    Park { asked: Tick },
    /// Others were told that the name is free: let them try first (D8).
    StepBack,
}

/// How long a process that has had its turn holds back for others that it cannot give the name to directly.
fn step_back() -> Duration {
    Duration::from_micros(fastrand::u64(1_000..3_000))
}

/// Stands in the line of processes for those who wait in this one, until one of them holds the name or
/// none is left.
async fn drive(core: Arc<Core>, queue: Arc<Queue>, start: Start) {
    let mut driver = Driver::new(&core, &queue, start);
    loop {
        let Some(spec) = driver.first() else {
            if driver.leave().await {
                return;
            }
            continue;
        };
        let step = match driver.next {
            Step::Ask => driver.ask(spec).await,
            Step::Listen => driver.listen().await,
            Step::Park(ttl) => driver.park(ttl, spec).await,
            Step::StepBack => {
                tokio::time::sleep(step_back()).await;
                Step::Ask
            }
            Step::Seated => return,
        };
        driver.next = step;
        if matches!(driver.next, Step::Seated) {
            return;
        }
    }
}

struct Driver<'a> {
    core: &'a Arc<Core>,
    queue: &'a Arc<Queue>,
    attempt: Attempt<'a>,
    next: Step,
    /// The place in line as it was taken.
    line: Option<Line>,
    /// When the place in line was last confirmed: a grant counts from here (L1).
    asked: Tick,
    /// The server may know our lease id: in line, or as the holder.
    traces: bool,
    /// Since when the server does not answer.
    trouble_since: Option<Tick>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask,
    Listen,
    /// Wait to be called, at most until the holder's lease ends.
    Park(Option<Duration>),
    StepBack,
    /// Somebody has the guard.
    Seated,
}

impl<'a> Driver<'a> {
    fn new(core: &'a Arc<Core>, queue: &'a Arc<Queue>, start: Start) -> Self {
        let mut state = queue.state.lock();
        let line = state.line.get_or_insert_default();
        let ticket = *line.ticket.get_or_insert_with(LeaseId::next);
        let next = match start {
            Start::Ask => Step::Ask,
            Start::Listen => Step::Listen,
            Start::Park { .. } if line.place.is_some() => Step::Park(None),
            // Not in line for want of ears: get both.
            Start::Park { .. } => Step::Listen,
            Start::StepBack => Step::StepBack,
        };
        Driver {
            core,
            queue,
            attempt: Attempt::new(core, &queue.name, ticket),
            next,
            line: line.place,
            asked: match start {
                Start::Park { asked } => asked,
                _ => core.clock.now(),
            },
            traces: line.place.is_some(),
            trouble_since: None,
        }
    }

    fn first(&self) -> Option<Spec> {
        self.queue.state.lock().first()
    }

    /// Asks the server for the name, and for a place in line if it can be heard from there.
    async fn ask(&mut self, spec: Spec) -> Step {
        if let Some(line) = &mut self.queue.state.lock().line {
            if line.listening && line.place.is_none() {
                line.place = Some(self.core.line(spec.lease));
            }
            line.ticket = Some(self.attempt.lease);
            self.line = line.place;
        }
        self.traces |= self.line.is_some();
        match self.attempt.send(spec, self.line).await {
            Ok(Try::Granted { sent }) => {
                self.traces = true;
                self.seat(spec, sent)
            }
            Ok(Try::Held { ttl, sent }) => {
                self.asked = sent;
                self.trouble_since = None;
                let mut state = self.queue.state.lock();
                state.dismiss_hasty();
                let listening = state.listening();
                if let Some(line) = &mut state.line {
                    line.trouble = None;
                }
                if listening || state.waiters.is_empty() {
                    Step::Park(ttl)
                } else {
                    Step::Listen
                }
            }
            Err(failure) => self.failed(failure, spec).await,
        }
    }

    /// Learns to hear wake-ups; after that the server must be asked once more.
    async fn listen(&mut self) -> Step {
        if !self.queue.state.lock().listening() {
            match self.core.backend.listen(self.queue.name.clone()).await {
                Ok(()) => {
                    if let Some(line) = &mut self.queue.state.lock().line {
                        line.listening = true;
                    }
                }
                Err(failure) => {
                    let spec = self.first();
                    return match spec {
                        Some(spec) => self.failed(failure, spec).await,
                        None => Step::Ask,
                    };
                }
            }
        }
        Step::Ask
    }

    /// Waits for a wake-up, the end of the holder's lease, or the poll interval.
    async fn park(&mut self, ttl: Option<Duration>, spec: Spec) -> Step {
        {
            let mut state = self.queue.state.lock();
            if !state.line.as_ref().is_some_and(|line| line.granted) {
                state.seat = Seat::Parked;
                state.dismiss_hasty();
            }
        }
        // The cap is stretched, never cut, so that an idle waiter stays within one command per interval.
        let poll = self.core.config.poll_every;
        let poll = poll + poll.mul_f64(fastrand::f64() / 5.0);
        let pause = ttl.map_or(poll, |ttl| poll.min(ttl + Duration::from_millis(2)));
        tokio::select! {
            biased;
            () = self.queue.bell.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
        let mut state = self.queue.state.lock();
        state.seat = Seat::Busy;
        let granted = state
            .line
            .as_mut()
            .is_some_and(|line| std::mem::take(&mut line.granted));
        drop(state);
        if granted {
            self.granted(spec)
        } else {
            Step::Ask
        }
    }

    /// The server gave us the name while we waited. It did so after we asked, so its lease lasts at least as
    /// long as if it had been given at that moment (L1).
    fn granted(&mut self, spec: Spec) -> Step {
        let now = self.core.clock.now();
        let lease = self.line.map_or(Duration::ZERO, |line| {
            Duration::from_millis(line.lease_ms)
        });
        let age = now.since(self.asked);
        let fresh_enough = if spec.is_fixed() { 20 } else { 3 };
        if lease == spec.lease && age < lease / fresh_enough {
            self.seat(spec, self.asked)
        } else {
            // It is ours, but for how long? Asking under the same id says so, and renews it.
            Step::Ask
        }
    }

    /// The name is ours: gives it to the first who waits.
    fn seat(&mut self, spec: Spec, sent: Tick) -> Step {
        let ticket = self.attempt.lease;
        let resent = self.attempt.resent();
        let hold = Hold::new(self.core, self.queue, ticket, spec, sent, resent);
        let now = self.core.clock.now();
        let mut state = self.queue.state.lock();
        match state.first() {
            // `leave` gives it back.
            None => return Step::Ask,
            // Another one is first now, with another lease.
            Some(first) if first.lease != spec.lease || first.is_fixed() != spec.is_fixed() => {
                return Step::Ask;
            }
            Some(_) => {}
        }
        if self.core.is_closed() || !state.seat_first(&hold, now) {
            return Step::Ask;
        }
        state.row = 0;
        state.row_since = now;
        state.not_in_line();
        if state.waiters.is_empty() && state.line.take().is_some_and(|line| line.listening) {
            self.core.backend.unlisten(&self.queue.name);
        }
        drop(state);
        hold.watch(sent);
        let events = &self.core.events;
        events.tell(&self.queue.name, ticket, EventKind::Acquired);
        Step::Seated
    }

    /// No answer, or a refusal. A refusal is everybody's answer; no answer is waited out for one lease.
    async fn failed(&mut self, failure: Failure, spec: Spec) -> Step {
        let now = self.core.clock.now();
        let since = *self.trouble_since.get_or_insert(now);
        let rejected = matches!(failure, Failure::Rejected(_));
        {
            let mut state = self.queue.state.lock();
            if let Some(line) = &mut state.line {
                line.trouble = Some(failure.clone());
            }
            if rejected || now.since(since) > spec.lease {
                let free = lease::free_within(spec.lease);
                let error = failure.into_error(format!("lock {:?}", self.queue.name), free);
                state.dismiss_all(&error);
                return Step::Ask; // and find nobody there
            }
        }
        self.attempt.failures = self.attempt.failures.max(1);
        self.attempt.pause().await;
        self.attempt.failures += 1;
        Step::Ask
    }

    /// Nobody waits any more: gives up the place in line, and the seat. `false` if somebody came meanwhile.
    async fn leave(&mut self) -> bool {
        self.queue.state.lock().not_in_line();
        if self.traces || self.attempt.ambiguous {
            let step = Abandon {
                name: self.queue.name.clone(),
                lease: self.attempt.lease,
                line: self.line,
                tombstone_ms: self.core.tombstone_ms(),
            };
            // Once here, so that whoever comes next finds the name free; if need be, again in the background.
            if self.core.backend.abandon(step).await.is_err() {
                abandon(self.core, &self.queue.name, self.attempt.lease, self.line);
            }
        }
        let mut state = self.queue.state.lock();
        if state.first().is_none() {
            self.queue.close(self.core, &mut state);
            return true;
        }
        drop(state);
        // Somebody has come: from the beginning, under a new lease id.
        *self = Driver::new(self.core, self.queue, Start::Ask);
        false
    }
}
