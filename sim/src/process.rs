//! A simulated process: a client on a runtime of its own. The scheduler polls it by hand and moves its clocks.
//! A frozen process is not polled; a dead one never will be.

use std::{
    collections::BTreeSet,
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Poll, Waker},
    time::Duration,
};

use leasehold::{
    Client, Durability,
    sim::{self, Identity, SimClock, identify},
};
use parking_lot::Mutex;
use tokio::{
    runtime::{Builder, Runtime},
    sync::Notify,
    time::Instant,
};

use crate::{
    config::{Config, MS},
    dice::mix,
    servers::Server,
    shared::LETTERS,
};

/// The lease clock of every client starts here: its first instants mean something else to a `LeaseTerm`.
const CLOCK_STARTS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Unborn,
    Runs,
    Frozen,
    Dead,
}

/// The connection of one kind to a server, in both directions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lane {
    /// Grows when the connection is replaced.
    pub generation: u32,
    /// When the last message to the server arrives there: a connection keeps its order.
    pub last_out: u64,
    /// The same for messages to the client.
    pub last_in: u64,
    pub down_until: u64,
    /// The next connection finds another server there, or the same without its data.
    pub meets_another: bool,
}

pub struct Process {
    pub me: u8,
    pub life: Life,
    pub clock: SimClock,
    pub healed: Arc<Notify>,
    pub client: Option<Client>,
    pub runtime: Runtime,
    pub signal: Arc<Signal>,
    /// So often it is interrupted before it may run until it has nothing to do.
    pub interruptions: u32,
    /// How fast its clocks run, in parts of a million of the server's.
    rate: u64,
    /// The reading of its tokio clock.
    shown: u64,
    /// When it is polled next.
    pub drive_at: u64,
    /// Since when it has had nothing to do.
    pub idle_since: u64,
    /// To each server: for commands, and for wake-ups.
    pub lanes: Vec<[Lane; 2]>,
    pub shut_down: bool,
    /// …and its holds were left to expire.
    pub left_to_expire: bool,
    pub last_fault: u64,
    /// Dead, and the server has not noticed.
    pub haunts: bool,
    /// When it went on after it was frozen last.
    pub last_stop: u64,
    /// Requests in the present second.
    pub busy: (u64, u32),
    /// When its timers are due, on its tokio clock.
    timers: BTreeSet<u64>,
    began: Instant,
    /// So often in a row it has had something to do at once.
    pub turns: u32,
}

impl Process {
    pub fn new(me: u8, rate: u64, servers: u8) -> Process {
        let signal = Arc::new(Signal::default());
        let parks = Arc::clone(&signal);
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .event_interval(1)
            .global_queue_interval(1)
            .on_thread_park(move || parks.park())
            .build()
            .expect("a runtime without I/O needs nothing from the system");
        let began = runtime.block_on(async { Instant::now() });
        Process {
            me,
            life: Life::Unborn,
            clock: SimClock::default(),
            healed: Arc::new(Notify::new()),
            client: None,
            runtime,
            signal,
            interruptions: 0,
            rate,
            shown: 0,
            drive_at: u64::MAX,
            idle_since: 0,
            lanes: vec![Default::default(); usize::from(servers.max(1))],
            shut_down: false,
            left_to_expire: false,
            last_fault: 0,
            haunts: false,
            last_stop: 0,
            busy: (0, 0),
            timers: BTreeSet::new(),
            began,
            turns: 0,
        }
    }

    pub fn letter(&self) -> &'static str {
        LETTERS[usize::from(self.me)]
    }

    /// The reading of its lease clock at this moment of the world.
    pub fn reading(&self, now: u64) -> u64 {
        CLOCK_STARTS + self.local(now)
    }

    /// The readings of its clocks at this moment of the world.
    fn local(&self, now: u64) -> u64 {
        u64::try_from(u128::from(now) * u128::from(self.rate) / 1_000_000).unwrap_or(u64::MAX)
    }

    /// When the server's clock shows what its clocks will show then.
    fn server_time(&self, local: u64) -> u64 {
        let time = (u128::from(local) * 1_000_000).div_ceil(u128::from(self.rate));
        u64::try_from(time).unwrap_or(u64::MAX)
    }

    /// When its next timer is due, on the server's clock.
    pub fn next_timer(&self) -> Option<u64> {
        self.timers.first().map(|local| self.server_time(*local))
    }

    /// How long something on its clocks takes on the server's.
    pub fn in_server_time(&self, time: Duration) -> u64 {
        u64::try_from(time.as_nanos() * 1_000_000 / u128::from(self.rate)).unwrap_or(u64::MAX)
    }

    pub fn set_clock(&self, now: u64) {
        self.clock.set(self.reading(now));
    }

    /// It starts, and connects.
    pub fn connect(&mut self, servers: &[Server], config: &Config, now: u64) -> Client {
        self.set_clock(now);
        fastrand::seed(mix(config.seed, u64::from(self.me)));
        identify(Some(Identity {
            client: self.letter().into(),
            clock: self.clock.clone(),
        }));
        let builder = Client::builder().simulated(servers.iter().map(|server| &server.keys));
        let builder = if servers.len() > 1 {
            builder.longest_lease(Duration::from_nanos(config.longest))
        } else {
            builder
        };
        let builder = if config.durable {
            builder
                .durability(Durability::Replicas(1))
                .durability_timeout(Duration::from_millis(100))
        } else {
            builder
        };
        let builder = builder
            .label(self.letter())
            .lease(Duration::from_nanos(config.lease))
            .operation_timeout(Duration::from_nanos(config.operation_timeout))
            .poll_every(Duration::from_nanos(config.poll_every))
            .may_duplicate(config.may_duplicate);
        let client = self.runtime.block_on(builder.connect());
        identify(None);
        let client = client.expect("the settings of a world are good ones");
        self.client = Some(client.clone());
        self.life = Life::Runs;
        client
    }

    /// Lets it run: for so many polls while it is to be interrupted, else until it has sent something or has nothing
    /// to do.
    pub fn drive(&mut self, seed: u64, now: u64, polls: u32) -> Driven {
        let local = self.local(now);
        let ahead = Duration::from_nanos(local.saturating_sub(self.shown));
        self.shown = self.shown.max(local);
        fastrand::seed(mix(seed, now ^ u64::from(self.me) << 56));
        let before = self.clock.reading();
        let (signal, interrupted) = (&self.signal, self.interruptions > 0);
        self.interruptions = self.interruptions.saturating_sub(1);
        signal.parked.store(false, Ordering::Relaxed);
        let (mut first, mut idle, mut ran) = (true, false, 0);
        self.runtime.block_on(poll_fn(|cx| {
            if first {
                first = false;
                signal.waker.set(cx.waker());
                // Moves the clock at its first poll, and would only yield after that, which looks at the timers.
                let _ = pin!(tokio::time::advance(ahead)).poll(cx);
                return Poll::Pending;
            }
            ran += 1;
            // The timers were looked at when the clock had been moved: a runtime that parks has nothing to do.
            idle = signal.parked.swap(false, Ordering::Relaxed);
            if idle || (interrupted && ran > polls) || signal.sent.swap(false, Ordering::Relaxed) {
                return Poll::Ready(());
            }
            if interrupted {
                // Polled again after each poll of a task.
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        }));
        signal.waker.clear();
        self.timers = self.timers.split_off(&(self.shown + 1));
        sim::take_timers(|end| {
            let local = end.saturating_duration_since(self.began).as_nanos();
            // tokio's timers are due at full milliseconds.
            let tick = u64::try_from(local.div_ceil(u128::from(MS))).unwrap_or(u64::MAX / MS) * MS;
            if tick > self.shown {
                self.timers.insert(tick);
            }
        });
        Driven {
            ran: self.clock.reading() > before,
            more: !idle,
        }
    }
}

pub struct Driven {
    pub ran: bool,
    pub more: bool,
}

/// Wakes the scheduler out of a runtime that it drives.
#[derive(Default)]
pub struct Signal {
    waker: WakerSlot,
    parked: AtomicBool,
    sent: AtomicBool,
}

impl Signal {
    /// The runtime has nothing to do. To be awake by then keeps tokio from moving the clock by itself.
    fn park(&self) {
        self.parked.store(true, Ordering::Relaxed);
        self.waker.wake();
    }

    /// The client has sent something.
    pub fn send(&self) {
        self.sent.store(true, Ordering::Relaxed);
        self.waker.wake();
    }
}

#[derive(Default)]
struct WakerSlot(Mutex<Option<Waker>>);

impl WakerSlot {
    fn set(&self, waker: &Waker) {
        *self.0.lock() = Some(waker.clone());
    }

    fn clear(&self) {
        *self.0.lock() = None;
    }

    fn wake(&self) {
        let waker = self.0.lock().clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
