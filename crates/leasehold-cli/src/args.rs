//! The command line: every flag, its default, and the help that explains it.

mod durations;
mod run;

use std::time::Duration;

use clap::{ArgAction, Args as ClapArgs, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

pub(crate) use self::{durations::duration, run::Run};
use crate::{
    exit::{self, Failure},
    kinds::Kind,
    server::{Address, NamePrefix, Server, TlsOptions},
};

/// Distributed locks on Redis and Valkey: run a command under a lock, see the holders of a name.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, after_help = exit::TABLE)]
pub(crate) struct Args {
    /// Say on stderr what happens; -vv says more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Watch workers contend for a lock: hand-overs, renewals, a crash, readers, permits; ends with a check
    Demo(Demo),
    /// Hold a lock while a command runs
    #[command(long_about = run::LONG_ABOUT, after_help = run::after_help(), override_usage = run::USAGE)]
    Run(Run),
    /// Show the holders of a name, since when and for how long
    #[command(long_about = STATUS)]
    Status(Status),
    /// List the locks of the server, or those whose names match a pattern
    #[command(long_about = LS, after_help = LS_EXAMPLES)]
    Ls(Ls),
    /// Watch the locks of the server, live
    #[command(long_about = TOP, after_help = TOP_EXAMPLES)]
    Top(Top),
    /// Serve a page of the locks, and metrics of them for Prometheus
    #[command(long_about = SERVE, after_help = SERVE_EXAMPLES)]
    Serve(Serve),
    /// Check whether a server may be trusted with locks
    #[command(long_about = DOCTOR, after_help = DOCTOR_EXAMPLES)]
    Doctor(Doctor),
    /// Kill, stop and cut off holders on your own server, and see what happens to their locks
    #[command(long_about = DRILL, after_help = DRILL_EXAMPLES)]
    Drill(Drill),
    /// Take a name away from its holder
    #[command(long_about = UNLOCK)]
    Unlock(Unlock),
    /// Print the completions of a shell
    #[command(after_help = COMPLETIONS)]
    Completions(Completions),
    /// Print a man page
    #[command(after_help = MAN)]
    Man(Man),
}

const STATUS: &str = "\
Shows the holders of NAME, since when and for how long, and how many wait for it. It only reads.
The time of a holder counts from its request, so a wait of its own is in it.

The exit status is 0 if the server has answered, whether NAME is held or free. With --quiet it is 0 if NAME is held, and 1 if it \
is free: `if leasehold status --quiet deploy; then …`. A latch has no holder, and is never held. Any other status is an error, \
which stderr reports; `leasehold --help` lists them. The answer is of that moment: a free name may be taken by the time it is read.";

const LS: &str = "\
Lists the locks of the server, ours and Redisson's, or those whose names match PATTERN: who holds each, for how long at most (a wait of its own \
is in it), and how many clients wait for it. It only reads, and looks at all keys of the server, a few at a time.
In front of a holder, ✗ says that its client is not connected, ? that it has sent nothing for 12 s; ! that a lock has no end.

What cannot be told from data is left out: a semaphore of which no permit is out, and a latch, for which no client waits; and another \
library's lock without an end, or whose value is not like a token. A spin mutex, and a fair one for which no client waits, is listed as a mutex.

The exit status is 0 if the server has answered, whether there are any or none; 69 also if a node of a cluster has not: the locks of the others \
are listed then, and stderr says which part is missing. Any other status is an error, which stderr reports; `leasehold --help` lists them.";

const LS_EXAMPLES: &str = "\
Examples:
  leasehold ls
  leasehold ls 'order:*' --sort waiting
  leasehold ls --older 5m --json | jq -r .name";

const TOP: &str = "\
Shows the locks of the server, ours and Redisson's, or those whose names match PATTERN, and keeps the list true: who holds each, for how long, who waits. \
It only reads, and costs the server at most a fiftieth of a core. A round over all keys takes as long as it says; what is on the screen is looked at each second. \
The marks are those of ls; ≥ says that a holder does not tell since when, as Redisson's do not, and was first seen so long ago.

The keys: / filters, s sorts, the arrows choose, Enter looks at one lock, Esc goes back, q quits. Where the output is no terminal, or with --once, the list is printed once.";

const TOP_EXAMPLES: &str = "\
Examples:
  leasehold top
  leasehold top 'order:*' --sort waiting
  leasehold top --once";

const SERVE: &str = "\
Serves a page that shows the locks of the server live, each with its holders since the page runs, its queue and its keys; and /metrics, by which Prometheus watches \
locks of every client, Redisson's and other libraries', too. It only reads, unless --allow-unlock is given, and costs the server at most a fiftieth of a core; \
while no page is open and no metrics are fetched it asks nothing.

It listens on this machine alone. Elsewhere it demands --token, which pages and Prometheus then give; a proxy in front brings TLS and its name by --host.";

const SERVE_EXAMPLES: &str = "\
Examples:
  leasehold serve --url redis://cache:6379/
  leasehold serve --class order: --class stock:
  LEASEHOLD_TOKEN=$(openssl rand -hex 16) leasehold serve --listen 0.0.0.0:7480 --host locks.example.org";

const DOCTOR: &str = "\
Checks whether a server may be trusted with locks: its role, memory, persistence, replicas, cluster, clock and speed, by what it says of itself, and its sentinels, by what each of them says; then takes \
locks of several kinds on a name of its own, waits for one, is woken, and gives all of them back. Of a cluster each primary is asked, of a majority each server.

Each finding says what is, what it leads to, and what to do. What the server's user may not ask about says so, and is no fault.

The exit status is 0 if there is no danger, and 1 if there is one, or with --strict a warning; 75 if --name is in use; 128 and its number after a signal. Any other status is an error, which stderr \
reports; `leasehold --help` lists them.";

const DOCTOR_EXAMPLES: &str = "\
Examples:
  leasehold doctor --url redis://cache:6379/
  leasehold doctor --strict --allow persistence
  leasehold doctor --name order:doctor --json | jq '.findings[] | select(.level == \"danger\")'";

const DRILL: &str = "\
Shows on your own server what happens to locks: processes contend; a wait ends; a lease is renewed; a holder is killed, stopped, cut off from the network; \
the server forgets a key; and your job, CMD, is killed once and run again. Each row has its figures beside its bound.

It works on names of its own, leasehold-drill:…, with a lease of 3 s, and may run beside other traffic: it changes no setting, pauses no server and deletes no key of others. It takes about \
half a minute. Its tokens and labels end by themselves within a minute, also if it is killed. With --failover a replica takes the primary's place as the last row, which all users of the server notice.

The exit status is 0 if each row that was played has passed, and 1 if one failed; 128 and its number after a signal. Any other status is an error, which stderr reports; \
`leasehold --help` lists them.";

const DRILL_EXAMPLES: &str = "\
Examples:
  leasehold drill --url redis://cache:6379/
  leasehold drill --only 4,5 --json
  leasehold drill --report drill.md -- ./settle.sh
  leasehold drill --failover --url 'redis-sentinel://s1,s2,s3/?master=main'";

const UNLOCK: &str = "\
Takes NAME away from its holder, so that the next in line gets it.

The holder is not asked. It notices at once while a task of its own process waits for NAME, too, else when it next \
renews, and may go on working until then, beside the next holder. So first make sure that it is dead, or that overlapping does no harm: `leasehold status NAME` shows \
the holder. A crashed holder loses the name by itself when its lease ends.";

const COMPLETIONS: &str = "\
Examples:
  leasehold completions bash >/etc/bash_completion.d/leasehold
  leasehold completions zsh >\"${fpath[1]}/_leasehold\"
  leasehold completions fish >~/.config/fish/completions/leasehold.fish";

const MAN: &str = "\
Examples:
  leasehold man >/usr/local/share/man/man1/leasehold.1
  leasehold man run >/usr/local/share/man/man1/leasehold-run.1
  leasehold man run | man -l -";

/// A name, but no URL: its password would be shown to all users of the server, and the lock be another.
fn name(text: &str) -> Result<String, &'static str> {
    let scheme = text
        .split_once("://")
        .map(|(scheme, _)| scheme.to_ascii_lowercase());
    let of_servers = ["redis", "valkey", "redlock", "unix"];
    if scheme.is_some_and(|scheme| of_servers.iter().any(|of| scheme.starts_with(of))) {
        return Err("that is the URL of a server; give it with --url");
    }
    Ok(text.to_owned())
}

/// `leasehold demo`
#[derive(Debug, ClapArgs)]
pub(crate) struct Demo {
    /// Run on this server, with real processes [default: in memory, needs no server]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    #[command(flatten)]
    pub(crate) prefix: NamePrefix,
    #[command(flatten)]
    tls: TlsOptions,
    /// Print one line of JSON: the events, the counts and the verdict
    #[arg(long)]
    pub(crate) json: bool,
    /// Seed of the workers' pauses [default: a new one each time]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Skip the lock, to see the check fail
    #[arg(long, hide = true)]
    pub(crate) broken: bool,
}

impl Demo {
    /// `None`: in memory.
    pub(crate) fn address(&self) -> Result<Option<Address>, Failure> {
        let Some(url) = self.url.clone() else {
            return Ok(None);
        };
        let server = Address::new(url, &self.tls)?;
        Ok(Some(server).filter(|server| !server.is_memory()))
    }
}

/// `leasehold status`
#[derive(Debug, ClapArgs)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) server: Server,
    /// Which kind of lock NAME is; without it, the kind that the server has under NAME
    #[arg(long, value_enum)]
    pub(crate) kind: Option<Kind>,
    /// Answer in one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print no answer: the status is 0 if NAME is held, and 1 if it is free
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// The lock to look at
    #[arg(value_parser = name)]
    pub(crate) name: String,
}

/// `leasehold ls`
#[derive(Debug, ClapArgs)]
pub(crate) struct Ls {
    #[command(flatten)]
    pub(crate) server: Server,
    /// Only locks of this kind
    #[arg(long, value_enum)]
    pub(crate) kind: Option<Kind>,
    /// Which come first
    #[arg(long, value_enum, value_name = "BY", default_value_t = Sort::Name)]
    pub(crate) sort: Sort,
    /// Only locks that a holder has had for so long; not Redisson's, which do not tell
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) older: Option<Duration>,
    /// Only locks with a holder that is gone: its client is not connected
    #[arg(long)]
    pub(crate) gone: bool,
    /// Answer in one line of JSON for each lock
    #[arg(long)]
    pub(crate) json: bool,
    /// Which names: * stands for any text, ? for a character, [a-z] for one of these
    #[arg(default_value = "*", value_parser = name)]
    pub(crate) pattern: String,
}

/// What `ls` sorts by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// By their names
    Name,
    /// Those that are held for longest
    Held,
    /// Those whose leases end soonest
    Left,
    /// Those for which most clients wait
    Waiting,
}

/// `leasehold top`
#[derive(Debug, ClapArgs)]
pub(crate) struct Top {
    #[command(flatten)]
    pub(crate) server: Server,
    /// Which come first
    #[arg(long, value_enum, value_name = "BY", default_value_t = Sort::Name)]
    pub(crate) sort: Sort,
    /// Print the list once
    #[arg(long)]
    pub(crate) once: bool,
    /// Which names: * stands for any text, ? for a character, [a-z] for one of these
    #[arg(default_value = "*", value_parser = name)]
    pub(crate) pattern: String,
}

const TOKEN: &str = "A word that pages and Prometheus must give, of at least 16 letters [default: $LEASEHOLD_TOKEN, else none]";

/// `leasehold serve`
#[derive(Debug, ClapArgs)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) server: Server,
    /// Where to listen; elsewhere than on this machine alone it takes a --token
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7480")]
    pub(crate) listen: std::net::SocketAddr,
    #[arg(long, value_name = "TOKEN", help = TOKEN)]
    pub(crate) token: Option<String>,
    /// A name by which browsers reach it, as of a proxy; may be given several times [default: its address, localhost]
    #[arg(long, value_name = "HOST")]
    pub(crate) host: Vec<String>,
    /// Let a page take locks away from their holders: with the token that is printed at the start
    #[arg(long)]
    pub(crate) allow_unlock: bool,
    /// Count locks whose names begin so by themselves, as the metrics' label `class`; may be given several times
    #[arg(long, value_name = "PREFIX")]
    pub(crate) class: Vec<String>,
    /// Which names: * stands for any text, ? for a character, [a-z] for one of these
    #[arg(default_value = "*", value_parser = name)]
    pub(crate) pattern: String,
}

/// `leasehold doctor`
#[derive(Debug, ClapArgs)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) server: Server,
    /// Try locks on this name, where the server's user may not touch others; it must be free [default: leasehold-doctor:… and a random number]
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) name: Option<String>,
    /// Accept findings of this word; may be given several times
    #[arg(long, value_name = "WORD", value_parser = ["server", "eviction", "memory", "persistence", "replicas", "latency", "slow", "clients", "timeout", "cluster", "sentinels", "tls", "clock", "reach", "permissions", "locking", "endless", "waiters"])]
    pub(crate) allow: Vec<String>,
    /// Fail on a warning, too
    #[arg(long)]
    pub(crate) strict: bool,
    /// Answer in one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `leasehold drill`
#[derive(Debug, ClapArgs)]
pub(crate) struct Drill {
    #[command(flatten)]
    pub(crate) server: Server,
    /// Only these rows, as in 4,5
    #[arg(long, value_name = "ROWS", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=9))]
    pub(crate) only: Vec<u8>,
    /// Play row 9, too: the sentinels, or a replica of the cluster, are asked for a failover, which all users of the server notice
    #[arg(long)]
    pub(crate) failover: bool,
    /// Write a report in Markdown to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<std::path::PathBuf>,
    /// Answer in one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Give each client a server of its own, to see rows fail
    #[arg(long, hide = true)]
    pub(crate) broken: bool,
    /// Your job, for the eighth row
    #[arg(last = true)]
    pub(crate) cmd: Vec<String>,
}

/// `leasehold unlock`
#[derive(Debug, ClapArgs)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(crate) struct Unlock {
    #[command(flatten)]
    pub(crate) server: Server,
    /// Take it away from a holder that may still be working; on a terminal, after a question
    #[arg(long, conflicts_with_all = ["if_owner", "if_gone"])]
    pub(crate) force: bool,
    /// Only if its holder is gone: not connected for 12 seconds, and its lease not renewed. It looks for so long
    #[arg(long)]
    pub(crate) if_gone: bool,
    /// Only if this is its owner, as `status` shows it
    #[arg(long, value_name = "OWNER")]
    pub(crate) if_owner: Option<String>,
    /// With --force: ask nothing
    #[arg(long, short, requires = "force")]
    pub(crate) yes: bool,
    /// Which kind of lock NAME is; without it, the kind that the server has under NAME
    #[arg(long, value_enum)]
    pub(crate) kind: Option<Kind>,
    /// Answer in one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The lock to take away
    #[arg(value_parser = name)]
    pub(crate) name: String,
}

/// `leasehold completions`
#[derive(Debug, ClapArgs)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: Shell,
}

/// `leasehold man`
#[derive(Debug, ClapArgs)]
pub(crate) struct Man {
    /// The command to describe: run, status, … [default: leasehold itself]
    pub(crate) command: Option<String>,
}

impl Command {
    pub(crate) fn json(&self) -> bool {
        match self {
            Command::Demo(demo) => demo.json,
            Command::Run(run) => run.json,
            Command::Status(status) => status.json,
            Command::Ls(ls) => ls.json,
            Command::Doctor(doctor) => doctor.json,
            Command::Drill(drill) => drill.json,
            Command::Unlock(unlock) => unlock.json,
            Command::Top(_) | Command::Serve(_) | Command::Completions(_) | Command::Man(_) => {
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_hold_together() {
        Args::command().debug_assert();
    }
}
