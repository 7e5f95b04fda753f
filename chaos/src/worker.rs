//! A worker: a process that does operations until the nemesis calls for calm.
//!
//! It hears on stdin (`calm`, `end`; the end of stdin is the end of the worker), and says what it has
//! to say in its journal.

use std::{
    io::BufRead as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::{Duration, Instant},
};

use clap::Args;
use fastrand::Rng;
use futures_util::future::join_all;
use leasehold::{Client, Shutdown};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, setpriority_process};
use tokio::{runtime, sync::watch, task::JoinSet};

use crate::{
    api,
    counter::Counter,
    journal::Journal,
    kind::{Kind, Kinds},
    ops::{self, Phase, World},
    record::Record,
};

/// How long a client may take to forget what it had, once nothing is held or asked for.
const FORGETS_WITHIN: Duration = Duration::from_secs(5);

/// The settings that the nemesis gives a worker at its start.
#[derive(Args, Clone, Debug)]
pub(crate) struct Job {
    /// Where it connects.
    #[arg(long)]
    pub(crate) url: String,
    /// The file it writes to.
    #[arg(long)]
    pub(crate) journal: PathBuf,
    /// The file of the counters.
    #[arg(long)]
    pub(crate) counter: PathBuf,
    /// How many names there are.
    #[arg(long)]
    pub(crate) names: usize,
    /// Their kinds in turn.
    #[arg(long, value_parser = Kinds::parse)]
    pub(crate) kinds: Kinds,
    /// How many tasks it runs.
    #[arg(long)]
    pub(crate) tasks: u64,
    /// Whether all clients use classic channels.
    #[arg(long)]
    pub(crate) classic: bool,
    /// The client's lease, in milliseconds.
    #[arg(long)]
    pub(crate) lease_ms: u64,
    /// The seed that it draws from.
    #[arg(long)]
    pub(crate) seed: u64,
    /// The number of this life of this worker.
    #[arg(long)]
    pub(crate) process: u64,
    /// The nemesis; the worker does not outlive it.
    #[arg(long)]
    pub(crate) parent: u32,
}

/// Works until told to end.
pub(crate) fn run(job: &Job) {
    // SIGKILL reaches a stopped process, too.
    set_parent_process_death_signal(Some(Signal::KILL)).expect("a signal for our parent's death");
    if getppid().map(Pid::as_raw_pid) != i32::try_from(job.parent).ok() {
        return; // it died before we asked to be told
    }
    panic_ends_the_process(&job.journal);
    let phase = listen();
    let mut rng = Rng::with_seed(job.seed);
    let threads = rng.usize(1..=2);
    let runtime = if threads == 1 {
        runtime::Builder::new_current_thread().enable_all().build()
    } else {
        runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .enable_all()
            .build()
    };
    let runtime = runtime.expect("a runtime");
    runtime.block_on(work(job, threads, phase, rng));
    runtime.shutdown_timeout(Duration::from_secs(1));
}

async fn work(job: &Job, threads: usize, mut phase: watch::Receiver<Phase>, mut rng: Rng) {
    let lease = Duration::from_millis(job.lease_ms);
    let journal = Journal::to_file(&job.journal).expect("the journal can be opened");
    let client = connect(job, lease, &mut rng).await;
    journal.write(ops::begins(&client));
    let starved = rng.bool();
    if starved {
        starve_the_library();
    }
    journal.write(Record::Ready {
        setup: format!("{threads} threads, the library's starved: {starved}"),
    });
    let world = Arc::new(World {
        journal,
        counter: Counter::open(&job.counter).expect("the counter can be opened"),
        names: job.kinds.names(job.names),
        lease,
        classic: job.classic,
        brisk: false,
        process: job.process,
        phase: phase.clone(),
        operations: AtomicU64::new(0),
        clients: vec![(Mutex::new(client), job.url.clone())],
    });
    let mut tasks = JoinSet::new();
    for _ in 0..job.tasks {
        let world = Arc::clone(&world);
        tasks.spawn(ops::work(world, 0, rng.u64(..)));
    }
    while tasks.join_next().await.is_some() {}
    for name in 0..world.names.len() {
        calm(&world, name).await;
    }
    let client = world.client(0);
    quiet(&world, &client).await;
    // An error says that the nemesis is gone.
    let next = phase.wait_for(|phase| *phase > Phase::Calm).await;
    if next.is_ok_and(|phase| *phase == Phase::Wait) {
        let mutexes = Kind::Mutex.numbers_of(&world.names);
        join_all(mutexes.into_iter().map(|name| calm(&world, name))).await;
        quiet(&world, &client).await;
        let _ = phase.wait_for(|phase| *phase == Phase::End).await;
    }
    let grace = Duration::from_millis(500);
    client.shutdown(Shutdown::ReleaseAll { grace }).await;
}

/// The library's own thread has a turn when no other thread wants one: after a stop it is late to tell of a loss, which `run`
/// and `is_valid` must know without it.
fn starve_the_library() {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    for task in tasks.filter_map(Result::ok) {
        let name = std::fs::read_to_string(task.path().join("comm"));
        if name.is_ok_and(|name| name.trim() == "leasehold") {
            let thread = task.file_name().to_str().and_then(|id| id.parse().ok());
            let thread = thread.and_then(Pid::from_raw).expect("the id of a thread");
            setpriority_process(Some(thread), 19).expect("a thread may have less priority");
        }
    }
}

/// The way to the server may be broken for a while.
async fn connect(job: &Job, lease: Duration, rng: &mut Rng) -> Client {
    loop {
        match ops::connect(&job.url, job.classic, lease, rng).await {
            Ok(client) => return client,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// The name can be had again.
async fn calm(world: &World, name: usize) {
    // An error is an answer, but not the one that is due here.
    while let Err(error) = ops::calm_lock(world, 0, name).await.map(|took| {
        world.journal.write(Record::CalmLock { name, took });
    }) {
        eprintln!("chaos: worker {}: in the calm: {error}", world.process);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn quiet(world: &World, client: &Client) {
    world.journal.write(Record::Quiet {
        left: forgotten(client).await,
    });
}

/// The entries that a client has in memory once it has had time to forget.
pub(crate) async fn forgotten(client: &Client) -> [usize; 3] {
    let deadline = Instant::now() + FORGETS_WITHIN;
    loop {
        let left = api::footprint(client);
        if left == [0; 3] || Instant::now() > deadline {
            return left;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The orders of the nemesis.
fn listen() -> watch::Receiver<Phase> {
    let (tell, hear) = watch::channel(Phase::Run);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let phase = match line.as_str() {
                "calm" => Phase::Calm,
                "wait" => Phase::Wait,
                _ => Phase::End,
            };
            let _ = tell.send(phase);
        }
        std::process::exit(0);
    });
    hear
}

/// A panic anywhere, in the library's tasks too, is a finding, and must not go by as a dropped task.
fn panic_ends_the_process(journal: &Path) {
    let journal = journal.to_owned();
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        if let Ok(journal) = Journal::to_file(&journal) {
            journal.write(Record::Panic {
                what: panic.to_string(),
            });
        }
        std::process::exit(101);
    }));
}
