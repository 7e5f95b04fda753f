//! The pauses of a waiter that polls whether a lock is free.

use std::time::Duration;

use super::{LEASE_MIN, millis};
use crate::{
    durations::humane,
    error::{Error, Invalid},
};

/// The longest pause of a waiter that polls.
const BACKOFF_MOST: Duration = Duration::from_secs(60);

/// The pauses of a waiter that polls whether a lock is free. Small, for there is one in every hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PollRange {
    first_ms: u16,
    most_ms: u16,
}

impl PollRange {
    /// A foreign holder is asked after about as often as other libraries ask.
    pub(crate) const PLAIN: PollRange = PollRange::from_millis(50, 150);

    /// Redisson's `ExponentialBackOff`.
    pub(crate) const SPIN: PollRange = PollRange::from_millis(1, 128);

    const fn from_millis(first_ms: u16, most_ms: u16) -> PollRange {
        PollRange { first_ms, most_ms }
    }

    /// How long a pause lasts on average, after many polls.
    pub(crate) fn usual(self) -> Duration {
        Duration::from_millis(self.most_ms.into()) / 2
    }

    /// The pause after so many polls before: at least the first one, at most that doubled for each poll, and at random
    /// between, so that waiters drift apart.
    pub(crate) fn pause(self, polls: u32) -> Duration {
        let first = u64::from(self.first_ms);
        // Sixteen doublings exceed any longest pause (a `u16`), and cannot overflow.
        let most = (first << polls.min(16)).min(self.most_ms.into());
        Duration::from_micros(fastrand::u64(first * 1000..=most * 1000))
    }
}

/// Pauses between 1 ms and a minute, in whole milliseconds; `usual` are those of a lock that says nothing of them.
pub(crate) fn check_backoff(
    first: Duration,
    most: Duration,
    usual: PollRange,
) -> Result<PollRange, Error> {
    let limit = if first < LEASE_MIN {
        "a first pause of at least 1ms"
    } else if most > BACKOFF_MOST {
        "no pause of more than 60s"
    } else if first > most {
        "a first pause no longer than the longest"
    } else if let (Ok(first_ms), Ok(most_ms)) = (millis(first).try_into(), millis(most).try_into())
    {
        return Ok(PollRange::from_millis(first_ms, most_ms));
    } else {
        "no pause of more than 60s"
    };
    Err(Invalid::new(
        "backoff",
        format!("{} to {}", humane(first), humane(most)),
        limit,
    )
    .remedy(format!(
        "give the shortest pause first, or leave it out for {}ms to {}ms",
        usual.first_ms, usual.most_ms
    ))
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_from_the_first_to_the_longest_and_never_leave_these_bounds() {
        let ms = Duration::from_millis;
        let backoff = check_backoff(ms(2), ms(60), PollRange::SPIN).unwrap();
        for polls in 0..100 {
            let most = ms(2 << polls.min(20)).min(ms(60));
            for _ in 0..20 {
                let pause = backoff.pause(polls);
                assert!(pause >= ms(2) && pause <= most, "{polls}: {pause:?}");
            }
        }
        let longest = check_backoff(ms(60_000), ms(60_000), PollRange::SPIN).unwrap();
        assert_eq!(longest.pause(u32::MAX), ms(60_000));
    }

    #[test]
    fn pauses_out_of_bounds_are_refused_with_both_values() {
        let ms = Duration::from_millis;
        for (first, most, limit) in [
            (Duration::ZERO, ms(5), "at least 1ms"),
            (ms(7), ms(5), "no longer than the longest"),
            (ms(7), ms(60_001), "more than 60s"),
        ] {
            let error = check_backoff(first, most, PollRange::SPIN)
                .unwrap_err()
                .to_string();
            let both = format!("{} to {}", humane(first), humane(most));
            assert!(error.contains(limit) && error.contains(&both), "{error}");
        }
    }
}
