//! P29: does each cost more where there are more of them?
//!
//! Unit: µs of processor time for each operation, of the server's process or of ours, beside 10, 100, 1,000 and 10,000 others: names, tasks that
//! wait for a name, readers inside, waiters of a fair mutex, clients that wait. What grows with its number, and no faster, costs each the same;
//! so a figure is what each costs beside the most, as a multiple of what it costs beside the fewest for which it is less.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use leasehold::{Client, Error, Guard, RwLock};
use tokio::{runtime::Runtime, sync::Notify, task::JoinSet, time::sleep};

use crate::{
    contend,
    float::{float, median, micros, millis},
    p17_queue,
    stage::{self, Stage, cpu_time},
    table::{Aim, Table, number},
};

const NUMBERS: [usize; 4] = [10, 100, 1_000, 10_000];
/// So many clients of ours have a connection for their requests and another for their messages each, which both the server and this process
/// must be allowed to open.
const CLIENTS: usize = 1_000;
const ROUNDS: usize = 3;
/// Pairs of a round, of all names together; and holds that are passed on within a process.
const PAIRS: usize = 20_000;
/// Holds that are passed on by the server.
const CHANGES: usize = 2_000;
/// Readers and writers that come beside those that are inside.
const BESIDE: usize = 200;
const LEASE: Duration = Duration::from_secs(40);
/// The longest lease of a reader is this many ms longer than the shortest.
const SPREAD: usize = 20_000;
/// Tasks that wait in a fair queue for a moment.
const GIVE_UP: usize = 50;
const MS: Duration = Duration::from_millis(1);

/// For each measurement and side: the costs of all rounds, beside each number of others.
type Costs = BTreeMap<(&'static str, &'static str), BTreeMap<usize, Vec<f64>>>;

/// A look at the costs beside a number of others.
struct Look<'a> {
    stage: &'a Stage,
    runtime: &'a Runtime,
    beside: usize,
    /// The first round warms up.
    counts: bool,
    costs: &'a mut Costs,
}

/// The processor time of the server and of this process.
fn spent(stage: &Stage) -> [Duration; 2] {
    [stage.server.pid(), std::process::id()].map(cpu_time)
}

impl Look<'_> {
    fn note(&mut self, what: &'static str, side: &'static str, cost: f64) {
        if self.counts {
            let beside = self.costs.entry((what, side)).or_default();
            beside.entry(self.beside).or_default().push(cost);
        }
    }

    /// Does this, which is so many operations, and notes what each of them cost the server and this process.
    fn each<T>(&mut self, what: &'static str, many: usize, work: impl Future<Output = T>) -> T {
        let before = spent(self.stage);
        let done = self.runtime.block_on(work);
        let after = spent(self.stage);
        for (at, side) in ["server", "client"].into_iter().enumerate() {
            let cost = micros(after[at].saturating_sub(before[at]));
            self.note(what, side, cost / float(many as u64));
        }
        done
    }

    /// As many tasks as names, each with pairs of its own.
    fn names(&mut self, client: &Client) {
        let pairs = (PAIRS / self.beside).max(4);
        let beside = self.beside;
        let work = async {
            let mut tasks = JoinSet::new();
            for number in 0..beside {
                let mutex = client.mutex(format!("bench:p29:name:{number}"));
                tasks.spawn(async move {
                    for _ in 0..pairs {
                        contend::pair(&mutex).await;
                    }
                });
            }
            tasks.join_all().await;
        };
        let what = "n names: a pair";
        self.each(what, beside * pairs, work);
    }

    /// Tasks that wait for a name that another holds, and then pass it on among themselves.
    fn tasks(&mut self, client: &Client) {
        let beside = self.beside;
        let turns = (PAIRS / beside).max(2);
        let mutex = client.mutex("bench:p29:tasks");
        let (runtime, before) = (self.runtime, stage::own_memory());
        let (held, waiters) = runtime.block_on(async {
            let held = mutex.lock().await.expect("a guard");
            let mut waiters = JoinSet::new();
            for _ in 0..beside {
                let mutex = mutex.clone();
                waiters.spawn(async move {
                    for _ in 0..turns {
                        contend::pair(&mutex).await;
                    }
                });
            }
            while mutex.status().await.expect("an answer").waiting_here < beside {
                sleep(MS).await;
            }
            (held, waiters)
        });
        if beside == NUMBERS[NUMBERS.len() - 1] {
            let grown = stage::own_memory().saturating_sub(before);
            // In the round that warms up, for the memory is kept for the next.
            let known = self.costs.entry((MEMORY, "client")).or_default();
            let first = known.entry(beside).or_default();
            if first.is_empty() {
                first.push(float(grown) / float(beside as u64));
            }
        }
        let work = async {
            held.release().await.expect("an answer");
            waiters.join_all().await;
        };
        let what = "n tasks wait for a name: a hold";
        self.each(what, beside * turns, work);
    }

    /// Readers that have a hold each, since their leases are of different lengths; others that come and leave; and a writer that asks.
    fn readers(&mut self, client: &Client, other: &Client) {
        let beside = self.beside;
        let lock = |of: usize, among: usize| {
            let lock = client.rw_lock("bench:p29:readers");
            lock.lease(LEASE + MS * u32::try_from(of * SPREAD / among).expect("milliseconds"))
        };
        let inside: Vec<RwLock> = (0..beside).map(|n| lock(n, beside)).collect();
        let enter = join_all(inside.iter().map(RwLock::read));
        let guards: Result<Vec<_>, Error> = self.runtime.block_on(enter).into_iter().collect();
        let asks = other.rw_lock("bench:p29:readers");
        for n in 0..BESIDE {
            // An odd number: one of those inside has an even one, and would share its hold.
            let comes = lock(n * SPREAD / BESIDE + 1, SPREAD);
            let what = "n readers inside: a reader comes";
            let guard = self.each(what, 1, comes.read()).expect("a guard");
            let what = "n readers inside: a reader leaves";
            self.each(what, 1, guard.release()).expect("an answer");
            let what = "n readers inside: a writer asks";
            let writes = self.each(what, 1, asks.try_write());
            assert!(writes.expect("an answer").is_none());
        }
        let what = "n readers leave at once: each";
        let leave = join_all(
            guards
                .expect("guards")
                .into_iter()
                .rev()
                .map(Guard::release),
        );
        for released in self.each(what, beside, leave) {
            released.expect("an answer");
        }
    }

    /// Readers under the same terms share one hold on the server.
    fn sharers(&mut self, client: &Client) {
        let lock = client.rw_lock("bench:p29:sharers");
        let (beside, turns) = (self.beside, PAIRS / self.beside);
        let work = async {
            for _ in 0..turns {
                let guards = join_all((0..beside).map(|_| lock.read())).await;
                for guard in guards {
                    guard.expect("a guard").release().await.expect("an answer");
                }
            }
        };
        let what = "n readers share a hold: a read";
        self.each(what, beside * turns, work);
    }

    /// Tasks of one client, each with a place of its own in the server's queue.
    fn fair(&mut self, client: &Client) {
        let beside = self.beside;
        let mutex = client.fair_mutex("bench:p29:fair");
        let locks = vec![mutex.clone(); beside];
        let (runtime, stage) = (self.runtime, self.stage);
        let held = runtime
            .block_on(async { mutex.lock().await })
            .expect("a guard");
        let passing = Passing::start(runtime, CHANGES, locks, |lock| lock.lock());
        while in_line(stage) < beside {
            runtime.block_on(async { sleep(5 * MS).await });
        }
        let what = "n fair waiters: a waiter that gives up";
        self.each(what, GIVE_UP, async {
            let given = join_all((0..GIVE_UP).map(|_| mutex.try_lock_for(150 * MS))).await;
            for given in given {
                assert!(
                    given.expect("an answer").is_none(),
                    "all others are before it"
                );
            }
        });
        self.kept();
        let what = "n fair waiters: a hand-over";
        self.each(what, CHANGES, async {
            held.release().await.expect("an answer");
            passing.passed().await;
        });
        runtime.block_on(passing.end());
    }

    /// A client keeps its places in a fair queue: how much that costs the server, and how long it holds up all others at most.
    fn kept(&mut self) {
        let server = &self.stage.server;
        server.cli(&["SLOWLOG", "RESET"]);
        server.cli(&["CONFIG", "SET", "slowlog-max-len", "10000"]);
        server.cli(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
        // The places are kept once a second, or nearly so.
        self.runtime
            .block_on(async { sleep(Duration::from_millis(2_500)).await });
        server.cli(&["CONFIG", "SET", "slowlog-log-slower-than", "-1"]);
        let kept: Vec<(usize, u64)> = scripts(self.stage);
        let places: usize = kept
            .iter()
            .map(|(words, _)| words.saturating_sub(14) / 3)
            .sum();
        let took: u64 = kept.iter().map(|(_, took)| *took).sum();
        let most = kept.iter().map(|(_, took)| *took).max();
        self.note(
            "n fair waiters: a place is kept",
            "server",
            float(took) / float(places as u64),
        );
        self.note(
            LONGEST,
            "server",
            millis(Duration::from_micros(most.unwrap_or(0))),
        );
    }

    /// Clients, each with a task that wants the name, and connections of its own.
    fn clients(&mut self, clients: &[Client]) {
        let locks: Vec<_> = clients[..self.beside]
            .iter()
            .map(|client| client.mutex("bench:p29:clients"))
            .collect();
        let runtime = self.runtime;
        let first = locks[0].clone();
        let held = runtime
            .block_on(async { first.lock().await })
            .expect("a guard");
        let beside = self.beside;
        let passing = Passing::start(runtime, CHANGES, locks, |lock| lock.lock());
        let all = async || first.status().await.expect("an answer").waiting_clients;
        // A task of the holder's own client takes no place.
        while runtime.block_on(all()) + 1 < beside as u64 {
            runtime.block_on(async { sleep(5 * MS).await });
        }
        let what = "n clients wait for a name: a hand-over";
        self.each(what, CHANGES, async {
            held.release().await.expect("an answer");
            passing.passed().await;
        });
        runtime.block_on(passing.end());
    }
}

const MEMORY: &str = "n tasks wait for a name: memory";
const LONGEST: &str = "n fair waiters: the longest script that keeps places";

/// Tasks that take a lock and pass it on, until it was passed on so often.
struct Passing {
    tasks: JoinSet<()>,
    enough: Arc<Notify>,
}

impl Passing {
    fn start<L, K, F>(
        runtime: &Runtime,
        often: usize,
        locks: Vec<L>,
        lock: impl Fn(&L) -> F + Copy + Send + 'static,
    ) -> Passing
    where
        L: Send + Sync + 'static,
        K: Send + Sync + 'static,
        F: Future<Output = Result<Guard<K>, Error>> + Send + 'static,
    {
        let (passed, enough) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let mut tasks = JoinSet::new();
        for from in locks {
            let (passed, enough) = (Arc::clone(&passed), Arc::clone(&enough));
            let task = async move {
                loop {
                    let guard = lock(&from).await.expect("a guard");
                    let before = passed.fetch_add(1, Ordering::Relaxed);
                    guard.release().await.expect("an answer");
                    if before + 1 == often {
                        enough.notify_one();
                    }
                    if before + 1 >= often {
                        return;
                    }
                }
            };
            tasks.spawn_on(task, runtime.handle());
        }
        Passing { tasks, enough }
    }

    async fn passed(&self) {
        self.enough.notified().await;
    }

    async fn end(self) {
        self.tasks.join_all().await;
    }
}

fn in_line(stage: &Stage) -> usize {
    let answer = stage
        .server
        .cli(&["LLEN", "redisson_lock_queue:{bench:p29:fair}"]);
    redis::from_redis_value(answer).expect("a number")
}

/// How many words each script had that the server ran, and how many µs it took.
fn scripts(stage: &Stage) -> Vec<(usize, u64)> {
    type Entry = (i64, i64, u64, Vec<String>, String, String);
    let log = stage.server.cli(&["SLOWLOG", "GET", "-1"]);
    let log: Vec<Entry> = redis::from_redis_value(log).expect("a slow log");
    let scripts = log
        .into_iter()
        .filter(|(_, _, _, words, ..)| words[0].eq_ignore_ascii_case("evalsha"));
    let told = scripts.map(|(_, _, took, words, ..)| {
        // The log keeps the first words, and says how many more there were in place of the last.
        let more = words.last().and_then(|last| last.strip_prefix("... ("));
        let more = more.and_then(|rest| rest.split(' ').next()?.parse::<usize>().ok());
        (
            more.map_or(words.len(), |more| words.len() - 1 + more),
            took,
        )
    });
    told.collect()
}

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let runtime = stage::one_thread();
    let (client, clients) = runtime.block_on(async {
        let builder = Client::builder()
            .url(stage.url())
            .poll_every(Duration::from_secs(1));
        // Leases of their own lengths are believed.
        let client = builder.redisson_watchdog(Duration::from_secs(120));
        let client = stage::connect_with(client).await;
        let url = stage.url();
        let clients = join_all((0..CLIENTS).map(|_| stage::connect(&url))).await;
        (client, clients)
    });
    let mut costs = Costs::new();
    for round in 0..=stage.rounds(ROUNDS) {
        for beside in NUMBERS {
            let mut look = Look {
                stage,
                runtime: &runtime,
                beside,
                counts: round > 0,
                costs: &mut costs,
            };
            look.tasks(&client); // before the names, whose tasks leave memory for these
            look.names(&client);
            look.readers(&client, &clients[0]);
            look.sharers(&client);
            look.fair(&client);
            if beside <= CLIENTS {
                look.clients(&clients);
            }
            look.note(
                "n clients wait, scripts alone: a cycle",
                "server",
                p17_queue::round(stage, beside),
            );
        }
    }
    tell(table, costs);
}

fn tell(table: &mut Table, costs: Costs) {
    for ((what, side), costs) in costs {
        let costs = costs.into_iter();
        let costs: Vec<(usize, f64)> = costs.map(|(n, costs)| (n, median(&costs))).collect();
        let told = costs.iter();
        let told: Vec<String> = told
            .map(|(n, cost)| format!("{n}: {}", number(*cost)))
            .collect();
        let told = told.join(", ");
        let most = costs.last().expect("a number").1;
        let least = costs.iter().map(|(_, cost)| *cost);
        let least = least.fold(f64::INFINITY, f64::min);
        let (value, bound, told) = match what {
            MEMORY => ((most, "B"), 4096.0, "each of 10,000".to_owned()),
            LONGEST => ((most, "ms"), 5.0, format!("ms; {told}")),
            _ => ((most / least, "×"), 2.0, format!("µs; {told}")),
        };
        let what = format!("{what}: {side}");
        table.row("P29", what, value, Aim::AtMost(bound), told);
    }
}
