//! Data on the server that is written under fencing tokens.

use redis::Value;

use super::{
    kinds::pair,
    script::{Call, Lazy, Script},
    script_runner::ScriptRunner,
};
use crate::backend::{
    Reply,
    fenced::{Change, FencedPart, FencedRead, FencedWrite, Written},
};

/// A script of the folder, behind the guard if it writes.
macro_rules! script {
    ($($part:literal),+) => {
        Lazy::new(|| {
            Script::new(concat!($(
                include_str!(concat!("scripts/fenced_store/", $part, ".lua"))
            ),+))
        })
    };
}

static SET: Lazy = script!("fence", "set");
static DELETE: Lazy = script!("fence", "delete");
static SET_FIELD: Lazy = script!("fence", "set_field");
static DELETE_FIELD: Lazy = script!("fence", "delete_field");
static GET: Lazy = script!("get");
static GET_FIELD: Lazy = script!("get_field");
static OF_HOLDER: Lazy = script!("of_holder");

pub(super) fn write(runner: &ScriptRunner, step: &FencedWrite) -> Reply<Written> {
    let mut lasts_ms = None;
    let (script, field, value) = match &step.change {
        Change::Set(value, lasts) => {
            // The script reads this argument in any case: zero stands for no end.
            lasts_ms = Some(lasts.unwrap_or(0));
            (&SET, None, Some(value))
        }
        Change::Delete => (&DELETE, None, None),
        Change::SetField(field, value) => (&SET_FIELD, Some(field), Some(value)),
        Change::DeleteField(field) => (&DELETE_FIELD, Some(field), None),
    };
    let bytes = step.key.wire().len() + field.map_or(0, |field| field.len());
    let bytes = bytes + value.map_or(0, |value| value.len());
    let mut call = Call::new(script, 2, 4, bytes + 128)
        .text(step.name.fence_key())
        .arg(step.key.wire())
        .arg(step.token)
        .arg(runner.token_ms);
    if let Some(field) = field {
        call = call.arg(&**field);
    }
    if let Some(value) = value {
        call = call.arg(&**value);
    }
    if let Some(lasts_ms) = lasts_ms {
        call = call.arg(lasts_ms);
    }
    runner.call(call, |reply| match pair(reply)? {
        (1, _) => Some(Written::Done),
        (0, newest) => Some(Written::Stale {
            newest: u64::try_from(newest).ok()?,
        }),
        _ => None,
    })
}

pub(super) fn read(runner: &ScriptRunner, step: &FencedRead) -> Reply<Option<Vec<u8>>> {
    let call = match &step.part {
        FencedPart::Text => Call::new(&GET, 1, 0, step.key.wire().len()).arg(step.key.wire()),
        FencedPart::OfHolder => Call::new(&OF_HOLDER, 2, 0, 2 * step.key.wire().len())
            .arg(step.name.wire())
            .arg(step.key.wire()),
        FencedPart::Field(field) => {
            Call::new(&GET_FIELD, 1, 1, step.key.wire().len() + field.len())
                .arg(step.key.wire())
                .arg(&**field)
        }
    };
    runner.call(call, |reply| match reply {
        Value::Nil => Some(None),
        Value::BulkString(bytes) => Some(Some(bytes.clone())),
        _ => None,
    })
}
