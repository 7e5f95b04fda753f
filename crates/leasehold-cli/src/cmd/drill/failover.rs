//! The row of a failover: a replica takes the primary's place while a lock is held, waited for, and others are taken.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold::{Client, Error, FencedMutexGuard};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, timeout},
};

use super::{
    Ground, LEASE,
    rows::{LONG, Played, SLACK, judge, late_write, taken},
};
use crate::{
    exit::{Exit, Failure},
    output::{human, visible},
};

/// Sentinels and nodes that have said yes have done it by then.
const MOVED: Duration = Duration::from_secs(60);

/// Two hold a lock that the new primary does not know for so long at most (docs/topologies.md, Cluster; behind sentinels less).
const TWO_HOLD: Duration = Duration::from_millis(2_500);

/// So many tasks take locks of their own meanwhile.
const OTHERS: usize = 4;

/// The turns of the others.
struct Load {
    ends: Arc<AtomicBool>,
    tasks: JoinSet<(u32, Duration)>,
}

impl Load {
    fn start(ground: &Ground, name: &str) -> Load {
        let (ends, mut tasks) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
        let clients = [&ground.one, &ground.other].into_iter().cycle();
        for (i, client) in clients.take(OTHERS).enumerate() {
            let (client, name) = (client.clone(), format!("{name}:other:{i}"));
            tasks.spawn(takes_turns(client, name, Arc::clone(&ends)));
        }
        Load { ends, tasks }
    }

    /// How many turns there were, and the longest wait for one.
    async fn end(self) -> (u32, Duration) {
        self.ends.store(true, Ordering::Relaxed);
        let turns = self.tasks.join_all().await.into_iter();
        turns.fold((0, Duration::ZERO), |(all, longest), (turns, wait)| {
            (all + turns, longest.max(wait))
        })
    }
}

async fn takes_turns(client: Client, name: String, ends: Arc<AtomicBool>) -> (u32, Duration) {
    let (mut turns, mut longest) = (0, Duration::ZERO);
    while !ends.load(Ordering::Relaxed) {
        let asked = Instant::now();
        // An error of the moment of the change counts as a longer wait.
        if let Ok(Some(guard)) = client.mutex(&name).try_lock_for(LONG).await {
            (turns, longest) = (turns + 1, longest.max(asked.elapsed()));
            let _ = guard.release().await;
        }
        sleep(Duration::from_millis(5)).await;
    }
    (turns, longest)
}

type Next = (FencedMutexGuard, Instant);

/// The figures of the failover, as the holder has seen it.
struct Seen {
    /// From what was asked for until another was the primary.
    moved: Duration,
    /// Both primaries.
    places: String,
    /// When the holder was told that it has lost the lock, if it has.
    told: Option<Instant>,
}

pub(super) async fn play(ground: &Ground, name: &str) -> Played {
    let guard = ground.one.fenced_mutex(name).try_lock_for(LONG).await?;
    let first = taken(guard)?;
    let mutex = ground.other.fenced_mutex(name);
    let waiter: JoinHandle<Result<Next, Error>> = tokio::spawn(async move {
        let guard = mutex.lock().await?;
        Ok((guard, Instant::now()))
    });
    let load = Load::start(ground, name);
    let seen = watch(ground, name, &first).await;
    let (turns, longest) = load.end().await;
    let seen = seen.inspect_err(|_| waiter.abort())?;
    let old = first.token();
    let freed = Instant::now();
    match first.release().await {
        Ok(_) | Err(Error::Lost { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let Ok(Ok(next)) = timeout(LONG, waiter).await else {
        let long = human(LONG);
        return Ok(judge(
            false,
            format!("the next had not got it after {long}"),
        ));
    };
    let (next, at) = next?;
    let is_refused = late_write(ground, name, old, next.token()).await?;
    let is_newer = next.token() > old;
    next.release().await?;
    let overlap = seen.told.map(|told| told.saturating_duration_since(at));
    let holder = match overlap {
        None => {
            let after = human(at.saturating_duration_since(freed));
            format!("the holder kept its lock, and the next had it {after} after the release")
        }
        Some(overlap) if overlap.is_zero() => {
            "the new primary did not know the lock: the holder was told before the next had it"
                .to_owned()
        }
        Some(overlap) => format!(
            "the new primary did not know the lock: two held it for {}",
            human(overlap)
        ),
    };
    let write = match (is_refused, is_newer) {
        (true, _) => "the late write was refused by its token",
        (false, true) => "the late write was taken",
        (false, false) => "the next had no newer token, and the late write was taken",
    };
    let (moved, longest) = (human(seen.moved), human(longest));
    let figures = format!(
        "{} in {moved}; {holder}; {write}; {OTHERS} others took {turns} turns, the longest wait {longest}",
        seen.places
    );
    let is_short = overlap.is_none_or(|overlap| overlap <= TWO_HOLD + SLACK);
    let is_served = at <= freed + LEASE + SLACK && turns > 0;
    Ok(judge(is_refused && is_short && is_served, figures))
}

/// Asks for it, and stays until another is the primary and the holder knows what became of its lock.
async fn watch(ground: &Ground, name: &str, first: &FencedMutexGuard) -> Result<Seen, Failure> {
    let asked = Instant::now();
    let before = ground.one.fail_over(name, true).await?;
    let after = loop {
        // For a moment no server may be the primary.
        if let Ok(now) = ground.one.fail_over(name, false).await
            && now != before
        {
            break now;
        }
        if asked.elapsed() > MOVED {
            let (before, long) = (visible(&before), human(MOVED));
            let why = format!("{before} was still the primary {long} after the failover was begun");
            return Err(Failure::new(Exit::Internal, why));
        }
        sleep(Duration::from_millis(20)).await;
    };
    let moved = asked.elapsed();
    // By then a hold that was forgotten is told lost, at its next renewal at the latest.
    let told = timeout(LEASE, first.lost()).await.is_ok();
    Ok(Seen {
        moved,
        places: format!("{} → {}", visible(&before), visible(&after)),
        told: told.then(Instant::now),
    })
}
