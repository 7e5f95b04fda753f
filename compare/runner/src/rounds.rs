//! The workloads, and whose turn it is.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{
    Failure,
    machine::{Cores, now},
    peer::Process,
    server::Server,
};

/// Processes of each library: as many as want the hot name.
const PROCESSES: usize = 4;
/// Tasks that want the hot name, in one process or in four together.
const HOT_TASKS: usize = 16;
/// Tasks that wait for a name which they do not get.
pub(crate) const IDLE_TASKS: usize = 16;
/// The lease of the killed holders.
pub(crate) const KILL_LEASE_MS: u64 = 3_000;
/// Longer than a waiter is held up here, for libraries that do not renew.
const LONG_LEASE_MS: u64 = 120_000;
/// No round begins after this: a machine that is slower makes fewer.
const LAST_ROUND: Duration = Duration::from_mins(8);
/// A library that needs longer for an answer than its window and this has failed.
const PATIENCE: Duration = Duration::from_secs(15);

/// Processes, tasks of each, and the names that these share.
#[derive(Clone, Copy, Debug)]
struct Shape {
    processes: usize,
    tasks: usize,
    names: usize,
}

const PAIR: Shape = Shape {
    processes: 1,
    tasks: 1,
    names: 1,
};
const NAMES: Shape = Shape {
    processes: 1,
    tasks: 100,
    names: 100,
};
const HOT: Shape = Shape {
    processes: 1,
    tasks: HOT_TASKS,
    names: 1,
};
const FOUR: Shape = Shape {
    processes: PROCESSES,
    tasks: HOT_TASKS / PROCESSES,
    names: 1,
};

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Rounds before those that count: a JVM compiles what it has seen often.
    warm_ups: usize,
    rounds: usize,
    pub(crate) window_ms: u64,
    pub(crate) hand_overs: usize,
    pub(crate) idle: Duration,
    pub(crate) kills: usize,
}

pub(crate) const FULL: Plan = Plan {
    warm_ups: 1,
    rounds: 5,
    window_ms: 1_200,
    hand_overs: 12,
    // Three times the interval at which a waiter of ours asks again.
    idle: Duration::from_secs(36),
    kills: 3,
};

pub(crate) const QUICK: Plan = Plan {
    warm_ups: 0,
    rounds: 1,
    window_ms: 300,
    hand_overs: 3,
    idle: Duration::from_secs(5),
    kills: 1,
};

/// A library with its server and processes, and what was found out about it: a figure for each round.
#[derive(Debug)]
pub(crate) struct Contender {
    pub(crate) library: &'static str,
    pub(crate) version: String,
    pub(crate) settings: String,
    pub(crate) figures: BTreeMap<&'static str, Vec<f64>>,
    /// Updates of the counter that were lost, and all that were made.
    pub(crate) lost: u64,
    pub(crate) counted: u64,
    /// Why it did not get through, by the kind of turn.
    pub(crate) failures: BTreeMap<&'static str, String>,
    server: Server,
    processes: Vec<Process>,
}

/// The outcome of a window of `work`.
struct Window {
    per_second: f64,
    all: u64,
    longest_ms: f64,
}

impl Contender {
    pub(crate) fn start(library: &'static str, cores: &Cores) -> Result<Contender, Failure> {
        let server = Server::start(cores)?;
        let mut contender = Contender {
            library,
            version: String::new(),
            settings: String::new(),
            figures: BTreeMap::new(),
            lost: 0,
            counted: 0,
            failures: BTreeMap::new(),
            server,
            processes: Vec::new(),
        };
        contender.start_processes(0, cores)?;
        contender
            .version
            .clone_from(&contender.processes[0].version);
        contender
            .settings
            .clone_from(&contender.processes[0].settings);
        Ok(contender)
    }

    /// With another server, since a turn that failed may have left locks on this one.
    fn begin_anew(&mut self, cores: &Cores) -> Result<(), Failure> {
        self.server = Server::start(cores)?;
        self.start_processes(0, cores)
    }

    fn start_processes(&mut self, lease_ms: u64, cores: &Cores) -> Result<(), Failure> {
        self.processes.clear();
        for _ in 0..PROCESSES {
            self.processes.push(Process::start(
                self.library,
                &self.server.address,
                lease_ms,
                cores,
            )?);
        }
        Ok(())
    }

    pub(crate) fn redis_version(&self) -> Result<String, Failure> {
        self.server.info("redis_version")
    }

    fn find(&mut self, figure: &'static str, value: f64) {
        self.figures.entry(figure).or_default().push(value);
    }

    /// Tasks of the first so many processes take their names and give them back. Where they have a name in common, they count under it.
    fn work(&mut self, name: &str, shape: Shape, ms: u64) -> Result<Window, Failure> {
        let Shape {
            processes,
            tasks,
            names,
        } = shape;
        let path = PathBuf::from("target/compare").join(format!("counter.{}", std::process::id()));
        let file = if names == 1 && tasks * processes > 1 {
            path.to_str().unwrap_or("-")
        } else {
            "-"
        };
        fs::write(&path, "000000000000")?;
        for process in &mut self.processes[..processes] {
            process.order(&format!("work {tasks} {names} {name} {ms} {file}"))?;
        }
        let (mut inside, mut all, mut longest) = (0.0, 0, 0.0_f64);
        for process in &self.processes[..processes] {
            let answer = process.answer("worked ", PATIENCE + Duration::from_millis(ms))?;
            let [now, total, _, _, most] = answer.split(' ').collect::<Vec<_>>()[..] else {
                return Err(format!("{answer:?} is no answer to work").into());
            };
            inside += now.parse::<f64>()?;
            all += total.parse::<u64>()?;
            longest = longest.max(most.parse()?);
        }
        if file != "-" {
            let counted: u64 = fs::read_to_string(&path)?.parse()?;
            self.lost += all.saturating_sub(counted);
            self.counted += all;
        }
        fs::remove_file(&path)?;
        let seconds = Duration::from_millis(ms).as_secs_f64();
        Ok(Window {
            per_second: inside / seconds,
            all,
            longest_ms: longest / 1e3,
        })
    }

    /// The same with the server's CPU for each hold, in µs.
    fn timed(&mut self, name: &str, shape: Shape, ms: u64) -> Result<(Window, f64), Failure> {
        let before = self.server.cpu()?;
        let window = self.work(name, shape, ms)?;
        let each = (self.server.cpu()? - before) / each(window.all);
        Ok((window, each))
    }

    fn pair(&mut self, plan: Plan) -> Result<(), Failure> {
        let (window, cpu) = self.timed("pair", PAIR, plan.window_ms)?;
        self.find("pair", window.per_second);
        self.find("pair_cpu", cpu);
        Ok(())
    }

    fn names(&mut self, plan: Plan) -> Result<(), Failure> {
        let (window, _) = self.timed("names", NAMES, plan.window_ms)?;
        self.find("names", window.per_second);
        Ok(())
    }

    fn hot(&mut self, plan: Plan) -> Result<(), Failure> {
        let (window, cpu) = self.timed("hot", HOT, plan.window_ms)?;
        self.find("hot", window.per_second);
        self.find("hot_cpu", cpu);
        self.find("hot_longest", window.longest_ms);
        Ok(())
    }

    fn hot_in_four(&mut self, plan: Plan) -> Result<(), Failure> {
        let (window, _) = self.timed("four", FOUR, plan.window_ms)?;
        self.find("four", window.per_second);
        self.find("four_longest", window.longest_ms);
        Ok(())
    }

    /// Two processes hand a name to each other. Each has waited for a while that differs from turn to turn, so that the phase of those
    /// that ask again at intervals does, too.
    fn hand_over(&mut self, plan: Plan) -> Result<(), Failure> {
        let take = format!("take baton 1 {LONG_LEASE_MS}");
        self.processes[0].order(&take)?;
        self.processes[0].instant("got", PATIENCE)?;
        let (mut holder, mut next) = (0, 1);
        let mut gaps = Vec::new();
        for turn in 0..plan.hand_overs {
            self.processes[next].order(&take)?;
            sleep(Duration::from_millis(60 + 37 * turn as u64 % 100));
            self.processes[holder].order("free baton")?;
            let freed = self.processes[holder].instant("freed", PATIENCE)?;
            let got = self.processes[next].instant("got", PATIENCE)?;
            gaps.push((got - freed) as f64 / 1e3);
            (holder, next) = (next, holder);
        }
        self.processes[holder].order("free baton")?;
        self.processes[holder].instant("freed", PATIENCE)?;
        self.find("hand_over", median(&mut gaps));
        Ok(())
    }

    /// Not measured by the clock: a JVM compiles, connections open. The commands for each hold are counted, which slows the server down.
    fn count(
        &mut self,
        figure: &'static str,
        name: &str,
        shape: Shape,
        plan: Plan,
    ) -> Result<(), Failure> {
        // A client says some things only once, when it takes its first name: these count for no hold.
        self.work(name, shape, plan.window_ms / 4)?;
        let watch = self.server.watch()?;
        let window = self.work(name, shape, plan.window_ms / 2)?;
        let sent = watch.end()? as f64;
        self.find(figure, sent / each(window.all));
        Ok(())
    }

    fn stand_idle(&mut self) -> Result<(), Failure> {
        // The connections of the others would say that they are there.
        self.processes.truncate(2);
        self.processes[0].order(&format!("take idle 1 {LONG_LEASE_MS}"))?;
        self.processes[0].instant("got", PATIENCE)?;
        self.processes[1].order(&format!("take idle {IDLE_TASKS} {LONG_LEASE_MS}"))
    }

    /// A holder, and behind it a waiter in the last process.
    fn stand_before_kill(&mut self, kill: usize) -> Result<(), Failure> {
        let take = format!("take kill:{kill} 1 {KILL_LEASE_MS}");
        self.processes[kill].order(&take)?;
        self.processes[kill].instant("got", PATIENCE)?;
        self.processes[PROCESSES - 1].order(&take)
    }
}

fn each(all: u64) -> f64 {
    all.max(1) as f64
}

pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

/// The libraries that are in it, and why others are not.
#[derive(Debug, Default)]
pub(crate) struct Field {
    pub(crate) contenders: Vec<Contender>,
    /// Rounds that count.
    pub(crate) rounds: usize,
    pub(crate) left_out: Vec<(String, String)>,
}

impl Field {
    /// Each in its turn of this kind. Where a library fails, it begins anew, and has no more turns of this kind.
    fn each(
        &mut self,
        kind: &'static str,
        cores: &Cores,
        mut turn: impl FnMut(&mut Contender) -> Result<(), Failure>,
    ) {
        for mut contender in std::mem::take(&mut self.contenders) {
            let began_anew = if contender.failures.contains_key(kind) {
                Ok(())
            } else if let Err(failure) = turn(&mut contender) {
                eprintln!("  {}, {kind}: {failure}", contender.library);
                contender.failures.insert(kind, failure.to_string());
                contender.begin_anew(cores)
            } else {
                Ok(())
            };
            match began_anew {
                Ok(()) => self.contenders.push(contender),
                Err(failure) => self.leave_out(contender.library, &*failure),
            }
        }
    }

    fn leave_out(&mut self, library: &str, failure: &dyn std::error::Error) {
        eprintln!("  {library} is left out: {failure}");
        self.left_out.push((library.into(), failure.to_string()));
    }

    pub(crate) fn enter(&mut self, library: &'static str, cores: &Cores) {
        match Contender::start(library, cores) {
            Ok(contender) => self.contenders.push(contender),
            Err(failure) => {
                eprintln!("  {library} is left out: {failure}");
                self.left_out.push((library.into(), failure.to_string()));
            }
        }
    }

    pub(crate) fn run(&mut self, plan: Plan, cores: &Cores, say: &dyn Fn(&str)) {
        say("warming up, and counting commands");
        for (figure, name, shape) in [
            ("pair_commands", "pair", PAIR),
            ("hot_commands", "hot", HOT),
            ("four_commands", "four", FOUR),
        ] {
            self.each(figure, cores, |contender| {
                contender.count(figure, name, shape, plan)
            });
        }
        self.each("names", cores, |contender| {
            contender.work("names", NAMES, plan.window_ms / 2).map(drop)
        });
        let began = Instant::now();
        for round in 1..=plan.warm_ups + plan.rounds {
            if began.elapsed() > LAST_ROUND {
                say("this machine is slow: no more rounds");
                break;
            }
            say(&format!("round {round} of {}", plan.warm_ups + plan.rounds));
            self.each("pair", cores, |contender| contender.pair(plan));
            self.each("names", cores, |contender| contender.names(plan));
            self.each("hot", cores, |contender| contender.hot(plan));
            self.each("four", cores, |contender| contender.hot_in_four(plan));
            self.each("hand_over", cores, |contender| contender.hand_over(plan));
            if round <= plan.warm_ups {
                for contender in &mut self.contenders {
                    contender
                        .figures
                        .retain(|figure, _| figure.ends_with("_commands"));
                }
            }
            self.rounds = round.saturating_sub(plan.warm_ups);
        }
        say(&format!("idle waiters, of all at a time: {:?}", plan.idle));
        self.idle(plan, cores);
        say("killed holders, of all at a time");
        self.kills(plan, cores);
    }

    /// Nothing is fast here, so all stand side by side, each on its own server.
    fn idle(&mut self, plan: Plan, cores: &Cores) {
        self.each("idle", cores, Contender::stand_idle);
        // Until all of them wait.
        sleep(Duration::from_secs(2));
        let mut watches = BTreeMap::new();
        self.each("idle", cores, |contender| {
            watches.insert(contender.library, contender.server.watch()?);
            Ok(())
        });
        sleep(plan.idle);
        self.each("idle", cores, |contender| {
            let watch = watches
                .remove(contender.library)
                .ok_or("it was not watched")?;
            let sent = watch.end()? as f64;
            contender.find("idle", sent / plan.idle.as_secs_f64());
            Ok(())
        });
    }

    fn kills(&mut self, plan: Plan, cores: &Cores) {
        self.each("kill", cores, |contender| {
            contender.start_processes(KILL_LEASE_MS, cores)
        });
        for kill in 0..plan.kills.min(PROCESSES - 1) {
            self.each("kill", cores, |contender| contender.stand_before_kill(kill));
            // Until all of them wait, and sooner than any renewal.
            sleep(Duration::from_millis(150));
            let mut killed = BTreeMap::new();
            self.each("kill", cores, |contender| {
                killed.insert(contender.library, now());
                contender.processes[kill].kill()
            });
            self.each("kill", cores, |contender| {
                let got = contender.processes[PROCESSES - 1].instant("got", PATIENCE)?;
                let at = killed
                    .remove(contender.library)
                    .ok_or("its holder was not killed")?;
                contender.find("kill", (got - at) as f64 / 1e6);
                Ok(())
            });
        }
    }
}

/// Whether the runner finds out a lock that never excludes, and finds nothing against ours.
pub(crate) fn check(library: &'static str, cores: &Cores) -> Result<(u64, u64), Failure> {
    let mut contender = Contender::start(library, cores)?;
    contender.hot(QUICK)?;
    let in_one = contender.lost;
    contender.hot_in_four(QUICK)?;
    Ok((in_one, contender.lost - in_one))
}
