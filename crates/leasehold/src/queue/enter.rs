//! The way of every `lock()`: a seat, a place in the queue, or back inside.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{
    Answer, Patience, Queue, Seat, Spec,
    attempt::{Attempt, Try},
};
use crate::{
    Error, LostReason, backend::Failure, client::Core, config::SELF_WAIT_WARNING, guard::Guard,
    hold::Hold, lease, name::Name, owner::LeaseId,
};

/// A place in the queue. Dropping it leaves the queue.
pub(super) struct Place {
    pub(super) queue: Arc<Queue>,
    pub(super) number: i64,
    pub(super) called: oneshot::Receiver<Answer>,
}

/// What a newcomer finds.
enum Entry {
    /// The seat: talk to the server.
    Seat(Arc<Queue>),
    /// A place in the queue.
    Place(Place),
    /// This owner holds it already.
    Inside(Arc<Hold>),
    /// Held, and the newcomer does not wait.
    Busy,
}

/// What the first attempt of a newcomer leads to.
pub(super) enum Turn {
    Guard(Guard),
    Place(Place),
    Busy,
}

/// Asks for a name and waits for it, as patiently as told. The way of every `lock()`.
pub(crate) async fn acquire(
    core: &Arc<Core>,
    name: &Name,
    spec: Spec,
    patience: Patience,
) -> Answer {
    core.check_open()?;
    let until = match patience {
        Patience::For(wait) => tokio::time::Instant::now().checked_add(wait),
        _ => None,
    };
    let mut place = match enter(core, name, spec, patience)? {
        Entry::Busy => return Ok(None),
        Entry::Inside(hold) => return core.finish(go_inside(hold)).await.map(Some),
        Entry::Place(place) => place,
        Entry::Seat(queue) => {
            let turn = core.finish(first_turn(Arc::clone(core), queue, spec, patience));
            let turn = match until {
                None => turn.await?,
                Some(until) => match tokio::time::timeout_at(until, turn).await {
                    Ok(turn) => turn?,
                    Err(elapsed) => {
                        let failure = Failure::Ambiguous(Arc::new(elapsed));
                        let free = lease::free_within(spec.lease());
                        return Err(failure.into_error(format!("lock {name:?}"), free));
                    }
                },
            };
            match turn {
                Turn::Guard(guard) => return Ok(Some(guard)),
                Turn::Busy => return Ok(None),
                Turn::Place(place) => place,
            }
        }
    };
    place.wait(spec, until).await
}

fn enter(core: &Arc<Core>, name: &Name, spec: Spec, patience: Patience) -> Result<Entry, Error> {
    let once = patience == Patience::Once;
    loop {
        let queue = core.queues.find_or_make(name);
        let mut state = queue.state.lock();
        if state.gone {
            continue; // Q3
        }
        match &state.seat {
            Seat::Free => {
                state.seat = Seat::Busy;
                drop(state);
                return Ok(Entry::Seat(queue));
            }
            Seat::Held(hold) if spec.owner.is_some() && hold.spec().owner == spec.owner => {
                if !spec.reentrant {
                    return Err(Error::Reentered {
                        name: name.shared(),
                        held_at: hold.spec().place,
                    });
                }
                if hold.enter_counted().is_some() {
                    return Ok(Entry::Inside(Arc::clone(hold)));
                }
            }
            Seat::Held(_) | Seat::Parked if once => return Ok(Entry::Busy),
            _ => {}
        }
        let place = state.line_up(&queue, spec, once, false);
        return Ok(Entry::Place(place));
    }
}

/// Tells the server that an owner has entered again. The caller has been counted already.
pub(super) async fn go_inside(hold: Arc<Hold>) -> Result<Guard, Error> {
    // From here on a guard, so that every way out takes the count back.
    let guard = Guard::new(Arc::clone(&hold));
    let (core, name) = (&hold.core, &hold.queue.name);
    let mut attempt = Attempt::new(core, name, hold.lease());
    let began = core.clock.now();
    loop {
        let failure = match write_count(&hold).await {
            Ok(true) => break,
            Ok(false) => {
                hold.lose(LostReason::Replaced);
                break;
            }
            Err(failure) => failure,
        };
        // The count is absolute, so writing it again is harmless (D3).
        attempt.failed(&failure);
        let waited = core.clock.now().since(began);
        let hopeless = matches!(failure, Failure::Rejected(_));
        if hopeless || waited >= core.config.operation_timeout || hold.standing().is_err() {
            let failure = attempt.verdict(failure);
            return Err(failure.into_error(format!("enter {name:?} again"), guard.remaining()));
        }
        attempt.pause().await;
    }
    guard.ensure(Duration::ZERO)?;
    Ok(guard)
}

pub(super) async fn write_count(hold: &Arc<Hold>) -> Result<bool, Failure> {
    let (name, lease) = (hold.queue.name.clone(), hold.lease());
    hold.core.backend.count(name, lease, hold.counted()).await
}

/// The attempt of a newcomer who found the seat free.
async fn first_turn(
    core: Arc<Core>,
    queue: Arc<Queue>,
    spec: Spec,
    patience: Patience,
) -> Result<Turn, Error> {
    let lease = LeaseId::next();
    let mut attempt = Attempt::new(&core, &queue.name, lease);
    let give_up = match patience {
        Patience::Forever => spec.lease(),
        Patience::For(wait) => wait.min(spec.lease()),
        Patience::Once => core.config.operation_timeout,
    };
    let began = core.clock.now();
    let failure = loop {
        match attempt.send(spec, None).await {
            Ok(Try::Granted { sent }) => {
                return Ok(queue.take_first(&core, lease, spec, sent, attempt.resent()));
            }
            Ok(Try::Held { .. }) => {
                return Ok(queue.held_elsewhere(&core, spec, patience));
            }
            Err(failure) => {
                let waited = core.clock.now().since(began);
                let budget = match &failure {
                    Failure::Rejected(_) => Duration::ZERO,
                    Failure::NotSent(_) => give_up.min(core.config.operation_timeout),
                    Failure::Ambiguous(_) => give_up,
                };
                if waited >= budget || core.is_closed() {
                    break failure;
                }
                attempt.pause().await;
            }
        }
    };
    attempt.give_up(None);
    queue.pass_on(&core);
    let free = lease::free_within(spec.lease());
    let failure = attempt.verdict(failure);
    Err(failure.into_error(format!("lock {:?}", queue.name), free))
}

impl Place {
    /// Waits to be called.
    async fn wait(&mut self, spec: Spec, until: Option<tokio::time::Instant>) -> Answer {
        let mut warn_at = Some(tokio::time::Instant::now() + SELF_WAIT_WARNING);
        loop {
            let alarm = match (warn_at, until) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            tokio::select! {
                biased;
                answer = &mut self.called => return answer.unwrap_or(Err(Error::Closed)),
                () = sleep_until(alarm) => {}
            }
            if until.is_some_and(|until| tokio::time::Instant::now() >= until) {
                return self.queue.out_of_time(spec);
            }
            self.queue.warn_of_self_wait(spec);
            warn_at = None;
        }
    }
}

async fn sleep_until(alarm: Option<tokio::time::Instant>) {
    match alarm {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        let at = state
            .waiters
            .binary_search_by_key(&self.number, |w| w.number);
        if let Ok(at) = at {
            if state.waiters.remove(at).is_some_and(|w| w.once) {
                state.hasty -= 1;
            }
            if state.waiters.is_empty() {
                // The driver has nobody to stand in line for.
                self.queue.bell.notify_one();
            }
        }
    }
}
