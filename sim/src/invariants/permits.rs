//! **Permits without leases.** The server knows a number and no holders, so it is kept here what each lease id took. A request takes once
//! and gives back once, however often it is carried out.

use std::{sync::Arc, time::Duration};

use leasehold::{
    Access, LockKind,
    sim::{Held, Kind},
};

use crate::{
    config::SECOND,
    shared::{LETTERS, NAMES},
    wire::Asked,
    world::World,
};

/// How long the server keeps what became of a request.
const KEPT: u64 = 60 * SECOND;

/// How many are free before a request is carried out that may change it.
pub fn before(world: &World, asked: &Asked) -> Option<i64> {
    let changes = matches!(asked.kind, Kind::Acquire | Kind::Release);
    let (name, _) = *asked.about.first()?;
    (world.config.kind == LockKind::Semaphore && changes).then(|| free(world, name))
}

fn free(world: &World, name: u8) -> i64 {
    let called = NAMES[usize::from(name)];
    world.server().number(world.config.kind, called)
}

/// It has been carried out.
pub fn executed(world: &mut World, asked: &Asked, before: Option<i64>) {
    let (Some(before), Some(&(name, lease))) = (before, asked.about.first()) else {
        return;
    };
    let taken = before - free(world, name);
    let id = (name, asked.client, lease);
    if let Some((_, known)) = world.watch.out.get_mut(&id)
        && world.now - *known <= KEPT
    {
        *known = world.now;
    }
    if taken == 0 {
        return;
    }
    let letter = LETTERS[usize::from(asked.client)];
    let out = if taken > 0 {
        let held = Held {
            name: NAMES[usize::from(name)].into(),
            client: Arc::from(letter),
            lease,
            access: Access::Permits(u16::try_from(taken).unwrap_or(u16::MAX)),
            holds: 1,
            ends: Duration::from_secs(u64::from(u32::MAX)),
        };
        let before = world.watch.out.insert(id, (held, world.now));
        // A client that stood still for longer than the server knows of its request takes once more, and the operator adds what is lost
        // (docs/rules.md).
        let is_forgotten = before
            .as_ref()
            .is_some_and(|(_, known)| world.now - known > KEPT);
        if is_forgotten {
            let free = u32::try_from(free(world, name) + taken).unwrap_or(0);
            let called = NAMES[usize::from(name)];
            world
                .server()
                .set_permits(world.config.kind, called, free.into());
        }
        before.is_none() || is_forgotten
    } else {
        let held = world.watch.out.remove(&id);
        held.is_some_and(|(held, _)| {
            held.access == Access::Permits(u16::try_from(-taken).unwrap_or(0))
        })
    };
    let outlived = world.watch.outlived.contains(&(asked.client, lease));
    if !out && !outlived && world.watch.asks("S2") {
        let does = if taken > 0 { "takes" } else { "gives back" };
        let what = format!(
            "{:?} #{lease} of {letter} {does} {} once more",
            asked.kind,
            taken.abs()
        );
        let mut shared = world.shared.lock();
        shared.breach("S2", format!("{does} permits twice"), what);
    }
}

impl World {
    /// Whether the server has forgotten that this lease id took permits: who has not heard of it by then never does.
    pub fn is_forgotten(&self, id: (u8, u8, u64)) -> bool {
        self.taken_for(id) > KEPT
    }

    /// For how long this lease id has had permits without a request about them.
    pub fn taken_for(&self, id: (u8, u8, u64)) -> u64 {
        let out = self.watch.out.get(&id);
        out.map_or(0, |(_, known)| self.now - known)
    }

    /// All holds: those that the server knows, and the permits that it does not.
    pub fn held(&self) -> Vec<Held> {
        let servers = self.living();
        let mut held: Vec<Held> = servers.flat_map(|it| it.snapshot().held).collect();
        held.extend(self.watch.out.values().map(|(held, _)| held.clone()));
        held
    }
}
