//! The nemesis: starts the processes, lets faults happen to them, and reads what they saw.
//!
//! ```text
//!   storm: faults from the seed ── heal ── calm: waiters are served, every process gets every name
//!   ── quiet: no subscriptions, no commands ── end: clients shut down, processes end ── what is left?
//! ```

mod children;
mod front;
mod group;
pub(crate) mod inject;
pub(crate) mod log;
mod moves;
mod nodes;
mod roles;
mod run;
pub(crate) mod schedule;
mod servers;
mod verdict;
mod whole;

pub(crate) use verdict::{FAULTS_SHOWN, overlaps_found};

use leasehold_testkit::Flavor;

use crate::{args::NemesisArgs, report::Report};

/// A run on each server.
pub(crate) fn run(args: &NemesisArgs) -> Vec<Report> {
    let seed = args.common.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    let flavors: Vec<Flavor> = args.common.flavors();
    flavors
        .into_iter()
        .map(|flavor| run::Run::start(args, flavor, seed).finish())
        .collect()
}
