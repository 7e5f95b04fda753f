//! Calls into the user's code: a waker, a subscriber of `tracing`.
//!
//! A panic there ends there, with a message on stderr from the panic hook: it must not end the thread, the watchdog, the
//! subscriptions or a reconnect, on which other callers rely.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
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
pub(crate) async fn shielded<F: Future>(future: F) -> F::Output {
    let mut shielded = Shielded {
        future: pin!(future),
        shield: None,
    };
    std::future::poll_fn(|cx| shielded.poll(cx)).await
}

struct Shielded<'a, F> {
    future: Pin<&'a mut F>,
    /// The shield around the user's waker, and the shield as a waker.
    shield: Option<(Arc<Shield>, Waker)>,
}

impl<F: Future> Shielded<'_, F> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<F::Output> {
        let user = cx.waker();
        let is_known = |known: &Shield| known.0.as_ref().is_some_and(|it| it.will_wake(user));
        if !matches!(&self.shield, Some((known, _)) if is_known(known)) {
            let shield = Arc::new(Shield(Some(user.clone())));
            self.shield = Some((Arc::clone(&shield), Waker::from(shield)));
        }
        let waker = self.shield.as_ref().map_or(user, |(_, ours)| ours);
        self.future.as_mut().poll(&mut Context::from_waker(waker))
    }
}
