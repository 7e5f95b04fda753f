//! Redisson's `RLock`: a hash at the name, with a field for its owner.

use std::time::Duration;

use redis::Value;

use super::{
    OrEmpty, OwnerField, Wire, acquired, counted, extended, int, millis, queue, released, renewals,
    size_hint, texts,
};
use crate::{
    backend::{
        Acquire, Acquired, Count, Counted, Extend, Grant, Inspection, KnownClient, Owned, Release,
        ReleaseReply, Renew, Renewal, Reply,
        fenced::Tokens,
        redis::{
            caller::Caller,
            script::{Call, Lazy, text},
        },
    },
    kind::Access,
    name::{LockId, Name},
};

static ACQUIRE: Lazy = script!("refuse", "mutex/acquire");
static RELEASE: Lazy = script!("waiting", "mutex/hand_over", "mutex/release");
static RENEW: Lazy = script!("mutex/renew");
static EXTEND: Lazy = script!("mutex/extend");
static COUNT: Lazy = script!("mutex/count");
static FORCE_UNLOCK: Lazy = script!("refuse", "waiting", "mutex/hand_over", "mutex/force_unlock");
static INSPECT: Lazy = script!("refuse", "mutex/inspect");

pub(super) struct MutexWire;

/// Redisson's channel for all that is an `RLock`.
pub(super) fn channel(name: &Name) -> impl std::fmt::Display + '_ {
    name.prefixed("redisson_lock__channel")
}

impl Wire for MutexWire {
    fn channel(&self, name: &Name) -> String {
        channel(name).to_string()
    }

    /// `<client uuid>:<lease id> <lease_ms> <ask>`, the place that the grant was given to.
    fn grant(&self, payload: &[u8]) -> Option<Grant> {
        let mut words = std::str::from_utf8(payload).ok()?.split(' ');
        let (_, lease) = words.next()?.rsplit_once(':')?;
        Some(Grant {
            access: Access::Exclusive,
            lease: lease.parse::<u64>().ok()?.into(),
            lease_ms: words.next()?.parse().ok()?,
            ask: words.next()?.parse().ok()?,
            tokens: Tokens::NONE,
        })
    }

    fn acquire(&self, caller: &Caller, step: Acquire) -> Reply<Acquired> {
        let id = &step.id;
        let call = Call::new(&ACQUIRE, 3, 4, size_hint(&id.name, 3))
            .arg(id.name.wire())
            .text(id.gone_key(&caller.client, step.lease))
            .text(id.queue_key())
            .text(OwnerField::of(caller, step.lease))
            .arg(step.lease_ms)
            .arg(step.place.map_or(0, |place| place.ask))
            .arg(step.place.map_or(0, |place| place.keep_ms));
        caller.call(call, move |reply| acquired(reply, step.lease_ms))
    }

    fn release(&self, caller: &Caller, step: Release) -> Reply<ReleaseReply> {
        let (id, next) = (&step.id, step.next);
        let place = next.and_then(|next| next.place);
        let call = Call::new(&RELEASE, 3, 10, size_hint(&id.name, 5))
            .arg(id.name.wire())
            .text(id.queue_key())
            .text(id.gone_prefix())
            .text(OwnerField::of(caller, step.lease))
            .text(channel(&id.name))
            .text(id.grant_channel(""))
            .arg(step.tombstone_ms.unwrap_or(0))
            .arg(u8::from(step.listening))
            .text(OrEmpty(next.map(|next| OwnerField::of(caller, next.lease))))
            .arg(next.map_or(0, |next| next.lease_ms))
            .arg(next.map_or(0, |next| next.stays as u8))
            .arg(place.map_or(0, |place| place.ask))
            .arg(place.map_or(0, |place| place.keep_ms))
            // Others wait, or did a moment ago: the next holder first.
            .answer_last(step.listening);
        caller.call(call, move |reply| {
            released(reply, next.map(|next| next.lease_ms))
        })
    }

    fn renew(&self, caller: &Caller, batch: &[Renew<'_>]) -> Reply<Vec<Renewal>> {
        let asked = batch.len();
        let names: usize = batch.iter().map(|renew| size_hint(&renew.id.name, 1)).sum();
        let mut call = Call::new(&RENEW, asked, asked + 2, names);
        for renew in batch {
            call = call.arg(renew.id.name.wire());
        }
        for run in batch.chunk_by(|a, b| a.lease_ms == b.lease_ms) {
            call = call.arg(run[0].lease_ms).arg(run.len());
            for renew in run {
                call = call.text(OwnerField::of(caller, renew.lease));
            }
        }
        caller.call(call, move |reply| renewals(reply, asked))
    }

    fn extend(&self, caller: &Caller, step: Extend) -> Reply<Option<Duration>> {
        let call = Call::new(&EXTEND, 1, 2, size_hint(&step.id.name, 1))
            .arg(step.id.name.wire())
            .text(OwnerField::of(caller, step.lease))
            .arg(step.lease_ms);
        caller.call(call, extended)
    }

    fn count(&self, caller: &Caller, step: Count) -> Reply<Counted> {
        let call = Call::new(&COUNT, 1, 2, size_hint(&step.id.name, 1))
            .arg(step.id.name.wire())
            .text(OwnerField::of(caller, step.lease))
            .arg(step.holds);
        caller.call(call, counted)
    }

    fn inspect(&self, caller: &Caller, id: LockId) -> Reply<Inspection> {
        let call = Call::new(&INSPECT, 2, 1, size_hint(&id.name, 3))
            .arg(id.name.wire())
            .text(id.queue_key())
            .text(channel(&id.name));
        caller.inspect(call, inspection)
    }

    fn force_unlock(&self, caller: &Caller, id: LockId) -> Reply<Vec<String>> {
        let call = Call::new(&FORCE_UNLOCK, 3, 2, size_hint(&id.name, 5))
            .arg(id.name.wire())
            .text(id.queue_key())
            .text(id.gone_prefix())
            .text(channel(&id.name))
            .text(id.grant_channel(""));
        caller.call(call, texts)
    }
}

pub(super) fn inspection(reply: &Value) -> Option<Inspection> {
    let Value::Array(values) = reply else {
        return None;
    };
    let [ttl, listeners, owners, places] = values.as_slice() else {
        return None;
    };
    let Value::Array(owners) = owners else {
        return None;
    };
    let ttl = millis(int(ttl)?);
    let fields = owners.chunks_exact(2).map(|pair| {
        let [owner, holds] = pair else { return None };
        let (owner, written) = (text(owner)?, text(holds)?);
        // A field of another client whose value is no number: the name is held.
        let entries = written.parse().unwrap_or(1);
        Some(Owned {
            owner,
            access: Access::Exclusive,
            holds: entries,
            ttl,
            client: KnownClient::default(),
        })
    });
    Some(Inspection {
        owners: fields.collect::<Option<_>>()?,
        listeners: u64::try_from(int(listeners)?).unwrap_or(0),
        queue: queue(places, |_| Access::Exclusive)?,
        ..Inspection::default()
    })
}
