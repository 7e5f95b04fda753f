//! The second process of `leasehold run`: it starts CMD, and sees to it that CMD does not outlive the lease.
//!
//! The supervisor talks to the server and tells this process each new deadline. When the supervisor is
//! killed, this process reads the end of the connection; when it is stopped or starved, no new deadline
//! comes. In both cases this process ends CMD in time, because it needs nobody for that:
//!
//! - **G1** It is CMD's parent, so there is no moment in which CMD runs and this process does not know it.
//! - **G2** It leads a process group of its own and blocks all signals, so what ends the supervisor, Ctrl-C or
//!   `kill -9` of its whole group, does not end it too. (CMD starts with what was blocked before, as a rule
//!   nothing.)
//! - **G3** Orphans of CMD become its children, so it can tell when nothing is left of CMD's group even where
//!   nobody else collects orphans, as in a container.
//! - **G4** The group's number stays taken while it has a member, so a signal to the group cannot hit others
//!   as long as the group was not seen empty.
//!
//! What it cannot do: end CMD while this process and the supervisor are both stopped, reach a process that has
//! left the group, or hurry a `leasehold run` inside CMD, whose own guardian grants its own grace.

pub(crate) mod foreground;
pub(crate) mod keeper;
pub(crate) mod wire;

use std::{
    ffi::OsString,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Command, ExitCode, Stdio},
    thread,
    time::Duration,
};

use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, kill_process_group, test_kill_process_group},
};
use serde::{Deserialize, Serialize};

use self::{
    keeper::{Act, Keeper, Why},
    wire::{Ended, Lines, Order, Report},
};
use crate::{
    clock::{self, Alarm},
    exit::Exit,
    supervise::link::own_binary,
};

/// The first argument that makes a process of ours the guardian. After it: the name, then CMD.
pub(crate) const WORD: &str = "__guardian";

/// How often to look whether the last members of the group are gone.
const LOOK_EVERY: Duration = Duration::from_millis(2);
const LOOK_EVERY_MAX: Duration = Duration::from_millis(100);

pub(crate) fn main(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    // G2. It cannot fail for a valid set.
    let before = SigSet::all()
        .thread_swap_mask(SigmaskHow::SIG_BLOCK)
        .unwrap_or(SigSet::empty());
    set_up_process();
    let Some(name) = words.next() else {
        return Exit::Usage.into();
    };
    let command: Vec<OsString> = words.collect();
    match guard(&name, &command, &before) {
        Ok(()) => Exit::Done.into(),
        // There is nobody to tell: the supervisor sees this process end without a report.
        Err(_) => Exit::Internal.into(),
    }
}

#[cfg(target_os = "linux")]
fn set_up_process() {
    // Both help, neither is needed: G3 outside containers, and a name that `pkill leasehold` does not match.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let _ = rustix::thread::set_name(c"lease-guardian");
}

#[cfg(not(target_os = "linux"))]
fn set_up_process() {}

fn guard(name: &OsString, command: &[OsString], signals: &SigSet) -> io::Result<()> {
    let mut supervisor = Supervisor {
        stream: UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?),
        lines: Lines::default(),
        gone: false,
    };
    let Some(stdin) = wire::receive_stdin(&supervisor.stream)? else {
        return Ok(());
    };
    let (terms, valid_until_ms) = loop {
        match supervisor.order()? {
            Some(Order::Start {
                terms,
                valid_until_ms,
            }) => break (terms, valid_until_ms),
            Some(Order::Until(_) | Order::Gone) => {}
            None if supervisor.gone => return Ok(()),
            None => supervisor.read(),
        }
    };
    let mut keeper = Keeper::new(terms);
    if keeper.due(clock::now()).is_some() {
        supervisor.tell(Report::TooLate);
        return Ok(());
    }
    // A child inherits what is blocked, so for as long as the start takes it is as it was before G2.
    let _ = signals.thread_set_mask();
    let spawned = start(name, valid_until_ms, command, stdin);
    let _ = SigSet::all().thread_block();
    match spawned {
        Ok(group) => watch(&mut supervisor, keeper, group),
        Err(error) => {
            supervisor.tell(Report::CannotStart(error.raw_os_error().unwrap_or(0)));
            Ok(())
        }
    }
}

fn start(
    name: &OsString,
    valid_until_ms: u64,
    command: &[OsString],
    stdin: OwnedFd,
) -> io::Result<Group> {
    let (program, arguments) = command.split_first().ok_or(Errno::INVAL)?;
    let mut starter = if foreground::is_to_be_lent(stdin.as_fd()) {
        let mut waits = Command::new(own_binary()?);
        waits.arg(foreground::WORD).arg(program);
        waits
    } else {
        Command::new(program)
    };
    let child = starter
        .args(arguments)
        .env("LEASEHOLD_NAME", name)
        .env("LEASEHOLD_VALID_UNTIL", valid_until_ms.to_string())
        .stdin(Stdio::from(stdin))
        .process_group(0)
        .spawn()?;
    Ok(Group(Pid::from_child(&child)))
}

/// Until nothing is left of the group.
fn watch(supervisor: &mut Supervisor, mut keeper: Keeper, group: Group) -> io::Result<()> {
    supervisor.tell(Report::Started(group.0.as_raw_pid()));
    let (mut children, for_thread) = UnixStream::pair()?;
    thread::spawn(move || collect(group.0, for_thread));
    let mut changes = Lines::default();
    let alarm = Alarm::new()?;

    let mut ended: Option<Ended> = None;
    let mut why: Option<Why> = None;
    let mut look_every = LOOK_EVERY;
    loop {
        let mut at = keeper.alarm();
        if let Some(how) = ended {
            if group.is_empty() {
                supervisor.tell(Report::Ended { how, why });
                return Ok(());
            }
            let look_at = clock::now() + look_every;
            at = Some(at.map_or(look_at, |at| at.min(look_at)));
            look_every = LOOK_EVERY_MAX.min(look_every * 2);
        }
        let ears = [
            (!supervisor.gone).then(|| supervisor.stream.as_fd()),
            ended.is_none().then(|| children.as_fd()),
        ];
        let [from_supervisor, from_children] = alarm.wait(ears, at)?;

        let mut act = None;
        if from_children {
            read(&mut children, &mut changes)?;
            while let Some(change) = changes.next()? {
                match change {
                    Change::Stopped(signal) => supervisor.tell(Report::Stopped(signal)),
                    Change::Ended(how) => {
                        ended = Some(how);
                        if keeper.is_working() && !group.is_empty() {
                            act = Some(keeper.end(clock::now(), Why::Leftovers));
                        }
                    }
                }
            }
        }
        if from_supervisor {
            supervisor.read();
            while let Some(order) = supervisor.order()? {
                match order {
                    Order::Until(until) => keeper.renewed(until),
                    Order::Gone => act = Some(keeper.kill(Why::LeaseGone)),
                    Order::Start { .. } => {}
                }
            }
            if supervisor.gone && keeper.is_working() {
                act = Some(keeper.end(clock::now(), Why::SupervisorGone));
            }
        }
        if let Some(act) = act.or_else(|| keeper.due(clock::now())) {
            why = why.or(Some(carry_out(act, group, supervisor)));
        }
    }
}

fn carry_out(act: Act, group: Group, supervisor: &mut Supervisor) -> Why {
    let (why, sent) = match act {
        Act::Terminate(why) => {
            supervisor.tell(Report::Ending(why));
            let sent = group.send(Signal::TERM);
            // A stopped process would not hear it.
            let _ = group.send(Signal::CONT);
            (why, sent)
        }
        Act::Kill(why) => (why, group.send(Signal::KILL)),
    };
    if sent == Err(Errno::PERM) {
        supervisor.tell(Report::OutOfReach);
    }
    why
}

/// The process group that CMD leads.
#[derive(Clone, Copy, Debug)]
struct Group(Pid);

impl Group {
    fn send(self, signal: Signal) -> Result<(), Errno> {
        kill_process_group(self.0, signal)
    }

    fn is_empty(self) -> bool {
        test_kill_process_group(self.0) == Err(Errno::SRCH)
    }
}

/// The connection to the supervisor.
struct Supervisor {
    stream: UnixStream,
    lines: Lines,
    gone: bool,
}

impl Supervisor {
    /// Takes in what has arrived; blocks if nothing has.
    fn read(&mut self) {
        // An error is as good as the end: nothing will come any more.
        self.gone = !read(&mut self.stream, &mut self.lines).unwrap_or(false);
    }

    fn order(&mut self) -> io::Result<Option<Order>> {
        self.lines.next()
    }

    /// Whoever is not there any more need not be told.
    fn tell(&mut self, report: Report) {
        if let Ok(line) = wire::line(&report) {
            let _ = self.stream.write_all(&line);
        }
    }
}

/// Reads once; `false` at the end of the stream.
fn read(stream: &mut UnixStream, lines: &mut Lines) -> io::Result<bool> {
    let mut bytes = [0; 512];
    let length = stream.read(&mut bytes)?;
    lines.push(&bytes[..length]);
    Ok(length > 0)
}

/// What becomes of CMD.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Change {
    Stopped(i32),
    Ended(Ended),
}

/// Collects all children, ours and the adopted ones (G3), and tells what becomes of CMD.
fn collect(command: Pid, mut tell: UnixStream) {
    loop {
        let (pid, status) = match rustix::process::wait(WaitOptions::UNTRACED) {
            Ok(Some(change)) => change,
            Ok(None) | Err(Errno::INTR) => continue,
            Err(_) => return,
        };
        if pid != command {
            continue;
        }
        let change = if let Some(signal) = status.stopping_signal() {
            Change::Stopped(signal)
        } else if let Some(signal) = status.terminating_signal() {
            Change::Ended(Ended::Signaled(signal))
        } else if let Some(code) = status.exit_status() {
            Change::Ended(Ended::Exited(code))
        } else {
            continue;
        };
        if wire::line(&change)
            .and_then(|line| tell.write_all(&line))
            .is_err()
        {
            return;
        }
    }
}
