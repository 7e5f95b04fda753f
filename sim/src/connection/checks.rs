//! The promises of a connection, checked from both of its ends.

use std::{sync::atomic::Ordering, time::Duration};

use leasehold::sim::PlayedConnection as Connection;

use super::{Caller, Play, PlayedAnswer};

/// The connection before a turn of its reader.
pub(super) struct BeforeTurn {
    /// So many requests had been answered; the answers to so many have come; so many are to be given out.
    given: usize,
    whole: usize,
    most: usize,
    was_closed: bool,
}

impl Play {
    /// So many requests have their answers.
    fn given(&self) -> usize {
        let offered = self.line().offered.len();
        // The connection alone knows of a request that a pause has kept from the socket.
        offered.saturating_sub(self.connection.sent())
    }

    pub(super) fn before_turn(&self) -> BeforeTurn {
        let (given, sent) = (self.given(), self.connection.sent());
        let line = self.line();
        let waits = line.offered.get(given).and_then(|oldest| {
            let (_, since) = line.played[*oldest].offered?;
            Some(line.now.saturating_sub(since))
        });
        let away = line.now.saturating_sub(self.turned);
        let is_late = self.comes_back && away >= Connection::AWAY;
        let all = is_late || waits.is_some_and(|waits| waits >= Connection::STALE);
        BeforeTurn {
            given,
            whole: line.whole(),
            most: if all {
                usize::MAX
            } else {
                Connection::PORTION.max(sent / Connection::TURNS)
            },
            was_closed: self.is_closed(),
        }
    }

    pub(super) fn after_turn(&mut self, before: &BeforeTurn, is_over: bool) {
        let gave = self.given().saturating_sub(before.given);
        let due = before.most.min(before.whole.saturating_sub(before.given));
        if is_over {
            self.say(|| "the reader ends".to_owned());
        } else {
            self.say(|| format!("the reader has a turn, and gives {gave} answers"));
        }
        let mut line = self.line.lock();
        if before.was_closed {
            if !is_over {
                line.breach("L2", "a reader outlives its connection");
            }
        } else if is_over {
            // It has read all that has come, whatever it ends by.
            for at in before.given..before.whole {
                let number = line.offered[at];
                line.played[number].is_owed = true;
            }
        } else if gave != due {
            let more = if gave > due { "more" } else { "fewer" };
            line.breach("portion", format!("{more} answers than are due"));
        }
        let (whole, end) = (before.whole, line.end.is_some());
        drop(line);
        if before.most == usize::MAX {
            self.count("turns that give all");
        } else if gave == before.most {
            self.count("full portions");
        }
        if is_over && !before.was_closed && whole > before.given {
            self.count("ends with answers that had come");
        }
        if is_over && !end && !before.was_closed {
            self.count("ends by the client");
        }
    }

    /// Whether its first poll is to write the request. `None`: that cannot be told.
    pub(super) fn writes_at_once(&self, caller: &Caller) -> Option<bool> {
        let line = self.line();
        let is_well = !self.is_closed() && line.failed.is_none() && line.end.is_none();
        let writes = !caller.is_elsewhere && !self.comes_back && line.is_idle();
        (caller.is_first && is_well).then_some(writes)
    }

    pub(super) fn check_begin(&mut self, caller: &Caller, writes: Option<bool>) {
        let mut line = self.line.lock();
        let is_offered = line.played[caller.number].offered.is_some();
        match writes {
            Some(true) if !is_offered && line.failed.is_none() && line.is_idle() => {
                line.breach("rule 1", "an idle writer lets a request wait");
            }
            Some(false) if is_offered => line.breach("rule 1", "a request is written out of turn"),
            _ => {}
        }
    }

    pub(super) fn check_answer(&mut self, caller: &Caller, answer: PlayedAnswer) {
        let number = caller.number;
        self.say(|| format!("[{number}] is told {answer:.60?}"));
        self.count(match &answer {
            Ok(_) => "told: an answer",
            Err((_, true)) => "told: never sent",
            Err((_, false)) => "told: no answer",
        });
        let is_closed = self.is_closed();
        let mut line = self.line.lock();
        let (_, is_unsent) = match answer {
            Ok(answer) => {
                if answer != line.right_answer(number) {
                    line.breach("answer", "a caller has another answer than its own");
                }
                return;
            }
            Err(none) => none,
        };
        if !is_closed {
            return line.breach("L2", "an answer is refused by a connection that lives");
        }
        let played = &line.played[number];
        let begins = played.offered.map(|(begins, _)| begins);
        let is_taken = begins.is_some_and(|begins| begins < line.taken.max(line.left));
        let is_in_doubt = begins.is_some_and(|at| line.failed.is_some_and(|from| from <= at));
        if played.is_owed {
            line.breach("answer", "an answer that had come is lost");
        } else if is_unsent && is_taken {
            line.breach("B5", "called unsent, though a byte of it has left");
        } else if !is_unsent && !is_taken && !is_in_doubt {
            line.breach("B5", "called sent, though no byte of it has left");
        }
        if caller.is_first {
            return;
        }
        if !caller.task.saw_closed.load(Ordering::Relaxed) {
            line.breach("B4", "a caller is told before the socket is closed");
        }
        if self.is_voided && !caller.task.saw_void.load(Ordering::Relaxed) {
            line.breach("S1", "a caller is told before the connection is void");
        }
    }

    /// Faults have ended, and all that was due has happened.
    pub(super) fn check_calm(&mut self) {
        let waits = self.callers.iter().flatten().count();
        let known = self.connection.known();
        let mut line = self.line.lock();
        let is_to_end = line.end.is_some() || line.failed.is_some() || self.is_rogue;
        if waits > 0 {
            line.breach("L2", "a caller waits for ever");
        } else if known > 0 {
            line.breach("memory", "a request is left");
        } else if is_to_end && !self.is_closed() {
            line.breach("L2", "a connection that has failed does not end");
        }
    }

    /// Moves all clocks.
    pub(super) fn advance(&mut self, by: Duration) {
        self.here.block_on(tokio::time::advance(by));
        self.line().now += by;
    }
}
