//! Several names at once, by a multi-lock.

use std::time::Duration;

use fastrand::Rng;
use leasehold::{Client, MultiGuard, Part};

use super::{
    World,
    ask::{self, Lease, Plan},
    hold,
    inside::Inside,
};
use crate::{
    api,
    clock::{nanos, now},
    kind::Kind,
    witness::Witness,
};

/// Asks for two or three of the names, and holds them.
pub(super) async fn some(world: &World, client: usize, rng: &mut Rng) {
    let client = world.client(client);
    let is_leased = |number: &usize| Kind::of(&world.names[*number]).is_leased();
    let mut numbers: Vec<usize> = (0..world.names.len()).filter(is_leased).collect();
    rng.shuffle(&mut numbers);
    numbers.truncate(rng.usize(2..=3));
    if numbers.is_empty() {
        return;
    }
    let parts = numbers
        .iter()
        .map(|number| part(&client, &world.names[*number]));
    let lock = client.multi_lock(parts);
    let plan = Plan::draw(world, numbers[0], rng);
    let lock = match plan.handoff {
        Some(handoff) => lock.handoff(handoff),
        None => lock,
    };
    let lock = match plan.lease {
        Lease::Fixed(lease) => lock.fixed_lease(lease),
        Lease::Renewed(lease) => lock.lease(lease),
        Lease::MaxHold(most) => lock.max_hold(most),
        Lease::OfTheClient => lock,
    };
    let wait = plan.wait;
    let asked = async {
        match wait {
            None => lock.lock().await.map(Some),
            Some(Duration::ZERO) => lock.try_lock().await,
            Some(wait) => lock.try_lock_for(wait).await,
        }
    };
    if let Some(guard) = ask::answer(world, plan, "several".to_owned(), asked, rng).await {
        let of = |name: &str| world.names.iter().position(|known| known == name);
        let numbers: Vec<usize> = guard.names().into_iter().filter_map(of).collect();
        hold(world, &numbers, guard, rng).await;
    }
}

/// A writer of a read-write lock; else the lock itself.
fn part(client: &Client, name: &str) -> Part {
    match Kind::of(name) {
        Kind::Mutex => (&client.mutex(name)).into(),
        Kind::Fenced => (&client.fenced_mutex(name)).into(),
        Kind::Plain => (&client.plain_mutex(name)).into(),
        Kind::Spin => (&client.spin_mutex(name)).into(),
        Kind::Permit => client.leased_semaphore(name).part(1),
        Kind::Fair => (&client.fair_mutex(name)).into(),
        Kind::Rw => client.rw_lock(name).write_part(),
        Kind::Latch => unreachable!("it has no lease"),
    }
}

async fn hold(world: &World, numbers: &[usize], guard: MultiGuard, rng: &mut Rng) {
    let witnesses = numbers
        .iter()
        .map(|number| Witness::new(&world.journal, *number, false, None));
    let mut witnesses: Vec<Witness<'_>> = witnesses.collect();
    let look = |witnesses: &mut Vec<Witness<'_>>| {
        let parts = witnesses.iter_mut().enumerate();
        parts.fold(true, |valid, (at, witness)| {
            witness.look(&api::Part(&guard, at)) && valid
        })
    };
    let time = hold::duration(world, rng);
    let until = now() + nanos(time);
    if rng.u32(0..3) == 0 && look(&mut witnesses) {
        let holders = witnesses.iter().map(Witness::holder);
        let inside = Inside::guards(world, numbers, false, holders);
        let looks = rng.u32(0..4) == 0;
        let ran = guard.run(inside.work(time, rng));
        let _ = inside.watch(|| !looks || guard.is_valid(), ran).await;
    }
    let mut looks_after_loss = 3;
    loop {
        if look(&mut witnesses) {
            let at = rng.usize(..numbers.len());
            hold::count(
                world,
                numbers[at],
                &api::Part(&guard, at),
                &mut witnesses[at],
                rng,
            )
            .await;
        } else if looks_after_loss == 0 {
            break;
        } else {
            looks_after_loss -= 1;
        }
        if now() >= until || !world.running() {
            break;
        }
        hold::pause(rng).await;
    }
    look(&mut witnesses);
    let how = ["release", "release", "release", "drop"][rng.usize(..4)];
    for witness in &mut witnesses {
        witness.end(how);
    }
    if how == "drop" {
        drop(guard);
    } else {
        let _ = guard.release().await;
    }
}
