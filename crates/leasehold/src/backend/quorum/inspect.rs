//! The servers' words about a lock, put together: who holds it, how often its owner has entered, and its end by force.

use std::{collections::BTreeSet, time::Duration};

use super::{
    round::{Failures, Round, ServerReply},
    state::QuorumState,
};
use crate::{
    backend::{Count, Counted, Failure, ForceUnlock, Inspection, KnownClient, Owned, SeenVote},
    name::LockId,
};

/// The owner with the votes of a majority holds it. Each server's word is told beside that.
pub(super) async fn inspect(state: QuorumState, id: LockId) -> Result<Inspection, Failure> {
    let servers = &state.servers;
    let coordinator = servers.coordinator(&id);
    let mut round = Round::new(servers, servers.timeout(Duration::MAX));
    for at in (0..servers.len()).filter(|at| servers.is_reachable(*at)) {
        round.ask(at, servers.at(at).backend.inspect(id.clone()));
    }
    let mut said: Vec<Option<Inspection>> = vec![None; servers.len()];
    let mut why: Vec<Option<String>> = vec![None; servers.len()];
    let mut failures = Failures::default();
    // To the end, not only to a majority: the user is shown the word of each server.
    while let Some((at, word)) = round.next().await {
        failures.note(at, &word);
        match word {
            ServerReply::Answer(found) => said[at] = Some(found),
            ServerReply::Failed(failure) => why[at] = Some(failure.cause().to_string()),
            ServerReply::Silent(cause) | ServerReply::Waits(cause) => {
                why[at] = Some(cause.to_string());
            }
        }
    }
    // "Free" is said only by a majority: the others may all hold it.
    if said.iter().flatten().count() < servers.need() {
        return Err(failures.failure(servers));
    }
    let mut found = coordinator
        .and_then(|coordinator| said[coordinator].clone())
        .unwrap_or_default();
    found.owners = holders(&said, servers.need());
    found.votes = said
        .iter_mut()
        .enumerate()
        .map(|(at, said)| SeenVote {
            server: servers.at(at).name.clone(),
            answer: if let Some(found) = said {
                // At most one owner is there: a quorum has only kinds with one holder at a time (`supports`).
                Ok(found.owners.pop())
            } else {
                let trouble = || servers.at(at).backend.trouble().map(|it| it.to_string());
                let why = why[at].take().or_else(trouble);
                Err(why.unwrap_or_else(|| "was not asked".to_owned()))
            },
            quarantine: servers.quarantine(at),
        })
        .collect();
    Ok(found)
}

/// The owners that a majority names, until the end of the vote that is the `need`th longest.
fn holders(said: &[Option<Inspection>], need: usize) -> Vec<Owned> {
    let all: Vec<&Owned> = said.iter().flatten().flat_map(|it| &it.owners).collect();
    let mut holders: Vec<Owned> = Vec::new();
    for owned in &all {
        if holders.iter().any(|it| it.owner == owned.owner) {
            continue;
        }
        let votes: Vec<&Owned> = all
            .iter()
            .copied()
            .filter(|it| it.owner == owned.owner)
            .collect();
        let mut ends: Vec<Duration> = votes
            .iter()
            .map(|it| it.ttl.unwrap_or(Duration::MAX))
            .collect();
        ends.sort_unstable();
        if let Some(end) = ends.iter().rev().nth(need - 1) {
            holders.push(Owned {
                ttl: Some(*end).filter(|end| *end < Duration::MAX),
                client: client(&votes, need),
                ..(*owned).clone()
            });
        }
    }
    holders
}

/// A holder's client is connected if any server says so, since it may be cut off from the others; and not, if a majority says that.
fn client(votes: &[&Owned], need: usize) -> KnownClient {
    let clients = || votes.iter().map(|vote| &vote.client);
    let is_missed = clients().filter(|it| it.connected == Some(false)).count() >= need;
    let there: Vec<_> = clients().filter(|it| it.connected == Some(true)).collect();
    let mut told = there.iter().copied().chain(clients());
    let told = told.find(|it| it.label.is_some());
    KnownClient {
        connected: (!there.is_empty() || is_missed).then_some(!there.is_empty()),
        idle: there.iter().filter_map(|it| it.idle).min(),
        is_named: clients().any(|it| it.is_named),
        ..told.cloned().unwrap_or_default()
    }
}

pub(super) async fn count(state: QuorumState, step: Count) -> Result<Counted, Failure> {
    let servers = &state.servers;
    let mut round = Round::new(servers, servers.timeout(Duration::MAX));
    for at in state.askable() {
        round.ask(at, servers.at(at).backend.count(step.clone()));
    }
    let (mut written, mut not_ours) = (0, 0);
    let mut failures = Failures::default();
    while let Some((at, said)) = round.next().await {
        failures.note(at, &said);
        match said {
            ServerReply::Answer(Counted::NotOurs) => not_ours += 1,
            ServerReply::Answer(_) => written += 1,
            _ => {}
        }
        if written >= servers.need() || not_ours > servers.spare() {
            break;
        }
    }
    round.rest(|_, _| {});
    if written >= servers.need() {
        Ok(Counted::Written)
    } else if not_ours > servers.spare() {
        // The hold has ended, and a minority may have it still (QB4).
        state.give_up(&step.id, step.access, step.lease);
        Ok(Counted::NotOurs)
    } else {
        Err(failures.failure(servers))
    }
}

/// Takes the lock from its holders at all servers; a majority must have done so. From holders that were seen it is taken only if a majority
/// has them still: a renewal that arrives at some servers first may cost it the votes of the others, which it asks for again.
pub(super) async fn force_unlock(
    state: QuorumState,
    step: ForceUnlock,
) -> Result<Vec<String>, Failure> {
    let servers = &state.servers;
    let mut round = Round::new(servers, servers.timeout(Duration::MAX));
    // Servers in quarantine, too: a holder's lease there would outlive the force, and get its vote back.
    for at in (0..servers.len()).filter(|at| servers.is_reachable(*at)) {
        round.ask(at, servers.at(at).backend.force_unlock(step.clone()));
    }
    let (mut owners, mut answers, mut taken) = (BTreeSet::new(), 0, 0);
    let mut failures = Failures::default();
    while let Some((at, said)) = round.next().await {
        failures.note(at, &said);
        if let ServerReply::Answer(held) = said {
            answers += 1;
            taken += usize::from(!held.is_empty());
            owners.extend(held);
        }
    }
    round.rest(|_, _| {});
    if answers < servers.need() {
        return Err(failures.failure(servers));
    }
    if !step.seen.is_empty() && taken < servers.need() {
        owners.clear();
    }
    Ok(owners.into_iter().collect())
}
