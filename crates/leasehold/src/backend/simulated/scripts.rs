//! Worlds on the real scripts: the requests of a client are calls of scripts, which the simulation runs on keys of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redis::Value;

use crate::{
    backend::{
        WakeUp,
        simulated::{
            cluster::SlotOwners,
            hint::{Hears, Hint, at_any_node},
            keys::{KeyspaceInspector, ScriptServer},
            request::Network,
            snapshot::Snapshot,
        },
    },
    kind::LockKind,
    name::LockId,
};

/// A client that listens, and by channel the locks that it hears of.
struct Listener {
    hears: Arc<dyn Hears>,
    ids: BTreeMap<String, Vec<LockId>>,
}

/// The keys of a world, and what the simulation sees of them.
type MeetsAnother = Arc<dyn Fn() + Send + Sync>;

pub(crate) struct Scripts {
    keys: Arc<Mutex<dyn ScriptServer>>,
    listeners: Mutex<BTreeMap<Arc<str>, Listener>>,
    pub(crate) known: Mutex<BTreeSet<LockId>>,
    /// Those that have ever connected, and what each does when it meets another server in this one's place.
    clients: Mutex<BTreeMap<Arc<str>, MeetsAnother>>,
    inspector: OnceLock<Box<dyn KeyspaceInspector>>,
    /// The last snapshot, and until when it is true.
    seen: Mutex<Option<(Duration, Snapshot)>>,
    now: Mutex<Duration>,
    numbers: Mutex<BTreeMap<LockId, i64>>,
    cluster: Option<SlotOwners>,
    /// Of a majority.
    has_one_vote: bool,
    /// Primaries whose places others have taken, and that have not heard of it.
    deposed: Mutex<BTreeMap<u8, Deposed>>,
    /// The request that is carried out now lay at the one server's predecessor, which goes on.
    is_of_before: AtomicBool,
    /// To each node of the cluster, or to the one server.
    ways: Vec<Arc<dyn Network>>,
    /// Ends of subscriptions that are still to be told.
    ends: Mutex<Vec<Hint>>,
}

/// A primary that goes on answering, though another has its place.
struct Deposed {
    keys: Box<dyn ScriptServer>,
    /// Who has its place.
    by: u8,
    /// The clients that its successor has answered since, with the slot that they asked about: they know of it.
    aware: BTreeSet<(Arc<str>, u16)>,
}

impl Scripts {
    pub(crate) fn new(keys: Arc<Mutex<dyn ScriptServer>>, network: Arc<dyn Network>) -> Scripts {
        Scripts {
            keys,
            listeners: Mutex::default(),
            known: Mutex::default(),
            clients: Mutex::default(),
            inspector: OnceLock::new(),
            seen: Mutex::default(),
            now: Mutex::default(),
            numbers: Mutex::default(),
            cluster: None,
            has_one_vote: false,
            deposed: Mutex::default(),
            is_of_before: AtomicBool::new(false),
            ways: vec![network],
            ends: Mutex::default(),
        }
    }

    /// The keys of a cluster, to each of whose nodes there is a way.
    pub(crate) fn of_cluster(
        keys: Arc<Mutex<dyn ScriptServer>>,
        ways: Vec<Arc<dyn Network>>,
        primaries: u8,
    ) -> Scripts {
        let network = Arc::clone(&ways[0]);
        let nodes = u8::try_from(ways.len()).expect("a few nodes");
        Scripts {
            cluster: Some(SlotOwners::new(nodes, primaries)),
            ways,
            ..Scripts::new(keys, network)
        }
    }

    /// The keys of one of several servers, of which a majority decides.
    pub(crate) fn of_voter(
        keys: Arc<Mutex<dyn ScriptServer>>,
        network: Arc<dyn Network>,
    ) -> Scripts {
        Scripts {
            has_one_vote: true,
            ..Scripts::new(keys, network)
        }
    }

    pub(crate) fn has_one_vote(&self) -> bool {
        self.has_one_vote
    }

    pub(crate) fn cluster(&self) -> Option<&SlotOwners> {
        self.cluster.as_ref()
    }

    /// How many nodes there are.
    pub(crate) fn nodes(&self) -> usize {
        self.ways.len()
    }

    pub(crate) fn way_to(&self, node: u8) -> Arc<dyn Network> {
        Arc::clone(&self.ways[usize::from(node)])
    }

    /// The answer of a node to `CLUSTER SLOTS`.
    pub(crate) fn slots(&self, node: u8) -> Value {
        self.cluster.as_ref().expect("a cluster's").slots(node)
    }

    /// See [`SlotOwners::refusal`].
    pub(crate) fn refusal(&self, node: u8, slot: u16, asks: bool) -> Option<String> {
        self.cluster.as_ref()?.refusal(node, slot, asks)
    }

    /// Has a script run by a node, if it has the slot, or if it believes so and `is_answered_late`.
    pub(crate) fn call_at(
        &self,
        (client, node): (&Arc<str>, u8),
        (slot, asks): (u16, bool),
        is_answered_late: bool,
        (script, keys, args): (&'static str, &[Vec<u8>], &[Vec<u8>]),
    ) -> Result<Value, String> {
        let refusal = self.refusal(node, slot, asks);
        let mut deposed = self.deposed.lock();
        if self.is_of_before.load(Ordering::Relaxed)
            && let Some(it) = deposed.get_mut(&node)
        {
            it.keys.set_clock(*self.now.lock());
            return it.keys.call(script, keys, args);
        }
        if let Some(refusal) = refusal {
            let believes = self.cluster().is_some_and(|it| it.believes(node, slot));
            // A client that knows of no successor believes what it is told, as the docs say: that is no breach, and not played.
            let answers = deposed
                .get_mut(&node)
                .filter(|it| it.aware.contains(&(Arc::clone(client), slot)));
            return match answers {
                Some(it) if believes && is_answered_late => {
                    it.keys.set_clock(*self.now.lock());
                    it.keys.call(script, keys, args)
                }
                _ => Err(refusal),
            };
        }
        for it in deposed.values_mut().filter(|it| it.by == node) {
            it.aware.insert((Arc::clone(client), slot));
        }
        drop(deposed);
        self.call(script, keys, args)
    }

    /// Another node takes the place of this one, which has all that it had, and does not hear of it yet.
    pub(crate) fn deposes(&self, node: u8, by: u8) {
        let keys = self.keys.lock().copied();
        let aware = BTreeSet::new();
        self.deposed
            .lock()
            .insert(node, Deposed { keys, by, aware });
    }

    /// The answer to `WAIT`, or to `INFO replication`: of a server with one replica, which has what it has, or lags.
    pub(crate) fn replication(&self, waits: bool) -> Value {
        if !waits {
            let info = "role:master\r\nconnected_slaves:1\r\nslave0:ip=127.0.0.1,port=1,state=online,offset=1,lag=0\r\n";
            return Value::BulkString(info.into());
        }
        // The server before has no replica any more.
        let is_of_before = self.is_of_before.load(Ordering::Relaxed);
        let replicas = if is_of_before {
            0
        } else {
            self.keys.lock().acknowledge()
        };
        Value::Int(replicas.into())
    }

    /// Carries a request out at the predecessor of the one server.
    pub(crate) fn as_before<T>(&self, carry_out: impl FnOnce() -> T) -> T {
        self.is_of_before.store(true, Ordering::Relaxed);
        let done = carry_out();
        self.is_of_before.store(false, Ordering::Relaxed);
        done
    }

    /// A node hears of all that has changed.
    pub(crate) fn hears(&self, node: u8) {
        self.deposed.lock().remove(&node);
        if let Some(cluster) = self.cluster() {
            cluster.hears(node);
        }
    }

    /// Another node has these slots from now on. Each client that listens for names in them hears that this has ended.
    pub(crate) fn move_slots(&self, is_moved: impl Fn(&LockId) -> bool) {
        self.changed();
        let mut ended = Vec::new();
        for (listener, heard) in self.listeners.lock().iter_mut() {
            for (channel, ids) in &mut heard.ids {
                for id in ids.extract_if(.., |id| is_moved(id)) {
                    self.keys.lock().unsubscribe(listener, channel);
                    let end = (Arc::clone(listener), id);
                    // A name has several channels, and a client is told once that it is not heard for it.
                    if !ended.iter().any(|(it, _)| *it == end) {
                        ended.push((end, Arc::clone(&heard.hears)));
                    }
                }
            }
            heard.ids.retain(|_, ids| !ids.is_empty());
        }
        for ((listener, id), hears) in ended {
            self.tell_end(&listener, hears, &id, None);
        }
    }

    pub(crate) fn tell_end(
        &self,
        listener: &str,
        hears: Arc<dyn Hears>,
        id: &LockId,
        refusal: Option<String>,
    ) {
        let hint = Hint::ended(listener, hears, id.clone(), refusal);
        self.ends.lock().push(hint);
    }

    /// The wake-ups of a client that listens again after a gap.
    pub(crate) fn after_gap(&self, listener: &str) -> Vec<Hint> {
        let listeners = self.listeners.lock();
        let Some(heard) = listeners.get(listener) else {
            return Vec::new();
        };
        let ids: BTreeSet<&LockId> = heard.ids.values().flatten().collect();
        let again = ids.into_iter().map(|id| {
            let sink = Arc::clone(heard.hears.sink());
            Hint::new(listener, sink, id.clone(), WakeUp::TryAgain)
        });
        again.collect()
    }

    /// A client's requests are about this lock.
    pub(crate) fn knows(&self, id: &LockId) {
        let mut known = self.known.lock();
        let id = id.clone().on_server();
        if !known.contains(&id) {
            known.insert(id);
        }
    }

    pub(crate) fn clients(&self) -> Vec<Arc<str>> {
        self.clients.lock().keys().cloned().collect()
    }

    pub(crate) fn joins(
        &self,
        client: &Arc<str>,
        meets_another: impl Fn() + Send + Sync + 'static,
    ) {
        self.clients
            .lock()
            .insert(Arc::clone(client), Arc::new(meets_another));
    }

    /// The client is connected again, and finds that the server has restarted without its data, or that another has its place.
    pub(crate) fn tell_restart(&self, client: &str) {
        let meets_another = self.clients.lock().get(client).cloned();
        if let Some(meets_another) = meets_another {
            meets_another();
        }
    }

    pub(crate) fn inspect_with(&self, inspector: impl FnOnce() -> Box<dyn KeyspaceInspector>) {
        self.inspector.get_or_init(inspector);
    }

    pub(crate) fn call(
        &self,
        script: &'static str,
        keys: &[Vec<u8>],
        args: &[Vec<u8>],
    ) -> Result<Value, String> {
        self.changed();
        self.peek(script, keys, args)
    }

    /// Runs a script that changes nothing.
    pub(crate) fn peek(
        &self,
        script: &'static str,
        keys: &[Vec<u8>],
        args: &[Vec<u8>],
    ) -> Result<Value, String> {
        self.keys.lock().call(script, keys, args)
    }

    /// The last snapshot is not true any more.
    pub(crate) fn changed(&self) {
        *self.seen.lock() = None;
    }

    pub(crate) fn set_clock(&self, now: Duration) {
        *self.now.lock() = now;
        self.keys.lock().set_clock(now);
        self.seen.lock().take_if(|(until, _)| *until < now);
    }

    pub(crate) fn subscribe(
        &self,
        (client, id): (&Arc<str>, &LockId),
        channels: &[String],
        hears: &Arc<dyn Hears>,
    ) {
        self.changed();
        let mut listeners = self.listeners.lock();
        let listener = listeners
            .entry(Arc::clone(client))
            .or_insert_with(|| Listener {
                hears: Arc::clone(hears),
                ids: BTreeMap::new(),
            });
        // A node that was left, and is used again, has other connections than before.
        listener.hears = Arc::clone(hears);
        for channel in channels {
            let ids = listener.ids.entry(channel.clone()).or_default();
            if !ids.contains(id) {
                ids.push(id.clone());
            }
            self.keys.lock().subscribe(client, channel);
        }
    }

    pub(crate) fn unsubscribe(&self, client: &str, id: &LockId, channels: &[String]) {
        self.changed();
        let mut listeners = self.listeners.lock();
        let Some(listener) = listeners.get_mut(client) else {
            return;
        };
        for channel in channels {
            if let Some(ids) = listener.ids.get_mut(channel) {
                ids.retain(|heard| heard != id);
                // Kinds of one name share channels, and a channel is left when the last of them stops waiting (bug 229).
                if ids.is_empty() {
                    listener.ids.remove(channel);
                    self.keys.lock().unsubscribe(client, channel);
                }
            }
        }
    }

    /// A client closes this connection, and no later one.
    pub(crate) fn leaves(&self, client: &str, hears: &Arc<dyn Hears>) {
        let listeners = self.listeners.lock();
        let is_its = (listeners.get(client)).is_some_and(|it| Arc::ptr_eq(&it.hears, hears));
        drop(listeners);
        if is_its {
            self.disconnect(client);
        }
    }

    pub(crate) fn disconnect(&self, client: &str) {
        self.changed();
        self.keys.lock().disconnect(client);
        if let Some(listener) = self.listeners.lock().remove(client) {
            listener.hears.cut();
        }
    }

    /// The wake-ups of what was published, as clients read it.
    pub(crate) fn take_hints(&self) -> Vec<Hint> {
        let (messages, listeners) = (self.keys.lock().take_messages(), self.listeners.lock());
        let mut hints = std::mem::take(&mut *self.ends.lock());
        for message in messages {
            let (Some(listener), Some(inspector)) =
                (listeners.get(&message.client), self.inspector())
            else {
                continue;
            };
            for id in listener.ids.get(&message.channel).into_iter().flatten() {
                if let Some(wake_up) = inspector.wake_up(id, &message.channel, &message.payload) {
                    let sink = Arc::clone(listener.hears.sink());
                    hints.push(Hint::new(&message.client, sink, id.clone(), wake_up));
                }
            }
        }
        hints
    }

    fn listeners(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let listeners = self.listeners.lock();
        let all = listeners.iter().flat_map(|(client, listener)| {
            let ids: BTreeSet<&LockId> = listener.ids.values().flatten().collect();
            let ids = ids.into_iter();
            ids.map(|id| (id.name.shared(), at_any_node(client).into()))
        });
        let mut all: Vec<_> = all.collect();
        all.sort();
        all
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        if let Some((_, seen)) = &*self.seen.lock() {
            return seen.clone();
        }
        let mut seen = Snapshot::default();
        // A server counts milliseconds.
        let now = self.now.lock().as_millis();
        let now = Duration::from_millis(u64::try_from(now).unwrap_or(u64::MAX));
        if let Some(inspector) = self.inspector.get() {
            for id in self.known.lock().iter() {
                inspector.inspect(id, now, &mut seen);
            }
        }
        seen.listeners = self.listeners();
        let mut keys = self.keys.lock();
        let is_tombstone = |key: &Vec<u8>| key.windows(6).any(|part| part == b":gone:");
        seen.tombstones = keys.keys().iter().filter(|key| is_tombstone(key)).count();
        // Until the next end it stays as it is, unless a script changes it: invariants look at it after each step.
        let ends = seen.held.iter().map(|held| held.ends);
        let until = ends.chain(keys.next_end()).min().unwrap_or(Duration::MAX);
        drop(keys);
        *self.seen.lock() = Some((until, seen.clone()));
        seen
    }

    /// Permits, or a count, are set from outside, and again when the server has lost its data.
    pub(crate) fn set_number(&self, id: &LockId, number: i64) {
        if id.kind != LockKind::Latch {
            self.numbers.lock().insert(id.clone(), number);
        }
        self.write_number(id, number);
    }

    fn write_number(&self, id: &LockId, number: i64) {
        let (name, number) = (id.name.wire().into(), number.to_string().into_bytes());
        let set = "return redis.call('SET', KEYS[1], ARGV[1])";
        let _ = self.call(set, &[name], &[number]);
    }

    pub(crate) fn number(&self, id: &LockId) -> i64 {
        let name = id.name.wire().into();
        let get = "return tonumber(redis.call('GET', KEYS[1]) or '0')";
        match self.peek(get, &[name], &[]) {
            Ok(Value::Int(number)) => number,
            _ => 0,
        }
    }

    /// A client of another library takes a name for so many milliseconds, or (0) gives it back.
    /// Whether it has it then, or had it.
    pub(crate) fn visit(&self, id: &LockId, lease: Option<Duration>) -> bool {
        // As other libraries take and give back a plain lock: without a word to those that wait.
        let visit = "if ARGV[1] ~= '0' then return redis.call('SET', KEYS[1], 'visitor', 'NX', 'PX', ARGV[1]) \
             elseif redis.call('GET', KEYS[1]) == 'visitor' then return redis.call('DEL', KEYS[1]) end";
        let ms = lease.map_or(0, |lease| lease.as_millis().max(1));
        let done = self.call(visit, &[id.name.wire().into()], &[ms.to_string().into()]);
        done.is_ok_and(|done| done != Value::Nil)
    }

    pub(crate) fn forget(&self) {
        self.changed();
        self.keys.lock().forget();
        let numbers = self.numbers.lock().clone();
        for (id, number) in numbers {
            // A semaphore has permits again at once, as where a client sets them with each request.
            self.write_number(&id, number);
        }
    }

    pub(crate) fn inspector(&self) -> Option<&dyn KeyspaceInspector> {
        self.inspector.get().map(|inspector| &**inspector)
    }
}

impl fmt::Debug for Scripts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripts").finish_non_exhaustive()
    }
}
