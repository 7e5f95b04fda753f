//! Tasks that take several names at once, in whichever order they come to mind.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use fastrand::Rng;
use leasehold::{Access, Error, MultiGuard, Part, Released, sim::Look};

use crate::{
    config::fraction,
    held::is_valid,
    lock::Lock,
    shared::{GivenBack, LETTERS, NAMES, Visible, World},
    tasks::{Asked, Task, choose},
    work::Work,
};

/// A multi-lock in the hands of a task: each part is seen by the checks for exactly as long as the task can use it.
struct HeldAll {
    guard: Option<MultiGuard>,
    seen: Vec<Visible>,
    world: World,
}

impl Task {
    /// Takes two or more names at once, rests, and gives them back.
    pub(crate) async fn several(&self, r: &mut Rng, asked: Asked) {
        let mut names: Vec<u8> = (0..self.config.names).collect();
        r.shuffle(&mut names);
        names.truncate(r.usize(2..=names.len()));
        let mut parts = Vec::new();
        let mut called = Vec::new();
        for name in &names {
            let (lock, _, owned, terms) = self.terms(r, *name);
            called.push(format!("{}, {terms}", NAMES[usize::from(*name)]));
            parts.push((*name, lock, owned));
        }
        let called = called.join("; ");
        let locks = parts.iter().map(|(_, lock, _)| lock.part());
        let locks: Vec<Part> = locks.collect();
        let multi = self.client.multi_lock(locks);
        let key = (self.me, self.number);
        self.world.lock().taking.insert(key, names);
        self.world.lock().count("op: several names");
        let got = match asked {
            Asked::Lock => {
                self.doing(|| format!("lock several({called})"));
                let got = self.maybe(multi.lock()).await;
                got.map(|got| got.map(Some))
            }
            Asked::Try => {
                self.doing(|| format!("try_lock several({called})"));
                self.maybe(multi.try_lock()).await
            }
            Asked::TryFor(most) => {
                self.doing(|| format!("try_lock_for several({called}; {most:?})"));
                self.maybe(multi.try_lock_for(most)).await
            }
        };
        match got {
            None => self.say(|| "dropped its future for several".to_owned()),
            Some(Ok(None)) => self.say(|| "did not get them".to_owned()),
            Some(Err(error)) => self.say(|| format!("failed: {error}")),
            Some(Ok(Some(guard))) => {
                let held = self.see(guard, &parts);
                self.world.lock().taking.remove(&key);
                self.use_all(r, held).await;
            }
        }
        self.world.lock().taking.remove(&key);
    }

    /// All or nothing: each part of a new guard is valid.
    fn see(&self, guard: MultiGuard, parts: &[(u8, Lock, bool)]) -> HeldAll {
        let mut shared = self.world.lock();
        let mut seen = Vec::new();
        let together = shared.number();
        shared.count("seen: several names held");
        for (called, probe) in guard.names().into_iter().zip(guard.probes()) {
            let part = parts
                .iter()
                .find(|(name, ..)| NAMES[usize::from(*name)] == called);
            let Some((name, _, owned)) = part else {
                continue;
            };
            let letter = LETTERS[usize::from(self.me)];
            shared.say(|| {
                let (lease, look) = (probe.lease(), probe.look());
                format!("client {letter}  has a guard of {called} and others (#{lease}, {look:?})")
            });
            if let Look::Lost(_) | Look::Released = probe.look() {
                let what = format!(
                    "client {letter} was given several names, and does not have {called}: {:?}",
                    probe.look()
                );
                shared.breach("multi", "a part is missing", what);
            }
            shared.guarded.insert((self.me, probe.lease()));
            let visible = Visible {
                id: shared.number(),
                since: shared.now,
                writes: probe.access() == Access::Exclusive,
                name: *name,
                client: self.me,
                holder: if *owned { self.as_owner() } else { together },
                probe,
            };
            shared.guards.push(visible.clone());
            seen.push(visible);
        }
        HeldAll {
            guard: Some(guard),
            seen,
            world: World::clone(&self.world),
        }
    }

    async fn use_all(&self, r: &mut Rng, held: HeldAll) {
        for _ in 0..r.u32(0..3) {
            let Some(guard) = &held.guard else { return };
            match r.u32(0..4) {
                0 => {
                    let to = self.some_lease(r);
                    self.doing(|| format!("extends all to {to:?}"));
                    let done = self.maybe(guard.extend(to)).await;
                    self.say(|| format!("extended: {done:?}"));
                }
                1 => {
                    self.doing(|| "verifies all".to_owned());
                    let _ = self.maybe(guard.verify()).await;
                }
                _ => {
                    let time = fraction(self.config.lease, self.config.hold * r.f64());
                    self.doing(|| format!("holds all for {:?}", Duration::from_nanos(time)));
                    if r.bool() {
                        let work = Work::under(&self.world, held.seen.iter().cloned());
                        let run = guard.run(self.work(&work, time, || guard.verify()));
                        work.watch(run).await;
                    } else {
                        self.rest(time).await;
                    }
                }
            }
        }
        let mix = &self.config.mix;
        if choose(r, &[mix.release, mix.drop]) == 0 {
            self.doing(|| "releases all".to_owned());
            let done = self.maybe(held.release()).await;
            self.say(|| format!("released: {done:?}"));
        }
    }
}

impl HeldAll {
    fn take(&mut self, how: &str) -> Option<MultiGuard> {
        let guard = self.guard.take()?;
        let mut shared = self.world.lock();
        for seen in &self.seen {
            shared.guards.retain(|visible| visible.id != seen.id);
            let (name, now) = (usize::from(seen.name), shared.now);
            shared.last_seen[name] = now;
            shared.say(|| {
                let (client, name) = (LETTERS[usize::from(seen.client)], NAMES[name]);
                let lease = seen.probe.lease();
                format!("client {client}  {how} its guard of {name} and others (#{lease})")
            });
        }
        drop(shared);
        Some(guard)
    }

    /// Gives all names back, and has the answer judged for each.
    fn release(mut self) -> impl Future<Output = Option<Result<Released, Error>>> + Send {
        let guard = self.take("releases");
        async move {
            let guard = guard?;
            let was: Vec<bool> = self.seen.iter().map(|seen| is_valid(&seen.probe)).collect();
            let leases: Vec<u64> = self.seen.iter().map(|seen| seen.probe.lease()).collect();
            let mut work = pin!(guard.release());
            let first = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await;
            // A hold that is valid still has passed to another task in memory.
            let passed: Vec<bool> = self.seen.iter().map(|seen| is_valid(&seen.probe)).collect();
            let answer = match first {
                Poll::Ready(answer) => answer,
                Poll::Pending => work.await,
            };
            let parts = self.seen.iter().zip(was).zip(leases).zip(passed);
            for (((seen, was_valid), lease), passed) in parts {
                if passed {
                    continue;
                }
                let of_part = match &answer {
                    Ok(Released::StillHeld { .. }) => continue, // which one is not said
                    Ok(released) => Ok(*released),
                    Err(error) if names(error, NAMES[usize::from(seen.name)]) => {
                        Err(error.to_string())
                    }
                    Err(_) => continue,
                };
                self.world.lock().given_back.push(GivenBack {
                    client: seen.client,
                    name: seen.name,
                    lease,
                    was_valid,
                    was_over: false, // asked only of "still held"
                    is_valid: is_valid(&seen.probe),
                    answer: of_part,
                });
            }
            Some(answer)
        }
    }
}

/// Whether an error is about this name.
fn names(error: &Error, asked: &str) -> bool {
    match error {
        Error::Lost { name, .. } => &**name == asked,
        Error::Several { errors } => errors.iter().any(|error| names(error, asked)),
        _ => false,
    }
}

impl Drop for HeldAll {
    fn drop(&mut self) {
        drop(self.take("drops"));
    }
}
