//! The steps of the mutex as script calls. The order of keys and arguments is that of each script's header.

use std::{fmt, sync::Arc, time::Duration};

use redis::Value;

use super::{
    CONNECTION_NAME, Redis,
    script::{Call, Lazy, Script, unexpected},
};
use crate::{
    backend::{
        Acquire, Acquired, Backend, Failure, Inspection, Release, ReleaseReply, Renew, Renewal,
        Reply,
    },
    name::Name,
    owner::LeaseId,
};

static ACQUIRE: Lazy = Lazy::new(|| Script::new(include_str!("scripts/mutex/acquire.lua")));
static RELEASE: Lazy = Lazy::new(|| {
    Script::new(concat!(
        include_str!("scripts/mutex/hand_over.lua"),
        include_str!("scripts/mutex/release.lua")
    ))
});
static RENEW: Lazy = Lazy::new(|| Script::new(include_str!("scripts/mutex/renew.lua")));
static EXTEND: Lazy = Lazy::new(|| Script::new(include_str!("scripts/mutex/extend.lua")));
static COUNT: Lazy = Lazy::new(|| Script::new(include_str!("scripts/mutex/count.lua")));
static FORCE_UNLOCK: Lazy = Lazy::new(|| {
    Script::new(concat!(
        include_str!("scripts/mutex/hand_over.lua"),
        include_str!("scripts/mutex/force_unlock.lua")
    ))
});
static INSPECT: Lazy = Lazy::new(|| Script::new(include_str!("scripts/mutex/inspect.lua")));

impl Redis {
    /// The field in the hash.
    fn owner(&self, lease: LeaseId) -> OwnerField<'_> {
        OwnerField {
            client: &self.client,
            lease,
        }
    }

    fn call<T: Send + 'static>(
        &self,
        call: Call,
        read: impl FnOnce(&Value) -> Option<T> + Send + 'static,
    ) -> Reply<T> {
        let commands = Arc::clone(&self.commands);
        Box::pin(async move {
            let reply = commands.call(call).await?;
            read(&reply).ok_or_else(|| Failure::Rejected(Arc::new(unexpected(&reply))))
        })
    }
}

/// `<client uuid>:<lease id>`.
struct OwnerField<'a> {
    client: &'a str,
    lease: LeaseId,
}

impl fmt::Display for OwnerField<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.client, self.lease)
    }
}

/// Something, or nothing at all.
struct Or<T>(Option<T>);

impl<T: fmt::Display> fmt::Display for Or<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |some| some.fmt(f))
    }
}

/// Bytes that a name takes in a call that repeats it `times`, with the owner and all that stands around them.
fn bytes(name: &Name, times: usize) -> usize {
    times * (name.as_str().len() + 32) + 3 * 64
}

impl Backend for Redis {
    fn acquire(&self, step: Acquire) -> Reply<Acquired> {
        let call = Call::new(&ACQUIRE, 3, 4, bytes(&step.name, 3))
            .arg(step.name.as_str())
            .text(step.name.gone_key(&self.client, step.lease))
            .text(step.name.queue_key())
            .text(self.owner(step.lease))
            .arg(step.lease_ms)
            .arg(step.place.map_or(0, |place| place.ask))
            .arg(step.place.map_or(0, |place| place.keep_ms));
        self.call(call, move |reply| match pair(reply)? {
            (1, left) => Some(Acquired::Granted {
                remaining: left_of(left, step.lease_ms),
            }),
            (0, ttl) => Some(Acquired::Held { ttl: millis(ttl) }),
            (2, _) => Some(Acquired::GivenUp),
            _ => None,
        })
    }

    fn release(&self, step: Release) -> Reply<ReleaseReply> {
        let next = step.next;
        // Also a subscription that is on its way to its end.
        let listening = step.listening || self.subscriptions.is_counted(&step.name);
        let place = next.and_then(|next| next.place);
        let call = Call::new(&RELEASE, 3, 10, bytes(&step.name, 5))
            .arg(step.name.as_str())
            .text(step.name.queue_key())
            .text(step.name.gone_prefix())
            .text(self.owner(step.lease))
            .text(step.name.channel())
            .text(step.name.grant_channel(""))
            .arg(step.tombstone_ms.unwrap_or(0))
            .arg(u8::from(listening))
            .text(Or(next.map(|next| self.owner(next.lease))))
            .arg(next.map_or(0, |next| next.lease_ms))
            .arg(next.map_or(0, |next| u8::from(next.keep)))
            .arg(place.map_or(0, |place| place.ask))
            .arg(place.map_or(0, |place| place.keep_ms))
            // Others wait, or did a moment ago: the next holder first.
            .answer_last(step.listening);
        self.call(call, move |reply| match pair(reply)? {
            (1, others) => Some(ReleaseReply::Freed {
                others: u64::try_from(others).unwrap_or(0),
            }),
            (2, ttl) => millis(ttl).map(|lease| ReleaseReply::Granted { lease }),
            (3, left) => next.map(|next| ReleaseReply::Kept {
                remaining: left_of(left, next.lease_ms),
            }),
            (0, _) => Some(ReleaseReply::NotOurs),
            _ => None,
        })
    }

    fn renew(&self, batch: &[Renew<'_>]) -> Reply<Vec<Renewal>> {
        let asked = batch.len();
        let names: usize = batch.iter().map(|renew| bytes(renew.name, 1)).sum();
        let mut call = Call::new(&RENEW, asked, asked + 2, names);
        for renew in batch {
            call = call.arg(renew.name.as_str());
        }
        for run in batch.chunk_by(|a, b| a.lease_ms == b.lease_ms) {
            call = call.arg(run[0].lease_ms).arg(run.len());
            for renew in run {
                call = call.text(self.owner(renew.lease));
            }
        }
        self.call(call, move |reply| {
            let Value::Array(exceptions) = reply else {
                return None;
            };
            let mut answers = vec![Renewal::Extended; asked];
            for exception in exceptions.chunks(2) {
                let [number, answer] = exception else {
                    return None;
                };
                let at = usize::try_from(int(number)?).ok()?.checked_sub(1)?;
                *answers.get_mut(at)? = renewal(answer)?;
            }
            Some(answers)
        })
    }

    fn extend(&self, name: Name, lease: LeaseId, lease_ms: u64) -> Reply<Option<Duration>> {
        let call = Call::new(&EXTEND, 1, 2, bytes(&name, 1))
            .arg(name.as_str())
            .text(self.owner(lease))
            .arg(lease_ms);
        self.call(call, |reply| match int(reply)? {
            0 => Some(None),
            left => millis(left).map(Some),
        })
    }

    fn count(&self, name: Name, lease: LeaseId, holds: u32) -> Reply<bool> {
        let call = Call::new(&COUNT, 1, 2, bytes(&name, 1))
            .arg(name.as_str())
            .text(self.owner(lease))
            .arg(holds);
        self.call(call, |reply| int(reply).map(|written| written == 1))
    }

    fn inspect(&self, name: Name) -> Reply<Inspection> {
        let call = Call::new(&INSPECT, 1, 1, bytes(&name, 2))
            .arg(name.as_str())
            .text(name.channel());
        let commands = Arc::clone(&self.commands);
        Box::pin(async move {
            let reply = commands.call(call).await?;
            let mut found = inspection(&reply)
                .ok_or_else(|| Failure::Rejected(Arc::new(unexpected(&reply))))?;
            if let Some((owner, _)) = found.owners.first() {
                let client = owner.split(':').next().unwrap_or_default();
                let mut list = redis::cmd("CLIENT");
                list.arg("LIST").arg("TYPE").arg("NORMAL");
                // A name without a label is still an answer.
                if let Ok(reply) = commands.command(&list).await {
                    found.label = label(&text(&reply).unwrap_or_default(), client);
                }
            }
            Ok(found)
        })
    }

    fn force_unlock(&self, name: Name) -> Reply<Vec<String>> {
        let call = Call::new(&FORCE_UNLOCK, 3, 2, bytes(&name, 5))
            .arg(name.as_str())
            .text(name.queue_key())
            .text(name.gone_prefix())
            .text(name.channel())
            .text(name.grant_channel(""));
        self.call(call, |reply| match reply {
            Value::Array(owners) => owners.iter().map(text).collect(),
            _ => None,
        })
    }

    fn listen(&self, name: Name) -> Reply<()> {
        self.subscriptions.listen(name)
    }

    fn unlisten(&self, name: &Name) -> Reply<()> {
        self.subscriptions.unlisten(name)
    }

    fn heard(&self) -> Reply<()> {
        self.subscriptions.heard()
    }

    fn prepare(&self) {
        self.commands.prepare();
    }
}

fn int(reply: &Value) -> Option<i64> {
    match reply {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

fn pair(reply: &Value) -> Option<(i64, i64)> {
    match reply {
        Value::Array(values) => match values.as_slice() {
            [first, second] => Some((int(first)?, int(second)?)),
            _ => None,
        },
        _ => None,
    }
}

fn text(reply: &Value) -> Option<String> {
    match reply {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}

/// A time to live as `PTTL` gives it; a negative one is none.
fn millis(ttl: i64) -> Option<Duration> {
    u64::try_from(ttl).ok().map(Duration::from_millis)
}

/// What is left of a lease of ours. Its key has no end if somebody removed it; then it lasts for `lease_ms` at least.
fn left_of(left: i64, lease_ms: u64) -> Duration {
    millis(left).unwrap_or(Duration::from_millis(lease_ms))
}

fn renewal(answer: &Value) -> Option<Renewal> {
    match int(answer)? {
        0 => Some(Renewal::Lost),
        -1 => Some(Renewal::Unknown),
        _ => None,
    }
}

fn inspection(reply: &Value) -> Option<Inspection> {
    let Value::Array(values) = reply else {
        return None;
    };
    let [ttl, listeners, owners] = values.as_slice() else {
        return None;
    };
    let Value::Array(owners) = owners else {
        return None;
    };
    let owners = owners.chunks_exact(2).filter_map(|pair| {
        let [owner, holds] = pair else { return None };
        // A field that counts nothing is none of an RLock's (a read-write lock's `mode`).
        Some((text(owner)?, text(holds)?.parse().ok()?))
    });
    Some(Inspection {
        owners: owners.collect(),
        ttl: millis(int(ttl)?),
        listeners: u64::try_from(int(listeners)?).unwrap_or(0),
        label: None,
    })
}

/// What the client of this uuid calls itself, from the answer to `CLIENT LIST`.
fn label(list: &str, client: &str) -> Option<String> {
    let prefix = format!(" name={CONNECTION_NAME}:{client}:");
    let (_, rest) = list.split_once(&prefix)?;
    rest.split([' ', '\n']).next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_is_found_in_the_client_list() {
        let list = "id=3 addr=1.2.3.4:5 name=other db=0\nid=4 addr=1.2.3.4:6 name=leasehold:ab-1:host:42 db=0\n";
        assert_eq!(label(list, "ab-1").as_deref(), Some("host:42"));
        assert_eq!(label(list, "ab-2"), None);
    }

    #[test]
    fn a_key_without_an_end_has_no_duration() {
        assert_eq!(millis(-1), None);
        assert_eq!(millis(0), Some(Duration::ZERO));
    }
}
