//! Findings of an adversary's programs, and of the time when their tests were written: rows 40 to 46, 53, 54, 60
//! and 70 of docs/bugs.md, a test for each. See `schedules.rs`.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};

use crate::common::{
    ByHand, SOON, World, assert_lost, assert_nothing_left, channels, int, keys,
    late::unless_late_async,
    owners, release, restricted, servers, soon, until_waiting_here, wait_until_idle,
    wire::{Monitor, Network, queue, script_calls, send_copy, until_queued},
    without_runtime,
};
use futures_util::FutureExt as _;
use leasehold::{Client, ErrorKind, Footprint, LostReason, MemoryServer, Released, Shutdown};
use leasehold_testkit::{Lane, Proxy, Server, Way, wait_until, wait_until_async};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

const AT_ONCE: Shutdown = Shutdown::ReleaseAll {
    grace: Duration::ZERO,
};

// ---- 40: a name in braces ----

/// Redisson's channel of `{name}` is that of `name`, and nothing else is.
#[tokio::test]
async fn a_release_of_a_name_does_not_give_away_the_same_name_in_braces() {
    for server in servers() {
        let client = async || Client::connect(&server.url()).await.unwrap();
        let (inner, outer, waiter) = (client().await, client().await, client().await);
        let held = outer.mutex("{name}").lock().await.unwrap();
        let other = inner.mutex("name").lock().await.unwrap();
        let waiting = tokio::spawn(waiter.mutex("{name}").lock());
        wait_until_async(SOON, "it has a place", || {
            keys(&server).iter().any(|key| key.ends_with(":queue"))
        })
        .await;
        release(other).await;
        // It hears of that, and looks at what it waits for; or believes that it has it.
        let calls = script_calls(&server);
        wait_until_async(SOON, "it asks again", || {
            waiting.is_finished() || script_calls(&server) > calls
        })
        .await;
        assert!(!waiting.is_finished(), "{}: two hold it", server.flavor());
        assert_eq!(owners(&server, "{name}"), [(held.owner(), 1)]);
        release(held).await;
        release(soon("its own name", waiting).await.unwrap().unwrap()).await;
        wait_until_idle(&waiter).await;
        assert_nothing_left(&server, "names in braces").await;
    }
}

/// A client waits for both, and one of its waiters leaves.
#[tokio::test]
async fn a_waiter_that_leaves_does_not_make_the_same_name_in_braces_deaf() {
    for server in servers() {
        let holder = Client::connect(&server.url()).await.unwrap();
        let client = Client::connect(&server.url()).await.unwrap();
        let (inner, outer) = (
            holder.mutex("name").lock().await.unwrap(),
            holder.mutex("{name}").lock().await.unwrap(),
        );
        let stays = tokio::spawn(client.mutex("{name}").lock());
        let leaves = tokio::spawn(client.mutex("name").lock());
        until_queued(&server, 1).await;
        wait_until_async(SOON, "it listens for both", || channels(&server).len() == 5).await;
        leaves.abort();
        wait_until_async(SOON, "it does not listen for one", || {
            let of_one = |channel: &String| channel.starts_with("leasehold:{name}:");
            !channels(&server).iter().any(of_one)
        })
        .await;
        // As Redisson does.
        let calls = script_calls(&server);
        let publish = ["PUBLISH", "redisson_lock__channel:{name}", "0"];
        assert_eq!(int(&server, &publish), 1, "{}", server.flavor());
        wait_until_async(SOON, "it asks", || script_calls(&server) > calls).await;
        assert!(!stays.is_finished());
        release(outer).await;
        release(soon("its turn", stays).await.unwrap().unwrap()).await;
        release(inner).await;
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "names in braces").await;
    }
}

// ---- 41: detach ----

/// The waiter has learned by asking that the name is its own, and has left it to expire, when the grant is heard.
#[tokio::test]
async fn a_grant_that_is_heard_after_detach_gives_nothing_back() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let holder = Client::connect(&server.url()).await.unwrap();
        let builder = Client::builder().url(proxy.url()).poll_every(200 * MS);
        let client = builder.connect().await.unwrap();
        let (guard, elsewhere) = (
            holder.mutex("name").lock().await.unwrap(),
            holder.mutex("other").lock().await.unwrap(),
        );
        let first = tokio::spawn(client.mutex("name").fixed_lease(20 * SECOND).lock());
        until_queued(&server, 1).await;
        // So that the client listens for the name until the end.
        let second = tokio::spawn(client.mutex("name").lock());
        until_waiting_here(&client, 2).await;

        proxy.stall_lane(Lane::Subscriptions, Some(Way::ToClient));
        release(guard).await;
        let guard = soon("it asks", first).await.unwrap().unwrap();
        let detached = guard.detach();
        proxy.heal();
        // The connection carries the next subscription behind the grant, which has been heard by then.
        let behind = tokio::spawn(client.mutex("other").lock());
        wait_until_async(SOON, "it hears of another name", || {
            queue(&server, "other").len() == 1
        })
        .await;
        behind.abort();
        wait_until_async(SOON, "what it has begun is done", || {
            client.footprint().tasks <= 1 // the driver of the second waiter
        })
        .await;
        assert_eq!(
            owners(&server, "name"),
            [(detached.owner, 1)],
            "{}",
            server.flavor()
        );
        assert!(int(&server, &["PTTL", "name"]) > 15_000);
        assert!(!second.is_finished());

        second.abort();
        wait_until_idle(&client).await;
        release(elsewhere).await;
        assert!(holder.force_unlock("name").await.unwrap());
        assert_nothing_left(&server, "a late grant").await;
    }
}

// ---- 42: run ----

/// Timers stand still while the machine sleeps, and so may come long after the end of the lease. Here: a clock that has
/// been stepped, and timers that have had no turn since.
#[tokio::test(start_paused = true)]
async fn run_does_not_poll_its_work_after_the_end_although_no_timer_has_fired() {
    const LEASE: Duration = Duration::from_secs(30);
    let server = MemoryServer::new();
    let client = Client::builder().memory(&server).connect().await.unwrap();
    for fixed in [false, true] {
        let mutex = client.mutex("name");
        let mutex = if fixed {
            mutex.fixed_lease(LEASE)
        } else {
            mutex.lease(LEASE)
        };
        let guard = mutex.lock().await.unwrap();
        let polls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&polls);
        let work = std::future::poll_fn(move |_| -> Poll<()> {
            counted.fetch_add(1, Ordering::SeqCst);
            Poll::Pending
        });
        let mut running = ByHand::new(guard.run(work));
        assert!(running.poll().is_pending());
        assert_eq!(polls.load(Ordering::SeqCst), 1);

        // Its first poll steps the clock, and a second would give the timers a turn.
        let mut sleep = Box::pin(tokio::time::advance(LEASE + SECOND));
        assert!((&mut sleep).now_or_never().is_none());
        assert!(running.poll().is_pending());
        assert_eq!(
            polls.load(Ordering::SeqCst),
            1,
            "polled after the end, fixed: {fixed}"
        );
        assert!(running.is_woken(), "it says so itself");
        let Poll::Ready(Err(error)) = running.poll() else {
            panic!("it goes on")
        };
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert!(!guard.is_valid());
        sleep.await;
        wait_until_idle(&client).await;
    }
}

// ---- 43: a subscription that is refused ----

/// Until the server has said no to the user.
async fn until_refused(server: &Server) {
    wait_until_async(SOON, "it is refused", || {
        server.cli(&["ACL", "LOG"]) != redis::Value::Array(Vec::new())
    })
    .await;
}

#[tokio::test]
async fn a_waiter_that_may_not_subscribe_keeps_its_connections_and_asks_on() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = restricted(&server, &proxy, &["&*", "+@all", "-subscribe"]).await;
        let holder = Client::connect(&server.url()).await.unwrap();
        let guard = holder.mutex("name").lock().await.unwrap();
        let waiting = tokio::spawn(client.mutex("name").lock());
        until_refused(&server).await;
        let calls = script_calls(&server);
        // This runtime's, the one for what runs in the background, and the one for wake-ups.
        let mut made = 0;
        wait_until_async(SOON, "it asks on", || {
            made = proxy.accepted();
            made > 3 || script_calls(&server) >= calls + 8
        })
        .await;
        assert!(made <= 3, "{}: {made} connections", server.flavor());
        release(guard).await;
        release(soon("it asks", waiting).await.unwrap().unwrap()).await;
        assert!(proxy.accepted() <= 3, "{}", server.flavor());
        drop(client);
        wait_until_async(SOON, "they are closed", || proxy.connections() == 0).await;
    }
}

/// Each of its tries is a request to subscribe and one for the name.
#[tokio::test]
async fn a_waiter_that_may_not_subscribe_asks_a_few_times_a_second() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = restricted(&server, &proxy, &["&*", "+@all", "-subscribe"]).await;
        let holder = Client::connect(&server.url()).await.unwrap();
        let guard = holder.mutex("name").lock().await.unwrap();
        let waiting = tokio::spawn(client.mutex("name").lock());
        until_refused(&server).await;
        let calls = script_calls(&server);
        wait_until_async(SOON, "it asks on", || script_calls(&server) >= calls + 8).await;
        let calls = script_calls(&server);
        tokio::time::sleep(SECOND).await; // how often in this time is what is tested
        let asked = script_calls(&server) - calls;
        assert!(asked <= 6, "{}: {asked} times a second", server.flavor());
        assert!(asked > 0, "{}: it asks no more", server.flavor());
        release(guard).await;
        release(soon("it asks", waiting).await.unwrap().unwrap()).await;
    }
}

/// A user that may hear of `good`, and of no other name.
const GOOD: &[&str] = &[
    "resetchannels",
    "&redisson_lock__channel:*",
    "&leasehold:{good}:*",
    "+@all",
];

#[tokio::test]
async fn a_name_that_may_not_be_listened_for_does_not_make_another_deaf() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = restricted(&server, &proxy, GOOD).await;
        let holder = Client::connect(&server.url()).await.unwrap();
        let (bad, good) = (
            holder.mutex("bad").lock().await.unwrap(),
            holder.mutex("good").lock().await.unwrap(),
        );
        let poison = tokio::spawn(client.mutex("bad").lock());
        until_refused(&server).await;
        let waiting = tokio::spawn(client.mutex("good").lock());
        wait_until_async(SOON, "it hears, and has a place", || {
            queue(&server, "good").len() == 1
        })
        .await;
        release(good).await;
        release(soon("it is heard", waiting).await.unwrap().unwrap()).await;
        poison.abort();
        wait_until_idle(&client).await;
        release(bad).await;
        assert_nothing_left(&server, "a refused subscription").await;
    }
}

/// The connection breaks while the subscription that is refused is under way.
#[tokio::test]
async fn a_name_that_may_not_be_listened_for_does_not_make_another_deaf_after_a_gap() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = restricted(&server, &proxy, GOOD).await;
        let holder = Client::connect(&server.url()).await.unwrap();
        let (bad, good) = (
            holder.mutex("bad").lock().await.unwrap(),
            holder.mutex("good").lock().await.unwrap(),
        );
        let waiting = tokio::spawn(client.mutex("good").lock());
        wait_until_async(SOON, "it has a place", || queue(&server, "good").len() == 1).await;
        proxy.stall_lane(Lane::Subscriptions, Some(Way::ToClient));
        let poison = tokio::spawn(client.mutex("bad").lock());
        until_refused(&server).await;
        proxy.cut_lane(Lane::Subscriptions);
        proxy.heal();
        wait_until_async(SOON, "it listens again", || {
            channels(&server).iter().any(|c| c.contains("{good}:grant"))
        })
        .await;
        release(good).await;
        release(soon("it is heard", waiting).await.unwrap().unwrap()).await;
        poison.abort();
        wait_until_idle(&client).await;
        release(bad).await;
        assert_nothing_left(&server, "a refused subscription").await;
    }
}

/// Bug 67: a waiter that was refused while it was subscribed again listens as soon as it may.
#[tokio::test]
async fn a_waiter_that_is_refused_after_a_gap_listens_again_when_it_may() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = restricted(&server, &proxy, &["&*", "+@all"]).await;
        let holder = Client::connect(&server.url()).await.unwrap();
        let guard = holder.mutex("name").lock().await.unwrap();
        let waiting = tokio::spawn(client.mutex("name").lock());
        until_queued(&server, 1).await;
        server.cli(&["ACL", "SETUSER", "worker", "-subscribe"]);
        proxy.cut_lane(Lane::Subscriptions);
        until_refused(&server).await;
        server.cli(&["ACL", "SETUSER", "worker", "+subscribe"]);
        wait_until_async(SOON, "it listens again", || {
            channels(&server).iter().any(|c| c.contains(":grant"))
        })
        .await;
        release(guard).await;
        release(soon("it is heard", waiting).await.unwrap().unwrap()).await;
        wait_until_idle(&client).await;
    }
}

/// Bug 69: one refused name makes the others wait for one round trip, not for one each.
#[tokio::test]
async fn a_name_that_is_refused_after_a_gap_delays_the_others_once() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = restricted(&server, &proxy, &["&*", "+@all"]).await;
        let holder = Client::connect(&server.url()).await.unwrap();
        let mut held = Vec::new();
        let mut waiting = Vec::new();
        for number in 0..50 {
            let name = format!("name{number}");
            held.push(holder.mutex(&name).lock().await.unwrap());
            waiting.push(tokio::spawn(client.mutex(&name).lock()));
        }
        let grants = || {
            channels(&server)
                .iter()
                .filter(|c| c.contains(":grant"))
                .count()
        };
        wait_until_async(SOON, "all listen", || grants() == 50).await;
        // The right to the first one's channel is gone.
        server.cli(&[
            "ACL",
            "SETUSER",
            "worker",
            "resetchannels",
            "&leasehold:*",
            "&redisson_lock__channel:{name1*",
            "&redisson_lock__channel:{name2*",
            "&redisson_lock__channel:{name3*",
            "&redisson_lock__channel:{name4*",
        ]);
        proxy.delay(Duration::from_millis(100));
        proxy.cut_lane(Lane::Subscriptions);
        wait_until_async(SOON, "the gap", || grants() == 0).await;
        let began = std::time::Instant::now();
        // The channels of 1, 2, 3, 4 and 10 to 49.
        wait_until_async(SOON, "the others listen", || grants() >= 44).await;
        let took = began.elapsed();
        // The names would take nine seconds one after the other.
        assert!(took < 5 * SECOND, "{}: {took:?}", server.flavor());
        for task in waiting {
            task.abort();
        }
    }
}

/// A connection that is closed each time: the client pauses before the next, and has none once it is dropped.
#[tokio::test]
async fn a_lane_for_wake_ups_that_never_works_pauses_and_ends_with_its_client() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let holder = Client::connect(&server.url()).await.unwrap();
        let guard = holder.mutex("name").lock().await.unwrap();
        let client = Client::connect(&proxy.url()).await.unwrap();
        let waiting = tokio::spawn(client.mutex("name").lock());
        until_queued(&server, 1).await;
        proxy.lose_requests(b"\r\nSUBSCRIBE\r\n", usize::MAX);
        let before = proxy.accepted();
        proxy.cut_lane(Lane::Subscriptions);
        wait_until_async(SOON, "it tries", || proxy.accepted() >= before + 3).await;
        let before = proxy.accepted();
        tokio::time::sleep(SECOND).await; // how many in this time is what is tested
        let made = proxy.accepted() - before;
        assert!(
            made <= 8,
            "{}: {made} connections a second",
            server.flavor()
        );

        waiting.abort();
        wait_until_idle(&client).await;
        drop(client);
        wait_until_async(SOON, "they are closed", || proxy.connections() == 0).await;
        let before = proxy.accepted();
        tokio::time::sleep(3 * SECOND).await; // three times the longest pause
        let made = proxy.accepted() - before;
        assert!(
            made <= 1,
            "{}: {made} connections for no client",
            server.flavor()
        );
        release(guard).await;
    }
}

// ---- 44: an extended lease and an outage ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unanswered_release_counts_with_the_longest_lease_that_was_asked_for() {
    const LEASE: Duration = Duration::from_millis(300);
    for world in World::all() {
        let network = Network::to(&world);
        let builder = network.builder().operation_timeout(200 * MS);
        let client = builder.connect().await.unwrap();
        let guard = client
            .mutex("name")
            .fixed_lease(LEASE)
            .lock()
            .await
            .unwrap();
        guard.extend(60 * SECOND).await.unwrap();
        network.go_down();
        match soon("the release", guard.release()).await.unwrap() {
            Released::Unconfirmed { free_within } => {
                assert!(free_within >= 60 * SECOND, "{free_within:?}");
            }
            other => panic!("{}: {other:?}", world.name()),
        }
        tokio::time::sleep(5 * LEASE).await; // the outage
        assert_eq!(world.held(), ["name"]);
        network.heal();
        wait_until_async(SOON, "it is released", || world.held().is_empty()).await;
        wait_until_idle(&client).await;
    }
}

/// An outage that is longer than the first lease, and longer than a tombstone lasts.
#[tokio::test(start_paused = true)]
async fn a_release_is_repeated_for_as_long_as_the_extended_lease_lasts() {
    let server = MemoryServer::new();
    let client = Client::builder().memory(&server).connect().await.unwrap();
    let guard = client
        .mutex("name")
        .fixed_lease(SECOND)
        .lock()
        .await
        .unwrap();
    guard.extend(300 * SECOND).await.unwrap();
    server.cut(true);
    let released = guard.release().await.unwrap();
    assert!(
        matches!(released, Released::Unconfirmed { free_within } if free_within >= 300 * SECOND),
        "{released:?}"
    );
    tokio::time::sleep(200 * SECOND).await; // the outage
    assert_eq!(server.names(), ["name"]);
    server.cut(false);
    wait_until_async(SOON, "it is released", || server.names().is_empty()).await;
    wait_until_idle(&client).await;
}

// ---- 45: shutdown ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_returns_when_what_is_under_way_has_been_settled() {
    type Work = Pin<Box<dyn Future<Output = ()> + Send>>;
    for world in World::all() {
        for releases in [false, true] {
            let case = format!("{}, a release: {releases}", world.name());
            let network = Network::to(&world);
            let client = network.client().await;
            let mutex = client.mutex("name");
            let guard = mutex.lock().await.unwrap();
            let mut under_way: Work = if releases {
                Box::pin(async { drop(guard.release().await) })
            } else {
                release(guard).await;
                Box::pin(async move { drop(mutex.lock().await) })
            };
            network.delay(100 * MS);
            assert!((&mut under_way).now_or_never().is_none(), "{case}");
            let under_way = tokio::spawn(under_way);
            soon(&case, client.shutdown(AT_ONCE)).await;
            // Neither now, nor by anything that arrives later.
            let what = format!("{case}: it has ended");
            wait_until_async(SOON, &what, || {
                assert_eq!(world.held(), [""; 0], "{case}: held for no one");
                under_way.is_finished()
            })
            .await;
            wait_until_async(SOON, "nothing is left", || {
                assert_eq!(world.held(), [""; 0], "{case}: held for no one");
                client.footprint() == Footprint::default()
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_the_margin_of_a_long_lease() {
    for world in World::all() {
        let client = world.client().await;
        // Its margin is 12 s.
        let mutex = client.mutex("name").fixed_lease(1200 * SECOND);
        let guard = mutex.lock().await.unwrap();
        let began = Instant::now();
        soon("the shutdown", client.shutdown(AT_ONCE)).await;
        let took = began.elapsed();
        assert_eq!(world.held(), [""; 0], "{}", world.name());
        assert!(took < 1500 * MS, "{}: {took:?}", world.name());
        assert_eq!(guard.lost().await, LostReason::ClientShutdown);
    }
}

// ---- 46: the answer of a release, failures that pass, and the next holder ----

/// The answer that arrives is that to the second copy, which finds the name released.
#[tokio::test]
async fn a_release_that_was_sent_twice_says_freed_where_requests_may_be_doubled() {
    for server in servers() {
        for doubled in [true, false] {
            let builder = Client::builder().url(server.url()).may_duplicate(doubled);
            let client = builder.connect().await.unwrap();
            let mut monitor = Monitor::start(&server);
            // Knows the scripts, and shows what a release of this name is.
            let guard = client.mutex("name").lock().await.unwrap();
            let before = guard.owner();
            release(guard).await;
            let guard = client.mutex("name").lock().await.unwrap();
            let owner = guard.owner();
            let mut copies = monitor.calls(&before);
            let copy = copies.pop().expect("its release");
            let copy: Vec<String> = copy
                .iter()
                .map(|word| word.replace(&before, &owner))
                .collect();
            send_copy(&server, &copy);
            assert_eq!(int(&server, &["EXISTS", "name"]), 0, "it was a release");
            let released = guard.release().await;
            assert_eq!(monitor.calls(&owner).pop(), Some(copy), "the same request");
            if doubled {
                assert_eq!(released.unwrap(), Released::Freed, "{}", server.flavor());
            } else {
                // Where no request is doubled, it was another that took the name away.
                assert_lost(released, LostReason::Replaced);
            }
            wait_until_idle(&client).await;
        }
    }
}

/// The server takes no writes for some time: locks wait, releases are repeated.
async fn writes_are_refused_for_some_time(server: &Server, says: &str, over: impl Fn()) {
    let case = format!("{}, {says}", server.flavor());
    let builder = Client::builder().url(server.url());
    let client = builder.operation_timeout(300 * MS).connect().await.unwrap();
    let refused = client.mutex("name").try_lock().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Rejected, "{case}: {refused}");
    assert!(refused.to_string().contains(says), "{case}: {refused}");
    let waiting = tokio::spawn(client.mutex("name").lock());
    // More tries than one, and longer than a command may take.
    let calls = script_calls(server);
    wait_until_async(SOON, "it asks again", || {
        waiting.is_finished() || script_calls(server) >= calls + 4
    })
    .await;
    assert!(!waiting.is_finished(), "{case}");
    over();
    release(soon(&case, waiting).await.unwrap().unwrap()).await;
    wait_until_idle(&client).await;
}

/// The same for a name that is held when it begins.
async fn a_release_is_repeated(server: &Server, from: impl Fn(), over: impl Fn()) {
    let case = server.flavor().to_string();
    let builder = Client::builder().url(server.url());
    let client = builder.operation_timeout(300 * MS).connect().await.unwrap();
    let guard = client.mutex("held").lock().await.unwrap();
    from();
    let released = soon(&case, guard.release()).await.unwrap();
    assert!(
        matches!(released, Released::Unconfirmed { .. }),
        "{case}: {released:?}"
    );
    over();
    // Its lease would be 30 s.
    wait_until_async(SOON, "it is released", || {
        int(server, &["EXISTS", "held"]) == 0
    })
    .await;
    wait_until_idle(&client).await;
}

#[tokio::test]
async fn a_primary_with_too_few_replicas_is_waited_for() {
    for server in servers() {
        let replicas = |count: &str| {
            server.cli(&["CONFIG", "SET", "min-replicas-to-write", count]);
        };
        a_release_is_repeated(&server, || replicas("1"), || replicas("0")).await;
        replicas("1");
        let says = "too few replicas";
        writes_are_refused_for_some_time(&server, says, || replicas("0")).await;
    }
}

#[tokio::test]
async fn a_server_that_cannot_write_its_snapshot_is_waited_for() {
    for server in servers() {
        server.cli(&["CONFIG", "SET", "save", "86400 1000000"]);
        // Nothing can be renamed to a directory.
        std::fs::create_dir(server.dir().join("dump.rdb")).unwrap();
        server.cli(&["BGSAVE"]);
        wait_until_async(SOON, "the snapshot has failed", || {
            let info: String =
                redis::from_redis_value(server.cli(&["INFO", "persistence"])).unwrap();
            info.contains("rdb_last_bgsave_status:err")
        })
        .await;
        let stops = |stops: &str| {
            server.cli(&["CONFIG", "SET", "stop-writes-on-bgsave-error", stops]);
        };
        stops("no");
        a_release_is_repeated(&server, || stops("yes"), || stops("no")).await;
        stops("yes");
        let says = "cannot save its data";
        writes_are_refused_for_some_time(&server, says, || stops("no")).await;
    }
}

#[test]
fn a_lock_without_a_runtime_waits() {
    for server in servers() {
        let url = server.url();
        let client = without_runtime(async move { Client::connect(&url).await.unwrap() });
        let mutex = client.mutex("name");
        let lock = || {
            let mutex = mutex.clone();
            async move { mutex.lock().await.unwrap() }
        };
        let guard = without_runtime(lock());
        // Whichever timer it needs: while it asks, and while it waits.
        for (name, free) in [("other", true), ("name", false)] {
            let taken = without_runtime(client.mutex(name).try_lock_for(100 * MS));
            assert_eq!(taken.unwrap().is_some(), free);
        }
        let waiting = std::thread::spawn({
            let lock = lock();
            move || without_runtime(lock)
        });
        wait_until(SOON, "it waits", || {
            let status = without_runtime(client.status("name")).unwrap();
            waiting.is_finished() || status.waiting_here == 1
        });
        without_runtime(release(guard));
        let guard = waiting.join().expect("it does not panic");
        without_runtime(release(guard));
    }
}

/// For some numbers of subscribers a server may miscount them: `count_others` in `waiting.lua`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_in_line_is_next_however_many_wait() {
    for server in servers() {
        let holder = Client::connect(&server.url()).await.unwrap();
        for waiters in [1, 7, 8, 15, 16] {
            let case = format!("{}, {waiters} wait", server.flavor());
            let proxy = Proxy::start(server.addr());
            let guard = holder.mutex("name").lock().await.unwrap();
            let (mut clients, mut line) = (Vec::new(), Vec::new());
            for number in 1..=waiters {
                let client = Client::connect(&proxy.url()).await.unwrap();
                line.push(tokio::spawn(client.mutex("name").lock()));
                clients.push(client);
                until_queued(&server, number).await;
            }
            // No client can ask.
            proxy.stall(Some(Way::ToServer));
            release(guard).await;
            let held = owners(&server, "name");
            assert_eq!(held.len(), 1, "{case}: the name is given to none of them");
            assert!(held[0].0.starts_with(clients[0].id()), "{case}");
            proxy.heal();
            for (waiting, client) in line.into_iter().zip(&clients) {
                release(soon(&case, waiting).await.unwrap().unwrap()).await;
                wait_until_idle(client).await;
            }
            assert_nothing_left(&server, &case).await;
        }
    }
}

// ---- 58, 59: a server that refuses one command of a script ----

// ---- 60: out of time behind a first attempt ----

/// The first of the process to ask has no answer yet, so nothing is known of a holder.
#[tokio::test]
async fn a_waiter_behind_an_attempt_that_is_not_answered_is_not_told_that_the_name_is_held() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        let mutex = client.mutex("name");
        release(mutex.lock().await.unwrap()).await;
        server.freeze();
        let first = tokio::spawn(mutex.lock());
        until_asked(&client).await;
        let error = mutex.try_lock_for(200 * MS).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
        assert!(
            error.to_string().contains("no reply") || error.to_string().contains("no answer"),
            "{error}"
        );
        server.thaw();
        release(soon("the first", first).await.unwrap().unwrap()).await;
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "a silent server").await;
    }
}

/// Neither is a second call in a row, whose request the first one left under way.
#[tokio::test]
async fn calls_in_a_row_at_a_silent_server_are_not_told_that_the_name_is_held() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        let mutex = client.mutex("name");
        release(mutex.lock().await.unwrap()).await;
        server.freeze();
        for wait in [100 * MS, 500 * MS, 2500 * MS] {
            let three = [(); 3].map(|()| tokio::spawn(mutex.try_lock_for(wait)));
            for call in three {
                let answer = soon("a wait of its own", call).await.unwrap();
                let error = answer.expect_err(&format!("{}, {wait:?}", server.flavor()));
                assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
            }
        }
        server.thaw();
        release(soon("the server goes on", mutex.lock()).await.unwrap()).await;
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "a silent server").await;
    }
}

/// Nor is a waiter behind a request that the client's driver sent before, and that is not answered.
#[tokio::test]
async fn a_waiter_behind_a_driver_at_a_silent_server_is_not_told_that_the_name_is_held() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        let other = Client::connect(&server.url()).await.unwrap();
        let held = other
            .mutex("name")
            .fixed_lease(SECOND)
            .lock()
            .await
            .unwrap();
        let mutex = client.mutex("name");
        let waits = tokio::spawn(mutex.lock());
        wait_until_async(SOON, "it waits", || client.footprint().waiting == 1).await;
        server.freeze();
        // It asks when the lease ends.
        wait_until_async(SOON, "it asks", || client.footprint().waiting == 0).await;
        let error = mutex.try_lock_for(300 * MS).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
        server.thaw();
        release(soon("the lease has ended", waits).await.unwrap().unwrap()).await;
        drop(held);
        wait_until_idle(&client).await;
    }
}

/// Bug 70: a waiter that may not subscribe is told that the name is held, if that is what the server says.
#[tokio::test]
async fn a_wait_of_a_client_that_may_not_subscribe_ends_with_held() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = restricted(&server, &proxy, &["&*", "+@all", "-subscribe"]).await;
        let holder = Client::connect(&server.url()).await.unwrap();
        let guard = holder.mutex("name").lock().await.unwrap();
        for wait in [20 * MS, 300 * MS, SECOND] {
            let what = format!("{}, {wait:?}", server.flavor());
            // An attempt that is not answered in the time that was given is an error, and this says so of a machine in time.
            unless_late_async(&what, wait, async || {
                match client.mutex("name").try_lock_for(wait).await {
                    Ok(answer) => {
                        assert!(answer.is_none(), "{what}");
                        Ok(())
                    }
                    Err(error) => Err(error.to_string()),
                }
            })
            .await;
        }
        release(guard).await;
        wait_until_idle(&client).await;
    }
}

/// Bug 70: nor is a waiter behind a release that this client sent before, and that is not answered.
#[tokio::test]
async fn a_waiter_behind_a_release_at_a_silent_server_is_not_told_that_the_name_is_held() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        let mutex = client.mutex("name");
        let guard = mutex.lock().await.unwrap();
        server.freeze();
        let releasing = tokio::spawn(guard.release());
        until_asked(&client).await;
        let three = [100, 300, 600].map(|ms| tokio::spawn(mutex.try_lock_for(ms * MS)));
        for call in three {
            let answer = soon("a wait of its own", call).await.unwrap();
            let error = answer.expect_err(&server.flavor().to_string());
            assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
        }
        server.thaw();
        releasing.await.unwrap().expect("it was valid to the end");
        release(soon("the server goes on", mutex.lock()).await.unwrap()).await;
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "a silent server").await;
    }
}

/// Until a caller's request is under way.
async fn until_asked(client: &Client) {
    wait_until_async(SOON, "it asks", || {
        client.footprint() != Footprint::default()
    })
    .await;
}
