//! How often the server may have forgotten what it was told.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::{backend::Restarted, clock::Tick};

/// Counts the restarts of the server, as this client has noticed them.
#[derive(Debug, Default)]
pub(crate) struct Restarts {
    present: AtomicU32,
    /// When the latest one was noticed; zero: none was.
    since: AtomicU64,
    /// The same of the latest after which no earlier answer counts.
    replaced: AtomicU64,
    /// The holds on the list are still to be verified after it.
    is_news: AtomicBool,
}

impl Restarts {
    pub(super) fn begin(&self, now: Tick, restarted: Restarted) {
        if restarted == Restarted::Whole {
            self.replaced.fetch_max(now.nanos(), Ordering::AcqRel);
        }
        // First this: a reader between the two verifies once too often, and never too seldom. The later of two that begin at once counts.
        self.since.fetch_max(now.nanos(), Ordering::AcqRel);
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

    /// Whether a request that was sent at `sent` may have been granted by a server whose grants count no more.
    pub(crate) fn is_void(&self, sent: Tick) -> bool {
        sent.nanos() < self.replaced.load(Ordering::Acquire)
    }

    /// Whether the answer to a request that was sent at `sent` may be that of the server of before the latest restart.
    pub(crate) fn is_from_before(&self, sent: Tick) -> bool {
        self.reported_at(sent) != self.present()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_to_a_request_from_before_a_restart_tells_of_the_one_before() {
        let (restarts, at) = (Restarts::default(), Tick::from_nanos);
        assert_eq!(restarts.reported_at(at(0)), restarts.present());
        restarts.begin(at(5), Restarted::OneVote);
        assert!(!restarts.is_void(at(4)));
        assert_ne!(restarts.reported_at(at(4)), restarts.present());
        assert_eq!(restarts.reported_at(at(5)), restarts.present());
        restarts.begin(at(7), Restarted::Whole);
        assert!(restarts.is_void(at(6)) && !restarts.is_void(at(7)));
    }
}
