//! Renews leases that are due, and tells holders of their loss.
//!
//! Each client has one task for all its leases: no task and no timer per lease. Every hold is on the list at the instant at which
//! it must be checked or renewed again:
//!
//! - Most are only to be renewed. They stand in *slots*, together with all that are due at about the same time, and
//!   the batch that renews them is the first to check them. Holds that are renewed together stay together, in the
//!   order in which they were taken: memory is then read in that order too, here and on the server, and that is
//!   most of the cost of a renewal.
//! - The others are checked one by one, each at its own instant: leases that end, by themselves or by
//!   `max_hold`, and all whose renewal has failed.
//!
//! A hold on its way to the server is on no list: the task that carries it brings it back within its patience,
//! even if the server does not answer. If its lease could end before that, it is to be checked then, so that its
//! loss is told in time. For the same reason the holds of a slot whose batch does not come are checked one by one.
//!
//! When the server may have forgotten what it was told (`restarts.rs`), all holds are verified at once, in the same batches, before any that
//! are due. A hold that was not confirmed since then, and is not ours there, is lost by that.
//!
//! It also writes the label of the client on the server (`label.rs`).
//!
//! As many batches are under way as the time needs (`List::wanted`): one on a server that is near, several on one that
//! is far away, for each batch takes a whole round trip.

mod durable;
mod failed;
mod hash_slots;
pub(crate) mod label;
pub(crate) mod list;
pub(crate) mod restarts;
mod shards;
pub(crate) mod wake_at;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    backend::{Confirmation, Failure, Renew, Renewal, Restarted},
    clock::Tick,
    durability::Durability,
    durations::humane,
    engine::env::Env,
    engine::hold::watchdog::hash_slots::turn_of,
    engine::hold::watchdog::label::Label,
    engine::hold::watchdog::list::{List, UNDER_WAY_MOST, slot},
    engine::hold::watchdog::restarts::Restarts,
    engine::hold::watchdog::shards::{SilentShards, TURN_MOST, by_shard},
    engine::hold::watchdog::wake_at::AtomicTick,
    engine::hold::{Due, Hold, Onward, WatchdogCheck},
    outage::Seldom,
    user_callback,
};

/// All holds of a client that must be checked or renewed.
#[derive(Debug)]
pub(crate) struct Watchdog {
    list: Mutex<List<Hold>>,
    /// When the task wakes next. It only ever moves closer until that moment has come, even if the entry that
    /// asked for it goes: so of all the locks that come and go in between, none wakes the task.
    wake_at: AtomicTick,
    earlier: Notify,
    closed: AtomicBool,
    /// How many batches are under way.
    under_way: AtomicUsize,
    /// How long the last batch took to and fro, in nanoseconds; zero if it had no answer. Then one at a time is tried.
    round_trip: AtomicU64,
    silent: SilentShards,
    /// When a user was last told that renewals fail, or come late.
    warned: Seldom,
    /// By which part of the allowed time the first renewals of this client come early: 0 to 255.
    early: u8,
    label: Arc<Label>,
    pub(crate) restarts: Restarts,
}

impl Default for Watchdog {
    fn default() -> Self {
        Watchdog {
            list: Mutex::default(),
            wake_at: AtomicTick::default(),
            earlier: Notify::new(),
            closed: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            round_trip: AtomicU64::new(0),
            silent: SilentShards::default(),
            warned: Seldom::default(),
            early: fastrand::u8(..),
            label: Arc::default(),
            restarts: Restarts::default(),
        }
    }
}

impl Watchdog {
    /// Schedules a check of `hold` at `at`, and not before.
    pub(crate) fn check_at(&self, hold: &Arc<Hold>, at: Tick) {
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
        // The same `early` for all holds of this client: leases that were taken at about the same time fall into one slot, and into one batch.
        let at = slot(sent, every, self.early);
        self.put(std::iter::once((Arc::clone(hold), at)), every);
    }

    /// And again those that were renewed together, each with those of its hash slot.
    fn renew_again(&self, env: &Env, holds: Vec<Arc<Hold>>, every: Duration, sent: Tick) {
        // Drawn anew for each batch: its holds stay together, and two clients that met at one instant part again.
        let together = slot(sent, every, fastrand::u8(..));
        let with_its_turn = |hold: Arc<Hold>| {
            let hash_slot = env.backend.hash_slot(hold.id());
            let at = hash_slot.map(|hash_slot| turn_of(hash_slot, sent, every, self.early));
            (hold, at.unwrap_or(together))
        };
        self.put(holds.into_iter().map(with_its_turn), every);
    }

    fn put(&self, holds: impl Iterator<Item = (Arc<Hold>, Tick)>, every: Duration) {
        let (mut list, mut first) = (self.list.lock(), Tick::MAX);
        for (hold, at) in holds {
            list.take_off(&hold);
            if hold.is_over() {
                continue; // as above
            }
            first = first.min(at);
            list.put_in_slot(hold, every, at);
        }
        drop(list);
        self.wake(first);
    }

    /// Takes a hold off the list: after this it is renewed no more.
    pub(crate) fn forget(&self, hold: &Arc<Hold>) {
        self.list.lock().take_off(hold);
    }

    pub(crate) fn len(&self) -> usize {
        self.list.lock().len()
    }

    /// A lease of this length begins, or a wait (zero): the server is to have the label of this client meanwhile.
    pub(crate) fn needs_label(&self, lease: Duration) {
        if self.label.is_short_of(lease) {
            self.wake_up();
        }
    }

    /// The server may have forgotten what it was told: all holds are verified, at once.
    pub(crate) fn note_restart(&self, now: Tick, restarted: Restarted) {
        self.restarts.begin(now, restarted);
        self.wake_up();
    }

    /// Has the task check now. If there is anything to renew, it also sees to a connection.
    pub(crate) fn wake_up(&self) {
        self.wake(Tick::from_nanos(0));
    }

    fn wake(&self, at: Tick) {
        // Bug 9: only an earlier time wakes the task, or each lock that comes and goes would.
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

/// A batch that is under way.
struct Turn(Arc<Watchdog>);

impl Watchdog {
    fn turn(self: &Arc<Self>) -> Turn {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        Turn(Arc::clone(self))
    }

    fn round_trip(&self) -> Duration {
        Duration::from_nanos(self.round_trip.load(Ordering::Relaxed))
    }

    /// A batch has its answer after this time; zero: it has none.
    fn took(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.round_trip.store(nanos, Ordering::Relaxed);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
        // Holds that became due in between go next.
        self.0.wake_up();
    }
}

/// The task. Ends when the client does. `is_busy`: whether the client holds a lock, or waits for one.
pub(crate) async fn run(
    watchdog: Arc<Watchdog>,
    env: Weak<Env>,
    is_busy: impl Fn() -> bool + Send + Sync,
) {
    loop {
        if watchdog.closed.load(Ordering::Acquire) {
            // A hold that ends is taken off the list, but not out of the asks.
            // They would keep the client alive.
            let asks = watchdog.list.lock().take_asks();
            drop(asks);
            return;
        }
        let Some(env) = env.upgrade() else { return };
        let now = env.clock.now();
        let wake_at = watchdog.wake_at.get();
        if wake_at > now {
            let nap = env.sleep(wake_at.since(now));
            if wake_at != Tick::MAX {
                // Leases are due after this nap: the connection is made meanwhile, not when they are.
                env.backend.prepare();
            }
            drop(env); // the sleeping task keeps no client alive
            // `notify_one` leaves a permit: a wake-up since the look above ends either wait at once.
            if wake_at == Tick::MAX {
                watchdog.earlier.notified().await;
            } else {
                tokio::select! {
                    biased; // a simulation must be able to replay it
                    () = watchdog.earlier.notified() => {}
                    () = nap => {}
                }
            }
            continue;
        }
        // Before checking, so that a hold that comes meanwhile is not missed.
        watchdog.wake_at.reset();
        // The checks come first: the asks that they make leave with the batches of this very round.
        check_each(&watchdog, now);
        send_due(&env, &watchdog, now);
        label::write_if_due(&env, &watchdog.label, now, &is_busy);
        let next = watchdog.list.lock().next(now);
        // Not a plain store: a hold that came since the `reset` may have asked for an earlier time.
        watchdog.wake_at.lower(next.min(watchdog.label.next()));
    }
}

/// Checks the holds whose time has come: tells losses, and puts those to be renewed among the asks. Waits for nothing.
fn check_each(watchdog: &Arc<Watchdog>, now: Tick) {
    if watchdog.restarts.has_begun() {
        // Holds under way are on no list. Their answers are from before the restart, so they are asked about again.
        let all = watchdog.list.lock().take_all();
        for hold in all {
            if let Some((every, end)) = hold.verification(now) {
                watchdog.check_at(&hold, end);
                // A hold that has ended since the line before stays among the asks alone, and `Hold::due` leaves it out of its batch.
                watchdog.list.lock().put_among_asks(hold, every, now);
            }
        }
    }
    let (due, jammed) = watchdog.list.lock().due_alone(now);
    if jammed > 0 {
        watchdog.say_late(jammed, now);
    }
    for hold in due {
        match hold.watchdog_check(now) {
            // Listed twice on purpose: if no batch takes the ask in time, the check at the end of the lease tells the loss.
            WatchdogCheck::Ask { every, end } => {
                watchdog.check_at(&hold, end);
                watchdog.list.lock().put_among_asks(hold, every, now);
            }
            WatchdogCheck::Later(at) => watchdog.check_at(&hold, at),
            WatchdogCheck::Over => {}
        }
    }
}

/// Sends as many batches of those that are due as the time needs.
fn send_due(env: &Arc<Env>, watchdog: &Arc<Watchdog>, now: Tick) {
    // Counted before the first batch is taken: so many must be under way at once for all that is due now.
    let wanted = watchdog.list.lock().wanted(now, watchdog.round_trip());
    while watchdog.under_way.load(Ordering::Relaxed) < wanted {
        let Some(batch) = watchdog.list.lock().due_batch(now) else {
            return;
        };
        let shard = |hold: &Arc<Hold>| env.backend.shard(hold.id());
        for (shard, batch) in by_shard(batch, shard) {
            let (strong, watchdog) = (Arc::clone(env), Arc::clone(watchdog));
            // A batch for a server that was silent takes no turn, and so delays no batch for the others.
            let turn = (!watchdog.silent.has(shard)).then(|| watchdog.turn());
            env.spawn(async move {
                renew(
                    &strong,
                    &watchdog,
                    batch,
                    Durability::Primary,
                    (shard, turn),
                )
                .await;
            });
        }
    }
}

/// Renews one batch, and puts it back on the list.
async fn renew(
    env: &Arc<Env>,
    watchdog: &Arc<Watchdog>,
    batch: Vec<Arc<Hold>>,
    policy: Durability,
    (shard, mut turn): (Option<u32>, Option<Turn>),
) {
    let sent = env.clock.now();
    // Some may have been released meanwhile.
    let due = batch
        .into_iter()
        .filter_map(|hold| Some((hold.due(sent, policy)?, hold)));
    let due: Vec<(Due, Arc<Hold>)> = due.collect();
    if due.is_empty() {
        return;
    }
    for (Due { end, .. }, hold) in &due {
        if let Some(end) = end {
            watchdog.check_at(hold, *end);
        }
    }
    let asked: Arc<[Renew]> = due.iter().map(|(due, hold)| due.renew(hold)).collect();
    // Finished in the background after its time, so that the connection learns of its silence.
    let renewing = durable::renewals(env, asked, policy);
    let mut answer = env.finish(renewing);
    // Each hold has a patience of its own: one with a short lease is asked about again while those with longer ones wait on. An answer
    // that comes then is still one to its request (B1).
    let mut waited = Duration::ZERO;
    // An acknowledgement says nothing of the way to the server.
    let took = |time| {
        if policy.is_primary() {
            watchdog.took(time);
        }
    };
    let mut early = None;
    if let Some(shard) = shard {
        early = env.within(TURN_MOST, &mut answer).await;
        watchdog.silent.note(shard, early.is_none());
        if early.is_none() {
            // The others' batches are not to wait for this server.
            turn.take();
        }
    }
    let answer = loop {
        if let Some(early) = early.take() {
            break early;
        }
        let patiences = due.iter().map(|(due, _)| due.patience);
        let Some(patience) = patiences.filter(|patience| *patience > waited).min() else {
            took(Duration::ZERO);
            drop(turn);
            // Weak from here on: the wait may have no end, and is to keep no hold, and so no queue, alive (L3).
            let due = due
                .into_iter()
                .map(|(due, hold)| (due, Arc::downgrade(&hold)));
            return failed::late(due.collect(), answer, sent).await;
        };
        let left = sent.after(patience).since(env.clock.now());
        if let Some(answer) = env.within(left, &mut answer).await {
            break answer;
        }
        waited = patience;
        let late = Failure::Ambiguous(Arc::new(failed::Late(patience)));
        watchdog.failed(env, &due, &late, sent, |its| its == patience);
    };
    let (renewals, acknowledged) = match answer {
        Ok(said) => said,
        Err(failure) => {
            took(Duration::ZERO);
            return watchdog.failed(env, &due, &failure, sent, |its| its > waited);
        }
    };
    took(env.clock.now().since(sent));
    if let Some(shard) = shard {
        // A late answer is a sign of life: the next batch for this server takes a turn again.
        watchdog.silent.note(shard, false);
    }
    carry_on(env, watchdog, due, (renewals, acknowledged), sent);
}

/// Puts the holds that are ours back on the list, or has them acknowledged.
fn carry_on(
    env: &Arc<Env>,
    watchdog: &Arc<Watchdog>,
    due: Vec<(Due, Arc<Hold>)>,
    (renewals, acknowledged): (Vec<Renewal>, Vec<Confirmation>),
    sent: Tick,
) {
    let mut again: BTreeMap<Duration, Vec<Arc<Hold>>> = BTreeMap::new();
    let mut ours = Vec::new();
    let room = due.len();
    let mut acknowledged = acknowledged.iter();
    for ((due, hold), renewal) in due.into_iter().zip(renewals) {
        let said = acknowledged.next();
        if let Some(said) = said.filter(|_| !hold.is_from_before(sent)) {
            hold.note_acknowledged(said);
        }
        match hold.renewed(&due, renewal, sent) {
            Some(Onward::Again(every)) => {
                let together = again
                    .entry(every)
                    .or_insert_with(|| Vec::with_capacity(room));
                together.push(hold);
            }
            Some(Onward::Acknowledged) => ours.push(hold),
            None => {}
        }
    }
    // Counted from the send, as belief is: an answer that took long does not put the next renewal off.
    for (every, holds) in again {
        watchdog.renew_again(env, holds, every, sent);
    }
    durable::go_on(env, watchdog, ours);
}

impl Watchdog {
    /// As much is under way as may be, and holds have waited in vain for their turn: a user must do something about it.
    fn say_late(&self, names: usize, now: Tick) {
        let under_way = self.under_way.load(Ordering::Relaxed);
        if under_way == UNDER_WAY_MOST && self.warned.may_warn(now) {
            let round_trip = self.round_trip();
            user_callback::catch_panic(|| {
                tracing::warn!(
                    target: "leasehold",
                    names,
                    round_trip = %humane(round_trip),
                    "leases cannot be renewed in time: take longer ones, hold fewer names per client, or use a server that is nearer, or less busy"
                );
            });
        }
    }
}
