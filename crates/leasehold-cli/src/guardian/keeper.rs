//! When CMD must be told to end and when it must be dead: pure arithmetic, no clock and no signals.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The supervisor's promises and settings. Points in time are on [`crate::clock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Terms {
    /// The end of the lease as its holder counts it, which is before the server's.
    pub(crate) until: Duration,
    /// From SIGTERM to SIGKILL.
    pub(crate) grace: Duration,
    /// How long before the end SIGKILL is sent, so that CMD is gone by then.
    pub(crate) margin: Duration,
}

/// Why CMD is being ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Why {
    /// The lease is about to end and was not renewed.
    LeaseEnds,
    /// The lease was taken away.
    LeaseGone,
    /// The supervisor is gone, and the lease is not renewed any more.
    SupervisorGone,
    /// CMD has ended by itself and left processes behind in its group.
    Leftovers,
}

/// An action on the process group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Terminate(Why),
    Kill(Why),
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Working,
    /// SIGTERM was sent. A renewal does not take it back: CMD may have begun to wind down.
    Ending {
        why: Why,
        kill_at: Duration,
    },
    Killed,
}

/// Keeps the deadline of one process group.
#[derive(Debug)]
pub(crate) struct Keeper {
    terms: Terms,
    phase: Phase,
}

impl Keeper {
    pub(crate) fn new(terms: Terms) -> Self {
        Keeper {
            terms,
            phase: Phase::Working,
        }
    }

    /// When it wants to be asked again.
    pub(crate) fn alarm(&self) -> Option<Duration> {
        match self.phase {
            Phase::Working => Some(self.terminate_at()),
            Phase::Ending { kill_at, .. } => Some(kill_at),
            Phase::Killed => None,
        }
    }

    /// The action that is due by now.
    pub(crate) fn due(&mut self, now: Duration) -> Option<Act> {
        match self.phase {
            Phase::Working if now >= self.terminate_at() => Some(self.end(now, Why::LeaseEnds)),
            Phase::Ending { why, kill_at } if now >= kill_at => Some(self.kill(why)),
            _ => None,
        }
    }

    /// The lease lasts until then.
    pub(crate) fn renewed(&mut self, until: Duration) {
        self.terms.until = until;
    }

    /// CMD must end, with the grace that the lease allows.
    pub(crate) fn end(&mut self, now: Duration, why: Why) -> Act {
        let last = self.kill_at_last();
        if now >= last {
            return self.kill(why);
        }
        self.phase = Phase::Ending {
            why,
            kill_at: last.min(now.saturating_add(self.terms.grace)),
        };
        Act::Terminate(why)
    }

    /// CMD must be gone now.
    pub(crate) fn kill(&mut self, why: Why) -> Act {
        self.phase = Phase::Killed;
        Act::Kill(why)
    }

    pub(crate) fn is_working(&self) -> bool {
        matches!(self.phase, Phase::Working)
    }

    pub(crate) fn has_killed(&self) -> bool {
        matches!(self.phase, Phase::Killed)
    }

    /// From then on CMD is told to end, and is not worth starting.
    pub(crate) fn terminate_at(&self) -> Duration {
        self.terms.until.saturating_sub(self.terms.grace)
    }

    fn kill_at_last(&self) -> Duration {
        self.terms.until.saturating_sub(self.terms.margin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A lease until second 30, five seconds of grace, dead one second before its end.
    fn keeper() -> Keeper {
        Keeper::new(Terms {
            until: s(30),
            grace: s(5),
            margin: s(1),
        })
    }

    #[test]
    fn a_lease_that_is_not_renewed_ends_in_sigterm_then_sigkill_before_its_end() {
        let mut keeper = keeper();
        assert_eq!(keeper.alarm(), Some(s(25)));
        assert_eq!(keeper.due(s(24)), None);
        assert_eq!(keeper.due(s(25)), Some(Act::Terminate(Why::LeaseEnds)));
        assert_eq!(keeper.alarm(), Some(s(29)));
        assert_eq!(keeper.due(s(28)), None);
        assert_eq!(keeper.due(s(29)), Some(Act::Kill(Why::LeaseEnds)));
        assert_eq!(keeper.alarm(), None);
        assert_eq!(keeper.due(s(99)), None);
    }

    #[test]
    fn renewals_move_the_deadline() {
        let mut keeper = keeper();
        keeper.renewed(s(40));
        assert_eq!(keeper.due(s(30)), None);
        assert_eq!(keeper.alarm(), Some(s(35)));
    }

    #[test]
    fn a_renewal_after_sigterm_does_not_take_it_back() {
        let mut keeper = keeper();
        keeper.due(s(25));
        keeper.renewed(s(40));
        assert_eq!(keeper.due(s(29)), Some(Act::Kill(Why::LeaseEnds)));
    }

    #[test]
    fn after_a_sleep_past_the_end_it_kills_without_asking() {
        assert_eq!(keeper().due(s(31)), Some(Act::Kill(Why::LeaseEnds)));
        assert_eq!(
            keeper().end(s(29), Why::SupervisorGone),
            Act::Kill(Why::SupervisorGone)
        );
    }

    #[test]
    fn when_the_supervisor_goes_grace_counts_from_then() {
        let mut keeper = keeper();
        assert_eq!(
            keeper.end(s(3), Why::SupervisorGone),
            Act::Terminate(Why::SupervisorGone)
        );
        assert_eq!(keeper.alarm(), Some(s(8)));
        assert_eq!(keeper.due(s(8)), Some(Act::Kill(Why::SupervisorGone)));
    }

    #[test]
    fn grace_never_reaches_past_the_lease() {
        let mut keeper = keeper();
        keeper.end(s(27), Why::Leftovers);
        assert_eq!(keeper.alarm(), Some(s(29)));
    }

    #[test]
    fn a_grace_longer_than_the_machine_is_up_is_no_trouble() {
        let mut keeper = Keeper::new(Terms {
            until: s(1),
            grace: s(5),
            margin: s(2),
        });
        assert_eq!(keeper.due(Duration::ZERO), Some(Act::Kill(Why::LeaseEnds)));
    }
}
