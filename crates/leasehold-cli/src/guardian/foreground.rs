//! CMD on a terminal, before it is CMD: waits until its group is in the foreground.
//!
//! The supervisor lends the terminal once it knows CMD's group, and by then CMD could have read from it in
//! vain: its group has no parent in the session's other groups that could continue it, so the kernel answers a
//! read from the background with an error instead of stopping it. So the process that becomes CMD waits first.
//!
//! Its standard input is a connection to the guardian, which hands it the terminal, and hears why it does not become CMD. If it
//! does, no message says so: the connection is closed.

use std::{
    ffi::{OsStr, OsString},
    io::{self, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Command, ExitCode},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    process::{getpgrp, getppid},
    termios::{isatty, tcgetpgrp},
};

use super::{
    command::Change,
    wire::{self, Report},
};
use crate::{children::group_of, exit::Exit, supervise::link::own_binary};

/// The first argument that makes a process of ours wait for the terminal. After it: CMD.
pub(crate) const WORD: &str = "__foreground";

/// The loan takes two short messages. If it does not come, CMD starts in the background, as if by a shell's `&`.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// Whether this is a terminal which the supervisor, our parent, has and will lend.
pub(super) fn is_to_be_lent(terminal: BorrowedFd<'_>) -> bool {
    let supervisor = getppid().and_then(group_of);
    isatty(terminal) && supervisor.is_some() && tcgetpgrp(terminal).ok() == supervisor
}

/// The command of the process that becomes `program`, and our end of the connection to it.
pub(super) fn starter(
    program: &OsStr,
    terminal: BorrowedFd<'_>,
) -> io::Result<(Command, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    wire::send_stdin(&ours, terminal)?;
    ours.set_nonblocking(true)?;
    let mut waits = Command::new(own_binary()?);
    waits.arg(WORD).arg(program).stdin(OwnedFd::from(theirs));
    Ok((waits, ours))
}

pub(crate) fn main(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(program) = words.next() else {
        return Exit::Usage.into();
    };
    let error = become_command(&program, words);
    // No one hears of it if there is no guardian any more.
    Exit::cannot_start(&error).into()
}

/// Returns if it cannot be.
fn become_command(program: &OsStr, arguments: impl Iterator<Item = OsString>) -> io::Error {
    let joined = || {
        let guardian = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let terminal = wire::receive_stdin(&guardian)?;
        Ok((guardian, terminal.ok_or(io::ErrorKind::UnexpectedEof)?))
    };
    let (mut guardian, terminal) = match joined() {
        Ok(joined) => joined,
        Err(error) => return error,
    };
    let late = Instant::now() + PATIENCE;
    while tcgetpgrp(&terminal) != Ok(getpgrp()) && Instant::now() < late {
        thread::sleep(LOOK_EVERY);
    }
    let error = Command::new(program).args(arguments).stdin(terminal).exec();
    let report = Change::NotStarted(Report::CannotStart(error.raw_os_error().unwrap_or(0)));
    let _ = wire::line(&report).and_then(|line| guardian.write_all(&line));
    error
}
