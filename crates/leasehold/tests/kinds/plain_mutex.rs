//! The plain mutex's own promise: its name is a string that other libraries take as well. Here `SET` and `DEL` play such a
//! library; `tests/beside/plain_peers.rs` has real ones.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::common::{
    SOON, World, assert_lost, assert_nothing_left, int, keys,
    kinds::{AnyLock, ROWS, Row},
    refused, release, servers, soon, wait_until_idle,
    wire::{Monitor, documented_rules, script_calls, send_copy},
};
use leasehold::{Client, ErrorKind, Handoff, LostReason, Owner, PlainMutex};
use leasehold_testkit::{Flavor, Server, wait_until_async};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// By then a waiter has looked a few times.
const LOOKED: Duration = Duration::from_secs(2);
const QUEUE: &str = "leasehold:{name}:plain:queue";
const FREE: &str = "leasehold:{name}:plain:free";

/// A client that looks by itself long after any test is over, unless another library holds the name.
async fn client_of(server: &Server) -> Client {
    let builder = Client::builder().url(server.url());
    builder.poll_every(60 * SECOND).connect().await.unwrap()
}

async fn until_queued(server: &Server, places: i64) {
    let what = format!("{places} stand in the queue");
    wait_until_async(SOON, &what, || int(server, &["LLEN", QUEUE]) == places).await;
}

/// The string under the name; empty if there is none.
fn holder(server: &Server) -> String {
    let value: Option<String> = redis::from_redis_value(server.cli(&["GET", "name"])).unwrap();
    value.unwrap_or_default()
}

fn set(server: &Server, token: &str, end: &[&str]) {
    server.cli(&[&["SET", "name", token, "NX"], end].concat());
    assert_eq!(holder(server), token);
}

#[tokio::test]
async fn the_name_is_a_string_that_is_the_owner_and_ends_with_the_lease() {
    for server in servers() {
        let client = client_of(&server).await;
        let lock = client.plain_mutex("name").lease(20 * SECOND);
        let guard = lock.lock().await.unwrap();
        assert_eq!(holder(&server), guard.owner());
        let left = int(&server, &["PTTL", "name"]);
        assert!((10_000..=20_000).contains(&left), "{left}");
        assert_eq!(keys(&server), ["name"], "and no other key");
        release(guard).await;
        assert_eq!(keys(&server), [""; 0]);
        wait_until_idle(&client).await;
    }
}

#[tokio::test]
async fn a_token_of_another_library_keeps_it_until_it_is_deleted_or_over() {
    for server in servers() {
        let client = client_of(&server).await;
        let lock = client.plain_mutex("name");
        // Any text, also one that looks like a number of permits; with an end and without.
        for (token, end) in [
            ("f3Q=/+token", &["PX", "60000"][..]),
            ("1", &["PX", "60000"]),
            ("ADDED:2026-11-22T10:00:00Z@host", &["PX", "60000"]),
            ("for ever", &[]),
        ] {
            set(&server, token, end);
            assert!(lock.try_lock().await.unwrap().is_none(), "{token}");
            assert!(lock.try_lock_for(200 * MS).await.unwrap().is_none());
            let status = lock.status().await.unwrap();
            let there = status.holder().expect("it is held");
            assert_eq!((&*there.owner, &*there.client), (token, ""));
            assert_eq!(there.remaining.is_some(), !end.is_empty());
            let waiting = tokio::spawn(lock.lock());
            until_queued(&server, 1).await;
            server.cli(&["DEL", "name"]);
            let freed = Instant::now();
            let guard = soon(token, waiting).await.unwrap().unwrap();
            assert!(freed.elapsed() < LOOKED, "{:?}", freed.elapsed());
            release(guard).await;
        }
        set(&server, "it ends", &["PX", "500"]);
        let begun = Instant::now();
        // Pauses that are longer do not keep it from the end of the lease.
        let patient = lock.backoff(30 * SECOND, 30 * SECOND);
        let guard = soon("the end of the lease", patient.lock()).await.unwrap();
        assert!(begun.elapsed() < LOOKED, "{:?}", begun.elapsed());
        release(guard).await;
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "tokens").await;
    }
}

/// How often clients ask within this time.
async fn asked_within(server: &Server, time: Duration) -> u64 {
    let before = script_calls(server);
    tokio::time::sleep(time).await; // the time itself is what is tested
    script_calls(server) - before
}

#[tokio::test]
async fn a_waiter_asks_after_its_pauses_beside_another_library_and_not_at_all_beside_ours() {
    for server in servers() {
        let (waiter, ours) = (client_of(&server).await, client_of(&server).await);
        set(&server, "token", &["PX", "60000"]);
        let lock = waiter.plain_mutex("name").backoff(100 * MS, 200 * MS);
        // However many tasks wait.
        let waiting: Vec<_> = (0..20).map(|_| tokio::spawn(lock.lock())).collect();
        until_queued(&server, 1).await;
        let asked = asked_within(&server, 2 * SECOND).await;
        assert!((5..=20).contains(&asked), "{asked} commands in two seconds");

        server.cli(&["DEL", "name"]);
        let mut waiting = waiting.into_iter();
        let first = soon("the first", waiting.next().unwrap()).await;
        let guard = first.unwrap().unwrap();
        let other = tokio::spawn(ours.plain_mutex("name").lock());
        until_queued(&server, 1).await;
        let asked = asked_within(&server, SECOND).await;
        assert_eq!(asked, 0, "beside a holder of ours");
        other.abort();
        for task in waiting {
            task.abort();
        }
        release(guard).await;
        for client in [&waiter, &ours] {
            wait_until_idle(client).await;
        }
        assert_nothing_left(&server, "waits").await;
    }
}

#[tokio::test]
async fn waiters_behind_another_library_hear_each_other_and_pass_the_name_on_in_order() {
    for server in servers() {
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(client_of(&server).await);
        }
        set(&server, "token", &["PX", "60000"]);
        let mut waiting = Vec::new();
        for (number, client) in clients.iter().enumerate() {
            // They look by themselves long after the test is over: so they must be told.
            let lock = client.plain_mutex("name").backoff(60 * SECOND, 60 * SECOND);
            waiting.push(tokio::spawn(lock.lock()));
            until_queued(&server, i64::try_from(number + 1).unwrap()).await;
        }
        server.cli(&["DEL", "name"]);
        server.cli(&["PUBLISH", FREE, "0"]);
        let (guard, first, mut rest) = soon("one of them", async {
            let (guard, first, rest) = futures_util::future::select_all(waiting).await;
            (guard.unwrap().unwrap(), first, rest)
        })
        .await;
        // Whoever asks gives it to the first in the queue. The others stand as they stood.
        assert_eq!(first, 0);
        rest.reverse(); // `select_all` put the last where the first was
        until_queued(&server, 2).await;
        release(guard).await;
        let guard = soon("the next in line", &mut rest[0]).await;
        let guard = guard.unwrap().unwrap();
        assert!(guard.owner().starts_with(clients[1].id()));
        release(guard).await;
        let guard = soon("the last", rest.pop().unwrap()).await;
        release(guard.unwrap().unwrap()).await;
        for client in &clients {
            wait_until_idle(client).await;
        }
        assert_nothing_left(&server, "a queue").await;
    }
}

#[tokio::test]
async fn what_another_library_takes_over_is_lost() {
    for server in servers() {
        let client = client_of(&server).await;
        let guard = client.plain_mutex("name").lock().await.unwrap();
        server.cli(&["SET", "name", "token", "PX", "60000"]);
        let error = guard.verify().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert_lost(guard.release().await, LostReason::Replaced);
        wait_until_idle(&client).await;
        assert_eq!(holder(&server), "token", "the next holder's");
        // A guard is no proof for an owner that enters again, either.
        server.cli(&["DEL", "name"]);
        let lock = client.plain_mutex("name").owned_by(&Owner::new());
        let guard = lock.lock().await.unwrap();
        server.cli(&["SET", "name", "token", "PX", "60000"]);
        let error = lock.lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        drop(guard);
        wait_until_idle(&client).await;
        assert!(client.plain_mutex("name").force_unlock().await.unwrap());
        assert!(!client.plain_mutex("name").force_unlock().await.unwrap());
    }
}

/// B4, S2: whichever request comes again, and however late.
#[tokio::test]
async fn copies_of_old_requests_change_nothing_of_the_next_holder() {
    for server in servers() {
        let mut monitor = Monitor::start(&server);
        let builder = Client::builder().url(server.url()).may_duplicate(true);
        let client = builder.connect().await.unwrap();
        let lock = client.plain_mutex("name").owned_by(&Owner::new());
        let lock = lock.fixed_lease(60 * SECOND);
        let guard = lock.lock().await.unwrap();
        let owner = guard.owner();
        guard.extend(70 * SECOND).await.unwrap();
        drop(lock.lock().await.unwrap()); // enters again
        release(guard).await;
        wait_until_idle(&client).await;
        let requests = monitor.calls(&owner);
        assert!(requests.len() >= 4, "{requests:?}");
        for request in &requests {
            send_copy(&server, request);
            assert_eq!(holder(&server), "", "it does not hold again: {request:?}");
        }
        for next in ["token", "3f0a2d4e-0000-4000-8000-000000000000:42"] {
            set(&server, next, &["PX", "30000"]);
            for request in &requests {
                send_copy(&server, request);
                let left = int(&server, &["PTTL", "name"]);
                assert_eq!(holder(&server), next, "{request:?}");
                assert!((1..=30_000).contains(&left), "{left}: {request:?}");
            }
            assert_eq!(int(&server, &["EXISTS", QUEUE]), 0, "nor a place");
            server.cli(&["DEL", "name"]);
        }
        wait_until_idle(&client).await;
    }
}

/// A release whose reply is lost, and that keeps the name for the next task of its process, finds that on its second copy.
#[tokio::test]
async fn a_repeated_release_finds_the_next_of_its_own_process() {
    for server in servers() {
        let mut monitor = Monitor::start(&server);
        let client = client_of(&server).await;
        let lock = client.plain_mutex("name").handoff(Handoff::new(1, SECOND));
        let guard = lock.lock().await.unwrap();
        let line = [(); 2].map(|()| tokio::spawn(lock.lock()));
        while lock.status().await.unwrap().waiting_here != 2 {
            tokio::task::yield_now().await;
        }
        release(guard).await; // in memory
        let [second, third] = line;
        let second = soon("the second", second).await.unwrap().unwrap();
        let owner = second.owner();
        release(second).await; // by the server
        let third = soon("the third", third).await.unwrap().unwrap();
        assert_ne!(third.owner(), owner, "Q4");
        let releases = monitor.calls(&owner);
        let kept = send_copy(&server, releases.last().expect("a release"));
        let (answer, left): (i64, i64) = redis::from_redis_value(kept).unwrap();
        assert_eq!(answer, 3, "it is kept for the next");
        assert!((1..=30_000).contains(&left), "{left}");
        assert_eq!(holder(&server), third.owner());
        release(third).await;
        wait_until_idle(&client).await;
    }
}

/// The kind as which a server sees a lock of the row.
fn kind(row: Row) -> &'static str {
    match row {
        Row::Mutex | Row::Fenced | Row::Spin | Row::Multi | Row::Fair => "mutex",
        Row::Read | Row::Write => "rw_lock",
        Row::Permit => "leased_semaphore",
        Row::Plain => "plain_mutex",
        Row::Count => "semaphore",
    }
}

/// The kind as which a lock of the row is asked for.
fn asked_as(row: Row) -> &'static str {
    match row {
        Row::Fenced => "fenced_mutex",
        Row::Fair => "fair_mutex",
        other => kind(other),
    }
}

async fn refusals(lock: &AnyLock) -> Vec<leasehold::Error> {
    let status = lock.try_status().await.err();
    let forced = match lock {
        AnyLock::Count(_) => lock.try_status().await.err(), // it has no holders to take it from
        lock => lock.force_unlock().await.err(),
    };
    let locked = soon("an answer", lock.lock()).await.err();
    let tried = lock.try_lock().await.err();
    [status, forced, locked, tried]
        .map(|refused| refused.unwrap_or_else(|| panic!("{lock:?} is not refused")))
        .into()
}

#[tokio::test]
async fn a_name_of_another_kind_is_refused_in_the_words_of_both() {
    for world in World::all() {
        let (one, other) = (world.client().await, world.client().await);
        // A number tells nothing of its kind.
        for there in ROWS.into_iter().filter(|row| row.has_lease()) {
            for asked in ROWS {
                if kind(there) == kind(asked) {
                    continue;
                }
                let name = format!("{there:?}/{asked:?}");
                there.prepare(&one, &name).await;
                let guard = there.lock(&one, &name).lock().await.unwrap();
                for error in refusals(&asked.lock(&other, &name)).await {
                    let what = format!("{name} on {}: {error}", world.name());
                    assert_eq!(error.kind(), ErrorKind::Rejected, "{what}");
                    let cause = error.to_string();
                    // A server cannot tell a fenced or a fair mutex from a mutex.
                    let held_as = match world {
                        World::Memory(_) => asked_as(there),
                        World::Server(_) => kind(there),
                    };
                    let expected = format!(
                        "the name is held as a {held_as}, and not as a {}",
                        asked_as(asked)
                    );
                    assert!(cause.contains(&expected), "{what}: {cause}");
                }
                assert!(guard.verify().await.is_ok(), "{name}: as it was");
                drop(guard);
            }
        }
    }
}

#[tokio::test]
async fn a_name_that_is_no_lock_is_refused_and_stays_as_it_is() {
    for server in servers() {
        let client = client_of(&server).await;
        server.cli(&["RPUSH", "name", "a"]);
        for error in refusals(&AnyLock::Plain(client.plain_mutex("name"))).await {
            let cause = error.to_string();
            let expected = "the name holds a list, and not a plain_mutex";
            assert!(cause.contains(expected), "{cause}");
        }
        assert_eq!(int(&server, &["LLEN", "name"]), 1);
        wait_until_idle(&client).await;
    }
}

#[tokio::test]
async fn pauses_out_of_bounds_are_refused_before_anything_is_sent() {
    let client = Client::connect("memory:").await.unwrap();
    let lock: PlainMutex = client.plain_mutex("name").backoff(3 * MS, 2 * MS);
    let error = lock.lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let said = error.to_string();
    assert!(said.contains("3ms to 2ms"), "{said}");
    let spin = client.spin_mutex("name").backoff(Duration::ZERO, MS);
    let error = spin.lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    wait_until_idle(&client).await;
}

#[tokio::test]
async fn a_user_with_the_documented_permissions_can_do_everything() {
    const LEASE: Duration = Duration::from_secs(1);
    for flavor in Flavor::available() {
        let server = Server::start(flavor);
        let rules = documented_rules();
        let mut command = vec!["ACL", "SETUSER", "worker"];
        command.extend(rules.iter().map(String::as_str));
        server.cli(&command);
        // As the documentation says; Redis 7.0 does not know it.
        let _ = server.try_cli(&["ACL", "SETUSER", "worker", "+client|setinfo"]);
        let connect = || {
            let builder = Client::builder().url(server.url());
            builder.username("worker").password("secret").connect()
        };
        let clients = Arc::new([connect().await.unwrap(), connect().await.unwrap()]);
        let [one, two] = [0, 1].map(|n: usize| clients[n].plain_mutex("order:1").lease(LEASE));
        let guard = one.lock().await.unwrap();
        tokio::time::sleep(2 * LEASE).await; // it lives only if it is renewed
        guard.verify().await.unwrap();
        guard.reenter().unwrap().release().await.unwrap();
        let waiting = tokio::spawn(two.lock());
        let queue = "leasehold:{order:1}:plain:queue";
        wait_until_async(SOON, "it waits", || int(&server, &["LLEN", queue]) == 1).await;
        release(guard).await;
        let guard = soon("its turn", waiting).await.unwrap().unwrap();
        assert!(one.try_lock_for(300 * MS).await.unwrap().is_none());
        assert!(one.force_unlock().await.unwrap());
        assert!(guard.verify().await.is_err());
        drop(guard);
        for client in clients.iter() {
            wait_until_idle(client).await;
        }
        assert_eq!(refused(&server), [], "refused by the rules");
    }
}
