//! Several locks of one client by one request: all of them or none, and given back by one.
//!
//! Each has a lease id, a hold and a queue of its own, so B1 to B6 hold for each as they do for one that was asked for by
//! itself. Only the request is shared: it is the first attempt of all these queues, or the release of all these holds.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{
    Life, Patience, Phase, Queue, Spec,
    driver::Start,
    enter::{by, no_answer},
    pauses::Pauses,
    release::{ReleaseAnswer, ReleaseStep, Releasing},
    ticket::Ticket,
};
use crate::{
    Error, Released,
    backend::{Acquire, AcquiredAll, Failure, fenced::Tokens},
    engine::core::Core,
    engine::finish::Work,
    engine::held::Held,
    engine::hold::Hold,
    engine::lease,
    engine::linger::ClientRef,
    name::LockId,
};

/// One of several locks that are asked for together.
#[derive(Clone, Debug)]
pub(crate) struct PartRequest {
    pub(crate) core: ClientRef,
    pub(crate) id: LockId,
    pub(crate) spec: Spec,
}

impl PartRequest {
    /// Whether one request can ask for both.
    pub(crate) fn goes_with(&self, other: &PartRequest) -> bool {
        let together = |part: &PartRequest| part.id.kind.goes_together();
        together(self) && together(other) && Arc::ptr_eq(&self.core, &other.core)
    }
}

/// The outcome of asking for several locks at once.
pub(crate) enum AtOnce {
    Taken(Vec<Held>),
    /// None was taken: another owner holds this one of them.
    Held(usize),
    /// None is held. Only this one's own queue can say whether it can be had.
    Ask(usize),
}

/// Takes all of these locks, or none, by one request, and waits for no holder. They [go together](PartRequest::goes_with), and no two
/// are the same.
pub(crate) async fn acquire_at_once(
    parts: &[PartRequest],
    patience: Patience,
    until: Option<Instant>,
) -> Result<AtOnce, Error> {
    let Some(PartRequest { core, id, spec }) = parts.first() else {
        return Ok(AtOnce::Taken(Vec::new()));
    };
    core.check_open()?;
    let mut queues = Vec::with_capacity(parts.len());
    for (at, part) in parts.iter().enumerate() {
        let other = match begin_attempt(core, part, patience == Patience::Once) {
            Ok(Admitted::Attempt(queue)) => {
                queues.push((queue, part.spec));
                continue;
            }
            Ok(Admitted::Held) => Ok(AtOnce::Held(at)),
            Ok(Admitted::Busy) => Ok(AtOnce::Ask(at)),
            Err(closed) => Err(closed),
        };
        for (queue, _) in &queues {
            queue.go_on(core, queue.lock(), Start::Ask);
        }
        return other;
    }
    let attempt = core.finish(attempt(Arc::clone(core), queues.clone(), patience));
    for (queue, _) in &queues {
        queue.is_worked_on(core, None, attempt.work());
    }
    drop(queues);
    match until {
        None => attempt.await,
        Some(until) => match by(core, until, attempt).await {
            Some(answer) => answer,
            None => Err(no_answer(core, &id.name, *spec)),
        },
    }
}

/// The state of a queue for a caller that asks for several locks.
enum Admitted {
    /// No actor had it in this process. From here on a first attempt is under way.
    Attempt(Arc<Queue>),
    /// It is held, and the caller does not wait.
    Held,
    /// An actor has it, which this caller may wait for; or its own owner does.
    Busy,
}

fn begin_attempt(core: &Arc<Core>, part: &PartRequest, once: bool) -> Result<Admitted, Error> {
    loop {
        let queue = core.queues.find_or_make(&part.id);
        let mut state = queue.lock();
        if state.life == Life::Removed {
            continue; // Q3
        }
        // B6: under the lock, as in `enter`.
        if core.is_closed() || state.life == Life::Closing {
            if matches!(state.phase, Phase::Idle) {
                queue.close(core, &mut state);
            }
            return Err(Error::Closed);
        }
        let is_taken = once && state.is_taken(&part.spec);
        return Ok(match &state.phase {
            Phase::Idle if state.shared.is_empty() => {
                state.phase = Phase::InFlight(None);
                drop(state);
                Admitted::Attempt(queue)
            }
            Phase::Held(hold)
                if part.spec.owner.is_some() && hold.spec().owner == part.spec.owner =>
            {
                Admitted::Busy
            }
            _ if is_taken => Admitted::Held,
            _ => Admitted::Busy,
        });
    }
}

/// The first attempt of all these queues. On any way out each of them goes on without it (Q2).
async fn attempt(
    core: Arc<Core>,
    queues: Vec<(Arc<Queue>, Spec)>,
    patience: Patience,
) -> Result<AtOnce, Error> {
    let mut tickets: Vec<Ticket> = queues
        .iter()
        .map(|(_, spec)| Ticket::new(&core, spec.terms()))
        .collect();
    let once = patience == Patience::Once;
    let mut pauses = Pauses::default();
    let began = core.clock.now();
    loop {
        let sent = core.clock.now();
        let mut steps = Vec::with_capacity(queues.len());
        for ((queue, spec), ticket) in queues.iter().zip(&mut tickets) {
            // Without a place in the queue, as every first attempt: so no grant can name this ask (B3).
            ticket.ask(sent);
            steps.push(Acquire {
                permits: None,
                id: queue.id.clone(),
                access: spec.access,
                lease: ticket.lease(),
                lease_ms: spec.lease_ms(),
                place: None,
            });
        }
        let failure = match core.backend.acquire_all(steps).await {
            Ok(AcquiredAll::Granted(left)) => {
                let granted = tickets.iter_mut().zip(left);
                let granted =
                    granted.map(|(ticket, left)| ticket.granted(sent, left, Tokens::NONE));
                let granted: Vec<_> = granted.collect();
                let tickets = tickets.into_iter().zip(granted);
                let mut held = Vec::with_capacity(queues.len());
                let mut missing = None;
                for (at, ((queue, spec), (ticket, granted))) in
                    queues.iter().zip(tickets).enumerate()
                {
                    let mut state = queue.lock();
                    if !state.is_wanted() {
                        queue.leave_granted(&core, state, ticket);
                    } else if let Some(hold) = queue.begin_hold(&core, &state, granted, *spec) {
                        hold.note_start(began);
                        state.took(&hold);
                        drop(state);
                        hold.seated(&granted);
                        held.push(Held::new(hold));
                    } else {
                        queue.leave_attempt(&core, state, &ticket);
                        missing = missing.or(Some(at));
                    }
                }
                return match missing {
                    None => Ok(AtOnce::Taken(held)),
                    Some(_) if core.is_closed() => Err(Error::Closed),
                    // Over before its answer was here. The others are given back.
                    Some(at) => Ok(AtOnce::Ask(at)),
                };
            }
            Ok(AcquiredAll::Held(at)) => {
                for ticket in &mut tickets {
                    ticket.answered(None);
                    ticket.refused();
                }
                leave_all(&core, &queues, &tickets);
                return Ok(AtOnce::Held(at));
            }
            Err(failure) => failure,
        };
        let is_final = failure.is_final();
        for ticket in &mut tickets {
            if is_final {
                ticket.refused();
            } else {
                ticket.failed(&failure);
            }
        }
        let waited = core.clock.now().since(began);
        if core.is_closed() {
            leave_all(&core, &queues, &tickets);
            return Err(Error::Closed);
        }
        // A refusal is explained, and a silence is waited out, by the queues one by one.
        if is_final || !once {
            leave_all(&core, &queues, &tickets);
            return Ok(AtOnce::Ask(0));
        }
        if waited >= core.config.operation_timeout {
            leave_all(&core, &queues, &tickets);
            return Err(no_usable_answer(&queues, &tickets, failure));
        }
        pauses.pause(&core).await;
    }
}

/// The attempt ends without a hold. Lease ids that the server may have become debts (B5).
fn leave_all(core: &Arc<Core>, queues: &[(Arc<Queue>, Spec)], tickets: &[Ticket]) {
    for ((queue, _), ticket) in queues.iter().zip(tickets) {
        queue.leave_attempt(core, queue.lock(), ticket);
    }
}

fn no_usable_answer(queues: &[(Arc<Queue>, Spec)], tickets: &[Ticket], failure: Failure) -> Error {
    let names: Vec<String> = queues
        .iter()
        .map(|(queue, _)| format!("{:?}", queue.id.name))
        .collect();
    let longest = queues.iter().map(|(_, spec)| spec.lease()).max();
    let free = lease::free_within(longest.unwrap_or(Duration::ZERO));
    let verdict = match tickets.first() {
        Some(ticket) => ticket.verdict(failure),
        None => failure,
    };
    verdict.into_error(format!("lock {}", names.join(" and ")), free)
}

/// Gives all of them back. The answers are in the same order. Once polled, this is carried out to its end whether or not its
/// caller goes on.
pub(crate) async fn release_all(held: Vec<Held>) -> Vec<Result<Released, Error>> {
    let asked = held.len();
    let mut answers: Vec<Option<Result<Released, Error>>> = Vec::with_capacity(asked);
    let (mut at_server, mut places) = (Vec::new(), Vec::new());
    let mut downgraded = Vec::new();
    for (place, held) in held.into_iter().enumerate() {
        match held.release() {
            ReleaseStep::Done(answer) => answers.push(Some(answer)),
            ReleaseStep::ToServer(release) => {
                answers.push(None);
                at_server.push(release);
                places.push(place);
            }
            ReleaseStep::Downgrade(downgrade) => {
                answers.push(None);
                downgraded.push((place, downgrade.finish()));
            }
        }
    }
    let mut told = Vec::new();
    for (releases, places) in together(at_server, &places) {
        let Some(first) = releases.first() else {
            continue;
        };
        let core = Arc::clone(&first.hold.core);
        let holds: Vec<Arc<Hold>> = releases.iter().map(|r| Arc::clone(&r.hold)).collect();
        // Before anything is waited for, so that each is carried out whenever the caller leaves.
        let work = core.finish(tell_all(releases));
        for hold in holds {
            let its: Weak<dyn Work> = work.work();
            hold.queue.is_worked_on(&core, Some(hold.lease), its);
        }
        told.push(async move { (places, work.await) });
    }
    for (places, told) in join_all(told).await {
        for (place, answer) in places.into_iter().zip(told) {
            answers[place] = Some(answer);
        }
    }
    for (place, downgrade) in downgraded {
        answers[place] = Some(Ok(downgrade.await));
    }
    answers.into_iter().flatten().collect()
}

/// For guards that were dropped.
pub(crate) fn release_in_background(held: Vec<Held>) {
    // If these are the last of their clients, this waits once, when all that is to be sent is under way.
    let clients = held.iter().map(|held| ClientRef::new(&held.hold().core));
    let _clients: Vec<ClientRef> = clients.collect();
    let mut at_server = Vec::new();
    for held in held {
        match held.release() {
            ReleaseStep::Done(_) => {}
            ReleaseStep::ToServer(release) => at_server.push(release),
            ReleaseStep::Downgrade(downgrade) => downgrade.in_background(),
        }
    }
    let places: Vec<usize> = (0..at_server.len()).collect();
    for (releases, _) in together(at_server, &places) {
        if let Some(first) = releases.first() {
            let core = Arc::clone(&first.hold.core);
            core.spawn(async move {
                tell_all(releases).await;
            });
        }
    }
}

/// Releases that one request can carry, with their places: of locks that go together, and after which this process does not
/// go on under another lease id.
fn together(releases: Vec<Releasing>, places: &[usize]) -> Vec<(Vec<Releasing>, Vec<usize>)> {
    let mut groups: Vec<(Vec<Releasing>, Vec<usize>)> = Vec::new();
    let alone =
        |release: &Releasing| release.next.is_some() || !release.hold.queue.id.kind.goes_together();
    for (release, place) in releases.into_iter().zip(places) {
        let fits = |group: &&mut (Vec<Releasing>, Vec<usize>)| {
            let same = |there: &Releasing| Arc::ptr_eq(&there.hold.core, &release.hold.core);
            group
                .0
                .first()
                .is_some_and(|there| same(there) && !alone(there))
        };
        let group = groups.iter_mut().find(fits).filter(|_| !alone(&release));
        match group {
            Some((group, of_group)) => {
                group.push(release);
                of_group.push(*place);
            }
            None => groups.push((vec![release], vec![*place])),
        }
    }
    groups
}

/// Tells the server of all of them. If it gives no usable answer, each is told by itself, as often as need be.
async fn tell_all(mut releases: Vec<Releasing>) -> Vec<Result<Released, Error>> {
    if let [first, _, ..] = &releases[..] {
        let core = Arc::clone(&first.hold.core);
        let sent = core.clock.now();
        let steps = releases.iter().map(|release| release.step(sent)).collect();
        match core.backend.release_all(steps).await {
            Ok(answers) => {
                let told = releases.into_iter().zip(answers);
                let told = told.map(|(release, answer)| {
                    release.answered(&ReleaseAnswer {
                        answer,
                        sent,
                        queued: false,
                    })
                });
                return told.collect();
            }
            Err(failure) => {
                for release in &mut releases {
                    release.failed(&failure);
                    // Those before the one that was refused may have been given up.
                    release.silent |= failure.is_final();
                }
            }
        }
    }
    join_all(releases.into_iter().map(Releasing::run)).await
}
