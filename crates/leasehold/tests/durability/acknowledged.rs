//! The acknowledgements that are waited for, for how long, and what a guard says of them.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use futures_util::future::join_all;
use leasehold::{
    Acknowledged, Client, Durability, Error, Guard, LostReason, Mutex, Shutdown, Unmet,
};
use leasehold_testkit::{Server, wait_until, wait_until_async};
use tokio::sync::Barrier;

use super::replicated::{Replicated, TIMING, flavors, until_online, until_waiting};
use crate::common::{SOON, int, soon};

const MS: Duration = Duration::from_millis(1);
const ONE: Durability = Durability::Replicas(1);

/// How long an acknowledgement is waited for, where none comes.
const TIMEOUT: Duration = Duration::from_millis(400);

/// The refusal of a lock that was not acknowledged in time, and the time that it took.
async fn unmet<G>(lock: impl Future<Output = Result<G, Error>>) -> (String, Duration) {
    let began = Instant::now();
    match lock.await {
        Err(error @ Error::Rejected { .. }) => (error.to_string(), began.elapsed()),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("no replica has acknowledged it"),
    }
}

/// Replicas that were started just now, or have stood still, take a while.
async fn until_met(mutex: &Mutex) {
    let locked = soon("replicas acknowledge it", async {
        loop {
            if let Ok(guard) = mutex.lock().await {
                return guard;
            }
        }
    });
    let guard = locked.await;
    assert!(is_met(&guard.durability()), "{:?}", guard.durability());
    guard.release().await.unwrap();
}

fn is_met(guard: &Acknowledged) -> bool {
    guard.replicas >= 1 && guard.at.is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_all_replicas_frozen_a_lock_is_given_back_and_said_so_in_time() {
    for flavor in flavors() {
        let group = Replicated::start(flavor, 2);
        let client = group.builder().durability_timeout(TIMEOUT);
        let client = client.connect().await.unwrap();
        let mutex = client.mutex("name").durability(ONE);
        until_met(&mutex).await;
        group.freeze();
        let semaphore = client
            .leased_semaphore("permits")
            .permits(2)
            .durability(ONE);
        let mut fastest = Duration::MAX;
        for round in 0..6 {
            // A `WAIT` behind a read is answered by Valkey at once, and wrongly.
            let (said, took) = if round < 4 {
                unmet(mutex.lock()).await
            } else {
                unmet(semaphore.acquire()).await
            };
            let server = format!("see to {}", group.primary.url());
            for word in ["0 of 1 replicas acknowledged it within 400ms", &server] {
                assert!(said.contains(word), "{flavor}: {said}");
            }
            assert!(took >= TIMEOUT, "{flavor}: after {took:?}");
            fastest = fastest.min(took);
            wait_until(SOON, "the name is free", || {
                int(&group.primary, &["EXISTS", "name"]) == 0
            });
        }
        assert!(fastest <= TIMEOUT + 50 * MS, "{flavor}: {fastest:?}");
        // Another policy is not concerned, nor another client.
        let began = Instant::now();
        let guard = client.mutex("name").lock().await.unwrap();
        assert!(began.elapsed() < TIMEOUT, "{:?}", began.elapsed());
        assert_eq!(guard.durability().at, None);
        guard.release().await.unwrap();
        group.thaw();
        until_met(&mutex).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_late_is_waited_for() {
    for flavor in flavors() {
        let group = Replicated::start(flavor, 1);
        let client = group.builder().durability(ONE).connect().await.unwrap();
        client.mutex("name").run(async {}).await.unwrap();
        group.freeze();
        let lock = tokio::spawn(async move {
            let began = Instant::now();
            (client.mutex("name").lock().await, began.elapsed())
        });
        tokio::time::sleep(500 * MS).await;
        group.thaw();
        let (guard, took) = lock.await.unwrap();
        let guard = guard.unwrap();
        assert!(took >= 450 * MS, "{flavor}: after {took:?}");
        assert!(is_met(&guard.durability()), "{:?}", guard.durability());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_has_gone_fails_the_next_lock_at_once_until_it_is_back() {
    let flavor = flavors()[0];
    let mut group = Replicated::start(flavor, 1);
    let client = group.builder().durability(ONE).durability_timeout(TIMEOUT);
    let client = client.connect().await.unwrap();
    let mutex = client.mutex("name");
    mutex.run(async {}).await.unwrap();
    group.replicas[0].kill();
    group.until_online(0);
    unmet(mutex.lock()).await; // it is asked after that
    let (said, took) = unmet(mutex.lock()).await;
    assert!(said.contains("0 of 1 replicas are connected"), "{said}");
    assert!(took < TIMEOUT / 2, "after {took:?}");
    let waits = group.waits();
    unmet(mutex.lock()).await;
    assert_eq!(group.waits(), waits, "there is nothing to wait for");
    group.replicas[0].restart();
    group.until_online(1);
    let guard = mutex.lock().await.unwrap();
    assert!(is_met(&guard.durability()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_wait_serves_many_tasks_and_primary_sends_none() {
    for flavor in flavors() {
        let group = Replicated::start(flavor, 2);
        let plain = group.builder().connect().await.unwrap();
        let waits = group.waits();
        for _ in 0..20 {
            plain.mutex("plain").run(async {}).await.unwrap();
        }
        assert_eq!(group.waits(), waits);
        let client = group.builder().durability(ONE).connect().await.unwrap();
        client.mutex("first").run(async {}).await.unwrap();
        let (before, together) = (group.waits(), Arc::new(Barrier::new(100)));
        let tasks = (0..100).map(|i| {
            let (mutex, together) = (client.mutex(format!("name{i}")), Arc::clone(&together));
            tokio::spawn(async move {
                together.wait().await;
                let guard = mutex.lock().await.unwrap();
                assert!(is_met(&guard.durability()));
            })
        });
        for task in join_all(tasks.collect::<Vec<_>>()).await {
            task.unwrap();
        }
        let waits = group.waits() - before;
        assert!((1..=60).contains(&waits), "{flavor}: {waits} for 100 locks");
        // A single connection waits, beside those for commands, of this runtime and of the thread, and for subscriptions.
        let list = group.primary.cli(&["CLIENT", "LIST"]);
        let list: String = redis::from_redis_value(list).unwrap();
        let waiting = list.lines().filter(|line| line.contains("cmd=wait "));
        assert_eq!(waiting.count(), 1, "{list}");
    }
}

async fn is_acknowledged<K>(
    what: &str,
    lock: impl Future<Output = Result<Guard<K>, Error>>,
) -> Guard<K> {
    let guard = soon(what, lock).await.unwrap();
    assert!(
        is_met(&guard.durability()),
        "{what}: {:?}",
        guard.durability()
    );
    guard
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_with_a_lease_is_acknowledged() {
    for flavor in flavors() {
        let group = Replicated::start(flavor, 2);
        let builder = group.builder().durability(Durability::Majority);
        let client = builder.connect().await.unwrap();
        let _mutex = is_acknowledged("mutex", client.mutex("a").lock()).await;
        let _fenced = is_acknowledged("fenced", client.fenced_mutex("b").lock()).await;
        let _fair = is_acknowledged("fair", client.fair_mutex("c").lock()).await;
        let _spin = is_acknowledged("spin", client.spin_mutex("d").lock()).await;
        let _plain = is_acknowledged("plain", client.plain_mutex("e").lock()).await;
        let _write = is_acknowledged("write", client.rw_lock("f").write()).await;
        let _read = is_acknowledged("read", client.rw_lock("g").read()).await;
        let _again = is_acknowledged("second reader", client.rw_lock("g").read()).await;
        let permit = client.leased_semaphore("h").permits(2).acquire();
        let _permit = is_acknowledged("permit", permit).await;
        let before = group.waits();
        let both = client.multi_lock(["i", "j"]).lock();
        let both = soon("multi", both).await.unwrap();
        assert!(group.waits() > before);
        drop(both);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_is_acknowledged_whether_it_is_granted_by_another_process_or_in_memory() {
    let group = Replicated::start(flavors()[0], 1);
    let [one, two] = [(); 2].map(|()| group.builder().durability(ONE));
    let (one, two) = (one.connect().await.unwrap(), two.connect().await.unwrap());
    let held = one.mutex("name").lock().await.unwrap();
    let waiters = [&one, &two, &one, &two].map(|client| {
        let mutex = client.mutex("name");
        tokio::spawn(async move {
            let guard = mutex.lock().await.unwrap();
            assert!(is_met(&guard.durability()), "{:?}", guard.durability());
        })
    });
    tokio::time::sleep(50 * MS).await;
    drop(held);
    for waiter in waiters {
        soon("each has its turn", waiter).await.unwrap();
    }
}

fn wall_clock_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_millis()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unacknowledged_renewal_moves_no_end_unless_the_client_accepts_it() {
    for flavor in flavors() {
        let group = Replicated::start(flavor, 1);
        // An unacknowledged renewal is answered long before the lease ends.
        let builder = || {
            let durable = group.builder().durability(ONE);
            durable.durability_timeout(TIMEOUT).lease(1500 * MS)
        };
        let client = builder().connect().await.unwrap();
        let accepts = builder().unmet(Unmet::Accept).connect().await.unwrap();
        let accepted = accepts.mutex("accepted").lock().await.unwrap();
        let plain = client.mutex("plain").durability(Durability::Primary);
        let plain = plain.lock().await.unwrap();
        let guard = client.mutex("name").lock().await.unwrap();

        let replica = &group.replicas[0];
        let end = || int(replica, &["PEXPIRETIME", "name"]);
        let first = end();
        wait_until(SOON, "it is renewed", || end() > first);
        // The next renewal comes half a second later.
        let end = end();
        group.freeze();
        let mut believed = 0;
        while guard.is_valid() {
            let now = wall_clock_ms();
            let left = i64::try_from(guard.remaining().as_millis()).unwrap();
            believed = believed.max(now + left);
            assert!(believed <= end, "{flavor}: {} ms too long", believed - end);
            tokio::time::sleep(MS).await;
        }
        assert_eq!(guard.lost().await, LostReason::Expired, "{flavor}");
        assert!(believed <= end, "{flavor}: {} ms too long", believed - end);
        assert!(
            believed > end - 400,
            "{flavor}: {} ms too soon",
            end - believed
        );
        assert!(plain.is_valid(), "{flavor}: its renewals go on");
        assert!(accepted.is_valid(), "{flavor}: what is unmet is accepted");
        let told = accepted.durability();
        let at = told.at.expect("it was acknowledged once");
        assert!(at.elapsed() > 900 * MS, "{told:?}");

        let began = Instant::now();
        let accepted = accepts.mutex("another").lock().await.unwrap();
        assert!(
            began.elapsed() >= TIMEOUT,
            "{flavor}: it waits all the same"
        );
        let told = accepted.durability();
        assert_eq!((told.policy, told.replicas, told.at), (ONE, 0, None));
        group.thaw();
        let is_told = || accepted.durability().at.is_some();
        wait_until_async(SOON, "a renewal is acknowledged", is_told).await;
    }
}

/// As in a failover: the server ends each `WAIT` with an error then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_waits_on_when_its_server_becomes_a_replica_for_a_while() {
    for flavor in flavors() {
        let group = Replicated::start(flavor, 1);
        let builder = group.builder().durability(ONE);
        let client = builder.durability_timeout(SOON).connect().await.unwrap();
        until_met(&client.mutex("name")).await;
        group.freeze();
        let lock = client.mutex("name");
        let lock = tokio::spawn(async move { lock.lock().await });
        until_waiting(&group.primary).await;
        // Nobody is there, so it keeps what it has.
        group.primary.cli(&["REPLICAOF", "127.0.0.1", "1"]);
        tokio::time::sleep(50 * MS).await;
        assert!(!lock.is_finished(), "{flavor}: {:?}", lock.await);
        group.primary.cli(&["REPLICAOF", "NO", "ONE"]);
        group.thaw();
        let guard = soon("it has it", lock).await.unwrap().unwrap();
        assert!(is_met(&guard.durability()), "{flavor}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_ends_a_lock_that_waits_to_be_acknowledged() {
    let group = Replicated::start(flavors()[0], 1);
    let builder = group.builder().durability(ONE);
    let client = builder
        .durability_timeout(3 * SOON)
        .connect()
        .await
        .unwrap();
    until_met(&client.mutex("name")).await;
    group.freeze();
    let lock = client.mutex("name");
    let lock = tokio::spawn(async move { lock.lock().await });
    until_waiting(&group.primary).await;
    let grace = 10 * MS;
    client.shutdown(Shutdown::ReleaseAll { grace }).await;
    let answer = soon("it ends", lock).await.unwrap();
    assert!(matches!(answer, Err(Error::Closed)), "{answer:?}");
    let exists = || int(&group.primary, &["EXISTS", "name"]);
    wait_until(SOON, "the name is free", || exists() == 0);
    group.thaw();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aof_waits_for_the_servers_disk() {
    for flavor in flavors() {
        let args = ["--appendonly", "yes", "--appendfsync", "everysec"];
        let server = Server::start_with(flavor, &[&TIMING[..], &args[..]].concat());
        until_online(&server, 0);
        let client = Client::builder().url(server.url());
        let client = client.durability_timeout(5 * SOON / 10);
        let client = client.connect().await.unwrap();
        let locked = client
            .mutex("name")
            .durability(Durability::Aof)
            .lock()
            .await;
        match locked {
            Ok(guard) => {
                let told = guard.durability();
                assert!(told.on_disk && told.at.is_some(), "{flavor}: {told:?}");
            }
            // Redis 7.0.
            Err(error) => {
                let said = error.to_string();
                assert!(said.contains("WAITAOF") && said.contains("7.2"), "{said}");
                assert_eq!(int(&server, &["EXISTS", "name"]), 0);
            }
        }
    }
}
