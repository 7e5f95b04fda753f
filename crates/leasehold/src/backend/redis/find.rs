//! The keys of a server, page by page, and which of them are locks.

use redis::Value;

use super::{
    caller::{Caller, text},
    script::{Call, Lazy, Script},
};
use crate::{
    backend::{
        Reply,
        find::{FindPage, FoundPage},
    },
    kind::LockKind,
};

static FIND: Lazy = Lazy::new(|| Script::new(include_str!("scripts/find.lua")));

/// So many keys take a server about half a millisecond.
const KEYS_A_PAGE: usize = 100;

pub(super) fn find(caller: &Caller, step: &FindPage) -> Reply<FoundPage> {
    let call = Call::new(&FIND, 0, 3, step.pattern.len() + 32)
        .arg(step.cursor)
        .arg(&*step.pattern)
        .arg(KEYS_A_PAGE);
    caller.call(call, page)
}

fn page(reply: &Value) -> Option<FoundPage> {
    let Value::Array(values) = reply else {
        return None;
    };
    let (cursor, locks) = values.split_first()?;
    let locks = locks.chunks_exact(2).map(|lock| {
        let [kind, name] = lock else { return None };
        let kind = text(kind)?;
        let kind = LockKind::ALL.into_iter().find(|it| it.as_str() == kind)?;
        Some((kind, text(name)?))
    });
    Some(FoundPage {
        cursor: text(cursor)?.parse().ok()?,
        locks: locks.collect::<Option<_>>()?,
    })
}
