//! **B3** A grant that is heard is used, asked about, or given back, even if the id does not wait any more.

use crate::{
    config::SECOND,
    process::Life,
    shared::{LETTERS, NAMES},
    world::World,
};

/// Some time after a client has heard that a lease id has a name, there is a guard of it, or the client has sent
/// a request for this id since. So it holds also for ids that were given up so long ago that no state of them is left.
pub fn check(world: &mut World) {
    if world.watch.granted.is_empty() || !world.watch.asks("B3") {
        return;
    }
    // A request under way may go unanswered first. In a cluster an answer that comes late has the table asked for, behind which the same
    // request goes out once more.
    let requests = if world.config.nodes > 0 { 3 } else { 1 };
    let patience = requests * world.config.operation_timeout + SECOND;
    let now = world.now;
    let mut shared = world.shared.lock();
    let mut found = None;
    world
        .watch
        .granted
        .retain(|&(client, lease), (since, name)| {
            let process = &world.processes[usize::from(client)];
            if process.life != Life::Runs {
                *since = now;
            }
            *since = process.last_stop.max(*since);
            if now - *since < patience {
                return true;
            }
            let letter = LETTERS[usize::from(client)];
            let holds = world.servers.iter().any(|server| {
                let held = server.holders(NAMES[usize::from(*name)]);
                let mut held = held.iter();
                held.any(|held| *held.client == *letter && held.lease == lease)
            });
            let done = !holds
                || shared.guarded.contains(&(client, lease))
                || shared.detached.contains_key(&(client, lease))
                || shared.takes(Some(client), *name)
                || process.shut_down && process.left_to_expire;
            if !done {
                found = Some((client, *name, lease));
            }
            false
        });
    if let Some((client, name, lease)) = found {
        let (letter, name) = (LETTERS[usize::from(client)], NAMES[usize::from(name)]);
        let what =
            format!("client {letter} heard that #{lease} has {name}, and did nothing about it");
        shared.breach("B3", "a grant is neither used nor given back", what);
    }
}
