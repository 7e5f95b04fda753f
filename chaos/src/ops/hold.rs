//! Holds a name: looks all the time, counts, extends, re-enters, and lets go in one of several ways.

use std::time::Duration;

use fastrand::Rng;
use leasehold::Guard;

use super::{LONGEST_LEASE, World, inside::Inside};
use crate::{
    api::{self, Watched},
    clock::{nanos, now},
    record::Record,
    witness::Witness,
};

/// The properties of a hold.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    /// Guards that are shared do not exclude each other.
    pub(super) shared: bool,
    pub(super) fixed: bool,
    /// Whether a hold that is detached comes back by itself.
    pub(super) detaches: bool,
}

/// Holds for a while drawn at random, and lets go.
pub(super) async fn hold<K: 'static>(
    world: &World,
    name: usize,
    guard: Guard<K>,
    terms: Terms,
    rng: &mut Rng,
) {
    let Terms { shared, fixed, .. } = terms;
    let mut witness = Witness::new(&world.journal, name, shared, None);
    // The first look comes at once: nothing else stands between the answer and its use.
    witness.look(&guard);
    let time = duration(world, rng);
    let until = now() + nanos(time);
    let extensions_seed = rng.u64(..);
    let work = async {
        if rng.bool() {
            let names = [name];
            let inside = Inside::guards(world, &names, shared, [witness.holder()]);
            let looks = rng.u32(0..4) == 0;
            let ran = guard.run(inside.work(time, rng));
            let _ = inside.watch(|| !looks || guard.is_valid(), ran).await;
        }
        look_and_count(world, name, &guard, &mut witness, until, rng).await;
    };
    tokio::select! {
        () = work => {}
        // Work under way when the hold is over is dropped in the middle.
        () = extensions(world, &guard, fixed, Rng::with_seed(extensions_seed)) => {}
    }
    if rng.u32(0..12) == 0 {
        world.counted();
        if let Ok(inner) = guard.reenter() {
            let mut within = Witness::new(&world.journal, name, shared, Some(witness.holder()));
            within.look(&inner);
            if rng.bool() {
                // The outer guard goes first; the name stays with the inner one.
                let_go(world, &mut witness, guard, terms, rng).await;
                let until = now() + nanos(Duration::from_micros(rng.u64(0..3_000)));
                look_and_count(world, name, &inner, &mut within, until, rng).await;
                let_go(world, &mut within, inner, terms, rng).await;
                return;
            }
            let_go(world, &mut within, inner, terms, rng).await;
            witness.look(&guard);
        }
    }
    let_go(world, &mut witness, guard, terms, rng).await;
}

/// In the calm.
pub(super) async fn look_and_let_go<K: 'static>(world: &World, name: usize, guard: Guard<K>) {
    let mut witness = Witness::new(&world.journal, name, false, None);
    witness.look(&guard);
    witness.look(&guard);
    witness.end("release");
    let _ = api::release(guard).await;
}

pub(super) fn duration(world: &World, rng: &mut Rng) -> Duration {
    let lease = world.lease;
    if world.brisk {
        return match rng.u32(0..1000) {
            0 => lease.mul_f64(rng.f64() * 1.5),
            1..=100 => Duration::from_micros(rng.u64(0..2_000)),
            _ => Duration::ZERO,
        };
    }
    match rng.u32(0..100) {
        0..=69 => Duration::from_micros(rng.u64(0..4_000)),
        70..=89 => lease.mul_f64(rng.f64() / 10.0),
        90..=97 => lease.mul_f64(rng.f64() / 2.0),
        _ => lease.mul_f64(rng.f64() * 2.5),
    }
}

/// Looks until `until`; counts at random. Goes on for a while after a loss, which must be final.
async fn look_and_count<K: 'static>(
    world: &World,
    name: usize,
    guard: &Guard<K>,
    witness: &mut Witness<'_>,
    until: u64,
    rng: &mut Rng,
) {
    let mut looks_after_loss = 3;
    let mut first = true;
    loop {
        if witness.look(guard) {
            // A holder with a stale lease has little time, so most count at once.
            let counts = rng.u32(0..4) == 0 || std::mem::take(&mut first) && rng.u32(0..4) > 0;
            if counts && !witness.is_shared() {
                count(world, name, guard, witness, rng).await;
            }
        } else if looks_after_loss == 0 {
            return;
        } else {
            looks_after_loss -= 1;
        }
        if now() >= until || !world.running() {
            return;
        }
        pause(rng).await;
    }
}

/// Some of the moments at which a process can be stopped.
pub(super) async fn pause(rng: &mut Rng) {
    match rng.u32(0..8) {
        0 => tokio::task::yield_now().await,
        1 => std::thread::yield_now(),
        _ => tokio::time::sleep(Duration::from_micros(rng.u64(100..2_000))).await,
    }
}

/// A read-modify-write. [`counter`](crate::counter) explains its use.
pub(super) async fn count(
    world: &World,
    name: usize,
    guard: &impl Watched,
    witness: &mut Witness<'_>,
    rng: &mut Rng,
) {
    let saw = world.counter.read(name);
    match (world.brisk, rng.bool()) {
        (_, false) => {}
        (true, true) => tokio::task::yield_now().await,
        (false, true) => pause(rng).await,
    }
    let wrote = world.count_operation(rng);
    if !witness.look(guard) {
        return;
    }
    world.counter.write(name, wrote);
    let at = now();
    if witness.look(guard) {
        world.journal.write(Record::Count {
            guard: witness.guard(),
            name,
            saw,
            wrote,
            at,
        });
    }
}

/// Now and then extends a fixed lease (longer, shorter, twice at once, dropped on the way), or asks
/// the server about a renewed one.
async fn extensions<K>(world: &World, guard: &Guard<K>, fixed: bool, mut rng: Rng) {
    loop {
        let wait = world.lease.mul_f64(rng.f64() / 3.0);
        tokio::time::sleep(wait).await;
        world.counted();
        if !fixed {
            // The watchdog extends this one; it can only be asked about.
            let _ = guard.verify().await;
            continue;
        }
        let (one, other) = (length(world, &mut rng), length(world, &mut rng));
        match rng.u32(0..4) {
            0 => {
                let _ = tokio::join!(guard.extend(one), guard.extend(other));
            }
            1 => {
                let patience = Duration::from_micros(rng.u64(0..2_000));
                let _ = tokio::time::timeout(patience, guard.extend(one)).await;
            }
            _ => {
                let _ = guard.extend(one).await;
            }
        }
    }
}

fn length(world: &World, rng: &mut Rng) -> Duration {
    let most = world.lease * LONGEST_LEASE;
    most.mul_f64(0.1 + 0.9 * rng.f64())
}

async fn let_go<K: 'static>(
    world: &World,
    witness: &mut Witness<'_>,
    guard: Guard<K>,
    terms: Terms,
    rng: &mut Rng,
) {
    world.counted();
    witness.look(&guard);
    // Rare, since no task can have the name for the rest of the lease.
    let detaches = rng.u32(0..if world.brisk { 2_000 } else { 100 }) == 0;
    match rng.u32(1..60) {
        _ if detaches && terms.detaches => {
            witness.end("detach");
            guard.detach();
        }
        1..=15 => {
            witness.end("drop");
            drop(guard);
        }
        16..=21 => {
            witness.end("release");
            let patience = Duration::from_micros(rng.u64(0..1_000));
            let _ = tokio::time::timeout(patience, api::release(guard)).await;
        }
        _ => {
            witness.end("release");
            let _ = api::release(guard).await;
        }
    }
}
