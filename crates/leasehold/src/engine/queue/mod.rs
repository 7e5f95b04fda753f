//! The waiters of this process for one name.
//!
//! A name that this process holds, wants or gives back has one queue. Its phase says which actor talks to the server about
//! the name: the first attempt of a newcomer, the holder, a release under way, or a *driver*, a task that asks on behalf of
//! all waiters of this process. The other callers wait in memory, first come first served.
//!
//! Invariants, cited by number elsewhere (B1 to B6 are the rules of belief in docs/rules.md):
//!
//! - **Q1** At most one attempt, exclusive hold, release or driver per queue. (A driver whose waiter was served directly
//!   exits.) Holds that are shared, and their releases, are beside that: `local/sharers.rs`.
//! - **Q2** A queue with waiters is not idle, so an actor will answer them.
//! - **Q3** A queue leaves the map under its own lock, with nothing in it; a caller that finds it afterwards looks again.
//! - **Q4** Once a release was sent, its lease id is never relied on again; the server may keep the name for
//!   this client, but under the next id.
//! - **Q5** A guard is never dropped under a queue's lock, and no waker is called there.
//! - **B5** This process has at the server the holder's lease id or that of the one ticket in [`Remote`]. A ticket
//!   leaves there as a hold or as a pending release.
//! - **B6** A queue that closes answers its waiters, begins nothing, and gives back grants that arrive.

pub(crate) mod driver;
pub(crate) mod enter;
pub(crate) mod map;
pub(crate) mod release;
pub(crate) mod state;

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{Arc, OnceLock, Weak},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    backend::Grant,
    clock::Tick,
    config::SELF_WAIT_WARNING,
    engine::claim::ask::{no_answer, still_ours},
    engine::claim::pending_release::abandon,
    engine::claim::remote::Remote,
    engine::hold::spec::Spec,
    engine::hold::{Granted, Hold},
    engine::local::answer::WaitResult,
    engine::local::locked::Locked,
    engine::local::sharers::SharedHolds,
    engine::local::waiters::Waiter,
    engine::queue::map::Queues,
    name::LockId,
    owner::LeaseId,
    stderr_warning,
};

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) queues: Arc<Queues>,
    pub(crate) id: LockId,
    pub(crate) state: Mutex<QueueState>,
    /// Made when it is first wanted, since most names are never contended.
    pub(crate) driver_wake: OnceLock<Box<Notify>>,
}

#[derive(Debug)]
pub(crate) struct QueueState {
    pub(crate) phase: Phase,
    pub(crate) life: Life,
    /// The server has said last that no client has set how many permits there are.
    pub(crate) unset: bool,
    /// Waiters may have said different numbers of permits.
    pub(crate) differ: bool,
    /// Their numbers grow from front to back, and none is given twice.
    pub(crate) waiters: VecDeque<Waiter>,
    /// The numbers given so far.
    pub(crate) numbers: Range<i64>,
    /// How many of the waiters ask only once.
    pub(crate) try_once: u32,
    /// The number of the present driver; one with another number is stale and exits.
    pub(crate) driver: u32,
    /// Hand-offs since the server was last asked.
    pub(crate) handoffs: u32,
    /// While the name is held, the instant at which the server was last asked; while it is given back, the instant at which that began.
    pub(crate) since: Tick,
    /// Holds that share the lock with others.
    pub(crate) shared: SharedHolds,
    /// Only while this process waits at the server; boxed, since most names are never contended.
    pub(crate) remote: Option<Box<Remote>>,
}

/// Which actor has the name in this process (Q1).
#[derive(Debug)]
pub(crate) enum Phase {
    Idle,
    /// An attempt, or a driver that does not sleep, has the name. `Some`: an attempt, and the `Weak` dies with its caller. `None`: a
    /// driver, or an attempt that was not polled yet; both count as wanted.
    InFlight(Option<Weak<()>>),
    /// The last holder's lease id is being given up.
    Releasing(LeaseId),
    /// Another process holds the name; the driver waits.
    WaitingRemote,
    Held(Arc<Hold>),
}

impl Phase {
    pub(crate) fn is_held(&self) -> bool {
        matches!(self, Phase::Held(hold) if hold.is_believed())
    }
}

/// Closed is a state, not a flag (B6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Open,
    /// The client shuts down: nothing new begins here, and grants that arrive are given back.
    Closing,
    /// The queue has left the map (Q3).
    Removed,
}

/// Where a driver begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start {
    /// Ask the server.
    Ask,
    /// Ask the server, even while a release is under way.
    AskNow,
    /// The server was asked just now: first learn to hear, then ask.
    Listen,
    /// The server was asked just now, and gave no usable answer.
    Recover,
}

impl Queue {
    pub(crate) fn new(queues: &Arc<Queues>, id: &LockId) -> Queue {
        Queue {
            queues: Arc::clone(queues),
            id: id.clone(),
            state: Mutex::new(QueueState {
                phase: Phase::Idle,
                life: Life::Open,
                unset: false,
                differ: false,
                waiters: VecDeque::new(),
                numbers: 0..0,
                try_once: 0,
                driver: 0,
                handoffs: 0,
                since: Tick::MAX,
                shared: SharedHolds::default(),
                remote: None,
            }),
            driver_wake: OnceLock::new(),
        }
    }

    pub(crate) fn lock(&self) -> Locked<'_, QueueState> {
        Locked::new(&self.state)
    }

    /// Wakes the driver that waits for another holder.
    pub(crate) fn driver_wake(&self) -> &Notify {
        self.driver_wake.get_or_init(Box::default)
    }

    /// All holds of this queue.
    pub(crate) fn holders(&self) -> Vec<Arc<Hold>> {
        self.lock().all_held()
    }

    /// Makes the holder of a lease that the server gave to this client. No other code makes one.
    ///
    /// `None` if the lease is not to be believed any more (B1), or the client shuts down (B6).
    pub(crate) fn begin_hold(
        self: &Arc<Self>,
        queues: &Queues,
        state: &QueueState,
        granted: Granted,
        spec: Spec,
    ) -> Option<Arc<Hold>> {
        let now = queues.clock.now();
        (now < granted.until && state.life == Life::Open)
            .then(|| Hold::new(Arc::clone(self) as _, granted, spec, now))
    }

    /// The name is ours under the present ticket: gives it to the first live waiter, if the lease serves that one. To be
    /// followed by [`installed`](Hold::installed) without the lock. On each `None` the ticket stays: its driver asks again, or gives it up.
    pub(crate) fn install(
        self: &Arc<Self>,
        queues: &Arc<Queues>,
        state: &mut Locked<'_, QueueState>,
        granted: Granted,
    ) -> Option<Arc<Hold>> {
        let terms = state.remote().ticket(granted.lease)?.terms();
        loop {
            let spec = state.first_live_waiter()?;
            if spec.terms() != terms {
                return None;
            }
            // Each waiter has a hold with its own terms; a hold that was not delivered is dropped without a release.
            let hold = self.begin_hold(queues, state, granted, spec)?;
            let waiter = state.pop_waiter()?;
            if state.deliver(waiter, &hold, |began| hold.note_start(began)) {
                // The waiter may have its guard by now: its release waits for this lock, and so finds the queue held.
                let remote = state.remote();
                remote.ticket = None;
                remote.granted = false;
                remote.leaving = None;
                remote.answered();
                state.took(queues, &hold);
                drop(self.stop_listening(queues, state));
                return Some(hold);
            }
        }
    }

    /// The server says that it gave the name to one of our lease ids (B3). `false` if that id does not wait for it.
    ///
    /// If the driver waits and the first live waiter can have the lease as it is, the waiter gets it at once, without a hop
    /// through the driver, which only learns that it is not needed any more. If not, the driver asks again.
    pub(crate) fn granted(self: &Arc<Self>, queues: &Arc<Queues>, grant: &Grant) -> bool {
        let mut state = self.lock();
        match &state.phase {
            Phase::Held(hold) if hold.lease == grant.lease => return true, // we asked and know already
            Phase::Releasing(lease) if *lease == grant.lease => return true, // it is being given up
            _ => {}
        }
        let mut shared = state.shared.all().iter();
        if shared.any(|hold| hold.lease == grant.lease) || state.shared.is_releasing(grant.lease) {
            return true; // as above
        }
        let waits = matches!(state.phase, Phase::WaitingRemote);
        let Some(remote) = &mut state.remote else {
            return false;
        };
        let Some(ticket) = remote.ticket(grant.lease) else {
            return false;
        };
        let believed = ticket.believe(grant);
        // The server of before may have said so, which the present one has not confirmed (bug 325).
        let believed = believed.filter(|it| !queues.watchdog.restarts.is_void(it.sent));
        // Also of a grant that is not believed: the driver asks then, and believes the reply (B1).
        remote.granted = true;
        let now = queues.clock.now();
        if waits
            && let Some(granted) = believed
            && let Some(first) = state.first_live_waiter()
            && first.is_fresh(granted.sent, now)
            && let Some(hold) = self.install(queues, &mut state, granted)
        {
            if hold.spec().access.is_exclusive() {
                // The driver that sleeps exits by this (Q1). Of a shared hold it goes on, for the waiters behind.
                state.driver = state.driver.wrapping_add(1);
            }
            drop(state);
            hold.installed(&granted);
        }
        self.driver_wake().notify_one();
        true
    }

    /// The holder has lost the name or left it to expire: the next may ask for it.
    pub(crate) fn holder_left(self: &Arc<Self>, queues: &Arc<Queues>, hold: &Arc<Hold>) {
        let mut state = self.lock();
        if matches!(&state.phase, Phase::Held(there) if Arc::ptr_eq(there, hold)) {
            self.go_on(queues, state, Start::Ask);
        } else if state.shared.remove(hold) {
            if matches!(state.phase, Phase::Idle) {
                self.close(queues, &mut state);
            } else {
                self.driver_wake().notify_one();
            }
        }
    }

    /// The actor of this queue is done: starts a driver for the waiters, or ends the queue (Q2, Q3). A driver without waiters gives
    /// up what the server may have for this process, and the next caller waits for that.
    pub(crate) fn go_on(
        self: &Arc<Self>,
        queues: &Arc<Queues>,
        mut state: Locked<'_, QueueState>,
        start: Start,
    ) {
        // Before it leaves the map with the last of its queues.
        let fair_queue = queues.fair_queue(&self.id);
        let owes = state.remote.as_ref().is_some_and(|r| r.may_have());
        if state.first_live_waiter().is_none() && !owes {
            self.close(queues, &mut state);
            drop(state);
        } else {
            // A driver without waiters asks nothing: it takes the ticket, gives it up, and comes back here to close the queue.
            self.note_leaving(&mut state);
            state.phase = Phase::InFlight(None);
            drop(state);
            (queues.drive)(queues, self, start);
        }
        if let Some(fair_queue) = fair_queue {
            fair_queue.changed();
        }
    }

    /// No caller of this process wants the name or gives it back. If none holds it either, the queue ends.
    pub(crate) fn close(self: &Arc<Self>, queues: &Arc<Queues>, state: &mut QueueState) {
        // First, since the subscription is the next queue's once this one has left the map.
        drop(self.stop_listening(queues, state));
        state.phase = match state.shared.latest_release() {
            Some(lease) => Phase::Releasing(lease),
            None => Phase::Idle,
        };
        if state.shared.is_empty() {
            state.life = Life::Removed;
            queues.remove(self);
        }
        if let Some(pending_release) = state.remote.take().and_then(|mut remote| remote.give_up()) {
            abandon(queues, &self.id, pending_release);
        }
    }

    /// Where no caller wants the ticket any more: until it is given up, the server may call the name held by this very process (bugs 167,
    /// 257, 331).
    fn note_leaving(&self, state: &mut QueueState) {
        if state.first_live_waiter().is_none()
            && let Some(remote) = &mut state.remote
            && remote.may_have()
        {
            let unsettled = &self.queues.unsettled;
            let leaving = &mut remote.leaving;
            leaving.get_or_insert_with(|| unsettled.begin(&self.id.name));
        }
    }

    /// A waiter has left, or was given a lease in memory; the `first` of them or another.
    pub(crate) fn waiter_left(&self, state: &mut Locked<'_, QueueState>, first: bool) {
        self.note_leaving(state);
        let next = state.first_live_waiter().map(|next| next.terms());
        match &state.phase {
            Phase::Held(_) => drop(self.stop_listening(&self.queues, state)),
            // The driver sleeps, and has no waiter left to ask for, or one that wants something else.
            Phase::WaitingRemote if next.is_none() || first && state.asked() != next => {
                self.driver_wake().notify_one();
            }
            // A driver that does not sleep polls before it does.
            _ => {}
        }
    }

    /// The answer to a waiter whose time is up, and that has waited since `began`: `None` only if the newest answer
    /// since then is that another has the lock; a failure after it makes it an error.
    pub(crate) fn out_of_time(&self, queues: &Queues, spec: Spec, began: Tick) -> WaitResult {
        let state = self.lock();
        let remote = state.remote.as_ref();
        let is_unsettled = remote.is_some_and(|remote| remote.is_unsettled());
        let is_held = match &state.phase {
            Phase::Held(_) => true,
            // The server said so, and would tell.
            Phase::WaitingRemote => queues.backend.trouble_of(&self.id).is_none() && !is_unsettled,
            _ => remote.is_some_and(|remote| remote.is_held_since(began)),
        };
        if is_held {
            return self.busy(&state, spec);
        }
        let Some(trouble) = remote.and_then(|remote| remote.trouble.clone()) else {
            if is_unsettled {
                return Err(self.error(still_ours(), spec));
            }
            return Err(no_answer(queues, &self.id, spec));
        };
        let ticket = remote.and_then(|remote| remote.ticket.as_ref());
        let verdict = match (ticket, trouble.failure) {
            (Some(ticket), failure) => ticket.verdict(failure),
            // No ticket, so this waiter has nothing at the server: the request that failed was sent for another.
            (None, failure) => failure.into_unsent(),
        };
        Err(self.error(verdict, spec))
    }

    /// Warns of a wait that may have no end, once for each wait.
    pub(crate) fn warn_of_long_wait(&self, queues: &Queues, spec: Spec) {
        self.warn_of_too_many_permits(spec);
        self.warn_of_self_wait(queues, spec);
    }

    fn warn_of_self_wait(&self, queues: &Queues, spec: Spec) {
        let holder = if spec.waits.is_in_turn() {
            let fair_queue = queues.fair_queue(&self.id);
            fair_queue.and_then(|fair_queue| fair_queue.held())
        } else {
            match &self.lock().phase {
                Phase::Held(hold) => Some(Arc::clone(hold)),
                _ => None,
            }
        };
        if let Some(holder) = holder {
            let held_at = holder.spec().place;
            stderr_warning::waits_for_itself(&self.id.name, spec.place, held_at, SELF_WAIT_WARNING);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        MemoryServer,
        backend::memory,
        background::BackgroundRuntime,
        clock::Clock,
        config::Config,
        engine::{
            claim::ticket::Ticket, env::Env, fair::fair_queues::FairQueues, hold::spec::Terms,
            wakeup::WakeUps,
        },
        kind::{Access, LockKind},
        name::Name,
    };

    /// Whose driver has not had its turn yet (bug 331).
    #[tokio::test]
    async fn a_ticket_without_a_caller_is_being_given_up_before_its_driver_runs() {
        let (uuid, config) = ("client".into(), Config::default());
        let sink = Arc::new(WakeUps::default());
        let backend = memory::client_of(MemoryServer::new(), &uuid, String::new(), &config, sink);
        let background = BackgroundRuntime::here();
        let env = Env::new(uuid, Clock::Boot, config, backend, background);
        let fair = Arc::<FairQueues>::default();
        let queues = Queues::new(&env, &Arc::default(), fair, |_, _, _| {});
        let name = Name::new("name").unwrap();
        let queue = queues.find_or_make(&LockId::new(LockKind::FairMutex, name.clone()));
        let terms = Terms {
            access: Access::Exclusive,
            lease_ms: 1_000,
        };
        let mut ticket = Ticket::new(&env, terms);
        ticket.ask(env.clock.now());
        queue.leave_granted(&queues, queue.lock(), ticket);
        assert!(env.unsettled.may_be_ours(&name, env.unsettled.mark()));
    }
}
