//! A mutex on the wire, as Redisson would see it and send it: keys, channel and payload, byte for byte.
//! (`docs/keys.md`. Redisson itself is played by the commands of its scripts.)

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::common;
use crate::common::{keys, refused, wait_until_idle, wire::documented_rules};
use leasehold::{Client, Handoff, LostReason, Released};
use leasehold_testkit::{Flavor, Server, wait_until_async};

const CHANNEL: &str = "redisson_lock__channel:{name}";
const JAVA: &str = "6f1c1a0e-0000-4000-8000-000000000000:42";

fn hash(server: &Server) -> BTreeMap<String, String> {
    redis::from_redis_value(server.cli(&["HGETALL", "name"])).unwrap()
}

fn subscribers(server: &Server) -> u64 {
    let reply = server.cli(&["PUBSUB", "NUMSUB", CHANNEL]);
    let (_, count): (String, u64) = redis::from_redis_value(reply).unwrap();
    count
}

/// An attempt of Redisson's `lock()`, with its watchdog's lease. `false`: another owner holds it.
fn java_locks(server: &Server) -> bool {
    let script = "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end \
                  redis.call('HINCRBY', KEYS[1], ARGV[1], 1) \
                  return redis.call('PEXPIRE', KEYS[1], 30000)";
    let reply = server.cli(&["EVAL", script, "1", "name", JAVA]);
    redis::from_redis_value(reply).unwrap()
}

/// Redisson's `unlock()`.
fn java_unlocks(server: &Server) {
    server.cli(&["DEL", "name"]);
    server.cli(&["PUBLISH", CHANNEL, "0"]);
}

#[tokio::test]
async fn the_key_is_redissons_hash_and_nothing_else_stands_on_the_server() {
    for flavor in Flavor::available() {
        let server = Server::start(flavor);
        let client = Client::connect(&server.url()).await.unwrap();
        let guard = client.mutex("name").lock().await.unwrap();
        assert_eq!(
            hash(&server),
            BTreeMap::from([(guard.owner(), "1".to_owned())])
        );
        assert!(guard.owner().starts_with(&format!("{}:", client.id())));
        assert!(
            guard.owner().len() <= 64,
            "a longer field leaves the listpack"
        );
        let ttl: u64 = redis::from_redis_value(server.cli(&["PTTL", "name"])).unwrap();
        assert!((29_000..=30_000).contains(&ttl), "{ttl}");
        assert_eq!(keys(&server), ["name"]);
        guard.release().await.unwrap();
        assert_eq!(keys(&server), [""; 0]);
    }
}

#[tokio::test]
async fn a_release_publishes_redissons_message() {
    for flavor in Flavor::available() {
        let server = Server::start(flavor);
        let client = Client::connect(&server.url()).await.unwrap();
        let mut listeners = server.connection();
        let mut listeners = listeners.as_pubsub();
        listeners.subscribe(CHANNEL).unwrap();
        listeners
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let guard = client.mutex("name").lock().await.unwrap();
        guard.release().await.unwrap();
        let message = listeners.get_message().unwrap();
        assert_eq!(message.get_payload_bytes(), b"0");
    }
}

#[tokio::test]
async fn redissons_unlock_wakes_a_waiter_long_before_the_lease_ends() {
    for flavor in Flavor::available() {
        let server = Server::start(flavor);
        let client = Client::connect(&server.url()).await.unwrap();
        assert!(java_locks(&server));
        assert!(client.mutex("name").try_lock().await.unwrap().is_none());
        let holder = client
            .status("name")
            .await
            .unwrap()
            .holder()
            .cloned()
            .unwrap();
        assert_eq!((holder.owner.as_str(), holder.since), (JAVA, None));
        let waiter = tokio::spawn(client.mutex("name").lock());
        let deadline = Duration::from_secs(10);
        wait_until_async(deadline, "the waiter to listen", || {
            subscribers(&server) == 1
        })
        .await;
        // In line as well: then it has asked for the last time and sleeps.
        wait_until_async(deadline, "the waiter to be in line", || {
            keys(&server).contains(&"leasehold:{name}:queue".to_owned())
        })
        .await;
        let began = Instant::now();
        java_unlocks(&server);
        let guard = waiter.await.unwrap().unwrap();
        let took = began.elapsed();
        assert!(took < Duration::from_millis(500), "{took:?}");
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        wait_until_idle(&client).await;
        assert_eq!(keys(&server), [""; 0]);
    }
}

/// Of two waiters one knows our queue: sometimes it is given the name, and sometimes all are told that it is free.
#[tokio::test]
async fn where_redisson_waits_too_both_sides_get_their_share() {
    for flavor in Flavor::available() {
        let server = Server::start(flavor);
        let holder = Client::connect(&server.url()).await.unwrap();
        let waiting = Client::connect(&server.url()).await.unwrap();
        // A subscriber more than the queue has places: a waiter that does not know the queue.
        let mut java = server.connection();
        let mut java = java.as_pubsub();
        java.subscribe(CHANNEL).unwrap();
        java.set_read_timeout(Some(Duration::from_millis(30)))
            .unwrap();
        let (mut given, mut freed) = (0, 0);
        for _ in 0..200 {
            let guard = holder.mutex("name").lock().await.unwrap();
            let waiter = tokio::spawn(waiting.mutex("name").lock());
            common::wire::until_queued(&server, 1).await;
            guard.release().await.unwrap();
            match java.get_message() {
                Ok(message) => {
                    assert_eq!(message.get_payload_bytes(), b"00", "one turn is left to it");
                    freed += 1;
                }
                Err(_) => given += 1,
            }
            let guard = waiter.await.unwrap().unwrap();
            assert!(guard.is_valid());
            guard.release().await.unwrap();
            while java.get_message().is_ok() {}
            if given > 2 && freed > 2 {
                break;
            }
        }
        assert!(given > 2 && freed > 2, "{given} given, {freed} freed");
    }
}

/// A monitor, a waiter for the same name in another database, or for the name in braces: it is counted, and never asks.
#[tokio::test]
async fn a_subscriber_that_never_asks_starves_nobody() {
    for flavor in Flavor::available() {
        let server = Server::start(flavor);
        let mut monitor = server.connection();
        let mut monitor = monitor.as_pubsub();
        monitor.subscribe(CHANNEL).unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(2);
        let mut tasks = Vec::new();
        for _ in 0..5 {
            let client = Client::connect(&server.url()).await.unwrap();
            tasks.push(tokio::spawn(async move {
                let mut holds = 0;
                while std::time::Instant::now() < until {
                    let guard = client.mutex("name").lock().await.unwrap();
                    tokio::time::sleep(Duration::from_millis(4)).await; // the work
                    guard.release().await.unwrap();
                    holds += 1;
                }
                holds
            }));
        }
        let mut holds: Vec<u32> = Vec::new();
        for task in tasks {
            holds.push(task.await.unwrap());
        }
        let (least, most) = (holds.iter().min().unwrap(), holds.iter().max().unwrap());
        assert!(least * 5 >= *most, "{flavor}: {holds:?}");
    }
}

#[tokio::test]
async fn redisson_gets_its_turn_while_this_process_hands_on_in_memory() {
    for flavor in Flavor::available() {
        let server = Server::start(flavor);
        let handoff = Handoff::default();
        let client = Client::builder()
            .url(server.url())
            .handoff(handoff)
            .connect();
        let client = client.await.unwrap();
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let mutex = client.mutex("name");
                tokio::spawn(async move {
                    loop {
                        drop(mutex.lock().await.unwrap());
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        // A Java waiter: subscribes, and tries whenever it hears the message.
        let got = tokio::task::spawn_blocking(move || {
            let mut listeners = server.connection();
            let mut listeners = listeners.as_pubsub();
            listeners.subscribe(CHANNEL).unwrap();
            listeners
                .set_read_timeout(Some(Duration::from_secs(5)))
                .unwrap();
            for attempt in 1..=1000 {
                let _ = listeners
                    .get_message()
                    .expect("the process steps back again and again");
                if java_locks(&server) {
                    return (attempt, hash(&server));
                }
            }
            panic!("a thousand messages, and never free");
        });
        let (attempts, holders) = got.await.unwrap();
        assert_eq!(
            holders,
            BTreeMap::from([(JAVA.to_owned(), "1".to_owned())]),
            "after {attempts} attempts"
        );
        for task in tasks {
            task.abort();
        }
    }
}

#[tokio::test]
async fn a_renewal_does_not_touch_the_lease_of_another_owner() {
    for flavor in Flavor::available() {
        let server = Server::start(flavor);
        let client = Client::connect(&server.url()).await.unwrap();
        let mutex = client.mutex("name").lease(Duration::from_millis(600));
        let guard = mutex.lock().await.unwrap();
        server.cli(&["DEL", "name"]);
        assert!(java_locks(&server));
        // The next renewal finds Java there.
        let reason = tokio::time::timeout(Duration::from_secs(5), guard.lost()).await;
        assert_eq!(reason.expect("the renewal notices"), LostReason::Replaced);
        let ttl: u64 = redis::from_redis_value(server.cli(&["PTTL", "name"])).unwrap();
        assert!(
            (20_000..=30_000).contains(&ttl),
            "Java's lease is as it was: {ttl}"
        );
        drop(guard);
        wait_until_idle(&client).await;
        assert_eq!(
            hash(&server),
            BTreeMap::from([(JAVA.to_owned(), "1".to_owned())])
        );
    }
}

/// The place in the queue was taken for a waiter with a short lease. The waiter left, and the server gives the name for
/// the lease that it had asked for.
#[tokio::test]
async fn nobody_believes_in_a_lease_that_was_given_for_another() {
    const SHORT: Duration = Duration::from_millis(900);
    const LONG: Duration = Duration::from_secs(20);
    for flavor in Flavor::available() {
        let server = Server::start(flavor);
        let holder = Client::connect(&server.url()).await.unwrap();
        let client = Client::connect(&server.url()).await.unwrap();
        let guard = holder.mutex("name").lock().await.unwrap();
        let short = tokio::spawn(client.mutex("name").fixed_lease(SHORT).lock());
        wait_until_async(Duration::from_secs(5), "the first is in line", || {
            server.cli(&["LLEN", "leasehold:{name}:queue"]) == redis::Value::Int(1)
        })
        .await;
        let long = tokio::spawn(client.mutex("name").fixed_lease(LONG).lock());
        while client.status("name").await.unwrap().waiting_here < 2 {
            tokio::task::yield_now().await;
        }
        short.abort();
        assert!(short.await.unwrap_err().is_cancelled());
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        let guard = long.await.unwrap().unwrap();
        let (left, ttl) = (guard.remaining(), server.cli(&["PTTL", "name"]));
        let ttl: u64 = redis::from_redis_value(ttl).unwrap();
        assert!(left > LONG / 2, "{left:?} of what was asked for");
        assert!(left < Duration::from_millis(ttl), "{left:?}, but {ttl} ms");
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        wait_until_idle(&client).await;
    }
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
        let (one, two) = (connect().await.unwrap(), connect().await.unwrap());
        let [first, second] = [&one, &two].map(|client| client.mutex("order:1").lease(LEASE));

        let guard = first.lock().await.unwrap();
        tokio::time::sleep(2 * LEASE).await; // it lives only if it is renewed
        assert!(guard.is_valid());
        guard.verify().await.unwrap();
        guard.reenter().unwrap().release().await.unwrap();
        // A waiter in another process, which hears that it is its turn.
        let waiter = tokio::spawn(second.lock());
        wait_until_async(Duration::from_secs(5), "the waiter is in line", || {
            let waiting = server.cli(&["LLEN", "leasehold:{order:1}:queue"]);
            waiting == redis::Value::Int(1)
        })
        .await;
        let next = tokio::spawn(first.lock());
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        let guard = waiter.await.unwrap().unwrap();
        drop(guard);
        let guard = next.await.unwrap().unwrap();
        // A waiter that gives up, and an unlocking by force.
        let waits = second.try_lock_for(Duration::from_millis(50)).await;
        assert!(waits.unwrap().is_none());
        assert!(two.force_unlock("order:1").await.unwrap());
        assert!(guard.verify().await.is_err());
        drop(guard);
        for client in [&one, &two] {
            wait_until_idle(client).await;
        }
        assert_eq!(refused(&server), [], "refused by the rules");
    }
}

/// Valkey 9.1 miscounts 8 subscribers of a channel, and some other numbers.
#[tokio::test]
async fn status_counts_the_clients_that_wait_also_where_the_server_miscounts_them() {
    for server in common::servers() {
        let holder = Client::connect(&server.url()).await.unwrap();
        let guards = (
            holder.mutex("mutex").lock().await.unwrap(),
            holder.fenced_mutex("fenced").lock().await.unwrap(),
            holder.plain_mutex("plain").lock().await.unwrap(),
            holder.rw_lock("rw").write().await.unwrap(),
        );
        let mut waits = Vec::new();
        for _ in 0..8 {
            let client = Client::connect(&server.url()).await.unwrap();
            let wait = client.mutex("mutex").lock();
            waits.push(tokio::spawn(async { wait.await.map(drop) }));
            let wait = client.fenced_mutex("fenced").lock();
            waits.push(tokio::spawn(async { wait.await.map(drop) }));
            let wait = client.plain_mutex("plain").lock();
            waits.push(tokio::spawn(async { wait.await.map(drop) }));
            let wait = client.rw_lock("rw").write();
            waits.push(tokio::spawn(async { wait.await.map(drop) }));
        }
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            let waiting = [
                holder.mutex("mutex").status().await.unwrap(),
                holder.fenced_mutex("fenced").status().await.unwrap(),
                holder.plain_mutex("plain").status().await.unwrap(),
                holder.rw_lock("rw").status().await.unwrap(),
            ]
            .map(|status| status.waiting_clients);
            if waiting == [8; 4] {
                break;
            }
            assert!(std::time::Instant::now() < deadline, "{waiting:?}");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        for wait in waits {
            wait.abort();
        }
        drop(guards);
    }
}
