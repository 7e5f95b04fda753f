//! The time arithmetic of a lease. No clock and no I/O: the caller brings the instant.
//!
//! The rules that are kept here (docs/rules.md has all of them):
//!
//! - **B1** A lease is believed until `sent + remaining − margin`: the server stated `remaining` in the reply to *that*
//!   send. The server stated it after the send, so the lease ends here before it ends there, however late the reply
//!   arrived. The [`margin`] covers clocks that do not run at the same speed.
//! - **B2** The end on the server only moves forward, and so does ours: an answer that comes late or twice shortens nothing.
//! - An end is final: once a check has found a [`LeaseTerm`] over, no renewal brings it back.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

pub(crate) use crate::clock::margin;
use crate::{LostReason, clock::Tick, name::LockId};

/// Until when the holder may rely on a lease of which the server said, in its reply to the request sent at `sent`, that
/// `remaining` of it was left (B1).
pub(crate) fn valid_until(sent: Tick, remaining: Duration) -> Tick {
    // A lease no longer than its margin ends at its send, and is never valid: no subtraction may bring the end before that.
    sent.after(remaining.saturating_sub(margin(remaining)))
}

/// The lease to ask a server for, so that the holder may rely on it for `rest` from the request on.
pub(crate) fn asked_for(rest: Duration) -> Duration {
    // Twice: the lease that is asked for is longer than `rest`, and so is the margin that is taken off it.
    rest + 2 * margin(rest)
}

/// For how long at most the server may still hold a lease of this length, if it was asked for by now.
pub(crate) fn free_within(lease: Duration) -> Duration {
    // The server's clock may run slower than this one, by as much as the margin covers.
    lease + margin(lease)
}

/// The same, as users are told: of a kind without leases nothing ends by itself.
pub(crate) fn free_for_users(id: &LockId, lease: Duration) -> Duration {
    if id.kind.never_ends() {
        Duration::MAX
    } else {
        free_within(lease)
    }
}

/// Until when a hold lasts, or how it ended: one atomic number, so that checking costs one load.
#[derive(Debug)]
pub(crate) struct LeaseTerm(AtomicU64);

/// The result of a check of a [`LeaseTerm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It lasts until then.
    Valid(Tick),
    /// It ran out, and this check is the first to notice: the caller that gets this tells the others.
    JustExpired,
    /// It is over.
    Ended(End),
}

/// How a [`LeaseTerm`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Released,
    Lost(LostReason),
}

impl End {
    // Codes are smaller than any instant of a client's clock (`EPOCH` in `clock.rs`), so neither is taken for the other.
    const fn code(self) -> u64 {
        match self {
            End::Released => 0,
            End::Lost(LostReason::Expired) => 1,
            End::Lost(LostReason::Replaced) => 2,
            End::Lost(LostReason::MaxHold) => 3,
            End::Lost(LostReason::ClientShutdown) => 4,
            End::Lost(LostReason::Unconfirmed) => 5,
            End::Lost(LostReason::Failover) => 6,
        }
    }

    const fn from_code(code: u64) -> Option<End> {
        match code {
            0 => Some(End::Released),
            1 => Some(End::Lost(LostReason::Expired)),
            2 => Some(End::Lost(LostReason::Replaced)),
            3 => Some(End::Lost(LostReason::MaxHold)),
            4 => Some(End::Lost(LostReason::ClientShutdown)),
            5 => Some(End::Lost(LostReason::Unconfirmed)),
            6 => Some(End::Lost(LostReason::Failover)),
            _ => None,
        }
    }
}

impl LeaseTerm {
    pub(crate) fn until(until: Tick) -> Self {
        LeaseTerm(AtomicU64::new(until.nanos()))
    }

    /// Checks, and ends the term if it has run out: the check itself makes that final.
    pub(crate) fn check(&self, now: Tick) -> Standing {
        let mut seen = self.0.load(Ordering::Acquire);
        loop {
            if let Some(end) = End::from_code(seen) {
                return Standing::Ended(end);
            }
            if now.nanos() < seen {
                return Standing::Valid(Tick::from_nanos(seen));
            }
            match self.swap(seen, End::Lost(LostReason::Expired).code()) {
                Ok(()) => return Standing::JustExpired,
                // A renewal has moved the end out meanwhile, or another check was the first: the new value decides.
                Err(newer) => seen = newer,
            }
        }
    }

    /// When it ends unless it is prolonged; `None` if it is over. Does not look at the clock, and changes nothing.
    pub(crate) fn ends_at(&self) -> Option<Tick> {
        let seen = self.0.load(Ordering::Acquire);
        End::from_code(seen)
            .is_none()
            .then(|| Tick::from_nanos(seen))
    }

    /// The result that a check would have, without the check: nothing becomes final by it.
    #[cfg(feature = "sim")]
    pub(crate) fn peek(&self, now: Tick) -> Standing {
        let seen = self.0.load(Ordering::Acquire);
        match End::from_code(seen) {
            Some(end) => Standing::Ended(end),
            None if now.nanos() < seen => Standing::Valid(Tick::from_nanos(seen)),
            None => Standing::JustExpired,
        }
    }

    /// Moves the end out to `until`, unless it is later already (B2) or the term is over by `now`.
    pub(crate) fn prolong(&self, until: Tick, now: Tick) -> Standing {
        let mut seen = self.0.load(Ordering::Acquire);
        loop {
            if let Some(end) = End::from_code(seen) {
                return Standing::Ended(end);
            }
            // This is a check as well: a renewal that is answered after the end brings nothing back.
            if now.nanos() >= seen {
                match self.swap(seen, End::Lost(LostReason::Expired).code()) {
                    Ok(()) => return Standing::JustExpired,
                    Err(newer) => seen = newer,
                }
                continue;
            }
            let until = until.max(Tick::from_nanos(seen));
            match self.swap(seen, until.nanos()) {
                Ok(()) => return Standing::Valid(until),
                Err(newer) => seen = newer,
            }
        }
    }

    /// Moves the end in to `until`, if it is later and the term is not over: servers of a quorum have forgotten their votes (QB1).
    pub(crate) fn shorten(&self, until: Tick) {
        let mut seen = self.0.load(Ordering::Acquire);
        // An end in the past is set as well: the next check finds it, and only a check tells the loss.
        while End::from_code(seen).is_none() && until.nanos() < seen {
            match self.swap(seen, until.nanos()) {
                Ok(()) => return,
                Err(newer) => seen = newer,
            }
        }
    }

    /// Whether a check has found it over. Does not look at the clock itself.
    pub(crate) fn is_over(&self) -> bool {
        End::from_code(self.0.load(Ordering::Acquire)).is_some()
    }

    /// Ends the term. `true` if this call ended it, `false` if it was over before.
    pub(crate) fn end(&self, end: End) -> bool {
        // The clock is not asked: a caller that must not pass over an end in the past checks before (`begin_release`).
        let mut seen = self.0.load(Ordering::Acquire);
        loop {
            if End::from_code(seen).is_some() {
                return false;
            }
            match self.swap(seen, end.code()) {
                Ok(()) => return true,
                Err(newer) => seen = newer,
            }
        }
    }

    fn swap(&self, from: u64, to: u64) -> Result<(), u64> {
        self.0
            // `weak` may fail without a cause: each caller goes round again with what it found.
            .compare_exchange_weak(from, to, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u64) -> Tick {
        Tick::from_nanos(1_000_000_000).after(Duration::from_millis(ms))
    }

    #[test]
    fn a_lease_ends_here_before_it_ends_on_the_server() {
        let lease = Duration::from_secs(30);
        let sent = at(0);
        assert_eq!(valid_until(sent, lease), at(30_000 - 302));
        assert!(free_within(lease) > lease);
        for rest in [MS, 300 * MS, 57 * lease, lease] {
            assert!(valid_until(sent, asked_for(rest)) >= sent.after(rest));
        }
    }

    #[test]
    fn a_lease_shorter_than_its_margin_is_never_valid() {
        let term = LeaseTerm::until(valid_until(at(0), 2 * MS));
        assert_eq!(term.check(at(0)), Standing::JustExpired);
    }

    #[test]
    fn an_expired_term_is_not_brought_back_by_a_late_renewal() {
        let term = LeaseTerm::until(at(10));
        assert_eq!(term.check(at(9)), Standing::Valid(at(10)));
        assert_eq!(term.prolong(at(50), at(10)), Standing::JustExpired);
        let expired = Standing::Ended(End::Lost(LostReason::Expired));
        assert_eq!(term.prolong(at(50), at(9)), expired);
        assert_eq!(term.check(at(9)), expired);
    }

    #[test]
    fn the_first_end_counts() {
        let term = LeaseTerm::until(at(10));
        assert!(term.end(End::Lost(LostReason::Replaced)));
        assert!(!term.end(End::Released));
        assert_eq!(
            term.check(at(0)),
            Standing::Ended(End::Lost(LostReason::Replaced))
        );
    }

    #[test]
    fn every_end_survives_its_code() {
        for code in 0..8 {
            if let Some(end) = End::from_code(code) {
                assert_eq!(end.code(), code);
            }
        }
    }
}
