//! How a process learns that a hold of its own was taken from it, while tasks of it wait for the lock.

use std::{sync::Arc, time::Duration};

use crate::backend::Reply;
use crate::config::PollRange;
use crate::engine::{
    claim::remote::Subscription,
    hold::Hold,
    queue::{Phase, Queue, QueueState, hearing::sent},
};

/// After so long a task that waits behind a holder of its process has this listen: most waits are over by then, and cost the server nothing.
pub(crate) const HEAR_AFTER: Duration = Duration::from_secs(1);

/// Where there was nothing to do for a task that waits, it looks again after this time.
const AGAIN: Duration = Duration::from_secs(1);

/// What is heard has a hold verified once in this time. One that is younger is verified when it is so old: the message may be a late word
/// of the release before.
const DOUBT_EVERY: Duration = Duration::from_millis(50);

impl Queue {
    /// The holds of this process may have been taken from it: they are verified, once in a while. `forced`: by force, says the server.
    pub(crate) fn doubt_holders(&self, forced: bool) {
        let now = self.core.clock.now();
        let (holds, at) = {
            let mut state = self.lock();
            let holds = state.all_held();
            // No renewal of a short lease is to come late by this.
            let every = holds.iter().map(|hold| hold.spec().ask_every()).min();
            let Some(latest) = every.map(|every| now.after(DOUBT_EVERY.min(every / 8))) else {
                return;
            };
            let young_until = if forced {
                now
            } else {
                state.since.after(DOUBT_EVERY)
            };
            let remote = state.remote();
            if remote.doubted > now {
                return; // the server is going to be asked
            }
            let at = young_until.max(remote.doubted.after(DOUBT_EVERY));
            remote.doubted = at.min(latest).max(now);
            (holds, remote.doubted)
        };
        for hold in holds {
            hold.doubt(at);
        }
    }

    /// This task has waited for a while. If a holder of its process has the lock, the process hears from now on if it is taken from that.
    /// Returns after which time it is to look again; `None`: that is all.
    pub(crate) fn attend(self: &Arc<Self>, number: i64) -> Option<Duration> {
        if let Some(lineup) = self.core.lineup(&self.id) {
            // Redisson tells the next in turn alone that a lock was unlocked by force.
            if !lineup.is_next(self.id.task()) {
                return Some(AGAIN);
            }
            if let Some(heard) = self.hear_own() {
                let queue = Arc::clone(self);
                self.core.spawn(async move {
                    let _ = heard.await;
                    queue.driver_wake().notify_one();
                });
            }
            return None;
        }
        let mut state = self.lock();
        let Phase::Held(hold) = &state.phase else {
            // As its driver does, until none waits; or is about to.
            let remote = state.remote.as_ref();
            let hears = remote.is_some_and(|it| it.subscription != Subscription::Closed);
            return (!hears).then_some(AGAIN);
        };
        let waits = hold.spec().waits;
        if !waits.listens() {
            // Only the first looks, as often as it would if another process held it.
            if state.first_number() != Some(number) {
                return Some(AGAIN);
            }
            drop(state);
            self.doubt_holders(true);
            return waits.backoff(true).map(PollRange::usual);
        }
        let remote = state.remote();
        if remote.subscription == Subscription::Closed {
            remote.subscription = Subscription::Opening;
            drop(state);
            // Asked for here: if the last waiter leaves, that is asked for behind this.
            let heard = sent(self.core.backend.listen(self.id.clone()));
            self.core.spawn(hear(Arc::clone(self), heard));
        }
        None
    }
}

/// Has the process hear wake-ups although a holder of its own has the lock.
async fn hear(queue: Arc<Queue>, heard: Reply<()>) {
    let answer = heard.await;
    let is_open = {
        let mut state = queue.lock();
        let is_held = matches!(state.phase, Phase::Held(_));
        let remote = state.remote();
        // If the last waiter has left meanwhile, it was closed again. A driver asks by itself.
        let is_opening = is_held && remote.subscription != Subscription::Closed;
        if is_opening {
            let is_good = answer.is_ok() && remote.subscription != Subscription::Doubtful;
            remote.subscription = if is_good {
                Subscription::Open
            } else {
                // The request may have been carried out, and no other would end that.
                drop(queue.core.backend.unlisten(&queue.id));
                Subscription::Closed
            };
        }
        is_opening && answer.is_ok()
    };
    if is_open {
        // For what happened before.
        queue.doubt_holders(true);
    }
}

impl QueueState {
    /// All holds of this queue.
    pub(crate) fn all_held(&self) -> Vec<Arc<Hold>> {
        let exclusive = match &self.phase {
            Phase::Held(hold) => Some(hold),
            _ => None,
        };
        let all = exclusive.into_iter().chain(self.shared.all());
        all.map(Arc::clone).collect()
    }
}
