//! Holds at several servers: one that is silent is to delay no renewals at the others.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;

/// For so long a batch for one server of several stands in the way of those for the others.
pub(super) const TURN_MOST: Duration = Duration::from_millis(20);

/// Servers of several that have not answered the last batch within [`TURN_MOST`]. Batches for them take no turn.
#[derive(Debug, Default)]
pub(super) struct SilentShards(Mutex<Vec<u32>>);

impl SilentShards {
    pub(super) fn has(&self, shard: Option<u32>) -> bool {
        shard.is_some_and(|shard| self.0.lock().contains(&shard))
    }

    pub(super) fn note(&self, shard: u32, is_silent: bool) {
        let mut silent = self.0.lock();
        silent.retain(|other| *other != shard);
        if is_silent {
            silent.push(shard);
        }
    }
}

/// The parts of a batch that different servers answer. Mostly there is one server.
pub(super) fn by_shard<H>(
    batch: Vec<H>,
    shard: impl Fn(&H) -> Option<u32>,
) -> impl Iterator<Item = (Option<u32>, Vec<H>)> {
    let mut parts: BTreeMap<Option<u32>, Vec<H>> = BTreeMap::new();
    // A batch whose first hold has no shard goes out as one: the backend divides it, if need be.
    if batch.first().is_none_or(|first| shard(first).is_none()) {
        parts.insert(None, batch);
    } else {
        for hold in batch {
            parts.entry(shard(&hold)).or_default().push(hold);
        }
    }
    parts.into_iter()
}
