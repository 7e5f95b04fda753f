//! The schedules that have broken Leasehold, 7 to 10: no holder was misled, but a waiter failed, waited in vain, or left
//! something behind. See `schedules.rs`.

use std::time::Duration;

use crate::common::{
    ByHand, SOON, World, channels, release, servers, soon, until_listening, until_waiting_here,
    wait_until_idle, wire::Network,
};
use leasehold::Client;
use leasehold_testkit::{Flavor, Proxy, Server, Way, wait_until_async};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

// ---- 7 ----

/// Schedule 7 (L4): a lease that is over before its answer is here is an error of the caller that asked for it.
#[tokio::test]
async fn a_lease_that_is_too_short_for_the_network_fails_its_own_waiter_only() {
    for world in World::all() {
        for held in [false, true] {
            let case = format!("{}, held: {held}", world.name());
            let network = Network::to(&world);
            let (client, other) = (network.client().await, world.client().await);
            let mut holder = None;
            if held {
                holder = Some(other.mutex("name").lock().await.unwrap());
            }
            network.delay(60 * MS);
            let short = tokio::spawn(client.mutex("name").lease(50 * MS).lock());
            wait_until_async(SOON, "it asks", || client.footprint().queues == 1).await;
            let long = tokio::spawn(client.mutex("name").lease(30 * SECOND).lock());
            if held {
                until_waiting_here(&client, 2).await;
            }
            drop(holder);
            let refused = soon(&case, short).await.unwrap();
            assert!(refused.is_err(), "{case}: {refused:?}");
            let guard = soon(&case, long).await.unwrap();
            release(guard.unwrap_or_else(|error| panic!("{case}: {error}"))).await;
            wait_until_idle(&client).await;
        }
    }
}

/// Schedule 7 (L4): an outage fails no waiter without a limit, for any lease that it or another asks for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_longer_than_a_waiters_lease_fails_no_lock() {
    for world in World::all() {
        for in_line in [false, true] {
            let case = format!("{}, in line: {in_line}", world.name());
            let network = Network::to(&world);
            let builder = network.builder().operation_timeout(200 * MS);
            let client = builder.connect().await.unwrap();
            let other = world.client().await;
            let holder = other.mutex("name").lock().await.unwrap();
            if !in_line {
                network.go_down();
            }
            let locks = [300 * MS, 30 * SECOND, 300 * MS];
            let locks = locks.map(|lease| {
                let lock = client.mutex("name").lease(lease).lock();
                tokio::spawn(async { lock.await.map(drop) })
            });
            if in_line {
                until_waiting_here(&client, 3).await;
                until_listening(&other, 1).await;
                network.go_down();
            }
            tokio::time::sleep(1500 * MS).await; // the outage
            network.heal();
            release(holder).await;
            for lock in locks {
                let locked = soon(&case, lock).await.unwrap();
                locked.unwrap_or_else(|error| panic!("{case}: {error}"));
            }
            wait_until_idle(&client).await;
        }
    }
}

/// Schedule 7: a server that loads its data answers each time, and says no.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_without_a_limit_waits_until_the_server_has_loaded_its_data() {
    for flavor in Flavor::available() {
        let slowly = ["--key-load-delay", "1000"];
        let often = ["--loading-process-events-interval-bytes", "1024"];
        let mut server = Server::start_with(flavor, &[slowly, often].concat());
        let client = Client::connect(&server.url()).await.unwrap();
        let fill =
            "for i = 1, 1500 do redis.call('SET', 'leasehold:' .. i, string.rep('x', 99)) end";
        server.cli(&["EVAL", fill, "0"]);
        server.cli(&["SAVE"]);
        server.kill();
        let short = tokio::spawn(client.mutex("short").lease(300 * MS).lock());
        let long = tokio::spawn(client.mutex("long").lock());
        let server = tokio::task::spawn_blocking(move || {
            server.restart();
            server
        });
        let mut refused = false;
        while !server.is_finished() {
            let looked = client.status("short").await;
            refused |= looked.is_err_and(|error| error.to_string().contains("loading"));
        }
        assert!(refused, "{flavor} loaded too fast to be seen");
        for lock in [short, long] {
            let guard = soon("it has loaded", lock).await.unwrap();
            drop(guard.unwrap_or_else(|error| panic!("{flavor}: {error}")));
        }
        drop(server.await);
    }
}

// ---- 8 ----

/// Schedule 8 (L3): the `SUBSCRIBE` has arrived, or has not, and its answer is on its way when the waiter leaves.
#[tokio::test]
async fn a_waiter_that_leaves_while_its_subscription_is_pending_leaves_no_channel() {
    for server in servers() {
        let holder = Client::connect(&server.url()).await.unwrap();
        let guard = holder.mutex("name").lock().await.unwrap();
        for (known, pending) in [(true, true), (true, false), (false, false)] {
            let case = format!("{}, {known}, {pending}", server.flavor());
            let proxy = Proxy::start(server.addr());
            let builder = Client::builder().url(proxy.url());
            let client = builder.operation_timeout(300 * MS).connect().await.unwrap();
            let elsewhere = holder.mutex("other").lock().await.unwrap();
            let listening = tokio::spawn(client.mutex("other").lock());
            if known {
                // Its connection for wake-ups is there.
                until_channels(&server, 3).await;
            } else {
                listening.abort();
                wait_until_idle(&client).await;
            }
            let subscribed = server.calls()["subscribe"];
            proxy.delay(50 * MS);
            let waiter = tokio::spawn(client.mutex("name").lock());
            if pending {
                wait_until_async(SOON, "it subscribes", || {
                    server.calls()["subscribe"] > subscribed
                })
                .await;
            } else {
                // Its answers stay away for longer than it waits for them.
                let heard = proxy.bytes_to_client();
                wait_until_async(SOON, "it hears", || proxy.bytes_to_client() > heard).await;
                proxy.stall(Some(Way::ToClient));
            }
            waiter.abort();
            if !pending {
                tokio::time::sleep(400 * MS).await; // longer than the operation timeout
            }
            proxy.heal();
            listening.abort();
            wait_until_idle(&client).await;
            let told = format!("{case}: no channel is left");
            wait_until_async(SOON, &told, || channels(&server).is_empty()).await;
            drop(elsewhere);
        }
        release(guard).await;
    }
}

async fn until_channels(server: &Server, count: usize) {
    wait_until_async(SOON, "it listens", || channels(server).len() == count).await;
}

// ---- 9 ----

/// Schedule 9: callers that do not wait are answered, even if the release they came in has no answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_lock_that_meets_a_release_without_an_answer_is_answered() {
    for world in World::all() {
        let network = Network::to(&world);
        let builder = network.builder().operation_timeout(200 * MS);
        let client = builder.connect().await.unwrap();
        let guard = client.mutex("name").lock().await.unwrap();
        network.go_down();
        let releasing = tokio::spawn(guard.release());
        tokio::time::sleep(20 * MS).await; // it is under way
        let once = client.mutex("name").try_lock();
        // A silent server is given the operation timeout: once by the release, once by the attempt.
        let answer = tokio::time::timeout(SECOND, once).await;
        let answer = answer.unwrap_or_else(|_| panic!("{}: try_lock waits", world.name()));
        assert!(!matches!(answer, Ok(Some(_))), "{answer:?}");
        network.heal();
        drop(releasing.await);
        let guard = soon("the release is repeated", client.mutex("name").lock()).await;
        // The driver has asked over a connection of its own. This runtime's is made anew after a pause that may be longer
        // than an operation may take.
        soon("the connection", async {
            while client.status("name").await.is_err() {}
        })
        .await;
        release(guard.unwrap()).await;
        wait_until_idle(&client).await;
    }
}

// ---- 10 ----

/// Schedule 10: the answer is about the hold that was there when the server was asked.
#[tokio::test]
async fn a_force_unlock_that_is_answered_late_does_not_end_a_newer_hold() {
    for world in World::all() {
        let network = Network::to(&world);
        let client = network.client().await;
        client.force_unlock("name").await.unwrap(); // its script is known
        let first = client.mutex("name").lock().await.unwrap();
        network.delay(20 * MS);
        let mut unlock = ByHand::new(client.force_unlock("name"));
        while !world.held().is_empty() {
            assert!(unlock.poll().is_pending());
            unlock.woken_or(|| world.held().is_empty()).await;
        }
        network.heal();
        // The answer is here, but this task does not get to it.
        assert!(first.verify().await.is_err());
        let second = soon("it is free", client.mutex("name").lock())
            .await
            .unwrap();
        let unlocked = loop {
            match unlock.poll() {
                std::task::Poll::Ready(answer) => break answer,
                std::task::Poll::Pending => unlock.woken().await,
            }
        };
        assert!(unlocked.unwrap());
        assert!(
            second.is_valid(),
            "{}: ended by an old answer",
            world.name()
        );
        assert!(second.verify().await.is_ok());
        release(second).await;
    }
}
