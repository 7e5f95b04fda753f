//! Whether wake-ups are heard for a name: the state of a queue's subscription, of that which the tasks of a fair mutex share, and of that of the
//! waiters for a latch.
//!
//! The request and its answer are asynchronous, and the server may refuse between them, so an answer alone opens nothing. A request that
//! may have been carried out counts as a subscription until that is ended: the server counts this client among its listeners (L3).

/// A subscription of this process. Each change of it is one of these methods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subscription(SubscriptionState);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SubscriptionState {
    #[default]
    Closed,
    /// The server ended it, or its request failed and may have been carried out all the same: the end is still to be told.
    Ended,
    /// A request for it is under way.
    Opening,
    /// As `Opening`, but the server has refused a subscription since, this or another: the answer says nothing.
    Doubtful,
    Open,
}

impl Subscription {
    /// Wake-ups are heard.
    pub(crate) fn is_open(self) -> bool {
        self.0 == SubscriptionState::Open
    }

    /// It is not there, and no request for it is under way.
    pub(crate) fn is_closed(self) -> bool {
        matches!(self.0, SubscriptionState::Closed | SubscriptionState::Ended)
    }

    /// Called before a subscription is asked for: a refusal that is heard first would else be taken for the next one's (bugs 67, 75).
    /// `false`: it is open already.
    pub(crate) fn asks(&mut self) -> bool {
        let asks = !self.is_open();
        if asks {
            self.0 = SubscriptionState::Opening;
        }
        asks
    }

    /// As [`asks`](Subscription::asks), where another task may be asking. `false`: it is open, or that task gets the answer.
    pub(crate) fn asks_first(&mut self) -> bool {
        self.is_closed() && self.asks()
    }

    /// The server has answered, or will not. Whether wake-ups are heard from now on: not if it was closed meanwhile, or a refusal was heard.
    pub(crate) fn answered(&mut self, is_ok: bool) -> bool {
        self.0 = match self.0 {
            SubscriptionState::Closed => SubscriptionState::Closed,
            SubscriptionState::Opening | SubscriptionState::Open if is_ok => {
                SubscriptionState::Open
            }
            // The request may have been carried out all the same.
            _ => SubscriptionState::Ended,
        };
        self.is_open()
    }

    /// The server, or this process, has ended the subscription that was there. Whether wake-ups were heard until now.
    pub(crate) fn ended(&mut self) -> bool {
        let was_open = self.is_open();
        self.0 = match self.0 {
            SubscriptionState::Closed => SubscriptionState::Closed,
            SubscriptionState::Open | SubscriptionState::Ended => SubscriptionState::Ended,
            // The answer that is under way, or has not been read yet, may be older than this.
            SubscriptionState::Opening | SubscriptionState::Doubtful => SubscriptionState::Doubtful,
        };
        was_open
    }

    /// No task waits for wake-ups any more. Whether that is to be told: also of a subscription that is still being opened (L3).
    pub(crate) fn close(&mut self) -> bool {
        std::mem::take(&mut self.0) != SubscriptionState::Closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Subscription {
        let mut it = Subscription::default();
        assert!(it.asks_first());
        it
    }

    /// Bug 67: the refusal is a message, and the answer to the request before it may be read later.
    #[test]
    fn an_answer_says_nothing_once_a_refusal_was_heard() {
        let mut it = asked();
        assert!(!it.ended(), "no wake-up was heard yet");
        assert!(!it.answered(true));
        assert!(it.is_closed(), "no request is under way");
        // The next request has an answer of its own.
        assert!(it.asks());
        assert!(it.answered(true) && it.is_open());
    }

    /// Bug 21: a request without an answer may be carried out, and the server counts this client until it is told.
    #[test]
    fn a_subscription_that_failed_is_to_be_ended_all_the_same() {
        let mut it = asked();
        assert!(!it.answered(false));
        assert!(it.asks_first(), "no request is under way");
        assert!(!it.answered(false));
        assert!(it.close(), "it may be there");
        assert!(!it.close());
    }

    #[test]
    fn an_answer_to_a_request_that_was_taken_back_opens_nothing() {
        let mut it = asked();
        assert!(it.close());
        assert!(!it.answered(true) && it.is_closed());
    }

    /// Of the tasks that share it, one asks.
    #[test]
    fn one_of_several_asks_and_all_hear() {
        let mut it = asked();
        assert!(!it.asks_first());
        assert!(it.answered(true));
        assert!(!it.asks_first() && !it.asks());
        assert!(it.ended() && it.is_closed());
        assert!(it.asks_first());
    }

    /// Else a router would go on to move a subscription that no task waits for.
    #[test]
    fn the_end_is_told_of_a_subscription_that_the_server_ended() {
        let mut it = asked();
        assert!(it.answered(true) && it.ended());
        assert!(it.close());
    }
}
