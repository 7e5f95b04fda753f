//! How many permits of a semaphore there are: what the waiters of this process say, and where no client has set it. There a caller whose
//! time is up is told so, and one that waits on is warned.

use std::sync::Arc;

use crate::{
    Error,
    backend::{Acquired, Failure, Permits},
    callout,
    engine::hold::spec::Spec,
    engine::local::answer::WaitResult,
    engine::queue::map::Queues,
    engine::queue::{Queue, QueueState},
    kind::Access,
};

#[derive(Debug, thiserror::Error)]
#[error(
    "the semaphore has no permits; set them: permits(n) does where no client has, or call try_set_permits(n)"
)]
struct NoPermits;

impl QueueState {
    /// What the driver says for all waiters (L4), and not for the first alone: the latest number that also counts where there is one, or else
    /// the latest.
    pub(crate) fn permits_to_say(&self) -> Option<Permits> {
        if !self.differ {
            return self.waiters.back()?.spec.permits;
        }
        let live = self.waiters.iter().rev().filter(|w| !w.answer.is_closed());
        let mut said = live.filter_map(|waiter| waiter.spec.permits);
        let counts = said.clone().find(|n| matches!(n, Permits::Set(_)));
        counts.or_else(|| said.next())
    }

    /// Whether the server is to be told this number, which may change how many permits there are.
    pub(crate) fn is_unsaid(&self, number: Option<Permits>) -> bool {
        match number {
            None => false,
            Some(Permits::TrySet(_)) => self.unset,
            Some(_) => {
                let ticket = self.remote.as_ref().and_then(|r| r.ticket.as_ref());
                ticket.is_none_or(|ticket| ticket.said != number)
            }
        }
    }
}

impl Queue {
    /// Notes whether the server says so, and warns of it once.
    pub(crate) fn note_unset(&self, core: &Queues, state: &mut QueueState, answer: &Acquired) {
        let before = std::mem::replace(&mut state.unset, *answer == Acquired::Unset);
        if state.unset && !before {
            let name = self.id.name.clone();
            // Not under the queue's lock, as other warnings.
            core.spawn(async move {
                callout::quietly(|| {
                    tracing::warn!(target: "leasehold", %name, "waiting for a permit: {NoPermits}");
                });
            });
        }
    }

    /// The answer to a caller that waits no longer for what others have.
    pub(crate) fn busy(&self, state: &QueueState, spec: Spec) -> WaitResult {
        // One that says a number itself need not set it.
        if state.unset && spec.permits.is_none() {
            return Err(self.no_permits(spec));
        }
        Ok(None)
    }

    /// Of a caller that wants more than there are, as its own handle says. Others may have set more.
    pub(crate) fn warn_of_too_many_permits(&self, spec: Spec) {
        let (Access::Permits(wanted), Some(Permits::TrySet(said))) = (spec.access, spec.permits)
        else {
            return;
        };
        if u32::from(wanted) > said {
            let name = &self.id.name;
            callout::quietly(|| {
                tracing::warn!(
                    target: "leasehold", %name, wanted, said, at = %spec.place,
                    "waiting for more permits than permits(n) says there are: they come only if somebody adds permits"
                );
            });
        }
    }

    pub(crate) fn no_permits(&self, spec: Spec) -> Error {
        self.error(Failure::Rejected(Arc::new(NoPermits)), spec)
    }
}
