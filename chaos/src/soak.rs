//! A million operations in one process, through proxies that fail, and nothing left afterwards.
//!
//! The operations are those of the nemesis' workers, with hardly any time between them; the faults
//! are those of the network. The soak also looks at what the nemesis cannot see from outside: tasks,
//! threads and connections.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use fastrand::Rng;
use leasehold::Shutdown;
use leasehold_testkit::{Flavor, Proxy, Server};
use tokio::{runtime::Runtime, sync::watch, task::JoinSet};

use crate::{
    args::SoakArgs,
    checker::Checker,
    clock::{millis, now},
    counter::Counter,
    invariants::{
        leftovers::{self, Ends},
        patience::Patience,
    },
    journal::Journal,
    kind,
    nemesis::{
        FAULTS_SHOWN,
        inject::begin_on_network,
        log::Log,
        overlaps_found,
        schedule::{Fault, Plan, Schedule, Target},
    },
    ops::{self, LONGEST_LEASE, Phase, World},
    report::Report,
    worker,
};

const TICK: Duration = Duration::from_millis(10);
const SWEEP_EVERY: Duration = Duration::from_secs(1);
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
const SETTLES_WITHIN: Duration = Duration::from_secs(5);

/// A soak on each server.
pub(crate) fn run(args: &SoakArgs) -> Vec<Report> {
    let seed = args.common.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    let flavors = args.common.flavors().into_iter();
    flavors.map(|flavor| soak(args, flavor, seed)).collect()
}

/// The faults, outside of the runtime that the clients live on.
struct Outside<'a> {
    args: &'a SoakArgs,
    flavor: Flavor,
    world: Arc<World>,
    proxies: Vec<Proxy>,
    checker: Checker,
    log: Log,
    patience: Patience,
    report: Report,
    started: u64,
    swept: Instant,
    told: Instant,
}

fn soak(args: &SoakArgs, flavor: Flavor, seed: u64) -> Report {
    eprintln!(
        "chaos: soak on {flavor}, seed {seed}, {} operations",
        args.operations
    );
    let server = Server::start(flavor);
    let names = args.kinds.names(args.names);
    kind::prepare(&server, &names, &["PUBLISH"]).expect("the semaphores can be made");
    let proxies: Vec<Proxy> = (0..args.clients)
        .map(|_| Proxy::start(server.addr()))
        .collect();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let threads_before = threads();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let mut rng = Rng::with_seed(seed ^ 0x5eed);
    let (tell, phase) = watch::channel(Phase::Run);
    let lease = args.lease;
    let clients = proxies.iter().map(|proxy| {
        let client = runtime.block_on(ops::connect(&proxy.url(), false, lease, &mut rng));
        (
            Mutex::new(client.expect("there are no faults yet")),
            proxy.url(),
        )
    });
    let world = Arc::new(World {
        journal: Journal::in_memory(),
        counter: Counter::open(&dir.path().join("counter")).expect("a counter"),
        names,
        lease,
        classic: false,
        brisk: true,
        process: 0,
        phase,
        operations: AtomicU64::new(0),
        clients: clients.collect(),
    });
    for client in 0..args.clients {
        world.journal.write(ops::begins(&world.client(client)));
    }
    let mut tasks = JoinSet::new();
    for task in 0..args.clients * args.tasks {
        let work = ops::work(Arc::clone(&world), task % args.clients, rng.u64(..));
        tasks.spawn_on(work, runtime.handle());
    }
    let mut outside = Outside {
        args,
        flavor,
        world,
        proxies,
        checker: Checker::default(),
        log: Log::default(),
        patience: Patience {
            lease,
            slack: args.common.slack,
        },
        report: Report {
            what: format!(
                "soak: {} clients of {} tasks on {} names of kinds {}, lease {lease:?}",
                args.clients, args.tasks, args.names, args.kinds
            ),
            server: flavor.to_string(),
            seed,
            again: format!(
                "chaos soak --server {flavor} --seed {seed} --operations {} --clients {} --tasks {} --names {} --kinds {} --lease {}",
                args.operations,
                args.clients,
                args.tasks,
                args.names,
                args.kinds,
                humantime::format_duration(lease)
                    .to_string()
                    .replace(' ', ""),
            ),
            ..Report::default()
        },
        started: now(),
        swept: Instant::now(),
        told: Instant::now(),
    };
    outside.storm(seed);
    tell.send_replace(Phase::Calm);
    outside.calm(&runtime, &server, tasks);
    outside.clients_end(&runtime, &server);
    drop(tell);
    runtime.shutdown_timeout(Duration::from_secs(5));
    outside.verdict(&server, threads_before)
}

/// The number of the network it happens to.
fn network(plan: &Plan) -> usize {
    match plan.target {
        Target::Network(index) => index,
        _ => unreachable!("faults of networks only"),
    }
}

/// How many threads this process has, besides the library's own: one per process, which stays (docs/guarantees.md).
fn threads() -> usize {
    let Ok(all) = std::fs::read_dir("/proc/self/task") else {
        return 0;
    };
    let name = |thread: &std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm"));
    all.filter_map(Result::ok)
        .filter(|thread| name(thread).is_ok_and(|name| name.trim() != "leasehold"))
        .count()
}

impl Outside<'_> {
    fn storm(&mut self, seed: u64) {
        // Short faults, and many: each interrupts other operations.
        let pace = self.args.lease / 4;
        let faults = Fault::of_networks();
        let mut schedule = Schedule::new(seed, faults, self.args.clients, pace).peekable();
        let mut open: Vec<(Instant, usize, Plan)> = Vec::new();
        let (start, most) = (Instant::now(), Duration::from_secs(self.args.seconds));
        while self.world.operations.load(Ordering::Relaxed) < self.args.operations {
            if start.elapsed() > most {
                eprintln!("chaos: time is over before the operations are");
                break;
            }
            open.retain(|(until, number, plan)| {
                let over = *until <= Instant::now();
                if over {
                    self.proxies[network(plan)].heal();
                    self.log.ended(*number, now());
                }
                !over
            });
            while let Some(plan) = schedule.next_if(|plan| plan.at <= start.elapsed()) {
                begin_on_network(&self.proxies[network(&plan)], &plan);
                let number = self.log.began(plan.clone(), now());
                open.push((Instant::now() + plan.lasts, number, plan));
            }
            self.look();
            std::thread::sleep(TICK);
        }
        for proxy in &self.proxies {
            proxy.heal();
        }
        self.report.operations = self.world.operations.load(Ordering::Relaxed);
    }

    fn calm(&mut self, runtime: &Runtime, server: &Server, mut tasks: JoinSet<()>) {
        self.checker.calm_since = Some(now());
        let most = self.patience.calm() * 2 + Duration::from_secs(10);
        let start = Instant::now();
        while !tasks.is_empty() && start.elapsed() < most {
            while let Some(task) = tasks.try_join_next() {
                if let Err(error) = task {
                    self.report.other.push(format!("a task panicked: {error}"));
                }
            }
            self.look();
            std::thread::sleep(TICK);
        }
        if !tasks.is_empty() {
            let left = tasks.len();
            self.report.hangs.push(format!(
                "{left} tasks did not end {most:?} after the faults"
            ));
        }
        let mut locks = JoinSet::new();
        for (client, name) in (0..self.args.clients)
            .flat_map(|client| (0..self.args.names).map(move |name| (client, name)))
        {
            let world = Arc::clone(&self.world);
            let lock = async move {
                let lock = ops::calm_lock(&world, client, name);
                match tokio::time::timeout(most, lock).await {
                    Ok(Ok(_)) => None,
                    Ok(Err(error)) => Some(format!(
                        "client {client} could not lock name {name}: {error}"
                    )),
                    Err(_) => Some(format!(
                        "client {client} waited {most:?} in vain for name {name}"
                    )),
                }
            };
            locks.spawn_on(lock, runtime.handle());
        }
        let failures = runtime.block_on(locks.join_all());
        let failures: Vec<String> = failures.into_iter().flatten().collect();
        if !failures.is_empty() {
            let seen = leftovers::held(server, &self.world.names);
            self.report.hangs.extend(seen);
        }
        let hangs = failures.into_iter();
        self.report
            .hangs
            .extend(hangs.map(|failure| format!("in the calm, {failure}")));
        self.look();
        // Tasks that are left hang, and were reported.
        tasks.abort_all();
    }

    fn clients_end(&mut self, runtime: &Runtime, server: &Server) {
        for client in 0..self.args.clients {
            let left = runtime.block_on(worker::forgotten(&self.world.client(client)));
            if left != [0; 3] {
                let [queues, watched, tasks] = left;
                self.report.leftovers.push(format!(
                    "in the memory of client {client}: {queues} queues, {watched} watched holds, {tasks} tasks"
                ));
            }
        }
        let channels = settled(|| leftovers::channels(server));
        let listens = channels
            .iter()
            .map(|channel| format!("a subscription to {channel:?}"));
        self.report.leftovers.extend(listens);
        self.report.unrest(leftovers::unrest(server));
        // Every other client is shut down; the rest are dropped with the world.
        for client in (0..self.args.clients).step_by(2) {
            let client = self.world.client(client);
            let grace = Duration::from_millis(100);
            runtime.block_on(client.shutdown(Shutdown::ReleaseAll { grace }));
        }
        self.look();
    }

    /// The runtime is gone, and all clients with it.
    fn verdict(mut self, server: &Server, threads_before: usize) -> Report {
        self.checker.process_ended(0);
        self.checker.sweep(now(), Duration::ZERO);
        let names = self.world.names.clone();
        let started = self.started;
        let world = Arc::downgrade(&self.world);
        drop(self.world);
        if world.strong_count() > 0 {
            self.report
                .leftovers
                .push("tasks that hold on to the world".to_owned());
        }
        let found = settled(|| {
            let open: usize = self.proxies.iter().map(Proxy::connections).sum();
            vec![(); open]
        });
        if !found.is_empty() {
            self.report
                .leftovers
                .push(format!("{} connections", found.len()));
        }
        self.report
            .leftovers
            .extend(settled(|| leftovers::connections(server)));
        let more = settled(|| vec![(); threads().saturating_sub(threads_before)]);
        if !more.is_empty() {
            self.report
                .leftovers
                .push(format!("{} threads", more.len()));
        }
        // Leases left to expire have ended by then; no waiter is left to queue.
        let lease = self.args.lease * LONGEST_LEASE;
        std::thread::sleep(lease + self.args.common.slack);
        let ends = Ends {
            lease,
            poll: Duration::ZERO,
        };
        let mut keys = leftovers::keys(server, &names, ends, &self.checker);
        for key in &mut keys {
            key.allowed &= [
                "tombstone",
                "label",
                "last token",
                "of a semaphore",
                "of a latch",
            ]
            .contains(&key.kind);
        }
        self.report.keys(&keys);
        self.report.seconds = millis(now() - started) / 1e3;
        self.report.read(&self.checker);
        self.report.overlaps = overlaps_found(
            &self.checker,
            started,
            |_| 0,
            |before, _| {
                let all: Vec<usize> = (0..self.args.clients).collect();
                self.log.last(before, started, &all, FAULTS_SHOWN)
            },
        );
        self.report.faults = self.log.counts();
        self.report
    }

    fn look(&mut self) {
        for record in self.world.journal.take() {
            self.checker.add(0, record);
        }
        for (_, number, ask) in self.checker.hanging(now(), self.patience) {
            let waited = millis(now() - ask.at) / 1e3;
            if self.checker.reported.insert((0, number)) {
                self.report.hangs.push(format!(
                    "{} of name {} is not answered after {waited:.1} s",
                    ask.how, ask.name
                ));
            }
        }
        if self.swept.elapsed() > SWEEP_EVERY {
            self.swept = Instant::now();
            self.checker.sweep(now(), self.args.lease * 10);
        }
        if self.told.elapsed() > PROGRESS_EVERY {
            self.told = Instant::now();
            eprintln!(
                "chaos: soak on {} {:>4.0} s: {} operations, {} holds, {} faults, {} overlaps, {} lost updates",
                self.flavor,
                millis(now() - self.started) / 1e3,
                self.world.operations.load(Ordering::Relaxed),
                self.checker.holds,
                self.log.len(),
                self.checker.overlaps.len(),
                self.checker.lost_updates.len(),
            );
        }
    }
}

/// The leftovers that `left` finds, once it finds none or has had its time.
fn settled<T>(mut left: impl FnMut() -> Vec<T>) -> Vec<T> {
    let start = Instant::now();
    loop {
        let found = left();
        if found.is_empty() || start.elapsed() > SETTLES_WITHIN {
            return found;
        }
        std::thread::sleep(TICK);
    }
}
