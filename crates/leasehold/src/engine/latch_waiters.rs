//! The waiters of this process for latches: nothing is held, all wait for one number to be zero.
//!
//! A latch that is waited for has one list of waiters, however many tasks wait. Its driver subscribes once, reads the count, and sleeps until
//! a wake-up, the poll interval, or another waiter comes; one reading of zero answers all that came before it was
//! sent. A message alone opens nothing: it may be late, and about a count that has been set anew since.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::{
    Error,
    backend::{Failure, Permits, WakeUp},
    background::Resident,
    backoff::{Backoff, stretched},
    clock::Tick,
    engine::claim::subscription::Subscription,
    engine::env::Env,
    engine::local::answer,
    engine::local::answer::{AnswerFuture, Answerer},
    name::LockId,
    user_callback,
};

/// The waiters for the latches of a client, by name.
#[derive(Debug)]
pub(crate) struct AllLatchWaiters {
    env: Arc<Env>,
    by_name: Mutex<BTreeMap<LockId, Arc<LatchWaiters>>>,
}

/// The waiters for one latch.
#[derive(Debug)]
struct LatchWaiters {
    id: LockId,
    state: Mutex<State>,
    /// Rung by a wake-up, by a waiter that comes, and by the last one that leaves.
    bell: Notify,
    /// The driver waits for the bell.
    waits: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// By number, which grows and is never given twice.
    waiters: BTreeMap<u64, Answerer>,
    next: u64,
    /// When the server last said that the count is not zero.
    said: Option<Tick>,
    /// Why it gives no usable answer, since then.
    trouble: Option<Failure>,
    subscription: Subscription,
}

/// A wait for a latch. Dropping it leaves.
struct LatchWait {
    of_latch: Arc<LatchWaiters>,
    number: u64,
    answered: AnswerFuture,
}

impl Resident for AllLatchWaiters {
    fn thread_gone(&self) {
        self.close(&Error::ThreadGone);
    }
}

impl Drop for LatchWait {
    fn drop(&mut self) {
        let mut state = self.of_latch.state.lock();
        // Its waker is the user's code, and is dropped with `answered`.
        let answerer = state.waiters.remove(&self.number);
        let last = state.waiters.is_empty();
        drop(state);
        if last {
            self.of_latch.bell.notify_one();
        }
        drop(answerer);
    }
}

/// A client that leaves waits so long for the end of its subscription to be confirmed.
const UNSUBSCRIBED: Duration = Duration::from_millis(20);

impl AllLatchWaiters {
    pub(crate) fn new(env: &Arc<Env>) -> Arc<AllLatchWaiters> {
        Arc::new(AllLatchWaiters {
            env: Arc::clone(env),
            by_name: Mutex::default(),
        })
    }

    /// Waits until the count is zero; `false` if `until` comes first.
    pub(crate) async fn wait(
        self: &Arc<Self>,
        id: &LockId,
        until: Option<Instant>,
    ) -> Result<bool, Error> {
        let env = &self.env;
        env.check_open()?;
        let began = env.clock.now();
        let mut waiter = self.join(id)?;
        // After joining: when the background runtime ends, it tells the waiters that are there.
        env.check_background()?;
        let time_is_up = async {
            match until {
                Some(until) => {
                    env.sleep_here(until.saturating_duration_since(Instant::now()))
                        .await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            answer = &mut waiter.answered => answer.map(|_open| true),
            () = time_is_up => waiter.of_latch.out_of_time(env, began),
        }
    }

    fn join(self: &Arc<Self>, id: &LockId) -> Result<LatchWait, Error> {
        let mut latch_waiters = self.by_name.lock();
        // B6: under the lock, so that a waiter that `close` did not see is refused.
        if self.env.is_closed() {
            return Err(Error::Closed);
        }
        let is_new = !latch_waiters.contains_key(id);
        let of_latch = latch_waiters
            .entry(id.clone())
            .or_insert_with(|| LatchWaiters::new(id));
        let of_latch = Arc::clone(of_latch);
        let (answers, answered) = answer::slot();
        // Under the lock of the lookup: `remove` takes out no list that a waiter is about to join.
        let number = {
            let mut state = of_latch.state.lock();
            let number = state.next;
            state.next += 1;
            state.waiters.insert(number, answers);
            number
        };
        drop(latch_waiters);
        if is_new {
            self.env
                .spawn(drive(Arc::clone(self), Arc::clone(&of_latch)));
        } else {
            // The count may be zero since it was read last.
            of_latch.bell.notify_one();
        }
        Ok(LatchWait {
            of_latch,
            number,
            answered,
        })
    }

    /// The backend heard something about a latch.
    pub(crate) fn wake(&self, id: &LockId, wake_up: WakeUp) {
        let of_latch = self.by_name.lock().get(id).map(Arc::clone);
        if let Some(of_latch) = of_latch {
            if wake_up == WakeUp::Deaf {
                of_latch.state.lock().subscription.ended();
            }
            of_latch.bell.notify_one();
        }
    }

    /// Answers all waiters. The client is marked as closed already, or its thread is gone, so that none comes from now on.
    pub(crate) fn close(&self, error: &Error) {
        let latch_waiters: Vec<_> = self.by_name.lock().values().map(Arc::clone).collect();
        for of_latch in latch_waiters {
            of_latch.answer(u64::MAX, &Err(error.clone()));
            of_latch.bell.notify_one();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.lock().len()
    }

    /// How many drivers wait for a wake-up.
    pub(crate) fn waiting_drivers(&self) -> usize {
        let latch_waiters = self.by_name.lock();
        let waits = |of_latch: &&Arc<LatchWaiters>| of_latch.waits.load(Ordering::Relaxed);
        latch_waiters.values().filter(waits).count()
    }

    /// How many tasks of this process wait for the latch.
    pub(crate) fn waiting(&self, id: &LockId) -> usize {
        let latch_waiters = self.by_name.lock();
        latch_waiters
            .get(id)
            .map_or(0, |of_latch| of_latch.state.lock().waiters.len())
    }

    /// Takes the list out, unless a waiter has come.
    fn remove(&self, of_latch: &LatchWaiters) -> bool {
        let mut latch_waiters = self.by_name.lock();
        let is_empty = of_latch.state.lock().waiters.is_empty();
        if is_empty {
            latch_waiters.remove(&of_latch.id);
        }
        is_empty
    }
}

impl LatchWaiters {
    fn new(id: &LockId) -> Arc<LatchWaiters> {
        Arc::new(LatchWaiters {
            id: id.clone(),
            state: Mutex::default(),
            bell: Notify::new(),
            waits: AtomicBool::new(false),
        })
    }

    /// Answers the waiters that came before `upto`.
    fn answer(&self, upto: u64, answer: &Result<(), Error>) {
        let mut answered = {
            let mut state = self.state.lock();
            let rest = state.waiters.split_off(&upto);
            std::mem::replace(&mut state.waiters, rest)
        };
        // All have their answers before the first of them runs; and no waker is called under a lock.
        let mut wakers = Vec::with_capacity(answered.len());
        while let Some((_, answerer)) = answered.pop_first() {
            if let Ok(Some(waker)) = answerer.send(answer.clone().map(|()| None)) {
                wakers.push(waker);
            }
        }
        wakers.into_iter().for_each(user_callback::wake);
    }

    /// The server says that the count is not zero.
    fn answered(&self, now: Tick) {
        let mut state = self.state.lock();
        state.said = Some(now);
        state.trouble = None;
    }

    /// The answer to a waiter that has waited since `began`, and whose time is up.
    fn out_of_time(&self, env: &Env, began: Tick) -> Result<bool, Error> {
        let state = self.state.lock();
        // Where the server cannot be asked any more, what it said last is no news.
        let is_news = env.backend.trouble_of(&self.id).is_none();
        if is_news && state.said.is_some_and(|said| said >= began) {
            return Ok(false);
        }
        let failure = state.trouble.clone();
        let failure = failure.unwrap_or_else(|| env.time_is_up());
        Err(self.error(failure))
    }

    fn error(&self, failure: Failure) -> Error {
        failure.into_read_error(format!("wait for {:?}", self.id.name))
    }
}

/// Reads the count on behalf of all waiters, until none is left.
async fn drive(latch_waiters: Arc<AllLatchWaiters>, of_latch: Arc<LatchWaiters>) {
    let env = &latch_waiters.env;
    let mut backoff = Backoff::of_request();
    loop {
        let (upto, is_heard) = {
            let state = of_latch.state.lock();
            let upto = (!state.waiters.is_empty()).then_some(state.next);
            (upto, state.subscription.is_open())
        };
        let Some(upto) = upto else {
            if of_latch.state.lock().subscription.close() {
                let unheard = env.backend.unlisten(&of_latch.id);
                let _ = env.within(UNSUBSCRIBED, unheard).await;
            }
            if latch_waiters.remove(&of_latch) {
                return;
            }
            continue;
        };
        let read = env
            .backend
            .permits(of_latch.id.clone(), Permits::Available, env.once());
        let failure = match read.await {
            // Waiters that came after the send may ask about a count that was set since.
            Ok(count) if count <= 0 => {
                of_latch.answer(upto, &Ok(()));
                continue;
            }
            Ok(_) => {
                of_latch.answered(env.clock.now());
                if is_heard {
                    backoff.reset();
                    sleep(env, &of_latch).await;
                    continue;
                }
                of_latch.state.lock().subscription.asks();
                let answer = env.backend.listen(of_latch.id.clone()).await;
                of_latch.state.lock().subscription.answered(answer.is_ok());
                match answer {
                    // Once more, for what was said before.
                    Ok(()) => continue,
                    Err(failure) => failure,
                }
            }
            Err(failure) => failure,
        };
        if failure.is_final() {
            of_latch.answer(upto, &Err(of_latch.error(failure)));
            continue;
        }
        of_latch.state.lock().trouble = Some(failure);
        env.sleep(backoff.next()).await;
    }
}

/// Until the bell rings, at most for the poll interval.
fn sleep(env: &Env, of_latch: &LatchWaiters) -> impl Future<Output = ()> {
    let poll = env.sleep(stretched(env.config.poll_every));
    of_latch.waits.store(true, Ordering::Relaxed);
    async {
        tokio::select! {
            biased;
            // The bell keeps a ring that came since the count was read.
            () = of_latch.bell.notified() => {}
            () = poll => {}
        }
        of_latch.waits.store(false, Ordering::Relaxed);
    }
}
