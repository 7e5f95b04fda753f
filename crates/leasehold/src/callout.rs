//! Calls into the user's code: a waker, a subscriber of `tracing`.
//!
//! A panic there ends there, with a message on stderr from the panic hook: it must not end the thread, the watchdog, the
//! subscriptions or a reconnect, on which other callers rely.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

pub(crate) fn wake(waker: Waker) {
    quietly(|| waker.wake_by_ref());
    // By itself: a drop that panics while the call unwinds would end the process.
    quietly(|| drop(waker));
}

pub(crate) fn quietly(call: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(call)) {
        // Its drop is the user's code, too.
        std::mem::forget(payload);
    }
}

/// A waker of the user's that may be called, and dropped, where a panic would do harm. There until its drop.
struct Shield(Option<Waker>);

impl Wake for Shield {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(waker) = &self.0 {
            quietly(|| waker.wake_by_ref());
        }
    }
}

impl Drop for Shield {
    fn drop(&mut self) {
        let waker = self.0.take();
        quietly(|| drop(waker));
    }
}

/// `future`, which the user's tasks poll and other tasks wake: a waker that panics harms neither those nor the wakers
/// behind it.
pub(crate) fn shielded<F: Future + Unpin>(future: F) -> Shielded<F> {
    Shielded {
        future,
        shield: None,
    }
}

/// See [`shielded`].
pub(crate) struct Shielded<F> {
    future: F,
    /// The shield around the user's waker, and the shield as a waker.
    shield: Option<(Arc<Shield>, Waker)>,
}

impl<F: Future + Unpin> Future for Shielded<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let user = cx.waker();
        let is_known = |known: &Shield| known.0.as_ref().is_some_and(|it| it.will_wake(user));
        if !matches!(&this.shield, Some((known, _)) if is_known(known)) {
            let shield = Arc::new(Shield(Some(user.clone())));
            this.shield = Some((Arc::clone(&shield), Waker::from(shield)));
        }
        let waker = this.shield.as_ref().map_or(user, |(_, ours)| ours);
        Pin::new(&mut this.future).poll(&mut Context::from_waker(waker))
    }
}
