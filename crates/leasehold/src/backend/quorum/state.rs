//! The state that every step on a quorum works with.

use std::{sync::Arc, time::Duration};

use super::{
    ballots::{Ballots, PendingAt},
    coordinator::CoordinatorListeners,
    pending::PendingReleases,
    round::Round,
    servers::Servers,
};
use crate::{
    backend::{Acquire, Acquired, Failure, Release, ReleaseReply},
    clock::Tick,
    kind::Access,
    name::LockId,
    owner::LeaseId,
};

#[derive(Clone)]
pub(super) struct QuorumState {
    pub(super) servers: Arc<Servers>,
    pub(super) ballots: Arc<Ballots>,
    pub(super) pending_releases: Arc<PendingReleases>,
    pub(super) listeners: Arc<CoordinatorListeners>,
}

impl QuorumState {
    pub(super) fn now(&self) -> Tick {
        self.servers.clock.now()
    }

    /// The servers of which an answer is of use, and to which a request leaves at once.
    pub(super) fn askable(&self) -> Vec<usize> {
        let servers = &self.servers;
        let all = 0..servers.len();
        // A server in quarantine is not even asked: its grant would be no vote, and would have to be given back (QB6).
        all.filter(|at| servers.may_vote(*at) && servers.is_reachable(*at))
            .collect()
    }

    /// Gives up a lease id at all servers that may have anything of it (QB4), and waits for none of them.
    pub(super) fn give_up(&self, id: &LockId, access: Access, lease: LeaseId) {
        let pending = self.ballots.give_up(lease, &id.name);
        if !pending.is_empty() {
            let (release, longest) = (
                Release::giving_back(id, access, lease),
                self.pending_releases.longest,
            );
            // Sent before this returns: a caller that asks anew at once sends its requests behind these.
            self.release_at(&pending, &release, longest)
                .begin(self.told(release, longest));
        }
    }

    /// Hears the answer to an ask that no step waits for. A lock that it holds all the same is given back (B5).
    pub(super) fn heard_late(
        &self,
        step: &Acquire,
        sent: Tick,
    ) -> impl FnMut(usize, Result<Acquired, Failure>) + Send + use<> {
        let state = self.clone();
        let release = Release::giving_back(&step.id, step.access, step.lease);
        move |at, answer| {
            let lease = release.lease;
            let may_vote = state.servers.may_vote(at);
            state.ballots.answered(lease, at, sent, &answer, may_vote);
            // The release may have reached the server before this ask, and found nothing: so the server is told once more.
            if matches!(answer, Ok(Acquired::Granted { .. })) && !state.ballots.is_open(lease) {
                state
                    .pending_releases
                    .add(at, &release, state.pending_releases.longest);
            }
        }
    }

    /// The round that tells these servers.
    pub(super) fn release_at(
        &self,
        pending: &[PendingAt],
        release: &Release,
        longest: Duration,
    ) -> Round<ReleaseReply> {
        let mut round = Round::new(&self.servers, self.servers.timeout(longest));
        for PendingAt { at, copies } in pending {
            // A server of which all asks are answered needs none: no copy can come after its release (QB4).
            let tombstone = copies.then_some(self.pending_releases.tombstone_ms);
            let release = Release {
                tombstone_ms: release.tombstone_ms.or(tombstone),
                // A server counts the listeners that it has: this client is among them at its coordinator only.
                listening: release.listening && self.listeners.hears(&release.id, *at),
                ..release.clone()
            };
            round.ask(*at, self.servers.at(*at).backend.release(release));
        }
        round
    }

    /// Hears the answers to a release that `release_at` has sent.
    pub(super) fn told(
        &self,
        release: Release,
        longest: Duration,
    ) -> impl FnMut(usize, Result<ReleaseReply, Failure>) + Send + use<> {
        let pending_releases = Arc::clone(&self.pending_releases);
        move |at, answer| pending_releases.answered(at, &release, longest, &answer)
    }

    /// Forgets what holds have left behind that were left to expire, once in a while.
    pub(super) fn tidy(&self) {
        if self.ballots.is_large() {
            self.ballots.tidy(self.now());
        }
    }
}
