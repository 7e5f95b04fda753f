//! Each kind of lock on the wire: its keys, channels, scripts and replies, one file per kind.

/// A script of the folder `scripts`, behind the parts that it needs.
macro_rules! script {
    ($($part:literal),+) => {
        crate::backend::redis::script::Lazy::new(|| {
            crate::backend::redis::script::Script::new(concat!($(
                include_str!(concat!("../scripts/", $part, ".lua"))
            ),+))
        })
    };
}

/// The text of a script whose long way is a function in front of it, `contended`: what it needs is made only where it is taken.
macro_rules! text_with {
    ($($front:literal),+; ($($part:literal),+); $main:literal) => {
        concat!(
            $(include_str!(concat!("../scripts/", $front, ".lua"))),+,
            "local function contended(KEYS, ARGV)\n",
            $(include_str!(concat!("../scripts/", $part, ".lua"))),+,
            "end\n",
            include_str!(concat!("../scripts/", $main, ".lua"))
        )
    };
}

/// The script whose text `text_with` makes.
macro_rules! script_with {
    ($($text:tt)+) => {
        crate::backend::redis::script::Lazy::new(|| {
            crate::backend::redis::script::Script::new(text_with!($($text)+))
        })
    };
}

mod exclusive;
mod fair_mutex;
mod latch;
mod leased_semaphore;
mod permit_id;
mod rw_lock;
mod semaphore;

use std::{fmt, time::Duration};

use redis::Value;

use super::{
    script::{Call, texts},
    script_runner::ScriptRunner,
};
use crate::{
    backend::{
        Acquire, Acquired, Count, Counted, Downgrade, Extend, ForceUnlock, Grant, Inspection, Keep,
        KeptEntries, KnownClient, Once, Permits, QueuedOwner, Release, ReleaseReply, Renew,
        Renewal, Reply, fenced::Tokens,
    },
    kind::{Access, LockKind},
    name::{LockId, Name},
    owner::LeaseId,
};

/// The kinds that this backend knows: one line for each.
pub(super) fn wire(kind: LockKind) -> &'static dyn Wire {
    match kind {
        // The two are one lock on the server, and exclude each other. They differ only in how their waiters wait here.
        LockKind::Mutex | LockKind::SpinMutex => &exclusive::MUTEX,
        LockKind::FencedMutex => &exclusive::FENCED_MUTEX,
        LockKind::RwLock => &rw_lock::RwLockWire,
        LockKind::LeasedSemaphore => &leased_semaphore::LeasedSemaphoreWire,
        LockKind::PlainMutex => &exclusive::PLAIN_MUTEX,
        LockKind::Semaphore => &semaphore::SemaphoreWire,
        LockKind::Latch => &latch::LatchWire,
        LockKind::FairMutex => &fair_mutex::FairMutexWire,
    }
}

/// The steps of one kind as script calls. The order of keys and arguments is that of each script's header.
pub(super) trait Wire: Sync {
    /// The channel on which holders say that the lock may be free: Redisson's, if the kind is one of Redisson's.
    fn channel(&self, name: &Name) -> String;

    /// The channels that a client listens to that waits: that one, its inbox, and where Redisson's clients wait as well one that tells
    /// ours from those.
    fn channels(&self, id: &LockId, client: &str) -> Vec<String> {
        let inbox = self
            .has_queue()
            .then(|| id.grant_channel(client).to_string());
        // No other library listens to the channel of a plain mutex, and a latch has no turns to leave to Redisson's waiters.
        let has_others = !matches!(id.kind, LockKind::PlainMutex | LockKind::Latch);
        let marker = has_others.then(|| id.name.marker().to_string());
        std::iter::once(self.channel(&id.name))
            .chain(inbox)
            .chain(marker)
            .collect()
    }

    /// Reads a message on the client's inbox; `None` if it is no grant. A kind without a queue has no grants.
    fn grant(&self, payload: &[u8]) -> Option<Grant>;

    /// Whether clients that wait stand in a queue on the server, and hear grants.
    fn has_queue(&self) -> bool {
        true
    }

    /// The owner field of a hold of this client.
    fn owner(&self, runner: &ScriptRunner, _access: Access, lease: LeaseId) -> String {
        OwnerField::of(runner, lease).to_string()
    }

    fn acquire(&'static self, runner: &ScriptRunner, step: Acquire) -> Reply<Acquired>;

    fn release(&'static self, runner: &ScriptRunner, step: Release) -> Reply<ReleaseReply>;

    /// All of this kind. Its reply is read by [`renewals`]. `None`: its leases have no end.
    fn renewal(&'static self, runner: &ScriptRunner, batch: &[Renew]) -> Option<Call>;

    fn renew(&'static self, runner: &ScriptRunner, batch: &[Renew]) -> Reply<Vec<Renewal>> {
        let asked = batch.len();
        match self.renewal(runner, batch) {
            Some(call) => runner.call(call, move |reply| renewals(reply, asked)),
            // The server keeps no lease that could have ended: it is not asked, and loses none.
            None => Box::pin(std::future::ready(Ok(vec![Renewal::Extended; asked]))),
        }
    }

    fn extend(&'static self, runner: &ScriptRunner, step: Extend) -> Reply<Option<Duration>>;

    fn count(&'static self, runner: &ScriptRunner, step: Count) -> Reply<Counted>;

    fn inspect(&'static self, runner: &ScriptRunner, id: LockId) -> Reply<Inspection>;

    fn force_unlock(&'static self, runner: &ScriptRunner, step: &ForceUnlock)
    -> Reply<Vec<String>>;

    /// Of a kind whose waiting tasks have an entry each. Any other has none to keep, and is never asked.
    fn keep(&self, _runner: &ScriptRunner, _step: Keep) -> Reply<KeptEntries> {
        Box::pin(std::future::ready(Ok(KeptEntries::default())))
    }

    /// Of a read-write lock. Any other kind has nothing to downgrade, and is never asked.
    fn downgrade(&self, _runner: &ScriptRunner, _step: Downgrade) -> Reply<bool> {
        Box::pin(std::future::ready(Ok(true)))
    }

    /// Of a semaphore or a latch. Any other kind has none, and is never asked.
    fn permits(
        &self,
        _runner: &ScriptRunner,
        _id: LockId,
        _step: Permits,
        _once: Once,
    ) -> Reply<i64> {
        Box::pin(std::future::ready(Ok(0)))
    }
}

/// `<client uuid>:<lease id>`.
#[derive(Clone, Copy)]
struct OwnerField<'a> {
    client: &'a str,
    lease: LeaseId,
}

impl OwnerField<'_> {
    fn of(runner: &ScriptRunner, lease: LeaseId) -> OwnerField<'_> {
        OwnerField {
            client: &runner.client,
            lease,
        }
    }
}

impl fmt::Display for OwnerField<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.client, self.lease)
    }
}

/// A value, or empty text.
struct OrEmpty<T>(Option<T>);

impl<T: fmt::Display> fmt::Display for OrEmpty<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |some| some.fmt(f))
    }
}

/// About how many bytes a call takes that repeats a name `times`, with the owner and the text around them.
fn size_hint(name: &Name, times: usize) -> usize {
    times * (name.wire().len() + 32) + 3 * 64
}

fn int(reply: &Value) -> Option<i64> {
    match reply {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

pub(super) fn pair(reply: &Value) -> Option<(i64, i64)> {
    match reply {
        Value::Array(values) => match values.as_slice() {
            [first, second] => Some((int(first)?, int(second)?)),
            _ => None,
        },
        _ => None,
    }
}

/// Reads entries of a queue, each an owner field and what it waits for.
fn queue(entries: &Value, access: impl Fn(&str) -> Access) -> Option<Vec<QueuedOwner>> {
    let entries = texts(entries)?.into_iter().map(|entry| {
        // The queue of a fair mutex, as Redisson has it, lists bare owners. Ours adds the terms of the lease behind a space.
        let owner = entry.split(' ').next().unwrap_or_default();
        QueuedOwner {
            access: access(owner),
            owner: owner.to_owned(),
            client: KnownClient::default(),
        }
    });
    Some(entries.collect())
}

/// A time to live as `PTTL` gives it; a negative one is none.
fn millis(ttl: i64) -> Option<Duration> {
    u64::try_from(ttl).ok().map(Duration::from_millis)
}

/// The time left of a lease of ours. Its key has no end if its TTL was removed; then it lasts for `lease_ms` at least.
fn left_of(left: i64, lease_ms: u64) -> Duration {
    millis(left).unwrap_or(Duration::from_millis(lease_ms))
}

/// Reads a script's reply to an acquisition.
fn acquired(reply: &Value, lease_ms: u64) -> Option<Acquired> {
    match pair(reply)? {
        (1, left) => Some(Acquired::Granted {
            remaining: left_of(left, lease_ms),
            tokens: Tokens::NONE,
        }),
        (held @ (0 | 3), ttl) => Some(Acquired::Held {
            unsettled: false,
            ttl: millis(ttl),
            // A holder of another library tells no waiter when it leaves, so waiters of a plain mutex poll then (`Waits::NotifiedOrPolls`).
            silent: held == 3,
        }),
        (2, _) => Some(Acquired::GivenUp),
        // A semaphore whose permits no client has set is waited for, but with a warning (bug 156).
        (4, _) => Some(Acquired::Unset),
        _ => None,
    }
}

/// Reads a script's reply to a release; `next_ms`: the lease of the id under which the client goes on.
fn released(reply: &Value, next_ms: Option<u64>) -> Option<ReleaseReply> {
    let freed = |others: i64, turns: i64| ReleaseReply::Freed {
        others: u64::try_from(others).unwrap_or(0),
        turns: u32::try_from(turns).unwrap_or(0),
    };
    // Turns for Redisson's waiters are counted only on the long way of a release, where the reply has a third number.
    if let Value::Array(values) = reply
        && let [Value::Int(1), others, turns] = values.as_slice()
    {
        return Some(freed(int(others)?, int(turns)?));
    }
    let reply = match reply {
        // The short way of `exclusive/release.lua` answers with the bare reply of its `PUBLISH`, or -1 if the owner held nothing.
        Value::Int(-1) => (0, 0),
        Value::Int(others) => (1, *others),
        _ => pair(reply)?,
    };
    match reply {
        (1, others) => Some(freed(others, 0)),
        (2, ttl) => millis(ttl).map(|lease| ReleaseReply::Granted { lease }),
        // A release that named no `next` cannot have kept the lock for it: such a reply is refused as unexpected.
        (3, left) => next_ms.map(|next_ms| ReleaseReply::Kept {
            remaining: left_of(left, next_ms),
            tokens: Tokens::NONE,
        }),
        (0, _) => Some(ReleaseReply::NotOurs),
        _ => None,
    }
}

/// Reads a renewal script's reply about `asked` names: `{number of the name, answer, ...}` for those that are not extended.
pub(super) fn renewals(reply: &Value, asked: usize) -> Option<Vec<Renewal>> {
    let Value::Array(exceptions) = reply else {
        return None;
    };
    // Scripts tell only the exceptions: most batches lose no name, and their reply is empty.
    let mut answers = vec![Renewal::Extended; asked];
    for exception in exceptions.chunks(2) {
        // An odd number of values is no reply of a script, so no name of this batch counts as extended.
        let [number, answer] = exception else {
            return None;
        };
        // Scripts count from 1.
        let at = usize::try_from(int(number)?).ok()?.checked_sub(1)?;
        *answers.get_mut(at)? = match int(answer)? {
            0 => Renewal::Lost,
            -1 => Renewal::Unknown,
            _ => return None,
        };
    }
    Some(answers)
}

#[expect(
    clippy::option_option,
    reason = "no answer of a script, and the answer that it is not ours"
)]
fn extended(reply: &Value) -> Option<Option<Duration>> {
    match int(reply)? {
        // 0 stands for a lease that is not ours: of a lease that is ours a mutex and a read-write lock state at least 1 ms.
        0 => Some(None),
        left => millis(left).map(Some),
    }
}

fn counted(reply: &Value) -> Option<Counted> {
    match int(reply)? {
        0 => Some(Counted::NotOurs),
        1 => Some(Counted::Written),
        2 => Some(Counted::OthersWait),
        _ => None,
    }
}

/// How many arguments [`from_seen`] adds.
fn seen_args(step: &ForceUnlock) -> usize {
    2 * step.seen.len()
}

/// Adds the holders that were seen, each with what may be left of its lease: -1 without an end (`forced.lua` reads them).
fn from_seen(call: Call, step: &ForceUnlock) -> Call {
    step.seen.iter().fold(call, |call, seen| {
        let left = seen.left.map_or(-1, |left| {
            i64::try_from(left.as_millis()).unwrap_or(i64::MAX)
        });
        call.arg(seen.owner.as_str()).arg(left)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_without_an_end_has_no_duration() {
        assert_eq!(millis(-1), None);
        assert_eq!(millis(0), Some(Duration::ZERO));
    }
}
