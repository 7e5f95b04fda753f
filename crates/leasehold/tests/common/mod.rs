//! Parts that the tests share: a world to lock in, memory or a real server, and clients of it.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]

pub mod addresses;
pub mod forced;
pub mod kinds;
pub mod late;
pub mod own_names;
pub mod peer;
pub mod process;
pub mod redisson;
pub mod rw;
pub mod sentinel;
pub mod wire;

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use leasehold::{Client, ClientBuilder, Error, Guard, LostReason, MemoryServer, Released};
use leasehold_testkit::{Flavor, Server};

/// By then what was waited for has come, or never will.
pub const SOON: Duration = Duration::from_secs(10);

/// Where the leases live.
pub enum World {
    Memory(MemoryServer),
    Server(Box<Server>),
}

impl World {
    /// The memory backend, and every real server there is.
    pub fn all() -> Vec<World> {
        let mut worlds = vec![World::Memory(MemoryServer::new())];
        for flavor in Flavor::available() {
            worlds.push(World::Server(Box::new(Server::start(flavor))));
        }
        assert!(
            worlds.len() > 1,
            "no real server to test on: run scripts/test"
        );
        worlds
    }

    pub fn name(&self) -> String {
        match self {
            World::Memory(_) => "memory".to_owned(),
            World::Server(server) => server.flavor().to_string(),
        }
    }

    /// Settings for a client of this world.
    pub fn builder(&self) -> ClientBuilder {
        match self {
            World::Memory(server) => Client::builder().memory(server),
            World::Server(server) => Client::builder().url(server.url()),
        }
    }

    /// A client, as a process of its own would be.
    pub async fn client(&self) -> Client {
        self.builder().connect().await.expect("the server is up")
    }

    /// The names that are held.
    pub fn held(&self) -> Vec<String> {
        match self {
            World::Memory(server) => server.names(),
            World::Server(server) => keys(server)
                .into_iter()
                .filter(|key| !key.starts_with("leasehold:"))
                .collect(),
        }
    }
}

/// Every real server there is.
pub fn servers() -> Vec<Server> {
    let flavors = Flavor::available();
    assert!(!flavors.is_empty(), "no real server: run scripts/test");
    flavors.into_iter().map(Server::start).collect()
}

/// Sends a copy of a request, when the server is about to forget all answers: how many it keeps for long after it.
pub fn answers_kept_anew(server: &Server, copy: &[String]) -> usize {
    let answers = || {
        keys(server)
            .into_iter()
            .filter(|key| key.contains(":gone:"))
    };
    for key in answers() {
        server.cli(&["PEXPIRE", &key, "9000"]);
    }
    wire::send_copy(server, copy);
    answers()
        .filter(|key| int(server, &["PTTL", key]) > 9000)
        .count()
}

/// With `LEASEHOLD_FULL=1` all, as an issue asks for; else a few.
#[allow(dead_code, reason = "not every test has this module for this")]
pub fn few_or<T>(few: T, all: T) -> T {
    if std::env::var_os("LEASEHOLD_FULL").is_some() {
        all
    } else {
        few
    }
}

/// With `LEASEHOLD_FULL=1` every flavor there is; else one, of which the test says the number.
#[allow(dead_code, reason = "not every test has this module for this")]
pub fn flavors(number: usize) -> Vec<Flavor> {
    let all = Flavor::available();
    let one = all[number % all.len()];
    few_or(vec![one], all)
}

/// How often a test counts beside a JVM: so often with `LEASEHOLD_FULL=1`, and else a quarter of it.
pub fn of_the_whole(times: usize) -> usize {
    few_or(times.div_ceil(4), times)
}

/// A release that came too late, and says so.
#[track_caller]
pub fn assert_lost(released: Result<Released, Error>, reason: LostReason) {
    match released {
        Err(Error::Lost { reason: told, .. }) => assert_eq!(told, reason),
        other => panic!("{other:?} instead of lost, {reason:?}"),
    }
}

/// Gives a name back that was held to the end.
pub async fn release<K>(guard: Guard<K>) {
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
}

/// The result of a future in time, or it has hung.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(SOON, future).await;
    done.unwrap_or_else(|_| panic!("{what}: not within {SOON:?}"))
}

/// Until so many tasks of the client wait for `name`.
pub async fn until_waiting_here(client: &Client, tasks: usize) {
    let deadline = std::time::Instant::now() + SOON;
    while client.status("name").await.unwrap().waiting_here != tasks {
        assert!(
            std::time::Instant::now() < deadline,
            "{tasks} tasks never waited"
        );
    }
}

/// Until so many clients listen for `name`.
pub async fn until_listening(client: &Client, clients: u64) {
    let deadline = std::time::Instant::now() + SOON;
    while client.status("name").await.unwrap().waiting_clients != clients {
        assert!(
            std::time::Instant::now() < deadline,
            "{clients} never listened"
        );
    }
}

/// How often the server was asked for what a lock is taken with: an attempt of a peer that waits and listens to nothing shows here.
pub fn attempts(server: &Server) -> u64 {
    let calls = server.calls();
    let of = |command: &str| calls.get(command).copied().unwrap_or_default();
    of("set") + of("eval") + of("evalsha")
}

/// A number that the server answers with.
pub fn int(server: &Server, command: &[&str]) -> i64 {
    redis::from_redis_value(server.cli(command)).expect("it answers with a number")
}

/// The fields of a hash: the owners of the name, and how often each has entered.
pub fn owners(server: &Server, name: &str) -> Vec<(String, i64)> {
    redis::from_redis_value(server.cli(&["HGETALL", name])).expect("the name is a hash")
}

/// The channels that have listeners: without that of the sentinels.
pub fn channels(server: &Server) -> Vec<String> {
    let channels = redis::from_redis_value(server.cli(&["PUBSUB", "CHANNELS"]));
    let mut channels: Vec<String> = channels.expect("channels are strings");
    channels.retain(|channel| channel != "__sentinel__:hello");
    channels
}

/// Nothing is left of any lock: keys aside that end by themselves (tombstones, and the latch of Redisson's unlock, which it
/// deletes without waiting for that), there is no key, and no client listens.
pub async fn assert_nothing_left(server: &Server, after: &str) {
    for key in keys(server) {
        let is_note = key.contains(":gone:");
        let ends = is_note || key.starts_with("redisson_unlock_latch:");
        assert!(ends, "{after}: {key} is left");
        // -2: it is gone by now.
        assert!(
            int(server, &["PTTL", &key]) != -1,
            "{after}: {key} has no end"
        );
    }
    let what = format!("nobody listens after {after}");
    leasehold_testkit::wait_until_async(Duration::from_secs(10), &what, || {
        channels(server).is_empty()
    })
    .await;
}

/// Polls a future by hand, each time it has asked for it.
pub struct ByHand<F> {
    future: Pin<Box<F>>,
    wakes: Arc<Wakes>,
    seen: usize,
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl<F: Future> ByHand<F> {
    pub fn new(future: F) -> Self {
        ByHand {
            future: Box::pin(future),
            wakes: Arc::default(),
            seen: 0,
        }
    }

    pub fn poll(&mut self) -> Poll<F::Output> {
        self.seen = self.wakes.0.load(Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&self.wakes));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    /// Whether it wants to be polled.
    pub fn is_woken(&self) -> bool {
        self.wakes.0.load(Ordering::SeqCst) != self.seen
    }

    /// Lets the runtime turn until the future wants to be polled.
    pub async fn woken(&self) {
        self.woken_or(|| false).await;
    }

    /// Polls it to its end.
    pub async fn output(mut self) -> F::Output {
        loop {
            if let Poll::Ready(output) = self.poll() {
                return output;
            }
            self.woken().await;
        }
    }

    /// Lets the runtime turn until the future wants to be polled, or something has happened.
    pub async fn woken_or(&self, happened: impl Fn() -> bool) {
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while !self.is_woken() && !happened() {
            assert!(std::time::Instant::now() < deadline, "never woken");
            tokio::task::yield_now().await;
        }
    }
}

/// The result of a future that is polled on a thread without a runtime.
pub fn without_runtime<T>(future: impl Future<Output = T>) -> T {
    let mut future = ByHand::new(future);
    let until = std::time::Instant::now() + SOON;
    loop {
        if let Poll::Ready(output) = future.poll() {
            return output;
        }
        while !future.is_woken() {
            assert!(std::time::Instant::now() < until, "it hangs");
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Every key on the server that is about a lock: without the labels of clients.
pub fn keys(server: &Server) -> Vec<String> {
    let keys = redis::from_redis_value(server.cli(&["KEYS", "*"]));
    let mut keys: Vec<String> = keys.expect("KEYS answers with strings");
    keys.retain(|key| !key.starts_with("leasehold:client:"));
    keys
}

/// Waits until the client keeps nothing: no queue, no watchdog entry, no task.
pub async fn wait_until_idle(client: &Client) {
    leasehold_testkit::wait_until_async(Duration::from_secs(10), "the client to be idle", || {
        client.footprint() == leasehold::Footprint::default()
    })
    .await;
}

/// Refusals of the server to its users. A client that connects asks whether the server is a node of a cluster, and needs no right to.
pub fn refused(server: &Server) -> Vec<redis::Value> {
    let mut log: Vec<redis::Value> = redis::from_redis_value(server.cli(&["ACL", "LOG"])).unwrap();
    log.retain(|entry| !format!("{entry:?}").contains("cluster|myid"));
    log
}

/// A client of a user that may do what `rules` say, by a proxy that counts its connections.
pub async fn restricted(
    server: &Server,
    proxy: &leasehold_testkit::Proxy,
    rules: &[&str],
) -> Client {
    let user = ["ACL", "SETUSER", "worker", "reset", "on", ">pw", "~*"];
    server.cli(&[&user[..], rules].concat());
    let builder = Client::builder().url(proxy.url());
    let builder = builder.username("worker").password("pw");
    // Longer than any of these tests waits for anything.
    builder
        .poll_every(Duration::from_secs(60))
        .connect()
        .await
        .unwrap()
}
