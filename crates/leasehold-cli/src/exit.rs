//! The exit codes, in one place: `--help` prints [`TABLE`], the code uses [`Exit`].

use std::process::ExitCode;

use leasehold::{Error, ErrorKind};

/// The codes as `--help` prints them; a test keeps it and [`Exit`] together.
pub(crate) const TABLE: &str = "\
Exit status:
  0    done; for run --skip-if-held also: held by another owner, CMD was not run
  1    demo: the check at the end failed
  64   usage: invalid input; nothing was sent
  69   the server cannot be reached or does not answer
  70   something failed on this side
  75   busy: the name did not become free within --wait
  76   lost: the lease ended or was taken away, and CMD was stopped
  77   the server refused: wrong password, missing permission, a key of another type
  126  CMD cannot be executed
  127  CMD was not found
  else run passes on the status of CMD: its own code, or 128+n if signal n ended it

CMD may use these numbers too. Where that matters, give CMD codes of its own, or use
--json, which reports the outcome on stderr.";

/// How the command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Done,
    CheckFailed,
    Usage,
    Unreachable,
    Internal,
    Busy,
    Lost,
    Rejected,
    CannotExecute,
    NotFound,
    /// The exit status of CMD: its own code, or 128 plus the signal.
    Of(u8),
}

impl Exit {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::CheckFailed => 1,
            Exit::Usage => 64,
            Exit::Unreachable => 69,
            Exit::Internal => 70,
            Exit::Busy => 75,
            Exit::Lost => 76,
            Exit::Rejected => 77,
            Exit::CannotExecute => 126,
            Exit::NotFound => 127,
            Exit::Of(code) => code,
        }
    }

    /// Ended by this signal, as a shell puts it.
    pub(crate) fn by_signal(signal: i32) -> Exit {
        Exit::Of(u8::try_from(128 + signal).unwrap_or(u8::MAX))
    }

    /// CMD could not be started, for this reason, as a shell puts it.
    pub(crate) fn cannot_start(error: &std::io::Error) -> Exit {
        match error.kind() {
            std::io::ErrorKind::NotFound => Exit::NotFound,
            _ => Exit::CannotExecute,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}

/// Why a command failed, in words for the user.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Failure {
            exit,
            message: message.into(),
        }
    }

    pub(crate) fn internal(doing: &str, error: &std::io::Error) -> Self {
        Failure::new(Exit::Internal, format!("could not {doing}: {error}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exit = match error.kind() {
            ErrorKind::Invalid => Exit::Usage,
            ErrorKind::NotSent | ErrorKind::Ambiguous => Exit::Unreachable,
            ErrorKind::Rejected => Exit::Rejected,
            ErrorKind::Lost | ErrorKind::TooShort | ErrorKind::Stale => Exit::Lost,
            _ => Exit::Internal,
        };
        Failure::new(exit, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_in_the_table_that_help_prints() {
        for exit in [
            Exit::Done,
            Exit::CheckFailed,
            Exit::Usage,
            Exit::Unreachable,
            Exit::Internal,
            Exit::Busy,
            Exit::Lost,
            Exit::Rejected,
            Exit::CannotExecute,
            Exit::NotFound,
        ] {
            let row = format!("\n  {:<4} ", exit.code());
            assert!(TABLE.contains(&row), "{exit:?} is missing");
        }
    }

    #[test]
    fn a_signal_becomes_128_and_its_number() {
        assert_eq!(Exit::by_signal(15).code(), 143);
        assert_eq!(Exit::by_signal(9).code(), 137);
    }
}
