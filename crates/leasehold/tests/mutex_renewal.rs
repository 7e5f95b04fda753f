//! A lease is renewed as long as it is held, and not a moment longer.

mod common;

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use common::{SOON, assert_nothing_left, int, keys, servers, wait_until_idle};
use futures_util::future::join_all;
use leasehold::{Client, ErrorKind, Event, Guard, MemoryServer, Mutex, Released};
use leasehold_testkit::{Proxy, Server, wait_until_async};
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

async fn client_of(server: &Server) -> Client {
    Client::connect(&server.url()).await.unwrap()
}

fn calls(server: &Server, command: &str) -> u64 {
    server.calls().get(command).copied().unwrap_or(0)
}

/// Counts what a client says about its leases, until it is told to stop.
fn count_events(client: &Client) -> tokio::task::JoinHandle<HashMap<String, u64>> {
    let mut events = client.events();
    tokio::spawn(async move {
        let mut counts = HashMap::new();
        loop {
            match events.recv().await {
                Ok(Event { kind, .. }) => {
                    let kind = format!("{kind:?}"); // and its durations
                    let word = kind.split(' ').next().unwrap_or_default();
                    *counts.entry(word.to_owned()).or_default() += 1;
                }
                Err(RecvError::Lagged(missed)) => {
                    *counts.entry("missed".to_owned()).or_default() += missed;
                }
                Err(RecvError::Closed) => return counts,
            }
        }
    })
}

/// A batch is asked for with the patience of each of its holds. With that of the shortest, good renewals of the others would be given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_leases_far_away_take_no_time_from_the_longer_ones_that_are_renewed_with_them() {
    const WAY: Duration = Duration::from_millis(30);
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = Client::connect(&proxy.url()).await.unwrap();
        let long = |n| client.mutex(format!("long:{n}")).lease(50 * WAY).lock();
        let long = join_all((0..20).map(long)).await;
        let mut events = client.events();
        proxy.delay(WAY);
        // Patient for 15 ms, where an answer takes 60: each of them asks again and again, until it is lost.
        let short = |n| {
            let lock = client.mutex(format!("short:{n}")).lease(5 * WAY);
            tokio::spawn(async move {
                loop {
                    if let Ok(guard) = lock.lock().await {
                        guard.lost().await;
                    }
                }
            })
        };
        let short: Vec<_> = (0..5).map(short).collect();
        let mut renewed = 0;
        while renewed < 60 {
            let Event { name, kind, .. } = events.recv().await.unwrap();
            let kind = format!("{kind:?}");
            if name.starts_with("long") {
                assert!(kind.starts_with("Renewed"), "{name}: {kind}");
                renewed += 1;
            }
        }
        proxy.delay(Duration::ZERO);
        assert!(long.iter().all(|guard| guard.as_ref().unwrap().is_valid()));
        for short in short {
            short.abort();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_held_for_four_leases_never_comes_near_its_end_and_is_not_renewed_after() {
    for server in servers() {
        let client = client_of(&server).await;
        let lease = Duration::from_millis(600);
        let guard = client.mutex("name").lease(lease).lock().await.unwrap();
        let began = Instant::now();
        let mut lowest = i64::MAX;
        while began.elapsed() < 4 * lease {
            let left = int(&server, &["PTTL", "name"]);
            assert!(left > 0, "{left} after {:?}", began.elapsed());
            lowest = lowest.min(left);
            assert!(guard.is_valid());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Renewed at a third: two thirds are always left, but for the time a renewal takes.
        assert!(lowest > 200, "it came down to {lowest} ms");
        let renewals = calls(&server, "pexpireat");
        assert!(renewals >= 10, "{renewals}");
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        let (extended, scripts) = (calls(&server, "pexpireat"), calls(&server, "evalsha"));
        tokio::time::sleep(lease).await; // three renewals would have come
        assert_eq!(calls(&server, "pexpireat"), extended);
        assert_eq!(calls(&server, "evalsha"), scripts);
        assert_eq!(int(&server, &["EXISTS", "name"]), 0);
    }
}

/// A machine under load may take longer than the lease to hear of its grant (`TooSlow`): such a grant is given back.
async fn lock_as_often_as_needed(mutex: &Mutex) -> Guard {
    loop {
        match mutex.lock().await {
            Ok(guard) => return guard,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Rejected, "{error}"),
        }
    }
}

/// 10,000 leases that end at all phases of their renewals.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_is_renewed_after_its_release() {
    const TASKS: u32 = 500;
    const LOOPS: u32 = 20;
    const LEASE: Duration = Duration::from_millis(300);
    for server in servers() {
        let client = client_of(&server).await;
        let counts = count_events(&client);
        let tasks = (0..TASKS).map(|task| {
            let mutex = client.mutex(format!("name:{task}")).lease(LEASE);
            tokio::spawn(async move {
                for round in 0..LOOPS {
                    let guard = lock_as_often_as_needed(&mutex).await;
                    // Around the moment at which it is renewed: 90 to 100 ms after it was asked for.
                    let micros = 80_000 + u64::from((task * 7 + round * 13) % 40) * 1_000;
                    tokio::time::sleep(Duration::from_micros(micros)).await;
                    if (task + round) % 2 == 0 {
                        drop(guard);
                    } else {
                        // Lost only if this machine was too slow, and even then never held twice.
                        if let Err(error) = guard.release().await {
                            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                        }
                    }
                }
            })
        });
        for task in join_all(tasks).await {
            task.unwrap();
        }
        wait_until_idle(&client).await;
        // A key that was renewed after its release would be there for another lease.
        assert_nothing_left(&server, "10,000 leases").await;
        let extended = calls(&server, "pexpireat");
        tokio::time::sleep(LEASE / 2).await; // more than one renewal interval
        assert_eq!(calls(&server, "pexpireat"), extended);
        assert_nothing_left(&server, "10,000 leases, a renewal later").await;
        drop(client);
        let counts = counts.await.unwrap();
        let of = |kind: &str| counts.get(kind).copied().unwrap_or(0);
        assert!(
            of("Acquired") + of("missed") >= u64::from(TASKS * LOOPS),
            "{counts:?}"
        );
        assert!(of("Renewed") > 1_000, "renewals were under way: {counts:?}");
    }
}

/// The same name over and over, so that a late renewal would meet a successor's lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_renewal_does_not_extend_the_successor() {
    for server in servers() {
        let (a, b) = (client_of(&server).await, client_of(&server).await);
        let renewed = Duration::from_millis(30);
        for round in 0..60_u64 {
            let guard = a.mutex("name").lease(renewed).lock().await.unwrap();
            tokio::time::sleep(Duration::from_micros(8_000 + 50 * round)).await;
            drop(guard);
            let fixed = b.mutex("name").fixed_lease(Duration::from_secs(10));
            let fixed = fixed.lock().await.unwrap();
            let before = int(&server, &["PEXPIRETIME", "name"]);
            wait_until_idle(&a).await;
            tokio::time::sleep(Duration::from_millis(2)).await; // an interval is 10
            assert_eq!(int(&server, &["PEXPIRETIME", "name"]), before);
            assert_eq!(fixed.release().await.unwrap(), Released::Freed);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_thousand_leases_live_through_five_renewals_and_a_script_flush() {
    const NAMES: usize = 20_000;
    // 10,000 renewals a second: a debug build spends a third of a core on them, so that a machine half as fast keeps up.
    const LEASE: Duration = Duration::from_secs(6);
    for server in servers() {
        let client = client_of(&server).await;
        let mut guards: Vec<Guard> = Vec::with_capacity(NAMES);
        for hundred in 0..NAMES / 100 {
            let locks = (0..100).map(|number| {
                client
                    .mutex(format!("name:{hundred}:{number}"))
                    .lease(LEASE)
                    .lock()
            });
            let locked = join_all(locks).await;
            guards.extend(locked.into_iter().map(Result::unwrap));
        }
        let held = Instant::now();
        for period in 0..5 {
            tokio::time::sleep(LEASE / 3).await;
            if period % 2 == 1 {
                server.cli(&["SCRIPT", "FLUSH"]);
            }
            let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
            assert_eq!(lost, 0, "after {:?}", held.elapsed());
        }
        assert_eq!(keys(&server).len(), NAMES);
        let renewed = || calls(&server, "pexpireat") >= 5 * NAMES as u64;
        wait_until_async(SOON, "five renewals of each", renewed).await;
        guards.clear();
        wait_until_idle(&client).await;
        assert_eq!(keys(&server).len(), 0);
    }
}

/// Holds so many names on a server that is so far away, for so long; none is lost.
async fn none_is_lost(
    server: Server,
    names: usize,
    lease: Duration,
    away: Duration,
    time: Duration,
) {
    let proxy = Proxy::start(server.addr());
    let client = Client::connect(&proxy.url()).await.unwrap();
    let lock = |number| client.mutex(format!("name:{number}")).lease(lease).lock();
    let mut guards: Vec<Guard> = Vec::with_capacity(names);
    while guards.len() < names {
        let some = guards.len()..names.min(guards.len() + 5_000);
        guards.extend(
            join_all(some.map(lock))
                .await
                .into_iter()
                .map(Result::unwrap),
        );
    }
    proxy.delay(away / 2);
    let began = Instant::now();
    while began.elapsed() < time {
        tokio::time::sleep(lease / 10).await; // the time itself is what is tested
        let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
        assert_eq!(lost, 0, "of {names}, after {:?}", began.elapsed());
    }
    assert_eq!(keys(&server).len(), names);
    eprintln!("{names} names, {lease:?}, {away:?} to and fro, {time:?}: none lost");
}

/// 18 batches, each of which takes 200 ms to and fro: one after the other they would take longer than the lease. On one
/// server: it is the client that is tested.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_leases_live_on_a_server_that_is_far_away() {
    let (lease, away) = (Duration::from_secs(3), Duration::from_millis(200));
    let server = servers().swap_remove(0);
    none_is_lost(server, 3_600, lease, away, lease * 3 / 2).await;
}

/// In virtual time: 11 batches in each second, each of which takes 300 ms.
#[tokio::test(start_paused = true)]
async fn thousands_of_leases_live_on_a_memory_server_that_is_far_away() {
    let server = MemoryServer::new();
    let client = Client::builder().memory(&server).connect().await.unwrap();
    let lease = Duration::from_secs(3);
    let lock = |number| client.mutex(format!("name:{number}")).lease(lease).lock();
    let guards = join_all((0..2_200).map(lock)).await;
    server.delay(Duration::from_millis(150)); // each way
    tokio::time::sleep(3 * lease).await;
    assert!(guards.iter().flatten().all(Guard::is_valid));
    assert_eq!(server.names().len(), guards.len());
}

/// The same at full size, for five minutes each: `cargo test --release -p leasehold --test mutex_renewal -- --ignored --nocapture`.
macro_rules! at_full_size {
    ($($name:ident: $names:literal, $lease:literal, $away:literal;)+) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        #[ignore = "five minutes, in a release build"]
        async fn $name() {
            let (lease, away) = (Duration::from_millis($lease), Duration::from_millis($away));
            let server = servers().swap_remove(0);
            none_is_lost(server, $names, lease, away, Duration::from_secs(300)).await;
        }
    )+};
}
at_full_size! {
    a_hundred_thousand_leases_live_100_ms_away: 100_000, 30_000, 100;
    ten_thousand_leases_of_three_seconds_live_20_ms_away: 10_000, 3_000, 20;
    ten_thousand_leases_of_three_seconds_live_80_ms_away: 10_000, 3_000, 80;
}

/// A renewal script is as short as those of other holds, however many permits a hold has.
#[tokio::test]
async fn a_renewal_script_is_bounded_by_the_permits_and_not_by_the_guards() {
    const PERMITS: u32 = 1_000;
    for server in servers() {
        let client = client_of(&server).await;
        let permits = client.leased_semaphore("name");
        let permits = permits.lease(Duration::from_secs(3));
        permits.try_set_permits(10 * PERMITS).await.unwrap();
        let take = join_all((0..10).map(|_| permits.acquire_many(PERMITS))).await;
        let guards: Vec<_> = take.into_iter().map(Result::unwrap).collect();
        let before = (calls(&server, "evalsha"), calls(&server, "zscore"));
        let all = u64::from(10 * PERMITS);
        let renewed = || calls(&server, "zscore") - before.1 >= all;
        wait_until_async(SOON, "all are renewed", renewed).await;
        let scripts = calls(&server, "evalsha") - before.0;
        assert!(scripts >= 10, "{scripts} for 10 holds of {PERMITS} permits");
        assert!(guards.iter().all(Guard::is_valid));
    }
}

/// A name of another type among a hundred: the others are renewed all the same.
#[tokio::test]
async fn one_bad_name_in_a_batch_delays_nobody() {
    for server in servers() {
        let client = client_of(&server).await;
        let lease = Duration::from_millis(600);
        let lock = |number| client.mutex(format!("name:{number}")).lease(lease).lock();
        let guards = join_all((0..100).map(lock)).await;
        let guards: Vec<Guard> = guards.into_iter().map(Result::unwrap).collect();
        server.cli(&["SET", "name:50", "not a lock"]);
        server.cli(&["DEL", "name:51"]);
        tokio::time::sleep(3 * lease).await; // the time itself is what is tested
        for (number, guard) in guards.iter().enumerate() {
            assert_eq!(guard.is_valid(), !(50..=51).contains(&number), "{number}");
        }
    }
}

#[tokio::test]
async fn a_fixed_lease_is_never_renewed() {
    for server in servers() {
        let client = client_of(&server).await;
        let lease = Duration::from_millis(500);
        let guard = client
            .mutex("name")
            .fixed_lease(lease)
            .lock()
            .await
            .unwrap();
        let end = int(&server, &["PEXPIRETIME", "name"]);
        let mut events = client.events();
        tokio::time::sleep(lease * 4 / 5).await;
        assert!(guard.is_valid());
        assert_eq!(int(&server, &["PEXPIRETIME", "name"]), end);
        assert!(matches!(events.try_recv(), Err(TryRecvError::Empty)));
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
    }
}

/// The end of a lease and its release at the same instant, again and again: whichever wins, no task hangs.
#[test]
fn a_release_at_the_very_end_of_the_lease_does_not_hang() {
    let (told, done) = std::sync::mpsc::channel();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.spawn(async move {
        let client = Client::connect("memory:").await.unwrap();
        let mutex = client.mutex("name").fixed_lease(Duration::from_millis(4));
        let (mut released, mut lost) = (0, 0);
        for round in 0..1_000_u64 {
            let guard = mutex.lock().await.unwrap();
            let early = Duration::from_nanos(round % 50 * 40);
            while guard.remaining() > early {
                std::hint::spin_loop();
            }
            match guard.release().await {
                Ok(Released::Freed) => released += 1,
                Ok(other) => panic!("{other:?}"),
                Err(_) => lost += 1,
            }
        }
        told.send((released, lost)).unwrap();
    });
    let ended = done.recv_timeout(Duration::from_secs(40));
    // A worker that hangs is not waited for.
    runtime.shutdown_background();
    let (released, lost): (u32, u32) = ended.expect("a release hangs");
    assert_eq!(released + lost, 1_000);
}
