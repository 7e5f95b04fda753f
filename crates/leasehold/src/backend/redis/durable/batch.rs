//! The scripts that renew what waits to be confirmed, and their answers.

use redis::{RedisResult, Value};

use super::BatchEntry;
use crate::{
    backend::{
        Failure, Renew, Renewal,
        redis::{
            failure::{classify, in_words},
            kinds::{renewals, wire},
            script::{Call, unexpected},
            script_runner::ScriptRunner,
        },
    },
    kind::LockKind,
};

/// So many leases are renewed by one script at most: the server does nothing else meanwhile.
const SCRIPT_MOST: usize = 200;

/// The scripts that renew all of these, and where each lease stands in their answers, one entry after the other.
pub(super) fn calls(runner: &ScriptRunner, entries: &[BatchEntry]) -> (Vec<Call>, Vec<Vec<usize>>) {
    let leases: Vec<&Renew> = entries.iter().flat_map(|entry| &entry.leases).collect();
    let (mut calls, mut order) = (Vec::new(), Vec::new());
    let mut add = |places: std::ops::Range<usize>, asks: bool| {
        for kind in LockKind::ALL {
            let of_kind = places.clone().filter(|at| leases[*at].id.kind == kind);
            let of_kind: Vec<usize> = of_kind.collect();
            for some in of_kind.chunks(SCRIPT_MOST) {
                let batch: Vec<Renew> = some.iter().map(|at| later(leases[*at])).collect();
                if let Some(call) = wire(kind).renewal(runner, &batch) {
                    calls.push(if asks { call.asking() } else { call });
                    order.push(some.to_vec());
                }
            }
        }
    };
    if runner.in_cluster {
        // A script may name keys of one slot only.
        let mut from = 0;
        for entry in entries {
            let to = from + entry.leases.len();
            add(from..to, entry.asks);
            from = to;
        }
    } else {
        add(0..leases.len(), false);
    }
    (calls, order)
}

/// A permit that was taken in this very millisecond would not be written again, and `WAIT` would wait for nothing. Its end is never moved nearer (B2).
fn later(renew: &Renew) -> Renew {
    let later = u64::from(renew.id.kind == LockKind::LeasedSemaphore && renew.lease_ms > 0);
    Renew {
        lease_ms: renew.lease_ms + later,
        ..renew.clone()
    }
}

/// The answers of these scripts, in the order of the leases.
pub(super) fn read(
    answers: impl Iterator<Item = RedisResult<Value>>,
    asked: usize,
    order: &[Vec<usize>],
) -> Vec<Result<Renewal, Failure>> {
    // A lease of a kind that never ends is in no script, and stays as it is here.
    let mut all = vec![Ok(Renewal::Unknown); asked];
    for (answer, order) in answers.zip(order) {
        let of_script = answer.map_err(classify).and_then(|answer| {
            let read = renewals(&answer, order.len());
            read.ok_or_else(|| Failure::Rejected(in_words(unexpected(&answer))))
        });
        for (nth, at) in order.iter().enumerate() {
            all[*at] = of_script
                .as_ref()
                .map(|read| read[nth])
                .map_err(Clone::clone);
        }
    }
    all
}

/// The answer to `WAIT` or `WAITAOF`: on how many disks, and how many replicas.
pub(super) fn counts(said: &Value) -> Result<(u32, u32), Failure> {
    let count = |value: &Value| match value {
        Value::Int(count) => u32::try_from(*count).ok(),
        _ => None,
    };
    let counts = match said {
        Value::Array(both) => match both.as_slice() {
            [disks, replicas] => count(disks).zip(count(replicas)),
            _ => None,
        },
        one => count(one).map(|replicas| (0, replicas)),
    };
    counts.ok_or_else(|| Failure::Rejected(in_words(unexpected(said))))
}
