//! The schedules that have broken Leasehold, one test each, in the order in which they were found. Each of them broke a
//! rule of belief (B1 to B6, docs/rules.md), and has a row in docs/bugs.md. Here are 1 to 6; 7 to 10, by which no
//! holder was misled but a waiter waited or failed in vain, are in `schedules_waits.rs`, the two that are about runtimes
//! in `runtimes.rs`, those that a model found in `schedules_model.rs`, and their neighbours in `schedules_near.rs`.

use std::time::Duration;

use crate::common::{
    SOON, World, assert_nothing_left, owners,
    process::{Job, Process, hear, job, say},
    release, servers, soon, until_waiting_here, wait_until_idle,
    wire::{
        Monitor, Network, assert_belief, monotonic, queue, say_granted, script_calls, send_copy,
        until_queued,
    },
};
use leasehold::{Client, Error, Handoff, Shutdown};
use leasehold_testkit::wait_until_async;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

// ---- what they share ----

/// A process that waits for the name, and tells when it has got it.
#[test]
#[ignore = "a process of its own, started by the other tests"]
fn child() {
    let Some(job) = job() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let builder = Client::builder().url(&job.url).poll_every(100 * MS);
        let client = builder.connect().await.unwrap();
        let guard = client.mutex(&job.name).lease(job.lease).lock().await;
        say(&monotonic().as_nanos().to_string());
        hear();
        drop(guard);
    });
    std::process::exit(0);
}

// ---- 1 ----

/// Schedule 1 (B3): the message comes when the lease is over, and the waiter has asked again meanwhile.
#[tokio::test]
async fn a_grant_that_is_heard_after_its_end_is_not_believed() {
    for server in servers() {
        let holder = Client::connect(&server.url()).await.unwrap();
        for (poll, lease) in [(100 * MS, 300 * MS), (250 * MS, 400 * MS)] {
            let builder = Client::builder().url(server.url()).poll_every(poll);
            let waiter = builder.connect().await.unwrap();
            let guard = holder.mutex("name").lock().await.unwrap();
            let waiting = tokio::spawn(waiter.mutex("name").lease(lease).lock());
            until_queued(&server, 1).await;
            let place = queue(&server, "name").remove(0);
            tokio::time::sleep(lease).await; // the time itself is what is tested
            let calls = script_calls(&server);
            wait_until_async(SOON, "it asks again", || script_calls(&server) > calls).await;
            say_granted(&server, "name", &place);
            // To hear that it is not so, or to hear nothing and to ask as ever.
            let calls = script_calls(&server) + 3;
            wait_until_async(SOON, "it asks again", || {
                waiting.is_finished() || script_calls(&server) >= calls
            })
            .await;
            assert!(!waiting.is_finished(), "two hold it, {}", server.flavor());
            assert_eq!(owners(&server, "name"), [(guard.owner(), 1)]);
            release(guard).await;
            let guard = soon("the waiter", waiting).await.unwrap().unwrap();
            assert_eq!(owners(&server, "name"), [(guard.owner(), 1)]);
            release(guard).await;
            wait_until_idle(&waiter).await;
        }
        assert_nothing_left(&server, "late grants").await;
    }
}

/// Schedule 1, with a real process that is stopped in line: its grant waits for it in the socket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_was_stopped_while_it_was_given_the_name_waits_for_the_next_holder() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        for _ in 0..4 {
            let guard = client.mutex("name").lock().await.unwrap();
            let stopped = Process::start(&Job {
                what: "wait".to_owned(),
                url: server.url(),
                name: "name".to_owned(),
                lease: 400 * MS,
            });
            until_queued(&server, 1).await;
            stopped.freeze();
            let owner = guard.owner();
            release(guard).await;
            assert_ne!(owners(&server, "name")[0].0, owner, "given to the stopped");
            let guard = client.mutex("name").lock().await.unwrap();
            let calls = script_calls(&server);
            stopped.thaw();
            // It asks, and hears of the grant, in whichever order; and looks again.
            let mut said = None;
            wait_until_async(SOON, "it asks", || {
                said = said.take().or_else(|| stopped.try_next());
                said.is_some() || script_calls(&server) > calls + 3
            })
            .await;
            assert!(guard.is_valid());
            let free = monotonic();
            release(guard).await;
            let held: u64 = said.unwrap_or_else(|| stopped.next()).parse().unwrap();
            let early = free.saturating_sub(Duration::from_nanos(held));
            assert!(
                early.is_zero(),
                "{}: both held it for {early:?}",
                server.flavor()
            );
        }
    }
}

// ---- 2 ----

/// Schedule 2 (B2).
#[tokio::test]
async fn a_late_copy_of_an_acquire_does_not_bring_the_end_nearer() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        let mut monitor = Monitor::start(&server);
        let guard = client
            .mutex("name")
            .fixed_lease(5 * SECOND)
            .lock()
            .await
            .unwrap();
        let acquire = monitor.calls(&guard.owner());
        guard.extend(60 * SECOND).await.unwrap();
        for request in acquire {
            send_copy(&server, &request);
            assert_belief(&guard, &client, "after a second acquire").await;
        }
        assert!(guard.remaining() > 55 * SECOND);
        release(guard).await;
    }
}

/// Schedule 2 (B2): each extension once more, in every order.
#[tokio::test]
async fn late_extensions_in_any_order_leave_the_latest_end() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        let mut monitor = Monitor::start(&server);
        for order in [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ] {
            let guard = client
                .mutex("name")
                .fixed_lease(2 * SECOND)
                .lock()
                .await
                .unwrap();
            let before = monitor.calls(&guard.owner()).len();
            for lease in [3, 30, 60] {
                guard.extend(lease * SECOND).await.unwrap();
                assert_belief(&guard, &client, "after an extension").await;
            }
            assert!(guard.remaining() > 55 * SECOND);
            let extensions = monitor.calls(&guard.owner()).split_off(before);
            for at in order {
                send_copy(&server, &extensions[at]);
                assert_belief(&guard, &client, &format!("copy {at} of {order:?}")).await;
            }
            release(guard).await;
        }
    }
}

/// Schedule 2 (B2): a place in the queue keeps its terms, so the waiter behind has another one.
#[tokio::test]
async fn waiters_with_other_terms_share_no_lease_id() {
    for server in servers() {
        let (client, other) = (
            Client::connect(&server.url()).await.unwrap(),
            Client::connect(&server.url()).await.unwrap(),
        );
        for (first, second) in [(SECOND, 30 * SECOND), (30 * SECOND, 2 * SECOND)] {
            let mut monitor = Monitor::start(&server);
            let held = other.mutex("name").lock().await.unwrap();
            let leaves = tokio::spawn(client.mutex("name").fixed_lease(first).lock());
            until_queued(&server, 1).await;
            let requests = monitor.calls(client.id());
            let stays = tokio::spawn(client.mutex("name").fixed_lease(second).lock());
            until_waiting_here(&client, 2).await;
            leaves.abort();
            release(held).await;
            let guard = soon("the second", stays).await.unwrap().unwrap();
            assert_belief(&guard, &other, "at first").await;
            for request in &requests {
                send_copy(&server, request);
                assert_belief(&guard, &other, "after a copy for the first").await;
            }
            let left = guard.remaining();
            assert!(left <= second && left > second / 2, "{left:?} of its own");
            release(guard).await;
            wait_until_idle(&client).await;
            server.cli(&["FLUSHALL"]); // places that only the copies made
        }
    }
}

// ---- 3 ----

/// Schedule 3 (B1, B2).
#[tokio::test]
async fn two_extensions_at_once_are_believed_as_long_as_the_server_holds() {
    for world in World::all() {
        let network = Network::to(&world);
        let (client, looker) = (network.client().await, world.client().await);
        for round in 0..20_u64 {
            network.delay(Duration::from_micros(200 * round));
            let guard = client
                .mutex("name")
                .fixed_lease(2 * SECOND)
                .lock()
                .await
                .unwrap();
            let (long, short) = (guard.extend(30 * SECOND), guard.extend(300 * MS));
            let (long, short) = if round % 2 == 0 {
                tokio::join!(long, short)
            } else {
                let (short, long) = tokio::join!(short, long);
                (long, short)
            };
            long.unwrap();
            short.unwrap();
            assert_belief(&guard, &looker, &format!("{} {round}", world.name())).await;
            assert!(guard.remaining() > 28 * SECOND, "the later end counts");
            release(guard).await;
        }
    }
}

// ---- 4 ----

/// Schedule 4 (B1): the first copy kept the name for the next waiter, the last one only says so.
#[tokio::test]
async fn a_repeated_release_that_was_kept_before_is_believed_for_what_is_left() {
    const LEASE: Duration = Duration::from_secs(2);
    for world in World::all() {
        let network = Network::to(&world);
        let (client, looker) = (network.client().await, world.client().await);
        // Nothing passes in memory, but what the server gives back is kept.
        let handoff = Handoff::new(1, Duration::from_micros(1));
        let mutex = client.mutex("name").lease(LEASE).handoff(handoff);
        for round in 0..5 {
            let guard = mutex.lock().await.unwrap();
            let next = tokio::spawn(mutex.lock());
            until_waiting_here(&client, 1).await;
            network.lose_replies(4);
            release(guard).await;
            let guard = soon("the next", next).await.unwrap().unwrap();
            assert_belief(&guard, &looker, &format!("{} {round}", world.name())).await;
            assert!(guard.is_valid());
            release(guard).await;
        }
        wait_until_idle(&client).await;
        assert_eq!(world.held(), [""; 0]);
    }
}

// ---- 5 ----

/// Schedule 5 (B6): the attempt is under way when the client shuts down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_during_a_first_attempt_answers_it_and_leaves_nothing() {
    for world in World::all() {
        for (held, how) in [
            (
                false,
                Shutdown::ReleaseAll {
                    grace: Duration::ZERO,
                },
            ),
            (false, Shutdown::LetExpire),
            (
                true,
                Shutdown::ReleaseAll {
                    grace: Duration::ZERO,
                },
            ),
            (true, Shutdown::LetExpire),
        ] {
            let case = format!("{}, held: {held}, {how:?}", world.name());
            let network = Network::to(&world);
            let (client, other) = (network.client().await, world.client().await);
            let mut holder = None;
            if held {
                holder = Some(other.mutex("name").lock().await.unwrap());
            }
            network.delay(100 * MS);
            let lock = tokio::spawn(client.mutex("name").lock());
            wait_until_async(SOON, "it asks", || client.footprint().queues == 1).await;
            soon(&case, client.shutdown(how)).await;
            let answer = soon(&case, lock).await.unwrap();
            assert!(matches!(answer, Err(Error::Closed)), "{case}: {answer:?}");
            // No driver is left, and what the attempt may have taken is given back.
            wait_until_idle(&client).await;
            network.heal();
            drop(holder);
            let guard = other.mutex("name").try_lock_for(SECOND).await.unwrap();
            release(guard.unwrap_or_else(|| panic!("{case}: held for no one"))).await;
        }
    }
}

// ---- 6 ----

/// Schedule 6 (B5): the server may have kept the name for the waiter, under an id of which no answer told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_that_an_unanswered_release_kept_is_not_forgotten() {
    for world in World::all() {
        for leaves in [false, true] {
            let case = format!("{}, leaves: {leaves}", world.name());
            let network = Network::to(&world);
            let builder = network.builder().operation_timeout(200 * MS);
            let client = builder.connect().await.unwrap();
            let other = world.client().await;
            let handoff = Handoff::new(1, Duration::from_micros(1));
            let mutex = client.mutex("name").handoff(handoff);
            let guard = mutex.lock().await.unwrap();
            let next = tokio::spawn(mutex.lock());
            until_waiting_here(&client, 1).await;
            // Longer than the release waits for an answer.
            network.lose_replies(usize::MAX);
            let released = soon(&case, guard.release()).await;
            if leaves {
                next.abort();
            }
            network.heal();
            if !leaves {
                let guard = soon(&case, next).await.unwrap().unwrap();
                assert_belief(&guard, &other, &case).await;
                assert!(guard.is_valid(), "{case}");
                release(guard).await;
            }
            drop(released);
            // Its lease would be 30 s.
            let guard = other.mutex("name").try_lock_for(2 * SECOND).await.unwrap();
            release(guard.unwrap_or_else(|| panic!("{case}: held for no one"))).await;
            wait_until_idle(&client).await;
        }
    }
}
