//! The printed report.

use std::collections::BTreeMap;

use serde_json::json;

use crate::{runner::Total, shared::Breach};

/// How often each kind of breach was found, and the first seed of it.
fn kinds(breaches: &[(u64, Breach)]) -> BTreeMap<(&'static str, &str), (u64, u64)> {
    let mut kinds = BTreeMap::new();
    for (seed, breach) in breaches {
        let kind = kinds
            .entry((breach.promise, breach.kind.as_str()))
            .or_insert((0, *seed));
        kind.0 += 1;
    }
    kinds
}

#[allow(clippy::cast_precision_loss)]
pub fn text(total: &Total) {
    let seconds = total.took.as_secs_f64();
    println!(
        "{} schedules, {} steps, {:.0} s of virtual time, in {seconds:.1} s ({:.0} schedules a minute)",
        total.schedules,
        total.steps,
        total.virtual_seconds,
        total.schedules as f64 / seconds * 60.0,
    );
    println!(
        "about {} different states and {} different schedules",
        total.states.estimate(),
        total.different.estimate()
    );
    for (what, count) in &total.coverage {
        println!("  {count:>10}  {what}");
    }
    if total.breaches.is_empty() {
        println!("no breach");
        return;
    }
    println!("{} seeds with a breach:", total.breaches.len());
    for ((promise, kind), (count, seed)) in kinds(&total.breaches) {
        println!("  {count:>6}  {promise}: {kind} (first: --seed {seed})");
    }
}

pub fn json(total: &Total) {
    let kinds: Vec<_> = kinds(&total.breaches)
        .into_iter()
        .map(|((promise, kind), (count, seed))| {
            json!({"promise": promise, "kind": kind, "seeds": count, "first_seed": seed})
        })
        .collect();
    let report = json!({
        "schedules": total.schedules,
        "steps": total.steps,
        "virtual_seconds": total.virtual_seconds,
        "seconds": total.took.as_secs_f64(),
        "states": total.states.estimate(),
        "different_schedules": total.different.estimate(),
        "coverage": total.coverage,
        "breaches": total.breaches.len(),
        "first_breach": total.breaches.first().map(|(seed, _)| seed),
        "kinds": kinds,
    });
    println!("{report}");
}
