//! Calls into code of the user's: a waker, a subscriber of `tracing`.
//!
//! What panics there ends there, with a word on stderr from the panic hook: it must not end the thread, the watchdog, the
//! subscriptions or a reconnect, on which others rely.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

pub(crate) fn wake(waker: Waker) {
    quietly(|| waker.wake());
}

pub(crate) fn quietly(call: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(call)) {
        // Its drop is code of the user's, too.
        std::mem::forget(payload);
    }
}

/// A waker of the user's that may be called where a panic would do harm.
struct Shield(Waker);

impl Wake for Shield {
    fn wake(self: Arc<Self>) {
        quietly(|| self.0.wake_by_ref());
    }

    fn wake_by_ref(self: &Arc<Self>) {
        quietly(|| self.0.wake_by_ref());
    }
}

/// `future`, which is polled by the user's tasks and woken by others: a waker that panics harms neither those nor the wakers
/// behind it.
pub(crate) async fn shielded<F: Future>(future: F) -> F::Output {
    let mut shielded = Shielded {
        future: pin!(future),
        shield: None,
    };
    std::future::poll_fn(|cx| shielded.poll(cx)).await
}

struct Shielded<'a, F> {
    future: Pin<&'a mut F>,
    /// The user's waker, and ours around it.
    shield: Option<(Waker, Waker)>,
}

impl<F: Future> Shielded<'_, F> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<F::Output> {
        let user = cx.waker();
        if !matches!(&self.shield, Some((known, _)) if known.will_wake(user)) {
            let ours = Waker::from(Arc::new(Shield(user.clone())));
            self.shield = Some((user.clone(), ours));
        }
        let waker = self.shield.as_ref().map_or(user, |(_, ours)| ours);
        self.future.as_mut().poll(&mut Context::from_waker(waker))
    }
}
