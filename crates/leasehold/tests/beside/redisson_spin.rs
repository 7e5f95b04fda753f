//! Beside the real Redisson's `RSpinLock`, on the JVM: both lock each other out. No side is told; both look.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use crate::common;
use crate::common::{
    SOON, assert_nothing_left, attempts, channels, flavors, redisson::Redisson, servers, soon,
    wait_until_idle,
};
use futures_util::future::join_all;
use leasehold::{Client, LostReason, Released, SpinMutex};
use leasehold_testkit::{Server, wait_until_async};

const LEASE: Duration = Duration::from_secs(30);
/// Both look after 128 ms at the latest.
const LOOKED: Duration = Duration::from_secs(2);

async fn client_of(server: &Server) -> Client {
    Client::connect(&server.url()).await.unwrap()
}

async fn until_waiting(lock: &SpinMutex) {
    while lock.status().await.unwrap().waiting_here == 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn each_is_locked_out_by_the_other_and_finds_out_when_it_is_free() {
    for server in servers() {
        let client = client_of(&server).await;
        let mut java = Redisson::start(&server, LEASE).await;
        let lock = client.spin_mutex("name");

        let guard = lock.lock().await.unwrap();
        assert_eq!(java.obey("spin try name 0").await, "false");
        assert_eq!(java.obey("spin try name 100").await, "false");
        // Our hold is an RLock to Redisson.
        assert_eq!(java.obey("try name 0").await, "false");
        let before = attempts(&server);
        java.order("spin lock name");
        wait_until_async(SOON, "it asks", || attempts(&server) >= before + 2).await;
        let freed = Instant::now();
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        assert_eq!(java.answer().await, "locked");
        assert!(freed.elapsed() < LOOKED, "{:?}", freed.elapsed());

        assert!(lock.try_lock().await.unwrap().is_none());
        let status = lock.status().await.unwrap();
        assert_eq!(status.holder().expect("it is held").holds, 1);
        let waiting = tokio::spawn(lock.lock());
        until_waiting(&lock).await;
        assert_eq!(channels(&server), [""; 0], "no side listens");
        let freed = Instant::now();
        assert_eq!(java.obey("spin unlock name").await, "unlocked");
        let guard = soon("its turn", waiting).await.unwrap().unwrap();
        assert!(freed.elapsed() < LOOKED, "{:?}", freed.elapsed());
        // By force, which no watchdog survives.
        assert_eq!(java.obey("spin force name").await, "true");
        assert!(guard.verify().await.is_err());
        assert_eq!(guard.lost().await, LostReason::Replaced);
        drop(guard);
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "a spin lock beside Redisson").await;
    }
}

/// Adds one to the number in the file, as Redisson's threads do.
async fn count(lock: SpinMutex, file: PathBuf, times: usize) {
    for _ in 0..times {
        let guard = lock.lock().await.unwrap();
        let number: u64 = std::fs::read_to_string(&file).unwrap().parse().unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await; // the window in which an update would be lost
        std::fs::write(&file, (number + 1).to_string()).unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
    }
}

#[tokio::test]
async fn no_update_is_lost_between_two_processes_of_each_kind() {
    const THREADS: usize = 3;
    let times = common::of_the_whole(500);
    for server in flavors(0).into_iter().map(Server::start) {
        let file = server.dir().join("number");
        let clients = [client_of(&server).await, client_of(&server).await];
        let mut java = [
            Redisson::start(&server, LEASE).await,
            Redisson::start(&server, LEASE).await,
        ];
        std::fs::write(&file, "0").unwrap();
        for jvm in &mut java {
            let order = format!("spin count name {} {THREADS} {times}", file.display());
            jvm.order(&order);
        }
        let tasks = clients.iter().cycle().take(2 * THREADS);
        let tasks = tasks.map(|client| count(client.spin_mutex("name"), file.clone(), times));
        join_all(tasks.map(tokio::spawn))
            .await
            .into_iter()
            .for_each(Result::unwrap);
        for jvm in &mut java {
            assert_eq!(jvm.answer().await, "counted");
        }
        let counted = std::fs::read_to_string(&file).unwrap();
        assert_eq!(counted, (4 * THREADS * times).to_string());
        for client in &clients {
            wait_until_idle(client).await;
        }
        assert_nothing_left(&server, "counting beside Redisson").await;
    }
}

#[tokio::test]
async fn the_name_of_a_killed_jvm_is_free_when_its_lease_ends() {
    const SHORT: Duration = Duration::from_secs(2);
    for server in servers() {
        let client = client_of(&server).await;
        let mut java = Redisson::start(&server, SHORT).await;
        assert_eq!(java.obey("spin lock name").await, "locked");
        let lock = client.spin_mutex("name");
        let waiting = tokio::spawn(lock.lock());
        until_waiting(&lock).await;
        java.kill();
        let killed = Instant::now();
        drop(waiting.await.unwrap().unwrap());
        let late = killed.elapsed();
        assert!(late < SHORT + Duration::from_millis(300), "{late:?}");
        wait_until_idle(&client).await;
    }
}
