//! Turns: a process that gets a contended name serves each waiter that is there by then once, and leaves Redisson's waiters theirs.
//!
//! Nothing of safety depends on this. It bounds how long the others wait: among our clients the server's queue gives each its turn;
//! Redisson's waiters stand in no queue, and race for a free name. A release says how many turns are theirs (`waiting.lua`). Until so many
//! messages have come, each of our processes asks nothing (`redisson_fairness.rs`): its waiters and newcomers wait.
//!
//! Where the order is the server's (`fair/`), there are no turns: each task asks for itself, and none has a lease passed on in memory.

use std::time::Duration;

use crate::clock::Tick;

/// All clients race for permits. A client that has given some back leaves them to the others for at least, and at most, so long.
const SHORTEST_RACE: Duration = Duration::from_millis(2);
const LONGEST_RACE: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct Turns {
    /// Others are known to wait for the name, or to hold it.
    pub(crate) shared: bool,
    /// The waiters with lower numbers were there when the server gave the name to this process.
    pub(crate) round: i64,
    /// Others were told of the last permits that this process gave back.
    races: bool,
    /// Until then permits are left to others.
    left_until: Option<Tick>,
}

impl Turns {
    pub(crate) fn new() -> Turns {
        Turns {
            shared: false,
            // No waiter has a number this high: until a grant sets a round, each that comes belongs to it.
            round: i64::MAX,
            races: false,
            left_until: None,
        }
    }

    /// This process sends permits back; the server gave it the last ones at `began`. Called before the answer, since the message
    /// that they are free wakes this process as soon as the others.
    pub(crate) fn gives_back(&mut self, now: Tick, began: Tick) {
        // A race under way is not prolonged by the next release, or a busy process would never ask.
        if self.races && self.left(now).is_none() {
            let length = now.since(began).clamp(SHORTEST_RACE, LONGEST_RACE);
            self.left_until = Some(now.after(length));
        }
    }

    /// The server has told others that permits are free.
    pub(crate) fn races(&mut self, now: Tick, began: Tick) {
        self.races = true;
        self.gives_back(now, began);
    }

    /// For how long others are to try first for a permit.
    pub(crate) fn left(&self, now: Tick) -> Option<Duration> {
        self.left_until
            .filter(|end| now < *end)
            .map(|end| end.since(now))
    }

    /// Whether the waiter with this number has to wait for the next turn.
    pub(crate) fn is_over_for(&self, number: i64) -> bool {
        self.shared && number >= self.round
    }
}
