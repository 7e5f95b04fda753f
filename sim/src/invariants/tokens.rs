//! **Tokens** Each valid guard of a fenced mutex has a larger token than every one before it, also when the server has lost its
//! data meanwhile.

use leasehold::{LockKind, sim::Look};

use crate::{
    shared::{LETTERS, NAMES},
    world::World,
};

/// The largest token of a valid guard until now, and its holder: client, and the number of the holder there.
pub type Largest = (u64, (u8, u64));

/// Looks at the guards that have come since the last time, once each. While two holders of a name are no breach (the server
/// forgot one, or was told to), the older one may be seen later; so only larger tokens count then.
pub fn check(world: &mut World) {
    if world.config.kind != LockKind::FencedMutex || !world.watch.asks("Tokens") {
        return;
    }
    let mut shared = world.shared.lock();
    let mut found = None;
    let looked_at = world.watch.looked_at;
    for guard in shared.guards.iter().filter(|guard| guard.id > looked_at) {
        world.watch.looked_at = guard.id;
        if !matches!(guard.probe.look(), Look::Valid(_)) {
            continue; // it comes too late, and its user is told so
        }
        let name = usize::from(guard.name);
        let now: Largest = (guard.probe.token(), (guard.client, guard.holder));
        let largest = &mut world.watch.tokens[name];
        let forgiven = world.watch.forgiven[name] > world.now;
        // A holder that enters again keeps its token.
        if now.0 <= largest.0 && now != *largest && !forgiven {
            found = Some((guard.clone(), now.0, largest.0));
        }
        if now.0 > largest.0 {
            *largest = now;
        }
    }
    if let Some((guard, token, before)) = found {
        let (client, name) = (usize::from(guard.client), usize::from(guard.name));
        let kind = if token == before {
            "shared by two holders"
        } else {
            "went back"
        };
        let what = format!(
            "{} (#{}) holds {} with token {token}, after a holder with {before}",
            LETTERS[client],
            guard.probe.lease(),
            NAMES[name]
        );
        shared.breach("Tokens", kind, what);
    }
}
