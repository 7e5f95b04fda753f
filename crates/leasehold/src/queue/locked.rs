//! A queue's lock, which calls the wakers of those who were answered under it, once it is unlocked (Q5).

use std::ops::{Deref, DerefMut};

use parking_lot::MutexGuard;

use super::{Queue, State};
use crate::callout;

pub(super) struct Locked<'a>(Option<MutexGuard<'a, State>>);

impl Queue {
    pub(super) fn lock(&self) -> Locked<'_> {
        Locked(Some(self.state.lock()))
    }
}

/// Only its drop takes the guard out.
const THERE: &str = "a lock is there until its drop";

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.0.as_ref().expect(THERE)
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect(THERE)
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if let Some(mut state) = self.0.take()
            && !state.wakers.is_empty()
        {
            let wakers = std::mem::take(&mut state.wakers);
            drop(state);
            wakers.into_iter().for_each(callout::wake);
        }
    }
}
