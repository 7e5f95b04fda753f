//! CMD on a terminal, before it is CMD: waits until its group is in the foreground.
//!
//! The supervisor lends the terminal once it knows CMD's group, and by then CMD could have read from it in
//! vain: its group has no parent in the session's other groups that could continue it, so the kernel answers a
//! read from the background with an error instead of stopping it. So the process that becomes CMD waits first.

use std::{
    ffi::OsString,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::process::CommandExt,
    },
    process::{Command, ExitCode},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    process::{getpgid, getpgrp, getppid},
    stdio::stdin,
    termios::{isatty, tcgetpgrp},
};

use crate::{exit::Exit, output};

/// The first argument that makes a process of ours wait for the terminal. After it: CMD.
pub(crate) const WORD: &str = "__foreground";

/// The loan takes two short messages. If it does not come, CMD starts in the background, as if by a shell's `&`.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// Whether this is a terminal which the supervisor, our parent, has and will lend.
pub(super) fn is_to_be_lent(terminal: BorrowedFd<'_>) -> bool {
    let supervisor = getppid().and_then(|parent| getpgid(Some(parent)).ok());
    isatty(terminal) && supervisor.is_some() && tcgetpgrp(terminal).ok() == supervisor
}

pub(crate) fn main(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(program) = words.next() else {
        return Exit::Usage.into();
    };
    let late = Instant::now() + PATIENCE;
    while tcgetpgrp(stdin().as_fd()) != Ok(getpgrp()) && Instant::now() < late {
        thread::sleep(LOOK_EVERY);
    }
    let error = Command::new(&program).args(words).exec();
    let message = format!("cannot run {}: {error}", program.display());
    output::say(&output::remark(&message));
    Exit::cannot_start(&error).into()
}
