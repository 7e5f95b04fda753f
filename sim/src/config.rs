//! The settings of a world, drawn from the seed once. Each world has its own mixture of faults and operations
//! (swarm testing: a fault that is always on masks others), and some have one dominant kind of fault.

use std::{
    sync::atomic::{AtomicBool, AtomicU8, Ordering},
    time::Duration,
};

use fastrand::Rng;
use leasehold::LockKind;

use crate::{dice::mix, styles};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MS;

static TROUBLE: AtomicBool = AtomicBool::new(false);
static QUORUM: AtomicU8 = AtomicU8::new(1);
static NODES: AtomicU8 = AtomicU8::new(0);
static FAILOVERS: AtomicBool = AtomicBool::new(false);
static CONNECTION: AtomicBool = AtomicBool::new(false);

/// So many servers has each world; of more than one a majority decides.
pub fn set_quorum(servers: u8) {
    QUORUM.store(servers, Ordering::Relaxed);
}

/// So many nodes has the cluster of each world; 0: there is none.
pub fn set_nodes(nodes: u8) {
    NODES.store(nodes, Ordering::Relaxed);
}

/// Whether the one server of each world has a replica, which takes its place now and then.
pub fn set_failovers(are: bool) {
    FAILOVERS.store(are, Ordering::Relaxed);
}

/// Whether a seed is a schedule of one connection, and no world.
pub fn set_connection(is: bool) {
    CONNECTION.store(is, Ordering::Relaxed);
}

pub fn is_connection() -> bool {
    CONNECTION.load(Ordering::Relaxed)
}

/// Whether the server may be out of memory for a while, and refuse single commands.
pub fn set_trouble(may: bool) {
    TROUBLE.store(may, Ordering::Relaxed);
}

/// Probabilities of the faults, each at the moment at which it could happen.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    pub slow_request: f64,
    pub slow_reply: f64,
    pub slow_hint: f64,
    pub lost_request: f64,
    pub lost_reply: f64,
    pub lost_hint: f64,
    /// Only the replies to releases.
    pub lost_release: f64,
    pub double: f64,
    /// …and so late that its tombstone is over.
    pub old: f64,
    pub cancel: f64,
    /// Frozen right after the reply "held": in line.
    pub freeze_in_line: f64,
    /// Frozen at any reply or send.
    pub freeze: f64,
    pub cut: f64,
    pub cut_subscription: f64,
    pub slow_run: f64,
    /// Planned events of each kind, at most.
    pub pauses: u32,
    pub restarts: u32,
    pub freezes: u32,
    pub cuts: u32,
    pub deaths: u32,
    pub shutdowns: u32,
    /// Servers of a quorum that die for good.
    pub gone: u32,
    /// Slots of a cluster that move, and nodes that are replaced while they stand still.
    pub moves: u32,
    /// Nodes that are replaced by a replica.
    pub failovers: u32,
}

impl Faults {
    /// Each wake-up that the server sends is heard.
    pub fn wake_ups_come(&self) -> bool {
        let lost = self.lost_hint + self.cut + self.cut_subscription;
        lost == 0.0 && self.cuts == 0 && self.restarts == 0
    }
}

/// How often each operation is chosen, in parts of their sum.
#[derive(Clone, Debug)]
pub struct Mix {
    pub lock: u32,
    pub try_lock: u32,
    pub try_for: u32,
    pub force: u32,
    pub status: u32,
    // Inside.
    pub rest: u32,
    pub extend: u32,
    pub extend_twice: u32,
    pub verify: u32,
    pub reenter: u32,
    pub nested: u32,
    // At the end.
    pub release: u32,
    pub drop: u32,
    pub detach: u32,
    pub until_lost: u32,
}

#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fault or a habit of its own"
)]
pub struct Config {
    pub seed: u64,
    /// Of the server: without memory for a while, or of a user without rights, at single commands.
    pub trouble: bool,
    /// Which kind of lock this world is about, and how many permits it has.
    pub kind: LockKind,
    pub permits: u32,
    pub clients: u8,
    pub names: u8,
    pub tasks: u8,
    pub ops: u32,
    /// The lease that others are multiples of.
    pub lease: u64,
    /// All ask for the same terms.
    pub same_terms: bool,
    pub fixed: f64,
    pub max_hold: f64,
    pub owned: f64,
    pub handoff_off: bool,
    pub operation_timeout: u64,
    /// Something between clients and server sends twice what was answered, and the clients know it.
    pub may_duplicate: bool,
    /// A timer may be late by a part of its time, one in so many; 0: never.
    pub late_timers: u64,
    pub poll_every: u64,
    /// The time of one way, without faults.
    pub latency: u64,
    pub faults: Faults,
    pub mix: Mix,
    /// When faults end at the latest.
    pub chaos: u64,
    /// Polls of a client before another client has a turn.
    pub polls: u32,
    /// How long a holder holds, in parts of a lease.
    pub hold: f64,
    /// How often a task takes several names at once.
    pub several: f64,
    /// Of more than one, a majority decides.
    pub servers: u8,
    /// Of a cluster; 0: there is none.
    pub nodes: u8,
    /// So many of them have slots at first. The others are replicas.
    pub primaries: u8,
    /// A node of it that takes the place of another may lack what that one had last.
    pub lags: bool,
    /// A lock counts when the replica has it, which lags now and then.
    pub durable: bool,
    /// Each client has a name of its own.
    pub own_names: bool,
    /// No lease on a quorum is longer.
    pub longest: u64,
}

impl Config {
    pub fn new(seed: u64) -> Config {
        let mut rng = Rng::with_seed(mix(seed, 0x00C0_FFEE));
        let r = &mut rng;
        let lease = pick(
            r,
            &[
                30, 60, 100, 300, 300, 1_000, 1_000, 3_000, 10_000, 30_000, 30_000,
            ],
        ) * MS;
        let operation_timeout = pick(r, &[2_000, 2_000, 2_000, 2_000, 300, 100]) * MS;
        let clients = pick(r, &[1, 2, 2, 2, 2, 2, 3, 3, 3, 4, 5]);
        let mut config = Config {
            seed,
            trouble: TROUBLE.load(Ordering::Relaxed),
            kind: LockKind::Mutex,
            permits: 1,
            clients: u8::try_from(clients).unwrap_or(2),
            names: if r.f64() < 0.8 { 1 } else { r.u8(2..=3) },
            tasks: r.u8(1..=3),
            ops: r.u32(1..=5),
            lease,
            same_terms: r.bool(),
            fixed: pick_f(r, &[0.0, 0.0, 0.3, 1.0]),
            max_hold: pick_f(r, &[0.0, 0.0, 0.0, 0.3]),
            owned: pick_f(r, &[0.0, 0.0, 0.3]),
            handoff_off: r.f64() < 0.3,
            operation_timeout,
            may_duplicate: false,
            late_timers: 0,
            poll_every: pick(r, &[10_000, 10_000, 10_000, 1_000, 200]) * MS,
            latency: pick(r, &[100, 100, 300, 1_000, 5_000, 30_000]) * 1_000,
            faults: Faults::default(),
            mix: some_of(r),
            chaos: 0,
            polls: u32::try_from(pick(r, &[1, 2, 5, 100])).unwrap_or(1),
            hold: pick_f(r, &[0.05, 0.3, 1.0, 2.0]),
            several: 0.0,
            servers: QUORUM.load(Ordering::Relaxed),
            nodes: NODES.load(Ordering::Relaxed),
            primaries: NODES.load(Ordering::Relaxed),
            lags: false,
            durable: false,
            own_names: false,
            longest: 0,
        };
        config.faults = faults(r);
        if r.f64() < 0.4 {
            styles::bend(&mut config, r);
        }
        // Of their own randomness, so that the rest of a world is as it is without them.
        let mut r = Rng::with_seed(mix(seed, 0x00D0_0B1E));
        config.late_timers = if r.f64() < 0.7 { 6 } else { 0 };
        if r.f64() < 0.15 {
            config.may_duplicate = true;
            config.faults.double = config.faults.double.max(0.3);
        }
        config.draw_a_kind();
        // Else no answer is ever in time.
        config.operation_timeout = config.operation_timeout.max(config.latency * 8);
        config.chaos = (config.lease * r.u64(4..20)).clamp(2 * SECOND, 120 * SECOND);
        if config.faults.old > 0.0 {
            config.chaos = 120 * SECOND;
        }
        if config.servers > 1 {
            config.on_quorum();
        } else if config.nodes > 0 {
            config.on_cluster();
        } else if FAILOVERS.load(Ordering::Relaxed) {
            config.with_a_replica();
        }
        config
    }

    fn draw_a_kind(&mut self) {
        let mut r = Rng::with_seed(mix(self.seed, 0x0051_4E05));
        self.kind = match r.u32(0..10) {
            0..=3 => LockKind::Mutex,
            4..=5 => LockKind::FencedMutex,
            6..=7 => LockKind::RwLock,
            _ => LockKind::LeasedSemaphore,
        };
        self.permits = r.u32(1..=4);
        if self.kind == LockKind::Mutex {
            // Of their own randomness as well.
            self.kind = match Rng::with_seed(mix(self.seed, 0x0050_1A14)).u32(0..12) {
                0 => LockKind::PlainMutex,
                1..=2 => LockKind::SpinMutex,
                _ => LockKind::Mutex,
            };
        }
        if self.kind == LockKind::LeasedSemaphore {
            self.kind = match Rng::with_seed(mix(self.seed, 0x0C00_7ED0)).u32(0..10) {
                0..=3 => LockKind::Semaphore,
                4..=5 => LockKind::Latch,
                _ => LockKind::LeasedSemaphore,
            };
        }
        if self.kind == LockKind::Semaphore {
            // A permit that a copy takes when its tombstone is over never comes back.
            self.faults.old = 0.0;
        }
        // Of their own randomness as well.
        let mut several = Rng::with_seed(mix(self.seed, 0x0031_7A71));
        let has_parts = !matches!(self.kind, LockKind::Semaphore | LockKind::Latch);
        if has_parts && several.f64() < 0.15 {
            self.several = pick_f(&mut several, &[0.3, 0.7, 1.0]);
            self.names = several.u8(2..=3);
        }
        // Of their own randomness, of whatever kind they were.
        if Rng::with_seed(mix(self.seed, 0x00FA_1200)).u32(0..8) == 0 {
            self.kind = LockKind::FairMutex;
        }
    }

    /// Takes away what a quorum has not, and adds what it has more of.
    fn on_quorum(&mut self) {
        let mut r = Rng::with_seed(mix(self.seed, 0x00A0_0121));
        self.trouble = false;
        self.kind = match r.u32(0..6) {
            0 => LockKind::PlainMutex,
            1 => LockKind::SpinMutex,
            _ => LockKind::Mutex,
        };
        self.clients = self.clients.max(2);
        // A server has a tenth of a lease to answer.
        self.lease = self.lease.max(300 * MS);
        self.latency = self.latency.min(self.lease / 200);
        self.longest = (self.lease * 10).min(60 * SECOND);
        let faults = &mut self.faults;
        if r.f64() < 0.6 {
            faults.restarts = r.u32(1..=4);
        }
        if r.f64() < 0.3 {
            faults.pauses = r.u32(1..=3);
        }
        if r.f64() < 0.2 {
            faults.gone = r.u32(1..=u32::from(self.servers / 2));
        }
        if r.f64() < 0.3 {
            faults.cuts = r.u32(1..=6);
        }
        // Then a server has its vote back while leases from before its restart go on.
        if self.same_terms && r.f64() < 0.5 {
            self.longest = self.lease;
        }
    }

    /// Takes away what a cluster has not, and adds what it has more of.
    fn on_cluster(&mut self) {
        let mut r = Rng::with_seed(mix(self.seed, 0x00C1_0572));
        self.takes_a_kind_with_leases(&mut r);
        let faults = &mut self.faults;
        // A slot moves with its data.
        faults.restarts = 0;
        faults.moves = r.u32(0..=6);
        if r.f64() < 0.3 {
            faults.pauses = r.u32(1..=3);
        }
        if r.bool() {
            // Each node has a replica, and nothing happens to slots but that these take them all.
            self.nodes *= 2;
            self.faults.moves = 0;
            self.fails_over(&mut r);
        }
    }

    /// Takes away what a server has not whose place a replica takes, and adds what it has more of.
    fn with_a_replica(&mut self) {
        let mut r = Rng::with_seed(mix(self.seed, 0x00FA_110E));
        let several = self.several;
        self.takes_a_kind_with_leases(&mut r);
        self.faults.restarts = 0;
        self.fails_over(&mut r);
        // Of its own randomness, so that the rest of a world is as it is without it.
        match Rng::with_seed(mix(self.seed, 0x00FA_1200)).u32(0..10) {
            0 | 1 => self.kind = LockKind::FairMutex,
            2 if self.names > 1 => self.several = several.max(0.3),
            3..=5
                if matches!(
                    self.kind,
                    LockKind::Mutex | LockKind::FencedMutex | LockKind::RwLock
                ) =>
            {
                self.durable = true;
            }
            _ => {}
        }
    }

    /// A replica may lack what happened to the keys in the last second.
    fn fails_over(&mut self, r: &mut Rng) {
        self.lags = true;
        self.faults.failovers = r.u32(1..=6);
        if r.bool() {
            self.take_own_names(r);
        // Of its own randomness, so that the rest of a world is as it is without it.
        } else if Rng::with_seed(mix(self.seed, 0x00E8_7E4D)).bool() {
            self.extend_when_replaced(r);
        }
    }

    fn takes_a_kind_with_leases(&mut self, r: &mut Rng) {
        self.trouble = false;
        self.kind = match r.u32(0..12) {
            0..=3 => LockKind::Mutex,
            4..=5 => LockKind::FencedMutex,
            6..=7 => LockKind::RwLock,
            8..=9 => LockKind::LeasedSemaphore,
            10 => LockKind::PlainMutex,
            _ => LockKind::SpinMutex,
        };
        self.several = 0.0;
        self.clients = self.clients.max(2);
        self.names = r.u8(1..=3);
    }

    /// Failovers, one after another, between the turns of clients that take their own names again and again.
    fn take_own_names(&mut self, r: &mut Rng) {
        (self.own_names, self.tasks, self.names) = (true, 1, 3);
        self.clients = r.u8(1..=3);
        self.ops = 30;
        self.lease = pick(r, &[300, 1_000, 3_000, 10_000]) * MS;
        self.chaos = self.lease * 4;
        self.hold = 0.05;
        self.mix.try_lock = 30;
        (self.mix.detach, self.mix.until_lost, self.mix.force) = (0, 0, 0);
        self.faults.failovers = r.u32(2..=12);
    }

    /// Holders ask for more time, and look at what they hold, again and again, while their node stands still, is replaced, and answers late.
    fn extend_when_replaced(&mut self, r: &mut Rng) {
        (self.names, self.tasks, self.ops, self.clients) = (1, r.u8(1..=2), 5, r.u8(2..=3));
        if !matches!(self.kind, LockKind::FencedMutex | LockKind::RwLock) {
            self.kind = LockKind::Mutex;
        }
        self.lease = pick(r, &[1_000, 3_000, 10_000]) * MS;
        self.operation_timeout = 2 * SECOND;
        self.latency = self.latency.min(MS);
        self.chaos = self.lease * 10;
        self.hold = 2.0;
        (self.max_hold, self.faults.deaths) = (0.0, 0);
        (self.mix.extend, self.mix.extend_twice, self.mix.verify) = (30, 10, 20);
        (self.mix.rest, self.mix.detach, self.mix.force) = (10, 0, 0);
        self.faults.failovers = r.u32(4..=12);
    }

    /// For how long a server that has restarted has no vote, at most.
    pub fn quarantine(&self) -> u64 {
        self.longest + self.longest / 50 + 10 * MS
    }

    pub fn in_words(&self) -> String {
        let time = Duration::from_nanos;
        format!(
            "seed {}{}{}: {}, {} clients with {} tasks, {} names; leases about {:?}, operation timeout {:?}, polls every {:?}, {:?} each way",
            self.seed,
            match self.servers {
                0 | 1 if self.nodes > 0 => format!(", a cluster of {}", self.nodes),
                0 | 1 => String::new(),
                all => format!(", a majority of {all}"),
            },
            if self.durable { ", durable" } else { "" },
            self.kind,
            self.clients,
            self.tasks,
            self.names,
            time(self.lease),
            time(self.operation_timeout),
            time(self.poll_every),
            time(self.latency),
        )
    }

    /// For how long a tombstone is kept on the server.
    pub fn tombstone(&self) -> u64 {
        self.lease.max(30 * SECOND)
    }

    /// How late a copy comes.
    pub fn lateness(&self, r: &mut Rng) -> u64 {
        if r.f64() < self.faults.old {
            self.tombstone() + r.u64(0..self.tombstone())
        } else {
            self.span(r)
        }
    }

    /// A delay that is likely to matter: about a lease, about an operation timeout, or just some.
    pub fn span(&self, r: &mut Rng) -> u64 {
        let scale =
            |r: &mut Rng, of: u64, from: f64, to: f64| fraction(of, from + r.f64() * (to - from));
        match r.u32(0..10) {
            0 | 1 => scale(r, self.latency, 2.0, 50.0),
            2 => scale(r, self.lease, 0.0, 0.5),
            3..=5 => scale(r, self.lease, 0.7, 1.5),
            6 => scale(r, self.lease, 1.0, 3.0),
            7 => scale(r, self.operation_timeout, 0.2, 1.0),
            _ => scale(r, self.operation_timeout, 1.0, 2.0),
        }
    }
}

pub fn fraction(of: u64, part: f64) -> u64 {
    Duration::from_nanos(of)
        .mul_f64(part)
        .as_nanos()
        .try_into()
        .unwrap_or(u64::MAX)
}

pub fn pick(r: &mut Rng, of: &[u64]) -> u64 {
    of[r.usize(..of.len())]
}

fn pick_f(r: &mut Rng, of: &[f64]) -> f64 {
    of[r.usize(..of.len())]
}

/// Off, or rare, or common.
fn some(r: &mut Rng, on: f64, common: f64) -> f64 {
    if r.f64() >= on {
        0.0
    } else if r.bool() {
        common
    } else {
        common / 5.0
    }
}

fn some_of(r: &mut Rng) -> Mix {
    let mut weight = |on: f64, weight: u32| if r.f64() < on { weight } else { 0 };
    Mix {
        lock: 10,
        try_lock: weight(0.5, 5),
        try_for: weight(0.5, 8),
        force: weight(0.15, 2),
        status: weight(0.2, 1),
        rest: 10,
        extend: weight(0.5, 8),
        extend_twice: weight(0.3, 6),
        verify: weight(0.3, 4),
        reenter: weight(0.3, 3),
        nested: weight(0.4, 4),
        release: 10,
        drop: weight(0.7, 10),
        detach: weight(0.15, 2),
        until_lost: weight(0.3, 3),
    }
}

fn faults(r: &mut Rng) -> Faults {
    let count = |r: &mut Rng, on: f64, most: u32| if r.f64() < on { r.u32(1..=most) } else { 0 };
    let mut faults = Faults::default();
    // A world in twenty has no faults: a failure there needs none.
    if r.f64() < 0.05 {
        return faults;
    }
    faults.slow_request = some(r, 0.4, 0.2);
    faults.slow_reply = some(r, 0.4, 0.2);
    faults.slow_hint = some(r, 0.4, 0.5);
    faults.lost_request = some(r, 0.3, 0.15);
    faults.lost_reply = some(r, 0.3, 0.2);
    faults.lost_hint = some(r, 0.3, 0.3);
    faults.lost_release = some(r, 0.25, 0.6);
    faults.double = some(r, 0.5, 0.6);
    faults.cancel = some(r, 0.4, 0.4);
    faults.freeze_in_line = some(r, 0.25, 0.4);
    faults.freeze = some(r, 0.25, 0.05);
    faults.cut = some(r, 0.3, 0.08);
    faults.cut_subscription = some(r, 0.3, 0.1);
    faults.slow_run = some(r, 0.3, 0.1);
    faults.pauses = count(r, 0.25, 2);
    faults.restarts = count(r, 0.1, 1);
    faults.freezes = count(r, 0.3, 3);
    faults.cuts = count(r, 0.2, 3);
    faults.deaths = count(r, 0.15, 2);
    faults.shutdowns = count(r, 0.2, 2);
    faults
}
