//! `sim`: looks for schedules that break a promise.

use std::{collections::BTreeSet, process::ExitCode, time::Duration};

use clap::Parser;
use leasehold_sim::{
    config::{set_connection, set_failovers, set_nodes, set_quorum, set_trouble},
    invariants::{Asked, l4},
    keys, panics, report,
    runner::{Job, run_all},
    shrink::shrink,
    world::run,
};

/// Runs the engine through seeded schedules in virtual time and looks for breaches of its promises.
#[derive(Parser)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
struct Args {
    /// One seed: prints its trace, minimised if it fails.
    #[arg(long)]
    seed: Option<u64>,
    /// With `--seed`: the whole trace, not minimised.
    #[arg(long)]
    trace: bool,
    /// A range of seeds, such as 1000..2000.
    #[arg(long, value_parser = range)]
    seeds: Option<std::ops::Range<u64>>,
    /// So many seeds, from 0 or from `--from`.
    #[arg(long)]
    count: Option<u64>,
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// New seeds for so long, such as 60s.
    #[arg(long, value_parser = seconds)]
    time: Option<Duration>,
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Go on after the first breach, and count the kinds.
    #[arg(long)]
    all: bool,
    /// Ask only about these promises: S1, B1, S2, L1, L2, L3, L4, busy.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Do not ask about these.
    #[arg(long, value_delimiter = ',')]
    except: Vec<String>,
    /// Ignore breaches whose `promise: kind` contains this: known ones, while others are looked for.
    #[arg(long)]
    ignore: Vec<String>,
    #[arg(long)]
    json: bool,
    /// Breaks the scripts on purpose: `[["before", "after"], …]`. See mutants/run.
    #[arg(long, value_parser = texts)]
    replace: Option<Texts>,
    /// The server is out of memory for a while, and refuses single commands.
    #[arg(long)]
    trouble: bool,
    /// So many servers, of which a majority decides.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=9))]
    quorum: u8,
    /// A cluster of so many nodes, with slots that move and nodes that are replaced.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=9), conflicts_with_all = ["quorum", "trouble"])]
    cluster: u8,
    /// A server fails, and a replica that may lack the last writes takes its place.
    #[arg(long, conflicts_with_all = ["quorum", "trouble", "cluster"])]
    failovers: bool,
    /// Each seed is a schedule of one connection, on a socket in memory.
    #[arg(long, conflicts_with_all = ["quorum", "trouble", "cluster", "failovers", "replace"])]
    connection: bool,
}

#[derive(Clone)]
struct Texts(Vec<(String, String)>);

fn texts(json: &str) -> Result<Texts, String> {
    let pairs = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let serde_json::Value::Array(pairs) = pairs else {
        return Err("pairs of texts".to_owned());
    };
    let text = |pair: &serde_json::Value, at: usize| pair[at].as_str().map(str::to_owned);
    let pairs = pairs
        .iter()
        .map(|pair| Some((text(pair, 0)?, text(pair, 1)?)));
    let pairs: Option<Vec<_>> = pairs.collect();
    pairs.map(Texts).ok_or_else(|| "pairs of texts".to_owned())
}

impl Args {
    /// The options that must be said again, so that a seed plays the same.
    fn again(&self) -> String {
        let mut again = String::new();
        if self.trouble {
            again += " --trouble";
        }
        if self.quorum > 1 {
            again.push_str(" --quorum ");
            again.push_str(&self.quorum.to_string());
        }
        if self.cluster > 0 {
            again.push_str(" --cluster ");
            again.push_str(&self.cluster.to_string());
        }
        if self.failovers {
            again += " --failovers";
        }
        if self.connection {
            again += " --connection";
        }
        if self.replace.is_some() {
            again += " --replace (as before)";
        }
        again
    }
}

fn range(text: &str) -> Result<std::ops::Range<u64>, String> {
    let (from, to) = text
        .split_once("..")
        .ok_or("a range is written 1000..2000")?;
    let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
    Ok(number(from)?..number(to)?)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text).parse();
    number
        .map(Duration::from_secs_f64)
        .map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    let args = Args::parse();
    let asked = Asked {
        only: args.only.clone(),
        not: args.except.clone(),
        ignored: args.ignore.clone(),
    };
    set_trouble(args.trouble);
    set_quorum(args.quorum);
    set_nodes(args.cluster);
    set_failovers(args.failovers);
    set_connection(args.connection);
    if let Some(Texts(texts)) = &args.replace {
        keys::replace(texts.clone());
    }
    if let Some(seed) = args.seed {
        return one(seed, args.trace, &asked, &args.again());
    }
    let seeds = match (&args.seeds, args.count, args.time) {
        (Some(seeds), _, _) => seeds.clone(),
        (None, Some(count), _) => args.from..args.from + count,
        (None, None, Some(_)) if args.from == 0 => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let from = now.map_or(0, |since| since.as_secs()) * 1_000_000;
            from..u64::MAX
        }
        (None, None, Some(_)) => args.from..u64::MAX,
        (None, None, None) => args.from..args.from + 10_000,
    };
    let job = Job {
        seeds,
        time: args.time,
        threads: args.threads,
        stop: !args.all,
        asked: asked.clone(),
        progress: !args.json,
    };
    let total = run_all(&job);
    if args.json {
        report::json(&total);
    } else {
        report::text(&total);
        if !args.all
            && let Some((seed, _)) = total.breaches.first()
        {
            return one(*seed, false, &asked, &args.again());
        }
    }
    if total.breaches.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn one(seed: u64, whole: bool, asked: &Asked, again: &str) -> ExitCode {
    panics::keep();
    l4::ask(asked);
    let outcome = run(seed, &BTreeSet::new(), whole, asked);
    let Some(breach) = outcome.breach.clone() else {
        for line in &outcome.trace {
            println!("{line}");
        }
        println!("seed {seed}: no breach in {} steps", outcome.steps);
        return ExitCode::SUCCESS;
    };
    if whole {
        for line in &outcome.trace {
            println!("{line}");
        }
    } else {
        let small = shrink(&outcome, asked);
        for line in &small.outcome.trace {
            println!("{line}");
        }
        println!(
            "{} of {} decisions are needed ({} runs)",
            small.decisions,
            outcome.used.len(),
            small.runs
        );
    }
    println!("seed {seed}: {} is broken: {}", breach.promise, breach.what);
    println!("kind: {}", breach.kind);
    println!("again: sim --seed {seed}{again} (all of it: --trace)");
    ExitCode::FAILURE
}
