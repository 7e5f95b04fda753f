//! Holds beside which others may hold the lock too: what the engine does in one process, on memory.

use std::time::Duration;

use crate::common::ByHand;
use leasehold::{Client, Handoff, MemoryServer, Released, Shutdown};

const MS: Duration = Duration::from_millis(1);

async fn client(server: &MemoryServer) -> Client {
    Client::builder().memory(server).connect().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn readers_of_a_process_share_one_hold_and_a_writer_waits_for_the_last() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let lock = client.rw_lock("name");
    let one = lock.read().await.unwrap();
    let two = lock.read().await.unwrap();
    assert_eq!(one.owner(), two.owner());
    assert_eq!(lock.status().await.unwrap().holders.len(), 1);
    assert!(lock.try_write().await.unwrap().is_none());
    let writer = tokio::spawn(lock.write());
    tokio::time::sleep(50 * MS).await;
    // A writer waits: no reader is let in.
    assert!(lock.try_read().await.unwrap().is_none());
    one.release().await.unwrap();
    tokio::time::sleep(50 * MS).await;
    assert!(!writer.is_finished());
    two.release().await.unwrap();
    let writer = writer.await.unwrap().unwrap();
    assert!(writer.is_valid());
    assert!(lock.try_read().await.unwrap().is_none());
    let readers = [(); 3].map(|()| tokio::spawn(lock.read()));
    tokio::time::sleep(50 * MS).await;
    writer.release().await.unwrap();
    let mut owners = Vec::new();
    for reader in readers {
        let guard = reader.await.unwrap().unwrap();
        owners.push(guard.owner());
        guard.release().await.unwrap();
    }
    owners.dedup();
    assert_eq!(owners.len(), 1, "those who wait share it too");
    tokio::time::sleep(50 * MS).await;
    assert_eq!(client.footprint(), leasehold::Footprint::default());
    assert!(server.names().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_reader_asks_the_server_when_the_budget_is_used_up() {
    let server = MemoryServer::new();
    let (here, there) = (client(&server).await, client(&server).await);
    let lock = here.rw_lock("name").handoff(Handoff::new(2, 1000 * MS));
    let first = lock.read().await.unwrap();
    let writer = tokio::spawn(there.rw_lock("name").write());
    tokio::time::sleep(50 * MS).await;
    // Two unasked, though a writer waits elsewhere; the third asks.
    let second = lock.try_read().await.unwrap().expect("within the budget");
    let third = lock.try_read().await.unwrap().expect("within the budget");
    assert!(lock.try_read().await.unwrap().is_none());
    for guard in [first, second, third] {
        guard.release().await.unwrap();
    }
    writer.await.unwrap().unwrap().release().await.unwrap();
    // No task waits now: the budget begins anew each time.
    let mut guards = Vec::new();
    for _ in 0..20 {
        guards.push(lock.try_read().await.unwrap().expect("nobody waits"));
    }
    let holders = lock.status().await.unwrap().holders;
    assert_eq!(holders.len(), 1, "{holders:?}");
    assert!(holders[0].holds >= 18, "{holders:?}");
}

#[tokio::test(start_paused = true)]
async fn permits_are_held_side_by_side_and_passed_on() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let semaphore = client.leased_semaphore("name");
    let unset = semaphore.try_acquire().await.unwrap_err();
    assert_eq!(unset.kind(), leasehold::ErrorKind::Rejected, "{unset}");
    assert!(semaphore.try_set_permits(3).await.unwrap());
    assert!(!semaphore.try_set_permits(5).await.unwrap());
    let one = semaphore.acquire().await.unwrap();
    let two = semaphore.acquire_many(2).await.unwrap();
    assert_eq!((one.permits(), two.permits()), (1, 2));
    assert_eq!(semaphore.available_permits().await.unwrap(), 0);
    let many = tokio::spawn(semaphore.acquire_many(3));
    tokio::time::sleep(50 * MS).await;
    let few = tokio::spawn(semaphore.acquire());
    tokio::time::sleep(50 * MS).await;
    one.release().await.unwrap();
    tokio::time::sleep(50 * MS).await;
    assert!(!few.is_finished(), "a big request is not overtaken");
    drop(two);
    let many = many.await.unwrap().unwrap();
    assert!(!few.is_finished());
    drop(many);
    few.await.unwrap().unwrap().release().await.unwrap();
    tokio::time::sleep(50 * MS).await;
    assert_eq!(semaphore.available_permits().await.unwrap(), 3);
    assert_eq!(client.footprint(), leasehold::Footprint::default());
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_is_dropped_is_there_for_the_next_who_asks() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let semaphore = client.leased_semaphore("name");
    semaphore.try_set_permits(2).await.unwrap();
    let kept = semaphore.acquire().await.unwrap();
    for _ in 0..20 {
        drop(
            semaphore
                .try_acquire()
                .await
                .unwrap()
                .expect("it was given back"),
        );
    }
    kept.release().await.unwrap();
}

/// Of two releases under way in one queue only one is its phase; a shutdown carries out both after their callers have gone.
#[tokio::test]
async fn a_shutdown_carries_out_every_release_that_was_begun() {
    let server = MemoryServer::new();
    let (client, other) = (client(&server).await, client(&server).await);
    let semaphore = client.leased_semaphore("name");
    semaphore.try_set_permits(3).await.unwrap();
    let guards = [
        semaphore.acquire().await.unwrap(),
        semaphore.acquire().await.unwrap(),
        semaphore.acquire().await.unwrap(),
    ];
    server.fail(1000);
    let mut releases = guards.map(|guard| ByHand::new(guard.release()));
    for release in &mut releases {
        assert!(release.poll().is_pending(), "it is to be sent again");
    }
    server.fail(0);
    drop(releases);
    let grace = Duration::ZERO;
    client.shutdown(Shutdown::ReleaseAll { grace }).await;
    let left = other.leased_semaphore("name");
    assert_eq!(left.available_permits().await.unwrap(), 3);
}

/// The last guard may let go while another, which has left, has not been answered yet: that one has lost nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_that_leave_at_the_same_time_on_several_threads_lose_nothing() {
    let server = MemoryServer::new();
    let lock = client(&server).await.rw_lock("name");
    let mut frees = 0;
    for _ in 0..5_000 {
        let mut readers = Vec::new();
        for _ in 0..8 {
            readers.push(lock.read().await.unwrap());
        }
        let leaving = readers
            .into_iter()
            .map(|reader| tokio::spawn(reader.release()));
        for leaves in leaving.collect::<Vec<_>>() {
            let released = leaves.await.unwrap().unwrap();
            frees += usize::from(released == Released::Freed);
        }
    }
    assert_eq!(frees, 5_000);
}
