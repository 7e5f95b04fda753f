//! A read-write lock on the wire, as Redisson would see it and send it: keys, fields, leases, channel and
//! payload. (`docs/keys.md`. Redisson itself is played by the scripts of its source.)

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::common::{
    SOON, assert_lost, assert_nothing_left, channels, int, keys, refused, release,
    rw::{JAVA, JAVA_LEASE, java_leaves, java_reads, java_writes},
    servers, soon, wait_until_idle,
    wire::{Monitor, documented_rules, send_copy},
};
use leasehold::{Client, ErrorKind, LostReason, Owner, Released};
use leasehold_testkit::{Flavor, Server, wait_until_async};

const CHANNEL: &str = "redisson_rwlock:{name}";
const QUEUE: &str = "leasehold:{name}:rw:queue";
const WOKEN: Duration = Duration::from_secs(2);

fn hash(server: &Server) -> BTreeMap<String, String> {
    redis::from_redis_value(server.cli(&["HGETALL", "name"])).unwrap()
}

fn fields<const N: usize>(fields: [(&str, &str); N]) -> BTreeMap<String, String> {
    fields.map(|(f, v)| (f.to_owned(), v.to_owned())).into()
}

fn lease_of(owner: &str) -> String {
    format!("{{name}}:{owner}:rwlock_timeout:1")
}

async fn client_of(server: &Server) -> Client {
    // Longer than any of these tests waits for anything: a waiter that is not woken is noticed.
    let builder = Client::builder().url(server.url());
    let builder = builder.poll_every(Duration::from_secs(60));
    let builder = builder.redisson_watchdog(Duration::from_secs(120));
    builder.connect().await.unwrap()
}

async fn until_queued(server: &Server, places: i64) {
    let what = format!("{places} stand in the queue");
    wait_until_async(SOON, &what, || int(server, &["LLEN", QUEUE]) == places).await;
}

fn near(server: &Server, key: &str, ms: i64) {
    let left = int(server, &["PTTL", key]);
    assert!((ms - 2000..=ms).contains(&left), "{key} has {left} of {ms}");
}

fn payload(listeners: &mut redis::PubSub<'_>) -> Vec<u8> {
    listeners.set_read_timeout(Some(SOON)).unwrap();
    listeners
        .get_message()
        .unwrap()
        .get_payload_bytes()
        .to_vec()
}

#[tokio::test]
async fn readers_are_redissons_hash_and_a_key_for_each_lease() {
    for server in servers() {
        let (one, two) = (client_of(&server).await, client_of(&server).await);
        let long = one.rw_lock("name").fixed_lease(Duration::from_secs(60));
        let first = long.read().await.unwrap();
        let second = two.rw_lock("name").read().await.unwrap();
        assert_eq!(
            hash(&server),
            fields([
                ("mode", "read"),
                (&first.owner(), "1"),
                (&second.owner(), "1")
            ])
        );
        let mut expected = vec![
            "name".to_owned(),
            lease_of(&first.owner()),
            lease_of(&second.owner()),
        ];
        let mut there = keys(&server);
        expected.sort();
        there.sort();
        assert_eq!(there, expected);
        near(&server, "name", 60_000);
        near(&server, &lease_of(&first.owner()), 60_000);
        near(&server, &lease_of(&second.owner()), 30_000);

        let status = one.rw_lock("name").status().await.unwrap();
        let mut left: Vec<u64> = status
            .holders
            .iter()
            .map(|holder| holder.remaining.unwrap().as_secs())
            .collect();
        left.sort_unstable();
        assert!(matches!(left[..], [28..=30, 58..=60]), "{left:?}");

        // The longer leaves: the hash lasts as long as the other, and no longer.
        release(first).await;
        assert_eq!(
            hash(&server),
            fields([("mode", "read"), (&second.owner(), "1")])
        );
        near(&server, "name", 30_000);
        release(second).await;
        assert_eq!(keys(&server), [""; 0]);
    }
}

/// Redisson keeps a key for each time that a reader has entered. Whoever asks looks at some of them, not at 300,000.
#[tokio::test]
async fn a_reader_that_has_entered_very_often_lasts_as_long_as_the_hash_and_holds_up_no_other_name()
{
    for server in servers() {
        let client = client_of(&server).await;
        java_reads(&server, "60000");
        server.cli(&["HSET", "name", JAVA, "300000"]);
        let lock = client.rw_lock("name");
        let looks = |server: &Server| {
            let calls = server.calls();
            let of = |command: &str| calls.get(command).copied().unwrap_or_default();
            of("pttl") + of("del")
        };
        let before = looks(&server);
        assert!(lock.try_write().await.unwrap().is_none());
        let reads = lock.try_read().await.unwrap().unwrap();
        // Its keys may be further ones than those that are looked at.
        server.cli(&["DEL", JAVA_LEASE]);
        assert!(lock.try_write().await.unwrap().is_none());
        release(reads).await;
        near(&server, "name", 60_000);
        let status = lock.status().await.unwrap();
        assert_eq!(status.holder().unwrap().owner, JAVA);
        lock.force_unlock().await.unwrap();
        release(lock.write().await.unwrap()).await;
        let looked = looks(&server) - before;
        assert!(looked < 10_000, "{looked}");
    }
}

#[tokio::test]
async fn a_reader_with_a_shorter_lease_shortens_no_ones() {
    for server in servers() {
        let (one, two) = (client_of(&server).await, client_of(&server).await);
        let long = one.rw_lock("name").fixed_lease(Duration::from_secs(60));
        let first = long.read().await.unwrap();
        let short = two.rw_lock("name").lease(Duration::from_millis(800));
        let second = short.read().await.unwrap();
        // It lives on by renewals only.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(second.is_valid());
        second.verify().await.unwrap();
        near(&server, "name", 60_000);
        release(second).await;
        near(&server, "name", 60_000);
        let short = short.fixed_lease(Duration::from_secs(5));
        let second = short.read().await.unwrap();
        near(&server, "name", 60_000);
        second.extend(Duration::from_secs(20)).await.unwrap();
        near(&server, &lease_of(&second.owner()), 20_000);
        near(&server, "name", 60_000);
        second.extend(Duration::from_secs(90)).await.unwrap();
        near(&server, "name", 90_000);
        release(second).await;
        near(&server, "name", 60_000);
        assert!(first.is_valid());
        release(first).await;
    }
}

#[tokio::test]
async fn a_writer_is_redissons_hash_and_both_say_who_left() {
    for server in servers() {
        let client = client_of(&server).await;
        let mut listeners = server.connection();
        let mut listeners = listeners.as_pubsub();
        listeners.subscribe(CHANNEL).unwrap();
        let lock = client.rw_lock("name");
        let guard = lock.write().await.unwrap();
        assert!(guard.owner().ends_with(":write"), "{}", guard.owner());
        assert_eq!(
            hash(&server),
            fields([("mode", "write"), (&guard.owner(), "1")])
        );
        assert_eq!(keys(&server), ["name"]);
        near(&server, "name", 30_000);
        let status = lock.status().await.unwrap();
        assert_eq!(status.holder().unwrap().client, client.id());
        assert!(status.holder().unwrap().since.is_some());
        release(guard).await;
        let mut heard = vec![payload(&mut listeners)];
        release(lock.read().await.unwrap()).await;
        heard.push(payload(&mut listeners));
        assert_eq!(heard, [b"1", b"0"]);
        assert_eq!(keys(&server), [""; 0]);
    }
}

#[tokio::test]
async fn redissons_reader_leaves_beside_ours_and_ours_beside_redissons() {
    for server in servers() {
        let client = client_of(&server).await;
        let lock = client.rw_lock("name");
        let guard = lock.read().await.unwrap();
        assert_eq!(java_reads(&server, "60000"), redis::Value::Nil);
        assert!(
            int(&server, &["HEXISTS", "name", JAVA]) == 1,
            "beside each other"
        );
        assert_eq!(java_leaves(&server), redis::Value::Int(0), "ours reads on");
        guard.verify().await.unwrap();
        near(&server, "name", 30_000);

        assert_eq!(java_reads(&server, "20000"), redis::Value::Nil);
        release(guard).await;
        assert_eq!(hash(&server), fields([("mode", "read"), (JAVA, "1")]));
        near(&server, "name", 20_000);
        let other = client_of(&server).await;
        assert!(other.rw_lock("name").try_write().await.unwrap().is_none());
        assert_eq!(java_leaves(&server), redis::Value::Int(1));
        release(other.rw_lock("name").try_write().await.unwrap().unwrap()).await;
        assert_nothing_left(&server, "readers beside Redisson").await;
    }
}

#[tokio::test]
async fn what_redisson_holds_is_refused_and_its_message_wakes() {
    for server in servers() {
        let client = client_of(&server).await;
        let lock = client.rw_lock("name");
        assert_eq!(java_writes(&server, "30000"), redis::Value::Nil);
        assert!(lock.try_read().await.unwrap().is_none());
        assert!(lock.try_write().await.unwrap().is_none());
        let holder = lock.status().await.unwrap().holder().cloned().unwrap();
        assert_eq!(holder.owner, format!("{JAVA}:write"));
        let waiting = tokio::spawn(lock.read());
        until_queued(&server, 1).await;
        let freed = Instant::now();
        server.cli(&["DEL", "name"]);
        server.cli(&["PUBLISH", CHANNEL, "1"]);
        let guard = soon("woken", waiting).await.unwrap().unwrap();
        assert!(freed.elapsed() < WOKEN, "{:?}", freed.elapsed());
        // And Redisson's writer is refused while ours reads.
        assert!(matches!(
            java_writes(&server, "30000"),
            redis::Value::Int(1..=30_000)
        ));
        release(guard).await;
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "Redisson's writer").await;
    }
}

/// Its lease is over, its field is there still: the hash lasts for the sake of another, or no client has looked.
#[tokio::test]
async fn a_crashed_reader_holds_nothing_when_its_own_lease_is_over() {
    for server in servers() {
        let (dies, client) = (client_of(&server).await, client_of(&server).await);
        let writer = client_of(&server).await;
        let long = client.rw_lock("name").fixed_lease(Duration::from_secs(60));
        let guard = long.read().await.unwrap();
        let short = dies.rw_lock("name").fixed_lease(Duration::from_millis(300));
        let dead = short.read().await.unwrap();
        let owner = dead.owner();
        dead.detach();
        let key = lease_of(&owner);
        wait_until_async(SOON, "its lease ends", || {
            int(&server, &["EXISTS", &key]) == 0
        })
        .await;
        assert_eq!(
            int(&server, &["HEXISTS", "name", &owner]),
            1,
            "nobody looked"
        );
        let status = client.rw_lock("name").status().await.unwrap();
        assert_eq!(status.holders.len(), 1, "{status:?}");
        // A client that asks clears it away, also one that is refused.
        assert!(writer.rw_lock("name").try_write().await.unwrap().is_none());
        assert_eq!(int(&server, &["HEXISTS", "name", &owner]), 0);
        release(guard).await;

        // Left alone in a hash that would last for a minute.
        let dead = short.read().await.unwrap();
        let key = lease_of(&dead.owner());
        dead.detach();
        server.cli(&["PEXPIRE", "name", "60000"]);
        wait_until_async(SOON, "its lease ends", || {
            int(&server, &["EXISTS", &key]) == 0
        })
        .await;
        let guard = writer.rw_lock("name").try_write().await.unwrap().unwrap();
        assert_eq!(
            hash(&server),
            fields([("mode", "write"), (&guard.owner(), "1")])
        );
        near(&server, "name", 30_000);
        release(guard).await;
        assert_eq!(keys(&server), [""; 0]);
    }
}

#[tokio::test]
async fn a_writer_that_waits_is_given_the_name_by_the_last_reader_and_readers_together_by_it() {
    for server in servers() {
        let mut clients = Vec::new();
        for _ in 0..5 {
            clients.push(client_of(&server).await.rw_lock("name"));
        }
        let (first, second) = (
            clients[0].read().await.unwrap(),
            clients[1].read().await.unwrap(),
        );
        let writer = tokio::spawn(clients[2].write());
        until_queued(&server, 1).await;
        // It keeps new readers out.
        assert!(clients[3].try_read().await.unwrap().is_none());
        let readers = [3, 4].map(|n| tokio::spawn(clients[n].read()));
        until_queued(&server, 3).await;
        let places: Vec<String> =
            redis::from_redis_value(server.cli(&["LRANGE", QUEUE, "0", "-1"])).unwrap();
        assert!(places[0].contains(":write 30000 "), "{places:?}");
        assert!(!places[1].contains(":write"), "{places:?}");
        release(first).await;
        assert_eq!(int(&server, &["LLEN", QUEUE]), 3, "one reads still");
        release(second).await;
        let guard = soon("the writer", writer).await.unwrap().unwrap();
        assert_eq!(
            hash(&server),
            fields([("mode", "write"), (&guard.owner(), "1")])
        );
        release(guard).await;
        let mut owners = Vec::new();
        let mut guards = Vec::new();
        for reader in readers {
            let guard = soon("a reader", reader).await.unwrap().unwrap();
            owners.push(guard.owner());
            guards.push(guard);
        }
        assert_eq!(
            hash(&server),
            fields([("mode", "read"), (&owners[0], "1"), (&owners[1], "1")])
        );
        for guard in guards {
            release(guard).await;
        }
        // An emptied list is no key.
        assert_nothing_left(&server, "turns").await;
    }
}

#[tokio::test]
async fn a_writer_that_gives_up_lets_the_readers_behind_it_in() {
    for server in servers() {
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(client_of(&server).await.rw_lock("name"));
        }
        let reads = clients[0].read().await.unwrap();
        let writer = tokio::spawn(clients[1].write());
        until_queued(&server, 1).await;
        let behind = tokio::spawn(clients[2].read());
        until_queued(&server, 2).await;
        writer.abort();
        let guard = soon("beside the first", behind).await.unwrap().unwrap();
        assert!(reads.is_valid());
        assert_eq!(hash(&server).len(), 3);
        release(reads).await;
        release(guard).await;
        assert_nothing_left(&server, "a writer that gave up").await;
    }
}

#[tokio::test]
async fn a_writer_that_is_dead_keeps_no_reader_out() {
    for server in servers() {
        let clients = [client_of(&server).await, client_of(&server).await];
        let guard = clients[0].rw_lock("name").read().await.unwrap();
        server.cli(&["RPUSH", QUEUE, "dead-client:7:write 30000 1"]);
        let other = clients[1].rw_lock("name").try_read().await.unwrap();
        release(other.expect("nobody hears that it is its turn")).await;
        assert_eq!(int(&server, &["LLEN", QUEUE]), 0);
        release(guard).await;
    }
}

/// B4: a copy of a request that comes after the end of its lease id.
#[tokio::test]
async fn a_late_copy_of_a_request_meets_the_tombstone() {
    for server in servers() {
        for write in [false, true] {
            let client = client_of(&server).await;
            let lock = client.rw_lock("name");
            let mut monitor = Monitor::start(&server);
            let owner = if write {
                let guard = lock.write().await.unwrap();
                let owner = guard.owner();
                release(guard).await;
                owner
            } else {
                let guard = lock.read().await.unwrap();
                let owner = guard.owner();
                release(guard).await;
                owner
            };
            let id = owner.trim_end_matches(":write");
            let calls = monitor.calls(id);
            let [acquire, leave] = &calls[..] else {
                panic!("{calls:?}")
            };
            let reply = send_copy(&server, leave);
            assert_eq!(reply, redis::Value::Int(0), "it does not hold it any more");
            let tombstone = format!("leasehold:{{name}}:rw:gone:{id}");
            server.cli(&["SET", &tombstone, "1", "PX", "30000"]);
            assert_eq!(send_copy(&server, acquire), pair(2, 0), "write: {write}");
            assert_eq!(keys(&server), [tombstone.as_str()]);
            // Nor is a place of it given the name.
            let holder = client_of(&server)
                .await
                .rw_lock("name")
                .write()
                .await
                .unwrap();
            server.cli(&["RPUSH", QUEUE, &format!("{owner} 30000 1")]);
            release(holder).await;
            assert_eq!(keys(&server), [tombstone.as_str()]);
            server.cli(&["FLUSHALL"]);
        }
    }
}

fn pair(first: i64, second: i64) -> redis::Value {
    redis::Value::Array(vec![redis::Value::Int(first), redis::Value::Int(second)])
}

#[tokio::test]
async fn a_second_copy_of_a_release_takes_nothing_from_the_next() {
    for server in servers() {
        let (one, two) = (client_of(&server).await, client_of(&server).await);
        let mut monitor = Monitor::start(&server);
        let guard = one.rw_lock("name").write().await.unwrap();
        let owner = guard.owner();
        let waiting = tokio::spawn(two.rw_lock("name").read());
        until_queued(&server, 1).await;
        release(guard).await;
        let next = soon("the next", waiting).await.unwrap().unwrap();
        let before = hash(&server);
        let calls = monitor.calls(owner.trim_end_matches(":write"));
        assert_eq!(
            send_copy(&server, calls.last().unwrap()),
            redis::Value::Int(0)
        );
        assert_eq!(hash(&server), before);
        next.verify().await.unwrap();
        release(next).await;
    }
}

#[tokio::test]
async fn a_force_unlock_takes_it_from_all_readers_and_leaves_nothing() {
    for server in servers() {
        let (one, two) = (client_of(&server).await, client_of(&server).await);
        let writer = client_of(&server).await;
        let guards = [
            one.rw_lock("name").read().await.unwrap(),
            two.rw_lock("name").read().await.unwrap(),
        ];
        java_reads(&server, "30000");
        let waiting = tokio::spawn(writer.rw_lock("name").write());
        until_queued(&server, 1).await;
        assert!(one.rw_lock("name").force_unlock().await.unwrap());
        let guard = soon("its turn", waiting).await.unwrap().unwrap();
        assert_eq!(keys(&server), ["name"]);
        for guard in guards {
            assert!(guard.verify().await.is_err());
            assert_lost(guard.release().await, LostReason::Replaced);
        }
        release(guard).await;
        assert!(!one.rw_lock("name").force_unlock().await.unwrap());
        assert_nothing_left(&server, "force").await;
    }
}

#[tokio::test]
async fn a_name_of_another_kind_is_refused_and_left_as_it_is() {
    for server in servers() {
        let client = client_of(&server).await;
        let refused = |error: leasehold::Error, kinds: [&str; 2]| {
            assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
            let text = error.to_string();
            for kind in kinds {
                assert!(text.contains(kind), "{text}");
            }
        };
        let both = ["a mutex", "a rw_lock"];
        let mutex = client.mutex("name").lock().await.unwrap();
        let before = hash(&server);
        refused(client.rw_lock("name").try_read().await.unwrap_err(), both);
        refused(client.rw_lock("name").write().await.unwrap_err(), both);
        assert_eq!(hash(&server), before);
        refused(client.rw_lock("name").status().await.unwrap_err(), both);
        release(mutex).await;

        let guard = client.rw_lock("name").read().await.unwrap();
        refused(client.mutex("name").try_lock().await.unwrap_err(), both);
        refused(client.mutex("name").lock().await.unwrap_err(), both);
        release(guard).await;

        server.cli(&["SET", "name", "text"]);
        let lock = client.rw_lock("name");
        refused(
            lock.write().await.unwrap_err(),
            ["a plain_mutex", "a rw_lock"],
        );
        assert_eq!(keys(&server), ["name"]);
    }
}

/// A reader that has entered again is told whether others wait, so that its process lets no more readers in by itself.
#[tokio::test]
async fn a_reader_that_enters_again_is_told_of_writers_that_wait() {
    for server in servers() {
        let (client, other) = (client_of(&server).await, client_of(&server).await);
        let owner = Owner::new();
        let lock = client.rw_lock("name").owned_by(&owner);
        let guard = lock.read().await.unwrap();
        let mut monitor = Monitor::start(&server);
        let again = lock.read().await.unwrap();
        assert_eq!(int(&server, &["HGET", "name", &guard.owner()]), 2);
        let calls = monitor.calls(&guard.owner());
        let [count] = &calls[..] else {
            panic!("{calls:?}")
        };
        let written = |case: &str, expected: i64| {
            let reply = send_copy(&server, count);
            assert_eq!(reply, redis::Value::Int(expected), "{case}");
        };
        written("nobody waits", 1);
        {
            let mut java = server.connection();
            let mut java = java.as_pubsub();
            java.subscribe(CHANNEL).unwrap();
            written("Redisson waits", 2);
        }
        wait_until_async(SOON, "nobody listens", || channels(&server).is_empty()).await;
        server.cli(&["RPUSH", QUEUE, "dead-client:7:write 30000 1"]);
        written("one waits that hears nothing", 1);
        server.cli(&["DEL", QUEUE]);
        let waiting = tokio::spawn(other.rw_lock("name").write());
        until_queued(&server, 1).await;
        written("a writer of ours waits", 2);
        waiting.abort();
        wait_until_idle(&other).await;
        wait_until_async(SOON, "nobody listens", || channels(&server).is_empty()).await;
        written("it has given up", 1);
        assert_eq!(
            again.release().await.unwrap(),
            Released::StillHeld { holds: 1 }
        );
        release(guard).await;
        written("it has left", 0);
        assert_eq!(keys(&server), [""; 0], "a late count makes nothing");
    }
}

#[tokio::test]
async fn a_user_with_the_documented_permissions_can_read_and_write() {
    const LEASE: Duration = Duration::from_secs(1);
    for server in servers() {
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
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(connect().await.unwrap());
        }
        let [one, two, three] =
            [0, 1, 2].map(|n: usize| clients[n].rw_lock("order:1").lease(LEASE));
        let guards = [one.read().await.unwrap(), two.read().await.unwrap()];
        tokio::time::sleep(2 * LEASE).await; // they live only if they are renewed
        for guard in &guards {
            guard.verify().await.unwrap();
            guard.reenter().unwrap().release().await.unwrap();
        }
        let queue = "leasehold:{order:1}:rw:queue";
        let writer = tokio::spawn(three.write());
        wait_until_async(SOON, "it waits", || int(&server, &["LLEN", queue]) == 1).await;
        for guard in guards {
            release(guard).await;
        }
        let guard = soon("the writer", writer).await.unwrap().unwrap();
        let readers = [tokio::spawn(one.read()), tokio::spawn(two.read())];
        wait_until_async(SOON, "they wait", || int(&server, &["LLEN", queue]) == 2).await;
        tokio::time::sleep(2 * LEASE).await;
        release(guard).await;
        let mut guards = Vec::new();
        for reader in readers {
            guards.push(soon("a reader", reader).await.unwrap().unwrap());
        }
        // A waiter that gives up, and an unlocking by force.
        let waits = three.try_write_for(Duration::from_millis(500)).await;
        assert!(waits.unwrap().is_none());
        assert_eq!(one.status().await.unwrap().holders.len(), 2);
        assert!(three.force_unlock().await.unwrap());
        for guard in guards {
            assert!(guard.verify().await.is_err());
            drop(guard);
        }
        let fixed = one.fixed_lease(Duration::from_secs(1));
        let guard = fixed.read().await.unwrap();
        guard.extend(Duration::from_secs(5)).await.unwrap();
        release(guard).await;
        for client in &clients {
            wait_until_idle(client).await;
        }
        assert_eq!(refused(&server), [], "refused by the rules");
    }
}

/// A cluster refuses a script that touches a key outside the slot of those it was called with.
#[tokio::test]
async fn all_keys_of_a_name_are_in_its_slot() {
    for flavor in Flavor::available() {
        let server = Server::start_with(flavor, &["--cluster-enabled", "yes"]);
        server.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        wait_until_async(SOON, "the cluster is up", || {
            server.try_cli(&["SET", "probe", "1"]).is_ok()
        })
        .await;
        server.cli(&["DEL", "probe"]);
        // A node of a cluster is refused, unless the user may not ask for that.
        let user = ["worker", "on", ">pw", "~*", "&*", "+@all", "-cluster"];
        server.cli(&[&["ACL", "SETUSER"], &user[..]].concat());
        let mut clients = Vec::new();
        for _ in 0..3 {
            let builder = Client::builder().url(server.url());
            let builder = builder.username("worker").password("pw");
            let builder = builder.poll_every(Duration::from_secs(60));
            clients.push(builder.connect().await.unwrap());
        }
        for name in ["name", "order:{42}:lock"] {
            let [one, two, three] = [0, 1, 2].map(|n: usize| clients[n].rw_lock(name));
            let dead = one.fixed_lease(Duration::from_millis(100));
            dead.read().await.unwrap().detach();
            let renewed = two.lease(Duration::from_millis(1500));
            let guard = renewed.read().await.unwrap();
            let seen = clients[2].rw_lock(name);
            let writer = tokio::spawn(three.write());
            while seen.status().await.unwrap().waiting_clients == 0 {
                tokio::task::yield_now().await;
            }
            tokio::time::sleep(Duration::from_secs(2)).await; // it lives only if it is renewed
            guard.verify().await.unwrap();
            release(guard).await;
            let guard = soon("the writer", writer).await.unwrap().unwrap();
            let readers = [tokio::spawn(one.read()), tokio::spawn(two.read())];
            while seen.status().await.unwrap().waiting_clients < 2 {
                tokio::task::yield_now().await;
            }
            release(guard).await;
            for reader in readers {
                drop(soon("a reader", reader).await.unwrap().unwrap());
            }
            for client in &clients {
                wait_until_idle(client).await;
            }
            let guard = one.read().await.unwrap();
            assert!(two.force_unlock().await.unwrap());
            drop(guard);
            wait_until_idle(&clients[0]).await;
        }
        assert_eq!(keys(&server), [""; 0]);
    }
}
