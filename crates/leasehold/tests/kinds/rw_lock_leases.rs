//! The leases of readers and of the writer, side by side: none shortens another, and each is renewed for itself.

use std::time::{Duration, Instant};

use crate::common::{World, servers, soon, wait_until_idle};
use leasehold::{Client, Error, Owner, Released};
use leasehold_testkit::{Proxy, Way};

const MS: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_millis(900);

/// A client whose waiters look by themselves long after the test is over: the end of a lease wakes them.
async fn patient(world: &World) -> Client {
    let builder = world.builder().poll_every(60_000 * MS);
    builder.connect().await.unwrap()
}

#[tokio::test]
async fn a_writer_enters_when_the_longest_of_the_readers_leases_ends() {
    for world in World::all() {
        let clients = [patient(&world).await, patient(&world).await];
        let begun = Instant::now();
        for (client, lease) in clients.iter().zip([LEASE, LEASE / 3]) {
            let lock = client.rw_lock("name").fixed_lease(lease);
            lock.read().await.unwrap().detach(); // as if its process had died
        }
        let writer = patient(&world).await;
        let guard = soon("its turn", writer.rw_lock("name").write()).await;
        let waited = begun.elapsed();
        assert!(waited + 10 * MS >= LEASE, "{}: {waited:?}", world.name());
        assert_eq!(guard.unwrap().release().await.unwrap(), Released::Freed);
        wait_until_idle(&writer).await;
    }
}

#[tokio::test]
async fn readers_of_two_clients_enter_together_when_a_writers_lease_ends() {
    for world in World::all() {
        let client = patient(&world).await;
        let lock = client.rw_lock("name").fixed_lease(LEASE);
        lock.write().await.unwrap().detach();
        let clients = [patient(&world).await, patient(&world).await];
        let readers = clients.iter().map(|client| client.rw_lock("name").read());
        let both = soon("their turn", futures_util::future::join_all(readers)).await;
        for guard in &both {
            assert!(guard.as_ref().unwrap().is_valid(), "{}", world.name());
        }
        for guard in both {
            guard.unwrap().release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_writer_that_enters_again_with_a_shorter_lease_keeps_the_longer() {
    for world in World::all() {
        let client = patient(&world).await;
        let lock = client.rw_lock("name").owned_by(&Owner::new());
        let long = Duration::from_secs(20);
        let outer = lock.clone().fixed_lease(long).write().await.unwrap();
        let inner = lock.clone().fixed_lease(LEASE).write().await.unwrap();
        for guard in [&outer, &inner] {
            assert!(guard.remaining() > long / 2, "{}", world.name());
            assert!(guard.verify().await.unwrap() > long / 2, "{}", world.name());
        }
        let left = inner.release().await.unwrap();
        assert_eq!(left, Released::StillHeld { holds: 1 });
        assert!(outer.verify().await.unwrap() > long / 2, "{}", world.name());
        assert_eq!(outer.release().await.unwrap(), Released::Freed);
    }
}

/// W6: Redisson's write lock is not renewed any more when a read under it ends.
#[tokio::test]
async fn a_writer_is_renewed_when_a_read_under_it_has_ended_and_the_read_when_the_writer_has() {
    let worlds = World::all().into_iter().map(|world| async move {
        let (client, other) = (patient(&world).await, patient(&world).await);
        let rival = other.rw_lock("name");
        let write = client.rw_lock("name").lease(LEASE).write().await.unwrap();
        let read = write.read().unwrap();
        tokio::time::sleep(3 * LEASE / 2).await;
        assert!(write.is_valid() && read.is_valid(), "{}", world.name());
        read.release().await.unwrap();
        tokio::time::sleep(3 * LEASE / 2).await;
        write.verify().await.unwrap();
        assert!(rival.try_read().await.unwrap().is_none());
        let read = write.read().unwrap();
        write.release().await.unwrap();
        tokio::time::sleep(3 * LEASE / 2).await;
        read.verify().await.unwrap();
        assert!(rival.try_write().await.unwrap().is_none());
        read.release().await.unwrap();
        let next = soon("its turn", rival.write()).await.unwrap();
        next.release().await.unwrap();
    });
    futures_util::future::join_all(worlds).await;
}

/// A JVM that reads beside ours may set its lease to end so long after any moment that follows its last request.
const WATCHDOG: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_reader_relies_on_no_more_than_redissons_watchdog_and_renews_in_time_for_it() {
    let worlds = World::all().into_iter().map(|world| async move {
        let name = world.name();
        let builder = world.builder().redisson_watchdog(WATCHDOG);
        let client = builder.connect().await.unwrap();
        let long = client.rw_lock("long").lease(10 * WATCHDOG);
        let reads = long.read().await.unwrap();
        assert!(reads.remaining() <= WATCHDOG, "{name}");
        let writes = client.rw_lock("turns").lease(10 * WATCHDOG);
        let writes = writes.write().await.unwrap();
        assert!(writes.remaining() > 9 * WATCHDOG, "{name}");
        let turned = writes.downgrade().await.unwrap();
        assert!(turned.remaining() <= WATCHDOG, "{name}");

        let fixed = client.rw_lock("fixed").fixed_lease(10 * WATCHDOG);
        let invalid = |error| matches!(error, Error::Invalid(_));
        assert!(invalid(fixed.read().await.unwrap_err()), "{name}");
        let ends = fixed.write().await.unwrap().downgrade().await.unwrap();
        assert!(ends.remaining() <= WATCHDOG, "{name}");
        let short = client.rw_lock("short").fixed_lease(WATCHDOG);
        let short = short.read().await.unwrap();
        let extended = short.extend(10 * WATCHDOG).await;
        assert!(invalid(extended.unwrap_err()), "{name}");
        short.extend(WATCHDOG).await.unwrap();

        tokio::time::sleep(WATCHDOG * 3 / 2).await;
        for guard in [&reads, &turned] {
            let left = guard.verify().await.unwrap();
            assert!(left <= WATCHDOG && guard.is_valid(), "{name}: {left:?}");
        }
        for guard in [&ends, &short] {
            assert!(!guard.is_valid(), "{name}");
        }
    });
    futures_util::future::join_all(worlds).await;
}

#[tokio::test]
async fn an_answer_to_a_writer_is_believed_for_no_longer_by_the_reader_that_it_is_then() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let builder = Client::builder().url(proxy.url());
        let client = builder.redisson_watchdog(WATCHDOG).connect().await.unwrap();
        let writes = client.rw_lock("name").fixed_lease(WATCHDOG).write();
        let writes = writes.await.unwrap();
        let reads = writes.read().unwrap();
        proxy.stall(Some(Way::ToClient));
        let extended = reads.extend(10 * WATCHDOG);
        let turns = async {
            drop(writes); // it reads from here on
            proxy.heal();
        };
        let (extended, ()) = futures_util::future::join(extended, turns).await;
        extended.unwrap();
        assert!(reads.remaining() <= WATCHDOG, "{:?}", reads.remaining());
    }
}
