//! Work that is carried out to its end, whether or not its caller goes on polling it.
//!
//! A caller polls its own work, which costs no task. If it drops the work, that goes on at home. If it does neither, as
//! `select!` with `&mut future` may do, the work still goes on at home as soon as others wait for it: see
//! [`Awaited::add`].

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::{callout, engine::core::Core};

/// Work that others wait for is taken home after this time, or after twice as long: a healthy request is answered before.
const PATIENCE: Duration = Duration::from_millis(10);

/// See [`Core::finish`]. Dropping it leaves the rest of the work to the home.
pub(crate) struct Finish<T: Send + 'static> {
    core: Arc<Core>,
    shared: Arc<SharedWork<T>>,
}

struct SharedWork<T> {
    progress: Mutex<Progress<T>>,
}

enum Progress<T> {
    /// Its caller polls it.
    WithCaller(Polled<T>),
    /// Its caller polls it at this moment.
    InPoll,
    /// The home polls it, and wakes the caller at its end.
    AtHome(Option<Waker>),
    Done(T),
    /// The output was taken, or is not wanted any more.
    Over,
}

/// Work with its caller.
struct Polled<T> {
    work: Pin<Box<dyn Future<Output = T> + Send>>,
    /// The caller's waker, called if the work ends at home.
    caller: Option<Waker>,
    /// A shutdown waits for it.
    _under_way: TaskTrackerToken,
}

/// Work of any output.
pub(crate) trait Work: Send + Sync {
    /// Goes on at home from here, unless its caller polls it at this moment: then `false`.
    fn take_home(self: Arc<Self>, core: &Core) -> bool;

    /// Whether its caller still waits for its output.
    fn is_wanted(&self) -> bool;
}

impl<T: Send + 'static> Finish<T> {
    pub(crate) fn new(
        core: &Arc<Core>,
        under_way: TaskTrackerToken,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Finish<T> {
        Finish {
            core: Arc::clone(core),
            shared: Arc::new(SharedWork {
                progress: Mutex::new(Progress::WithCaller(Polled {
                    work: Box::pin(work),
                    caller: None,
                    _under_way: under_way,
                })),
            }),
        }
    }

    /// A handle for callers that may come to wait for this work.
    pub(crate) fn work(&self) -> Weak<dyn Work> {
        let work: Weak<SharedWork<T>> = Arc::downgrade(&self.shared);
        work
    }
}

impl<T: Send + 'static> Future for Finish<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // A waker is the user's code: it is cloned before the work is taken out, and dropped after the work is back.
        let mut caller = Some(cx.waker().clone());
        let mut progress = self.shared.progress.lock();
        let poll = match std::mem::replace(&mut *progress, Progress::InPoll) {
            Progress::WithCaller(mut polled) => {
                // Not under the lock: the work calls wakers, and may call code that takes it home.
                drop(progress);
                let output = polled.work.as_mut().poll(cx);
                let after = match &output {
                    Poll::Ready(_) => Progress::Over,
                    Poll::Pending => {
                        std::mem::swap(&mut polled.caller, &mut caller);
                        Progress::WithCaller(polled)
                    }
                };
                *self.shared.progress.lock() = after;
                output
            }
            Progress::AtHome(old) => {
                *progress = Progress::AtHome(std::mem::replace(&mut caller, old));
                drop(progress);
                Poll::Pending
            }
            Progress::Done(output) => {
                *progress = Progress::Over;
                drop(progress);
                Poll::Ready(output)
            }
            // Polled again after its end, or after it panicked.
            Progress::InPoll | Progress::Over => {
                *progress = Progress::Over;
                drop(progress);
                Poll::Pending
            }
        };
        callout::quietly(|| drop(caller));
        poll
    }
}

impl<T: Send + 'static> Drop for Finish<T> {
    fn drop(&mut self) {
        let progress = std::mem::replace(&mut *self.shared.progress.lock(), Progress::Over);
        if let Progress::WithCaller(Polled { work, .. }) = progress {
            // Its output cleans up on its drop: a guard, a place in the queue.
            self.core.spawn(async move { drop(work.await) });
        }
    }
}

impl<T: Send + 'static> Work for SharedWork<T> {
    fn take_home(self: Arc<Self>, core: &Core) -> bool {
        let mut progress = self.progress.lock();
        let polled = match std::mem::replace(&mut *progress, Progress::AtHome(None)) {
            Progress::WithCaller(polled) => polled,
            other => {
                let is_over = !matches!(other, Progress::InPoll);
                *progress = other;
                return is_over;
            }
        };
        *progress = Progress::AtHome(polled.caller);
        let work = polled.work;
        drop(progress);
        core.spawn(async move {
            let output = work.await;
            let mut progress = self.progress.lock();
            if let Progress::AtHome(caller) = &mut *progress {
                let caller = caller.take();
                *progress = Progress::Done(output);
                drop(progress);
                caller.into_iter().for_each(callout::wake);
            } else {
                drop(progress);
                drop(output); // its caller has gone
            }
        });
        true
    }

    fn is_wanted(&self) -> bool {
        !matches!(*self.progress.lock(), Progress::Over)
    }
}

/// Work that others wait for, until it is done or taken home.
#[derive(Default)]
pub(crate) struct Awaited {
    list: Mutex<AwaitedWorks>,
}

#[derive(Default)]
struct AwaitedWorks {
    works: Vec<Weak<dyn Work>>,
    /// A task looks after it.
    watched: bool,
}

impl fmt::Debug for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Awaited").finish_non_exhaustive()
    }
}

impl Awaited {
    /// Has `work` taken home, if its caller does not bring it to its end soon.
    pub(crate) fn add(core: &Arc<Core>, work: Weak<dyn Work>) {
        let watched = {
            let mut list = core.awaited.list.lock();
            list.works.push(work);
            std::mem::replace(&mut list.watched, true)
        };
        if !watched {
            core.spawn(watch(Arc::downgrade(core)));
        }
    }
}

/// Ends when no work is left that others wait for.
async fn watch(core: Weak<Core>) {
    let mut works: Vec<Weak<dyn Work>> = Vec::new();
    loop {
        let Some(pause) = core.upgrade().map(|core| core.sleep(PATIENCE)) else {
            return;
        };
        pause.await;
        let Some(core) = core.upgrade() else { return };
        works.retain(|work| {
            let work = work.upgrade();
            work.is_some_and(|work| !work.take_home(&core))
        });
        let mut list = core.awaited.list.lock();
        works.append(&mut list.works);
        if works.is_empty() {
            list.watched = false;
            return;
        }
    }
}
