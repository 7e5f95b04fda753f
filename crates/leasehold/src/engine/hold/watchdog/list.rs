//! Which holds must be checked or renewed, and when. A data structure: no task, no clock and no lock of its own.

use std::{
    collections::{BTreeMap, btree_map::OccupiedEntry},
    mem,
    ops::Bound::{Excluded, Unbounded},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{clock::Tick, owner::LeaseId};

/// The work of one renewal script, in names; a permit counts as one, and a hold is never divided. More wins nothing and
/// holds other commands up (performance.md): this keeps the server for half a millisecond.
const BATCH: usize = 200;

/// So many batches are under way at most.
pub(super) const UNDER_WAY_MOST: usize = 64;

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

/// An entry of the list.
pub(crate) trait Watched {
    fn watched_at(&self) -> &WatchedAt;
    fn lease(&self) -> LeaseId;
    /// The cost of its renewal to the server, in names.
    fn work(&self) -> usize;
}

/// The list.
#[derive(Debug)]
pub(super) struct List<H> {
    slots: BTreeMap<Tick, Slot<H>>,
    checks: BTreeMap<Alone, Arc<H>>,
    /// Holds that were checked, and are to be asked about since then. Each is also among `checks`, at its end.
    asks: BTreeMap<Tick, Slot<H>>,
}

/// When to check, and which hold. In the same order each time: a simulation must be able to replay it.
type Alone = (Tick, LeaseId);

fn alone(at: Tick, hold: &impl Watched) -> Alone {
    (at, hold.lease())
}

/// The holds to renew at the same time.
#[derive(Debug)]
struct Slot<H> {
    holds: Vec<Arc<H>>,
    /// The shortest renewal interval among them.
    every: Duration,
    /// The cost of renewing them all.
    work: usize,
}

impl<H> Default for List<H> {
    fn default() -> Self {
        List {
            slots: BTreeMap::new(),
            checks: BTreeMap::new(),
            asks: BTreeMap::new(),
        }
    }
}

impl<H: Watched> List<H> {
    pub(super) fn len(&self) -> usize {
        let in_slots: usize = self.slots.values().map(|slot| slot.holds.len()).sum();
        in_slots + self.checks.len()
    }

    pub(super) fn take_off(&mut self, hold: &Arc<H>) {
        let Some((at, index)) = hold.watched_at().take() else {
            return;
        };
        // Not out of the asks, which keep no place of their own in a hold: one that is over is left out of its batch (`Hold::due`).
        if index == ALONE {
            self.checks.remove(&alone(at, &**hold));
        } else if let Some(slot) = self.slots.get_mut(&at) {
            let index = index as usize;
            // A slot that is empty after this stays until `next` finds it: another lock may want the same before.
            slot.holds.swap_remove(index);
            slot.work -= hold.work();
            if let Some(moved) = slot.holds.get(index) {
                moved.watched_at().set(at, index);
            }
        }
    }

    /// Puts a hold among those to be checked.
    pub(super) fn put_alone(&mut self, hold: &Arc<H>, at: Tick) {
        hold.watched_at().set(at, ALONE as usize);
        self.checks.insert(alone(at, &**hold), Arc::clone(hold));
    }

    /// Puts a hold among those to be renewed, once in this interval.
    pub(super) fn put_in_slot(&mut self, hold: Arc<H>, every: Duration, at: Tick) {
        let slot = self.slots.entry(at).or_default();
        hold.watched_at().set(at, slot.holds.len());
        slot.push(hold, every);
    }

    /// Puts a hold among those to be asked about, once in this interval.
    pub(super) fn put_among_asks(&mut self, hold: Arc<H>, every: Duration, now: Tick) {
        self.asks.entry(now).or_default().push(hold, every);
    }

    /// Takes off those that wait to be asked about.
    pub(super) fn take_asks(&mut self) -> Vec<Arc<H>> {
        let asks = mem::take(&mut self.asks).into_values();
        asks.flat_map(|slot| slot.holds).collect()
    }

    /// Takes off all that are not under way.
    pub(super) fn take_all(&mut self) -> Vec<Arc<H>> {
        // Each of these is among `checks`, too.
        drop(self.take_asks());
        let slots = mem::take(&mut self.slots).into_values();
        let mut all: Vec<_> = slots.flat_map(|slot| slot.holds).collect();
        all.extend(mem::take(&mut self.checks).into_values());
        for hold in &all {
            hold.watched_at().clear();
        }
        all
    }

    /// The holds to check one by one, if they are due, and how many of them waited for a batch in vain.
    pub(super) fn due_alone(&mut self, now: Tick) -> (Vec<Arc<H>>, usize) {
        let mut due = Vec::new();
        while let Some(first) = self.checks.first_entry()
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
        let alone = due.len();
        for at in jammed {
            due.extend(self.slots.remove(&at).into_iter().flat_map(|s| s.holds));
        }
        for hold in &due {
            hold.watched_at().clear();
        }
        let jammed = due.len() - alone;
        (due, jammed)
    }

    /// A batch of holds to renew, if it is due.
    pub(super) fn due_batch(&mut self, now: Tick) -> Option<Vec<Arc<H>>> {
        let mut batch = Batch {
            holds: Vec::new(),
            work: 0,
        };
        // The asks come first: among them are holds in doubt, and those whose renewal had no answer, which may be near their ends.
        while let Some(first) = self.asks.first_entry()
            && batch.fill_from(first)
        {}
        let asked = batch.holds.len();
        while let Some(first) = self.slots.first_entry()
            && *first.key() <= now
            && batch.fill_from(first)
        {}
        // Holds from `asks` also stand among `checks`, at their ends, and stay there.
        for hold in &batch.holds[asked..] {
            hold.watched_at().clear();
        }
        (!batch.holds.is_empty()).then_some(batch.holds)
    }

    /// How many batches must be under way for all that is due to be sent in time. A single one is enough on a server that is
    /// near, so that a command behind it there waits for one script only.
    pub(super) fn wanted(&self, now: Tick, round_trip: Duration) -> usize {
        let due = self.asks.iter().chain(self.slots.range(..=now));
        let names = due.map(|(&at, slot)| {
            // At least a round trip: nothing that is sent now is answered sooner.
            let left = slot.late_at(at).since(now).max(round_trip);
            slot.work as u128 * round_trip.as_nanos() / left.as_nanos().max(1)
        });
        let batches = names.sum::<u128>().div_ceil(BATCH as u128);
        usize::try_from(batches).map_or(UNDER_WAY_MOST, |batches| batches.clamp(1, UNDER_WAY_MOST))
    }

    /// When the watchdog is needed next. Each batch that ends wakes it as well, for what is due by then.
    pub(super) fn next(&mut self, now: Tick) -> Tick {
        while let Some(first) = self.slots.first_entry()
            && first.get().holds.is_empty()
        {
            first.remove();
        }
        let check = self.checks.first_key_value().map(|((at, _), _)| *at);
        let due = self.asks.iter().chain(self.slots.range(..=now));
        // At the first more batches may be wanted, at the second the holds are checked one by one.
        let times = due.flat_map(|(&at, slot)| [slot.late_at(at), slot.jammed_at(at)]);
        let coming = self.slots.range((Excluded(now), Unbounded)).next();
        let times = times
            .filter(|&at| at > now)
            .chain(coming.map(|(&at, _)| at));
        check.into_iter().chain(times).min().unwrap_or(Tick::MAX)
    }
}

impl<H: Watched> Slot<H> {
    fn push(&mut self, hold: Arc<H>, every: Duration) {
        self.every = self.every.min(every);
        self.work += hold.work();
        self.holds.push(hold);
    }

    /// By then all of a slot that is due at `at` are to be sent: then half the time is left before it is jammed. A second
    /// is enough for any: what is tried again may be near its end.
    fn late_at(&self, at: Tick) -> Tick {
        at.after((self.every / 6).min(Duration::from_secs(1)))
    }

    /// If no batch has taken it by then, something is wrong. Two thirds of a lease or more were left at `at`.
    fn jammed_at(&self, at: Tick) -> Tick {
        at.after(self.every / 3)
    }
}

impl<H> Default for Slot<H> {
    fn default() -> Self {
        Slot {
            holds: Vec::new(),
            every: Duration::MAX,
            work: 0,
        }
    }
}

/// The holds for one script.
struct Batch<H> {
    holds: Vec<Arc<H>>,
    work: usize,
}

impl<H: Watched> Batch<H> {
    /// Takes holds from the end of a slot, as far as there is room; one at least, if there is none yet. Whether it took all.
    fn fill_from(&mut self, mut from: OccupiedEntry<'_, Tick, Slot<H>>) -> bool {
        let slot = from.get_mut();
        let (mut left, before) = (slot.holds.len(), self.work);
        while let Some(hold) = slot.holds[..left].last()
            && (self.work == 0 || self.work + hold.work() <= BATCH)
        {
            self.work += hold.work();
            left -= 1;
        }
        slot.work -= self.work - before;
        // From the end of the slot: the holds that stay keep their index (`WatchedAt`).
        self.holds.extend(slot.holds.drain(left..));
        if left == 0 {
            from.remove();
        }
        left == 0
    }
}

/// When to renew, or to verify, a lease that was asked for at `sent`: at the beginning of a slot, so that one script does it
/// for all leases in it.
pub(crate) fn slot(sent: Tick, every: Duration, early: u8) -> Tick {
    let at = sent.after(every.saturating_sub(every / EARLY * u32::from(early) / 256));
    // Rounded down: a renewal may come early, and never late.
    Tick::from_nanos(at.nanos() & !(slot_length(every) - 1))
}

/// In nanoseconds. A power of two, so that intervals of different lengths share their slots.
pub(super) fn slot_length(every: Duration) -> u64 {
    let length = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX) / SLOTS;
    1 << length.max(1).ilog2()
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

    #[test]
    fn one_batch_is_under_way_on_a_server_that_is_near_and_as_many_as_it_takes_on_one_that_is_far_away()
     {
        let (at, ms) = (Tick::from_nanos(5_000_000_000), Duration::from_millis);
        let every = ms(10_000);
        let mut list = List::<crate::engine::hold::Hold>::default();
        let work = 100_000;
        list.slots.insert(
            at,
            Slot {
                holds: Vec::new(),
                every,
                work,
            },
        );
        assert_eq!(list.wanted(at, Duration::ZERO), 1); // not known
        assert_eq!(list.wanted(at, ms(1)), 1);
        assert_eq!(list.wanted(at, ms(100)), 50); // 500 batches of 100 ms, in a second
        assert_eq!(list.wanted(at.after(ms(900)), ms(1)), 5); // it is nearly late
        assert_eq!(list.wanted(at.after(ms(900)), ms(100)), UNDER_WAY_MOST);
        assert_eq!(list.wanted(at.after(every), ms(100)), UNDER_WAY_MOST);
        assert_eq!(list.wanted(Tick::from_nanos(0), ms(100)), 1); // nothing is due
    }
}
