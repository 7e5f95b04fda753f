//! Refusals of a server in the middle of a step: rows 58, 59 and 71 of docs/bugs.md, found by adversaries'
//! programs. Nothing may be left without an end, and no name may have two holders, nor one that knows nothing of it.

use std::time::Duration;

use crate::common::{
    SOON, assert_nothing_left, channels, int, keys,
    kinds::{AnyGuard, Row},
    late::unless_late_async,
    owners, release, restricted, servers, soon, wait_until_idle,
    wire::until_queued,
};
use leasehold::{Client, ErrorKind, Guard};
use leasehold_testkit::{Proxy, Server, wait_until_async};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// The user of `restricted` loses the right to a command.
fn refuse_from_now(server: &Server, refused: &str) {
    server.cli(&["ACL", "SETUSER", "worker", refused]);
}

/// The holder is alone in the hash of its name, and does not rely on more than the server gives it.
fn assert_alone(server: &Server, guard: &Guard, case: &str) {
    let believed = guard.remaining().as_millis();
    let ttl = int(server, &["PTTL", "name"]);
    assert_eq!(owners(server, "name"), [(guard.owner(), 1)], "{case}");
    assert!(guard.is_valid(), "{case}");
    assert!(
        i64::try_from(believed).unwrap() <= ttl,
        "{case}: believed for {believed} ms, but it is given for {ttl} ms"
    );
}

/// Commands that a hand-over may be refused.
const REFUSED: [&str; 6] = ["-lpop", "-hdel", "-hset", "-pexpire", "-publish", "-del"];

#[tokio::test]
async fn a_release_that_is_refused_a_command_does_not_make_two_holders() {
    for server in servers() {
        for refused in REFUSED {
            let case = format!("{}, {refused}", server.flavor());
            // Its lease is not to end before it is given back.
            let round = async || is_released_without(&server, refused, &case).await;
            unless_late_async(&case, SECOND, round).await;
        }
    }
}

async fn is_released_without(server: &Server, refused: &str, case: &str) -> Result<(), String> {
    let proxy = Proxy::start(server.addr());
    let holder = restricted(server, &proxy, &["&*", "+@all"]).await;
    let waiter = Client::connect(&server.url()).await.unwrap();
    let mutex = holder.mutex("name").fixed_lease(SECOND);
    let guard = mutex.lock().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex("name").lock());
    until_queued(server, 1).await;
    refuse_from_now(server, refused);
    // Freed, or left to expire.
    let released = guard.release().await;
    let guard = soon(case, waiting).await.unwrap().unwrap();
    assert_alone(server, &guard, case);
    release(guard).await;
    for client in [&holder, &waiter] {
        wait_until_idle(client).await;
    }
    assert_nothing_left(server, case).await;
    released.map(drop).map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_lock_that_is_refused_a_command_leaves_nothing_behind() {
    for server in servers() {
        for refused in ["-hset", "-pexpire"] {
            let case = format!("{}, {refused}", server.flavor());
            let proxy = Proxy::start(server.addr());
            let client = restricted(&server, &proxy, &["&*", "+@all", refused]).await;
            let error = client.mutex("name").lock().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected, "{case}: {error}");
            wait_until_idle(&client).await;
            assert_eq!(keys(&server), [""; 0], "{case}");
            // A place without an end is none.
            let holder = Client::connect(&server.url()).await.unwrap();
            let guard = holder.mutex("name").lock().await.unwrap();
            let taken = client.mutex("name").try_lock_for(500 * MS).await;
            assert!(taken.is_err() || refused == "-hset", "{case}");
            wait_until_idle(&client).await;
            assert_eq!(keys(&server), ["name"], "{case}");
            release(guard).await;
        }
    }
}

/// Its request finds the name free, and its place by a command that it may not use.
#[tokio::test]
async fn a_waiter_that_is_refused_a_command_does_not_hold_the_name_for_no_one() {
    for server in servers() {
        for refused in ["-lrange", "-lrem", "-pexpire"] {
            let case = format!("{}, {refused}", server.flavor());
            let proxy = Proxy::start(server.addr());
            let client = restricted(&server, &proxy, &["&*", "+@all"]).await;
            let holder = Client::connect(&server.url()).await.unwrap();
            let mutex = holder.mutex("name").fixed_lease(SECOND);
            let guard = mutex.lock().await.unwrap();
            let waiting = tokio::spawn(client.mutex("name").lock());
            until_queued(&server, 1).await;
            refuse_from_now(&server, refused);
            // It ends by itself, and the waiter asks.
            guard.detach();
            let error = soon(&case, waiting).await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected, "{case}: {error}");
            wait_until_idle(&client).await;
            // If it asked before the end of what was detached, that is still there; held for no one it would stay.
            let is_free = || int(&server, &["EXISTS", "name"]) == 0;
            wait_until_async(SOON, &format!("{case}: held for no one"), is_free).await;
            server.cli(&["FLUSHALL"]); // its place, which it may not take back
        }
    }
}

// ---- 71: what a server refuses ----

#[tokio::test]
async fn a_force_unlock_takes_the_name_from_any_number_of_owners() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        let waiter = Client::connect(&server.url()).await.unwrap();
        let owners: Vec<String> = (0..9000).map(|n| format!("someone:{n}")).collect();
        let mut command = vec!["HSET", "name"];
        command.extend(owners.iter().flat_map(|owner| [owner.as_str(), "1"]));
        server.cli(&command);
        server.cli(&["PEXPIRE", "name", "60000"]);
        let waiting = tokio::spawn(waiter.mutex("name").lock());
        until_queued(&server, 1).await;
        assert!(client.force_unlock("name").await.unwrap());
        release(soon("it is next", waiting).await.unwrap().unwrap()).await;
        wait_until_idle(&waiter).await;
        assert_nothing_left(&server, "many owners").await;
    }
}

/// It gives the name to a waiter that it cannot make the holder, and then frees it for all without telling them.
#[tokio::test]
async fn a_force_unlock_that_has_taken_the_name_does_not_say_that_it_failed() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let forces = restricted(&server, &proxy, &["&*", "+@all"]).await;
        let holder = Client::connect(&server.url()).await.unwrap();
        let waiter = Client::connect(&server.url()).await.unwrap();
        let guard = holder.mutex("name").lock().await.unwrap();
        let waiting = tokio::spawn(waiter.mutex("name").lock());
        until_queued(&server, 1).await;
        for refused in ["-hexists", "-publish"] {
            refuse_from_now(&server, refused);
        }
        assert!(
            forces.force_unlock("name").await.unwrap(),
            "{}",
            server.flavor()
        );
        drop(guard);
        server.cli(&["PUBLISH", "redisson_lock__channel:{name}", "0"]);
        release(soon("its turn", waiting).await.unwrap().unwrap()).await;
    }
}

/// A client holds a mutex and a permit, and loses the right to the keys of the permit: the mutex is renewed on.
#[tokio::test]
async fn a_kind_that_may_not_be_renewed_costs_no_other_kind_its_lease() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = restricted(&server, &proxy, &["&*", "+@all"]).await;
        let lease = 600 * MS;
        client
            .leased_semaphore("pool")
            .try_set_permits(3)
            .await
            .unwrap();
        let mut guards = Vec::new();
        let mut permits = Vec::new();
        // Taken in turns, so that they are renewed together.
        for number in 0..3 {
            let mutex = client.mutex(format!("name:{number}")).lease(lease);
            guards.push(mutex.lock().await.unwrap());
            let pool = client.leased_semaphore("pool").lease(lease);
            permits.push(pool.acquire().await.unwrap());
        }
        server.cli(&[
            "ACL",
            "SETUSER",
            "worker",
            "resetkeys",
            "~name*",
            "~leasehold:{name*",
        ]);
        for permit in &permits {
            soon("a permit is lost", permit.lost()).await;
        }
        tokio::time::sleep(2 * lease).await; // renewed, or they would be lost: the time itself is what is tested
        let valid = guards.iter().filter(|guard| guard.is_valid()).count();
        assert_eq!(valid, guards.len(), "{}", server.flavor());
    }
}

// ---- what a server does not count ----

/// A server that copies what `server` has, and all messages that are published there.
async fn replica_of(server: &Server) -> Server {
    server.cli(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    let port = server.port().to_string();
    let replica = Server::start_with(server.flavor(), &["--replicaof", "127.0.0.1", &port]);
    wait_until_async(SOON, "the replica follows", || {
        let told = replica.try_cli(&["INFO", "replication"]);
        told.is_ok_and(|told| format!("{told:?}").contains("master_link_status:up"))
    })
    .await;
    replica
}

/// Puts a place of another client's in front of the waiter's, in the row's queue on the server.
fn stand_in_front(server: &Server, row: Row, here: &str, elsewhere: &str) {
    if row == Row::Fair {
        let owner = format!("{elsewhere}:17");
        server.cli(&["LPUSH", "redisson_lock_queue:{name}", &owner]);
        let far = "99999999999999";
        server.cli(&["ZADD", "redisson_lock_timeout:{name}", far, &owner]);
        let places = "leasehold:{name}:fair:places";
        server.cli(&["HSET", places, &owner, "30000 1 0"]);
        return;
    }
    let queue = keys(server).into_iter().find(|key| key.ends_with("queue"));
    let queue = queue.expect("the waiter stands in it");
    let places: Vec<String> =
        redis::from_redis_value(server.cli(&["LRANGE", &queue, "0", "-1"])).unwrap();
    let place = places[0].replace(here, elsewhere);
    server.cli(&["LPUSH", &queue, &place]);
}

/// Its client listens on a replica, as after a failover: `PUBLISH` counts no one, and the message is heard.
#[tokio::test]
async fn a_waiter_that_is_not_counted_is_given_nothing_that_the_next_is_given_too() {
    const ELSEWHERE: &str = "00000000-0000-4000-8000-000000000000";
    let rows = [
        Row::Mutex,
        Row::Fenced,
        Row::Plain,
        Row::Write,
        Row::Read,
        Row::Fair,
    ];
    for server in servers() {
        let replica = replica_of(&server).await;
        for row in rows {
            for force in [false, true] {
                let case = format!("{}, {row:?}, force {force}", server.flavor());
                server.cli(&["FLUSHALL"]);
                restricted(
                    &server,
                    &Proxy::start(server.addr()),
                    &["&*", "+@all", "-pubsub"],
                )
                .await;
                let url = server.url().replacen("://", "://worker:pw@", 1);
                let builder = || Client::builder().url(&url).fair_wait_timeout(500 * MS);
                let holder = builder().connect().await.unwrap();
                let waiter = builder().connect().await.unwrap();
                let first = match row {
                    Row::Read => Row::Write,
                    row => row,
                };
                let first = first.lock(&holder, "name");
                let held = first.lock().await.unwrap();
                let waiting = tokio::spawn(row.lock(&waiter, "name").lock());
                wait_until_async(SOON, "it is in line", || {
                    let stands = keys(&server).iter().any(|key| key.contains("queue"));
                    let hears = channels(&server).iter().any(|c| c.contains(":grant:"));
                    stands && hears
                })
                .await;
                let inbox = channels(&server)
                    .into_iter()
                    .find(|channel| channel.contains(":grant:"))
                    .expect("the waiter's");
                let here = inbox.rsplit(':').next().expect("its client");
                let inbox = inbox.replace(here, ELSEWHERE);
                stand_in_front(&server, row, here, ELSEWHERE);
                let mut listeners = replica.connection();
                listeners.set_read_timeout(Some(SOON)).unwrap();
                let mut listeners = listeners.as_pubsub();
                listeners.subscribe(&inbox).unwrap();

                if force {
                    assert!(first.force_unlock().await.unwrap(), "{case}");
                } else {
                    held.release().await.unwrap();
                }
                let guard: AnyGuard = soon(&case, waiting).await.unwrap().unwrap();
                assert!(guard.is_valid(), "{case}");
                server.cli(&["PUBLISH", &inbox, "end"]);
                loop {
                    let heard: String = listeners.get_message().unwrap().get_payload().unwrap();
                    if heard == "end" {
                        break;
                    }
                    let is_word = heard.parse::<u64>().is_ok(); // of the holder that it watches
                    assert!(is_word, "{case}: it was given the name, too");
                }
                guard.release().await.unwrap();
            }
        }
    }
}
