//! **S2** A stale holder changes nothing of the next one's; and until a hold is released, expires or is unlocked by
//! force, nothing brings its end nearer (B2), and no holder is told that it is lost.

use leasehold::{
    LockKind, LostReason,
    sim::{Held, Kind, Look},
};

use crate::{
    invariants::{nanos, release},
    shared::{LETTERS, NAMES, span},
    wire::Asked,
    world::World,
};

/// The holders of the names of a request.
pub fn look(world: &World, asked: &Asked) -> Vec<Vec<Held>> {
    let server = &world.servers[world.of_lane(asked.server)];
    let held = |(name, _): &(u8, u64)| server.holders(NAMES[usize::from(*name)]);
    asked.about.iter().map(held).collect()
}

/// Compares with the holds before the request was carried out.
pub fn check(world: &mut World, asked: &Asked, before: Vec<Vec<Held>>) {
    for ((name, lease), before) in asked.about.iter().zip(before) {
        let server = &world.servers[world.of_lane(asked.server)];
        let after = server.holders(NAMES[usize::from(*name)]);
        let is_new = |held: &Held| {
            let mut before = before.iter();
            !before.any(|one| one.client == held.client && one.lease == held.lease)
        };
        if !world.is_quorum() && world.config.faults.wake_ups_come() && after.iter().any(is_new) {
            // Waiters hear of the lease last granted, whatever they were told before.
            world.watch.granted_until[usize::from(*name)] = 0;
        }
        for after in &after {
            let (watch, name) = (&mut world.watch, usize::from(*name));
            // Of a semaphore without leases nothing has to end.
            if world.config.kind != LockKind::Semaphore {
                watch.granted_until[name] = watch.granted_until[name].max(nanos(after));
                watch.longest = watch.longest.max(nanos(after).saturating_sub(world.now));
            }
            release::held(world, after);
        }
        for before in before {
            compare(world, asked, *lease, &before, &after);
        }
    }
}

/// The effect of a request about `lease` on one hold.
fn compare(world: &mut World, asked: &Asked, lease: u64, before: &Held, after: &[Held]) {
    let letter = LETTERS[usize::from(asked.client)];
    if asked.kind == Kind::ForceUnlock {
        world.watch.forgive(before);
        world.watch.taken(before);
        return;
    }
    let mut all = after.iter();
    let same = all.find(|one| one.client == before.client && one.lease == before.lease);
    let wrong = match same {
        Some(same) if same.ends < before.ends => {
            let nearer = before.ends.checked_sub(same.ends).unwrap_or_default();
            let nearer = span(u64::try_from(nearer.as_nanos()).unwrap_or(u64::MAX));
            let kind = format!("{:?} brings the end nearer", asked.kind);
            Some((kind, format!("its end is {nearer} nearer than before")))
        }
        Some(_) => None,
        // It ends by itself at this very instant.
        None if nanos(before) <= world.now => None,
        None => {
            let own = *before.client == *letter && before.lease == lease;
            let ends = matches!(asked.kind, Kind::Release);
            let until = world.watch.detached.get(&(asked.client, lease));
            let detached = until.is_some_and(|until| *until > world.now);
            let kind = match (own && ends, detached) {
                (true, false) => None,
                (true, true) => Some("a detached lease is given back".to_owned()),
                _ => Some(format!("{:?} ends the hold of another lease", asked.kind)),
            };
            kind.map(|kind| (kind, format!("the name went to {after:?}")))
        }
    };
    if let Some((kind, wrong)) = wrong
        && world.watch.asks("S2")
    {
        let what = format!(
            "{:?} #{lease} of {letter} met {before:?}: {wrong}",
            asked.kind
        );
        world.shared.lock().breach("S2", kind, what);
    }
}

/// Leases that were left to expire stay until then, even if copies of their requests come later.
pub fn detached(world: &mut World) {
    let shared = world.shared.lock();
    if shared.detached.len() == world.watch.detached.len() {
        return;
    }
    for ((client, lease), name) in &shared.detached {
        let letter = LETTERS[usize::from(*client)];
        let held = world.holder(*name, letter, *lease);
        let until = held.map_or(0, |held| nanos(&held));
        let known = world.watch.detached.entry((*client, *lease));
        known.or_insert(until);
    }
}

/// A guard that was told that another holder has its name, while the server still has it for this very lease.
pub fn told_in_error(world: &mut World) {
    if !world.watch.asks("S2") {
        return;
    }
    let mut shared = world.shared.lock();
    let wrong = shared.guards.iter().find_map(|guard| {
        let told = [LostReason::Replaced, LostReason::Failover].map(Look::Lost);
        if !told.contains(&guard.probe.look()) {
            return None;
        }
        let lease = guard.probe.lease();
        let letter = LETTERS[usize::from(guard.client)];
        let held = world.holder(guard.name, letter, lease)?;
        // A copy of a request may have brought back a lease that was taken, or had ended.
        let id = (guard.client, lease);
        let taken = world.watch.taken.contains(&id) || world.watch.brought_back.contains(&id);
        (!taken).then(|| {
            let heard = world.watch.last_heard(guard.client, lease).to_owned();
            let what =
                format!("{letter} was told that #{lease} is lost, but the server has it: {held:?}");
            (format!("told lost in error, heard last: {heard}"), what)
        })
    });
    if let Some((kind, what)) = wrong {
        shared.breach("S2", kind, what);
    }
}
