//! The second process of `leasehold run`: it starts CMD, and sees to it that CMD does not outlive the lease.
//!
//! The supervisor talks to the server and tells this process each new deadline. When the supervisor is
//! killed, this process reads the end of the connection; when it is stopped or starved, no new deadline
//! comes. In both cases this process ends CMD in time, because it needs no other process for that:
//!
//! - **G1** It is CMD's parent, so there is no moment in which CMD runs and this process does not know it.
//! - **G2** It leads a process group of its own and blocks all signals, so Ctrl-C or `kill -9` of the supervisor's
//!   whole group ends the supervisor and not this process. (CMD starts with the signals blocked that were blocked
//!   before, as a rule none.)
//! - **G3** Orphans of CMD become its children, so it can tell when nothing is left of CMD's group even where
//!   no other process collects orphans, as in a container.
//! - **G4** The group's number stays taken while it has a member, so a signal to the group cannot hit others
//!   as long as the group was not seen empty.
//! - **G5** Nothing in it blocks but the wait for the next event or deadline, from before CMD starts until nothing
//!   is left of its group. Reports are sent when there is room for them; starting CMD and collecting children, which
//!   may take long, has a thread of its own.
//! - **G6** Every way out ends CMD's group first: an error and a panic kill it.
//!
//! Limits: it cannot end CMD while this process and the supervisor are both stopped, or get no CPU (a machine
//! that swaps, a frozen container, processes of a higher real-time priority); end a process that the kernel does
//! not let go, as on a file system that hangs; reach a process that has left the group; or hurry a `leasehold
//! run` inside CMD, whose own guardian grants its own grace.

mod command;
pub(crate) mod foreground;
pub(crate) mod keeper;
pub(crate) mod outgoing;
mod supervisor;
pub(crate) mod wire;

use std::{ffi::OsString, io, panic, process::ExitCode, time::Duration};

use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::io::Errno;

use self::{
    command::{Change, Group, Start, Worker},
    keeper::{Act, Keeper, Why},
    supervisor::{Job, Supervisor},
    wire::{Ended, Order, Report},
};
use crate::{
    clock::{self, Alarm},
    exit::Exit,
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
    // G5. The message of a panic goes to CMD's standard error, which may be a full pipe.
    panic::set_hook(Box::new(|_| {}));
    set_up_process();
    let Some(name) = words.next() else {
        return Exit::Usage.into();
    };
    let command: Vec<OsString> = words.collect();
    match guard(name, command, before) {
        Ok(()) => Exit::Done.into(),
        // No report is possible: the supervisor sees this process end without one.
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

fn guard(name: OsString, command: Vec<OsString>, blocked: SigSet) -> io::Result<()> {
    // All that it takes to keep the deadline is there before CMD is, which may leave nothing for others.
    let alarm = Alarm::new()?;
    let mut supervisor = Supervisor::on_stdin()?;
    let Some(Job {
        terms,
        facts,
        stdin,
    }) = supervisor.job()?
    else {
        return Ok(());
    };
    let keeper = Keeper::new(terms);
    let worker = Worker::start(Start {
        name,
        command,
        stdin,
        facts,
        not_after: keeper.terminate_at(),
        blocked,
    })?;
    watch(&mut supervisor, keeper, worker, &alarm)?;
    supervisor.see_off(&alarm)
}

/// Until nothing is left of the group. Every other way out of this function ends the group first.
fn watch(
    supervisor: &mut Supervisor,
    mut keeper: Keeper,
    mut worker: Worker,
    alarm: &Alarm,
) -> io::Result<()> {
    let mut group = Group::starting();
    let mut ended: Option<Ended> = None;
    let mut why: Option<Why> = None;
    let mut look_every = LOOK_EVERY;
    loop {
        let mut at = keeper.alarm();
        if let Some(how) = ended
            && group.is_gone()
        {
            supervisor.tell(Report::Ended { how, why });
            return Ok(());
        }
        if keeper.has_killed() {
            // Again: a start that went on, or a process that joined the group, did not feel the first.
            let _ = group.kill();
        }
        if ended.is_some() || (keeper.has_killed() && group.is_starting()) {
            let look_at = clock::now() + look_every;
            at = Some(at.map_or(look_at, |at| at.min(look_at)));
            look_every = LOOK_EVERY_MAX.min(look_every * 2);
        }
        let [from_supervisor, from_worker] = alarm.wait(
            &[
                supervisor.to_poll(),
                ended.is_none().then(|| worker.to_poll()),
            ],
            at,
        )?;

        let mut act = None;
        if from_worker {
            worker.read()?;
        }
        while let Some(change) = worker.change()? {
            match change {
                Change::Started(leader) => {
                    group.started(leader);
                    supervisor.tell(Report::Started(leader));
                }
                Change::NotStarted(report) => {
                    group.never_was();
                    supervisor.tell(report);
                    return Ok(());
                }
                Change::Stopped(signal) => supervisor.tell(Report::Stopped(signal)),
                Change::Ended(how) => {
                    ended = Some(how);
                    if keeper.is_working() && !group.is_gone() {
                        act = Some(keeper.end(clock::now(), Why::Leftovers));
                    }
                }
            }
        }
        if from_supervisor {
            supervisor.exchange();
        }
        // Also those that came in one piece with the first.
        while let Some(order) = supervisor.order() {
            match order {
                Order::Until(until) => keeper.renewed(until),
                Order::Gone => act = Some(keeper.kill(Why::LeaseGone)),
                Order::Start { .. } => {}
            }
        }
        if supervisor.is_gone() && keeper.is_working() {
            act = Some(keeper.end(clock::now(), Why::SupervisorGone));
        }
        if let Some(act) = act.or_else(|| keeper.due(clock::now())) {
            let act = match act {
                // It has done nothing yet that it would have to wind down.
                Act::Terminate(why) if group.is_starting() => keeper.kill(why),
                act => act,
            };
            why = why.or(Some(carry_out(act, &group, supervisor)));
        }
    }
}

fn carry_out(act: Act, group: &Group, supervisor: &mut Supervisor) -> Why {
    let (why, sent) = match act {
        Act::Terminate(why) => (why, group.terminate()),
        Act::Kill(why) => (why, group.kill()),
    };
    if let Act::Terminate(why) = act {
        supervisor.tell(Report::Ending(why));
    }
    if sent == Err(Errno::PERM) {
        supervisor.tell(Report::OutOfReach);
    }
    why
}
