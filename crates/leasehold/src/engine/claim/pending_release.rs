//! A lease id that is given up: the server is told so until it has confirmed it (B5).

use std::{sync::Arc, time::Duration};

use crate::{
    backend::{Failure, Release},
    backoff::Backoff,
    clock::Tick,
    config::{ANSWERS_KEPT, millis},
    engine::{
        env::{Env, unsettled::Settling},
        hold::{Hold, lease},
    },
    kind::Access,
    name::{LockId, Name},
    owner::LeaseId,
    user_callback,
};

/// A lease id that must be given up on the server (B5).
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingRelease {
    pub(crate) access: Access,
    pub(crate) lease: LeaseId,
    pub(crate) lease_ms: u64,
    /// The server has said that it holds.
    pub(crate) held: bool,
    /// A copy of a request that could take the name may still be under way: leave a tombstone (B4).
    pub(crate) copies: bool,
}

/// A client that gives up lease ids.
pub(crate) trait Owes: AsRef<Env> + Send + Sync + 'static {
    /// Whether this process hears the wake-ups for the name.
    fn is_listening(&self, id: &LockId) -> bool;
}

impl PendingRelease {
    /// Of a hold: whether copies of its requests may still be under way.
    pub(crate) fn of(hold: &Hold) -> PendingRelease {
        PendingRelease {
            access: hold.spec().access,
            lease: hold.lease,
            lease_ms: millis(hold.longest()),
            held: true,
            copies: hold.may_have_copies(),
        }
    }

    /// The request that settles it.
    pub(crate) fn release(&self, env: &Env, id: &LockId, listening: bool) -> Release {
        Release {
            held: self.held,
            tombstone_ms: self.copies.then(|| env.tombstone_ms()),
            listening,
            ..Release::giving_back(id, self.access, self.lease)
        }
    }
}

/// Gives a lease id up for good, in the background (B5).
pub(crate) fn abandon<C: Owes>(client: &Arc<C>, id: &LockId, pending_release: PendingRelease) {
    let env = (**client).as_ref();
    if may_owe(env) {
        // Before its queue goes on: what asks from then on knows of it.
        let settling = env.unsettled.begin(&id.name);
        env.spawn(settle(
            Arc::clone(client),
            id.clone(),
            pending_release,
            settling,
        ));
    }
}

/// Whether the server may have anything of this client. A client that never had a connection has sent nothing; and the actor
/// that gives up a lease id has the outcome of its last request (Q1), so none is still to be sent.
pub(crate) fn may_owe(env: &Env) -> bool {
    env.backend.has_reached()
}

/// A refusal needs a hand. All else is the server's trouble, and is told with it, not once for each lease.
pub(crate) fn left_to_expire(name: &Name, failure: &Failure, said: &str) {
    let cause = failure.cause();
    user_callback::catch_panic(|| {
        if failure.is_final() {
            tracing::warn!(target: "leasehold", %name, %cause, "{said}");
        } else {
            tracing::debug!(target: "leasehold", %name, %cause, "{said}");
        }
    });
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the server may have forgotten a release that had no answer, and a copy would give back more than there is"
)]
struct Forgotten;

/// Fails when the server may have forgotten a release whose first send without an answer was at `first`. It keeps no holders of such a kind,
/// so a later copy would give back more than there is.
pub(crate) fn check_known(env: &Env, id: &LockId, first: Tick) -> Result<(), Failure> {
    if id.kind.never_ends() && env.clock.now().since(first) > ANSWERS_KEPT / 2 {
        return Err(Failure::Rejected(Arc::new(Forgotten)));
    }
    Ok(())
}

/// By how much the pauses of a release that was first tried so `ago` are longer: more from a minute on, up to half a minute after an hour. So a
/// server that is back hears of it within a hundredth of the time for which it was away.
fn longer_after(ago: Duration) -> f64 {
    (ago.as_secs_f64() / 60.0).clamp(1.0, 60.0)
}

/// Tells the server that a lease id is given up, until it has confirmed that, or until any lease that an earlier request
/// took has expired.
async fn settle<C: Owes>(
    client: Arc<C>,
    id: LockId,
    pending_release: PendingRelease,
    _settling: Settling,
) {
    let env = (*client).as_ref();
    let lease = Duration::from_millis(pending_release.lease_ms);
    // A late copy of its requests may take the name, or an entry, for as long as a tombstone would last; and have it for a
    // lease after that.
    let over = lease::free_within(lease + Duration::from_millis(env.tombstone_ms()));
    let began = env.clock.now();
    let mut pending_release = pending_release;
    let mut backoff = Backoff::of_request();
    let mut silent = None;
    loop {
        if pending_release.held
            && let Some(first) = silent
            && let Err(failure) = check_known(env, &id, first)
        {
            let said = "the server may not have given the permits back; if so, they are lost until a user adds as many";
            return left_to_expire(&id.name, &failure, said);
        }
        let sent = env.clock.now();
        // Asked anew for each send: the script counts listeners, and is not to take this client for a waiter.
        let release = pending_release.release(env, &id, client.is_listening(&id));
        // Also "not ours": then the server has nothing of it, which is all that is wanted here.
        let Err(failure) = env.backend.release(release).await else {
            return;
        };
        // Earlier requests may be late as well.
        if failure.is_ambiguous() {
            pending_release.copies = true;
            silent.get_or_insert(sent);
        }
        // A lease id whose release the server refuses for good expires.
        if failure.is_final() || env.clock.now().since(began) > over {
            let said = "a lease could not be given up, and was left to expire";
            return left_to_expire(&id.name, &failure, said);
        }
        // The pauses grow with the time: the release of a semaphore is repeated for up to a day (bug 134).
        let ago = env.clock.now().since(began);
        env.sleep(backoff.next().mul_f64(longer_after(ago))).await;
    }
}
