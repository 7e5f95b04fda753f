//! Releases that a primary has confirmed, and that the one which took its place may not know.
//!
//! A planned failover promotes a replica about a second before clients hear of it. What they give back in between is given back at the old
//! primary only: at the new one it would be held until its lease ends. So what was confirmed in the last seconds is given back there once
//! more. That does no harm: a lease id that was given up never holds again (B4).

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    caller::Caller,
    epoch::{EpochLog, Generation},
    kinds::wire,
};
use crate::{
    backend::{Release, ReleaseReply, Reply},
    clock::Instant,
    home::Home,
    name::Name,
};

/// From so long before the last one on they are kept.
const KEPT: Duration = Duration::from_secs(5);

/// So many at most. Of more, the oldest end with their leases.
const KEPT_MOST: usize = 10_000;

/// So many are under way at a time.
const AT_ONCE: usize = 200;

/// The releases of the last seconds, each with the number of the server that has confirmed it.
#[derive(Default)]
pub(super) struct Lately(Mutex<LatelyState>);

#[derive(Default)]
struct LatelyState {
    releases: VecDeque<Confirmed>,
    /// How many were before the first of these.
    gone: usize,
    /// How often servers had changed when what is due was searched for last.
    changes: u64,
    /// How many of these are due and not repeated yet.
    due: usize,
    /// When a release was repeated last.
    last: Option<Instant>,
}

impl LatelyState {
    fn is_settled(&self, changes: u64) -> bool {
        self.changes == changes && self.due == 0
    }
}

struct Confirmed {
    at: Instant,
    release: Release,
    by: u64,
    repeat: Repeat,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// Not known to be due.
    No,
    Due,
    UnderWay,
    Done(Instant),
}

impl Lately {
    /// Notes a release that a server has confirmed. `is_due`: servers have changed since it was sent.
    pub(super) fn confirmed(&self, release: Release, by: u64, is_due: bool) {
        let at = Instant::now();
        let lately = &mut *self.0.lock();
        while let Some(first) = lately.releases.front()
            && (lately.releases.len() >= KEPT_MOST || at.duration_since(first.at) > KEPT)
        {
            lately.due -= usize::from(matches!(first.repeat, Repeat::Due | Repeat::UnderWay));
            lately.releases.pop_front();
            lately.gone += 1;
        }
        lately.due += usize::from(is_due);
        let repeat = if is_due { Repeat::Due } else { Repeat::No };
        lately.releases.push_back(Confirmed {
            at,
            release,
            by,
            repeat,
        });
    }

    /// Whether a lease id of this name, which a server has confirmed as given up, may have been held at another since then (B5). Servers
    /// have changed `changes` times.
    pub(super) fn may_be_held(
        &self,
        name: &Name,
        since: Instant,
        changes: u64,
        is_due: impl Fn(&Release, u64) -> bool,
    ) -> bool {
        let lately = self.0.lock();
        if lately.is_settled(changes) && lately.last.is_none_or(|last| last < since) {
            return false; // as nearly always: all names need not be compared
        }
        lately.releases.iter().any(|it| {
            it.release.id.name == *name
                && match it.repeat {
                    // An older one was replicated by then.
                    Repeat::No => {
                        since.saturating_duration_since(it.at) <= KEPT && is_due(&it.release, it.by)
                    }
                    Repeat::Due | Repeat::UnderWay => true,
                    Repeat::Done(at) => at >= since,
                }
        })
    }

    /// Whether nothing is left to repeat after `changes` of servers.
    pub(super) fn is_settled(&self, changes: u64) -> bool {
        self.0.lock().is_settled(changes)
    }

    /// Gives back once more what is due after `changes` of servers.
    pub(super) async fn repeat(
        &self,
        changes: u64,
        is_due: impl Fn(&Release, u64) -> bool,
        give_back: impl Fn(Release) -> Reply<ReleaseReply>,
    ) {
        let due = self.take_due(changes, is_due);
        for some in due.chunks(AT_ONCE) {
            let answers = some.iter().map(|(_, release)| give_back(release.clone()));
            let answers = join_all(answers).await;
            let now = Instant::now();
            let lately = &mut *self.0.lock();
            for ((number, _), answer) in some.iter().zip(answers) {
                let at = number.checked_sub(lately.gone);
                let Some(it) = at.and_then(|at| lately.releases.get_mut(at)) else {
                    continue;
                };
                it.repeat = if answer.is_err_and(|failure| !failure.is_final()) {
                    Repeat::Due
                } else {
                    lately.due -= 1;
                    Repeat::Done(now)
                };
            }
            lately.last = Some(now);
        }
    }

    /// The newest first: these are the most likely not to be known. Each with its number among all.
    fn take_due(
        &self,
        changes: u64,
        is_due: impl Fn(&Release, u64) -> bool,
    ) -> Vec<(usize, Release)> {
        let lately = &mut *self.0.lock();
        lately.changes = lately.changes.max(changes);
        let mut due = Vec::new();
        for (at, it) in lately.releases.iter_mut().enumerate().rev() {
            match it.repeat {
                Repeat::No if is_due(&it.release, it.by) => lately.due += 1,
                Repeat::Due => {}
                _ => continue,
            }
            it.repeat = Repeat::UnderWay;
            due.push((lately.gone + at, it.release.clone()));
        }
        due
    }
}

/// Repeats what a primary has confirmed at the one that is there instead.
pub(super) struct Repeats {
    caller: Caller,
    epochs: Arc<EpochLog>,
    home: Home,
    lately: Lately,
}

impl Repeats {
    /// Repeats them whenever another server greets, as long as this lives.
    pub(super) fn new(caller: &Caller, epochs: &Arc<EpochLog>, home: &Home) -> Arc<Repeats> {
        let repeats = Arc::new(Repeats {
            caller: caller.clone(),
            epochs: Arc::clone(epochs),
            home: home.clone(),
            lately: Lately::default(),
        });
        let following = follow(Arc::downgrade(&repeats), epochs.changes());
        home.handle().spawn(following);
        repeats
    }

    /// The number of the server that steps are sent to from now on.
    pub(super) fn server(&self) -> u64 {
        self.epochs.generation().epochs
    }

    /// Notes a release that the server of this number has confirmed.
    pub(super) fn confirmed(self: &Arc<Self>, release: Release, by: u64) {
        let is_due = by != self.server();
        self.lately.confirmed(release, by, is_due);
        if is_due {
            let repeats = Arc::clone(self);
            self.home
                .handle()
                .spawn(async move { repeats.repeat().await });
        }
    }

    /// See [`Lately::may_be_held`].
    pub(super) fn may_be_held(&self, name: &Name, since: Instant) -> bool {
        let server = self.server();
        self.lately
            .may_be_held(name, since, server, |_, by| by != server)
    }

    async fn repeat(&self) {
        let give_back = |release: Release| wire(release.id.kind).release(&self.caller, release);
        let server = self.server();
        let is_due = |_: &Release, by| by != server;
        self.lately.repeat(server, is_due, give_back).await;
    }
}

async fn follow(repeats: Weak<Repeats>, mut changes: watch::Receiver<Generation>) {
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
