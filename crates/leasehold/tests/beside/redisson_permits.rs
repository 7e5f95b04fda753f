//! Permits beside the real Redisson, on the JVM: no more are held than there are, and each side wakes the other.

use std::time::{Duration, Instant};

use crate::common;
use crate::common::{SOON, int, redisson::Redisson, servers, soon, wait_until_idle};
use futures_util::future::join_all;
use leasehold::{Access, Client, LeasedSemaphore, PermitGuard, Released};
use leasehold_testkit::{Proxy, Server, wait_until_async};

/// Long enough that a waiter that is not woken is noticed.
const LEASE: Duration = Duration::from_secs(30);
const WOKEN: Duration = Duration::from_secs(2);
const CHANNEL: &str = "redisson_sc:{name}";

async fn semaphore(server: &Server) -> (Client, LeasedSemaphore) {
    let client = Client::connect(&server.url()).await.unwrap();
    let semaphore = client.leased_semaphore("name");
    (client, semaphore)
}

async fn until_heard_by(server: &Server, count: u64) {
    let what = format!("{count} processes listen");
    wait_until_async(SOON, &what, || {
        let reply = server.cli(&["PUBSUB", "NUMSUB", CHANNEL]);
        let (_, heard): (String, u64) = redis::from_redis_value(reply).unwrap();
        heard == count
    })
    .await;
}

async fn release(guard: PermitGuard) {
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
}

/// Both count the same.
async fn assert_free(java: &mut Redisson, semaphore: &LeasedSemaphore, free: i64, out: i64) {
    let theirs = java.obey("permits name available").await;
    assert_eq!(theirs, free.to_string());
    let acquired = java.obey("permits name acquired").await;
    assert_eq!(acquired, out.to_string());
    assert_eq!(semaphore.available_permits().await.unwrap(), free);
    let status = semaphore.status().await.unwrap();
    assert_eq!(status.available, Some(free));
}

#[tokio::test]
async fn each_is_refused_by_the_other_and_woken_by_its_release() {
    for server in servers() {
        let (client, semaphore) = semaphore(&server).await;
        let mut java = Redisson::start(&server, LEASE).await;
        assert!(semaphore.try_set_permits(3).await.unwrap());
        assert_eq!(java.obey("permits name set 9").await, "false");

        // Ours are all.
        let all = semaphore.acquire_many(3).await.unwrap();
        assert_free(&mut java, &semaphore, 0, 3).await;
        assert_eq!(java.obey("permits name try 1 0 30000").await, "none");
        let left = java
            .obey(&format!("permits name left {}", all.owner()))
            .await;
        let left: u64 = left.parse().expect("Redisson knows our permit");
        assert!((20_000..=30_000).contains(&left), "{left}");
        java.order("permits name acquire 2 30000");
        until_heard_by(&server, 1).await;
        let freed = Instant::now();
        release(all).await;
        let theirs = java.answer().await;
        assert!(freed.elapsed() < WOKEN, "{:?}", freed.elapsed());
        assert_free(&mut java, &semaphore, 1, 2).await;

        // Redisson has a permit too many for two of ours.
        assert!(semaphore.try_acquire_many(2).await.unwrap().is_none());
        let status = semaphore.status().await.unwrap();
        let mut owners: Vec<_> = status
            .holders
            .iter()
            .map(|held| held.owner.as_str())
            .collect();
        let mut ids: Vec<_> = theirs.split(',').collect();
        owners.sort_unstable();
        ids.sort_unstable();
        assert_eq!(owners, ids, "as Redisson's API shows them");
        assert!(
            status
                .holders
                .iter()
                .all(|held| held.access == Access::Permits(1))
        );
        let waiter = tokio::spawn(semaphore.acquire_many(3));
        until_heard_by(&server, 1).await;
        let freed = Instant::now();
        assert_eq!(
            java.obey(&format!("permits name release {theirs}")).await,
            "released"
        );
        let all = soon("woken", waiter).await.unwrap().unwrap();
        assert!(freed.elapsed() < WOKEN, "{:?}", freed.elapsed());
        release(all).await;
        assert_free(&mut java, &semaphore, 3, 0).await;

        // A single permit has a call of its own in Redisson's API, as has its release.
        let id = java.obey("permits name acquire 1 30000").await;
        let waiter = tokio::spawn(semaphore.acquire_many(3));
        until_heard_by(&server, 1).await;
        assert_eq!(
            java.obey(&format!("permits name release {id}")).await,
            "released"
        );
        let all = soon("woken", waiter).await.unwrap().unwrap();
        java.order("permits name acquire 1 30000");
        until_heard_by(&server, 1).await;
        release(all).await;
        let id = java.answer().await;
        assert_eq!(
            java.obey(&format!("permits name release {id}")).await,
            "released"
        );
        assert_free(&mut java, &semaphore, 3, 0).await;
        wait_until_idle(&client).await;
    }
}

/// Takes one permit or two and counts how many are out, as `Permits.java` does. Returns the most.
async fn count(server: &Server, times: usize) -> i64 {
    let (client, semaphore) = semaphore(server).await;
    let counter = redis::Client::open(server.url().replace("valkey:", "redis:")).unwrap();
    let mut counter = counter.get_multiplexed_async_connection().await.unwrap();
    let mut most = 0;
    for nth in 0..times {
        let permits: u32 = if nth % 2 == 0 { 1 } else { 2 };
        let guard = semaphore.acquire_many(permits).await.unwrap();
        let mut add = async |more: i64| -> i64 {
            let incr = redis::cmd("INCRBY").arg("out").arg(more).clone();
            incr.query_async(&mut counter).await.unwrap()
        };
        most = most.max(add(permits.into()).await);
        add(-i64::from(permits)).await;
        release(guard).await;
    }
    wait_until_idle(&client).await;
    most
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_are_more_out_than_there_are_between_two_processes_of_each_kind() {
    const PERMITS: i64 = 10;
    const THREADS: usize = 3;
    let times = common::of_the_whole(834); // of twelve: ten thousand
    for server in servers() {
        let (_, semaphore) = semaphore(&server).await;
        semaphore.try_set_permits(10).await.unwrap();
        let mut java = [
            Redisson::start(&server, LEASE).await,
            Redisson::start(&server, LEASE).await,
        ];
        // A client of its own for each: they are to contend on the server.
        let ours = (0..2 * THREADS).map(|_| count(&server, times));
        for jvm in &mut java {
            jvm.order(&format!("permits name count out {THREADS} {times}"));
        }
        let mut most = join_all(ours).await;
        for jvm in &mut java {
            let answer = jvm.answer().await;
            let theirs = answer
                .strip_prefix("counted ")
                .unwrap_or_else(|| panic!("{answer}"));
            most.push(theirs.parse().unwrap());
        }
        let most = most.into_iter().max().unwrap();
        assert!(most <= PERMITS, "{most} were out");
        assert!(most > PERMITS / 2, "only {most}: they hardly met");
        assert_free(&mut java[0], &semaphore, PERMITS, 0).await;
        assert_eq!(int(&server, &["GET", "out"]), 0);
    }
}

#[tokio::test]
async fn what_a_dead_client_held_is_redissons_within_its_lease() {
    const SHORT: Duration = Duration::from_secs(2);
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let dies = Client::builder().url(proxy.url()).connect().await.unwrap();
        let (_, semaphore) = semaphore(&server).await;
        let mut java = Redisson::start(&server, LEASE).await;
        semaphore.try_set_permits(10).await.unwrap();
        let held = dies.leased_semaphore("name").lease(SHORT);
        let held = held.acquire_many(3).await.unwrap();
        // Redisson waits for all of them.
        java.order("permits name acquire 10 30000");
        until_heard_by(&server, 1).await;
        tokio::time::sleep(2 * SHORT).await; // it is renewed: the time itself is what is tested
        assert!(held.is_valid());
        assert_eq!(semaphore.available_permits().await.unwrap(), 7);
        proxy.refuse(true);
        proxy.cut();
        let end = Instant::now();
        let ids = java.answer().await;
        let late = end.elapsed();
        assert!(late < SHORT + Duration::from_millis(500), "{late:?}");
        assert_eq!(ids.split(',').count(), 10);
        assert_eq!(
            java.obey(&format!("permits name release {ids}")).await,
            "released"
        );
        assert_free(&mut java, &semaphore, 10, 0).await;
        drop(held);
    }
}

#[tokio::test]
async fn what_a_killed_jvm_held_is_ours_when_its_lease_ends() {
    for server in servers() {
        let (client, semaphore) = semaphore(&server).await;
        let mut java = Redisson::start(&server, LEASE).await;
        semaphore.try_set_permits(2).await.unwrap();
        java.obey("permits name acquire 2 2000").await;
        let taken = Instant::now();
        let waiter = tokio::spawn(semaphore.acquire_many(2));
        until_heard_by(&server, 1).await;
        java.kill();
        let both = soon("they come back", waiter).await.unwrap().unwrap();
        let late = taken.elapsed();
        assert!(late < Duration::from_millis(2200), "{late:?}");
        release(both).await;
        wait_until_idle(&client).await;
    }
}
