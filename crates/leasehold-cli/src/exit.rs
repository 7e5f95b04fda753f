//! The exit codes, in one place: `--help` prints [`TABLE`], the code uses [`Exit`].

use std::process::ExitCode;

use leasehold::{Error, ErrorKind, Invalid};

/// The codes as `--help` prints them; a test keeps it and [`Exit`] together. No line is longer than 70 columns, as `man` wraps
/// them.
pub(crate) const TABLE: &str = "\
Exit status:
  0    done; for run --skip-if-held also: held by another owner, and
       CMD was not run
  1    status --quiet: NAME is free
       demo: the check at the end failed
       doctor: a danger was found, or, with --strict, a warning
       drill: a row failed
  64   usage: invalid input; nothing was sent
  69   the server cannot be reached or does not answer
  70   something failed on this side
  75   busy: the name was held, for as long as run was to wait;
       doctor: --name is in use
  76   lost: the lease ended or was taken away, and CMD was stopped
  77   the server refused: wrong password, missing permission, a key
       of another type, a semaphore without permits; or TLS failed:
       its certificate, or yours
  126  CMD cannot be executed
  127  CMD was not found
  else run passes on the status of CMD: its own code, or 128+n if
       signal n ended it

CMD may use these numbers too. Where that matters, give CMD codes of
its own, or use --json, which reports the outcome on stderr.";

/// How the command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Done,
    CheckFailed,
    /// The name that `status --quiet` was asked about is free.
    Free,
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
            Exit::CheckFailed | Exit::Free => 1,
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

    /// Whether it says that CMD could not be started.
    pub(crate) const fn is_of_no_run(self) -> bool {
        matches!(self, Exit::CannotExecute | Exit::NotFound)
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
            ErrorKind::NotSent if is_of_this_process(&error) => Exit::Internal,
            ErrorKind::Invalid => Exit::Usage,
            ErrorKind::NotSent | ErrorKind::Ambiguous => Exit::Unreachable,
            ErrorKind::Rejected => Exit::Rejected,
            ErrorKind::Lost | ErrorKind::TooShort | ErrorKind::Stale => Exit::Lost,
            _ => Exit::Internal,
        };
        let message = match &error {
            Error::Invalid(invalid) => in_words_of_the_command_line(invalid),
            _ => error.to_string(),
        };
        Failure::new(exit, message)
    }
}

/// Whether the server has nothing to do with it: this process could not open a file, or start a thread.
fn is_of_this_process(error: &Error) -> bool {
    matches!(error, Error::NotSent { source, .. } if source.is::<std::io::Error>())
}

/// The library speaks of its methods; a user of the command line has options.
fn in_words_of_the_command_line(invalid: &Invalid) -> String {
    let Invalid {
        what,
        value,
        limit,
        remedy,
        ..
    } = invalid;
    // The command line has no use for a lock in memory.
    let limit = limit.trim_end_matches(" or memory");
    let own_remedy = remedy.trim_end_matches(", or memory:");
    let (subject, remedy) = match *what {
        "url" => (
            "the server's URL (--url, else LEASEHOLD_URL, else REDIS_URL)",
            own_remedy,
        ),
        "port" => ("the port in the server's URL", own_remedy),
        "name" => ("NAME", own_remedy),
        "name_prefix" => ("the prefix (--prefix, else LEASEHOLD_PREFIX)", own_remedy),
        "connect_timeout" => ("--connect-timeout", own_remedy),
        "permits" => ("--permits", "say how many may hold the semaphore at once"),
        "lease" | "fixed_lease" => (
            "the lease (--lease, or --at-least)",
            "leave --lease out for 30s, renewed while CMD runs",
        ),
        _ => return invalid.to_string(),
    };
    let message = format!("{subject} is {value}, but must be {limit}");
    if remedy.is_empty() {
        return message;
    }
    format!("{message}; {remedy}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn every_code_is_in_the_table_that_help_prints() {
        for exit in [
            Exit::Done,
            Exit::CheckFailed,
            Exit::Free,
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
    fn a_lack_of_files_is_no_failure_of_the_server() {
        let not_sent = |source| Error::NotSent {
            doing: "connect".into(),
            source,
        };
        let too_many: std::io::Error = rustix::io::Errno::MFILE.into();
        let failure = Failure::from(not_sent(Arc::new(too_many)));
        assert_eq!(failure.exit, Exit::Internal);
        assert!(failure.message.contains("ulimit"), "{failure:?}");
        let failure = Failure::from(not_sent(Arc::new(std::fmt::Error)));
        assert_eq!(failure.exit, Exit::Unreachable);
    }

    #[test]
    fn a_signal_becomes_128_and_its_number() {
        assert_eq!(Exit::by_signal(15).code(), 143);
        assert_eq!(Exit::by_signal(9).code(), 137);
    }
}
