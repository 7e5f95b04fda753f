//! **B6** Closed is a state: when a shutdown has returned, no guard of its client is valid, and none comes to be.

use leasehold::sim::Look;

use crate::{
    shared::{LETTERS, NAMES},
    world::World,
};

pub fn check(world: &mut World) {
    let mut shared = world.shared.lock();
    if shared.closed.is_empty() || !world.watch.asks("B6") {
        return;
    }
    let closed = shared.guards.iter().find(|guard| {
        shared.closed.contains(&guard.client) && matches!(guard.probe.look(), Look::Valid(_))
    });
    if let Some(guard) = closed {
        let (letter, name) = (
            LETTERS[usize::from(guard.client)],
            NAMES[usize::from(guard.name)],
        );
        let lease = guard.probe.lease();
        let what =
            format!("client {letter} has shut down, and has a valid guard of {name} (#{lease})");
        shared.breach("B6", "a valid guard after the shutdown", what);
    }
}
