//! The kinds that one owner holds at a time: Redisson's `RLock`, a hash at the name with a field for its owner; its `RFencedLock`, the same with a
//! key of the last fencing token beside it; and the lock of many libraries, a string at the name, of ours `<client uuid>:<lease id>`.

use std::{fmt, time::Duration};

use redis::Value;

use super::{
    OwnerField, Wire, acquired, counted, extended, from_seen, int, left_of, millis, queue,
    released, renewals, seen_args, size_hint, texts,
};
use crate::{
    backend::{
        Acquire, Acquired, Count, Counted, Extend, ForceUnlock, Grant, InARow, Inspection,
        KnownClient, Owned, Release, ReleaseReply, Renew, Renewal, Reply,
        fenced::Tokens,
        redis::{
            script::{Call, Lazy, Script, text},
            script_runner::ScriptRunner,
        },
    },
    kind::{Access, LockKind},
    name::{Key, LockId, Name, TOKENS},
};

/// The scripts of a kind: those of all, behind the parts that tell its holders.
macro_rules! exclusive {
    ($kind:ident, $others:literal, $($holder:literal),+; $($free:literal)?; $($left:literal)?) => {
        ExclusiveWire {
            kind: LockKind::$kind,
            acquire: script_with!(
                $($free,)? $($holder),+; (
                    "refuse", "waiting", "places", "exclusive/places", $others, "exclusive/hand_over", "exclusive/contended"
                );
                "exclusive/acquire"
            ),
            release: script_with!(
                $($left,)? $($holder),+; ("waiting", "places", "exclusive/places", "exclusive/hand_over", "exclusive/released");
                "exclusive/release"
            ),
            renew: script!($($holder),+, "exclusive/renew"),
            extend: script!($($holder),+, "exclusive/extend"),
            force_unlock: script!(
                $($holder),+, "refuse", "waiting", "forced", "places", "exclusive/places", $others, "exclusive/hand_over",
                "exclusive/force_unlock"
            ),
            inspect: script!($($holder),+, "refuse", $others, "exclusive/inspect"),
        }
    };
}

pub(super) static MUTEX: ExclusiveWire = exclusive!(
    Mutex,
    "exclusive/others_hash",
    "exclusive/holder_hash";
    "exclusive/free_hash";
    "exclusive/left_hash"
);
pub(super) static FENCED_MUTEX: ExclusiveWire = exclusive!(
    FencedMutex,
    "exclusive/others_hash",
    "exclusive/holder_hash",
    "exclusive/tokens";
    ;
);
pub(super) static PLAIN_MUTEX: ExclusiveWire = exclusive!(
    PlainMutex,
    "exclusive/others_string",
    "exclusive/holder_string";
    "exclusive/free_string";
);

/// Of the kinds whose name is a hash.
static COUNT: Lazy = script!("exclusive/count");

pub(super) struct ExclusiveWire {
    kind: LockKind,
    acquire: Lazy,
    release: Lazy,
    renew: Lazy,
    extend: Lazy,
    force_unlock: Lazy,
    inspect: Lazy,
}

/// Redisson's channel for all that is an `RLock`.
pub(super) fn channel(name: &Name) -> Key<'_> {
    name.prefixed("redisson_lock__channel")
}

/// The channel of a lock.
struct Channel<'a>(&'a LockId);

impl fmt::Display for Channel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.kind {
            // Ours: no other library listens.
            LockKind::PlainMutex => self.0.free_channel().fmt(f),
            _ => channel(&self.0.name).fmt(f),
        }
    }
}

impl ExclusiveWire {
    fn has_tokens(&self) -> bool {
        self.kind == LockKind::FencedMutex
    }

    /// The script that renews holds of this kind.
    pub(super) fn renewed_by(&self) -> &Script {
        &self.renew
    }

    /// The call of a script that knows the queue, and the last token if there is one.
    ///
    /// In a cluster it names a key that is never there, too: a node whose slot is being moved then refuses the script before it begins.
    /// Else it stops where the script first asks for a tombstone that is not there.
    fn call(&self, in_cluster: bool, script: &'static Script, id: &LockId, args: usize) -> Call {
        let keys = 2 + usize::from(self.has_tokens()) + usize::from(in_cluster);
        let mut call = Call::new(script, keys, args, size_hint(&id.name, 1 + keys))
            .arg(id.name.wire())
            .text(id.queue_key());
        if self.has_tokens() {
            call = call.text(id.name.prefixed(TOKENS));
        }
        if in_cluster {
            call = call.text(id.gone_prefix());
        }
        call
    }

    fn renewed(&'static self, runner: &ScriptRunner, batch: &[Renew]) -> Call {
        let names: usize = batch.iter().map(|renew| size_hint(&renew.id.name, 1)).sum();
        let mut call = Call::new(&self.renew, batch.len(), batch.len() + 2, names);
        for renew in batch {
            call = call.arg(renew.id.name.wire());
        }
        // The script works out one end for each run, and not one for each name.
        for run in batch.chunk_by(|a, b| a.lease_ms == b.lease_ms) {
            call = call.arg(run[0].lease_ms).arg(run.len());
            for renew in run {
                call = call.text(OwnerField::of(runner, renew.lease));
            }
        }
        call
    }

    /// Reads the tokens of a hold: `first, count`, of the kind that has them, and of no other.
    fn tokens(&self, reply: &[Value]) -> Option<Tokens> {
        match reply {
            [] if !self.has_tokens() => Some(Tokens::NONE),
            [first, count] if self.has_tokens() => {
                let first = u64::try_from(int(first)?).ok()?;
                Tokens::new(first, u8::try_from(int(count)?).ok()?)
            }
            _ => None,
        }
    }

    fn acquired(&self, reply: &Value, lease_ms: u64) -> Option<Acquired> {
        let (left, tokens) = match reply {
            // A bare number is the shortest grant of the script; `tokens` refuses it where a fenced mutex was asked for.
            Value::Int(left) => (*left, self.tokens(&[])?),
            Value::Array(values) => match values.as_slice() {
                [Value::Int(1), left, tokens @ ..] => (int(left)?, self.tokens(tokens)?),
                _ => return acquired(reply, lease_ms),
            },
            _ => return None,
        };
        Some(Acquired::Granted {
            remaining: left_of(left, lease_ms),
            tokens,
        })
    }

    fn released(&self, reply: &Value, next_ms: Option<u64>) -> Option<ReleaseReply> {
        if let Value::Array(values) = reply
            && let [Value::Int(3), left, tokens @ ..] = values.as_slice()
        {
            return Some(ReleaseReply::Kept {
                remaining: left_of(int(left)?, next_ms?),
                tokens: self.tokens(tokens)?,
            });
        }
        released(reply, next_ms)
    }
}

impl Wire for ExclusiveWire {
    fn channel(&self, name: &Name) -> String {
        Channel(&LockId::new(self.kind, name.clone())).to_string()
    }

    /// `<client uuid>:<lease id> <lease_ms> <ask>`, the entry that the grant was given to, and `<first token> <how many>`.
    fn grant(&self, payload: &[u8]) -> Option<Grant> {
        let mut words = std::str::from_utf8(payload).ok()?.split(' ');
        // The uuid is not compared: only this client listens to the channel of its grants (`LockId::grant_channel`).
        let (_, lease) = words.next()?.rsplit_once(':')?;
        Some(Grant {
            access: Access::Exclusive,
            lease: lease.parse::<u64>().ok()?.into(),
            lease_ms: words.next()?.parse().ok()?,
            ask: words.next()?.parse().ok()?,
            tokens: if self.has_tokens() {
                Tokens::new(words.next()?.parse().ok()?, words.next()?.parse().ok()?)?
            } else {
                Tokens::NONE
            },
        })
    }

    fn acquire(&'static self, runner: &ScriptRunner, step: Acquire) -> Reply<Acquired> {
        let mut call = self
            .call(runner.in_cluster, &self.acquire, &step.id, 5)
            .text(OwnerField::of(runner, step.lease))
            .arg(step.lease_ms)
            .kept_by(&self.renew, &self.release);
        // The defaults of the script do for the shortest request, which is sent most. Tokens are kept for a time that must be told.
        if step.entry.is_some() || self.has_tokens() {
            call = call
                .arg(step.entry.map_or(0, |entry| entry.ask))
                .arg(step.entry.map_or(0, |entry| entry.keep_ms))
                .arg(runner.token_ms);
        }
        runner.call(call, move |reply| self.acquired(reply, step.lease_ms))
    }

    fn release(&'static self, runner: &ScriptRunner, step: Release) -> Reply<ReleaseReply> {
        let mut call = self
            .call(runner.in_cluster, &self.release, &step.id, 8)
            .text(OwnerField::of(runner, step.lease))
            .text(Channel(&step.id));
        let (next, holds) = (step.next, step.holds);
        // The shortest release has no such words. A fenced mutex always says how long tokens are kept: a waiter may be given some.
        if next.is_some()
            || holds.is_some()
            || step.tombstone_ms.is_some()
            || step.listening
            || self.has_tokens()
        {
            call = call
                .arg(step.tombstone_ms.unwrap_or(0))
                .arg(u8::from(step.listening))
                .arg(runner.token_ms);
        }
        // `holds` stands before the words about `next`, which cannot be said without it.
        if next.is_some() || holds.is_some() {
            call = call.text(holds.unwrap_or(InARow::ONE));
        }
        if let Some(next) = next {
            call = call
                .text(OwnerField::of(runner, next.lease))
                .arg(next.lease_ms);
        }
        // Others wait, or did a moment ago: the next holder first.
        let call = call.answer_last(step.listening);
        let next_ms = next.map(|next| next.lease_ms);
        runner.call(call, move |reply| self.released(reply, next_ms))
    }

    fn renewal(&'static self, runner: &ScriptRunner, batch: &[Renew]) -> Option<Call> {
        Some(self.renewed(runner, batch))
    }

    fn extend(&'static self, runner: &ScriptRunner, step: Extend) -> Reply<Option<Duration>> {
        let call = Call::new(&self.extend, 1, 2, size_hint(&step.id.name, 1))
            .arg(step.id.name.wire())
            .text(OwnerField::of(runner, step.lease))
            .arg(step.lease_ms);
        runner.call(call, extended)
    }

    fn count(&'static self, runner: &ScriptRunner, step: Count) -> Reply<Counted> {
        if self.kind == LockKind::PlainMutex {
            // The string has no room for a count: the server is asked only whether the hold is there.
            let check = Renew {
                id: step.id,
                access: step.access,
                lease: step.lease,
                // Zero has the script look, and extend nothing.
                lease_ms: 0,
            };
            return runner.call(self.renewed(runner, &[check]), |reply| {
                Some(match renewals(reply, 1)?[..] {
                    [Renewal::Extended] => Counted::Written,
                    // `Unknown`, too: where another type stands under the name, the string of this hold is gone.
                    _ => Counted::NotOurs,
                })
            });
        }
        let call = Call::new(&COUNT, 1, 2, size_hint(&step.id.name, 1))
            .arg(step.id.name.wire())
            .text(OwnerField::of(runner, step.lease))
            .arg(step.holds);
        runner.call(call, counted)
    }

    fn inspect(&'static self, runner: &ScriptRunner, id: LockId) -> Reply<Inspection> {
        // Also in a cluster without the key of tombstones: this script would take a third key for that of the token.
        let call = self.call(false, &self.inspect, &id, 1).text(Channel(&id));
        runner.inspect(call, inspection)
    }

    fn force_unlock(
        &'static self,
        runner: &ScriptRunner,
        step: &ForceUnlock,
    ) -> Reply<Vec<String>> {
        let (id, args) = (&step.id, 2 + seen_args(step));
        let call = self
            .call(runner.in_cluster, &self.force_unlock, id, args)
            .text(Channel(id))
            .arg(runner.token_ms);
        runner.call(from_seen(call, step), texts)
    }
}

pub(super) fn inspection(reply: &Value) -> Option<Inspection> {
    let Value::Array(values) = reply else {
        return None;
    };
    let [ttl, listeners, Value::Array(owners), entries, token @ ..] = values.as_slice() else {
        return None;
    };
    // `PTTL` says -1 without an end and -2 of a free name; the owners behind it tell the two apart.
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
        // The script gives an empty text where there is no token, and an empty text is no number.
        token: token.first().and_then(|token| text(token)?.parse().ok()),
        queue: queue(entries, |_| Access::Exclusive)?,
        ..Inspection::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::LeaseId;

    #[test]
    fn a_grant_without_tokens_is_none_of_a_fenced_mutex() {
        let grant = |payload: &str| FENCED_MUTEX.grant(payload.as_bytes());
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
