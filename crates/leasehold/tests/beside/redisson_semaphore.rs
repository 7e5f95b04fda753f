//! Permits without leases beside the real Redisson, on the JVM: no more are held than there are, all are back at the end, and each side
//! wakes the other.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use crate::common;
use crate::common::{SOON, flavors, int, redisson::Redisson, servers, soon, wait_until_idle};
use futures_util::future::join_all;
use leasehold::{Client, Released, Semaphore, SemaphoreGuard};
use leasehold_testkit::{Server, wait_until_async};

/// The JVM's watchdog, which these have no use for.
const LEASE: Duration = Duration::from_secs(30);
const WOKEN: Duration = Duration::from_secs(2);
const CHANNEL: &str = "redisson_sc:{name}";

async fn semaphore(server: &Server) -> (Client, Semaphore) {
    let client = Client::connect(&server.url()).await.unwrap();
    let semaphore = client.semaphore("name");
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

async fn release(guard: SemaphoreGuard) {
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
}

/// Both count the same.
async fn assert_free(java: &mut Redisson, semaphore: &Semaphore, free: i64) {
    let theirs = java.obey("semaphore name available").await;
    assert_eq!(theirs, free.to_string());
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
        assert_eq!(java.obey("semaphore name set 9").await, "false");
        let all = semaphore.acquire_many(3).await.unwrap();
        assert_free(&mut java, &semaphore, 0).await;
        assert_eq!(java.obey("semaphore name try 1 0").await, "false");
        java.order("semaphore name acquire 2");
        until_heard_by(&server, 1).await;
        let freed = Instant::now();
        release(all).await;
        assert_eq!(java.answer().await, "acquired");
        assert!(freed.elapsed() < WOKEN, "{:?}", freed.elapsed());
        assert_free(&mut java, &semaphore, 1).await;
        assert!(semaphore.try_acquire_many(2).await.unwrap().is_none());
        until_heard_by(&server, 0).await;
        let waiter = tokio::spawn(semaphore.acquire_many(3));
        until_heard_by(&server, 1).await;
        let freed = Instant::now();
        assert_eq!(java.obey("semaphore name release 2").await, "released");
        let all = soon("woken", waiter).await.unwrap().unwrap();
        assert!(freed.elapsed() < WOKEN, "{:?}", freed.elapsed());
        // Permits that are added wake as well, both ways.
        java.order("semaphore name acquire 1");
        until_heard_by(&server, 1).await;
        assert_eq!(semaphore.add_permits(1).await.unwrap(), 1);
        assert_eq!(java.answer().await, "acquired");
        let waiter = tokio::spawn(semaphore.acquire());
        until_heard_by(&server, 1).await;
        assert_eq!(java.obey("semaphore name add 2").await, "added");
        let one = soon("woken", waiter).await.unwrap().unwrap();
        assert_eq!(java.obey("semaphore name drain").await, "1");
        assert_eq!(java.obey("semaphore name release 1").await, "released");
        assert_eq!(semaphore.drain_permits().await.unwrap(), 1);
        assert_free(&mut java, &semaphore, 0).await;
        release(one).await;
        release(all).await;
        assert_free(&mut java, &semaphore, 4).await;
        wait_until_idle(&client).await;
    }
}

/// Takes one permit or two and counts how many are out, as `Semaphores.java` does. Returns the most.
async fn out(server: &Server, times: usize) -> i64 {
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
async fn of_ten_permits_never_more_are_out_in_ten_thousand_turns_and_all_are_back() {
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
        let ours = (0..2 * THREADS).map(|_| out(&server, times));
        for jvm in &mut java {
            jvm.order(&format!("semaphore name out out {THREADS} {times}"));
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
        assert_free(&mut java[0], &semaphore, PERMITS).await;
        assert_eq!(int(&server, &["GET", "out"]), 0);
        assert_eq!(semaphore.status().await.unwrap().holders, []);
    }
}

/// Adds one to the number in the file, as Redisson's threads do.
async fn count(semaphore: Semaphore, file: PathBuf, times: usize) {
    for _ in 0..times {
        let guard = semaphore.acquire().await.unwrap();
        let number: u64 = std::fs::read_to_string(&file).unwrap().parse().unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await; // the window in which an update would be lost
        std::fs::write(&file, (number + 1).to_string()).unwrap();
        release(guard).await;
    }
}

#[tokio::test]
async fn no_update_is_lost_under_a_semaphore_of_one_between_two_processes_of_each_kind() {
    const THREADS: usize = 3;
    let times = common::of_the_whole(500);
    for server in flavors(1).into_iter().map(Server::start) {
        let file = server.dir().join("number");
        let clients = [semaphore(&server).await, semaphore(&server).await];
        clients[0].1.try_set_permits(1).await.unwrap();
        let mut java = [
            Redisson::start(&server, LEASE).await,
            Redisson::start(&server, LEASE).await,
        ];
        std::fs::write(&file, "0").unwrap();
        for jvm in &mut java {
            let file = file.display();
            jvm.order(&format!("semaphore name count {file} {THREADS} {times}"));
        }
        let tasks = clients.iter().cycle().take(2 * THREADS);
        let tasks = tasks.map(|(_, semaphore)| count(semaphore.clone(), file.clone(), times));
        join_all(tasks.map(tokio::spawn))
            .await
            .into_iter()
            .for_each(Result::unwrap);
        for jvm in &mut java {
            assert_eq!(jvm.answer().await, "counted");
        }
        let counted = std::fs::read_to_string(&file).unwrap();
        assert_eq!(counted, (4 * THREADS * times).to_string());
        assert_free(&mut java[0], &clients[0].1, 1).await;
        for (client, _) in &clients {
            wait_until_idle(client).await;
        }
    }
}

#[tokio::test]
async fn permits_of_a_killed_jvm_are_lost_and_so_are_those_of_ours() {
    for server in servers() {
        let (_, semaphore) = semaphore(&server).await;
        let mut java = Redisson::start(&server, LEASE).await;
        semaphore.try_set_permits(3).await.unwrap();
        assert_eq!(java.obey("semaphore name acquire 1").await, "acquired");
        java.kill();
        let one = semaphore.acquire().await.unwrap();
        std::mem::forget(one); // as if this process had died
        let wait = Duration::from_millis(300);
        let none = semaphore.try_acquire_many_for(2, wait).await.unwrap();
        assert!(none.is_none());
        assert_eq!(semaphore.add_permits(2).await.unwrap(), 3, "by hand");
    }
}
