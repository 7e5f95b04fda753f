//! Asks for a name: how, with which terms, for how long, and whether it is dropped on the way.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use fastrand::Rng;
use leasehold::{Error, Guard, Handoff, Mutex};

use super::{LONGEST_LEASE, World, hold};
use crate::{
    api,
    clock::{nanos, now},
    record::Record,
};

/// How an ask ended.
enum Answer {
    Guard(Guard),
    Busy,
    Dropped,
    Failed(Error),
}

/// How an ask is given up before it is answered.
enum Patience {
    Endless,
    /// Dropped after this time.
    For(Duration),
    /// Dropped at this poll, wherever that finds it.
    Polls(u32),
}

/// One ask, and the hold if it brings one.
pub(super) async fn one(world: &World, client: usize, rng: &mut Rng) {
    let name = rng.usize(..world.names.len());
    let (mutex, fixed) = terms(world, client, name, rng);
    let ask = world.journal.number();
    let method = rng.u32(0..10);
    let wait = match method {
        0..=4 => None,
        5..=6 => Some(Duration::ZERO),
        _ => Some(world.lease.mul_f64(rng.f64() * 2.0)),
    };
    let patience = match rng.u32(0..10) {
        0 => Patience::For(world.lease.mul_f64(rng.f64())),
        1 => Patience::Polls(rng.u32(0..12)),
        _ => Patience::Endless,
    };
    let how = match (method, fixed) {
        (0..=4, true) => "lock fixed",
        (0..=4, false) => "lock",
        (5..=6, _) => "try_lock",
        _ => "try_lock_for",
    };
    world.journal.write(Record::Ask {
        ask,
        name,
        how: how.to_owned(),
        wait: wait.map(nanos),
        at: now(),
    });
    let asked = async {
        let guard = match (method, wait) {
            (5..=6, _) => mutex.try_lock().await,
            (_, Some(wait)) => mutex.try_lock_for(wait).await,
            (_, None) => mutex.lock().await.map(Some),
        };
        match guard {
            Ok(Some(guard)) => Answer::Guard(guard),
            Ok(None) => Answer::Busy,
            Err(error) => Answer::Failed(error),
        }
    };
    let answer = impatiently(asked, patience).await;
    let at = now();
    let what = match &answer {
        Answer::Guard(_) => "guard".to_owned(),
        Answer::Busy => "busy".to_owned(),
        Answer::Dropped => "dropped".to_owned(),
        Answer::Failed(error) => api::kind(error),
    };
    world.journal.write(Record::Answer { ask, what, at });
    match answer {
        Answer::Guard(guard) => hold::hold(world, name, guard, fixed, rng).await,
        // A refusal comes at once; no need to ask for it at full speed.
        Answer::Failed(_) => tokio::time::sleep(Duration::from_millis(rng.u64(1..20))).await,
        Answer::Busy | Answer::Dropped => {}
    }
}

/// A handle with terms drawn at random, and whether its lease is fixed.
fn terms(world: &World, client: usize, name: usize, rng: &mut Rng) -> (Mutex, bool) {
    let mutex = world.client(client).mutex(&world.names[name]);
    let mutex = match rng.u32(0..4) {
        0 => mutex.handoff(Handoff::off()),
        1 => mutex.handoff(Handoff::new(4, Duration::from_millis(5))),
        _ => mutex,
    };
    let leases = [
        world.lease / 2,
        world.lease,
        world.lease,
        world.lease * LONGEST_LEASE,
    ];
    let lease = leases[rng.usize(..leases.len())];
    match rng.u32(0..10) {
        0..=3 => (api::fixed(&mutex, lease), true),
        4..=5 => (api::renewed(&mutex, lease), false),
        6 => (mutex.max_hold(lease), false),
        _ => (mutex, false),
    }
}

async fn impatiently(asked: impl Future<Output = Answer>, patience: Patience) -> Answer {
    match patience {
        Patience::Endless => asked.await,
        Patience::For(wait) => tokio::time::timeout(wait, asked)
            .await
            .unwrap_or(Answer::Dropped),
        Patience::Polls(polls) => {
            let mut asked = pin!(asked);
            let mut left = polls;
            // Its next wake-up may be far away, so it is polled by the clock, too.
            let mut clock = tokio::time::interval(Duration::from_millis(3));
            poll_fn(move |context| {
                if left == 0 {
                    return Poll::Ready(Answer::Dropped);
                }
                left -= 1;
                while clock.poll_tick(context).is_ready() {}
                asked.as_mut().poll(context)
            })
            .await
        }
    }
}

/// In the calm: takes a name and lets it go. How long it took, in nanoseconds.
pub(crate) async fn calm_lock(world: &World, client: usize, name: usize) -> Result<u64, Error> {
    let ask = world.journal.number();
    let asked = now();
    world.journal.write(Record::Ask {
        ask,
        name,
        how: "lock in the calm".to_owned(),
        wait: None,
        at: asked,
    });
    let guard = world.client(client).mutex(&world.names[name]).lock().await;
    let at = now();
    let what = match &guard {
        Ok(_) => "guard".to_owned(),
        Err(error) => api::kind(error),
    };
    world.journal.write(Record::Answer { ask, what, at });
    hold::look_and_let_go(world, name, guard?).await;
    Ok(at - asked)
}
