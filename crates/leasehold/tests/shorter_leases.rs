//! A holder that a release has chosen may die at once, under a lease that is over sooner than the one before it would have been. Those
//! that wait were told of that one (L1).

mod common;

use std::time::{Duration, Instant};

use common::{SOON, World, int, servers, soon};
use leasehold::{Client, Status};
use leasehold_testkit::{Lane, Proxy, Server, Way, wait_until_async};

const LONG: Duration = Duration::from_secs(25);
const SHORT: Duration = Duration::from_millis(400);

/// Far from the poll interval, which is 10 s and more.
const AT_MOST: Duration = Duration::from_millis(1_500);

async fn until_waiting(clients: u64, look: impl AsyncFn() -> Status) {
    soon("they wait", async {
        while look().await.waiting_clients < clients {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Its driver sleeps: it has its place on the server, behind those that had theirs before.
async fn until_in_line(client: &Client) {
    let waits = || {
        let now = client.footprint();
        now.waiting > 0 && now.waiting == now.tasks && now.asking == 0
    };
    wait_until_async(SOON, "it is in line", waits).await;
}

/// `$first` holds for long; `$next` is to die; `$last` waits behind it. All as expressions of a client.
macro_rules! last_is_served {
    ($world:expr, $status:ident, $first:expr, $next:expr, $last:expr) => {{
        let connect = async || $world.builder().connect().await.unwrap();
        let clients: [Client; 3] = [connect().await, connect().await, connect().await];
        let first = $first(&clients[0]).await.unwrap();
        let next = tokio::spawn($next(&clients[1]));
        until_in_line(&clients[1]).await;
        let last = tokio::spawn($last(&clients[2]));
        until_in_line(&clients[2]).await;
        first.release().await.unwrap();
        let dead = soon("the next has it", next).await.unwrap().unwrap();
        drop(dead.detach()); // as if its process had died: nobody gives it back
        let since = Instant::now();
        let last = soon("the last has it", last).await.unwrap().unwrap();
        let late = since.elapsed();
        println!("{} {}: {late:?}", $world.name(), stringify!($status));
        assert!(late < AT_MOST, "{}: {late:?}", $world.name());
        last.release().await.unwrap();
    }};
}

macro_rules! kind {
    ($test:ident, $kind:ident) => {
        #[tokio::test]
        async fn $test() {
            for world in World::all() {
                last_is_served!(
                    world,
                    $kind,
                    |client: &Client| client.$kind("name").fixed_lease(LONG).lock(),
                    |client: &Client| client.$kind("name").fixed_lease(SHORT).lock(),
                    |client: &Client| client.$kind("name").lock()
                );
            }
        }
    };
}

kind!(who_waits_for_a_mutex_hears_of_a_shorter_lease, mutex);
kind!(who_waits_for_a_fenced_mutex_hears_of_it, fenced_mutex);
kind!(who_waits_for_a_plain_mutex_hears_of_it, plain_mutex);
kind!(who_waits_for_a_fair_mutex_hears_of_it, fair_mutex);

/// One holds for long. Of those that wait under a short lease, `$turns` are served and give it back; or those that were told, and would
/// look, give up. One dies. The last was never told by the first hand-over, since four others stood before it.
macro_rules! fifth {
    ($test:ident, $kind:ident, $lock:ident) => {
        #[tokio::test]
        async fn $test() {
            let lock = |client: &Client, lease| client.$kind("name").fixed_lease(lease).$lock();
            for world in World::all() {
                for give_up in [false, true] {
                    let mut clients = Vec::new();
                    for _ in 0..7 {
                        clients.push(world.builder().connect().await.unwrap());
                    }
                    let first = lock(&clients[0], LONG).await.unwrap();
                    let mut waits = Vec::new();
                    for client in &clients[1..] {
                        waits.push(tokio::spawn(lock(client, SHORT)));
                        until_in_line(client).await;
                    }
                    for client in &clients {
                        client.heard().await;
                    }
                    first.release().await.unwrap();
                    let last = waits.pop().unwrap();
                    let dead = waits.remove(if give_up { 0 } else { 4 });
                    let others = waits;
                    if !give_up {
                        for served in others {
                            let guard = soon("its turn", served).await.unwrap().unwrap();
                            guard.release().await.unwrap();
                        }
                        drop(soon("its turn", dead).await.unwrap().unwrap().detach());
                    } else {
                        drop(soon("its turn", dead).await.unwrap().unwrap().detach());
                        for gives_up in others {
                            gives_up.abort();
                        }
                    }
                    let since = Instant::now();
                    let last = soon("the last has it", last).await.unwrap().unwrap();
                    let late = since.elapsed();
                    println!("{} {give_up}: {late:?}", world.name());
                    assert!(late < AT_MOST, "{} {give_up}: {late:?}", world.name());
                    last.release().await.unwrap();
                }
            }
        }
    };
}

fifth!(
    the_fifth_that_waits_for_a_mutex_is_told_in_its_turn,
    mutex,
    lock
);
fifth!(
    the_fifth_that_waits_for_a_fenced_mutex_is_told,
    fenced_mutex,
    lock
);
fifth!(
    the_fifth_that_waits_for_a_plain_mutex_is_told,
    plain_mutex,
    lock
);
fifth!(
    the_fifth_that_waits_for_a_fair_mutex_is_told,
    fair_mutex,
    lock
);
fifth!(the_fifth_that_waits_to_write_is_told, rw_lock, write);

#[tokio::test]
async fn a_writer_hears_of_a_reader_with_a_shorter_lease() {
    for world in World::all() {
        last_is_served!(
            world,
            rw_lock,
            |client: &Client| client.rw_lock("name").fixed_lease(LONG).write(),
            |client: &Client| client.rw_lock("name").fixed_lease(SHORT).read(),
            |client: &Client| client.rw_lock("name").write()
        );
    }
}

#[tokio::test]
async fn a_reader_hears_of_a_writer_with_a_shorter_lease() {
    for world in World::all() {
        last_is_served!(
            world,
            rw_lock,
            |client: &Client| client.rw_lock("name").fixed_lease(LONG).write(),
            |client: &Client| client.rw_lock("name").fixed_lease(SHORT).write(),
            |client: &Client| client.rw_lock("name").read()
        );
    }
}

#[tokio::test]
async fn a_writer_hears_of_a_reader_that_leaves_one_with_a_shorter_lease() {
    for world in World::all() {
        let connect = async || world.builder().connect().await.unwrap();
        let clients: [Client; 3] = [connect().await, connect().await, connect().await];
        let lock = clients.each_ref().map(|client| client.rw_lock("name"));
        let long = lock[0].clone().fixed_lease(LONG).read().await.unwrap();
        let short = lock[1].clone().fixed_lease(SHORT).read().await.unwrap();
        let last = tokio::spawn(lock[2].write());
        until_waiting(1, async || lock[0].status().await.unwrap()).await;
        drop(short.detach());
        let since = Instant::now();
        long.release().await.unwrap();
        let last = soon("the last has it", last).await.unwrap().unwrap();
        assert!(
            since.elapsed() < AT_MOST,
            "{}: {:?}",
            world.name(),
            since.elapsed()
        );
        drop(last);
    }
}

#[tokio::test]
async fn who_waits_hears_of_it_when_the_name_was_unlocked_by_force() {
    for world in World::all() {
        let connect = async || world.builder().connect().await.unwrap();
        let clients: [Client; 3] = [connect().await, connect().await, connect().await];
        let mutex = clients.each_ref().map(|client| client.mutex("name"));
        let look = async || mutex[0].status().await.unwrap();
        let first = mutex[0].clone().fixed_lease(LONG).lock().await.unwrap();
        let next = tokio::spawn(mutex[1].clone().fixed_lease(SHORT).lock());
        until_waiting(1, look).await;
        let last = tokio::spawn(mutex[2].lock());
        until_waiting(2, look).await;
        assert!(mutex[2].force_unlock().await.unwrap());
        let dead = soon("the next has it", next).await.unwrap().unwrap();
        drop(dead.detach());
        let since = Instant::now();
        let last = soon("the last has it", last).await.unwrap().unwrap();
        assert!(
            since.elapsed() < AT_MOST,
            "{}: {:?}",
            world.name(),
            since.elapsed()
        );
        drop((first, last));
    }
}

/// Nothing is lost; only a message on the one connection is faster than an answer on the other.
#[tokio::test]
async fn a_message_that_overtakes_an_answer_counts() {
    let subscribed = |server: &Server| {
        let channels = server.cli(&["PUBSUB", "CHANNELS", "*name*"]);
        let channels: Vec<String> = redis::from_redis_value(channels).unwrap();
        channels.len()
    };
    for server in servers() {
        macro_rules! overtaken {
            ($kind:ident, $queue:expr) => {{
                let proxy = Proxy::start(server.addr());
                let connect = async |url: &str| Client::connect(url).await.unwrap();
                let (a, b) = (connect(&server.url()).await, connect(&server.url()).await);
                let c = connect(&proxy.url()).await;
                // Its connection for messages is there.
                let other = a.mutex("another").lock().await.unwrap();
                let waits = tokio::spawn(c.mutex("another").lock());
                let look = async || a.mutex("another").status().await.unwrap();
                until_waiting(1, look).await;
                c.heard().await;
                let lines = || int(&server, &["LLEN", $queue]);
                let first = a.$kind("name").fixed_lease(LONG).lock().await.unwrap();
                let next = tokio::spawn(b.$kind("name").fixed_lease(SHORT).lock());
                wait_until_async(SOON, "the next is in line", || lines() == 1).await;
                let before = subscribed(&server);
                proxy.stall_lane(Lane::Subscriptions, Some(Way::ToClient));
                let last = tokio::spawn(c.$kind("name").lock());
                let subscribes = || subscribed(&server) > before;
                wait_until_async(SOON, "the last subscribes", subscribes).await;
                proxy.stall_lane(Lane::Commands, Some(Way::ToClient));
                proxy.heal_lane(Lane::Subscriptions);
                wait_until_async(SOON, "the last is in line", || lines() == 2).await;
                first.release().await.unwrap();
                let dead = soon("the next", next).await.unwrap().unwrap();
                let since = Instant::now();
                drop(dead.detach());
                c.heard().await; // the message, before the answer
                proxy.heal_lane(Lane::Commands);
                let last = soon("the last", last).await.unwrap().unwrap();
                let late = since.elapsed();
                assert!(late < AT_MOST, "{}: {late:?}", stringify!($kind));
                last.release().await.unwrap();
                waits.abort();
                common::wait_until_idle(&c).await;
                other.release().await.unwrap();
            }};
        }
        overtaken!(mutex, "leasehold:{name}:queue");
        overtaken!(fair_mutex, "redisson_lock_queue:{name}");
    }
}

/// Some of those that wait are told, not all: they would ask in front of the one whose turn it is.
#[tokio::test]
async fn a_long_line_does_not_keep_a_short_lease_from_its_turn() {
    const MANY: usize = 60;
    for server in servers() {
        let mut clients = Vec::new();
        for _ in 0..MANY + 2 {
            clients.push(Client::connect(&server.url()).await.unwrap());
        }
        let lock = |at: usize| clients[at].fair_mutex("name");
        let in_line = || int(&server, &["LLEN", "redisson_lock_queue:{name}"]);
        let first = lock(0).fixed_lease(LONG).lock().await.unwrap();
        let next = tokio::spawn(lock(1).fixed_lease(SHORT).lock());
        wait_until_async(SOON, "the next is in line", || in_line() == 1).await;
        let waits = (0..MANY).map(|at| tokio::spawn(lock(at + 2).lock()));
        let waits: Vec<_> = waits.collect();
        let all = i64::try_from(MANY).unwrap() + 1;
        wait_until_async(SOON, "all are in line", || in_line() == all).await;
        for client in &clients {
            client.heard().await;
        }
        let before = common::wire::script_calls(&server);
        first.release().await.unwrap();
        let next = soon("its turn", next).await.unwrap().unwrap();
        assert_eq!(in_line(), all - 1, "none was served before it");
        for client in &clients {
            client.heard().await;
        }
        let asked = common::wire::script_calls(&server) - before;
        assert!(asked <= 12, "{asked} scripts for one hand-over");
        // With the server gone, each client would wait for it at its end.
        for wait in waits {
            wait.abort();
            assert!(wait.await.is_err_and(|error| error.is_cancelled()));
        }
        drop(next);
    }
}
