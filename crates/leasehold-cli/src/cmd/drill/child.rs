//! A process of the drill: one that takes turns with others, or one that holds a lock until it is killed or stopped.

use std::{
    fs::{self, File},
    io::{self, BufRead, Write as _},
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    time::Duration,
};

use leasehold::{Client, Error};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::{sleep, timeout},
};

use super::{LEASE, Place};
use crate::{
    clock,
    exit::{Exit, Failure},
    output,
    supervise::link::own_binary,
};

/// The first argument that makes a process of ours one of the drill's.
pub(crate) const WORD: &str = "__drill";

/// A process has said something by then, or has got stuck.
const TOO_LONG: Duration = Duration::from_secs(60);

/// Between two steps of a process that holds the lock.
const STEP: Duration = Duration::from_millis(10);

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) place: Place,
    pub(super) name: String,
    pub(super) what: What,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum What {
    /// So many turns, each of which adds one to a file, in a way that two at once get wrong.
    TakesTurns { files: PathBuf, turns: u32 },
    /// Holds the lock, and takes steps as long as it may.
    Holds,
}

/// A word of such a process.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Said {
    Held,
    /// It was not alone.
    Overlap,
    /// It had made sure of its lease, at this time of the machine's clock.
    Step(Duration),
    Lost(Duration),
    Failed(String),
    Done,
}

pub(super) struct Process {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Process {
    pub(super) async fn start(job: &Job) -> Result<Process, Failure> {
        let failed = |error| Failure::internal("start a process of the drill", &error);
        let mut child = Command::new(own_binary().map_err(failed)?)
            .arg(WORD)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let mut line = serde_json::to_vec(job).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        let mut stdin = child
            .stdin
            .take()
            .ok_or_else(|| failed(io::Error::other("no pipe")))?;
        stdin.write_all(&line).await.map_err(failed)?;
        child.stdin = Some(stdin); // open: its end ends the process
        let said = child
            .stdout
            .take()
            .ok_or_else(|| failed(io::Error::other("no pipe")))?;
        let said = BufReader::new(said).lines();
        Ok(Process { child, said })
    }

    /// Its next word; an error if it has ended, or says nothing.
    pub(super) async fn next(&mut self) -> Result<Said, Failure> {
        let line = timeout(TOO_LONG, self.said.next_line()).await;
        let line = line.ok().and_then(Result::ok).flatten();
        match line.and_then(|line| serde_json::from_str(&line).ok()) {
            Some(Said::Failed(why)) => Err(Failure::new(Exit::Unreachable, why)),
            Some(said) => Ok(said),
            None => Err(Failure::new(
                Exit::Internal,
                "a process of the drill says nothing more",
            )),
        }
    }

    pub(super) fn signal(&self, signal: rustix::process::Signal) {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

fn say(said: &Said) {
    if let Ok(line) = serde_json::to_string(said) {
        // The drill may be gone.
        let _ = writeln!(io::stdout(), "{line}");
    }
}

pub(crate) fn main() -> ExitCode {
    let mut line = String::new();
    let job = io::stdin().lock().read_line(&mut line);
    let job: Option<Job> = job.ok().and_then(|_| serde_json::from_str(&line).ok());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let (Some(job), Ok(runtime)) = (job, runtime) else {
        output::say(&output::remark("this word is for `leasehold drill`"));
        return Exit::Usage.into();
    };
    // Also if the drill was killed while this process stands still.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    // When the drill is gone, so is its end of the pipe.
    std::thread::spawn(|| {
        let _ = io::stdin().lock().read_line(&mut String::new());
        std::process::exit(0);
    });
    if let Err(failure) = runtime.block_on(work(&job)) {
        say(&Said::Failed(failure.message));
    }
    Exit::Done.into()
}

async fn work(job: &Job) -> Result<(), Failure> {
    let client = job.place.connect().await?;
    match &job.what {
        What::TakesTurns { files, turns } => takes_turns(&client, &job.name, files, *turns).await?,
        What::Holds => holds(&client, &job.name).await?,
    }
    Ok(())
}

async fn takes_turns(client: &Client, name: &str, files: &Path, turns: u32) -> Result<(), Failure> {
    let failed = |error| Failure::internal("count in a file", &error);
    let (inside, count) = (files.join("inside"), files.join("count"));
    for _ in 0..turns {
        let guard = client.mutex(name).lock().await?;
        say(&Said::Held);
        let is_alone = File::create_new(&inside).is_ok();
        if !is_alone {
            say(&Said::Overlap);
        }
        let before: u32 = fs::read_to_string(&count)
            .unwrap_or_default()
            .parse()
            .unwrap_or(0);
        // Another that is inside as well reads the same number.
        sleep(Duration::from_millis(1)).await;
        fs::write(&count, (before + 1).to_string()).map_err(failed)?;
        if is_alone {
            let _ = fs::remove_file(&inside);
        }
        match guard.release().await {
            // By the overlap it is known.
            Ok(_) | Err(Error::Lost { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    say(&Said::Done);
    Ok(())
}

async fn holds(client: &Client, name: &str) -> Result<(), Failure> {
    let guard = client.mutex(name).lease(LEASE).lock().await?;
    say(&Said::Held);
    loop {
        // Before it makes sure: a stop in between must not make this step look late.
        let at = clock::now();
        if guard.ensure(Duration::ZERO).is_err() {
            break;
        }
        say(&Said::Step(at));
        sleep(STEP).await;
    }
    say(&Said::Lost(clock::now()));
    Ok(())
}
