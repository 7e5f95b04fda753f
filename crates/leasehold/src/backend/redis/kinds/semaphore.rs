//! Redisson's `RSemaphore`: a number at the name, which tells no holders.

use std::{sync::Arc, time::Duration};

use super::{
    Wire, acquired, int,
    latch::{self, inspection},
    leased_semaphore::{channel, count, to_set},
    released, size_hint,
};
use crate::{
    backend::{
        Acquire, Acquired, Count, Counted, Extend, Failure, ForceUnlock, Grant, InARow, Inspection,
        Once, Permits, Release, ReleaseReply, Renew, Reply,
        redis::{
            script::{Call, Lazy, Script},
            script_runner::ScriptRunner,
        },
    },
    config::{ANSWERS_KEPT, millis},
    name::{LockId, Name},
    owner::LeaseId,
};

static ACQUIRE: Lazy = script!("refuse", "number/number", "semaphore/acquire");
static RELEASE: Lazy = script!("refuse", "waiting", "number/number", "semaphore/release");
static PERMITS: Lazy = script!("refuse", "number/number", "semaphore/permits");

pub(super) struct SemaphoreWire;

#[derive(Debug, thiserror::Error)]
#[error(
    "a semaphore without leases tells no holders; add_permits(n) gives back those of a holder that is dead"
)]
struct NoHolders;

/// A call that begins with the number, and with what became of one change of it.
fn call(
    (script, args): (&'static Script, usize),
    runner: &ScriptRunner,
    id: &LockId,
    change: LeaseId,
) -> Call {
    Call::new(script, 2, args, size_hint(&id.name, 3))
        .arg(id.name.wire())
        .text(id.gone_key(&runner.client, change))
}

fn now<T: Send + 'static>(answer: T) -> Reply<T> {
    Box::pin(std::future::ready(Ok(answer)))
}

impl Wire for SemaphoreWire {
    fn channel(&self, name: &Name) -> String {
        channel(name).to_string()
    }

    fn grant(&self, _payload: &[u8]) -> Option<Grant> {
        None
    }

    fn has_queue(&self) -> bool {
        false
    }

    fn acquire(&'static self, runner: &ScriptRunner, step: Acquire) -> Reply<Acquired> {
        let call = call((&ACQUIRE, 4), runner, &step.id, step.lease)
            .arg(count(step.access))
            .arg(millis(ANSWERS_KEPT))
            .text(channel(&step.id.name))
            // Never exactly: the server does not know how many permits are out.
            .arg(to_set(&step).0)
            // It has no lease to renew.
            .kept_by(&RELEASE, &RELEASE);
        // The script says -1 for the time left. A hold without an end counts here as one of the length asked for, which `extend` moves.
        runner.call(call, move |reply| acquired(reply, step.lease_ms))
    }

    fn release(&'static self, runner: &ScriptRunner, step: Release) -> Reply<ReleaseReply> {
        let call = call((&RELEASE, 7), runner, &step.id, step.lease)
            .arg(count(step.access))
            .text(channel(&step.id.name))
            .arg(millis(ANSWERS_KEPT))
            // Where the server has forgotten the lease id, only permits that this client was granted are added to the number again.
            .arg(u8::from(step.held))
            .arg(u8::from(step.listening))
            .text(step.id.name.marker())
            .text(step.holds.unwrap_or(InARow::ONE))
            // Others wait, or did a moment ago: the next holder first.
            .answer_last(step.listening);
        // Nothing is kept for the next of this process: it asks as every client does.
        runner.call(call, |reply| released(reply, None))
    }

    /// The server knows of no hold, so nothing there could end it.
    fn renewal(&'static self, _runner: &ScriptRunner, _batch: &[Renew]) -> Option<Call> {
        None
    }

    fn extend(&'static self, _runner: &ScriptRunner, step: Extend) -> Reply<Option<Duration>> {
        // No lease of these permits ends on the server, so any length is granted without asking.
        now(Some(Duration::from_millis(step.lease_ms)))
    }

    fn count(&'static self, _runner: &ScriptRunner, _step: Count) -> Reply<Counted> {
        // The number knows no owners: nothing can be written of this one, nor be missing.
        now(Counted::Written)
    }

    fn inspect(&'static self, runner: &ScriptRunner, id: LockId) -> Reply<Inspection> {
        let call = Call::new(&latch::INSPECT, 1, 2, size_hint(&id.name, 2))
            .arg(id.name.wire())
            .text(channel(&id.name))
            .arg("semaphore");
        runner.inspect(call, inspection)
    }

    fn force_unlock(
        &'static self,
        _runner: &ScriptRunner,
        _step: &ForceUnlock,
    ) -> Reply<Vec<String>> {
        let failure = Failure::Rejected(Arc::new(NoHolders));
        Box::pin(std::future::ready(Err(failure)))
    }

    fn permits(&self, runner: &ScriptRunner, id: LockId, step: Permits, once: Once) -> Reply<i64> {
        let (what, number) = match step {
            Permits::TrySet(permits) => ("try_set", i64::from(permits)),
            Permits::Add(permits) => ("add", i64::from(permits)),
            Permits::Drain => ("drain", 0),
            // The last three are steps of the leased semaphore and of a latch, and no handle of this kind sends them.
            Permits::Available | Permits::Set(_) | Permits::CountDown(_) | Permits::Delete => {
                ("available", 0)
            }
        };
        let call = call((&PERMITS, 4), runner, &id, once.number)
            .text(channel(&id.name))
            .arg(what)
            .arg(number)
            .arg(once.keep_ms);
        runner.call(call, int)
    }
}
