//! The queues of a client, by kind and name.

use std::{
    borrow::Borrow,
    collections::{HashMap, HashSet},
    fmt,
    hash::{BuildHasher, Hash, Hasher},
    ops::Deref,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    Error,
    backend::{Reply, WakeUp},
    background::Resident,
    clock::Tick,
    engine::{
        claim::pending_release::{Owes, PendingRelease, abandon},
        env::Env,
        hold::{Hold, watchdog::Watchdog},
        local::redisson_fairness::RedissonFairness,
        queue::{Life, Phase, Queue, Start},
    },
    kind::LockKind,
    name::LockId,
    outage::Seldom,
    owner::LeaseId,
};

/// The queues of a client, by kind and name.
#[derive(Debug)]
pub(crate) struct Queues {
    env: Arc<Env>,
    pub(crate) watchdog: Arc<Watchdog>,
    /// Starts a driver for the waiters of a queue.
    pub(crate) drive: fn(&Arc<Queues>, &Arc<Queue>, Start),
    shards: Box<[Shard]>,
    hasher: Hashing,
    detached: Mutex<DetachedIds>,
    /// Of the locks that Redisson's clients wait for, too.
    pub(crate) redisson_fairness: RedissonFairness,
    /// Of the locks whose waiting tasks have a queue each.
    pub(crate) groups: Arc<dyn WaiterGroups>,
    /// Limits the warning that waiters cannot hear.
    pub(crate) warned_of_deafness: Seldom,
    /// Of clients on classic channels, where ours are sharded: limits the checks for them, and the warnings.
    pub(crate) classic: [Seldom; 2],
}

/// Lease ids that were left to expire, and until when they may last.
#[derive(Debug, Default)]
struct DetachedIds {
    until: HashMap<LeaseId, Tick, Hashing>,
    /// How many there were after the last tidying.
    tidied: usize,
}

impl DetachedIds {
    /// Fewer are not worth a check.
    const FEW: usize = 32;

    fn add(&mut self, lease: LeaseId, until: Tick, now: Tick) {
        // Only when they have doubled, so that each costs the same however many there are.
        if self.until.len() >= 2 * self.tidied.max(DetachedIds::FEW) {
            self.until.retain(|_, until| *until > now);
            self.until.shrink_to(2 * self.until.len());
            self.tidied = self.until.len();
        }
        self.until.insert(lease, until);
    }
}

/// A part of the map, so that names do not wait for each other's locks.
type Shard = Mutex<HashSet<ById, Hashing>>;

/// A queue, found by the id of its lock.
#[derive(Debug)]
struct ById(Arc<Queue>);

impl Borrow<LockId> for ById {
    fn borrow(&self) -> &LockId {
        &self.0.id
    }
}

impl Hash for ById {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.id.hash(state);
    }
}

impl PartialEq for ById {
    fn eq(&self, other: &ById) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for ById {}

#[cfg(not(feature = "sim"))]
pub(crate) type Hashing = std::hash::RandomState;
/// The same order in each run.
#[cfg(feature = "sim")]
pub(crate) type Hashing = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

const SHARDS: usize = 16;

impl Queues {
    pub(crate) fn new(
        env: &Arc<Env>,
        watchdog: &Arc<Watchdog>,
        groups: Arc<dyn WaiterGroups>,
        drive: fn(&Arc<Queues>, &Arc<Queue>, Start),
    ) -> Arc<Queues> {
        Arc::new(Queues {
            env: Arc::clone(env),
            watchdog: Arc::clone(watchdog),
            drive,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: Hashing::default(),
            detached: Mutex::default(),
            redisson_fairness: RedissonFairness::default(),
            groups,
            warned_of_deafness: Seldom::default(),
            classic: Default::default(),
        })
    }

    fn shard(&self, id: &LockId) -> &Shard {
        let hash = self.hasher.hash_one(id);
        &self.shards[usize::try_from(hash >> 32).unwrap_or(0) % SHARDS]
    }

    pub(crate) fn find(&self, id: &LockId) -> Option<Arc<Queue>> {
        let shard = self.shard(id).lock();
        shard.get(id).map(|ById(queue)| Arc::clone(queue))
    }

    pub(crate) fn find_or_make(self: &Arc<Self>, id: &LockId) -> Arc<Queue> {
        let mut shard = self.shard(id).lock();
        if let Some(ById(queue)) = shard.get(id) {
            return Arc::clone(queue);
        }
        let queue = Arc::new(Queue::new(self, id));
        shard.insert(ById(Arc::clone(&queue)));
        if id.is_of_task() {
            // Under the lock of the shard: no task finds the queue before its fair queue knows it.
            self.groups.add(&queue);
        }
        queue
    }

    /// The tasks of this process that want this lock, if its order is the server's, and there are any.
    pub(crate) fn fair_queue(&self, id: &LockId) -> Option<Arc<dyn WaiterGroup>> {
        (id.kind == LockKind::FairMutex)
            .then(|| self.groups.find(id))
            .flatten()
    }

    /// The queues of one lock.
    fn of_lock(&self, id: &LockId) -> Vec<Arc<Queue>> {
        match self.fair_queue(id) {
            Some(fair_queue) => fair_queue.queues(),
            None => self.find(id).into_iter().collect(),
        }
    }

    /// Takes a queue out of the map. Call under the queue's lock (Q3).
    pub(crate) fn remove(&self, queue: &Arc<Queue>) {
        // Only this very queue: a new one may have the name by now, as in `FairQueue::remove`.
        let mut shard = self.shard(&queue.id).lock();
        if shard
            .get(&queue.id)
            .is_some_and(|ById(there)| Arc::ptr_eq(there, queue))
        {
            shard.remove(&queue.id);
        }
        drop(shard);
        if queue.id.is_of_task() {
            self.groups.remove(queue);
        }
    }

    /// A lease id is left to expire on the server, at the latest `within` from now.
    pub(crate) fn note_detached(&self, lease: LeaseId, within: Duration) {
        let now = self.env.clock.now();
        let mut detached = self.detached.lock();
        detached.add(lease, now.after(within), now);
    }

    fn is_detached(&self, lease: LeaseId) -> bool {
        let now = self.env.clock.now();
        let detached = self.detached.lock();
        detached.until.get(&lease).is_some_and(|until| *until > now)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Queue>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().iter().map(|ById(queue)| Arc::clone(queue)));
        }
        // In the same order each time, with any hasher: a simulation must be able to replay it.
        all.sort_by(|a, b| a.id.cmp(&b.id));
        all
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// How many queues talk to the server.
    pub(crate) fn asking(&self) -> usize {
        let asks = |queue: &Arc<Queue>| {
            let phase = &queue.state.lock().phase;
            matches!(phase, Phase::InFlight(_) | Phase::Releasing(..))
        };
        self.all().iter().filter(|queue| asks(queue)).count()
    }

    /// How many drivers wait for a wake-up.
    pub(crate) fn waiting_drivers(&self) -> usize {
        let waits = |queue: &Arc<Queue>| matches!(queue.state.lock().phase, Phase::WaitingRemote);
        self.all().iter().filter(|queue| waits(queue)).count()
    }

    /// How many wait for the name in this process.
    pub(crate) fn waiting(&self, id: &LockId) -> usize {
        let queues = self.of_lock(id);
        queues.iter().map(|queue| queue.lock().waiters.len()).sum()
    }

    /// Whether this process hears the wake-ups for the name.
    pub(crate) fn is_listening(&self, id: &LockId) -> bool {
        self.find(id)
            .is_some_and(|queue| queue.lock().is_listening())
    }

    /// All holds of this process.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        let all = self.all();
        all.iter().flat_map(|queue| queue.holders()).collect()
    }

    /// The holds of this process on one lock.
    pub(crate) fn held(&self, id: &LockId) -> Vec<Arc<Hold>> {
        let queues = self.of_lock(id);
        queues.iter().flat_map(|queue| queue.holders()).collect()
    }

    /// The backend heard something about a name.
    pub(crate) fn wake(self: &Arc<Self>, id: &LockId, wake_up: WakeUp) {
        self.heard(id, self.find(id), wake_up);
    }

    /// As [`wake`](Self::wake), where the queue has been found already: a fair mutex has one for each task.
    pub(crate) fn heard(self: &Arc<Self>, id: &LockId, queue: Option<Arc<Queue>>, wake_up: WakeUp) {
        match (wake_up, queue) {
            (WakeUp::TryAgain | WakeUp::Turns(_), queue) => {
                // Also without a queue: a newcomer steps back by it (`enter`).
                self.redisson_fairness
                    .hear(id, wake_up, self.env.clock.now());
                if let Some(queue) = queue {
                    queue.poll_now(None);
                    // A release of a name that this process believes it holds: another may have unlocked it by force. (A release of permits
                    // says nothing of others' permits.)
                    if id.kind != LockKind::LeasedSemaphore {
                        queue.doubt_holders(false);
                    }
                }
            }
            (WakeUp::Watch(left), Some(queue)) => {
                queue.poll_now(Some(self.env.clock.now().after(left)));
            }
            (WakeUp::Deaf, Some(queue)) => queue.became_deaf(),
            (WakeUp::Forced, Some(queue)) => queue.doubt_holders(true),
            (WakeUp::Watch(_) | WakeUp::Forced | WakeUp::Deaf, None) => {}
            // Left to expire by `detach`: a grant that is heard late must not give it back.
            (WakeUp::Granted(grant), _) if self.is_detached(grant.lease) => {}
            (WakeUp::Granted(grant), queue) => {
                if !queue.is_some_and(|queue| queue.granted(self, &grant)) {
                    // B3: the id does not wait for it (any more).
                    // The release that gave the id up here left a tombstone, if a copy of a request could still come (B4).
                    let pending_release = PendingRelease {
                        access: grant.access,
                        lease: grant.lease,
                        lease_ms: grant.lease_ms,
                        held: true,
                        copies: false,
                    };
                    abandon(self, id, pending_release);
                }
            }
        }
    }

    /// Brings every queue into the state in which nothing new begins (B6). The client is marked as closed already, so a
    /// queue that is made from now on refuses its newcomer by itself.
    pub(crate) fn close(&self) {
        for queue in self.all() {
            let mut state = queue.lock();
            if state.life == Life::Open {
                state.life = Life::Closing;
            }
            state.answer_all(&Error::Closed);
            // A driver that sleeps has no waiter any more: it gives up its ticket, and leaves (B5).
            queue.driver_wake().notify_one();
        }
    }
}

impl Deref for Queues {
    type Target = Arc<Env>;

    fn deref(&self) -> &Arc<Env> {
        &self.env
    }
}

impl AsRef<Env> for Queues {
    fn as_ref(&self) -> &Env {
        &self.env
    }
}

impl Owes for Queues {
    fn is_listening(&self, id: &LockId) -> bool {
        Queues::is_listening(self, id)
    }
}

impl Resident for Queues {
    /// No actor is left to answer the waiters.
    fn thread_gone(&self) {
        for queue in self.all() {
            queue.lock().answer_all(&Error::ThreadGone);
        }
    }
}

impl Drop for Queues {
    /// No handle and no guard is left.
    fn drop(&mut self) {
        self.watchdog.close();
    }
}

/// The tasks of this process that want one lock whose order is the server's: each has a queue of its own, and they hear wake-ups together.
pub(crate) trait WaiterGroup: fmt::Debug + Send + Sync {
    fn queues(&self) -> Vec<Arc<Queue>>;

    /// A release was answered; or a task has the lock, or wants it no more, or once more.
    fn changed(&self);

    /// A task has the lock.
    fn now_held_by(&self, hold: &Arc<Hold>);

    /// The hold of a task of this process.
    fn held(&self) -> Option<Arc<Hold>>;

    /// Learns to hear wake-ups for this task. `false` if that has to be asked for again.
    fn listen(self: Arc<Self>, queues: &Arc<Queues>, task: u64) -> Reply<bool>;

    /// This task need not hear wake-ups any more.
    fn unlisten(&self, task: u64);

    /// Whether it is the first of the tasks here that wait.
    fn is_next(&self, task: u64) -> bool;

    /// A task waits: behind a holder whose lease ends in so long, beside clients of another library or not.
    fn waits(&self, env: &Env, left: Option<Duration>, foreign: bool);
}

/// The groups of a client, by lock.
pub(crate) trait WaiterGroups: fmt::Debug + Send + Sync {
    fn find(&self, id: &LockId) -> Option<Arc<dyn WaiterGroup>>;

    /// The queue of a task begins, or ends.
    fn add(&self, queue: &Arc<Queue>);
    fn remove(&self, queue: &Arc<Queue>);

    /// A group may be needed no more.
    fn tidy(&self, id: &LockId);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detached_lease_ids_are_kept_until_they_end_and_forgotten_later() {
        let at = |ms| Tick::from_nanos(1).after(Duration::from_millis(ms));
        let mut detached = DetachedIds::default();
        for id in 0..1_000 {
            detached.add(LeaseId::from(id), at(10_000), at(0));
        }
        assert_eq!(detached.until.len(), 1_000);
        for id in 1_000..11_000 {
            detached.add(LeaseId::from(id), at(id + 10), at(id));
            assert!(detached.until.contains_key(&LeaseId::from(id)));
            assert!(id >= 10_000 || detached.until.contains_key(&LeaseId::from(0)));
        }
        let left = detached.until.len();
        assert!(left <= 2_000, "{left} of 11,000");
    }
}
