//! **S1** Two guards that exclude each other are never both valid at one instant.

use std::collections::BTreeMap;

use leasehold::{Access, LockKind, sim::Look};

use crate::{
    shared::{LETTERS, NAMES, Shared, Visible, span},
    world::World,
};

pub fn check(world: &mut World) {
    let mut shared = world.shared.lock();
    if shared.guards.len() < 2 || !world.watch.asks("S1") {
        return;
    }
    let valid = |guard: &Visible| match guard.probe.look() {
        Look::Valid(left) => Some(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX)),
        _ => None,
    };
    let guards = &shared.guards;
    let mut found = None;
    for (at, one) in guards.iter().enumerate() {
        if world.watch.forgiven[usize::from(one.name)] > world.now {
            continue;
        }
        for other in &guards[at + 1..] {
            if one.name == other.name
                && one.holder != other.holder
                && excludes(one.probe.access(), other.probe.access())
                && let (Some(left), Some(other_left)) = (valid(one), valid(other))
            {
                found = Some((one.clone(), left, other.clone(), other_left));
            }
        }
    }
    let Some((one, left, other, other_left)) = found else {
        return too_many_permits(world, &mut shared);
    };
    let name = NAMES[usize::from(one.name)];
    let held = world.servers.iter().flat_map(|it| it.holders(name));
    let held: Vec<_> = held.collect();
    let tell = |guard: &Visible, left: u64| {
        let letter = LETTERS[usize::from(guard.client)];
        let lease = guard.probe.lease();
        let heard = world.watch.last_heard(guard.client, lease);
        format!(
            "{letter} (#{lease}, for {} more, heard last: {heard})",
            span(left)
        )
    };
    // The one that the server does not know.
    let holds = |guard: &Visible| held.iter().any(|held| held.lease == guard.probe.lease());
    let believer = if holds(&one) { &other } else { &one };
    let kind = format!(
        "{}{}",
        world
            .watch
            .last_heard(believer.client, believer.probe.lease()),
        if one.client == other.client {
            ", within one client"
        } else {
            ""
        }
    );
    let what = format!(
        "{name} is held by {} and by {}; the server says {held:?}",
        tell(&one, left),
        tell(&other, other_left)
    );
    shared.breach("S1", kind, what);
}

/// Readers exclude no reader, and permits no other permits.
pub fn excludes(one: Access, other: Access) -> bool {
    !matches!(
        (one, other),
        (Access::Shared, Access::Shared) | (Access::Permits(_), Access::Permits(_))
    )
}

/// Of a semaphore: valid guards hold no more permits than there are.
fn too_many_permits(world: &World, shared: &mut Shared) {
    let kinds = [LockKind::LeasedSemaphore, LockKind::Semaphore];
    if !kinds.contains(&world.config.kind) {
        return;
    }
    let mut taken: BTreeMap<(u8, u8, u64), u32> = BTreeMap::new();
    for guard in &shared.guards {
        if world.watch.forgiven[usize::from(guard.name)] <= world.now
            && let (Look::Valid(_), Access::Permits(count)) =
                (guard.probe.look(), guard.probe.access())
        {
            let key = (guard.name, guard.client, guard.probe.lease());
            taken.insert(key, count.into());
        }
    }
    for name in 0..world.config.names {
        let of_name = taken.iter().filter(|((its, ..), _)| *its == name);
        let sum: u32 = of_name.map(|(_, count)| count).sum();
        if sum > world.config.permits {
            let called = NAMES[usize::from(name)];
            let held = world.server().holders(called);
            let permits = world.config.permits;
            let what = format!(
                "{sum} of {permits} permits of {called} are believed in: {taken:?}; the server says {held:?}"
            );
            shared.breach("S1", "too many permits".to_owned(), what);
            return;
        }
    }
}
