//! **L3** Nothing is left behind that docs/keys.md does not name; and (B5) nothing is held for nobody while its client
//! lives.

use std::collections::BTreeMap;

use crate::{
    config::SECOND,
    process::Life,
    shared::{LETTERS, NAMES, Shared},
    world::World,
};

fn client_of(letter: &str) -> u8 {
    let at = LETTERS.iter().position(|known| *known == letter);
    u8::try_from(at.unwrap_or(0)).unwrap_or(0)
}

/// Whether a hold may have nobody: it was left to expire, its client is dead, or could not tell the server when it was
/// shut down.
fn is_excused(world: &World, shared: &Shared, client: u8, lease: u64) -> bool {
    let process = &world.processes[usize::from(client)];
    process.life == Life::Dead
        || process.cut_for_long
        || shared.detached.contains(&(client, lease))
        || world.watch.outlived.contains(&(client, lease))
        || world.watch.unheard.contains(&(client, lease))
        || (process.shut_down && process.last_fault > 0)
        || process.shut_down && process.left_to_expire
}

/// Holds that no guard stands for. For a moment they are nobody's fault: on the way to a guard, or from one.
pub fn orphans(world: &mut World) {
    if !world.watch.asks("L3") {
        return;
    }
    let now = world.now;
    let mut shared = world.shared.lock();
    let mut found = BTreeMap::new();
    for held in world.server.snapshot().held {
        let client = client_of(&held.client);
        let owned = shared
            .guards
            .iter()
            .any(|guard| guard.client == client && guard.probe.lease() == held.lease);
        if owned || is_excused(world, &shared, client, held.lease) {
            continue;
        }
        let name = NAMES.iter().position(|name| **name == *held.name);
        let key = (
            u8::try_from(name.unwrap_or(0)).unwrap_or(0),
            client,
            held.lease,
        );
        let since = world.watch.orphans.get(&key).copied().unwrap_or(now);
        found.insert(key, since);
        if now - since >= SECOND {
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

/// At the end, when nobody wants or has anything any more.
pub fn check(world: &mut World) {
    if !world.watch.asks("L3") {
        return;
    }
    let left = world.server.snapshot();
    let mut shared = world.shared.lock();
    let lives = |client: &str| world.processes[usize::from(client_of(client))].life == Life::Runs;
    if let Some((name, client)) = left.listeners.iter().find(|(_, client)| lives(client)) {
        let what = format!("client {client} still listens for {name}, and waits for nobody");
        shared.breach("L3", "a subscription is left", what);
    }
    let outlived =
        |client: &str, lease: &u64| world.watch.outlived.contains(&(client_of(client), *lease));
    let mut queued = left.queued.iter();
    if let Some((name, client, lease)) =
        queued.find(|(_, client, lease)| lives(client) && !outlived(client, lease))
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
