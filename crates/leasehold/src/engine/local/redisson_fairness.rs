//! The turns of Redisson's waiters, which stand in no queue: a release of ours says how many are theirs (`waiting.lua`).
//!
//! Nothing of safety depends on this: a process that steps back for too long takes the lock some milliseconds later.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    backend::{InARow, WakeUp},
    clock::{Clock, Tick},
    name::LockId,
};

/// A turn that is left to others is over after about so long without a message.
const STEP_BACK: Duration = Duration::from_millis(3);

/// Then other processes of ours have so long, before the one that gave permits back last asks again.
const OURS_FIRST: Duration = Duration::from_millis(2);

/// After turns that none of them took, none is left for up to eight times as long.
const MISSED_MOST: u32 = 4;

/// And to one that cannot be seen, since there may be none, for up to 128 times as long: it costs a contended name 1 to 3 % of its time.
const UNSEEN_MISSED_MOST: u32 = 8;

/// For so long a name is known to be wanted by others.
const KNOWN: Duration = Duration::from_secs(1);

/// The turns of those beside us, by name.
#[derive(Debug, Default)]
pub(crate) struct RedissonFairness {
    /// False until the first turn was left. Till then no lock touches `all`, which all locks of a client share.
    any: AtomicBool,
    all: Mutex<HashMap<LockId, RedissonTurns>>,
}

/// The turns of those beside us for one name.
#[derive(Debug, Default)]
struct RedissonTurns {
    /// So many messages are to come before this process asks.
    turns: u32,
    /// Then it asks in any case.
    until: Tick,
    /// When a release of ours was heard last that left some.
    said: Tick,
    /// No other message has come since.
    unheard: bool,
    /// Whether other processes of ours are to go first.
    ours_first: OursFirst,
    /// So often in a row none of them took a turn, and until when none is left to them, or to one that cannot be seen.
    missed: u32,
    none_until: Tick,
    unseen_until: Tick,
    /// A waiter of Redisson's took the last turns.
    takes: bool,
    /// The last turns were left to one that may not be there.
    unseen: bool,
}

/// Permits are raced for, among ours as well: the process that gave some back last lets the others of ours try first, or it would have
/// all, since it hears of a free permit as soon as they do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OursFirst {
    #[default]
    No,
    /// The message of its release is still to come.
    NotReceived,
    Received,
}

impl RedissonFairness {
    fn of<T>(&self, id: &LockId, with: impl FnOnce(&mut RedissonTurns) -> T) -> Option<T> {
        let any = self.any.load(Ordering::Relaxed);
        any.then(|| self.all.lock().get_mut(id).map(with)).flatten()
    }

    /// How many holds a release tells of that ends so many in a row. `None`: this process knows of no others.
    pub(crate) fn holds_to_tell(&self, id: &LockId, holds: u32, now: Tick) -> Option<u32> {
        let told = self.of(id, |theirs| {
            let is_known = !theirs.unseen && now < theirs.until.after(KNOWN);
            // Zero: they are known to be there, and took no turn the last times, so this release leaves them none.
            is_known.then(|| if now < theirs.none_until { 0 } else { holds })
        });
        told.flatten()
    }

    /// So many holds in a row, as a release tells of them.
    pub(crate) fn in_a_row(&self, id: &LockId, holds: u32, now: Tick) -> InARow {
        InARow {
            holds,
            beside_unseen: holds > 0 && self.has_turn_unseen(id, now),
        }
    }

    /// Whether a waiter that cannot be seen is to have turns.
    fn has_turn_unseen(&self, id: &LockId, now: Tick) -> bool {
        self.of(id, |theirs| now >= theirs.unseen_until)
            .unwrap_or(true)
    }

    /// The turns that follow are left to a waiter that may not be there. The waiter is as good as seen once it has taken some.
    pub(crate) fn note_unseen(&self, id: &LockId, unseen: bool) {
        self.any.store(true, Ordering::Relaxed);
        let mut all = self.all.lock();
        let theirs = all.entry(id.clone()).or_default();
        theirs.unseen = unseen && !theirs.takes;
    }

    /// So many turns are left to others, says a message, or the answer to a release that was `sent` then.
    pub(crate) fn leave_turns(&self, id: &LockId, turns: u32, now: Tick, sent: Option<Tick>) {
        self.any.store(true, Ordering::Relaxed);
        let mut all = self.all.lock();
        // Only when they have doubled, so that each costs the same however many there are.
        if all.len() >= 32 && all.len().is_power_of_two() {
            all.retain(|_, it| now < it.until.after(KNOWN));
        }
        let theirs = all.entry(id.clone()).or_default();
        if sent.is_some_and(|sent| theirs.said >= sent) {
            return; // the message came before the answer
        }
        (theirs.turns, theirs.unheard) = (turns, true);
        // At random around `STEP_BACK`: all processes of ours hear this message at the same time.
        theirs.until = now.after(STEP_BACK.mul_f64(2.0 / 3.0 + fastrand::f64() * 2.0 / 3.0));
        if sent.is_none() {
            theirs.said = now;
        }
    }

    /// A message on the channel of those that wait.
    pub(crate) fn hear(&self, id: &LockId, wake_up: WakeUp, now: Tick) {
        match wake_up {
            WakeUp::Turns(turns) => {
                self.of(id, |theirs| {
                    theirs.ours_first = match theirs.ours_first {
                        OursFirst::NotReceived => OursFirst::Received,
                        _ => OursFirst::No, // another of ours had its turn
                    };
                });
                if turns > 0 {
                    self.leave_turns(id, turns, now, None);
                }
            }
            WakeUp::TryAgain => {
                self.of(id, |theirs| {
                    if theirs.turns > 0 {
                        theirs.turns -= 1;
                        let is_last = theirs.turns == 0 && theirs.ours_first != OursFirst::No;
                        theirs.until = now.after(if is_last { OURS_FIRST } else { STEP_BACK });
                        (theirs.unheard, theirs.missed) = (false, 0);
                        (theirs.takes, theirs.unseen) = (true, false);
                        // A waiter of Redisson's took its turn, so the pauses after missed turns are over.
                        (theirs.none_until, theirs.unseen_until) = (now, now);
                    }
                });
            }
            _ => {}
        }
    }

    /// This process gave permits back by a release that was `sent` then, and others of ours wait: they go first, after the turns.
    pub(crate) fn lets_ours_first(&self, id: &LockId, now: Tick, sent: Tick) {
        self.of(id, |theirs| {
            // The message of this release may have overtaken its answer, as they come by two connections.
            theirs.ours_first = if theirs.said >= sent {
                OursFirst::Received
            } else {
                OursFirst::NotReceived
            };
            if theirs.turns == 0 {
                theirs.until = now.after(OURS_FIRST);
            }
        });
    }

    /// For how long others are to try first.
    pub(crate) fn left_to_others(&self, id: &LockId, clock: &Clock) -> Option<Duration> {
        let (leaves, until) = self.of(id, |theirs| {
            let ours_first = theirs.ours_first != OursFirst::No;
            (theirs.turns > 0 || ours_first, theirs.until)
        })?;
        let now = clock.now();
        (leaves && now < until).then(|| until.since(now))
    }

    /// The server gave the lock to this process. If no other has had its turn, turns are left more seldom.
    pub(crate) fn took(&self, id: &LockId, now: Tick) {
        self.of(id, |theirs| {
            theirs.ours_first = OursFirst::No;
            if theirs.turns > 0 {
                theirs.turns = 0;
                if theirs.unheard {
                    // Since the turns were left no message has come: no waiter of Redisson's took one.
                    theirs.takes = false;
                    theirs.missed = (theirs.missed + 1).min(UNSEEN_MISSED_MOST);
                    let after = |missed: u32| now.after(STEP_BACK * (1 << missed) / 2);
                    theirs.none_until = after(theirs.missed.min(MISSED_MOST));
                    theirs.unseen_until = after(theirs.missed);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kind::LockKind, name::Name};

    #[test]
    fn one_that_cannot_be_seen_has_turns_more_seldom_until_it_takes_one() {
        let fairness = RedissonFairness::default();
        let id = LockId::new(LockKind::Mutex, Name::new("name").unwrap());
        let mut now = Clock::Boot.now();
        let leave = |now| {
            fairness.note_unseen(&id, true);
            fairness.leave_turns(&id, 1, now, Some(now));
        };
        let mut pauses = Vec::new();
        for _ in 0..10 {
            assert!(fairness.has_turn_unseen(&id, now));
            leave(now);
            assert_eq!(
                fairness.holds_to_tell(&id, 1, now),
                None,
                "it may not exist"
            );
            fairness.took(&id, now);
            let from = now;
            while !fairness.has_turn_unseen(&id, now) {
                now = now.after(Duration::from_millis(1));
            }
            pauses.push(now.since(from).as_millis());
        }
        assert_eq!(pauses, [3, 6, 12, 24, 48, 96, 192, 384, 384, 384]);

        leave(now);
        fairness.hear(&id, WakeUp::TryAgain, now);
        assert_eq!(fairness.holds_to_tell(&id, 1, now), Some(1), "it exists");
        fairness.took(&id, now);
        assert!(fairness.has_turn_unseen(&id, now));
        leave(now);
        assert_eq!(fairness.holds_to_tell(&id, 1, now), Some(1));
        fairness.took(&id, now);
        leave(now);
        assert_eq!(fairness.holds_to_tell(&id, 1, now), None, "it may be gone");
    }
}
