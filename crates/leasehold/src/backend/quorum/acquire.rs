//! The way to a lock on a quorum: one round, or an entry at the coordinator and then a round.
//!
//! A first attempt asks all servers at once. A waiter asks its coordinator only, for an entry in the queue there. Once the coordinator is its own, it asks
//! the others, keeps what it has, and asks those again that said no, a few times: a client that does not hold the coordinator gives back at once.

use std::time::Duration;

use super::{
    ballots::stated,
    round::{Failures, Round, ServerReply},
    state::QuorumState,
};
use crate::{
    backend::{Acquire, Acquired, Failure, QueueEntry, fenced::Tokens},
    clock::Tick,
};

/// With the coordinator held, the others are asked again so often.
const ROUNDS_MORE: u32 = 5;

/// The longest pause before that.
const PAUSE_MOST: Duration = Duration::from_millis(20);

/// After that a waiter pauses, and polls by itself: the one that has the others may not hold the coordinator, and so wakes no waiter there. But
/// this client wakes itself, when it gives the coordinator back.
const POLL_FIRST: u64 = 50;
const POLL_MORE: u64 = 100;

pub(super) async fn acquire(state: QuorumState, step: Acquire) -> Result<Acquired, Failure> {
    // Here, since acquisitions make the ballots.
    state.tidy();
    let checked = state.servers.check();
    let coordinator = match checked.and_then(|()| state.servers.coordinator_or_why(&step.id)) {
        Ok(coordinator) => coordinator,
        Err(failure) => {
            // Its client takes another id, and a coordinator may have given it the name by message.
            if state.ballots.is_open(step.lease) {
                state.give_up(&step.id, step.access, step.lease);
            }
            return Err(failure);
        }
    };
    let began = state.now();
    let mut candidate = Candidate {
        words: vec![VoteAnswer::Unasked; state.servers.len()],
        failures: Failures::default(),
        refused: false,
        state,
        step,
        coordinator,
        began,
    };
    let verdict = candidate.way().await;
    let has_coordinator = candidate.words[coordinator] == VoteAnswer::Vote;
    let polls = has_coordinator && verdict == Verdict::Held && candidate.step.entry.is_some();
    let background = candidate.state.servers.background.clone();
    // Before the pause: this gives the votes back, and other clients are asking for them.
    let answer = candidate.answer(verdict);
    if polls {
        let pause = POLL_FIRST + fastrand::u64(0..=POLL_MORE);
        background.sleep(Duration::from_millis(pause)).await;
    }
    answer
}

struct Candidate {
    state: QuorumState,
    step: Acquire,
    coordinator: usize,
    began: Tick,
    words: Vec<VoteAnswer>,
    failures: Failures,
    /// The lease id was given up before.
    refused: bool,
}

/// The latest answer of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VoteAnswer {
    Unasked,
    Vote,
    Held {
        ttl: Option<Duration>,
        silent: bool,
        /// As in [`Acquired::Held`].
        unsettled: bool,
    },
    /// It gave no answer that is of use.
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Granted,
    /// It has an entry at the coordinator.
    Waits,
    /// Another client holds the coordinator, or enough of the others.
    Held,
    /// Too few can vote.
    NoMajority,
}

impl Candidate {
    async fn way(&mut self) -> Verdict {
        let lease = self.step.lease;
        match self.step.entry {
            // QB3: after a grant by message the coordinator has the name for this lease id already, so all servers are asked at once.
            Some(entry) if !self.state.listeners.was_granted(lease) => {
                // First: a grant that the coordinator sends to no listener would hold the name for a lease (L1).
                if let Err(failure) = self.listen().await {
                    self.failures
                        .note::<()>(self.coordinator, &ServerReply::Failed(failure));
                    return Verdict::NoMajority;
                }
                self.ask(&[self.coordinator], Some(entry)).await;
                match self.words[self.coordinator] {
                    VoteAnswer::Vote => {}
                    VoteAnswer::Held { .. } => return Verdict::Waits,
                    VoteAnswer::Unasked | VoteAnswer::Failed => return Verdict::NoMajority,
                }
            }
            // Its next client is about to ask the others: their votes are left alone.
            None if self.is_contended() => {
                self.ask(&[self.coordinator], None).await;
                if let VoteAnswer::Held { .. } = self.words[self.coordinator] {
                    return Verdict::Held;
                }
            }
            _ => {}
        }
        for round in 0..=ROUNDS_MORE {
            let began = self.state.now();
            let mut targets = self.state.askable();
            // A vote is not asked for twice: the second answer would be counted from a later send (QB1).
            targets.retain(|at| self.words[*at] != VoteAnswer::Vote);
            // No round that cannot win: its votes would keep out those who can.
            if self.votes() + targets.len() < self.state.servers.need() {
                return Verdict::NoMajority;
            }
            self.ask(&targets, None).await;
            match self.verdict() {
                // With the coordinator held it is the next: those that have the others give them back.
                Verdict::Held
                    if self.words[self.coordinator] == VoteAnswer::Vote && round < ROUNDS_MORE =>
                {
                    let took = self.state.now().since(began);
                    // At random, so that two clients that share the votes do not meet again.
                    self.pause(took * (2 << round)).await;
                }
                verdict => return verdict,
            }
        }
        Verdict::Held
    }

    fn is_contended(&self) -> bool {
        self.state.listeners.is_contended(&self.step.id, self.began)
    }

    /// Hears wake-ups at the coordinator before it takes an entry there.
    async fn listen(&self) -> Result<(), Failure> {
        let QuorumState {
            servers, listeners, ..
        } = &self.state;
        listeners.asks(&self.step.id);
        if listeners.hears(&self.step.id, self.coordinator) {
            return Ok(());
        }
        listeners
            .listen(servers, &self.step.id, self.coordinator)
            .await
    }

    async fn pause(&self, most: Duration) {
        let pause = most.min(PAUSE_MOST).mul_f64(fastrand::f64());
        self.state.servers.background.sleep(pause).await;
    }

    /// Asks these at once, until the outcome is known.
    async fn ask(&mut self, targets: &[usize], entry: Option<QueueEntry>) {
        let QuorumState {
            servers, ballots, ..
        } = self.state.clone();
        let (lease, sent) = (self.step.lease, self.state.now());
        // Before the requests: what is confirmed by the time of an answer may still have been what the server called held (bug 257).
        let pending = ballots.pending_for(&self.step.id.name);
        let lease_length = Duration::from_millis(self.step.lease_ms);
        let mut round = Round::new(&servers, servers.timeout(lease_length));
        for &at in targets {
            // Written down before it is sent: from here on this server must be told when the id is given up (QB5).
            if !ballots.asks(lease, at, entry.is_some()) {
                // A release has overtaken this attempt. It knows of the servers that were asked until here, and tells them.
                self.refused = true;
                break;
            }
            let step = Acquire {
                entry,
                ..self.step.clone()
            };
            // Its word of an earlier round decides nothing in this one (bug 329).
            self.words[at] = VoteAnswer::Unasked;
            round.ask(at, servers.at(at).backend.acquire(step));
        }
        let is_one = targets.len() == 1;
        while let Some((at, said)) = round.next().await {
            self.hear(at, sent, said, &pending);
            // The slowest server decides nothing more. Its answer goes to the ballots when it comes (QB4).
            // A server that is asked alone is waited for: a round without its word would have no result.
            if !is_one && self.is_decided() {
                break;
            }
        }
        round.rest(self.state.heard_late(&self.step, sent));
    }

    /// A server has answered. `pending`: the servers that still had to be told of a lease id for this name when it was asked.
    fn hear(&mut self, at: usize, sent: Tick, said: ServerReply<Acquired>, pending: &[usize]) {
        let QuorumState {
            servers, ballots, ..
        } = &self.state;
        // For the error, in case no majority comes about.
        self.failures.note(at, &said);
        let answer = match said {
            ServerReply::Answer(answer) => Ok(answer),
            ServerReply::Failed(failure) => Err(failure),
            // Its ask stays open in the ballots: `heard_late` writes its answer down, and gives back what that has brought (QB5).
            ServerReply::Silent(_) | ServerReply::Waits(_) => {
                self.words[at] = VoteAnswer::Failed;
                return;
            }
        };
        // QB6: also if it restarted after it was asked.
        let may_vote = servers.may_vote(at);
        let is_vote = ballots.answered(self.step.lease, at, sent, &answer, may_vote);
        self.words[at] = match answer {
            Ok(Acquired::Granted { .. }) if is_vote => VoteAnswer::Vote,
            Ok(Acquired::Held { ttl, silent, .. }) => VoteAnswer::Held {
                ttl,
                silent,
                unsettled: pending.contains(&at),
            },
            // A grant without a vote as well: of a server in quarantine (QB6), or for a lease id that was given up meanwhile.
            _ => VoteAnswer::Failed,
        };
    }

    fn votes(&self) -> usize {
        votes(&self.words)
    }

    fn is_decided(&self) -> bool {
        let servers = &self.state.servers;
        match self.words[self.coordinator] {
            VoteAnswer::Held { .. } => true,
            // It says who is next.
            VoteAnswer::Unasked => false,
            VoteAnswer::Vote | VoteAnswer::Failed => {
                self.votes() >= servers.need() || held(&self.words) > servers.spare()
            }
        }
    }

    fn verdict(&self) -> Verdict {
        verdict(&self.words, self.coordinator, self.state.servers.need())
    }

    /// Whether what is held may be no other's: without what this client is giving up there would be another verdict.
    fn is_unsettled(&self) -> bool {
        let settled = |word: &VoteAnswer| match word {
            VoteAnswer::Held { unsettled, .. } if *unsettled => VoteAnswer::Vote,
            word => *word,
        };
        let words: Vec<VoteAnswer> = self.words.iter().map(settled).collect();
        verdict(&words, self.coordinator, self.state.servers.need()) != Verdict::Held
    }

    fn answer(self, verdict: Verdict) -> Result<Acquired, Failure> {
        let QuorumState {
            servers, ballots, ..
        } = &self.state;
        // Before the verdict is looked at: the release that overtook this attempt gives back what it has.
        if self.refused {
            return Ok(Acquired::GivenUp);
        }
        match verdict {
            Verdict::Granted => {
                let end = ballots.end(self.step.lease, servers.need());
                Ok(Acquired::Granted {
                    // B1: the engine counts from its own send, which was before this began.
                    // No end: another thread has given the ballot up since the verdict. The engine is told of a lease that is over already.
                    remaining: stated(end.unwrap_or(self.began), self.began),
                    tokens: Tokens::NONE,
                })
            }
            Verdict::Waits => Ok(self.words[self.coordinator].says(self.is_unsettled(), None)),
            // QB4: an id whose round has failed is never asked for again, and its votes are given back.
            Verdict::Held => {
                self.give_up();
                let (word, unsettled) = (self.words[self.coordinator], self.is_unsettled());
                // A waiter that has had the coordinator pauses above by itself, and is not to wait for a lease's end.
                let left = if word == VoteAnswer::Vote && self.step.entry.is_some() {
                    Some(Duration::ZERO)
                } else {
                    self.enough_in()
                };
                Ok(word.says(unsettled, left))
            }
            Verdict::NoMajority => {
                self.give_up();
                Err(self.failures.failure(servers))
            }
        }
    }

    fn give_up(&self) {
        let step = &self.step;
        self.state.give_up(&step.id, step.access, step.lease);
    }

    /// When so many of the servers that said no are free that a majority is.
    fn enough_in(&self) -> Option<Duration> {
        let held = self.words.iter().filter_map(|word| match word {
            VoteAnswer::Held { ttl, .. } => Some(ttl.unwrap_or(Duration::MAX)),
            _ => None,
        });
        let mut held: Vec<Duration> = held.collect();
        held.sort_unstable();
        let missing = self.state.servers.need().saturating_sub(self.votes());
        // When as many of these leases have ended as votes are missing: in the order of their ends, that is the last of so many.
        let at = missing.saturating_sub(1).min(held.len().checked_sub(1)?);
        held.get(at).copied().filter(|ttl| *ttl < Duration::MAX)
    }
}

fn votes(words: &[VoteAnswer]) -> usize {
    words.iter().filter(|it| **it == VoteAnswer::Vote).count()
}

fn held(words: &[VoteAnswer]) -> usize {
    let held = |it: &&VoteAnswer| matches!(it, VoteAnswer::Held { .. });
    words.iter().filter(held).count()
}

fn verdict(words: &[VoteAnswer], coordinator: usize, need: usize) -> Verdict {
    // Even beside the votes of a majority: the client that has the coordinator is the next, and would ask for them in vain.
    if let VoteAnswer::Held { .. } = words[coordinator] {
        Verdict::Held
    } else if votes(words) >= need {
        Verdict::Granted
    // So many have answered that only other clients stand in the way: an entry or a poll helps. With fewer, servers are missing.
    } else if votes(words) + held(words) >= need {
        Verdict::Held
    } else {
        Verdict::NoMajority
    }
}

impl VoteAnswer {
    /// The coordinator says who has the name, and how long.
    fn says(self, unsettled: bool, left: Option<Duration>) -> Acquired {
        let (ttl, silent) = match self {
            VoteAnswer::Held { ttl, silent, .. } => (ttl, silent),
            _ => (left, false),
        };
        Acquired::Held {
            ttl,
            silent,
            unsettled,
        }
    }
}
