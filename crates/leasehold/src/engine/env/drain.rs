//! The end of a client: the last of its handles waits for what is under way.
//!
//! When `main` returns, the process ends with all its threads, also with the background runtime, which carries out the release of a dropped guard.
//! So the drop of the last handle waits until the background work is done, for as long as the settings allow.

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{self, RecvTimeoutError},
    },
};

use tokio::sync::Notify;

use crate::{durations::humane, engine::env::Env, user_callback};

/// A part of a client in the hands of a caller: in a client, in the handle of a lock, in a future. A guard is counted by its `Held`,
/// which has no room for this.
#[derive(Debug)]
pub(crate) struct CallerRef<T: AsRef<Env>>(Arc<T>);

impl<T: AsRef<Env>> CallerRef<T> {
    pub(crate) fn new(part: &Arc<T>) -> CallerRef<T> {
        part.as_ref().as_ref().handle_made();
        CallerRef(Arc::clone(part))
    }
}

impl<T: AsRef<Env>> Clone for CallerRef<T> {
    fn clone(&self) -> CallerRef<T> {
        CallerRef::new(self)
    }
}

impl<T: AsRef<Env>> Deref for CallerRef<T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        &self.0
    }
}

impl<T: AsRef<Env>> Drop for CallerRef<T> {
    fn drop(&mut self) {
        let env: &Env = self.0.as_ref().as_ref();
        if env.handle_gone() {
            env.drain();
        }
    }
}

impl AsRef<Env> for Env {
    fn as_ref(&self) -> &Env {
        self
    }
}

impl Env {
    pub(crate) fn handle_made(&self) {
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it was the last handle. The thread that drops it sees all that callers on other threads have begun.
    pub(crate) fn handle_gone(&self) -> bool {
        self.handles.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Whether a caller may still ask for something.
    pub(crate) fn has_handles(&self) -> bool {
        self.handles.load(Ordering::Acquire) > 0
    }

    /// Tells its waiters when the last handle has gone.
    pub(crate) fn unused(&self) -> Arc<Notify> {
        Arc::clone(&self.unused)
    }

    /// Blocks until no task is left, at most for as long as the settings allow.
    pub(crate) fn drain(&self) {
        let patience = self.config.linger;
        if self.tasks.is_empty() || patience.is_zero() || !self.background.may_be_waited_for() {
            return;
        }
        self.backend.move_to_background(); // the runtime that this blocks takes no answer
        self.unused.notify_waiters(); // a heartbeat keeps a subscription for the next caller
        let done = self.all_done();
        // Nothing is sent: the drop of the sender tells the end, also when the task is dropped with its runtime.
        let (under_way, over) = mpsc::channel::<()>();
        // Not among the tasks that it waits for, or it would wait for itself.
        self.spawn_apart(async move {
            done.await;
            drop(under_way);
        });
        if over.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            user_callback::catch_panic(|| {
                tracing::warn!(
                    target: "leasehold",
                    "releases are under way {} after the last handle of their client has gone; if the process ends now, names may stay taken until their leases end",
                    humane(patience)
                );
            });
        }
    }
}
