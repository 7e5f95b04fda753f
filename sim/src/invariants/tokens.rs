//! **Tokens** Each valid guard of a fenced mutex has a larger token than every one before it, also when the server has lost its
//! data meanwhile.

use leasehold::{LockKind, sim::Look};

use crate::{
    shared::{LETTERS, NAMES},
    world::World,
};

/// The largest token of a valid guard until now, and its hold: client, lease id.
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
        let now: Largest = (guard.probe.token(), (guard.client, guard.probe.lease()));
        let largest = &mut world.watch.tokens[name];
        let forgiven = world.watch.forgiven[name] > world.now;
        // A hold that is entered again keeps its token.
        if now.0 <= largest.0 && now != *largest && !forgiven {
            found = Some((NAMES[name], now, *largest));
        }
        if now.0 > largest.0 {
            *largest = now;
        }
    }
    if let Some((name, (token, now), (before, last))) = found {
        let tell =
            |(client, lease): (u8, u64)| format!("{} (#{lease})", LETTERS[usize::from(client)]);
        let (now, last) = (tell(now), tell(last));
        let kind = if token == before {
            "shared by two holders"
        } else {
            "went back"
        };
        let what = format!("{now} holds {name} with token {token}, after {last} with {before}");
        shared.breach("Tokens", kind, what);
    }
}
