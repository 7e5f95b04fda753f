//! The waiters of this process for one name.
//!
//! A name that this process holds, wants or gives back has one queue. Its phase says which actor talks to the server about
//! the name: the first attempt of a newcomer, the holder, a release under way, or a *driver*, a task that asks on behalf of
//! all who wait here. The other callers wait in memory, first come first served.
//!
//! Invariants, cited by number elsewhere (B1 to B6 are the rules of belief in docs/guarantees.md):
//!
//! - **Q1** At most one attempt, hold, release or driver per queue. (A driver whose waiter was served directly exits.)
//! - **Q2** A queue with waiters is not idle, so an actor will answer them.
//! - **Q3** A queue leaves the map under its own lock, with nothing in it; a caller that finds it afterwards looks again.
//! - **Q4** Once a release was sent, its lease id is never relied on again; the server may keep the name for
//!   this client, but under the next id.
//! - **Q5** A guard is never dropped under a queue's lock.
//! - **B5** What this process has at the server is the holder's lease id or that of the one ticket in [`Remote`]. A ticket
//!   leaves there as a hold or as a debt.
//! - **B6** A queue that closes answers its waiters, begins nothing, and gives back what arrives.

mod driver;
mod enter;
mod release;
mod ticket;

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
    ops::Range,
    panic::Location,
    sync::Arc,
    time::Duration,
};

use driver::{Start, drive};
pub(crate) use enter::acquire;
use enter::{WaitTicket, reenter_on_server};
use parking_lot::Mutex;
pub(crate) use release::{ReleaseStep, begin_release, write_count_in_background};
use ticket::Ticket;
pub(crate) use ticket::{Debt, abandon};
use tokio::sync::{Notify, oneshot};

use crate::{
    Error,
    backend::{Failure, Grant, WakeUp},
    client::Core,
    clock::{Span, Tick},
    config::{Handoff, SELF_WAIT_WARNING, VERIFY_EVERY_MOST, millis},
    events::EventKind,
    guard::Guard,
    hold::{Granted, Hold},
    lease,
    name::Name,
    owner::{LeaseId, OwnerId},
};

/// What a caller asks for.
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

    /// How often the server is asked about the hold: to renew it, or whether a fixed one is still ours.
    pub(crate) fn ask_every(&self) -> Duration {
        if self.is_fixed() {
            (self.lease() / 3).min(VERIFY_EVERY_MOST)
        } else {
            self.renew_every.get()
        }
    }

    pub(crate) fn max_hold(&self) -> Option<Duration> {
        (self.max_hold != Span::ZERO).then(|| self.max_hold.get())
    }

    pub(crate) fn lease_ms(&self) -> u64 {
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

    /// Whether a lease that counts since `sent` is fresh enough for a new holder: a renewal must not be its first worry, and
    /// of a fixed lease hardly any may be gone.
    fn is_fresh(&self, sent: Tick, now: Tick) -> bool {
        let part = if self.is_fixed() { 20 } else { 3 };
        now.since(sent) < self.lease() / part
    }
}

/// How long a caller is willing to wait.
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
    hasher: RandomState,
}

/// One part of the map, so that names do not wait for each other's locks.
type Shard = Mutex<HashMap<Name, Arc<Queue>>>;

const SHARDS: usize = 16;

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) name: Name,
    state: Mutex<State>,
    driver_wake: Notify,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    life: Life,
    /// Their numbers grow from front to back, and none is given twice.
    waiters: VecDeque<Waiter>,
    /// The numbers given so far.
    numbers: Range<i64>,
    /// How many of the waiters ask only once.
    try_once: u32,
    /// The number of the present driver; one with another number is stale and exits.
    driver: u32,
    /// Hand-offs since the server was last asked, and since when.
    handoffs: u32,
    handoffs_since: Tick,
    /// Only while this process waits at the server; boxed, since most names are never contended.
    remote: Option<Box<Remote>>,
}

/// Which actor has the name in this process (Q1).
#[derive(Debug)]
enum Phase {
    Idle,
    /// An attempt or a driver talks to the server and will be done soon.
    InFlight,
    /// The last holder's lease id is being given up.
    Releasing(LeaseId),
    /// Another process holds the name; the driver waits.
    WaitingRemote,
    Held(Arc<Hold>),
}

/// Closed is a state, not a flag (B6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Open,
    /// The client shuts down: nothing new begins here, and what arrives is given back.
    Closing,
    /// The queue has left the map (Q3).
    Removed,
}

/// What this process has at the server while it waits for the name.
///
/// Its ticket is asked for by one actor at a time (Q1). It becomes a hold in [`Queue::seat`], or a debt in
/// [`Remote::give_up`]: nothing else takes it out (B5).
#[derive(Debug)]
struct Remote {
    ticket: Option<Ticket>,
    ears: Ears,
    /// The server has said since the last ask was sent that the ticket holds the name: ask again before anything else.
    granted: bool,
    /// Why the server gives no usable answer, and since when.
    trouble: Option<(Failure, Tick)>,
}

/// Whether wake-ups are heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ears {
    Closed,
    /// A subscription was asked for, and may come about at any time.
    Opening,
    Open,
}

#[derive(Debug)]
struct Waiter {
    number: i64,
    spec: Spec,
    /// Does not wait for holders, only for attempts and releases under way.
    once: bool,
    answer: oneshot::Sender<Answer>,
}

type Answer = Result<Option<Guard>, Error>;

type Locked<'a> = parking_lot::MutexGuard<'a, State>;

impl Remote {
    fn new() -> Box<Remote> {
        Box::new(Remote {
            ticket: None,
            ears: Ears::Closed,
            granted: false,
            trouble: None,
        })
    }

    /// Takes over the ticket of a first attempt that was not granted.
    fn take_over(&mut self, ticket: Ticket) -> Option<Debt> {
        let old = self.give_up();
        self.ticket = Some(ticket);
        old
    }

    /// The ticket to ask under, for a lease of this length. `None` if the present one has other terms (B2): give it up first.
    fn ticket_for(&mut self, core: &Core, lease_ms: u64) -> Option<&mut Ticket> {
        let ticket = self
            .ticket
            .get_or_insert_with(|| Ticket::new(core, lease_ms));
        (ticket.lease_ms() == lease_ms).then_some(ticket)
    }

    /// The ticket with this lease id, if that is the present one.
    fn ticket(&mut self, lease: LeaseId) -> Option<&mut Ticket> {
        self.ticket
            .as_mut()
            .filter(|ticket| ticket.lease() == lease)
    }

    /// A request under the present ticket goes out.
    fn asks(&mut self) {
        self.granted = false;
    }

    /// The server has answered.
    fn answered(&mut self) {
        self.trouble = None;
    }

    fn failed(&mut self, failure: &Failure, now: Tick) -> Duration {
        let since = self.trouble.take().map_or(now, |(_, since)| since);
        self.trouble = Some((failure.clone(), since));
        now.since(since)
    }

    /// Nothing is asked for under the ticket any more. What the server must be told, if it may have it (B5).
    fn give_up(&mut self) -> Option<Debt> {
        self.granted = false;
        self.ticket.take().and_then(|ticket| ticket.debt())
    }
}

impl Queues {
    pub(crate) fn new() -> Queues {
        Queues {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
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
                phase: Phase::Idle,
                life: Life::Open,
                waiters: VecDeque::new(),
                numbers: 0..0,
                try_once: 0,
                driver: 0,
                handoffs: 0,
                handoffs_since: Tick::MAX,
                remote: None,
            }),
            driver_wake: Notify::new(),
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

    fn all(&self) -> Vec<Arc<Queue>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().values().cloned());
        }
        // In the same order each time, whatever the hasher: a simulation must be able to replay it.
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// How many wait for the name in this process.
    pub(crate) fn waiting(&self, name: &Name) -> usize {
        self.find(name)
            .map_or(0, |queue| queue.state.lock().waiters.len())
    }

    /// Whether this process hears the wake-ups for the name.
    pub(crate) fn is_listening(&self, name: &Name) -> bool {
        self.find(name)
            .is_some_and(|queue| queue.state.lock().is_listening())
    }

    /// All holds of this process.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        let all = self.all();
        all.iter().filter_map(|queue| queue.holder()).collect()
    }

    /// The hold of this process on a name.
    pub(crate) fn held(&self, name: &Name) -> Option<Arc<Hold>> {
        self.find(name)?.holder()
    }

    /// The backend heard something about a name.
    pub(crate) fn wake(&self, core: &Arc<Core>, name: &Name, wake_up: WakeUp) {
        let queue = self.find(name);
        match (wake_up, queue) {
            (WakeUp::TryAgain, Some(queue)) => {
                let state = queue.state.lock();
                if !matches!(state.phase, Phase::Idle | Phase::Held(_)) {
                    queue.driver_wake.notify_one();
                }
            }
            (WakeUp::TryAgain, None) => {}
            (WakeUp::Granted(grant), queue) => {
                if !queue.is_some_and(|queue| queue.granted(core, &grant)) {
                    // B3: the id does not wait for it (any more).
                    let debt = Debt {
                        lease: grant.lease,
                        lease_ms: grant.lease_ms,
                        copies: false,
                    };
                    abandon(core, name, debt);
                }
            }
        }
    }

    /// Brings every queue into the state in which nothing new begins (B6). The client is marked as closed already, so a
    /// queue that is made from now on refuses its newcomer by itself.
    pub(crate) fn close(&self) {
        for queue in self.all() {
            let mut state = queue.state.lock();
            if state.life == Life::Open {
                state.life = Life::Closing;
            }
            state.answer_all(&Error::Closed);
            queue.driver_wake.notify_one();
        }
    }
}

impl State {
    fn line_up(&mut self, queue: &Arc<Queue>, spec: Spec, once: bool, first: bool) -> WaitTicket {
        let (answer, answered) = oneshot::channel();
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
            answer,
        };
        self.try_once += u32::from(once);
        if first {
            self.waiters.push_front(waiter);
        } else {
            self.waiters.push_back(waiter);
        }
        WaitTicket {
            queue: Arc::clone(queue),
            number,
            answered,
        }
    }

    /// What the first live waiter asks for.
    fn first_live_waiter(&mut self) -> Option<Spec> {
        while self.waiters.front().is_some_and(|w| w.answer.is_closed()) {
            self.pop_waiter();
        }
        self.waiters.front().map(|w| w.spec)
    }

    fn pop_waiter(&mut self) -> Option<Waiter> {
        let waiter = self.waiters.pop_front()?;
        self.try_once -= u32::from(waiter.once);
        Some(waiter)
    }

    /// Answers those who ask only once.
    fn answer_try_once(&mut self, answer: &Result<(), Error>) {
        if self.try_once == 0 {
            return;
        }
        self.try_once = 0;
        let (once, patient): (VecDeque<_>, VecDeque<_>) =
            self.waiters.drain(..).partition(|w| w.once);
        self.waiters = patient;
        for waiter in once {
            let _ = waiter.answer.send(answer.clone().map(|()| None));
        }
    }

    fn is_listening(&self) -> bool {
        self.remote
            .as_ref()
            .is_some_and(|remote| remote.ears == Ears::Open)
    }

    fn remote(&mut self) -> &mut Remote {
        self.remote.get_or_insert_with(Remote::new)
    }

    /// A holder has the name in this process from now on.
    fn held_by(&mut self, hold: &Arc<Hold>) {
        self.phase = Phase::Held(Arc::clone(hold));
        let owner = hold.spec().owner;
        if owner.is_some() && self.waiters.iter().any(|w| w.spec.owner == owner) {
            self.admit_same_owner(hold, owner);
        }
        self.answer_try_once(&Ok(()));
    }

    /// Waiters of the same owner enter with it, or they would wait for themselves.
    fn admit_same_owner(&mut self, hold: &Arc<Hold>, owner: Option<OwnerId>) {
        let mut rest = VecDeque::new();
        for waiter in self.waiters.drain(..) {
            if waiter.spec.owner != owner || waiter.answer.is_closed() {
                rest.push_back(waiter);
            } else if !waiter.spec.reentrant {
                let _ = waiter.answer.send(Err(Error::Reentered {
                    name: hold.queue.name.shared(),
                    held_at: hold.spec().place,
                }));
            } else if hold.enter_counted().is_some() {
                let hold = Arc::clone(hold);
                let core = Arc::clone(&hold.core);
                core.spawn(async move {
                    let guard = reenter_on_server(hold).await;
                    let _ = waiter.answer.send(guard.map(Some));
                });
            }
        }
        self.try_once = u32::try_from(rest.iter().filter(|w| w.once).count()).unwrap_or(0);
        self.waiters = rest;
    }

    /// Every waiter gets the same answer.
    fn answer_all(&mut self, error: &Error) {
        self.try_once = 0;
        for waiter in self.waiters.drain(..) {
            let _ = waiter.answer.send(Err(error.clone()));
        }
    }

    /// Answers the first live waiter, and only that one: what it asked for concerns no other (L4).
    fn answer_first(&mut self, error: Error) {
        if self.first_live_waiter().is_some()
            && let Some(waiter) = self.pop_waiter()
        {
            let _ = waiter.answer.send(Err(error));
        }
    }

    /// Passes a lease of this process on in memory, to the first live waiter if it serves that one as it is.
    fn hand_over(&mut self, hold: &Arc<Hold>, from: &Spec, now: Tick) -> bool {
        while self
            .first_live_waiter()
            .is_some_and(|next| from.serves(&next))
        {
            let Some(waiter) = self.pop_waiter() else {
                return false;
            };
            hold.hand_over(waiter.spec, now);
            if deliver(waiter, hold) {
                self.held_by(hold);
                return true;
            }
        }
        false
    }
}

/// Gives a waiter its guard. `false` if the waiter left at this very moment.
fn deliver(waiter: Waiter, hold: &Arc<Hold>) -> bool {
    match waiter.answer.send(Ok(Some(Guard::new(Arc::clone(hold))))) {
        Ok(()) => true,
        // Q5: the guard must not act on its drop.
        Err(Ok(Some(guard))) => {
            drop(guard.defuse());
            false
        }
        Err(_) => false,
    }
}

impl Queue {
    fn holder(&self) -> Option<Arc<Hold>> {
        match &self.state.lock().phase {
            Phase::Held(hold) => Some(Arc::clone(hold)),
            _ => None,
        }
    }

    /// A holder for a lease that the server gave to us: the one place in which there comes to be one.
    ///
    /// `None` if the lease is not to be believed any more (B1), or the client shuts down (B6).
    fn begin_hold(
        self: &Arc<Self>,
        core: &Arc<Core>,
        state: &State,
        granted: Granted,
        spec: Spec,
    ) -> Option<Arc<Hold>> {
        let now = core.clock.now();
        (now < granted.until && state.life == Life::Open)
            .then(|| Hold::new(core, self, granted, spec, now))
    }

    /// The name is ours under the present ticket: gives it to the first live waiter, if that is what it asks for. To be
    /// followed by [`seated`](Queue::seated) without the lock.
    fn seat(
        self: &Arc<Self>,
        core: &Arc<Core>,
        state: &mut State,
        granted: Granted,
    ) -> Option<Arc<Hold>> {
        let lease_ms = state.remote().ticket(granted.lease)?.lease_ms();
        loop {
            let spec = state.first_live_waiter()?;
            if spec.lease_ms() != lease_ms {
                return None;
            }
            let hold = self.begin_hold(core, state, granted, spec)?;
            let waiter = state.pop_waiter()?;
            if deliver(waiter, &hold) {
                let remote = state.remote();
                remote.ticket = None;
                remote.granted = false;
                remote.answered();
                self.took(state, &hold);
                self.stop_listening(core, state);
                return Some(hold);
            }
        }
    }

    /// The server gave the name to `hold`; the count of hand-offs starts anew.
    fn took(&self, state: &mut State, hold: &Arc<Hold>) {
        state.handoffs = 0;
        state.handoffs_since = hold.core.clock.now();
        state.held_by(hold);
    }

    fn seated(&self, core: &Arc<Core>, hold: &Arc<Hold>, sent: Tick) {
        hold.watch(sent);
        core.events
            .tell(&self.name, hold.lease, EventKind::Acquired);
    }

    /// The server says that it gave the name to one of our lease ids (B3). `false` if that id does not wait for it.
    ///
    /// If the driver waits and the first live waiter can have the lease as it is, it gets it at once; the driver, whose
    /// hop this saves, only learns that it is not needed any more. If not, the driver asks again.
    fn granted(self: &Arc<Self>, core: &Arc<Core>, grant: &Grant) -> bool {
        let mut state = self.state.lock();
        match &state.phase {
            Phase::Held(hold) if hold.lease == grant.lease => return true, // we asked and know already
            Phase::Releasing(lease) if *lease == grant.lease => return true, // it is being given up
            _ => {}
        }
        let waits = matches!(state.phase, Phase::WaitingRemote);
        let Some(remote) = &mut state.remote else {
            return false;
        };
        let Some(ticket) = remote.ticket(grant.lease) else {
            return false;
        };
        let believed = ticket.believe(grant);
        remote.granted = true;
        let now = core.clock.now();
        if waits
            && let Some(granted) = believed
            && let Some(first) = state.first_live_waiter()
            && first.is_fresh(granted.sent, now)
            && let Some(hold) = self.seat(core, &mut state, granted)
        {
            state.driver = state.driver.wrapping_add(1);
            drop(state);
            self.seated(core, &hold, granted.sent);
        }
        self.driver_wake.notify_one();
        true
    }

    /// The holder has lost the name or left it to expire: the next may ask for it.
    pub(crate) fn holder_left(self: &Arc<Self>, core: &Arc<Core>, hold: &Arc<Hold>) {
        let state = self.state.lock();
        if matches!(&state.phase, Phase::Held(there) if Arc::ptr_eq(there, hold)) {
            self.go_on(core, state, Start::Ask);
        }
    }

    /// The actor of this queue is done: a driver for those who wait, or the end of the queue (Q2, Q3).
    fn go_on(self: &Arc<Self>, core: &Arc<Core>, mut state: Locked<'_>, start: Start) {
        if state.first_live_waiter().is_none() {
            self.close(core, &mut state);
        } else {
            state.phase = Phase::InFlight;
            drop(state);
            core.spawn(drive(Arc::clone(core), Arc::clone(self), start));
        }
    }

    /// Nothing holds, wants or gives back the name in this process.
    fn close(self: &Arc<Self>, core: &Arc<Core>, state: &mut State) {
        state.phase = Phase::Idle;
        state.life = Life::Removed;
        core.queues.remove(self);
        self.stop_listening(core, state);
        if let Some(debt) = state.remote.take().and_then(|mut remote| remote.give_up()) {
            abandon(core, &self.name, debt);
        }
    }

    /// Without waiters there is nothing to hear.
    fn stop_listening(&self, core: &Arc<Core>, state: &mut State) {
        if !state.waiters.is_empty() {
            return;
        }
        if let Some(remote) = &mut state.remote
            && remote.ears != Ears::Closed
        {
            // Also one that is still being opened: it may come about at any time.
            remote.ears = Ears::Closed;
            core.backend.unlisten(&self.name);
        }
    }

    /// The time of a patient waiter is up.
    fn out_of_time(&self, spec: Spec) -> Answer {
        let state = self.state.lock();
        let trouble = state.remote.as_ref().and_then(|remote| {
            let (failure, _) = remote.trouble.clone()?;
            Some(match &remote.ticket {
                Some(ticket) => ticket.verdict(failure),
                None => failure,
            })
        });
        match trouble {
            // Held by another owner, as far as we know.
            None => Ok(None),
            Some(failure) => {
                let free = lease::free_within(spec.lease());
                Err(failure.into_error(format!("lock {:?}", self.name), free))
            }
        }
    }

    fn warn_of_self_wait(&self, spec: Spec) {
        let holder = match &self.state.lock().phase {
            Phase::Held(hold) => hold.spec().place,
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
