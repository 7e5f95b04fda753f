//! An election among processes that are killed, stopped, cut off, resign and shut down: never do two lead at once, by their own
//! records and by their tokens, and the next leads in time.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use crate::common::{
    few_or,
    process::{Job, Process, hear, job, say},
    servers,
};
use leasehold::{Client, Election, Released, Shutdown, Term};
use leasehold_testkit::{Proxy, Server};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{Notify, mpsc};

const LEASE: Duration = Duration::from_millis(600);

/// The time that the promise allows on top of the lease.
const GRACE: Duration = Duration::from_millis(200);

/// The time that it allows after a resignation: three round trips and 20 ms.
const AT_ONCE: Duration = Duration::from_millis(25);

/// How often a leader says that its term is valid.
const TICK: Duration = Duration::from_millis(5);

const SOON: Duration = Duration::from_secs(20);

const CANDIDATES: usize = 5;

const MANY: usize = 10;

/// The time on a clock that all processes share, in ns.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap()
}

// ---- what the other processes do ----

#[test]
#[ignore = "a process of its own, started by the other tests"]
fn child() {
    let Some(job) = job() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (orders, mut ordered) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while let Some(order) = hear() {
            orders.send(order).unwrap();
        }
        // The parent is gone.
        std::process::exit(0);
    });
    runtime.block_on(async {
        loop {
            let client = Client::connect(&job.url).await.unwrap();
            let election = client.election(&job.name).lease(job.lease);
            let candidate = Candidate::default();
            let orders = async {
                loop {
                    match ordered.recv().await.as_deref() {
                        Some("resign") => candidate.resigns.notify_one(),
                        // To one that does not lead any more, an order to resign says nothing.
                        Some("shutdown") => break,
                        other => panic!("{other:?} is no order"),
                    }
                }
                let grace = Duration::ZERO;
                client.shutdown(Shutdown::ReleaseAll { grace }).await;
            };
            let (ended, ()) = tokio::join!(candidate.runs(&election), orders);
            assert_eq!(ended.unwrap_err().kind(), leasehold::ErrorKind::Closed);
        }
    });
}

#[derive(Clone, Default)]
struct Candidate {
    resigns: Arc<Notify>,
}

/// Says when the work of a term ends, however it does.
struct Works(u64);

impl Drop for Works {
    fn drop(&mut self) {
        say(&format!("ends {} {}", self.0, now()));
    }
}

impl Candidate {
    async fn runs(&self, election: &Election) -> Result<(), leasehold::Error> {
        loop {
            election.run(|term| self.clone().leads(term)).await?;
        }
    }

    async fn leads(self, term: Term) {
        let token = term.token();
        let works = Works(token);
        let says = |what: &str| {
            // First the time: a term that is valid now was valid then.
            let at = now();
            if term.is_valid() {
                say(&format!("{what} {token} {at}"));
            }
        };
        says("begins");
        loop {
            tokio::select! {
                () = tokio::time::sleep(TICK) => says("leads"),
                () = self.resigns.notified() => break,
            }
        }
        says("leads");
        drop(works);
        assert!(matches!(term.resign().await, Ok(Released::Freed) | Err(_)));
    }
}

// ---- what this one does ----

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    Resigned,
    Killed,
    ShutDown,
    Stopped,
    CutOff,
}

const TROUBLES: [Trouble; 5] = [
    Trouble::Resigned,
    Trouble::Killed,
    Trouble::ShutDown,
    Trouble::Stopped,
    Trouble::CutOff,
];

/// A term, as far as it is known.
#[derive(Clone, Debug)]
struct Record {
    candidate: usize,
    token: u64,
    began: u64,
    /// When it was last known to be valid.
    last: u64,
    /// When its work was gone.
    ended: Option<u64>,
    trouble: Option<Trouble>,
}

struct Candidates {
    /// Each with a way of its own to the server.
    proxies: Vec<Proxy>,
    processes: Vec<Process>,
    records: Vec<Record>,
}

impl Candidates {
    fn start(server: &Server) -> Candidates {
        let mut all = Candidates {
            proxies: (0..CANDIDATES)
                .map(|_| Proxy::start(server.addr()))
                .collect(),
            processes: Vec::new(),
            records: Vec::new(),
        };
        for candidate in 0..CANDIDATES {
            let process = all.process(candidate);
            all.processes.push(process);
        }
        all
    }

    fn process(&self, candidate: usize) -> Process {
        Process::start(&Job {
            what: "campaign".to_owned(),
            url: self.proxies[candidate].url(),
            name: "scheduler".to_owned(),
            lease: LEASE,
        })
    }

    /// Notes what all have said until now.
    fn listen(&mut self) {
        for (candidate, process) in self.processes.iter().enumerate() {
            while let Some(said) = process.try_next() {
                let words: Vec<&str> = said.split(' ').collect();
                let [what, token, at] = words[..] else {
                    panic!("{said}");
                };
                let (token, at) = (token.parse().unwrap(), at.parse().unwrap());
                if what == "begins" {
                    self.records.push(Record {
                        candidate,
                        token,
                        began: at,
                        last: at,
                        ended: None,
                        trouble: None,
                    });
                }
                let of_term = |record: &&mut Record| record.token == token;
                if let Some(record) = self.records.iter_mut().find(of_term) {
                    match what {
                        "ends" => record.ended = Some(at),
                        _ => record.last = record.last.max(at),
                    }
                }
            }
        }
    }

    /// The term with the largest token, once there is one larger than this.
    fn leader_after(&mut self, token: u64) -> Record {
        let until = Instant::now() + SOON;
        loop {
            self.listen();
            let newest = self.records.iter().max_by_key(|record| record.token);
            if let Some(newest) = newest.filter(|newest| newest.token > token) {
                return newest.clone();
            }
            assert!(Instant::now() < until, "no leader after {token}");
            sleep(Duration::from_millis(1));
        }
    }

    /// Ends the term of `leader`, and returns when the next one began, counted from then.
    fn round(&mut self, leader: &Record, trouble: Trouble) -> (Record, Duration) {
        let one = leader.candidate;
        let of_term = |record: &&mut Record| record.token == leader.token;
        if let Some(record) = self.records.iter_mut().find(of_term) {
            record.trouble = Some(trouble);
        }
        let since = now();
        match trouble {
            Trouble::Resigned => self.processes[one].tell("resign"),
            Trouble::ShutDown => self.processes[one].tell("shutdown"),
            Trouble::Killed => {
                self.processes[one].kill();
                // Its words from before arrive.
                sleep(TICK);
                self.listen();
            }
            Trouble::Stopped => self.processes[one].freeze(),
            Trouble::CutOff => self.proxies[one].black_hole(None),
        }
        let next = self.leader_after(leader.token);
        let after = Duration::from_nanos(next.began.saturating_sub(since));
        match trouble {
            Trouble::Killed => self.processes[one] = self.process(one),
            Trouble::Stopped | Trouble::CutOff => {
                let troubled = Duration::from_nanos(now() - since);
                sleep((LEASE * 2).saturating_sub(troubled));
                if trouble == Trouble::Stopped {
                    self.processes[one].thaw();
                } else {
                    self.proxies[one].heal();
                    self.proxies[one].cut();
                }
            }
            Trouble::Resigned | Trouble::ShutDown => {}
        }
        (next, after)
    }

    /// By the order of tokens: no term was valid when the next had begun, and its work was gone.
    fn assert_one_at_a_time(&mut self) {
        self.listen();
        self.records.sort_by_key(|record| record.token);
        for pair in self.records.windows(2) {
            let [old, new] = pair else { continue };
            assert!(old.last < new.began, "two lead: {old:?}, {new:?}");
            // A process that stands still drops nothing, and does nothing; one that is dead, too.
            let acts = !matches!(old.trouble, Some(Trouble::Stopped | Trouble::Killed));
            if acts {
                let ended = old.ended.expect("its work was dropped");
                assert!(ended < new.began, "work beside the next: {old:?}, {new:?}");
            }
        }
    }
}

/// Ends the observer, also when an assertion has failed.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn rounds(server: &Server, rounds: usize) {
    let mut candidates = Candidates::start(server);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // An observer beside the candidates.
        let observer = scope.spawn(|| observe(&server.url(), &done));
        let mut leader = candidates.leader_after(0);
        let _ends = Ends(&done);
        let mut took: BTreeMap<Trouble, Vec<Duration>> = BTreeMap::new();
        for trouble in TROUBLES.into_iter().cycle().take(rounds) {
            // All have a connection, and stand in line.
            let until = Instant::now() + SOON;
            let waiting = i64::try_from(CANDIDATES).unwrap() - 1;
            while crate::common::int(server, &["LLEN", "leasehold:{scheduler}:fenced:queue"])
                < waiting
            {
                assert!(Instant::now() < until, "they never stand in line");
                sleep(TICK);
            }
            let (next, after) = candidates.round(&leader, trouble);
            took.entry(trouble).or_default().push(after);
            leader = candidates.leader_after(next.token - 1);
        }
        candidates.assert_one_at_a_time();
        println!("{}: the next led after {took:?}", server.flavor());
        for (trouble, mut took) in took {
            took.sort();
            let promised = match trouble {
                Trouble::Resigned if took.len() >= MANY => AT_ONCE,
                Trouble::Resigned | Trouble::ShutDown => GRACE,
                Trouble::Killed | Trouble::Stopped | Trouble::CutOff => LEASE + GRACE,
            };
            // On a machine with other work one is late now and then: of a few the best counts, of many the median.
            let usual = took[if took.len() < MANY { 0 } else { took.len() / 2 }];
            assert!(usual < promised, "{trouble:?}: {took:?}");
        }
        done.store(true, Ordering::SeqCst);
        let seen: Vec<u64> = observer.join().unwrap();
        // Also of a leader that lost the lead before it could begin.
        assert!(!seen.is_empty(), "the observer saw no leader");
        assert!(seen.is_sorted(), "{seen:?}");
    });
}

/// The tokens of the leaders that are seen, one after the other.
fn observe(url: &str, done: &AtomicBool) -> Vec<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let client = Client::connect(url).await.unwrap();
        let election = client.election("scheduler");
        let mut seen = Vec::new();
        while !done.load(Ordering::SeqCst) {
            if let Some(leader) = election.leader().await.unwrap()
                && seen.last() != Some(&leader.token)
            {
                seen.push(leader.token);
            }
            tokio::time::sleep(TICK).await;
        }
        seen
    })
}

/// With `LEASEHOLD_FULL=1` a hundred on each server; else some of each.
#[test]
fn never_do_two_lead_and_the_next_leads_in_time() {
    std::thread::scope(|scope| {
        for server in servers() {
            let many = few_or(10, 100);
            scope.spawn(move || rounds(&server, many));
        }
    });
}
