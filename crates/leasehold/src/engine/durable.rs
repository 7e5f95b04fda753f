//! Locks that others than the server must have before their holders go on.
//!
//! The lock is taken as ever, by whichever way: a reply, a grant, or a hand-over in memory. Then its holder-to-be, who has it in its
//! hands, and gives it back if it leaves, waits until it is acknowledged, unless that has been done for an earlier holder.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    Error,
    backend::{Confirmation, Renew, Renewal},
    backoff::Backoff,
    durability::{Missed, NotDurable, Unmet},
    engine::env::Env,
    engine::hold::Hold,
    engine::hold::held::Held,
    engine::hold::spec::{Patience, Spec},
    engine::local::answer::WaitResult,
    error::Cause,
    name::LockId,
    user_callback,
};

/// After its time a server says by how much it was missed, if it says so at once.
const LATE: Duration = Duration::from_millis(25);

/// Before anything is sent about the lock: refuses a server that cannot do it. Returns the patience that is left. A server that is silent is
/// waited for as ever, by what comes next.
pub(crate) async fn begin(
    env: &Arc<Env>,
    id: &LockId,
    spec: Spec,
    patience: Patience,
) -> Result<Patience, Error> {
    env.check_open()?;
    let began = Instant::now();
    let most = match patience {
        Patience::For(wait) => wait.min(env.config.operation_timeout),
        Patience::Once | Patience::Forever => env.config.operation_timeout,
    };
    let asked = env.backend.can_confirm(id, spec.durability);
    match env.by(began + most, asked).await {
        Some(Err(failure)) if failure.is_final() => {
            Err(failure.into_read_error(format!("lock {:?}", id.name)))
        }
        None if patience == Patience::Once => {
            let failure = env.time_is_up();
            Err(failure.into_read_error(format!("lock {:?}", id.name)))
        }
        _ => Ok(match patience {
            Patience::For(wait) => Patience::For(wait.saturating_sub(began.elapsed())),
            other => other,
        }),
    }
}

/// Waits until those have it that its holder asked for.
pub(crate) async fn confirmed(taken: WaitResult) -> WaitResult {
    match taken {
        // Boxed: it would make the future of each task that waits larger.
        Ok(Some(held)) if held.hold().lacks_acknowledgement() => {
            Box::pin(confirm(held)).await.map(Some)
        }
        other => other,
    }
}

async fn confirm(taken: Held) -> Result<Held, Error> {
    let hold = &Arc::clone(taken.hold());
    let env = Arc::clone(hold.env());
    let within = env.config.durability_timeout;
    let ours = || {
        let left = hold.check();
        left.map_err(|lost| if env.is_closed() { Error::Closed } else { lost })
    };
    let mut over = pin!(hold.over.notified());
    // Registered before the look: a loss or a shutdown in between ends the wait (bug 230).
    over.as_mut().enable();
    ours()?;
    let answer = tokio::select! {
        biased; // a simulation must be able to replay it
        answer = env.by(Instant::now() + within + LATE, acknowledge(hold)) => answer,
        () = over => None,
    };
    ours()?;
    let missed = match answer {
        Some(Ok(None)) => return Ok(taken),
        Some(Ok(Some(missed))) => Ok(missed),
        Some(Err(cause)) => Err(cause),
        None => Ok(Missed::silent(hold.durability, within)),
    };
    let (name, server) = (&hold.id().name, env.backend.server_of(hold.id()));
    if env.config.unmet == Unmet::Accept {
        if env.warned_of_unmet.may_warn(env.clock.now()) {
            let cause = missed.map_or_else(|cause| cause, |missed| Arc::new(missed));
            user_callback::catch_panic(|| {
                tracing::warn!(target: "leasehold", %name, %server, %cause, "a lock is held without what its durability asks for");
            });
        }
        return Ok(taken);
    }
    let doing = format!("lock {name:?}").into();
    let source = missed.map_or_else(
        |cause| cause,
        |missed| Arc::new(NotDurable { missed, server }),
    );
    drop(taken); // gives it back
    Err(Error::Rejected { doing, source })
}

/// Renews it, with others that wait at this moment, and waits until that is acknowledged; else says by how much it was missed.
async fn acknowledge(hold: &Arc<Hold>) -> Result<Option<Missed>, Cause> {
    let (env, spec) = (hold.env(), hold.spec());
    let mut backoff = Backoff::of_request();
    loop {
        let sent = env.clock.now();
        let renew = Renew {
            id: hold.id().clone(),
            access: spec.access,
            lease: hold.lease,
            lease_ms: spec.lease_ms(),
        };
        let answer = env.backend.confirm([renew].into(), hold.durability).await;
        let said = match answer.map(|said| said.first().copied()) {
            Ok(said) => said.unwrap_or(Confirmation::NONE),
            Err(failure) if failure.is_final() => return Err(Arc::clone(failure.cause())),
            // Another server may be there in time.
            Err(_) => {
                env.sleep(backoff.next()).await;
                continue;
            }
        };
        match said.renewal {
            // The caller of this checks the hold next, and answers with the loss.
            Renewal::Lost if hold.answered_not_ours(sent) => {}
            Renewal::Extended if !hold.is_from_before(sent) => {
                hold.note_acknowledged(&said);
                if said.believed(env.config.unmet) == Renewal::Extended {
                    // B1, B2: what was asked for, counted from before it was sent.
                    let _ = hold.extended(spec.lease(), sent);
                }
            }
            // The renewal has no answer, or the server that answered has been replaced since (bug 318): replicas have acknowledged nothing.
            _ => {
                env.sleep(backoff.next()).await;
                continue;
            }
        }
        return Ok(said.missed);
    }
}
