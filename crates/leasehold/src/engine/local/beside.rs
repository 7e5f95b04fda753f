//! The turns of Redisson's waiters, which stand in no queue: a release of ours says how many are theirs (`waiting.lua`).
//!
//! Nothing of safety depends on this: a process that steps back for too long takes the lock some milliseconds later.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;

use crate::{
    backend::WakeUp,
    clock::{Clock, Tick},
    name::LockId,
};

/// A turn that is left to others is over after about so long without a message.
const STEP_BACK: Duration = Duration::from_millis(5);

/// After turns that none of them took, none is left for up to eight times as long.
const MISSED_MOST: u32 = 4;

/// For so long a name is known to be wanted by others.
const KNOWN: Duration = Duration::from_secs(1);

/// The turns of those beside us, by name.
#[derive(Debug, Default)]
pub(crate) struct Beside(Mutex<HashMap<LockId, TheirTurns>>);

/// The turns of those beside us for one name.
#[derive(Debug, Default)]
struct TheirTurns {
    /// So many messages come before this process asks,
    turns: u32,
    /// if it does not do so then.
    until: Tick,
    /// When a release of ours was heard last that left some.
    said: Tick,
    /// No other message has come since.
    unheard: bool,
    /// So often in a row none of them took a turn, and until when none is left to them.
    missed: u32,
    none_until: Tick,
}

impl Beside {
    /// How many holds a release tells of that ends so many in a row. `None`: this process knows of no others.
    pub(crate) fn holds_to_tell(&self, id: &LockId, holds: u32, now: Tick) -> Option<u32> {
        let beside = self.0.lock();
        let known = beside.get(id).filter(|it| now < it.until.after(KNOWN))?;
        Some(if now < known.none_until { 0 } else { holds })
    }

    /// So many turns are left to others, says a message, or the answer to a release that was `sent` then.
    pub(crate) fn leave_turns(&self, id: &LockId, turns: u32, now: Tick, sent: Option<Tick>) {
        let mut all = self.0.lock();
        // Only when they have doubled, so that each costs the same however many there are.
        if all.len() >= 32 && all.len().is_power_of_two() {
            all.retain(|_, it| now < it.until.after(KNOWN));
        }
        let beside = all.entry(id.clone()).or_default();
        if sent.is_some_and(|sent| beside.said >= sent) {
            return; // the message came before the answer
        }
        (beside.turns, beside.unheard) = (turns, true);
        beside.until = now.after(STEP_BACK.mul_f64(2.0 / 3.0 + fastrand::f64() * 2.0 / 3.0));
        if sent.is_none() {
            beside.said = now;
        }
    }

    /// A message on the channel of those that wait.
    pub(crate) fn hear(&self, id: &LockId, wake_up: WakeUp, now: Tick) {
        match wake_up {
            WakeUp::Turns(turns) if turns > 0 => self.leave_turns(id, turns, now, None),
            WakeUp::TryAgain => {
                if let Some(beside) = self.0.lock().get_mut(id)
                    && beside.turns > 0
                {
                    beside.turns -= 1;
                    beside.until = now.after(STEP_BACK);
                    (beside.unheard, beside.missed) = (false, 0);
                    beside.none_until = now;
                }
            }
            _ => {}
        }
    }

    /// For how long others are to try first.
    pub(crate) fn left_to_others(&self, id: &LockId, clock: &Clock) -> Option<Duration> {
        let beside = self.0.lock();
        let (there, now) = (beside.get(id)?, clock.now());
        (there.turns > 0 && now < there.until).then(|| there.until.since(now))
    }

    /// The server gave the lock to this process. If no other has had its turn, turns are left more seldom.
    pub(crate) fn took(&self, id: &LockId, now: Tick) {
        if let Some(beside) = self.0.lock().get_mut(id)
            && beside.turns > 0
        {
            beside.turns = 0;
            if beside.unheard {
                beside.missed = (beside.missed + 1).min(MISSED_MOST);
                beside.none_until = now.after(STEP_BACK * (1 << beside.missed) / 2);
            }
        }
    }
}
