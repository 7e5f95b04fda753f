//! Runs many seeds, on some threads, and adds up what they have seen.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    invariants::{Asked, l4},
    panics,
    shared::Breach,
    states::Distinct,
    world::run,
};

/// The seeds to run, and how.
#[derive(Clone, Debug)]
pub struct Job {
    pub seeds: Range<u64>,
    pub time: Option<Duration>,
    pub threads: usize,
    /// Stop at the first breach.
    pub stop: bool,
    pub asked: Asked,
    pub progress: bool,
}

/// The result.
#[derive(Debug, Default)]
pub struct Total {
    pub schedules: u64,
    pub steps: u64,
    pub virtual_seconds: f64,
    pub took: Duration,
    pub coverage: BTreeMap<&'static str, u64>,
    pub states: Distinct,
    pub different: Distinct,
    /// Seed and breach, in the order of seeds.
    pub breaches: Vec<(u64, Breach)>,
}

impl Total {
    fn add(&mut self, other: &mut Total) {
        self.schedules += other.schedules;
        self.steps += other.steps;
        self.virtual_seconds += other.virtual_seconds;
        for (what, count) in &other.coverage {
            *self.coverage.entry(what).or_default() += count;
        }
        self.states.merge(&other.states);
        self.different.merge(&other.different);
        self.breaches.append(&mut other.breaches);
    }
}

pub fn run_all(job: &Job) -> Total {
    let began = Instant::now();
    let next = AtomicU64::new(job.seeds.start);
    let stop = AtomicBool::new(false);
    let total = Mutex::new(Total::default());
    let done = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..job.threads.max(1) {
            scope.spawn(|| {
                let mut own = one_thread(job, &next, &stop, &done, began);
                total.lock().add(&mut own);
            });
        }
    });
    let mut total = total.into_inner();
    total.took = began.elapsed();
    total.breaches.sort_by_key(|(seed, _)| *seed);
    total
}

#[allow(clippy::cast_precision_loss)]
fn one_thread(
    job: &Job,
    next: &AtomicU64,
    stop: &AtomicBool,
    done: &AtomicU64,
    began: Instant,
) -> Total {
    panics::keep();
    l4::ask(&job.asked);
    let calm = BTreeSet::new();
    let mut total = Total::default();
    while !stop.load(Ordering::Relaxed) {
        if job.time.is_some_and(|time| began.elapsed() >= time) {
            break;
        }
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= job.seeds.end {
            break;
        }
        let outcome = run(seed, &calm, false, &job.asked);
        total.schedules += 1;
        total.steps += outcome.steps;
        total.virtual_seconds += outcome.lasted as f64 / 1e9;
        for (what, count) in outcome.coverage {
            *total.coverage.entry(what).or_default() += count;
        }
        for state in &outcome.seen.states {
            total.states.add(*state);
        }
        total.different.add(outcome.seen.schedule);
        if let Some(breach) = outcome.breach {
            total.breaches.push((seed, breach));
            if job.stop {
                stop.store(true, Ordering::Relaxed);
            }
        }
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if job.progress && done.is_multiple_of(10_000) {
            let per_minute = done as f64 / began.elapsed().as_secs_f64() * 60.0;
            eprintln!("{done} schedules, {per_minute:.0} a minute");
        }
    }
    total
}
