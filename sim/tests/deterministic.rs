//! The same seed is the same schedule: in one process, in another one, and after others have run.

use std::{collections::BTreeSet, process::Command};

use leasehold_sim::{connection, invariants::Asked, panics, shrink::shrink, world::run};

fn trace(seed: u64) -> Vec<String> {
    run(seed, &BTreeSet::new(), true, &Asked::default()).trace
}

#[test]
fn a_seed_gives_the_same_trace_each_time() {
    panics::keep();
    let seeds = 0..40;
    let first: Vec<_> = seeds.clone().map(trace).collect();
    let backwards: Vec<_> = seeds.clone().rev().map(trace).collect();
    for (seed, lines) in seeds.clone().zip(backwards.iter().rev()) {
        let at = usize::try_from(seed).unwrap();
        assert_eq!(
            &first[at], lines,
            "seed {seed}, after other seeds than before"
        );
        assert_eq!(first[at], trace(seed), "seed {seed}, a third time");
    }
    let busy = first.iter().filter(|lines| lines.len() > 20).count();
    assert!(busy > 20, "something happens in most worlds: {busy}");
}

#[test]
fn a_seed_of_a_connection_gives_the_same_trace_each_time() {
    panics::keep();
    let trace = |seed| connection::run(seed, &BTreeSet::new(), true, &Asked::default()).trace;
    for seed in 0..40 {
        let first = trace(seed);
        assert!(first.len() > 3, "{first:?}");
        assert_eq!(first, trace(seed), "seed {seed}");
    }
}

/// Seeds that have broken a promise once, beyond those that CI plays (docs/bugs.md).
#[test]
fn seeds_that_have_broken_a_promise_keep_it() {
    panics::keep();
    for seed in [2_005_962, 3_001_181, 3_002_862, 4_013_045] {
        let outcome = run(seed, &BTreeSet::new(), false, &Asked::default());
        assert!(outcome.breach.is_none(), "{seed}: {:?}", outcome.breach);
    }
}

#[test]
fn a_seed_gives_the_same_trace_in_another_process() {
    for seed in ["7", "44", "523"] {
        let print = || {
            let sim = Command::new(env!("CARGO_BIN_EXE_sim"))
                .args(["--seed", seed, "--trace"])
                .output()
                .unwrap();
            String::from_utf8(sim.stdout).unwrap()
        };
        let first = print();
        assert!(first.lines().count() > 3, "{first}");
        assert_eq!(first, print(), "seed {seed}");
    }
}

/// A majority whose servers answer seldom: what a client owes a server is many releases, and they are not all sent each time (bug 332).
#[test]
fn a_server_without_an_answer_is_sent_one_release_at_a_time() {
    let sim = Command::new(env!("CARGO_BIN_EXE_sim"))
        .args(["--quorum", "3", "--from", "94", "--count", "1"])
        .output()
        .unwrap();
    let printed = String::from_utf8(sim.stdout).unwrap();
    let count = |what: &str| -> u32 {
        let mut counts = printed.lines().filter_map(|line| line.split_once(what));
        let (number, _) = counts.next().expect("it is counted");
        number.trim().parse().unwrap()
    };
    let (acquires, releases) = (count("sent: acquire"), count("sent: release"));
    assert!(acquires > 200, "{printed}");
    assert!(
        releases < 20 * acquires,
        "{releases} for {acquires} acquires"
    );
}

/// Looks at failing seeds, if there are any among the first ones.
#[test]
fn a_minimised_schedule_breaks_the_same_promise_with_fewer_decisions() {
    panics::keep();
    let asked = Asked::default();
    let failing = (0..200).map(|seed| run(seed, &BTreeSet::new(), false, &asked));
    for failed in failing.filter(|outcome| outcome.breach.is_some()).take(3) {
        let small = shrink(&failed, &asked);
        let (before, after) = (failed.breach.unwrap(), small.outcome.breach.unwrap());
        assert_eq!((before.promise, before.kind), (after.promise, after.kind));
        assert!(small.decisions <= failed.used.len());
        let again = run(failed.seed, &small.calm, true, &asked);
        assert_eq!(again.trace, small.outcome.trace);
    }
}
