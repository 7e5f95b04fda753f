//! Redisson's `RPermitExpirableSemaphore`: a number at the name, and a sorted set of the permits that are out.

use std::{collections::HashMap, time::Duration};

use redis::Value;

use super::{
    Wire, acquired, extended, int, millis,
    permit_id::{PermitId, hex},
    released, size_hint,
};
use crate::{
    backend::{
        Acquire, Acquired, Count, Counted, Extend, ForceUnlock, Grant, InARow, Inspection,
        KnownClient, Once, Owned, Permits, Release, ReleaseReply, Renew, Reply,
        redis::{
            script::{Call, Lazy, Script},
            script_runner::ScriptRunner,
        },
    },
    kind::Access,
    name::{LockId, Name},
    owner::LeaseId,
};

/// A step, behind the parts that all of this kind share.
macro_rules! step {
    ($step:literal) => {
        script!("refuse", "number/number", "leased_semaphore/pool", $step)
    };
}

static ACQUIRE: Lazy = step!("leased_semaphore/acquire");
static RELEASE: Lazy = script!(
    "refuse",
    "waiting",
    "number/number",
    "leased_semaphore/pool",
    "leased_semaphore/release"
);
static RENEW: Lazy = step!("leased_semaphore/renew");
static EXTEND: Lazy = step!("leased_semaphore/extend");
static INSPECT: Lazy = step!("leased_semaphore/inspect");
static FORCE_UNLOCK: Lazy = step!("leased_semaphore/force_unlock");
static PERMITS: Lazy = step!("leased_semaphore/permits");

/// How many holders are listed. A semaphore may have a hundred thousand.
const HOLDERS_MOST: usize = 1000;

pub(super) struct LeasedSemaphoreWire;

/// Redisson's channel for semaphores of either kind.
pub(super) fn channel(name: &Name) -> impl std::fmt::Display + '_ {
    name.prefixed("redisson_sc")
}

/// The permits that are out.
fn out(name: &Name) -> impl std::fmt::Display + '_ {
    name.suffixed("timeout")
}

pub(super) fn count(access: Access) -> u16 {
    match access {
        Access::Permits(count) => count,
        _ => 1,
    }
}

/// How many permits an acquisition sets, if no client has; and whether also if one has. Zero: it sets none.
pub(super) fn to_set(step: &Acquire) -> (u32, bool) {
    match step.permits {
        Some(Permits::TrySet(permits)) => (permits, false),
        Some(Permits::Set(permits)) => (permits, true),
        _ => (0, false),
    }
}

/// A call that begins with the two keys of a semaphore; `keys` in all.
fn call(script: &'static Script, name: &Name, keys: usize, args: usize) -> Call {
    Call::new(script, keys, args, size_hint(name, keys + 1))
        .arg(name.wire())
        .text(out(name))
}

impl Call {
    /// The id of the first permit of a hold, in the form in which this client writes those.
    fn permit(self, runner: &ScriptRunner, lease: LeaseId) -> Call {
        let id = PermitId::first(&runner.client, lease);
        // Redisson before 3.17 finds a permit by its digits alone (bug 285).
        if runner.text_permit_ids {
            self.text(id.hex())
        } else {
            self.arg(&id.0)
        }
    }
}

impl Wire for LeasedSemaphoreWire {
    fn channel(&self, name: &Name) -> String {
        channel(name).to_string()
    }

    fn grant(&self, _payload: &[u8]) -> Option<Grant> {
        None
    }

    fn has_queue(&self) -> bool {
        false
    }

    fn owner(&self, runner: &ScriptRunner, _access: Access, lease: LeaseId) -> String {
        PermitId::first(&runner.client, lease).hex()
    }

    fn acquire(&'static self, runner: &ScriptRunner, step: Acquire) -> Reply<Acquired> {
        let id = &step.id;
        let (permits, exactly) = to_set(&step);
        let call = call(&ACQUIRE, &id.name, 3, 6)
            .text(id.gone_key(&runner.client, step.lease))
            .permit(runner, step.lease)
            .arg(count(step.access))
            .arg(step.lease_ms)
            .text(channel(&id.name))
            .arg(permits)
            .arg(u8::from(exactly))
            .kept_by(&RENEW, &RELEASE);
        runner.call(call, move |reply| acquired(reply, step.lease_ms))
    }

    fn release(&'static self, runner: &ScriptRunner, step: Release) -> Reply<ReleaseReply> {
        let id = &step.id;
        let call = call(&RELEASE, &id.name, 3, 7)
            .text(id.gone_key(&runner.client, step.lease))
            .permit(runner, step.lease)
            .arg(count(step.access))
            .text(channel(&id.name))
            .arg(step.tombstone_ms.unwrap_or(0))
            .arg(u8::from(step.listening))
            .text(id.name.marker())
            .text(step.holds.unwrap_or(InARow::ONE))
            // Others wait, or did a moment ago: the next holder first.
            .answer_last(step.listening);
        // Nothing is kept for the next of this process: it asks as every client does.
        runner.call(call, |reply| released(reply, None))
    }

    fn renewal(&'static self, runner: &ScriptRunner, batch: &[Renew]) -> Option<Call> {
        let asked = batch.len();
        let names: usize = batch.iter().map(|renew| size_hint(&renew.id.name, 1)).sum();
        let mut call = Call::new(&RENEW, asked, 2 * asked + 2, names);
        for renew in batch {
            // Only the set of permits has ends to renew. The number at the name is left out.
            call = call.text(out(&renew.id.name));
        }
        for run in batch.chunk_by(|a, b| a.lease_ms == b.lease_ms) {
            call = call.arg(run[0].lease_ms).arg(run.len());
            for renew in run {
                call = call.permit(runner, renew.lease).arg(count(renew.access));
            }
        }
        Some(call)
    }

    fn extend(&'static self, runner: &ScriptRunner, step: Extend) -> Reply<Option<Duration>> {
        let name = &step.id.name;
        let call = Call::new(&EXTEND, 1, 3, size_hint(name, 1))
            .text(out(name))
            .permit(runner, step.lease)
            .arg(count(step.access))
            .arg(step.lease_ms);
        runner.call(call, extended)
    }

    /// The server knows permits, and not how often a holder has entered.
    fn count(&'static self, _runner: &ScriptRunner, _step: Count) -> Reply<Counted> {
        Box::pin(std::future::ready(Ok(Counted::Written)))
    }

    fn inspect(&'static self, runner: &ScriptRunner, id: LockId) -> Reply<Inspection> {
        let call = call(&INSPECT, &id.name, 2, 2)
            .text(channel(&id.name))
            .arg(HOLDERS_MOST);
        runner.inspect(call, inspection)
    }

    fn force_unlock(
        &'static self,
        runner: &ScriptRunner,
        step: &ForceUnlock,
    ) -> Reply<Vec<String>> {
        // All permits are taken at once, from all who have them.
        debug_assert!(step.seen.is_empty(), "refused by `force_unlock_if`");
        let name = &step.id.name;
        let call = call(&FORCE_UNLOCK, name, 2, 2)
            .text(channel(name))
            .text(name.marker());
        runner.call(call, |reply| {
            let Value::Array(out) = reply else {
                return None;
            };
            // Members that no Redisson has written are taken from the set as well, and are named by their bytes.
            let permits = out.iter().filter_map(|id| Some((permit_id(id)?, None)));
            let others = out.iter().filter(|id| permit_id(id).is_none());
            let others = others.filter_map(|id| other(id, None));
            let owned = holds(permits).into_iter().chain(others);
            Some(owned.map(|held| held.owner).collect())
        })
    }

    fn permits(&self, runner: &ScriptRunner, id: LockId, step: Permits, _once: Once) -> Reply<i64> {
        let (what, number) = match step {
            Permits::Drain => ("drain", 0),
            // The last two are steps of a latch, and no handle of this kind sends them.
            Permits::Available | Permits::CountDown(_) | Permits::Delete => ("available", 0),
            Permits::TrySet(permits) => ("try_set", i64::from(permits)),
            Permits::Set(permits) => ("set", i64::from(permits)),
            Permits::Add(permits) => ("add", i64::from(permits)),
        };
        let call = call(&PERMITS, &id.name, 2, 3)
            .text(channel(&id.name))
            .arg(what)
            .arg(number);
        runner.call(call, int)
    }
}

/// A permit that no Redisson has taken. It is out all the same.
fn other(member: &Value, ttl: Option<Duration>) -> Option<Owned> {
    let Value::BulkString(id) = member else {
        return None;
    };
    Some(Owned {
        owner: hex(id),
        access: Access::Permits(1),
        holds: 1,
        ttl,
        client: KnownClient::default(),
    })
}

/// `None` for what no Redisson has written.
fn permit_id(member: &Value) -> Option<PermitId> {
    match member {
        Value::BulkString(member) => PermitId::read(member),
        _ => None,
    }
}

/// The permits that are out, by hold, in the order of the first of each. Redisson's are a hold each: their ids are random.
fn holds(permits: impl Iterator<Item = (PermitId, Option<Duration>)>) -> Vec<Owned> {
    struct Found {
        first: PermitId,
        count: u16,
        ttl: Option<Duration>,
    }
    let mut found: Vec<Found> = Vec::new();
    let mut known = HashMap::new();
    for (id, ttl) in permits {
        let at = *known.entry(id.hold()).or_insert(found.len());
        match found.get_mut(at) {
            Some(hold) => {
                hold.count = hold.count.saturating_add(1);
                // The owner of a hold is named by its first permit (`Wire::owner`), in any order of the list.
                if id.number() < hold.first.number() {
                    hold.first = id;
                }
            }
            // The script lists the permits that end first, so the hold has the earliest end of its permits.
            None => found.push(Found {
                first: id,
                count: 1,
                ttl,
            }),
        }
    }
    let owned = found.into_iter().map(|hold| Owned {
        owner: hold.first.hex(),
        access: Access::Permits(hold.count),
        holds: 1,
        ttl: hold.ttl,
        client: KnownClient::default(),
    });
    owned.collect()
}

fn inspection(reply: &Value) -> Option<Inspection> {
    let Value::Array(values) = reply else {
        return None;
    };
    let [free, listeners, out] = values.as_slice() else {
        return None;
    };
    let Value::Array(out) = out else {
        return None;
    };
    let (mut permits, mut others) = (Vec::new(), Vec::new());
    for permit in out.chunks_exact(2) {
        let [id, left] = permit else { return None };
        let ttl = millis(int(left)?);
        match permit_id(id) {
            Some(id) => permits.push((id, ttl)),
            None => others.push(other(id, ttl)?),
        }
    }
    let mut owners = holds(permits.into_iter());
    owners.append(&mut others);
    // The script lists a few more, to the end of the hold that it is at.
    owners.truncate(HOLDERS_MOST);
    Some(Inspection {
        owners,
        // The script says -1 where `PUBSUB` is refused, or Valkey 9.1 miscounts (bug 126).
        listeners: u64::try_from(int(listeners)?).unwrap_or(0),
        available: Some(int(free)?),
        ..Inspection::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: &str = "0123abCD-4567-4000-8000-000000000000";

    #[test]
    fn permits_of_one_hold_are_one_holder_and_redissons_each_their_own() {
        let second = Duration::from_secs(1);
        let mut ours = PermitId::first(CLIENT, LeaseId::from(7));
        let first = ours;
        ours.0[7] = 1;
        let (java, other) = (PermitId([9; 16]), PermitId([8; 16]));
        let out = [
            (ours, Some(second)),
            (java, None),
            (first, Some(second)),
            (other, None),
        ];
        let held = holds(out.into_iter());
        let held: Vec<_> = held
            .iter()
            .map(|held| (held.owner.clone(), held.access))
            .collect();
        let [two, one] = [Access::Permits(2), Access::Permits(1)];
        assert_eq!(
            held,
            [(first.hex(), two), (java.hex(), one), (other.hex(), one)]
        );
    }
}
