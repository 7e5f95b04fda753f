//! How often the server may have forgotten what it was told.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::clock::Tick;

/// Counts the restarts of the server, as this client has noticed them.
#[derive(Debug, Default)]
pub(crate) struct Restarts {
    present: AtomicU32,
    /// When the latest one was noticed; zero: none was.
    since: AtomicU64,
    /// The holds on the list are still to be verified after it.
    is_news: AtomicBool,
}

impl Restarts {
    pub(super) fn begin(&self, now: Tick) {
        // First this: a reader between the two verifies once too often, and never too seldom.
        self.since.store(now.nanos(), Ordering::Release);
        self.present.fetch_add(1, Ordering::AcqRel);
        // In one order with the time of the next wake-up (`AtomicTick::lower`), or the news might wait for the next renewal.
        self.is_news.store(true, Ordering::SeqCst);
    }

    /// Whether one has begun since this was asked last.
    pub(super) fn has_begun(&self) -> bool {
        self.is_news.swap(false, Ordering::SeqCst)
    }

    pub(crate) fn present(&self) -> u32 {
        self.present.load(Ordering::Acquire)
    }

    /// The number of the restart that the server had surely behind it when it answered a request that was sent at `sent`: the present one, or
    /// any other if the request left before the latest restart was noticed.
    pub(crate) fn reported_at(&self, sent: Tick) -> u32 {
        let present = self.present();
        if sent.nanos() < self.since.load(Ordering::Acquire) {
            // Callers only ask whether it is the present number, so any other will do.
            present.wrapping_sub(1)
        } else {
            present
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_to_a_request_from_before_a_restart_tells_of_the_one_before() {
        let (restarts, at) = (Restarts::default(), Tick::from_nanos);
        assert_eq!(restarts.reported_at(at(0)), restarts.present());
        restarts.begin(at(5));
        assert_ne!(restarts.reported_at(at(4)), restarts.present());
        assert_eq!(restarts.reported_at(at(5)), restarts.present());
    }
}
