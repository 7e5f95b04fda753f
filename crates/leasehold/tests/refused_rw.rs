//! Refusals of a server in the middle of a step of a read-write lock. Nothing may be left without an end, no
//! writer may hold the name beside another holder, and no guard may rely on more than the server gives.

mod common;

use std::time::Duration;

use common::{
    SOON, assert_nothing_left, int, keys, owners, restricted, servers, soon, wait_until_idle,
};
use leasehold::{Client, ErrorKind, Guard};
use leasehold_testkit::{Proxy, Server, wait_until_async};

const SECOND: Duration = Duration::from_secs(1);
const QUEUE: &str = "leasehold:{name}:rw:queue";

/// What a hand-over may be refused.
const REFUSED: [&str; 8] = [
    "-lindex", "-lrem", "-hdel", "-hset", "-set", "-pexpire", "-publish", "-del",
];

/// The user of `restricted` loses the right to a command.
fn refuse_from_now(server: &Server, refused: &str) {
    server.cli(&["ACL", "SETUSER", "worker", refused]);
}

async fn until_queued(server: &Server, places: i64) {
    let what = format!("{places} stand in the queue");
    wait_until_async(SOON, &what, || int(server, &["LLEN", QUEUE]) == places).await;
}

/// These hold the name and no others do, and they rely on no more than the server gives them.
fn assert_holders<K>(server: &Server, guards: &[&Guard<K>], mode: &str, case: &str) {
    let mut expected = Vec::new();
    for guard in guards {
        let believed = i64::try_from(guard.remaining().as_millis()).unwrap();
        let key = format!("{{name}}:{}:rwlock_timeout:1", guard.owner());
        let lease = if mode == "write" { "name" } else { &key };
        for key in ["name", lease] {
            let ttl = int(server, &["PTTL", key]);
            assert!(
                believed <= ttl,
                "{case}: believed for {believed} ms, but {key} has {ttl} ms"
            );
        }
        assert!(guard.is_valid(), "{case}");
        expected.push(guard.owner());
    }
    let mode_there: String =
        redis::from_redis_value(server.cli(&["HGET", "name", "mode"])).unwrap();
    assert_eq!(mode_there, mode, "{case}");
    let fields: Vec<String> = redis::from_redis_value(server.cli(&["HKEYS", "name"])).unwrap();
    let mut fields: Vec<String> = fields.into_iter().filter(|f| f != "mode").collect();
    fields.sort();
    expected.sort();
    assert_eq!(fields, expected, "{case}");
}

#[tokio::test]
async fn a_reader_that_is_refused_a_command_does_not_keep_the_writer_out() {
    for server in servers() {
        for refused in REFUSED {
            let case = format!("{}, {refused}", server.flavor());
            let proxy = Proxy::start(server.addr());
            let holder = restricted(&server, &proxy, &["&*", "+@all"]).await;
            let waiter = Client::connect(&server.url()).await.unwrap();
            let lock = holder.rw_lock("name").fixed_lease(SECOND);
            let guard = lock.read().await.unwrap();
            let waiting = tokio::spawn(waiter.rw_lock("name").write());
            until_queued(&server, 1).await;
            refuse_from_now(&server, refused);
            // Freed, or left to expire.
            guard.release().await.expect("it was valid to the end");
            let guard = soon(&case, waiting).await.unwrap().unwrap();
            assert_holders(&server, &[&guard], "write", &case);
            common::release(guard).await;
            for client in [&holder, &waiter] {
                wait_until_idle(client).await;
            }
            // Its lease ends by itself where DEL is refused, and says nothing without its field.
            wait_until_async(SOON, &case, || {
                let lease = |key: &String| key.ends_with(":rwlock_timeout:1");
                !keys(&server).iter().any(lease)
            })
            .await;
            assert_nothing_left(&server, &case).await;
        }
    }
}

#[tokio::test]
async fn a_writer_that_is_refused_a_command_lets_all_readers_in_or_expires() {
    for server in servers() {
        for refused in REFUSED {
            let case = format!("{}, {refused}", server.flavor());
            let proxy = Proxy::start(server.addr());
            let holder = restricted(&server, &proxy, &["&*", "+@all"]).await;
            let readers = [
                Client::connect(&server.url()).await.unwrap(),
                Client::connect(&server.url()).await.unwrap(),
            ];
            let lock = holder.rw_lock("name").fixed_lease(SECOND);
            let guard = lock.write().await.unwrap();
            let waiting = [0, 1].map(|n: usize| tokio::spawn(readers[n].rw_lock("name").read()));
            until_queued(&server, 2).await;
            refuse_from_now(&server, refused);
            guard.release().await.expect("it was valid to the end");
            let mut guards = Vec::new();
            for waiting in waiting {
                guards.push(soon(&case, waiting).await.unwrap().unwrap());
            }
            assert_holders(&server, &[&guards[0], &guards[1]], "read", &case);
            for guard in guards {
                common::release(guard).await;
            }
            for client in [&holder, &readers[0], &readers[1]] {
                wait_until_idle(client).await;
            }
            assert_nothing_left(&server, &case).await;
        }
    }
}

#[tokio::test]
async fn one_of_two_readers_that_is_refused_a_command_leaves_the_other_as_it_was() {
    for server in servers() {
        for refused in REFUSED {
            let case = format!("{}, {refused}", server.flavor());
            let proxy = Proxy::start(server.addr());
            let leaves = restricted(&server, &proxy, &["&*", "+@all"]).await;
            let stays = Client::connect(&server.url()).await.unwrap();
            let beside = stays.rw_lock("name").read().await.unwrap();
            let lock = leaves.rw_lock("name").fixed_lease(SECOND);
            let guard = lock.read().await.unwrap();
            let key = format!("{{name}}:{}:rwlock_timeout:1", guard.owner());
            refuse_from_now(&server, refused);
            guard.release().await.expect("it was valid to the end");
            wait_until_async(SOON, &case, || int(&server, &["EXISTS", &key]) == 0).await;
            beside.verify().await.unwrap();
            let status = stays.rw_lock("name").status().await.unwrap();
            assert_eq!(status.holders.len(), 1, "{case}: {status:?}");
            common::release(beside).await;
            wait_until_idle(&leaves).await;
            assert_nothing_left(&server, &case).await;
        }
    }
}

#[tokio::test]
async fn a_downgrade_that_is_refused_a_command_keeps_the_hold_and_lets_readers_in_or_expires() {
    for server in servers() {
        for refused in REFUSED {
            let case = format!("{}, {refused}", server.flavor());
            let proxy = Proxy::start(server.addr());
            let holder = restricted(&server, &proxy, &["&*", "+@all"]).await;
            let reader = Client::connect(&server.url()).await.unwrap();
            let lock = holder.rw_lock("name").fixed_lease(SECOND);
            let writes = lock.write().await.unwrap();
            let waiting = tokio::spawn(reader.rw_lock("name").read());
            until_queued(&server, 1).await;
            refuse_from_now(&server, refused);
            let reads = soon(&case, writes.downgrade()).await.unwrap();
            reads.verify().await.expect(&case);
            let beside = soon(&case, waiting).await.unwrap().unwrap();
            assert!(beside.is_valid(), "{case}");
            // Freed, or left to expire, or over.
            let _ = reads.release().await;
            beside.verify().await.expect(&case);
            common::release(beside).await;
            let writes = soon(&case, reader.rw_lock("name").write()).await;
            common::release(writes.unwrap()).await;
            for client in [&holder, &reader] {
                wait_until_idle(client).await;
            }
            let what = format!("{case}: leases end by themselves");
            wait_until_async(SOON, &what, || keys(&server).is_empty()).await;
        }
    }
}

#[tokio::test]
async fn a_force_unlock_that_is_refused_leaves_the_readers_as_they_were_or_frees_the_name() {
    for server in servers() {
        for refused in REFUSED {
            let case = format!("{}, {refused}", server.flavor());
            let proxy = Proxy::start(server.addr());
            let forces = restricted(&server, &proxy, &["&*", "+@all"]).await;
            let mut clients = Vec::new();
            for _ in 0..3 {
                clients.push(Client::connect(&server.url()).await.unwrap());
            }
            let guards = [
                clients[0].rw_lock("name").read().await.unwrap(),
                clients[1].rw_lock("name").read().await.unwrap(),
            ];
            let waiting = tokio::spawn(clients[2].rw_lock("name").write());
            until_queued(&server, 1).await;
            refuse_from_now(&server, refused);
            let answer = forces.rw_lock("name").force_unlock().await;
            if let Err(error) = &answer {
                assert_eq!(error.kind(), ErrorKind::Rejected, "{case}: {error}");
                assert_holders(&server, &[&guards[0], &guards[1]], "read", &case);
            }
            for guard in guards {
                match &answer {
                    Err(_) => {
                        guard.verify().await.expect("nothing was taken from it");
                        common::release(guard).await;
                    }
                    Ok(held) => {
                        assert!(held, "{case}");
                        let error = guard.verify().await.unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::Lost, "{case}: {error}");
                        drop(guard);
                    }
                }
            }
            if refused == "-publish" && !waiting.is_finished() {
                server.cli(&["PUBLISH", "redisson_rwlock:{name}", "1"]);
            }
            let guard = soon(&case, waiting).await.unwrap().unwrap();
            assert_holders(&server, &[&guard], "write", &case);
            common::release(guard).await;
            for client in clients.iter().chain([&forces]) {
                wait_until_idle(client).await;
            }
            for key in keys(&server) {
                // Without DEL the readers' leases end by themselves, and say nothing without their fields.
                if refused == "-del" && key.ends_with(":rwlock_timeout:1") {
                    assert!(int(&server, &["PTTL", &key]) > 0, "{case}: {key}");
                    server.cli(&["DEL", &key]);
                }
            }
            assert_nothing_left(&server, &case).await;
        }
    }
}

#[tokio::test]
async fn who_is_refused_a_command_holds_nothing_and_leaves_nothing_without_an_end() {
    for server in servers() {
        for write in [false, true] {
            for refused in ["-hset", "-set", "-pexpire", "-exists"] {
                if write && refused == "-set" {
                    continue; // of readers only
                }
                let case = format!("{}, {refused}, write: {write}", server.flavor());
                let proxy = Proxy::start(server.addr());
                let client = restricted(&server, &proxy, &["&*", "+@all", refused]).await;
                let lock = client.rw_lock("name").fixed_lease(SECOND);
                let error = if write {
                    lock.write().await.map(drop).unwrap_err()
                } else {
                    lock.read().await.map(drop).unwrap_err()
                };
                assert_eq!(error.kind(), ErrorKind::Rejected, "{case}: {error}");
                wait_until_idle(&client).await;
                assert!(owners_of(&server).is_empty(), "{case}");
                for key in keys(&server) {
                    assert_ne!(int(&server, &["PTTL", &key]), -1, "{case}: {key}");
                }
                // A reader that joins: the others stay as they are.
                let other = Client::connect(&server.url()).await.unwrap();
                let beside = other.rw_lock("name").read().await.unwrap();
                let joins = client.rw_lock("name").fixed_lease(60 * SECOND);
                if !write {
                    assert!(joins.try_read().await.is_err(), "{case}");
                    wait_until_idle(&client).await;
                    assert_holders(&server, &[&beside], "read", &case);
                }
                common::release(beside).await;
                server.cli(&["FLUSHALL"]);
            }
        }
    }
}

fn owners_of(server: &Server) -> Vec<(String, i64)> {
    if int(server, &["EXISTS", "name"]) == 0 {
        return Vec::new();
    }
    owners(server, "name")
}
