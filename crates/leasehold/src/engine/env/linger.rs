//! The end of a client: the last of its handles waits for what is under way.
//!
//! When `main` returns, the process ends with all its threads, also with the home, which carries out the release of a dropped guard.
//! So the drop of the last handle waits until the background work is done, for as long as the settings allow.

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
};

use crate::{callout, durations::humane, engine::core::Core};

/// How many handles of a client its callers have. Tasks at home have the core without one.
#[derive(Debug, Default)]
pub(crate) struct Handles(AtomicUsize);

/// A core in the hands of a caller: in a client, in the handle of a lock, in a future. A guard is counted by its `Held`, which has
/// no room for this.
#[derive(Debug)]
pub(crate) struct ClientRef(Arc<Core>);

impl ClientRef {
    pub(crate) fn new(core: &Arc<Core>) -> ClientRef {
        core.handle_made();
        ClientRef(Arc::clone(core))
    }
}

impl Clone for ClientRef {
    fn clone(&self) -> ClientRef {
        ClientRef::new(self)
    }
}

impl Deref for ClientRef {
    type Target = Arc<Core>;

    fn deref(&self) -> &Arc<Core> {
        &self.0
    }
}

impl Drop for ClientRef {
    fn drop(&mut self) {
        if self.handle_gone() {
            self.linger();
        }
    }
}

impl Core {
    pub(crate) fn handle_made(&self) {
        self.handles.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it was the last one. What callers on other threads have begun is seen by the one that drops it.
    pub(crate) fn handle_gone(&self) -> bool {
        self.handles.0.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Whether a caller may still ask for something.
    pub(crate) fn has_handles(&self) -> bool {
        self.handles.0.load(Ordering::Acquire) > 0
    }

    /// Blocks until no task is left, at most for as long as the settings allow.
    pub(crate) fn linger(&self) {
        let patience = self.config.linger;
        if self.tasks.is_empty() || patience.is_zero() || !self.home.may_be_waited_for() {
            return;
        }
        self.backend.bring_home(); // the runtime that this blocks takes no answer
        self.queues.wake_keepers(); // they keep a subscription for the next caller
        // Tasks are begun all the same: it only lets `wait` complete.
        self.tasks.close();
        let (under_way, done) = mpsc::channel::<()>();
        let tasks = self.tasks.clone();
        self.home.handle().spawn(async move {
            tasks.wait().await;
            drop(under_way);
        });
        if done.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            callout::quietly(|| {
                tracing::warn!(
                    target: "leasehold",
                    "releases are under way {} after the last handle of their client has gone; if the process ends now, names may stay taken until their leases end",
                    humane(patience)
                );
            });
        }
    }
}
