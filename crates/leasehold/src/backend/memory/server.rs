//! The store itself, and the knobs that make it misbehave.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fmt,
    sync::{Arc, LazyLock},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::Listener;
use crate::{
    backend::{
        Abandon, Acquire, Acquired, Failure, Inspection, Line, Release, Released, Renew, Renewal,
        WakeUp,
    },
    clock::Clock,
    error::Cause,
    name::Name,
    owner::LeaseId,
    wakeup::WakeUps,
};

/// A server in this process: leases in memory, on tokio time.
///
/// Each client of it behaves like a process of its own, so a test can let several contend. It does what a
/// Redis server with our scripts does; with tokio's paused clock, thirty seconds pass in none. And it
/// misbehaves on demand, so that a test can see what its program does about a lost lock.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, LostReason, MemoryServer};
///
/// let server = MemoryServer::new();
/// let client = Client::builder().memory(&server).connect().await?;
/// let guard = client.mutex("order:42").lock().await?;
/// assert_eq!(server.names(), ["order:42"]);
/// server.expire("order:42"); // the server forgets the holder
/// assert!(guard.verify().await.is_err());
/// assert_eq!(guard.lost().await, LostReason::Replaced);
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct MemoryServer(Arc<Shared>);

struct Shared {
    store: Mutex<Store>,
    faults: Mutex<Faults>,
    /// Rings when a fault is taken back.
    healed: Notify,
    origin: Instant,
}

#[derive(Debug, Default)]
struct Faults {
    drop_replies: usize,
    fail: usize,
    delay: Duration,
    cut: bool,
}

/// What one client hears.
pub(crate) struct Ears {
    client: Arc<str>,
    wake_ups: Arc<WakeUps>,
}

impl Ears {
    pub(crate) fn new(client: &Arc<str>, wake_ups: Arc<WakeUps>) -> Ears {
        Ears {
            client: Arc::clone(client),
            wake_ups,
        }
    }
}

#[derive(Default)]
pub(crate) struct Store {
    held: BTreeMap<Name, Held>,
    lines: HashMap<Name, VecDeque<InLine>>,
    listeners: HashMap<Name, Vec<Listener>>,
    /// Lease ids that were given up, until then.
    gone: HashMap<(Arc<str>, LeaseId), Instant>,
    labels: HashMap<Arc<str>, String>,
    /// Messages of the present step, told after it.
    outbox: Vec<(Arc<Ears>, Name, WakeUp)>,
    /// How far the server's clock has been stepped ahead.
    ahead: Duration,
    /// Messages do not get through.
    cut: bool,
}

struct Held {
    client: Arc<str>,
    lease: LeaseId,
    holds: u32,
    ends: Instant,
}

struct InLine {
    client: Arc<str>,
    lease: LeaseId,
    lease_ms: u64,
}

impl Default for Shared {
    fn default() -> Self {
        Shared {
            store: Mutex::default(),
            faults: Mutex::default(),
            healed: Notify::new(),
            origin: Instant::now(),
        }
    }
}

impl MemoryServer {
    /// An empty server.
    pub fn new() -> MemoryServer {
        MemoryServer::default()
    }

    /// `memory:` is a server of its own, `memory:NAME` one for the whole process; anything else is none.
    pub(crate) fn from_url(url: &str) -> Option<MemoryServer> {
        static NAMED: LazyLock<Mutex<HashMap<String, MemoryServer>>> =
            LazyLock::new(Mutex::default);
        match url.strip_prefix("memory:")? {
            "" => Some(MemoryServer::new()),
            name => Some(NAMED.lock().entry(name.to_owned()).or_default().clone()),
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        Clock::Tokio(self.0.origin)
    }

    /// The names that are held now.
    pub fn names(&self) -> Vec<String> {
        let mut store = self.0.store.lock();
        store.expire_due();
        store.held.keys().map(ToString::to_string).collect()
    }

    /// Lets the server forget the holder of a name, as an eviction does. `false` if there is none.
    ///
    /// Nobody is told: the holder learns it from its next renewal, waiters at the end of its lease.
    pub fn expire(&self, name: &str) -> bool {
        let name = Name::new(name);
        name.is_ok_and(|name| self.0.store.lock().held.remove(&name).is_some())
    }

    /// The next `count` operations are carried out, but their answers get lost.
    pub fn drop_replies(&self, count: usize) {
        self.0.faults.lock().drop_replies = count;
    }

    /// The next `count` operations are refused before they are carried out.
    pub fn fail(&self, count: usize) {
        self.0.faults.lock().fail = count;
    }

    /// Each operation takes so long each way.
    pub fn delay(&self, each_way: Duration) {
        self.0.faults.lock().delay = each_way;
    }

    /// While on, no operation arrives and no message is delivered.
    pub fn cut(&self, on: bool) {
        self.0.faults.lock().cut = on;
        self.0.store.lock().cut = on;
        if !on {
            self.0.healed.notify_waiters();
            // What was said meanwhile is lost; who listens is told that something may have been.
            let mut store = self.0.store.lock();
            let names: Vec<Name> = store.listeners.keys().cloned().collect();
            for name in names {
                store.tell_all(&name);
            }
            let outbox = std::mem::take(&mut store.outbox);
            drop(store);
            deliver(outbox);
        }
    }

    /// The server's clock jumps ahead: leases end sooner than their holders think.
    pub fn step_clock(&self, ahead: Duration) {
        self.0.store.lock().ahead += ahead;
    }

    pub(crate) fn join(&self, client: &Arc<str>, label: String) {
        self.0.store.lock().labels.insert(Arc::clone(client), label);
    }

    pub(crate) fn part(&self, client: &Arc<str>) {
        self.0.store.lock().labels.remove(client);
    }

    pub(crate) fn unlisten(&self, client: &Arc<str>, name: &Name) {
        let mut store = self.0.store.lock();
        if let Some(listeners) = store.listeners.get_mut(name) {
            listeners.retain(|ears| ears.upgrade().is_some_and(|ears| ears.client != *client));
            if listeners.is_empty() {
                store.listeners.remove(name);
            }
        }
    }

    /// Carries out one step, with the faults of the moment.
    pub(crate) async fn carry_out<T>(
        &self,
        step: impl FnOnce(&mut Store) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        loop {
            let healed = self.0.healed.notified();
            if !self.0.faults.lock().cut {
                break;
            }
            healed.await;
        }
        let (fail, drop_reply, delay) = {
            let mut faults = self.0.faults.lock();
            let fail = faults.fail > 0;
            faults.fail -= usize::from(fail);
            let drop_reply = !fail && faults.drop_replies > 0;
            faults.drop_replies -= usize::from(drop_reply);
            (fail, drop_reply, faults.delay)
        };
        if fail {
            return Err(Failure::NotSent(fault("refused by MemoryServer::fail")));
        }
        if delay.is_zero() {
            // A real server is at least one poll away: code that relies on an answer at once is wrong.
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(delay).await;
        }
        let (answer, outbox) = {
            let mut store = self.0.store.lock();
            store.expire_due();
            let answer = step(&mut store);
            (answer, std::mem::take(&mut store.outbox))
        };
        deliver(outbox);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if drop_reply {
            let cause = fault("the answer was dropped by MemoryServer::drop_replies");
            return Err(Failure::Ambiguous(cause));
        }
        answer
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Fault(&'static str);

fn fault(message: &'static str) -> Cause {
    Arc::new(Fault(message))
}

fn deliver(outbox: Vec<(Arc<Ears>, Name, WakeUp)>) {
    for (ears, name, wake_up) in outbox {
        ears.wake_ups.tell(&name, wake_up);
    }
}

impl Store {
    fn now(&self) -> Instant {
        Instant::now() + self.ahead
    }

    fn expire_due(&mut self) {
        let now = self.now();
        self.held.retain(|_, held| held.ends > now);
        self.gone.retain(|_, until| *until > now);
    }

    fn ours(&mut self, client: &Arc<str>, name: &Name, lease: LeaseId) -> Option<&mut Held> {
        self.held
            .get_mut(name)
            .filter(|held| held.client == *client && held.lease == lease)
    }

    fn hold(&mut self, client: &Arc<str>, name: &Name, lease: LeaseId, lease_ms: u64) {
        let held = Held {
            client: Arc::clone(client),
            lease,
            holds: 1,
            ends: self.now() + Duration::from_millis(lease_ms),
        };
        self.held.insert(name.clone(), held);
    }

    fn line_up(&mut self, client: &Arc<str>, name: &Name, lease: LeaseId, line: Line) {
        let waiting = self.lines.entry(name.clone()).or_default();
        if !waiting
            .iter()
            .any(|w| w.client == *client && w.lease == lease)
        {
            waiting.push_back(InLine {
                client: Arc::clone(client),
                lease,
                lease_ms: line.lease_ms,
            });
        }
    }

    fn leave_line(&mut self, client: &Arc<str>, name: &Name, lease: LeaseId) {
        if let Some(waiting) = self.lines.get_mut(name) {
            waiting.retain(|w| w.client != *client || w.lease != lease);
            if waiting.is_empty() {
                self.lines.remove(name);
            }
        }
    }

    fn ears(&self, name: &Name) -> Vec<Arc<Ears>> {
        let listeners = self.listeners.get(name);
        listeners.map_or_else(Vec::new, |all| {
            all.iter().filter_map(Listener::upgrade).collect()
        })
    }

    fn tell_all(&mut self, name: &Name) {
        if self.cut {
            return;
        }
        for ears in self.ears(name) {
            self.outbox.push((ears, name.clone(), WakeUp::TryAgain));
        }
    }

    pub(crate) fn acquire(&mut self, client: &Arc<str>, step: &Acquire) -> Acquired {
        let ends = self.now() + Duration::from_millis(step.lease_ms);
        if let Some(held) = self.ours(client, &step.name, step.lease) {
            held.ends = ends;
            return Acquired::Granted;
        }
        if let Some(held) = self.held.get(&step.name) {
            let ttl = Some(held.ends - self.now());
            if let Some(line) = step.line {
                self.line_up(client, &step.name, step.lease, line);
            }
            return Acquired::Held { ttl };
        }
        if self.gone.contains_key(&(Arc::clone(client), step.lease)) {
            return Acquired::Abandoned;
        }
        self.hold(client, &step.name, step.lease, step.lease_ms);
        self.leave_line(client, &step.name, step.lease);
        Acquired::Granted
    }

    pub(crate) fn release(&mut self, client: &Arc<str>, step: &Release) -> Released {
        let name = &step.name;
        if let Some(ms) = step.tombstone_ms {
            let until = self.now() + Duration::from_millis(ms);
            self.gone.insert((Arc::clone(client), step.lease), until);
        }
        if self.ours(client, name, step.lease).is_none() {
            return match step.next {
                Some(next) if self.ours(client, name, next.lease).is_some() => Released::Kept,
                _ => Released::NotOurs,
            };
        }
        let others = self
            .ears(name)
            .len()
            .saturating_sub(usize::from(step.listening));
        if let Some(next) = step.next
            && next.keep
            && others == 0
            && !self.lines.contains_key(name)
        {
            self.hold(client, name, next.lease, next.lease_ms);
            return Released::Kept;
        }
        // The next one in line who can hear us gets it.
        self.held.remove(name);
        let mut granted = None;
        while let Some(first) = self.lines.get_mut(name).and_then(VecDeque::pop_front) {
            let ears = self.ears(name);
            let Some(ears) = ears.into_iter().find(|ears| ears.client == first.client) else {
                continue;
            };
            self.hold(&first.client, name, first.lease, first.lease_ms);
            if !self.cut {
                let wake_up = WakeUp::Granted(first.lease);
                self.outbox.push((ears, name.clone(), wake_up));
            }
            granted = Some(Duration::from_millis(first.lease_ms));
            break;
        }
        if self.lines.get(name).is_some_and(VecDeque::is_empty) {
            self.lines.remove(name);
        }
        if (granted.is_some() || others > 0)
            && let Some(next) = step.next
            && let Some(line) = next.line
        {
            self.line_up(client, name, next.lease, line);
        }
        if let Some(lease) = granted {
            return Released::Granted { lease };
        }
        self.tell_all(name);
        Released::Freed {
            others: others as u64,
        }
    }

    pub(crate) fn abandon(&mut self, client: &Arc<str>, step: &Abandon) {
        let until = self.now() + Duration::from_millis(step.tombstone_ms);
        self.gone.insert((Arc::clone(client), step.lease), until);
        self.leave_line(client, &step.name, step.lease);
        if self.ours(client, &step.name, step.lease).is_some() {
            self.held.remove(&step.name);
            self.tell_all(&step.name);
        }
    }

    pub(crate) fn renew(&mut self, client: &Arc<str>, renew: &Renew<'_>) -> Renewal {
        let ends = self.now() + Duration::from_millis(renew.lease_ms);
        match self.ours(client, renew.name, renew.lease) {
            Some(held) => {
                held.ends = ends;
                Renewal::Extended
            }
            None => Renewal::Lost,
        }
    }

    pub(crate) fn count(
        &mut self,
        client: &Arc<str>,
        name: &Name,
        lease: LeaseId,
        holds: u32,
    ) -> bool {
        let ours = self.ours(client, name, lease);
        ours.map(|held| held.holds = holds).is_some()
    }

    pub(crate) fn inspect(&self, name: &Name) -> Inspection {
        let held = self.held.get(name);
        Inspection {
            owners: held
                .map(|held| (format!("{}:{}", held.client, held.lease), held.holds.into()))
                .into_iter()
                .collect(),
            ttl: held.map(|held| held.ends - self.now()),
            listeners: self.ears(name).len() as u64,
            label: held.and_then(|held| self.labels.get(&held.client).cloned()),
        }
    }

    pub(crate) fn force_unlock(&mut self, name: &Name) -> bool {
        let freed = self.held.remove(name).is_some();
        if freed {
            self.tell_all(name);
        }
        freed
    }

    pub(crate) fn listen(&mut self, client: &Arc<str>, name: &Name, ears: &Arc<Ears>) {
        let listeners = self.listeners.entry(name.clone()).or_default();
        listeners.retain(|ears| ears.upgrade().is_some_and(|ears| ears.client != *client));
        listeners.push(Arc::downgrade(ears));
    }
}

impl fmt::Debug for MemoryServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryServer")
            .field("names", &self.names())
            .finish_non_exhaustive()
    }
}
