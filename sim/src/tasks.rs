//! The tasks of a client: they use all of the public API, with mixed terms, and drop futures on the way.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use fastrand::Rng;
use leasehold::{Client, Error, ErrorKind, Guard, Handoff, LockKind, Owner, Shutdown, sim};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use crate::{
    config::{Config, MS, fraction},
    dice::Point,
    held::Held,
    invariants::l4,
    lock::Lock,
    shared::{LETTERS, NAMES, Wait, Waits, World},
    work::Work,
};

/// A task of a client.
pub struct Task {
    pub world: World,
    pub client: Client,
    pub me: u8,
    pub number: u8,
    pub owner: Owner,
    /// Notified when faults have ended: holders release.
    pub healed: Arc<Notify>,
    pub config: Config,
}

pub(crate) enum Asked {
    Lock,
    Try,
    TryFor(Duration),
}

impl Task {
    fn who(&self) -> u8 {
        self.me * 4 + self.number
    }

    pub(crate) fn say(&self, line: impl FnOnce() -> String) {
        let me = LETTERS[usize::from(self.me)];
        let task = self.number;
        self.world
            .lock()
            .say(|| format!("client {me}.{task}  {}", line()));
    }

    pub(crate) fn doing(&self, what: impl FnOnce() -> String) {
        let what = what();
        self.say(|| what.clone());
        let key = (self.me, self.number);
        self.world.lock().doing.insert(key, what);
    }

    pub async fn run(self) {
        for _ in 0..self.config.ops {
            let op = self.world.lock().dice.chance(Point::Op, self.who(), 1.0);
            let Some(mut rng) = op else { continue };
            let most = if self.config.own_names { 0.1 } else { 0.5 };
            let think = fraction(self.config.lease, rng.f64() * most) + rng.u64(0..2 * MS);
            self.doing(|| "thinks".to_owned());
            self.rest(think).await;
            if self.world.lock().healed {
                break;
            }
            self.operation(&mut rng).await;
        }
        let key = (self.me, self.number);
        self.world.lock().doing.remove(&key);
    }

    /// Rests, unless faults end before.
    pub(crate) async fn rest(&self, nanos: u64) {
        let mut healed = pin!(self.healed.notified());
        healed.as_mut().enable();
        if self.world.lock().healed {
            return;
        }
        tokio::select! {
            biased;
            () = healed => {}
            () = nap(nanos) => {}
        }
    }

    async fn operation(&self, r: &mut Rng) {
        let mix = &self.config.mix;
        let mut name = r.u8(0..self.config.names);
        if self.config.own_names {
            name = self.me % self.config.names;
        }
        if self.config.kind == LockKind::Latch {
            return self.latch(r, name).await;
        }
        let what = choose(
            r,
            &[mix.lock, mix.try_lock, mix.try_for, mix.force, mix.status],
        );
        if what < 3 && self.config.several > 0.0 && r.f64() < self.config.several {
            let wait = Duration::from_nanos(fraction(self.config.lease, r.f64() * 2.0));
            let asked = match what {
                0 => Asked::Lock,
                1 => Asked::Try,
                _ => Asked::TryFor(wait),
            };
            return self.several(r, asked).await;
        }
        match what {
            0 => self.lock(r, name, Asked::Lock).await,
            1 => self.lock(r, name, Asked::Try).await,
            2 => {
                let wait = Duration::from_nanos(fraction(self.config.lease, r.f64() * 2.0));
                self.lock(r, name, Asked::TryFor(wait)).await;
            }
            3 => {
                self.doing(|| format!("unlocks {} by force", NAMES[usize::from(name)]));
                let freed = self.maybe(self.any(name).force_unlock()).await;
                self.say(|| format!("unlocked by force: {freed:?}"));
            }
            _ => {
                self.doing(|| format!("looks at {}", NAMES[usize::from(name)]));
                let _ = self.maybe(self.any(name).status()).await;
            }
        }
    }

    /// The lock, to be looked at.
    fn any(&self, name: u8) -> Lock {
        let name = NAMES[usize::from(name)];
        let config = &self.config;
        Lock::of(&self.client, config.kind, name, 0, config.permits)
    }

    /// The lock with this task's terms, and in words.
    pub(crate) fn terms(&self, r: &mut Rng, name: u8) -> (Lock, u64, bool, String) {
        let config = &self.config;
        let mut lease = config.lease;
        if !config.same_terms {
            lease = fraction(lease, [0.1, 0.3, 1.0, 1.0, 3.0, 10.0][r.usize(..6)]);
        }
        let lease = lease.clamp(10 * MS, 60_000 * MS);
        let lease_of = Duration::from_nanos(lease);
        let fixed = r.f64() < config.fixed;
        // No dice where there is no choice, so that a world of mutexes is as it was before there were other kinds.
        let want = match config.kind {
            LockKind::Mutex
            | LockKind::FencedMutex
            | LockKind::PlainMutex
            | LockKind::SpinMutex
            | LockKind::FairMutex => 0,
            _ => r.u32(0..12),
        };
        let called = NAMES[usize::from(name)];
        let mut lock = Lock::of(&self.client, config.kind, called, want, config.permits);
        let mut terms = format!("{lease_of:?}{}", lock.in_words());
        lock = if fixed {
            terms += " fixed";
            lock.fixed_lease(lease_of)
        } else {
            lock.lease(lease_of)
        };
        if r.f64() < config.max_hold {
            let most = Duration::from_nanos(fraction(lease, 0.5 + r.f64() * 3.0));
            terms = format!("{terms}, at most {most:?}");
            lock = lock.max_hold(most);
        }
        if config.handoff_off {
            lock = lock.handoff(Handoff::off());
        }
        let mut owned = r.f64() < config.owned;
        if owned {
            match lock.clone().owned_by(&self.owner) {
                Some(its) => {
                    terms += ", as owner";
                    lock = its;
                }
                None => owned = false,
            }
        }
        (lock, lease, owned, terms)
    }

    async fn lock(&self, r: &mut Rng, name: u8, asked: Asked) {
        let (lock, lease, owned, terms) = self.terms(r, name);
        let called = NAMES[usize::from(name)];
        let how = match asked {
            Asked::Lock => Waits::Forever,
            Asked::Try if !owned => Waits::Once,
            _ => Waits::Somehow,
        };
        let (since, waits) = self.waits(how, name);
        let got = match asked {
            Asked::Lock => {
                self.doing(|| format!("lock({called}, {terms})"));
                let got = self.maybe(lock.lock()).await;
                got.map(|got| got.map(Some))
            }
            Asked::Try => {
                self.doing(|| format!("try_lock({called}, {terms})"));
                self.maybe(lock.try_lock()).await
            }
            Asked::TryFor(most) => {
                self.doing(|| format!("try_lock_for({called}, {most:?}, {terms})"));
                self.maybe(lock.try_lock_for(most)).await
            }
        };
        self.world.lock().waits.remove(&waits);
        match got {
            None => self.say(|| format!("dropped its future for {called}")),
            Some(Ok(None)) => {
                self.say(|| format!("did not get {called}"));
                if matches!(asked, Asked::Try) {
                    let mut shared = self.world.lock();
                    shared.nones.push((self.me, name, since));
                }
            }
            Some(Err(error)) => {
                self.say(|| format!("failed: {error}"));
                if matches!(asked, Asked::Lock) {
                    l4::check(
                        &mut self.world.lock(),
                        &error,
                        (self.me, name),
                        since,
                        lease,
                    );
                }
            }
            Some(Ok(Some(guard))) => {
                // All guards of one owner are one holder.
                let holder = owned.then(|| self.as_owner());
                let held = Held::new(&self.world, guard, self.me, name, holder);
                self.hold(r, held, &lock, owned).await;
            }
        }
    }

    /// The number of its owner, as a holder.
    pub(crate) fn as_owner(&self) -> u64 {
        u64::MAX - u64::from(self.me)
    }

    /// From here on this task asks for a name: since when, and under which number.
    pub fn waits(&self, how: Waits, name: u8) -> (u64, u64) {
        let mut shared = self.world.lock();
        let (since, number) = (shared.now, shared.number());
        let wait = Wait {
            how,
            client: self.me,
            task: self.number,
            name,
            since,
        };
        shared.waits.insert(number, wait);
        (since, number)
    }

    async fn hold(&self, r: &mut Rng, guarded: Held, lock: &Lock, owned: bool) {
        let mix = &self.config.mix;
        let some_time = |r: &mut Rng| fraction(self.config.lease, self.config.hold * r.f64());
        let until_lost = choose(r, &[mix.release, mix.drop, mix.detach, mix.until_lost]);
        for _ in 0..r.u32(0..4) {
            let Some(guard) = guarded.guard() else { return };
            match choose(
                r,
                &[
                    mix.rest,
                    mix.extend,
                    mix.extend_twice,
                    mix.verify,
                    mix.reenter,
                    mix.nested,
                ],
            ) {
                0 => {
                    let time = some_time(r);
                    self.doing(|| format!("holds for {:?}", Duration::from_nanos(time)));
                    if r.bool() {
                        let work = Work::under(&self.world, guarded.visible());
                        let run = guard.run(self.work(&work, time, || guard.verify()));
                        work.watch(run).await;
                    } else {
                        self.rest(time).await;
                    }
                }
                1 => {
                    let to = self.some_lease(r);
                    self.doing(|| format!("extends to {to:?}"));
                    let done = self.maybe(guard.extend(to)).await;
                    self.say(|| format!("extended: {done:?}"));
                }
                2 => {
                    let (one, other) = (self.some_lease(r), self.some_lease(r));
                    self.doing(|| format!("extends to {one:?} and to {other:?} at once"));
                    let both = async { tokio::join!(guard.extend(one), guard.extend(other)) };
                    let done = self.maybe(both).await;
                    self.say(|| format!("extended: {done:?}"));
                }
                3 => {
                    self.doing(|| "verifies".to_owned());
                    let _ = self.maybe(guard.verify()).await;
                }
                4 => {
                    if let Ok(again) = guard.reenter() {
                        self.doing(|| "has entered again".to_owned());
                        let again = Held::new(
                            &self.world,
                            again,
                            self.me,
                            guarded.name,
                            Some(guarded.holder),
                        );
                        self.rest(some_time(r)).await;
                        drop(again);
                    }
                }
                _ if owned => self.nested(r, &guarded, lock).await,
                _ => {}
            }
        }
        let guarded = match lock {
            Lock::Write(_) => self.change(r, guarded).await,
            _ => Some(guarded),
        };
        if let Some(guarded) = guarded {
            self.give_back(until_lost, guarded).await;
        }
    }

    /// Locks what it holds as the same owner, and lets go of the inner guard.
    async fn nested(&self, r: &mut Rng, held: &Held, lock: &Lock) {
        self.doing(|| "locks as the same owner".to_owned());
        let (_, waits) = self.waits(Waits::Somehow, held.name);
        let got = self.maybe(lock.lock()).await;
        self.world.lock().waits.remove(&waits);
        if let Some(Ok(guard)) = got {
            let inner = Held::new(&self.world, guard, self.me, held.name, Some(held.holder));
            self.rest(r.u64(0..self.config.lease)).await;
            if r.bool() {
                let _ = inner.release().await;
            }
        }
    }

    async fn give_back(&self, how: usize, held: Held) {
        match how {
            0 => {
                self.doing(|| "releases".to_owned());
                let done = self.maybe(held.release()).await;
                self.say(|| format!("released: {done:?}"));
            }
            // At the end no task keeps the others waiting.
            2 if !self.world.lock().healed => held.detach(),
            3 => {
                self.doing(|| "holds until it is lost".to_owned());
                let Some(guard) = held.guard() else { return };
                let lost = until_lost(guard);
                let mut rest = pin!(self.rest(self.config.lease * 2));
                tokio::select! {
                    biased;
                    () = lost => {}
                    () = &mut rest => {}
                }
            }
            _ => drop(held),
        }
    }

    pub(crate) fn some_lease(&self, r: &mut Rng) -> Duration {
        let part = [0.1, 0.3, 1.0, 2.0, 5.0][r.usize(..5)];
        Duration::from_nanos(fraction(self.config.lease, part).clamp(10 * MS, 60_000 * MS))
    }

    /// Carries a future to its end, or drops it on the way: at one of its first polls, or after a while.
    pub(crate) async fn maybe<F: Future>(&self, work: F) -> Option<F::Output> {
        let probability = self.config.faults.cancel;
        let cancel = {
            let mut shared = self.world.lock();
            let cancel = shared.dice.chance(Point::Cancel, self.who(), probability);
            if cancel.is_some() {
                shared.count("fault: future dropped");
            }
            cancel
        };
        let Some(mut r) = cancel else {
            return Some(work.await);
        };
        let polls = r.u32(1..4);
        let (by_poll, after) = (r.bool(), self.config.span(&mut r));
        let mut alarm = pin!(nap(after));
        let mut work: Pin<&mut F> = pin!(work);
        let mut polled = 0;
        poll_fn(|cx| {
            if let Poll::Ready(output) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            polled += 1;
            if (by_poll && polled >= polls) || alarm.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            Poll::Pending
        })
        .await
    }
}

async fn until_lost(guard: &Guard) {
    guard.lost().await;
}

/// Shuts the client down at its time.
pub async fn shut_down(world: World, client: Client, me: u8, after: u64, how: Shutdown) {
    nap(after).await;
    let letter = LETTERS[usize::from(me)];
    {
        let mut shared = world.lock();
        shared.count("op: shutdown");
        shared.say(|| format!("client {letter}  shuts down: {how:?}"));
        shared.doing.insert((me, 3), "shutdown".to_owned());
    }
    client.shutdown(how).await;
    let mut shared = world.lock();
    shared.say(|| format!("client {letter}  has shut down"));
    shared.closed.insert(me);
    shared.doing.remove(&(me, 3));
}

/// So long on the clock of the client. Every timer is to be known: see `Process::next_timer`.
async fn nap(nanos: u64) {
    let time = Duration::from_nanos(nanos);
    sim::set_timer(Instant::now() + time);
    sleep(time).await;
}

pub fn is_transport(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotSent | ErrorKind::Ambiguous | ErrorKind::Rejected
    )
}

/// The place of a choice, by weight.
pub(crate) fn choose(r: &mut Rng, weights: &[u32]) -> usize {
    let mut left = r.u32(0..weights.iter().sum::<u32>().max(1));
    for (at, weight) in weights.iter().enumerate() {
        if left < *weight {
            return at;
        }
        left -= weight;
    }
    0
}
