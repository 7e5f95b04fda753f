//! The command line.

use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use leasehold_testkit::Flavor;

use crate::{kind::Kinds, nemesis::schedule::Fault, topology::Topology, worker::Job};

/// Real processes on real servers, and everything that can happen to them.
///
/// Exits with 1 if two guards were valid at one instant, an update was lost, an ask waited for
/// ever, or something was left behind.
#[derive(Parser, Debug)]
#[command(name = "chaos", args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) nemesis: NemesisArgs,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// A million random operations in one process, through proxies that fail.
    Soak(SoakArgs),
    /// One of the processes; the nemesis starts it.
    #[command(hide = true)]
    Worker(Job),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct NemesisArgs {
    /// How many servers, and what they know of each other. Kinds and faults that it lacks are left out.
    #[arg(long, default_value_t = Topology::Single)]
    pub(crate) topology: Topology,
    /// How long faults are injected, on each server.
    #[arg(long, default_value_t = 60)]
    pub(crate) seconds: u64,
    /// How many processes.
    #[arg(long, default_value_t = 5)]
    pub(crate) processes: usize,
    /// How many tasks in each process.
    #[arg(long, default_value_t = 4)]
    pub(crate) tasks: u64,
    /// How many names they fight for.
    #[arg(long, default_value_t = 9)]
    pub(crate) names: usize,
    /// The kinds of the names in turn: `all`, or a list such as `mutex,rw`.
    #[arg(long, default_value = "all", value_parser = Kinds::parse)]
    pub(crate) kinds: Kinds,
    /// The lease of each client.
    #[arg(long, default_value = "1s", value_parser = humantime::parse_duration)]
    pub(crate) lease: Duration,
    /// `all`, `none`, or a list such as `stop-worker,stall-wake-ups`.
    #[arg(long, default_value = "all", value_parser = faults)]
    pub(crate) faults: Faults,
    #[command(flatten)]
    pub(crate) common: Common,
}

impl NemesisArgs {
    /// The kinds that are played.
    pub(crate) fn kinds_there(&self) -> Kinds {
        self.kinds.clone().on(self.topology)
    }

    /// The names that they fight for.
    pub(crate) fn lock_names(&self) -> Vec<String> {
        self.kinds_there().names(self.names)
    }
}

#[derive(Args, Clone, Debug)]
pub(crate) struct SoakArgs {
    /// How many operations, on each server.
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) operations: u64,
    /// How many clients.
    #[arg(long, default_value_t = 4)]
    pub(crate) clients: usize,
    /// How many tasks per client.
    #[arg(long, default_value_t = 32)]
    pub(crate) tasks: usize,
    /// How many names they fight for.
    #[arg(long, default_value_t = 74)]
    pub(crate) names: usize,
    /// The kinds of the names in turn: `all`, or a list such as `mutex,rw`.
    #[arg(long, default_value = "mutex", value_parser = Kinds::parse)]
    pub(crate) kinds: Kinds,
    /// The lease of each client.
    #[arg(long, default_value = "300ms", value_parser = humantime::parse_duration)]
    pub(crate) lease: Duration,
    /// Stop after this time, however many operations are left.
    #[arg(long, default_value_t = 900)]
    pub(crate) seconds: u64,
    #[command(flatten)]
    pub(crate) common: Common,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// Which server; both in turn if left out.
    #[arg(long)]
    pub(crate) server: Option<ServerKind>,
    /// Decides which faults happen when; drawn at random if left out, and always printed.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// The time that a busy machine may add to the time in which a waiter must hold the name.
    #[arg(long, default_value = "1s", value_parser = humantime::parse_duration)]
    pub(crate) slack: Duration,
    /// Print the report as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Common {
    pub(crate) fn flavors(&self) -> Vec<Flavor> {
        match self.server {
            Some(ServerKind::Redis) => vec![Flavor::Redis],
            Some(ServerKind::Valkey) => vec![Flavor::Valkey],
            None => Flavor::available(),
        }
    }
}

#[derive(ValueEnum, Clone, Copy, Debug)]
pub(crate) enum ServerKind {
    /// `redis-server`
    Redis,
    /// `valkey-server`
    Valkey,
}

/// A list of faults. A type of its own, since clap takes a `Vec` for several arguments.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    pub(crate) list: Vec<Fault>,
    pub(crate) given: String,
}

fn faults(given: &str) -> Result<Faults, String> {
    let list = match given {
        "all" => Fault::all(),
        "none" => Vec::new(),
        list => list
            .split(',')
            .map(|name| {
                let names: Vec<_> = Fault::all().into_iter().map(Fault::name).collect();
                Fault::named(name).ok_or_else(|| {
                    format!("no fault is called {name}; there are {}", names.join(", "))
                })
            })
            .collect::<Result<_, _>>()?,
    };
    let given = given.to_owned();
    Ok(Faults { list, given })
}
