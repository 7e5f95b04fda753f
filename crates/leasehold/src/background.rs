//! Where the background work of a client runs, and which runtime's timers it uses.
//!
//! A lease must be renewed whether or not its holder's runtime makes progress. So everything that a client of a real
//! server does by itself (renewals, wake-ups, reconnecting, releases in the background) runs on one thread of this
//! process, which only this library uses: a runtime of the user may be blocked, busy or ended without effect on any
//! lease. The thread starts with the first client and stays as long as the process.
//!
//! A client of a memory server lives on tokio time, which a test may pause. Its background runtime is the one that
//! connected it.

use std::{
    future::{Future, pending, poll_fn},
    io,
    pin::{Pin, pin},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    task::Poll,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{
    runtime::{Builder, Handle, Id},
    time::{Instant as TokioInstant, Sleep},
};

/// Where the background work of a client runs.
#[derive(Clone, Debug)]
pub(crate) enum BackgroundRuntime {
    /// The thread of this process.
    Thread(Arc<Thread>),
    /// The runtime that connected.
    Runtime(Handle),
}

/// A thread that runs a runtime of its own.
#[derive(Debug)]
pub(crate) struct Thread {
    runtime: Handle,
    alive: Arc<AtomicBool>,
    /// The clients to tell when it ends.
    clients: Arc<Clients>,
    /// A fork copies everything but the thread.
    process: u32,
}

/// A part of a client that lives in the background, and must be told when the thread ends.
pub(crate) trait Resident: std::fmt::Debug + Send + Sync {
    fn thread_gone(&self);
}

type Clients = Mutex<Vec<Weak<dyn Resident>>>;

/// The client's thread is not there.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the thread of this client is gone")]
pub(crate) struct ThreadGone;

/// The one of this process.
static THREAD: Mutex<Option<Arc<Thread>>> = Mutex::new(None);

/// Another, for clients of memory whose callers block: they have no runtime to live on.
#[cfg(feature = "blocking")]
static OF_MEMORY: Mutex<Option<Arc<Thread>>> = Mutex::new(None);

impl BackgroundRuntime {
    /// The thread of this process, started if it is not there.
    pub(crate) fn thread() -> io::Result<BackgroundRuntime> {
        Ok(BackgroundRuntime::Thread(Thread::shared(&THREAD)?))
    }

    /// A runtime that a client of memory may live on: the caller of this has none, or none that is driven.
    #[cfg(feature = "blocking")]
    pub(crate) fn of_memory() -> io::Result<BackgroundRuntime> {
        Ok(BackgroundRuntime::Runtime(
            Thread::shared(&OF_MEMORY)?.runtime.clone(),
        ))
    }

    /// The runtime that calls this.
    pub(crate) fn here() -> BackgroundRuntime {
        BackgroundRuntime::Runtime(Handle::current())
    }

    pub(crate) fn handle(&self) -> &Handle {
        match self {
            BackgroundRuntime::Thread(thread) => &thread.runtime,
            BackgroundRuntime::Runtime(runtime) => runtime,
        }
    }

    /// Fails if the client's thread has ended. Costs an atomic load.
    pub(crate) fn check(&self) -> Result<(), ThreadGone> {
        match self {
            BackgroundRuntime::Thread(thread) if !thread.is_alive() => Err(ThreadGone),
            _ => Ok(()),
        }
    }

    /// Fails also if this process is a fork of the one where the thread runs. Costs a system call.
    pub(crate) fn check_process(&self) -> Result<(), ThreadGone> {
        match self {
            BackgroundRuntime::Thread(thread) if !thread.is_in_this_process() => Err(ThreadGone),
            _ => Ok(()),
        }
    }

    /// Whether the thread that calls this may block until the background runtime has done something: it is another thread, of the same process.
    pub(crate) fn may_be_waited_for(&self) -> bool {
        match self {
            BackgroundRuntime::Thread(thread) => {
                // A thread that waited for its own runtime would wait for ever.
                thread.is_in_this_process() && here() != Some(thread.runtime.id())
            }
            // The caller may be all that runs it.
            BackgroundRuntime::Runtime(_) => false,
        }
    }

    /// Tells the resident when the thread ends, which is a bug: only a panic ends it.
    pub(crate) fn tell_at_end(&self, resident: Weak<dyn Resident>) {
        if let BackgroundRuntime::Thread(thread) = self {
            let mut clients = thread.clients.lock();
            // The thread stays as long as the process, and clients come and go.
            clients.retain(|client| client.strong_count() > 0);
            clients.push(resident);
        }
    }

    /// Completes after `time`, from now, by a timer of the background runtime. Any runtime may poll it, even after one that polled it
    /// before has ended.
    pub(crate) fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send + use<> {
        // The time runs from here, not from the first poll.
        let (background, end) = (self.clone(), self.end(time));
        async move { background.timer(end, Timer::OfBackground).await }
    }

    /// Completes after `time`, from now, by a timer of the runtime that polls it: also if the background runtime's thread has ended.
    pub(crate) async fn sleep_here(&self, time: Duration) {
        let end = end_of(TokioInstant::now(), time);
        self.timer(end, Timer::OfWhoPolls).await;
    }

    /// The output of `work`, or `None` if that takes longer than `time`, measured as [`sleep`](BackgroundRuntime::sleep) does.
    pub(crate) async fn within<F: Future>(&self, time: Duration, work: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            // An answer that is there counts, also if the time is up in the same poll.
            output = work => Some(output),
            () = self.timer(self.end(time), Timer::OfBackground) => None,
        }
    }

    /// The same, measured as [`sleep_here`](BackgroundRuntime::sleep_here) does, which is the cheapest for a caller on a runtime.
    /// Takes a pointer, so that the work is not moved about.
    pub(crate) async fn within_here<F: Future>(
        &self,
        time: Duration,
        work: Pin<&mut F>,
    ) -> Option<F::Output> {
        let end = end_of(TokioInstant::now(), time);
        tokio::select! {
            biased;
            output = work => Some(output),
            () = self.timer(end, Timer::OfWhoPolls) => None,
        }
    }

    fn end(&self, time: Duration) -> TokioInstant {
        let now = match self {
            // Its clock is never paused, even where the clock of the caller's runtime is.
            BackgroundRuntime::Thread(_) => TokioInstant::from_std(Instant::now()),
            BackgroundRuntime::Runtime(_) => TokioInstant::now(),
        };
        end_of(now, time)
    }

    /// A tokio timer belongs to one runtime, and panics when it is polled after that one has ended. So it is made
    /// anew whenever it would be polled where it does not belong.
    async fn timer(&self, end: TokioInstant, whose: Timer) {
        loop {
            let Some(place) = self.place(whose) else {
                return pending().await; // no thread and no runtime, so no time
            };
            // Made anew with the same end: a timer that changes its runtime does not begin again.
            let mut timer = pin!(place.timer(end));
            let over = poll_fn(|cx| {
                if place.holds() {
                    timer.as_mut().poll(cx).map(|()| true)
                } else {
                    Poll::Ready(false)
                }
            });
            if over.await {
                return;
            }
        }
    }

    /// Which runtime's timer to use now.
    fn place(&self, whose: Timer) -> Option<TimerPlace<'_>> {
        let thread = match self {
            BackgroundRuntime::Thread(thread) if thread.is_alive() => Some(thread),
            _ => None,
        };
        if let (Timer::OfBackground, Some(thread)) = (whose, thread) {
            return Some(TimerPlace::Thread(thread));
        }
        match (here(), thread, self) {
            // The runtime that polls is the one that surely runs: a thread may have ended, and so may the runtime that connected.
            (Some(here), _, _) => Some(TimerPlace::Here(here)),
            (None, Some(thread), _) => Some(TimerPlace::Thread(thread)),
            (None, None, BackgroundRuntime::Runtime(runtime)) => Some(TimerPlace::Nowhere(runtime)),
            (None, None, BackgroundRuntime::Thread(_)) => None,
        }
    }
}

/// The runtime that polls this.
fn here() -> Option<Id> {
    Handle::try_current().ok().map(|here| here.id())
}

/// To which runtime a timer belongs.
enum TimerPlace<'a> {
    Thread(&'a Thread),
    /// The runtime that polls it.
    Here(Id),
    /// No runtime polls it; this one is asked to.
    Nowhere(&'a Handle),
}

impl TimerPlace<'_> {
    fn timer(&self, end: TokioInstant) -> Sleep {
        // tokio takes the runtime of a timer from the context in which it is made, so this stays until the timer is there.
        let _its = match self {
            TimerPlace::Thread(thread) => Some(thread.runtime.enter()),
            TimerPlace::Here(_) => None,
            TimerPlace::Nowhere(runtime) => Some(runtime.enter()),
        };
        sleep_until(end)
    }

    /// Whether the timer may still be polled, here and now.
    fn holds(&self) -> bool {
        match self {
            TimerPlace::Thread(thread) => thread.is_alive(),
            TimerPlace::Here(runtime) => here() == Some(*runtime),
            TimerPlace::Nowhere(_) => here().is_none(),
        }
    }
}

/// A timer of the runtime that makes it, and polls it: for tasks that live in the background.
pub(crate) fn sleep_until(end: TokioInstant) -> Sleep {
    #[cfg(feature = "sim")]
    crate::world::set_timer(end);
    tokio::time::sleep_until(end)
}

#[derive(Clone, Copy)]
enum Timer {
    OfBackground,
    OfWhoPolls,
}

/// `time` after `now`; a time too long for the clock counts as thirty years.
fn end_of(now: TokioInstant, time: Duration) -> TokioInstant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    now.checked_add(time).unwrap_or_else(|| now + FAR)
}

impl Thread {
    /// The thread at this place, started if it is not there.
    fn shared(place: &Mutex<Option<Arc<Thread>>>) -> io::Result<Arc<Thread>> {
        // Held while the thread starts: two clients that connect at the same time must not start one each.
        let mut present = place.lock();
        if let Some(thread) = &*present
            && thread.is_in_this_process()
        {
            return Ok(Arc::clone(thread));
        }
        // In a fork the thread of before is still named here, and does not run: this process starts its own.
        let thread = Arc::new(Thread::start(pending())?);
        *present = Some(Arc::clone(&thread));
        Ok(thread)
    }

    /// Runs until `end`.
    fn start(end: impl Future<Output = ()> + Send + 'static) -> io::Result<Thread> {
        let alive = Arc::new(AtomicBool::new(true));
        let clients = Arc::<Clients>::default();
        let at_end = Ended(Arc::clone(&alive), Arc::clone(&clients));
        // The new thread makes the runtime: it must not be dropped inside a runtime of the user.
        let (told, heard) = mpsc::channel();
        std::thread::Builder::new()
            .name(NAME.to_owned())
            .spawn(move || {
                let built = Builder::new_current_thread()
                    .enable_all()
                    .thread_name(NAME)
                    .build();
                match built {
                    Ok(runtime) => {
                        let _ = told.send(Ok(runtime.handle().clone()));
                        // Before the runtime, so that no timer of it is polled after its end.
                        let _at_end = at_end;
                        runtime.block_on(end);
                    }
                    Err(error) => drop(told.send(Err(error))),
                }
            })?;
        let runtime = heard.recv().map_err(io::Error::other)??;
        Ok(Thread {
            runtime,
            alive,
            clients,
            process: std::process::id(),
        })
    }

    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    fn is_in_this_process(&self) -> bool {
        self.is_alive() && self.process == std::process::id()
    }
}

/// The name of the thread, as a debugger shows it.
const NAME: &str = "leasehold";

struct Ended(Arc<AtomicBool>, Arc<Clients>);

impl Drop for Ended {
    fn drop(&mut self) {
        let Ended(alive, clients) = self;
        // First: a waiter that is answered may ask again at once, and must find the thread gone.
        alive.store(false, Ordering::Release);
        // Taken out, so that none of them is called under the lock: a client that fails its waiters runs wakers of users.
        let clients = std::mem::take(&mut *clients.lock());
        for client in clients.iter().filter_map(Weak::upgrade) {
            client.thread_gone();
        }
    }
}

#[cfg(test)]
mod tests;
