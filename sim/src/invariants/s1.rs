//! **S1** Two guards that exclude each other are never both valid at one instant.

use leasehold::sim::Look;

use crate::{
    shared::{LETTERS, NAMES, Visible, span},
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
                && let (Some(left), Some(other_left)) = (valid(one), valid(other))
            {
                found = Some((one.clone(), left, other.clone(), other_left));
            }
        }
    }
    let Some((one, left, other, other_left)) = found else {
        return;
    };
    let name = NAMES[usize::from(one.name)];
    let held = world.server.held(name);
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
    let holds = |guard: &Visible| {
        held.as_ref()
            .is_some_and(|held| held.lease == guard.probe.lease())
    };
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
