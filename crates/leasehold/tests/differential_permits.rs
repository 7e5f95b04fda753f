//! The memory backend is the specification of permits too: a real server answers every step as it does.

mod common;

use std::time::{Duration, Instant};

use common::{
    SOON,
    differential::{self, CLIENTS, Play, rounded, told},
};
use leasehold::{Access, Client, Error, LeasedSemaphore, PermitGuard, Status};
use proptest::prelude::*;
use tokio::task::JoinHandle;

/// Of a hold that is to end. Shorter than all that others may take.
const SHORT: Duration = Duration::from_millis(40);

/// What can be done. Numbers pick among what there is at that moment.
#[derive(Clone, Debug)]
enum Step {
    /// By a client that neither holds nor waits; several holds of one process are the engine's business.
    Try {
        client: usize,
        permits: u32,
        fixed: bool,
        /// How many there are; also where a client has set that.
        of: Option<(u32, bool)>,
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
    Extend {
        guard: usize,
    },
    Verify {
        guard: usize,
    },
    /// Takes permits for a short time, and looks when that is over.
    Expire {
        client: usize,
        permits: u32,
    },
    TrySet {
        client: usize,
        permits: u32,
    },
    Set {
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
    let both = (client.clone(), permits.clone());
    let step = prop_oneof![
        4 => (both.clone(), any::<bool>(), proptest::option::of((1..6_u32, any::<bool>())))
            .prop_map(|((client, permits), fixed, of)| Step::Try { client, permits, fixed, of }),
        5 => both.clone().prop_map(|(client, permits)| Step::Acquire { client, permits }),
        1 => Just(Step::Abort),
        5 => some.clone().prop_map(|guard| Step::Release { guard }),
        2 => some.clone().prop_map(|guard| Step::Drop { guard }),
        1 => some.clone().prop_map(|guard| Step::Extend { guard }),
        1 => some.prop_map(|guard| Step::Verify { guard }),
        1 => both.prop_map(|(client, permits)| Step::Expire { client, permits }),
        1 => (client.clone(), 0..6_u32)
            .prop_map(|(client, permits)| Step::TrySet { client, permits }),
        1 => (client.clone(), 0..8_u32)
            .prop_map(|(client, permits)| Step::Set { client, permits }),
        1 => (client.clone(), -3..4_i32).prop_map(|(client, permits)| Step::Add { client, permits }),
        1 => client.prop_map(|client| Step::Drain { client }),
    ];
    proptest::collection::vec(step, 1..30)
}

type Waiter = JoinHandle<Result<PermitGuard, Error>>;

/// What is going on in one world.
struct Game {
    clients: Vec<Client>,
    name: String,
    guards: Vec<(usize, PermitGuard)>,
    waiters: Vec<(usize, Waiter)>,
}

impl Game {
    fn semaphore(&self, client: usize) -> LeasedSemaphore {
        self.clients[client].leased_semaphore(&self.name)
    }

    fn keep(&mut self, client: usize, guard: Result<Option<PermitGuard>, Error>) -> String {
        told(guard.map(|guard| {
            let got = guard.is_some();
            self.guards.extend(guard.map(|guard| (client, guard)));
            got
        }))
    }

    fn pick(&self, number: usize) -> Option<usize> {
        number.checked_rem(self.guards.len())
    }

    fn is_busy(&self, client: usize) -> bool {
        let mut holds = self.guards.iter().map(|(who, _)| who);
        let mut waits = self.waiters.iter().map(|(who, _)| who);
        holds.any(|who| *who == client) || waits.any(|who| *who == client)
    }
}

impl Play for Game {
    type Step = Step;

    fn new(clients: Vec<Client>, number: u64) -> Self {
        Game {
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
        match *step {
            Step::Try { client, .. }
            | Step::Acquire { client, .. }
            | Step::Expire { client, .. }
                if self.is_busy(client) =>
            {
                String::new()
            }
            // Who gets what becomes free is a race, which either may win: one waiter at a time.
            Step::Acquire { .. } | Step::Expire { .. } if !self.waiters.is_empty() => String::new(),
            Step::Try {
                client,
                permits,
                fixed,
                of,
            } => {
                let mut semaphore = self.semaphore(client);
                if let Some((all, exactly)) = of {
                    semaphore = if exactly {
                        semaphore.permits_exactly(all)
                    } else {
                        semaphore.permits(all)
                    };
                }
                if fixed {
                    semaphore = semaphore.fixed_lease(Duration::from_secs(20));
                }
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
            Step::Extend { guard } => match self.pick(guard) {
                Some(guard) => told(self.guards[guard].1.extend(Duration::from_secs(60)).await),
                None => String::new(),
            },
            Step::Verify { guard } => match self.pick(guard) {
                Some(guard) => told(self.guards[guard].1.verify().await.map(rounded)),
                None => String::new(),
            },
            Step::Expire { client, permits } => {
                let semaphore = self.semaphore(client);
                let guard = semaphore.fixed_lease(SHORT).try_acquire_many(permits).await;
                let guard = guard.map(|guard| guard.map(PermitGuard::detach).is_some());
                if let Ok(true) = guard {
                    let before = semaphore.available_permits().await.unwrap();
                    let deadline = Instant::now() + SOON;
                    while semaphore.available_permits().await.unwrap() == before {
                        assert!(Instant::now() < deadline, "they never come back");
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
                told(guard)
            }
            Step::TrySet { client, permits } => {
                told(self.semaphore(client).try_set_permits(permits).await)
            }
            Step::Set { client, permits } => {
                told(self.semaphore(client).set_permits(permits).await)
            }
            Step::Add { client, permits } if self.waiters.is_empty() => {
                told(self.semaphore(client).add_permits(permits).await)
            }
            Step::Drain { client } => told(self.semaphore(client).drain_permits().await),
            // How many are left depends on whether the waiter was first.
            Step::Add { client, permits } => {
                told(self.semaphore(client).add_permits(permits).await.map(drop))
            }
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
            holders,
            ..
        } = self.semaphore(0).status().await.unwrap();
        let mut holders: Vec<(u16, u64, Option<&str>)> = holders
            .iter()
            .map(|held| {
                let Access::Permits(permits) = held.access else {
                    panic!("{held:?}");
                };
                (permits, held.holds, held.remaining.map(rounded))
            })
            .collect();
        holders.sort_unstable();
        let free = self.semaphore(1).available_permits().await.unwrap();
        let mut guards: Vec<String> = self
            .guards
            .iter()
            .map(|(client, guard)| {
                let left = rounded(guard.remaining());
                format!("{client} {} {} {left}", guard.permits(), guard.is_valid())
            })
            .collect();
        guards.sort();
        let waiters: Vec<_> = self.waiters.iter().map(|(client, _)| client).collect();
        format!("{available:?} {free} {waiting_clients} listen {holders:?} {guards:?} {waiters:?}")
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
fn memory_and_a_real_server_answer_the_same_about_permits() {
    differential::compare::<Game, _>(64, |builder| builder, steps);
}
