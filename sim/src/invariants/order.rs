//! **Order** No holder of a fair mutex comes before one that waited in the queue before it, is heard, and has kept its entry.

use leasehold::{
    LockKind,
    sim::{Held, Snapshot},
};

use crate::world::World;

/// Whether a client is heard.
fn hears(there: &Snapshot, name: &str, client: &str) -> bool {
    let mut listeners = there.listeners.iter();
    listeners.any(|(its, listener)| **its == *name && **listener == *client)
}

pub fn check(world: &mut World) {
    if world.config.kind != LockKind::FairMutex || !world.watch.asks("Order") {
        return;
    }
    let now = world.server().snapshot();
    let before = std::mem::replace(&mut world.watch.before, now.clone());
    for held in &now.held {
        let same = |there: &Held| {
            (&there.client, there.lease, &there.name) == (&held.client, held.lease, &held.name)
        };
        if before.held.iter().any(same) {
            continue;
        }
        let line = before.queued.iter().filter(|(name, ..)| *name == held.name);
        let ahead =
            line.take_while(|(_, client, lease)| (client, *lease) != (&held.client, held.lease));
        for place in ahead {
            let (name, client, lease) = place;
            let waits = now.queued.contains(place) && !now.passed_over.contains(place);
            if waits && hears(&before, name, client) && hears(&now, name, client) {
                let what = format!(
                    "#{} of {} has {name}, and #{lease} of {client} waited before it",
                    held.lease, held.client
                );
                world.shared.lock().breach("Order", "overtaken", what);
                return;
            }
        }
    }
}
