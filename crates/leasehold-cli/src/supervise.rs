//! Stands between the lock and CMD while CMD runs: passes deadlines to the guardian and signals to CMD.
//!
//! The guardian ends CMD when a deadline passes; this side only passes on the server's answers. When
//! the guard says that the lease is lost, this side kills as well: two processes have to fail before CMD can
//! go on without the lock. So this side must not wait for the guardian, which may be stopped, nor for the reader
//! of its remarks.

pub(crate) mod link;
pub(crate) mod orphans;
pub(crate) mod remarks;
pub(crate) mod renewal;
pub(crate) mod signals;
mod terminal;

use std::{
    ffi::OsStr,
    io,
    time::{Duration, SystemTime},
};

use leasehold::{Event, EventKind, EventListener, LostReason};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{sync::broadcast::error::RecvError, time::Instant};
use tracing::debug;

pub(crate) use self::terminal::stop_ourselves;
use self::{link::Link, orphans::Orphans, remarks::Remarks, signals::Signals, terminal::Terminal};
use crate::{
    clock,
    exit::{Exit, Failure},
    guardian::{
        keeper::{self, Why},
        wire::{Ended, Facts, Order, Report},
    },
    held::Held,
    output::{self, human},
    terms::Terms,
};

/// How long before the end of the lease CMD is killed: a twentieth of it, but enough for the kernel to do it
/// on a busy machine, and no more than that.
const MARGIN_MIN: Duration = Duration::from_millis(20);
const MARGIN_MAX: Duration = Duration::from_millis(250);

/// A signal that tells to end is passed on once in this time: `timeout` sends it to this process, and to its group.
const ONCE_PER: Duration = Duration::from_secs(1);

/// How long to wait for the end of the processes that a killed guardian has left behind, and for the guardian's next
/// report after a loss.
const SEARCH: Duration = Duration::from_secs(2);

/// The end of CMD.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) how: Ended,
    /// CMD was stopped, because the lock was about to be lost or was lost.
    pub(crate) lost: bool,
    pub(crate) renewals: u64,
}

/// The state of the hold.
#[derive(Clone, Copy)]
pub(crate) struct Hold<'a> {
    pub(crate) guard: &'a Held,
    pub(crate) terms: &'a Terms,
    pub(crate) program: &'a OsStr,
}

impl Hold<'_> {
    /// The end of the lease on [`clock`], as of now.
    fn until(&self) -> Duration {
        // In this order: a pause between the two makes the lease look shorter, not longer.
        let now = clock::now();
        now + self.guard.remaining()
    }

    fn order(&self) -> Order {
        let valid_until = SystemTime::now() + self.guard.remaining();
        let since_1970 = valid_until.duration_since(SystemTime::UNIX_EPOCH);
        Order::Start {
            terms: keeper::Terms {
                until: self.until(),
                grace: self.terms.grace,
                margin: (self.terms.shortest() / 20).clamp(MARGIN_MIN, MARGIN_MAX),
            },
            facts: Facts {
                valid_until_ms: output::millis(since_1970.unwrap_or_default()),
                token: self.guard.token,
            },
        }
    }
}

/// Runs CMD under the guard until nothing is left of it, also if that ends in an error.
pub(crate) async fn supervise(
    hold: Hold<'_>,
    mut link: Link,
    mut events: EventListener,
    signals: &mut Signals,
    remarks: &Remarks,
) -> Result<Outcome, Failure> {
    let mut job = Job::new();
    link.tell(hold.order());
    let mut renewals = 0;
    let mut lost = None;
    // Set by the loss, and put off by each report that is read after it. Not switched off: the guardian may have sent
    // that before the loss.
    let mut answer_by: Option<Instant> = None;
    // A command that cannot be stopped may take as long as it likes.
    let mut out_of_reach = false;
    loop {
        let no_answer = async {
            match answer_by {
                Some(at) if !out_of_reach => tokio::time::sleep_until(at).await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            report = link.report() => match report {
                Ok(Some(Report::Ended { how, why })) => {
                    job.over(how);
                    debug!(?how, "the command has ended");
                    let lease = matches!(why, Some(Why::LeaseEnds | Why::LeaseGone));
                    return Ok(Outcome { how, lost: lease || lost.is_some(), renewals });
                }
                Ok(Some(report)) => {
                    answer_by = answer_by.map(|_| Instant::now() + SEARCH);
                    out_of_reach |= report == Report::OutOfReach;
                    // Sent before the loss and read after it: what it announces has happened, and the user has been told.
                    if lost.is_none() || report != Report::Ending(Why::LeaseEnds) {
                        job.hear(report, &hold, remarks)?;
                    }
                }
                // A guardian that cannot be understood is as good as none.
                Ok(None) | Err(_) => {
                    job.kill_all(&link).await;
                    return Err(without_guardian(lost, hold.guard));
                }
            },
            signal = signals.next() => job.pass_on(signal),
            event = events.recv() => if is_renewal(&event, hold.guard) {
                renewals += 1;
                link.tell(Order::Until(hold.until()));
            },
            reason = hold.guard.lost(), if lost.is_none() => {
                lost = Some(reason);
                answer_by = Some(Instant::now() + SEARCH);
                link.tell(Order::Gone);
                match job.group {
                    Some(group) => {
                        send(group, Signal::KILL);
                        remarks.add(&format!("{}: killed the command", loss(reason, hold.guard)));
                    }
                    // The guardian may be stopped just before it starts CMD, and must not do it later.
                    None => job.kill_all(&link).await,
                }
            }
            // A guardian that is stopped is as good as none, too.
            () = no_answer => {
                job.kill_all(&link).await;
                return Err(without_guardian(lost, hold.guard));
            }
        }
    }
}

fn without_guardian(lost: Option<LostReason>, guard: &Held) -> Failure {
    match lost {
        Some(reason) => Failure::new(
            Exit::Lost,
            format!("{}: the command was killed", loss(reason, guard)),
        ),
        None => Failure::new(
            Exit::Internal,
            "the guardian process was killed, and the command with it: without a guardian it could \
             outlive the lock",
        ),
    }
}

fn is_renewal(event: &Result<Event, RecvError>, guard: &Held) -> bool {
    match event {
        Ok(event) => {
            matches!(event.kind, EventKind::Renewed { .. }) && *event.name == *guard.name()
        }
        // Some were missed; looking at the guard is never wrong.
        Err(RecvError::Lagged(_)) => true,
        Err(RecvError::Closed) => false,
    }
}

/// CMD, once it runs.
struct Job {
    group: Option<Pid>,
    terminal: Option<Terminal>,
    orphans: Orphans,
    /// Came before CMD did.
    early: Vec<Signal>,
    /// The last signal that tells to end, and when it came.
    told: Option<(Signal, Instant)>,
}

impl Job {
    fn new() -> Self {
        Job {
            group: None,
            terminal: Terminal::open(),
            orphans: Orphans::adopt(),
            early: Vec::new(),
            told: None,
        }
    }

    fn hear(&mut self, report: Report, hold: &Hold<'_>, remarks: &Remarks) -> Result<(), Failure> {
        match report {
            Report::Started(pid) => {
                debug!(pid, "the command runs");
                self.started(pid);
            }
            Report::CannotStart(code) => {
                // It may have been lent to the process that was to become CMD.
                self.over(Ended::Exited(code));
                let error = io::Error::from_raw_os_error(code);
                let message = format!("cannot run {}: {error}", hold.program.display());
                return Err(Failure::new(Exit::cannot_start(&error), message));
            }
            Report::TooLate => {
                return Err(Failure::new(
                    Exit::Lost,
                    "the lease was about to end before the command could be started; \
                     was this process stopped, or is --lease too short?",
                ));
            }
            Report::Stopped(signal) => self.stopped(signal),
            Report::Ending(Why::LeaseEnds) => remarks.add(&format!(
                "{} ends in {} and could not be renewed: stopping the command",
                name(hold.guard),
                human(hold.guard.remaining()),
            )),
            Report::Ending(Why::Leftovers) => remarks.add(
                "the command has ended and left processes behind: stopping them before the release",
            ),
            Report::OutOfReach => remarks.add(
                "the command runs as another user and cannot be stopped: \
                 it goes on, and must not rely on the lock any more",
            ),
            Report::Ending(_) | Report::Ended { .. } => {}
        }
        Ok(())
    }

    fn started(&mut self, pid: i32) {
        self.group = Pid::from_raw(pid);
        if let (Some(terminal), Some(group)) = (&self.terminal, self.group) {
            terminal.lend(group);
        }
        for signal in std::mem::take(&mut self.early) {
            self.send_to_command(signal);
        }
    }

    fn pass_on(&mut self, signal: Signal) {
        if signals::tells_to_end(signal) {
            let is_again =
                |(last, at): (Signal, Instant)| last == signal && at.elapsed() < ONCE_PER;
            if self.told.is_some_and(is_again) {
                debug!(
                    signal = signal.as_raw(),
                    "the same signal came again at once, and was passed on already"
                );
                return;
            }
            self.told = Some((signal, Instant::now()));
        }
        self.send_to_command(signal);
    }

    fn send_to_command(&mut self, signal: Signal) {
        let Some(group) = self.group else {
            self.early.push(signal);
            return;
        };
        debug!(
            signal = signal.as_raw(),
            "passed a signal on to the command"
        );
        if let (Signal::CONT, Some(terminal)) = (signal, &self.terminal) {
            terminal.lend(group);
        }
        send(group, signal);
    }

    /// CMD was stopped. With a terminal, the shell that started us waits for us to stop, too.
    fn stopped(&self, signal: i32) {
        let (Some(terminal), Some(group)) = (&self.terminal, self.group) else {
            return;
        };
        if signal == Signal::TSTP.as_raw() {
            terminal.take_back(group);
            stop_ourselves();
        } else if signal == Signal::TTIN.as_raw() || signal == Signal::TTOU.as_raw() {
            if terminal::is_with(group) {
                // It touched the terminal a moment before we could lend it.
                send(group, Signal::CONT);
            } else {
                stop_ourselves();
            }
        }
    }

    fn over(&self, how: Ended) {
        let (Some(terminal), Some(group)) = (&self.terminal, self.group) else {
            return;
        };
        terminal.take_back(group);
        if matches!(how, Ended::Signaled(_)) {
            terminal.restore();
        }
    }

    /// Nothing ends CMD in time any more: end it now, and the guardian, if it is there, with it.
    async fn kill_all(&self, link: &Link) {
        let give_up = clock::now() + SEARCH;
        self.orphans
            .kill(link.guardian(), self.group, give_up)
            .await;
        self.over(Ended::Signaled(Signal::KILL.as_raw()));
    }
}

/// A group that is gone needs no signals.
fn send(group: Pid, signal: Signal) {
    let _ = kill_process_group(group, signal);
}

fn name(guard: &Held) -> String {
    format!("the lease on {:?}", guard.name())
}

fn loss(reason: LostReason, guard: &Held) -> String {
    format!("{} is lost, {reason}", name(guard))
}
