//! The lineups of a client, by lock; and the way of a caller that does not wait.

use std::{collections::HashMap, sync::Arc};

use crate::{
    backend::WakeUp,
    engine::fair::Lineup,
    engine::hold::spec::Spec,
    engine::local::answer::WaitResult,
    engine::queue::map::{Hashing, Queues, WaiterGroup, WaiterGroups},
    engine::queue::{Queue, enter},
    name::LockId,
    owner::LeaseId,
};
use parking_lot::Mutex;

impl LockId {
    /// Of a kind whose waiting tasks have a place each: the part of the caller's task, which its owner's other calls share, or a new one.
    pub(crate) fn for_caller(&self, spec: &Spec) -> LockId {
        /// Owners count from one, and lease ids may.
        const OF_AN_OWNER: u64 = 1 << 55;
        self.of_task(match spec.owner {
            Some(owner) => OF_AN_OWNER | owner.get(),
            None => LeaseId::next().get(),
        })
    }
}

/// The lineups of a client, by lock.
#[derive(Debug, Default)]
pub(crate) struct Lineups(Mutex<HashMap<LockId, Arc<Lineup>, Hashing>>);

impl Lineups {
    fn of(&self, id: &LockId) -> Option<Arc<Lineup>> {
        self.0.lock().get(&id.of_task(0)).map(Arc::clone)
    }

    fn all(&self) -> Vec<Arc<Lineup>> {
        let mut all: Vec<_> = self.0.lock().values().cloned().collect();
        // In the same order each time: a simulation must be able to replay it.
        all.sort_by(|a, b| a.id.cmp(&b.id));
        all
    }

    /// The keepers see whether the client has ended.
    pub(crate) fn wake_keepers(&self) {
        self.all().iter().for_each(|lineup| lineup.changed());
    }

    /// How many keepers wait for the time to ask.
    pub(crate) fn waiting_keepers(&self) -> usize {
        self.all().iter().filter(|lineup| lineup.is_kept()).count()
    }

    /// The backend heard something about a lock.
    pub(crate) fn wake(&self, core: &Arc<Queues>, id: &LockId, wake_up: WakeUp) {
        let Some(lineup) = self.of(id) else {
            return core.wake(id, wake_up);
        };
        lineup.wake(core, id.task(), &wake_up);
        let queue = match &wake_up {
            WakeUp::Granted(grant) => lineup.queue_of(grant.lease),
            _ => None,
        };
        core.heard(id, queue, wake_up);
    }
}

impl WaiterGroups for Lineups {
    fn find(&self, id: &LockId) -> Option<Arc<dyn WaiterGroup>> {
        self.of(id).map(|lineup| lineup as _)
    }

    fn tidy(&self, id: &LockId) {
        let mut lineups = self.0.lock();
        // Its last queue may have taken it out already, and another lineup may stand in its place.
        if lineups.get(id).is_some_and(|lineup| lineup.is_over()) {
            lineups.remove(id);
        }
    }

    fn add(&self, queue: &Arc<Queue>) {
        let mut lineups = self.0.lock();
        let lineup = lineups.entry(queue.id.of_task(0));
        lineup
            .or_insert_with(|| Arc::new(Lineup::new(&queue.id)))
            .add(queue);
    }

    fn remove(&self, queue: &Arc<Queue>) {
        let mut lineups = self.0.lock();
        let id = queue.id.of_task(0);
        if lineups.get(&id).is_some_and(|lineup| lineup.remove(queue)) {
            lineups.remove(&id);
        }
    }
}

/// Takes a lock whose order is the server's if it is free, and no other waits. Where another task of this process has it, the
/// server is not asked.
pub(crate) async fn try_in_turn(
    core: &Arc<Queues>,
    lineups: &Lineups,
    id: &LockId,
    spec: Spec,
) -> WaitResult {
    core.check_open()?;
    let until = enter::latest_answer(core);
    if let Some(lineup) = lineups.of(id) {
        core.by(until, lineup.released()).await;
    }
    let held = async {
        // There is one as soon as this call has its queue.
        match lineups.of(id) {
            Some(lineup) => lineup.held_by_another(id.task()).await,
            None => std::future::pending().await,
        }
    };
    // Also while it asks a server that does not answer, or waits for a release of its owner.
    tokio::select! {
        biased;
        answer = enter::ask_once(core, id, spec, until) => answer,
        () = held => Ok(enter::busy(core, id, spec, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kind::LockKind, name::Name};

    /// Its keeper looks a moment after it has ended: another thread may have made a lineup of the same lock by then.
    #[test]
    fn a_lineup_that_is_over_takes_no_other_out_of_the_map() {
        let lineups = Lineups::default();
        let id = LockId::new(LockKind::FairMutex, Name::new("name").unwrap());
        let make = || {
            let lineup = Arc::new(Lineup::new(&id));
            lineups.0.lock().insert(id.clone(), Arc::clone(&lineup));
            lineup
        };
        make();
        lineups.tidy(&id);
        assert!(lineups.of(&id).is_none());
        let next = make();
        next.state.lock().has_keeper = true;
        lineups.tidy(&id);
        assert!(Arc::ptr_eq(&next, &lineups.of(&id).expect("there is one")));
    }
}
