//! The coordinator of a name: the one of its servers where its waiters stand in line, and are woken.
//!
//! It is the first, in an order that all clients share, that has a connection, answers, and is not in quarantine. Clients that disagree
//! lose time, never safety: a grant by the coordinator is no vote (QB3), and only has its client ask all servers.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use super::servers::Servers;
use crate::{
    backend::{
        Failure, Grant, Reply, Restarted, Sink, WakeUp,
        listening::{Listening, Place},
    },
    clock::Tick,
    name::LockId,
    owner::LeaseId,
};

/// How often the waiters check whether their coordinator is still the one.
const CHECK_EVERY: Duration = Duration::from_millis(200);

/// For so long a name counts as contended after its coordinator has passed it on to another client.
const CONTENDED: Duration = Duration::from_secs(1);

/// More names are not remembered.
const CONTENDED_MOST: usize = 4096;

/// The wake-ups that this client hears, and at which server.
pub(super) struct CoordinatorListeners {
    sink: Arc<dyn Sink>,
    names: Listening<usize>,
    /// Lease ids that a coordinator has given the name to, by message.
    granted: Mutex<HashSet<LeaseId>>,
    contended: Mutex<HashMap<LockId, Tick>>,
    /// The coordinators of which waiters were told that listen at another.
    told: Mutex<BTreeMap<LockId, usize>>,
    is_watched: AtomicBool,
}

impl Place for usize {
    type Number = usize;

    fn number(&self) -> usize {
        *self
    }
}

/// The sink of one server.
pub(super) struct CoordinatorListener {
    pub(super) listeners: Arc<CoordinatorListeners>,
    pub(super) at: usize,
}

impl Sink for CoordinatorListener {
    fn wake(&self, id: &LockId, wake_up: WakeUp) {
        let CoordinatorListener { listeners, at } = self;
        match wake_up {
            // From any server: a coordinator of before that has given it the name keeps it for a lease, unless this client learns it (L1).
            WakeUp::Granted(grant) => {
                listeners.granted.lock().insert(grant.lease);
                // No ask has this number: it is not believed, and has its client ask (QB3).
                listeners
                    .sink
                    .wake(id, WakeUp::Granted(Grant { ask: 0, ..grant }));
            }
            _ if listeners.hears(id, *at) => listeners.sink.wake(id, wake_up),
            _ => {}
        }
    }

    /// Renewals ask it for its vote again (QB7), which counts after its quarantine.
    fn restarted(&self, _change: Restarted) {
        self.listeners.sink.restarted(Restarted::OneVote);
    }

    fn cut_off(&self) {
        self.listeners.sink.cut_off();
    }
}

impl fmt::Debug for CoordinatorListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server {} of a quorum", self.at)
    }
}

impl CoordinatorListeners {
    pub(super) fn new(sink: Arc<dyn Sink>) -> Arc<CoordinatorListeners> {
        Arc::new(CoordinatorListeners {
            sink,
            names: Listening::default(),
            granted: Mutex::default(),
            contended: Mutex::default(),
            told: Mutex::default(),
            is_watched: AtomicBool::new(false),
        })
    }

    /// Whether a coordinator has said that this lease id has the name, once.
    pub(super) fn was_granted(&self, lease: LeaseId) -> bool {
        self.granted.lock().remove(&lease)
    }

    /// The coordinator has given the name to another client.
    pub(super) fn passed_on(&self, id: &LockId, now: Tick) {
        let mut contended = self.contended.lock();
        if contended.len() >= CONTENDED_MOST {
            // Forgetting costs a round in vain, so the table need not be exact.
            contended.clear();
        }
        contended.insert(id.clone(), now);
    }

    /// Whether it has a moment ago: then it is asked first, and the votes of that client are left alone.
    pub(super) fn is_contended(&self, id: &LockId, now: Tick) -> bool {
        let at = self.contended.lock().get(id).copied();
        at.is_some_and(|at| now.since(at) < CONTENDED)
    }

    /// Whether wake-ups are heard at this server.
    pub(super) fn hears(&self, id: &LockId, at: usize) -> bool {
        self.names.hears(id, at)
    }

    /// A waiter asks for the name: it is told again if its coordinator changes after this.
    pub(super) fn asks(&self, id: &LockId) {
        self.told.lock().remove(id);
    }

    /// Hears wake-ups for the name at this server, and at no other.
    pub(super) fn listen(
        self: &Arc<Self>,
        servers: &Arc<Servers>,
        id: &LockId,
        at: usize,
    ) -> Reply<()> {
        let (number, left) = self.names.begin(id, Some(at));
        // The call itself sends the request: its reply may be dropped without a poll.
        if let Some(left) = left {
            drop(servers.at(left).backend.unlisten(id));
        }
        self.watch(servers);
        let answer = servers.at(at).backend.listen(id.clone());
        let (listeners, servers, id) = (Arc::clone(self), Arc::clone(servers), id.clone());
        Box::pin(async move {
            let answer = answer.await;
            if answer.is_err() {
                let mut names = listeners.names.lock();
                if names.get(&id).is_some_and(|it| it.number == number) {
                    names.remove(&id);
                    // It may have been carried out, and no other would end it later.
                    // Under the lock, so that a call that listens anew is sent behind it.
                    drop(servers.at(at).backend.unlisten(&id));
                }
            }
            answer
        })
    }

    pub(super) fn unlisten(&self, servers: &Servers, id: &LockId) -> Reply<()> {
        match self.names.end(id) {
            Some(at) => servers.at(at).backend.unlisten(id),
            None => Box::pin(std::future::ready(Ok(()))),
        }
    }

    /// As long as names are waited for: has the waiters ask whose coordinator is another server by now.
    fn watch(self: &Arc<Self>, servers: &Arc<Servers>) {
        if self.is_watched.swap(true, Ordering::AcqRel) {
            return;
        }
        // Weak, so that the client may end while its names are still waited for.
        let (listeners, servers): (Weak<CoordinatorListeners>, Weak<Servers>) =
            (Arc::downgrade(self), Arc::downgrade(servers));
        let Some(background) = servers.upgrade().map(|servers| servers.background.clone()) else {
            return;
        };
        let handle = background.handle().clone();
        drop(handle.spawn(async move {
            loop {
                background.sleep(CHECK_EVERY).await;
                let (Some(listeners), Some(servers)) = (listeners.upgrade(), servers.upgrade())
                else {
                    return;
                };
                if listeners.check(&servers) {
                    continue;
                }
                // First the mark, then the look: a name that comes between finds no watcher and starts one, or is seen here.
                listeners.is_watched.store(false, Ordering::Release);
                let is_empty = listeners.names.lock().is_empty();
                if is_empty || listeners.is_watched.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        }));
    }

    /// Whether a name is waited for.
    fn check(&self, servers: &Servers) -> bool {
        // A copy, since a sink that is woken may listen or stop listening at once, which takes this lock.
        let heard: Vec<LockId> = self.names.lock().keys().cloned().collect();
        let elsewhere = |id: &LockId| {
            let coordinator = servers.coordinator(id)?;
            (!self.hears(id, coordinator)).then(|| (id.clone(), coordinator))
        };
        // In the same order each time: a simulation must be able to replay it.
        let elsewhere: BTreeMap<LockId, usize> = heard.iter().filter_map(elsewhere).collect();
        let told = std::mem::replace(&mut *self.told.lock(), elsewhere.clone());
        // A waiter is told of each coordinator once: a name that is held here stays where it is, and each word has its hold verified.
        for (id, coordinator) in &elsewhere {
            if told.get(id) != Some(coordinator) {
                self.sink.wake(id, WakeUp::TryAgain);
            }
        }
        !heard.is_empty()
    }
}

impl Servers {
    /// The coordinator of a name; `None`: no server can be it. Where none is well, one is asked all the same: only so is it known that it answers
    /// again.
    pub(super) fn coordinator(&self, id: &LockId) -> Option<usize> {
        let first = |all: &mut dyn Iterator<Item = usize>| {
            // By name, and not by the place in the list: clients may give the same servers in different orders.
            all.max_by_key(|at| (rank(id.name.wire(), &self.at(*at).name), Reverse(*at)))
        };
        let all = 0..self.len();
        first(&mut all.clone().filter(|at| self.is_well(*at)))
            .or_else(|| first(&mut all.filter(|at| self.can_vote(*at))))
    }

    pub(super) fn coordinator_or_why(&self, id: &LockId) -> Result<usize, Failure> {
        let coordinator = self.coordinator(id);
        coordinator.ok_or_else(|| Failure::NotSent(self.no_majority(|_| None)))
    }
}

/// The place of a server in the order of a name: the same in all programs (FNV-1a, mixed).
fn rank(name: &str, server: &str) -> u64 {
    let bytes = name.bytes().chain([0]).chain(server.bytes());
    // Not the standard library's hasher, which is seeded for each process: all clients must find the same order.
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    hash ^ (hash >> 32)
}
