//! How a driver waits: it is told, or it looks by itself.

use std::{pin::pin, time::Duration};

use crate::{
    backoff::stretched,
    clock::Tick,
    engine::claim::remote::Subscription,
    engine::local::locked::Locked,
    engine::queue::driver::{Driver, Step},
    engine::queue::{Phase, QueueState},
    kind::Access,
};

/// A lease that ends is over on the server by so much later.
pub(crate) const AFTER_THE_END: Duration = Duration::from_millis(2);

/// How long a driver waits for a wake-up.
pub(crate) enum Pause {
    For(Duration),
    /// The keeper of its lineup looks for it: when the holder's lease ends, at the latest.
    UntilTold {
        left: Option<Duration>,
        foreign: bool,
    },
}

impl Driver<'_> {
    /// How long a waiter that is told waits: until the end of the holder's lease, of which `left` remains, or for the poll
    /// interval.
    pub(crate) fn until_told(&self, left: Option<Duration>) -> Duration {
        let poll = stretched(self.core.config.poll_every);
        left.map_or(poll, |left| poll.min(left + AFTER_THE_END))
    }

    /// The pause of a waiter that looks by itself, beside a holder that is `silent` or not and of whose lease `left` remains.
    /// `None`: it is told.
    pub(crate) fn look_after(
        &mut self,
        state: &mut Locked<'_, QueueState>,
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
        self.backoff.reset();
        Some(left.map_or(pause, |left| pause.min(left + AFTER_THE_END)))
    }

    /// Learns to hear wake-ups; after that the server must be asked once more.
    pub(crate) async fn listen(&mut self) -> Step {
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
        let answer = if let Some(lineup) = self.core.lineup(&self.queue.id) {
            lineup.listen(self.core, self.queue.id.task()).await
        } else {
            let answer = self.core.backend.listen(self.queue.id.clone()).await;
            answer.map(|()| true)
        };
        let mut state = self.queue.lock();
        let remote = state.remote();
        match answer {
            // If the last waiter has left meanwhile, it was closed again.
            Ok(true) if remote.subscription == Subscription::Opening => {
                remote.subscription = Subscription::Open;
                Step::Ask
            }
            Ok(_) => Step::Ask,
            Err(failure) => self.failed(&mut state, &failure),
        }
    }

    /// For how long others are to try first.
    pub(crate) fn left_to_others(&self) -> Option<Duration> {
        let mut state = self.queue.lock();
        let first = state.first_live_waiter()?;
        if state.first_asks_once() || state.remote().granted {
            return None;
        }
        let now = self.core.clock.now();
        // Beside Redisson's waiters the turns that a release tells of are enough.
        let told = self.core.beside.holds_to_tell(&self.queue.id, 1, now);
        let races = matches!(first.access, Access::Permits(_)) && told.is_none();
        let race = state.remote().turns.left(now).filter(|_| races);
        race.max(
            self.core
                .beside
                .left_to_others(&self.queue.id, &self.core.clock),
        )
    }

    /// Lets others try first for so long, unless it is woken.
    pub(crate) async fn give_way(&mut self, way: Duration) -> Step {
        let mut wake = pin!(self.queue.driver_wake().notified());
        wake.as_mut().enable();
        if self.left_to_others().is_some() {
            tokio::select! {
                biased;
                () = wake => {}
                () = self.core.sleep(way) => {}
            }
        }
        Step::Ask
    }

    /// Learns to hear what a client of Redisson's says to this waiter alone. If that is refused, it looks.
    pub(crate) async fn listen_own(&mut self) -> Step {
        if let Some(heard) = self.queue.hear_own() {
            let _ = heard.await;
        }
        Step::Ask
    }

    /// Waits for a wake-up, at most this long.
    pub(crate) async fn wait(&mut self, pause: Pause) -> Step {
        let mut until = match pause {
            Pause::For(pause) => self.core.clock.now().after(pause),
            Pause::UntilTold { .. } => Tick::MAX,
        };
        loop {
            let mut wake = pin!(self.queue.driver_wake().notified());
            {
                let mut state = self.queue.lock();
                if state.remote().granted {
                    return Step::Ask;
                }
                // It sleeps for one that waits on. If the first asks only once, the server has not been asked for it yet.
                state.refuse_try_once(self.queue, Access::Exclusive, i64::MIN);
                // Waiters may have left and come since it asked: it sleeps only for what its ticket asks for.
                let first = state.first_live_waiter().map(|first| first.terms());
                let unsaid = state.is_unsaid(state.permits_to_say());
                if state.first_asks_once() || first.is_none() || first != state.asked() || unsaid {
                    return Step::Ask;
                }
                // The message may be late: it only brings the next look nearer.
                if let Some(ends) = state.remote().watched.take() {
                    until = until.min(ends.after(AFTER_THE_END));
                    self.held_until = self.held_until.min(ends);
                }
                // Under the lock, so that a wake-up from here on is for this driver and not for its successor.
                wake.as_mut().enable();
                state.phase = Phase::WaitingRemote;
            }
            match pause {
                Pause::For(_) => tokio::select! {
                    biased;
                    () = wake => self.untold = false,
                    () = self.core.sleep(until.since(self.core.clock.now())) => self.untold = true,
                },
                Pause::UntilTold { left, foreign } => {
                    // Only now that it waits, since the keeper asks for those.
                    if let Some(lineup) = self.core.lineup(&self.queue.id) {
                        lineup.waits(self.core, left, foreign);
                    }
                    wake.await;
                }
            }
            let mut state = self.queue.lock();
            if state.driver != self.number {
                return Step::Exit;
            }
            state.phase = Phase::InFlight(None);
            let is_listening = state.is_listening();
            if state.remote().watched.is_none() || !is_listening {
                return Step::Ask;
            }
        }
    }
}
