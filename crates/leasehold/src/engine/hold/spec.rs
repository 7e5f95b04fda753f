//! A caller's request for a hold, and when a lease serves it.

use std::{panic::Location, time::Duration};

use crate::{
    backend::{Acquire, Permits},
    clock::{Span, Tick},
    config::{Handoff, PollRange, VERIFY_EVERY_MOST, check_backoff, millis},
    durability::Durability,
    error::{Error, NO_REENTRY},
    kind::Access,
    name::LockId,
    owner::{LeaseId, OwnerId},
};

/// A caller's request for a hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    pub(crate) access: Access,
    pub(crate) lease: Span,
    /// Zero: a fixed lease, never renewed.
    pub(crate) renew_every: Span,
    /// Zero: no end.
    pub(crate) max_hold: Span,
    pub(crate) handoff: Handoff,
    pub(crate) owner: Option<OwnerId>,
    pub(crate) reentrant: bool,
    /// Who must have it before its holder goes on.
    pub(crate) durability: Durability,
    pub(crate) waits: Waits,
    /// As in [`Acquire`](crate::backend::Acquire).
    pub(crate) permits: Option<Permits>,
    /// Where in the user's code.
    pub(crate) place: &'static Location<'static>,
}

impl Spec {
    pub(crate) fn is_fixed(&self) -> bool {
        self.renew_every == Span::ZERO
    }

    pub(crate) fn lease(&self) -> Duration {
        self.lease.get()
    }

    /// How often the server is asked about the hold: to renew it, or whether a fixed one is still ours.
    pub(crate) fn ask_every(&self) -> Duration {
        if self.is_fixed() {
            // A fixed lease is asked about, too: it may have been unlocked by force (bug 30).
            (self.lease() / 3).min(VERIFY_EVERY_MOST)
        } else {
            self.renew_every.get()
        }
    }

    pub(crate) fn max_hold(&self) -> Option<Duration> {
        (self.max_hold != Span::ZERO).then(|| self.max_hold.get())
    }

    pub(crate) fn lease_ms(&self) -> u64 {
        millis(self.lease())
    }

    /// The request to the server, without an entry in its queue.
    pub(crate) fn request(&self, id: &LockId, lease: LeaseId) -> Acquire {
        Acquire {
            id: id.clone(),
            access: self.access,
            lease,
            lease_ms: self.lease_ms(),
            entry: None,
            permits: self.permits,
        }
    }

    pub(crate) fn terms(&self) -> Terms {
        Terms {
            access: self.access,
            lease_ms: self.lease_ms(),
        }
    }

    /// The setting that lets a new hold last no longer, and its length, for errors.
    pub(crate) fn limit(&self) -> (&'static str, Duration) {
        let lease = self.lease();
        match self.max_hold() {
            Some(most) if millis(most) <= millis(lease) => ("max_hold", most),
            _ => ("lease", lease),
        }
    }

    /// Whether it only reads under a hold that writes.
    pub(crate) fn reads_under(&self, hold: &Spec) -> bool {
        self.access == Access::Shared && hold.access.is_exclusive()
    }

    /// Whether a lease taken for `self` serves `other` as it is. A fixed lease never does: a caller that asks for ten
    /// seconds gets ten seconds from now.
    pub(crate) fn serves(&self, other: &Spec) -> bool {
        !self.is_fixed()
            && self.access == other.access
            && self.lease == other.lease
            && self.renew_every == other.renew_every
            // The watchdog renews by the policy with which the hold was taken (`Hold::durability`), which no hand-over changes.
            && self.durability == other.durability
            // The term ends by `max_hold` since its grant (`Hold::new`), and no hand-over moves that end.
            && self.max_hold == Span::ZERO
            && other.max_hold == Span::ZERO
    }

    /// Why a caller may not enter a hold of its own owner, as what it is to do instead; `None`: it may. A writer may read; a
    /// reader that wants to write would wait for itself.
    pub(crate) fn is_to_stay_out(&self, hold: &Spec) -> Option<&'static str> {
        if !self.reentrant {
            Some(NO_REENTRY)
        } else if hold.access.is_exclusive() || hold.access == self.access {
            None
        } else {
            Some("release that read lock first, or take write() in its place")
        }
    }

    /// Whether a lease that counts since `sent` is fresh enough for a new holder: it must need no renewal at once, and of a
    /// fixed lease hardly any may be gone.
    pub(crate) fn is_fresh(&self, sent: Tick, now: Tick) -> bool {
        let part = if self.is_fixed() { 20 } else { 3 };
        now.since(sent) < self.lease() / part
    }
}

/// The terms of a request to the server. An entry in its queue keeps the terms it was made with (B2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) access: Access,
    pub(crate) lease_ms: u64,
}

/// How a waiter learns that the lock may be free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// It is told.
    Notified,
    /// It is told; but while a holder has it that tells no waiter, it polls after these pauses.
    NotifiedOrPolls(PollRange),
    /// It polls after these pauses, and listens to nothing: so no client can tell that it waits.
    Polls(PollRange),
    /// It is told when its turn has come: the server knows each task that waits, and their order. In this process each has
    /// a queue of its own (`fair/`).
    InTurn,
}

impl Waits {
    /// The same with these pauses, if there are any.
    pub(crate) fn with(self, first: Duration, most: Duration) -> Result<Waits, Error> {
        Ok(match self {
            Waits::NotifiedOrPolls(usual) => {
                Waits::NotifiedOrPolls(check_backoff(first, most, usual)?)
            }
            Waits::Polls(usual) => Waits::Polls(check_backoff(first, most, usual)?),
            Waits::Notified | Waits::InTurn => self,
        })
    }

    pub(crate) fn is_in_turn(self) -> bool {
        self == Waits::InTurn
    }

    pub(crate) fn listens(self) -> bool {
        !matches!(self, Waits::Polls(_))
    }

    /// The pauses after which it polls, beside a holder that is `silent` or not.
    pub(crate) fn backoff(self, silent: bool) -> Option<PollRange> {
        match self {
            Waits::Polls(backoff) => Some(backoff),
            Waits::NotifiedOrPolls(backoff) if silent => Some(backoff),
            Waits::Notified | Waits::NotifiedOrPolls(_) | Waits::InTurn => None,
        }
    }
}

/// How long a caller is willing to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    Once,
    For(Duration),
    Forever,
}
