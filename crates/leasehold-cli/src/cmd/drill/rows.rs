//! The rows of the drill.

use std::{
    fs, io,
    os::{fd::AsFd, unix::process::ExitStatusExt},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use leasehold::{Client, Error, ErrorKind, Guard};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    process::{Child, Command},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{
    Ground, LEASE, Outcome,
    child::{Job, Process, Said, What},
    failover,
    network::Network,
};
use crate::{
    clock,
    exit::{Exit, Failure},
    output::human,
};

/// Number, title, and the bound.
pub(super) const ALL: [(u8, &str, &str); 9] = [
    (1, "contenders", "each turn counted, never two inside"),
    (
        2,
        "a wait ends",
        "none after its time, nobody left in the queue",
    ),
    (
        3,
        "renewal",
        "held all the time, never under a third of the lease",
    ),
    (4, "kill -9", "the next holder within a lease and a second"),
    (
        5,
        "pause",
        "told before its next step; the next holder within a lease and a second",
    ),
    (6, "cut network", "told before the next holder has it"),
    (
        7,
        "forgotten key",
        "told within a third of the lease and a second; the late write refused",
    ),
    (8, "your job", "killed once; run again: exit 0"),
    (
        FAILOVER,
        "failover",
        "two hold it for 2.5 s and a second at most, or the holder keeps it; the late write refused; the next within a lease and a second",
    ),
];

/// A message, a process or a look that is late on a busy machine.
pub(super) const SLACK: Duration = Duration::from_secs(1);

const PROCESSES: u32 = 4;
const TURNS: u32 = 50;

/// The row of the user's job.
pub(super) const YOUR_JOB: u8 = 8;

/// The row that asks for a failover.
pub(super) const FAILOVER: u8 = 9;

/// A lock of the drill that is not free by then will not be.
pub(super) const LONG: Duration = LEASE.saturating_mul(5);

pub(super) type Played = Result<Outcome, Failure>;

pub(super) async fn play(ground: &Ground, row: u8, cmd: &[String]) -> Played {
    let name = ground.name(row);
    match row {
        1 => contenders(ground, name).await,
        2 => a_wait_ends(ground, &name).await,
        3 => renewal(ground, &name).await,
        4 => kill(ground, name).await,
        5 => pause(ground, name).await,
        6 => cut(ground, &name).await,
        7 => forgotten(ground, &name).await,
        FAILOVER => failover::play(ground, &name).await,
        _ => job(ground, &name, cmd).await,
    }
}

/// With the figures, as they were within the bound or not.
pub(super) fn judge(is_good: bool, figures: String) -> Outcome {
    if is_good {
        Outcome::Passed(figures)
    } else {
        Outcome::Failed(figures)
    }
}

fn process(ground: &Ground, name: &str, what: What) -> Job {
    Job {
        place: ground.place.clone(),
        name: name.to_owned(),
        what,
    }
}

async fn contenders(ground: &Ground, name: String) -> Played {
    let files = ground.files.path();
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        let what = What::TakesTurns {
            files: files.to_owned(),
            turns: TURNS,
        };
        processes.push(Process::start(&process(ground, &name, what)).await?);
    }
    let mut overlaps = 0;
    for mut process in processes {
        loop {
            match process.next().await? {
                Said::Overlap => overlaps += 1,
                Said::Done => break,
                _ => {}
            }
        }
    }
    let counted = fs::read_to_string(files.join("count")).unwrap_or_default();
    let all = PROCESSES * TURNS;
    let inside = match overlaps {
        0 => "never two inside".to_owned(),
        _ => format!("two inside {overlaps} times"),
    };
    Ok(judge(
        counted == all.to_string() && overlaps == 0,
        format!("{PROCESSES} processes × {TURNS} turns: counted {counted} of {all}, {inside}"),
    ))
}

async fn a_wait_ends(ground: &Ground, name: &str) -> Played {
    const WAIT: Duration = Duration::from_millis(500);
    let guard = taken(ground.one.mutex(name).try_lock_for(LONG).await?)?;
    let asked = Instant::now();
    let waited = ground.other.mutex(name).try_lock_for(WAIT).await?;
    let took = asked.elapsed();
    let left = until_nobody_waits(&ground.one, name).await?;
    release(guard).await?;
    let is_good = waited.is_none() && took >= WAIT && took < WAIT + SLACK && left == 0;
    let what = if waited.is_none() { "none" } else { "the lock" };
    let queue = match left {
        0 => "nobody is left in the queue".to_owned(),
        left => format!("{left} are left in the queue"),
    };
    let (wait, took) = (human(WAIT), human(took));
    Ok(judge(
        is_good,
        format!("try for {wait} behind a holder: {what} after {took}, {queue}"),
    ))
}

/// The last word of a waiter is on its way for a moment.
async fn until_nobody_waits(client: &Client, name: &str) -> Result<usize, Error> {
    let since = Instant::now();
    loop {
        let left = client.status(name).await?.queue.len();
        if left == 0 || since.elapsed() > SLACK {
            return Ok(left);
        }
        sleep(Duration::from_millis(20)).await;
    }
}

async fn renewal(ground: &Ground, name: &str) -> Played {
    let guard = taken(ground.one.mutex(name).try_lock_for(LONG).await?)?;
    let (owner, since) = (guard.owner(), Instant::now());
    let (mut looks, mut least) = (0, LEASE);
    while since.elapsed() < 3 * LEASE {
        sleep(Duration::from_millis(50)).await;
        // During a failover a look may have no answer; the lock goes on.
        let Ok(status) = ground.other.status(name).await else {
            continue;
        };
        let held = status.holder().filter(|holder| holder.owner == owner);
        let Some(left) = held.and_then(|holder| holder.remaining) else {
            let after = human(since.elapsed());
            return Ok(judge(
                false,
                format!("after {after} the server did not know the holder any more"),
            ));
        };
        (looks, least) = (looks + 1, least.min(left));
    }
    let held = human(since.elapsed());
    release(guard).await?;
    let least_shown = human(least);
    Ok(judge(
        looks > 0 && least >= LEASE / 3,
        format!(
            "held for {held}: its lease was looked at {looks} times, never under {least_shown}"
        ),
    ))
}

/// A holder, since when it has been one, and when that was by the clock of the machine.
type Next = (Guard, Instant, Duration);

type Waiter = JoinHandle<Result<Next, Error>>;

/// Waits for the lock of a process that holds it; and says when it had it.
async fn waits_behind(ground: &Ground, name: &str) -> Result<Waiter, Failure> {
    let mutex = ground.other.mutex(name).lease(LEASE);
    let waiter = tokio::spawn(async move {
        let guard = mutex.lock().await?;
        Ok((guard, Instant::now(), clock::now()))
    });
    let since = Instant::now();
    while since.elapsed() < SLACK {
        let status = ground.one.status(name).await;
        if status.is_ok_and(|status| status.waiting_clients > 0) {
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    Ok(waiter)
}

/// The holder after the one that was killed, stopped or cut off; a failure if there is none for too long.
async fn next(waiter: Waiter) -> Result<Next, Failure> {
    if let Ok(Ok(next)) = timeout(LONG, waiter).await {
        return Ok(next?);
    }
    let long = human(LONG);
    let why = format!("the next had not got it after {long}");
    Err(Failure::new(Exit::Internal, why))
}

async fn holder(ground: &Ground, name: &str) -> Result<Process, Failure> {
    let mut holder = Process::start(&process(ground, name, What::Holds)).await?;
    while holder.next().await? != Said::Held {}
    Ok(holder)
}

async fn kill(ground: &Ground, name: String) -> Played {
    let holder = holder(ground, &name).await?;
    let waiter = waits_behind(ground, &name).await?;
    holder.signal(Signal::KILL);
    let killed = Instant::now();
    let (guard, at, _) = next(waiter).await?;
    release(guard).await?;
    let took = at.duration_since(killed);
    let (shown, lease) = (human(took), human(LEASE));
    Ok(judge(
        took <= LEASE + SLACK,
        format!("next holder {shown} after the kill (lease {lease})"),
    ))
}

async fn pause(ground: &Ground, name: String) -> Played {
    let mut holder = holder(ground, &name).await?;
    let waiter = waits_behind(ground, &name).await?;
    holder.signal(Signal::STOP);
    let stopped = Instant::now();
    let (guard, at, begun) = next(waiter).await?;
    let stands = 2 * LEASE;
    sleep(stands.saturating_sub(stopped.elapsed())).await;
    holder.signal(Signal::CONT);
    let mut late = 0;
    loop {
        match holder.next().await? {
            Said::Step(at) if at > begun => late += 1,
            Said::Lost(_) => break,
            _ => {}
        }
    }
    release(guard).await?;
    let took = at.duration_since(stopped);
    let told = match late {
        0 => "told before its next step".to_owned(),
        _ => format!("took {late} steps beside the next holder"),
    };
    let (stood, shown) = (human(stands), human(took));
    Ok(judge(
        late == 0 && took <= LEASE + SLACK,
        format!("stopped for {stood}: {told}; the next holder had begun {shown} after the stop"),
    ))
}

async fn cut(ground: &Ground, name: &str) -> Played {
    let url = &ground.place.address.url;
    let network = Network::to(url).await;
    let Some((network, url)) = network.and_then(|it| it.url(url).map(|url| (it, url))) else {
        let why = "only a way to redis://host:port can be cut here".to_owned();
        return Ok(Outcome::Skipped(why));
    };
    let through = ground.place.at(url).connect().await?;
    let guard = taken(through.mutex(name).try_lock_for(LONG).await?)?;
    let waiter = waits_behind(ground, name).await?;
    network.cut();
    let cut = Instant::now();
    let told = async {
        guard.lost().await;
        Instant::now()
    };
    let (told, next) = tokio::join!(timeout(LONG, told), next(waiter));
    let (next, at, _) = next?;
    release(next).await?;
    let Ok(told) = told else {
        return Ok(judge(false, "the holder was not told".to_owned()));
    };
    let (after, before) = (told - cut, at.saturating_duration_since(told));
    let (after, early) = (human(after), human(before));
    let lead = if told <= at {
        format!("{early} before the next holder had it")
    } else {
        format!("{} after the next holder had it", human(told - at))
    };
    Ok(judge(
        told <= at,
        format!("told {after} after the cut, {lead}"),
    ))
}

async fn forgotten(ground: &Ground, name: &str) -> Played {
    let first = match ground.one.fenced_mutex(name).try_lock_for(LONG).await {
        Err(error) if error.kind() == ErrorKind::Invalid => {
            return Ok(Outcome::Skipped(
                "a majority of servers has no fencing tokens".to_owned(),
            ));
        }
        first => taken(first?)?,
    };
    // As an eviction, a flush or a failover does.
    ground.other.fenced_mutex(name).force_unlock().await?;
    let forgotten = Instant::now();
    let second = taken(ground.other.fenced_mutex(name).try_lock_for(LONG).await?)?;
    let is_refused = late_write(ground, name, first.token(), second.token()).await?;
    let told = timeout(LEASE, first.lost()).await.is_ok();
    let took = forgotten.elapsed();
    second.release().await?;
    let write = if is_refused {
        "was refused by its token"
    } else {
        "was taken"
    };
    Ok(judge(
        told && is_refused && took <= LEASE / 3 + SLACK,
        format!(
            "two held for {}, as documented; the late write {write}",
            human(took)
        ),
    ))
}

/// Writes with the token of before, behind a write of the next holder: whether it was refused.
pub(super) async fn late_write(
    ground: &Ground,
    name: &str,
    old: u64,
    new: u64,
) -> Result<bool, Failure> {
    let (key, minute) = (format!("{name}:data"), super::LEFTOVERS);
    let (theirs, ours) = (
        ground.other.fenced_store(name),
        ground.one.fenced_store(name),
    );
    theirs.set_for(&key, "new", minute, new).await?;
    let late = ours.set_for(&key, "old", minute, old).await;
    theirs.delete(&key, new).await?;
    Ok(matches!(late, Err(Error::Stale { .. })))
}

/// The user's job gets so far.
const KILLED_AFTER: Duration = Duration::from_millis(1_200);

async fn job(ground: &Ground, name: &str, cmd: &[String]) -> Played {
    let Some((program, words)) = cmd.split_first() else {
        return Ok(Outcome::Skipped("say which, behind --".to_owned()));
    };
    let mutex = ground.one.mutex(name);
    let mut ran = Vec::new();
    for limit in [Some(KILLED_AFTER), None] {
        let guard = taken(mutex.try_lock_for(LONG).await?)?;
        let begun = Instant::now();
        let mut group = Group::start(program, words, name)?;
        let ended = match limit {
            Some(limit) => timeout(limit, group.child.wait()).await.is_ok(),
            None => group.child.wait().await.is_ok(),
        };
        if ended {
            group.leader = None; // it has left what goes on behind it on purpose
        } else {
            group.kill();
        }
        let status = group.child.wait().await;
        let status = status.map_err(|error| Failure::internal("wait for the job", &error))?;
        if !guard.is_valid() {
            return Ok(judge(false, "the lock was lost while it ran".to_owned()));
        }
        ran.push((status, begun.elapsed(), ended));
        release(guard).await?;
    }
    let [(first, took, ended), (second, ..)] = ran[..] else {
        return Ok(judge(false, "it was not run twice".to_owned()));
    };
    let (took, again) = (human(took), shown(second));
    Ok(if !ended {
        let figures = format!("{program} killed after {took}; run again: {again}");
        judge(second.success(), figures)
    } else if second.success() {
        Outcome::Skipped(format!(
            "{program} ended by itself after {took}, {}, before it could be killed; run again: {again}",
            shown(first)
        ))
    } else {
        let figures = format!(
            "{program} ended by itself after {took}, {}; run again: {again}",
            shown(first)
        );
        judge(false, figures)
    })
}

/// The process group of the user's job, which ends with the row.
struct Group {
    child: Child,
    leader: Option<Pid>,
}

impl Group {
    fn start(program: &str, words: &[String], name: &str) -> Result<Group, Failure> {
        let stdout = io::stderr().as_fd().try_clone_to_owned();
        let stdout = stdout.map_err(|error| Failure::internal("pass on stderr", &error))?;
        let child = Command::new(program)
            .args(words)
            .env("LEASEHOLD_NAME", name)
            .stdin(Stdio::null())
            .stdout(stdout) // its own is for the answer
            .process_group(0)
            .spawn();
        let child = child.map_err(|error| {
            let message = format!("could not start {program:?}: {error}");
            Failure::new(Exit::cannot_start(&error), message)
        })?;
        let leader = child.id().and_then(|pid| i32::try_from(pid).ok());
        Ok(Group {
            leader: leader.and_then(Pid::from_raw),
            child,
        })
    }

    fn kill(&mut self) {
        if let Some(leader) = self.leader.take() {
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

fn shown(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or_default()),
    }
}

/// The lock, unless it was not free for long.
pub(super) fn taken<T>(asked: Option<T>) -> Result<T, Failure> {
    asked.ok_or_else(|| {
        let long = human(LONG);
        Failure::new(
            Exit::Internal,
            format!("its lock was not free within {long}"),
        )
    })
}

/// A hold that was lost is told by the figures.
pub(super) async fn release(guard: Guard) -> Result<(), Failure> {
    match guard.release().await {
        Ok(_) | Err(Error::Lost { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
