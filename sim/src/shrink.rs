//! Makes a failing schedule small: takes out every decision of the scheduler that is not needed for the same breach.

use std::collections::BTreeSet;

use crate::{
    dice::Key,
    invariants::Asked,
    world::{Outcome, run},
};

/// The rest of a failing seed, and how much was taken out.
pub struct Small {
    pub outcome: Outcome,
    pub calm: BTreeSet<Key>,
    pub decisions: usize,
    pub runs: u32,
}

/// Runs of a world at most; each takes about a millisecond.
const MOST_RUNS: u32 = 2_000;

/// Removes decisions as long as the same promise is broken in the same way.
pub fn shrink(failed: &Outcome, asked: &Asked) -> Small {
    let seed = failed.seed;
    let same = |outcome: &Outcome| match (&outcome.breach, &failed.breach) {
        (Some(now), Some(then)) => now.promise == then.promise && now.kind == then.kind,
        _ => false,
    };
    let mut calm = BTreeSet::new();
    let mut used: Vec<Key> = failed.used.clone();
    let mut part = used.len().div_ceil(2).max(1);
    let mut runs = 0;
    loop {
        let (mut at, mut smaller) = (0, false);
        // From the end: decisions after the breach's causes go at once.
        while at < used.len() && runs < MOST_RUNS {
            let end = used.len() - at;
            let start = end.saturating_sub(part);
            let mut try_calm: BTreeSet<Key> = calm.clone();
            try_calm.extend(&used[start..end]);
            runs += 1;
            let outcome = run(seed, &try_calm, false, asked);
            if same(&outcome) {
                calm = try_calm;
                used.clone_from(&outcome.used);
                smaller = true;
            } else {
                at += part;
            }
        }
        if runs >= MOST_RUNS || (part == 1 && !smaller) {
            break;
        }
        part = (part / 2).max(1);
    }
    let outcome = run(seed, &calm, true, asked);
    Small {
        decisions: outcome.used.len(),
        outcome,
        calm,
        runs,
    }
}
