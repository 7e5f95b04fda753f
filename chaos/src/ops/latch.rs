//! A latch: it is set, counted down and waited for, and counts each request once (S2).

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use fastrand::Rng;
use futures_util::future::join_all;
use leasehold::{Client, Error, Latch};

use super::{
    World,
    ask::{self, Plan},
};
use crate::{api, clock::now, record::Record};

/// How long a refused request waits for its next attempt.
const PAUSE: Duration = Duration::from_millis(10);

/// Sets a new latch to some count, counts it down to one at the same time from several tasks, looks whether one is left, and
/// counts that down. A waiter waits all the while, and must not go on before.
pub(super) async fn one(world: &World, client: &Client, plan: Plan, rng: &mut Rng) {
    let latch = client.latch(new_name(world, plan.name));
    let counters = rng.u32(1..=3);
    if !is_set(world, &latch, counters + 1).await {
        return;
    }
    let counts = Counts::default();
    let pauses = [(); 3].map(|()| rng.u64(0..3_000));
    let waits = async {
        let opened = match plan.wait {
            None => latch.wait().await.map(|()| true),
            Some(wait) => latch.wait_for(wait).await,
        };
        opened.map(|open| open.then_some(()))
    };
    let waiter = async {
        let opened = ask::impatiently(waits, plan.patience).await;
        let begun = counts.begun.load(Ordering::SeqCst);
        // A request without an answer may have counted beside the one that took its place.
        let sure = counts.unanswered.load(Ordering::SeqCst) == 0;
        if matches!(opened, ask::Answer::Guard(())) && begun <= counters && sure {
            let of = counters + 1;
            breach(
                world,
                &latch,
                &format!("is open after {begun} of {of} counts"),
            );
        }
    };
    let counting = async {
        let each = pauses
            .into_iter()
            .take(counters as usize)
            .map(async |pause| {
                tokio::time::sleep(Duration::from_micros(pause)).await;
                counts.down(world, &latch).await;
            });
        join_all(each).await;
        let unanswered = counts.unanswered.load(Ordering::SeqCst);
        let (least, most) = (1_u64.saturating_sub(unanswered.into()), 1);
        match latch.count().await {
            Ok(left) if !(least..=most).contains(&left) => breach(
                world,
                &latch,
                &format!(
                    "has {left} left after all counts but one, {unanswered} without an answer"
                ),
            ),
            Ok(_) | Err(_) => {}
        }
        counts.down(world, &latch).await;
    };
    tokio::join!(waiter, counting);
}

/// How often a latch was counted down.
#[derive(Default)]
struct Counts {
    begun: AtomicU32,
    unanswered: AtomicU32,
}

impl Counts {
    /// Counts down by one, until an answer says so; or not at all, if the client is shut down.
    async fn down(&self, world: &World, latch: &Latch) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        while let Err(error) = latch.count_down().await {
            self.unanswered.fetch_add(1, Ordering::SeqCst);
            if matches!(error, Error::Closed) {
                doubt(world, latch);
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// It may stay.
fn doubt(world: &World, latch: &Latch) {
    let name = latch.name().to_owned();
    world.journal.write(Record::Doubtful { name });
}

fn breach(world: &World, latch: &Latch, what: &str) {
    let what = format!("the latch {} {what}", latch.name());
    world.journal.write(Record::Breach { what });
}

/// In the calm: sets a latch, and waits for it until another task has counted it down. How long that took, in nanoseconds.
pub(super) async fn calm(world: &World, client: &Client, number: usize) -> Result<u64, Error> {
    let latch = client.latch(new_name(world, number));
    let begun = now();
    latch.try_set_count(1).await?;
    let ask = world.journal.number();
    world.journal.write(Record::Ask {
        ask,
        name: number,
        how: "wait for a latch in the calm".to_owned(),
        wait: None,
        at: begun,
    });
    let (waited, counted) = tokio::join!(latch.wait(), latch.count_down());
    let answer = counted.and(waited);
    let what = match &answer {
        Ok(()) => "guard".to_owned(),
        Err(error) => api::kind(error),
    };
    let at = now();
    world.journal.write(Record::Answer { ask, what, at });
    answer.map(|()| at - begun)
}

fn new_name(world: &World, number: usize) -> String {
    let (process, latch) = (world.process, world.journal.number());
    format!("{}:{process}:{latch}", world.names[number])
}

/// Sets a latch whose name was never used.
async fn is_set(world: &World, latch: &Latch, count: u32) -> bool {
    match latch.try_set_count(count).await {
        Ok(true) => true,
        Ok(false) => {
            breach(world, latch, "is new, and was said to be set already");
            false
        }
        Err(_) => {
            doubt(world, latch);
            tokio::time::sleep(PAUSE).await;
            false
        }
    }
}
