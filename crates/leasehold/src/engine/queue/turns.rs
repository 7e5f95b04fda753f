//! Turns: a process that gets a contended name serves each waiter that is there by then once, and leaves Redisson's waiters theirs.
//!
//! Nothing of safety depends on this. It bounds how long the others wait: among our clients the server's queue gives each its turn;
//! Redisson's waiters stand in no queue, and race for a free name. A release says how many turns are theirs (`waiting.lua`). Until so many
//! messages have come, each of our processes asks nothing: its waiters and newcomers wait.
//!
//! Where the order is the server's (`lineup.rs`), there are no turns: each task asks for itself, and none has a lease passed on in memory.

use std::time::Duration;

use super::map::Queues;
use crate::{
    backend::WakeUp,
    clock::{Clock, Tick},
    name::LockId,
};

/// All clients race for permits. A client that has given some back leaves them to the others for at least, and at most, so long.
const SHORTEST_RACE: Duration = Duration::from_millis(2);
const LONGEST_RACE: Duration = Duration::from_millis(5);

/// A turn that is left to others is over after about so long without a message.
const STEP_BACK: Duration = Duration::from_millis(5);

/// After turns that none of them took, none is left for up to eight times as long.
const MISSED_MOST: u32 = 4;

/// For so long a name is known to be wanted by others.
const KNOWN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Turns {
    /// Others are known to wait for the name, or to hold it.
    pub(super) shared: bool,
    /// The waiters with lower numbers were there when the server gave the name to this process.
    pub(super) round: i64,
    /// Others were told of the last permits that this process gave back.
    races: bool,
    /// Until then permits are left to others.
    left_until: Option<Tick>,
}

impl Turns {
    pub(super) fn new() -> Turns {
        Turns {
            shared: false,
            round: i64::MAX,
            races: false,
            left_until: None,
        }
    }

    /// This process sends permits back; the server gave it the last ones at `began`. Called before the answer, since the message
    /// that they are free wakes this process as soon as the others.
    pub(super) fn gives_back(&mut self, now: Tick, began: Tick) {
        if self.races && self.left(now).is_none() {
            let length = now.since(began).clamp(SHORTEST_RACE, LONGEST_RACE);
            self.left_until = Some(now.after(length));
        }
    }

    /// The server has told others that permits are free.
    pub(super) fn races(&mut self, now: Tick, began: Tick) {
        self.races = true;
        self.gives_back(now, began);
    }

    /// For how long others are to try first for a permit.
    pub(super) fn left(&self, now: Tick) -> Option<Duration> {
        self.left_until
            .filter(|end| now < *end)
            .map(|end| end.since(now))
    }

    /// Whether the waiter with this number has to wait for the next turn.
    pub(super) fn is_over_for(&self, number: i64) -> bool {
        self.shared && number >= self.round
    }
}

/// The turns of those beside us for one name.
#[derive(Debug, Default)]
pub(super) struct Beside {
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

impl Queues {
    /// How many holds a release tells of that ends so many in a row. `None`: this process knows of no others.
    pub(super) fn holds_to_tell(&self, id: &LockId, holds: u32, now: Tick) -> Option<u32> {
        let beside = self.beside.lock();
        let known = beside.get(id).filter(|it| now < it.until.after(KNOWN))?;
        Some(if now < known.none_until { 0 } else { holds })
    }

    /// So many turns are left to others, says a message, or the answer to a release that was `sent` then.
    pub(super) fn leave_turns(&self, id: &LockId, turns: u32, now: Tick, sent: Option<Tick>) {
        let mut all = self.beside.lock();
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
    pub(super) fn hear(&self, id: &LockId, wake_up: WakeUp, now: Tick) {
        match wake_up {
            WakeUp::Turns(turns) if turns > 0 => self.leave_turns(id, turns, now, None),
            WakeUp::TryAgain => {
                if let Some(beside) = self.beside.lock().get_mut(id)
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
    pub(super) fn left_to_others(&self, id: &LockId, clock: &Clock) -> Option<Duration> {
        let beside = self.beside.lock();
        let (there, now) = (beside.get(id)?, clock.now());
        (there.turns > 0 && now < there.until).then(|| there.until.since(now))
    }

    /// The server gave the lock to this process. If no other has had its turn, turns are left more seldom.
    pub(super) fn took(&self, id: &LockId, now: Tick) {
        if let Some(beside) = self.beside.lock().get_mut(id)
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
