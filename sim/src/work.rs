//! Work inside `run`. Each of its polls has effects: it looks which other guards are valid, and writes to a cell of its name.
//!
//! A poll of the work is as good as a true look at the guard: `run` has found the hold valid just before, and no virtual time
//! passes within a poll. So an effect beside another valid guard is a breach of S1; and so is an effect of another holder between two
//! effects of one hold. And `run` itself promises more than S1: work is not polled once its hold is over.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::Poll,
};

use fastrand::Rng;
use leasehold::{
    Access, Error,
    sim::{Look, Probe},
};
use parking_lot::Mutex;

use crate::{
    dice::mix,
    invariants::s1,
    shared::{Cell, LETTERS, NAMES, Stray, Visible, World},
    tasks::Task,
};

/// The effects of some work under one guard, or under the guard of several names.
#[derive(Clone)]
pub(crate) struct Work {
    world: World,
    under: Arc<Mutex<Vec<Under>>>,
    effects: Arc<AtomicU32>,
}

/// A hold that the work runs under.
struct Under {
    hold: Visible,
    /// The version of the cell that it knows.
    knows: Option<u64>,
}

impl Work {
    pub(crate) fn under(world: &World, holds: impl IntoIterator<Item = Visible>) -> Work {
        let under = holds.into_iter().map(|hold| Under { hold, knows: None });
        Work {
            world: World::clone(world),
            under: Arc::new(Mutex::new(under.collect())),
            effects: Arc::default(),
        }
    }

    /// In a poll.
    pub(crate) fn effect(&self) {
        self.effects.fetch_add(1, Ordering::Relaxed);
        let mut shared = self.world.lock();
        shared.count("seen: an effect inside run");
        for Under { hold, knows } in &mut *self.under.lock() {
            let mine = hold.probe.access();
            let other = shared.guards.iter().find(|other| {
                other.name == hold.name
                    && other.holder != hold.holder
                    && s1::excludes(mine, other.probe.access())
                    && matches!(other.probe.look(), Look::Valid(_))
            });
            let me = LETTERS[usize::from(hold.client)];
            let name = NAMES[usize::from(hold.name)];
            let (now, lease) = (shared.now, hold.probe.lease());
            if let Some(other) = other {
                let who = LETTERS[usize::from(other.client)];
                let its = other.probe.lease();
                let look = hold.probe.look();
                let stray = Stray {
                    beside: Some((hold.name, now)),
                    kind: "inside run beside a valid guard",
                    what: format!(
                        "work of {me} inside run under {name} (#{lease}, {look:?}) has an effect while {who} has it (#{its})"
                    ),
                };
                shared.strays.push(stray);
            }
            if let Access::Permits(_) = mine {
                continue;
            }
            let cell = &mut shared.cells[usize::from(hold.name)];
            let before = *cell;
            if mine == Access::Exclusive {
                *cell = Cell {
                    version: before.version + 1,
                    holder: hold.holder,
                    client: hold.client,
                    at: now,
                };
            }
            let after = cell.version;
            if knows.is_some_and(|knows| knows != before.version) && before.holder != hold.holder {
                let who = LETTERS[usize::from(before.client)];
                let stray = Stray {
                    beside: Some((hold.name, before.at)),
                    kind: "inside run, between two effects of one hold",
                    what: format!(
                        "{who} has written to {name} between two effects of work of {me} inside run (#{lease})"
                    ),
                };
                shared.strays.push(stray);
            }
            *knows = Some(after);
        }
    }

    /// `run`, looked at from outside: whether it polls its work when the hold is over, or says that it is over when it is not.
    pub(crate) async fn watch<T>(&self, run: impl Future<Output = Result<T, Error>>) {
        let probes: Vec<Probe> = {
            let under = self.under.lock();
            under.iter().map(|under| under.hold.probe.clone()).collect()
        };
        let looks = || probes.iter().map(Probe::look).collect::<Vec<_>>();
        let valid = || looks().iter().all(|look| matches!(look, Look::Valid(_)));
        let stray = |kind| {
            let what = format!("{kind}: {:?}", looks());
            let stray = Stray {
                beside: None,
                kind,
                what,
            };
            self.world.lock().strays.push(stray);
        };
        let mut run = pin!(run);
        let ended = poll_fn(|cx| {
            let (was_valid, effects) = (valid(), self.effects.load(Ordering::Relaxed));
            let poll = run.as_mut().poll(cx);
            if !was_valid && self.effects.load(Ordering::Relaxed) > effects {
                stray("polled its work after the end of the hold");
            }
            poll
        })
        .await;
        if ended.is_err() && valid() {
            stray("says lost of a hold that is valid");
        }
    }
}

impl Task {
    /// Some time of work: it rests, `asks` the server, and wakes itself a few times in a row. Each poll has an effect first of all, so
    /// also the one right after it was woken.
    pub(crate) async fn work<F: Future>(&self, work: &Work, time: u64, asks: impl Fn() -> F) {
        let mut steps = pin!(self.steps(time, asks));
        poll_fn(|cx| {
            work.effect();
            steps.as_mut().poll(cx)
        })
        .await;
    }

    async fn steps<F: Future>(&self, time: u64, asks: impl Fn() -> F) {
        // Of its own randomness, so that the rest of a world is as it is without it.
        let mut r = Rng::with_seed(mix(self.config.seed, time));
        let mut left = time;
        while left > time / 8 && !self.world.lock().healed {
            match r.u32(0..4) {
                0 => drop(asks().await),
                1 => wake_itself(r.u32(1..8)).await,
                _ => {
                    let some = r.u64(1..=left);
                    left -= some;
                    self.rest(some).await;
                }
            }
        }
    }
}

/// Is polled again so many times, one right after the other.
async fn wake_itself(polls: u32) {
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
