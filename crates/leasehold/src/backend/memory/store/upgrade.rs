//! How a reader becomes the writer, and a writer a reader: under one lease id, which never goes back.

use std::{sync::Arc, time::Duration};

use super::{Store, StoredHold, rules};
use crate::{
    backend::{Acquire, Acquired, Downgrade, Grant, fenced::Tokens},
    kind::Access,
    name::LockId,
    owner::LeaseId,
};

impl Store {
    /// Makes the upgradeable hold of `lease` the writer if it is alone.
    pub(super) fn upgrade(
        &mut self,
        client: &Arc<str>,
        step: &Acquire,
        lease: LeaseId,
    ) -> Acquired {
        let (id, now) = (&step.id, self.clock);
        let given_up = self.is_given_up(client, step.lease);
        let fits = self.fits(id, step.access);
        match self.ours(client, id, lease).map(|held| held.access) {
            // An earlier copy has done it.
            Some(Access::Exclusive) => {}
            Some(Access::Upgradeable) if !given_up => {
                if !fits {
                    if let Some(place) = step.place {
                        let grant = Grant {
                            access: step.access,
                            lease: step.lease,
                            lease_ms: step.lease_ms,
                            ask: place.ask,
                            tokens: Tokens::NONE,
                        };
                        self.queue(client, id, grant, place, step.ahead);
                    }
                    let others = self.held_by(id).iter().filter(|held| held.lease != lease);
                    let ends = others.map(|held| held.ends).max();
                    return Acquired::Held {
                        ttl: ends.map(|ends| ends.saturating_sub(now)),
                        silent: false,
                    };
                }
                self.leave_queue(client, id, step.lease);
            }
            _ => return Acquired::GivenUp,
        }
        self.becomes_writer(client, id, lease, step.lease_ms);
        let ends = self.ours(client, id, lease).map_or(now, |held| held.ends);
        Acquired::Granted {
            remaining: ends.saturating_sub(now),
            tokens: Tokens::NONE,
        }
    }

    /// Its lease ends no sooner than before (B2).
    pub(super) fn becomes_writer(
        &mut self,
        client: &Arc<str>,
        id: &LockId,
        lease: LeaseId,
        lease_ms: u64,
    ) {
        let ends = self.clock + Duration::from_millis(lease_ms);
        if let Some(held) = self.ours(client, id, lease) {
            held.access = Access::Exclusive;
            held.ends = held.ends.max(ends);
        }
    }

    /// `false`: it does not hold the name.
    pub(crate) fn downgrade(&mut self, client: &Arc<str>, step: &Downgrade) -> bool {
        let id = &step.id;
        let Some(held) = self.ours(client, id, step.lease) else {
            return false;
        };
        let before = held.access;
        if before == Access::Shared {
            return true;
        }
        held.access = Access::Shared;
        held.holds = step.holds;
        self.give_to_next(id);
        if before == Access::Exclusive {
            self.tell_all(id);
        }
        true
    }

    /// Where a place stands that is made `ahead` of those that wait for the other access, or to upgrade a hold.
    pub(super) fn rank(&self, id: &LockId, access: Access, ahead: bool) -> usize {
        let places = self.queues.get(id).map(|waiting| &waiting.places);
        let end = places.map_or(0, std::collections::VecDeque::len);
        if access.upgrades().is_some() {
            return 0;
        }
        if !ahead {
            return end;
        }
        let other = |queued: Access| {
            queued.keeps_readers_out() != access.keeps_readers_out() && queued.upgrades().is_none()
        };
        let at = places.and_then(|places| places.iter().position(|q| other(q.grant.access)));
        at.unwrap_or(end)
    }

    /// Makes a queued client a holder, or upgrades its hold.
    pub(super) fn make_holder(&mut self, client: &Arc<str>, id: &LockId, grant: &Grant) {
        match grant.access.upgrades() {
            Some(lease) => self.becomes_writer(client, id, lease, grant.lease_ms),
            None => self.hold(client, id, grant.access, (grant.lease, grant.lease_ms)),
        }
    }

    /// Whether a place asks to upgrade a hold that is over.
    pub(super) fn is_pointless(&self, id: &LockId, client: &Arc<str>, access: Access) -> bool {
        rules(id.kind).has_queue()
            && access.upgrades().is_some()
            && self.to_upgrade(id, client, access).is_none()
    }

    /// The hold that a place asks to upgrade, if it does and that is not over.
    pub(super) fn to_upgrade(
        &self,
        id: &LockId,
        client: &Arc<str>,
        access: Access,
    ) -> Option<&StoredHold> {
        let lease = access.upgrades()?;
        self.held_by(id).iter().find(|held| {
            held.client == *client && held.lease == lease && held.access == Access::Upgradeable
        })
    }
}
