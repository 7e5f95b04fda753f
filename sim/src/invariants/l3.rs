//! **L3** Nothing is left behind that docs/keys.md does not name; and (B5) nothing is held without a guard while its client
//! lives.

use std::collections::BTreeMap;

use leasehold::{LockKind, sim::Snapshot};

use crate::{
    config::SECOND,
    process::Life,
    shared::{LETTERS, NAMES, Shared, number_of},
    world::World,
};

fn client_of(letter: &str) -> u8 {
    number_of(&LETTERS, letter)
}

/// Whether a hold may have no guard: it was left to expire, its client is dead, a copy of a request took it when its
/// tombstone was over, or the client has not heard of it and still asks for the name.
fn is_excused(world: &World, shared: &Shared, client: u8, name: u8, lease: u64) -> bool {
    let process = &world.processes[usize::from(client)];
    process.life == Life::Dead
        || shared.detached.contains_key(&(client, lease))
        || world.watch.outlived.contains(&(client, lease))
        || world.watch.unheard.contains(&(client, lease)) && shared.wants(client, name)
        || shared.takes(Some(client), name)
        || world.is_forgotten((name, client, lease))
        || process.shut_down && process.left_to_expire && world.config.kind != LockKind::Semaphore
}

/// Holds without a guard. For a moment that is no breach: on the way to a guard, or from one.
pub fn orphans(world: &mut World) {
    if !world.watch.asks("L3") {
        return;
    }
    let now = world.now;
    let mut shared = world.shared.lock();
    let mut found = BTreeMap::new();
    for held in world.held() {
        let client = client_of(&held.client);
        let owned = shared
            .guards
            .iter()
            .any(|guard| guard.client == client && guard.probe.lease() == held.lease);
        let name = number_of(&NAMES, &held.name);
        if owned || is_excused(world, &shared, client, name, held.lease) {
            continue;
        }
        let key = (name, client, held.lease);
        let since = world.watch.orphans.get(&key).copied().unwrap_or(now);
        found.insert(key, since);
        // A server of a quorum is told again within 2 s.
        let patience = if world.is_quorum() {
            5 * SECOND + 2 * world.config.operation_timeout
        } else {
            SECOND
        };
        if now - since >= patience {
            let heard = world.watch.last_heard(client, held.lease).to_owned();
            let waits = shared.waits.values().any(|wait| wait.name == key.0);
            let kind = format!(
                "held for nobody{}, its client heard last: {heard}",
                if waits { " while others wait" } else { "" }
            );
            let what = format!("for 1 s nobody has had a guard of {held:?}");
            shared.breach("L3", kind, what);
            break;
        }
    }
    drop(shared);
    world.watch.orphans = found;
}

/// At the end, when no client wants or has a name any more.
pub fn check(world: &mut World) {
    if !world.watch.asks("L3") {
        return;
    }
    let mut left = Snapshot::default();
    for server in world.living() {
        let seen = server.snapshot();
        left.queued.extend(seen.queued);
        left.listeners.extend(seen.listeners);
    }
    let mut shared = world.shared.lock();
    let process = |client: &str| &world.processes[usize::from(client_of(client))];
    let lives = |client: &str| process(client).life == Life::Runs;
    // A lease id that is left to expire has no tombstone: a copy may take an entry, which ends by itself.
    let let_go = |client: &str| process(client).shut_down && process(client).left_to_expire;
    if let Some((name, client)) = left.listeners.iter().find(|(_, client)| lives(client)) {
        let what = format!("client {client} still listens for {name}, and waits for nobody");
        shared.breach("L3", "a subscription is left", what);
    }
    let detached = shared.detached.clone();
    let outlived = |client: &str, lease: &u64| {
        let id = (client_of(client), *lease);
        // A detached lease has no tombstone.
        world.watch.outlived.contains(&id) || detached.contains_key(&id)
    };
    let mut queued = left.queued.iter();
    if let Some((name, client, lease)) = queued
        .find(|(_, client, lease)| lives(client) && !let_go(client) && !outlived(client, lease))
    {
        let heard = world.watch.last_heard(client_of(client), *lease).to_owned();
        let what = format!("client {client} still stands in the queue for {name} as #{lease}");
        shared.breach(
            "L3",
            format!("a place in the queue is left, heard last: {heard}"),
            what,
        );
    }
    for process in &world.processes {
        let Some(client) = &process.client else {
            continue;
        };
        if process.life != Life::Runs {
            continue;
        }
        let footprint = client.footprint();
        if footprint.queues + footprint.watched + footprint.tasks > 0 {
            let what = format!("client {} still has {footprint:?}", process.letter());
            let kind = format!("footprint {footprint:?}");
            shared.breach("L3", kind, what);
        }
    }
}
