//! P8: what does it cost to keep 100,000 names, and does it hold up others?
//!
//! Unit: CPU of the server and of the client in percent of a core, over three renewal periods and more, at a lease of
//! 30 s renewed every 10; then, over one more period, the 99th percentile in milliseconds of a `PING` sent every 2 ms,
//! among those in the tenths of a second in which the server renews; and how many names were lost.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use leasehold::{Client, Guard};
use leasehold_testkit::Server;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::{
    float::{float, micros, millis, quantile},
    raw::Raw,
    stage::{self, Stage, connect_with, cpu_time, main_thread_time, percent},
    table::{Aim, Table},
    worker::{self, Worker},
};

pub(crate) const NAMES: usize = 100_000;
/// How many tasks take names at once.
const TASKS: usize = 100;
/// Renewal scripts that a client has under way at once.
const LANES: usize = 1;
const LEASE: Duration = Duration::from_secs(30);
const PERIOD: Duration = Duration::from_secs(10);
pub(crate) const PERIODS: u64 = 3;
const PING_EVERY: Duration = Duration::from_millis(2);
const BIN: Duration = Duration::from_millis(100);
/// In a busy bin the server works for more than this, which PINGs alone do not make it.
const BUSY: Duration = Duration::from_millis(10);

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let mut idle = pings(stage, Duration::from_secs(2));
    let idle_p99 = quantile(&mut idle.all, 0.99);
    let raw = raw_renewal(stage);
    // The CPU of a server that holds nothing.
    let server = stage.server.pid();
    let (began, before) = (Instant::now(), cpu_time(server));
    thread::sleep(stage.time(PERIOD));
    let idle = percent(cpu_time(server).saturating_sub(before), began.elapsed());

    let mut holder = Worker::start(&format!("hold {} bench:p8", stage.url()));
    holder.order(&format!("take {NAMES}"));
    holder.answer();
    // In a short run one period must do.
    let (server, pids) = (
        [&stage.server],
        [vec![stage.server.pid()], vec![holder.pid()]],
    );
    let cost = Cost::of(&server, &pids, if stage.is_short() { 1 } else { PERIODS });
    eprintln!("   renewed for {:.0?}; now with PINGs", cost.time);
    let more = PERIOD + PERIOD / 5;
    holder.order(&format!("stall {}", more.as_millis()));
    let mut meanwhile = pings(stage, more);
    let stall = holder.answer();
    let lost = lost(stage, &mut holder);
    eprintln!("   and now in an order that has nothing to do with memory");
    holder.order("shuffle");
    holder.answer();
    let shuffled = Cost::of(&server, &pids, 1);

    let who = "100,000 held names, 30 s renewed every 10 s";
    table.row(
        "P8",
        format!("{who}: server CPU"),
        (cost.percent(0), "% of a core"),
        Aim::AtMost(3.0),
        format!(
            "{}; an idle server's {idle:.2} % counted too; after half the names were given back and taken again at random, \
             three times over: {:.2} %",
            cost.told(0, raw),
            shuffled.percent(0)
        ),
    );
    table.row(
        "P8",
        format!("{who}: client CPU"),
        (cost.percent(1), "% of a core"),
        Aim::AtMost(1.5),
        format!(
            "{}; after the same shuffling: {:.2} %",
            cost.told(1, raw),
            shuffled.percent(1)
        ),
    );
    let all = quantile(&mut meanwhile.all, 0.99);
    let (busy, seen) = if meanwhile.busy.is_empty() {
        (all, 0)
    } else {
        (quantile(&mut meanwhile.busy, 0.99), meanwhile.busy.len())
    };
    table.row(
        "P8",
        format!("{who}: a PING while it renews, p99"),
        (millis(busy), "ms"),
        Aim::AtMost(1.5),
        format!("{seen} PINGs; at any time {all:.1?}, before anything was held {idle_p99:.1?}; a task beside the holder's watchdog was late by {stall} at most"),
    );
    table.row(
        "P8",
        format!("{who}: lost"),
        (float(lost), ""),
        Aim::AtMost(0.0),
        "invalid guards, and names missing on the server",
    );
}

/// The cost of renewal.
pub(crate) struct Cost {
    renewed: u64,
    time: Duration,
    /// CPU of each group of processes.
    spent: Vec<Duration>,
}

impl Cost {
    /// Over so many rounds, from the end of one to the end of another: whole periods, however long they really are. The servers are those
    /// that are asked to renew, and the processes all that take part.
    pub(crate) fn of(servers: &[&Server], pids: &[Vec<u32>], rounds: u64) -> Cost {
        let of = |group: &Vec<u32>| group.iter().copied().map(cpu_time).sum::<Duration>();
        let spent = || pids.iter().map(of).collect::<Vec<Duration>>();
        let first = renewals(servers) + NAMES as u64;
        until_renewed(servers, first);
        let (began, renewed, before) = (Instant::now(), renewals(servers), spent());
        // Hardly ever asked, for the server's answers cost it something too.
        thread::sleep(PERIOD.mul_f64(0.9 * float(rounds)));
        until_renewed(servers, first + rounds * NAMES as u64);
        let (time, after) = (began.elapsed(), spent());
        Cost {
            renewed: renewals(servers) - renewed,
            time,
            spent: after
                .iter()
                .zip(before)
                .map(|(after, before)| after.saturating_sub(before))
                .collect(),
        }
    }

    pub(crate) fn percent(&self, at: usize) -> f64 {
        percent(self.spent[at], self.time)
    }

    fn told(&self, at: usize, raw: [[f64; 2]; 2]) -> String {
        let Cost { renewed, time, .. } = self;
        format!(
            "{renewed} renewals in {time:.1?} at {:.1} µs; raw, the same script: {:.1} µs in the order of their making, {:.1} at \
             random",
            micros(self.spent[at]) / float(*renewed),
            raw[0][at],
            raw[1][at]
        )
    }
}

/// How many leases were renewed so far. Nothing else calls `PEXPIREAT`.
fn renewals(servers: &[&Server]) -> u64 {
    let of = |server: &&Server| server.calls().get("pexpireat").copied().unwrap_or(0);
    servers.iter().map(of).sum()
}

/// Waits until there were so many.
fn until_renewed(servers: &[&Server], renewed: u64) {
    while renewals(servers) < renewed {
        thread::sleep(BIN);
    }
}

/// Microseconds of server and of client CPU for the renewal of one name by the redis crate alone: in the order in
/// which they were made, as the watchdog does it, and at random.
fn raw_renewal(stage: &Stage) -> [[f64; 2]; 2] {
    const TIMES: u32 = 3;
    let runtime = stage::one_thread();
    let mut raw = runtime.block_on(Raw::connect(&stage.url()));
    runtime.block_on(raw.hold("bench:p8:free", NAMES));
    let pids = [stage.server.pid(), std::process::id()];
    let each = [false, true].map(|shuffled| {
        let raw = raw.clone();
        let before = pids.map(cpu_time);
        stage::on(&runtime, async move {
            for _ in 0..TIMES {
                raw.renew("bench:p8:free", NAMES, LANES, shuffled).await;
            }
        });
        [0, 1].map(|at| {
            let spent = cpu_time(pids[at]).saturating_sub(before[at]);
            micros(spent) / f64::from(TIMES) / float(NAMES as u64)
        })
    });
    stage.server.cli(&["FLUSHALL"]);
    each
}

/// How many of the names the holder or the server no longer knows.
fn lost(stage: &Stage, holder: &mut Worker) -> u64 {
    holder.order("valid");
    let valid: usize = holder.answer().parse().expect("a number");
    let names: Vec<String> = (0..NAMES).map(|number| name("bench:p8", number)).collect();
    let mut there = 0;
    for some in names.chunks(1000) {
        let mut command = vec!["EXISTS"];
        command.extend(some.iter().map(String::as_str));
        there += redis::from_redis_value::<usize>(stage.server.cli(&command)).expect("a number");
    }
    (NAMES - valid.min(there)) as u64
}

#[derive(Default)]
struct Pings {
    all: Vec<Duration>,
    /// Those of the busy bins.
    busy: Vec<Duration>,
}

/// On a thread of its own, which goes before the holder, with which it shares a core.
fn pings(stage: &Stage, time: Duration) -> Pings {
    thread::scope(|scope| scope.spawn(|| ping(stage, time)).join()).expect("the server answers")
}

fn ping(stage: &Stage, time: Duration) -> Pings {
    stage::go_first();
    let mut connection = stage.server.connection();
    let worked = || main_thread_time(stage.server.pid()).unwrap_or_default();
    let began = Instant::now();
    let mut pings = Pings::default();
    while began.elapsed() < time {
        let (bin, before) = (Instant::now(), worked());
        let mut some = Vec::new();
        while bin.elapsed() < BIN {
            let asked = Instant::now();
            redis::cmd("PING").exec(&mut connection).expect("a PONG");
            some.push(asked.elapsed());
            thread::sleep(PING_EVERY.saturating_sub(asked.elapsed()));
        }
        if worked().saturating_sub(before) > BUSY {
            pings.busy.extend(&some);
        }
        pings.all.extend(some);
    }
    pings
}

fn name(prefix: &str, number: usize) -> String {
    format!("{prefix}:{number:06}")
}

/// A process that holds names. Orders: `take N`, answered with the memory it took; `valid`, answered with the number of valid
/// guards; `tasks`, answered with the number of tasks of the client; `stall MS`, answered with how late a task was at worst.
pub(crate) async fn work(url: &str, words: &[&str]) {
    let [prefix] = words else {
        panic!("hold: prefix of the names");
    };
    let builder = Client::builder().url(url).lease(LEASE).renew_every(PERIOD);
    let client = connect_with(builder).await;
    // The state that the first locks set up stays, and is no guard's.
    drop(take(&client, &format!("{prefix}:warm"), TASKS * 10).await);
    let mut guards = Vec::new();
    worker::say("ready");
    while let Some(order) = worker::heard().await {
        let words: Vec<&str> = order.split(' ').collect();
        match words.as_slice() {
            ["take", count] => {
                let count = count.parse().expect("a number of names");
                let before = stage::own_memory();
                guards = take(&client, prefix, count).await;
                worker::say(&(stage::own_memory() - before).to_string());
            }
            ["handles", count] => {
                let count = count.parse().expect("a number of names");
                let handles: Vec<_> = (0..count).map(|n| client.mutex(name("idle", n))).collect();
                let footprint = client.footprint();
                drop(handles);
                worker::say(&footprint.queues.to_string());
            }
            ["valid"] => {
                let valid = guards.iter().filter(|guard| guard.is_valid()).count();
                worker::say(&valid.to_string());
            }
            ["stall", time] => {
                let time = Duration::from_millis(time.parse().expect("milliseconds"));
                worker::say(&format!("{:.1?}", latest(time).await));
            }
            ["shuffle"] => {
                for _ in 0..3 {
                    fastrand::shuffle(&mut guards);
                    let names: Vec<String> = guards
                        .drain(guards.len() / 2..)
                        .map(|guard| guard.name().to_owned())
                        .collect();
                    // Dropped guards go back in the background; a task that locks the same name waits for it.
                    for some in names.chunks(TASKS) {
                        let locks = some.iter().map(|name| client.mutex(name).lock());
                        for guard in futures_util::future::join_all(locks).await {
                            guards.push(guard.expect("a guard"));
                        }
                    }
                }
                worker::say("shuffled");
            }
            ["tasks"] => worker::say(&client.footprint().tasks.to_string()),
            other => panic!("there is no order {other:?}"),
        }
    }
}

/// How much later than it asked for a task of this runtime was woken, at worst.
async fn latest(time: Duration) -> Duration {
    const NAP: Duration = Duration::from_millis(5);
    let began = Instant::now();
    let mut latest = Duration::ZERO;
    while began.elapsed() < time {
        let asleep = Instant::now();
        tokio::time::sleep(NAP).await;
        latest = latest.max(asleep.elapsed().saturating_sub(NAP));
    }
    latest
}

/// Takes `count` names at once. Only the guards are left behind: the memory of the tasks is no guard's.
async fn take(client: &Client, prefix: &str, count: usize) -> Vec<Guard> {
    let guards = Arc::new(Mutex::new(Vec::with_capacity(count)));
    let mut running = JoinSet::new();
    for task in 0..TASKS {
        let (client, prefix, guards) = (client.clone(), prefix.to_owned(), Arc::clone(&guards));
        running.spawn(async move {
            for number in (task..count).step_by(TASKS) {
                let mutex = client.mutex(name(&prefix, number));
                let guard = mutex.lock().await.expect("a guard");
                guards.lock().push(guard);
            }
        });
    }
    while let Some(task) = running.join_next().await {
        task.expect("the task does not panic");
    }
    std::mem::take(&mut *guards.lock())
}
