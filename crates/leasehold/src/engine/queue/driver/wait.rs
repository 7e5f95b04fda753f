//! How a driver waits: it is told, or it looks by itself.

use std::{pin::pin, time::Duration};

use super::{Driver, Step};
use crate::{
    engine::queue::{Locked, Phase, Subscription},
    kind::Access,
};

/// A lease that ends is over on the server by so much later.
const AFTER_THE_END: Duration = Duration::from_millis(2);

impl Driver<'_> {
    /// How long a waiter that is told waits: until the end of the holder's lease, of which `left` remains, or for the poll
    /// interval.
    pub(super) fn until_told(&self, left: Option<Duration>) -> Duration {
        // The cap is stretched, never cut, so that an idle waiter stays within one command per interval.
        let poll = self.core.config.poll_every;
        let poll = poll + poll.mul_f64(fastrand::f64() / 5.0);
        left.map_or(poll, |left| poll.min(left + AFTER_THE_END))
    }

    /// The pause of a waiter that looks by itself, beside a holder that is `silent` or not and of whose lease `left` remains.
    /// `None`: it is told.
    pub(super) fn look_after(
        &mut self,
        state: &mut Locked<'_>,
        silent: bool,
        left: Option<Duration>,
    ) -> Option<Duration> {
        let first = state.first_live_waiter();
        let Some(backoff) = first.and_then(|first| first.waits.backoff(silent)) else {
            self.looks = 0;
            return None;
        };
        let pause = backoff.pause(self.looks);
        self.looks += 1;
        self.pauses.reset();
        Some(left.map_or(pause, |left| pause.min(left + AFTER_THE_END)))
    }

    /// Learns to hear wake-ups; after that the server must be asked once more.
    pub(super) async fn listen(&mut self) -> Step {
        {
            let mut state = self.queue.lock();
            let first = state.first_live_waiter();
            if first.is_some_and(|first| !first.waits.listens()) {
                return Step::Ask; // and so learn how long the holder's lease lasts
            }
            let remote = state.remote();
            if remote.subscription == Subscription::Open {
                return Step::Ask;
            }
            remote.subscription = Subscription::Opening;
        }
        let answer = self.core.backend.listen(self.queue.id.clone()).await;
        let mut state = self.queue.lock();
        let remote = state.remote();
        match answer {
            // If the last waiter has left meanwhile, it was closed again.
            Ok(()) if remote.subscription == Subscription::Opening => {
                remote.subscription = Subscription::Open;
                Step::Ask
            }
            Ok(()) => Step::Ask,
            Err(failure) => self.failed(&mut state, &failure),
        }
    }

    /// Waits for a wake-up, at most this long.
    pub(super) async fn wait(&mut self, pause: Duration) -> Step {
        let mut wake = pin!(self.queue.driver_wake().notified());
        {
            let mut state = self.queue.lock();
            if state.remote().granted {
                return Step::Ask;
            }
            // A holder is there. Readers that ask only once may share the lock with it.
            state.refuse_try_once(Access::Exclusive);
            // Waiters may have left and come since it asked: it sleeps only for what its ticket asks for.
            let first = state.first_live_waiter().map(|first| first.terms());
            if state.first_asks_once() || first.is_none() || first != state.asked() {
                return Step::Ask;
            }
            // Under the lock, so that a wake-up from here on is for this driver and not for its successor.
            wake.as_mut().enable();
            state.phase = Phase::WaitingRemote;
        }
        tokio::select! {
            biased;
            () = wake => {}
            () = self.core.sleep(pause) => {}
        }
        let mut state = self.queue.lock();
        if state.driver != self.number {
            return Step::Exit;
        }
        state.phase = Phase::InFlight(None);
        Step::Ask
    }
}
