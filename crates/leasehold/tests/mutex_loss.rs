//! A holder learns of its loss before another owner can get the name. Alone in its file, since it measures time.

mod common;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use common::servers;
use futures_util::future::join_all;
use leasehold::{Client, EventKind, Guard, LostReason};
use leasehold_testkit::{Proxy, Server, Way};
use redis::aio::MultiplexedConnection;

/// 32 ms of it are the margin.
const LEASE: Duration = Duration::from_secs(3);

/// Threads and tasks that only want to be woken every millisecond, and note when they were not: then this machine gave
/// no thread the time to be told.
#[derive(Default)]
struct Stalls {
    seen: Mutex<VecDeque<(i64, i64)>>,
    /// Up to when each of them has looked.
    looked: Mutex<Vec<Arc<AtomicI64>>>,
    stop: AtomicBool,
}

/// A thread or a task that looks.
struct Look {
    stalls: Arc<Stalls>,
    before: i64,
    looked: Arc<AtomicI64>,
}

impl Look {
    fn again(&mut self) {
        let now = wall_clock();
        if now - self.before > Stalls::SHORT {
            let mut seen = self.stalls.seen.lock().unwrap();
            seen.push_back((self.before, now));
        }
        self.before = now;
        self.looked.store(now, Ordering::Release);
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        // It is waited for no more.
        self.looked.store(i64::MAX, Ordering::Release);
    }
}

impl Stalls {
    /// As long as this is nothing to speak of. Half the margin.
    const SHORT: i64 = 16;

    fn watch() -> Arc<Stalls> {
        let stalls = Arc::<Stalls>::default();
        let mut look = stalls.look();
        std::thread::spawn(move || {
            while !look.stalls.stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
                look.again();
            }
        });
        stalls
    }

    fn look(self: &Arc<Stalls>) -> Look {
        let before = wall_clock();
        let looked = Arc::new(AtomicI64::new(before));
        self.looked.lock().unwrap().push(Arc::clone(&looked));
        Look {
            stalls: Arc::clone(self),
            before,
            looked,
        }
    }

    /// The same of a task of this runtime, as the tasks are that look for a loss: its threads may get no time where another thread does.
    async fn watch_tasks(self: &Arc<Stalls>) {
        let mut look = self.look();
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            look.again();
        }
    }

    /// Whether the machine stood still at some time between the two.
    async fn between(&self, from: i64, to: i64) -> bool {
        // A thread that has not looked since may stand still from before `to` until now, and notes it when that is over.
        let lags = |looked: &Arc<AtomicI64>| looked.load(Ordering::Acquire) < to;
        while self.looked.lock().unwrap().iter().any(lags) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let seen = self.seen.lock().unwrap();
        seen.iter()
            .any(|(began, ended)| *began <= to && *ended >= from)
    }
}

/// Milliseconds on the server's clock, which is this machine's.
fn wall_clock() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// Holders in the hands of `url`, each a client of its own, at every phase of their renewals.
async fn holders(url: &str, count: usize) -> Vec<(Client, Guard)> {
    let holders = (0..count).map(|number| async move {
        let client = Client::connect(url).await.unwrap();
        // Spread over one renewal interval.
        let phase = LEASE / 3 * u32::try_from(number).unwrap() / u32::try_from(count).unwrap();
        tokio::time::sleep(phase).await;
        let mutex = client.mutex(format!("name:{number}")).lease(LEASE);
        let guard = mutex.lock().await.unwrap();
        let mut events = client.events();
        while !matches!(events.recv().await.unwrap().kind, EventKind::Renewed { .. }) {}
        (client, guard)
    });
    join_all(holders).await
}

async fn observer(server: &Server) -> MultiplexedConnection {
    let client = redis::Client::open(server.url()).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

/// When a key ends, on the server's clock.
async fn end(observer: &mut MultiplexedConnection, name: &str) -> i64 {
    let mut ask = redis::cmd("PEXPIRETIME");
    ask.arg(name).query_async(observer).await.unwrap()
}

/// How one trial ended.
enum Trial {
    InTime,
    TooLate {
        lost: i64,
        end: i64,
    },
    /// The machine stood still just then.
    Stalled,
    /// It was renewed after the last look at the server, so its end is not known.
    Unknown,
}

async fn judge(lost: i64, end: i64, stalls: &Stalls) -> Trial {
    if lost < end {
        Trial::InTime
    } else if stalls.between(end - 30, lost).await {
        Trial::Stalled
    } else {
        Trial::TooLate { lost, end }
    }
}

/// The network swallows what passes from now on.
async fn swallowed(server: &Server, way: Option<Way>, count: usize, stalls: &Stalls) -> Vec<Trial> {
    let proxy = Proxy::start(server.addr());
    let holders = holders(&proxy.url(), count).await;
    let observer = observer(server).await;
    proxy.black_hole(way);
    let trials = holders.iter().map(|(_, guard)| {
        let mut observer = observer.clone();
        async move {
            // Under any scheduling: the guard's promise ends before the key does.
            let asked = wall_clock();
            let promised = asked + i64::try_from(guard.remaining().as_millis()).unwrap();
            assert!(promised < end(&mut observer, guard.name()).await);
            // Late enough that no copy of a renewal is under way to the server, unless replies only are lost.
            tokio::time::sleep(LEASE / 2).await;
            let ends = end(&mut observer, guard.name()).await;
            let reason = guard.lost().await;
            let lost = wall_clock();
            assert_eq!(reason, LostReason::Expired);
            assert!(!guard.is_valid(), "lost() and is_valid() agree");
            judge(lost, ends, stalls).await
        }
    });
    join_all(trials).await
}

/// The server stands still from now on (`SIGSTOP`).
async fn frozen(server: &Server, count: usize, stalls: &Stalls) -> Vec<Trial> {
    let holders = holders(&server.url(), count).await;
    let mut observer = observer(server).await;
    let mut events: Vec<_> = holders.iter().map(|(client, _)| client.events()).collect();
    let mut ends = Vec::new();
    for (_, guard) in &holders {
        ends.push(end(&mut observer, guard.name()).await);
    }
    server.freeze();
    let losses = holders.iter().map(|(_, guard)| async {
        assert_eq!(guard.lost().await, LostReason::Expired);
        wall_clock()
    });
    let lost = join_all(losses).await;
    server.thaw();
    let trials = lost.into_iter().zip(ends).zip(&mut events);
    let trials = trials.map(|((lost, end), events)| async move {
        let mut said = std::iter::from_fn(|| events.try_recv().ok());
        if said.any(|event| matches!(event.kind, EventKind::Renewed { .. })) {
            Trial::Unknown
        } else {
            judge(lost, end, stalls).await
        }
    });
    join_all(trials).await
}

#[test]
fn lost_comes_before_the_name_is_free_two_hundred_times_of_two_hundred() {
    let stalls = Stalls::watch();
    // Each server in a runtime of its own: what blocks one of them delays no look at the other.
    let servers = servers();
    std::thread::scope(|threads| {
        for server in &servers {
            let stalls = &stalls;
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let trials = async {
                tokio::select! {
                    () = in_each_mode(server, stalls) => {}
                    () = stalls.watch_tasks() => unreachable!("it watches without end"),
                }
            };
            threads.spawn(move || runtime.block_on(trials));
        }
    });
    stalls.stop.store(true, Ordering::Relaxed);
}

async fn in_each_mode(server: &Server, stalls: &Stalls) {
    for mode in ["both ways swallowed", "replies swallowed", "server frozen"] {
        let (mut in_time, mut excused) = (0, 0);
        while in_time < 67 {
            let count = 67 - in_time;
            let trials = match mode {
                "both ways swallowed" => swallowed(server, None, count, stalls).await,
                "replies swallowed" => swallowed(server, Some(Way::ToClient), count, stalls).await,
                _ => frozen(server, count, stalls).await,
            };
            for trial in trials {
                match trial {
                    Trial::InTime => in_time += 1,
                    Trial::Stalled | Trial::Unknown => excused += 1,
                    Trial::TooLate { lost, end } => {
                        panic!("{mode}: lost at {lost}, the key ended at {end}");
                    }
                }
            }
            assert!(excused < 200, "{mode}: this machine is too busy to tell");
        }
        eprintln!("{mode}: {in_time} in time, {excused} could not be judged");
    }
}
