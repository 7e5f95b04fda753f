//! A reply that is lost, in whole or in part: the request is sent again, and nothing happens twice.

use std::time::Duration;

use crate::common;
use crate::common::{
    World, assert_nothing_left, int,
    late::unless_late_async,
    owners, servers, soon, wait_until_idle,
    wire::{Monitor, until_queued},
};
use leasehold::{Client, ErrorKind, Owner, Released};
use leasehold_testkit::{Proxy, Server, wait_until_async};

const SOON: Duration = Duration::from_secs(10);

/// A client behind a proxy, whose server knows all scripts: from now on a reply is the reply.
async fn behind(proxy: &Proxy) -> Client {
    let client = Client::builder()
        .url(proxy.url())
        .label("behind")
        .connect()
        .await
        .unwrap();
    let owner = Owner::new();
    let mutex = client.mutex("warm-up").owned_by(&owner);
    let (outer, inner) = (mutex.lock().await.unwrap(), mutex.lock().await.unwrap());
    drop((outer, inner));
    let fixed = client
        .mutex("warm-up")
        .fixed_lease(SOON)
        .lock()
        .await
        .unwrap();
    fixed.extend(SOON).await.unwrap();
    drop(fixed);
    wait_until_idle(&client).await;
    client
}

/// How many bytes the client was sent while `work` ran.
async fn reply_length<T>(proxy: &Proxy, work: impl Future<Output = T>) -> (u64, T) {
    let before = proxy.bytes_to_client();
    let done = work.await;
    (proxy.bytes_to_client() - before, done)
}

#[tokio::test]
async fn an_acquire_whose_reply_is_cut_anywhere_is_granted_once() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = behind(&proxy).await;
        let (length, guard) = reply_length(&proxy, client.mutex("name").lock()).await;
        drop(guard.unwrap());
        wait_until_idle(&client).await;
        assert!((8..64).contains(&length), "{length} bytes are one reply");
        for bytes in 0..=length {
            let struck = proxy.struck();
            proxy.cut_reply_after(bytes);
            let guard = client.mutex("name").lock().await.unwrap();
            assert_eq!(proxy.struck(), struck + 1, "cut after {bytes} bytes");
            assert!(guard.is_valid());
            assert_eq!(owners(&server, "name"), [(guard.owner(), 1)], "{bytes}");
            assert!(int(&server, &["PTTL", "name"]) > 25_000);
            assert_eq!(guard.release().await.unwrap(), Released::Freed);
            assert_eq!(int(&server, &["EXISTS", "name"]), 0, "{bytes}");
        }
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "cut acquires").await;
    }
}

#[tokio::test]
async fn a_release_whose_reply_is_cut_anywhere_says_released_once() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = behind(&proxy).await;
        let guard = client.mutex("name").lock().await.unwrap();
        let (length, released) = reply_length(&proxy, guard.release()).await;
        assert_eq!(released.unwrap(), Released::Freed);
        for bytes in 0..=length {
            let guard = client.mutex("name").lock().await.unwrap();
            let struck = proxy.struck();
            proxy.cut_reply_after(bytes);
            assert_eq!(guard.release().await.unwrap(), Released::Freed);
            assert_eq!(int(&server, &["EXISTS", "name"]), 0, "{bytes}");
            wait_until_idle(&client).await;
            if bytes == length {
                proxy.heal();
            } else {
                assert_eq!(proxy.struck(), struck + 1, "cut after {bytes} bytes");
            }
        }
        assert_nothing_left(&server, "cut releases").await;
    }
}

#[tokio::test]
async fn a_release_whose_reply_is_lost_does_not_free_the_successor() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let (client, other) = (
            behind(&proxy).await,
            Client::connect(&server.url()).await.unwrap(),
        );
        let guard = client.mutex("name").lock().await.unwrap();
        let waiter = tokio::spawn(other.mutex("name").lock());
        wait_until_listening(&client, "name", 1).await;
        proxy.lose_replies(b"EVALSHA", 3);
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        assert_eq!(proxy.struck(), 3);
        let next = waiter.await.unwrap().unwrap();
        assert_eq!(owners(&server, "name"), [(next.owner(), 1)]);
        assert!(next.verify().await.is_ok());
        assert_eq!(next.release().await.unwrap(), Released::Freed);
    }
}

async fn wait_until_listening(client: &Client, name: &str, clients: u64) {
    let deadline = std::time::Instant::now() + SOON;
    while client.status(name).await.unwrap().waiting_clients != clients {
        assert!(
            std::time::Instant::now() < deadline,
            "nobody listens to {name}"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Local waiters, so that the release says under which id the client goes on, and the answer to it is lost.
#[tokio::test]
async fn a_kept_name_whose_reply_is_lost_goes_to_the_next_waiter_once() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = behind(&proxy).await;
        for rival in [false, true] {
            let mutex = client.mutex("name").handoff(leasehold::Handoff::off());
            let keeping = client
                .mutex("name")
                .handoff(leasehold::Handoff::new(1, Duration::from_micros(1)));
            for mutex in [mutex, keeping] {
                let other = Client::connect(&server.url()).await.unwrap();
                let guard = mutex.lock().await.unwrap();
                let next = tokio::spawn(mutex.lock());
                wait_until_async(SOON, "it waits", || client.footprint().queues == 1).await;
                let waiting = || async { client.status("name").await.unwrap().waiting_here };
                while waiting().await == 0 {
                    tokio::task::yield_now().await;
                }
                let third = rival.then(|| tokio::spawn(other.mutex("name").lock()));
                if rival {
                    // It listens before it has a place, and without a place it is not the first.
                    until_queued(&server, 1).await;
                }
                let struck = proxy.struck();
                proxy.lose_replies(b"EVALSHA", 2);
                assert_eq!(guard.release().await.unwrap(), Released::Freed);
                assert!(proxy.struck() >= struck + 2);
                if let Some(third) = third {
                    let third = soon("the first in line", third).await.unwrap().unwrap();
                    assert_eq!(owners(&server, "name"), [(third.owner(), 1)]);
                    assert_eq!(third.release().await.unwrap(), Released::Freed);
                }
                let next = soon("the next", next).await.unwrap().unwrap();
                assert_eq!(owners(&server, "name"), [(next.owner(), 1)]);
                assert_eq!(next.release().await.unwrap(), Released::Freed);
                wait_until_idle(&client).await;
                wait_until_idle(&other).await;
                assert_nothing_left(&server, "lost replies with waiters").await;
            }
        }
    }
}

/// A waiter behind another client: its requests are for a place in line, and their answers are cut.
#[tokio::test]
async fn a_waiter_whose_replies_are_cut_anywhere_gets_the_name_once() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = behind(&proxy).await;
        let holder = Client::connect(&server.url()).await.unwrap();
        let mut longest = 400;
        let mut bytes = 0;
        while bytes <= longest {
            let guard = holder.mutex("name").lock().await.unwrap();
            proxy.cut_reply_after(bytes);
            let before = proxy.bytes_to_client();
            let waiter = tokio::spawn(client.mutex("name").lock());
            wait_until_listening(&holder, "name", 1).await;
            assert_eq!(guard.release().await.unwrap(), Released::Freed);
            let guard = tokio::time::timeout(Duration::from_secs(5), waiter).await;
            let guard = guard.unwrap_or_else(|_| panic!("cut after {bytes} bytes: not woken"));
            let guard = guard.unwrap().unwrap();
            assert_eq!(owners(&server, "name"), [(guard.owner(), 1)], "{bytes}");
            if bytes == 0 {
                longest = longest.min(proxy.bytes_to_client() - before);
            }
            assert_eq!(guard.release().await.unwrap(), Released::Freed);
            wait_until_idle(&client).await;
            proxy.heal();
            bytes += 7;
        }
        wait_until_idle(&holder).await;
        assert_nothing_left(&server, "cut waits").await;
    }
}

/// A release by one of a crowd, which is sent together with something else (see `answer_last`), to another crowd.
#[tokio::test]
async fn a_release_in_a_crowd_whose_reply_is_cut_anywhere_passes_the_name_on_once() {
    /// "+PONG" and {2, 30000}: fewer than this, and something is missing. A refusal is longer than any cut here.
    const BOTH_ANSWERS: u64 = 7 + 16;
    const REFUSED_FROM: u64 = 24;
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = behind(&proxy).await;
        let other = Client::connect(&server.url()).await.unwrap();
        let crowded = |client: &Client| client.mutex("name").handoff(leasehold::Handoff::off());
        for bytes in 0..=48 {
            if bytes == REFUSED_FROM {
                // The server's answer to the other command does not matter, be it a refusal.
                server.cli(&["ACL", "SETUSER", "default", "-ping"]);
            }
            let first = crowded(&other).lock().await.unwrap();
            let here = [0, 1].map(|_| tokio::spawn(crowded(&client).lock()));
            let in_line = || int(&server, &["LLEN", "leasehold:{name}:queue"]) == 1;
            wait_until_async(SOON, "ours are in line", in_line).await;
            let there = tokio::spawn(crowded(&other).lock());
            while other.status("name").await.unwrap().waiting_here == 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(first.release().await.unwrap(), Released::Freed);
            let [second, last] = here;
            let second = second.await.unwrap().unwrap();
            // The other client hears that it is its turn, and only then; so it is in line behind us.
            wait_until_async(SOON, "the other is in line", in_line).await;

            let struck = proxy.struck();
            proxy.cut_reply_after(bytes);
            assert_eq!(second.release().await.unwrap(), Released::Freed);
            if !(BOTH_ANSWERS..REFUSED_FROM).contains(&bytes) {
                assert_eq!(proxy.struck(), struck + 1, "cut after {bytes} bytes");
            }
            let third = there.await.unwrap().unwrap();
            assert_eq!(owners(&server, "name"), [(third.owner(), 1)], "{bytes}");
            proxy.heal();
            assert_eq!(third.release().await.unwrap(), Released::Freed);
            let last = last.await.unwrap().unwrap();
            assert_eq!(owners(&server, "name"), [(last.owner(), 1)], "{bytes}");
            assert_eq!(last.release().await.unwrap(), Released::Freed);
            wait_until_idle(&client).await;
            wait_until_idle(&other).await;
        }
        assert!(
            server.calls()["ping"] >= REFUSED_FROM,
            "it was sent behind another"
        );
        assert_nothing_left(&server, "cut releases in a crowd").await;
    }
}

#[tokio::test]
async fn an_acquire_that_was_given_up_does_not_take_the_name_later() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = behind(&proxy).await;
        // The network holds the request back; the caller loses patience.
        proxy.stall(Some(leasehold_testkit::Way::ToServer));
        let wait = Duration::from_millis(100);
        let error = client.mutex("name").try_lock_for(wait).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
        assert!(error.to_string().contains("30.3"), "{error}");
        proxy.heal();
        wait_until_idle(&client).await;
        assert_eq!(int(&server, &["EXISTS", "name"]), 0);
        assert_nothing_left(&server, "a late acquire").await;
        assert!(client.mutex("name").try_lock().await.unwrap().is_some());
    }
}

/// The first script call of a lease that clients sent, word by word.
fn copy_of_acquire<'a>(sent: &'a [Vec<String>], owner: &str) -> Vec<&'a str> {
    let acquire = sent
        .iter()
        .find(|words| words[0] == "EVALSHA" && words.iter().any(|word| word.starts_with(owner)));
    let acquire = acquire.expect("the acquire was seen");
    acquire.iter().map(String::as_str).collect()
}

/// Only tombstones are there, and these end.
fn assert_only_tombstones(server: &Server) {
    let keys = common::keys(server);
    assert!(!keys.is_empty());
    for key in keys {
        assert!(key.contains(":gone:"), "{key}");
        assert!(int(server, &["PTTL", &key]) > 0, "{key}");
    }
}

#[tokio::test]
async fn a_late_copy_of_an_acquire_meets_the_tombstone_of_its_release() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = behind(&proxy).await;
        let mut monitor = Monitor::start(&server);
        proxy.lose_replies(b"EVALSHA", 1);
        let guard = client.mutex("name").lock().await.unwrap();
        let owner = guard.owner();
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        let sent = monitor.seen();
        // It arrives only now.
        server.cli(&copy_of_acquire(sent, &owner));
        assert_only_tombstones(&server);
    }
}

#[tokio::test]
async fn a_late_copy_of_an_acquire_that_was_given_up_meets_its_tombstone() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = behind(&proxy).await;
        let mut monitor = Monitor::start(&server);
        proxy.lose_replies(b"EVALSHA", usize::MAX);
        let wait = Duration::from_millis(200);
        let error = client.mutex("name").try_lock_for(wait).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
        // Its own task has given up, too; only now can it tell the server.
        wait_until_async(SOON, "it gave up", || client.footprint().queues == 0).await;
        proxy.heal();
        wait_until_idle(&client).await;
        let sent = monitor.seen();
        server.cli(&copy_of_acquire(sent, client.id()));
        assert_only_tombstones(&server);
        assert!(client.mutex("name").try_lock().await.unwrap().is_some());
    }
}

#[tokio::test]
async fn entering_again_survives_a_lost_reply() {
    for world in World::all() {
        let (client, lose): (Client, Box<dyn Fn(usize)>) = match &world {
            World::Memory(server) => {
                let server = server.clone();
                (
                    world.client().await,
                    Box::new(move |n| server.drop_replies(n)),
                )
            }
            World::Server(server) => {
                let proxy = Proxy::start(server.addr());
                let client = behind(&proxy).await;
                (client, Box::new(move |n| proxy.lose_replies(b"EVALSHA", n)))
            }
        };
        let owner = Owner::new();
        let mutex = client.mutex("name").owned_by(&owner);
        let outer = mutex.lock().await.unwrap();
        lose(1);
        let inner = mutex.lock().await.unwrap();
        let holds = || async {
            client
                .status("name")
                .await
                .unwrap()
                .holder()
                .cloned()
                .map_or(0, |h| h.holds)
        };
        assert_eq!(holds().await, 2, "{}", world.name());
        assert_eq!(
            inner.release().await.unwrap(),
            Released::StillHeld { holds: 1 }
        );
        assert!(outer.is_valid());
        assert_eq!(outer.release().await.unwrap(), Released::Freed);
        wait_until_idle(&client).await;
        assert_eq!(world.held(), [""; 0]);
    }
}

#[tokio::test]
async fn a_lost_answer_to_extend_leaves_the_end_that_was_known() {
    for world in World::all() {
        let (client, lose): (Client, Box<dyn Fn()>) = match &world {
            World::Memory(server) => {
                let server = server.clone();
                (
                    world.client().await,
                    Box::new(move || server.drop_replies(1)),
                )
            }
            World::Server(server) => {
                let proxy = Proxy::start(server.addr());
                let client = behind(&proxy).await;
                (client, Box::new(move || proxy.lose_replies(b"EVALSHA", 1)))
            }
        };
        for (first, second) in [(20, 60), (60, 20)] {
            let [first, second] = [first, second].map(Duration::from_secs);
            let nearly = first.max(second).mul_f64(0.9);
            let guard = client
                .mutex("name")
                .fixed_lease(first)
                .lock()
                .await
                .unwrap();
            lose();
            let error = guard.extend(second).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
            assert!(guard.is_valid(), "{}", world.name());
            let left = guard.remaining();
            assert!(left <= first, "{}: {left:?}", world.name());
            // The server carried it out, and took the later end.
            let on_server = client
                .status("name")
                .await
                .unwrap()
                .holder()
                .cloned()
                .unwrap();
            assert!(on_server.remaining.unwrap() > nearly);
            // Asked again, it is certain.
            guard.extend(second).await.unwrap();
            assert!(guard.remaining() > nearly);
            assert_eq!(guard.release().await.unwrap(), Released::Freed);
        }
    }
}

#[tokio::test]
async fn a_renewal_whose_reply_is_lost_is_sent_again_in_time() {
    for server in servers() {
        unless_late_async("renewals", LEASE / 3, async || renewed(&server).await).await;
    }
}

const LEASE: Duration = Duration::from_millis(900);

/// A reply to a renewal is lost again and again, and the next is in time.
async fn renewed(server: &Server) -> Result<(), String> {
    let proxy = Proxy::start(server.addr());
    let client = behind(&proxy).await;
    let guard = client.mutex("name").lease(LEASE).lock().await.unwrap();
    let mut events = client.events();
    for _ in 0..5 {
        proxy.lose_replies(b"EVALSHA", 1);
        loop {
            let event = events.recv().await.unwrap();
            match event.kind {
                leasehold::EventKind::Renewed { .. } => break,
                leasehold::EventKind::RenewalFailed => {}
                other => return Err(format!("{other:?}")),
            }
        }
    }
    assert!(proxy.struck() >= 4);
    assert_eq!(owners(server, "name"), [(guard.owner(), 1)]);
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
    Ok(())
}

#[tokio::test]
async fn a_release_that_gets_no_answer_says_when_the_name_is_free_and_goes_on() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = Client::builder()
            .url(proxy.url())
            .operation_timeout(Duration::from_millis(200))
            .connect()
            .await
            .unwrap();
        let guard = client.mutex("name").lock().await.unwrap();
        proxy.lose_replies(b"", usize::MAX);
        let released = guard.release().await.unwrap();
        assert!(
            matches!(released, Released::Unconfirmed { .. }),
            "{released:?}"
        );
        proxy.heal();
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "an unconfirmed release").await;
    }
}

#[tokio::test]
async fn a_release_that_cannot_be_sent_is_sent_later() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = Client::builder()
            .url(proxy.url())
            .operation_timeout(Duration::from_millis(200))
            .connect()
            .await
            .unwrap();
        let guard = client.mutex("name").lock().await.unwrap();
        proxy.refuse(true);
        proxy.cut();
        wait_until_async(SOON, "it is cut", || proxy.connections() == 0).await;
        // The first command after the cut notices it, and may be ambiguous: let that be another one's.
        while client.status("other").await.unwrap_err().kind() != ErrorKind::NotSent {}
        let released = guard.release().await.unwrap();
        assert!(
            matches!(released, Released::Unconfirmed { .. }),
            "{released:?}"
        );
        assert_eq!(int(&server, &["EXISTS", "name"]), 1);
        proxy.heal();
        wait_until_idle(&client).await;
        assert_eq!(int(&server, &["EXISTS", "name"]), 0);
    }
}
