//! A lease id has a hold or a place, in one form: also where requests come twice, and where a waiter that had a place asks without one,
//! since the server refuses its subscription.

use std::time::Duration;

use crate::common::{
    SOON, int, servers, soon, wait_until_idle,
    wire::{Monitor, queue, send_copy, until_queued},
};
use leasehold::Client;
use leasehold_testkit::{Server, wait_until_async};
use redis::ConnectionLike;

const LONG: Duration = Duration::from_secs(25);
const SHORT: Duration = Duration::from_millis(700);

const USER: [&str; 8] = ["ACL", "SETUSER", "w", "on", ">p", "~*", "&*", "+@all"];
const HEARS: [&str; 3] = ["subscribe", "ssubscribe", "psubscribe"];

/// A client whose rights are the user's.
async fn of_the_user(server: &Server) -> Client {
    server.cli(&USER);
    let url = server.url().replace("redis://", "redis://w:p@");
    Client::connect(&url).await.unwrap()
}

/// The user's clients hear nothing from here on.
fn deafen(server: &Server) {
    let without = HEARS.map(|right| format!("-{right}"));
    let without = without.each_ref().map(String::as_str);
    server.cli(&[&USER[..3], &without].concat());
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
}

/// Its drivers sleep: it has its places on the server.
async fn until_in_line(client: &Client) {
    let waits = || {
        let now = client.footprint();
        now.waiting > 0 && now.waiting == now.tasks && now.asking == 0
    };
    wait_until_async(SOON, "it is in line", waits).await;
}

/// The places of the read-write lock `name`.
fn places(server: &Server) -> Vec<String> {
    let keys = server.cli(&["KEYS", "leasehold:{name}:*queue"]);
    let keys: Vec<String> = redis::from_redis_value(keys).unwrap();
    let all = keys.iter().flat_map(|key| {
        let places = server.cli(&["LRANGE", key, "0", "-1"]);
        redis::from_redis_value::<Vec<String>>(places).unwrap()
    });
    all.collect()
}

/// A holder keeps nobody out by the place with which it had waited.
#[tokio::test]
async fn one_that_gets_the_lock_without_a_place_leaves_none() {
    for server in servers() {
        for writes in [true, false] {
            let waiter = of_the_user(&server).await;
            let holder = Client::connect(&server.url()).await.unwrap();
            let held = holder.rw_lock("name").fixed_lease(SHORT).write();
            let held = held.await.unwrap();
            let lock = waiter.rw_lock("name");
            let waits = tokio::spawn(async move {
                Ok::<_, leasehold::Error>(if writes {
                    (Some(lock.write().await?), None)
                } else {
                    (None, Some(lock.read().await?))
                })
            });
            until_in_line(&waiter).await;
            assert_eq!(places(&server).len(), 1);
            drop(held.detach());
            deafen(&server);
            let guard = soon("the waiter", waits).await.unwrap().unwrap();
            let case = format!("{}, writes: {writes}", server.flavor());
            assert_eq!(places(&server), [""; 0], "{case}");
            drop(guard);
            wait_until_idle(&waiter).await;
        }
    }
}

/// B4: the late copy of an ask without a place finds the name free, which its lease id waits for since.
macro_rules! without_a_place {
    ($test:ident, $kind:ident) => {
        #[tokio::test]
        async fn $test() {
            for server in servers() {
                let connect = async || Client::connect(&server.url()).await.unwrap();
                let (holder, waiter) = (connect().await, connect().await);
                let held = holder.$kind("name").lock().await.unwrap();
                let mut monitor = Monitor::start(&server);
                let waits = tokio::spawn(waiter.$kind("name").lock());
                until_in_line(&waiter).await;
                assert_eq!(places(&server).len(), 1);
                let first = monitor.calls(waiter.id()).remove(0);
                assert_eq!(int(&server, &["DEL", "name"]), 1); // as if its lease had ended
                send_copy(&server, &first);
                let case = server.flavor();
                assert_eq!(places(&server), [""; 0], "{case}: it holds, and waits");
                waits.abort();
                drop(held);
                wait_until_idle(&waiter).await;
            }
        }
    };
}

without_a_place!(one_that_holds_a_mutex_has_no_place, mutex);
without_a_place!(one_that_holds_a_fenced_mutex_has_no_place, fenced_mutex);
without_a_place!(one_that_holds_a_plain_mutex_has_no_place, plain_mutex);

/// However a place was left to one that holds the name: it keeps no reader out, and gives nothing a second time.
#[tokio::test]
async fn a_place_of_one_that_holds_the_lock_is_worth_nothing() {
    for server in servers() {
        let connect = async || Client::connect(&server.url()).await.unwrap();
        let (mine, other) = (connect().await, connect().await);
        // The client is heard.
        let mut hears = server.connection();
        let inbox = format!("leasehold:{{name}}:rw:grant:{}", mine.id());
        let mut subscribe = redis::cmd("SUBSCRIBE");
        hears
            .req_packed_command(&subscribe.arg(&inbox).get_packed_command())
            .unwrap();
        let writes = mine.rw_lock("name").write().await.unwrap();
        let key = "leasehold:{name}:rw:queue";
        server.cli(&["RPUSH", key, &format!("{} 30000 1", writes.owner())]);
        let reads = writes.downgrade().await.unwrap();
        let second = other.rw_lock("name").try_read().await.unwrap();
        assert!(second.is_some(), "it reads beside a reader");
        drop(second);
        reads.release().await.unwrap();
        wait_until_idle(&other).await;
        assert_eq!(int(&server, &["EXISTS", "name"]), 0, "a hold is left");
        server.cli(&["DEL", key]);
    }
}

/// L3: the only place is put back by a reader that may tell none.
#[tokio::test]
async fn a_queue_whose_only_place_is_put_back_ends() {
    for server in servers() {
        let mute = of_the_user(&server).await;
        server.cli(&[&USER[..3], &["-publish"]].concat());
        let connect = async || Client::connect(&server.url()).await.unwrap();
        let (holder, waiter) = (connect().await, connect().await);
        let held = holder.rw_lock("name").fixed_lease(LONG).write();
        let held = held.await.unwrap();
        let waits = tokio::spawn(waiter.rw_lock("name").read());
        until_in_line(&waiter).await;
        let key = "leasehold:{name}:rw:queue";
        assert_eq!(int(&server, &["LLEN", key]), 1);
        assert_eq!(int(&server, &["DEL", "name"]), 1); // as if its lease had ended
        let reads = mute.rw_lock("name").read().await.unwrap();
        let (there, ends) = (int(&server, &["LLEN", key]), int(&server, &["PTTL", key]));
        assert_eq!(there, 1, "{}: it has its place", server.flavor());
        assert!(ends > 0, "{}: PTTL {ends}", server.flavor());
        waits.abort();
        drop((held, reads));
    }
}

/// L3, B5: the answer to an ask without a place says nothing of the place that an earlier ask took.
#[tokio::test]
async fn a_waiter_that_is_dropped_leaves_no_place_of_an_earlier_ask() {
    for server in servers() {
        let waiter = of_the_user(&server).await;
        let holder = Client::connect(&server.url()).await.unwrap();
        let held = holder.mutex("name").lock().await.unwrap();
        let waits = tokio::spawn(waiter.mutex("name").lock());
        until_queued(&server, 1).await;
        until_in_line(&waiter).await;
        let mut monitor = Monitor::start(&server);
        deafen(&server);
        // EVALSHA, the hash, 2, two keys, the owner and the lease; no number of its ask: it takes no place.
        let without = |call: &&Vec<String>| call.len() == 7;
        let mut asked = || monitor.calls(waiter.id()).iter().filter(without).count();
        // The second is sent when the first is answered.
        wait_until_async(SOON, "it asks without a place", || asked() > 1).await;
        waits.abort();
        wait_until_idle(&waiter).await;
        let left = queue(&server, "name");
        assert_eq!(left, [""; 0], "{}", server.flavor());
        drop(held);
    }
}

/// Another program has written our queue's key: that keeps none from a free name who does not ask for a place.
#[tokio::test]
async fn a_queue_that_cannot_be_read_keeps_none_from_a_free_name() {
    for server in servers() {
        server.cli(&["SET", "leasehold:{name}:rw:queue", "of another program"]);
        let client = Client::connect(&server.url()).await.unwrap();
        let writes = client.rw_lock("name").try_write().await.unwrap();
        let guard = writes.expect("it is free");
        let other = Client::connect(&server.url()).await.unwrap();
        assert!(other.rw_lock("name").try_write().await.unwrap().is_none());
        drop(guard);
        wait_until_idle(&client).await;
    }
}
