//! The same random game on the memory backend and on a real server: what is answered and seen must be the same.

use std::{
    cell::Cell,
    fmt::Debug,
    time::{Duration, Instant},
};

use leasehold::{Client, ClientBuilder, Error, Footprint, MemoryServer};
use leasehold_testkit::{Flavor, Server};
use proptest::{
    strategy::Strategy,
    test_runner::{Config, TestCaseError, TestRunner},
};

use super::{SOON, World, wait_until_idle, wire::script_calls};

/// How many clients play.
pub const CLIENTS: usize = 4;

/// A game in one world.
pub trait Play {
    type Step: Debug;

    fn new(clients: Vec<Client>, number: u64) -> Self;

    /// The step that each game begins with, if any.
    fn first(_number: u64) -> Option<Self::Step> {
        None
    }

    /// Takes a step, and says what became of it.
    async fn take(&mut self, step: &Self::Step) -> String;

    /// All that can be seen.
    async fn look(&mut self) -> String;

    /// Ends what waits and what is held.
    async fn end(self);
}

/// An answer, without the words of an error.
pub fn told<T: Debug>(answer: Result<T, Error>) -> String {
    match answer {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("{:?}", error.kind()),
    }
}

/// To the next lease there is: 20, 30 or 60 seconds.
pub fn rounded(left: Duration) -> &'static str {
    match left.as_secs() {
        0 if left.is_zero() => "none",
        0..20 => "20",
        20..30 => "30",
        30..=60 => "60",
        _ => "long",
    }
}

/// Plays on memory and on each server there is, side by side.
pub fn compare<P: Play, S: Strategy<Value = Vec<P::Step>>>(
    cases: u32,
    settings: impl Fn(ClientBuilder) -> ClientBuilder + Sync,
    steps: impl Fn() -> S + Sync,
) {
    std::thread::scope(|scope| {
        for flavor in Flavor::available() {
            let (settings, steps) = (&settings, &steps);
            scope.spawn(move || compare_with::<P, S>(flavor, cases, settings, &steps()));
        }
    });
}

/// Where a game is played.
struct Table<'a> {
    world: &'a World,
    clients: Vec<Client>,
}

impl<'a> Table<'a> {
    async fn new(world: &'a World, settings: impl Fn(ClientBuilder) -> ClientBuilder) -> Self {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(settings(world.builder()).connect().await.unwrap());
        }
        Table { world, clients }
    }

    /// Signs that something has happened: script calls, and what each client keeps.
    fn activity(&self) -> (u64, Vec<Footprint>) {
        let calls = match self.world {
            World::Memory(_) => 0, // on this thread, so the footprints show it
            World::Server(server) => script_calls(server),
        };
        (calls, self.clients.iter().map(Client::footprint).collect())
    }

    /// Waits until nothing is under way between the clients and their server: no task runs but drivers that wait, no caller asks, all
    /// wake-ups are heard, and neither has any of them led to anything.
    async fn rest(&self) {
        let deadline = Instant::now() + SOON;
        loop {
            let before = self.activity();
            let rests = |client: &Footprint| client.tasks == client.waiting && client.asking == 0;
            if before.1.iter().all(rests) {
                for client in &self.clients {
                    client.heard().await;
                }
                // A task that was woken has its turn, and is seen in the middle of it.
                let mut same = true;
                for turn in 0..4 {
                    tokio::task::yield_now().await;
                    if turn % 2 == 1 {
                        // On a busy machine the clients' own thread needs a turn, too.
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
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

    /// Looks when nothing is under way. The tasks that were answered are on this thread, so it looks until it sees
    /// the same a few times in a row.
    async fn settle(&self, play: &mut impl Play) -> String {
        self.rest().await;
        let (mut seen, mut times) = (play.look().await, 0);
        while times < 3 {
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            let now = play.look().await;
            times = if now == seen { times + 1 } else { 0 };
            seen = now;
        }
        seen
    }

    async fn clear(&self, play: impl Play) {
        play.end().await;
        for client in &self.clients {
            wait_until_idle(client).await;
        }
    }
}

fn compare_with<P: Play, S: Strategy<Value = Vec<P::Step>>>(
    flavor: Flavor,
    cases: u32,
    settings: impl Fn(ClientBuilder) -> ClientBuilder,
    steps: &S,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let server = World::Server(Box::new(Server::start(flavor)));
    let memory = World::Memory(MemoryServer::new());
    let (there, here) = runtime.block_on(async {
        (
            Table::new(&server, &settings).await,
            Table::new(&memory, &settings).await,
        )
    });
    let (number, taken) = (Cell::new(0_u64), Cell::new(0_u64));
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 300,
        ..Config::default()
    };
    let began = Instant::now();
    let outcome = TestRunner::new(config).run(steps, |steps| {
        number.set(number.get() + 1);
        runtime.block_on(async {
            let mut theirs = P::new(there.clients.clone(), number.get());
            let mut ours = P::new(here.clients.clone(), number.get());
            let first = P::first(number.get());
            let mut difference = None;
            for (nth, step) in first.iter().chain(&steps).enumerate() {
                taken.set(taken.get() + 1);
                let answers = (ours.take(step).await, theirs.take(step).await);
                let views = (
                    here.settle(&mut ours).await,
                    there.settle(&mut theirs).await,
                );
                if answers.0 != answers.1 || views.0 != views.1 {
                    difference = Some(format!(
                        "step {nth}, {step:?}:\nmemory {answers:?}\n{}\n{flavor}\n{}",
                        views.0, views.1
                    ));
                    break;
                }
            }
            here.clear(ours).await;
            there.clear(theirs).await;
            difference.map_or(Ok(()), |difference| Err(TestCaseError::fail(difference)))
        })
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let (cases, steps, took) = (number.get(), taken.get(), began.elapsed());
    eprintln!("{flavor}: {cases} cases, {steps} steps in {took:?}");
}
