//! Which holds must be looked at or renewed, and when. A data structure: no task, no clock and no lock of its own.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{clock::Tick, engine::hold::Hold};

/// Names per renewal script. More wins nothing and holds other commands up (performance.md): these keep the
/// server for less than half a millisecond.
pub(super) const BATCH: usize = 200;

/// A renewal comes early by up to this part of its interval, so that clients that began together do not stay
/// together.
const EARLY: u32 = 50;

/// A slot is as long as this part of the renewal interval, or a little less.
const SLOTS: u64 = 64;

/// Where a hold is on the list. Written under the list's lock only.
#[derive(Debug, Default)]
pub(crate) struct WatchedAt {
    /// Zero: nowhere.
    at: AtomicU64,
    /// In the slot; [`ALONE`]: not in a slot.
    index: AtomicU32,
}

const ALONE: u32 = u32::MAX;

impl WatchedAt {
    fn set(&self, at: Tick, index: usize) {
        self.at.store(at.nanos(), Ordering::Relaxed);
        // There is no room in memory for 2^32 holds.
        let index = u32::try_from(index).unwrap_or(ALONE);
        self.index.store(index, Ordering::Relaxed);
    }

    fn clear(&self) {
        self.at.store(0, Ordering::Relaxed);
    }

    fn take(&self) -> Option<(Tick, u32)> {
        let at = self.at.swap(0, Ordering::Relaxed);
        (at != 0).then(|| (Tick::from_nanos(at), self.index.load(Ordering::Relaxed)))
    }
}

/// The list.
#[derive(Debug, Default)]
pub(super) struct List {
    slots: BTreeMap<Tick, Slot>,
    looks: BTreeMap<Alone, Arc<Hold>>,
}

/// When to look, and at which hold (its address: unique while it is on the list).
type Alone = (Tick, usize);

fn alone(at: Tick, hold: &Arc<Hold>) -> Alone {
    (at, Arc::as_ptr(hold).addr())
}

/// The holds to renew at the same time.
#[derive(Debug)]
struct Slot {
    holds: Vec<Arc<Hold>>,
    /// The shortest renewal interval among them.
    every: Duration,
}

impl List {
    pub(super) fn len(&self) -> usize {
        let in_slots: usize = self.slots.values().map(|slot| slot.holds.len()).sum();
        in_slots + self.looks.len()
    }

    pub(super) fn take_off(&mut self, hold: &Arc<Hold>) {
        let Some((at, index)) = hold.watched_at.take() else {
            return;
        };
        if index == ALONE {
            self.looks.remove(&alone(at, hold));
        } else if let Some(slot) = self.slots.get_mut(&at) {
            let index = index as usize;
            slot.holds.swap_remove(index);
            if let Some(moved) = slot.holds.get(index) {
                moved.watched_at.set(at, index);
            }
        }
    }

    /// Puts a hold among those to be looked at.
    pub(super) fn put_alone(&mut self, hold: &Arc<Hold>, at: Tick) {
        hold.watched_at.set(at, ALONE as usize);
        self.looks.insert(alone(at, hold), Arc::clone(hold));
    }

    /// Puts a hold among those to be renewed, once in this interval.
    pub(super) fn put_in_slot(&mut self, hold: Arc<Hold>, every: Duration, at: Tick) {
        let slot = self.slots.entry(at).or_insert_with(|| Slot {
            holds: Vec::new(),
            every,
        });
        slot.every = slot.every.min(every);
        hold.watched_at.set(at, slot.holds.len());
        slot.holds.push(hold);
    }

    /// The holds to look at one by one, if they are due.
    pub(super) fn due_alone(&mut self, now: Tick) -> Vec<Arc<Hold>> {
        let mut due = Vec::new();
        while let Some(first) = self.looks.first_entry()
            && first.key().0 <= now
        {
            due.push(first.remove());
        }
        // Slots whose turn to be renewed has not come in time.
        let jammed: Vec<Tick> = self
            .slots
            .range(..=now)
            .filter(|&(&at, slot)| slot.jammed_at(at) <= now)
            .map(|(&at, _)| at)
            .collect();
        for at in jammed {
            due.extend(self.slots.remove(&at).into_iter().flat_map(|s| s.holds));
        }
        for hold in &due {
            hold.watched_at.clear();
        }
        due
    }

    /// A batch of holds to renew, if it is due, and the shortest interval in it.
    pub(super) fn due_batch(&mut self, now: Tick) -> Option<(Vec<Arc<Hold>>, Duration)> {
        let mut batch = Vec::new();
        let mut every = Duration::MAX;
        while let Some(mut first) = self.slots.first_entry()
            && *first.key() <= now
            && batch.len() < BATCH
        {
            let slot = first.get_mut();
            every = every.min(slot.every);
            let left = slot.holds.len().saturating_sub(BATCH - batch.len());
            batch.extend(slot.holds.drain(left..));
            if left == 0 {
                first.remove();
            }
        }
        for hold in &batch {
            hold.watched_at.clear();
        }
        (!batch.is_empty()).then_some((batch, every))
    }

    /// When the watchdog is needed next. While a batch is under way, the task that carries it sees to the slots.
    pub(super) fn next(&mut self, under_way: bool) -> Tick {
        while let Some(first) = self.slots.first_entry()
            && first.get().holds.is_empty()
        {
            first.remove();
        }
        let look = self.looks.first_key_value().map(|((at, _), _)| *at);
        let slot = if under_way {
            let jams = self.slots.iter().map(|(&at, slot)| slot.jammed_at(at));
            jams.min()
        } else {
            self.slots.first_key_value().map(|(at, _)| *at)
        };
        look.into_iter().chain(slot).min().unwrap_or(Tick::MAX)
    }
}

impl Slot {
    /// If no batch has taken it by then, something is wrong. Two thirds of a lease or more were left at `at`.
    fn jammed_at(&self, at: Tick) -> Tick {
        at.after(self.every / 3)
    }
}

/// When to renew, or to verify, a lease that was asked for at `sent`: at the beginning of a slot, so that one script does it
/// for all leases in it.
pub(crate) fn slot(sent: Tick, every: Duration, early: u8) -> Tick {
    let at = sent.after(every.saturating_sub(every / EARLY * u32::from(early) / 256));
    let length = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX) / SLOTS;
    // A power of two, so that intervals of different lengths share their slots.
    let length = 1 << length.max(1).ilog2();
    Tick::from_nanos(at.nanos() & !(length - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Never after the interval, for a lease has room for two failures only; and hardly before it, for each costs.
    #[test]
    fn a_renewal_comes_a_little_early_and_never_late() {
        let sent = Tick::from_nanos(1_234_567_890_123);
        for every in [1, 3, 100, 9_999, 10_000, 10_000_000_000].map(Duration::from_millis) {
            for early in [0, 1, 100, u8::MAX] {
                let after = slot(sent, every, early).since(sent);
                assert!(after <= every, "{after:?} for {every:?}");
                let most = every / EARLY + every / 64;
                assert!(
                    after >= every.saturating_sub(most),
                    "{after:?} for {every:?}"
                );
            }
        }
    }

    #[test]
    fn leases_of_much_the_same_length_share_their_slots() {
        let sent = Tick::from_nanos(5_000_000_000);
        let slots = (10_000..10_100).map(|ms| slot(sent, Duration::from_millis(ms), 0));
        let slots: std::collections::BTreeSet<Tick> = slots.collect();
        assert!(slots.len() <= 2, "{slots:?}");
    }
}
