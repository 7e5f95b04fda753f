//! How a waiter is answered: first the answer, under the queue's lock, then the waker, without it (Q5).

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;

use crate::{Error, engine::hold::held::Held, user_callback};

/// The answer to a waiter; `None`: another has the lock.
pub(crate) type WaitResult = Result<Option<Held>, Error>;

/// The queue's half.
#[derive(Debug)]
pub(crate) struct Answerer(Arc<Mutex<AnswerSlot>>);

/// The waiter's half: a future of its answer.
#[derive(Debug)]
pub(crate) struct AnswerFuture(Arc<Mutex<AnswerSlot>>);

#[derive(Debug)]
enum AnswerSlot {
    Waiting(Option<Waker>),
    Answered(WaitResult),
    /// No waiter expects an answer (any more).
    Over,
}

pub(crate) fn slot() -> (Answerer, AnswerFuture) {
    let slot = Arc::new(Mutex::new(AnswerSlot::Waiting(None)));
    (Answerer(Arc::clone(&slot)), AnswerFuture(slot))
}

impl Answerer {
    pub(crate) fn is_closed(&self) -> bool {
        matches!(*self.0.lock(), AnswerSlot::Over)
    }

    /// Puts the answer where the waiter finds it; the caller has to wake it. If the waiter has left, returns the answer.
    pub(crate) fn send(self, answer: WaitResult) -> Result<Option<Waker>, WaitResult> {
        self.put(answer, || ())
    }

    /// The same; does something `before` the waiter can find the answer, unless it has left.
    pub(crate) fn send_after(
        self,
        before: impl FnOnce(),
        answer: WaitResult,
    ) -> Result<Option<Waker>, WaitResult> {
        self.put(answer, before)
    }

    fn put(&self, answer: WaitResult, before: impl FnOnce()) -> Result<Option<Waker>, WaitResult> {
        let mut slot = self.0.lock();
        match &mut *slot {
            AnswerSlot::Waiting(waker) => {
                let waker = waker.take();
                before();
                *slot = AnswerSlot::Answered(answer);
                Ok(waker)
            }
            _ => Err(answer),
        }
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        // Answered, or left, unless the actor that was to answer has ended before.
        if let Ok(Some(waker)) = self.put(Err(Error::Closed), || ()) {
            user_callback::wake(waker);
        }
    }
}

impl Future for AnswerFuture {
    type Output = WaitResult;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<WaitResult> {
        // Cloned and dropped without the lock (Q5).
        let mut waker = Some(cx.waker().clone());
        let mut slot = self.0.lock();
        let poll = match &mut *slot {
            AnswerSlot::Waiting(old) => {
                std::mem::swap(old, &mut waker);
                Poll::Pending
            }
            AnswerSlot::Answered(_) => match std::mem::replace(&mut *slot, AnswerSlot::Over) {
                AnswerSlot::Answered(answer) => Poll::Ready(answer),
                // Not reached: the slot was answered a line above, under the same lock.
                _ => Poll::Pending,
            },
            AnswerSlot::Over => Poll::Pending, // polled again after its end
        };
        drop(slot);
        poll
    }
}

impl AnswerFuture {
    /// The waiter leaves: true if it waited until now, and its answer if that is there already; to be dropped without a
    /// lock (Q5), and so is this.
    pub(crate) fn close(&self) -> (bool, Option<WaitResult>) {
        let slot = std::mem::replace(&mut *self.0.lock(), AnswerSlot::Over);
        match slot {
            AnswerSlot::Answered(answer) => (false, Some(answer)),
            AnswerSlot::Waiting(_) => (true, None),
            AnswerSlot::Over => (false, None),
        }
    }
}

impl Drop for AnswerFuture {
    fn drop(&mut self) {
        drop(self.close());
    }
}
