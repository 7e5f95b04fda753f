//! From writing to reading: downgrades, reading under one's own write lock, and the order in which those that wait are let in.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::common;
use crate::common::{
    SOON, World, release,
    rw::{until_listening, until_waiting_here},
    soon, wait_until_idle,
    wire::Network,
};
use leasehold::{Access, Client, ErrorKind, LostReason, Owner, Released, RwLock, WriteGuard};
use tokio::task::JoinHandle;

const MS: Duration = Duration::from_millis(1);
/// Far less than a lease or a poll interval.
const WOKEN: Duration = Duration::from_secs(2);

/// The access and the hold count of each holder.
async fn holders(lock: &RwLock) -> Vec<(Access, u64)> {
    let status = lock.status().await.unwrap();
    status.holders.iter().map(|h| (h.access, h.holds)).collect()
}

fn rw(client: &Client) -> RwLock {
    client.rw_lock("name")
}

/// Waits elsewhere, where no wake-up of another comes: in a client of its own.
async fn writer(world: &World) -> (Client, JoinHandle<WriteGuard>) {
    let client = world.client().await;
    let waiting = rw(&client).write();
    let waiting = tokio::spawn(async move { waiting.await.unwrap() });
    until_waiting_here(&client, 1).await;
    (client, waiting)
}

#[tokio::test]
async fn a_downgrade_lets_waiting_readers_in_and_no_writer() {
    for world in World::all() {
        let (here, there) = (world.client().await, world.client().await);
        let writes = rw(&here).write().await.unwrap();
        let mut waiting = Vec::new();
        for client in [&here, &there] {
            waiting.push(tokio::spawn(rw(client).read()));
            until_waiting_here(client, 1).await;
        }
        // In this order: a reader behind the writer would wait for it.
        until_queued(&world, &here, 1).await;
        let (elsewhere, next) = writer(&world).await;
        until_queued(&world, &here, 2).await;
        let begun = Instant::now();
        let reads = writes.downgrade().await.unwrap();
        for waiting in waiting {
            let beside = soon("a reader", waiting).await.unwrap().unwrap();
            assert!(beside.is_valid() && reads.is_valid());
            beside.release().await.unwrap();
        }
        assert!(begun.elapsed() < WOKEN, "{}", world.name());
        assert!(!next.is_finished());
        assert_eq!(holders(&rw(&here)).await.len(), 1);
        reads.verify().await.unwrap();
        release(reads).await;
        release(soon("the writer", next).await.unwrap()).await;
        for client in [&here, &there, &elsewhere] {
            wait_until_idle(client).await;
        }
        assert_eq!(world.held(), [""; 0], "{}", world.name());
    }
}

#[tokio::test]
async fn a_downgraded_hold_is_shared_by_the_next_reader_of_its_process_and_renewed() {
    for world in World::all() {
        let client = world.client().await;
        let lock = rw(&client).lease(1000 * MS);
        let reads = lock.write().await.unwrap().downgrade().await.unwrap();
        let beside = lock.read().await.unwrap();
        assert_eq!(beside.owner(), reads.owner());
        tokio::time::sleep(2200 * MS).await; // two leases: the time itself is what is tested
        reads.verify().await.unwrap();
        assert_eq!(
            reads.release().await.unwrap(),
            Released::StillHeld { holds: 1 }
        );
        assert!(lock.try_write().await.unwrap().is_none());
        release(beside).await;
        wait_until_idle(&client).await;
        assert_eq!(world.held(), [""; 0]);
    }
}

#[tokio::test]
async fn a_writer_reads_under_its_own_lock_and_reads_on_when_it_has_written() {
    for world in World::all() {
        let (here, there) = (world.client().await, world.client().await);
        let writes = rw(&here).write().await.unwrap();
        let reads = writes.read().unwrap();
        let again = reads.reenter().unwrap();
        for client in [&here, &there] {
            assert!(rw(client).try_read().await.unwrap().is_none());
        }
        drop(reads);
        assert!(rw(&there).try_read().await.unwrap().is_none());
        assert_eq!(
            writes.release().await.unwrap(),
            Released::StillHeld { holds: 1 }
        );
        for client in [&here, &there] {
            release_beside(&rw(client)).await;
            assert!(rw(client).try_write().await.unwrap().is_none());
        }
        release(again).await;
        // The reader first: then nothing is downgraded.
        let writes = rw(&here).write().await.unwrap();
        drop(writes.read().unwrap());
        assert!(rw(&there).try_read().await.unwrap().is_none());
        release(writes).await;
        wait_until_idle(&here).await;
        let strict = rw(&here).reentrant(false);
        let writes = strict.write().await.unwrap();
        assert_eq!(writes.read().unwrap_err().kind(), ErrorKind::Reentered);
        release(writes.downgrade().await.unwrap()).await;
    }
}

async fn release_beside(lock: &RwLock) {
    let beside = soon("beside it", lock.try_read()).await.unwrap();
    beside.expect("it reads").release().await.unwrap();
}

/// A second guard of the writer keeps its right: the server is told when the last is gone.
#[tokio::test]
async fn a_downgrade_waits_for_the_other_guards_of_the_writer() {
    for world in World::all() {
        let (here, there) = (world.client().await, world.client().await);
        let one = rw(&here).write().await.unwrap();
        let two = one.reenter().unwrap();
        let reads = one.downgrade().await.unwrap();
        assert!(two.is_valid());
        assert!(rw(&there).try_read().await.unwrap().is_none());
        drop(two);
        release(soon("beside", rw(&there).read()).await.unwrap()).await;
        release(reads).await;
        // An owner that enters by name: the same.
        let owner = Owner::new();
        let lock = rw(&here).owned_by(&owner);
        let writes = lock.write().await.unwrap();
        let reads = lock.read().await.unwrap();
        writes.release().await.unwrap();
        release_beside(&rw(&there)).await;
        assert_eq!(holders(&lock).await, [(Access::Shared, 1)]);
        release(reads).await;
        wait_until_idle(&here).await;
        assert_eq!(world.held(), [""; 0]);
    }
}

#[tokio::test]
async fn a_downgrade_whose_answer_is_lost_is_repeated() {
    for world in World::all() {
        let network = Network::to(&world);
        let builder = network.builder().operation_timeout(200 * MS);
        let (client, there) = (builder.connect().await.unwrap(), world.client().await);
        let writes = rw(&client).write().await.unwrap();
        network.lose_replies(1);
        let reads = soon("the downgrade", writes.downgrade()).await.unwrap();
        network.heal();
        release(soon("beside it", rw(&there).read()).await.unwrap()).await;
        reads.verify().await.unwrap();
        reads.release().await.unwrap();
        wait_until_idle(&client).await;
        assert_eq!(world.held(), [""; 0], "{}", world.name());
    }
}

#[tokio::test]
async fn a_lost_writer_is_not_downgraded() {
    for world in World::all() {
        let client = world.client().await;
        let lock = rw(&client);
        let writes = lock.write().await.unwrap();
        let reads = writes.read().unwrap();
        assert!(rw(&world.client().await).force_unlock().await.unwrap());
        let error = writes.downgrade().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{}", world.name());
        assert_eq!(reads.lost().await, LostReason::Replaced);
        drop(reads);
        wait_until_idle(&client).await;
    }
}

/// The order in which a reader and a writer come in that have waited in this order, each in its own process or both in one.
async fn order(world: &World, apart: bool, writer_first: bool) -> Vec<&'static str> {
    let holder = world.client().await;
    let (one, two) = (world.client().await, world.client().await);
    let two = if apart { two } else { one.clone() };
    let held = rw(&holder).write().await.unwrap();
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for (nth, client) in [&one, &two].into_iter().enumerate() {
        let (lock, order) = (rw(client), Arc::clone(&order));
        let writes = (nth == 0) == writer_first;
        tasks.push(tokio::spawn(async move {
            if writes {
                let guard = lock.write().await.unwrap();
                order.lock().push("writes");
                release(guard).await;
            } else {
                let guard = lock.read().await.unwrap();
                order.lock().push("reads");
                release(guard).await;
            }
        }));
        let here = if apart { 1 } else { nth + 1 };
        until_waiting_here(client, here).await;
        until_queued(world, &holder, if apart { nth + 1 } else { 1 }).await;
    }
    release(held).await;
    for task in tasks {
        soon("a waiter", task).await.unwrap();
    }
    for client in [&holder, &one, &two] {
        wait_until_idle(client).await;
    }
    order.lock().clone()
}

/// Until so many processes stand in the queue: they listen, and have asked once more after that.
async fn until_queued(world: &World, looker: &Client, places: usize) {
    until_listening(looker, places as u64).await;
    until_places(world, places).await;
}

async fn until_places(world: &World, places: usize) {
    match world {
        World::Server(server) => {
            let queue = "leasehold:{name}:rw:queue";
            let there = || common::int(server, &["LLEN", queue]) == i64::try_from(places).unwrap();
            leasehold_testkit::wait_until_async(SOON, "they queue", there).await;
        }
        // On this thread: each task has its turn.
        World::Memory(_) => {
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
        }
    }
}

#[tokio::test]
async fn readers_and_writers_come_in_as_they_came() {
    for world in World::all() {
        for apart in [true, false] {
            for writer_first in [true, false] {
                let case = format!("{}, apart: {apart}, {writer_first}", world.name());
                let arrived = if writer_first {
                    ["writes", "reads"]
                } else {
                    ["reads", "writes"]
                };
                assert_eq!(order(&world, apart, writer_first).await, arrived, "{case}");
            }
        }
    }
}

/// The server looks at no more than 1,000 entries of a reader: a count beyond them would stand for one of Redisson's.
#[tokio::test]
async fn a_writer_that_reads_very_often_goes_on_as_a_reader_all_the_same() {
    for world in World::all() {
        let (one, two) = (world.client().await, world.client().await);
        let lock = rw(&one).owned_by(&Owner::new());
        let writes = lock.write().await.unwrap();
        let often: Vec<_> = (0..1_500).map(|_| writes.read().unwrap()).collect();
        let again = lock.read().await.unwrap();
        writes.release().await.unwrap();
        let beside = rw(&two).try_read().await.unwrap();
        release(beside.expect("none writes any more")).await;
        drop(often);
        release(again).await;
        release(rw(&two).try_write().await.unwrap().expect("it is free")).await;
    }
}
