//! The latch: each count-down counts once whatever gets lost, waiters wait for zero and for nothing else, and a lost message keeps
//! none of them; keys, channel and payloads are Redisson's (`docs/keys.md`).

use std::{
    task::Poll,
    time::{Duration, Instant},
};

use crate::common;
use crate::common::{
    ByHand, SOON, World, channels, int, keys, refused, servers, soon, wait_until_idle,
    wire::{Monitor, Network, documented_rules, more_rules, script_calls, send_copy},
};
use futures_util::future::join_all;
use leasehold::{Client, Error, ErrorKind, Latch, Shutdown};
use leasehold_testkit::wait_until_async;
use tokio::task::JoinHandle;

const CHANNEL: &str = "redisson_countdownlatch__channel__{name}";
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A client whose waiters look by themselves long after any test is over.
async fn patient(world: &World) -> Client {
    let builder = world.builder().poll_every(60 * SECOND);
    builder.connect().await.unwrap()
}

fn waiting(latch: &Latch, tasks: usize) -> Vec<JoinHandle<Result<(), Error>>> {
    let wait = |latch: Latch| async move { latch.wait().await };
    (0..tasks)
        .map(|_| tokio::spawn(wait(latch.clone())))
        .collect()
}

/// Until so many tasks of the client wait, and the server knows that it listens.
async fn until_waiting(latch: &Latch, tasks: usize) {
    let deadline = Instant::now() + SOON;
    let there = async || {
        let status = latch.status().await.unwrap();
        (status.waiting_here, status.waiting_clients)
    };
    while there().await != (tasks, u64::from(tasks > 0)) {
        assert!(
            Instant::now() < deadline,
            "{:?} instead of {tasks}",
            there().await
        );
        tokio::time::sleep(MS).await;
    }
}

async fn all_go_on(tasks: Vec<JoinHandle<Result<(), Error>>>, what: &str) {
    for woken in soon(what, join_all(tasks)).await {
        woken.unwrap().unwrap();
    }
}

/// Neither the client nor the server keeps anything but tombstones.
async fn assert_clean(world: &World, clients: &[&Client]) {
    for client in clients {
        wait_until_idle(client).await;
    }
    if let World::Server(server) = world {
        for key in keys(server) {
            assert!(key.contains(":gone:"), "{key} is left");
            assert!(int(server, &["PTTL", &key]) != -1, "{key} has no end");
        }
        wait_until_async(SOON, "no client listens", || channels(server).is_empty()).await;
    }
}

#[tokio::test]
async fn every_verb_does_what_it_says() {
    for world in World::all() {
        let client = patient(&world).await;
        let latch = client.latch("name");
        latch.wait().await.unwrap(); // not set: open
        assert_eq!(latch.count_down().await.unwrap(), 0);
        assert_eq!(latch.count().await.unwrap(), 0);
        assert!(!latch.delete().await.unwrap());
        assert!(latch.try_set_count(5).await.unwrap());
        assert!(!latch.try_set_count(9).await.unwrap());
        assert_eq!(latch.count().await.unwrap(), 5);
        assert_eq!(latch.count_down().await.unwrap(), 4);
        assert_eq!(latch.count_down_by(3).await.unwrap(), 1);
        assert!(!latch.wait_for(Duration::ZERO).await.unwrap());
        assert!(!latch.wait_for(200 * MS).await.unwrap());
        let status = latch.status().await.unwrap();
        assert_eq!((status.count, status.available), (Some(1), None));
        assert_eq!(status.holders, []);
        assert_eq!(latch.count_down_by(7).await.unwrap(), 0);
        assert!(latch.wait_for(SOON).await.unwrap());
        assert!(latch.wait_for(Duration::ZERO).await.unwrap());
        assert!(latch.try_set_count(1).await.unwrap(), "and again");
        assert!(latch.delete().await.unwrap());
        for error in [
            latch.try_set_count(0).await.unwrap_err(),
            latch.count_down_by(0).await.unwrap_err(),
            client.latch("").wait().await.unwrap_err(),
            client.latch("a{b").count().await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
        assert_clean(&world, &[&client]).await;
    }
}

#[tokio::test]
async fn waiters_here_and_elsewhere_go_on_at_zero_and_not_before() {
    for world in World::all() {
        let clients = [patient(&world).await, patient(&world).await];
        let [here, there] = [clients[0].latch("name"), clients[1].latch("name")];
        here.try_set_count(3).await.unwrap();
        let tasks: Vec<_> = waiting(&here, 5)
            .into_iter()
            .chain(waiting(&there, 5))
            .collect();
        let deadline = Instant::now() + SOON;
        while here.status().await.unwrap().waiting_clients < 2 {
            assert!(Instant::now() < deadline, "they never listen");
            tokio::task::yield_now().await;
        }
        for left in [2, 1] {
            assert_eq!(there.count_down().await.unwrap(), left);
            for client in &clients {
                client.heard().await;
            }
            assert!(tasks.iter().all(|task| !task.is_finished()), "{left}");
        }
        here.count_down().await.unwrap();
        all_go_on(tasks, "zero").await;
        assert_clean(&world, &[&clients[0], &clients[1]]).await;
    }
}

#[tokio::test]
async fn a_wait_with_a_limit_goes_on_at_zero_in_the_middle_of_it() {
    for world in World::all() {
        let (client, other) = (patient(&world).await, patient(&world).await);
        for counts in [&client, &other] {
            let latch = client.latch("name");
            latch.try_set_count(1).await.unwrap();
            let waits = latch.clone();
            let waiting = tokio::spawn(async move { waits.wait_for(10 * SOON).await });
            until_waiting(&latch, 1).await;
            assert_eq!(counts.latch("name").count_down().await.unwrap(), 0);
            assert!(soon("zero", waiting).await.unwrap().unwrap());
        }
        assert_clean(&world, &[&client, &other]).await;
    }
}

#[tokio::test]
async fn waiters_go_on_when_the_latch_is_deleted_by_us_or_by_another_library() {
    for world in World::all() {
        let (client, other) = (patient(&world).await, patient(&world).await);
        let latch = client.latch("name");
        latch.try_set_count(3).await.unwrap();
        let tasks = waiting(&latch, 3);
        until_waiting(&latch, 3).await;
        assert!(other.latch("name").delete().await.unwrap());
        all_go_on(tasks, "deleted").await;
        if let World::Server(server) = &world {
            latch.try_set_count(3).await.unwrap();
            let tasks = waiting(&latch, 3);
            until_waiting(&latch, 3).await;
            // As Redisson's delete.
            server.cli(&["DEL", "name"]);
            server.cli(&["PUBLISH", CHANNEL, "1"]);
            all_go_on(tasks, "deleted by Redisson").await;
        }
        assert_clean(&world, &[&client, &other]).await;
    }
}

#[tokio::test]
async fn a_lost_reply_counts_once() {
    for world in World::all() {
        let network = Network::to(&world);
        let client = network.client().await;
        let latch = client.latch("name");
        network.lose_replies(1);
        assert!(latch.try_set_count(10).await.unwrap(), "{}", world.name());
        for left in [9, 8] {
            network.lose_replies(1);
            assert_eq!(latch.count_down().await.unwrap(), left);
        }
        network.lose_replies(1);
        assert!(latch.delete().await.unwrap());
        // A look is repeated, too.
        latch.try_set_count(1).await.unwrap();
        network.lose_replies(1);
        let tasks = waiting(&latch, 1);
        wait_until_async(SOON, "it waits", || client.footprint().waiting == 1).await;
        latch.count_down().await.unwrap();
        all_go_on(tasks, "zero").await;
        wait_until_idle(&client).await;
    }
}

#[tokio::test]
async fn second_copies_of_each_request_change_nothing() {
    for server in servers() {
        let mut monitor = Monitor::start(&server);
        let client = Client::connect(&server.url()).await.unwrap();
        let latch = client.latch("name");
        latch.try_set_count(9).await.unwrap();
        latch.count_down().await.unwrap();
        latch.count_down_by(3).await.unwrap();
        for copy in monitor.calls("name") {
            // A copy that was sent again may have a late copy itself: the answer is kept for as long after each.
            assert_eq!(common::answers_kept_anew(&server, &copy), 1, "{copy:?}");
            assert_eq!(int(&server, &["GET", "name"]), 5, "{copy:?}");
        }
        latch.delete().await.unwrap();
        latch.try_set_count(2).await.unwrap();
        for copy in monitor.calls("name") {
            send_copy(&server, &copy);
            assert_eq!(int(&server, &["GET", "name"]), 2, "{copy:?}");
        }
    }
}

#[tokio::test]
async fn a_count_down_that_has_begun_is_carried_out_though_its_future_is_dropped() {
    for world in World::all() {
        let client = patient(&world).await;
        let latch = client.latch("name");
        latch.try_set_count(3).await.unwrap();
        let mut down = ByHand::new(latch.count_down());
        assert!(matches!(down.poll(), Poll::Pending));
        drop(down);
        let deadline = Instant::now() + SOON;
        while latch.count().await.unwrap() != 2 {
            assert!(Instant::now() < deadline, "it never counts");
        }
        wait_until_idle(&client).await;
        assert_eq!(latch.count().await.unwrap(), 2);
    }
}

#[tokio::test]
async fn a_wait_may_be_dropped_after_any_poll() {
    for world in World::all() {
        let (client, other) = (patient(&world).await, patient(&world).await);
        let latch = client.latch("name");
        for polls in 0..12 {
            other.latch("name").try_set_count(1).await.unwrap();
            let mut wait = ByHand::new(latch.wait());
            for _ in 0..polls {
                assert!(matches!(wait.poll(), Poll::Pending));
                for _ in 0..polls {
                    tokio::task::yield_now().await;
                }
            }
            if polls == 11 {
                until_waiting(&latch, 1).await;
            }
            drop(wait);
            other.latch("name").delete().await.unwrap();
            assert_clean(&world, &[&client, &other]).await;
        }
    }
}

#[tokio::test]
async fn one_that_comes_when_the_count_is_zero_goes_on_at_once_beside_others_that_missed_it() {
    for server in servers() {
        let world = World::Server(Box::new(server));
        let World::Server(server) = &world else {
            return;
        };
        let client = patient(&world).await;
        let latch = client.latch("name");
        latch.try_set_count(1).await.unwrap();
        let tasks = waiting(&latch, 2);
        until_waiting(&latch, 2).await;
        server.cli(&["DEL", "name"]); // and the message of it is lost
        soon("open", latch.wait()).await.unwrap();
        all_go_on(tasks, "seen by the one that came").await;
        assert_clean(&world, &[&client]).await;
    }
}

#[tokio::test]
async fn a_waiter_that_hears_nothing_looks_by_itself_once_per_poll() {
    for server in servers() {
        let poll = 800 * MS;
        let builder = Client::builder().url(server.url()).poll_every(poll);
        let client = builder.connect().await.unwrap();
        let latch = client.latch("name");
        latch.try_set_count(1).await.unwrap();
        let tasks = waiting(&latch, 100);
        until_waiting(&latch, 100).await;
        // The requests that the waiters sent when they came are answered.
        let calls = || script_calls(&server);
        let mut before = calls();
        wait_until_async(SOON, "they rest", || {
            let now = calls();
            std::mem::replace(&mut before, now) == now && client.footprint().waiting == 1
        })
        .await;
        let before = calls();
        tokio::time::sleep(3 * poll).await; // the time itself is what is tested
        let asked = calls() - before;
        assert!(asked <= 3, "{asked} commands in 3 polls");
        server.cli(&["DEL", "name"]);
        all_go_on(tasks, "the next look").await;
        wait_until_idle(&client).await;
    }
}

#[tokio::test]
async fn an_outage_is_waited_out_and_a_silent_server_is_no_answer() {
    for world in World::all() {
        let network = Network::to(&world);
        let builder = network.builder().operation_timeout(100 * MS);
        let client = builder.connect().await.unwrap();
        let other = patient(&world).await;
        let latch = client.latch("name");
        latch.try_set_count(1).await.unwrap();
        let tasks = waiting(&latch, 3);
        until_waiting(&latch, 3).await;
        network.go_down();
        // Long enough for a busy machine to see the operation timeout first.
        let error = latch.wait_for(500 * MS).await.unwrap_err();
        assert!(error.is_unreachable(), "{error}");
        if let World::Server(_) = &world {
            other.latch("name").count_down().await.unwrap();
        }
        network.heal();
        if let World::Memory(_) = &world {
            other.latch("name").count_down().await.unwrap();
        }
        all_go_on(tasks, "after the outage").await;
        wait_until_idle(&client).await;
    }
}

#[tokio::test]
async fn a_shutdown_answers_those_that_wait() {
    for world in World::all() {
        let (client, other) = (patient(&world).await, patient(&world).await);
        let latch = client.latch("name");
        latch.try_set_count(1).await.unwrap();
        let tasks = waiting(&latch, 3);
        until_waiting(&latch, 3).await;
        soon("shut down", client.shutdown(Shutdown::LetExpire)).await;
        for task in tasks {
            let error = soon("answered", task).await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Closed);
        }
        let error = latch.wait().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
        other.latch("name").delete().await.unwrap();
        assert_clean(&world, &[&client, &other]).await;
    }
}

#[tokio::test]
async fn a_name_of_another_kind_is_refused_in_the_words_of_both() {
    for world in World::all() {
        let client = patient(&world).await;
        let mutex = client.mutex("mutex").lock().await.unwrap();
        let semaphore = client.semaphore("semaphore");
        semaphore.try_set_permits(2).await.unwrap();
        let permit = semaphore.acquire().await.unwrap();
        let leased = client.leased_semaphore("leased_semaphore");
        leased.try_set_permits(2).await.unwrap();
        let leased = leased.acquire().await.unwrap();
        for kind in ["mutex", "semaphore", "leased_semaphore"] {
            if kind == "semaphore" && matches!(world, World::Server(_)) {
                continue; // there it is a number, as a count is
            }
            let latch = client.latch(kind);
            for error in [
                latch.wait().await.unwrap_err(),
                latch.count().await.unwrap_err(),
                latch.try_set_count(1).await.unwrap_err(),
                latch.count_down().await.unwrap_err(),
                latch.delete().await.unwrap_err(),
                latch.status().await.unwrap_err(),
            ] {
                assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
                let cause = error.to_string();
                let expected = format!("held as a {kind}, and not as a latch");
                assert!(cause.contains(&expected), "{}: {cause}", world.name());
            }
        }
        client.latch("latch").try_set_count(2).await.unwrap();
        // A server takes a number for that of the kind that is asked for, as Redisson does.
        if let World::Memory(_) = world {
            let semaphore = client.semaphore("latch");
            let leased = client.leased_semaphore("latch");
            for error in [
                semaphore.acquire().await.unwrap_err(),
                semaphore.status().await.unwrap_err(),
                leased.acquire().await.unwrap_err(),
            ] {
                let cause = error.to_string();
                assert!(cause.contains("held as a latch, and not as a "), "{cause}");
            }
        }
        let errors = [
            client.mutex("latch").lock().await.unwrap_err(),
            client.rw_lock("latch").read().await.unwrap_err(),
            client.plain_mutex("latch").lock().await.unwrap_err(),
        ];
        for error in errors {
            let cause = error.to_string();
            let expected = match world {
                World::Memory(_) => "held as a latch, and not as a ",
                World::Server(_) => "holds a number, as a semaphore or a latch does, and not a ",
            };
            assert!(cause.contains(expected), "{}: {cause}", world.name());
        }
        assert_eq!(client.latch("latch").count().await.unwrap(), 2);
        drop((mutex, permit, leased));
    }
}

/// Redisson's count-down deletes the number at zero. The next number there may be of any kind, whoever sets it.
#[tokio::test]
async fn what_redisson_counts_down_leaves_the_name_to_all_kinds() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        let latch = client.latch("name");
        for by_redisson in [false, true] {
            let counted_down = || async {
                assert!(latch.try_set_count(1).await.unwrap());
                server.cli(&["DECR", "name"]);
                server.cli(&["DEL", "name"]);
                if by_redisson {
                    server.cli(&["SET", "name", "2"]);
                }
            };
            counted_down().await;
            let semaphore = client.semaphore("name");
            let is_set = semaphore.try_set_permits(2).await.unwrap();
            assert_eq!(is_set, !by_redisson);
            let guard = semaphore.acquire().await.unwrap();
            assert_eq!(semaphore.available_permits().await.unwrap(), 1);
            guard.release().await.unwrap();
            server.cli(&["DEL", "name"]);
            counted_down().await;
            let leased = client.leased_semaphore("name");
            assert_eq!(leased.try_set_permits(2).await.unwrap(), !by_redisson);
            leased.acquire().await.unwrap().release().await.unwrap();
            server.cli(&["DEL", "name"]);
        }
        let left = keys(&server);
        assert!(left.iter().all(|key| key.contains(":gone:")), "{left:?}");
    }
}

#[tokio::test]
async fn the_keys_channel_and_payloads_are_redissons() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        let latch = client.latch("name");
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
        latch.try_set_count(2).await.unwrap();
        assert_eq!(heard(), "1");
        let mut names = keys(&server);
        names.retain(|key| !key.contains(":gone:"));
        names.sort();
        assert_eq!(names, ["name"]);
        assert_eq!(int(&server, &["GET", "name"]), 2);
        assert_eq!(int(&server, &["PTTL", "name"]), -1, "as Redisson's");
        for key in keys(&server).iter().filter(|key| *key != "name") {
            assert!(int(&server, &["PTTL", key]) > 0, "{key} ends");
        }
        latch.count_down().await.unwrap();
        latch.count_down().await.unwrap();
        assert_eq!(heard(), "0", "and nothing at one");
        assert_eq!(int(&server, &["EXISTS", "name"]), 0);
        latch.count_down().await.unwrap();
        latch.try_set_count(2).await.unwrap();
        assert_eq!(heard(), "1", "and nothing for one that is not set");
        latch.delete().await.unwrap();
        assert_eq!(heard(), "0", "Redisson's waiters go on");
        let braces = client.latch("order:{42}:x");
        let mut listeners = server.connection();
        let mut listeners = listeners.as_pubsub();
        listeners
            .subscribe("redisson_countdownlatch__channel__{order:{42}:x}")
            .unwrap();
        braces.try_set_count(1).await.unwrap();
        listeners.set_read_timeout(Some(SOON)).unwrap();
        let heard: String = listeners.get_message().unwrap().get_payload().unwrap();
        assert_eq!(heard, "1");
    }
}

#[tokio::test]
async fn the_documented_permissions_are_enough() {
    for server in servers() {
        let mut rules = documented_rules();
        rules.extend(more_rules("latches"));
        let mut command = vec!["ACL", "SETUSER", "worker"];
        command.extend(rules.iter().map(String::as_str));
        server.cli(&command);
        let _ = server.try_cli(&["ACL", "SETUSER", "worker", "+client|setinfo"]);
        server.cli(&["ACL", "LOG", "RESET"]);
        let builder = Client::builder().url(server.url());
        let builder = builder.username("worker").password("secret");
        let client = builder.connect().await.unwrap();
        let latch = client.latch("order:42");
        latch.try_set_count(3).await.unwrap();
        let tasks = waiting(&latch, 2);
        until_waiting(&latch, 2).await;
        latch.count_down_by(3).await.unwrap();
        all_go_on(tasks, "zero").await;
        latch.try_set_count(1).await.unwrap();
        latch.delete().await.unwrap();
        wait_until_idle(&client).await;
        assert_eq!(refused(&server), [], "refused by the rules");
    }
}

/// All that the script calls.
const CALLS: [&str; 7] = [
    "-del", "-exists", "-get", "-incrby", "-pexpire", "-publish", "-set",
];

#[tokio::test]
async fn a_refusal_leaves_the_count_as_it_was_or_as_it_was_to_be() {
    for server in servers() {
        for refused in CALLS.into_iter().chain(["resetchannels"]) {
            let case = format!("{} {refused}", server.flavor());
            server.cli(&["FLUSHALL"]);
            server.cli(&[
                "ACL", "SETUSER", "worker", "reset", "on", ">pw", "~*", "&*", "+@all", refused,
            ]);
            let healthy = Client::connect(&server.url()).await.unwrap().latch("name");
            let builder = Client::builder().url(server.url());
            let builder = builder.username("worker").password("pw");
            let latch = builder.connect().await.unwrap().latch("name");
            let set = latch.try_set_count(3).await.unwrap_or(false);
            assert_eq!(healthy.try_set_count(3).await.unwrap(), !set, "{case}");
            let mut listeners = server.connection();
            let mut listeners = listeners.as_pubsub();
            listeners.subscribe(CHANNEL).unwrap();
            let one = latch.count_down().await.is_ok();
            assert_eq!(healthy.count().await.unwrap(), 3 - u64::from(one), "{case}");
            let all = latch.count_down_by(3).await.is_ok();
            assert_eq!(healthy.count().await.unwrap() == 0, all, "{case}");
            server.cli(&["PUBLISH", CHANNEL, "the end"]);
            let heard: String = listeners.get_message().unwrap().get_payload().unwrap();
            assert_eq!(heard, if all { "0" } else { "the end" }, "{case}");
            drop(listeners);
            healthy.try_set_count(3).await.unwrap();
            let deleted = latch.delete().await.is_ok();
            assert_eq!(healthy.count().await.unwrap() == 0, deleted, "{case}");
        }
    }
}

fn p50(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// From the count-down to the last of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_are_woken_by_one_message() {
    for server in servers() {
        let world = World::Server(Box::new(server));
        let client = patient(&world).await;
        let mut times = Vec::new();
        for round in 0..11 {
            let latch = client.latch(format!("round {round}"));
            latch.try_set_count(1).await.unwrap();
            let tasks: Vec<_> = (0..1000)
                .map(|_| {
                    let latch = latch.clone();
                    tokio::spawn(async move {
                        latch.wait().await.unwrap();
                        Instant::now()
                    })
                })
                .collect();
            until_waiting(&latch, 1000).await;
            let began = Instant::now();
            latch.count_down().await.unwrap();
            let woken = join_all(tasks).await.into_iter().map(Result::unwrap);
            times.push(woken.max().unwrap() - began);
        }
        let p50 = p50(times.clone());
        eprintln!("1,000 waiters: {p50:?} of {times:?}");
        assert!(p50 < 100 * MS, "{times:?}");
        wait_until_idle(&client).await;
    }
}
