//! Several locks in one step.

use std::sync::Arc;

use super::Store;
use crate::backend::{Acquire, Acquired, AcquiredAll};

impl Store {
    /// Takes all of the locks, or none.
    pub(crate) fn acquire_all(&mut self, client: &Arc<str>, steps: &[Acquire]) -> AcquiredAll {
        if let Some(at) = steps.iter().position(|step| !self.can_take(client, step)) {
            return AcquiredAll::Held(at);
        }
        let granted = steps.iter().map(|step| self.acquire(client, step));
        let left = granted.map(|answer| match answer {
            Acquired::Granted { remaining, .. } => Some(remaining),
            Acquired::Held { .. } | Acquired::GivenUp | Acquired::Unset => None,
        });
        let left: Option<Vec<_>> = left.collect();
        // Names are different, so none of them is in the way of another.
        left.map_or(AcquiredAll::Held(0), AcquiredAll::Granted)
    }

    fn can_take(&mut self, client: &Arc<str>, step: &Acquire) -> bool {
        let holds = self.ours(client, &step.id, step.lease).is_some();
        holds || !self.is_given_up(client, step.lease) && self.fits(&step.id, step.access)
    }
}
