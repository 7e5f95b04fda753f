//! In a cluster one script renews the names of one slot only. So these are renewed at the same time, whenever they were taken.

use std::time::Duration;

use super::list::slot_length;
use crate::clock::Tick;

/// So many parts are told apart at most: the slots of a cluster.
const PARTS: u64 = 1 << 14;

/// When to renew again a lease that was asked for at `sent`, in its part's turn: one in each interval, and never after it. Leases of parts
/// next to each other are due at once, in the order of the parts, so that a batch has few of them. `early` keeps clients apart.
pub(super) fn turn_of(part: u16, sent: Tick, every: Duration, early: u8) -> Tick {
    let length = slot_length(every);
    let interval = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX);
    let turns = (interval / length).max(1);
    let round = turns * length;
    let turn = (u64::from(part) * turns / PARTS + u64::from(early) * turns / 256) % turns;
    let latest = sent.after(every).nanos();
    let (phase, turn) = (latest % round, turn * length);
    let over = phase
        .checked_sub(turn)
        .unwrap_or_else(|| phase + (round - turn));
    // Holds of one slot of time stand in the order of their parts.
    Tick::from_nanos((latest - over).saturating_add(u64::from(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_interval_is_too_long() {
        for every in [Duration::ZERO, Duration::MAX] {
            for part in [0, 16_383] {
                assert!(turn_of(part, Tick::from_nanos(77), every, 255) >= Tick::from_nanos(77));
            }
        }
    }

    #[test]
    fn leases_of_one_part_have_one_turn_in_each_interval_whenever_they_were_taken() {
        for every in [1, 3, 100, 9_999, 10_000].map(Duration::from_millis) {
            for (part, early) in [(0, 0), (5_000, 77), (16_383, 255)] {
                let first = Tick::from_nanos(1_234_567_890_123);
                let mut turns = std::collections::BTreeSet::new();
                for taken in 0..100 {
                    let mut sent = first.after(every * taken / 100);
                    for _ in 0..5 {
                        let at = turn_of(part, sent, every, early);
                        let after = at.since(sent);
                        assert!(after <= every + Duration::from_nanos(PARTS), "{after:?}");
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
