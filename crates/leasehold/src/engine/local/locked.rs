//! A queue's lock. Once it is unlocked, it calls the wakers of the waiters that were answered under it (Q5).

use std::{
    ops::{Deref, DerefMut},
    task::Waker,
};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::{engine::hold::held::Held, user_callback};

pub(crate) struct Locked<'a, T> {
    state: Option<MutexGuard<'a, T>>,
    wakers: SmallVec<[Waker; 1]>,
    /// Holds whose waiters have left.
    unwanted: Vec<Held>,
}

impl<'a, T> Locked<'a, T> {
    pub(crate) fn new(state: &'a Mutex<T>) -> Locked<'a, T> {
        Locked {
            state: Some(state.lock()),
            wakers: SmallVec::new(),
            unwanted: Vec::new(),
        }
    }

    /// Calls it once the queue is unlocked.
    pub(crate) fn wake_later(&mut self, waker: Option<Waker>) {
        self.wakers.extend(waker);
    }

    /// Gives it back once the queue is unlocked (Q5).
    pub(crate) fn drop_later(&mut self, held: Held) {
        self.unwanted.push(held);
    }
}

/// Only its drop takes the guard out.
const THERE: &str = "a lock is there until its drop";

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.state.as_ref().expect(THERE)
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.state.as_mut().expect(THERE)
    }
}

impl<T> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        drop(self.state.take());
        // A waker is the user's code, and may ask for this very lock: it is called after the unlock (bug 48, Q5).
        self.wakers.drain(..).for_each(user_callback::wake);
        // The drop of a guard takes the queue's lock again, so it comes after the unlock (Q5).
        self.unwanted.clear();
    }
}
