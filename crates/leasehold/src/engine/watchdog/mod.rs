//! Renews leases that are due, and tells holders of their loss.
//!
//! One task per client, no task and no timer per lease. Every hold is on the list at the instant at which
//! it must be looked at or renewed again:
//!
//! - Most are only to be renewed. They stand in *slots*, together with all that are due at about the same time, and
//!   the batch that renews them is the first to look at them. Holds that are renewed together stay together, in the
//!   order in which they were taken: memory is then read in that order too, here and on the server, and that is
//!   most of the cost of a renewal.
//! - The others are looked at one by one, each at its own instant: leases that end, by themselves or by
//!   `max_hold`, and all whose renewal has failed.
//!
//! A hold on its way to the server is on no list: the task that carries it brings it back within its patience,
//! even if the server does not answer. If its lease could end before that, it is to be looked at then, so that its
//! loss is told in time. For the same reason the holds of a slot whose batch does not come are looked at one by one.

mod list;

use std::{
    collections::BTreeMap,
    mem,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use list::{BATCH, List};
pub(crate) use list::{WatchedAt, slot};

use crate::{
    backend::{Failure, Renew, Renewal},
    callout,
    clock::Tick,
    durations::humane,
    engine::core::Core,
    engine::hold::{Due, Hold, Look, patience},
};

/// All holds of a client that must be looked at or renewed.
#[derive(Debug)]
pub(crate) struct Watchdog {
    list: Mutex<List>,
    /// When the task wakes next. It only ever moves closer until that moment has come, even if the entry that
    /// asked for it goes: so of all the locks that come and go in between, none wakes the task.
    wake_at: AtomicTick,
    earlier: Notify,
    closed: AtomicBool,
    /// One renewal script at a time: a command behind it on the server waits for one only.
    lane: Arc<Semaphore>,
    /// By which part of the allowed time the first renewals of this client come early: 0 to 255.
    early: u8,
}

/// The time of the next wake-up.
#[derive(Debug)]
struct AtomicTick(AtomicU64);

impl Default for AtomicTick {
    fn default() -> Self {
        AtomicTick(AtomicU64::new(Tick::MAX.nanos()))
    }
}

impl AtomicTick {
    fn get(&self) -> Tick {
        Tick::from_nanos(self.0.load(Ordering::SeqCst))
    }

    fn reset(&self) {
        self.0.store(Tick::MAX.nanos(), Ordering::SeqCst);
    }

    /// Moves it closer; `true` if it was later.
    fn lower(&self, to: Tick) -> bool {
        self.0.load(Ordering::Relaxed) > to.nanos()
            && self.0.fetch_min(to.nanos(), Ordering::SeqCst) > to.nanos()
    }
}

impl Default for Watchdog {
    fn default() -> Self {
        Watchdog {
            list: Mutex::default(),
            wake_at: AtomicTick::default(),
            earlier: Notify::new(),
            closed: AtomicBool::new(false),
            lane: Arc::new(Semaphore::new(1)),
            early: fastrand::u8(..),
        }
    }
}

impl Watchdog {
    /// Schedules a look at `hold` at `at`, and not before.
    pub(crate) fn look_at(&self, hold: &Arc<Hold>, at: Tick) {
        let mut list = self.list.lock();
        list.take_off(hold);
        // A hold is ended first and then forgotten, so one that ended meanwhile cannot slip back in here.
        if hold.is_over() {
            return;
        }
        list.put_alone(hold, at);
        drop(list);
        self.wake(at);
    }

    /// Schedules the renewals of a hold, about one in this interval, for the first time.
    pub(crate) fn renew(&self, hold: &Arc<Hold>, every: Duration, sent: Tick) {
        let at = slot(sent, every, self.early);
        self.put(std::iter::once(Arc::clone(hold)), every, at);
    }

    /// And again those that were renewed together.
    fn renew_again(&self, holds: Vec<Arc<Hold>>, every: Duration, sent: Tick) {
        self.put(
            holds.into_iter(),
            every,
            slot(sent, every, fastrand::u8(..)),
        );
    }

    fn put(&self, holds: impl Iterator<Item = Arc<Hold>>, every: Duration, at: Tick) {
        let mut list = self.list.lock();
        for hold in holds {
            list.take_off(&hold);
            if hold.is_over() {
                continue; // as above
            }
            list.put_in_slot(hold, every, at);
        }
        drop(list);
        self.wake(at);
    }

    /// Takes a hold off the list: after this it is renewed no more.
    pub(crate) fn forget(&self, hold: &Arc<Hold>) {
        self.list.lock().take_off(hold);
    }

    pub(crate) fn len(&self) -> usize {
        self.list.lock().len()
    }

    fn wake(&self, at: Tick) {
        if self.wake_at.lower(at) {
            self.earlier.notify_one();
        }
    }

    /// Ends the task.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.earlier.notify_one();
    }
}

/// The right to have a renewal under way.
struct Turn {
    lane: Option<OwnedSemaphorePermit>,
    watchdog: Arc<Watchdog>,
}

impl Watchdog {
    fn turn(self: &Arc<Self>, lane: OwnedSemaphorePermit) -> Turn {
        Turn {
            lane: Some(lane),
            watchdog: Arc::clone(self),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.lane = None;
        // Holds that became due in between go next.
        self.watchdog.wake(Tick::from_nanos(0));
    }
}

/// The task. Ends when the client does.
pub(crate) async fn run(watchdog: Arc<Watchdog>, core: Weak<Core>) {
    loop {
        if watchdog.closed.load(Ordering::Acquire) {
            return;
        }
        let Some(core) = core.upgrade() else { return };
        let now = core.clock.now();
        let wake_at = watchdog.wake_at.get();
        if wake_at > now {
            let nap = core.sleep(wake_at.since(now));
            if wake_at != Tick::MAX {
                core.backend.prepare();
            }
            drop(core); // the sleeping task keeps no client alive
            if wake_at == Tick::MAX {
                watchdog.earlier.notified().await;
            } else {
                tokio::select! {
                    () = nap => {}
                    () = watchdog.earlier.notified() => {}
                }
            }
            continue;
        }
        // Before looking, so that a hold that comes meanwhile is not missed.
        watchdog.wake_at.reset();
        look_at_each(&core, &watchdog, now);
        let lane = Arc::clone(&watchdog.lane).try_acquire_owned();
        let due = lane.is_ok().then(|| watchdog.list.lock().due_batch(now));
        if let (Ok(lane), Some(Some(first))) = (lane, due) {
            let (strong, turn) = (Arc::clone(&core), watchdog.turn(lane));
            core.spawn(async move { renew_due(&strong, &turn, first).await });
        }
        let under_way = watchdog.lane.available_permits() == 0;
        let next = watchdog.list.lock().next(under_way);
        watchdog.wake_at.lower(next);
    }
}

/// Looks at the holds whose time has come: tells losses, starts renewals. Waits for nothing.
fn look_at_each(core: &Arc<Core>, watchdog: &Arc<Watchdog>, now: Tick) {
    let due = watchdog.list.lock().due_alone(now);
    let mut batch = Vec::new();
    for hold in due {
        match hold.look(now) {
            Look::Ask { end } => {
                if let Some(end) = end {
                    watchdog.look_at(&hold, end);
                }
                batch.push(hold);
                if batch.len() == BATCH {
                    renew_in_turn(core, watchdog, mem::take(&mut batch));
                }
            }
            Look::Later(at) => watchdog.look_at(&hold, at),
            Look::Over => {}
        }
    }
    if !batch.is_empty() {
        renew_in_turn(core, watchdog, batch);
    }
}

/// Renews one batch as soon as no other is under way. If that takes too long it counts as a failure.
fn renew_in_turn(core: &Arc<Core>, watchdog: &Arc<Watchdog>, batch: Vec<Arc<Hold>>) {
    let (strong, watchdog) = (Arc::clone(core), Arc::clone(watchdog));
    core.spawn(async move {
        let every = batch.iter().map(|hold| hold.ask_every()).min();
        let every = every.unwrap_or_default();
        let patience = patience(every, strong.config.operation_timeout);
        let lane = Arc::clone(&watchdog.lane).acquire_owned();
        match strong.within(patience, lane).await {
            Some(Ok(lane)) => {
                let _turn = watchdog.turn(lane);
                renew(&strong, batch, every).await;
            }
            Some(Err(_)) => {} // the lane is never closed
            None => {
                let now = strong.clock.now();
                let due = batch
                    .into_iter()
                    .filter_map(|hold| Some((hold.due(now)?, hold)));
                failed(
                    due.collect(),
                    &Failure::NotSent(Arc::new(Late(patience))),
                    now,
                );
            }
        }
    });
}

/// Renews all that are due, one batch after the other.
async fn renew_due(core: &Arc<Core>, turn: &Turn, first: (Vec<Arc<Hold>>, Duration)) {
    let mut due = Some(first);
    while let Some((batch, every)) = due {
        renew(core, batch, every).await;
        due = turn.watchdog.list.lock().due_batch(core.clock.now());
    }
}

/// Renews one batch, and puts it back on the list.
async fn renew(core: &Arc<Core>, batch: Vec<Arc<Hold>>, every: Duration) {
    let patience = patience(every, core.config.operation_timeout);
    let sent = core.clock.now();
    // Some may have been released meanwhile.
    let due = batch
        .into_iter()
        .filter_map(|hold| Some((hold.due(sent)?, hold)));
    let due: Vec<(Due, Arc<Hold>)> = due.collect();
    if due.is_empty() {
        return;
    }
    for (Due { end, .. }, hold) in &due {
        if let Some(end) = end {
            core.watchdog.look_at(hold, *end);
        }
    }
    let asked: Vec<Renew<'_>> = due.iter().map(|(due, hold)| due.renew(hold)).collect();
    // Finished in the background after its time, so that the connection learns of its silence.
    let answer = core.finish(core.backend.renew(&asked));
    drop(asked);
    let answer = core.within(patience, answer).await;
    let answer = answer.unwrap_or_else(|| Err(Failure::Ambiguous(Arc::new(Late(patience)))));
    let renewals = match answer {
        Ok(renewals) => renewals,
        Err(failure) => return failed(due, &failure, sent),
    };
    let mut again: BTreeMap<Duration, Vec<Arc<Hold>>> = BTreeMap::new();
    let room = due.len();
    for ((due, hold), renewal) in due.into_iter().zip(renewals) {
        if let Some(every) = hold.renewed(&due, renewal, sent) {
            let together = again
                .entry(every)
                .or_insert_with(|| Vec::with_capacity(room));
            together.push(hold);
        }
    }
    for (every, holds) in again {
        core.watchdog.renew_again(holds, every, sent);
    }
}

#[derive(Debug, thiserror::Error)]
#[error("no answer within {}", humane(*.0))]
struct Late(Duration);

/// A batch that has no answer: each is tried again by itself until its lease ends.
fn failed(due: Vec<(Due, Arc<Hold>)>, failure: &Failure, sent: Tick) {
    callout::quietly(|| {
        tracing::warn!(
            target: "leasehold",
            names = due.len(),
            cause = &**failure.cause() as &dyn std::error::Error,
            "leases not renewed, trying again until they end"
        );
    });
    for (due, hold) in due {
        hold.renewed(&due, Renewal::Unknown, sent);
    }
}
