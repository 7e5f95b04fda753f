//! The verdict on a run.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use super::{roles::Switch, run::Run};
use crate::{
    checker::Checker,
    clock::{at_unix_micros, millis, nanos, now},
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
        for (server, names) in run.field.servers.heartbeats(&run.args.lock_names()) {
            let seen = leftovers::held(server, &names);
            report.hangs.extend(seen);
        }
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
    let servers = &run.field.servers;
    let channels = settled(|| servers.all().iter().flat_map(leftovers::channels).collect());
    let listens = channels
        .into_iter()
        .map(|channel| format!("a subscription to {channel:?} without a waiter"));
    report.leftovers.extend(listens);
    // A replica that was frozen counts as commands what its primary tells it.
    settled(|| servers.all().iter().flat_map(leftovers::behind).collect());
    for server in servers.all() {
        report.unrest(leftovers::unrest(server));
    }
}

/// All processes have ended.
pub(super) fn at_the_end(run: &mut Run<'_>, report: &mut Report) {
    let args = run.args;
    report.what = format!(
        "{}: {} processes of {} tasks on {} names of kinds {}, lease {:?}{}",
        args.topology,
        args.processes,
        args.tasks,
        args.names,
        args.kinds_there(),
        args.lease,
        run.choices(),
    );
    report.server = run.flavor.to_string();
    report.seed = run.seed;
    report.again = format!(
        "chaos --topology {} --server {} --seed {} --seconds {} --processes {} --tasks {} --names {} --kinds {} --lease {} --faults {}",
        args.topology,
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
    report.other.append(&mut run.other);
    report.read(&run.checker);
    report.operations = report.answers.values().sum();
    let most = millis(u64::try_from(run.patience.calm().as_nanos()).unwrap_or(u64::MAX));
    if report.calm_waits.max_ms > most {
        report.hangs.push(format!(
            "a waiter was served {:.0} ms after the faults had ended; {most:.0} ms are allowed",
            report.calm_waits.max_ms
        ));
    }
    excuse(run, report);
    what_is_left(run, report);
}

/// Sentinels look once a second.
const SAID_WITHIN: Duration = Duration::from_secs(1);

/// A client has left the old primary so long after their first word.
const LEFT_WITHIN: Duration = Duration::from_millis(300);

/// Two may hold a name from a promotion until both clients have left the old primary, by a lease that they had there; the new one was never
/// told of it. A process leaves while it runs: the time for which it was stopped does not count.
fn excuse(run: &Run<'_>, report: &mut Report) {
    let switches: Vec<Switch> = run.field.servers.switches().to_vec();
    let worker = |span: &Span| run.lives[usize::try_from(span.id.process).unwrap_or(0)];
    let (lease, slack) = (
        nanos(run.args.lease * LONGEST_LEASE),
        nanos(run.args.common.slack),
    );
    let is_between = |one: &Span, other: &Span, from: u64, to: u64| {
        let concerns = |switch: &&Switch| {
            let names = switch.names.as_ref();
            !switch.knows_all && names.is_none_or(|names| names.contains(&one.name))
        };
        switches.iter().filter(concerns).any(|switch| {
            let (said, within) = (switch.seen + nanos(SAID_WITHIN), nanos(LEFT_WITHIN) + slack);
            let left = [one, other].map(|it| run.log.has_run(worker(it), said, within));
            let left = left.into_iter().max().unwrap_or(said);
            from >= switch.after && one.from.min(other.from) <= left && to <= left + lease
        })
    };
    let is_excused = |overlap: &OverlapFound| {
        let (one, other) = (&overlap.one, &overlap.other);
        let (from, to) = one.meets(other).expect("it is an overlap");
        is_between(one, other, from, to)
    };
    let (excused, found): (Vec<_>, Vec<_>) = overlaps(run).into_iter().partition(is_excused);
    let pairs: BTreeSet<_> = excused
        .iter()
        .map(|overlap| (overlap.one.id, overlap.other.id))
        .flat_map(|(one, other)| [(one, other), (other, one)])
        .collect();
    report.overlaps = found;
    // The later one was granted before the other, at the new primary, and seen valid after it. A token begins as the server's time, so a
    // token from before the promotion is no excuse: the new primary has granted it too small.
    report.tokens(&run.checker, |earlier, later| {
        let granted = at_unix_micros(later.token.unwrap_or(0));
        is_between(earlier, later, earlier.to.min(granted), later.from)
    });
    report.lost_updates(&run.checker, |one, other| pairs.contains(&(one, other)));
    let seen = switches.iter().map(|switch| switch.seen);
    report.switches = seen.map(|at| millis(at - run.started) / 1e3).collect();
    report.excused = excused;
}

fn what_is_left(run: &Run<'_>, report: &mut Report) {
    let servers = &run.field.servers;
    let connections = settled(|| {
        let all = servers.all_and_sentinels();
        all.flat_map(leftovers::connections).collect()
    });
    let connections = connections
        .into_iter()
        .map(|line| format!("a connection: {line}"));
    report.leftovers.extend(connections);
    let ends = Ends {
        lease: run.args.lease * LONGEST_LEASE,
        poll: Duration::from_secs(10),
    };
    let names = run.args.lock_names();
    for (server, names) in servers.heartbeats(&names) {
        report.keys(&leftovers::keys(server, &names, ends, &run.checker));
    }
}

/// The leftovers that `left` finds, once it finds none or has had its time.
fn settled<T>(mut left: impl FnMut() -> Vec<T>) -> Vec<T> {
    let start = Instant::now();
    loop {
        let found = left();
        if found.is_empty() || start.elapsed() > SETTLES_WITHIN {
            return found;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
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
