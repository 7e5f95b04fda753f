//! The waiters of this process for latches: nothing is held, all wait for one number to be zero.
//!
//! A latch that is waited for has one gate, however many tasks wait. Its driver subscribes once, reads the count, and sleeps until
//! a wake-up, the poll interval, or another waiter comes; one reading of zero opens the gate for all that came before it was
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
    engine::env::Env,
    engine::local::answer,
    engine::local::answer::{AnswerFuture, Answerer},
    name::LockId,
    user_callback,
};

/// The gates of a client, by name.
#[derive(Debug)]
pub(crate) struct Gates {
    env: Arc<Env>,
    by_name: Mutex<BTreeMap<LockId, Arc<Gate>>>,
}

/// The waiters for one latch.
#[derive(Debug)]
struct Gate {
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
    /// It does not let this client hear wake-ups any more.
    deaf: bool,
}

/// A wait at a gate. Dropping it leaves.
struct GateWait {
    gate: Arc<Gate>,
    number: u64,
    answered: AnswerFuture,
}

impl Resident for Gates {
    fn thread_gone(&self) {
        self.close(&Error::ThreadGone);
    }
}

impl Drop for GateWait {
    fn drop(&mut self) {
        let mut state = self.gate.state.lock();
        // Its waker is the user's code, and is dropped with `answered`.
        let answerer = state.waiters.remove(&self.number);
        let last = state.waiters.is_empty();
        drop(state);
        if last {
            self.gate.bell.notify_one();
        }
        drop(answerer);
    }
}

/// A client that leaves waits so long for the end of its subscription to be confirmed.
const UNSUBSCRIBED: Duration = Duration::from_millis(20);

impl Gates {
    pub(crate) fn new(env: &Arc<Env>) -> Arc<Gates> {
        Arc::new(Gates {
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
            () = time_is_up => waiter.gate.out_of_time(env, began),
        }
    }

    fn join(self: &Arc<Self>, id: &LockId) -> Result<GateWait, Error> {
        let mut gates = self.by_name.lock();
        // B6: under the lock, so that a waiter that `close` did not see is refused.
        if self.env.is_closed() {
            return Err(Error::Closed);
        }
        let is_new = !gates.contains_key(id);
        let gate = gates.entry(id.clone()).or_insert_with(|| Gate::new(id));
        let gate = Arc::clone(gate);
        let (answers, answered) = answer::slot();
        let number = {
            let mut state = gate.state.lock();
            let number = state.next;
            state.next += 1;
            state.waiters.insert(number, answers);
            number
        };
        drop(gates);
        if is_new {
            self.env.spawn(drive(Arc::clone(self), Arc::clone(&gate)));
        } else {
            // The count may be zero since it was read last.
            gate.bell.notify_one();
        }
        Ok(GateWait {
            gate,
            number,
            answered,
        })
    }

    /// The backend heard something about a latch.
    pub(crate) fn wake(&self, id: &LockId, wake_up: WakeUp) {
        let gate = self.by_name.lock().get(id).map(Arc::clone);
        if let Some(gate) = gate {
            gate.state.lock().deaf |= wake_up == WakeUp::Deaf;
            gate.bell.notify_one();
        }
    }

    /// Answers all waiters. The client is marked as closed already, or its thread is gone, so that none comes from now on.
    pub(crate) fn close(&self, error: &Error) {
        let gates: Vec<_> = self.by_name.lock().values().map(Arc::clone).collect();
        for gate in gates {
            gate.answer(u64::MAX, &Err(error.clone()));
            gate.bell.notify_one();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.lock().len()
    }

    /// How many drivers wait for a wake-up.
    pub(crate) fn waiting_drivers(&self) -> usize {
        let gates = self.by_name.lock();
        let waits = |gate: &&Arc<Gate>| gate.waits.load(Ordering::Relaxed);
        gates.values().filter(waits).count()
    }

    /// How many tasks of this process wait for the latch.
    pub(crate) fn waiting(&self, id: &LockId) -> usize {
        let gates = self.by_name.lock();
        gates
            .get(id)
            .map_or(0, |gate| gate.state.lock().waiters.len())
    }

    /// Takes the gate out, unless a waiter has come.
    fn remove(&self, gate: &Gate) -> bool {
        let mut gates = self.by_name.lock();
        let is_empty = gate.state.lock().waiters.is_empty();
        if is_empty {
            gates.remove(&gate.id);
        }
        is_empty
    }
}

impl Gate {
    fn new(id: &LockId) -> Arc<Gate> {
        Arc::new(Gate {
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
async fn drive(gates: Arc<Gates>, gate: Arc<Gate>) {
    let env = &gates.env;
    let mut backoff = Backoff::of_request();
    // Whether wake-ups are heard; and whether a subscription may be there, or come about.
    let (mut hears, mut subscribed) = (false, false);
    loop {
        let upto = {
            let mut state = gate.state.lock();
            hears &= !std::mem::take(&mut state.deaf);
            (!state.waiters.is_empty()).then_some(state.next)
        };
        let Some(upto) = upto else {
            if subscribed {
                let unheard = env.backend.unlisten(&gate.id);
                let _ = env.within(UNSUBSCRIBED, unheard).await;
                (hears, subscribed) = (false, false);
            }
            if gates.remove(&gate) {
                return;
            }
            continue;
        };
        let read = env
            .backend
            .permits(gate.id.clone(), Permits::Available, env.once());
        let failure = match read.await {
            // Waiters that came after the send may ask about a count that was set since.
            Ok(count) if count <= 0 => {
                gate.answer(upto, &Ok(()));
                continue;
            }
            Ok(_) => {
                gate.answered(env.clock.now());
                if hears {
                    backoff.reset();
                    sleep(env, &gate).await;
                    continue;
                }
                subscribed = true;
                match env.backend.listen(gate.id.clone()).await {
                    // Once more, for what was said before.
                    Ok(()) => {
                        hears = true;
                        continue;
                    }
                    Err(failure) => failure,
                }
            }
            Err(failure) => failure,
        };
        if failure.is_final() {
            gate.answer(upto, &Err(gate.error(failure)));
            continue;
        }
        gate.state.lock().trouble = Some(failure);
        env.sleep(backoff.next()).await;
    }
}

/// Until the bell rings, at most for the poll interval.
fn sleep(env: &Env, gate: &Gate) -> impl Future<Output = ()> {
    let poll = env.sleep(stretched(env.config.poll_every));
    gate.waits.store(true, Ordering::Relaxed);
    async {
        tokio::select! {
            biased;
            () = gate.bell.notified() => {}
            () = poll => {}
        }
        gate.waits.store(false, Ordering::Relaxed);
    }
}
