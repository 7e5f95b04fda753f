//! The heartbeat of a fair queue: keeps the entries of all its tasks alive, with one request for each 200, and polls when the holder's lease ends.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use crate::{
    backend::Keep,
    backoff::{Backoff, stretched},
    clock::Tick,
    engine::claim::ticket::keep_ms,
    engine::env::Env,
    engine::fair::{FairQueue, PollMessage},
    engine::queue::map::{Queues, WaiterGroup},
};

/// The subscription outlives the last waiter by this long: where a lock is wanted all the time, it is not given up and
/// taken again at each turn.
const IDLE_FOR: Duration = Duration::from_millis(200);

/// How often the server is asked. Beside clients of another library so often that a dead one costs the others no more than it may.
pub(crate) fn every(env: &Env, foreign: bool) -> Duration {
    let poll = env.config.poll_every;
    if foreign {
        poll.min(env.config.fair_wait_timeout / 2)
    } else {
        stretched(poll)
    }
}

/// Keeps the entries of a fair queue until no task of it has waited for a moment. The client may end before.
pub(crate) async fn keep(queues: Weak<Queues>, fair_queue: Arc<FairQueue>) {
    let mut idle_until = None;
    let mut backoff = Backoff::of_request();
    loop {
        // Weak, and dropped before each wait: a sleeping heartbeat keeps no client alive (L3).
        let Some(client) = queues.upgrade() else {
            return;
        };
        let now = client.clock.now();
        let handles = client.unused();
        let unused = handles.notified(); // from here on
        let (idle, poll_at) = {
            let state = fair_queue.state.lock();
            (state.listening.is_empty(), state.poll_at)
        };
        let pause = if idle || client.is_closed() {
            let until = *idle_until.get_or_insert(now.after(IDLE_FOR));
            if client.is_closed() || !client.has_handles() || now >= until {
                if end(&client, &fair_queue) {
                    return;
                }
                continue;
            }
            until.since(now)
        } else {
            idle_until = None;
            if now >= poll_at {
                poll(&client, &fair_queue, &mut backoff).await;
                continue;
            }
            poll_at.since(now)
        };
        let (over, woken) = (client.sleep(pause), fair_queue.heartbeat_wake.notified());
        drop(client);
        tokio::select! {
            biased;
            () = woken => {}
            () = unused => {}
            () = over => {}
        }
    }
}

/// Asks the server once.
async fn poll(queues: &Arc<Queues>, fair_queue: &FairQueue, backoff: &mut Backoff) {
    let sent = queues.clock.now();
    // Before the entries are read: a task that begins to wait from here on says when it wants a poll.
    fair_queue.state.lock().poll_at = Tick::MAX;
    let (entries, next_task) = fair_queue.entries(sent);
    if entries.is_empty() {
        // The tasks that wait are asking by themselves.
        let mut state = fair_queue.state.lock();
        state.poll_at = state.poll_at.min(sent.after(every(queues, false)));
        if state.message == PollMessage::Received {
            state.message = PollMessage::ForTheNext;
        }
        return;
    }
    // Before the send: a message from here on is answered by the next poll.
    fair_queue.state.lock().message = PollMessage::None;
    let step = Keep {
        id: fair_queue.id.clone(),
        entries,
        end_ms: keep_ms(queues),
    };
    match queues.backend.keep(step).await {
        Ok(kept) => {
            backoff.reset();
            fair_queue.kept(queues, &kept, sent, next_task);
        }
        Err(failure) => {
            let pause = if failure.is_final() {
                // Each asks for itself, and learns why.
                // A refusal for good is each task's own answer (L4).
                for queue in fair_queue.queues() {
                    queue.driver_wake().notify_one();
                }
                every(queues, false)
            } else {
                backoff.next()
            };
            // The earlier of the two: a message that was heard since the send asks for a poll as well.
            let mut state = fair_queue.state.lock();
            state.poll_at = state.poll_at.min(queues.clock.now().after(pause));
        }
    }
}

/// The heartbeat ends, with the subscription. `false` if a waiter came meanwhile.
fn end(queues: &Arc<Queues>, fair_queue: &Arc<FairQueue>) -> bool {
    {
        let mut state = fair_queue.state.lock();
        if !state.listening.is_empty() && !queues.is_closed() {
            return false;
        }
        state.has_heartbeat = false;
        state.foreign = false;
        // Also one that is still being opened, whose task then asks again: it may come about at any time.
        state.subscription.ended();
        // Under the lock: a task that comes next subscribes behind this, and is not unsubscribed by it.
        drop(queues.backend.unlisten(&fair_queue.id));
    }
    queues.groups.tidy(&fair_queue.id);
    true
}
