//! Turns: a process that gets a contended name serves each waiter that is there by then once, and gives way to others.
//!
//! Nothing of safety depends on this. It bounds how long the others wait: among our clients the server's queue gives each its
//! turn; Redisson's waiters stand in no queue, race for a free name, and need a millisecond to wake.
//!
//! Where the order is the server's (`lineup.rs`), there are no turns: each task asks for itself, none of them has a lease passed on
//! in memory, and no driver gives way.

use std::time::Duration;

use crate::{Handoff, backend::Stays, clock::Tick};

/// The longest time for which others are given way to. A turn may be longer; a name that is left to others that do not take it is
/// not to stay free for longer than this.
const LONGEST_WAY: Duration = Duration::from_millis(20);

/// All clients race for permits. A client that has given some back leaves them to the others for at least, and at most, so long.
const SHORTEST_RACE: Duration = Duration::from_millis(2);
const LONGEST_RACE: Duration = Duration::from_millis(5);

/// No more than this is owed: one long hold of another process is no reason to give way to none for long.
const MOST_OWED: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Turns {
    /// Others are known to wait for the name, or to hold it.
    shared: bool,
    /// When the turn began.
    began: Tick,
    /// When the last turn ended; `None` during a turn.
    ended: Option<Tick>,
    /// For how much longer others have had the name than this process.
    owed: Duration,
    /// The waiters with lower numbers were there when the turn began.
    round: i64,
    /// Others were told of the last permits that this process gave back.
    races: bool,
    /// Until then permits are left to others.
    left_until: Option<Tick>,
}

impl Turns {
    pub(crate) fn new() -> Turns {
        Turns {
            shared: false,
            began: Tick::MAX,
            ended: None,
            owed: Duration::ZERO,
            round: i64::MAX,
            races: false,
            left_until: None,
        }
    }

    /// This process sends permits back; the server gave it the last ones at `began`. Called before the answer, since the message
    /// that they are free wakes this process as soon as the others.
    pub(crate) fn gives_back(&mut self, now: Tick, began: Tick) {
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

    /// Another holder has the name.
    pub(crate) fn is_theirs(&mut self, now: Tick) {
        self.shared = true;
        if self.ended.is_none() {
            self.ends(now);
        }
    }

    /// No other client waits.
    pub(crate) fn is_not_shared(&mut self) {
        *self = Turns::new();
    }

    /// The server gave the name to this process, in which waiters with numbers below `round` wait.
    pub(crate) fn begins(&mut self, now: Tick, round: i64) {
        if let Some(ended) = self.ended.take() {
            self.owed = (self.owed + now.since(ended)).min(MOST_OWED);
            self.began = now;
            self.round = round;
        }
    }

    /// Whether the waiter with this number has to wait for the next turn.
    pub(crate) fn is_over_for(&self, number: i64) -> bool {
        self.shared && number >= self.round
    }

    /// Whether this turn goes on with the waiter of this number: it was there when the turn began, and others have had the name for
    /// longer than this process.
    pub(crate) fn goes_on_with(&self, number: i64, now: Tick) -> bool {
        self.shared
            && number < self.round
            && self.ended.is_none()
            && now.since(self.began) < self.owed
    }

    /// When the name stays with this process for the waiter of this number.
    pub(crate) fn stays(&self, number: i64, now: Tick, handoff: Handoff) -> Stays {
        if self.goes_on_with(number, now) {
            Stays::AmongRacers
        } else if handoff.is_on() {
            Stays::Alone
        } else {
            Stays::Never
        }
    }

    /// The name was freed for others that race for it, after `holds` in this process. Returns for how long they are given way
    /// to: for as much as this process has had the name for longer than they, and for one or two round trips for each hold at least,
    /// since so long it takes them. `None` if the turn goes on with the waiter `next`, if no other is faster.
    pub(crate) fn gives_way(
        &mut self,
        now: Tick,
        next: Option<i64>,
        (holds, round_trip): (u32, Duration),
    ) -> Option<Duration> {
        self.shared = true;
        if next.is_some_and(|next| self.goes_on_with(next, now)) {
            return None;
        }
        let more = now.since(self.began).saturating_sub(self.owed);
        self.ends(now);
        Some(more.max(round_trip * holds * 3 / 2).min(LONGEST_WAY))
    }

    fn ends(&mut self, now: Tick) {
        self.owed = self.owed.saturating_sub(now.since(self.began));
        self.ended = Some(now);
    }
}
