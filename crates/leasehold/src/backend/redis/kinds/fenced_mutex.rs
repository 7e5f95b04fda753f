//! Redisson's `RFencedLock`: an `RLock`, and beside it the key of its last fencing token.

use std::time::Duration;

use redis::Value;

use super::{
    OrEmpty, OwnerField, Wire, acquired, int, left_of,
    mutex::{MutexWire, channel, inspection},
    released, size_hint, texts,
};
use crate::{
    backend::{
        Acquire, Acquired, Count, Counted, Extend, Grant, Inspection, Release, ReleaseReply, Renew,
        Renewal, Reply,
        fenced::Tokens,
        redis::{
            caller::Caller,
            script::{Call, Lazy, text},
        },
    },
    name::{Key, LockId, Name, TOKENS},
};

static ACQUIRE: Lazy = script!("refuse", "fenced_mutex/tokens", "fenced_mutex/acquire");
static RELEASE: Lazy = script!(
    "waiting",
    "fenced_mutex/tokens",
    "mutex/hand_over",
    "fenced_mutex/release"
);
static FORCE_UNLOCK: Lazy = script!(
    "refuse",
    "waiting",
    "fenced_mutex/tokens",
    "mutex/hand_over",
    "fenced_mutex/force_unlock"
);
static INSPECT: Lazy = script!("refuse", "fenced_mutex/inspect");

pub(super) struct FencedMutexWire;

/// Redisson's key of the last token.
fn token_key(name: &Name) -> Key<'_> {
    name.prefixed(TOKENS)
}

impl Wire for FencedMutexWire {
    fn channel(&self, name: &Name) -> String {
        MutexWire.channel(name)
    }

    /// `<client uuid>:<lease id> <lease_ms> <ask> <first token> <how many>`.
    fn grant(&self, payload: &[u8]) -> Option<Grant> {
        let mut words = payload.split(|byte| *byte == b' ').skip(3);
        let mut number = || std::str::from_utf8(words.next()?).ok();
        let (first, count) = (number()?.parse().ok()?, number()?.parse().ok()?);
        Some(Grant {
            tokens: Tokens::new(first, count)?,
            ..MutexWire.grant(payload)?
        })
    }

    fn acquire(&self, caller: &Caller, step: Acquire) -> Reply<Acquired> {
        let id = &step.id;
        let call = Call::new(&ACQUIRE, 4, 5, size_hint(&id.name, 4))
            .arg(id.name.wire())
            .text(id.queue_key())
            .text(id.gone_prefix())
            .text(token_key(&id.name))
            .text(OwnerField::of(caller, step.lease))
            .arg(step.lease_ms)
            .arg(step.place.map_or(0, |place| place.ask))
            .arg(step.place.map_or(0, |place| place.keep_ms))
            .arg(caller.token_ms);
        caller.call(call, move |reply| match with_tokens(reply) {
            Some((1, left, tokens)) => Some(Acquired::Granted {
                remaining: left_of(left, step.lease_ms),
                tokens,
            }),
            _ => acquired(reply, step.lease_ms).filter(|answer| !is_granted(answer)),
        })
    }

    fn release(&self, caller: &Caller, step: Release) -> Reply<ReleaseReply> {
        let (id, next) = (&step.id, step.next);
        let place = next.and_then(|next| next.place);
        let call = Call::new(&RELEASE, 4, 11, size_hint(&id.name, 6))
            .arg(id.name.wire())
            .text(id.queue_key())
            .text(id.gone_prefix())
            .text(token_key(&id.name))
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
            .arg(caller.token_ms)
            // Others wait, or did a moment ago: the next holder first.
            .answer_last(step.listening);
        caller.call(call, move |reply| match (with_tokens(reply), next) {
            (Some((3, left, tokens)), Some(next)) => Some(ReleaseReply::Kept {
                remaining: left_of(left, next.lease_ms),
                tokens,
            }),
            _ => released(reply, None),
        })
    }

    fn renew(&self, caller: &Caller, batch: &[Renew<'_>]) -> Reply<Vec<Renewal>> {
        MutexWire.renew(caller, batch)
    }

    fn extend(&self, caller: &Caller, step: Extend) -> Reply<Option<Duration>> {
        MutexWire.extend(caller, step)
    }

    fn count(&self, caller: &Caller, step: Count) -> Reply<Counted> {
        MutexWire.count(caller, step)
    }

    fn inspect(&self, caller: &Caller, id: LockId) -> Reply<Inspection> {
        let call = Call::new(&INSPECT, 3, 1, size_hint(&id.name, 4))
            .arg(id.name.wire())
            .text(token_key(&id.name))
            .text(id.queue_key())
            .text(channel(&id.name));
        caller.inspect(call, |reply| {
            let Value::Array(values) = reply else {
                return None;
            };
            let (token, holders) = values.split_last()?;
            Some(Inspection {
                token: text(token)?.parse().ok(),
                ..inspection(&Value::Array(holders.to_vec()))?
            })
        })
    }

    fn force_unlock(&self, caller: &Caller, id: LockId) -> Reply<Vec<String>> {
        let call = Call::new(&FORCE_UNLOCK, 4, 3, size_hint(&id.name, 6))
            .arg(id.name.wire())
            .text(id.queue_key())
            .text(id.gone_prefix())
            .text(token_key(&id.name))
            .text(channel(&id.name))
            .text(id.grant_channel(""))
            .arg(caller.token_ms);
        caller.call(call, texts)
    }
}

/// A reply of four numbers, of which the last two are tokens.
fn with_tokens(reply: &Value) -> Option<(i64, i64, Tokens)> {
    let Value::Array(values) = reply else {
        return None;
    };
    let [answer, left, first, count] = values.as_slice() else {
        return None;
    };
    let first = u64::try_from(int(first)?).ok()?;
    let count = u8::try_from(int(count)?).ok()?;
    Some((int(answer)?, int(left)?, Tokens::new(first, count)?))
}

/// This kind grants nothing without tokens.
fn is_granted(answer: &Acquired) -> bool {
    matches!(answer, Acquired::Granted { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kind::Access, owner::LeaseId};

    #[test]
    fn a_grant_without_tokens_is_none_of_this_kind() {
        let grant = |payload: &str| FencedMutexWire.grant(payload.as_bytes());
        let expected = Grant {
            access: Access::Exclusive,
            lease: LeaseId::from(7),
            lease_ms: 30_000,
            ask: 2,
            tokens: Tokens::new(1_763_780_000_000_000, 65).unwrap(),
        };
        assert_eq!(grant("ab-1:7 30000 2 1763780000000000 65"), Some(expected));
        for other in [
            "ab-1:7 30000 2",
            "ab-1:7 30000 2 5",
            "ab-1:7 30000 2 0 65",
            "",
        ] {
            assert_eq!(grant(other), None, "{other}");
        }
    }
}
