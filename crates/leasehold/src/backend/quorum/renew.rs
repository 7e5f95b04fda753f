//! Renewals on a quorum: sent to all servers at once, and extended where a majority has extended (QB1, QB2).
//!
//! **QB7** Where a server says "not ours" while a majority still holds, the same lease id asks there again.

use std::{sync::Arc, time::Duration};

use super::{
    ballots::stated,
    round::{Round, ServerReply},
    state::QuorumState,
};
use crate::{
    backend::{Acquire, Extend, Failure, Renew, Renewal, Reply},
    clock::Tick,
};

use super::round::Failures;

/// A hold of a batch, and what the servers have said of it.
struct Entry {
    renew: Renew,
    extended: usize,
    /// These say that it is not ours.
    not_ours: Vec<usize>,
}

/// A batch, to all servers that can be reached; those in quarantine, too, whose votes come back so.
pub(super) fn renew(state: QuorumState, batch: &Arc<[Renew]>) -> Reply<Vec<Renewal>> {
    let servers = Arc::clone(&state.servers);
    let asked = (0..servers.len()).filter(|at| servers.is_reachable(*at));
    let replies: Vec<(usize, Reply<Vec<Renewal>>)> = asked
        .map(|at| (at, servers.at(at).backend.renew(Arc::clone(batch))))
        .collect();
    let entries = batch.iter().map(|renew| Entry {
        renew: renew.clone(),
        extended: 0,
        not_ours: Vec::new(),
    });
    let entries: Vec<Entry> = entries.collect();
    Box::pin(collect(state, replies, entries))
}

async fn collect(
    state: QuorumState,
    replies: Vec<(usize, Reply<Vec<Renewal>>)>,
    mut entries: Vec<Entry>,
) -> Result<Vec<Renewal>, Failure> {
    let servers = &state.servers;
    // Before the replies are polled for the first time, which sends them (B1).
    let sent = state.now();
    let shortest = entries
        .iter()
        .map(|it| it.renew.lease_ms)
        .filter(|it| *it > 0);
    let shortest = shortest.min().map_or(Duration::MAX, Duration::from_millis);
    // A round decides for the whole batch, so the shortest lease in it says how long a server may take.
    let mut round = Round::new(servers, servers.timeout(shortest));
    for (at, reply) in replies {
        round.ask(at, reply);
    }
    let (need, spare) = (servers.need(), servers.spare());
    let is_decided = |it: &Entry| it.extended >= need || it.not_ours.len() > spare;
    while let Some((at, said)) = round.next().await {
        let ServerReply::Answer(renewals) = said else {
            continue;
        };
        // QB6: no vote of a server counts that may have forgotten others.
        let may_vote = servers.may_vote(at);
        for (entry, renewal) in entries.iter_mut().zip(renewals) {
            entry.hear(&state, at, sent, renewal, may_vote);
        }
        if entries.iter().all(is_decided) {
            break;
        }
    }
    let verdicts = entries.iter().map(|it| it.verdict(&state, sent));
    let verdicts = verdicts.collect();
    let late = state.clone();
    round.rest(move |at, answer| {
        let may_vote = late.servers.may_vote(at);
        for (entry, renewal) in entries.iter_mut().zip(answer.into_iter().flatten()) {
            // A batch that has ended without a majority repairs nothing: its hold may be over, and the votes another's.
            let before = entry.not_ours.len();
            entry.hear(&late, at, sent, renewal, may_vote);
            if entry.not_ours.len() > before && entry.extended >= late.servers.need() {
                entry.repair(&late, at);
            }
        }
    });
    Ok(verdicts)
}

impl Entry {
    fn hear(
        &mut self,
        state: &QuorumState,
        at: usize,
        sent: Tick,
        renewal: Renewal,
        may_vote: bool,
    ) {
        match renewal {
            Renewal::Extended if may_vote => {
                self.extended += 1;
                if self.renew.lease_ms > 0 {
                    let lease = Duration::from_millis(self.renew.lease_ms);
                    state.ballots.extended(self.renew.lease, at, sent, lease);
                }
            }
            Renewal::Lost => {
                self.not_ours.push(at);
                state.ballots.lost(self.renew.lease, at);
            }
            Renewal::Extended | Renewal::Shortened(_) | Renewal::Unknown => {}
        }
    }

    fn verdict(&self, state: &QuorumState, sent: Tick) -> Renewal {
        let QuorumState {
            servers, ballots, ..
        } = state;
        if self.not_ours.len() > servers.spare() {
            return Renewal::Lost;
        }
        let renewal = if self.extended >= servers.need() {
            Renewal::Extended
        } else if self.not_ours.is_empty() {
            // QB1: silence ends no vote. Each lasts for as long as its server stated before.
            return Renewal::Unknown;
        } else {
            match ballots.end(self.renew.lease, servers.need()) {
                // Also if that is over: too few servers have said that another has it.
                Some(end) => Renewal::Shortened(stated(end, sent)),
                None => return Renewal::Lost,
            }
        };
        for at in &self.not_ours {
            self.repair(state, *at);
        }
        renewal
    }

    /// Asks there again, under the same lease id (QB7).
    fn repair(&self, state: &QuorumState, at: usize) {
        let QuorumState {
            servers, ballots, ..
        } = state;
        let Renew {
            access,
            lease,
            lease_ms,
            ..
        } = self.renew;
        // Zero only looks: a fixed lease is not made longer by a repair.
        if lease_ms == 0 || !ballots.asks_again(lease, at) {
            return;
        }
        let sent = state.now();
        let step = Acquire {
            id: self.renew.id.clone(),
            access,
            lease,
            lease_ms,
            entry: None,
            permits: None,
        };
        // No holder waits for this answer, so the length of the lease does not bound the time for it.
        let mut round = Round::new(servers, servers.timeout(Duration::MAX));
        round.ask(at, servers.at(at).backend.acquire(step.clone()));
        round.begin(state.heard_late(&step, sent));
    }
}

/// Extends one hold: as much is left of it as of the vote that is the `need`th longest.
pub(super) async fn extend(state: QuorumState, step: Extend) -> Result<Option<Duration>, Failure> {
    let QuorumState {
        servers, ballots, ..
    } = &state;
    let sent = state.now();
    let mut failures = Failures::default();
    let lease = Duration::from_millis(step.lease_ms);
    let lease = if lease.is_zero() {
        Duration::MAX
    } else {
        lease
    };
    let mut round = Round::new(servers, servers.timeout(lease));
    for at in state.askable() {
        round.ask(at, servers.at(at).backend.extend(step.clone()));
    }
    let (mut left, mut not_ours) = (Vec::new(), 0);
    while let Some((at, said)) = round.next().await {
        failures.note(at, &said);
        match said {
            ServerReply::Answer(Some(remaining)) if servers.may_vote(at) => {
                ballots.extended(step.lease, at, sent, remaining);
                left.push(remaining);
            }
            ServerReply::Answer(None) => {
                ballots.lost(step.lease, at);
                not_ours += 1;
            }
            _ => {}
        }
        if left.len() >= servers.need() || not_ours > servers.spare() {
            break;
        }
    }
    // QB2: an end that is later there than it is believed here does no harm, so late answers are only waited for, not counted.
    round.rest(|_, _| {});
    left.sort_unstable();
    match left.iter().rev().nth(servers.need() - 1) {
        Some(remaining) => Ok(Some(*remaining)),
        // Fewer than a majority are left, which must not keep the name from others.
        None if not_ours > servers.spare() => {
            state.give_up(&step.id, step.access, step.lease);
            Ok(None)
        }
        None => Err(failures.failure(servers)),
    }
}
