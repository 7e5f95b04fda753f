//! The answer of `release()` is true. **Freed**: this lease id never has the name again. **Unconfirmed**: the same,
//! from the time that it states. **Lost**: the server took the name from this hold while its guard was valid, or the
//! guard was not valid when the release was begun. **Still held**: the guard was not over then.

use std::time::Duration;

use leasehold::{
    Released,
    sim::{Held, Kind},
};

use crate::{
    config::MS,
    shared::{LETTERS, number_of},
    wire::Asked,
    world::{Event, World},
};

/// Judges what was answered since it was looked at last.
pub fn check(world: &mut World) {
    let given_back = std::mem::take(&mut world.shared.lock().given_back);
    if !world.watch.asks("release") {
        return;
    }
    for back in given_back {
        let id = (back.client, back.lease);
        let name = back.name;
        let (free_from, sure) = match back.answer {
            // Passed on in memory, under the same lease id.
            Ok(Released::Freed) if back.is_valid => continue,
            Ok(Released::Freed) => (world.now, true),
            // Permits without a lease.
            Ok(Released::Unconfirmed { free_within }) if free_within == Duration::MAX => continue,
            Ok(Released::Unconfirmed { free_within }) => {
                let process = &world.processes[usize::from(back.client)];
                let free_within = process.in_server_time(free_within);
                (world.now + free_within + MS, false)
            }
            Ok(still) => {
                if back.was_over {
                    let told = format!("{still:?} of a lost lease");
                    tell(world, "still held", id, &told);
                }
                continue;
            }
            Err(error) => {
                if back.was_valid && !world.watch.taken.contains(&id) {
                    tell(world, "lost in error", id, &error);
                }
                continue;
            }
        };
        // A majority has confirmed it, the others are told later.
        if world.is_quorum() || !sure && stands_in_a_queue(world, id) {
            continue;
        }
        world.watch.free.insert(id, (free_from, sure));
        world.at(free_from, Event::Free(id.0, name, id.1));
    }
}

/// A client was told what is not true.
fn tell(world: &World, kind: &'static str, (client, lease): (u8, u64), told: &str) {
    let letter = LETTERS[usize::from(client)];
    let what = format!("client {letter} was told by its release of #{lease}: {told}");
    world.shared.lock().breach("release", kind, what);
}

/// A copy of a request was carried out after its lease id had got the name, and has left an entry: no client can tell when
/// its turn comes, nor how long it lasts.
fn stands_in_a_queue(world: &World, (client, lease): (u8, u64)) -> bool {
    let queued = world.server().snapshot().queued;
    let mut queued = queued.iter();
    queued.any(|(_, letter, id)| (number_of(&LETTERS, letter), *id) == (client, lease))
}

/// A hold is there after a request was carried out.
pub fn held(world: &World, held: &Held) {
    let id = (number_of(&LETTERS, &held.client), held.lease);
    let free = world.watch.free.get(&id);
    if free.is_some_and(|(from, _)| *from <= world.now) && !world.watch.outlived.contains(&id) {
        let what = format!("a release said that it is free, and the server says {held:?}");
        world.shared.lock().breach("release", "not free", what);
    }
}

/// A request is carried out, or a copy of one. If the release of its lease id had no answer, and this was sent before,
/// the client cannot tell how long it makes the lease last.
pub fn came_late(world: &mut World, asked: &Asked, stray: bool) {
    if asked.kind == Kind::Release && !stray {
        return;
    }
    for (_, lease) in &asked.about {
        let lease = *lease;
        let id = (asked.client, lease);
        if world.watch.free.get(&id).is_some_and(|(_, sure)| !sure) {
            world.watch.free.remove(&id);
        }
    }
}

/// A lease is to be free by now.
pub fn is_free(world: &World, client: u8, name: u8, lease: u64) {
    if let Some(there) = world.holder(name, LETTERS[usize::from(client)], lease) {
        held(world, &there);
    }
}
