//! A request for a lock, and what its outcome says of the request itself.

use std::{sync::Arc, time::Duration};

use crate::{
    Error,
    backend::{Acquire, Acquired, Failure},
    clock::Tick,
    durations::{about, humane},
    engine::env::Env,
    engine::hold::lease,
    engine::hold::spec::Spec,
    engine::hold::watchdog::restarts::Restarts,
    name::LockId,
    story,
};

/// Sends a request for a lock at `sent`, and tells of it.
pub(crate) async fn ask_server(
    env: &Env,
    restarts: &Restarts,
    (step, sent): (Acquire, Tick),
) -> Result<Acquired, Failure> {
    let (id, lease) = (step.id.clone(), step.lease);
    story::sends(&id, lease);
    // Before the send: a lease id that is given up from here on may be what the answer calls held (bug 257).
    let mark = env.unsettled.mark();
    let mut answer = env.backend.acquire(step).await;
    let is_granted = matches!(answer, Ok(Acquired::Granted { .. }));
    if is_granted && restarts.is_void(sent) {
        // B1: a primary that stood still may have given it when its successor was in its place, and had been heard of (bug 315). The
        // successor says `Granted` to the same lease id, if it has that.
        answer = Err(Failure::Ambiguous(Arc::new(FromBefore)));
    }
    match &mut answer {
        Ok(Acquired::Held { ttl, unsettled, .. }) => {
            *unsettled |= env.unsettled.may_be_ours(&id.name, mark);
            story::is_held(&id, lease, *ttl);
        }
        Err(failure) => story::is_not_answered(&id, lease, failure.cause()),
        Ok(_) => {}
    }
    answer
}

#[derive(Debug, thiserror::Error)]
#[error("the answer is of a server whose place another has taken since, or that has restarted")]
struct FromBefore;

/// The failure of a caller that does not wait, or whose time is up, on a name that may be held by a lease id of this client that is being
/// given up: `None` would say that another has it. For a caller that does not wait the server is asked again first, for the operation timeout.
pub(crate) fn still_ours() -> Failure {
    Failure::Ambiguous(Arc::new(BeingGivenUp))
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the server may hold a lease of this client that is being given up, since it had no answer"
)]
struct BeingGivenUp;

/// The error of a caller whose time is up before the server has answered its request.
pub(crate) fn no_answer(env: &Env, id: &LockId, spec: Spec) -> Error {
    let failure = env.time_is_up();
    let free = lease::free_for_users(id, spec.lease());
    failure.into_error(format!("lock {:?}", id.name), free)
}

/// Counts the grants that were over before their answers came.
#[derive(Debug)]
pub(crate) struct TooLate {
    limit: (&'static str, Duration),
    count: u32,
}

impl TooLate {
    /// A grant may be over before its answer is here this often.
    const MOST: u32 = 3;

    pub(crate) fn new(spec: Spec) -> TooLate {
        TooLate {
            limit: spec.limit(),
            count: 0,
        }
    }

    /// Counts one more, whose answer took `took`. An error if another try is of no use.
    pub(crate) fn again(&mut self, took: Duration) -> Result<(), Failure> {
        self.count += 1;
        if self.count < TooLate::MOST {
            return Ok(());
        }
        let (what, length) = self.limit;
        Err(Failure::Rejected(Arc::new(TooSlow { what, length, took })))
    }

    pub(crate) fn limit(&self) -> (&'static str, Duration) {
        self.limit
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the {what} of {} was over when the server's answer was here, {} after it was asked; take a longer one",
    humane(*length), about(*took)
)]
struct TooSlow {
    what: &'static str,
    length: Duration,
    took: Duration,
}
