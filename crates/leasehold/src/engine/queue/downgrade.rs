//! A hold that writes goes on as a reader's: the last of its guards that could write is gone, and others read on.
//!
//! It keeps its lease id, and the server keeps at least a reader's hold for it all the time. In this process it is a reader's
//! before the server is told; a lease id that reads never writes again, so a late copy of the request changes nothing (B4).

use std::sync::Arc;

use crate::{
    Error, Released,
    backend::Downgrade,
    backoff::Backoff,
    callout,
    clock::Tick,
    engine::env::finish::Finish,
    engine::hold::Hold,
    engine::local::sharers::is_fresh,
    engine::queue::map::Queues,
    engine::queue::{Phase, Queue, Start},
};

/// A downgrade on its way to the server.
pub(crate) struct Downgrading {
    queue: Arc<Queue>,
    hold: Arc<Hold>,
    began: Tick,
}

/// Only guards that read are left of `hold`: from here on it is shared in this process. `None` if it is over, or if a guard that may
/// write has come meanwhile.
pub(crate) fn begin_downgrade(queue: &Arc<Queue>, hold: &Arc<Hold>) -> Option<Downgrading> {
    let core = &queue.core;
    let now = core.clock.now();
    let mut state = queue.lock();
    let wrote = matches!(&state.phase, Phase::Held(there) if Arc::ptr_eq(there, hold));
    if !wrote || !hold.turn_to_read() {
        return None;
    }
    state.shared.add(hold);
    if is_fresh(hold, &hold.spec(), now) {
        state.admit_readers(hold);
    }
    queue.go_on(core, state, Start::Ask);
    Some(Downgrading {
        queue: Arc::clone(queue),
        hold: Arc::clone(hold),
        began: now,
    })
}

impl Downgrading {
    /// For a caller that waits for the answer.
    pub(crate) fn finish(self) -> Finish<Result<Released, Error>> {
        let core = Arc::clone(&self.queue.core);
        core.finish(async move {
            let hold = Arc::clone(&self.hold);
            self.run().await;
            let holds = hold.counted();
            Ok(Released::StillHeld { holds })
        })
    }

    /// For a guard that was dropped.
    pub(crate) fn in_background(self) {
        let core = Arc::clone(&self.queue.core);
        core.spawn(self.run_on());
    }

    /// Tells the server, for the operation timeout here, and after that in the background.
    async fn run(self) {
        let core = Arc::clone(&self.queue.core);
        let mut backoff = Backoff::of_request();
        while !self.send(&core).await {
            if core.clock.now().since(self.began) >= core.config.operation_timeout {
                return self.in_background();
            }
            core.sleep(backoff.next()).await;
        }
    }

    /// Goes on telling the server, for as long as the hold lasts.
    async fn run_on(self) {
        let core = Arc::clone(&self.queue.core);
        let mut backoff = Backoff::of_request();
        while !self.send(&core).await {
            core.sleep(backoff.next()).await;
        }
    }

    /// Sends it once. Whether nothing is left to do.
    async fn send(&self, core: &Arc<Queues>) -> bool {
        let hold = &self.hold;
        if hold.is_over() {
            return true; // its release takes it from the server in whichever form
        }
        let step = Downgrade {
            id: hold.id().clone(),
            lease: hold.lease,
            holds: hold.counted(),
        };
        match core.backend.downgrade(step).await {
            Ok(true) => true,
            Ok(false) => {
                hold.lose(hold.not_ours());
                true
            }
            Err(failure) if failure.is_final() => {
                callout::quietly(|| {
                    tracing::warn!(target: "leasehold", name = %hold.id().name, cause = %failure.cause(), "not downgraded: others wait for its release");
                });
                true
            }
            Err(_) => false,
        }
    }
}
