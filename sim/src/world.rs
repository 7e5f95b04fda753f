//! A world: clients, a server, and the messages between them. The scheduler takes the next event, lets it
//! happen, and has the promises checked.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    mem,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use fastrand::Rng;
use leasehold::{
    LockKind, Owner, Shutdown,
    sim::{self, SimulatedServer},
};
use parking_lot::Mutex;

use crate::{
    config::{Config, MS, SECOND, is_connection},
    connection,
    dice::{Dice, Key, Point, mix},
    invariants::{self, Watch, release},
    keys::Keyspace,
    panics,
    process::{Life, Process},
    servers::Server,
    shared::{Breach, LETTERS, NAMES, Shared, World as SharedWorld, number_of},
    states::Seen,
    tasks::{self, Task},
    wire::{Asked, Message, Outbox, Wire},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    Message(u64),
    Drive(u8),
    Thaw(u8),
    Freeze(u8, u64),
    /// A connection of a client breaks, to this server.
    Cut(u8, u8, bool),
    Listen(u8, u8, u32),
    Die(u8),
    Born(u8),
    Pause(u8, u64),
    Restart(u8, bool),
    /// A client is connected to a server that has restarted without its data.
    Epoch(u8, u8),
    /// A server is dead for good.
    Gone(u8),
    /// The slot of a name moves to a node of the cluster.
    Move(u8, u8),
    /// It begins to be moved, and all of its keys are there already, or some; until then.
    Open(u8, u8, bool, u64),
    /// A node of a cluster hears who has which slot.
    Hears(u8),
    /// A node stands still for so long, and others take its slots.
    Replaced(u8, u64),
    /// A replica takes the place of the one server.
    Succeeded,
    /// The replica lags from now on, or has all again.
    Lags(bool),
    /// The server whose place another has taken answers this request.
    Before(u64),
    /// A grant that it has told by message is read.
    GrantBefore(u64),
    /// A client of another library takes a name for so long.
    Visit(u8, u64),
    /// It gives it back.
    Leave(u8),
    /// A lease of a client is to be free by now: client, name, lease id.
    Free(u8, u8, u64),
    Heal,
    Look,
}

pub struct World {
    pub config: Config,
    pub now: u64,
    pub shared: SharedWorld,
    pub servers: Vec<Server>,
    /// Until when each server, or node of a cluster, stands still.
    pub paused: Vec<u64>,
    /// The slots of which names are being moved, and to which node.
    pub moving: BTreeMap<u8, u8>,
    /// Ends of subscriptions that a node tells when it goes on: which, when, and to whom.
    pub ends: Vec<(u8, u64, sim::Hint)>,
    /// Of a world on scripts.
    pub keys: Arc<Mutex<Keyspace>>,
    pub outbox: Arc<Outbox>,
    pub processes: Vec<Process>,
    pub agenda: BinaryHeap<Reverse<(u64, u64, Event)>>,
    pub messages: BTreeMap<u64, Message>,
    /// Requests that lie at a server whose place another has taken.
    pub left_before: BTreeMap<u64, Arc<Asked>>,
    /// Its grants that lie unread in the sockets of clients: which client's, and from which server.
    pub unread_before: BTreeMap<u64, (u8, u8, sim::Hint)>,
    /// Which listen requests of a client are to be sent again after a gap, by client, server, name, and the task that alone is told.
    pub wanted: BTreeMap<(u8, u8, (u8, u64)), Arc<Asked>>,
    /// Since when and until when the server has no memory.
    pub full_from: u64,
    pub full_until: u64,
    pub watch: Watch,
    pub healed_at: Option<u64>,
    pub steps: u64,
    pub seen: Seen,
    next: u64,
    pub over: bool,
}

/// The outcome of one seed.
#[derive(Debug)]
pub struct Outcome {
    pub seed: u64,
    pub breach: Option<Breach>,
    pub steps: u64,
    /// Virtual time.
    pub lasted: u64,
    /// Decisions that had an effect.
    pub used: Vec<Key>,
    pub trace: Vec<String>,
    pub coverage: BTreeMap<&'static str, u64>,
    pub seen: Seen,
}

/// More events than this, and something goes round in circles: most worlds have a thousand.
const MOST_STEPS: u64 = 50_000;
/// Waiters that look by themselves make some 60 events a second, for as long as they wait.
const MOST_STEPS_SPINNING: u64 = 20 * MOST_STEPS;

/// Lease ids tell when they were made, by which a script knows those of this library.
const FIRST_LEASE: u64 = 20_000_000_000_000;

/// So many times in a row a client may have something to do at once.
const MOST_TURNS: u32 = 2_000;

/// Runs one seed, without the decisions in `calm`.
pub fn run(seed: u64, calm: &BTreeSet<Key>, traced: bool, asked: &invariants::Asked) -> Outcome {
    let _said = panics::OfTheSimulation(seed);
    if is_connection() {
        return connection::run(seed, calm, traced, asked);
    }
    let config = Config::new(seed);
    let mut world = World::new(config, calm, traced, asked);
    world.run();
    world.finish()
}

impl World {
    fn new(config: Config, calm: &BTreeSet<Key>, traced: bool, asked: &invariants::Asked) -> World {
        sim::enter(FIRST_LEASE);
        panics::forget();
        let outbox = Arc::new(Outbox::default());
        let keys = Arc::new(Mutex::new(Keyspace::default()));
        if config.lags {
            keys.lock().keep_past();
        }
        let way = |node| Arc::new(Wire::to(&outbox, node)) as Arc<dyn sim::Network>;
        let server = if config.nodes > 0 {
            let ways = (0..config.nodes).map(way).collect();
            SimulatedServer::cluster(Arc::clone(&keys) as _, ways, config.primaries)
        } else {
            SimulatedServer::alone(Arc::clone(&keys) as _, way(0))
        };
        if matches!(config.kind, LockKind::LeasedSemaphore | LockKind::Semaphore) {
            for name in NAMES {
                server.set_permits(config.kind, name, config.permits.into());
            }
        }
        let servers = match config.servers {
            0 | 1 => vec![Server::new(server, 1_000_000)],
            all => (0..all)
                .map(|at| Server::of_quorum(&config, &outbox, at))
                .collect(),
        };
        let dice = Dice::new(config.seed, calm);
        let mut shared = Shared::new(config.clone(), dice, traced);
        shared.say(|| config.in_words());
        World {
            now: 0,
            shared: Arc::new(Mutex::new(shared)),
            paused: vec![0; servers.len().max(config.nodes.into())],
            servers,
            moving: BTreeMap::new(),
            ends: Vec::new(),
            keys,
            outbox,
            processes: Vec::new(),
            agenda: BinaryHeap::new(),
            messages: BTreeMap::new(),
            left_before: BTreeMap::new(),
            unread_before: BTreeMap::new(),
            wanted: BTreeMap::new(),
            full_from: 0,
            full_until: 0,
            watch: Watch::new(&config, asked),
            healed_at: None,
            steps: 0,
            seen: Seen::default(),
            next: 0,
            over: false,
            config,
        }
    }

    /// The hold for one lease of one client.
    pub fn holder(&self, name: u8, letter: &str, lease: u64) -> Option<sim::Held> {
        if self.is_quorum() {
            return self.majority(name, letter, lease, false);
        }
        let out = (name, number_of(&LETTERS, letter), lease);
        let held = self.server().holders(NAMES[usize::from(name)]).into_iter();
        let mut held = held.filter(|held| *held.client == *letter && held.lease == lease);
        held.next()
            .or_else(|| self.watch.out.get(&out).map(|(held, _)| held.clone()))
    }

    pub fn at(&mut self, time: u64, event: Event) {
        self.next += 1;
        self.agenda
            .push(Reverse((time.max(self.now), self.next, event)));
    }

    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn run(&mut self) {
        self.plan();
        while let Some(Reverse((time, _, event))) = self.agenda.pop() {
            if !self.is_current(time, event) {
                continue;
            }
            self.steps += 1;
            self.set_time(time);
            self.happen(event);
            self.check();
            if self.over || !self.shared.lock().breaches.is_empty() {
                return;
            }
            let most = match self.config.kind {
                LockKind::SpinMutex => MOST_STEPS_SPINNING,
                // A server that is away is told again and again what each failed round has left (QB5).
                _ if self.is_quorum() => MOST_STEPS_SPINNING,
                _ if self.config.several > 0.0 => 2 * MOST_STEPS, // each part asks by itself
                _ => MOST_STEPS,
            };
            if self.steps > most {
                if self.watch.asks("L2") {
                    let what = format!("{most} events, and no end");
                    self.shared.lock().breach("L2", "endless", what);
                }
                return;
            }
        }
    }

    fn is_current(&self, time: u64, event: Event) -> bool {
        match event {
            Event::Drive(client) => self.processes[usize::from(client)].drive_at == time,
            Event::Message(id) => self.messages.get(&id).is_some_and(|m| m.due == time),
            _ => true,
        }
    }

    fn set_time(&mut self, time: u64) {
        self.now = time;
        self.shared.lock().now = time;
        self.outbox.now.store(time, Ordering::Relaxed);
        for server in &self.servers {
            server.set_clock(time);
        }
        for process in &self.processes {
            process.set_clock(time);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Message(id) => self.arrive(id),
            Event::Drive(client) => self.drive(client),
            Event::Thaw(client) => self.thaw(client),
            Event::Freeze(client, time) => self.freeze(client, time, "for no reason"),
            Event::Cut(client, server, subscription) => self.cut(client, server, subscription),
            Event::Listen(client, server, generation) => {
                self.listen_again(client, server, generation);
            }
            Event::Die(client) => self.die(client),
            Event::Born(client) => self.born(client),
            Event::Pause(server, time) => self.pause(server, time),
            Event::Restart(server, with_data) => self.restart(server, with_data),
            Event::Epoch(client, server) => self.epoch(client, server),
            Event::Gone(server) => self.gone(server),
            Event::Move(name, to) => self.moves(name, to),
            Event::Open(name, to, is_there, ends) => self.opens(name, to, is_there, ends),
            Event::Hears(node) => self.node_hears_or_stands(node),
            Event::Replaced(node, time) => self.replaced(node, time),
            Event::Succeeded => self.succeeded(),
            Event::Lags(lags) => self.replica_lags(lags),
            Event::Before(number) => self.answered_before(number),
            Event::GrantBefore(number) => self.granted_before(number),
            Event::Visit(name, time) => self.visit(name, time),
            Event::Leave(name) => self.visitor_leaves(name),
            Event::Free(client, name, lease) => release::is_free(self, client, name, lease),
            Event::Heal => self.heal(),
            Event::Look => self.look(),
        }
    }

    /// Everything that is planned before the world begins.
    fn plan(&mut self) {
        let config = self.config.clone();
        let mut r = Rng::with_seed(mix(config.seed, 1));
        for me in 0..config.clients {
            let rate = match r.u32(0..4) {
                0 => 990_000,
                1 => 1_010_000,
                2 => 1_000_000,
                _ => r.u64(990_000..=1_010_000),
            };
            // Servers have clocks of their own there: any two clocks are within 1 %.
            let rate = if config.servers > 1 {
                1_000_000 - (1_000_000 - rate.min(1_000_000)) / 2
                    + rate.saturating_sub(1_000_000) / 2
            } else {
                rate
            };
            let lanes = config.servers.max(config.nodes);
            self.processes.push(Process::new(me, rate, lanes));
            let born = if me > 0 && r.f64() < 0.2 {
                r.u64(0..config.chaos / 2)
            } else {
                0
            };
            self.at(born, Event::Born(me));
        }
        let faults = &config.faults;
        let planned = [
            (faults.freezes, 0),
            (faults.cuts, 1),
            (faults.deaths, 2),
            (faults.pauses, 3),
            (faults.restarts, 4),
            (faults.gone, 6),
        ];
        for (count, kind) in planned {
            for _ in 0..count {
                let chance = self.shared.lock().dice.chance(Point::Plan, kind, 1.0);
                let Some(mut r) = chance else { continue };
                // Early: that is where the operations are.
                let time = r.u64(0..config.lease * 3 + 100 * MS).min(config.chaos);
                let client = r.u8(0..config.clients);
                let span = config.span(&mut r);
                let server = match config.servers {
                    0 | 1 if config.nodes > 0 => r.u8(0..config.nodes),
                    0 | 1 => 0,
                    all => r.u8(0..all),
                };
                let event = match kind {
                    0 => Event::Freeze(client, span),
                    1 => Event::Cut(client, server, r.bool()),
                    2 => Event::Die(client),
                    3 => Event::Pause(server, span),
                    6 => Event::Gone(server),
                    _ => Event::Restart(server, r.bool()),
                };
                let time = match kind {
                    3 | 4 if config.servers > 1 && r.bool() => r.u64(0..config.chaos),
                    _ => time,
                };
                self.at(time, event);
            }
        }
        if config.trouble {
            let mut r = Rng::with_seed(mix(config.seed, 0x0F01_1113));
            self.full_from = r.u64(0..config.lease * 3 + 100 * MS).min(config.chaos);
            self.full_until = self.full_from + config.span(&mut r);
        }
        if config.kind == LockKind::PlainMutex {
            // Of their own randomness, so that the rest of a world is as it is without them.
            let mut r = Rng::with_seed(mix(config.seed, 0x0051_7042));
            for _ in 0..r.u32(0..=4) {
                let time = r.u64(0..config.lease * 3 + 100 * MS).min(config.chaos);
                let visit = Event::Visit(r.u8(0..config.names), config.span(&mut r));
                self.at(time, visit);
            }
        }
        self.plan_moves();
        self.at(config.chaos, Event::Heal);
    }

    /// A client starts: connects, and its tasks begin.
    fn born(&mut self, me: u8) {
        let config = self.config.clone();
        let process = &mut self.processes[usize::from(me)];
        let client = process.connect(&self.servers, &config, self.now);
        let owner = Owner::new();
        for number in 0..config.tasks {
            let task = Task {
                world: Arc::clone(&self.shared),
                client: client.clone(),
                me,
                number,
                owner: owner.clone(),
                healed: Arc::clone(&process.healed),
                config: config.clone(),
            };
            let mut shared = self.shared.lock();
            shared.doing.insert((me, number), "is new".to_owned());
            drop(shared);
            process.runtime.spawn(task.run());
        }
        if u32::from(me) < config.faults.shutdowns {
            let chance = self.shared.lock().dice.chance(Point::Plan, 5, 1.0);
            if let Some(mut r) = chance {
                let after = r.u64(0..config.lease * 2 + 20 * MS).min(config.chaos);
                let how = if r.bool() {
                    Shutdown::LetExpire
                } else {
                    let grace = Duration::from_nanos(r.u64(0..config.lease));
                    Shutdown::ReleaseAll { grace }
                };
                process.shut_down = true;
                process.left_to_expire = how == Shutdown::LetExpire;
                let shared = Arc::clone(&self.shared);
                process
                    .runtime
                    .spawn(tasks::shut_down(shared, client, me, after, how));
            }
        }
        self.drive_soon(me);
    }

    /// Lets a client run at once, or a moment later.
    pub fn drive_soon(&mut self, me: u8) {
        let now = self.now;
        let process = &mut self.processes[usize::from(me)];
        if process.life != Life::Runs {
            return;
        }
        process.idle_since = now;
        process.interruptions = if self.config.polls < 100 { 3 } else { 0 };
        let slow = {
            let mut shared = self.shared.lock();
            let probability = self.config.faults.slow_run;
            shared.dice.chance(Point::Run, me, probability)
        };
        let wait = match slow {
            Some(mut r) => r.u64(0..20 * MS),
            None => 1_000,
        };
        self.drive_at(me, now + wait);
    }

    fn drive_at(&mut self, me: u8, time: u64) {
        let process = &mut self.processes[usize::from(me)];
        // The earlier of the two, unless that is over.
        if process.drive_at <= self.now || time < process.drive_at {
            process.drive_at = time;
            self.at(time, Event::Drive(me));
        }
    }

    fn drive(&mut self, me: u8) {
        let now = self.now;
        let process = &mut self.processes[usize::from(me)];
        process.drive_at = u64::MAX;
        if process.life != Life::Runs {
            return;
        }
        *self.outbox.signal.lock() = Some(Arc::clone(&process.signal));
        let driven = process.drive(self.config.seed, now, self.config.polls);
        *self.outbox.signal.lock() = None;
        if driven.ran {
            process.idle_since = now;
        }
        process.turns = if driven.more { process.turns + 1 } else { 0 };
        let turns = process.turns;
        let next = if driven.more {
            now + 2_000
        } else {
            // At its next timer; or later, by a sixth of its time at most, as on a machine with much to do.
            let idle = now - process.idle_since;
            let next = process.next_timer().unwrap_or(now + SECOND);
            next.max(now + 1_000) + self.lateness(me, next.saturating_sub(now) + idle)
        };
        self.send_all();
        self.drive_at(me, next);
        if turns == MOST_TURNS && self.watch.asks("L2") {
            let what = format!(
                "client {} has something to do at once, for ever",
                World::letter(me)
            );
            self.shared.lock().breach("L2", "spins", what);
        }
        if let Some(what) = panics::last() {
            self.shared.lock().breach("no panic", "panic", what);
        }
    }

    fn lateness(&mut self, me: u8, waited: u64) -> u64 {
        let Some(most) = waited.checked_div(self.config.late_timers) else {
            return 0;
        };
        let mut r = self.shared.lock().dice.harmless(Point::Run, me);
        r.u64(0..=most.min(40 * MS))
    }

    fn send_all(&mut self) {
        let sent = mem::take(&mut *self.outbox.sent.lock());
        for (server, request) in sent {
            self.send(server, request);
        }
    }

    fn check(&mut self) {
        invariants::after_step(self);
    }

    /// The outcome of the run, for the statistics.
    pub fn finish(mut self) -> Outcome {
        let mut shared = self.shared.lock();
        let outcome = Outcome {
            seed: self.config.seed,
            breach: shared
                .breaches
                .first()
                .filter(|breach| self.watch.counts(breach))
                .cloned(),
            steps: self.steps,
            lasted: self.now,
            used: mem::take(&mut shared.dice.used),
            trace: shared.trace.take().unwrap_or_default(),
            coverage: mem::take(&mut shared.coverage),
            seen: mem::take(&mut self.seen),
        };
        // The drops below are no part of the trace.
        shared.trace = None;
        drop(shared);
        self.messages.clear();
        self.left_before.clear();
        self.unread_before.clear();
        self.wanted.clear();
        for process in self.processes.drain(..) {
            drop(process);
            self.outbox.sent.lock().clear();
        }
        panics::forget();
        outcome
    }

    pub fn letter(client: u8) -> &'static str {
        LETTERS[usize::from(client)]
    }
}

/// How long faults may echo after their end: one operation timeout, and the longest pause between two tries.
pub fn settle(config: &Config) -> u64 {
    let of_quorum = if config.servers > 1 {
        config.quarantine() + 4 * SECOND
    } else {
        0
    };
    config.operation_timeout + SECOND + of_quorum
}
