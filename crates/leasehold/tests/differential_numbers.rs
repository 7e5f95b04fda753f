//! The memory backend is the specification of semaphores without leases and of latches, too: a real server answers every step as it
//! does.

mod common;

use common::differential::{self, CLIENTS, Play, told};
use leasehold::{Client, Error, Latch, Semaphore, SemaphoreGuard, Status};
use proptest::prelude::*;
use tokio::task::JoinHandle;

/// What can be done with permits. Numbers pick among what there is at that moment.
#[derive(Clone, Debug)]
enum Step {
    /// By a client that neither holds nor waits; several holds of one process are the engine's business.
    Try {
        client: usize,
        permits: u32,
        /// How many there are.
        of: Option<u32>,
    },
    /// In the background.
    Acquire {
        client: usize,
        permits: u32,
    },
    Abort,
    Release {
        guard: usize,
    },
    Drop {
        guard: usize,
    },
    Verify {
        guard: usize,
    },
    Detach {
        guard: usize,
    },
    TrySet {
        client: usize,
        permits: u32,
    },
    Add {
        client: usize,
        permits: i32,
    },
    Drain {
        client: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (client, permits, some) = (0..CLIENTS, 1..5_u32, 0..8_usize);
    let both = (client.clone(), permits);
    let step = prop_oneof![
        4 => (both.clone(), proptest::option::of(1..6_u32))
            .prop_map(|((client, permits), of)| Step::Try { client, permits, of }),
        5 => both.prop_map(|(client, permits)| Step::Acquire { client, permits }),
        1 => Just(Step::Abort),
        5 => some.clone().prop_map(|guard| Step::Release { guard }),
        2 => some.clone().prop_map(|guard| Step::Drop { guard }),
        1 => some.clone().prop_map(|guard| Step::Verify { guard }),
        1 => some.prop_map(|guard| Step::Detach { guard }),
        1 => (client.clone(), 0..6_u32)
            .prop_map(|(client, permits)| Step::TrySet { client, permits }),
        1 => (client.clone(), -3..4_i32).prop_map(|(client, permits)| Step::Add { client, permits }),
        1 => client.prop_map(|client| Step::Drain { client }),
    ];
    proptest::collection::vec(step, 1..30)
}

type Waits<T> = JoinHandle<Result<T, Error>>;

/// What is going on in one world.
struct Permits {
    clients: Vec<Client>,
    name: String,
    guards: Vec<(usize, SemaphoreGuard)>,
    waiters: Vec<(usize, Waits<SemaphoreGuard>)>,
}

impl Permits {
    fn semaphore(&self, client: usize) -> Semaphore {
        self.clients[client].semaphore(&self.name)
    }

    fn keep(&mut self, client: usize, guard: Result<Option<SemaphoreGuard>, Error>) -> String {
        told(guard.map(|guard| {
            let got = guard.is_some();
            self.guards.extend(guard.map(|guard| (client, guard)));
            got
        }))
    }

    fn take_guard(&mut self, number: usize) -> Option<SemaphoreGuard> {
        let at = number.checked_rem(self.guards.len())?;
        Some(self.guards.remove(at).1)
    }

    fn is_busy(&self, client: usize) -> bool {
        let mut holds = self.guards.iter().map(|(who, _)| who);
        let mut waits = self.waiters.iter().map(|(who, _)| who);
        holds.any(|who| *who == client) || waits.any(|who| *who == client)
    }
}

impl Play for Permits {
    type Step = Step;

    fn new(clients: Vec<Client>, number: u64) -> Self {
        Permits {
            clients,
            name: number.to_string(),
            guards: Vec::new(),
            waiters: Vec::new(),
        }
    }

    /// Most games need some permits to begin with.
    fn first(number: u64) -> Option<Step> {
        let set = Step::TrySet {
            client: 0,
            permits: 4,
        };
        (!number.is_multiple_of(4)).then_some(set)
    }

    async fn take(&mut self, step: &Step) -> String {
        let waits = !self.waiters.is_empty();
        match *step {
            Step::Try { client, .. } | Step::Acquire { client, .. } if self.is_busy(client) => {
                String::new()
            }
            // Who gets what becomes free is a race, which either may win: one waiter at a time.
            Step::Acquire { .. } if waits => String::new(),
            Step::Try {
                client,
                permits,
                of,
            } => {
                let semaphore = self.semaphore(client);
                let semaphore = match of {
                    Some(all) => semaphore.permits(all),
                    None => semaphore,
                };
                let guard = semaphore.try_acquire_many(permits).await;
                self.keep(client, guard)
            }
            Step::Acquire { client, permits } => {
                let acquire = self.semaphore(client).acquire_many(permits);
                self.waiters.push((client, tokio::spawn(acquire)));
                String::new()
            }
            Step::Abort => match self.waiters.pop() {
                Some((_, task)) => {
                    task.abort();
                    format!("aborted: {}", task.await.is_err())
                }
                None => String::new(),
            },
            Step::Release { guard } => match self.take_guard(guard) {
                Some(guard) => told(guard.release().await),
                None => String::new(),
            },
            Step::Drop { guard } => {
                drop(self.take_guard(guard));
                String::new()
            }
            Step::Verify { guard } => match guard.checked_rem(self.guards.len()) {
                Some(at) => told(self.guards[at].1.verify().await.map(drop)),
                None => String::new(),
            },
            Step::Detach { guard } => match self.take_guard(guard) {
                Some(guard) => {
                    guard.detach();
                    "left".to_owned()
                }
                None => String::new(),
            },
            Step::TrySet { client, permits } => {
                told(self.semaphore(client).try_set_permits(permits).await)
            }
            // How many are left depends on whether the waiter was first.
            Step::Add { client, permits } if waits => {
                told(self.semaphore(client).add_permits(permits).await.map(drop))
            }
            Step::Add { client, permits } => {
                told(self.semaphore(client).add_permits(permits).await)
            }
            Step::Drain { client } => told(self.semaphore(client).drain_permits().await),
        }
    }

    async fn look(&mut self) -> String {
        let mut waiting = Vec::new();
        for (client, task) in std::mem::take(&mut self.waiters) {
            if task.is_finished() {
                let guard = task.await.expect("it does not panic");
                self.keep(client, guard.map(Some));
            } else {
                waiting.push((client, task));
            }
        }
        self.waiters = waiting;
        let Status {
            available,
            waiting_clients,
            ..
        } = self.semaphore(0).status().await.unwrap();
        let free = self.semaphore(1).available_permits().await.unwrap();
        let guards = self.guards.iter().map(|(client, guard)| {
            let (permits, valid) = (guard.permits(), guard.is_valid());
            format!("{client} {permits} {valid}")
        });
        let mut guards: Vec<String> = guards.collect();
        guards.sort();
        let waiters: Vec<_> = self.waiters.iter().map(|(client, _)| client).collect();
        format!("{available:?} {free} {waiting_clients} listen {guards:?} {waiters:?}")
    }

    async fn end(mut self) {
        for (_, task) in self.waiters.drain(..) {
            task.abort();
            let _ = task.await;
        }
        self.guards.clear();
    }
}

#[test]
fn memory_and_a_real_server_answer_the_same_about_permits_without_leases() {
    differential::compare::<Permits, _>(64, |builder| builder, steps);
}

/// What can be done with a latch.
#[derive(Clone, Copy, Debug)]
enum LatchStep {
    Set(usize, u32),
    Down(usize, u32),
    Wait(usize),
    /// The first that waits leaves.
    Abort,
    Delete(usize),
}

fn latch_steps() -> impl Strategy<Value = Vec<LatchStep>> {
    let client = 0..CLIENTS;
    let step = prop_oneof![
        3 => (client.clone(), 1..5_u32).prop_map(|(client, count)| LatchStep::Set(client, count)),
        5 => (client.clone(), 1..3_u32).prop_map(|(client, by)| LatchStep::Down(client, by)),
        4 => client.clone().prop_map(LatchStep::Wait),
        1 => Just(LatchStep::Abort),
        1 => client.prop_map(LatchStep::Delete),
    ];
    proptest::collection::vec(step, 1..30)
}

struct Waiting {
    clients: Vec<Client>,
    name: String,
    waiters: Vec<(usize, Waits<()>)>,
    woken: Vec<usize>,
}

impl Waiting {
    fn latch(&self, client: usize) -> Latch {
        self.clients[client].latch(&self.name)
    }
}

impl Play for Waiting {
    type Step = LatchStep;

    fn new(clients: Vec<Client>, number: u64) -> Self {
        Waiting {
            clients,
            name: format!("latch {number}"),
            waiters: Vec::new(),
            woken: Vec::new(),
        }
    }

    async fn take(&mut self, step: &LatchStep) -> String {
        match *step {
            LatchStep::Set(client, count) => told(self.latch(client).try_set_count(count).await),
            LatchStep::Down(client, by) => told(self.latch(client).count_down_by(by).await),
            LatchStep::Wait(client) => {
                let latch = self.latch(client);
                let wait = tokio::spawn(async move { latch.wait().await });
                self.waiters.push((client, wait));
                String::new()
            }
            LatchStep::Abort => match self.waiters.pop() {
                Some((_, task)) => {
                    task.abort();
                    format!("aborted: {}", task.await.is_err())
                }
                None => String::new(),
            },
            LatchStep::Delete(client) => told(self.latch(client).delete().await),
        }
    }

    async fn look(&mut self) -> String {
        let mut waiting = Vec::new();
        for (client, task) in std::mem::take(&mut self.waiters) {
            if task.is_finished() {
                task.await.expect("it does not panic").unwrap();
                self.woken.push(client);
            } else {
                waiting.push((client, task));
            }
        }
        self.waiters = waiting;
        let Status {
            count,
            available,
            waiting_clients,
            ..
        } = self.latch(0).status().await.unwrap();
        let read = self.latch(1).count().await.unwrap();
        let waiters: Vec<_> = self.waiters.iter().map(|(client, _)| client).collect();
        let woken = &self.woken;
        format!(
            "{count:?} {available:?} {read} {waiting_clients} listen, {waiters:?} wait, {woken:?} went on"
        )
    }

    async fn end(mut self) {
        self.latch(0).delete().await.unwrap();
        for (_, task) in self.waiters.drain(..) {
            task.abort();
            let _ = task.await;
        }
    }
}

#[test]
fn memory_and_a_real_server_answer_the_same_about_latches() {
    differential::compare::<Waiting, _>(64, |builder| builder, latch_steps);
}
