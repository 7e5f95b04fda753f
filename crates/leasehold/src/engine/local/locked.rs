//! A queue's lock. Once it is unlocked, it calls the wakers of the waiters that were answered under it (Q5).

use std::{
    ops::{Deref, DerefMut},
    task::Waker,
};

use parking_lot::MutexGuard;
use smallvec::SmallVec;

use crate::{
    callout,
    engine::{
        hold::held::Held,
        queue::{Queue, QueueState},
    },
};

pub(crate) struct Locked<'a> {
    state: Option<MutexGuard<'a, QueueState>>,
    wakers: SmallVec<[Waker; 1]>,
    /// Holds whose waiters have left.
    unwanted: Vec<Held>,
}

impl Queue {
    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked {
            state: Some(self.state.lock()),
            wakers: SmallVec::new(),
            unwanted: Vec::new(),
        }
    }
}

impl Locked<'_> {
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

impl Deref for Locked<'_> {
    type Target = QueueState;

    fn deref(&self) -> &QueueState {
        self.state.as_ref().expect(THERE)
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut QueueState {
        self.state.as_mut().expect(THERE)
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        drop(self.state.take());
        self.wakers.drain(..).for_each(callout::wake);
        self.unwanted.clear();
    }
}
