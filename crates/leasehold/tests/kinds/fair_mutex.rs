//! The fair mutex's own promises: its order, and what keeps a place.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::common::{
    SOON, World, channels, keys,
    process::{Job, Process, hear, job, say},
    soon, wait_until_idle,
    wire::{Monitor, documented_rules, more_rules, script_calls, send_copy},
};
use leasehold::{Client, FairMutex, FairMutexGuard, Handoff, Owner, Part, Released};
use leasehold_testkit::{Server, wait_until_async};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

const MS: Duration = Duration::from_millis(1);
const NAME: &str = "name";

type Waiting = JoinHandle<Result<FairMutexGuard, leasehold::Error>>;

async fn client_of(world: &World) -> Client {
    let builder = world.builder().poll_every(Duration::from_secs(60));
    builder.connect().await.unwrap()
}

/// The owners that wait on the server, next first.
fn line(server: &Server) -> Vec<String> {
    let line = server.cli(&["LRANGE", "redisson_lock_queue:{name}", "0", "-1"]);
    redis::from_redis_value(line).expect("a list")
}

async fn until_in_line(server: &Server, waiters: usize) {
    wait_until_async(SOON, "they stand in the queue", || {
        line(server).len() == waiters
    })
    .await;
}

/// Lets one more task wait, and returns when it has its place.
async fn wait_in(world: &World, lock: &FairMutex) -> Waiting {
    wait_with(world, lock, lock.lock()).await
}

/// The same for a task that asks in its own way.
async fn wait_with<G: Send + 'static>(
    world: &World,
    lock: &FairMutex,
    asking: impl Future<Output = Result<G, leasehold::Error>> + Send + 'static,
) -> JoinHandle<Result<G, leasehold::Error>> {
    let before = lock.status().await.unwrap().waiting_here;
    let places = match world {
        World::Server(server) => line(server).len(),
        World::Memory(_) => 0,
    };
    let waiting = tokio::spawn(asking);
    match world {
        World::Server(server) => until_in_line(server, places + 1).await,
        World::Memory(_) => {
            while lock.status().await.unwrap().waiting_here == before {
                tokio::task::yield_now().await;
            }
            // Memory answers within a few turns.
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
        }
    }
    waiting
}

#[tokio::test]
async fn tasks_of_all_processes_are_served_in_the_order_of_their_requests() {
    for world in World::all() {
        let clients = [
            client_of(&world).await,
            client_of(&world).await,
            client_of(&world).await,
        ];
        // A budget for hand-off that a fair mutex must not use.
        let locks = clients.each_ref().map(|client| {
            let lock = client.fair_mutex(NAME);
            lock.handoff(Handoff::new(1000, Duration::from_secs(60)))
        });
        for round in 0..5 {
            let guard = locks[0].lock().await.unwrap();
            let served = Arc::new(Mutex::new(Vec::new()));
            let mut tasks = Vec::new();
            for number in 0..12_usize {
                // In runs and alternately.
                let lock = &locks[(number * (round + 1) / 2) % 3];
                let waiting = wait_in(&world, lock).await;
                let served = Arc::clone(&served);
                tasks.push(tokio::spawn(async move {
                    let guard = waiting.await.unwrap().unwrap();
                    served.lock().push(number);
                    assert_eq!(guard.release().await.unwrap(), Released::Freed);
                }));
            }
            // Whoever does not wait comes after them.
            assert!(locks[1].try_lock().await.unwrap().is_none());
            guard.release().await.unwrap();
            for task in tasks {
                soon("its turn", task).await.unwrap();
            }
            let expected: Vec<usize> = (0..12).collect();
            assert_eq!(*served.lock(), expected, "{} round {round}", world.name());
        }
        for client in &clients {
            wait_until_idle(client).await;
        }
        if let World::Server(server) = &world {
            assert_eq!(keys(server), [""; 0]);
            let heard = || channels(server).is_empty();
            wait_until_async(SOON, "none listens", heard).await;
        }
    }
}

#[tokio::test]
async fn no_newcomer_overtakes_a_waiter_that_was_not_told_yet() {
    for world in World::all() {
        let (holder, other) = (client_of(&world).await, client_of(&world).await);
        let lock = holder.fair_mutex(NAME);
        let guard = lock.fixed_lease(200 * MS).lock().await.unwrap();
        let waiting = wait_in(&world, &other.fair_mutex(NAME)).await;
        guard.detach();
        // When the lease ends no client is told. The newcomer that finds that out is not served first.
        tokio::time::sleep(201 * MS).await;
        assert!(lock.try_lock().await.unwrap().is_none());
        drop(soon("its turn", waiting).await.unwrap().unwrap());
    }
}

/// Waiters of this library in processes of their own; each says when it waits, and when it has the lock.
#[test]
#[ignore = "a process that other tests start"]
fn child() {
    let Some(job) = job() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let client = Client::connect(&job.url).await.unwrap();
        let lock = client.fair_mutex(&job.name).lease(job.lease);
        say("ready");
        let waiting = tokio::spawn(lock.lock());
        let guard = waiting.await.unwrap().unwrap();
        say("held");
        let _ = hear();
        drop(guard);
    });
}

fn process(server: &Server) -> Process {
    let job = Job {
        what: "wait".to_owned(),
        url: server.url(),
        name: NAME.to_owned(),
        lease: Duration::from_secs(30),
    };
    let process = Process::start(&job);
    process.wait_for("ready");
    process
}

#[tokio::test]
async fn waiters_that_were_killed_cost_the_next_nothing() {
    for world in World::all() {
        let World::Server(server) = &world else {
            continue;
        };
        let client = client_of(&world).await;
        let guard = client.fair_mutex(NAME).lock().await.unwrap();
        let mut dead = Vec::new();
        for number in 1..=3 {
            dead.push(process(server));
            until_in_line(server, number).await;
        }
        let other = client_of(&world).await;
        let waiting = wait_in(&world, &other.fair_mutex(NAME)).await;
        dead.iter_mut().for_each(Process::kill);
        let released = Instant::now();
        guard.release().await.unwrap();
        let next = soon("its turn", waiting).await.unwrap().unwrap();
        let late = released.elapsed();
        assert!(late < 200 * MS, "three dead at the head cost {late:?}");
        drop(next);
    }
}

/// Its connections are open, and its subscription is there; but it keeps none of its places.
#[tokio::test]
async fn the_places_of_a_stopped_process_are_passed_over_when_they_are_not_kept() {
    for world in World::all() {
        let World::Server(server) = &world else {
            continue;
        };
        let client = client_of(&world).await;
        let lock = client.fair_mutex(NAME);
        let plain = redis::Client::open(server.url().replace("valkey:", "redis:")).unwrap();
        let mut stopped = plain.get_connection().unwrap();
        let mut stopped = stopped.as_pubsub();
        stopped
            .subscribe("leasehold:{name}:fair:grant:stopped")
            .unwrap();
        let time: Vec<u64> = redis::from_redis_value(server.cli(&["TIME"])).unwrap();
        for (kept_for, is_there) in [(60_000, true), (0, false)] {
            let guard = lock.lock().await.unwrap();
            let until = (time[0] * 1000 + kept_for).to_string();
            for owner in ["stopped:1", "stopped:2"] {
                server.cli(&["RPUSH", "redisson_lock_queue:{name}", owner]);
                server.cli(&["ZADD", "redisson_lock_timeout:{name}", &until, owner]);
                let place = [owner, "30000 1 0"];
                server.cli(&[&["HSET", "leasehold:{name}:fair:places"], &place[..]].concat());
            }
            let waiting = wait_in(&world, &lock).await;
            guard.release().await.unwrap();
            let holder = lock.status().await.unwrap().holder().unwrap().owner.clone();
            assert_eq!(holder == "stopped:1", is_there, "{holder}");
            if is_there {
                server.cli(&["DEL", NAME, "redisson_lock_queue:{name}"]);
                waiting.abort();
                let _ = waiting.await;
                wait_until_idle(&client).await;
            } else {
                drop(soon("its turn", waiting).await.unwrap().unwrap());
            }
        }
    }
}

#[tokio::test]
async fn a_waiter_whose_connection_broke_keeps_its_place() {
    for world in World::all() {
        let World::Server(server) = &world else {
            continue;
        };
        let (holder, first, second) = (
            client_of(&world).await,
            client_of(&world).await,
            client_of(&world).await,
        );
        let guard = holder.fair_mutex(NAME).lock().await.unwrap();
        let one = wait_in(&world, &first.fair_mutex(NAME)).await;
        let two = wait_in(&world, &second.fair_mutex(NAME)).await;
        let before = line(server);
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        wait_until_async(SOON, "both listen again", || {
            channels(server)
                .iter()
                .filter(|c| c.contains(":grant:"))
                .count()
                == 2
        })
        .await;
        assert_eq!(line(server), before);
        guard.release().await.unwrap();
        let guard = soon("the first", one).await.unwrap().unwrap();
        assert!(!two.is_finished());
        guard.release().await.unwrap();
        drop(soon("the second", two).await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn a_waiter_that_leaves_leaves_no_place_and_holds_up_none() {
    for world in World::all() {
        let (holder, other) = (client_of(&world).await, client_of(&world).await);
        let guard = holder.fair_mutex(NAME).lock().await.unwrap();
        let lock = other.fair_mutex(NAME);
        let aborted = wait_in(&world, &lock).await;
        let waiting = wait_in(&world, &lock).await;
        assert!(lock.try_lock_for(300 * MS).await.unwrap().is_none());
        aborted.abort();
        if let World::Server(server) = &world {
            until_in_line(server, 1).await;
        }
        guard.release().await.unwrap();
        drop(soon("its turn", waiting).await.unwrap().unwrap());
        wait_until_idle(&other).await;
        if let World::Server(server) = &world {
            wait_until_async(SOON, "nothing is left", || keys(server).is_empty()).await;
        }
    }
}

#[tokio::test]
async fn a_part_of_a_multi_lock_waits_in_turn() {
    for world in World::all() {
        let clients = [client_of(&world).await, client_of(&world).await];
        let [one, other] = &clients;
        let (mine, theirs) = (one.fair_mutex(NAME), other.fair_mutex(NAME));
        let parts: [Part; 3] = ["a".into(), (&mine).into(), "z".into()];
        let several = one.multi_lock(parts);
        let guard = theirs.lock().await.unwrap();
        assert!(several.try_lock().await.unwrap().is_none());
        assert!(other.mutex("a").try_lock().await.unwrap().is_some());

        let first = wait_in(&world, &theirs).await;
        let second = wait_with(&world, &mine, several.lock()).await;
        let third = wait_in(&world, &theirs).await;
        let held = |name| async move { other.mutex(name).status().await.unwrap().holders.len() };
        // The part before the fair mutex is held meanwhile, and the part behind it is not.
        assert_eq!((held("a").await, held("z").await), (1, 0));
        guard.release().await.unwrap();
        let first = soon("the first", first).await.unwrap().unwrap();
        assert!(!second.is_finished() && !third.is_finished());
        first.release().await.unwrap();
        let second = soon("the second", second).await.unwrap().unwrap();
        assert!(second.is_valid() && !third.is_finished());
        second.release().await.unwrap();
        let guard = soon("the third", third).await.unwrap().unwrap();

        // A multi-lock that leaves has no place any more, and gives back the rest.
        let leaves = wait_with(&world, &mine, several.lock()).await;
        leaves.abort();
        assert!(leaves.await.is_err());
        wait_until_idle(one).await;
        assert_eq!(held("a").await, 0);
        guard.release().await.unwrap();

        // An owner enters a part that it holds.
        let owner = Owner::new();
        let outer = mine.owned_by(&owner).lock().await.unwrap();
        let inner = soon("entered", several.owned_by(&owner).lock()).await;
        assert_eq!(mine.status().await.unwrap().holders[0].holds, 2);
        inner.unwrap().release().await.unwrap();
        outer.release().await.unwrap();
        for client in &clients {
            wait_until_idle(client).await;
        }
        if let World::Server(server) = &world {
            wait_until_async(SOON, "nothing is left", || keys(server).is_empty()).await;
        }
    }
}

#[tokio::test]
async fn a_long_hold_costs_no_waiter_its_place() {
    for world in World::all() {
        let World::Server(server) = &world else {
            continue;
        };
        let short = || {
            let builder = world.builder().poll_every(100 * MS);
            builder.fair_wait_timeout(200 * MS).connect()
        };
        let (holder, waiter) = (short().await.unwrap(), short().await.unwrap());
        let guard = holder.fair_mutex(NAME).lock().await.unwrap();
        let one = wait_in(&world, &waiter.fair_mutex(NAME)).await;
        let two = wait_in(&world, &waiter.fair_mutex(NAME)).await;
        let before = line(server);
        let until = Instant::now() + 1500 * MS; // many times as long as a place lasts by itself
        while Instant::now() < until {
            let time: Vec<u64> = redis::from_redis_value(server.cli(&["TIME"])).unwrap();
            let now = time[0] * 1000 + time[1] / 1000;
            for owner in &before {
                let score = server.cli(&["ZSCORE", "redisson_lock_timeout:{name}", owner]);
                let score: String = redis::from_redis_value(score).unwrap();
                let deadline: u64 = score.parse().unwrap();
                assert!(deadline > now, "Redisson would take {owner} for dead");
            }
            tokio::time::sleep(10 * MS).await;
        }
        assert_eq!(line(server), before);
        guard.release().await.unwrap();
        drop(soon("the first", one).await.unwrap().unwrap());
        drop(soon("the second", two).await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn an_acquisition_among_contenders_takes_at_most_four_commands() {
    const TURNS: u64 = 50;
    for world in World::all() {
        let World::Server(server) = &world else {
            continue;
        };
        let clients = [client_of(&world).await, client_of(&world).await];
        let mut monitor = Monitor::start(server);
        let tasks = clients.each_ref().map(|client| {
            let lock = client.fair_mutex(NAME);
            tokio::spawn(async move {
                for _ in 0..TURNS {
                    let guard = lock.lock().await.unwrap();
                    guard.release().await.unwrap();
                }
            })
        });
        for task in tasks {
            soon("all turns", task).await.unwrap();
        }
        let commands = monitor
            .seen()
            .iter()
            .filter(|sent| ["EVALSHA", "EVAL", "SUBSCRIBE", "UNSUBSCRIBE"].contains(&&*sent[0]))
            .count() as u64;
        assert!(
            commands <= 4 * 2 * TURNS,
            "{commands} for {} turns",
            2 * TURNS
        );
    }
}

#[tokio::test]
async fn a_second_copy_of_any_request_changes_nothing() {
    for world in World::all() {
        let World::Server(server) = &world else {
            continue;
        };
        let builder = world.builder().poll_every(50 * MS);
        let (holder, waiter) = (client_of(&world).await, builder.connect().await.unwrap());
        let mut monitor = Monitor::start(server);
        let guard = holder.fair_mutex(NAME).lock().await.unwrap();
        let one = wait_in(&world, &waiter.fair_mutex(NAME)).await;
        let two = wait_in(&world, &waiter.fair_mutex(NAME)).await;
        let calls = script_calls(server);
        wait_until_async(SOON, "places are kept", || script_calls(server) > calls + 1).await;
        let before = line(server);
        for call in monitor.calls("redisson_lock_queue") {
            send_copy(server, &call);
        }
        assert_eq!(line(server), before, "no place is made or lost");
        assert!(guard.verify().await.is_ok());
        guard.release().await.unwrap();
        let next = soon("the first", one).await.unwrap().unwrap();
        // The holder is another now; whatever the first holder sent changes nothing of that.
        let first = monitor.calls("redisson_lock_queue").swap_remove(0);
        let owner = &first[3 + 5 + 3];
        for call in monitor.calls("redisson_lock_queue") {
            if call.contains(owner) && call[1] != first[1] {
                send_copy(server, &call);
            }
        }
        assert!(next.verify().await.is_ok());
        next.release().await.unwrap();
        drop(soon("the second", two).await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn a_queue_and_deadlines_that_disagree_make_no_error() {
    for world in World::all() {
        let World::Server(server) = &world else {
            continue;
        };
        for lost in [
            "redisson_lock_queue:{name}",
            "redisson_lock_timeout:{name}",
            "leasehold:{name}:fair:places",
        ] {
            let builder = || world.builder().poll_every(100 * MS);
            let holder = builder().connect().await.unwrap();
            let waiter = builder()
                .fair_wait_timeout(100 * MS)
                .connect()
                .await
                .unwrap();
            let guard = holder.fair_mutex(NAME).lock().await.unwrap();
            let one = wait_in(&world, &waiter.fair_mutex(NAME)).await;
            let two = wait_in(&world, &waiter.fair_mutex(NAME)).await;
            server.cli(&["DEL", lost]);
            until_in_line(server, 2).await;
            guard.release().await.unwrap();
            // Their order may be another now.
            let (one, two) = (async { drop(one.await.unwrap().unwrap()) }, async {
                drop(two.await.unwrap().unwrap());
            });
            soon(lost, async { tokio::join!(one, two) }).await;
            wait_until_idle(&waiter).await;
        }
    }
}

#[tokio::test]
async fn the_calls_of_one_owner_are_one_waiter() {
    for world in World::all() {
        let (holder, other) = (client_of(&world).await, client_of(&world).await);
        let guard = holder.fair_mutex(NAME).lock().await.unwrap();
        let owner = Owner::new();
        let lock = other.fair_mutex(NAME).owned_by(&owner);
        let first = wait_in(&world, &lock).await;
        let inner = tokio::spawn(lock.lock());
        while lock.status().await.unwrap().waiting_here < 2 {
            tokio::task::yield_now().await;
        }
        if let World::Server(server) = &world {
            assert_eq!(line(server).len(), 1);
        }
        guard.release().await.unwrap();
        let outer = soon("its turn", first).await.unwrap().unwrap();
        let inner = soon("enters with it", inner).await.unwrap().unwrap();
        assert_eq!(outer.owner(), inner.owner());
        drop((outer, inner));
    }
}

#[tokio::test]
async fn a_user_with_the_documented_permissions_can_do_everything() {
    for world in World::all() {
        let World::Server(server) = &world else {
            continue;
        };
        let mut command = vec!["ACL".to_owned(), "SETUSER".to_owned(), "worker".to_owned()];
        command.extend(documented_rules());
        command.extend(more_rules("fair mutexes"));
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        server.cli(&command);
        // As the documentation says; Redis 7.0 does not know it.
        let _ = server.try_cli(&["ACL", "SETUSER", "worker", "+client|setinfo"]);
        let connect = || {
            let builder = Client::builder().url(server.url()).poll_every(100 * MS);
            builder.username("worker").password("secret").connect()
        };
        let (one, two) = (connect().await.unwrap(), connect().await.unwrap());
        let [first, second] = [&one, &two].map(|client| client.fair_mutex("order:1"));
        let guard = first.lock().await.unwrap();
        // A waiter of Redisson's that is not heard stands first.
        server.cli(&["RPUSH", "redisson_lock_queue:{order:1}", "somebody:1"]);
        server.cli(&["ZADD", "redisson_lock_timeout:{order:1}", "1", "somebody:1"]);
        let waiting = tokio::spawn(second.lock());
        let left = tokio::spawn(second.try_lock_for(300 * MS));
        assert!(
            soon("its time is up", left)
                .await
                .unwrap()
                .unwrap()
                .is_none()
        );
        assert_eq!(first.status().await.unwrap().waiting_clients, 2);
        guard.release().await.unwrap();
        let guard = soon("its turn", waiting).await.unwrap().unwrap();
        assert!(first.force_unlock().await.unwrap());
        drop(guard);
        let log: Vec<redis::Value> = redis::from_redis_value(server.cli(&["ACL", "LOG"])).unwrap();
        // A client asks whether the server is a node of a cluster, and needs no right to.
        let needed = |entry: &&redis::Value| !format!("{entry:?}").contains("cluster|myid");
        let log: Vec<_> = log.iter().filter(needed).collect();
        assert!(log.is_empty(), "{log:?}");
        for client in [&one, &two] {
            wait_until_idle(client).await;
        }
    }
}
