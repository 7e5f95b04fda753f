//! The label of this client on the server: it tells others by name who holds a lock or waits for it, also after a crash.
//!
//! It is one key for each client, written when the client first holds or waits, and again once in an interval as long as it does.
//! So it costs one command in ten seconds, however many locks there are, and none while there is none. Nothing depends on it: where
//! it cannot be written, locks are as they were. The server lets it go 45 s after it was written last, or 15 s after the longest lease would end.
//! So the end of a client does not wait for it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    clock::Tick,
    config::{LEASE_MAX, millis},
    engine::env::Env,
    user_callback,
};

/// How often it is written.
const EVERY: Duration = Duration::from_secs(10);

/// It outlives a lease of this length, even if the client takes only shorter ones.
const COVERS_LEAST: Duration = Duration::from_secs(30);

/// The label of this client, as far as the client knows.
#[derive(Debug, Default)]
pub(super) struct Label {
    /// It outlives leases up to this length in ms, whenever they are taken until it is written next. Zero: it is to be written.
    covers: AtomicU64,
    state: Mutex<LabelState>,
}

#[derive(Debug)]
struct LabelState {
    /// When it is to be written next, or taken to be needed no more.
    due: Tick,
    /// A lease has asked for it since it was written.
    is_asked_for: bool,
    /// The longest lease of this client until now, and up to twice as long: each new length costs a command.
    longest_ms: u64,
}

impl Default for LabelState {
    fn default() -> Self {
        LabelState {
            due: Tick::MAX,
            is_asked_for: false,
            longest_ms: millis(COVERS_LEAST),
        }
    }
}

impl Label {
    /// A lease of this length begins, or a wait (zero). Whether the label is to be written for it: one atomic load, unless it is.
    pub(super) fn is_short_of(&self, lease: Duration) -> bool {
        // A wait comes with zero, and `covers` is zero when the label is to be written: a wait has to ask then.
        let lease_ms = millis(lease).max(1);
        if self.covers.load(Ordering::Relaxed) >= lease_ms {
            return false;
        }
        let mut state = self.state.lock();
        let longest = lease_ms.next_power_of_two().min(millis(LEASE_MAX));
        state.longest_ms = state.longest_ms.max(longest);
        state.is_asked_for = true;
        state.due = Tick::from_nanos(0);
        // Set before the label is written: until then the callers behind this one, with leases no longer, need not wake the watchdog.
        self.covers.store(state.longest_ms, Ordering::Relaxed);
        true
    }

    /// For how many milliseconds it is to last, if it is to be written now.
    fn due(&self, now: Tick, is_busy: impl FnOnce() -> bool) -> Option<u64> {
        let mut state = self.state.lock();
        if state.due > now {
            return None;
        }
        // First this, then the look at the queues: a lease that is not seen there comes later, and asks again.
        self.covers.store(0, Ordering::Relaxed);
        // A lock that came and went is worth a command, too: else each of those after it would wake the watchdog again.
        if !std::mem::take(&mut state.is_asked_for) && !is_busy() {
            state.due = Tick::MAX;
            return None;
        }
        self.covers.store(state.longest_ms, Ordering::Relaxed);
        state.due = now.after(EVERY);
        // Once more and a half: the lease may begin just before it is written again, and that may be late.
        Some(state.longest_ms + millis(EVERY * 3 / 2))
    }

    /// When [`due`](Label::due) is to be asked next.
    pub(super) fn next(&self) -> Tick {
        self.state.lock().due
    }

    /// The server refuses it, and will do so again.
    fn refused(&self) {
        let mut state = self.state.lock();
        state.due = Tick::MAX;
        // No lease asks for it any more.
        self.covers.store(u64::MAX, Ordering::Relaxed);
    }
}

/// Has the label written, if it is time to. Waits for nothing, and no one waits for it: it is no task of the client's.
pub(super) fn write_if_due(
    env: &Env,
    label: &Arc<Label>,
    now: Tick,
    is_busy: impl FnOnce() -> bool,
) {
    let Some(lasts_ms) = label.due(now, is_busy) else {
        return;
    };
    let (writing, label) = (env.backend.show(lasts_ms), Arc::clone(label));
    env.spawn_apart(async move {
        // Any other failure passes: it is written again, with the next interval.
        if let Err(failure) = writing.await
            && failure.is_final()
        {
            label.refused();
            user_callback::catch_panic(|| {
                tracing::debug!(
                    target: "leasehold",
                    cause = &**failure.cause() as &dyn std::error::Error,
                    "the server refuses the label of this client: holders are named only while they are connected"
                );
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Tick {
        Tick::from_nanos(1).after(Duration::from_millis(ms))
    }

    #[test]
    fn it_is_written_once_in_an_interval_and_not_when_nothing_is_held() {
        let label = Label::default();
        let busy = || true;
        assert_eq!(label.due(at(0), busy), None);
        assert!(label.is_short_of(Duration::from_secs(30)));
        assert!(!label.is_short_of(Duration::from_secs(30)));
        let lasts = label.due(at(0), || false).expect("a lease has asked");
        assert!(lasts >= 40_000, "{lasts}");
        assert_eq!(label.due(at(9_999), busy), None);
        assert_eq!(label.due(at(10_000), busy), Some(lasts));
        assert_eq!(label.due(at(20_000), || false), None);
        assert_eq!(label.next(), Tick::MAX);
        assert!(label.is_short_of(Duration::ZERO));
    }

    #[test]
    fn a_longer_lease_asks_for_it_at_once_and_growing_ones_seldom() {
        let label = Label::default();
        let asked = (1..=3_600).filter(|&s| label.is_short_of(Duration::from_secs(s)));
        assert!(asked.count() <= 9);
        let lasts = label.due(at(0), || true).unwrap();
        assert!(lasts >= 3_610_000, "{lasts}");
    }

    #[test]
    fn a_refusal_ends_it() {
        let label = Label::default();
        assert!(label.is_short_of(Duration::ZERO));
        label.due(at(0), || true).unwrap();
        label.refused();
        assert!(!label.is_short_of(LEASE_MAX));
        assert_eq!(label.due(at(20_000), || true), None);
    }
}
