//! Which clock a lease is measured on.
//!
//! An [`std::time::Instant`] stands still while a laptop or a virtual machine sleeps; the server's clock does
//! not. A holder that measured its lease that way would wake up and believe in a lease the server gave away
//! long ago. So the clock of a client on a real server is `CLOCK_BOOTTIME`, which counts through sleep.
//!
//! The memory backend lives on tokio time instead, which a test may pause and advance.

use std::time::Duration;

/// Instants of pauses, and of how long an answer took: nothing is believed by them. In a simulation tokio's, which it moves.
#[cfg(not(feature = "sim"))]
pub(crate) use std::time::Instant;
#[cfg(feature = "sim")]
pub(crate) use tokio::time::Instant;

/// A point on a client's [`Clock`], in nanoseconds. Points of different clocks do not compare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(u64);

impl Tick {
    pub(crate) const MAX: Tick = Tick(u64::MAX);

    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Tick(nanos)
    }

    pub(crate) const fn nanos(self) -> u64 {
        self.0
    }

    /// This much later; a duration too long for the clock means "never".
    pub(crate) fn after(self, by: Duration) -> Tick {
        Tick(self.0.saturating_add(nanos(by)))
    }

    /// From `earlier` until here; zero if `earlier` is later.
    pub(crate) fn since(self, earlier: Tick) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A [`Duration`] in half the space: there is one in every hold, and there may be very many holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(u64);

impl Span {
    pub(crate) const ZERO: Span = Span(0);

    pub(crate) const fn get(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Span(nanos(duration))
    }
}

/// A duration in nanoseconds; 584 years and more count as 584 years.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// How long before the server's end the client stops believing in a lease: 1 % of it and 2 ms, as in Redlock.
///
/// The percent covers two quartz clocks at their worst a hundred times over; the 2 ms cover the server's
/// millisecond resolution.
pub(crate) fn margin(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

/// The clock that a client's leases are measured on.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// `CLOCK_BOOTTIME`: monotonic, and counts while the machine sleeps.
    Boot,
    /// tokio's clock, counted from this instant.
    Tokio(tokio::time::Instant),
    /// A number that the simulation writes.
    #[cfg(feature = "sim")]
    Simulated(crate::world::SimClock),
}

impl Clock {
    pub(crate) fn now(&self) -> Tick {
        match self {
            Clock::Boot => boot_time(),
            Clock::Tokio(origin) => Tick(nanos(origin.elapsed()).saturating_add(EPOCH)),
            #[cfg(feature = "sim")]
            Clock::Simulated(clock) => Tick(clock.read()),
        }
    }
}

/// tokio's clock starts here rather than at zero: a lease is an atomic number whose smallest values mean
/// "ended" (see [`crate::engine::hold::lease::LeaseTerm`]), and no real instant may collide with them.
const EPOCH: u64 = 1_000_000_000;

fn boot_time() -> Tick {
    #[cfg(target_os = "linux")]
    const ID: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    // Elsewhere the monotonic clock is the best that is offered without unsafe code.
    #[cfg(not(target_os = "linux"))]
    const ID: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

    let now = rustix::time::clock_gettime(ID);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    Tick(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}
