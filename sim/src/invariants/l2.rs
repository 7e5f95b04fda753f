//! **L2** Every future ends; and `try_lock()` waits for no holder.

use leasehold::{Access, LockKind, sim::Look};

use crate::{
    config::{MS, SECOND},
    process::Life,
    shared::{LETTERS, NAMES, Wait, Waits},
    world::World,
};

/// A `try_lock()` next to a guard of its own process is answered at once; and any, even by a silent server, when its
/// client has tried for the operation timeout: its own attempt, or the release or the driver that it waits for.
pub fn no_wait(world: &mut World) {
    let mut shared = world.shared.lock();
    if world.config.kind == LockKind::RwLock {
        for guard in &mut shared.guards {
            let writes = guard.probe.access() == Access::Exclusive;
            if writes != guard.writes {
                (guard.writes, guard.since) = (writes, world.now);
            }
        }
    }
    let once = |wait: &&Wait| wait.how == Waits::Once;
    if !shared.waits.values().any(|wait| once(&wait)) || !world.watch.asks("L2") {
        return;
    }
    let now = world.now;
    // A quarter of a second, and for a look by a clock that is 1 % slow.
    let mut patience = world.config.operation_timeout / 100 * 102 + 300 * MS;
    if world.config.durable {
        // "A Durability adds up to an operation timeout and the durability timeout."
        patience += world.config.operation_timeout / 100 * 102 + 110 * MS;
    }
    let next_to_a_guard = |wait: &&Wait, since: u64| {
        shared.guards.iter().any(|guard| {
            // Of the other kinds more than one may hold it, and the server is asked; so it is, once, whether it can do what a policy wants.
            guard.writes
                && !world.config.durable
                && (guard.client, guard.name) == (wait.client, wait.name)
                && now.saturating_sub(guard.since.max(since)) > 500 * MS
                && matches!(guard.probe.look(), Look::Valid(_))
        })
    };
    let found = shared.waits.values().filter(once).find_map(|wait| {
        let process = &world.processes[usize::from(wait.client)];
        let since = wait.since.max(process.last_stop);
        if process.life != Life::Runs {
            None
        } else if next_to_a_guard(&wait, since) {
            Some((wait.clone(), "for the holder"))
        } else if now.saturating_sub(since) > patience {
            Some((wait.clone(), "for an answer"))
        } else {
            None
        }
    });
    if let Some((wait, what_for)) = found {
        let (letter, name) = (
            LETTERS[usize::from(wait.client)],
            NAMES[usize::from(wait.name)],
        );
        let what = format!("a try_lock({name}) of client {letter} waits {what_for}");
        shared.breach("L2", format!("try_lock waits {what_for}"), what);
    }
}

pub fn check(world: &mut World, settled: u64) {
    let mut shared = world.shared.lock();
    let tasks = u64::from(world.config.tasks) * u64::from(world.config.clients);
    // A waiter may have to wait out one lease that no client gives back; leases left to expire end by then too. And one
    // for each dead client that the server still hears: it may have its turn.
    let heard = world
        .processes
        .iter()
        .filter(|process| process.haunts)
        .count() as u64;
    // For each name, where one is taken after the other.
    let names = if world.config.several > 0.0 {
        u64::from(world.config.names)
    } else {
        1
    };
    // Where nothing ends by itself, a lost message is made up for by a poll.
    let polls = match world.config.kind {
        LockKind::Latch | LockKind::Semaphore => world.config.poll_every,
        _ => 0,
    };
    let bound =
        polls + world.watch.longest * (1 + heard) * names + 10 * SECOND + tasks * SECOND / 4;
    // A round may fail as often as votes are split.
    let bound = bound + u64::from(world.is_quorum()) * (world.config.poll_every + tasks * SECOND);
    if world.now <= settled + bound {
        return;
    }
    world.over = true;
    if !world.watch.asks("L2") {
        return;
    }
    let stuck = shared.doing.iter().map(|(k, v)| (*k, v.clone())).next();
    if let Some(((client, task), what)) = stuck {
        let kind = what.split('(').next().unwrap_or_default().to_owned();
        let letter = LETTERS[usize::from(client)];
        let what = format!("task {task} of client {letter} never ends: {what}");
        shared.breach("L2", kind, what);
    }
}
