//! The memory backend is the specification: a real server answers every step as it does.

mod common;

use std::{marker::PhantomData, time::Duration};

use common::{
    differential::{self, CLIENTS, Play, rounded, told},
    kinds::{AnyGuard, AnyLock, Row},
};
use leasehold::{Client, ClientBuilder, Error, Handoff, Owner};
use proptest::prelude::*;
use tokio::task::JoinHandle;

const NAMES: usize = 2;

/// A step of a game. Numbers pick among what there is at that moment.
#[derive(Clone, Debug)]
enum Step {
    TryLock {
        client: usize,
        name: usize,
        fixed: bool,
    },
    /// As the owner of this client, who may enter again.
    TryEnter {
        client: usize,
        name: usize,
    },
    /// In the background.
    Lock {
        client: usize,
        name: usize,
    },
    Abort {
        waiter: usize,
    },
    Release {
        guard: usize,
    },
    Drop {
        guard: usize,
    },
    Reenter {
        guard: usize,
    },
    Extend {
        guard: usize,
        seconds: u64,
    },
    Verify {
        guard: usize,
    },
    Detach {
        guard: usize,
    },
    ForceUnlock {
        client: usize,
        name: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (client, name, some) = (0..CLIENTS, 0..NAMES, 0..8_usize);
    let place = (client, name);
    let step = prop_oneof![
        3 => (place.clone(), any::<bool>())
            .prop_map(|((client, name), fixed)| Step::TryLock { client, name, fixed }),
        2 => place.clone().prop_map(|(client, name)| Step::TryEnter { client, name }),
        7 => place.clone().prop_map(|(client, name)| Step::Lock { client, name }),
        1 => some.clone().prop_map(|waiter| Step::Abort { waiter }),
        6 => some.clone().prop_map(|guard| Step::Release { guard }),
        3 => some.clone().prop_map(|guard| Step::Drop { guard }),
        1 => some.clone().prop_map(|guard| Step::Reenter { guard }),
        1 => (some.clone(), prop_oneof![Just(20_u64), Just(60)])
            .prop_map(|(guard, seconds)| Step::Extend { guard, seconds }),
        1 => some.clone().prop_map(|guard| Step::Verify { guard }),
        1 => some.prop_map(|guard| Step::Detach { guard }),
        1 => place.prop_map(|(client, name)| Step::ForceUnlock { client, name }),
    ];
    proptest::collection::vec(step, 1..30)
}

type Waiter = JoinHandle<Result<AnyGuard, Error>>;

/// A kind of which one holder has the name at a time.
trait OneHolder {
    const ROW: Row;
}

struct OfMutex;
struct OfFenced;
struct OfPlain;
struct OfSpin;
struct OfMulti;
struct OfFair;

impl OneHolder for OfMutex {
    const ROW: Row = Row::Mutex;
}

impl OneHolder for OfFenced {
    const ROW: Row = Row::Fenced;
}

impl OneHolder for OfPlain {
    const ROW: Row = Row::Plain;
}

impl OneHolder for OfSpin {
    const ROW: Row = Row::Spin;
}

impl OneHolder for OfMulti {
    const ROW: Row = Row::Multi;
}

impl OneHolder for OfFair {
    const ROW: Row = Row::Fair;
}

/// A game in one world.
struct Game<K> {
    kind: PhantomData<K>,
    clients: Vec<Client>,
    owners: Vec<Owner>,
    names: Vec<String>,
    guards: Vec<(usize, AnyGuard)>,
    waiters: Vec<(usize, String, Waiter)>,
}

impl<K: OneHolder> Game<K> {
    /// A waiter that looks by itself does so when the game is over: the clock must not decide between the two worlds.
    fn lock(&self, client: usize, name: usize) -> AnyLock {
        const LONG: Duration = Duration::from_secs(60);
        match K::ROW.lock(&self.clients[client], &self.names[name]) {
            AnyLock::Spin(lock) => AnyLock::Spin(lock.backoff(LONG, LONG)),
            // Of each name and one that all need, and that comes first. (If it came last, those that have their own name would race
            // for it, and either world would be right.)
            AnyLock::Multi(_, first) => {
                let both = self.names[0].replace("/0", "/-");
                let parts = [both.as_str(), &self.names[name]];
                AnyLock::Multi(self.clients[client].multi_lock(parts), first)
            }
            other => other,
        }
    }

    fn keep(&mut self, client: usize, guard: Result<Option<AnyGuard>, Error>) -> String {
        told(guard.map(|guard| {
            let got = guard.is_some();
            self.guards.extend(guard.map(|guard| (client, guard)));
            got
        }))
    }

    fn pick(&self, number: usize) -> Option<usize> {
        number.checked_rem(self.guards.len())
    }

    fn is_wanted(&self, name: usize) -> bool {
        let name = &self.names[name];
        self.waiters.iter().any(|(_, wanted, _)| wanted == name)
    }
}

impl<K: OneHolder> Play for Game<K> {
    type Step = Step;

    fn new(clients: Vec<Client>, number: u64) -> Self {
        Game {
            kind: PhantomData,
            owners: clients.iter().map(|_| Owner::new()).collect(),
            names: (0..NAMES).map(|name| format!("{number}/{name}")).collect(),
            guards: Vec::new(),
            waiters: Vec::new(),
            clients,
        }
    }

    async fn take(&mut self, step: &Step) -> String {
        match *step {
            Step::TryLock {
                client,
                name,
                fixed,
            } => {
                let mut lock = self.lock(client, name);
                if fixed {
                    lock = lock.fixed_lease(Duration::from_secs(20));
                }
                let guard = lock.try_lock().await;
                self.keep(client, guard)
            }
            Step::TryEnter { client, name } => {
                let lock = self.lock(client, name).owned_by(&self.owners[client]);
                let guard = lock.expect("it has owners").try_lock().await;
                self.keep(client, guard)
            }
            Step::Lock { client, name } => {
                let lock = self.lock(client, name).lock();
                let name = self.names[name].clone();
                self.waiters.push((client, name, tokio::spawn(lock)));
                String::new()
            }
            Step::Abort { waiter } => {
                let Some(waiter) = waiter.checked_rem(self.waiters.len()) else {
                    return String::new();
                };
                let (_, _, task) = self.waiters.remove(waiter);
                task.abort();
                format!("aborted: {}", task.await.is_err())
            }
            Step::Release { guard } => match self.pick(guard) {
                Some(guard) => {
                    let (_, guard) = self.guards.remove(guard);
                    told(guard.release().await)
                }
                None => String::new(),
            },
            Step::Drop { guard } => {
                self.pick(guard).map(|guard| self.guards.remove(guard));
                String::new()
            }
            Step::Detach { guard } => {
                if let Some(guard) = self.pick(guard) {
                    let (_, guard) = self.guards.remove(guard);
                    return rounded(guard.detach().remaining).to_owned();
                }
                String::new()
            }
            Step::Reenter { guard } => match self.pick(guard) {
                Some(guard) => {
                    let (client, again) = (self.guards[guard].0, self.guards[guard].1.reenter());
                    self.keep(client, again.map(Some))
                }
                None => String::new(),
            },
            Step::Extend { guard, seconds } => match self.pick(guard) {
                Some(guard) => told(
                    self.guards[guard]
                        .1
                        .extend(Duration::from_secs(seconds))
                        .await,
                ),
                None => String::new(),
            },
            Step::Verify { guard } => match self.pick(guard) {
                Some(guard) => told(self.guards[guard].1.verify().await.map(rounded)),
                None => String::new(),
            },
            // With waiters it is a race, which either may win.
            Step::ForceUnlock { name, .. } if self.is_wanted(name) => String::new(),
            Step::ForceUnlock { .. } if K::ROW == Row::Multi && !self.waiters.is_empty() => {
                String::new()
            }
            Step::ForceUnlock { client, name } => {
                told(self.lock(client, name).force_unlock().await)
            }
        }
    }

    async fn look(&mut self) -> String {
        let mut seen = Vec::new();
        let mut place = 0;
        while place < self.waiters.len() {
            if self.waiters[place].2.is_finished() {
                let (client, _, task) = self.waiters.remove(place);
                let guard = task.await.expect("it does not panic");
                self.keep(client, guard.map(Some));
            } else {
                place += 1;
            }
        }
        for name in 0..NAMES {
            let status = self.lock(0, name).status().await;
            let holder = status.holder().cloned().map(|holder| {
                let client = self.clients.iter().position(|c| c.id() == holder.client);
                (client, holder.holds, holder.remaining.map(rounded))
            });
            // A client listens a while after a task of it began to wait behind a holder of its own.
            let holders = holder.as_ref().and_then(|(client, ..)| *client);
            let own = match holders {
                Some(client) => self.lock(client, name).status().await.waiting_here,
                None => 0,
            };
            let listen = (own == 0).then_some(status.waiting_clients);
            seen.push(format!("held by {holder:?}, {listen:?} listen"));
            for client in 0..CLIENTS {
                let waiting = self.lock(client, name).status().await.waiting_here;
                seen.push(format!("{waiting} wait"));
            }
        }
        let mut guards: Vec<String> = self
            .guards
            .iter()
            .map(|(client, guard)| {
                format!(
                    "{client} {} {}",
                    guard.is_valid(),
                    rounded(guard.remaining())
                )
            })
            .collect();
        guards.sort();
        // In the order of their tokens, which are no numbers that two worlds share.
        let mut tokens: Vec<_> = self
            .guards
            .iter()
            .map(|(client, guard)| (guard.token(), *client))
            .collect();
        tokens.sort_unstable();
        let by_token: Vec<_> = tokens.iter().map(|(_, client)| client).collect();
        format!("{seen:?} {guards:?} {by_token:?}")
    }

    async fn end(mut self) {
        for (_, _, task) in self.waiters.drain(..) {
            task.abort();
            let _ = task.await;
        }
        self.guards.clear();
        // Holds that were detached or lost are still there.
        for name in 0..NAMES {
            self.lock(0, name).force_unlock().await.unwrap();
        }
    }
}

/// By number only: the clock must not decide between the two worlds.
fn settings(builder: ClientBuilder) -> ClientBuilder {
    builder.handoff(Handoff::new(1, Duration::from_secs(3600)))
}

#[test]
fn memory_and_a_real_server_answer_the_same_to_everything() {
    differential::compare::<Game<OfMutex>, _>(16, settings, steps);
}

#[test]
fn memory_and_a_real_server_answer_the_same_about_fenced_mutexes() {
    differential::compare::<Game<OfFenced>, _>(8, settings, steps);
}

#[test]
fn memory_and_a_real_server_answer_the_same_about_plain_mutexes() {
    differential::compare::<Game<OfPlain>, _>(8, settings, steps);
}

#[test]
fn memory_and_a_real_server_answer_the_same_about_multi_locks() {
    differential::compare::<Game<OfMulti>, _>(16, settings, steps);
}

#[test]
fn memory_and_a_real_server_answer_the_same_about_spin_mutexes() {
    differential::compare::<Game<OfSpin>, _>(8, settings, steps);
}

#[test]
fn memory_and_a_real_server_answer_the_same_about_fair_mutexes() {
    differential::compare::<Game<OfFair>, _>(32, settings, steps);
}
