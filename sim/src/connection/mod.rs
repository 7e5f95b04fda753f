//! One connection of the library's own: its requests, its reader and its end, on a socket in memory. No thread and no real time takes part.
//!
//! A seed is a list of steps, each of which can be taken out (`shrink.rs`): the next task runs, a caller asks or goes, the server
//! carries out a command, some bytes come, time passes, something fails.

mod checks;
pub mod line;
mod steps;

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::net::UnixStream,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use fastrand::Rng;
use leasehold::sim::{PlayedConnection, Value};
use parking_lot::{Mutex, MutexGuard};
use redis::RedisError;
use tokio::runtime::{Builder, Runtime};

use crate::{
    dice::{Dice, Key, mix},
    invariants::Asked,
    panics,
    shared::Breach,
    states::Seen,
    world::Outcome,
};
use line::{Line, PlayedSocket};

/// The tasks that were woken, and what the connection said of itself at that moment.
struct Woken {
    ready: Mutex<Vec<usize>>,
    is_closed: Arc<AtomicBool>,
    is_void: Box<dyn Fn() -> bool + Send + Sync>,
}

/// The reader among the tasks; callers have the number of their place.
const READER: usize = usize::MAX;

struct Task {
    who: usize,
    woken: Arc<Woken>,
    is_ready: AtomicBool,
    /// At the last wake-up the socket was closed, and the connection void.
    saw_closed: AtomicBool,
    saw_void: AtomicBool,
}

impl Task {
    fn new(who: usize, woken: &Arc<Woken>) -> Arc<Task> {
        Arc::new(Task {
            who,
            woken: Arc::clone(woken),
            is_ready: AtomicBool::new(false),
            saw_closed: AtomicBool::new(false),
            saw_void: AtomicBool::new(false),
        })
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let is_closed = self.woken.is_closed.load(Ordering::Relaxed);
        self.saw_closed.store(is_closed, Ordering::Relaxed);
        self.saw_void
            .store((self.woken.is_void)(), Ordering::Relaxed);
        if !self.is_ready.swap(true, Ordering::Relaxed) {
            self.woken.ready.lock().push(self.who);
        }
    }
}

type PlayedAnswer = Result<Value, (RedisError, bool)>;

struct Caller {
    number: usize,
    answer: Pin<Box<dyn Future<Output = PlayedAnswer>>>,
    task: Arc<Task>,
    is_elsewhere: bool,
    /// Its request was not polled yet.
    is_first: bool,
    /// So often it asks again.
    again: u32,
}

#[allow(clippy::struct_excessive_bools, reason = "each is a state of its own")]
struct Play {
    dice: Dice,
    steps: u64,
    trace: Option<Vec<String>>,
    /// So many bytes that the socket took are in the trace.
    shown: usize,
    coverage: BTreeMap<&'static str, u64>,
    seen: Seen,
    here: Runtime,
    elsewhere: Runtime,
    connection: PlayedConnection,
    line: Arc<Mutex<Line>>,
    /// The server's end of the descriptor.
    peer: Option<UnixStream>,
    woken: Arc<Woken>,
    reader: Arc<Task>,
    callers: Vec<Option<Caller>>,
    /// When the reader had its last turn, and whether it comes back by itself.
    turned: Duration,
    comes_back: bool,
    /// The reader is polled no more, though its runtime has not ended.
    is_frozen: bool,
    /// The server has said what answers nothing.
    is_rogue: bool,
    is_voided: bool,
    /// Requests are as long as this, or shorter.
    longest: usize,
    /// A thousand ask at once.
    has_burst: bool,
}

/// Plays one seed, without the steps in `calm`.
pub fn run(seed: u64, calm: &BTreeSet<Key>, traced: bool, asked: &Asked) -> Outcome {
    panics::forget();
    let mut play = Play::new(seed, calm, traced);
    if catch_unwind(AssertUnwindSafe(|| play.run(seed))).is_err() {
        let what = panics::last().unwrap_or_default();
        play.line().breach("no panic", what);
    }
    let broken = play.line().breach.take();
    let lasted = u64::try_from(play.line().now.as_nanos()).unwrap_or(u64::MAX);
    let breach = broken.map(|(promise, what)| Breach {
        promise,
        at: lasted,
        kind: what.clone(),
        what,
    });
    let breach = breach.filter(|breach| asked.about(breach.promise) && asked.counts(breach));
    if let Some(breach) = &breach {
        play.say(|| format!("BREACH of {}: {}", breach.promise, breach.what));
    }
    Outcome {
        seed,
        breach,
        steps: play.steps,
        lasted,
        used: play.dice.used,
        trace: play.trace.unwrap_or_default(),
        coverage: play.coverage,
        seen: play.seen,
    }
}

impl Play {
    fn new(seed: u64, calm: &BTreeSet<Key>, traced: bool) -> Play {
        let runtime = || {
            let mut builder = Builder::new_current_thread();
            let built = builder.enable_time().start_paused(true).build();
            built.expect("a runtime without I/O needs nothing from the system")
        };
        let mut rng = Rng::with_seed(mix(seed, 0));
        let line = Arc::new(Mutex::new(Line::new(
            rng.u8(..4) == 0,
            if rng.u8(..8) == 0 { 9_000 } else { 3 },
        )));
        let (descriptor, peer) = UnixStream::pair().expect("a pair of sockets");
        descriptor.set_nonblocking(true).expect("a socket");
        let is_closed = Arc::new(AtomicBool::new(false));
        let here = runtime();
        let connection = {
            let _here = here.enter();
            PlayedConnection::new(PlayedSocket {
                line: Arc::clone(&line),
                descriptor,
                is_closed: Arc::clone(&is_closed),
            })
        };
        let woken = Arc::new(Woken {
            ready: Mutex::default(),
            is_closed,
            is_void: Box::new(connection.is_void()),
        });
        let reader = Task::new(READER, &woken);
        let has_burst = rng.u8(..50) == 0;
        // As tokio polls a task that was spawned.
        reader.clone().wake();
        Play {
            dice: Dice::new(seed, calm),
            steps: 0,
            trace: traced.then(Vec::new),
            shown: 0,
            coverage: BTreeMap::new(),
            seen: Seen::default(),
            here,
            elsewhere: runtime(),
            connection,
            line,
            peer: Some(peer),
            woken,
            reader,
            callers: Vec::new(),
            turned: Duration::ZERO,
            comes_back: false,
            is_frozen: false,
            is_rogue: false,
            is_voided: false,
            longest: if !has_burst && rng.u8(..10) == 0 {
                30_000
            } else {
                40
            },
            has_burst,
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock()
    }

    fn is_closed(&self) -> bool {
        self.woken.is_closed.load(Ordering::Relaxed)
    }

    fn is_broken(&self) -> bool {
        self.line().breach.is_some()
    }

    fn say(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            let line = self.line.lock();
            let (now, taken) = (line.now.as_secs_f64() * 1e3, line.taken);
            drop(line);
            if taken > self.shown {
                trace.push(format!("{now:>8.1} ms  the socket has taken {taken} bytes"));
                self.shown = taken;
            }
            trace.push(format!("{now:>8.1} ms  {}", what()));
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.coverage.entry(what).or_default() += 1;
    }

    /// Wakes those who wait for the socket.
    fn wake(&mut self) {
        let wakers = self.line().wakers();
        wakers.for_each(Waker::wake);
    }

    /// A task has its turn.
    fn drive(&mut self, who: usize) {
        if who == READER {
            self.turn();
        } else {
            self.poll_caller(who);
        }
    }

    /// A task that was woken has its turn. Whether there was one.
    fn drive_next(&mut self, rng: &mut Rng) -> bool {
        let next = {
            let mut ready = self.woken.ready.lock();
            // A runtime goes by turns, mostly.
            let at = if rng.bool() {
                0
            } else {
                rng.usize(..ready.len().max(1))
            };
            (at < ready.len()).then(|| ready.remove(at))
        };
        if let Some(who) = next {
            self.drive(who);
        }
        next.is_some()
    }

    /// The reader has a turn.
    fn turn(&mut self) {
        self.reader.is_ready.store(false, Ordering::Relaxed);
        if self.is_frozen {
            return;
        }
        let before = self.before_turn();
        let waker = Waker::from(Arc::clone(&self.reader));
        let is_over = {
            let _here = self.here.enter();
            self.connection.turn(&mut Context::from_waker(&waker))
        };
        self.comes_back = self.reader.is_ready.load(Ordering::Relaxed);
        let now = self.line().now;
        self.turned = now;
        self.after_turn(&before, is_over);
    }

    /// A caller's task has a turn, and asks again as soon as it has its answer.
    fn poll_caller(&mut self, who: usize) {
        let Some(mut caller) = self.callers[who].take() else {
            return;
        };
        caller.task.is_ready.store(false, Ordering::Relaxed);
        loop {
            let writes = self.writes_at_once(&caller);
            let waker = Waker::from(Arc::clone(&caller.task));
            let answer = {
                let _in = if caller.is_elsewhere {
                    self.elsewhere.enter()
                } else {
                    self.here.enter()
                };
                let mut cx = Context::from_waker(&waker);
                caller.answer.as_mut().poll(&mut cx)
            };
            self.check_begin(&caller, writes);
            let Poll::Ready(answer) = answer else {
                caller.is_first = false;
                self.callers[who] = Some(caller);
                return;
            };
            self.check_answer(&caller, answer);
            if caller.again == 0 || self.is_rogue || self.is_broken() {
                return;
            }
            (caller.number, caller.answer) = self.request(mix(caller.number as u64, 1));
            caller.again -= 1;
            caller.is_first = true;
        }
    }
}
