//! Redisson's `RReadWriteLock`: a hash at the name with a `mode`, and a field for each reader, or for the writer. A reader's
//! lease is a key of its own.

use std::{fmt, time::Duration};

use redis::Value;

use super::{
    OrEmpty, OwnerField, Wire, acquired, counted, extended, from_seen, int, millis, queue,
    released, seen_args, size_hint, texts,
};
use crate::{
    backend::{
        Acquire, Acquired, Count, Counted, Downgrade, Extend, ForceUnlock, Grant, Inspection,
        KnownClient, Owned, Release, ReleaseReply, Renew, Reply,
        fenced::Tokens,
        redis::{
            script::{Call, Lazy, text},
            script_runner::ScriptRunner,
        },
    },
    kind::Access,
    name::{Key, LockId, Name},
    owner::LeaseId,
};

static ACQUIRE: Lazy = script!(
    "refuse",
    "waiting",
    "places",
    "rw_lock/holders",
    "rw_lock/take",
    "rw_lock/queue",
    "rw_lock/hand_over",
    "rw_lock/acquire"
);
static RELEASE: Lazy = script!(
    "refuse",
    "waiting",
    "places",
    "rw_lock/holders",
    "rw_lock/take",
    "rw_lock/queue",
    "rw_lock/hand_over",
    "rw_lock/release"
);
static DOWNGRADE: Lazy = script!(
    "refuse",
    "waiting",
    "places",
    "rw_lock/holders",
    "rw_lock/take",
    "rw_lock/queue",
    "rw_lock/hand_over",
    "rw_lock/downgrade"
);
static RENEW: Lazy = script!("rw_lock/renew");
static EXTEND: Lazy = script!(
    "refuse",
    "rw_lock/holders",
    "rw_lock/take",
    "rw_lock/extend"
);
static COUNT: Lazy = script!(
    "refuse",
    "waiting",
    "places",
    "rw_lock/holders",
    "rw_lock/queue",
    "rw_lock/count"
);
static FORCE_UNLOCK: Lazy = script!(
    "refuse",
    "waiting",
    "forced",
    "places",
    "rw_lock/holders",
    "rw_lock/take",
    "rw_lock/queue",
    "rw_lock/hand_over",
    "rw_lock/force_unlock"
);
static INSPECT: Lazy = script!("refuse", "rw_lock/holders", "rw_lock/inspect");

/// The suffix of a writer's field.
const WRITE: &str = ":write";

pub(super) struct RwLockWire;

fn channel(name: &Name) -> impl fmt::Display + '_ {
    name.prefixed("redisson_rwlock")
}

/// The prefix of the keys of the readers' leases: the field follows, and `:rwlock_timeout:1`. The scripts are given this
/// prefix, for they find readers that the caller does not know; it is in the slot of the name.
fn timeouts(name: &Name) -> Key<'_> {
    name.suffixed("")
}

/// `<client uuid>:<lease id>`, with `:write` behind it of a writer.
#[derive(Clone, Copy)]
struct Field<'a> {
    owner: OwnerField<'a>,
    access: Access,
}

impl Field<'_> {
    fn of(runner: &ScriptRunner, access: Access, lease: LeaseId) -> Field<'_> {
        Field {
            owner: OwnerField::of(runner, lease),
            access,
        }
    }
}

impl fmt::Display for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.owner.fmt(f)?;
        if self.access.is_exclusive() {
            f.write_str(WRITE)?;
        }
        Ok(())
    }
}

impl Wire for RwLockWire {
    fn channel(&self, name: &Name) -> String {
        channel(name).to_string()
    }

    /// `<field> <lease_ms> <ask>`, the entry that the grant was given to.
    fn grant(&self, payload: &[u8]) -> Option<Grant> {
        let mut words = std::str::from_utf8(payload).ok()?.split(' ');
        let field = words.next()?;
        // At the first colon: of a writer `:write` stands behind a second one.
        let (_, numbers) = field.split_once(':')?;
        let (lease, form) = numbers.split_at(numbers.find(':').unwrap_or(numbers.len()));
        let access = match form {
            "" => Access::Shared,
            WRITE => Access::Exclusive,
            _ => return None,
        };
        Some(Grant {
            access,
            lease: lease.parse::<u64>().ok()?.into(),
            lease_ms: words.next()?.parse().ok()?,
            ask: words.next()?.parse().ok()?,
            tokens: Tokens::NONE,
        })
    }

    fn owner(&self, runner: &ScriptRunner, access: Access, lease: LeaseId) -> String {
        Field::of(runner, access, lease).to_string()
    }

    fn acquire(&'static self, runner: &ScriptRunner, step: Acquire) -> Reply<Acquired> {
        let id = &step.id;
        let call = Call::new(&ACQUIRE, 4, 6, size_hint(&id.name, 6))
            .arg(id.name.wire())
            .text(timeouts(&id.name))
            .text(id.queue_key())
            // Not one key: the script asks for the tombstone of each entry that it may pass the lock to (B4).
            .text(id.gone_prefix())
            .text(Field::of(runner, step.access, step.lease))
            .arg(step.lease_ms)
            .arg(step.entry.map_or(0, |entry| entry.ask))
            .arg(step.entry.map_or(0, |entry| entry.keep_ms))
            // The script puts the client of an entry behind it.
            .text(id.grant_channel(""))
            .text(channel(&id.name))
            .kept_by(&RENEW, &RELEASE);
        runner.call(call, move |reply| match reply {
            // A new grant is a bare 1, for the length asked for. Of a hold that was there before the script also states what is left.
            Value::Int(1) => Some(Acquired::Granted {
                remaining: Duration::from_millis(step.lease_ms),
                tokens: Tokens::NONE,
            }),
            reply => acquired(reply, step.lease_ms),
        })
    }

    fn release(&'static self, runner: &ScriptRunner, step: Release) -> Reply<ReleaseReply> {
        let (id, next) = (&step.id, step.next);
        let call = Call::new(&RELEASE, 4, 9, size_hint(&id.name, 6))
            .arg(id.name.wire())
            .text(timeouts(&id.name))
            .text(id.queue_key())
            .text(id.gone_prefix())
            // Without its form: a downgrade whose answer was lost may have made a reader of the writer (B4).
            .text(OwnerField::of(runner, step.lease))
            .text(channel(&id.name))
            .text(id.grant_channel(""))
            .arg(step.tombstone_ms.unwrap_or(0))
            .arg(u8::from(step.listening))
            .text(OrEmpty(
                next.map(|next| Field::of(runner, next.access, next.lease)),
            ))
            .arg(next.map_or(0, |next| next.lease_ms))
            .arg(u8::from(next.is_some_and(|next| next.stays)))
            .text(OrEmpty(step.holds))
            // Others wait, or did a moment ago: the next holder first.
            .answer_last(step.listening);
        runner.call(call, move |reply| match reply {
            Value::Int(0) => Some(ReleaseReply::NotOurs),
            // A bare 1: others hold the lock still, or no other client was told, so there is nothing to count.
            Value::Int(1) => Some(ReleaseReply::Freed {
                others: 0,
                turns: 0,
            }),
            reply => released(reply, next.map(|next| next.lease_ms)),
        })
    }

    fn renewal(&'static self, runner: &ScriptRunner, batch: &[Renew]) -> Option<Call> {
        let asked = batch.len();
        let names: usize = batch.iter().map(|renew| size_hint(&renew.id.name, 1)).sum();
        let mut call = Call::new(&RENEW, asked, asked + 2, names);
        for renew in batch {
            call = call.arg(renew.id.name.wire());
        }
        for run in batch.chunk_by(|a, b| a.lease_ms == b.lease_ms) {
            call = call.arg(run[0].lease_ms).arg(run.len());
            for renew in run {
                // The script looks for both forms: a renewal may overtake the downgrade of its lease, or come behind it (bug 199).
                call = call.text(Field::of(runner, renew.access, renew.lease));
            }
        }
        Some(call)
    }

    fn extend(&'static self, runner: &ScriptRunner, step: Extend) -> Reply<Option<Duration>> {
        let call = Call::new(&EXTEND, 2, 2, size_hint(&step.id.name, 2))
            .arg(step.id.name.wire())
            .text(timeouts(&step.id.name))
            .text(Field::of(runner, step.access, step.lease))
            .arg(step.lease_ms);
        runner.call(call, extended)
    }

    fn count(&'static self, runner: &ScriptRunner, step: Count) -> Reply<Counted> {
        let id = &step.id;
        let call = Call::new(&COUNT, 3, 6, size_hint(&id.name, 5))
            .arg(id.name.wire())
            .text(timeouts(&id.name))
            .text(id.queue_key())
            .text(Field::of(runner, step.access, step.lease))
            .arg(step.holds)
            .text(channel(&id.name))
            .text(id.grant_channel(""))
            .arg(u8::from(step.listening))
            .arg(step.reads);
        runner.call(call, counted)
    }

    fn downgrade(&self, runner: &ScriptRunner, step: Downgrade) -> Reply<bool> {
        let id = &step.id;
        let call = Call::new(&DOWNGRADE, 4, 4, size_hint(&id.name, 6))
            .arg(id.name.wire())
            .text(timeouts(&id.name))
            .text(id.queue_key())
            .text(id.gone_prefix())
            // Without its form: a second copy finds the reader that the first has made, and succeeds without a change (B4).
            .text(OwnerField::of(runner, step.lease))
            .text(channel(&id.name))
            .text(id.grant_channel(""))
            .arg(step.holds);
        runner.call(call, |reply| Some(int(reply)? == 1))
    }

    fn inspect(&'static self, runner: &ScriptRunner, id: LockId) -> Reply<Inspection> {
        let call = Call::new(&INSPECT, 3, 1, size_hint(&id.name, 4))
            .arg(id.name.wire())
            .text(timeouts(&id.name))
            .text(id.queue_key())
            .text(channel(&id.name));
        runner.inspect(call, inspection)
    }

    fn force_unlock(
        &'static self,
        runner: &ScriptRunner,
        step: &ForceUnlock,
    ) -> Reply<Vec<String>> {
        let id = &step.id;
        let call = Call::new(
            &FORCE_UNLOCK,
            4,
            2 + seen_args(step),
            size_hint(&id.name, 6),
        )
        .arg(id.name.wire())
        .text(timeouts(&id.name))
        .text(id.queue_key())
        .text(id.gone_prefix())
        .text(channel(&id.name))
        .text(id.grant_channel(""));
        runner.call(from_seen(call, step), texts)
    }
}

fn inspection(reply: &Value) -> Option<Inspection> {
    let Value::Array(values) = reply else {
        return None;
    };
    let [listeners, holders, entries] = values.as_slice() else {
        return None;
    };
    let Value::Array(holders) = holders else {
        return None;
    };
    let owners = holders.chunks_exact(3).map(|holder| {
        let [field, holds, left] = holder else {
            return None;
        };
        let owner = text(field)?;
        Some(Owned {
            access: access_of(&owner),
            owner,
            holds: u64::try_from(int(holds)?).unwrap_or(0),
            ttl: millis(int(left)?),
            client: KnownClient::default(),
        })
    });
    Some(Inspection {
        owners: owners.collect::<Option<_>>()?,
        listeners: u64::try_from(int(listeners)?).unwrap_or(0),
        queue: queue(entries, access_of)?,
        ..Inspection::default()
    })
}

/// How a field shares the lock. Redisson's transactions have fields that go on behind it.
fn access_of(field: &str) -> Access {
    if field.ends_with(WRITE) || field.contains(":write:") {
        Access::Exclusive
    } else {
        Access::Shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_says_whether_it_is_to_read_or_to_write() {
        let grant = |payload: &str| RwLockWire.grant(payload.as_bytes());
        let (lease, lease_ms, ask) = (LeaseId::from(7), 30_000, 2);
        let expected = |access| {
            Some(Grant {
                access,
                lease,
                lease_ms,
                ask,
                tokens: Tokens::NONE,
            })
        };
        assert_eq!(grant("ab-1:7 30000 2"), expected(Access::Shared));
        assert_eq!(grant("ab-1:7:write 30000 2"), expected(Access::Exclusive));
        assert_eq!(grant("ab-1:7:read 30000 2"), None);
        assert_eq!(grant("0"), None);
    }
}
