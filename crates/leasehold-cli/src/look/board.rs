//! A server's locks at one moment, as far as they are known, and the rows that a screen shows of them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use leasehold::Status;

use super::{
    stories::{Past, Stories},
    table::{self, Age, Counts},
};
use crate::{
    args::Sort,
    kinds::Kind,
    life::{self, Life},
    output::visible,
};

/// Made by [`Looker`](super::looker::Looker).
pub(crate) struct Board {
    pub(crate) at: SystemTime,
    /// By their names.
    pub(crate) locks: Vec<Arc<Status>>,
    pub(crate) stories: Arc<Mutex<Stories>>,
    /// Among how many keys they are; `None`: the server does not tell, or no round has ended.
    pub(crate) keys: Option<u64>,
    /// How long the last whole look at all keys took; `None`: the first is under way.
    pub(crate) round: Option<Duration>,
    /// Of the look at all keys that is under way, from 0 to 1.
    pub(crate) progress: f64,
    /// Why the server could not be asked: the locks are those that were known before. Or a node of a cluster, whose locks are missing.
    pub(crate) trouble: Option<String>,
    /// It is of a node of a cluster.
    pub(crate) is_part: bool,
    /// Locks that are looked at by themselves and are not among the others.
    pub(crate) alone: HashMap<String, Result<Option<Arc<Status>>, String>>,
}

/// Which locks a screen shows, and in which order.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// In the name: as it is, or with * for any text.
    pub(crate) search: String,
    pub(crate) kind: Option<Kind>,
    pub(crate) waited: bool,
    pub(crate) gone: bool,
    pub(crate) sort: Sort,
}

impl Default for Wanted {
    fn default() -> Wanted {
        Wanted {
            search: String::new(),
            kind: None,
            waited: false,
            gone: false,
            sort: Sort::Name,
        }
    }
}

impl Wanted {
    fn is_met(&self, lock: &Status) -> bool {
        is_like(&lock.name, &self.search)
            && self.kind.is_none_or(|kind| kind.is_listed_as(lock.kind))
            && (!self.waited || lock.waiting_clients > 0)
            && (!self.gone || life::of_lock(lock) == Life::Gone)
    }
}

/// Whether a name contains the words of a search; or, with * in it, begins, goes on and ends with them.
fn is_like(name: &str, search: &str) -> bool {
    // Also as it is shown, or a name with a control character could not be searched for.
    let shown = visible(name);
    reads_like(name, search) || shown != name && reads_like(&shown, search)
}

fn reads_like(name: &str, search: &str) -> bool {
    let mut parts = search.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(last) = parts.next_back() else {
        return name.contains(first);
    };
    let Some(mut rest) = name
        .strip_prefix(first)
        .and_then(|it| it.strip_suffix(last))
    else {
        return false;
    };
    for part in parts {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    true
}

impl Board {
    pub(crate) fn held_for(&self, lock: &Status) -> Option<Age> {
        self.stories().held_for(&lock.name, self.at)
    }

    /// A lock that was looked at, by itself or among all. An error is of this lock; `None`: it is free.
    pub(crate) fn one(&self, name: &str) -> Result<Option<&Status>, &str> {
        if let Some(lock) = self.locks.iter().find(|lock| lock.name == name) {
            return Ok(Some(lock));
        }
        match self.alone.get(name) {
            None => Ok(None),
            Some(Ok(found)) => Ok(found.as_deref()),
            Some(Err(error)) => Err(error),
        }
    }

    /// Whether the server does not tell which clients of ours are connected.
    pub(crate) fn is_blind(&self) -> bool {
        life::is_blind(self.locks.iter().map(Arc::as_ref))
    }

    /// The holds of a name, the newest first.
    pub(crate) fn story(&self, name: &str) -> Vec<Past> {
        self.stories().of(name).cloned().collect()
    }

    fn stories(&self) -> std::sync::MutexGuard<'_, Stories> {
        self.stories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts::of(self.locks.iter().map(Arc::as_ref))
    }

    /// Of the lock that has been held for longest.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        let ages = self.locks.iter().filter_map(|lock| self.held_for(lock));
        ages.map(|age| age.held).max()
    }

    /// The locks that are wanted, in order.
    pub(crate) fn rows(&self, wanted: &Wanted) -> Vec<&Status> {
        let locks = self.locks.iter().map(Arc::as_ref);
        let mut rows: Vec<&Status> = locks.filter(|lock| wanted.is_met(lock)).collect();
        table::sort(&mut rows, wanted.sort, &|lock| self.held_for(lock));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_is_a_part_of_the_name_or_a_pattern_of_all_of_it() {
        for (search, like) in [
            ("", true),
            ("der:4", true),
            ("*", true),
            ("order:*", true),
            ("*:42", true),
            ("o*d*2", true),
            ("order:42*", true),
            ("order", true),
            ("rder:*", false),
            ("*:4", false),
            ("o*4*42", false),
            ("order:42order:42*", false),
            ("stock", false),
        ] {
            assert_eq!(is_like("order:42", search), like, "{search}");
        }
        assert!(is_like("a\u{1b}b", "\\u{1b}"));
    }
}
