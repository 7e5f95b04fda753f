//! **Latches.** A wait ends only when the count was zero meanwhile (`sim/src/latch.rs` looks at that); each request counts once, however
//! often it is carried out; a count is not set where there is one; and when faults have ended, a waiter goes on
//! soon after zero, or after a poll interval if the message of it was lost.

use leasehold::{LockKind, sim::Kind};

use crate::{
    invariants::GRACE,
    process::Life,
    shared::{LETTERS, NAMES},
    wire::Asked,
    world::World,
};

fn is_about(world: &World) -> bool {
    world.config.kind == LockKind::Latch
}

/// The count before a request is carried out.
pub fn before(world: &World, asked: &Asked) -> Option<i64> {
    let (name, _) = *asked.about.first()?;
    let counts = is_about(world) && asked.kind == Kind::Permits;
    counts.then(|| {
        world
            .server()
            .number(LockKind::Latch, NAMES[usize::from(name)])
    })
}

/// It has been carried out.
pub fn executed(world: &mut World, asked: &Asked, before: Option<i64>) {
    let (Some(before), Some(&(name, number))) = (before, asked.about.first()) else {
        return;
    };
    let id = (asked.client, number);
    let after = world
        .server()
        .number(LockKind::Latch, NAMES[usize::from(name)]);
    // Only a count that is not there is set.
    if before > 0 && after > before && world.watch.asks("latch") {
        let what = format!("a request takes a count from {before} to {after}");
        world.shared.lock().breach("latch", "set again", what);
    }
    if before == after || world.watch.outlived.contains(&id) {
        return;
    }
    let earlier = world.watch.counted.insert(id, world.now);
    // A server without its data does not remember it.
    let counted = earlier.is_some_and(|at| at > world.servers[0].forgot_at);
    if counted && world.watch.asks("latch") {
        let letter = LETTERS[usize::from(asked.client)];
        let what = format!("a request of client {letter} counts once more: {before} to {after}");
        let mut shared = world.shared.lock();
        shared.breach("latch", "counts twice", what);
    }
}

/// After each step.
pub fn check(world: &mut World) {
    if !is_about(world) {
        return;
    }
    let now = world.now;
    let mut shared = world.shared.lock();
    let names = usize::from(world.config.names);
    for (name, called) in NAMES.iter().enumerate().take(names) {
        if world.server().number(LockKind::Latch, called) == 0 {
            shared.zero_at[name] = now;
            let since = &mut world.watch.zero_since[name];
            *since = since.or(Some(now));
        } else {
            world.watch.zero_since[name] = None;
        }
    }
}

/// An operator deletes the latches that no task counts down any more, when faults have ended.
pub fn open(world: &mut World) {
    if !is_about(world) {
        return;
    }
    for name in 0..world.config.names {
        let called = NAMES[usize::from(name)];
        if world.server().number(LockKind::Latch, called) > 0 {
            for hint in world.server().open(called) {
                world.send_hint(0, hint);
            }
        }
    }
}

/// Now and then, when faults have ended.
pub fn waits(world: &mut World, settled: u64) {
    if !is_about(world) || !world.watch.asks("L1") {
        return;
    }
    let mut shared = world.shared.lock();
    let found = shared.latch_waits.iter().find(|(task, wait)| {
        let runs = world.processes[usize::from(task.0)].life == Life::Runs;
        let Some(zero) = world.watch.zero_since[usize::from(wait.name)] else {
            return false;
        };
        // Each wait may have begun, and each message may have been lost, before that.
        let patience = if zero > settled && wait.since <= settled {
            0
        } else {
            world.config.poll_every / 100 * 130
        };
        let since = settled.max(zero).max(wait.since);
        runs && world.now > since + patience + GRACE
    });
    if let Some((&(client, _), wait)) = found {
        let (letter, name) = (LETTERS[usize::from(client)], NAMES[usize::from(wait.name)]);
        let what = format!("client {letter} waits for {name}, whose count is zero");
        shared.breach("L1", "waits for zero", what);
    }
}
