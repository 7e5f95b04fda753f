//! The witness's clock: `CLOCK_MONOTONIC`, the same for all processes of a machine.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the machine started.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.expect("time since the start") * 1_000_000_000 + nanos.expect("nanoseconds")
}

/// A duration in nanoseconds.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds as milliseconds, for people.
#[allow(clippy::cast_precision_loss, reason = "for people")]
pub(crate) fn millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}
