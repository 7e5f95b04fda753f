//! Requests of a holder to the server about its hold.

use std::{sync::Arc, time::Duration};

use crate::{
    Error,
    backend::{Extend, Failure},
    clock::Tick,
    config::millis,
    durability::Unmet,
    engine::hold::{Hold, lease},
};

impl Hold {
    /// Whether the server still has it, and for how long: an extension by nothing.
    pub(crate) async fn verify(self: &Arc<Self>) -> Result<Duration, Error> {
        // B1: a hold that is over is not asked about, since no answer brings it back.
        self.check()?;
        let (left, sent) = self
            .ask(Duration::ZERO)
            .await
            .map_err(|failure| failure.into_read_error(format!("verify {:?}", self.id().name)))?;
        match left {
            Some(_) => self.confirm(sent),
            None => {
                self.answered_not_ours(sent);
            }
        }
        // The server's own end is not what this hold rests on.
        if !self.durability.is_primary() && self.env().config.unmet == Unmet::GiveBack {
            return self.check();
        }
        // The server's end is known since the request was sent (B1). It states less of a hold without an end.
        let access = self.spec().access;
        let left = self.env().config.believed(access, left.unwrap_or_default());
        let left = left.saturating_sub(self.env().clock.now().since(sent));
        // Checked once more: the lease may have ended while the answer was under way.
        self.check().map(|here| here.max(left))
    }

    /// Makes a fixed lease last at least `lease` from now.
    pub(crate) async fn extend(self: &Arc<Self>, lease: Duration) -> Result<(), Error> {
        self.check()?;
        self.env().check_longest("lease", lease)?;
        self.asks_for(lease);
        match self.ask(lease).await {
            // B1, B2: what the server states in this reply, or later.
            Ok((Some(remaining), sent)) => drop(self.extended(remaining, sent)),
            Ok((None, sent)) => {
                self.answered_not_ours(sent);
            }
            Err(failure) => {
                // The request may have been carried out: the server then holds the name for the longer of the two.
                let doing = format!("extend the lease on {:?}", self.id().name);
                return Err(
                    failure.into_error(doing, self.standing().unwrap_or_default().max(lease))
                );
            }
        }
        // The answer may have come after the end, or may have said that the lease is not ours: the extension has failed then.
        self.check().map(drop)
    }

    /// Has the server that is there now keep it for as long as one before it has said (B1).
    pub(super) async fn restore(self: Arc<Self>) {
        match self.ask(Duration::ZERO).await {
            Ok((Some(remaining), sent)) => {
                // B1: no more is believed than it says; nor more than before, or a fixed lease would never end where each reconnect counts
                // as a restart (bug 311).
                let believed = self.env().config.believed(self.spec().access, remaining);
                self.term.shorten(lease::valid_until(sent, believed));
                let _ = self.extended(Duration::ZERO, sent);
            }
            Ok((None, sent)) => {
                self.answered_not_ours(sent);
            }
            // It is not confirmed still, and so verified once more.
            Err(_) => {
                let pause = self.env().config.operation_timeout / 8;
                self.doubt(self.env().clock.now().after(pause));
            }
        }
    }

    /// The length that the server is to give the lease, so that it is as long as an earlier server has said (B1). Zero: it is.
    fn restored(&self, sent: Tick) -> Duration {
        let believed = self.term.ends_at().filter(|_| self.is_from_another());
        let Some(until) = believed else {
            return Duration::ZERO;
        };
        let (rest, lease) = (until.since(sent), self.spec().lease());
        // B2: a lease that is renewed is asked for by its own length always, lest a renewal bring its end nearer.
        if !self.lasts(until) && rest <= lease {
            return lease;
        }
        // No longer than was asked for before: `release` says from that how long the server may have it (bug 44).
        lease::asked_for(rest).min(self.longest().max(rest))
    }

    /// How long the server has it at least, made to last `lease` from now if that is less; and when the request left that was answered so.
    async fn ask(&self, lease: Duration) -> Result<(Option<Duration>, Tick), Failure> {
        loop {
            let sent = self.env().clock.now();
            // Worked out for each send: the later it leaves, the less is missing.
            let lease = lease.max(self.restored(sent));
            let step = Extend {
                id: self.id().clone(),
                access: self.spec().access,
                lease: self.lease,
                lease_ms: millis(lease),
            };
            let left = self.env().backend.extend(step).await?;
            // The server of before may have said so. The present one is asked, once for each restart (bugs 300, 310).
            if !self.is_from_before(sent) {
                return Ok((left, sent));
            }
        }
    }
}
