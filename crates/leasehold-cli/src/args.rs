//! The command line: every flag, its default, and the help that explains it.

use std::{ffi::OsString, time::Duration};

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

use crate::exit;

/// How long CMD has between SIGTERM and SIGKILL when `--grace` is left out, if the lease is long enough.
const GRACE: Duration = Duration::from_secs(5);

const URL: &str =
    "Server to use [default: $LEASEHOLD_URL, else $REDIS_URL, else redis://127.0.0.1/]";
const URL_DEFAULT: &str = "redis://127.0.0.1/";

/// Distributed locks on Redis and Valkey: run a command under a lock, see the holders of a name.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, after_help = exit::TABLE)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Watch workers contend for a lock: hand-overs, renewals, a crash; ends with a check
    Demo(Demo),
    /// Hold a lock while a command runs
    #[command(long_about = RUN, after_help = run_after_help())]
    Run(Run),
    /// Show the holders of a name, since when and for how long
    Status(Status),
    /// Take a name away from its holder
    #[command(long_about = UNLOCK)]
    Unlock(Unlock),
}

const RUN: &str = "\
Holds the lock NAME while CMD runs, and releases it afterwards.

The lease is renewed as long as CMD runs. When it cannot be renewed, CMD is stopped before another holder can \
get the name: SIGTERM when no more than --grace of the lease is left, SIGKILL shortly before its end. The same \
happens when `leasehold run` itself is killed or stopped, because a guardian process of its own watches the \
deadline. When the lock was taken away (unlock --force), the next renewal notices and CMD is killed.

CMD runs in a process group of its own. Its input, output, signals and exit status are passed through; on a \
terminal it is in the foreground. When CMD ends and leaves processes behind in its group, they get SIGTERM, \
and SIGKILL after --grace, before the lock is released: they would go on working without it. A process that \
leaves the group (a daemon) or changes to another user (sudo) is out of reach.

Ctrl-Z stops CMD and `leasehold run`, which then cannot renew: CMD is killed when the lease ends. Without a \
terminal only CMD is stopped, and the lease is kept.

CMD finds in its environment:
  LEASEHOLD_NAME         the name
  LEASEHOLD_VALID_UNTIL  the end of the lease when CMD was started, before any renewal: milliseconds since 1970";

const RUN_EXAMPLES: &str = "\
Examples:
  leasehold run deploy -- ./deploy.sh
        one at a time, wherever it is started
  leasehold run --skip-if-held nightly -- ./report.sh
        in the crontab of each host: the first one runs it
  leasehold run --wait 1m --lease 10s migrate -- ./migrate.sh
        wait a minute at most; after a crash the name is free within 10 s";

fn run_after_help() -> String {
    format!("{RUN_EXAMPLES}\n\n{}", exit::TABLE)
}

const UNLOCK: &str = "\
Takes NAME away from its holder, so that the next in line gets it.

The holder is not asked. It notices when it next renews, and may go on working until then, beside the next \
holder. So first make sure that it is dead, or that overlapping does no harm: `leasehold status NAME` shows \
the holder. A crashed holder loses the name by itself when its lease ends.";

/// Which server.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Server {
    #[arg(long, value_name = "URL", help = URL)]
    url: Option<String>,
}

impl Server {
    /// The URL to connect to. It may contain a password.
    pub(crate) fn url(&self) -> String {
        let from = |name| std::env::var(name).ok().filter(|url| !url.is_empty());
        self.url
            .clone()
            .or_else(|| from("LEASEHOLD_URL"))
            .or_else(|| from("REDIS_URL"))
            .unwrap_or_else(|| URL_DEFAULT.to_owned())
    }
}

/// `leasehold demo`
#[derive(Debug, ClapArgs)]
pub(crate) struct Demo {
    /// Run on this server, with real processes [default: in memory, needs no server]
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Print one JSON document: the events, the counts and the verdict
    #[arg(long)]
    pub(crate) json: bool,
    /// Seed of the workers' pauses [default: a new one each time]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Skip the lock, to see the check fail
    #[arg(long, hide = true)]
    pub(crate) broken: bool,
}

/// `leasehold run`
#[derive(Debug, ClapArgs)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) server: Server,
    /// Give up with status 75 when NAME is not free within this time; 0 asks once [default: wait for ever]. A server that cannot be reached at first is status 69
    #[arg(long, value_name = "DURATION", value_parser = wait)]
    pub(crate) wait: Option<Duration>,
    /// How long the name outlives this process if it crashes; renewed every third of it while CMD runs
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = lease)]
    pub(crate) lease: Duration,
    /// How long before the end of a lease that cannot be renewed CMD gets SIGTERM [default: 5s, at most a third
    /// of the lease]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    grace: Option<Duration>,
    /// When NAME is held, end at once with status 0 and do not run CMD
    #[arg(long, conflicts_with = "wait")]
    pub(crate) skip_if_held: bool,
    /// Report the outcome on stderr, as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The lock to hold
    pub(crate) name: String,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

impl Run {
    /// How long CMD has between SIGTERM and SIGKILL, checked against the lease.
    pub(crate) fn grace(&self) -> Result<Duration, String> {
        let Some(grace) = self.grace else {
            return Ok(GRACE.min(self.lease / 3));
        };
        if grace > self.lease / 2 {
            return Err(format!(
                "--grace is {}, but must be at most half of --lease, which is {}: \
                 a renewal is due after a third of it, and needs time for a second try; \
                 shorten --grace or lengthen --lease",
                humantime::format_duration(grace),
                humantime::format_duration(self.lease),
            ));
        }
        Ok(grace)
    }
}

/// The kinds of locks.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Kind {
    /// One at a time; a spin mutex, too
    Mutex,
    /// One at a time, each with a fencing token
    Fenced,
    /// Many readers, or one writer
    Rw,
    /// A number of permits
    Semaphore,
    /// One at a time, shared with the locks of other libraries: SET NAME TOKEN NX PX
    Plain,
}

/// `leasehold status`
#[derive(Debug, ClapArgs)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) server: Server,
    /// Which kind of lock NAME is; without it, the kind that the server has under NAME
    #[arg(long, value_enum)]
    pub(crate) kind: Option<Kind>,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The lock to look at
    pub(crate) name: String,
}

/// `leasehold unlock`
#[derive(Debug, ClapArgs)]
pub(crate) struct Unlock {
    #[command(flatten)]
    pub(crate) server: Server,
    /// Yes, take it away from a holder that may still be working
    #[arg(long)]
    pub(crate) force: bool,
    /// Which kind of lock NAME is; without it, the kind that the server has under NAME
    #[arg(long, value_enum)]
    pub(crate) kind: Option<Kind>,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The lock to take away
    pub(crate) name: String,
}

impl Command {
    pub(crate) fn json(&self) -> bool {
        match self {
            Command::Demo(demo) => demo.json,
            Command::Run(run) => run.json,
            Command::Status(status) => status.json,
            Command::Unlock(unlock) => unlock.json,
        }
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if text.starts_with('-') {
        return Err("a duration cannot be negative".to_owned());
    }
    if text.parse::<f64>().is_ok() {
        return Err(format!(
            "a number needs a unit: {text}s for seconds, {text}ms, {text}min or {text}h"
        ));
    }
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write it like 30s, 500ms or \"1m 30s\""))
}

/// Zero needs no unit: it means "ask once".
fn wait(text: &str) -> Result<Duration, String> {
    match text.trim() {
        "0" => Ok(Duration::ZERO),
        text => duration(text),
    }
}

fn lease(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err(
            "a lease of zero ends before CMD starts; leave --lease out for 30s, renewed while CMD runs"
                .to_owned(),
        ),
        lease => Ok(lease),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn run(flags: &[&str]) -> Result<Run, String> {
        let line = ["leasehold", "run"]
            .iter()
            .chain(flags)
            .chain(&["job", "--", "true"]);
        match Args::try_parse_from(line) {
            Ok(Args {
                command: Command::Run(run),
            }) => Ok(run),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn the_definitions_hold_together() {
        Args::command().debug_assert();
    }

    #[test]
    fn defaults_are_thirty_seconds_five_seconds_and_for_ever() {
        let run = run(&[]).unwrap();
        assert_eq!(run.lease, Duration::from_secs(30));
        assert_eq!(run.grace().unwrap(), GRACE);
        assert_eq!(run.wait, None);
    }

    #[test]
    fn durations_are_written_for_people() {
        let run = run(&["--wait", "1m 30s", "--lease", "500ms", "--grace", "20ms"]).unwrap();
        assert_eq!(run.wait, Some(Duration::from_secs(90)));
        assert_eq!(run.lease, Duration::from_millis(500));
        assert_eq!(run.grace().unwrap(), Duration::from_millis(20));
    }

    #[test]
    fn only_a_wait_of_zero_needs_no_unit() {
        assert_eq!(run(&["--wait", "0"]).unwrap().wait, Some(Duration::ZERO));
        for flags in [["--wait", "30"], ["--lease", "30"], ["--grace", "30"]] {
            let error = run(&flags).unwrap_err();
            assert!(error.contains("30s for seconds"), "{error}");
        }
    }

    #[test]
    fn a_lease_of_nothing_is_refused_with_a_way_out() {
        for (flag, word) in [
            ("--lease=0s", "zero"),
            ("--lease=-5s", "negative"),
            ("--lease=soon", "30s"),
        ] {
            let error = run(&[flag]).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_grace_that_renewals_cannot_keep_clear_of_is_refused_with_both_values() {
        let error = run(&["--lease=4s", "--grace=3s"])
            .unwrap()
            .grace()
            .unwrap_err();
        assert!(error.contains("4s") && error.contains("3s"), "{error}");
    }

    #[test]
    fn the_default_grace_shrinks_with_the_lease() {
        let run = run(&["--lease=3s"]).unwrap();
        assert_eq!(run.grace().unwrap(), Duration::from_secs(1));
    }

    #[test]
    fn the_command_needs_two_dashes_before_it_and_keeps_its_own_flags() {
        let line = ["leasehold", "run", "job", "--", "ls", "--json", "-l"];
        let Command::Run(run) = Args::try_parse_from(line).unwrap().command else {
            panic!("run")
        };
        assert_eq!(run.command, ["ls", "--json", "-l"]);
        assert!(!run.json);
        assert!(Args::try_parse_from(["leasehold", "run", "job", "ls"]).is_err());
    }
}
