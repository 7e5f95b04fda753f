//! How a waiter is answered: first the answer, under the queue's lock, then the waker, without it (Q5).

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;

use super::Answer;
use crate::{Error, callout};

/// The queue's half.
#[derive(Debug)]
pub(super) struct Answerer(Arc<Mutex<Slot>>);

/// The waiter's half: a future of its answer.
#[derive(Debug)]
pub(super) struct Answered(Arc<Mutex<Slot>>);

#[derive(Debug)]
enum Slot {
    Waiting(Option<Waker>),
    Answered(Answer),
    /// Nobody waits for an answer (any more).
    Over,
}

pub(super) fn slot() -> (Answerer, Answered) {
    let slot = Arc::new(Mutex::new(Slot::Waiting(None)));
    (Answerer(Arc::clone(&slot)), Answered(slot))
}

impl Answerer {
    pub(super) fn is_closed(&self) -> bool {
        matches!(*self.0.lock(), Slot::Over)
    }

    /// The answer is there when the waiter looks; the caller has to wake it. If the waiter has left: the answer.
    pub(super) fn send(self, answer: Answer) -> Result<Option<Waker>, Answer> {
        self.put(answer)
    }

    /// For those who hold no lock.
    pub(super) fn send_and_wake(self, answer: Answer) {
        if let Ok(Some(waker)) = self.put(answer) {
            callout::wake(waker);
        }
    }

    fn put(&self, answer: Answer) -> Result<Option<Waker>, Answer> {
        let mut slot = self.0.lock();
        match &mut *slot {
            Slot::Waiting(waker) => {
                let waker = waker.take();
                *slot = Slot::Answered(answer);
                Ok(waker)
            }
            _ => Err(answer),
        }
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        // Answered, or left, unless whoever was to answer has ended in the middle of it.
        if let Ok(Some(waker)) = self.put(Err(Error::Closed)) {
            callout::wake(waker);
        }
    }
}

impl Future for Answered {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        // Cloned and dropped without the lock: a waker is code of the user's.
        let mut waker = Some(cx.waker().clone());
        let mut slot = self.0.lock();
        let poll = match &mut *slot {
            Slot::Waiting(old) => {
                std::mem::swap(old, &mut waker);
                Poll::Pending
            }
            Slot::Answered(_) => match std::mem::replace(&mut *slot, Slot::Over) {
                Slot::Answered(answer) => Poll::Ready(answer),
                _ => Poll::Pending,
            },
            Slot::Over => Poll::Pending, // polled again after its end
        };
        drop(slot);
        poll
    }
}

impl Answered {
    /// Nobody waits any more. The answer, if it is there; to be dropped without a lock (Q5).
    pub(super) fn close(&self) -> Option<Answer> {
        let slot = std::mem::replace(&mut *self.0.lock(), Slot::Over);
        match slot {
            Slot::Answered(answer) => Some(answer),
            _ => None,
        }
    }
}

impl Drop for Answered {
    fn drop(&mut self) {
        drop(self.close());
    }
}
