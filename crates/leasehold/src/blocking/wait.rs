//! How a thread waits for a future: it polls the future itself, and parks until it is woken. No task, no second runtime.
//!
//! Invariants:
//! - While it polls it has entered the background runtime of the client, whose driver always runs. A timer or a socket of the caller's runtime would
//!   not be looked at while this thread is parked.
//! - A thread that a tokio scheduler polls does not wait here: the tasks beside it, and maybe what it waits for, would stand still.

use std::{
    future::Future,
    panic::{self, AssertUnwindSafe},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use parking_lot::{Condvar, Mutex};
use tokio::{runtime::Handle, task::coop};

use crate::{Error, background::BackgroundRuntime, error::Invalid};

/// The output of a future, polled on this thread, or why this thread must not wait.
pub(super) fn wait<F: Future>(
    background: &BackgroundRuntime,
    future: F,
) -> Result<F::Output, Error> {
    check_thread()?;
    // In a fork the background thread is not there, and nothing would wake this thread.
    background
        .check_process()
        .map_err(|_gone| Error::ThreadGone)?;
    check_runtime(background)?;
    let _background = background.handle().enter();
    let parker = Arc::<Parker>::default();
    let waker = Waker::from(Arc::clone(&parker));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        let polled = panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx)));
        match polled {
            Ok(Poll::Ready(output)) => return Ok(output),
            Ok(Poll::Pending) => {}
            Err(panicked) => {
                // A timer of a runtime that ended just after the look below. Any other panic is the user's.
                check_runtime(background)?;
                panic::resume_unwind(panicked);
            }
        }
        parker.park();
        // Its end wakes who waits by its timers, and to poll those then is a panic.
        check_runtime(background)?;
    }
}

/// Refuses a runtime that has ended: a client of memory lives on the one that connected it.
fn check_runtime(background: &BackgroundRuntime) -> Result<(), Error> {
    let BackgroundRuntime::Runtime(runtime) = background else {
        return Ok(());
    };
    // A task that never ends has an end at once only where no runtime takes it.
    let probe = runtime.spawn(std::future::pending::<()>());
    let has_ended = probe.is_finished();
    probe.abort();
    if has_ended {
        Err(Error::ThreadGone)
    } else {
        Ok(())
    }
}

/// Work of the user's that is polled while this thread waits: in the runtime that it has now, if there is one, not in the background runtime.
pub(super) fn on_this_runtime<T>(work: impl FnOnce() -> T) -> impl Future<Output = T> {
    let here = Handle::try_current().ok();
    async move {
        let _here = here.as_ref().map(Handle::enter);
        work()
    }
}

/// Refuses a thread that must not wait.
pub(super) fn check_thread() -> Result<(), Error> {
    let (place, remedy) = match Handle::try_current() {
        Err(error) if error.is_thread_local_destroyed() => (
            "made while its thread ends",
            "give locks back before: the drop of a guard never waits for the server",
        ),
        // Without a handle there is no scheduler.
        Err(_) => return Ok(()),
        Ok(_) if !is_polled() => return Ok(()),
        Ok(_) => (
            "made where a tokio scheduler polls",
            "use the async API there, or spawn_blocking",
        ),
    };
    let invalid = Invalid::new("a blocking call", place, "on a thread that may wait");
    Err(invalid.remedy(remedy).into())
}

/// More than the budget of a task.
const BUDGET_MOST: usize = 256;

/// Whether a tokio scheduler polls this thread. A future that it polls has a budget of progress; in `spawn_blocking`, in `block_in_place`
/// and on a plain thread there is no limit.
fn is_polled() -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    let mut first = None;
    for _ in 0..BUDGET_MOST {
        match coop::poll_proceed(&mut cx) {
            Poll::Pending => return true, // and the drop of the first gives all back
            Poll::Ready(taken) if first.is_none() => first = Some(taken),
            // The first one remembers what there was before all.
            Poll::Ready(taken) => taken.made_progress(),
        }
    }
    false
}

/// Where a thread sleeps until its future is to be polled. Not `std::thread::park`: its token may be meant for code of the user.
#[derive(Default)]
struct Parker {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Parker {
    fn park(&self) {
        let mut woken = self.woken.lock();
        // A condition variable may wake without a cause, and the wake-up may have come before.
        while !*woken {
            self.changed.wait(&mut woken);
        }
        *woken = false;
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.woken.lock() = true;
        self.changed.notify_one();
    }
}
