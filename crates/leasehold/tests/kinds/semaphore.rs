//! The semaphore without leases: permits are taken once and given back once whatever gets lost, a crash loses them and says so, and
//! the only key that stays is Redisson's number (`docs/keys.md`).

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use crate::common;
use crate::common::{
    SOON, World, int, keys, refused, servers, soon, wait_until_idle,
    wire::{Monitor, Network, documented_rules, more_rules, script_calls, send_copy},
};
use leasehold::{
    Client, ErrorKind, Handoff, LostReason, MemoryServer, Released, Semaphore, SemaphoreGuard,
    Shutdown,
};
use leasehold_testkit::{Server, wait_until_async};

const CHANNEL: &str = "redisson_sc:{name}";
const MS: Duration = Duration::from_millis(1);

async fn with(world: &World, permits: u32) -> (Client, Semaphore) {
    let client = world.client().await;
    let semaphore = client.semaphore("name");
    semaphore.try_set_permits(permits).await.unwrap();
    (client, semaphore)
}

async fn on(server: &Server, permits: u32) -> (Client, Semaphore) {
    let client = Client::connect(&server.url()).await.unwrap();
    let semaphore = client.semaphore("name");
    semaphore.try_set_permits(permits).await.unwrap();
    (client, semaphore)
}

async fn release(guard: SemaphoreGuard) {
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
}

async fn until_free(semaphore: &Semaphore, free: i64) {
    let deadline = Instant::now() + SOON;
    while semaphore.available_permits().await.unwrap() != free {
        assert!(Instant::now() < deadline, "never {free} free");
        tokio::time::sleep(MS).await;
    }
}

async fn until_waiting(semaphore: &Semaphore, tasks: usize) {
    let deadline = Instant::now() + SOON;
    while semaphore.status().await.unwrap().waiting_here != tasks {
        assert!(Instant::now() < deadline, "{tasks} never waited");
        tokio::task::yield_now().await;
    }
}

/// They hear the same channels, and a request to hear none of them any more would name none, which means all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_that_stops_waiting_leaves_the_client_hearing_for_the_other_kind_of_its_name() {
    for server in servers() {
        let (holder, semaphore) = on(&server, 1).await;
        let permit = semaphore.acquire().await.unwrap();
        let held = holder.mutex("other").lock().await.unwrap();
        let waiter = Client::connect(&server.url()).await.unwrap();
        let other = waiter.mutex("other");
        let waits = tokio::spawn(async move { other.lock().await.unwrap() });
        let leased = waiter.leased_semaphore("name");
        let leased = tokio::spawn(async move { leased.acquire().await.map(drop) });
        let both = || common::channels(&server).len() >= 4 && waiter.footprint().waiting == 2;
        wait_until_async(SOON, "both wait, and hear two channels each", both).await;
        let gives_up = waiter.semaphore("name").try_acquire_for(300 * MS);
        assert!(gives_up.await.unwrap().is_none());
        wait_until_async(SOON, "one waits no more", || {
            waiter.footprint().waiting == 2
        })
        .await;
        held.release().await.unwrap();
        // It would look by itself after ten seconds.
        let woken = tokio::time::timeout(Duration::from_secs(5), waits).await;
        drop(woken.expect("it is woken").unwrap());
        release(permit).await;
        soon("the other kind has its permit", leased)
            .await
            .unwrap()
            .unwrap();
    }
}

/// A release that was not sent is repeated for a day.
#[tokio::test(start_paused = true)]
async fn a_permit_is_given_back_to_a_server_that_was_away_for_long() {
    const REQUESTS: usize = 2_000;
    let server = MemoryServer::new();
    let client = Client::builder().memory(&server).connect().await.unwrap();
    let semaphore = client.semaphore("name");
    semaphore.try_set_permits(1).await.unwrap();
    let held = semaphore.acquire().await.unwrap();
    server.fail(REQUESTS);
    drop(held);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    server.fail(0);
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(client.footprint().tasks, 0);
    assert_eq!(semaphore.available_permits().await.unwrap(), 1);
}

/// S1: the server may have forgotten it. The permit is lost, as by a crash.
#[tokio::test(start_paused = true)]
async fn a_release_without_an_answer_is_not_repeated_for_longer_than_the_server_remembers_it() {
    let server = MemoryServer::new();
    let client = Client::builder().memory(&server).connect().await.unwrap();
    let semaphore = client.semaphore("name");
    semaphore.try_set_permits(1).await.unwrap();
    let held = semaphore.acquire().await.unwrap();
    server.drop_replies(usize::MAX);
    drop(held);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    server.drop_replies(0);
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(client.footprint().tasks, 0);
    assert_eq!(
        semaphore.available_permits().await.unwrap(),
        1,
        "and not two"
    );
}

/// Redisson's issue 5762.
#[tokio::test]
async fn a_waiter_whose_subscription_is_cut_is_served_all_the_same() {
    for server in servers() {
        let (_, semaphore) = on(&server, 1).await;
        let builder = Client::builder().url(server.url());
        let other = builder.poll_every(Duration::from_secs(60)).connect().await;
        let other = other.unwrap();
        let held = semaphore.acquire().await.unwrap();
        let waiting = tokio::spawn(other.semaphore("name").acquire());
        wait_until_async(SOON, "it listens", || {
            common::channels(&server).contains(&CHANNEL.to_owned())
        })
        .await;
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        release(held).await;
        release(soon("its turn", waiting).await.unwrap().unwrap()).await;
    }
}

#[tokio::test]
async fn a_waiter_for_two_is_woken_when_there_are_two_and_not_when_there_is_one() {
    for world in World::all() {
        let (client, semaphore) = with(&world, 2).await;
        let other = world.client().await;
        for (elsewhere, limit) in [(false, false), (false, true), (true, false), (true, true)] {
            let waits = if elsewhere { &other } else { &client };
            let waiter = waits.semaphore("name");
            for added in [false, true] {
                let (one, two) = (
                    semaphore.acquire().await.unwrap(),
                    semaphore.acquire().await.unwrap(),
                );
                let asks = waiter.clone();
                let waiting = tokio::spawn(async move {
                    if limit {
                        asks.try_acquire_many_for(2, 10 * SOON).await
                    } else {
                        asks.acquire_many(2).await.map(Some)
                    }
                });
                until_waiting(&waiter, 1).await;
                let case = format!("{} {elsewhere} {limit} {added}", world.name());
                if added {
                    semaphore.add_permits(1).await.unwrap();
                } else {
                    release(one).await;
                }
                until_free(&semaphore, 1).await;
                waits.heard().await;
                assert!(!waiting.is_finished(), "{case}");
                release(two).await;
                let both = soon(&case, waiting).await.unwrap().unwrap();
                release(both.expect(&case)).await;
                if added {
                    // The first one is given back, and the one that was added goes.
                    semaphore.add_permits(-1).await.unwrap();
                }
            }
        }
        wait_until_idle(&client).await;
        wait_until_idle(&other).await;
    }
}

#[tokio::test]
async fn every_verb_does_what_it_says() {
    for world in World::all() {
        let (client, semaphore) = with(&world, 5).await;
        assert!(!semaphore.try_set_permits(9).await.unwrap(), "set before");
        let three = semaphore.acquire_many(3).await.unwrap();
        assert_eq!(three.permits(), 3);
        assert!(semaphore.try_acquire_many(3).await.unwrap().is_none());
        let none = semaphore.try_acquire_many_for(3, 20 * MS).await.unwrap();
        assert!(none.is_none());
        let two = semaphore.try_acquire_many_for(2, SOON).await.unwrap();
        assert!(semaphore.try_acquire().await.unwrap().is_none());
        assert!(semaphore.try_acquire_for(10 * MS).await.unwrap().is_none());
        assert_eq!(semaphore.drain_permits().await.unwrap(), 0);
        release(two.unwrap()).await;
        assert_eq!(semaphore.drain_permits().await.unwrap(), 2);
        assert_eq!(semaphore.available_permits().await.unwrap(), 0);
        assert_eq!(semaphore.add_permits(4).await.unwrap(), 4);
        assert_eq!(semaphore.add_permits(-6).await.unwrap(), -2, "of three out");
        release(three).await;
        assert_eq!(semaphore.available_permits().await.unwrap(), 1);
        for bad in [0, 1025] {
            let error = semaphore.acquire_many(bad).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
        wait_until_idle(&client).await;
    }
}

#[tokio::test]
async fn a_lost_reply_takes_nothing_twice_and_gives_nothing_back_twice() {
    for world in World::all() {
        let network = Network::to(&world);
        let client = network.client().await;
        let semaphore = client.semaphore("name");
        let what = world.name();
        network.lose_replies(1);
        assert!(semaphore.try_set_permits(10).await.unwrap(), "{what}: set");
        for _ in 0..3 {
            network.lose_replies(1);
            let two = soon("asks again", semaphore.acquire_many(2)).await.unwrap();
            assert_eq!(semaphore.available_permits().await.unwrap(), 8, "{what}");
            network.lose_replies(1);
            two.release().await.unwrap();
            until_free(&semaphore, 10).await;
        }
        network.lose_replies(1);
        assert_eq!(semaphore.add_permits(3).await.unwrap(), 13, "{what}");
        assert_eq!(semaphore.available_permits().await.unwrap(), 13, "{what}");
        network.lose_replies(1);
        assert_eq!(semaphore.drain_permits().await.unwrap(), 13, "{what}");
        assert_eq!(semaphore.add_permits(4).await.unwrap(), 4);
        // A call that does not wait, and has no answer, leaves nothing taken either.
        network.lose_replies(1);
        drop(semaphore.try_acquire_many(4).await);
        until_free(&semaphore, 4).await;
        wait_until_idle(&client).await;
    }
}

#[tokio::test]
async fn second_copies_of_each_request_change_nothing() {
    for server in servers() {
        let mut monitor = Monitor::start(&server);
        let (client, semaphore) = on(&server, 10).await;
        semaphore.add_permits(2).await.unwrap();
        let guard = semaphore.acquire_many(3).await.unwrap();
        let free = || int(&server, &["GET", "name"]);
        for copy in monitor.calls("name") {
            send_copy(&server, &copy);
            assert_eq!(free(), 9, "{copy:?}");
        }
        release(guard).await;
        assert_eq!(semaphore.drain_permits().await.unwrap(), 12);
        semaphore.add_permits(5).await.unwrap();
        for copy in monitor.calls("name") {
            send_copy(&server, &copy);
            assert_eq!(free(), 5, "{copy:?}");
        }
        wait_until_idle(&client).await;
    }
}

#[tokio::test]
async fn the_keys_are_redissons_number_and_answers_that_end() {
    for server in servers() {
        let (_, semaphore) = on(&server, 5).await;
        let two = semaphore.acquire_many(2).await.unwrap();
        assert_eq!(int(&server, &["GET", "name"]), 3);
        assert_eq!(int(&server, &["PTTL", "name"]), -1, "as Redisson's");
        let is_answer = |key: &String| key.starts_with("leasehold:{name}:semaphore:gone:");
        for key in keys(&server) {
            let ttl = int(&server, &["PTTL", &key]);
            assert!(key == "name" || is_answer(&key), "{key}");
            assert!(key == "name" || (1..=60_000).contains(&ttl), "{key}: {ttl}");
        }
        let status = semaphore.status().await.unwrap();
        assert_eq!((status.available, status.holders.len()), (Some(3), 0));

        let mut listeners = server.connection();
        let mut listeners = listeners.as_pubsub();
        listeners.subscribe(CHANNEL).unwrap();
        listeners.set_read_timeout(Some(SOON)).unwrap();
        let mut heard = || {
            listeners
                .get_message()
                .unwrap()
                .get_payload::<String>()
                .unwrap()
        };
        release(two).await;
        assert_eq!(
            heard(),
            "05",
            "how many are free, as Redisson reads it, and one turn"
        );
        semaphore.add_permits(-7).await.unwrap();
        semaphore.add_permits(3).await.unwrap();
        assert_eq!(heard(), "1", "and nothing below one");
        let mut names = keys(&server);
        names.retain(|key| !key.contains(":gone:"));
        assert_eq!(names, ["name"]);
    }
}

#[tokio::test]
async fn a_big_request_is_not_starved_by_small_ones_and_all_come_in_order() {
    for world in World::all() {
        let (client, semaphore) = with(&world, 3).await;
        let two = semaphore.acquire_many(2).await.unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for (nth, permits) in [3_u32, 1, 1, 2, 1].into_iter().enumerate() {
            let (semaphore, order) = (semaphore.clone(), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                let guard = semaphore.acquire_many(permits).await.unwrap();
                order.lock().unwrap().push(nth);
                drop(guard);
            }));
            until_waiting(&client.semaphore("name"), nth + 1).await;
        }
        // A permit is free, and goes to no waiter behind the first.
        assert_eq!(semaphore.available_permits().await.unwrap(), 1);
        assert!(semaphore.try_acquire().await.unwrap().is_none());
        drop(two);
        for task in tasks {
            soon("served", task).await.unwrap();
        }
        let order = order.lock().unwrap().clone();
        assert_eq!(order[0], 0, "{order:?}");
        let sorted: Vec<_> = (0..5).collect();
        let mut all = order.clone();
        all.sort_unstable();
        assert_eq!(all, sorted);
        until_free(&semaphore, 3).await;
        wait_until_idle(&client).await;
    }
}

#[tokio::test]
async fn permits_pass_from_task_to_task_in_memory() {
    for server in servers() {
        let (client, semaphore) = on(&server, 1).await;
        // A budget that no busy machine uses up.
        let semaphore = semaphore.handoff(Handoff::new(64, SOON));
        let held = semaphore.acquire().await.unwrap();
        let tasks: Vec<_> = (0..20)
            .map(|_| {
                let semaphore = semaphore.clone();
                tokio::spawn(async move { drop(semaphore.acquire().await.unwrap()) })
            })
            .collect();
        until_waiting(&semaphore, 20).await;
        wait_until_async(SOON, "they listen", || {
            let reply = server.cli(&["PUBSUB", "NUMSUB", CHANNEL]);
            let (_, heard): (String, i64) = redis::from_redis_value(reply).unwrap();
            heard == 1
        })
        .await;
        let before = script_calls(&server);
        drop(held);
        for task in tasks {
            soon("its turn", task).await.unwrap();
        }
        let calls = script_calls(&server) - before;
        assert!(calls <= 1, "{calls} script calls for 20 turns");
        until_free(&semaphore, 1).await;
        wait_until_idle(&client).await;
    }
}

#[tokio::test]
async fn a_crash_loses_permits_and_an_operator_adds_them_again() {
    for server in servers() {
        let (_, semaphore) = on(&server, 3).await;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        let url = server.url();
        let dies = runtime.spawn(async move {
            let client = Client::connect(&url).await.unwrap();
            let guard = client.semaphore("name").acquire_many(2).await.unwrap();
            std::mem::forget(guard); // no drop runs: as if the process were killed
        });
        dies.await.unwrap();
        runtime.shutdown_background();
        let none = semaphore.try_acquire_many_for(2, 100 * MS).await.unwrap();
        assert!(none.is_none(), "they do not come back");
        assert_eq!(semaphore.add_permits(2).await.unwrap(), 3);
        release(semaphore.acquire_many(3).await.unwrap()).await;
    }
}

/// A number tells no holder that it has lost anything.
#[tokio::test]
async fn a_guard_is_valid_until_it_is_given_back_and_asks_no_server() {
    for server in servers() {
        let (client, semaphore) = on(&server, 1).await;
        let one = semaphore.acquire().await.unwrap();
        let before = script_calls(&server);
        one.verify().await.unwrap();
        assert!(one.is_valid());
        assert_eq!(script_calls(&server), before);
        release(one).await;
        wait_until_idle(&client).await;
    }
}

#[tokio::test]
async fn a_shutdown_gives_permits_back_even_if_it_lets_leases_expire() {
    for how in [
        Shutdown::LetExpire,
        Shutdown::ReleaseAll {
            grace: Duration::ZERO,
        },
    ] {
        for world in World::all() {
            let (client, semaphore) = with(&world, 2).await;
            let other = world.client().await.semaphore("name");
            let held = semaphore.acquire_many(2).await.unwrap();
            soon("shut down", client.shutdown(how)).await;
            assert_eq!(held.lost().await, LostReason::ClientShutdown);
            drop(held);
            let both = soon("they are back", other.acquire_many(2)).await.unwrap();
            release(both).await;
        }
    }
}

#[tokio::test]
async fn a_waiter_that_hears_nothing_looks_by_itself() {
    for server in servers() {
        let (_, semaphore) = on(&server, 1).await;
        let builder = Client::builder().url(server.url()).poll_every(100 * MS);
        let waits = builder.connect().await.unwrap().semaphore("name");
        let held = semaphore.acquire().await.unwrap();
        let waiting = tokio::spawn(waits.acquire());
        until_waiting(&waits, 1).await;
        // Another library's release, whose message is lost.
        server.cli(&["INCR", "name"]);
        release(soon("looks", waiting).await.unwrap().unwrap()).await;
        release(held).await;
    }
}

#[tokio::test]
async fn a_deleted_semaphore_is_made_anew_by_no_release() {
    for server in servers() {
        let (client, semaphore) = on(&server, 5).await;
        let (two, one) = (
            semaphore.acquire_many(2).await.unwrap(),
            semaphore.acquire().await.unwrap(),
        );
        server.cli(&["DEL", "name"]);
        release(two).await;
        assert_eq!(int(&server, &["EXISTS", "name"]), 0);
        assert!(semaphore.try_set_permits(5).await.unwrap());
        release(one).await;
        assert_eq!(semaphore.available_permits().await.unwrap(), 6, "on top");
        wait_until_idle(&client).await;
    }
}

#[tokio::test]
async fn the_documented_permissions_are_enough() {
    for server in servers() {
        let mut rules = documented_rules();
        rules.extend(more_rules("semaphores without leases"));
        let mut command = vec!["ACL", "SETUSER", "worker"];
        command.extend(rules.iter().map(String::as_str));
        server.cli(&command);
        let _ = server.try_cli(&["ACL", "SETUSER", "worker", "+client|setinfo"]);
        server.cli(&["ACL", "LOG", "RESET"]);
        let builder = Client::builder().url(server.url());
        let builder = builder.username("worker").password("secret");
        let client = builder.connect().await.unwrap();
        let semaphore = client.semaphore("order:42");
        semaphore.try_set_permits(3).await.unwrap();
        semaphore.add_permits(1).await.unwrap();
        let all = semaphore.acquire_many(4).await.unwrap();
        let waits = tokio::spawn(client.semaphore("order:42").acquire_many(3));
        until_waiting(&semaphore, 1).await;
        all.verify().await.unwrap();
        release(all).await;
        drop(soon("its turn", waits).await.unwrap().unwrap());
        until_free(&semaphore, 4).await;
        assert_eq!(semaphore.drain_permits().await.unwrap(), 4);
        wait_until_idle(&client).await;
        assert_eq!(refused(&server), [], "refused by the rules");
    }
}

/// All that the scripts of an acquisition and a release call.
const CALLS: [&str; 5] = ["-exists", "-get", "-incrby", "-pexpire", "-set"];

/// A right that is lacking is told before anything is taken.
#[tokio::test]
async fn without_a_right_nothing_is_taken_that_could_not_be_given_back() {
    for server in servers() {
        for refused in CALLS {
            let case = format!("{} {refused}", server.flavor());
            server.cli(&["FLUSHALL"]);
            let (_, healthy) = on(&server, 5).await;
            server.cli(&[
                "ACL", "SETUSER", "worker", "reset", "on", ">pw", "~*", "&*", "+@all", refused,
            ]);
            let builder = Client::builder().url(server.url());
            let builder = builder.username("worker").password("pw");
            let client = builder.connect().await.unwrap();
            match client.semaphore("name").try_acquire_many(2).await {
                Ok(guard) => {
                    let released = guard.expect("five are free").release().await;
                    assert_eq!(released.unwrap(), Released::Freed, "{case}");
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Rejected, "{case}: {error}");
                    assert!(error.to_string().contains("lacks a right"), "{error}");
                }
            }
            assert_eq!(healthy.available_permits().await.unwrap(), 5, "{case}");
        }
    }
}

/// Until the task waits, and the server has been asked for it.
async fn until_asked(client: &Client) {
    wait_until_async(SOON, "it waits", || {
        let now = client.footprint();
        now.waiting > 0 && now.asking == 0
    })
    .await;
}

/// A task waits that says no number; behind it, in the same client, one that does: sooner or later.
macro_rules! behind_one_without_a_number {
    ($world:expr, $kind:ident, $verb:ident($($wait:expr)?)) => {
        for at_once in [false, true] {
            let case = format!("{} {} {}", stringify!($kind), stringify!($verb), at_once);
            let client = $world.builder().poll_every(6 * SOON).connect().await.unwrap();
            let semaphore = client.$kind(&case);
            let case = format!("{}: {case}", $world.name());
            let waiting = tokio::spawn(semaphore.acquire());
            if at_once {
                tokio::task::yield_now().await;
            } else {
                until_asked(&client).await;
            }
            let told = soon(&case, semaphore.permits(2).$verb($($wait)?)).await;
            let told: Option<_> = told.unwrap_or_else(|error| panic!("{case}: {error}")).into();
            let told = told.unwrap_or_else(|| panic!("{case}: there are two"));
            let first = soon(&case, waiting).await.unwrap().unwrap();
            for guard in [told, first] {
                guard.release().await.unwrap();
            }
        }
    };
}

/// As those of another process, which are served at once.
#[tokio::test]
async fn one_that_says_how_many_permits_there_are_is_heard_behind_one_that_does_not() {
    for world in World::all() {
        behind_one_without_a_number!(world, semaphore, acquire());
        behind_one_without_a_number!(world, semaphore, try_acquire());
        behind_one_without_a_number!(world, semaphore, try_acquire_for(SOON));
        behind_one_without_a_number!(world, leased_semaphore, acquire());
        behind_one_without_a_number!(world, leased_semaphore, try_acquire());
        behind_one_without_a_number!(world, leased_semaphore, try_acquire_for(SOON));
    }
}

#[tokio::test]
async fn one_that_changes_how_many_permits_there_are_is_heard_behind_one_that_does_not() {
    for world in World::all() {
        for tries in [false, true] {
            let case = format!("{} {tries}", world.name());
            let client = world
                .builder()
                .poll_every(6 * SOON)
                .connect()
                .await
                .unwrap();
            let two = client.leased_semaphore(tries.to_string()).permits(2);
            let held = two.acquire_many(2).await.unwrap();
            let waiting = tokio::spawn(two.acquire());
            until_asked(&client).await;
            let four = two.permits_exactly(4);
            let last = if tries {
                let last = soon(&case, four.try_acquire()).await.unwrap();
                last.unwrap_or_else(|| panic!("{case}: there are four"))
            } else {
                soon(&case, four.acquire()).await.unwrap()
            };
            let first = soon(&case, waiting).await.unwrap().unwrap();
            assert!(four.try_acquire().await.unwrap().is_none(), "{case}");
            for guard in [held, first, last] {
                guard.release().await.unwrap();
            }
        }
    }
}

/// A caller that asks only once is answered, whatever others say that come at the same time.
#[tokio::test]
async fn of_several_numbers_that_are_said_at_once_none_keeps_a_caller_waiting() {
    for world in World::all() {
        let client = world
            .builder()
            .poll_every(6 * SOON)
            .connect()
            .await
            .unwrap();
        let semaphore = client.leased_semaphore("name");
        let held = semaphore.permits(3).acquire_many(3).await.unwrap();
        let waiting = tokio::spawn(semaphore.acquire_many(9));
        until_asked(&client).await;
        let tries = (3..=8).map(|number| semaphore.permits_exactly(number).try_acquire());
        let tries = futures_util::future::join_all(tries);
        let patient = tokio::spawn(semaphore.permits_exactly(8).acquire());
        for tried in soon(&world.name(), tries).await {
            assert!(tried.unwrap().is_none(), "another waits before it");
        }
        assert_eq!(semaphore.available_permits().await.unwrap(), 5);
        patient.abort();
        waiting.abort();
        held.release().await.unwrap();
    }
}
