//! How the waits for a fair mutex end, when leases run out and servers fall silent.

use std::time::{Duration, Instant};

use crate::common::{
    SOON, World, assert_nothing_left, keys,
    late::{in_time, unless_late_async},
    of_the_whole, servers, soon, wait_until_idle,
    wire::Network,
};
use leasehold::{Client, Error, FairMutex, Owner};
use leasehold_testkit::{Lane, Proxy, Server, wait_until_async};

const MS: Duration = Duration::from_millis(1);
const NAME: &str = "name";

async fn client_of(world: &World) -> Client {
    let builder = world.builder().poll_every(Duration::from_secs(60));
    builder.connect().await.unwrap()
}

/// The owners that wait on the server, next first.
fn line(server: &Server) -> Vec<String> {
    let line = server.cli(&["LRANGE", "redisson_lock_queue:{name}", "0", "-1"]);
    redis::from_redis_value(line).expect("a list")
}

async fn until_waiting(lock: &FairMutex, tasks: usize) {
    let deadline = Instant::now() + SOON;
    while lock.status().await.unwrap().waiting_here != tasks {
        assert!(Instant::now() < deadline, "{tasks} never waited");
        tokio::task::yield_now().await;
    }
}

/// No holder releases it, and no client is told when a lease ends. The first lasts until all stand in line.
#[tokio::test]
async fn waiters_are_served_in_order_though_each_lease_ends_by_itself() {
    for world in World::all() {
        let what = format!("in order on {}", world.name());
        unless_late_async(&what, 20 * MS, async || in_order(&world).await).await;
    }
}

async fn in_order(world: &World) -> Result<(), String> {
    const LEASE: Duration = Duration::from_millis(150);
    let clients = [client_of(world).await, client_of(world).await];
    let locks = clients
        .each_ref()
        .map(|client| client.fair_mutex(NAME).fixed_lease(LEASE));
    let first = locks[0].clone().fixed_lease(10 * LEASE);
    let first = first.lock().await.unwrap();
    let begun = Instant::now();
    let mut tasks = Vec::new();
    for number in 0..8 {
        let lock = &locks[number % 2];
        let waits = number / 2;
        tasks.push(tokio::spawn({
            let lock = lock.clone();
            async move {
                let guard = lock.lock().await.unwrap();
                drop(guard.detach());
                Instant::now()
            }
        }));
        if let World::Server(server) = world {
            let stands = || line(server).len() == number + 1;
            wait_until_async(SOON, "it has its place", stands).await;
        } else {
            until_waiting(lock, waits + 1).await;
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
        }
    }
    drop(first.detach());
    let mut served = Vec::new();
    for task in tasks {
        served.push(soon("its turn", task).await.unwrap());
    }
    println!("{}: {:?}", world.name(), served[7] - begun);
    assert!(served.is_sorted(), "{}", world.name());
    for pair in served.windows(2) {
        let apart = pair[1] - pair[0];
        if apart + 20 * MS <= LEASE {
            return Err(format!("two at once: {apart:?}"));
        }
        in_time(apart, LEASE + 200 * MS)?;
    }
    for client in &clients {
        wait_until_idle(client).await;
    }
    Ok(())
}

/// Its requests may arrive after its time is up, and give it a place that it does not want any more.
#[tokio::test]
async fn a_waiter_that_gives_up_on_a_silent_server_leaves_no_place() {
    for world in World::all() {
        let World::Server(server) = &world else {
            continue;
        };
        let holder = client_of(&world).await;
        let network = Network::to(&world);
        let waiter = network.builder().poll_every(60_000 * MS);
        let waiter = waiter.connect().await.unwrap();
        let (held, lock) = (holder.fair_mutex(NAME), waiter.fair_mutex(NAME));
        let guard = held.lock().await.unwrap();
        for answers_at_first in [true, false] {
            // With a place already, or with its first request under way.
            let waiting = if answers_at_first {
                let waiting = tokio::spawn(lock.try_lock_for(300 * MS));
                wait_until_async(SOON, "it has its place", || !line(server).is_empty()).await;
                server.cli(&["CLIENT", "PAUSE", "800", "WRITE"]);
                waiting
            } else {
                server.cli(&["CLIENT", "PAUSE", "800", "WRITE"]);
                tokio::spawn(lock.try_lock_for(300 * MS))
            };
            match soon("its time is up", waiting).await.unwrap() {
                Ok(None) => {}
                Err(error) => assert!(error.is_unreachable(), "{error}"),
                Ok(Some(guard)) => panic!("{guard:?} beside the holder"),
            }
            wait_until_idle(&waiter).await;
            assert_eq!(line(server), [""; 0]);
        }
        guard.release().await.unwrap();
        drop(soon("free", lock.lock()).await.unwrap());
        for client in [&holder, &waiter] {
            wait_until_idle(client).await;
        }
        let only_tombstones = || keys(server).iter().all(|key| key.contains(":gone:"));
        wait_until_async(SOON, "nothing is left", only_tombstones).await;
    }
}

#[tokio::test]
async fn re_entry_is_refused_if_that_is_wanted_and_the_hold_stays() {
    for world in World::all() {
        let client = client_of(&world).await;
        let owner = Owner::new();
        // Two handles.
        let [one, two] = [(), ()].map(|()| {
            let lock = client.fair_mutex(NAME).reentrant(false);
            lock.owned_by(&owner)
        });
        let guard = one.lock().await.unwrap();
        for lock in [&one, &two] {
            for error in [
                soon("an answer", lock.lock()).await.unwrap_err(),
                soon("an answer", lock.try_lock()).await.unwrap_err(),
            ] {
                assert!(matches!(error, Error::Reentered { .. }), "{error}");
            }
        }
        assert!(guard.verify().await.is_ok());
        assert_eq!(one.status().await.unwrap().holders[0].holds, 1);
        guard.release().await.unwrap();
        drop(soon("free again", two.lock()).await.unwrap());
        wait_until_idle(&client).await;
    }
}

/// It is deaf when its turn comes, and may not subscribe again: it gets the lock by asking.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_is_served_though_it_is_deaf_leaves_no_subscription() {
    for server in servers() {
        let may = |rules: &[&str]| server.cli(&[&["ACL", "SETUSER", "worker"], rules].concat());
        may(&["reset", "on", ">secret", "~*", "&*", "+@all"]);
        let proxy = Proxy::start(server.addr());
        let builder = Client::builder().url(proxy.url()).username("worker");
        let client = builder.password("secret").connect().await.unwrap();
        let holder = Client::connect(&server.url()).await.unwrap();
        let guard = holder.fair_mutex(NAME).lock().await.unwrap();
        let waiting = tokio::spawn(client.fair_mutex(NAME).lock());
        wait_until_async(SOON, "it has its place", || line(&server).len() == 1).await;
        proxy.refuse(true);
        proxy.cut_lane(Lane::Subscriptions);
        may(&["resetchannels"]);
        guard.release().await.unwrap();
        proxy.refuse(false);
        let guard = soon("deaf, and served", waiting).await.unwrap().unwrap();
        may(&["allchannels"]);
        guard.release().await.unwrap();
        wait_until_idle(&client).await;
        wait_until_idle(&holder).await;
        assert_nothing_left(&server, "a deaf waiter").await;
    }
}

/// Each is taken out where it stands: a search of the whole queue for each of them takes the server seconds.
#[tokio::test]
async fn thousands_of_dead_waiters_stop_the_server_for_no_longer_than_it_takes_to_pass_them() {
    const DEAD: u64 = 30_000;
    const MOST: Duration = Duration::from_millis(1_500);
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        // As clients of ours leave them that died 6 s ago.
        let die = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000) \
                   for i = 1, tonumber(ARGV[1]) do \
                   local owner = '11111111-2222-3333-4444-555555555555:' .. (60000000000000 + i) \
                   redis.call('RPUSH', KEYS[1], owner) \
                   redis.call('ZADD', KEYS[2], now + 20000, owner) \
                   redis.call('HSET', KEYS[3], owner, '30000 1 0', '?' .. owner, now - 6000) end";
        let keys_of_it = ["redisson_lock_queue:{name}", "redisson_lock_timeout:{name}"];
        let places = "leasehold:{name}:fair:places";
        let dead = DEAD.to_string();
        unless_late_async("they are passed", MOST, async || {
            let guard = client.fair_mutex(NAME).lock().await.unwrap();
            server.cli(&[
                "EVAL",
                die,
                "3",
                keys_of_it[0],
                keys_of_it[1],
                places,
                &dead,
            ]);
            let begun = Instant::now();
            guard.release().await.unwrap();
            let took = begun.elapsed();
            println!("{}: {took:?}", server.flavor());
            assert_eq!(line(&server), [""; 0]);
            in_time(took, MOST)
        })
        .await;
        wait_until_idle(&client).await;
    }
}

/// Four of its turns pass while it hears nothing, as a process that is stopped. Its lease is long beside a round trip, so it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_was_stopped_at_several_of_its_turns_waits_on() {
    const LEASE: Duration = Duration::from_millis(500);
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let builder = Client::builder().url(proxy.url());
        let stopped = builder.connect().await.unwrap();
        let other = Client::connect(&server.url()).await.unwrap();
        let lock = other.fair_mutex(NAME);
        let mut guard = lock.lock().await.unwrap();
        let waiting = tokio::spawn(stopped.fair_mutex(NAME).fixed_lease(LEASE).lock());
        for turn in 0..4 {
            wait_until_async(SOON, "it has its place", || line(&server).len() == 1).await;
            let next = tokio::spawn(lock.lock());
            wait_until_async(SOON, "another is behind it", || line(&server).len() == 2).await;
            proxy.stall(None);
            guard.release().await.unwrap();
            guard = soon("the one behind it", next).await.unwrap().unwrap();
            proxy.heal();
            assert!(!waiting.is_finished(), "it gave up after turn {turn}");
        }
        guard.release().await.unwrap();
        let guard = soon("its turn", waiting).await.unwrap().unwrap();
        guard.release().await.unwrap();
        for client in [&stopped, &other] {
            wait_until_idle(client).await;
        }
        assert_nothing_left(&server, "a stopped waiter").await;
    }
}

/// The request may overtake the release of a dropped guard: each task has a queue of its own. And its grant may come as its time is up.
#[tokio::test]
async fn a_short_wait_just_after_a_guard_was_dropped_is_not_told_that_another_has_it() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        proxy.delay(2 * MS);
        let client = Client::connect(&proxy.url()).await.unwrap();
        let lock = client.fair_mutex(NAME);
        let mut guard = lock.lock().await.unwrap();
        let mut had = 0;
        for round in 0..u32::try_from(of_the_whole(300)).unwrap() {
            drop(guard);
            // From less than a round trip to some of them.
            let wait = MS * (round % 15 + 1);
            guard = match lock.try_lock_for(wait).await {
                Ok(Some(guard)) => {
                    had += 1;
                    guard
                }
                Ok(None) => panic!("round {round}: another has it, after {wait:?}"),
                Err(Error::Ambiguous { .. } | Error::NotSent { .. }) => {
                    soon("it is free", lock.lock()).await.unwrap()
                }
                Err(error) => panic!("{error}"),
            };
        }
        assert!(had > 0);
        drop(guard);
        wait_until_idle(&client).await;
    }
}
