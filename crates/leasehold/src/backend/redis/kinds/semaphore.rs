//! Redisson's `RSemaphore`: a number at the name. Which permits our clients hold is remembered beside it.

use std::{fmt, time::Duration};

use redis::Value;

use super::{
    OwnerField, Wire, acquired, int,
    leased_semaphore::{count, to_set},
    released, renewals, size_hint, text,
};
use crate::{
    backend::{
        Acquire, Acquired, Count, Counted, Extend, Grant, Inspection, KnownClient, Once, Owned,
        Permits, Release, ReleaseReply, Renew, Renewal, Reply,
        redis::{
            caller::Caller,
            script::{Call, Lazy, Script},
        },
    },
    kind::Access,
    name::{LockId, Name},
    owner::LeaseId,
};

static ACQUIRE: Lazy = script!("refuse", "semaphore/pool", "semaphore/acquire");
static RELEASE: Lazy = script!("refuse", "waiting", "semaphore/pool", "semaphore/release");
static RENEW: Lazy = script!("refuse", "semaphore/pool", "semaphore/renew");
static INSPECT: Lazy = script!("refuse", "semaphore/pool", "semaphore/inspect");
static FORCE_UNLOCK: Lazy = script!("refuse", "semaphore/pool", "semaphore/force_unlock");
static PERMITS: Lazy = script!("refuse", "semaphore/pool", "semaphore/permits");

/// How many holders are listed.
const HOLDERS_MOST: usize = 1000;

pub(super) struct SemaphoreWire;

/// A hold as it is remembered: `<client uuid>:<lease id> <count>`.
struct RememberedHold<'a>(OwnerField<'a>, u16);

impl RememberedHold<'_> {
    fn of(caller: &Caller, lease: LeaseId, access: Access) -> RememberedHold<'_> {
        RememberedHold(OwnerField::of(caller, lease), count(access))
    }
}

impl fmt::Display for RememberedHold<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, self.1)
    }
}

/// Redisson's channel for semaphores of either kind.
fn channel(name: &Name) -> impl fmt::Display + '_ {
    name.prefixed("redisson_sc")
}

/// A call that begins with the two keys of a semaphore; `keys` in all.
fn call(script: &'static Script, id: &LockId, keys: usize, args: usize) -> Call {
    Call::new(script, keys, args, size_hint(&id.name, keys + 1))
        .arg(id.name.wire())
        .text(id.out_key())
}

fn renewal(caller: &Caller, batch: &[Renew<'_>]) -> Call {
    let names: usize = batch.iter().map(|renew| size_hint(&renew.id.name, 1)).sum();
    let mut call = Call::new(&RENEW, batch.len(), batch.len() + 2, names);
    for renew in batch {
        call = call.text(renew.id.out_key());
    }
    for run in batch.chunk_by(|a, b| a.lease_ms == b.lease_ms) {
        call = call.arg(run[0].lease_ms).arg(run.len());
        for renew in run {
            call = call.text(RememberedHold::of(caller, renew.lease, renew.access));
        }
    }
    call
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

    fn acquire(&'static self, caller: &Caller, step: Acquire) -> Reply<Acquired> {
        let call = call(&ACQUIRE, &step.id, 3, 5)
            .undone_by(&RELEASE)
            .text(step.id.gone_key(&caller.client, step.lease))
            .text(RememberedHold::of(caller, step.lease, step.access))
            .arg(count(step.access))
            .arg(step.lease_ms)
            .text(channel(&step.id.name))
            .arg(to_set(&step).0);
        caller.call(call, move |reply| acquired(reply, step.lease_ms))
    }

    fn release(&'static self, caller: &Caller, step: Release) -> Reply<ReleaseReply> {
        let id = &step.id;
        let call = call(&RELEASE, id, 3, 6)
            .text(id.gone_key(&caller.client, step.lease))
            .text(RememberedHold::of(caller, step.lease, step.access))
            .text(channel(&id.name))
            .arg(step.tombstone_ms.unwrap_or(0))
            .arg(u8::from(step.listening))
            .text(id.name.marker())
            .arg(step.holds.unwrap_or(1))
            // Others wait, or did a moment ago: the next holder first.
            .answer_last(step.listening);
        // Nothing is kept for the next of this process: it asks as every client does.
        caller.call(call, |reply| released(reply, None))
    }

    fn renew(&'static self, caller: &Caller, batch: &[Renew<'_>]) -> Reply<Vec<Renewal>> {
        let asked = batch.len();
        let call = renewal(caller, batch);
        caller.call(call, move |reply| renewals(reply, asked))
    }

    /// No hold of this kind has a lease to extend: it is renewed for as long, and is there or not.
    fn extend(&'static self, caller: &Caller, step: Extend) -> Reply<Option<Duration>> {
        let renew = Renew {
            id: &step.id,
            access: step.access,
            lease: step.lease,
            lease_ms: step.lease_ms,
        };
        let call = renewal(caller, &[renew]);
        caller.call(call, move |reply| match renewals(reply, 1)?.first()? {
            Renewal::Extended => Some(Some(Duration::from_millis(step.lease_ms))),
            Renewal::Lost => Some(None),
            Renewal::Unknown => None,
        })
    }

    /// The server knows permits, and not how often a holder has entered.
    fn count(&'static self, _caller: &Caller, _step: Count) -> Reply<Counted> {
        Box::pin(std::future::ready(Ok(Counted::Written)))
    }

    fn inspect(&'static self, caller: &Caller, id: LockId) -> Reply<Inspection> {
        let call = call(&INSPECT, &id, 2, 2)
            .text(channel(&id.name))
            .arg(HOLDERS_MOST);
        caller.inspect(call, inspection)
    }

    fn force_unlock(&'static self, caller: &Caller, id: LockId) -> Reply<Vec<String>> {
        let call = call(&FORCE_UNLOCK, &id, 2, 1).text(channel(&id.name));
        caller.call(call, |reply| {
            let owned = holds(reply)?.into_iter();
            Some(owned.map(|held| held.owner).collect())
        })
    }

    fn permits(&self, caller: &Caller, id: LockId, step: Permits, once: Once) -> Reply<i64> {
        let (what, number) = match step {
            Permits::Available | Permits::CountDown(_) | Permits::Delete => ("available", 0),
            Permits::TrySet(permits) => ("try_set", i64::from(permits)),
            Permits::Set(permits) => ("set", i64::from(permits)),
            Permits::Add(permits) => ("add", i64::from(permits)),
            Permits::Drain => ("drain", 0),
        };
        let call = call(&PERMITS, &id, 3, 4)
            .text(id.gone_key(&caller.client, once.number))
            .text(channel(&id.name))
            .arg(what)
            .arg(number)
            .arg(once.keep_ms);
        caller.call(call, int)
    }
}

fn holds(reply: &Value) -> Option<Vec<Owned>> {
    let Value::Array(out) = reply else {
        return None;
    };
    let hold = |member: &Value| {
        let member = text(member)?;
        let (owner, count) = member.rsplit_once(' ')?;
        Some(Owned {
            owner: owner.to_owned(),
            access: Access::Permits(count.parse().ok()?),
            holds: 1,
            ttl: None,
            client: KnownClient::default(),
        })
    };
    Some(out.iter().filter_map(hold).collect())
}

fn inspection(reply: &Value) -> Option<Inspection> {
    let Value::Array(values) = reply else {
        return None;
    };
    let [free, listeners, out] = values.as_slice() else {
        return None;
    };
    Some(Inspection {
        owners: holds(out)?,
        listeners: u64::try_from(int(listeners)?).unwrap_or(0),
        available: Some(int(free)?),
        ..Inspection::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_read_as_it_is_written() {
        let client = "0123abcd-4567-4000-8000-000000000000";
        let owner = OwnerField {
            client,
            lease: LeaseId::from(7),
        };
        let written = RememberedHold(owner, 3).to_string();
        assert_eq!(written, format!("{client}:7 3"));
        let reply = Value::Array(vec![
            Value::BulkString(written.into_bytes()),
            Value::BulkString(b"nonsense".to_vec()),
        ]);
        let read = holds(&reply).unwrap();
        let [held] = read.as_slice() else {
            panic!("{read:?}");
        };
        assert_eq!(held.owner, format!("{client}:7"));
        assert_eq!((held.access, held.ttl), (Access::Permits(3), None));
    }
}
