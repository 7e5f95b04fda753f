//! The keys of a server, page by page, and which of them are locks.

use redis::Value;

use super::{
    kinds::wire,
    script::{Call, Lazy, Script, text},
    script_runner::ScriptRunner,
};
use crate::{
    backend::{
        Inspection, Reply,
        find::{Cursor, FindPage, FoundPage, all_of},
    },
    kind::LockKind,
    name::LockId,
};

static FIND: Lazy = Lazy::new(|| Script::new(include_str!("scripts/find.lua")));

/// So many keys take a server about half a millisecond.
const KEYS_A_PAGE: usize = 100;

pub(super) fn find(runner: &ScriptRunner, step: &FindPage) -> Reply<FoundPage> {
    let call = Call::new(&FIND, 0, 3, step.pattern.len() + 32)
        .arg(step.cursor.keys)
        .arg(&*step.pattern)
        .arg(KEYS_A_PAGE);
    runner.call(call.only_reads(), page)
}

/// How many locks are inspected together: a server carries out at once what one connection has sent.
const INSPECTED_AT_ONCE: usize = 16;

pub(super) fn inspect_all(
    runner: &ScriptRunner,
    ids: Vec<LockId>,
) -> Reply<Vec<(LockId, Inspection)>> {
    let runner = runner.clone();
    Box::pin(async move {
        // Labels are asked for once, for all of these locks, and not with each inspection.
        let bare = runner.without_labels();
        let mut found = Vec::with_capacity(ids.len());
        for few in ids.chunks(INSPECTED_AT_ONCE) {
            let inspections = few
                .iter()
                .map(|id| wire(id.kind).inspect(&bare, id.clone()));
            found.extend(all_of(few, inspections).await?);
        }
        let mut all: Vec<&mut Inspection> = found.iter_mut().map(|(_, found)| found).collect();
        runner.add_labels(&mut all).await;
        Ok(found)
    })
}

fn page(reply: &Value) -> Option<FoundPage> {
    let Value::Array(values) = reply else {
        return None;
    };
    let [cursor, keys, locks @ ..] = values.as_slice() else {
        return None;
    };
    let locks = locks.chunks_exact(2).map(|lock| {
        let [kind, name] = lock else { return None };
        let kind = text(kind)?;
        let kind = LockKind::ALL.into_iter().find(|it| it.as_str() == kind)?;
        Some((kind, text(name)?))
    });
    Some(FoundPage {
        cursor: Cursor::of(text(cursor)?.parse().ok()?),
        locks: locks.collect::<Option<_>>()?,
        keys: text(keys)?.parse().ok(),
        failed: None,
    })
}
