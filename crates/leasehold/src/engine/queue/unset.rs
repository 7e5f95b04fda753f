//! A semaphore of which no client has set how many permits there are: a caller whose time is up is told so, and one that waits on is
//! warned.

use std::sync::Arc;

use super::{Queue, QueueState, WaitResult, spec::Spec};
use crate::{
    Error,
    backend::{Acquired, Failure},
    callout,
    engine::core::Core,
};

#[derive(Debug, thiserror::Error)]
#[error(
    "the semaphore has no permits; set them: permits(n) does where no client has, or call try_set_permits(n)"
)]
struct NoPermits;

impl Queue {
    /// Notes whether the server says so, and warns of it once.
    pub(super) fn is_unset(
        &self,
        core: &Core,
        state: &mut QueueState,
        answer: &Result<Acquired, Failure>,
    ) {
        let Ok(acquired) = answer else { return };
        let before = std::mem::replace(&mut state.unset, *acquired == Acquired::Unset);
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
    pub(super) fn busy(&self, state: &QueueState, spec: Spec) -> WaitResult {
        if state.unset {
            return Err(self.no_permits(spec));
        }
        Ok(None)
    }

    pub(super) fn no_permits(&self, spec: Spec) -> Error {
        self.error(Failure::Rejected(Arc::new(NoPermits)), spec)
    }
}
