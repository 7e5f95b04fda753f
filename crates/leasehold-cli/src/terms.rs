//! The lengths of a hold: its lease, the grace of CMD, and how long the name stays taken. Pure arithmetic.
//!
//! With `--at-least` the name must free itself that long after the start, although CMD, and this process with it, has
//! ended long before. No request makes a lease end sooner (docs/guarantees.md, B2). So the first lease is exactly as long
//! as that and is not renewed: a hold that is left to itself ends in time, and no crash shortens it. Only when that lease
//! comes close to its end and CMD still runs, it is extended, from then on like any other. If CMD ends between that and
//! the end of `--at-least`, this process waits for that end and releases the name then.

use std::time::Duration;

/// How long CMD has between SIGTERM and SIGKILL when `--grace` is left out, if the lease is long enough.
const GRACE: Duration = Duration::from_secs(5);

/// A process may wait for so long, but a lease that is so short makes an end of CMD for a moment of bad network. So for an
/// `--at-least` of no more than this, the lease is `--lease`, and this process waits.
const SHORT: Duration = Duration::from_secs(1);

/// How a lock is to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// How long a lease lasts that is renewed.
    lease: Duration,
    pub(crate) grace: Duration,
    /// How long the name stays taken, counted from the moment at which it was acquired.
    pub(crate) at_least: Option<Duration>,
}

/// The end of a hold whose CMD has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// The name has been taken for long enough.
    Over,
    /// The lease ends by itself when it is time, in this long.
    EndsByItself(Duration),
    /// The lease would last for longer than this.
    Outlasts(Duration),
}

impl Terms {
    /// The terms as they were asked for, or the reason why they do not fit each other.
    pub(crate) fn new(
        lease: Duration,
        grace: Option<Duration>,
        at_least: Option<Duration>,
    ) -> Result<Terms, String> {
        let mut terms = Terms {
            lease,
            grace: Duration::ZERO,
            at_least,
        };
        let shortest = terms.shortest();
        terms.grace = grace.unwrap_or(GRACE.min(shortest / 3));
        if terms.grace > shortest / 2 {
            let (of, which) = match at_least {
                Some(at_least) if at_least < lease => ("--at-least", at_least),
                _ => ("--lease", lease),
            };
            return Err(format!(
                "--grace is {}, but must be at most half of {of}, which is {}: \
                 a renewal is due after a third of it, and needs time for a second try; \
                 shorten --grace or lengthen {of}",
                humantime::format_duration(terms.grace),
                humantime::format_duration(which),
            ));
        }
        Ok(terms)
    }

    /// How long a lease to ask for.
    pub(crate) fn first(&self) -> Duration {
        match self.at_least {
            None => self.lease,
            Some(at_least) if at_least <= SHORT => self.lease.max(at_least),
            Some(at_least) => at_least,
        }
    }

    /// Whether the first lease ends by itself, unless this process extends it.
    pub(crate) fn is_fixed(&self) -> bool {
        self.at_least.is_some()
    }

    /// The shortest lease under which CMD may run.
    pub(crate) fn shortest(&self) -> Duration {
        self.first().min(self.lease)
    }

    /// Extend the first lease when no more than this is left of it.
    pub(crate) fn extend_at(&self) -> Duration {
        self.grace + self.every()
    }

    /// How often a lease is renewed.
    pub(crate) fn every(&self) -> Duration {
        self.shortest() / 3
    }

    /// The length of an extension.
    pub(crate) fn extension(&self) -> Duration {
        self.lease
    }

    /// What is to be done with a hold that began `held` ago, and of whose lease `remaining` is left.
    pub(crate) fn rest(&self, held: Duration, remaining: Duration) -> Rest {
        let Some(at_least) = self.at_least else {
            return Rest::Over;
        };
        // The clocks of the server and of this machine do not run at quite the same speed.
        let drift = at_least / 50;
        match at_least.saturating_sub(held) {
            Duration::ZERO => Rest::Over,
            rest if remaining <= rest + drift => Rest::EndsByItself(rest),
            rest => Rest::Outlasts(rest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn at_least(lease: Duration, at_least: Duration) -> Terms {
        Terms::new(lease, None, Some(at_least)).unwrap()
    }

    #[test]
    fn the_default_grace_is_five_seconds_and_shrinks_with_the_lease() {
        for (lease, at_least, grace) in [
            (s(30), None, s(5)),
            (s(3), None, s(1)),
            (s(30), Some(s(50)), s(5)),
            (s(30), Some(s(3)), s(1)),
        ] {
            let terms = Terms::new(lease, None, at_least).unwrap();
            assert_eq!(terms.grace, grace, "{terms:?}");
        }
    }

    #[test]
    fn a_grace_that_renewals_cannot_keep_clear_of_is_refused_with_both_values() {
        let error = Terms::new(s(4), Some(s(3)), None).unwrap_err();
        for word in ["4s", "3s", "--lease"] {
            assert!(error.contains(word), "{error}");
        }
        let error = Terms::new(s(30), Some(s(3)), Some(s(5))).unwrap_err();
        assert!(error.contains("half of --at-least, which is 5s"), "{error}");
    }

    #[test]
    fn the_first_lease_is_as_long_as_the_name_is_to_stay_taken_and_never_shorter() {
        for lease in [ms(10), s(1), s(30), s(600)] {
            for least in [ms(3), s(1), s(5), s(50), s(3600)] {
                let terms = at_least(lease, least);
                assert!(terms.first() >= least, "{terms:?}");
                if least > SHORT {
                    assert_eq!(terms.first(), least, "{terms:?}");
                }
                assert!(terms.extend_at() < terms.first(), "{terms:?}");
                assert!(terms.extend_at() > terms.grace, "{terms:?}");
            }
        }
        assert_eq!(Terms::new(s(30), None, None).unwrap().first(), s(30));
    }

    #[test]
    fn a_hold_that_ends_in_time_is_left_alone_and_another_is_released_in_time() {
        let terms = at_least(s(30), s(50));
        assert_eq!(terms.rest(s(1), ms(48_500)), Rest::EndsByItself(s(49)));
        assert_eq!(terms.rest(s(1), ms(49_500)), Rest::EndsByItself(s(49)));
        // It was extended when 15 s were left of it.
        assert_eq!(terms.rest(s(40), s(25)), Rest::Outlasts(s(10)));
        assert_eq!(terms.rest(s(50), s(20)), Rest::Over);
        let without = Terms::new(s(30), None, None).unwrap();
        assert_eq!(without.rest(s(1), s(29)), Rest::Over);
        assert_eq!(
            at_least(s(30), ms(500)).rest(ms(100), s(29)),
            Rest::Outlasts(ms(400))
        );
    }
}
