//! **L2** Every future ends; and `try_lock()` waits for no holder.

use leasehold::sim::Look;

use crate::{
    config::{MS, SECOND},
    process::Life,
    shared::{LETTERS, NAMES},
    world::World,
};

/// A `try_lock()` next to a guard of its own process is answered at once.
pub fn no_wait(world: &mut World) {
    let mut shared = world.shared.lock();
    if !world.watch.asks("L2") || !shared.waits.values().any(|wait| wait.once) {
        return;
    }
    let now = world.now;
    let waits = shared.waits.values().filter(|wait| wait.once).find(|wait| {
        let process = &world.processes[usize::from(wait.client)];
        let fault = process.last_stop;
        process.life == Life::Runs
            && shared.guards.iter().any(|guard| {
                (guard.client, guard.name) == (wait.client, wait.name)
                    && now.saturating_sub(guard.since.max(wait.since).max(fault)) > 500 * MS
                    && matches!(guard.probe.look(), Look::Valid(_))
            })
    });
    if let Some(wait) = waits.cloned() {
        let (letter, name) = (
            LETTERS[usize::from(wait.client)],
            NAMES[usize::from(wait.name)],
        );
        let what = format!("a try_lock({name}) of client {letter} waits for the holder");
        shared.breach("L2", "try_lock waits for the holder", what);
    }
}

pub fn check(world: &mut World, settled: u64) {
    let tasks = u64::from(world.config.tasks) * u64::from(world.config.clients);
    // Each waiter may have to wait out one lease that nobody gives back, and each that was left to expire.
    let detached = world.shared.lock().detached.len() as u64;
    let most = settled + world.watch.longest * (2 + detached) + 10 * SECOND + tasks * SECOND / 4;
    if world.now <= most {
        return;
    }
    world.over = true;
    if !world.watch.asks("L2") {
        return;
    }
    let mut shared = world.shared.lock();
    let stuck = shared.doing.iter().next().map(|(k, v)| (*k, v.clone()));
    if let Some(((client, task), what)) = stuck {
        let kind = what.split('(').next().unwrap_or_default().to_owned();
        let letter = LETTERS[usize::from(client)];
        let what = format!("task {task} of client {letter} never ends: {what}");
        shared.breach("L2", kind, what);
    }
}
