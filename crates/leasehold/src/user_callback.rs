//! Calls into the user's code: a subscriber of `tracing`, a waker.
//!
//! A panic there ends there, with a message on stderr from the panic hook: it must not end the watchdog, the subscriptions or a
//! reconnect, on which other callers rely. Wakers that other libraries call for us have no such care.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    task::Waker,
};

pub(crate) fn wake(waker: Waker) {
    catch_panic(|| waker.wake());
}

pub(crate) fn catch_panic(call: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(call)) {
        // Its drop is the user's code, too.
        if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            // The second payload is leaked: its drop may panic as well, and so on.
            std::mem::forget(second);
        }
    }
}
