//! When the watchdog's task wakes next.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Tick;

/// The time of the next wake-up.
#[derive(Debug)]
pub(super) struct AtomicTick(AtomicU64);

impl Default for AtomicTick {
    fn default() -> Self {
        AtomicTick(AtomicU64::new(Tick::MAX.nanos()))
    }
}

impl AtomicTick {
    pub(super) fn get(&self) -> Tick {
        Tick::from_nanos(self.0.load(Ordering::SeqCst))
    }

    pub(super) fn reset(&self) {
        self.0.store(Tick::MAX.nanos(), Ordering::SeqCst);
    }

    /// Moves it closer; `true` if it was later.
    pub(super) fn lower(&self, to: Tick) -> bool {
        // A load first: most locks that come and go ask for nothing earlier, and then nothing is written. In one order with `reset` and
        // `Restarts::has_begun`: else a restart may be noted between the two, and waited for until the next renewal.
        self.0.load(Ordering::SeqCst) > to.nanos()
            && self.0.fetch_min(to.nanos(), Ordering::SeqCst) > to.nanos()
    }
}
