//! Several mutexes in one step.

use std::time::Duration;

use redis::Value;

use super::{OwnerField, exclusive, int, left_of, released, size_hint};
use crate::backend::{
    Acquire, AcquiredAll, Release, ReleaseReply, Reply,
    redis::{
        caller::Caller,
        script::{Call, Lazy, Script},
    },
};

static ACQUIRE_ALL: Lazy = script!("mutex/acquire_all");
static RELEASE_ALL: Lazy = Lazy::new(|| {
    Script::new(concat!(
        "local function release(KEYS, ARGV)\n",
        text_with!(
            "exclusive/holder_hash";
            ("waiting", "exclusive/places", "exclusive/hand_over", "exclusive/released");
            "exclusive/release"
        ),
        "end\n",
        include_str!("../scripts/mutex/release_all.lua")
    ))
});

pub(in crate::backend::redis) fn acquire_all(
    caller: &Caller,
    steps: &[Acquire],
) -> Reply<AcquiredAll> {
    let bytes = steps.iter().map(|step| size_hint(&step.id.name, 3)).sum();
    let mut call = Call::new(&ACQUIRE_ALL, 2 * steps.len(), 2 * steps.len(), bytes);
    for step in steps {
        call = call.arg(step.id.name.wire());
    }
    for step in steps {
        call = call.text(step.id.gone_key(&caller.client, step.lease));
    }
    for step in steps {
        call = call
            .text(OwnerField::of(caller, step.lease))
            .arg(step.lease_ms);
    }
    let asked: Vec<u64> = steps.iter().map(|step| step.lease_ms).collect();
    caller.call(call, move |reply| acquired_all(reply, &asked))
}

/// Of lease ids that their client does not go on from.
pub(in crate::backend::redis) fn release_all(
    caller: &Caller,
    steps: &[Release],
) -> Reply<Vec<ReleaseReply>> {
    let bytes = steps.iter().map(|step| size_hint(&step.id.name, 5)).sum();
    let mut call = Call::new(&RELEASE_ALL, 2 * steps.len(), 4 * steps.len(), bytes);
    for step in steps {
        call = call.arg(step.id.name.wire()).text(step.id.queue_key());
    }
    for step in steps {
        call = call
            .text(OwnerField::of(caller, step.lease))
            .text(exclusive::channel(&step.id.name))
            .arg(step.tombstone_ms.unwrap_or(0))
            .arg(u8::from(step.listening));
    }
    // Others wait, or did a moment ago: the next holder first.
    call = call.answer_last(steps.iter().any(|step| step.listening));
    let asked = steps.len();
    caller.call(call, move |reply| released_all(reply, asked))
}

/// `{1, left_ms, ...}` or `{0, number of the name}`.
fn acquired_all(reply: &Value, asked: &[u64]) -> Option<AcquiredAll> {
    let Value::Array(values) = reply else {
        return None;
    };
    let (first, rest) = values.split_first()?;
    match (int(first)?, rest) {
        (0, [number]) => {
            let at = usize::try_from(int(number)?).ok()?.checked_sub(1)?;
            (at < asked.len()).then_some(AcquiredAll::Held(at))
        }
        (1, left) if left.len() == asked.len() => {
            let left = left.iter().zip(asked);
            let left = left.map(|(left, asked)| Some(left_of(int(left)?, *asked)));
            left.collect::<Option<Vec<Duration>>>()
                .map(AcquiredAll::Granted)
        }
        _ => None,
    }
}

fn released_all(reply: &Value, asked: usize) -> Option<Vec<ReleaseReply>> {
    let Value::Array(replies) = reply else {
        return None;
    };
    let replies: Option<Vec<_>> = replies.iter().map(|reply| released(reply, None)).collect();
    replies.filter(|replies| replies.len() == asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ints(of: &[i64]) -> Value {
        Value::Array(of.iter().map(|int| Value::Int(*int)).collect())
    }

    #[test]
    fn an_answer_about_another_number_of_names_is_no_answer() {
        let ms = Duration::from_millis;
        let both = acquired_all(&ints(&[1, 5, 7]), &[9, 9]);
        assert_eq!(both, Some(AcquiredAll::Granted(vec![ms(5), ms(7)])));
        let second = acquired_all(&ints(&[0, 2]), &[9, 9]);
        assert_eq!(second, Some(AcquiredAll::Held(1)));
        for other in [&[1, 5][..], &[1, 5, 7, 8], &[0, 3], &[0, 0], &[0], &[2, 1]] {
            assert_eq!(acquired_all(&ints(other), &[9, 9]), None, "{other:?}");
        }
        let replies = Value::Array(vec![ints(&[1, 0]), ints(&[0, 0])]);
        assert!(released_all(&replies, 2).is_some());
        assert!(released_all(&replies, 3).is_none());
    }
}
