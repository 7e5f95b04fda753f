//! Schedules that a model of the queue found, and those that were suspected from it; see `schedules.rs`.

use std::time::Duration;

use crate::common;
use crate::common::{
    SOON, World, int, owners, release, servers, soon, until_waiting_here, wait_until_idle,
    wire::{Monitor, Network, assert_belief, queue, say_granted, send_copy, until_queued},
};
use leasehold::{Client, Handoff, Shutdown};
use leasehold_testkit::{Proxy, Server, wait_until_async};
use redis::ConnectionLike;

const SECOND: Duration = Duration::from_secs(1);

/// Found in the model (B4): a copy of a request to wait comes when no task waits any more, and another client holds the name.
#[tokio::test]
async fn a_late_ask_of_a_waiter_that_has_left_takes_no_place() {
    for server in servers() {
        let holder = Client::connect(&server.url()).await.unwrap();
        let builder = Client::builder().url(server.url()).may_duplicate(true);
        let client = builder.connect().await.unwrap();
        let guard = holder.mutex("name").lock().await.unwrap();
        let mut monitor = Monitor::start(&server);
        let waiter = tokio::spawn(client.mutex("name").lock());
        until_queued(&server, 1).await;
        let asks = monitor.calls(client.id());
        assert!(asks.len() >= 2, "it asked for the name, and for a place");
        waiter.abort();
        wait_until_idle(&client).await;
        for ask in &asks {
            send_copy(&server, ask);
            assert_eq!(queue(&server, "name"), [""; 0], "{}", server.flavor());
        }
        release(guard).await;
        for ask in &asks {
            send_copy(&server, ask);
            assert_eq!(int(&server, &["EXISTS", "name"]), 0, "{}", server.flavor());
        }
    }
}

/// A release that may leave the name with its client, for `next`, as it was sent.
struct Sent {
    words: Vec<String>,
    owner: String,
    next: String,
}

/// Has such a release sent, and leaves the server empty.
async fn a_release_that_goes_on(server: &Server) -> Sent {
    let (client, other) = (
        Client::connect(&server.url()).await.unwrap(),
        Client::connect(&server.url()).await.unwrap(),
    );
    // On, and over at once: each release goes to the server, and says who is next.
    let handoff = Handoff::new(64, Duration::from_micros(1));
    let mutex = client.mutex("name").handoff(handoff);
    let held = other.mutex("name").lock().await.unwrap();
    let first = tokio::spawn(mutex.lock());
    until_queued(server, 1).await;
    let second = tokio::spawn(mutex.lock());
    until_waiting_here(&client, 2).await;
    release(held).await;
    let guard = soon("the first", first).await.unwrap().unwrap();
    let owner = guard.owner();
    let another = tokio::spawn(other.mutex("name").lock());
    until_queued(server, 1).await;
    let mut monitor = Monitor::start(server);
    release(guard).await;
    let words = monitor.calls(&owner).remove(0);
    drop(soon("the other", another).await.unwrap().unwrap());
    let guard = soon("the second", second).await.unwrap().unwrap();
    let next = guard.owner();
    release(guard).await;
    wait_until_idle(&client).await;
    wait_until_idle(&other).await;
    assert!(words.contains(&next), "it says who is next: {words:?}");
    server.cli(&["FLUSHALL"]);
    Sent { words, owner, next }
}

/// The owner of the release holds the name (again).
fn let_hold(server: &Server, owner: &str) {
    server.cli(&["HSET", "name", owner, "1"]);
    server.cli(&["PEXPIRE", "name", "30000"]);
}

/// A listener, until it is dropped.
fn listener(server: &Server, channel: &str) -> redis::Connection {
    let mut connection = server.connection();
    let mut subscribe = redis::cmd("SUBSCRIBE");
    connection
        .req_packed_command(&subscribe.arg(channel).get_packed_command())
        .unwrap();
    connection
}

/// Found in the model (B4): the release is late, and its next has been given up.
#[tokio::test]
async fn a_late_release_does_not_revive_a_next_that_was_given_up() {
    for server in servers() {
        let sent = a_release_that_goes_on(&server).await;
        let number = sent.next.rsplit(':').next().unwrap();
        for gone in [&sent.next, number] {
            server.cli(&["SET", &format!("leasehold:{{name}}:gone:{gone}"), "1"]);
        }
        let channel = "redisson_lock__channel:{name}";
        for others in [0, 3] {
            let _waits: Vec<_> = (0..others).map(|_| listener(&server, channel)).collect();
            let_hold(&server, &sent.owner);
            send_copy(&server, &sent.words);
            let case = format!("{}, {others} others", server.flavor());
            assert_eq!(owners(&server, "name"), [], "{case}: it holds");
            assert_eq!(queue(&server, "name"), [""; 0], "{case}: it waits");
        }
    }
}

/// Found in the model (B5): the answer by which an id was closed is older than the grant.
#[tokio::test]
async fn a_grant_for_an_id_that_waits_no_more_is_given_back() {
    for server in servers() {
        let (client, other) = (
            Client::connect(&server.url()).await.unwrap(),
            Client::connect(&server.url()).await.unwrap(),
        );
        let held = other.mutex("name").lock().await.unwrap();
        let leaves = tokio::spawn(client.mutex("name").lock());
        until_queued(&server, 1).await;
        let place = queue(&server, "name").remove(0);
        leaves.abort();
        wait_until_idle(&client).await;
        let stays = tokio::spawn(client.mutex("name").lock());
        until_queued(&server, 1).await;
        // As if the server had given it the name at the last moment.
        server.cli(&["DEL", "name"]);
        let_hold(&server, place.split(' ').next().unwrap());
        say_granted(&server, "name", &place);
        let guard = tokio::time::timeout(SECOND, stays).await;
        let guard = guard.unwrap_or_else(|_| panic!("{}: held for no one", server.flavor()));
        release(guard.unwrap().unwrap()).await;
        drop(held);
    }
}

/// Until the client has heard everything that was said to it before: it is heard in order, and so is the answer to a
/// `SUBSCRIBE`, on which its place in the queue for `mark` waits.
async fn until_heard(server: &Server, client: &Client, other: &Client) {
    let guard = other.mutex("mark").lock().await.unwrap();
    let waiter = tokio::spawn(client.mutex("mark").lock());
    wait_until_async(SOON, "it waits", || queue(server, "mark").len() == 1).await;
    release(guard).await;
    release(soon("mark", waiter).await.unwrap().unwrap()).await;
}

/// Suspected (B3): the message by which the holder got the name comes once more, while it holds it and while it releases it.
#[tokio::test]
async fn a_grant_for_the_present_hold_changes_nothing() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let (client, other) = (
            Client::connect(&proxy.url()).await.unwrap(),
            Client::connect(&server.url()).await.unwrap(),
        );
        let mutex = client.mutex("name").handoff(Handoff::off());
        let held = other.mutex("name").lock().await.unwrap();
        let first = tokio::spawn(mutex.lock());
        until_queued(&server, 1).await;
        let place = queue(&server, "name").remove(0);
        let second = tokio::spawn(mutex.lock());
        until_waiting_here(&client, 2).await;
        release(held).await;
        let guard = soon("the first", first).await.unwrap().unwrap();
        say_granted(&server, "name", &place);
        until_heard(&server, &client, &other).await;
        wait_until_async(SOON, "nothing else goes on", || {
            client.footprint().tasks == 0
        })
        .await;
        assert_eq!(owners(&server, "name"), [(guard.owner(), 1)]);
        guard.verify().await.unwrap();
        // The release does not leave; wake-ups are heard.
        proxy.lose_requests(b"EVALSHA", usize::MAX);
        let releasing = tokio::spawn(guard.release());
        let struck = proxy.struck();
        while proxy.struck() == struck {
            tokio::task::yield_now().await;
        }
        say_granted(&server, "name", &place);
        let struck = proxy.struck();
        while proxy.struck() < struck + 2 {
            tokio::task::yield_now().await;
        }
        proxy.heal();
        let released = soon("the release", releasing).await.unwrap();
        assert!(released.is_ok(), "{released:?}");
        let guard = soon("the second", second).await.unwrap().unwrap();
        assert_belief(&guard, &other, "after a late grant").await;
        assert!(guard.is_valid());
        release(guard).await;
        wait_until_idle(&client).await;
        assert_eq!(common::channels(&server), [""; 0]);
    }
}

/// Suspected (B4): a copy of its acquire comes after the hold was lost, however it was lost.
#[tokio::test]
async fn a_late_acquire_after_a_loss_takes_nothing() {
    for server in servers() {
        for shut_down in [false, true] {
            let proxy = Proxy::start(server.addr());
            let (client, other) = (
                Client::connect(&proxy.url()).await.unwrap(),
                Client::connect(&server.url()).await.unwrap(),
            );
            let mut monitor = Monitor::start(&server);
            drop(client.mutex("name").lock().await.unwrap()); // the script is known
            wait_until_idle(&client).await;
            proxy.lose_replies(b"EVALSHA", 1);
            let guard = client.mutex("name").lock().await.unwrap();
            let copies = monitor.calls(&guard.owner());
            assert_eq!(copies.len(), 2, "a copy may be under way");
            if shut_down {
                let grace = Duration::ZERO;
                client.shutdown(Shutdown::ReleaseAll { grace }).await;
            } else {
                assert!(other.force_unlock("name").await.unwrap());
                assert!(guard.verify().await.is_err());
            }
            drop(guard);
            wait_until_idle(&client).await;
            for copy in &copies {
                send_copy(&server, copy);
                let case = format!("{}, shut down: {shut_down}", server.flavor());
                assert_eq!(int(&server, &["EXISTS", "name"]), 0, "{case}");
            }
        }
    }
}

/// Suspected (B1, B6): nothing of the hold comes back when its release fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_fails_during_a_shutdown_ends_and_is_repeated() {
    for world in World::all() {
        let network = Network::to(&world);
        let builder = network.builder();
        let builder = builder.operation_timeout(Duration::from_millis(200));
        let client = builder.connect().await.unwrap();
        let other = world.client().await;
        let guard = client.mutex("name").lock().await.unwrap();
        network.go_down();
        let releasing = tokio::spawn(guard.release());
        let grace = Duration::ZERO;
        let shutdown = client.shutdown(Shutdown::ReleaseAll { grace });
        soon("the shutdown", shutdown).await;
        drop(soon("the release", releasing).await.unwrap());
        network.heal();
        let guard = other.mutex("name").try_lock_for(2 * SECOND).await.unwrap();
        release(guard.unwrap_or_else(|| panic!("{}: not repeated", world.name()))).await;
        wait_until_idle(&client).await;
    }
}
