//! **S1**, inside `run`: work has no effect beside another holder. And **run**: it is not polled once its hold is over.

use std::mem;

use crate::world::World;

pub fn check(world: &World) {
    let mut shared = world.shared.lock();
    for stray in mem::take(&mut shared.strays) {
        let beside = stray.beside.map(|(name, at)| (usize::from(name), at));
        // The server forgot one of the two, or was told to.
        let is_forgiven = beside.is_some_and(|(name, at)| world.watch.forgiven[name] > at);
        let promise = if beside.is_some() { "S1" } else { "run" };
        if !is_forgiven && world.watch.asks(promise) {
            shared.breach(promise, stray.kind, stray.what);
        }
    }
}
