//! **L2** Every future ends.

use crate::{config::SECOND, shared::LETTERS, world::World};

pub fn check(world: &mut World, settled: u64) {
    let tasks = u64::from(world.config.tasks) * u64::from(world.config.clients);
    // Each waiter may have to wait out one lease that nobody gives back.
    let most = settled + world.watch.longest * 2 + 10 * SECOND + tasks * SECOND / 4;
    if world.now <= most {
        return;
    }
    world.over = true;
    if !world.watch.asks("L2") {
        return;
    }
    let mut shared = world.shared.lock();
    let stuck = shared.doing.iter().next().map(|(k, v)| (*k, v.clone()));
    if let Some(((client, task), what)) = stuck {
        let kind = what.split('(').next().unwrap_or_default().to_owned();
        let letter = LETTERS[usize::from(client)];
        let what = format!("task {task} of client {letter} never ends: {what}");
        shared.breach("L2", kind, what);
    }
}
