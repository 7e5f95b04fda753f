//! Lending the terminal to CMD, so that it can read from it and gets its Ctrl-C.

use rustix::{
    process::{Pid, Signal, getpid, kill_process},
    stdio::stdin,
    termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp},
};

use crate::children::group_of;

/// The terminal that is our standard input and controls this session.
#[derive(Debug)]
pub(crate) struct Terminal {
    us: Pid,
    settings: Option<Termios>,
}

impl Terminal {
    /// `None` when standard input is something else.
    pub(crate) fn open() -> Option<Self> {
        if !isatty(stdin()) || tcgetpgrp(stdin()).is_err() {
            return None;
        }
        // Without this, taking the terminal back from the background would stop this process.
        let mut set = nix::sys::signal::SigSet::empty();
        set.add(nix::sys::signal::Signal::SIGTTOU);
        set.thread_block().ok()?;
        Some(Terminal {
            us: group_of(getpid())?,
            settings: tcgetattr(stdin()).ok(),
        })
    }

    /// Puts the group in the foreground, if we are there ourselves.
    pub(crate) fn lend(&self, group: Pid) {
        if is_with(self.us) {
            let _ = tcsetpgrp(stdin(), group);
        }
    }

    /// Puts ourselves in the foreground, if the group is there.
    pub(crate) fn take_back(&self, group: Pid) {
        if is_with(group) {
            let _ = tcsetpgrp(stdin(), self.us);
        }
    }

    /// Undoes what a command that was killed had no time to undo: no echo, raw keys.
    pub(crate) fn restore(&self) {
        if let (true, Some(settings)) = (is_with(self.us), &self.settings) {
            let _ = tcsetattr(stdin(), OptionalActions::Now, settings);
        }
    }
}

/// Whether this group is in the foreground.
pub(crate) fn is_with(group: Pid) -> bool {
    tcgetpgrp(stdin()) == Ok(group)
}

/// Stops this process, as Ctrl-Z would. Returns when it is continued.
pub(crate) fn stop_ourselves() {
    let _ = kill_process(getpid(), Signal::STOP);
}
