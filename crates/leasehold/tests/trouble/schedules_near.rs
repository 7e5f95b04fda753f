//! The neighbours of the schedules that broke it: the next holder after an end by force, the errors for a server that
//! refuses, and the keys left on the server; see `schedules.rs`.

use std::time::{Duration, Instant};

use crate::common::{
    SOON, World, int, owners, release, servers, soon, until_listening, until_waiting_here,
    wait_until_idle,
    wire::{Monitor, queue, send_copy},
};
use leasehold::{Client, ErrorKind, Handoff, LostReason, Mutex, Owner};
use leasehold_testkit::{Proxy, Server, Way, wait_until_async};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinHandle,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

// ---- the next holder ----

/// Clients that wait for `name`, one task each, in a known order; each says its number when it has the name.
struct Line {
    clients: Vec<Client>,
    tasks: Vec<JoinHandle<()>>,
    told: UnboundedReceiver<usize>,
    tell: UnboundedSender<usize>,
}

impl Line {
    async fn of(world: &World, clients: usize) -> Line {
        let (tell, told) = unbounded_channel();
        let mut line = Line {
            clients: Vec::new(),
            tasks: Vec::new(),
            told,
            tell,
        };
        for _ in 0..clients {
            line.clients.push(world.client().await);
        }
        line
    }

    /// Has them wait, one behind the other.
    async fn form(&mut self, world: &World) {
        for number in 0..self.clients.len() {
            let (mutex, tell) = (self.clients[number].mutex("name"), self.tell.clone());
            self.tasks.push(tokio::spawn(async move {
                let guard = mutex.lock().await.unwrap();
                tell.send(number).unwrap();
                release(guard).await;
            }));
            let stands = number + 1;
            match world {
                World::Server(server) => {
                    // And has the answer that says so: what cuts it off from now on is to find it waiting.
                    let client = &self.clients[number];
                    wait_until_async(SOON, "it is in the queue", || {
                        queue(server, "name").len() == stands && client.footprint().waiting == 1
                    })
                    .await;
                }
                World::Memory(_) => {
                    until_listening(&self.clients[0], stands as u64).await;
                    // From there to its place it takes one more step, which is a turn of this runtime.
                    for _ in 0..50 {
                        tokio::task::yield_now().await;
                    }
                }
            }
        }
    }

    /// They get the name, in this order.
    async fn expect(&mut self, order: &[usize], case: &str) {
        let mut got = Vec::new();
        for _ in order {
            got.push(soon(case, self.told.recv()).await.unwrap());
        }
        assert_eq!(got, order, "{case}");
        for task in self.tasks.drain(..) {
            if let Err(error) = soon(case, task).await {
                assert!(error.is_cancelled(), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn the_first_in_line_is_next_after_a_force_unlock() {
    for world in World::all() {
        let mut line = Line::of(&world, 3).await;
        let (holder, admin) = (world.client().await, world.client().await);
        for round in 0..40 {
            let guard = holder.mutex("name").lock().await.unwrap();
            line.form(&world).await;
            assert!(admin.force_unlock("name").await.unwrap());
            let case = format!("{}, round {round}", world.name());
            line.expect(&[0, 1, 2], &case).await;
            assert!(guard.verify().await.is_err());
        }
        assert_eq!(world.held(), [""; 0]);
    }
}

/// The server has given it the name, and what it does about it is to leave.
#[tokio::test]
async fn the_second_in_line_is_next_after_a_waiter_that_leaves_with_its_grant_under_way() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let world = World::Server(Box::new(server));
        let World::Server(server) = &world else {
            return;
        };
        let mut line = Line::of(&world, 3).await;
        line.clients[0] = Client::connect(&proxy.url()).await.unwrap();
        let holder = world.client().await;
        for round in 0..40 {
            let case = format!("{}, round {round}", world.name());
            let guard = holder.mutex("name").lock().await.unwrap();
            line.form(&world).await;
            proxy.stall(Some(Way::ToClient));
            release(guard).await;
            let first = line.clients[0].id();
            assert!(owners(server, "name")[0].0.starts_with(first), "{case}");
            line.tasks[0].abort();
            line.expect(&[1, 2], &case).await;
            proxy.heal();
            wait_until_idle(&line.clients[0]).await;
        }
        assert_eq!(world.held(), [""; 0]);
    }
}

/// A client that has left the queue is told to unsubscribe a round trip later. Meanwhile a release counts it as one that
/// waits without a place, as Redisson's do, and lets all race for the name.
#[tokio::test]
async fn the_second_in_line_is_next_when_the_first_leaves_at_the_time_of_the_release() {
    for world in World::all() {
        let mut line = Line::of(&world, 3).await;
        let holder = world.client().await;
        for round in 0..40 {
            let guard = holder.mutex("name").lock().await.unwrap();
            line.form(&world).await;
            line.tasks[0].abort();
            release(guard).await;
            let case = format!("{}, round {round}", world.name());
            line.expect(&[1, 2], &case).await;
        }
        assert_eq!(world.held(), [""; 0]);
    }
}

#[tokio::test]
async fn a_fixed_lease_that_was_unlocked_by_force_is_lost_within_a_third_of_it() {
    const LEASE: Duration = Duration::from_millis(1500);
    for world in World::all() {
        let (client, admin) = (world.client().await, world.client().await);
        let guard = client
            .mutex("name")
            .fixed_lease(LEASE)
            .lock()
            .await
            .unwrap();
        tokio::time::sleep(LEASE / 10).await; // not in step with its own looks
        assert!(admin.force_unlock("name").await.unwrap());
        let began = Instant::now();
        let reason = soon("the loss", guard.lost()).await;
        let took = began.elapsed();
        assert_eq!(reason, LostReason::Replaced, "{} {took:?}", world.name());
        assert!(took <= LEASE / 3 + 200 * MS, "{} {took:?}", world.name());
        wait_until_idle(&client).await;
    }
}

// ---- what is left on the server ----

/// Guards of one holder, by the way in which they came to be, leave the count of those that the server knows.
#[tokio::test]
async fn guards_that_are_detached_in_any_order_leave_the_right_count() {
    for world in World::all() {
        for order in [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ] {
            let client = world.client().await;
            let owner = Owner::new();
            let mutex = client
                .mutex("name")
                .fixed_lease(30 * SECOND)
                .owned_by(&owner);
            let outer = mutex.lock().await.unwrap();
            let inner = mutex.lock().await.unwrap();
            let again = outer.reenter().unwrap(); // counted in memory only
            let field = outer.owner();
            let mut counted = 2;
            let mut guards = [Some(outer), Some(inner), Some(again)];
            for number in order {
                let case = format!("{}, {number} of {order:?}", world.name());
                guards[number].take().unwrap().detach();
                counted -= u64::from(number < 2);
                wait_until_async(SOON, "the server knows", || client.footprint().tasks == 0).await;
                let holder = client.status("name").await.unwrap().holder().cloned();
                let holder = holder.unwrap_or_else(|| panic!("{case}: not held any more"));
                assert_eq!(holder.owner, field);
                assert_eq!(holder.holds, counted.max(1), "{case}");
                assert!(holder.remaining.unwrap() > 20 * SECOND, "{case}");
            }
            assert!(client.mutex("name").try_lock().await.unwrap().is_none());
            assert!(client.force_unlock("name").await.unwrap());
            wait_until_idle(&client).await;
        }
    }
}

/// B4: the number of a lease is only its client's.
#[tokio::test]
async fn equal_lease_ids_of_two_clients_do_not_meet_each_others_tombstones() {
    for server in servers() {
        let builder = Client::builder().url(server.url()).may_duplicate(true);
        let (client, other) = (
            builder.clone().connect().await.unwrap(),
            builder.connect().await.unwrap(),
        );
        let mut monitor = Monitor::start(&server);
        let holder = other.mutex("name").lock().await.unwrap();
        let wait = 100 * MS;
        // Given up without an answer to its ask, so that it leaves a tombstone, with or without `may_duplicate`.
        let waited = client.mutex("name").try_lock_for(wait).await.unwrap();
        assert!(waited.is_none());
        wait_until_idle(&client).await;
        release(holder).await;
        let ask = monitor.calls(client.id()).remove(1); // for a place
        send_copy(&server, &ask);
        assert_eq!(int(&server, &["EXISTS", "name"]), 0, "it was given up");
        let of_other: Vec<String> = ask
            .iter()
            .map(|word| word.replace(client.id(), other.id()))
            .collect();
        send_copy(&server, &of_other);
        let held = owners(&server, "name");
        assert_eq!(held.len(), 1, "{}: met a tombstone", server.flavor());
        assert!(held[0].0.starts_with(other.id()));
    }
}

// ---- a server that says no ----

/// A server that refuses what a lock needs, until it is told otherwise.
struct Refuses {
    what: &'static str,
    from: &'static [&'static [&'static str]],
    until: &'static [&'static [&'static str]],
}

const FULL: Refuses = Refuses {
    what: "maxmemory",
    from: &[
        &["CONFIG", "SET", "maxmemory-policy", "noeviction"],
        &["CONFIG", "SET", "maxmemory", "1"],
    ],
    until: &[&["CONFIG", "SET", "maxmemory", "0"]],
};

const REPLICA: Refuses = Refuses {
    what: "is a replica",
    from: &[&["REPLICAOF", "127.0.0.1", "1"]],
    until: &[&["REPLICAOF", "NO", "ONE"]],
};

async fn refusals_are_told_as_such_and_waited_out(server: &Server, what: &str, over: impl Fn()) {
    let builder = Client::builder().url(server.url());
    let client = builder.operation_timeout(300 * MS).connect().await.unwrap();
    let mutex = client.mutex("name");
    let waits = tokio::spawn(client.mutex("other").lock());
    let short = tokio::spawn(client.mutex("another").lease(300 * MS).lock());
    is_refused(&mutex, what, server).await;
    for lock in [&waits, &short] {
        assert!(!lock.is_finished(), "{} {what}", server.flavor());
    }
    over();
    for lock in [waits, short] {
        release(soon(what, lock).await.unwrap().unwrap()).await;
    }
    release(soon(what, mutex.lock()).await.unwrap()).await;
    wait_until_idle(&client).await;
}

async fn is_refused(mutex: &Mutex, what: &str, server: &Server) {
    for wait in [None, Some(100 * MS), Some(700 * MS)] {
        let answer = match wait {
            None => soon(what, mutex.try_lock()).await,
            Some(wait) => soon(what, mutex.try_lock_for(wait)).await,
        };
        let error = answer.unwrap_err();
        let case = format!("{}, {wait:?}: {error}", server.flavor());
        assert_eq!(error.kind(), ErrorKind::Rejected, "{case}");
        assert!(case.contains(what), "{case}");
    }
}

#[tokio::test]
async fn a_full_server_is_told_of_and_waited_for() {
    refused(&FULL).await;
}

#[tokio::test]
async fn a_server_that_became_a_replica_is_told_of_and_waited_for() {
    refused(&REPLICA).await;
}

async fn refused(refuses: &Refuses) {
    for server in servers() {
        for command in refuses.from {
            server.cli(command);
        }
        let over = || {
            for command in refuses.until {
                server.cli(command);
            }
        };
        refusals_are_told_as_such_and_waited_out(&server, refuses.what, over).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_busy_is_told_of_and_waited_for() {
    for server in servers() {
        server.cli(&["CONFIG", "SET", "lua-time-limit", "10"]);
        let mut connection = server.connection();
        let script = std::thread::spawn(move || {
            let mut eval = redis::cmd("EVAL");
            eval.arg("while true do end").arg(0).exec(&mut connection)
        });
        wait_until_async(SOON, "it is busy", || {
            let asked = server.try_cli(&["GET", "x"]);
            asked.is_err_and(|error| error.code() == Some("BUSY"))
        })
        .await;
        let over = || {
            server.cli(&["SCRIPT", "KILL"]);
        };
        refusals_are_told_as_such_and_waited_out(&server, "busy with a script", over).await;
        assert!(script.join().unwrap().is_err(), "it was killed");
    }
}

/// Bug 49: each waiter of a server that has become a replica asked for a new connection, hundreds of times a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_reconnected_to_once_a_second_however_many_wait() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        for command in REPLICA.from {
            server.cli(command);
        }
        let locks: Vec<_> = (0..100)
            .map(|i| tokio::spawn(client.mutex(format!("name{i}")).lock()))
            .collect();
        let before = server.connections_received();
        tokio::time::sleep(2500 * MS).await; // the time that is looked at
        let made = server.connections_received() - before;
        for command in REPLICA.until {
            server.cli(command);
        }
        // A new connection a second for each of the client's two, and those of this test itself.
        assert!(made <= 10, "{}: {made} connections", server.flavor());
        for lock in locks {
            release(
                soon("the replica is a master", lock)
                    .await
                    .unwrap()
                    .unwrap(),
            )
            .await;
        }
        wait_until_idle(&client).await;
    }
}

/// Bug 49: a monitor of all channels hears every grant, which says nothing of the client that it is meant for.
#[tokio::test]
async fn a_monitor_of_all_channels_makes_no_dead_waiter_look_alive() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        let mut monitor = server.connection();
        let mut monitor = monitor.as_pubsub();
        monitor.psubscribe("*").unwrap();
        let mutex = client.mutex("name").handoff(Handoff::off());
        let guard = mutex.lock().await.unwrap();
        // The place of a client that was killed.
        let dead = "00000000-0000-4000-8000-000000000000:1 60000 1";
        server.cli(&["RPUSH", "leasehold:{name}:queue", dead]);
        let next = tokio::spawn(mutex.lock());
        until_waiting_here(&client, 1).await;
        release(guard).await;
        release(soon("the next", next).await.unwrap().unwrap()).await;
    }
}
