//! **L1** When faults have ended, a waiter holds the name within the lease last granted and 200 ms; if the first in the queue, which watches
//! the holder, dies as well, within the poll interval.

use leasehold::{LockKind, sim::Look};

use crate::{
    invariants::GRACE,
    process::Life,
    servers::Server,
    shared::{LETTERS, NAMES, Waits, span},
    world::World,
};

pub fn check(world: &mut World, settled: u64) {
    if !world.watch.asks("L1") {
        return;
    }
    let dead = world.processes.iter().filter(|p| p.life == Life::Dead);
    let dead = dead.count();
    let mut shared = world.shared.lock();
    // A lease that is left to expire is as good as a death.
    let lost = dead + shared.detached.len();
    for name in 0..world.config.names {
        let at = usize::from(name);
        let wait = shared
            .waits
            .values()
            .find(|wait| wait.how == Waits::Forever && wait.name == name);
        let Some(wait) = wait.cloned() else { continue };
        let held = shared
            .guards
            .iter()
            .any(|guard| guard.name == name && matches!(guard.probe.look(), Look::Valid(_)));
        if held || shared.takes(None, name) {
            shared.last_seen[at] = world.now;
            continue;
        }
        let since = settled.max(shared.last_seen[at]).max(wait.since);
        // The rest of a lease is counted on a clock that runs up to 1 % slower.
        let drift = world.watch.longest / 100;
        // Nothing ends by itself there: a message that was lost before is made up for by a poll.
        let polls = match world.config.kind {
            LockKind::Semaphore => true,
            // Which server was the coordinator may have changed, and who waited there is looked for by polls.
            LockKind::Mutex | LockKind::PlainMutex if world.is_quorum() => true,
            _ => lost > 1,
        };
        let polls = u64::from(polls) * (world.config.poll_every / 100 * 130);
        let deadline = polls + since.max(world.watch.granted_until[at]) + GRACE + drift;
        if world.now > deadline {
            let letter = LETTERS[usize::from(wait.client)];
            let what = format!(
                "{letter} has waited for {} since {}, and nobody has it; the server says {:?}",
                NAMES[at],
                crate::shared::stamp(wait.since),
                world.living().map(Server::snapshot).collect::<Vec<_>>()
            );
            let late = span(world.now - since);
            shared.breach(
                "L1",
                "nobody has it",
                format!("{what}; {late} without a holder"),
            );
            return;
        }
    }
}
