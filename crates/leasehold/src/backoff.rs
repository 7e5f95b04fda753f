//! How long to pause before a try that failed is made again, and how long between polls.

use std::time::Duration;

/// Pauses that double up to a most. Each lasts between half of that and all of it, at random: clients that failed together do not come back
/// together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    /// How often there was a pause since the start, or since a try went well.
    paused: u32,
}

impl Backoff {
    pub(crate) const fn new(first: Duration, most: Duration) -> Backoff {
        Backoff {
            first,
            most,
            paused: 0,
        }
    }

    /// Between tries of one request of the engine.
    pub(crate) const fn of_request() -> Backoff {
        Backoff::new(Duration::from_millis(10), Duration::from_millis(500))
    }

    /// How long to pause now.
    pub(crate) fn next(&mut self) -> Duration {
        spread(self.next_at_most())
    }

    /// The longest that the pause may last, for who spreads it in parts.
    pub(crate) fn next_at_most(&mut self) -> Duration {
        // Far beyond any most, and no overflow.
        let doubled = self.first.saturating_mul(1 << self.paused.min(20));
        self.paused = self.paused.saturating_add(1);
        doubled.min(self.most)
    }

    /// Whether there was no pause yet since then.
    pub(crate) fn is_fresh(&self) -> bool {
        self.paused == 0
    }

    /// A try went well: the next pause is the first again.
    pub(crate) fn reset(&mut self) {
        self.paused = 0;
    }
}

/// Between half of `whole` and all of it.
pub(crate) fn spread(whole: Duration) -> Duration {
    whole / 2 + whole.mul_f64(fastrand::f64() / 2.0)
}

/// An interval between polls: up to a fifth longer, so that clients drift apart; never shorter, so that an idle
/// one stays within one command in each interval.
pub(crate) fn stretched(every: Duration) -> Duration {
    every + every.mul_f64(fastrand::f64() / 5.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_most_and_begin_again_after_a_try_that_went_well() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(10), ms(500));
        for _ in 0..2 {
            for whole in [10, 20, 40, 80, 160, 320, 500, 500] {
                let pause = backoff.next();
                assert!(pause >= ms(whole) / 2 && pause <= ms(whole), "{pause:?}");
            }
            backoff.reset();
        }
        let latest = (0..100).map(|_| backoff.next_at_most()).last();
        assert_eq!(latest, Some(ms(500)));
    }
}
