//! P6, P14: how long is a name without a holder when it passes from one process to another?
//!
//! Unit: from the call of `release()` in one process to the guard in another one's hands, in round trips: the
//! median time that a raw script call takes, just before in the same round, by a process that sleeps between its calls for
//! about as long as one sleeps here between its turns, or less: it finds its caches cold. The server is called by another process
//! meanwhile as often as it is here. Beside it, the least possible: how long after such a raw call another process has in hand what it
//! published. Five processes of 13 tasks: 64 wait. The median is that
//! of the rounds, which are short, since a machine that others use too is faster in one second than in the next.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::StreamExt as _;
use leasehold::{Error, Guard, Handoff};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::{
    contend::per_acquisition,
    float::{median, micros, quantile},
    raw::Raw,
    stage::{self, Stage},
    table::{Aim, Table},
    worker::{self, Worker},
};

const PROCESSES: usize = 5;
const TASKS: usize = 13;
const ROUNDS: usize = 15;
const TIME: Duration = Duration::from_secs(1);
/// How long each holder keeps the name, so that the line is complete again.
const HOLD: Duration = Duration::from_millis(1);
/// How often a process has its turn where each release passes the name to another: five sleeps of a tokio millisecond, which are two.
const TURN: Duration = Duration::from_millis(10);
/// How long the default hand-off keeps the name in one process. A fair mutex passes it on after 13 tasks that asked in a row: 30 ms.
const ROW: Duration = Duration::from_millis(20);
const RAW_CALLS: usize = 50;
const CHANNEL: &str = "bench:p6:heard";
const UNHEARD: &str = "bench:p6:unheard";

/// One hold, in nanoseconds of the clock that all share.
#[derive(Clone, Copy)]
struct Hold {
    process: usize,
    from: u64,
    /// When `release()` was called.
    until: u64,
}

/// The locks that pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lock {
    HandoffOff,
    HandoffOn,
    Fair,
}

impl Lock {
    const ALL: [Lock; 3] = [Lock::HandoffOff, Lock::HandoffOn, Lock::Fair];

    fn told(self) -> &'static str {
        match self {
            Lock::HandoffOff => "64 wait, hand-off off",
            Lock::HandoffOn => "64 wait, default hand-off",
            Lock::Fair => "fair mutex, 64 wait",
        }
    }

    fn word(self) -> String {
        format!("{self:?}")
    }

    /// How long the one sleeps that makes the raw calls.
    fn pace(self) -> Duration {
        match self {
            Lock::HandoffOff => TURN,
            Lock::HandoffOn | Lock::Fair => ROW,
        }
    }

    /// Whether each release is a call to the server.
    fn calls_each_time(self) -> bool {
        self != Lock::HandoffOn
    }
}

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    measure(stage, table, "P6", Lock::HandoffOff);
    measure(stage, table, "P6", Lock::HandoffOn);
}

/// P14: the same for a fair mutex, which passes to another task with each release; and what it costs in commands.
pub(crate) fn fair(stage: &Stage, table: &mut Table) {
    measure(stage, table, "P14", Lock::Fair);
}

fn measure(stage: &Stage, table: &mut Table, bench: &'static str, lock: Lock) {
    let runtime = stage::one_thread();
    let url = stage.url();
    let raw = runtime.block_on(Raw::connect(&url));
    let mut listener = Worker::start(&format!("hear {url}"));
    let role = format!("relay {url} bench:p6:{0} {0}", lock.word());
    let mut workers: Vec<Worker> = (0..PROCESSES).map(|_| Worker::start(&role)).collect();
    let (mut trips, mut heard, mut changes) = (Vec::new(), Vec::new(), Vec::new());
    let mut ratios = Vec::new();
    let mut others = Worker::start(&format!("call {url}"));
    let mut commands = Vec::new();
    for round in 0..=stage.rounds(ROUNDS) {
        let (raw, pace) = (raw.clone(), lock.pace());
        if lock.calls_each_time() {
            others.order("call");
        }
        let calls = stage::on(&runtime, async move { raw_calls(raw, pace).await });
        if lock.calls_each_time() {
            others.order("rest");
            others.answer();
        }
        listener.order("");
        let latencies = listener.answer();
        let before = stage.commands();
        let (all, holds) = one_round(&mut workers, stage.time(TIME));
        let sent = stage.commands() - before;
        // The first round warms up.
        if round > 0 {
            commands.push(per_acquisition(sent, all));
            let trip = median(&calls);
            trips.extend(calls);
            let latencies = latencies.split_whitespace();
            heard.extend(latencies.map(|nanos| nanos.parse::<u64>().expect("a latency")));
            let now = changes_of(&holds);
            ratios.push(median(&now).as_secs_f64() / trip.as_secs_f64());
            changes.extend(now);
        }
    }
    let trip = median(&trips);
    let who = lock.told();
    let p99 = quantile(&mut changes, 0.99).as_secs_f64() / trip.as_secs_f64();
    for (part, called, value, aim) in [(0.5, "p50", median(&ratios), 1.5), (0.99, "p99", p99, 5.0)]
    {
        let change = quantile(&mut changes, part);
        table.row(
            bench,
            format!("release → other process holds, {who}: {called}"),
            (value, "trips"),
            Aim::AtMost(aim),
            format!(
                "{:.0} µs of {} changes; a raw call {:.0} µs, what it published heard after {:.0} µs; by round {:.2} to {:.2} trips",
                micros(change),
                changes.len(),
                micros(quantile(&mut trips, part)),
                micros(Duration::from_nanos(quantile(&mut heard, part))),
                quantile(&mut ratios, 0.0),
                quantile(&mut ratios, 1.0),
            ),
        );
    }
    if lock == Lock::Fair {
        table.row(
            bench,
            format!("{who}: commands per acquisition"),
            (median(&commands), ""),
            Aim::AtMost(4.0),
            "one task: 2",
        );
    }
}

/// From each release to the hold of another process.
fn changes_of(holds: &[Hold]) -> Vec<Duration> {
    let mut changes = Vec::new();
    for pair in holds.windows(2) {
        let gap = pair[1].from.checked_sub(pair[0].until);
        let gap = gap.expect("two held the name at once: this is no lock");
        if pair[1].process != pair[0].process {
            changes.push(Duration::from_nanos(gap));
        }
    }
    changes
}

/// Five processes whose releases all go to the server.
pub(crate) fn relay_on(url: &str) -> Vec<Worker> {
    let role = format!("relay {url} bench:p6:relay {}", Lock::HandoffOff.word());
    (0..PROCESSES).map(|_| Worker::start(&role)).collect()
}

/// How long the name was without a holder, in the middle of a round of them.
pub(crate) fn change(stage: &Stage, workers: &mut [Worker]) -> Duration {
    median(&changes_of(&one_round(workers, stage.time(TIME)).1))
}

/// Raw calls at this pace, and how long each took.
async fn raw_calls(mut raw: Raw, pace: Duration) -> Vec<Duration> {
    let mut calls = Vec::new();
    for _ in 0..RAW_CALLS {
        tokio::time::sleep(pace).await;
        let began = Instant::now();
        raw.publish(CHANNEL, &stage::monotonic().to_string()).await;
        calls.push(began.elapsed());
    }
    calls
}

/// A process that makes raw calls, which none hears, as often as one of ours holds the name. Orders: to call, to rest. Answers the latter.
pub(crate) async fn call(url: &str, _: &[&str]) {
    let mut raw = Raw::connect(url).await;
    worker::say("ready");
    while worker::heard().await.is_some() {
        let mut rest = std::pin::pin!(worker::heard());
        loop {
            tokio::select! {
                _ = &mut rest => break,
                () = tokio::time::sleep(HOLD) => raw.publish(UNHEARD, "").await,
            }
        }
        worker::say("it rests");
    }
}

/// A process that hears when something was said. Any order. Answer: the latencies in nanoseconds since the last one.
pub(crate) async fn hear(url: &str, _: &[&str]) {
    let client = redis::Client::open(url).expect("the kit's URL");
    let mut listeners = client.get_async_pubsub().await.expect("our own server");
    listeners.subscribe(CHANNEL).await.expect("a subscription");
    let latencies = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&latencies);
    tokio::spawn(async move {
        let mut messages = listeners.into_on_message();
        while let Some(message) = messages.next().await {
            let now = stage::monotonic();
            let said: u64 = message.get_payload().expect("an instant");
            heard.lock().push((now - said).to_string());
        }
    });
    worker::say("ready");
    while worker::heard().await.is_some() {
        let latencies = std::mem::take(&mut *latencies.lock());
        worker::say(&latencies.join(" "));
    }
}

/// How many holds there were, and those while 64 waited.
fn one_round(workers: &mut [Worker], time: Duration) -> (u64, Vec<Hold>) {
    for worker in workers.iter_mut() {
        worker.order(&time.as_nanos().to_string());
    }
    let mut holds = Vec::new();
    for (process, worker) in workers.iter_mut().enumerate() {
        for hold in worker.answer().split_whitespace() {
            let (from, until) = hold.split_once('-').expect("two instants");
            holds.push(Hold {
                process,
                from: from.parse().expect("an instant"),
                until: until.parse().expect("an instant"),
            });
        }
    }
    holds.sort_by_key(|hold| hold.from);
    // While tasks come and go, fewer than 64 wait.
    let edge = holds.len() / 10;
    (holds.len() as u64, holds[edge..holds.len() - edge].to_vec())
}

/// A process whose tasks take the name, keep it for a moment and pass it on. Order: for how many nanoseconds.
/// Answer: all holds.
pub(crate) async fn work(url: &str, words: &[&str]) {
    let [name, lock] = words else {
        panic!("relay: name, lock");
    };
    let lock = Lock::ALL.into_iter().find(|known| known.word() == *lock);
    let client = stage::connect(url).await;
    worker::say("ready");
    match lock.expect("a known lock") {
        Lock::HandoffOff => {
            let mutex = client.mutex(name).handoff(Handoff::off());
            relay(move || mutex.lock()).await;
        }
        Lock::HandoffOn => {
            let mutex = client.mutex(name);
            relay(move || mutex.lock()).await;
        }
        Lock::Fair => {
            let mutex = client.fair_mutex(name);
            relay(move || mutex.lock()).await;
        }
    }
}

async fn relay<K, F>(lock: impl Fn() -> F + Clone + Send + 'static)
where
    K: Send + Sync + 'static,
    F: Future<Output = Result<Guard<K>, Error>> + Send + 'static,
{
    while let Some(order) = worker::heard().await {
        let end = stage::monotonic() + order.parse::<u64>().expect("a length");
        let mut running = JoinSet::new();
        for _ in 0..TASKS {
            let lock = lock.clone();
            running.spawn(async move {
                let mut holds = Vec::new();
                while stage::monotonic() < end {
                    let guard = lock().await.expect("a guard");
                    let from = stage::monotonic();
                    tokio::time::sleep(HOLD).await;
                    let until = stage::monotonic();
                    guard.release().await.expect("the server answers");
                    holds.push(format!("{from}-{until}"));
                }
                holds
            });
        }
        let mut holds = Vec::new();
        while let Some(task) = running.join_next().await {
            holds.extend(task.expect("the task does not panic"));
        }
        worker::say(&holds.join(" "));
    }
}
