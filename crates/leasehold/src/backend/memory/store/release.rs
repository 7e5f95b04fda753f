//! A lease id is given up for good, and its hold goes to the next; or it reads on, and lets readers in.

use std::{sync::Arc, time::Duration};

use super::{Store, rules};
use crate::{
    backend::{Downgrade, Next, Release, ReleaseReply},
    kind::Access,
    name::LockId,
};

impl Store {
    pub(crate) fn release(&mut self, client: &Arc<str>, step: &Release) -> ReleaseReply {
        let (id, now) = (&step.id, self.clock);
        if id.kind.never_ends() {
            return self.give(client, step);
        }
        // Without a queue nothing is kept for the next of this process: it asks as every client does.
        let next = step.next.filter(|_| rules(id.kind).has_queue());
        let made_way = self.leave_queue(client, id, step.lease);
        if self.ours(client, id, step.lease).is_none() {
            // An earlier copy, whose answer was lost, may have given the name to `next`.
            if let Some(next) = next.and_then(|next| self.ours(client, id, next.lease)) {
                let remaining = next.ends.saturating_sub(now);
                let tokens = self.tokens(id);
                return ReleaseReply::Kept { remaining, tokens };
            }
            // Clients that only waited for this one to have its turn need not wait any more.
            if made_way && self.give_to_next(id).is_none() {
                self.tell_first(id);
            }
            return ReleaseReply::NotOurs;
        }
        self.drop_hold(client, id, step.lease);
        let others = self
            .subscribers(id)
            .len()
            .saturating_sub(usize::from(step.listening));
        if let Some(next) = next
            && !self.has_queue(id)
            && next.stays
            && others == 0
            && self.fits(id, next.access)
        {
            return self.stays_with(client, id, next);
        }
        // Looked up before the queue is served: an entry that is granted is no longer there, and must not be made anew (B3).
        let next_waits = next.is_some_and(|next| self.is_queued(client, id, next.lease));
        let granted = self.give_to_next(id);
        // Readers do not wait for each other.
        if granted.is_some()
            && !next_waits
            && let Some(next) = next
            && self.fits(id, next.access)
            && !self.gives_way(id, next.access)
        {
            return self.stays_with(client, id, next);
        }
        // The holders beside it keep the lock: nothing is free that was not before, and no client is told.
        let is_free = self.held_by(id).is_empty() || !rules(id.kind).has_queue();
        if granted.is_none() && !is_free {
            self.tell_first(id);
        }
        if let Some(lease) = granted {
            return ReleaseReply::Granted { lease };
        }
        if !is_free || rules(id.kind).is_in_turn() {
            return ReleaseReply::Freed {
                others: 0,
                turns: 0,
            };
        }
        self.tell_all(id);
        ReleaseReply::Freed {
            others: others as u64,
            turns: 0,
        }
    }

    /// The name stays with the client, under its next lease id.
    fn stays_with(&mut self, client: &Arc<str>, id: &LockId, next: Next) -> ReleaseReply {
        self.hold(client, id, next.access, (next.lease, next.lease_ms));
        ReleaseReply::Kept {
            remaining: Duration::from_millis(next.lease_ms),
            tokens: self.tokens(id),
        }
    }

    /// `false`: it does not hold the name. A lease id that reads never writes again.
    pub(crate) fn downgrade(&mut self, client: &Arc<str>, step: &Downgrade) -> bool {
        let id = &step.id;
        let Some(held) = self.ours(client, id, step.lease) else {
            return false;
        };
        // A second copy finds a reader, and must not write its count over a later one (S2).
        if held.access.is_exclusive() {
            held.access = Access::Shared;
            held.holds = step.holds;
            self.give_to_next(id);
            // Readers that stand in no queue may come in now, too.
            self.tell_all(id);
        }
        true
    }
}
