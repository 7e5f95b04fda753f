//! The end of a hold on a quorum: answered when a majority, and the coordinator, have confirmed it (QB5).

use super::{
    round::{Failures, ServerReply},
    state::QuorumState,
};
use crate::backend::{Failure, Release, ReleaseReply};

pub(super) async fn release(state: QuorumState, step: Release) -> Result<ReleaseReply, Failure> {
    let QuorumState {
        servers,
        ballots,
        pending_releases,
        listeners,
    } = &state;
    let longest = pending_releases.longest;
    // It may have been heard, and not asked about.
    listeners.was_granted(step.lease);
    let (mut had, mut not_ours) = (ballots.had(step.lease), 0);
    let pending = ballots.give_up(step.lease, &step.id.name);
    let release = Release {
        // The name is freed, and asked for again: one server cannot keep it for this client.
        next: None,
        holds: None,
        ..step
    };
    let coordinator = servers.coordinator(&release.id);
    // A coordinator that has nothing of this lease id gets no release, and so passes nothing on.
    let mut waits_for_coordinator = pending
        .iter()
        .any(|pending| Some(pending.at) == coordinator);
    let mut may_have_coordinator = waits_for_coordinator;
    let (all, mut left) = (pending.len(), pending.len());
    let mut failures = Failures::default();
    let mut round = state.release_at(&pending, &release, longest);
    let mut open: Vec<usize> = pending.iter().map(|pending| pending.at).collect();
    // The coordinator is waited for beyond a majority: its release wakes the next waiter, or passes the name on.
    while left > servers.spare() || waits_for_coordinator {
        let Some((at, said)) = round.next().await else {
            break;
        };
        let is_coordinator = Some(at) == coordinator;
        waits_for_coordinator &= !is_coordinator;
        failures.note(at, &said);
        match said {
            ServerReply::Answer(reply) => {
                left -= usize::from(open.contains(&at));
                // A server that has forgotten a lock gives it to no other yet (QB6).
                if reply == ReleaseReply::NotOurs && servers.may_vote(at) {
                    not_ours += 1;
                } else {
                    had += 1;
                }
                may_have_coordinator &= !is_coordinator;
                if is_coordinator && matches!(reply, ReleaseReply::Granted { .. }) {
                    listeners.passed_on(&release.id, state.now());
                }
                pending_releases.answered(at, &release, longest, &Ok(reply));
                open.retain(|it| *it != at);
            }
            ServerReply::Failed(_) => {
                pending_releases.add(at, &release, longest);
            }
            // Nothing is noted here: `told` hears the answer, or its failure, when the round is over.
            ServerReply::Silent(_) | ServerReply::Waits(_) => {}
        }
    }
    round.rest(state.told(release, longest));
    // Where the coordinator may have it still, no other gets the name: the caller is told so, and it is repeated.
    if left > servers.spare() || may_have_coordinator {
        // A pending release may tell it before it is repeated: then none has it, and that is no loss.
        let failure = failures.failure(servers);
        // A refusal for good stays one: it ends the repetitions, and needs a hand.
        return Err(if failure.is_final() {
            failure
        } else {
            failure.after_silence(true)
        });
    }
    // Some may have been told as a pending release meanwhile.
    let had = had.max(ballots.had(step.lease));
    // A majority cannot have held it.
    let never = all > 0 && had + left < servers.need() && not_ours > 0;
    Ok(if never {
        ReleaseReply::NotOurs
    } else {
        ReleaseReply::Freed {
            others: 0,
            turns: 0,
        }
    })
}
