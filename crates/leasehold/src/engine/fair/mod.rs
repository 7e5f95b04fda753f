//! The tasks of this process that want one lock whose order is the server's: each has an entry there, and so a queue of its own
//! here. (The calls of one owner are one task.)
//!
//! They share one subscription, and one *heartbeat*: a task that keeps the entries of all that wait alive, with one request for each 200, and
//! polls when the holder's lease ends. No lease is passed on between them in memory: the order is the server's.
//!
//! Locks are taken in this order: a queue's, the map of fair queues, a fair queue's.

pub(crate) mod fair_queues;
pub(crate) mod heartbeat;

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    backend::{Failure, KeptEntries, KeptEntry, Reply, WakeUp},
    clock::Tick,
    engine::{
        claim::subscription::Subscription,
        env::Env,
        fair::heartbeat::{every, keep},
        hold::Hold,
        queue::{
            Phase, Queue,
            driver::AFTER_THE_END,
            map::{Queues, WaiterGroup},
        },
    },
    name::LockId,
    owner::LeaseId,
};

#[derive(Debug)]
pub(crate) struct FairQueue {
    /// The lock, of no task.
    id: LockId,
    state: Mutex<FairQueueState>,
    heartbeat_wake: Notify,
    /// A subscription was answered, or a release; or a task has the lock, or wants it no more, or once more.
    changed: Notify,
}

#[derive(Debug)]
struct FairQueueState {
    /// By the number of the task.
    queues: BTreeMap<u64, Arc<Queue>>,
    /// The tasks that hear wake-ups, or are about to.
    listening: BTreeSet<u64>,
    subscription: Subscription,
    has_heartbeat: bool,
    /// When the heartbeat asks the server next.
    poll_at: Tick,
    message: PollMessage,
    /// The hold that a task had last. Each task that waits for long asks for it, so it is not looked for among all tasks.
    held: Weak<Hold>,
    /// Clients of another library were seen, which tell only one waiter.
    foreign: bool,
    /// How many requests keep all entries, and the task with which the next of these begins.
    parts: u32,
    next_task: u64,
}
/// So many entries are kept by one request: the server serves no other client meanwhile.
const KEPT_AT_ONCE: usize = 200;
/// A message that asks for a poll: the tasks sleep by what is not true any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PollMessage {
    None,
    Received,
    /// While no task waited. The answer to a task that asks meanwhile may be older, so it polls when it begins to wait.
    ForTheNext,
}

impl FairQueue {
    pub(crate) fn new(id: &LockId) -> FairQueue {
        FairQueue {
            id: id.of_task(0),
            state: Mutex::new(FairQueueState {
                queues: BTreeMap::new(),
                listening: BTreeSet::new(),
                subscription: Subscription::default(),
                has_heartbeat: false,
                poll_at: Tick::MAX,
                message: PollMessage::None,
                held: Weak::new(),
                foreign: false,
                parts: 1,
                next_task: 0,
            }),
            heartbeat_wake: Notify::new(),
            changed: Notify::new(),
        }
    }

    /// Learns to hear wake-ups for this task. All tasks share one subscription: the first asks for it, the others wait for the
    /// answer.
    /// `false` if that has to be asked for again.
    async fn listen_for(
        self: &Arc<Self>,
        queues: &Arc<Queues>,
        task: u64,
    ) -> Result<bool, Failure> {
        loop {
            if queues.is_closed() {
                return Ok(false); // its waiters have their answers (B6)
            }
            let mut answered = pin!(self.changed.notified());
            // Registered before the look at the state: the answer may come in between (L1).
            answered.as_mut().enable();
            let (is_open, asks) = {
                let mut state = self.state.lock();
                state.listening.insert(task);
                if !std::mem::replace(&mut state.has_heartbeat, true) {
                    state.poll_at = queues.clock.now().after(queues.config.poll_every);
                    queues.spawn(keep(Arc::downgrade(queues), Arc::clone(self)));
                }
                // Under the same lock: of all tasks that come now, the first alone asks.
                (
                    state.subscription.is_open(),
                    state.subscription.asks_first(),
                )
            };
            if is_open {
                return Ok(true);
            }
            if !asks {
                answered.await;
                continue;
            }
            let answer = queues.backend.listen(self.id.clone()).await;
            let mut state = self.state.lock();
            // A refusal that was heard meanwhile, or the end of the heartbeat, has made it doubtful: it is asked for again.
            // The end of the heartbeat ends a subscription that may be there all the same.
            let is_open = state.subscription.answered(answer.is_ok());
            drop(state);
            self.changed.notify_waiters();
            return answer.map(|()| is_open);
        }
    }

    pub(crate) fn add(&self, queue: &Arc<Queue>) {
        let mut state = self.state.lock();
        state.queues.insert(queue.id.task(), Arc::clone(queue));
    }

    /// A queue ends. Whether it was the last, and no heartbeat needs this any more.
    pub(crate) fn remove(&self, queue: &Arc<Queue>) -> bool {
        let mut state = self.state.lock();
        let there = state.queues.get(&queue.id.task());
        // A task's number may have a new queue by now.
        if there.is_some_and(|there| Arc::ptr_eq(there, queue)) {
            state.queues.remove(&queue.id.task());
        }
        state.is_over()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().is_over()
    }

    /// Whether a heartbeat waits for the time to ask. A heartbeat that has nothing to keep ends in a moment.
    pub(crate) fn is_kept(&self) -> bool {
        let state = self.state.lock();
        state.has_heartbeat && !state.listening.is_empty() && state.poll_at != Tick::MAX
    }

    /// The heartbeat asks the server at this time.
    fn poll_by(&self, at: Tick) {
        {
            let mut state = self.state.lock();
            state.poll_at = state.poll_at.min(at);
            state.message = PollMessage::Received;
        }
        self.heartbeat_wake.notify_one();
    }

    /// The queues, the one that came first at the front, without a copy of all: a queue's lock is taken before this one's. A queue
    /// that comes meanwhile is among them.
    fn in_order(&self) -> impl Iterator<Item = Arc<Queue>> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let state = self.state.lock();
            let (task, queue) = state.queues.range(next..).next()?;
            next = task + 1;
            Some(Arc::clone(queue))
        })
    }

    /// The queue that this lease id concerns, if there is one: most often the first, since the order is the server's.
    pub(crate) fn queue_of(&self, lease: LeaseId) -> Option<Arc<Queue>> {
        self.in_order().find(|queue| {
            let state = queue.lock();
            state.asks_under(lease)
                || match &state.phase {
                    Phase::Held(hold) => hold.lease == lease,
                    Phase::Releasing(released) => *released == lease,
                    _ => false,
                }
        })
    }

    /// The wake-ups that are for no particular lease; a grant finds its queue by its lease id.
    pub(crate) fn wake(&self, queues: &Queues, task: u64, wake_up: &WakeUp) {
        match wake_up {
            WakeUp::TryAgain if task == 0 => self.poll_by(Tick::from_nanos(0)),
            // The next may have it by now.
            WakeUp::Forced => self.in_order().for_each(|queue| queue.doubt_holders(true)),
            WakeUp::Watch(left) => self.poll_by(queues.clock.now().after(*left + AFTER_THE_END)),
            // A client of Redisson's says that it is this one's turn.
            WakeUp::TryAgain => {
                // And not a hold's that was believed here.
                if let Some(queue) = self.held().and_then(|hold| queues.find(hold.id())) {
                    queue.doubt_holders(false);
                }
                let asks = |queue: &Arc<Queue>| queue.lock().asks_under(LeaseId::from(task));
                if let Some(queue) = self.in_order().find(asks) {
                    queue.driver_wake().notify_one();
                }
            }
            // Beside clients of Redisson's, a waiter that is not told polls.
            WakeUp::Deaf if task != 0 => {}
            WakeUp::Deaf => {
                self.state.lock().subscription.ended();
                self.queues().iter().for_each(|queue| queue.became_deaf());
            }
            WakeUp::Granted(_) | WakeUp::Turns(_) => {}
        }
    }

    /// Completes when no task of this process gives up the lock, or an entry for it; or a task of it has the lock.
    pub(crate) async fn released(&self) {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Registered before the look at the queues: a change in between is heard.
            changed.as_mut().enable();
            let mut leaving = false;
            for queue in self.in_order() {
                let mut state = queue.lock();
                if state.phase.is_held() {
                    return;
                }
                leaving |= state.is_leaving();
            }
            if !leaving {
                return;
            }
            changed.await;
        }
    }

    /// Completes when a task of this process but this one has the lock.
    pub(crate) async fn held_by_another(&self, task: u64) {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Registered before the look, as in `released`.
            changed.as_mut().enable();
            let held = |queue: &Arc<Queue>| queue.id.task() != task && queue.lock().phase.is_held();
            if self.in_order().any(|queue| held(&queue)) {
                return;
            }
            changed.await;
        }
    }

    /// Entries of tasks that wait, and the asks for them that are sent at `now`; and the task with which the next request begins. Very many
    /// are kept in parts. The first is in each, for it may be told to ask.
    fn entries(&self, now: Tick) -> (Vec<KeptEntry>, u64) {
        let mut waiting = self.queues();
        waiting.retain(|queue| {
            let state = queue.lock();
            let remote = state.remote.as_ref();
            matches!(state.phase, Phase::WaitingRemote)
                && remote.is_some_and(|r| r.ticket.is_some())
        });
        let mut next = 0;
        let mut state = self.state.lock();
        state.parts = 1;
        if waiting.len() > KEPT_AT_ONCE {
            // The first of all is in each part, and takes one place there.
            let most = KEPT_AT_ONCE - 1;
            state.parts = u32::try_from(waiting.len().div_ceil(most)).unwrap_or(u32::MAX);
            let behind = &mut waiting[1..];
            let from = behind.partition_point(|queue| queue.id.task() < state.next_task);
            behind.rotate_left(from % behind.len());
            next = behind[most - 1].id.task() + 1;
            waiting.truncate(KEPT_AT_ONCE);
        }
        drop(state);
        let mut entries = Vec::with_capacity(waiting.len());
        for queue in waiting {
            let mut state = queue.lock();
            // Looked at once more: the queues were unlocked in between, and a driver may be asking by itself.
            if matches!(state.phase, Phase::WaitingRemote)
                && let Some(remote) = &mut state.remote
                && let Some(ticket) = &mut remote.ticket
            {
                entries.push(KeptEntry {
                    lease: ticket.lease(),
                    lease_ms: ticket.terms().lease_ms,
                    ask: ticket.kept(now),
                });
            }
        }
        (entries, next)
    }

    /// The server has kept entries. The next request begins with this task.
    fn kept(&self, queues: &Queues, kept: &KeptEntries, sent: Tick, next_task: u64) {
        let missing = |queue: &Arc<Queue>| {
            let state = queue.lock();
            kept.missing.iter().any(|lease| state.asks_under(*lease))
        };
        if !kept.missing.is_empty() {
            // Each of these asks for itself: it holds the lock by now, or needs a new entry.
            let queues = self.queues().into_iter().filter(missing);
            queues.for_each(|queue| queue.driver_wake().notify_one());
        }
        let mut state = self.state.lock();
        state.foreign = kept.foreign;
        state.next_task = next_task;
        // A message that was heard since the send may ask for an earlier poll.
        let at = sent.after(state.pause(queues, kept.ttl));
        state.poll_at = state.poll_at.min(at);
    }
}

impl WaiterGroup for FairQueue {
    fn queues(&self) -> Vec<Arc<Queue>> {
        self.state.lock().queues.values().map(Arc::clone).collect()
    }

    /// The client shuts down, a release was answered, or a task has the lock.
    fn changed(&self) {
        self.changed.notify_waiters();
        self.heartbeat_wake.notify_one();
    }

    fn now_held_by(&self, hold: &Arc<Hold>) {
        self.state.lock().held = Arc::downgrade(hold);
        self.changed();
    }

    fn held(&self) -> Option<Arc<Hold>> {
        let held = self.state.lock().held.upgrade();
        held.filter(|hold| !hold.is_over())
    }

    fn listen(self: Arc<Self>, queues: &Arc<Queues>, task: u64) -> Reply<bool> {
        let queues = Arc::clone(queues);
        Box::pin(async move { self.listen_for(&queues, task).await })
    }

    /// This task need not hear wake-ups any more.
    fn unlisten(&self, task: u64) {
        let mut state = self.state.lock();
        if state.listening.remove(&task) && state.listening.is_empty() {
            self.heartbeat_wake.notify_one();
        }
    }

    fn is_next(&self, task: u64) -> bool {
        let waits = |queue: &Arc<Queue>| !queue.lock().waiters.is_empty();
        let next = self.in_order().find(waits);
        next.is_some_and(|next| next.id.task() == task)
    }

    /// A task has its entry, and waits: behind a holder whose lease ends in so long, beside clients of another library or not.
    fn waits(&self, env: &Env, left: Option<Duration>, foreign: bool) {
        let mut state = self.state.lock();
        let now = env.clock.now();
        state.foreign |= foreign;
        let at = if state.message == PollMessage::ForTheNext {
            state.message = PollMessage::None;
            now
        } else {
            now.after(state.pause(env, left))
        };
        if at < state.poll_at {
            state.poll_at = at;
            self.heartbeat_wake.notify_one();
        }
    }
}

impl FairQueueState {
    fn is_over(&self) -> bool {
        self.queues.is_empty() && !self.has_heartbeat
    }

    /// How long the heartbeat pauses, behind a holder whose lease ends in so long.
    fn pause(&self, env: &Env, left: Option<Duration>) -> Duration {
        // All parts together take one interval, so each entry is kept once in it.
        let every = every(env, self.foreign) / self.parts;
        left.map_or(every, |left| every.min(left + AFTER_THE_END))
    }
}
