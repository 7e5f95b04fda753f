//! Work that is carried out to its end, whether or not its caller waits for it.
//!
//! A caller polls its own work, which costs no task. If it drops the work, that goes on in the background. If it does neither, the work stands
//! still, and with it those of its process that wait for it.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
};

use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::{engine::env::Env, name::Name};

/// See [`Env::finish`]. Dropping it leaves the rest of the work to the background runtime.
pub(crate) struct Finish<T: Send + 'static> {
    env: Arc<Env>,
    /// Until its end, or until it panicked.
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    caller: Arc<()>,
    /// It asks for a lock of this name, and gives back what it gets when its caller has gone: until then "held" may be said of that.
    asks_for: Option<Name>,
    /// A shutdown waits for it.
    _under_way: TaskTrackerToken,
}

impl<T: Send + 'static> Finish<T> {
    pub(crate) fn new(
        env: &Arc<Env>,
        under_way: TaskTrackerToken,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Finish<T> {
        Finish {
            env: Arc::clone(env),
            work: Some(Box::pin(work)),
            caller: Arc::default(),
            asks_for: None,
            _under_way: under_way,
        }
    }

    pub(crate) fn asks_for(mut self, name: &Name) -> Finish<T> {
        self.asks_for = Some(name.clone());
        self
    }

    /// There as long as the caller of this work waits for it.
    pub(crate) fn caller(&self) -> Weak<()> {
        Arc::downgrade(&self.caller)
    }
}

impl<T: Send + 'static> Future for Finish<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // Taken out while it is polled: work that panics is gone, and the drop leaves nothing of it to the background.
        let Some(mut work) = self.work.take() else {
            return Poll::Pending; // polled again after its end
        };
        let poll = work.as_mut().poll(cx);
        if poll.is_pending() {
            self.work = Some(work);
        }
        poll
    }
}

impl<T: Send + 'static> Drop for Finish<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            let settling = self.asks_for.take();
            // From here on the server may call the name held by this very attempt, which gives it back (bug 257).
            let settling = settling.map(|name| self.env.unsettled.begin(&name));
            // First, since the background runtime may be quicker than the rest of this drop.
            drop(std::mem::take(&mut self.caller));
            // Its output cleans up on its drop: a guard, an entry in the queue.
            // `_under_way` is dropped after the spawn, so a shutdown that waits sees no moment without a task.
            self.env.spawn(async move {
                drop(work.await);
                drop(settling);
            });
        }
    }
}
