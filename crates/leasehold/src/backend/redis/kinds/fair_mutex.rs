//! Redisson's `RFairLock`: an `RLock`'s hash, a list of all owners that wait, in order, and their deadlines.

use std::time::Duration;

use redis::Value;

use super::{
    OwnerField, Wire, acquired,
    exclusive::{MUTEX, channel, inspection},
    from_seen, int, millis, released, seen_args, size_hint, texts,
};
use crate::{
    backend::{
        Acquire, Acquired, Count, Counted, Extend, ForceUnlock, Grant, Inspection, Keep,
        KeptEntries, Release, ReleaseReply, Renew, Reply,
        redis::{
            script::{Call, Lazy, Script},
            script_runner::ScriptRunner,
        },
    },
    name::{Key, LockId, Name},
    owner::LeaseId,
};

static ACQUIRE: Lazy = script!("refuse", "waiting", "fair_mutex/line", "fair_mutex/acquire");
static RELEASE: Lazy = script!("waiting", "fair_mutex/line", "fair_mutex/release");
static KEEP: Lazy = script!("refuse", "waiting", "fair_mutex/line", "fair_mutex/keep");
static FORCE_UNLOCK: Lazy = script!(
    "refuse",
    "waiting",
    "forced",
    "fair_mutex/line",
    "fair_mutex/force_unlock"
);
static INSPECT: Lazy = script!("refuse", "fair_mutex/inspect");

pub(super) struct FairMutexWire;

/// A queue in which only our clients wait, and none visits, ends by itself; not before this, for none may have died.
const KEEP_MS: u64 = 60 * 60 * 1000;

/// Redisson's list of the owners that wait.
fn queue_key(name: &Name) -> Key<'_> {
    name.prefixed("redisson_lock_queue")
}

/// Redisson's deadlines of the owners that wait.
fn timeouts_key(name: &Name) -> Key<'_> {
    name.prefixed("redisson_lock_timeout")
}

/// The call of a script that knows the queue, with `more` arguments behind the common ones.
fn line(script: &'static Script, runner: &ScriptRunner, id: &LockId, more: usize) -> Call {
    Call::new(script, 5, 3 + more, size_hint(&id.name, 7))
        .arg(id.name.wire())
        .text(queue_key(&id.name))
        .text(id.gone_prefix())
        .text(timeouts_key(&id.name))
        .text(id.entries_key())
        .text(channel(&id.name))
        // The script puts the client behind it.
        .text(id.grant_channel(""))
        .arg(runner.dead_ms)
}

impl Wire for FairMutexWire {
    fn channel(&self, name: &Name) -> String {
        channel(name).to_string()
    }

    /// A channel of this client for all its waiters; for a waiter beside Redisson's, a channel of its own.
    fn channels(&self, id: &LockId, client: &str) -> Vec<String> {
        vec![if id.task() == 0 {
            id.grant_channel(client).to_string()
        } else {
            format!("{}:{client}:{}", channel(&id.name), id.task())
        }]
    }

    /// As a mutex's: the owner, and the terms under which it waited.
    fn grant(&self, payload: &[u8]) -> Option<Grant> {
        MUTEX.grant(payload)
    }

    fn acquire(&'static self, runner: &ScriptRunner, step: Acquire) -> Reply<Acquired> {
        let (ask, keep_ms) = step
            .entry
            .map_or((0, 0), |entry| (entry.ask, entry.keep_ms));
        let call = line(&ACQUIRE, runner, &step.id, 5)
            .text(OwnerField::of(runner, step.lease))
            .arg(step.lease_ms)
            .arg(ask)
            .arg(keep_ms.max(KEEP_MS))
            .arg(alive_ms(keep_ms))
            // A hold is the hash of a mutex, and the scripts of a mutex renew, extend and count it.
            .kept_by(MUTEX.renewed_by(), &RELEASE);
        runner.call(call, move |reply| acquired(reply, step.lease_ms))
    }

    fn release(&'static self, runner: &ScriptRunner, step: Release) -> Reply<ReleaseReply> {
        let call = line(&RELEASE, runner, &step.id, 2)
            .text(OwnerField::of(runner, step.lease))
            .arg(step.tombstone_ms.unwrap_or(0))
            // Others wait, or did a moment ago: the next holder first.
            .answer_last(step.listening);
        // Nothing goes on under another lease id: each task that waits has an entry of its own.
        runner.call(call, move |reply| released(reply, None))
    }

    fn keep(&self, runner: &ScriptRunner, step: Keep) -> Reply<KeptEntries> {
        let mut call = line(&KEEP, runner, &step.id, 3 + 3 * step.entries.len())
            .arg(&*runner.client)
            .arg(step.end_ms.max(KEEP_MS))
            .arg(alive_ms(step.end_ms));
        for entry in &step.entries {
            call = call.text(entry.lease).arg(entry.lease_ms).arg(entry.ask);
        }
        // The reply names entries by their numbers in this request.
        let leases: Vec<LeaseId> = step.entries.iter().map(|entry| entry.lease).collect();
        runner.call(call, move |reply| kept(reply, &leases))
    }

    fn renewal(&'static self, runner: &ScriptRunner, batch: &[Renew]) -> Option<Call> {
        MUTEX.renewal(runner, batch)
    }

    fn extend(&'static self, runner: &ScriptRunner, step: Extend) -> Reply<Option<Duration>> {
        MUTEX.extend(runner, step)
    }

    fn count(&'static self, runner: &ScriptRunner, step: Count) -> Reply<Counted> {
        MUTEX.count(runner, step)
    }

    fn inspect(&'static self, runner: &ScriptRunner, id: LockId) -> Reply<Inspection> {
        let call = Call::new(&INSPECT, 2, 0, size_hint(&id.name, 2))
            .arg(id.name.wire())
            .text(queue_key(&id.name));
        runner.inspect(call, inspection)
    }

    fn force_unlock(
        &'static self,
        runner: &ScriptRunner,
        step: &ForceUnlock,
    ) -> Reply<Vec<String>> {
        let call = line(&FORCE_UNLOCK, runner, &step.id, seen_args(step));
        runner.call(from_seen(call, step), texts)
    }
}

/// An entry is kept three times before its client would be missed: half of that is enough, with a reply or two lost.
fn alive_ms(keep_ms: u64) -> u64 {
    keep_ms / 2
}

/// Reads the reply about the entries of these leases.
fn kept(reply: &Value, leases: &[LeaseId]) -> Option<KeptEntries> {
    let Value::Array(values) = reply else {
        return None;
    };
    let [foreign, ttl, missing @ ..] = values.as_slice() else {
        return None;
    };
    let missing = missing.iter().map(|number| {
        // Scripts count from 1, so 0 names no entry, and such a reply is refused.
        let at = usize::try_from(int(number)?).ok()?.checked_sub(1)?;
        leases.get(at).copied()
    });
    Some(KeptEntries {
        ttl: millis(int(ttl)?),
        foreign: int(foreign)? == 1,
        missing: missing.collect::<Option<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_names_the_waiters_that_do_not_wait() {
        let leases = [7, 8, 9].map(LeaseId::from);
        let reply =
            |numbers: &[i64]| Value::Array(numbers.iter().map(|n| Value::Int(*n)).collect());
        let read = kept(&reply(&[1, 250, 1, 3]), &leases).expect("it is a reply");
        assert_eq!(
            read,
            KeptEntries {
                ttl: Some(Duration::from_millis(250)),
                foreign: true,
                missing: vec![leases[0], leases[2]],
            }
        );
        for bad in [&[0_i64, 1, 4] as &[i64], &[0, 1, 0], &[0]] {
            assert_eq!(kept(&reply(bad), &leases), None, "{bad:?}");
        }
    }
}
