//! `leasehold run` on the command line.

use std::{ffi::OsString, time::Duration};

use clap::{Args, value_parser};

use super::durations::{at_least, duration, lease, wait};
use crate::{
    exit,
    kinds::{self, Kind},
    server::Server,
    terms::Terms,
};

pub(super) const USAGE: &str = "\
leasehold run [OPTIONS] <NAME> [--] <CMD> [ARG]...
       leasehold run [OPTIONS] <NAME> -c <STRING>";

pub(super) const LONG_ABOUT: &str = "\
Holds the lock NAME while CMD runs, and releases it afterwards.

The lease is renewed as long as CMD runs. When it cannot be renewed, CMD is stopped before another holder can \
get the name: SIGTERM when no more than --grace of the lease is left, SIGKILL shortly before its end. The same \
happens when `leasehold run` itself is killed or stopped, because a guardian process of its own watches the \
deadline. If both are killed or stopped at once (kill -9 of both, the OOM killer, a frozen container), \
CMD may outlive the lock. When the lock was taken away (unlock --force), the next renewal notices and CMD is killed.

CMD runs in a process group of its own. Its input, output and exit status are passed through; on a terminal it is in \
the foreground. These signals are passed on to it: TERM, INT, HUP, QUIT, USR1, USR2, ALRM, WINCH, TSTP and CONT. When CMD ends and leaves processes behind in its group, they get SIGTERM, \
and SIGKILL after --grace, before the lock is released: they would go on working without it. A process that \
leaves the group (a daemon) or changes to another user (sudo) is out of reach.

With --at-least the name stays taken for that long, counted from the moment at which it was taken, whether CMD succeeds \
or fails. As a rule `leasehold run` ends with CMD, and nothing runs on: the lease on the server ends when it is time. If \
CMD takes nearly as long, its lease has to be extended; then `leasehold run` waits for the end of --at-least, and \
releases the name. A crash does not free the name sooner: the first lease is as long as --at-least, and --lease counts \
only once CMD has run for nearly as long. If CMD cannot be started, the name is free at once.

Ctrl-Z stops CMD and `leasehold run`, which then cannot renew: CMD is killed when the lease ends. Without a \
terminal only CMD is stopped, and the lease is kept.

CMD finds in its environment:
  LEASEHOLD_NAME
      the name
  LEASEHOLD_VALID_UNTIL
      the end of the lease when CMD was started, before any
      renewal: milliseconds since 1970
  LEASEHOLD_TOKEN
      with --kind fenced: the fencing token of this hold, larger
      than those of all holds before

--json reports the outcome on stderr when all is over, as one line: outcome is ran, lost, busy, skipped, interrupted or \
failed; kind and access are words that `leasehold status --json` uses, too.";

// No line is longer than 70 columns: one that is wrapped, also by `man`, loses its indentation.
const EXAMPLES: &str = "\
Examples:
  leasehold run deploy ./deploy.sh
        one at a time, wherever it is started
  0 3 * * *  leasehold run -q --at-least 50s --skip-if-held job ./job
        in the crontab of each host: one of them runs it, however fast
        it is. 50 s is more than their clocks differ, and less than
        the time to the next run
  leasehold run -w 60 --lease 10s migrate ./migrate.sh
        wait a minute at most; after a crash the name is free within
        10 s
  leasehold run -n backup -c 'pg_dump shop | gzip >shop.gz'
        do not wait, as flock -n; if it is held, the status is 75
  leasehold run --kind leased --permits 3 encode ./encode.sh
        three at a time
  leasehold run --kind fenced ledger ./post.sh
        ./post.sh sends $LEASEHOLD_TOKEN along, so that the data can
        refuse a holder that comes too late
  leasehold run --lease 10s ledger -- ./post.sh --lease long
        behind the first word of CMD all options are its own";

pub(super) fn after_help() -> String {
    format!("{EXAMPLES}\n\n{}", exit::TABLE)
}

/// `leasehold run`
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) server: Server,
    /// Which kind of lock NAME is. All that contend for a name must use one kind
    #[arg(long, value_parser = kinds::to_run(), default_value = "mutex")]
    pub(crate) kind: Kind,
    /// How many permits the semaphore has in all, if no client has set that before
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    permits: Option<u32>,
    /// Give up with status 75 when NAME is not free within this time: seconds, or a duration such as 1m; 0 asks once
    /// [default: wait for ever]. A server that cannot be reached at first is status 69
    #[arg(short, long, alias = "timeout", value_name = "DURATION", value_parser = wait, allow_hyphen_values = true)]
    wait: Option<Duration>,
    /// Do not wait: when NAME is held, give up with status 75 at once
    #[arg(short, long, alias = "nb", conflicts_with = "wait")]
    nonblock: bool,
    /// When NAME is held, end at once with status 0 and do not run CMD
    #[arg(long, conflicts_with_all = ["wait", "nonblock"])]
    pub(crate) skip_if_held: bool,
    /// Keep NAME taken for this long from the start, even if CMD is done before: for a crontab of many hosts
    #[arg(long, value_name = "DURATION", value_parser = at_least, allow_hyphen_values = true)]
    at_least: Option<Duration>,
    /// How long the name outlives this process if it crashes; renewed every third of it while CMD runs
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = lease, allow_hyphen_values = true)]
    lease: Duration,
    /// How long before the end of a lease that cannot be renewed CMD gets SIGTERM [default: 5s, at most a third
    /// of the lease]
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    grace: Option<Duration>,
    /// Do not say on stderr that NAME is held: the exit status tells. For a crontab, which mails what is said
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// Report the outcome on stderr, as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Run this string with `sh -c`, instead of CMD
    #[arg(
        short = 'c',
        long = "command",
        value_name = "STRING",
        conflicts_with = "command"
    )]
    shell: Option<OsString>,
    /// The lock to hold
    #[arg(value_parser = super::name)]
    pub(crate) name: String,
    /// The command and its arguments
    #[arg(
        trailing_var_arg = true,
        required_unless_present = "shell",
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

impl Run {
    /// The program to run and its arguments.
    pub(crate) fn command(&self) -> Vec<OsString> {
        match &self.shell {
            Some(string) => vec!["sh".into(), "-c".into(), string.clone()],
            None => self.command.clone(),
        }
    }

    /// How long to wait for NAME; `None`: for ever.
    pub(crate) fn wait(&self) -> Option<Duration> {
        if self.nonblock || self.skip_if_held {
            return Some(Duration::ZERO);
        }
        self.wait
    }

    /// How many permits to set, if the kind has permits.
    pub(crate) fn permits(&self) -> Result<Option<u32>, String> {
        match self.permits {
            Some(_) if self.kind != Kind::Leased => Err(format!(
                "--permits says how many may hold a semaphore at once, and --kind is {}: leave it out, or say \
                 --kind leased",
                self.kind.word()
            )),
            permits => Ok(permits),
        }
    }

    /// How the lock is to be held.
    pub(crate) fn terms(&self) -> Result<Terms, String> {
        if self.at_least.is_some() && self.kind == Kind::Read {
            return Err(
                "--at-least keeps the name taken so that the next run stays out, and readers let each other in: \
                 leave it out, or say --kind write"
                    .to_owned(),
            );
        }
        Terms::new(self.lease, self.grace, self.at_least)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{
        super::{Args, Command},
        *,
    };

    fn parse(line: &[&str]) -> Result<Run, String> {
        match Args::try_parse_from([&["leasehold", "run"], line].concat()) {
            Ok(Args {
                command: Command::Run(run),
                ..
            }) => Ok(run),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    fn run(flags: &[&str]) -> Result<Run, String> {
        parse(&[flags, &["job", "--", "true"]].concat())
    }

    #[test]
    fn defaults_are_thirty_seconds_five_seconds_and_for_ever() {
        let run = run(&[]).unwrap();
        assert_eq!(
            run.terms(),
            Terms::new(Duration::from_secs(30), Some(Duration::from_secs(5)), None)
        );
        assert_eq!(run.wait(), None);
    }

    #[test]
    fn durations_are_written_for_people() {
        let run = run(&["--wait", "1m 30s", "--lease", "500ms", "--grace", "20ms"]).unwrap();
        let ms = Duration::from_millis;
        assert_eq!(run.wait(), Some(ms(90_000)));
        assert_eq!(run.terms(), Terms::new(ms(500), Some(ms(20)), None));
    }

    #[test]
    fn waiting_is_told_as_flock_is_told() {
        let wait = |flags: &[&str]| run(flags).unwrap().wait();
        let seconds = |seconds| Some(Duration::from_secs_f64(seconds));
        assert_eq!(wait(&["-w", "5"]), seconds(5.0));
        assert_eq!(wait(&["-w0.5"]), seconds(0.5));
        assert_eq!(wait(&["--timeout", "5"]), seconds(5.0));
        assert_eq!(wait(&["-n"]), seconds(0.0));
        assert_eq!(wait(&["--nb"]), seconds(0.0));
        assert_eq!(wait(&["--skip-if-held"]), seconds(0.0));
        for two in [
            ["-n", "--wait=5"],
            ["-n", "--skip-if-held"],
            ["--skip-if-held", "-w5"],
        ] {
            assert!(run(&two).unwrap_err().contains("cannot be used with"));
        }
    }

    #[test]
    fn the_command_needs_no_dashes_before_it_and_keeps_its_own_flags() {
        for line in [
            &["job", "--", "ls", "--json", "-c", "-n"][..],
            &["job", "ls", "--json", "-c", "-n"],
        ] {
            let run = parse(line).unwrap();
            assert_eq!(run.command(), ["ls", "--json", "-c", "-n"], "{line:?}");
            assert!(!run.json);
            assert_eq!(run.wait(), None);
        }
        // As they are.
        let run = parse(&["job", "env", "--", "ls"]).unwrap();
        assert_eq!(run.command(), ["env", "--", "ls"]);
        let run = parse(&["job", "--", "--", "ls"]).unwrap();
        assert_eq!(run.command(), ["--", "ls"]);
        // Flags of ours may stand behind the name.
        let run = parse(&["job", "-n", "ls"]).unwrap();
        assert_eq!(
            (run.command(), run.wait()),
            (vec!["ls".into()], Some(Duration::ZERO))
        );
        // No command, and one that looks like a flag of ours.
        for line in [&["job"][..], &["job", "--"], &["ls", "-la"]] {
            assert!(parse(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn a_shell_string_stands_where_flock_has_it() {
        for line in [
            &["job", "-c", "echo a | cat"][..],
            &["-c", "echo a | cat", "job"],
            &["job", "--command", "echo a | cat"],
        ] {
            assert_eq!(parse(line).unwrap().command(), ["sh", "-c", "echo a | cat"]);
        }
        for line in [
            &["job", "-c"][..],
            &["job", "-c", "echo", "a"],
            &["job", "-c", "a", "--", "b"],
        ] {
            assert!(parse(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn a_name_stays_taken_only_if_that_keeps_others_out() {
        let flags = ["--at-least=5s", "--kind=write"];
        assert!(run(&flags).unwrap().terms().unwrap().is_fixed());
        let error = run(&["--at-least=5s", "--kind=read"]).unwrap().terms();
        assert!(error.unwrap_err().contains("--kind write"));
    }

    #[test]
    fn a_kind_that_cannot_be_held_is_refused_with_the_reason_and_an_unknown_one_with_the_kinds() {
        assert_eq!(run(&[]).unwrap().kind, Kind::Mutex);
        assert_eq!(run(&["--kind=fenced_mutex"]).unwrap().kind, Kind::Fenced);
        let error = run(&["--kind=rw"]).unwrap_err();
        assert!(error.contains("--kind read or --kind write"), "{error}");
        let error = run(&["--kind=raed"]).unwrap_err();
        assert!(
            error.contains("mutex, fenced, read, write, leased"),
            "{error}"
        );
        assert!(!error.contains("rw"), "{error}");
    }

    #[test]
    fn only_a_semaphore_has_permits() {
        let semaphore = ["--kind=leased", "--permits=2"];
        assert_eq!(run(&semaphore).unwrap().permits().unwrap(), Some(2));
        let error = run(&["--kind=read", "--permits=2"]).unwrap().permits();
        assert!(error.unwrap_err().contains("--kind is read"));
        assert!(run(&["--kind=leased", "--permits=0"]).is_err());
    }
}
