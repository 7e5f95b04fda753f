//! Numbers in memory: the permits of semaphores, and the counts of latches. `scripts/semaphore/`,
//! `scripts/leased_semaphore/permits.lua` and `scripts/latch/step.lua`, in Rust.

use std::{sync::Arc, time::Duration};

use super::Store;
use crate::{
    backend::{
        Acquire, Acquired, Once, Permits, Release, ReleaseReply, fenced::Tokens,
        memory::kinds::leased_semaphore::taken,
    },
    config::ANSWERS_KEPT,
    kind::{Access, LockKind},
    name::LockId,
    owner::LeaseId,
};

pub(super) fn is_number(kind: LockKind) -> bool {
    matches!(
        kind,
        LockKind::LeasedSemaphore | LockKind::Semaphore | LockKind::Latch
    )
}

/// The fate of a lease id of a semaphore without leases.
const TAKEN: i64 = 1;
const GIVEN: i64 = 0;

fn count(access: Access) -> i64 {
    match access {
        Access::Permits(count) => count.into(),
        _ => 1,
    }
}

impl Store {
    pub(super) fn available(&self, id: &LockId) -> i64 {
        let permits = self.permits.get(id).copied().unwrap_or(0);
        // Without leases, and of a latch, no holds are stored: the number itself is the answer.
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
        let kept = Duration::from_millis(once.keep_ms);
        // A copy of a change would count once more, so it is given the first answer (bug 98).
        if let Some(answer) = self.told_before(client, once.number, kept) {
            return answer;
        }
        let answer = self.change(id, step);
        // The leased semaphore is told once, and keeps no answers.
        if id.kind != LockKind::LeasedSemaphore {
            self.keep_answer(client, once.number, answer, kept);
        }
        answer
    }

    fn told_before(&mut self, client: &Arc<str>, change: LeaseId, kept: Duration) -> Option<i64> {
        let told = self.done.get_mut(&(Arc::clone(client), change))?;
        // A request that was sent again may be late itself.
        told.1 = self.clock + kept;
        Some(told.0)
    }

    fn keep_answer(&mut self, client: &Arc<str>, change: LeaseId, answer: i64, kept: Duration) {
        let until = self.clock + kept;
        self.done
            .insert((Arc::clone(client), change), (answer, until));
    }

    /// Of a semaphore without leases.
    pub(super) fn take(&mut self, client: &Arc<str>, step: &Acquire) -> Acquired {
        let id = &step.id;
        let granted = Acquired::Granted {
            remaining: Duration::from_millis(step.lease_ms),
            tokens: Tokens::NONE,
        };
        match self.told_before(client, step.lease, ANSWERS_KEPT) {
            Some(TAKEN) => return granted,
            // Given back already: a late copy takes nothing.
            Some(_) => return Acquired::GivenUp,
            None => {}
        }
        if let Some(permits) = step.permits {
            self.provide(id, permits);
        }
        let Some(free) = self.permits.get_mut(id) else {
            return Acquired::Unset;
        };
        if *free < count(step.access) {
            return Acquired::Held {
                unsettled: false,
                // No lease of these permits ends, so no time is a better one to look again.
                ttl: None,
                silent: false,
            };
        }
        *free -= count(step.access);
        self.keep_answer(client, step.lease, TAKEN, ANSWERS_KEPT);
        granted
    }

    /// Of a semaphore without leases.
    pub(super) fn give(&mut self, client: &Arc<str>, step: &Release) -> ReleaseReply {
        let id = &step.id;
        let told = self.told_before(client, step.lease, ANSWERS_KEPT);
        // Also where nothing was taken: a late copy of the acquisition must find it given up (B4).
        self.keep_answer(client, step.lease, GIVEN, ANSWERS_KEPT);
        if !told.map_or(step.held, |told| told == TAKEN) {
            return ReleaseReply::NotOurs;
        }
        // A number is made by no release.
        if let Some(free) = self.permits.get_mut(id) {
            *free += count(step.access);
            self.tell_all(id);
        }
        let others = self.subscribers(id).len();
        let others = others.saturating_sub(usize::from(step.listening)) as u64;
        ReleaseReply::Freed { others, turns: 0 }
    }

    /// An acquisition says how many there are from now on.
    pub(super) fn provide(&mut self, id: &LockId, step: Permits) {
        let there = self.permits.get(id).copied();
        // A request may repeat the number that is there: only another number is a change, of which waiters are told.
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
                // Fewer than none are free where the number was set below what is out.
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
                // At zero the count goes, as its key does on a server: the latch may be set anew.
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
