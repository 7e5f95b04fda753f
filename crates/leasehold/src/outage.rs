//! A server that cannot be used, as those hear of it who run the program: one warning when that begins and one line when it ends,
//! however many locks, waiters and connections find it out.
//!
//! A backend has one of these, since every request and every connection passes there. A subscriber is the user's code: it is not
//! called under a lock.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    clock::{Clock, Tick},
    error::Cause,
    user_callback,
};

/// The target of warnings that the command shows without `-v`: the server cannot be trusted with locks, or wakes no waiter.
pub(crate) const DANGER: &str = "leasehold::danger";

/// If they come and go, the log tells one in this time.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Whether the server can be used.
#[derive(Debug)]
pub(crate) struct Outage {
    server: String,
    clock: Clock,
    /// Read at each answer.
    is_on: AtomicBool,
    is_reported: Mutex<bool>,
    is_replaced: AtomicBool,
    of_outages: Seldom,
    of_refusals: Seldom,
}

/// Lets one of many warnings of a kind through in a minute.
#[derive(Debug, Default)]
pub(crate) struct Seldom(Mutex<Option<Tick>>);

impl Seldom {
    /// Whether a user is to be told now. Then the next are not for a while.
    pub(crate) fn may_warn(&self, now: Tick) -> bool {
        self.may(now, WARN_EVERY)
    }

    /// Lets one of many through in this time.
    pub(crate) fn may(&self, now: Tick, every: Duration) -> bool {
        let mut last = self.0.lock();
        let may = last.is_none_or(|at| now.since(at) >= every);
        if may {
            *last = Some(now);
        }
        may
    }
}

impl Outage {
    pub(crate) fn new(server: String, clock: Clock) -> Outage {
        Outage {
            server,
            clock,
            is_on: AtomicBool::new(false),
            is_reported: Mutex::new(false),
            is_replaced: AtomicBool::new(false),
            of_outages: Seldom::default(),
            of_refusals: Seldom::default(),
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// A request had no answer, or a connection did not come about.
    pub(crate) fn goes_on(&self, cause: &Cause) {
        let is_news = {
            let mut is_reported = self.is_reported.lock();
            // A request that fails at a server that was replaced tells nothing: no answer would end the outage.
            if self.is_replaced.load(Ordering::Relaxed) {
                return;
            }
            self.is_on.store(true, Ordering::Relaxed);
            let is_news = !*is_reported && self.of_outages.may_warn(self.clock.now());
            // An outage of which the log says nothing, since the last was a moment ago, has no line at its end either.
            *is_reported |= is_news;
            is_news
        };
        if is_news {
            user_callback::catch_panic(|| {
                tracing::warn!(target: "leasehold", server = %self.server, %cause, "the server cannot be used, trying again");
            });
        }
    }

    /// The server has answered.
    pub(crate) fn is_over(&self) {
        // The atomic first: each answer comes by here, and there is no outage nearly always.
        if self.is_on() && self.was_reported() {
            user_callback::catch_panic(
                || tracing::info!(target: "leasehold", server = %self.server, "the server can be used again"),
            );
        }
    }

    /// The server is a node of a cluster, and another has its slots from here on.
    pub(crate) fn is_over_by(&self, successor: Option<&str>) {
        // Before the lock: a failure that is told later finds it, and one that came before is ended here (bug 241).
        self.is_replaced.store(true, Ordering::Relaxed);
        if self.was_reported() {
            user_callback::catch_panic(
                || tracing::info!(target: "leasehold", server = %self.server, successor, "the slots of the server can be used again, at another node"),
            );
        }
    }

    /// Whether those who run the program have been told of an outage that ends now.
    fn was_reported(&self) -> bool {
        let mut is_reported = self.is_reported.lock();
        self.is_on.store(false, Ordering::Relaxed);
        std::mem::take(&mut *is_reported)
    }

    /// The server answers, and refuses a request that it may carry out later. To others it may say yes meanwhile, so no end is told.
    pub(crate) fn refuses(&self, cause: &Cause) {
        // Counted apart from outages: a refusal of a moment ago must not hide one.
        if self.of_refusals.may_warn(self.clock.now()) {
            user_callback::catch_panic(
                || tracing::warn!(target: "leasehold", server = %self.server, %cause, "the server refuses a request, trying again"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_refusal_of_a_moment_before_hides_no_outage() {
        let outage = Outage::new("here".to_owned(), Clock::Boot);
        let cause: Cause = Arc::new(std::fmt::Error);
        outage.refuses(&cause);
        outage.goes_on(&cause);
        assert!(*outage.is_reported.lock());
    }
}
