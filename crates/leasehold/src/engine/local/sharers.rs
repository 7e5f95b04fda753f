//! Holds of this process that share the lock with others: readers', and permits'.

use std::sync::Arc;

use crate::{
    clock::Tick,
    engine::hold::Hold,
    engine::hold::spec::Spec,
    owner::{LeaseId, OwnerId},
};

/// Such holds of one queue. Boxed, since most queues have none.
#[derive(Debug, Default)]
pub(crate) struct SharedHolds(Option<Box<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    holds: Vec<Arc<Hold>>,
    /// Releases under way, the latest last; by a caller, if there is one.
    releasing: Vec<LeaseId>,
}

impl SharedHolds {
    pub(crate) fn all(&self) -> &[Arc<Hold>] {
        self.0.as_ref().map_or(&[], |inner| &inner.holds)
    }

    /// Nothing is held, and nothing is being given back.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn add(&mut self, hold: &Arc<Hold>) {
        self.0.get_or_insert_default().holds.push(Arc::clone(hold));
    }

    /// `false` if it was not there.
    pub(crate) fn remove(&mut self, hold: &Arc<Hold>) -> bool {
        let Some(inner) = &mut self.0 else {
            return false;
        };
        let before = inner.holds.len();
        inner.holds.retain(|there| !Arc::ptr_eq(there, hold));
        let found = inner.holds.len() < before;
        self.tidy();
        found
    }

    /// It is being given back from now on.
    pub(crate) fn release(&mut self, hold: &Arc<Hold>) {
        let inner = self.0.get_or_insert_default();
        inner.holds.retain(|there| !Arc::ptr_eq(there, hold));
        inner.releasing.push(hold.lease);
    }

    /// Whether this lease is being given back.
    pub(crate) fn is_releasing(&self, lease: LeaseId) -> bool {
        let mut releasing = self.0.iter().flat_map(|inner| &inner.releasing);
        releasing.any(|there| *there == lease)
    }

    /// It has been given back. `false` if it was not there.
    pub(crate) fn released(&mut self, lease: LeaseId) -> bool {
        let found = self.is_releasing(lease);
        if let Some(inner) = &mut self.0 {
            inner.releasing.retain(|there| *there != lease);
        }
        self.tidy();
        found
    }

    /// The lease that was released last, and is being given back.
    pub(crate) fn latest_release(&self) -> Option<LeaseId> {
        let inner = self.0.as_ref();
        inner.and_then(|inner| inner.releasing.last().copied())
    }

    fn tidy(&mut self) {
        let is_empty = |inner: &Inner| inner.holds.is_empty() && inner.releasing.is_empty();
        if self.0.as_deref().is_some_and(is_empty) {
            self.0 = None;
        }
    }

    pub(crate) fn of_owner(&self, owner: Option<OwnerId>) -> Option<&Arc<Hold>> {
        let mut all = self.all().iter();
        all.find(|hold| owner.is_some() && hold.spec().owner == owner)
    }
}

/// Whether enough is left of a hold for others to share it, or to have it next without a renewal at once. Not a check: under the queue's lock
/// no loss may be told, and an end that a check has found without telling it would leave the queue held for ever (bug 305).
pub(crate) fn is_fresh(hold: &Hold, spec: &Spec, now: Tick) -> bool {
    let fresh = |until: Tick| now < until && until.since(now) > spec.lease() / 3;
    // A hold that the server may have forgotten is verified before another caller has it (bug 326).
    hold.is_confirmed() && hold.term.ends_at().is_some_and(fresh)
}
