//! The part of a queue that concerns the server while this process waits for a name: one state, with named transitions.

use std::time::Duration;

use crate::{
    backend::Failure,
    clock::Tick,
    engine::claim::pending_release::PendingRelease,
    engine::claim::subscription::Subscription,
    engine::claim::ticket::Ticket,
    engine::env::{Env, unsettled::Settling},
    engine::hold::spec::Terms,
    engine::local::turns::Turns,
    owner::LeaseId,
};

/// The ticket and the subscription of this process at the server while it waits for the name.
///
/// Its ticket is asked for by one actor at a time (Q1). It becomes a hold in `Queue::install`, or a pending release in
/// [`Remote::give_up`]: nothing else takes it out (B5).
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) ticket: Option<Ticket>,
    pub(crate) subscription: Subscription,
    /// The server has said since the last ask was sent that the ticket holds the name: ask again before anything else.
    pub(crate) granted: bool,
    /// The server has said since the last ask was sent when the lease of the holder ends.
    pub(crate) watched: Option<Tick>,
    pub(crate) trouble: Option<Trouble>,
    /// Beside clients of Redisson's: the ticket whose own channel is heard, since they tell only the next waiter.
    pub(crate) own: Option<LeaseId>,
    /// When it was last known that another has the lock: the server said so, or a task of this process gave it back.
    held: Option<Tick>,
    /// The server has said so last, and that may be no other than this client, by a lease id that it was giving up.
    unsettled: bool,
    pub(crate) turns: Turns,
    /// When what was heard of the holds of this process had them verified last, or is going to.
    pub(crate) doubted: Tick,
    /// No caller wants the ticket any more, and the server has not been told yet.
    pub(crate) leaving: Option<Settling>,
}

/// Why the server gives no usable answer.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub(crate) failure: Failure,
    since: Tick,
    /// A subscription failed. The server may still answer requests for the name.
    pub(crate) is_deafness: bool,
}

impl Remote {
    pub(crate) fn new() -> Remote {
        Remote {
            ticket: None,
            subscription: Subscription::default(),
            granted: false,
            watched: None,
            trouble: None,
            own: None,
            held: None,
            unsettled: false,
            turns: Turns::new(),
            doubted: Tick::from_nanos(0),
            leaving: None,
        }
    }

    /// Takes over the ticket of a first attempt that was not granted.
    pub(crate) fn take_over(&mut self, ticket: Ticket) -> Option<PendingRelease> {
        let old = self.give_up();
        self.ticket = Some(ticket);
        old
    }

    /// The ticket to ask under, on these terms. `None` if the present one has other terms (B2): give it up first.
    pub(crate) fn ticket_for(&mut self, env: &Env, terms: Terms) -> Option<&mut Ticket> {
        let ticket = self.ticket.get_or_insert_with(|| Ticket::new(env, terms));
        (ticket.terms() == terms).then_some(ticket)
    }

    /// An ask has been answered: after a failed vote the next is for another lease id.
    pub(crate) fn renew_ticket(&mut self, env: &Env) {
        let ticket = self.ticket.as_mut();
        // A grant to the old id is given back, as any that no ticket waits for (B3).
        self.granted &= !ticket.is_some_and(|ticket| ticket.renew_if_given_up(env));
    }

    /// Gives up a ticket that has other terms than these.
    pub(crate) fn give_up_other(&mut self, terms: Terms) -> Option<PendingRelease> {
        let other = self
            .ticket
            .as_ref()
            .is_some_and(|ticket| ticket.terms() != terms);
        other.then(|| self.give_up()).flatten()
    }

    /// The ticket with this lease id, if that is the present one.
    pub(crate) fn ticket(&mut self, lease: LeaseId) -> Option<&mut Ticket> {
        self.ticket
            .as_mut()
            .filter(|ticket| ticket.lease() == lease)
    }

    /// Whether the server may have something for the present ticket (B5).
    pub(crate) fn may_have(&self) -> bool {
        self.ticket
            .as_ref()
            .is_some_and(|ticket| ticket.pending_release().is_some())
    }

    /// A request under the present ticket goes out.
    pub(crate) fn asks(&mut self) {
        self.granted = false;
        self.watched = None;
    }

    /// The server has answered.
    pub(crate) fn answered(&mut self) {
        self.trouble = None;
    }

    /// For how long nothing has been answered that helps; `None`: this is the first.
    pub(crate) fn failed(&mut self, failure: &Failure, now: Tick) -> Option<Duration> {
        // The latest ask has its answer, so the failure is of a subscription.
        let is_deafness = self.ticket.as_ref().is_some_and(Ticket::is_answered);
        let before = self.trouble.take();
        // Two troubles, two times: a server that answers requests and refuses subscriptions is no outage (bug 186).
        let before = before.filter(|trouble| trouble.is_deafness == is_deafness);
        let since = before.map(|trouble| trouble.since);
        self.trouble = Some(Trouble {
            failure: failure.clone(),
            since: since.unwrap_or(now),
            is_deafness,
        });
        since.map(|since| now.since(since))
    }

    pub(crate) fn cannot_hear(&self) -> bool {
        let trouble = self.trouble.as_ref();
        trouble.is_some_and(|trouble| trouble.is_deafness)
    }

    /// Another has the lock, or had it at `at`.
    pub(crate) fn note_held_by_another(&mut self, at: Tick) {
        self.held = Some(at);
        self.unsettled = false;
    }

    /// The server says at `at` that another has the lock; or this client has it still, if that is `unsettled`.
    pub(crate) fn answered_held(&mut self, at: Tick, unsettled: bool) {
        if unsettled {
            // `held` stays as it was: this word may be of a lease of ours, and says nothing of others.
            self.unsettled = true;
        } else {
            self.note_held_by_another(at);
        }
    }

    /// Whether no other may have what the server says is held.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsettled
    }

    /// Whether the last that is known since `began` is that another has the lock. A subscription that fails is no news of that.
    pub(crate) fn is_held_since(&self, began: Tick) -> bool {
        let asks = self.trouble.as_ref().is_none_or(|it| it.is_deafness);
        // Only what the server said since then: an older word is of a holder that may be gone (bugs 76, 166).
        asks && !self.unsettled && self.held >= Some(began)
    }

    /// Nothing is asked for under the ticket any more. Returns the pending release, if the server may have the ticket (B5).
    pub(crate) fn give_up(&mut self) -> Option<PendingRelease> {
        self.granted = false;
        self.ticket.take()?.pending_release()
    }
}
