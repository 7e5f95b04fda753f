//! What this process has at the server while it waits for a name: one state, with named transitions.

use std::time::Duration;

use super::{
    spec::Terms,
    ticket::{Debt, Ticket},
};
use crate::{backend::Failure, clock::Tick, engine::core::Core, owner::LeaseId};

/// What this process has at the server while it waits for the name.
///
/// Its ticket is asked for by one actor at a time (Q1). It becomes a hold in [`Queue::seat`], or a debt in
/// [`Remote::give_up`]: nothing else takes it out (B5).
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) ticket: Option<Ticket>,
    pub(super) subscription: Subscription,
    /// The server has said since the last ask was sent that the ticket holds the name: ask again before anything else.
    pub(super) granted: bool,
    /// Why the server gives no usable answer, and since when.
    pub(super) trouble: Option<(Failure, Tick)>,
}

/// Whether wake-ups are heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subscription {
    Closed,
    /// A subscription was asked for, and may come about at any time.
    Opening,
    Open,
}

impl Remote {
    pub(super) fn new() -> Remote {
        Remote {
            ticket: None,
            subscription: Subscription::Closed,
            granted: false,
            trouble: None,
        }
    }

    /// Takes over the ticket of a first attempt that was not granted.
    pub(super) fn take_over(&mut self, ticket: Ticket) -> Option<Debt> {
        let old = self.give_up();
        self.ticket = Some(ticket);
        old
    }

    /// The ticket to ask under, on these terms. `None` if the present one has other terms (B2): give it up first.
    pub(super) fn ticket_for(&mut self, core: &Core, terms: Terms) -> Option<&mut Ticket> {
        let ticket = self.ticket.get_or_insert_with(|| Ticket::new(core, terms));
        (ticket.terms() == terms).then_some(ticket)
    }

    /// The ticket with this lease id, if that is the present one.
    pub(super) fn ticket(&mut self, lease: LeaseId) -> Option<&mut Ticket> {
        self.ticket
            .as_mut()
            .filter(|ticket| ticket.lease() == lease)
    }

    /// Whether the server may have something for the present ticket (B5).
    pub(super) fn may_have(&self) -> bool {
        self.ticket
            .as_ref()
            .is_some_and(|ticket| ticket.debt().is_some())
    }

    /// A request under the present ticket goes out.
    pub(super) fn asks(&mut self) {
        self.granted = false;
    }

    /// The server has answered.
    pub(super) fn answered(&mut self) {
        self.trouble = None;
    }

    pub(super) fn failed(&mut self, failure: &Failure, now: Tick) -> Duration {
        let since = self.trouble.take().map_or(now, |(_, since)| since);
        self.trouble = Some((failure.clone(), since));
        now.since(since)
    }

    /// Nothing is asked for under the ticket any more. What the server must be told, if it may have it (B5).
    pub(super) fn give_up(&mut self) -> Option<Debt> {
        self.granted = false;
        self.ticket.take().and_then(|ticket| ticket.debt())
    }
}
