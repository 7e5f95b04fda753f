//! The part of a queue that concerns the server while this process waits for a name: one state, with named transitions.

use std::{sync::Arc, time::Duration};

use crate::{
    backend::{Failure, Reply},
    callout,
    clock::Tick,
    engine::{
        claim::{debt::Debt, ticket::Ticket},
        core::Core,
        hold::spec::Terms,
        local::turns::Turns,
        queue::{Phase, Queue, QueueState},
    },
    owner::LeaseId,
};

/// The ticket and the subscription of this process at the server while it waits for the name.
///
/// Its ticket is asked for by one actor at a time (Q1). It becomes a hold in [`Queue::seat`], or a debt in
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
    pub(crate) held: Option<Tick>,
    pub(crate) turns: Turns,
}

/// Why the server gives no usable answer.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub(crate) failure: Failure,
    since: Tick,
    /// A subscription failed. The server may still answer requests for the name.
    pub(crate) is_deafness: bool,
}

/// Whether wake-ups are heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subscription {
    Closed,
    /// A subscription was asked for, and may come about at any time.
    Opening,
    /// As `Opening`, but the server has refused a subscription since, this or another: an answer says nothing.
    Doubtful,
    Open,
}

impl Remote {
    pub(crate) fn new() -> Remote {
        Remote {
            ticket: None,
            subscription: Subscription::Closed,
            granted: false,
            watched: None,
            trouble: None,
            own: None,
            held: None,
            turns: Turns::new(),
        }
    }

    /// Takes over the ticket of a first attempt that was not granted.
    pub(crate) fn take_over(&mut self, ticket: Ticket) -> Option<Debt> {
        let old = self.give_up();
        self.ticket = Some(ticket);
        old
    }

    /// The ticket to ask under, on these terms. `None` if the present one has other terms (B2): give it up first.
    pub(crate) fn ticket_for(&mut self, core: &Core, terms: Terms) -> Option<&mut Ticket> {
        let ticket = self.ticket.get_or_insert_with(|| Ticket::new(core, terms));
        (ticket.terms() == terms).then_some(ticket)
    }

    /// Gives up a ticket that has other terms than these.
    pub(crate) fn give_up_other(&mut self, terms: Terms) -> Option<Debt> {
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
            .is_some_and(|ticket| ticket.debt().is_some())
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

    /// Whether the last that is known since `began` is that another has the lock. A subscription that fails is no news of that.
    pub(crate) fn is_held_since(&self, began: Tick) -> bool {
        let asks = self.trouble.as_ref().is_none_or(|it| it.is_deafness);
        asks && self.held >= Some(began)
    }

    /// Nothing is asked for under the ticket any more. Returns the debt, if the server may have the ticket (B5).
    pub(crate) fn give_up(&mut self) -> Option<Debt> {
        self.granted = false;
        self.ticket.take()?.debt()
    }
}

impl Queue {
    /// Those that wait are answered, and do not hear: each look ends that trouble and begins another, so it is told once in a while, of
    /// all that wait. A server that cannot be used at all is told of by itself.
    pub(crate) fn warn_of_deafness(&self, core: &Core, failure: &Failure) {
        let (name, cause) = (self.id.name.clone(), Arc::clone(failure.cause()));
        let is_outage = core.backend.outage().is_on() || core.backend.trouble().is_some();
        if is_outage || !core.queues.warned_of_deafness.may_warn(core.clock.now()) {
            return;
        }
        // Not under the queue's lock: a subscriber may wait for a thread that waits for that.
        core.spawn(async move {
            callout::quietly(|| {
                tracing::warn!(target: "leasehold", %name, %cause, "cannot hear when the name is free, and polls");
            });
        });
    }

    /// The driver is told to ask the server: now, or when the lease of the holder that it watches is over.
    pub(crate) fn look(&self, watched: Option<Tick>) {
        let mut state = self.lock();
        if !matches!(state.phase, Phase::Idle | Phase::Held(_)) {
            if let Some(remote) = &mut state.remote {
                remote.watched = watched;
            }
            self.driver_wake().notify_one();
        }
    }

    /// The server does not let this client hear wake-ups for the name any more: its driver has to subscribe again.
    pub(crate) fn is_deaf(&self) {
        let mut state = self.lock();
        let Some(remote) = &mut state.remote else {
            return;
        };
        match remote.subscription {
            Subscription::Open => {
                remote.subscription = Subscription::Closed;
                self.driver_wake().notify_one();
            }
            // Its driver waits for the answer, or has it and has not read it yet.
            Subscription::Opening => remote.subscription = Subscription::Doubtful,
            Subscription::Doubtful | Subscription::Closed => {}
        }
    }

    /// Without waiters there is nothing to hear. The reply says when the server has taken note; it may be dropped.
    pub(crate) fn stop_listening(
        &self,
        core: &Arc<Core>,
        state: &mut QueueState,
    ) -> Option<Reply<()>> {
        let remote = state.remote.as_mut()?;
        if !state.waiters.is_empty() {
            return None;
        }
        // Also one that is still being opened: it may come about at any time.
        let before = std::mem::replace(&mut remote.subscription, Subscription::Closed);
        if self.id.is_of_task() {
            // Also after a refusal, which closes this task's part and leaves it among those that listen.
            if let Some(own) = remote.own.take() {
                drop(core.backend.unlisten(&self.id.of_task(own.get())));
            }
            if let Some(lineup) = core.queues.lineup(&self.id) {
                lineup.unlisten(self.id.task());
            }
            return None;
        }
        (before != Subscription::Closed).then(|| core.backend.unlisten(&self.id))
    }
}
