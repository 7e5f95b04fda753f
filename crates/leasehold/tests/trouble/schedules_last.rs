//! Findings of an adversary's last programs: answers that were not true, a waiter that was made deaf, a shutdown that was
//! dropped; rows 72 and 75 to 78 of docs/bugs.md. See `schedules.rs`.

use std::time::Duration;

use crate::common::{
    SOON, World, assert_lost, assert_nothing_left, release, restricted, servers, soon,
    wait_until_idle,
    wire::{Network, queue, until_queued},
};
use leasehold::{Client, Error, ErrorKind, Guard, Handoff, LostReason, Owner, Shutdown};
use leasehold_testkit::{Lane, Proxy, Server, Way, wait_until_async};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

// ---- 72: a release that found the name with another ----

/// A copy of the acquisition may have been under way, but none of a release: it was another that took the name away.
#[tokio::test]
async fn a_release_is_told_that_another_had_the_name_also_after_a_lost_reply() {
    for world in World::all() {
        for lost in [0, 1] {
            let case = format!("{}, lost replies: {lost}", world.name());
            let network = Network::to(&world);
            let builder = network.builder().operation_timeout(300 * MS);
            let client = builder.connect().await.unwrap();
            release(client.mutex("name").lock().await.unwrap()).await;
            wait_until_idle(&client).await;
            network.lose_replies(lost);
            let guard = soon(&case, client.mutex("name").lock()).await.unwrap();
            let other = world.client().await;
            assert!(other.force_unlock("name").await.unwrap(), "{case}");
            let second = other.mutex("name").lock().await.unwrap();
            assert!(guard.is_valid(), "{case}: it has not been told");
            assert_lost(guard.release().await, LostReason::Replaced);
            second.verify().await.expect("its own hold");
            release(second).await;
            wait_until_idle(&client).await;
        }
    }
}

// ---- 75: a refusal that comes late ----

/// How many commands the server has refused a user.
fn refusals(server: &Server) -> i64 {
    let log: Vec<redis::Value> = redis::from_redis_value(server.cli(&["ACL", "LOG"])).unwrap();
    let count = |entry: &redis::Value| match entry {
        redis::Value::Array(entry) => match entry.get(1) {
            Some(redis::Value::Int(count)) => *count,
            other => panic!("{other:?} is no count"),
        },
        other => panic!("{other:?} is no entry"),
    };
    log.iter().map(count).sum()
}

/// After a gap a waiter is refused; before it hears that, it has left, and another has come that is not refused.
#[tokio::test]
async fn a_refusal_that_is_heard_late_does_not_make_the_next_waiter_deaf() {
    for server in servers() {
        let case = server.flavor().to_string();
        let proxy = Proxy::start(server.addr());
        let client = restricted(&server, &proxy, &["&*", "+@all"]).await;
        let holder = Client::connect(&server.url()).await.unwrap();
        let (guard, elsewhere) = (
            holder.mutex("name").lock().await.unwrap(),
            holder.mutex("other").lock().await.unwrap(),
        );
        let first = tokio::spawn(client.mutex("name").lock());
        let stays = tokio::spawn(client.mutex("other").lock());
        wait_until_async(SOON, "both have a place", || {
            queue(&server, "name").len() == 1 && queue(&server, "other").len() == 1
        })
        .await;

        server.cli(&["ACL", "SETUSER", "worker", "-subscribe"]);
        proxy.delay(100 * MS);
        proxy.cut_lane(Lane::Subscriptions);
        // Both together, and each by itself.
        wait_until_async(SOON, "each is refused", || refusals(&server) >= 3).await;
        proxy.stall_lane(Lane::Subscriptions, Some(Way::ToClient));
        proxy.delay(Duration::ZERO);
        server.cli(&["ACL", "SETUSER", "worker", "+subscribe"]);
        first.abort();
        wait_until_async(SOON, "it has left", || queue(&server, "name").is_empty()).await;
        let subscribed = server.calls().get("subscribe").copied();
        let second = tokio::spawn(client.mutex("name").lock());
        wait_until_async(SOON, "the next subscribes", || {
            server.calls().get("subscribe").copied() > subscribed
        })
        .await;
        proxy.heal();

        until_queued(&server, 1).await;
        release(guard).await;
        release(soon(&case, second).await.unwrap().unwrap()).await;
        stays.abort();
        release(elsewhere).await;
        wait_until_idle(&client).await;
    }
}

// ---- 76: a wait that is over while nothing is known ----

type Waited = Result<Option<Guard>, Error>;

/// No holder is known to have held it to the end of the wait.
#[track_caller]
fn assert_not_known(waited: Waited, case: &str) {
    let error = waited.expect_err(case);
    assert!(error.is_unreachable(), "{case}: {error}");
}

/// The server has said no, and that is in the error.
#[track_caller]
fn assert_refused(waited: Waited, says: &str, case: &str) {
    let error = waited.expect_err(case);
    assert_eq!(error.kind(), ErrorKind::Rejected, "{case}: {error}");
    assert!(error.to_string().contains(says), "{case}: {error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_behind_a_hold_that_a_silent_server_ended_is_not_told_that_the_name_is_held() {
    for server in servers() {
        let case = server.flavor().to_string();
        let client = Client::connect(&server.url()).await.unwrap();
        let mutex = client.mutex("name").lease(SECOND);
        let guard = mutex.lock().await.unwrap();
        server.freeze();
        let waiting = tokio::spawn(mutex.try_lock_for(2500 * MS));
        soon(&case, guard.lost()).await;
        assert_not_known(waiting.await.unwrap(), &case);
        server.thaw();
        drop(guard);
        wait_until_idle(&client).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_holder_lets_go_at_a_silent_server_is_not_told_that_the_name_is_held() {
    for server in servers() {
        let case = server.flavor().to_string();
        let builder = Client::builder().url(server.url());
        let client = builder.operation_timeout(200 * MS).connect().await.unwrap();
        let mutex = client.mutex("name").handoff(Handoff::off());
        let guard = mutex.lock().await.unwrap();
        server.freeze();
        let waiting = tokio::spawn(mutex.try_lock_for(2 * SECOND));
        tokio::time::sleep(50 * MS).await; // and the release has no answer in its time
        let releasing = tokio::spawn(guard.release());
        assert_not_known(waiting.await.unwrap(), &case);
        server.thaw();
        releasing.await.unwrap().expect("it was valid to the end");
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "a silent server").await;
    }
}

/// But one whose holder let go just before the end of the wait is: an answer takes its time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_holder_lets_go_at_the_end_of_the_wait_is_told_that_the_name_is_held() {
    for server in servers() {
        let case = server.flavor().to_string();
        let client = Client::connect(&server.url()).await.unwrap();
        let mutex = client.mutex("name").handoff(Handoff::off());
        let guard = mutex.lock().await.unwrap();
        let waiting = tokio::spawn(mutex.try_lock_for(SECOND));
        tokio::time::sleep(800 * MS).await; // most of the wait
        server.freeze();
        let releasing = tokio::spawn(guard.release());
        let waited = waiting.await.unwrap();
        assert!(waited.expect(&case).is_none(), "{case}");
        server.thaw();
        releasing.await.unwrap().expect("it was valid to the end");
        wait_until_idle(&client).await;
    }
}

/// Each answer is "granted", too late for the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_lease_is_too_short_for_the_network_is_not_told_that_the_name_is_held() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = Client::connect(&proxy.url()).await.unwrap();
        release(client.mutex("name").lock().await.unwrap()).await;
        proxy.delay(40 * MS);
        let mutex = client.mutex("name").lease(60 * MS);
        let first = tokio::spawn(mutex.lock());
        wait_until_async(SOON, "it asks", || client.footprint().queues == 1).await;
        for wait in [100, 150, 200, 230] {
            let case = format!("{}, {wait} ms", server.flavor());
            let waited = mutex.try_lock_for(wait * MS).await;
            assert!(waited.is_err(), "{case}: {waited:?}");
        }
        drop(first.await);
        proxy.heal();
        wait_until_idle(&client).await;
    }
}

/// Its owner holds the name, and the server has not said that it counts one more entry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_owner_is_inside_is_not_told_that_the_name_is_held() {
    for server in servers() {
        let case = server.flavor().to_string();
        let proxy = Proxy::start(server.addr());
        let client = Client::connect(&proxy.url()).await.unwrap();
        release(client.mutex("name").lock().await.unwrap()).await;
        let mutex = client.mutex("name").owned_by(&Owner::new());
        proxy.delay(60 * MS);
        let first = tokio::spawn(mutex.lock());
        tokio::time::sleep(30 * MS).await; // its request is on its way
        let waiting = tokio::spawn(mutex.try_lock_for(600 * MS));
        let guard = soon(&case, first).await.unwrap().unwrap();
        proxy.stall(Some(Way::ToClient));
        assert_not_known(waiting.await.unwrap(), &case);
        assert!(guard.is_valid(), "{case}");
        proxy.heal();
        drop(guard);
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "an owner that waited").await;
    }
}

/// The server takes no writes, and says so each time: to a release or an attempt that others wait for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_behind_a_request_that_a_replica_refuses_is_told_what_the_server_says() {
    for server in servers() {
        let case = server.flavor().to_string();
        let client = Client::connect(&server.url()).await.unwrap();
        let mutex = client.mutex("name");
        let guard = mutex.lock().await.unwrap();
        server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
        let releasing = tokio::spawn(guard.release());
        tokio::time::sleep(100 * MS).await; // some refusals
        assert_refused(mutex.try_lock_for(300 * MS).await, "is a replica", &case);
        server.cli(&["REPLICAOF", "NO", "ONE"]);
        releasing.await.unwrap().expect("it was valid to the end");
        wait_until_idle(&client).await;

        server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
        let trying = tokio::spawn(mutex.try_lock());
        tokio::time::sleep(100 * MS).await; // some refusals
        assert_refused(mutex.try_lock_for(300 * MS).await, "is a replica", &case);
        server.cli(&["REPLICAOF", "NO", "ONE"]);
        drop(trying.await);
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "a replica").await;
    }
}

// ---- 77: values that other clients have written under the name ----

/// A field of any writer: the name is held, and `status` says so until it is freed.
#[tokio::test]
async fn a_hash_that_no_client_of_ours_could_have_written_is_held() {
    let bytes: &[u8] = &[0xff, 0xfe, 1];
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        for (field, count) in [(bytes, "1"), (b"who", "many"), (bytes, "-1")] {
            let case = format!("{}, {field:?}: {count}", server.flavor());
            let mut connection = server.connection();
            let mut write = redis::cmd("HSET");
            write.arg("name").arg(field).arg(count);
            write.exec(&mut connection).unwrap();
            let tried = client.mutex("name").try_lock().await.unwrap();
            assert!(tried.is_none(), "{case}");
            let status = client.status("name").await.unwrap();
            let holder = status.holder().unwrap_or_else(|| panic!("{case}: free"));
            assert_eq!(holder.owner, String::from_utf8_lossy(field), "{case}");
            let held = client.force_unlock("name").await;
            assert!(held.unwrap_or_else(|error| panic!("{case}: {error}")));
            assert!(!client.force_unlock("name").await.unwrap(), "{case}");
        }
    }
}

/// The same for readers and writers, and for permits.
#[tokio::test]
async fn holders_with_odd_names_are_seen_whatever_the_kind() {
    let bytes: &[u8] = &[0xff, 0xfe, 1];
    for server in servers() {
        let case = server.flavor().to_string();
        let client = Client::connect(&server.url()).await.unwrap();
        let mut connection = server.connection();
        let mut write = redis::cmd("HSET");
        write.arg("book").arg("mode").arg("write");
        let writer = [bytes, b":write"].concat();
        write.arg(&writer).arg(1).exec(&mut connection).unwrap();
        let book = client.rw_lock("book");
        let status = book.status().await.unwrap();
        let holder = status.holder().expect("it is held");
        assert_eq!(holder.owner, String::from_utf8_lossy(&writer), "{case}");
        assert!(book.force_unlock().await.unwrap(), "{case}");
        assert!(!book.force_unlock().await.unwrap(), "{case}");

        let pool = client.leased_semaphore("pool");
        pool.try_set_permits(1).await.unwrap();
        let mut write = redis::cmd("ZADD");
        write.arg("{pool}:timeout").arg("9223372036854").arg(bytes);
        write.exec(&mut connection).unwrap();
        let mut take = redis::cmd("DECR");
        take.arg("pool").exec(&mut connection).unwrap();
        let status = pool.status().await.unwrap();
        let holder = status.holder().expect("a permit is out");
        assert_eq!(holder.owner, "fffe01", "{case}: in the digits of an id");
    }
}

// ---- 78: a shutdown that is dropped ----

/// As its documentation says: what is held ends here, and expires there.
#[tokio::test]
async fn a_shutdown_that_is_dropped_leaves_what_is_held_to_expire() {
    const LEASE: Duration = Duration::from_millis(500);
    for world in World::all() {
        let case = world.name();
        let client = world.builder().lease(LEASE).connect().await.unwrap();
        let guard = client.mutex("name").lock().await.unwrap();
        let grace = Shutdown::ReleaseAll { grace: SOON };
        let shutdown = tokio::time::timeout(50 * MS, client.shutdown(grace));
        assert!(shutdown.await.is_err(), "{case}: nobody has let go");
        let reason = soon(&case, guard.lost()).await;
        assert_eq!(reason, LostReason::ClientShutdown, "{case}");
        assert_eq!(world.held(), ["name"], "{case}: nobody was told");
        wait_until_async(LEASE * 2, "its end", || world.held().is_empty()).await;
        let error = client.mutex("name").lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{case}: {error}");
        drop(guard);
        wait_until_idle(&client).await;
    }
}
