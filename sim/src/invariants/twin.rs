//! **Twin** The same request, in the same state, has the same answer of the scripts and of the memory store.

use crate::world::World;

pub fn check(world: &mut World) {
    if !world.config.on_scripts {
        return;
    }
    let difference = world.server().difference();
    let Some(what) = difference.filter(|_| world.watch.asks("Twin")) else {
        return;
    };
    let words = what.split(|c: char| c.is_ascii_digit() || c == ':').next();
    let kind = format!("{}, {}", world.config.kind, words.unwrap_or_default());
    world.shared.lock().breach("Twin", kind, what);
}
