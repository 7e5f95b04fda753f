//! Which faults have happened when, for the reader of an overlap.

use std::collections::BTreeMap;

use super::schedule::{Fault, Plan, Target};
use crate::clock::millis;

/// A fault that happened.
#[derive(Clone, Debug)]
struct Happened {
    plan: Plan,
    from: u64,
    to: Option<u64>,
}

/// All faults so far.
#[derive(Default)]
pub(crate) struct Log {
    faults: Vec<Happened>,
}

impl Log {
    pub(crate) fn len(&self) -> usize {
        self.faults.len()
    }

    /// A fault begins. Its number, for [`ended`](Log::ended).
    pub(crate) fn began(&mut self, plan: Plan, from: u64) -> usize {
        self.faults.push(Happened {
            plan,
            from,
            to: None,
        });
        self.faults.len() - 1
    }

    pub(crate) fn ended(&mut self, number: usize, to: u64) {
        self.faults[number].to = Some(to);
    }

    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for fault in &self.faults {
            *counts
                .entry(fault.plan.fault.name().to_owned())
                .or_default() += 1;
        }
        counts
    }

    /// When this worker has run for so long since that instant. While it is stopped it does not run.
    pub(crate) fn has_run(&self, worker: usize, since: u64, long: u64) -> u64 {
        let faults = self.faults.iter();
        let stops = faults.filter(|fault| {
            let plan = &fault.plan;
            plan.target == Target::Process(worker) && plan.fault != Fault::KillWorker
        });
        // They came one after the other.
        stops.fold(since + long, |by, stop| match stop.to {
            Some(to) if stop.from <= by => by + to.saturating_sub(stop.from.max(since)),
            _ => by,
        })
    }

    /// The last `count` faults that began before `before`, counted from `start`. `about` chooses
    /// workers; the server's faults concern all of them.
    pub(crate) fn last(
        &self,
        before: u64,
        start: u64,
        about: &[usize],
        count: usize,
    ) -> Vec<String> {
        let concerns = |target| match target {
            Target::Server(_)
            | Target::Group
            | Target::Pair(_)
            | Target::Way(_)
            | Target::Slots => true,
            Target::Process(index) | Target::Network(index) => about.contains(&index),
        };
        let earlier = self.faults.iter().rev();
        let mut last: Vec<String> = earlier
            .filter(|fault| fault.from < before && concerns(fault.plan.target))
            .take(count)
            .map(|fault| {
                let on = match fault.plan.target {
                    Target::Server(at) => format!("server {at}"),
                    Target::Group => "the group".to_owned(),
                    Target::Pair(pair) => format!("pair {pair}"),
                    Target::Way(pair) => format!("the way to pair {pair}"),
                    Target::Slots => "the slots".to_owned(),
                    Target::Process(index) => format!("worker {index}"),
                    Target::Network(index) => format!("worker {index}'s network"),
                };
                let lasted = fault.to.unwrap_or(before).saturating_sub(fault.from);
                format!(
                    "{:.3}s {} on {on} for {:.0} ms",
                    millis(fault.from - start) / 1e3,
                    fault.plan.fault.name(),
                    millis(lasted),
                )
            })
            .collect();
        last.reverse();
        last
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_worker_runs_while_it_is_not_stopped() {
        let mut log = Log::default();
        for (worker, from, to) in [(0, 10, 40), (1, 45, 90), (0, 50, 55), (0, 70, 80)] {
            let plan = Plan {
                at: Duration::ZERO,
                fault: Fault::StopWorker,
                target: Target::Process(worker),
                lasts: Duration::from_nanos(to - from),
                draw: 0,
            };
            let number = log.began(plan, from);
            log.ended(number, to);
        }
        // From 20 it stands still to 40, runs for 10, stands still for 5, and so on.
        for (long, by) in [(0, 40), (9, 49), (11, 56), (24, 69), (26, 81)] {
            assert_eq!(log.has_run(0, 20, long), by, "{long}");
        }
        assert_eq!(log.has_run(1, 20, 24), 44);
        assert_eq!(log.has_run(2, 20, 24), 44);
    }
}
