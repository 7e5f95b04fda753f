//! What a holder asks the server about its hold.

use std::{sync::Arc, time::Duration};

use crate::{Error, LostReason, backend::Extend, config::millis, engine::hold::Hold};

impl Hold {
    /// Whether the server still has it, and for how long.
    pub(crate) async fn verify(self: &Arc<Self>) -> Result<Duration, Error> {
        self.check()?;
        let id = self.queue.id.clone();
        let found = self.core.backend.inspect(id).await.map_err(|failure| {
            failure.into_read_error(format!("verify {:?}", self.queue.id.name))
        })?;
        let ours = found
            .owners
            .into_iter()
            .find(|held| self.is_owner(&held.owner));
        if ours.is_none() {
            self.lose(LostReason::Replaced);
        }
        let left = self.check()?;
        Ok(ours.and_then(|held| held.ttl).unwrap_or(left))
    }

    /// Makes a fixed lease last at least `lease` from now.
    pub(crate) async fn extend(self: &Arc<Self>, lease: Duration) -> Result<(), Error> {
        self.check()?;
        self.asks_for(lease);
        let sent = self.core.clock.now();
        let step = Extend {
            id: self.queue.id.clone(),
            access: self.spec().access,
            lease: self.lease,
            lease_ms: millis(lease),
        };
        match self.core.backend.extend(step).await {
            // B1, B2: what the server states in this reply, or later.
            Ok(Some(remaining)) => drop(self.extended(remaining, sent)),
            Ok(None) => self.lose(LostReason::Replaced),
            Err(failure) => {
                let doing = format!("extend the lease on {:?}", self.queue.id.name);
                return Err(
                    failure.into_error(doing, self.standing().unwrap_or_default().max(lease))
                );
            }
        }
        self.check().map(drop)
    }
}
