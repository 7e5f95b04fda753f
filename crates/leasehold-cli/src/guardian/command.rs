//! CMD: the thread that starts and collects it, and the process group that it leads.

use std::{
    ffi::OsString,
    io::{self, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use nix::sys::signal::SigSet;
use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
    process::{
        Pid, Signal, WaitOptions, kill_process, kill_process_group, test_kill_process_group,
    },
};
use serde::{Deserialize, Serialize};

use super::{
    foreground,
    wire::{self, Ended, Facts, Lines, Report},
};
use crate::{children::children, clock};

/// How to start CMD.
pub(super) struct Start {
    pub(super) name: OsString,
    pub(super) command: Vec<OsString>,
    pub(super) stdin: OwnedFd,
    pub(super) facts: Facts,
    /// From then on it is too late.
    pub(super) not_after: Duration,
    /// The signals to be blocked in CMD.
    pub(super) blocked: SigSet,
}

/// A change in the state of CMD.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Change {
    /// It leads the process group of this number.
    Started(i32),
    /// It does not run, and will not; this says why.
    NotStarted(Report),
    Stopped(i32),
    Ended(Ended),
}

/// The thread that starts CMD and then collects all children, ours and the adopted ones (G3).
///
/// Both may block, so they have a thread of their own (G5). A start takes as long as the file system takes to load
/// the program: for ever, if a server of files has gone. And a thread that is told of children waits for the room
/// to pass it on.
pub(super) struct Worker {
    changes: UnixStream,
    lines: Lines,
}

impl Worker {
    pub(super) fn start(start: Start) -> io::Result<Self> {
        let (changes, tell) = UnixStream::pair()?;
        changes.set_nonblocking(true)?;
        thread::Builder::new().spawn(move || {
            // The end of the stream says the rest.
            let _ = work(start, tell);
        })?;
        Ok(Worker {
            changes,
            lines: Lines::default(),
        })
    }

    pub(super) fn to_poll(&self) -> PollFd<'_> {
        PollFd::new(&self.changes, PollFlags::IN)
    }

    /// Takes in all changes that can be taken in at once. It is an error if nothing will come any more.
    pub(super) fn read(&mut self) -> io::Result<()> {
        match wire::read(&mut self.changes, &mut self.lines) {
            Ok(true) => Ok(()),
            Ok(false) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if wire::is_nothing_yet(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(super) fn change(&mut self) -> io::Result<Option<Change>> {
        self.lines.next()
    }
}

fn work(start: Start, mut tell: UnixStream) -> io::Result<()> {
    let mut tell = |change: Change| tell.write_all(&wire::line(&change)?);
    if clock::now() >= start.not_after {
        return tell(Change::NotStarted(Report::TooLate));
    }
    match spawn(start) {
        Ok((command, waits)) => {
            tell(Change::Started(command.as_raw_pid()))?;
            collect(command, waits, tell)
        }
        Err(error) => {
            let code = error.raw_os_error().unwrap_or(0);
            tell(Change::NotStarted(Report::CannotStart(code)))
        }
    }
}

/// Returns when the program was loaded, or could not be; on a terminal with a connection that will say whether it could.
fn spawn(start: Start) -> io::Result<(Pid, Option<UnixStream>)> {
    let (program, arguments) = start.command.split_first().ok_or(Errno::INVAL)?;
    let (mut starter, waits) = if foreground::is_to_be_lent(start.stdin.as_fd()) {
        let (starter, waits) = foreground::starter(program, start.stdin.as_fd())?;
        (starter, Some(waits))
    } else {
        let mut starter = Command::new(program);
        starter.stdin(Stdio::from(start.stdin));
        (starter, None)
    };
    starter
        .args(arguments)
        .env("LEASEHOLD_NAME", start.name)
        .env(
            "LEASEHOLD_VALID_UNTIL",
            start.facts.valid_until_ms.to_string(),
        )
        // The variable of a `leasehold run` around this process belongs to another lock.
        .env_remove("LEASEHOLD_TOKEN")
        .envs(
            start
                .facts
                .token
                .map(|token| ("LEASEHOLD_TOKEN", token.to_string())),
        )
        .process_group(0);
    // A child inherits what is blocked, so for as long as the start takes it is, in this thread, as it was before G2.
    let _ = start.blocked.thread_set_mask();
    let child = starter.spawn();
    let _ = SigSet::all().thread_block();
    Ok((Pid::from_child(&child?), waits))
}

/// Until there are no children left.
fn collect(
    command: Pid,
    mut waits: Option<UnixStream>,
    mut tell: impl FnMut(Change) -> io::Result<()>,
) -> io::Result<()> {
    loop {
        let (pid, status) = match rustix::process::wait(WaitOptions::UNTRACED) {
            Ok(Some(change)) => change,
            Ok(None) | Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        if pid != command {
            continue;
        }
        if let Some(signal) = status.stopping_signal() {
            tell(Change::Stopped(signal))?;
        } else if let Some(signal) = status.terminating_signal() {
            tell(Change::Ended(Ended::Signaled(signal)))?;
        } else if let Some(code) = status.exit_status() {
            // Said before the end, by a process that did not become CMD.
            let mut lines = Lines::default();
            let heard = waits.as_mut().map(|waits| wire::read(waits, &mut lines));
            match lines.next() {
                Ok(Some(not_started)) if heard.is_some() => tell(not_started)?,
                _ => tell(Change::Ended(Ended::Exited(code)))?,
            }
        }
    }
}

/// CMD and what it started, by the process group that CMD leads. Dropped before it was seen empty, by an error or
/// a panic, it is killed.
#[derive(Debug)]
pub(super) struct Group {
    /// `None` while CMD is being started.
    leader: Option<Pid>,
    gone: bool,
}

impl Group {
    pub(super) fn starting() -> Self {
        Group {
            leader: None,
            gone: false,
        }
    }

    pub(super) fn is_starting(&self) -> bool {
        self.leader.is_none() && !self.gone
    }

    pub(super) fn started(&mut self, leader: i32) {
        self.leader = Pid::from_raw(leader);
    }

    pub(super) fn terminate(&self) -> Result<(), Errno> {
        let Some(leader) = self.leader else {
            return Ok(());
        };
        let sent = kill_process_group(leader, Signal::TERM);
        // A stopped process would not hear it.
        let _ = kill_process_group(leader, Signal::CONT);
        sent
    }

    pub(super) fn kill(&self) -> Result<(), Errno> {
        if let Some(leader) = self.leader {
            return kill_process_group(leader, Signal::KILL);
        }
        // A child on its way to CMD. It dies before CMD's first instruction, even if it hears of it only after
        // the program was loaded.
        for child in children() {
            let _ = kill_process(child, Signal::KILL);
            let _ = kill_process_group(child, Signal::KILL);
        }
        Ok(())
    }

    /// Whether nothing is left of it. From then on its number may be another's (G4).
    pub(super) fn is_gone(&mut self) -> bool {
        let empty = |leader| test_kill_process_group(leader) == Err(Errno::SRCH);
        self.gone = self.gone || self.leader.is_some_and(empty);
        self.gone
    }

    /// CMD does not run, and will not.
    pub(super) fn never_was(&mut self) {
        self.gone = true;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.is_gone() {
            let _ = self.kill();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> (std::process::Child, Group) {
        let child = Command::new("sleep")
            .arg("100")
            .process_group(0)
            .spawn()
            .unwrap();
        let mut group = Group::starting();
        group.started(Pid::from_child(&child).as_raw_pid());
        (child, group)
    }

    #[test]
    fn a_group_that_is_dropped_by_an_error_or_a_panic_is_killed() {
        use std::os::unix::process::ExitStatusExt;
        let (mut child, group) = sleeper();
        drop(group);
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }

    #[test]
    fn a_group_is_gone_when_its_last_member_was_collected() {
        let (mut child, mut group) = sleeper();
        assert!(!group.is_gone());
        group.kill().unwrap();
        child.wait().unwrap();
        assert!(group.is_gone());
    }
}
