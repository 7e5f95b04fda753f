//! The verdict on a run.

use std::time::{Duration, Instant};

use super::run::Run;
use crate::{
    checker::Checker,
    clock::{millis, now},
    invariants::{
        leftovers::{self, Ends},
        overlap::Span,
    },
    ops::LONGEST_LEASE,
    report::{OverlapFound, Report},
};

/// How long the server may take to hear the last unsubscriptions.
const SETTLES_WITHIN: Duration = Duration::from_secs(2);

/// How many faults are told of each overlap.
pub(crate) const FAULTS_SHOWN: usize = 6;

/// Nothing is held or asked for, and the clients still live: no subscription may be left, nor
/// anything in the memory of the clients.
pub(super) fn quiet(run: &mut Run<'_>, report: &mut Report) {
    let quiet = run.all_quiet();
    for (process, left) in &run.checker.quiet {
        if *left != [0; 3] {
            let [queues, watched, tasks] = left;
            report.leftovers.push(format!(
                "in the memory of process {process}: {queues} queues, {watched} watched holds, {tasks} tasks"
            ));
        }
    }
    if !quiet {
        let names = run.args.kinds.names(run.args.names);
        let seen = leftovers::held(&run.field.server, &names);
        report.hangs.extend(seen);
        for worker in run.field.workers.iter().flatten() {
            if !run.checker.quiet.contains_key(&worker.process) {
                let locks = run.checker.calm_locks.get(&worker.process).unwrap_or(&0);
                report.hangs.push(format!(
                    "process {} was not quiet long after the faults ended; it got {locks} names ({} asks are open in all)",
                    worker.process,
                    run.checker.open_asks(),
                ));
            }
        }
    }
    let start = Instant::now();
    let mut channels = leftovers::channels(&run.field.server);
    while !channels.is_empty() && start.elapsed() < SETTLES_WITHIN {
        std::thread::sleep(Duration::from_millis(20));
        channels = leftovers::channels(&run.field.server);
    }
    let listens = channels
        .into_iter()
        .map(|channel| format!("a subscription to {channel:?} without a waiter"));
    report.leftovers.extend(listens);
    report.unrest(leftovers::unrest(&run.field.server));
}

/// All processes have ended.
pub(super) fn at_the_end(run: &mut Run<'_>, report: &mut Report) {
    let args = run.args;
    report.what = format!(
        "{} processes of {} tasks on {} names of kinds {}, lease {:?}",
        args.processes, args.tasks, args.names, args.kinds, args.lease
    );
    report.server = run.flavor.to_string();
    report.seed = run.seed;
    report.again = format!(
        "chaos --server {} --seed {} --seconds {} --processes {} --tasks {} --names {} --kinds {} --lease {} --faults {}",
        run.flavor,
        run.seed,
        args.seconds,
        args.processes,
        args.tasks,
        args.names,
        args.kinds,
        humantime::format_duration(args.lease)
            .to_string()
            .replace(' ', ""),
        args.faults.given,
    );
    report.seconds = millis(now() - run.started) / 1e3;
    report.faults = run.log.counts();
    report.lives = run.lives.len() as u64;
    report.hangs.extend(run.hangs.values().cloned());
    report.other.append(&mut run.crashes);
    report.read(&run.checker);
    report.operations = report.answers.values().sum();
    let most = millis(u64::try_from(run.patience.calm().as_nanos()).unwrap_or(u64::MAX));
    if report.calm_waits.max_ms > most {
        report.hangs.push(format!(
            "a waiter was served {:.0} ms after the faults had ended; {most:.0} ms are allowed",
            report.calm_waits.max_ms
        ));
    }
    report.overlaps = overlaps(run);
    what_is_left(run, report);
}

fn what_is_left(run: &Run<'_>, report: &mut Report) {
    let start = Instant::now();
    let server = &run.field.server;
    let mut connections = leftovers::connections(server);
    while !connections.is_empty() && start.elapsed() < SETTLES_WITHIN {
        std::thread::sleep(Duration::from_millis(20));
        connections = leftovers::connections(server);
    }
    let connections = connections
        .into_iter()
        .map(|line| format!("a connection: {line}"));
    report.leftovers.extend(connections);
    let ends = Ends {
        lease: run.args.lease * LONGEST_LEASE,
        poll: Duration::from_secs(10),
    };
    let names = run.args.kinds.names(run.args.names);
    report.keys(&leftovers::keys(server, &names, ends, &run.checker));
}

fn overlaps(run: &Run<'_>) -> Vec<OverlapFound> {
    let worker = |process| run.lives[usize::try_from(process).unwrap_or(0)];
    overlaps_found(&run.checker, run.started, worker, |before, about| {
        run.log.last(before, run.started, about, FAULTS_SHOWN)
    })
}

/// The overlaps in words. `worker` says which worker a process was, `faults` what happened to two
/// workers before an instant.
pub(crate) fn overlaps_found(
    checker: &Checker,
    started: u64,
    worker: impl Fn(u64) -> usize,
    faults: impl Fn(u64, &[usize]) -> Vec<String>,
) -> Vec<OverlapFound> {
    let since = |at: u64| millis(at.saturating_sub(started)) / 1e3;
    let side = |span: &Span| {
        format!(
            "worker {} process {} guard {} owner {} valid {:.4}–{:.4} s",
            worker(span.id.process),
            span.id.process,
            span.id.guard,
            span.owner,
            since(span.from),
            since(span.to)
        )
    };
    let mut found: Vec<_> = checker.overlaps.values().collect();
    found.sort_by_key(|overlap| overlap.from);
    found
        .into_iter()
        .map(|overlap| {
            let (one, other) = (&overlap.one, &overlap.other);
            let lasted_ms = millis(overlap.to - overlap.from);
            let about = [worker(one.id.process), worker(other.id.process)];
            OverlapFound {
                text: format!(
                    "name {} for {lasted_ms:.3} ms at {:.4} s:\n         {}\n         {}",
                    one.name,
                    since(overlap.from),
                    side(one),
                    side(other)
                ),
                lasted_ms,
                faults_before: faults(overlap.from, &about),
                one: one.clone(),
                other: other.clone(),
            }
        })
        .collect()
}
