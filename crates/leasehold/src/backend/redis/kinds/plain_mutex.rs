//! The lock of many libraries: a string at the name, the holder's token. Ours is `<client uuid>:<lease id>`.

use std::time::Duration;

use redis::Value;

use super::{
    OrEmpty, OwnerField, Wire, acquired, extended, int, millis, mutex::MutexWire, queue, released,
    renewals, size_hint, texts,
};
use crate::{
    backend::{
        Acquire, Acquired, Count, Counted, Extend, Grant, Inspection, KnownClient, Owned, Release,
        ReleaseReply, Renew, Renewal, Reply,
        redis::{
            caller::Caller,
            script::{Call, Lazy},
        },
    },
    kind::{Access, LockKind},
    name::{LockId, Name},
};

static ACQUIRE: Lazy = script!("refuse", "plain_mutex/acquire");
static RELEASE: Lazy = script!("waiting", "plain_mutex/hand_over", "plain_mutex/release");
static RENEW: Lazy = script!("plain_mutex/renew");
static EXTEND: Lazy = script!("plain_mutex/extend");
static INSPECT: Lazy = script!("refuse", "plain_mutex/inspect");
static FORCE_UNLOCK: Lazy = script!(
    "refuse",
    "waiting",
    "plain_mutex/hand_over",
    "plain_mutex/force_unlock"
);

pub(super) struct PlainMutexWire;

impl Wire for PlainMutexWire {
    /// Ours: no other library listens.
    fn channel(&self, name: &Name) -> String {
        let id = LockId::new(LockKind::PlainMutex, name.clone());
        id.free_channel().to_string()
    }

    /// A place has the same form as a mutex's.
    fn grant(&self, payload: &[u8]) -> Option<Grant> {
        MutexWire.grant(payload)
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
            .text(id.free_channel())
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
        caller.call(renew(caller, batch), move |reply| renewals(reply, asked))
    }

    fn extend(&self, caller: &Caller, step: Extend) -> Reply<Option<Duration>> {
        let call = Call::new(&EXTEND, 1, 2, size_hint(&step.id.name, 1))
            .arg(step.id.name.wire())
            .text(OwnerField::of(caller, step.lease))
            .arg(step.lease_ms);
        caller.call(call, extended)
    }

    /// The string has no room for a count: the server is asked only whether the hold is there.
    fn count(&self, caller: &Caller, step: Count) -> Reply<Counted> {
        let look = Renew {
            id: &step.id,
            access: step.access,
            lease: step.lease,
            lease_ms: 0,
        };
        caller.call(renew(caller, &[look]), |reply| {
            match renewals(reply, 1)?[..] {
                [Renewal::Extended] => Some(Counted::Written),
                _ => Some(Counted::NotOurs),
            }
        })
    }

    fn inspect(&self, caller: &Caller, id: LockId) -> Reply<Inspection> {
        let call = Call::new(&INSPECT, 2, 1, size_hint(&id.name, 3))
            .arg(id.name.wire())
            .text(id.queue_key())
            .text(id.free_channel());
        caller.inspect(call, inspection)
    }

    fn force_unlock(&self, caller: &Caller, id: LockId) -> Reply<Vec<String>> {
        let call = Call::new(&FORCE_UNLOCK, 3, 2, size_hint(&id.name, 5))
            .arg(id.name.wire())
            .text(id.queue_key())
            .text(id.gone_prefix())
            .text(id.free_channel())
            .text(id.grant_channel(""));
        caller.call(call, texts)
    }
}

fn renew(caller: &Caller, batch: &[Renew<'_>]) -> Call {
    let names: usize = batch.iter().map(|renew| size_hint(&renew.id.name, 1)).sum();
    let mut call = Call::new(&RENEW, batch.len(), batch.len() + 2, names);
    for renew in batch {
        call = call.arg(renew.id.name.wire());
    }
    for run in batch.chunk_by(|a, b| a.lease_ms == b.lease_ms) {
        call = call.arg(run[0].lease_ms).arg(run.len());
        for renew in run {
            call = call.text(OwnerField::of(caller, renew.lease));
        }
    }
    call
}

fn inspection(reply: &Value) -> Option<Inspection> {
    let Value::Array(values) = reply else {
        return None;
    };
    let [ttl, listeners, holder, places] = values.as_slice() else {
        return None;
    };
    let ttl = millis(int(ttl)?);
    let owned = texts(holder)?.into_iter().map(|owner| Owned {
        owner,
        access: Access::Exclusive,
        holds: 1,
        ttl,
        client: KnownClient::default(),
    });
    Some(Inspection {
        owners: owned.collect(),
        listeners: u64::try_from(int(listeners)?).unwrap_or(0),
        queue: queue(places, |_| Access::Exclusive)?,
        ..Inspection::default()
    })
}
