//! A run on one server.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::IsTerminal as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use fastrand::Rng;
use leasehold_testkit::Flavor;

use super::{
    children::Worker,
    inject::{Field, say},
    log::Log,
    schedule::{Fault, Plan, Schedule, Target, quarantine},
    servers::Servers,
    verdict,
};
use crate::{
    args::NemesisArgs,
    checker::Checker,
    clock::{millis, now},
    invariants::patience::{OpenAsk, Patience},
    report::Report,
    topology::Topology,
    worker::Job,
};

const TICK: Duration = Duration::from_millis(10);
const SWEEP_EVERY: Duration = Duration::from_secs(1);
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// How long a process may take to end once it is told to.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// A run on one server.
pub(super) struct Run<'a> {
    pub(super) args: &'a NemesisArgs,
    pub(super) flavor: Flavor,
    pub(super) seed: u64,
    /// Seeds of the processes; the schedule has its own.
    rng: Rng,
    pub(super) field: Field,
    pub(super) checker: Checker,
    pub(super) log: Log,
    pub(super) patience: Patience,
    pub(super) hangs: BTreeMap<(u64, u64), String>,
    /// Which worker each process was a life of.
    pub(super) lives: Vec<usize>,
    /// Other breaches.
    pub(super) other: Vec<String>,
    pub(super) started: u64,
    refused: BTreeSet<Fault>,
    /// In a cluster wake-ups are messages that all of its nodes carry.
    pub(super) is_classic: bool,
    full_coverage: bool,
    swept: Instant,
    told: Instant,
    dir: PathBuf,
}

impl<'a> Run<'a> {
    pub(super) fn start(args: &'a NemesisArgs, flavor: Flavor, seed: u64) -> Run<'a> {
        let names = args.lock_names();
        // Half of the seeds each.
        let (is_classic, full_coverage) = (seed & 1 == 1, seed & 2 == 2);
        let servers = Servers::start(args.topology, flavor, args.processes, &names, full_coverage);
        servers.prepare(&names).expect("the semaphores can be made");
        let server = servers.at(0).expect("it has just been started");
        let can = |command| say(server.addr(), command).is_ok_and(|it| !it.starts_with('-'));
        let mut refused = BTreeSet::new();
        if !can("DEBUG SLEEP 0") {
            refused.insert(Fault::DebugSleep);
        }
        if args.topology == Topology::Cluster && !can("CLUSTER GETSLOTMIGRATIONS") {
            refused.insert(Fault::MoveAtomically);
        }
        // The server's directory goes with the server, even when we are killed.
        let dir = servers.all()[0].dir().join("chaos");
        std::fs::create_dir(&dir).expect("a directory beside the server's");
        let mut run = Run {
            args,
            flavor,
            seed,
            rng: Rng::with_seed(seed ^ 0x5eed),
            field: Field {
                servers,
                workers: Vec::new(),
            },
            checker: Checker::default(),
            log: Log::default(),
            patience: Patience {
                lease: args.lease,
                slack: args.common.slack,
            },
            hangs: BTreeMap::new(),
            lives: Vec::new(),
            other: Vec::new(),
            started: now(),
            refused,
            is_classic,
            full_coverage,
            swept: Instant::now(),
            told: Instant::now(),
            dir,
        };
        let (topology, seconds) = (args.topology, args.seconds);
        eprintln!(
            "chaos: {topology} on {flavor}, seed {seed}, {seconds} s{}",
            run.choices()
        );
        for index in 0..args.processes {
            let worker = run.new_life(index);
            run.field.workers.push(Some(worker));
        }
        run
    }

    /// The choices of the seed for a cluster.
    pub(super) fn choices(&self) -> String {
        if self.args.topology != Topology::Cluster {
            return String::new();
        }
        let (classic, covered) = (self.is_classic, self.full_coverage);
        format!(
            ", {} channels, full coverage {}",
            if classic { "classic" } else { "sharded" },
            if covered { "required" } else { "not required" },
        )
    }

    fn new_life(&mut self, index: usize) -> Worker {
        let process = self.lives.len() as u64;
        self.lives.push(index);
        let file = |name: &str| self.dir.join(name);
        let lease = self.args.lease.as_millis();
        let worker = Worker::start(&Job {
            url: self.field.servers.url(index),
            journal: file(&format!("{process}.journal")),
            counter: file("counter"),
            names: self.args.names,
            kinds: self.args.kinds_there(),
            tasks: self.args.tasks,
            classic: self.is_classic && self.args.topology == Topology::Cluster,
            lease_ms: u64::try_from(lease).unwrap_or(u64::MAX),
            seed: self.rng.u64(..),
            process,
            parent: std::process::id(),
        })
        .expect("a worker can be started");
        self.field.servers.has_process(index, Some(worker.pid()));
        worker
    }

    pub(super) fn finish(mut self) -> Report {
        self.storm();
        self.calm();
        let mut report = Report::default();
        verdict::quiet(&mut self, &mut report);
        self.end(&mut report);
        verdict::at_the_end(&mut self, &mut report);
        report.faults_refused = self.refused.iter().map(|f| f.name().to_owned()).collect();
        report
    }

    /// Faults, for as long as we were told to.
    fn storm(&mut self) {
        let mut faults = self.args.faults.list.clone();
        faults.retain(|fault| !self.refused.contains(fault));
        let lease = self.args.lease;
        let schedule = Schedule::new(self.seed, faults, self.args.processes, lease);
        let mut schedule = schedule.on(self.args.topology).peekable();
        let mut open: Vec<(Instant, usize, Plan)> = Vec::new();
        let (start, most) = (Instant::now(), Duration::from_secs(self.args.seconds));
        while start.elapsed() < most {
            let due = |until: &Instant| *until <= Instant::now();
            for (until, _, plan) in &open {
                if *until <= Instant::now() + plan.second_stage() {
                    self.field.second_stage(plan);
                }
            }
            while let Some(place) = open.iter().position(|(until, ..)| due(until)) {
                let (_, number, plan) = open.swap_remove(place);
                self.end_fault(number, &plan);
            }
            while let Some(plan) = schedule.next_if(|plan| plan.at <= start.elapsed()) {
                // The machine may be late with the end of the target's last fault.
                while let Some(place) = open.iter().position(|(.., o)| o.target == plan.target) {
                    let (_, number, plan) = open.swap_remove(place);
                    self.end_fault(number, &plan);
                }
                let number = self.begin_fault(&plan);
                open.push((Instant::now() + plan.lasts, number, plan));
            }
            self.look();
            std::thread::sleep(TICK);
        }
        for (_, number, plan) in open {
            self.end_fault(number, &plan);
        }
    }

    fn begin_fault(&mut self, plan: &Plan) -> usize {
        let number = self.log.began(plan.clone(), now());
        match self.field.begin(plan) {
            Ok(Some(killed)) => killed.bury(&mut self.checker),
            Ok(None) => {}
            Err(error) => eprintln!("chaos: {}: {error}", plan.fault.name()),
        }
        number
    }

    fn end_fault(&mut self, number: usize, plan: &Plan) {
        if plan.lasts.is_zero() {
            self.log.ended(number, now());
            return;
        }
        if let (Target::Process(index), Fault::KillWorker) = (plan.target, plan.fault)
            && self.field.workers[index].is_none()
        {
            self.field.workers[index] = Some(self.new_life(index));
        }
        self.field.end(plan);
        self.log.ended(number, now());
    }

    /// No faults any more: waiters are served, and every process gets every name.
    fn calm(&mut self) {
        self.field.heal_all();
        if !self.field.servers.switches().is_empty() {
            // A primary that was started again empty, before another took its place, may lack the semaphores.
            let made = self.field.servers.prepare(&self.args.lock_names());
            made.expect("the semaphores can be made");
        }
        if self.args.topology.is_quorum() {
            // A server that came back late has no vote before.
            let start = Instant::now();
            while start.elapsed() < quarantine(self.args.lease) {
                self.look();
                std::thread::sleep(TICK);
            }
        }
        self.calm_begins();
        self.tell("calm");
        let names = u32::try_from(self.args.names).unwrap_or(u32::MAX);
        self.wait_until_quiet(names + 2);
        self.count_listeners();
    }

    pub(super) fn calm_begins(&mut self) {
        self.checker.calm_since = Some(now());
    }

    pub(super) fn tell(&mut self, word: &str) {
        for worker in self.field.workers.iter_mut().flatten() {
            worker.tell(word);
        }
    }

    /// So many asks may follow each other until then.
    pub(super) fn wait_until_quiet(&mut self, asks: u32) {
        let most = self.patience.calm() * asks + Duration::from_secs(10);
        let start = Instant::now();
        while start.elapsed() < most && !self.all_quiet() {
            self.look();
            std::thread::sleep(TICK);
        }
        self.look();
    }

    pub(super) fn all_quiet(&self) -> bool {
        let mut workers = self.field.workers.iter().flatten();
        workers.all(|worker| self.checker.quiet.contains_key(&worker.process))
    }

    /// Reads what was written, and judges it.
    pub(super) fn look(&mut self) {
        if self.field.servers.look() {
            // Where it is gone again, the next is told.
            let _ = self.field.servers.prepare(&self.args.lock_names());
        }
        for index in 0..self.field.workers.len() {
            let Some(worker) = &mut self.field.workers[index] else {
                continue;
            };
            worker.collect(&mut self.checker);
            if worker.has_exited() {
                let exit = worker.exited.expect("it has");
                let process = worker.process;
                self.other.push(format!(
                    "worker {index} (process {process}) ended with {exit}"
                ));
                let worker = self.field.workers[index].take().expect("it is there");
                worker.bury(&mut self.checker);
                self.field.workers[index] = Some(self.new_life(index));
            }
        }
        let found = self.checker.hanging(now(), self.patience);
        for (process, number, ask) in found {
            let text = self.hang(process, &ask);
            self.hangs.entry((process, number)).or_insert_with(|| {
                eprintln!("chaos: {text}");
                text
            });
        }
        if self.swept.elapsed() > SWEEP_EVERY {
            self.swept = Instant::now();
            let keep = Duration::from_secs(60) + self.args.lease * 10;
            self.checker.sweep(now(), keep);
        }
        if self.told.elapsed() > PROGRESS_EVERY {
            self.told = Instant::now();
            self.progress();
        }
    }

    fn hang(&self, process: u64, ask: &OpenAsk) -> String {
        let waited = now().saturating_sub(ask.at);
        let when = match self.checker.calm_since {
            Some(since) => format!(
                ", and the faults ended {:.1} s ago",
                millis(now() - since) / 1e3
            ),
            None => String::new(),
        };
        format!(
            "{} of name {} by process {process} (worker {}) is not answered after {:.1} s{when}",
            ask.how,
            ask.name,
            self.lives[usize::try_from(process).unwrap_or(0)],
            millis(waited) / 1e3,
        )
    }

    fn progress(&self) {
        let back = if std::io::stderr().is_terminal() {
            "\x1b[2K\r"
        } else {
            ""
        };
        eprintln!(
            "{back}chaos: {} {:>4.0} s: {} holds, {} faults, {} overlaps, {} lost updates, {} hangs",
            self.flavor,
            millis(now() - self.started) / 1e3,
            self.checker.holds,
            self.log.len(),
            self.checker.overlaps.len(),
            self.checker.lost_updates.len(),
            self.hangs.len(),
        );
    }

    /// Clients shut down, and processes end by themselves.
    fn end(&mut self, report: &mut Report) {
        self.tell("end");
        let start = Instant::now();
        let mut workers: Vec<&mut Worker> = self.field.workers.iter_mut().flatten().collect();
        while start.elapsed() < ENDS_WITHIN && !workers.iter_mut().all(|w| w.has_exited()) {
            std::thread::sleep(TICK);
        }
        for worker in &mut workers {
            if !worker.has_exited() {
                report.not_ended.push(format!(
                    "process {} (worker {}, pid {}) was killed {ENDS_WITHIN:?} after it was told to end",
                    worker.process, self.lives[usize::try_from(worker.process).unwrap_or(0)], worker.pid(),
                ));
            }
        }
        for worker in &mut self.field.workers {
            if let Some(worker) = worker.take() {
                worker.bury(&mut self.checker);
            }
        }
        self.checker.sweep(now(), Duration::ZERO);
    }
}
