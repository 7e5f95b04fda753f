//! Renews what is due, and tells who has lost.
//!
//! One task per client, no task and no timer per lease. Every hold is on the list at the instant somebody must
//! look at it again: the next renewal, or its end. The exception is a hold on its way to the server for a
//! renewal: the task that carries it brings it back within its patience, whatever the server does; and if its
//! lease could end before that, it is on the list as well, so that its loss is told in time (D9).

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

use crate::{
    backend::{Failure, Renewal},
    client::Core,
    clock::Tick,
    hold::{Hold, Look},
};

/// Names per renewal script. More wins nothing and holds other commands up (performance.md).
const BATCH: usize = 100;

/// Renewal scripts under way at once: one is carried out while the next is on its way. 2 × 100 names keep the
/// server from others for half a millisecond.
const BATCHES_AT_ONCE: usize = 2;

/// Renewals are brought forward by up to this part of their interval, to go out together.
pub(crate) const GATHER: u32 = 50;

/// Where a hold is on the list. Written under the list's lock only; zero: nowhere.
#[derive(Debug, Default)]
pub(crate) struct WatchedAt(AtomicU64);

impl WatchedAt {
    fn replace(&self, at: Option<Tick>) -> Option<Tick> {
        let new = at.map_or(0, Tick::nanos);
        let old = self.0.swap(new, Ordering::Relaxed);
        (old != 0).then(|| Tick::from_nanos(old))
    }
}

/// The list of holds, by the instant at which to look at them.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    list: Mutex<BTreeMap<Key, Arc<Hold>>>,
    /// When the task wakes next. It only ever moves closer until that moment has come, whatever becomes of
    /// the entry that asked for it: so of all the locks that come and go in between, none wakes the task.
    wake_at: AtomicTick,
    earlier: Notify,
    closed: AtomicBool,
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

/// When to look, and at which hold (its address: unique while it is on the list).
type Key = (Tick, usize);

fn key(at: Tick, hold: &Arc<Hold>) -> Key {
    (at, Arc::as_ptr(hold).addr())
}

impl Watchdog {
    /// Puts a hold on the list, or moves it. The hold remembers where it is.
    pub(crate) fn watch(&self, hold: &Arc<Hold>, at: Tick) {
        let mut list = self.list.lock();
        if let Some(old) = hold.watched_at.replace(None) {
            list.remove(&key(old, hold));
        }
        // A hold is ended first and then forgotten, so one that ended meanwhile cannot slip back in here.
        if hold.is_over() {
            return;
        }
        hold.watched_at.replace(Some(at));
        list.insert(key(at, hold), Arc::clone(hold));
        drop(list);
        if self.wake_at.lower(at) {
            self.earlier.notify_one();
        }
    }

    /// Takes a hold off the list: after this it is renewed no more.
    pub(crate) fn forget(&self, hold: &Arc<Hold>) {
        let mut list = self.list.lock();
        if let Some(at) = hold.watched_at.replace(None) {
            list.remove(&key(at, hold));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.list.lock().len()
    }

    /// Takes what is due by `until` off the list. One by one: to split the tree in two counts all of it.
    fn due(&self, until: Tick) -> Vec<(Tick, Arc<Hold>)> {
        let mut list = self.list.lock();
        let mut due = Vec::new();
        while let Some(first) = list.first_entry()
            && first.key().0 <= until
        {
            let ((at, _), hold) = first.remove_entry();
            hold.watched_at.replace(None);
            due.push((at, hold));
        }
        due
    }

    fn next(&self) -> Tick {
        self.list
            .lock()
            .first_key_value()
            .map_or(Tick::MAX, |((at, _), _)| *at)
    }

    /// Ends the task.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.earlier.notify_one();
    }
}

/// The task. Ends when the client does.
pub(crate) async fn run(watchdog: Arc<Watchdog>, core: Weak<Core>) {
    let lanes = Arc::new(Semaphore::new(BATCHES_AT_ONCE));
    loop {
        if watchdog.closed.load(Ordering::Acquire) {
            return;
        }
        let Some(strong) = core.upgrade() else { return };
        let now = strong.clock.now();
        let wake_at = watchdog.wake_at.get();
        if wake_at > now {
            drop(strong); // whoever sleeps keeps no client alive
            if wake_at == Tick::MAX {
                watchdog.earlier.notified().await;
            } else {
                tokio::select! {
                    () = tokio::time::sleep(wake_at.since(now)) => {}
                    () = watchdog.earlier.notified() => {}
                }
            }
            continue;
        }
        // Before looking, so that whoever comes meanwhile is not missed.
        watchdog.wake_at.reset();
        look_after(&strong, &watchdog, &lanes, now);
        watchdog.wake_at.lower(watchdog.next());
    }
}

/// Looks at everything that is due: tells losses, starts renewals. Waits for nothing.
fn look_after(core: &Arc<Core>, watchdog: &Arc<Watchdog>, lanes: &Arc<Semaphore>, now: Tick) {
    let gather = core.config.renew_every(core.config.lease) / GATHER;
    let mut batch = Vec::new();
    for (at, hold) in watchdog.due(now.after(gather)) {
        if at.since(now) > hold.renew_every() / GATHER {
            watchdog.watch(&hold, at); // a short lease: not due yet by its own measure
            continue;
        }
        match hold.look(now) {
            Look::Renew { renew, end } => {
                if let Some(end) = end {
                    watchdog.watch(&hold, end);
                }
                batch.push((hold, renew));
                if batch.len() == BATCH {
                    spawn_renewal(core, lanes, std::mem::take(&mut batch));
                }
            }
            Look::Later(at) => watchdog.watch(&hold, at),
            Look::Over => {}
        }
    }
    if !batch.is_empty() {
        spawn_renewal(core, lanes, batch);
    }
}

type Batch = Vec<(Arc<Hold>, crate::backend::Renew)>;

fn spawn_renewal(core: &Arc<Core>, lanes: &Arc<Semaphore>, batch: Batch) {
    let (strong, lanes) = (Arc::clone(core), Arc::clone(lanes));
    core.spawn(async move { renew(&strong, &lanes, batch).await });
}

/// Sends one batch, in turn with the others, and passes the answers on.
async fn renew(core: &Arc<Core>, lanes: &Semaphore, mut batch: Batch) {
    let Some(patience) = batch.iter().map(|(hold, _)| hold.renewal_patience()).min() else {
        return;
    };
    let lane = tokio::time::timeout(patience, lanes.acquire()).await;
    // Meanwhile some may have been released or handed on under a new id.
    batch.retain(|(hold, renew)| hold.holds_lease(renew.lease));
    let sent = core.clock.now();
    let answer = match lane {
        Ok(_lane) if batch.is_empty() => return,
        Ok(_lane) => {
            let entries = batch.iter().map(|(_, renew)| renew.clone()).collect();
            // Finished in the background after its time, so that the connection learns of its silence.
            let asked = core.finish(core.backend.renew(entries));
            tokio::time::timeout(patience, asked).await
        }
        Err(jammed) => Err(jammed),
    };
    let renewals = match answer.unwrap_or_else(|late| Err(Failure::Ambiguous(Arc::new(late)))) {
        Ok(renewals) => renewals,
        Err(Failure::NotSent(cause) | Failure::Rejected(cause) | Failure::Ambiguous(cause)) => {
            tracing::warn!(
                names = batch.len(),
                cause = &*cause as &dyn std::error::Error,
                "leases not renewed, trying again until they end"
            );
            vec![Renewal::Unknown; batch.len()]
        }
    };
    for ((hold, renew), renewal) in batch.into_iter().zip(renewals) {
        hold.renewed(&renew, renewal, sent);
    }
}
