//! The witness's clock: `CLOCK_MONOTONIC`, the same for all processes of a machine.

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the machine started.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.expect("time since the start") * 1_000_000_000 + nanos.expect("nanoseconds")
}

/// The instant at which the servers' clock has said these microseconds; they are on this machine.
pub(crate) fn at_unix_micros(micros: u64) -> u64 {
    let unix = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let ago = nanos(unix).saturating_sub(micros.saturating_mul(1_000));
    now().saturating_sub(ago)
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
