//! Releases that servers are still to be told of: a lease id is given up (QB5).
//!
//! A release is answered by a majority. The others are told until they confirm it, or until a tombstone and a lease have passed, since
//! their last word. A server that was out of reach for all of that keeps the id for a lease at most.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use parking_lot::Mutex;

use super::{ballots::Ballots, servers::Servers};
use crate::{
    backend::{Failure, Release, ReleaseReply},
    backoff::Backoff,
    clock::{Tick, margin},
    owner::LeaseId,
};

/// So many are told at once.
const AT_ONCE: usize = 64;

/// Between two tries.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));

pub(super) struct PendingReleases {
    servers: Arc<Servers>,
    ballots: Arc<Ballots>,
    of: Vec<OfServer>,
    /// How long a tombstone stays.
    pub(super) tombstone_ms: u64,
    /// How long a lease lasts at most.
    pub(super) longest: Duration,
}

#[derive(Default)]
struct OfServer {
    all: Mutex<BTreeMap<LeaseId, PendingAtServer>>,
    is_reporting: AtomicBool,
}

#[derive(Clone)]
struct PendingAtServer {
    release: Release,
    until: Tick,
}

impl PendingReleases {
    pub(super) fn new(
        servers: &Arc<Servers>,
        ballots: &Arc<Ballots>,
        tombstone_ms: u64,
        longest: Duration,
    ) -> Arc<PendingReleases> {
        Arc::new(PendingReleases {
            servers: Arc::clone(servers),
            ballots: Arc::clone(ballots),
            of: (0..servers.len()).map(|_| OfServer::default()).collect(),
            tombstone_ms,
            longest,
        })
    }

    /// A server has answered a release, or has not.
    pub(super) fn answered(
        self: &Arc<Self>,
        at: usize,
        release: &Release,
        longest: Duration,
        answer: &Result<ReleaseReply, Failure>,
    ) {
        match answer {
            Ok(reply) => {
                let had = *reply != ReleaseReply::NotOurs;
                self.of[at].all.lock().remove(&release.lease);
                self.ballots.confirmed(release.lease, at, had);
            }
            Err(_) => self.add(at, release, longest),
        }
    }

    /// A server is to be told until it confirms. A copy of a request of before may be carried out as long as its tombstone lasts, and holds
    /// for a lease then.
    pub(super) fn add(self: &Arc<Self>, at: usize, release: &Release, longest: Duration) {
        let now = self.servers.clock.now();
        // B4: always with a tombstone, since this server has left an answer open, and a copy of an ask may come later.
        let release = Release {
            tombstone_ms: Some(self.tombstone_ms),
            ..release.clone()
        };
        let over = longest + margin(longest) + Duration::from_millis(self.tombstone_ms);
        let pending_release = PendingAtServer {
            release,
            until: now.after(over),
        };
        let all = &self.of[at].all;
        all.lock()
            .entry(pending_release.release.lease)
            .or_insert(pending_release);
        // The task has a strong pointer: what is owed outlives the client (QB5).
        if !self.of[at].is_reporting.swap(true, Ordering::AcqRel) {
            let pending_releases = Arc::clone(self);
            let handle = self.servers.background.handle();
            drop(handle.spawn(async move { pending_releases.tell(at).await }));
        }
    }

    /// Tells one server, until nothing is left to be told.
    async fn tell(self: Arc<Self>, at: usize) {
        let (of, member) = (&self.of[at], self.servers.at(at));
        let (mut backoff, mut most) = (AGAIN, AT_ONCE);
        loop {
            self.servers.background.sleep(backoff.next()).await;
            let now = self.servers.clock.now();
            // Before the next are told: what has expired need not be sent to a server that never answers.
            for lease in self.expired(at, now) {
                self.ballots.expired(lease, at);
            }
            let next: Vec<PendingAtServer> = of.all.lock().values().take(most).cloned().collect();
            if next.is_empty() {
                of.is_reporting.store(false, Ordering::Release);
                // A release may have come since.
                if of.all.lock().is_empty() || of.is_reporting.swap(true, Ordering::AcqRel) {
                    return;
                }
                continue;
            }
            // A server without a connection is left in peace: each request would only wait for one, and fail with it.
            if !self.servers.is_reachable(at) {
                continue;
            }
            // Side by side: a server that was away for a while may be owed thousands. After a try without an answer, a
            // single one asks whether it answers again (bug 332).
            let told = next
                .iter()
                .map(|pending_release| member.backend.release(pending_release.release.clone()));
            most = 1;
            for (pending_release, answer) in next.iter().zip(join_all(told).await) {
                let is_final = answer.as_ref().is_err_and(Failure::is_final);
                if let Ok(reply) = answer {
                    self.servers.note_silent(at, false);
                    let had = reply != ReleaseReply::NotOurs;
                    self.ballots
                        .confirmed(pending_release.release.lease, at, had);
                } else if is_final {
                    // Another try gets the same: it expires.
                    self.ballots.expired(pending_release.release.lease, at);
                } else {
                    continue;
                }
                of.all.lock().remove(&pending_release.release.lease);
                most = AT_ONCE;
            }
            if most == AT_ONCE {
                backoff.reset();
            }
        }
    }

    /// Takes out what the server has nothing of any more.
    fn expired(&self, at: usize, now: Tick) -> Vec<LeaseId> {
        let mut all = self.of[at].all.lock();
        let over: Vec<LeaseId> = all
            .iter()
            .filter_map(|(lease, pending_release)| (pending_release.until <= now).then_some(*lease))
            .collect();
        for lease in &over {
            all.remove(lease);
        }
        over
    }
}
