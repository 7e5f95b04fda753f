//! A lease id before it is held: the requests sent for it, and what the server may have of it.
//!
//! - **B1, B3** Each ask is numbered, and its send remembered, so that a grant is believed from the ask that it names.
//! - **B2** A ticket keeps its terms; other terms take another ticket.
//! - **B4** It knows whether a copy of one of its requests may still be under way.
//! - **B5** It knows whether the server may have it, in its queue or as the holder. Such a ticket becomes a hold or a pending release.

use std::time::Duration;

use crate::{
    backend::{Failure, Grant, Permits, QueueEntry, Voted, fenced::Tokens},
    clock::Tick,
    config::millis,
    engine::claim::pending_release::PendingRelease,
    engine::env::Env,
    engine::hold::spec::Terms,
    engine::hold::{Granted, lease},
    owner::LeaseId,
};

/// How many asks are remembered. A grant that answers an older one is asked about again.
const REMEMBERED: usize = 4;

#[derive(Debug)]
pub(crate) struct Ticket {
    lease: LeaseId,
    terms: Terms,
    /// When the latest asks were sent; ask `n` stands at `n % REMEMBERED`.
    sent: [Tick; REMEMBERED],
    asks: u32,
    copies: bool,
    /// So many tickets of the same wait before it, which the backend has given up, had an ask without an answer.
    silences: u8,
    open: bool,
    /// An ask took an entry in the server's queue: until the ticket is granted or given up, no answer to another ask says that it is gone.
    queued: bool,
    /// The latest ask has no answer yet; whether the ticket was open before it.
    unanswered: Option<bool>,
    /// How many permits there are, as the last ask said that was answered.
    pub(crate) said: Option<Permits>,
}

impl Ticket {
    pub(crate) fn new(env: &Env, terms: Terms) -> Ticket {
        Ticket {
            lease: LeaseId::next(),
            terms,
            sent: [Tick::MAX; REMEMBERED],
            asks: 0,
            // Something between us and the server may send everything twice.
            copies: env.config.may_duplicate,
            silences: 0,
            open: false,
            queued: false,
            unanswered: None,
            said: None,
        }
    }

    /// After an answer: a ticket on the same terms takes the place of one that the backend has given up (QB4). Whether it did.
    pub(crate) fn renew_if_given_up(&mut self, env: &Env) -> bool {
        let is_given_up = env.backend.voted(self.lease) == Some(Voted::GivenUp);
        if is_given_up {
            *self = Ticket {
                silences: self.silences.saturating_add(self.copies.into()),
                ..Ticket::new(env, self.terms)
            };
        }
        is_given_up
    }

    pub(crate) fn lease(&self) -> LeaseId {
        self.lease
    }

    pub(crate) fn terms(&self) -> Terms {
        self.terms
    }

    /// The number of a request that is sent at `now`.
    pub(crate) fn ask(&mut self, now: Tick) -> u32 {
        // After four thousand million asks a grant may name an ask that was sent long before. Belief is then too short.
        self.asks = self.asks.checked_add(1).unwrap_or(1);
        self.sent[self.asks as usize % REMEMBERED] = now;
        self.unanswered = Some(std::mem::replace(&mut self.open, true));
        self.asks
    }

    /// The entry in the server's queue that the ask number `ask` takes.
    pub(crate) fn entry(&mut self, env: &Env, ask: u32) -> QueueEntry {
        self.queued = true;
        QueueEntry {
            ask,
            keep_ms: keep_ms(env),
        }
    }

    /// The number of a request that keeps its entry, and is sent at `now`: an ask that gives it nothing.
    pub(crate) fn kept(&mut self, now: Tick) -> u32 {
        // `open` stays as it is: the ticket has its entry already, and this request gives it nothing more.
        self.asks = self.asks.checked_add(1).unwrap_or(1);
        self.sent[self.asks as usize % REMEMBERED] = now;
        self.asks
    }

    /// The server has answered the latest ask, which `said` how many permits there are: another has it, unless it says
    /// [`granted`](Ticket::granted).
    pub(crate) fn answered(&mut self, said: Option<Permits>) {
        self.said = said;
        self.unanswered = None;
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.asks > 0 && self.unanswered.is_none()
    }

    /// The latest ask has failed.
    pub(crate) fn failed(&mut self, failure: &Failure) {
        // Nothing proves that such a request was dropped: its copy may arrive while any answer is read (B4).
        self.copies |= failure.is_ambiguous();
        if let (Failure::NotSent(_), Some(was_open)) = (failure, self.unanswered) {
            // The server is as it was before that ask.
            self.open = was_open || self.copies;
            // If no request has left under this ticket, it has no entry either.
            self.queued &= self.open;
        }
    }

    /// The answer to the latest ask gave it neither a hold nor an entry. The server has nothing of it, unless by an earlier ask.
    pub(crate) fn refused(&mut self) {
        // "Held" says nothing of the entry: a ticket that was closed here stood in the queue for 30 s (bug 144).
        self.open = self.copies || self.queued;
    }

    /// Until when a grant is believed, and since when it counts (B3). `None`: ask again, to learn that.
    pub(crate) fn believe(&self, grant: &Grant) -> Option<Granted> {
        // A grant that was late is counted from the request that it names. From the newest, a stopped process believed it for too long (bug 14).
        let remembered = grant.ask <= self.asks && ((self.asks - grant.ask) as usize) < REMEMBERED;
        let same = grant.lease == self.lease
            && (grant.access, grant.lease_ms) == (self.terms.access, self.terms.lease_ms);
        // Asks are numbered from one, so zero is the number of no ask.
        (remembered && same && grant.ask > 0).then(|| {
            let sent = self.sent[grant.ask as usize % REMEMBERED];
            self.believed(sent, Duration::from_millis(grant.lease_ms), grant.tokens)
        })
    }

    /// The reply to the request sent at `sent` says that the name is ours, with `remaining` left (B1).
    pub(crate) fn granted(&self, sent: Tick, remaining: Duration, tokens: Tokens) -> Granted {
        self.believed(sent, remaining, tokens)
    }

    fn believed(&self, sent: Tick, remaining: Duration, tokens: Tokens) -> Granted {
        // No more than was asked for: who made it longer may make it shorter again (`Config::believed`).
        let remaining = remaining.min(Duration::from_millis(self.terms.lease_ms));
        Granted {
            lease: self.lease,
            until: lease::valid_until(sent, remaining),
            sent,
            copies: self.copies,
            tokens,
        }
    }

    /// The pending release that is left when the ticket is not asked for any more; `None` if the server has nothing of it (B5).
    pub(crate) fn pending_release(&self) -> Option<PendingRelease> {
        self.open.then_some(PendingRelease {
            access: self.terms.access,
            lease: self.lease,
            lease_ms: self.terms.lease_ms,
            held: false,
            copies: self.copies,
        })
    }

    /// The verdict on a failure: an unanswered copy leaves the outcome open, also if a later one was refused (bug 309).
    pub(crate) fn verdict(&self, failure: Failure) -> Failure {
        failure.after_silence(self.copies || self.silences > 0)
    }
}

/// How long a queue on the server outlives its last visitor.
pub(crate) fn keep_ms(env: &Env) -> u64 {
    millis(env.config.poll_every * 3)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::kind::Access;

    fn ticket() -> Ticket {
        Ticket {
            lease: LeaseId::from(7),
            terms: Terms {
                access: Access::Exclusive,
                lease_ms: 1000,
            },
            sent: [Tick::MAX; REMEMBERED],
            asks: 0,
            copies: false,
            silences: 0,
            open: false,
            queued: false,
            unanswered: None,
            said: None,
        }
    }

    fn at(ms: u64) -> Tick {
        Tick::from_nanos(1_000_000_000).after(Duration::from_millis(ms))
    }

    fn grant(ask: u32) -> Grant {
        Grant {
            access: Access::Exclusive,
            lease: LeaseId::from(7),
            lease_ms: 1000,
            ask,
            tokens: Tokens::NONE,
        }
    }

    #[test]
    fn a_grant_is_believed_from_the_ask_that_it_names_and_from_no_other() {
        let mut ticket = ticket();
        for ms in [0, 300, 600] {
            ticket.ask(at(ms));
        }
        for (ask, ms) in [(1, 0), (2, 300), (3, 600)] {
            let believed = ticket.believe(&grant(ask)).expect("it is remembered");
            assert_eq!(believed.sent, at(ms));
            assert_eq!(believed.until, at(ms + 1000 - 12));
        }
    }

    #[test]
    fn a_grant_for_an_ask_that_was_never_sent_or_is_forgotten_is_not_believed() {
        let mut ticket = ticket();
        assert!(ticket.believe(&grant(0)).is_none());
        assert!(ticket.believe(&grant(1)).is_none());
        for ms in 0..5 {
            ticket.ask(at(ms));
        }
        assert!(ticket.believe(&grant(1)).is_none(), "its send is forgotten");
        assert!(ticket.believe(&grant(6)).is_none());
        let other = Grant {
            lease: LeaseId::from(8),
            ..grant(5)
        };
        assert!(ticket.believe(&other).is_none());
    }

    #[test]
    fn a_ticket_is_a_pending_release_from_its_first_send_until_an_answer_closes_it() {
        let mut ticket = ticket();
        assert!(ticket.pending_release().is_none());
        ticket.ask(at(0));
        assert!(ticket.pending_release().is_some());
        ticket.refused();
        assert!(ticket.pending_release().is_none());
        ticket.ask(at(1));
        ticket.failed(&Failure::Ambiguous(Arc::new(std::fmt::Error)));
        ticket.refused();
        let pending_release = ticket
            .pending_release()
            .expect("the copy without an answer may be under way");
        assert!(pending_release.copies);
    }

    #[test]
    fn an_ask_that_was_not_sent_leaves_the_pending_release_as_it_was() {
        let not_sent = Failure::NotSent(Arc::new(std::fmt::Error));
        let mut ticket = ticket();
        for ms in 0..2 {
            ticket.ask(at(ms));
            ticket.failed(&not_sent);
            assert!(ticket.pending_release().is_none(), "no ask was sent");
        }
        ticket.ask(at(2));
        ticket.answered(None);
        ticket.ask(at(3));
        ticket.failed(&not_sent);
        let pending_release = ticket
            .pending_release()
            .expect("an earlier ask may have an entry");
        assert!(!pending_release.copies);
        ticket.refused();
        ticket.ask(at(4));
        ticket.failed(&Failure::Ambiguous(Arc::new(std::fmt::Error)));
        ticket.ask(at(5));
        ticket.failed(&not_sent);
        assert!(
            ticket
                .pending_release()
                .expect("a copy may be under way")
                .copies
        );
    }
}
