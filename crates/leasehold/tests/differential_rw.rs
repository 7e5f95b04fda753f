//! The memory backend is the specification of the read-write lock too: a real server answers every step of readers and
//! writers as it does.

mod common;

use std::time::Duration;

use common::differential::{self, CLIENTS, Play, rounded, told};
use leasehold::{Client, ClientBuilder, Error, Handoff, ReadGuard, Released, RwLock, WriteGuard};
use proptest::prelude::*;
use tokio::task::JoinHandle;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
enum Want {
    Read,
    Write,
}

/// What can be done. Numbers pick among what there is at that moment.
#[derive(Clone, Debug)]
enum Step {
    Try {
        client: usize,
        want: Want,
        fixed: bool,
    },
    /// In the background.
    Wait {
        client: usize,
        want: Want,
    },
    Downgrade {
        guard: usize,
    },
    /// Under a guard that writes.
    Read {
        guard: usize,
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
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (client, some) = (0..CLIENTS, 0..8_usize);
    let want = prop_oneof![
        4 => Just(Want::Read),
        4 => Just(Want::Write)
    ];
    let asked = (client.clone(), want);
    let step = prop_oneof![
        4 => (asked.clone(), any::<bool>())
            .prop_map(|((client, want), fixed)| Step::Try { client, want, fixed }),
        8 => asked.prop_map(|(client, want)| Step::Wait { client, want }),
        2 => some.clone().prop_map(|guard| Step::Downgrade { guard }),
        2 => some.clone().prop_map(|guard| Step::Read { guard }),
        2 => some.clone().prop_map(|waiter| Step::Abort { waiter }),
        6 => some.clone().prop_map(|guard| Step::Release { guard }),
        3 => some.clone().prop_map(|guard| Step::Drop { guard }),
        1 => (some.clone(), prop_oneof![Just(20_u64), Just(60)])
            .prop_map(|(guard, seconds)| Step::Extend { guard, seconds }),
        1 => some.clone().prop_map(|guard| Step::Verify { guard }),
        1 => some.prop_map(|guard| Step::Detach { guard }),
        1 => client.prop_map(|client| Step::ForceUnlock { client }),
    ];
    proptest::collection::vec(step, 1..30)
}

/// A guard of either kind.
enum Held {
    Read(ReadGuard),
    Write(WriteGuard),
}

macro_rules! either {
    ($held:expr, $guard:ident => $done:expr) => {
        match $held {
            Held::Read($guard) => $done,
            Held::Write($guard) => $done,
        }
    };
}

impl Held {
    async fn release(self) -> Result<Released, Error> {
        either!(self, guard => guard.release().await)
    }

    async fn extend(&self, lease: Duration) -> Result<(), Error> {
        either!(self, guard => guard.extend(lease).await)
    }

    async fn verify(&self) -> Result<Duration, Error> {
        either!(self, guard => guard.verify().await)
    }

    fn detach(self) -> Duration {
        either!(self, guard => guard.detach().remaining)
    }

    fn seen(&self) -> String {
        let (valid, left) = either!(self, guard => (guard.is_valid(), guard.remaining()));
        let does = match self {
            Held::Read(_) => "reads",
            Held::Write(_) => "writes",
        };
        format!("{does}, valid: {valid}, {}", rounded(left))
    }

    async fn wait(lock: RwLock, want: Want) -> Result<Held, Error> {
        Ok(match want {
            Want::Read => Held::Read(lock.read().await?),
            Want::Write => Held::Write(lock.write().await?),
        })
    }

    async fn attempt(lock: &RwLock, want: Want) -> Result<Option<Held>, Error> {
        Ok(match want {
            Want::Read => lock.try_read().await?.map(Held::Read),
            Want::Write => lock.try_write().await?.map(Held::Write),
        })
    }
}

type Waiter = JoinHandle<Result<Held, Error>>;

/// What is going on in one world.
struct Game {
    clients: Vec<Client>,
    name: String,
    guards: Vec<(usize, Held)>,
    waiters: Vec<(usize, Waiter)>,
}

impl Game {
    fn lock(&self, client: usize) -> RwLock {
        self.clients[client].rw_lock(&self.name)
    }

    async fn downgrade(&mut self, guard: usize) -> String {
        let (client, held) = self.guards.remove(guard);
        let reads = match held {
            Held::Read(reads) => Ok(reads),
            Held::Write(writes) => writes.downgrade().await,
        };
        self.keep(client, reads.map(|reads| Some(Held::Read(reads))))
    }

    fn read(&mut self, guard: usize) -> String {
        let (client, held) = &self.guards[guard];
        let client = *client;
        let reads = match held {
            Held::Read(reads) => reads.reenter(),
            Held::Write(writes) => writes.read(),
        };
        self.keep(client, reads.map(|reads| Some(Held::Read(reads))))
    }

    fn keep(&mut self, client: usize, guard: Result<Option<Held>, Error>) -> String {
        told(guard.map(|guard| {
            let got = guard.is_some();
            self.guards.extend(guard.map(|guard| (client, guard)));
            got
        }))
    }

    fn pick(&self, number: usize) -> Option<usize> {
        number.checked_rem(self.guards.len())
    }

    /// Whether one more task of this client may wait. Two clients with several waiters each both ask anew once their first ones are
    /// served, and that is a race, which either may win: so only one client at a time has more than one.
    fn may_wait(&self, client: usize) -> bool {
        let waits = |client| self.waiters.iter().filter(|(of, _)| *of == client).count();
        let others_many = (0..CLIENTS).any(|other| other != client && waits(other) > 1);
        waits(client) == 0 || !others_many
    }
}

impl Play for Game {
    type Step = Step;

    fn new(clients: Vec<Client>, number: u64) -> Self {
        Game {
            name: format!("{number}"),
            guards: Vec::new(),
            waiters: Vec::new(),
            clients,
        }
    }

    async fn take(&mut self, step: &Step) -> String {
        match *step {
            Step::Try {
                client,
                want,
                fixed,
            } => {
                let mut lock = self.lock(client);
                if fixed {
                    lock = lock.fixed_lease(Duration::from_secs(20));
                }
                let guard = Held::attempt(&lock, want).await;
                self.keep(client, guard)
            }
            Step::Wait { client, want } => {
                if !self.may_wait(client) {
                    return String::new();
                }
                let waits = Held::wait(self.lock(client), want);
                self.waiters.push((client, tokio::spawn(waits)));
                String::new()
            }
            Step::Downgrade { guard } => match self.pick(guard) {
                Some(guard) => self.downgrade(guard).await,
                None => String::new(),
            },
            Step::Read { guard } => match self.pick(guard) {
                Some(guard) => self.read(guard),
                None => String::new(),
            },
            Step::Abort { waiter } => {
                let Some(waiter) = waiter.checked_rem(self.waiters.len()) else {
                    return String::new();
                };
                let (_, task) = self.waiters.remove(waiter);
                task.abort();
                format!("aborted: {}", task.await.is_err())
            }
            Step::Release { guard } => match self.pick(guard) {
                Some(guard) => told(self.guards.remove(guard).1.release().await),
                None => String::new(),
            },
            Step::Drop { guard } => {
                self.pick(guard).map(|guard| self.guards.remove(guard));
                String::new()
            }
            Step::Detach { guard } => match self.pick(guard) {
                Some(guard) => rounded(self.guards.remove(guard).1.detach()).to_owned(),
                None => String::new(),
            },
            Step::Extend { guard, seconds } => match self.pick(guard) {
                Some(guard) => {
                    let lease = Duration::from_secs(seconds);
                    told(self.guards[guard].1.extend(lease).await)
                }
                None => String::new(),
            },
            Step::Verify { guard } => match self.pick(guard) {
                Some(guard) => told(self.guards[guard].1.verify().await.map(rounded)),
                None => String::new(),
            },
            // With waiters it is a race, which either may win.
            Step::ForceUnlock { .. } if !self.waiters.is_empty() => String::new(),
            Step::ForceUnlock { client } => told(self.lock(client).force_unlock().await),
        }
    }

    async fn look(&mut self) -> String {
        let mut place = 0;
        while place < self.waiters.len() {
            if self.waiters[place].1.is_finished() {
                let (client, task) = self.waiters.remove(place);
                let guard = task.await.expect("it does not panic");
                self.keep(client, guard.map(Some));
            } else {
                place += 1;
            }
        }
        let status = self.lock(0).status().await.unwrap();
        let mut holders: Vec<String> = status
            .holders
            .iter()
            .map(|holder| {
                let client = self.clients.iter().position(|c| c.id() == holder.client);
                let left = holder.remaining.map(rounded);
                let form = holder.owner.splitn(3, ':').nth(2);
                format!(
                    "{client:?} {:?} {form:?} {} {left:?}",
                    holder.access, holder.holds
                )
            })
            .collect();
        holders.sort();
        let mut waiting = Vec::new();
        for client in 0..CLIENTS {
            waiting.push(self.lock(client).status().await.unwrap().waiting_here);
        }
        let guards = self.guards.iter();
        let guards = guards.map(|(client, guard)| format!("{client} {}", guard.seen()));
        let mut guards: Vec<String> = guards.collect();
        guards.sort();
        let listen = status.waiting_clients;
        format!("held by {holders:?}, {listen} listen, {waiting:?} wait, {guards:?}")
    }

    async fn end(mut self) {
        for (_, task) in self.waiters.drain(..) {
            task.abort();
            let _ = task.await;
        }
        self.guards.clear();
        // What was detached or lost is still there.
        self.lock(0).force_unlock().await.unwrap();
    }
}

/// By number only, and no polls: the clock must not decide between the two worlds.
fn settings(builder: ClientBuilder) -> ClientBuilder {
    let handoff = Handoff::new(1, Duration::from_secs(3600));
    builder.handoff(handoff).poll_every(Duration::from_secs(60))
}

#[test]
fn memory_and_a_real_server_answer_readers_and_writers_the_same() {
    differential::compare::<Game, _>(64, settings, steps);
}
