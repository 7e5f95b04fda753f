//! A process of the demo and its workers: a real one on a server, a thread of its own in memory.
//!
//! Both can be killed such that they do nothing any more, not even release what they hold.

use std::{
    io::{self, BufRead, Write},
    path::PathBuf,
    process::{ExitCode, Stdio},
    thread,
    time::Duration,
};

use leasehold::{Client, EventKind, Handoff, MemoryServer};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    sync::{
        mpsc::UnboundedSender,
        oneshot::{self, Sender},
    },
    task::JoinSet,
};

use super::{
    HOST_WORD,
    record::{Happening, What},
    story::{Kind, Part},
    worker::{Failed, Lock, Stock, Worker},
};
use crate::{clock, exit::Exit, server::Address, supervise::link::own_binary};

/// Three holders in a row, then the next process gets its turn: few enough to see both.
const HANDOFF: Handoff = Handoff::new(2, Duration::from_secs(2));

/// The job of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) host: usize,
    pub(super) lock: String,
    pub(super) kind: Kind,
    pub(super) parts: Vec<Part>,
    pub(super) stock: PathBuf,
    pub(super) seed: u64,
    pub(super) broken: bool,
}

/// Where the leases live.
#[derive(Clone, Debug)]
pub(super) enum Backend {
    Memory(MemoryServer),
    Server(Box<Address>),
}

/// A process that was started and waits for the word.
pub(super) struct Host {
    go: Option<Sender<()>>,
    kill: Option<Sender<()>>,
}

impl Host {
    /// Starts a process; its events come out of `tell`.
    pub(super) fn start(
        backend: &Backend,
        job: Job,
        tell: UnboundedSender<Happening>,
    ) -> io::Result<Host> {
        let (go, when) = oneshot::channel();
        let (kill, killed) = oneshot::channel();
        match backend {
            Backend::Memory(server) => in_a_thread(server.clone(), job, tell, when, killed)?,
            Backend::Server(server) => in_a_process(server, &job, tell, when, killed)?,
        }
        Ok(Host {
            go: Some(go),
            kill: Some(kill),
        })
    }

    pub(super) fn go(&mut self) {
        // A process that is gone already has told so.
        self.go.take().map(|go| go.send(()));
    }

    pub(super) fn kill(&mut self) {
        self.kill.take().map(|kill| kill.send(()));
    }
}

/// Reports events, from inside the process.
#[derive(Clone)]
pub(super) struct Reporter {
    host: usize,
    part: Option<usize>,
    to: Option<UnboundedSender<Happening>>,
}

impl Reporter {
    fn of(&self, part: usize) -> Self {
        Reporter {
            part: Some(part),
            ..self.clone()
        }
    }

    pub(super) fn tell(&self, what: What) {
        self.tell_of(clock::now(), what);
    }

    fn tell_of(&self, at: Duration, what: What) {
        let happening = Happening {
            at,
            host: self.host,
            part: self.part,
            what,
        };
        match &self.to {
            Some(channel) => drop(channel.send(happening)),
            None => {
                if let Ok(line) = serde_json::to_string(&happening) {
                    // The process that directs the demo may be gone.
                    let _ = writeln!(io::stdout(), "{line}");
                }
            }
        }
    }
}

/// Connects, waits for the word, plays all parts.
async fn play(
    job: &Job,
    builder: leasehold::ClientBuilder,
    report: &Reporter,
    go: impl Future<Output = ()>,
) -> Result<(), Failed> {
    let client = builder.handoff(HANDOFF).connect().await?;
    tokio::spawn(tell_of_leases(client.clone(), report.clone()));
    if let Kind::Semaphore(permits) = job.kind {
        // The first process sets them, the others find them set.
        let semaphore = client.leased_semaphore(&job.lock);
        semaphore.try_set_permits(permits).await?;
    }
    report.tell(What::Ready);
    go.await;

    let mut workers = JoinSet::new();
    for (number, part) in job.parts.iter().enumerate() {
        let lock = Lock::new(&client, job.kind, &job.lock, part.role);
        let worker = Worker {
            lock: (!job.broken).then_some(lock),
            stock: Stock::open(&job.stock)?,
            random: fastrand::Rng::with_seed(job.seed.wrapping_add(number as u64)),
            report: report.of(number),
        };
        workers.spawn(worker.play(part.clone()));
    }
    while let Some(done) = workers.join_next().await {
        done.map_err(|error| Failed(format!("a worker panicked: {error}")))??;
    }
    Ok(())
}

async fn tell_of_leases(client: Client, report: Reporter) {
    let mut events = client.events();
    // The worker tells its own losses.
    while let Ok(event) = events.recv().await {
        let what = match event.kind {
            EventKind::HandedOver { .. } => What::HandedOver,
            EventKind::Renewed { .. } => What::Renewed,
            EventKind::RenewalFailed => What::RenewalFailed,
            _ => continue,
        };
        report.tell_of(clock::now().saturating_sub(event.at.elapsed()), what);
    }
}

fn tell_end(result: Result<(), Failed>, report: &Reporter) {
    if let Err(Failed(message)) = result {
        report.tell(What::Failed(message));
    }
    report.tell(What::Ended);
}

fn in_a_thread(
    server: MemoryServer,
    job: Job,
    tell: UnboundedSender<Happening>,
    go: oneshot::Receiver<()>,
    mut killed: oneshot::Receiver<()>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    thread::spawn(move || {
        let report = Reporter {
            host: job.host,
            part: None,
            to: Some(tell),
        };
        let builder = Client::builder().memory(&server);
        let go = async {
            let _ = go.await;
        };
        let mut playing = Box::pin(play(&job, builder, &report, go));
        let played = runtime.block_on(async {
            tokio::select! {
                biased;
                Ok(()) = &mut killed => None,
                result = &mut playing => Some(result),
            }
        });
        if let Some(result) = played {
            tell_end(result, &report);
        } else {
            // As after kill -9: nothing of this process runs any more, no task and no destructor.
            report.tell(What::Killed);
            std::mem::forget(playing);
            std::mem::forget(runtime);
        }
    });
    Ok(())
}

fn in_a_process(
    server: &Address,
    job: &Job,
    tell: UnboundedSender<Happening>,
    go: oneshot::Receiver<()>,
    killed: oneshot::Receiver<()>,
) -> io::Result<()> {
    let mut child = tokio::process::Command::new(own_binary()?)
        .arg(HOST_WORD)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::Error::other("a pipe is missing"));
    };
    // Not in the arguments, which every user of this machine can read.
    let mut script = serde_json::to_string(&(server, job))?;
    script.push('\n');
    let host = job.host;
    tokio::spawn(async move {
        if stdin.write_all(script.as_bytes()).await.is_ok() && go.await.is_ok() {
            let _ = stdin.write_all(b"go\n").await;
        }
        // The end of this pipe would end the process.
        std::future::pending::<()>().await;
    });
    tokio::spawn(async move {
        let mut lines = BufReader::new(stdout).lines();
        let hear = async {
            while let Ok(Some(line)) = lines.next_line().await {
                if let Ok(happening) = serde_json::from_str(&line) {
                    let _ = tell.send(happening);
                }
            }
        };
        let what = tokio::select! {
            () = hear => return,
            Ok(()) = killed => What::Killed,
        };
        // Returns once it is dead and collected.
        let _ = child.kill().await;
        let _ = tell.send(Happening {
            at: clock::now(),
            host,
            part: None,
            what,
        });
    });
    Ok(())
}

/// The main function of a demo process: the job on the first line of its input, the word on the second.
pub(crate) fn main() -> ExitCode {
    let mut script = String::new();
    let read = io::stdin().read_line(&mut script);
    let Ok((server, job)) = read.and_then(|_| Ok(serde_json::from_str::<(Address, Job)>(&script)?))
    else {
        return Exit::Usage.into();
    };
    let Ok(builder) = server.builder() else {
        return Exit::Usage.into();
    };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    else {
        return Exit::Internal.into();
    };
    let report = Reporter {
        host: job.host,
        part: None,
        to: None,
    };
    let (go, when) = oneshot::channel();
    thread::spawn(move || {
        let mut go = Some(go);
        for line in io::stdin().lock().lines() {
            if line.is_err() {
                break;
            }
            go.take().map(|go| go.send(()));
        }
        // The process that directs the demo is gone.
        std::process::exit(0);
    });
    let go = async {
        let _ = when.await;
    };
    tell_end(runtime.block_on(play(&job, builder, &report, go)), &report);
    Exit::Done.into()
}
