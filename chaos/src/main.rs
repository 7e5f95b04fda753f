//! Looks for a breach: real processes on real servers, and everything that can happen to them.

mod api;
mod args;
mod checker;
mod clock;
mod counter;
mod invariants;
mod journal;
mod kind;
mod nemesis;
mod ops;
mod record;
mod report;
mod soak;
mod topology;
mod witness;
mod worker;

use std::process::ExitCode;

use args::{Cli, Command};
use clap::Parser as _;
use report::Report;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let (common, reports) = match &cli.command {
        Some(Command::Worker(job)) => {
            worker::run(job);
            return ExitCode::SUCCESS;
        }
        Some(Command::Soak(args)) => (&args.common, soak::run(args)),
        None => (&cli.nemesis.common, nemesis::run(&cli.nemesis)),
    };
    if common.json {
        let json = serde_json::to_string_pretty(&reports);
        println!("{}", json.expect("a report is plain data"));
    } else {
        for report in &reports {
            println!("{report}");
        }
    }
    if reports.is_empty() {
        eprintln!("chaos: no server to run on");
        return ExitCode::from(2);
    }
    let breaches: usize = reports.iter().map(Report::breaches).sum();
    if breaches == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
