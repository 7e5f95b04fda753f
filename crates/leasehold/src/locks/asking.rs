//! A call for a lock, from its first poll to its answer, as observers and spans are told of it.

use std::{sync::Arc, time::Instant};

use smallvec::SmallVec;

use crate::{
    Error,
    clock::{Clock, Tick},
    engine::env::Env,
    engine::hold::{Hold, held::Held},
    events::{EventKind, Outcome},
    name::LockId,
    owner::LeaseId,
    story::{self, Scope},
};

/// Dropped without an answer, its caller has given up.
pub(super) struct Asking {
    parts: SmallVec<[AskedPart; 1]>,
    scope: Scope,
    began: Tick,
    /// The same on the clock of events.
    at: Instant,
    is_answered: bool,
}

/// A lock that a call asks for.
struct AskedPart {
    env: Arc<Env>,
    id: LockId,
    /// Whether the answer is reported: if the question was, or if no listener was there yet.
    is_reported: bool,
}

/// Begins to tell of a call, if anything hears of it. Boxed: a task that waits is mostly its future (docs/performance.md, P2).
pub(super) fn begin<'a>(
    parts: impl Iterator<Item = (&'a Arc<Env>, &'a LockId)> + Clone,
    scope: impl FnOnce() -> Scope,
) -> Option<Box<Asking>> {
    let is_on = story::is_on();
    let is_received = |(env, _): (&Arc<Env>, &LockId)| is_on || env.events.has_listener();
    if !parts.clone().any(is_received) {
        return None;
    }
    let scope = scope();
    let mut parts: SmallVec<[AskedPart; 1]> = parts
        .map(|(env, id)| AskedPart {
            env: Arc::clone(env),
            id: id.clone(),
            is_reported: false,
        })
        .collect();
    scope.enter(|| parts.iter().for_each(|part| story::asks(&part.id)));
    let began = parts.first().map(|part| part.env.clock.now());
    let at = Instant::now();
    for part in &mut parts {
        part.asks(at);
    }
    Some(Box::new(Asking {
        parts,
        scope,
        began: began.unwrap_or_default(),
        at,
        is_answered: false,
    }))
}

const NONE: u64 = 0;

impl AskedPart {
    fn asks(&mut self, at: Instant) {
        let events = &self.env.events;
        // Of a call that was under way when a listener came, that one hears the answer.
        self.is_reported = !events.has_listener()
            || events.note_and_tell(&self.id, LeaseId::from(NONE), at, EventKind::Asked);
    }

    fn answers(&self, lease: u64, at: Instant, kind: EventKind) {
        let events = &self.env.events;
        if self.is_reported && events.has_listener() {
            events.note_and_tell(&self.id, LeaseId::from(lease), at, kind);
        }
    }
}

impl Asking {
    pub(super) fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The call has its answer: so many of its locks, all or none, or an error.
    pub(super) fn answered(&mut self, answer: Result<&[Held], &Error>) {
        let (outcome, guards) = match answer {
            Ok([]) => (Outcome::Busy, &[][..]),
            Ok(guards) => (Outcome::Granted, guards),
            Err(_) => (Outcome::Failed, &[][..]),
        };
        self.tell(outcome, guards);
    }

    fn tell(&mut self, outcome: Outcome, guards: &[Held]) {
        self.is_answered = true;
        let Some(first) = self.parts.first() else {
            return;
        };
        let wait = first.env.clock.now().since(self.began);
        // A look at one clock less: a busy name has a hundred thousand answers a second.
        let at = if matches!(first.env.clock, Clock::Boot) {
            self.at + wait
        } else {
            Instant::now()
        };
        self.scope.answered(outcome, wait);
        for part in &self.parts {
            let is_its =
                |hold: &&Arc<Hold>| hold.id() == &part.id && Arc::ptr_eq(hold.env(), &part.env);
            let its = guards.iter().map(Held::hold).find(is_its);
            let lease = its.map_or(NONE, |hold| hold.lease.get());
            part.answers(lease, at, EventKind::Answered { outcome, wait });
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if !self.is_answered {
            self.tell(Outcome::GivenUp, &[]);
        }
    }
}
