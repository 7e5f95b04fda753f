//! Standing in the line of processes, on behalf of all who wait in this one.

use std::{pin::pin, sync::Arc, time::Duration};

use super::{
    Parked, Queue, Seat, Spec,
    attempt::{Attempt, Try, abandon},
};
use crate::{
    backend::{Abandon, Failure, Line},
    client::Core,
    clock::Tick,
    lease,
    owner::LeaseId,
};

/// Where a driver begins.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    /// Ask the server.
    Ask,
    /// The server was asked just now: first learn to hear, then ask.
    Listen,
    /// The release put us in line already.
    Park { asked: Tick, lease: Duration },
    /// Others were told that the name is free: let them try first (D8).
    GiveWay,
}

/// How long a process that has had its turn holds back for others that it cannot give the name to directly.
fn step_back() -> Duration {
    Duration::from_micros(fastrand::u64(1_000..3_000))
}

/// Stands in the line of processes for those who wait in this one, until one of them holds the name or
/// none is left.
pub(super) async fn drive(core: Arc<Core>, queue: Arc<Queue>, start: Start) {
    let mut driver = Driver::new(&core, &queue, start);
    loop {
        let Some(spec) = driver.first() else {
            if driver.leave().await {
                return;
            }
            continue;
        };
        let step = match driver.next {
            Step::Ask => driver.ask(spec).await,
            Step::Listen => driver.listen().await,
            Step::Park(ttl) => driver.park(ttl, spec).await,
            Step::GiveWay => {
                tokio::time::sleep(step_back()).await;
                Step::Ask
            }
            Step::Seated => return,
        };
        driver.next = step;
        if matches!(driver.next, Step::Seated) {
            return;
        }
    }
}

struct Driver<'a> {
    core: &'a Arc<Core>,
    queue: &'a Arc<Queue>,
    number: u32,
    attempt: Attempt<'a>,
    next: Step,
    /// The place in line as it was taken.
    line: Option<Line>,
    /// When the place in line was last confirmed: a grant counts from here (L1).
    asked: Tick,
    /// The server may know our lease id: in line, or as the holder.
    traces: bool,
    /// Since when the server does not answer.
    trouble_since: Option<Tick>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask,
    Listen,
    /// Wait to be called, at most until the holder's lease ends.
    Park(Option<Duration>),
    GiveWay,
    /// Somebody has the guard.
    Seated,
}

impl<'a> Driver<'a> {
    fn new(core: &'a Arc<Core>, queue: &'a Arc<Queue>, start: Start) -> Self {
        let mut state = queue.state.lock();
        state.driver = state.driver.wrapping_add(1);
        let number = state.driver;
        let line = state.line.get_or_insert_default();
        let ticket = *line.ticket.get_or_insert_with(LeaseId::next);
        let next = match start {
            Start::Ask => Step::Ask,
            Start::Park { lease, .. } if line.place.is_some() => Step::Park(Some(lease)),
            // Not in line for want of ears: get both.
            Start::Listen | Start::Park { .. } => Step::Listen,
            Start::GiveWay => Step::GiveWay,
        };
        Driver {
            core,
            queue,
            number,
            attempt: Attempt::new(core, &queue.name, ticket),
            next,
            line: line.place,
            asked: match start {
                Start::Park { asked, .. } => asked,
                _ => core.clock.now(),
            },
            traces: line.place.is_some(),
            trouble_since: None,
        }
    }

    fn first(&self) -> Option<Spec> {
        self.queue.state.lock().first()
    }

    /// Asks the server for the name, and for a place in line if it can be heard from there.
    async fn ask(&mut self, spec: Spec) -> Step {
        if let Some(line) = &mut self.queue.state.lock().line {
            if line.listening && line.place.is_none() {
                line.place = Some(self.core.line(spec.lease()));
            }
            line.ticket = Some(self.attempt.lease);
            self.line = line.place;
        }
        self.traces |= self.line.is_some();
        match self.attempt.send(spec, self.line).await {
            Ok(Try::Granted { sent }) => {
                self.traces = true;
                self.seat(spec, sent)
            }
            Ok(Try::Held { ttl, sent }) => {
                self.asked = sent;
                self.trouble_since = None;
                let mut state = self.queue.state.lock();
                state.dismiss_hasty();
                let listening = state.listening();
                if let Some(line) = &mut state.line {
                    line.trouble = None;
                }
                if listening || state.waiters.is_empty() {
                    Step::Park(ttl)
                } else {
                    Step::Listen
                }
            }
            Err(failure) => self.failed(failure, spec).await,
        }
    }

    /// Learns to hear wake-ups; after that the server must be asked once more.
    async fn listen(&mut self) -> Step {
        if !self.queue.state.lock().listening() {
            match self.core.backend.listen(self.queue.name.clone()).await {
                Ok(()) => {
                    if let Some(line) = &mut self.queue.state.lock().line {
                        line.listening = true;
                    }
                }
                Err(failure) => {
                    let spec = self.first();
                    return match spec {
                        Some(spec) => self.failed(failure, spec).await,
                        None => Step::Ask,
                    };
                }
            }
        }
        Step::Ask
    }

    /// Waits for a wake-up, the end of the holder's lease, or the poll interval.
    async fn park(&mut self, ttl: Option<Duration>, spec: Spec) -> Step {
        let mut bell = pin!(self.queue.bell.notified());
        {
            let mut state = self.queue.state.lock();
            // Under the lock, so that whoever serves us from here on rings for us and not for our successor.
            bell.as_mut().enable();
            let parked = Parked {
                asked: self.asked,
                resent: self.attempt.resent(),
            };
            if let Some(line) = &mut state.line
                && !line.granted
            {
                line.parked = Some(parked);
                state.seat = Seat::Parked;
                state.dismiss_hasty();
            }
        }
        // The cap is stretched, never cut, so that an idle waiter stays within one command per interval.
        let poll = self.core.config.poll_every;
        let poll = poll + poll.mul_f64(fastrand::f64() / 5.0);
        let pause = ttl.map_or(poll, |ttl| poll.min(ttl + Duration::from_millis(2)));
        tokio::select! {
            biased;
            () = bell => {}
            () = tokio::time::sleep(pause) => {}
        }
        let mut state = self.queue.state.lock();
        if state.driver != self.number {
            return Step::Seated;
        }
        state.seat = Seat::Busy;
        let granted = state.line.as_mut().is_some_and(|line| {
            line.parked = None;
            std::mem::take(&mut line.granted)
        });
        drop(state);
        if granted {
            self.granted(spec)
        } else {
            Step::Ask
        }
    }

    /// The server gave us the name while we waited. It did so after we asked, so its lease lasts at least as
    /// long as if it had been given at that moment (L1).
    fn granted(&mut self, spec: Spec) -> Step {
        let age = self.core.clock.now().since(self.asked);
        if self.line.is_some_and(|line| line.serves(&spec, age)) {
            self.seat(spec, self.asked)
        } else {
            // It is ours, but for how long? Asking under the same id says so, and renews it.
            Step::Ask
        }
    }

    /// The name is ours: gives it to the first who waits. If it cannot be given to him as it is, it is asked for again;
    /// if there is nobody any more, `leave` gives it back.
    fn seat(&mut self, spec: Spec, asked: Tick) -> Step {
        let parked = Parked {
            asked,
            resent: self.attempt.resent(),
        };
        let mut state = self.queue.state.lock();
        let ticket = self.attempt.lease;
        match self
            .queue
            .seat(self.core, &mut state, ticket, &spec, parked)
        {
            Some(hold) => {
                drop(state);
                self.queue.seated(self.core, &hold, asked);
                Step::Seated
            }
            None => Step::Ask,
        }
    }

    /// No answer, or a refusal. A refusal is everybody's answer; no answer is waited out for one lease.
    async fn failed(&mut self, failure: Failure, spec: Spec) -> Step {
        let now = self.core.clock.now();
        let since = *self.trouble_since.get_or_insert(now);
        let rejected = matches!(failure, Failure::Rejected(_));
        {
            let mut state = self.queue.state.lock();
            if let Some(line) = &mut state.line {
                line.trouble = Some(failure.clone());
            }
            if rejected || now.since(since) > spec.lease() {
                let free = lease::free_within(spec.lease());
                let failure = self.attempt.verdict(failure);
                let error = failure.into_error(format!("lock {:?}", self.queue.name), free);
                state.dismiss_all(&error);
                return Step::Ask; // and find nobody there
            }
        }
        self.attempt.failures = self.attempt.failures.max(1);
        self.attempt.pause().await;
        self.attempt.failures += 1;
        Step::Ask
    }

    /// Nobody waits any more: gives up the place in line, and the seat. `false` if somebody came meanwhile.
    async fn leave(&mut self) -> bool {
        self.queue.state.lock().not_in_line();
        if self.traces || self.attempt.ambiguous {
            let step = Abandon {
                name: self.queue.name.clone(),
                lease: self.attempt.lease,
                line: self.line,
                tombstone_ms: self.core.tombstone_ms(),
            };
            // Once here, so that whoever comes next finds the name free; if need be, again in the background.
            if self.core.backend.abandon(step).await.is_err() {
                abandon(self.core, &self.queue.name, self.attempt.lease, self.line);
            }
        }
        let mut state = self.queue.state.lock();
        if state.first().is_none() {
            self.queue.close(self.core, &mut state);
            return true;
        }
        drop(state);
        // Somebody has come: from the beginning, under a new lease id.
        *self = Driver::new(self.core, self.queue, Start::Ask);
        false
    }
}
