//! **B1** A holder that believes in its hold has it: while a guard is valid, the server holds the name for its lease, and
//! at least as long as the guard believes. S1 follows from this, but this is broken long before another holder has come.

use leasehold::sim::Look;

use crate::{
    invariants::nanos,
    shared::{LETTERS, NAMES, span},
    world::World,
};

pub fn check(world: &mut World) {
    let mut shared = world.shared.lock();
    if shared.guards.is_empty() || !world.watch.asks("B1") {
        return;
    }
    let mut found = None;
    for guard in &shared.guards {
        let name = usize::from(guard.name);
        if world.watch.forgiven[name] > world.now {
            continue;
        }
        let Look::Valid(left) = guard.probe.look() else {
            continue;
        };
        let process = &world.processes[usize::from(guard.client)];
        let until = world.now + process.in_server_time(left);
        let letter = LETTERS[usize::from(guard.client)];
        let lease = guard.probe.lease();
        let held = if world.is_quorum() {
            world.majority(guard.name, letter, lease, true)
        } else {
            world.holder(guard.name, letter, lease)
        };
        let ends = held.as_ref().map_or(0, nanos);
        // The clock of the engine is a few nanoseconds ahead of the time that it was set to.
        if until > ends + 1_000 {
            let heard = world.watch.last_heard(guard.client, lease);
            let (kind, more) = if ends == 0 {
                ("has nothing", until - world.now)
            } else {
                ("believes too long", until - ends)
            };
            let what = format!(
                "{letter} believes in #{lease} of {} for {} too long (heard last: {heard}); the server says {held:?}",
                NAMES[name],
                span(more)
            );
            found = Some((format!("{kind}, heard last: {heard}"), what));
            break;
        }
    }
    if let Some((kind, what)) = found {
        shared.breach("B1", kind, what);
    }
}
