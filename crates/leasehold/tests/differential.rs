//! The memory backend is the specification: whatever one does, a real server answers the same.

mod common;

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use common::{SOON, World, wait_until_idle, wire::script_calls};
use leasehold::{Client, Error, Footprint, Guard, Handoff, MemoryServer, Owner};
use leasehold_testkit::{Flavor, Server};
use proptest::{
    prelude::*,
    test_runner::{Config, TestCaseError, TestRunner},
};
use tokio::task::JoinHandle;

const CLIENTS: usize = 3;
const NAMES: usize = 2;

/// What can be done. Numbers pick among what there is at that moment.
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

type Waiter = JoinHandle<Result<Guard, Error>>;

/// One world, and what is going on in it.
struct Play<'a> {
    world: &'a World,
    clients: &'a [Client],
    owners: Vec<Owner>,
    names: Vec<String>,
    guards: Vec<(usize, Guard)>,
    waiters: Vec<(usize, String, Waiter)>,
}

fn told<T: std::fmt::Debug>(answer: Result<T, Error>) -> String {
    match answer {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("{:?}", error.kind()),
    }
}

impl<'a> Play<'a> {
    fn new(world: &'a World, clients: &'a [Client], number: u64) -> Self {
        Play {
            world,
            clients,
            owners: clients.iter().map(|_| Owner::new()).collect(),
            names: (0..NAMES).map(|name| format!("{number}/{name}")).collect(),
            guards: Vec::new(),
            waiters: Vec::new(),
        }
    }

    fn keep(&mut self, client: usize, guard: Result<Option<Guard>, Error>) -> String {
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

    /// Takes a step, and says what became of it.
    async fn take(&mut self, step: &Step) -> String {
        match *step {
            Step::TryLock {
                client,
                name,
                fixed,
            } => {
                let mut mutex = self.clients[client].mutex(&self.names[name]);
                if fixed {
                    mutex = mutex.fixed_lease(Duration::from_secs(20));
                }
                let guard = mutex.try_lock().await;
                self.keep(client, guard)
            }
            Step::TryEnter { client, name } => {
                let mutex = self.clients[client].mutex(&self.names[name]);
                let guard = mutex.owned_by(&self.owners[client]).try_lock().await;
                self.keep(client, guard)
            }
            Step::Lock { client, name } => {
                let name = self.names[name].clone();
                let lock = self.clients[client].mutex(&name).lock();
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
                    return rounded(guard.detach().remaining);
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
            Step::ForceUnlock { client, name } => {
                told(self.clients[client].force_unlock(&self.names[name]).await)
            }
        }
    }

    /// All that can be seen.
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
        for name in &self.names {
            let status = self.clients[0].status(name).await.unwrap();
            let holder = status.holder().cloned().map(|holder| {
                let client = self.clients.iter().position(|c| c.id() == holder.client);
                (client, holder.holds, holder.remaining.map(rounded))
            });
            seen.push(format!(
                "held by {holder:?}, {} listen",
                status.waiting_clients
            ));
            for client in self.clients {
                let waiting = client.status(name).await.unwrap().waiting_here;
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
        format!("{seen:?} {guards:?}")
    }

    /// What shows that something has happened: script calls, and what each client keeps.
    fn activity(&self) -> (u64, Vec<Footprint>) {
        let calls = match self.world {
            World::Memory(_) => 0, // on this thread, so the footprints show it
            World::Server(server) => script_calls(server),
        };
        (calls, self.clients.iter().map(Client::footprint).collect())
    }

    /// Waits until nothing is under way between the clients and their server: no task runs but drivers that wait, all
    /// wake-ups are heard, and neither has any of them led to anything.
    async fn rest(&self) {
        let deadline = Instant::now() + SOON;
        loop {
            let before = self.activity();
            if before.1.iter().all(|client| client.tasks == client.waiting) {
                for client in self.clients {
                    client.heard().await;
                }
                // What was woken has its turn, and is seen in the middle of it.
                let mut same = true;
                for _ in 0..4 {
                    tokio::task::yield_now().await;
                    same &= self.activity() == before;
                }
                if same {
                    return;
                }
            }
            assert!(Instant::now() < deadline, "it never rests: {before:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// What is seen when nothing is under way. The tasks that were answered are on this thread, so it looks until it sees
    /// the same a few times in a row.
    async fn settle(&mut self) -> String {
        self.rest().await;
        let (mut seen, mut times) = (self.look().await, 0);
        while times < 3 {
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            let now = self.look().await;
            times = if now == seen { times + 1 } else { 0 };
            seen = now;
        }
        seen
    }

    async fn end(mut self) {
        for (_, _, task) in self.waiters.drain(..) {
            task.abort();
            let _ = task.await;
        }
        self.guards.clear();
        // What was detached or lost is still there.
        for name in &self.names {
            self.clients[0].force_unlock(name).await.unwrap();
        }
        for client in self.clients {
            wait_until_idle(client).await;
        }
    }
}

/// To the next lease there is: 20, 30 or 60 seconds.
fn rounded(left: Duration) -> String {
    match left.as_secs() {
        0 if left.is_zero() => "none",
        0..20 => "20",
        20..30 => "30",
        30..=60 => "60",
        _ => "long",
    }
    .to_owned()
}

async fn clients(world: &World) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        // By number only: the clock must not decide between the two worlds.
        let handoff = Handoff::new(1, Duration::from_secs(3600));
        clients.push(world.builder().handoff(handoff).connect().await.unwrap());
    }
    clients
}

#[test]
fn memory_and_a_real_server_answer_the_same_to_everything() {
    std::thread::scope(|scope| {
        for flavor in Flavor::available() {
            scope.spawn(move || compare(flavor));
        }
    });
}

fn compare(flavor: Flavor) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let server = World::Server(Box::new(Server::start(flavor)));
    let memory = World::Memory(MemoryServer::new());
    let (theirs, ours) =
        runtime.block_on(async { (clients(&server).await, clients(&memory).await) });
    let number = Cell::new(0_u64);
    let config = Config {
        cases: 64,
        failure_persistence: None,
        max_shrink_iters: 300,
        ..Config::default()
    };
    let mut runner = TestRunner::new(config);
    let began = Instant::now();
    let outcome = runner.run(&steps(), |steps| {
        number.set(number.get() + 1);
        runtime.block_on(async {
            let mut there = Play::new(&server, &theirs, number.get());
            let mut here = Play::new(&memory, &ours, number.get());
            let mut difference = None;
            for (nth, step) in steps.iter().enumerate() {
                let answers = (here.take(step).await, there.take(step).await);
                let views = (here.settle().await, there.settle().await);
                if answers.0 != answers.1 || views.0 != views.1 {
                    difference = Some(format!(
                        "step {nth}, {step:?}:\nmemory {answers:?}\n{}\n{flavor}\n{}",
                        views.0, views.1
                    ));
                    break;
                }
            }
            here.end().await;
            there.end().await;
            difference.map_or(Ok(()), |difference| Err(TestCaseError::fail(difference)))
        })
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    eprintln!("{flavor}: {} cases in {:?}", number.get(), began.elapsed());
}
