//! **None** `try_lock()` says `None` only of a name that another has, or waits for: not of what its own client has given back, gave up, or
//! does not know that it has.

use leasehold::LockKind;

use crate::{
    shared::{LETTERS, NAMES, Waits, number_of},
    world::World,
};

pub fn check(world: &mut World) {
    // Several tasks of a client may have the name by turns.
    let kinds = [
        LockKind::PlainMutex,
        LockKind::Semaphore,
        LockKind::LeasedSemaphore,
        LockKind::Latch,
    ];
    if world.config.tasks > 1 || kinds.contains(&world.config.kind) || !world.watch.asks("None") {
        return;
    }
    {
        let shared = world.shared.lock();
        let mut waits = shared.waits.values();
        if shared.nones.is_empty() && !waits.any(|wait| wait.how != Waits::Forever) {
            return;
        }
    }
    let mut others = std::mem::take(&mut world.watch.used);
    for server in world.living() {
        let seen = server.snapshot();
        let held = seen.held.iter().map(|held| (&held.name, &held.client));
        let queued = seen.queued.iter().map(|(name, client, _)| (name, client));
        for (name, client) in held.chain(queued) {
            let used = (number_of(&NAMES, name), number_of(&LETTERS, client));
            others.insert(used, world.now);
        }
    }
    world.watch.used = others;
    let nones = std::mem::take(&mut world.shared.lock().nones);
    for (client, name, since) in nones {
        let mut used = world.watch.used.iter();
        let is_anothers =
            used.any(|((its, who), at)| *its == name && *who != client && *at >= since);
        let held = world.held();
        let mut own = held
            .iter()
            .filter(|held| number_of(&NAMES, &held.name) == name);
        // Its own, taken by a copy that came when its tombstone was over.
        let is_excused = own.any(|held| {
            let id = (client, held.lease);
            world.watch.outlived.contains(&id) && !world.watch.rewound.contains(&id)
        });
        // Its own, left to expire, which it was when the call began.
        let detached = world.shared.lock().detached.clone();
        let is_left = detached.iter().any(|(id, of)| {
            let until = world.watch.detached.get(id);
            (id.0, *of) == (client, name) && until.is_some_and(|until| *until > since)
        });
        if is_anothers || is_excused || is_left {
            continue;
        }
        let letter = LETTERS[usize::from(client)];
        let what = format!(
            "client {letter} was told that another has {}; the server says {held:?}",
            NAMES[usize::from(name)]
        );
        world
            .shared
            .lock()
            .breach("None", "nobody else had it", what);
    }
}
