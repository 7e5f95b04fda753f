//! Beside the real Redisson, on the JVM: readers share the name with its readers, writers and readers of both exclude each
//! other, and wake each other up.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::common::{
    assert_nothing_left, int, redisson::Redisson, release, servers, soon, wait_until_idle,
};
use futures_util::future::join_all;
use leasehold::{Client, Guard, Owner, Released};
use leasehold_testkit::{Server, wait_until_async};

/// Long enough that a waiter that is not woken is noticed.
const LEASE: Duration = Duration::from_secs(30);
const WOKEN: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_secs(10);

const CHANNEL: &str = "redisson_rwlock:{name}";
const QUEUE: &str = "leasehold:{name}:rw:queue";

async fn client_of(server: &Server) -> Client {
    // So that a waiter that is woken is not taken for one that polls.
    let builder = Client::builder().url(server.url()).poll_every(LEASE);
    builder.connect().await.unwrap()
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

async fn until_queued(server: &Server, places: i64) {
    let what = format!("{places} stand in the queue");
    wait_until_async(SOON, &what, || int(server, &["LLEN", QUEUE]) == places).await;
}

#[track_caller]
fn assert_woken(freed: Instant) {
    assert!(freed.elapsed() < WOKEN, "{:?}", freed.elapsed());
}

#[tokio::test]
async fn while_redisson_writes_ours_wait_and_are_woken() {
    for server in servers() {
        let (one, two) = (client_of(&server).await, client_of(&server).await);
        let mut java = Redisson::start(&server, LEASE).await;
        assert_eq!(java.obey("write lock name").await, "locked");
        let (reader, writer) = (one.rw_lock("name"), two.rw_lock("name"));
        assert!(reader.try_read().await.unwrap().is_none());
        assert!(writer.try_write().await.unwrap().is_none());
        let waiting = tokio::spawn(reader.read());
        until_queued(&server, 1).await;
        let freed = Instant::now();
        assert_eq!(java.obey("write unlock name").await, "unlocked");
        let guard = soon("the reader", waiting).await.unwrap().unwrap();
        assert_woken(freed);
        release(guard).await;

        assert_eq!(java.obey("read lock name").await, "locked");
        let beside = reader.try_read().await.unwrap().expect("beside it");
        release(beside).await;
        assert!(writer.try_write().await.unwrap().is_none());
        let waiting = tokio::spawn(writer.write());
        until_queued(&server, 1).await;
        let freed = Instant::now();
        assert_eq!(java.obey("read unlock name").await, "unlocked");
        let guard = soon("the writer", waiting).await.unwrap().unwrap();
        assert_woken(freed);
        release(guard).await;
        for client in [&one, &two] {
            wait_until_idle(client).await;
        }
        assert_nothing_left(&server, "waiting for Redisson").await;
    }
}

#[tokio::test]
async fn while_ours_write_redisson_waits_and_is_woken() {
    for server in servers() {
        let client = client_of(&server).await;
        let lock = client.rw_lock("name");
        let mut java = Redisson::start(&server, LEASE).await;
        for half in ["read", "write"] {
            let guard = lock.write().await.unwrap();
            assert_eq!(java.obey(&format!("{half} try name 0")).await, "false");
            java.order(&format!("{half} lock name"));
            until_heard_by(&server, 1).await;
            let freed = Instant::now();
            release(guard).await;
            assert_eq!(java.answer().await, "locked");
            assert_woken(freed);
            let unlocked = java.obey(&format!("{half} unlock name")).await;
            assert_eq!(unlocked, "unlocked");
        }
        let guard = lock.read().await.unwrap();
        assert_eq!(java.obey("read try name 0").await, "true");
        assert_eq!(java.obey("read unlock name").await, "unlocked");
        assert_eq!(java.obey("write try name 0").await, "false");
        java.order("write lock name");
        until_heard_by(&server, 1).await;
        let freed = Instant::now();
        release(guard).await;
        assert_eq!(java.answer().await, "locked");
        assert_woken(freed);
        assert_eq!(java.obey("write unlock name").await, "unlocked");
        assert_nothing_left(&server, "Redisson waiting").await;
    }
}

/// The first to leave does not free the others, and a writer of either side gets in after the last.
#[tokio::test]
async fn readers_of_both_share_the_name_until_the_last_has_left() {
    for server in servers() {
        let clients = [client_of(&server).await, client_of(&server).await];
        let writes = client_of(&server).await;
        let mut java = [
            Redisson::start(&server, LEASE).await,
            Redisson::start(&server, LEASE).await,
        ];
        for java_is_last in [false, true] {
            for writer_is_java in [false, true] {
                let mut guards = Vec::new();
                for client in &clients {
                    guards.push(client.rw_lock("name").read().await.unwrap());
                }
                assert_eq!(java[0].obey("read lock name").await, "locked");
                let waiting = if writer_is_java {
                    java[1].order("write lock name");
                    until_heard_by(&server, 1).await;
                    None
                } else {
                    let waiting = tokio::spawn(writes.rw_lock("name").write());
                    until_queued(&server, 1).await;
                    Some(waiting)
                };
                let freed;
                let last = guards.pop().unwrap();
                for guard in guards {
                    release(guard).await;
                    assert_eq!(int(&server, &["HLEN", "name"]), 3, "two read on");
                }
                if java_is_last {
                    release(last).await;
                    assert_eq!(int(&server, &["HLEN", "name"]), 2, "Redisson reads on");
                    freed = Instant::now();
                    assert_eq!(java[0].obey("read unlock name").await, "unlocked");
                } else {
                    assert_eq!(java[0].obey("read unlock name").await, "unlocked");
                    assert_eq!(int(&server, &["HLEN", "name"]), 2, "ours reads on");
                    last.verify().await.unwrap();
                    freed = Instant::now();
                    release(last).await;
                }
                if let Some(waiting) = waiting {
                    let guard = soon("the writer", waiting).await.unwrap().unwrap();
                    assert_woken(freed);
                    assert_eq!(java[0].obey("read try name 0").await, "false");
                    release(guard).await;
                } else {
                    assert_eq!(java[1].answer().await, "locked");
                    assert_woken(freed);
                    let refused = clients[0].rw_lock("name").try_read().await;
                    assert!(refused.unwrap().is_none());
                    assert_eq!(java[1].obey("write unlock name").await, "unlocked");
                }
                wait_until_idle(&writes).await;
            }
        }
        assert_nothing_left(&server, "readers of both").await;
    }
}

/// Redisson's watchdog renews the hash for its own lease only, and the keys of its own readers.
#[tokio::test]
async fn readers_of_both_renew_their_leases_beside_each_other() {
    const SHORT: Duration = Duration::from_secs(2);
    for server in servers() {
        let client = client_of(&server).await;
        let mut java = Redisson::start(&server, SHORT).await;
        let lock = client.rw_lock("name").lease(SHORT);
        let guard = lock.read().await.unwrap();
        assert_eq!(java.obey("read lock name").await, "locked");
        tokio::time::sleep(2 * SHORT).await; // both are renewed, the time itself is what is tested
        guard.verify().await.unwrap();
        assert_eq!(int(&server, &["HLEN", "name"]), 3);
        // The JVM dies; ours reads on, and a writer gets in when it leaves: after the dead one's lease at the latest.
        java.kill();
        let killed = Instant::now();
        let writer = client_of(&server).await;
        let waiting = tokio::spawn(writer.rw_lock("name").write());
        until_queued(&server, 1).await;
        tokio::time::sleep(SHORT / 2).await; // within the dead one's lease
        guard.verify().await.unwrap();
        release(guard).await;
        release(soon("the writer", waiting).await.unwrap().unwrap()).await;
        let late = killed.elapsed();
        assert!(late < SHORT + Duration::from_millis(700), "{late:?}");
        for client in [&client, &writer] {
            wait_until_idle(client).await;
        }
    }
}

#[tokio::test]
async fn a_downgrade_wakes_redissons_readers_and_the_last_reader_its_writers() {
    for server in servers() {
        let client = client_of(&server).await;
        let lock = client.rw_lock("name");
        let mut java = [
            Redisson::start(&server, LEASE).await,
            Redisson::start(&server, LEASE).await,
        ];
        let writes = lock.write().await.unwrap();
        for half in ["read", "write"] {
            assert_eq!(java[0].obey(&format!("{half} try name 0")).await, "false");
        }
        // Redisson's readers that wait are woken by a downgrade, its writers by the last reader.
        java[0].order("read lock name");
        java[1].order("write lock name");
        until_heard_by(&server, 2).await;
        let freed = Instant::now();
        let reads = writes.downgrade().await.unwrap();
        assert_eq!(java[0].answer().await, "locked");
        assert_woken(freed);
        assert_eq!(int(&server, &["HLEN", "name"]), 3, "both read");
        let freed = Instant::now();
        reads.release().await.unwrap();
        assert_eq!(java[0].obey("read unlock name").await, "unlocked");
        assert_eq!(java[1].answer().await, "locked");
        assert_woken(freed);
        assert_eq!(java[1].obey("write unlock name").await, "unlocked");
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "downgrades beside Redisson").await;
    }
}

/// A thread of Redisson has under one lease what a task of ours has in one hold: it reads under its write lock, and reads on.
#[tokio::test]
async fn a_downgraded_writer_of_either_side_lets_the_readers_of_the_other_in() {
    for server in servers() {
        let client = client_of(&server).await;
        let lock = client.rw_lock("name");
        let mut java = Redisson::start(&server, LEASE).await;
        assert_eq!(java.obey("write lock name").await, "locked");
        assert_eq!(java.obey("read lock name").await, "locked");
        assert!(lock.try_read().await.unwrap().is_none());
        assert_eq!(java.obey("write unlock name").await, "unlocked");
        release_beside(lock.try_read().await.unwrap().expect("beside it")).await;
        assert!(lock.try_write().await.unwrap().is_none());
        assert_eq!(java.obey("read unlock name").await, "unlocked");

        let writes = lock.write().await.unwrap();
        let reads = writes.read().unwrap();
        assert_eq!(java.obey("read try name 0").await, "false");
        drop(writes);
        wait_until_async(SOON, "it reads only", || {
            int(&server, &["HEXISTS", "name", &reads.owner()]) == 1
        })
        .await;
        assert_eq!(java.obey("read try name 0").await, "true");
        assert_eq!(java.obey("write try name 0").await, "false");
        assert_eq!(reads.release().await.unwrap(), Released::Freed);
        assert_eq!(java.obey("read unlock name").await, "unlocked");
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "downgrades beside Redisson").await;
    }
}

/// Redisson asks the server for one more field, as a thread of its own has that reads under its write lock.
#[tokio::test]
async fn redisson_sees_that_a_writer_of_ours_reads_as_well() {
    for server in servers() {
        let client = client_of(&server).await;
        let mut java = Redisson::start(&server, LEASE).await;
        assert_eq!(java.obey("write lock name").await, "locked");
        assert_eq!(java.obey("read locked name").await, "false");
        assert_eq!(java.obey("read lock name").await, "locked");
        assert_eq!(java.obey("read locked name").await, "true");
        assert_eq!(java.obey("read unlock name").await, "unlocked");
        assert_eq!(java.obey("write unlock name").await, "unlocked");

        let lock = client.rw_lock("name").owned_by(&Owner::new());
        let writes = lock.write().await.unwrap();
        assert_eq!(java.obey("read locked name").await, "false");
        let reads = lock.read().await.unwrap();
        assert_eq!(java.obey("read locked name").await, "true");
        assert_eq!(java.obey("write locked name").await, "true");
        assert_eq!(java.obey("read try name 0").await, "false");
        reads.release().await.unwrap();
        wait_until_async(SOON, "it only writes", || {
            int(&server, &["HLEN", "name"]) == 2
        })
        .await;
        assert_eq!(java.obey("read locked name").await, "false");
        // It reads on when it has written; and nothing is left of either.
        let reads = lock.read().await.unwrap();
        writes.release().await.unwrap();
        wait_until_async(SOON, "it reads only", || {
            int(
                &server,
                &["HEXISTS", "name", &format!("{}:write", reads.owner())],
            ) == 0
        })
        .await;
        assert_eq!(java.obey("read locked name").await, "true");
        assert_eq!(java.obey("write locked name").await, "false");
        assert_eq!(reads.release().await.unwrap(), Released::Freed);
        let writes = lock.write().await.unwrap();
        drop((lock.read().await.unwrap(), writes));
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "a writer that reads").await;
    }
}

async fn release_beside<K>(guard: Guard<K>) {
    guard.release().await.unwrap();
}

/// Adds one to the number in the file, as Redisson's threads do. Returns how long the longest wait was.
async fn count(client: Client, file: PathBuf, times: usize) -> Duration {
    let lock = client.rw_lock("name");
    let mut longest = Duration::ZERO;
    for _ in 0..times {
        let asked = Instant::now();
        let guard = lock.write().await.unwrap();
        longest = longest.max(asked.elapsed());
        let number: u64 = std::fs::read_to_string(&file).unwrap().parse().unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await; // the window in which an update would be lost
        std::fs::write(&file, (number + 1).to_string()).unwrap();
        release(guard).await;
    }
    longest
}

/// Reads the number twice: it stays as it is meanwhile.
async fn look(client: Client, file: PathBuf, times: usize) -> Duration {
    let lock = client.rw_lock("name");
    let mut longest = Duration::ZERO;
    for _ in 0..times {
        let asked = Instant::now();
        let guard = lock.read().await.unwrap();
        longest = longest.max(asked.elapsed());
        let number = std::fs::read_to_string(&file).unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(std::fs::read_to_string(&file).unwrap(), number);
        release(guard).await;
    }
    longest
}

async fn nothing_is_lost(server: &Server, file: &Path) {
    const THREADS: usize = 3;
    const TIMES: usize = 40;
    let mut clients = Vec::new();
    for _ in 0..4 * THREADS {
        clients.push(client_of(server).await);
    }
    let mut java = [
        Redisson::start(server, LEASE).await,
        Redisson::start(server, LEASE).await,
    ];
    std::fs::write(file, "0").unwrap();
    for jvm in &mut java {
        let file = file.display();
        jvm.order(&format!("write count name {file} {THREADS} {TIMES}"));
    }
    let (writers, readers) = clients.split_at(2 * THREADS);
    let writers = writers.iter().cloned();
    let writers = writers.map(|client| tokio::spawn(count(client, file.to_owned(), TIMES)));
    let readers = readers.iter().cloned();
    let readers = readers.map(|client| tokio::spawn(look(client, file.to_owned(), TIMES)));
    let longest = join_all(writers.chain(readers)).await;
    for jvm in &mut java {
        assert_eq!(jvm.answer().await, "counted");
    }
    let counted = std::fs::read_to_string(file).unwrap();
    assert_eq!(counted, (4 * THREADS * TIMES).to_string());
    // A waiter that was not woken would wait for a lease, or for the poll interval.
    for longest in longest {
        let longest = longest.unwrap();
        assert!(longest < SOON, "somebody waited {longest:?}");
    }
    for client in &clients {
        wait_until_idle(client).await;
    }
    assert_nothing_left(server, "counting beside Redisson").await;
}

#[tokio::test]
async fn no_update_is_lost_and_no_reader_sees_one_happen() {
    for server in servers() {
        let file = server.dir().join("number");
        nothing_is_lost(&server, &file).await;
    }
}
