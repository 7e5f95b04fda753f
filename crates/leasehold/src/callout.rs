//! Calls into code of the user's: a waker, or whatever is woken by a notification.
//!
//! What panics there is reported, and ends there: it must not end the watchdog or the subscriptions, on which others rely.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    task::Waker,
};

pub(crate) fn wake(waker: Waker) {
    quietly(|| waker.wake());
}

pub(crate) fn quietly(call: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(call)).is_err() {
        tracing::error!("a waker panicked");
    }
}
