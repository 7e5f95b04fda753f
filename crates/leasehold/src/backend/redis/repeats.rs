//! Releases that a primary has confirmed, and that the one which took its place may not know.
//!
//! A planned failover promotes a replica about a second before clients hear of it. What they give back in between is given back at the old
//! primary only: at the new one it would be held until its lease ends. So what was confirmed in the last seconds is given back there once
//! more. That does no harm: a lease id that was given up never holds again (B4).

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    caller::Caller,
    epoch::{EpochLog, Ground},
    kinds::wire,
};
use crate::{
    backend::{Release, ReleaseReply, Reply},
    home::Home,
};

/// From so long before the last one on they are kept.
const KEPT: Duration = Duration::from_secs(5);

/// So many at most. Of more, the oldest end with their leases.
const KEPT_MOST: usize = 10_000;

/// So many are under way at a time.
const AT_ONCE: usize = 200;

/// The releases of the last seconds, each with the number of the server that has confirmed it.
#[derive(Default)]
pub(super) struct Lately(Mutex<VecDeque<(Instant, Release, u32)>>);

impl Lately {
    /// Notes a release that a server has confirmed.
    pub(super) fn confirmed(&self, release: Release, by: u32) {
        let now = Instant::now();
        let mut lately = self.0.lock();
        while let Some((then, ..)) = lately.front()
            && (lately.len() >= KEPT_MOST || now.duration_since(*then) > KEPT)
        {
            lately.pop_front();
        }
        lately.push_back((now, release, by));
    }

    /// Gives back once more what is due.
    pub(super) async fn repeat(
        &self,
        is_due: impl Fn(&Release, u32) -> bool,
        give_back: impl Fn(Release) -> Reply<ReleaseReply>,
    ) {
        let due: VecDeque<_> = {
            let mut lately = self.0.lock();
            let all = std::mem::take(&mut *lately);
            let (due, rest) = all
                .into_iter()
                .partition(|(_, release, by)| is_due(release, *by));
            *lately = rest;
            due
        };
        // The newest first: these are the most likely not to be known.
        let due: Vec<_> = due.into_iter().rev().collect();
        for some in due.chunks(AT_ONCE) {
            let answers = some
                .iter()
                .map(|(_, release, _)| give_back(release.clone()));
            let answers = join_all(answers).await;
            for (noted, answer) in some.iter().zip(answers) {
                if answer.is_err_and(|failure| !failure.is_final()) {
                    self.0.lock().push_front(noted.clone());
                }
            }
        }
    }
}

/// Repeats what a primary has confirmed at the one that is there instead.
pub(super) struct Repeats {
    caller: Caller,
    lately: Lately,
}

impl Repeats {
    /// Repeats them whenever another server greets, as long as this lives.
    pub(super) fn new(caller: &Caller, epochs: &EpochLog, home: &Home) -> Arc<Repeats> {
        let repeats = Arc::new(Repeats {
            caller: caller.clone(),
            lately: Lately::default(),
        });
        let following = follow(Arc::downgrade(&repeats), epochs.changes());
        home.handle().spawn(following);
        repeats
    }

    /// Notes a release that the server has confirmed.
    pub(super) fn confirmed(&self, release: Release) {
        self.lately.confirmed(release, 0);
    }

    async fn repeat(&self) {
        let give_back = |release: Release| wire(release.id.kind).release(&self.caller, release);
        self.lately.repeat(|_, _| true, give_back).await;
    }
}

async fn follow(repeats: Weak<Repeats>, mut changes: watch::Receiver<Ground>) {
    let mut epochs = changes.borrow().epochs;
    while changes.changed().await.is_ok() {
        let now = changes.borrow_and_update().epochs;
        if std::mem::replace(&mut epochs, now) != now {
            let Some(repeats) = repeats.upgrade() else {
                return;
            };
            repeats.repeat().await;
        }
    }
}

/// What is given back of this release, once more.
pub(super) fn again(step: &Release) -> Option<Release> {
    // The server keeps no holders of such a kind: it would give back more than there is.
    (!step.id.kind.never_ends()).then(|| Release {
        next: None,
        tombstone_ms: None,
        holds: None,
        ..step.clone()
    })
}
