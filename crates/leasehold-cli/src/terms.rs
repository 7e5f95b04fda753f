//! The lengths of a hold: its lease, the grace of CMD, and how long the name stays taken. Pure arithmetic.
//!
//! With `--at-least` they are those of `run_once_per` of the library, which says why: [`AtLeast`].

use std::time::Duration;

use leasehold::at_least::AtLeast;
pub(crate) use leasehold::at_least::Rest;

/// How long CMD has between SIGTERM and SIGKILL when `--grace` is left out, if the lease is long enough.
const GRACE: Duration = Duration::from_secs(5);

/// How a lock is to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// How long a lease lasts that is renewed.
    lease: Duration,
    pub(crate) grace: Duration,
    /// How long the name stays taken, counted from the moment at which it was acquired.
    pub(crate) at_least: Option<Duration>,
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

    fn kept(&self) -> Option<AtLeast> {
        let at_least = self.at_least?;
        Some(AtLeast::new(at_least, self.lease, self.grace))
    }

    /// How long a lease to ask for.
    pub(crate) fn first(&self) -> Duration {
        self.kept().map_or(self.lease, |kept| kept.first())
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

    /// How to end a hold that began `held` ago, and of whose lease `remaining` is left.
    pub(crate) fn rest(&self, held: Duration, remaining: Duration) -> Rest {
        self.kept()
            .map_or(Rest::Over, |kept| kept.rest(held, remaining))
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
                if least >= s(1) {
                    assert_eq!(terms.first(), least, "{terms:?}");
                }
                assert!(terms.extend_at() < terms.first(), "{terms:?}");
                assert!(terms.extend_at() > terms.grace, "{terms:?}");
            }
        }
        assert_eq!(Terms::new(s(30), None, None).unwrap().first(), s(30));
    }

    /// The same table for `--at-least` and for `run_once_per` of the library: the lease, the time, how long the hold has lasted when
    /// its work ends, and what is left of its lease; then the first lease, when it is extended, and the end.
    #[test]
    fn a_hold_that_ends_in_time_is_left_alone_and_another_is_released_in_time() {
        #[rustfmt::skip]
        let table = [
            // lease, time, held, remaining; first, extended at, rest
            (s(30), s(50), s(1), ms(48_500), s(50), s(10), Rest::EndsByItself(s(49))),
            (s(30), s(50), s(1), ms(49_500), s(50), s(10), Rest::EndsByItself(s(49))),
            // It was extended when 10 s were left of it.
            (s(30), s(50), s(41), s(29), s(50), s(10), Rest::Outlasts(s(9))),
            (s(30), s(50), s(50), s(20), s(50), s(10), Rest::Over),
            (s(30), s(50), s(70), s(20), s(50), s(10), Rest::Over),
            // The lease of its extension is longer than the time.
            (s(30), s(5), ms(10), ms(4_940), s(5), s(5) / 3, Rest::EndsByItself(ms(4_990))),
            (s(30), s(5), s(4), s(29), s(5), s(5) / 3, Rest::Outlasts(s(1))),
            (s(30), s(5), s(12), s(25), s(5), s(5) / 3, Rest::Over),
            (s(30), s(1), ms(100), ms(880), s(1), s(1) / 3, Rest::EndsByItself(ms(900))),
            // Shorter than a lease may be.
            (s(30), ms(500), ms(100), s(29), s(30), s(10), Rest::Outlasts(ms(400))),
            (ms(10), s(3600), s(1), s(3562), s(3600), ms(10) / 3, Rest::EndsByItself(s(3599))),
        ];
        for (lease, time, held, remaining, first, extend_at, rest) in table {
            let library = AtLeast::new(time, lease, Duration::ZERO);
            let case = format!("{library:?} after {held:?} with {remaining:?}");
            assert_eq!(library.first(), first, "{case}");
            assert_eq!(library.extend_at(), extend_at, "{case}");
            assert_eq!(library.extension(), lease, "{case}");
            assert_eq!(library.rest(held, remaining), rest, "{case}");
            let command = Terms::new(lease, Some(Duration::ZERO), Some(time)).unwrap();
            assert_eq!(command.first(), first, "{case}");
            assert_eq!(command.extend_at(), extend_at, "{case}");
            assert_eq!(command.every(), library.every(), "{case}");
            assert_eq!(command.extension(), lease, "{case}");
            assert_eq!(command.rest(held, remaining), rest, "{case}");
            // The grace of CMD comes on top, and changes nothing else.
            let graceful = at_least(lease, time);
            assert_eq!(graceful.extend_at(), extend_at + graceful.grace, "{case}");
            assert_eq!(graceful.rest(held, remaining), rest, "{case}");
        }
        let without = Terms::new(s(30), None, None).unwrap();
        assert_eq!(without.rest(s(1), s(29)), Rest::Over);
    }
}
