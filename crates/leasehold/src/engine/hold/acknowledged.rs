//! Acknowledgements of a hold by replicas, or by the disk.
//!
//! With a policy, belief rests on acknowledged ends only: a renewal that was not acknowledged moves no end, so a replica that is
//! promoted, and had acknowledged, keeps the lock for as long as it is believed here. (A client that accepts what is unmet takes the
//! server's own word.) A hand-over in memory needs no acknowledgement of its own: lease id and end stay as they were acknowledged.

use std::time::Instant;

use crate::{
    backend::{Confirmation, Renewal},
    durability::{Acknowledged, Durability},
    engine::hold::Hold,
};

impl Hold {
    /// Whether its holder is to wait until others have it.
    pub(crate) fn lacks_acknowledgement(&self) -> bool {
        !self.durability.is_primary() && self.acknowledged().at.is_none()
    }

    pub(crate) fn acknowledged(&self) -> Acknowledged {
        let none = Acknowledged {
            policy: self.durability,
            replicas: 0,
            on_disk: false,
            at: None,
        };
        let state = self.state.lock();
        state.acknowledged.as_deref().copied().unwrap_or(none)
    }

    /// Servers have said what they have of a renewal of it.
    pub(crate) fn note_acknowledged(&self, said: &Confirmation) {
        // No replica can have an end that the primary did not write: the acknowledgement of before stays as it is.
        if said.renewal != Renewal::Extended {
            return;
        }
        let before = self.acknowledged();
        let now = said.missed.is_none().then(Instant::now);
        self.state.lock().acknowledged = Some(Box::new(Acknowledged {
            replicas: said.replicas,
            on_disk: said.on_disk,
            // A renewal that missed its policy takes back no acknowledgement that was given before.
            at: now.or(before.at),
            ..before
        }));
    }
}

// Each hold has one of these (docs/performance.md, P9).
const _: () = assert!(size_of::<Durability>() <= 2);
