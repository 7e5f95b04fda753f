//! Redisson's `RCountDownLatch`: a number at the name, which no client holds.

use std::{sync::Arc, time::Duration};

use redis::Value;

use super::{Wire, int, pair, size_hint};
use crate::{
    backend::{
        Acquire, Acquired, Count, Counted, Extend, Failure, ForceUnlock, Grant, Inspection, Once,
        Permits, Release, ReleaseReply, Renew, Reply,
        redis::{
            script::{Call, Lazy},
            script_runner::ScriptRunner,
        },
    },
    name::{LockId, Name},
};

static STEP: Lazy = script!("refuse", "number/number", "latch/step");
pub(super) static INSPECT: Lazy = script!("refuse", "number/number", "number/inspect");

pub(super) struct LatchWire;

/// Redisson's channel: in braces of its own, also around a name that has some.
fn channel(name: &Name) -> String {
    format!("redisson_countdownlatch__channel__{{{}}}", name.wire())
}

#[derive(Debug, thiserror::Error)]
#[error("a latch is held by no client")]
struct NotHeld;

/// The steps of a hold, which no handle of a latch asks for.
fn not_held<T: Send + 'static>() -> Reply<T> {
    Box::pin(std::future::ready(Err(Failure::Rejected(Arc::new(
        NotHeld,
    )))))
}

impl LatchWire {
    fn step(
        runner: &ScriptRunner,
        id: &LockId,
        step: (&'static str, u32),
        once: Once,
    ) -> Reply<i64> {
        let (what, number) = step;
        let call = Call::new(&STEP, 2, 4, size_hint(&id.name, 3))
            .arg(id.name.wire())
            .text(id.gone_key(&runner.client, once.number))
            .arg(channel(&id.name))
            .arg(what)
            .arg(number)
            .arg(once.keep_ms);
        runner.call(call, int)
    }
}

impl Wire for LatchWire {
    fn channel(&self, name: &Name) -> String {
        channel(name)
    }

    fn grant(&self, _payload: &[u8]) -> Option<Grant> {
        None
    }

    fn has_queue(&self) -> bool {
        false
    }

    fn acquire(&'static self, _runner: &ScriptRunner, _step: Acquire) -> Reply<Acquired> {
        not_held()
    }

    fn release(&'static self, _runner: &ScriptRunner, _step: Release) -> Reply<ReleaseReply> {
        not_held()
    }

    fn renewal(&'static self, _runner: &ScriptRunner, _batch: &[Renew]) -> Option<Call> {
        None
    }

    fn extend(&'static self, _runner: &ScriptRunner, _step: Extend) -> Reply<Option<Duration>> {
        not_held()
    }

    fn count(&'static self, _runner: &ScriptRunner, _step: Count) -> Reply<Counted> {
        not_held()
    }

    fn inspect(&'static self, runner: &ScriptRunner, id: LockId) -> Reply<Inspection> {
        let call = Call::new(&INSPECT, 1, 2, size_hint(&id.name, 2))
            .arg(id.name.wire())
            .arg(channel(&id.name))
            .arg("latch");
        runner.inspect(call, |reply| {
            let found = inspection(reply)?;
            // As the script of the steps says it: a count below zero is an open latch.
            let available = found.available.map(|count| count.max(0));
            Some(Inspection { available, ..found })
        })
    }

    /// It has no holders; its end is [`Permits::Delete`].
    fn force_unlock(
        &'static self,
        _runner: &ScriptRunner,
        _step: &ForceUnlock,
    ) -> Reply<Vec<String>> {
        not_held()
    }

    fn permits(&self, runner: &ScriptRunner, id: LockId, step: Permits, once: Once) -> Reply<i64> {
        let step = match step {
            Permits::TrySet(count) => ("try_set", count),
            Permits::CountDown(by) => ("down", by),
            Permits::Delete => ("delete", 0),
            // The last three are steps of semaphores, and no handle of a latch sends them.
            Permits::Available | Permits::Set(_) | Permits::Add(_) | Permits::Drain => ("count", 0),
        };
        LatchWire::step(runner, &id, step, once)
    }
}

/// Of a number that tells no holders.
pub(super) fn inspection(reply: &Value) -> Option<Inspection> {
    let (count, listeners) = pair(reply)?;
    Some(Inspection {
        // The script says -1 where `PUBSUB` is refused, or Valkey 9.1 miscounts (bug 126).
        listeners: u64::try_from(listeners).unwrap_or(0),
        available: Some(count),
        ..Inspection::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_channel_has_braces_of_its_own() {
        for (name, expected) in [
            ("x", "redisson_countdownlatch__channel__{x}"),
            ("o:{4}:x", "redisson_countdownlatch__channel__{o:{4}:x}"),
        ] {
            assert_eq!(channel(&Name::new(name).unwrap()), expected);
        }
    }
}
