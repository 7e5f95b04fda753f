//! Numbers in memory: the permits of semaphores, and the counts of latches. `scripts/{leased_semaphore,semaphore}/permits.lua` and
//! `scripts/latch/step.lua`, in Rust.

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::{Store, StoredHold};
use crate::{
    backend::{Once, Permits, memory::kinds::leased_semaphore::taken},
    kind::LockKind,
    name::LockId,
};

pub(super) fn is_number(kind: LockKind) -> bool {
    matches!(
        kind,
        LockKind::LeasedSemaphore | LockKind::Semaphore | LockKind::Latch
    )
}

/// A hold is forgotten whose permits never come back.
pub(super) fn is_gone(permits: &mut HashMap<LockId, i64>, id: &LockId, held: &StoredHold) {
    if let Some(permits) = permits.get_mut(id) {
        *permits -= taken(std::slice::from_ref(held));
    }
}

impl Store {
    pub(super) fn available(&self, id: &LockId) -> i64 {
        let permits = self.permits.get(id).copied().unwrap_or(0);
        permits - taken(self.held_by(id))
    }

    pub(crate) fn permits(
        &mut self,
        client: &Arc<str>,
        id: &LockId,
        step: Permits,
        once: Once,
    ) -> i64 {
        if matches!(step, Permits::Available) {
            return self.available(id);
        }
        let key = (Arc::clone(client), once.number);
        let until = self.clock + Duration::from_millis(once.keep_ms);
        if let Some((answer, end)) = self.done.get_mut(&key) {
            // A request that was sent again may be late itself.
            *end = until;
            return *answer;
        }
        let answer = self.change(id, step);
        // The leased semaphore is told once, and keeps no answers.
        if id.kind != LockKind::LeasedSemaphore {
            self.done.insert(key, (answer, until));
        }
        answer
    }

    /// An acquisition says how many there are from now on.
    pub(super) fn provide(&mut self, id: &LockId, step: Permits) {
        let there = self.permits.get(id).copied();
        if !matches!(step, Permits::Set(count) if there == Some(count.into())) {
            self.change(id, step);
        }
    }

    fn change(&mut self, id: &LockId, step: Permits) -> i64 {
        match step {
            Permits::Available => return self.available(id),
            Permits::TrySet(_) if self.permits.contains_key(id) => return 0,
            Permits::TrySet(count) | Permits::Set(count) => {
                self.permits.insert(id.clone(), count.into());
            }
            Permits::Add(count) => *self.permits.entry(id.clone()).or_default() += i64::from(count),
            Permits::Drain => {
                let free = self.available(id).max(0);
                if let Some(permits) = self.permits.get_mut(id) {
                    *permits -= free;
                }
                return free;
            }
            Permits::CountDown(by) => {
                let Some(count) = self.permits.get_mut(id) else {
                    return 0;
                };
                *count -= i64::from(by);
                if *count > 0 {
                    return *count;
                }
                self.permits.remove(id);
            }
            Permits::Delete => {
                if self.permits.remove(id).is_none() {
                    return 0;
                }
            }
        }
        self.tell_all(id);
        match step {
            Permits::TrySet(_) | Permits::Delete => 1,
            _ => self.available(id),
        }
    }
}
