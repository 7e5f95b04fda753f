//! Work inside `run`: it looks at the clock and counts, at its own polls.
//!
//! `run` polls its work only while the hold is valid. So a poll of the work is a true look: the hold was valid at some instant
//! between the beginning of the poll of `run` and the first instruction of the work. A look proves no more. A process that is
//! stopped between the library's check and that instruction works late, and nothing protects from that; so what a
//! poll does counts as proved only if a later poll of `run` polls the work again, or answers with its output.
//!
//! From these looks come spans and proved increments, as from the looks at a guard, and they must not meet those of another holder: S1,
//! inside `run`. A poll of the work after a false look at its guard is a breach by itself.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::Poll,
    time::Duration,
};

use fastrand::Rng;
use leasehold::Error;

use super::World;
use crate::{
    api::{self, InsideRun},
    clock::{nanos, now},
    record::Record,
    witness::Witness,
};

/// A `run`, seen from outside and from inside.
pub(super) struct Inside<'a> {
    world: &'a World,
    /// The names that are held.
    names: &'a [usize],
    /// The ask that its first poll answers, if there was no guard before.
    ask: Option<u64>,
    seen: Mutex<Seen<'a>>,
    /// When the present poll of `run` began.
    begun: AtomicU64,
    /// The guard was lost by then.
    lost: AtomicBool,
    polls: AtomicU64,
    /// When the work ended; 0: it has not.
    finished: AtomicU64,
}

struct Seen<'a> {
    /// Of each name. Their spans are those of further guards of the same holder.
    witnesses: Vec<Witness<'a>>,
    /// An increment that is not proved yet.
    written: Option<Written>,
}

#[derive(Clone, Copy)]
struct Written {
    /// The place of its name.
    place: usize,
    saw: u64,
    wrote: u64,
    at: u64,
}

impl<'a> Inside<'a> {
    /// Under guards of these names and holders.
    pub(super) fn guards(
        world: &'a World,
        names: &'a [usize],
        shared: bool,
        holders: impl IntoIterator<Item = u64>,
    ) -> Inside<'a> {
        let holders = names.iter().zip(holders);
        let witnesses = holders
            .map(|(name, holder)| Witness::new(&world.journal, *name, shared, Some(holder)))
            .collect();
        Inside::new(world, names, witnesses, None)
    }

    /// In a call that locks, runs and releases: this ask.
    pub(super) fn asked(world: &'a World, names: &'a [usize], ask: u64) -> Inside<'a> {
        let names_of = names.iter();
        let witnesses = names_of
            .map(|name| Witness::new(&world.journal, *name, false, None))
            .collect();
        Inside::new(world, names, witnesses, Some(ask))
    }

    fn new(
        world: &'a World,
        names: &'a [usize],
        witnesses: Vec<Witness<'a>>,
        ask: Option<u64>,
    ) -> Inside<'a> {
        Inside {
            world,
            names,
            ask,
            seen: Mutex::new(Seen {
                witnesses,
                written: None,
            }),
            begun: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            polls: AtomicU64::new(0),
            finished: AtomicU64::new(0),
        }
    }

    /// Polls `run`. `is_valid` looks at its guard before each poll; but seldom, since a look that is false tells `run` of the loss.
    pub(super) async fn watch<T>(
        &self,
        is_valid: impl Fn() -> bool,
        run: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut ended = Ended(self, "dropped".to_owned());
        let mut run = pin!(run);
        let output = poll_fn(|context| {
            self.begun.store(now(), Relaxed);
            // A loss is final: after a false look, no check in this poll is true.
            self.lost.store(!is_valid(), Relaxed);
            run.as_mut().poll(context)
        })
        .await;
        ended.1 = match &output {
            Ok(_) => "output".to_owned(),
            Err(error) => api::kind(error),
        };
        let finished = self.finished.load(Relaxed);
        if output.is_ok() && finished > 0 {
            self.seen().proved(self.world, self.names, finished);
        }
        output
    }

    /// Whether its ask is answered.
    pub(super) fn has_begun(&self) -> bool {
        self.polls.load(Relaxed) > 0
    }

    /// The work: for some time, at each of its polls.
    pub(super) async fn work(&self, time: Duration, rng: &mut Rng) {
        // Slow to drop, wherever that finds it.
        let _slow = SlowToDrop(Duration::from_micros(match rng.u32(0..8) {
            0 if !self.world.brisk => rng.u64(0..2_000),
            _ => 0,
        }));
        let mut effects = pin!(self.effects(time, rng));
        poll_fn(|context| {
            self.polled();
            effects.as_mut().poll(context)
        })
        .await;
        self.finished.store(now(), Relaxed);
    }

    fn seen(&self) -> MutexGuard<'_, Seen<'a>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn polled(&self) {
        if let Some(ask) = self.ask
            && self.polls.load(Relaxed) == 0
        {
            let (what, at) = ("guard".to_owned(), now());
            self.world.journal.write(Record::Answer { ask, what, at });
        }
        self.polls.fetch_add(1, Relaxed);
        if self.lost.swap(false, Relaxed) {
            let names = self.names;
            self.world.journal.write(Record::Breach {
                what: format!(
                    "run polled its work after the loss of its guard, of names {names:?}"
                ),
            });
        }
        let begun = self.begun.load(Relaxed);
        self.seen().proved(self.world, self.names, begun);
    }

    async fn effects(&self, time: Duration, rng: &mut Rng) {
        let until = now() + nanos(time);
        loop {
            if !self.seen().witnesses[0].is_shared() && rng.bool() {
                self.count(rng).await;
            }
            if now() >= until || !self.world.running() {
                return;
            }
            self.pause(rng).await;
        }
    }

    /// A read-modify-write, which is proved later, if at all.
    async fn count(&self, rng: &mut Rng) {
        let place = rng.usize(..self.names.len());
        let name = self.names[place];
        let saw = self.world.counter.read(name);
        if rng.bool() {
            self.pause(rng).await;
        }
        let wrote = self.world.count_operation(rng);
        // Right after it was woken.
        self.world.counter.write(name, wrote);
        let at = now();
        self.seen().written = Some(Written {
            place,
            saw,
            wrote,
            at,
        });
    }

    async fn pause(&self, rng: &mut Rng) {
        let world = self.world;
        match rng.u32(0..10) {
            0..=5 if world.brisk => wakes_itself(rng.u32(1..4), Duration::ZERO).await,
            _ if world.brisk => tokio::task::yield_now().await,
            0..=5 => wakes_itself(rng.u32(1..30), Duration::from_micros(100)).await,
            _ => super::hold::pause(rng).await,
        }
    }
}

/// Is polled again at once, so many times, before its runtime looks at a timer: also after a stop, and most stops find it in a poll.
async fn wakes_itself(polls: u32, each: Duration) {
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        let until = now() + nanos(each);
        while now() < until {
            std::hint::spin_loop();
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Seen<'_> {
    /// The hold was valid at some instant after `before`, and not after now.
    fn proved(&mut self, world: &World, names: &[usize], before: u64) {
        for witness in &mut self.witnesses {
            witness.saw(true, before, now(), &InsideRun);
        }
        if let Some(written) = self.written.take_if(|written| written.at < before) {
            world.journal.write(Record::Count {
                guard: self.witnesses[written.place].guard(),
                name: names[written.place],
                saw: written.saw,
                wrote: written.wrote,
                at: written.at,
            });
        }
    }
}

/// Writes down how a `run` has ended.
struct Ended<'i, 'a>(&'i Inside<'a>, String);

impl Drop for Ended<'_, '_> {
    fn drop(&mut self) {
        let polls = self.0.polls.load(Relaxed);
        let how = std::mem::take(&mut self.1);
        self.0.world.journal.write(Record::Ran { how, polls });
    }
}

struct SlowToDrop(Duration);

impl Drop for SlowToDrop {
    fn drop(&mut self) {
        std::thread::sleep(self.0);
    }
}
