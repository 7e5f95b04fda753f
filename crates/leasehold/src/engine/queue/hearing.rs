//! How the queue of a name hears of the server: wake-ups, their loss, and the end of a subscription.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;

use crate::{
    backend::{Failure, Reply},
    callout,
    clock::Tick,
    engine::claim::remote::Subscription,
    engine::queue::map::Queues,
    engine::queue::{Phase, Queue, QueueState},
    name::Name,
};

/// How often a release looks whether a client waits on a classic channel, where ours are sharded (Redisson before 3.27): neither wakes the other.
const LOOK_EVERY: Duration = Duration::from_secs(5);

impl Queue {
    /// After a release: whether a client waits that was not told of it.
    pub(super) fn look_for_classic(&self, core: &Arc<Queues>) {
        let backend = &core.backend;
        if !backend.is_sharded() || !core.classic[0].may(core.clock.now(), LOOK_EVERY) {
            return;
        }
        let (name, heard) = (self.id.name.clone(), backend.classic_listeners(&self.id));
        let queues = Arc::clone(core);
        core.spawn_apart(async move {
            if heard.await.is_ok_and(|clients| clients > 0) {
                queues.warn_of_classic(&name, "a client waits on a classic channel");
            }
        });
    }

    /// A waiter has the name, and no message said that it is free.
    pub(super) fn freed_unheard(&self, core: &Arc<Queues>) {
        if core.backend.is_sharded() {
            let (name, queues) = (self.id.name.clone(), Arc::clone(core));
            // Not under the queue's lock.
            core.spawn_apart(async move {
                queues.warn_of_classic(&name, "it became free without a message");
            });
        }
    }

    /// Those that wait are answered, and do not hear: each look ends that trouble and begins another, so it is told once in a while, of
    /// all that wait. A server that cannot be used at all is told of by itself.
    pub(crate) fn warn_of_deafness(&self, core: &Queues, failure: &Failure) {
        let (name, cause) = (self.id.name.clone(), Arc::clone(failure.cause()));
        let is_outage =
            core.backend.outage().is_on() || core.backend.trouble_of(&self.id).is_some();
        if is_outage || !core.warned_of_deafness.may_warn(core.clock.now()) {
            return;
        }
        // Not under the queue's lock: a subscriber may wait for a thread that waits for that.
        core.spawn(async move {
            callout::quietly(|| {
                tracing::warn!(target: "leasehold", %name, %cause, "cannot hear when the name is free, and polls");
            });
        });
    }

    /// The driver is told to ask the server: now, or when the lease of the holder that it watches is over.
    pub(crate) fn look(&self, watched: Option<Tick>) {
        let mut state = self.lock();
        if !matches!(state.phase, Phase::Idle | Phase::Held(_)) {
            if let Some(remote) = &mut state.remote {
                remote.watched = watched;
            }
            self.driver_wake().notify_one();
        }
    }

    /// The server does not let this client hear wake-ups for the name any more: its driver has to subscribe again.
    pub(crate) fn became_deaf(&self) {
        let mut state = self.lock();
        let Some(remote) = &mut state.remote else {
            return;
        };
        match remote.subscription {
            Subscription::Open => {
                remote.subscription = Subscription::Closed;
                self.driver_wake().notify_one();
            }
            // Its driver waits for the answer, or has it and has not read it yet.
            Subscription::Opening => remote.subscription = Subscription::Doubtful,
            Subscription::Doubtful | Subscription::Closed => {}
        }
    }

    /// From now on this task hears what clients of Redisson's say to it alone. `None`: it does not wait, or hears that already.
    pub(crate) fn hear_own(self: &Arc<Self>) -> Option<Reply<()>> {
        let (old, own) = {
            let mut state = self.lock();
            let remote = state.remote();
            let lease = remote.ticket.as_ref()?.lease();
            if remote.own == Some(lease) {
                return None;
            }
            (remote.own.replace(lease), lease)
        };
        let backend = &self.core.backend;
        if let Some(old) = old {
            drop(backend.unlisten(&self.id.of_task(old.get())));
        }
        let (queue, id) = (Arc::clone(self), self.id.of_task(own.get()));
        let heard = sent(backend.listen(id.clone()));
        Some(Box::pin(async move {
            let answer = heard.await;
            let remote = queue.lock().remote.as_ref().and_then(|remote| remote.own);
            if remote != Some(own) {
                // It has left meanwhile, and the answer may be late or lost.
                drop(queue.core.backend.unlisten(&id));
            }
            answer
        }))
    }

    /// Without waiters there is nothing to hear. The reply says when the server has taken note; it may be dropped.
    pub(crate) fn stop_listening(
        &self,
        core: &Arc<Queues>,
        state: &mut QueueState,
    ) -> Option<Reply<()>> {
        let remote = state.remote.as_mut()?;
        if !state.waiters.is_empty() {
            return None;
        }
        // Also one that is still being opened: it may come about at any time.
        let before = std::mem::replace(&mut remote.subscription, Subscription::Closed);
        if self.id.is_of_task() {
            // Also after a refusal, which closes this task's part and leaves it among those that listen.
            if let Some(own) = remote.own.take() {
                drop(core.backend.unlisten(&self.id.of_task(own.get())));
            }
            if let Some(lineup) = core.lineup(&self.id) {
                lineup.unlisten(self.id.task());
            }
            return None;
        }
        (before != Subscription::Closed).then(|| core.backend.unlisten(&self.id))
    }
}

/// A request that has left when this returns: what is asked for later comes behind it.
pub(crate) fn sent<T: Send + 'static>(mut reply: Reply<T>) -> Reply<T> {
    match (&mut reply).now_or_never() {
        Some(answer) => Box::pin(std::future::ready(answer)),
        None => reply,
    }
}

impl Queues {
    fn warn_of_classic(&self, name: &Name, sign: &str) {
        if self.classic[1].may_warn(self.clock.now()) {
            callout::quietly(|| {
                tracing::warn!(target: "leasehold", %name, "{sign}, and ours are sharded: clients of one lock that differ in that do not \
                    wake each other. Redisson before 3.27 in cluster mode uses classic ones: say sharded_channels(false) in all programs of ours");
            });
        }
    }
}
