//! In a cluster one script renews the names of one slot only. So these are renewed at the same time, whenever they were taken.

use std::time::Duration;

use super::list::slot_length;
use crate::clock::Tick;

/// So many hash slots are told apart at most: those of a cluster.
const HASH_SLOTS: u64 = 1 << 14;

/// When to renew again a lease that was asked for at `sent`, in its hash slot's turn: one in each interval, and never after it. Leases of hash slots
/// next to each other are due at once, in the order of the slots, so that a batch has few of them. `early` keeps clients apart.
pub(super) fn turn_of(hash_slot: u16, sent: Tick, every: Duration, early: u8) -> Tick {
    let length = slot_length(every);
    let interval = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX);
    let turns = (interval / length).max(1);
    let round = turns * length;
    let turn = (u64::from(hash_slot) * turns / HASH_SLOTS + u64::from(early) * turns / 256) % turns;
    let latest = sent.after(every).nanos();
    // From the latest instant back to the turn before it: a renewal may come early, but not late.
    let (phase, turn) = (latest % round, turn * length);
    let over = phase
        .checked_sub(turn)
        .unwrap_or_else(|| phase + (round - turn));
    // Holds of one slot of time stand in the order of their hash slots.
    Tick::from_nanos((latest - over).saturating_add(u64::from(hash_slot)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_interval_is_too_long() {
        for every in [Duration::ZERO, Duration::MAX] {
            for hash_slot in [0, 16_383] {
                assert!(
                    turn_of(hash_slot, Tick::from_nanos(77), every, 255) >= Tick::from_nanos(77)
                );
            }
        }
    }

    #[test]
    fn leases_of_one_part_have_one_turn_in_each_interval_whenever_they_were_taken() {
        for every in [1, 3, 100, 9_999, 10_000].map(Duration::from_millis) {
            for (hash_slot, early) in [(0, 0), (5_000, 77), (16_383, 255)] {
                let first = Tick::from_nanos(1_234_567_890_123);
                let mut turns = std::collections::BTreeSet::new();
                for taken in 0..100 {
                    let mut sent = first.after(every * taken / 100);
                    for _ in 0..5 {
                        let at = turn_of(hash_slot, sent, every, early);
                        let after = at.since(sent);
                        assert!(
                            after <= every + Duration::from_nanos(HASH_SLOTS),
                            "{after:?}"
                        );
                        // It is sent a little later than it is due.
                        sent = at.after(Duration::from_nanos(u64::from(taken)));
                        turns.insert(at);
                    }
                }
                // In six intervals, all of them together.
                assert!(turns.len() <= 7, "{every:?}: {turns:?}");
                let turns: Vec<Tick> = turns.into_iter().collect();
                for two in turns.windows(2) {
                    let apart = two[1].since(two[0]);
                    assert!(apart <= every && apart > every * 9 / 10, "{apart:?}");
                }
            }
        }
    }
}
