//! Sending one request as often as it takes, and giving up on it without leaving traces.

use std::{sync::Arc, time::Duration};

use super::Spec;
use crate::{
    backend::{Abandon, Acquire, Acquired, Failure, Line},
    client::Core,
    clock::Tick,
    error::Cause,
    lease,
    name::Name,
    owner::LeaseId,
};

/// The sends of one lease id, which may be many.
pub(super) struct Attempt<'a> {
    core: &'a Arc<Core>,
    name: &'a Name,
    pub(super) lease: LeaseId,
    /// Answered or not, this many times.
    sends: u32,
    /// At least one send had no answer, so a copy of it may still be under way.
    pub(super) ambiguous: bool,
    pub(super) failures: u32,
}

pub(super) enum Try {
    Granted { sent: Tick },
    Held { ttl: Option<Duration>, sent: Tick },
}

impl<'a> Attempt<'a> {
    pub(super) fn new(core: &'a Arc<Core>, name: &'a Name, lease: LeaseId) -> Self {
        Attempt {
            core,
            name,
            lease,
            sends: 0,
            ambiguous: false,
            failures: 0,
        }
    }

    /// Asks once. A grant that is over before its answer is here is asked for again, a few times.
    pub(super) async fn send(&mut self, spec: Spec, line: Option<Line>) -> Result<Try, Failure> {
        let mut late = 0;
        loop {
            let sent = self.core.clock.now();
            self.sends += 1;
            let step = Acquire {
                name: self.name.clone(),
                lease: self.lease,
                lease_ms: spec.lease_ms(),
                line,
            };
            match self.core.backend.acquire(step).await {
                Ok(Acquired::Granted) => {
                    self.failures = 0;
                    let now = self.core.clock.now();
                    if now < lease::valid_until(sent, spec.lease()) {
                        return Ok(Try::Granted { sent });
                    }
                    late += 1;
                    self.ambiguous = true;
                    if late == LATE_GRANTS {
                        let slow = TooSlow {
                            lease: spec.lease(),
                            took: now.since(sent),
                        };
                        return Err(Failure::Rejected(Arc::new(slow)));
                    }
                }
                Ok(Acquired::Held { ttl }) => {
                    self.failures = 0;
                    return Ok(Try::Held { ttl, sent });
                }
                Ok(Acquired::Abandoned) => {
                    // Ours alone, and we abandon only what we stop asking for.
                    let cause: Cause = Arc::new(AbandonedHere);
                    return Err(Failure::Rejected(cause));
                }
                Err(failure) => {
                    self.failed(&failure);
                    return Err(failure);
                }
            }
        }
    }

    /// A send that failed.
    pub(super) fn failed(&mut self, failure: &Failure) {
        self.failures += 1;
        self.ambiguous |= matches!(failure, Failure::Ambiguous(_));
    }

    /// Before the next try after a failure: 10 ms, doubling up to half a second.
    pub(super) async fn pause(&self) {
        let ms = 10_u64 << self.failures.min(6).saturating_sub(1);
        let ms = ms.min(500);
        let pause = Duration::from_millis(ms / 2 + fastrand::u64(0..=ms / 2));
        self.core.sleep(pause).await;
    }

    pub(super) fn resent(&self) -> bool {
        self.ambiguous
    }

    /// What a failure amounts to: after an unanswered copy, one that was not sent leaves the matter open.
    pub(super) fn verdict(&self, failure: Failure) -> Failure {
        match failure {
            Failure::NotSent(cause) if self.ambiguous => Failure::Ambiguous(cause),
            other => other,
        }
    }

    /// Stops asking. If the server may have heard, it is told in the background.
    pub(super) fn give_up(&self, line: Option<Line>) {
        if self.ambiguous || line.is_some() {
            abandon(self.core, self.name, self.lease, line);
        }
    }
}

/// So often may a grant be over before its answer is here.
const LATE_GRANTS: u32 = 3;

#[derive(Debug, thiserror::Error)]
#[error(
    "the lease of {lease:?} is over before the answer is here, which took {took:?}; take a longer one"
)]
struct TooSlow {
    lease: Duration,
    took: Duration,
}

#[derive(Debug, thiserror::Error)]
#[error("this lease was given up already; please report this as a bug of leasehold")]
struct AbandonedHere;

/// Gives a lease id up for good, in the background, until the server has heard or is free of it anyway.
pub(super) fn abandon(core: &Arc<Core>, name: &Name, lease: LeaseId, line: Option<Line>) {
    let work = abandon_work(Arc::clone(core), name.clone(), lease, line);
    core.spawn(work);
}

async fn abandon_work(core: Arc<Core>, name: Name, lease: LeaseId, line: Option<Line>) {
    let step = Abandon {
        name,
        lease,
        line,
        tombstone_ms: core.tombstone_ms(),
    };
    let began = core.clock.now();
    let mut attempt = Attempt::new(&core, &step.name, lease);
    while let Err(failure) = core.backend.abandon(step.clone()).await {
        if matches!(failure, Failure::Rejected(_)) {
            return;
        }
        attempt.failures += 1;
        if core.clock.now().since(began) > Duration::from_millis(step.tombstone_ms) {
            return;
        }
        attempt.pause().await;
    }
}
