//! Beside the real Redisson's `RedissonMultiLock`, on the JVM: both take each part as an `RLock`, so both lock each other out,
//! and a part alone as well.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use crate::common;
use crate::common::{
    assert_nothing_left, flavors, redisson::Redisson, servers, soon, wait_until_idle,
};
use futures_util::future::join_all;
use leasehold::{Client, MultiLock, Released};
use leasehold_testkit::Server;

const LEASE: Duration = Duration::from_secs(30);
const WOKEN: Duration = Duration::from_secs(2);

async fn client_of(server: &Server) -> Client {
    Client::connect(&server.url()).await.unwrap()
}

/// Until a task of the client waits for one of these.
async fn until_waiting(lock: &MultiLock) {
    while lock
        .status()
        .await
        .unwrap()
        .iter()
        .all(|of| of.waiting_here == 0)
    {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn each_is_locked_out_by_the_other_and_woken_by_it() {
    for server in servers() {
        let client = client_of(&server).await;
        let mut java = Redisson::start(&server, LEASE).await;
        let multi = client.multi_lock(["one", "two"]);

        // Ours holds: all of theirs, and each part alone.
        let guard = multi.lock().await.unwrap();
        assert_eq!(java.obey("multi try one,two 0").await, "false");
        assert_eq!(java.obey("multi try two,three 100").await, "false");
        for part in ["one", "two"] {
            assert_eq!(java.obey(&format!("try {part} 0")).await, "false");
        }
        java.order("multi lock one,two");
        let waits = async || client.status("one").await.unwrap().waiting_clients == 1;
        let deadline = Instant::now() + Duration::from_secs(10);
        while !waits().await {
            assert!(Instant::now() < deadline, "Redisson never listened");
        }
        let freed = Instant::now();
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        assert_eq!(java.answer().await, "locked");
        assert!(freed.elapsed() < WOKEN, "{:?}", freed.elapsed());

        // Theirs holds: all of ours, and each part alone. Nothing of ours is left by a refusal.
        assert!(multi.try_lock().await.unwrap().is_none());
        let beside = client.multi_lock(["two", "three"]);
        assert!(beside.try_lock().await.unwrap().is_none());
        assert_eq!(java.obey("try three 0").await, "true");
        assert_eq!(java.obey("unlock three").await, "unlocked");
        assert!(client.mutex("two").try_lock().await.unwrap().is_none());
        let waiting = tokio::spawn(multi.lock());
        until_waiting(&multi).await;
        let freed = Instant::now();
        assert_eq!(java.obey("multi unlock one,two").await, "unlocked");
        let guard = soon("its turn", waiting).await.unwrap().unwrap();
        assert!(freed.elapsed() < WOKEN, "{:?}", freed.elapsed());
        assert_eq!(guard.release().await.unwrap(), Released::Freed);

        // A single part keeps the whole out, and its release lets it in.
        assert_eq!(java.obey("lock two").await, "locked");
        assert!(multi.try_lock().await.unwrap().is_none());
        let waiting = tokio::spawn(multi.lock());
        until_waiting(&multi).await;
        assert_eq!(java.obey("unlock two").await, "unlocked");
        let guard = soon("its turn", waiting).await.unwrap().unwrap();
        drop(guard);
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "a multi-lock beside Redisson").await;
    }
}

/// Adds one to the number in the file, as Redisson's threads do.
async fn count(lock: MultiLock, file: PathBuf, times: usize) {
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
        // Each takes the common name, and another that only some take.
        for (jvm, names) in java.iter_mut().zip(["common,java", "common,ours"]) {
            jvm.order(&format!(
                "multi count {names} {} {THREADS} {times}",
                file.display()
            ));
        }
        let tasks = (0..2 * THREADS).map(|task| {
            let names = [["common", "ours"], ["java", "common"]][task % 2];
            count(clients[task % 2].multi_lock(names), file.clone(), times)
        });
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
async fn the_names_of_a_killed_jvm_are_free_when_their_leases_end() {
    const SHORT: Duration = Duration::from_secs(2);
    for server in servers() {
        let client = client_of(&server).await;
        let mut java = Redisson::start(&server, SHORT).await;
        assert_eq!(java.obey("multi lock one,two").await, "locked");
        let multi = client.multi_lock(["two", "one"]);
        let waiting = tokio::spawn(multi.lock());
        until_waiting(&multi).await;
        java.kill();
        let killed = Instant::now();
        drop(waiting.await.unwrap().unwrap());
        let late = killed.elapsed();
        assert!(late < SHORT + Duration::from_millis(300), "{late:?}");
        wait_until_idle(&client).await;
    }
}
