//! The fair queues of a client, by lock; and the way of a caller that does not wait.

use std::{collections::HashMap, sync::Arc};

use crate::{
    backend::WakeUp,
    engine::fair::FairQueue,
    engine::hold::spec::Spec,
    engine::local::answer::WaitResult,
    engine::queue::map::{Hashing, Queues, WaiterGroup, WaiterGroups},
    engine::queue::{Queue, enter},
    name::LockId,
    owner::LeaseId,
};
use parking_lot::Mutex;

impl LockId {
    /// Of a kind whose waiting tasks have an entry each: the part of the caller's task, which its owner's other calls share, or a new one.
    pub(crate) fn for_caller(&self, spec: &Spec) -> LockId {
        /// Owners count from one, and lease ids may.
        const OF_AN_OWNER: u64 = 1 << 55;
        self.of_task(match spec.owner {
            Some(owner) => OF_AN_OWNER | owner.get(),
            None => LeaseId::next().get(),
        })
    }
}

/// The fair queues of a client, by lock.
#[derive(Debug, Default)]
pub(crate) struct FairQueues(Mutex<HashMap<LockId, Arc<FairQueue>, Hashing>>);

impl FairQueues {
    fn of(&self, id: &LockId) -> Option<Arc<FairQueue>> {
        self.0.lock().get(&id.of_task(0)).map(Arc::clone)
    }

    fn all(&self) -> Vec<Arc<FairQueue>> {
        let mut all: Vec<_> = self.0.lock().values().cloned().collect();
        // In the same order each time: a simulation must be able to replay it.
        all.sort_by(|a, b| a.id.cmp(&b.id));
        all
    }

    /// The heartbeats see whether the client has ended.
    pub(crate) fn wake_heartbeats(&self) {
        self.all()
            .iter()
            .for_each(|fair_queue| fair_queue.changed());
    }

    /// How many heartbeats wait for the time to ask.
    pub(crate) fn waiting_heartbeats(&self) -> usize {
        self.all()
            .iter()
            .filter(|fair_queue| fair_queue.is_kept())
            .count()
    }

    /// The backend heard something about a lock.
    pub(crate) fn wake(&self, queues: &Arc<Queues>, id: &LockId, wake_up: WakeUp) {
        let Some(fair_queue) = self.of(id) else {
            // No task waits any more: `queues` gives back a grant that is heard now (B3).
            return queues.wake(id, wake_up);
        };
        fair_queue.wake(queues, id.task(), &wake_up);
        let queue = match &wake_up {
            WakeUp::Granted(grant) => fair_queue.queue_of(grant.lease),
            _ => None,
        };
        queues.heard(id, queue, wake_up);
    }
}

impl WaiterGroups for FairQueues {
    fn find(&self, id: &LockId) -> Option<Arc<dyn WaiterGroup>> {
        self.of(id).map(|fair_queue| fair_queue as _)
    }

    fn tidy(&self, id: &LockId) {
        let mut fair_queues = self.0.lock();
        // Its last queue may have taken it out already, and another fair queue may stand in its place.
        if fair_queues
            .get(id)
            .is_some_and(|fair_queue| fair_queue.is_over())
        {
            fair_queues.remove(id);
        }
    }

    fn add(&self, queue: &Arc<Queue>) {
        let mut fair_queues = self.0.lock();
        let fair_queue = fair_queues.entry(queue.id.of_task(0));
        fair_queue
            .or_insert_with(|| Arc::new(FairQueue::new(&queue.id)))
            .add(queue);
    }

    fn remove(&self, queue: &Arc<Queue>) {
        let mut fair_queues = self.0.lock();
        let id = queue.id.of_task(0);
        if fair_queues
            .get(&id)
            .is_some_and(|fair_queue| fair_queue.remove(queue))
        {
            fair_queues.remove(&id);
        }
    }
}

/// Takes a lock whose order is the server's if it is free, and no other waits. Where another task of this process has it, the
/// server is not asked.
pub(crate) async fn try_in_turn(
    queues: &Arc<Queues>,
    fair_queues: &FairQueues,
    id: &LockId,
    spec: Spec,
) -> WaitResult {
    queues.check_open()?;
    let until = enter::latest_answer(queues);
    if let Some(fair_queue) = fair_queues.of(id) {
        // Else the server might say held of a lock that this process gives back, or of an entry that it leaves (bug 168).
        queues.by(until, fair_queue.released()).await;
    }
    let held = async {
        // There is one as soon as this call has its queue.
        match fair_queues.of(id) {
            Some(fair_queue) => fair_queue.held_by_another(id.task()).await,
            None => std::future::pending().await,
        }
    };
    // Also while it asks a server that does not answer, or waits for a release of its owner.
    tokio::select! {
        biased;
        answer = enter::ask_once(queues, id, spec, until) => answer,
        () = held => Ok(enter::busy(queues, id, spec, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kind::LockKind, name::Name};

    /// Its heartbeat polls a moment after it has ended: another thread may have made a fair queue of the same lock by then.
    #[test]
    fn a_fair_queue_that_is_over_takes_no_other_out_of_the_map() {
        let fair_queues = FairQueues::default();
        let id = LockId::new(LockKind::FairMutex, Name::new("name").unwrap());
        let make = || {
            let fair_queue = Arc::new(FairQueue::new(&id));
            fair_queues
                .0
                .lock()
                .insert(id.clone(), Arc::clone(&fair_queue));
            fair_queue
        };
        make();
        fair_queues.tidy(&id);
        assert!(fair_queues.of(&id).is_none());
        let next = make();
        next.state.lock().has_heartbeat = true;
        fair_queues.tidy(&id);
        assert!(Arc::ptr_eq(
            &next,
            &fair_queues.of(&id).expect("there is one")
        ));
    }
}
