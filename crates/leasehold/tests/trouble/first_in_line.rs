//! The first in the queue watches the holder, for all that wait (L1): whoever holds the lock, and dies, is missed at the end of its lease.

use std::time::{Duration, Instant};

use crate::common;
use crate::common::{SOON, World, int, servers, soon};
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

/// The next dies under a short lease, and then the first of those that wait gives up, which had been told of it.
macro_rules! leaves {
    ($test:ident, $kind:ident, $lock:ident) => {
        #[tokio::test]
        async fn $test() {
            for world in World::all() {
                let mut clients = Vec::new();
                for _ in 0..4 {
                    clients.push(world.client().await);
                }
                let lock = |at: usize, lease| {
                    let lock = clients[at].$kind("name").fixed_lease(lease);
                    tokio::spawn(lock.$lock())
                };
                let first = soon("it is free", lock(0, LONG)).await.unwrap().unwrap();
                let dies = lock(1, SHORT);
                until_in_line(&clients[1]).await;
                let gives_up = lock(2, LONG);
                until_in_line(&clients[2]).await;
                let last = lock(3, LONG);
                until_in_line(&clients[3]).await;
                first.release().await.unwrap();
                drop(soon("its turn", dies).await.unwrap().unwrap().detach());
                let since = Instant::now();
                gives_up.abort();
                let last = soon("the last has it", last).await.unwrap().unwrap();
                let late = since.elapsed();
                assert!(late < AT_MOST, "{}: {late:?}", world.name());
                last.release().await.unwrap();
            }
        }
    };
}

leaves!(the_next_watches_a_mutex_as_one_leaves, mutex, lock);
leaves!(
    the_next_watches_a_fenced_mutex_as_one_leaves,
    fenced_mutex,
    lock
);
leaves!(
    the_next_watches_a_plain_mutex_as_one_leaves,
    plain_mutex,
    lock
);
leaves!(
    the_next_watches_a_fair_mutex_as_one_leaves,
    fair_mutex,
    lock
);
leaves!(the_next_watches_a_rw_lock_as_one_leaves, rw_lock, write);

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
        let first = mutex[0].clone().fixed_lease(LONG).lock().await.unwrap();
        let next = tokio::spawn(mutex[1].clone().fixed_lease(SHORT).lock());
        until_in_line(&clients[1]).await;
        let last = tokio::spawn(mutex[2].lock());
        until_in_line(&clients[2]).await;
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

/// The others neither hear of it nor ask: a hand-over costs the same however many wait.
#[tokio::test]
async fn only_the_first_is_told() {
    const MANY: usize = 20;
    for server in servers() {
        let mut clients = Vec::new();
        for _ in 0..MANY + 2 {
            clients.push(Client::connect(&server.url()).await.unwrap());
        }
        let lock = |at: usize| clients[at].fair_mutex("name");
        let in_line = || int(&server, &["LLEN", "redisson_lock_queue:{name}"]);
        let first = lock(0).fixed_lease(LONG).lock().await.unwrap();
        // Short enough that the first is told, and long enough that its look at the end does not count here.
        let next = tokio::spawn(lock(1).fixed_lease(LONG / 5).lock());
        wait_until_async(SOON, "the next is in line", || in_line() == 1).await;
        let waits = (0..MANY).map(|at| tokio::spawn(lock(at + 2).lock()));
        let waits: Vec<_> = waits.collect();
        let all = i64::try_from(MANY).unwrap() + 1;
        wait_until_async(SOON, "all are in line", || in_line() == all).await;
        for client in &clients {
            client.heard().await;
        }
        // A client that stands in line may have another request under way.
        let is_quiet = || clients.iter().all(|client| client.footprint().asking == 0);
        wait_until_async(SOON, "no request is under way", is_quiet).await;
        let before = common::wire::script_calls(&server);
        let publishes = || server.calls().get("publish").copied().unwrap_or(0);
        let told_before = publishes();
        first.release().await.unwrap();
        let next = soon("its turn", next).await.unwrap().unwrap();
        assert_eq!(in_line(), all - 1, "none was served before it");
        for client in &clients {
            client.heard().await;
        }
        let asked = common::wire::script_calls(&server) - before;
        assert!(asked <= 2, "{asked} scripts for one hand-over");
        let told = publishes() - told_before;
        assert_eq!(
            told, 2,
            "the next that it is its turn, and the first of the others how long that lasts"
        );
        // With the server gone, each client would wait for it at its end.
        for wait in waits {
            wait.abort();
            assert!(wait.await.is_err_and(|error| error.is_cancelled()));
        }
        drop(next);
    }
}

/// The queue of this name that has a place in it.
fn queue_of(server: &Server, name: &str) -> String {
    let pattern = format!("leasehold:{{{name}}}:*queue");
    let queues: Vec<String> = redis::from_redis_value(server.cli(&["KEYS", &pattern])).unwrap();
    let [queue] = queues.try_into().expect("one queue");
    queue
}

/// A waiter of Redisson's sleeps until the end of the long lease that it was told of. The name goes to one of ours with a shorter one.
macro_rules! redisson_hears {
    ($test:ident, $kind:ident, $lock:ident, $channel:literal) => {
        #[tokio::test]
        async fn $test() {
            for server in servers() {
                for by_force in [false, true] {
                    let connect = async || Client::connect(&server.url()).await.unwrap();
                    let (holder, next) = (connect().await, connect().await);
                    let lease = Duration::from_secs(13);
                    // By lot the name is freed instead, and all are told: then once more.
                    for round in 0.. {
                        assert!(round < 30, "{by_force}: always freed");
                        let name = format!("{by_force}{round}");
                        let mut inboxes = server.connection();
                        let mut inboxes = inboxes.as_pubsub();
                        inboxes
                            .psubscribe(format!("leasehold:{{{name}}}:*"))
                            .unwrap();
                        let mut java = server.connection();
                        let mut java = java.as_pubsub();
                        java.subscribe(format!($channel, name)).unwrap();
                        for heard in [&inboxes, &java] {
                            let wait = Duration::from_millis(200);
                            heard.set_read_timeout(Some(wait)).unwrap();
                        }
                        let held = holder.$kind(&name).fixed_lease(LONG).$lock();
                        let held = held.await.unwrap();
                        let waits = tokio::spawn(next.$kind(&name).fixed_lease(lease).$lock());
                        until_in_line(&next).await;
                        if by_force {
                            assert!(holder.$kind(&name).force_unlock().await.unwrap());
                        } else {
                            held.release().await.unwrap();
                        }
                        let guard = soon("its turn", waits).await.unwrap().unwrap();
                        let granted = inboxes.get_message().is_ok();
                        let told = java.get_message().is_ok();
                        guard.release().await.unwrap();
                        if granted {
                            assert!(told, "{}, by force: {by_force}", server.flavor());
                            break;
                        }
                    }
                }
            }
        }
    };
}

redisson_hears!(
    redisson_hears_of_a_shorter_lease_of_a_mutex,
    mutex,
    lock,
    "redisson_lock__channel:{{{}}}"
);
redisson_hears!(
    redisson_hears_of_a_shorter_lease_of_a_fenced_mutex,
    fenced_mutex,
    lock,
    "redisson_lock__channel:{{{}}}"
);
redisson_hears!(
    redisson_hears_of_a_shorter_lease_of_a_writer,
    rw_lock,
    write,
    "redisson_rwlock:{{{}}}"
);

/// Workers that crashed while they waited leave their places behind.
#[tokio::test]
async fn the_dead_in_the_queue_do_not_hide_the_living() {
    for server in servers() {
        let connect = async || Client::connect(&server.url()).await.unwrap();
        let (holder, next, last) = (connect().await, connect().await, connect().await);
        let held = holder.mutex("name").fixed_lease(LONG).lock();
        let held = held.await.unwrap();
        let dies = tokio::spawn(next.mutex("name").fixed_lease(SHORT).lock());
        until_in_line(&next).await;
        for dead in 0..200 {
            let place = format!("dead{dead}:17 30000 1");
            server.cli(&["RPUSH", "leasehold:{name}:queue", &place]);
        }
        let waits = tokio::spawn(last.mutex("name").lock());
        until_in_line(&last).await;
        held.release().await.unwrap();
        drop(soon("its turn", dies).await.unwrap().unwrap().detach());
        let since = Instant::now();
        drop(soon("the living", waits).await.unwrap().unwrap());
        let late = since.elapsed();
        assert!(late < AT_MOST, "{}: {late:?}", server.flavor());
    }
}

/// The holder has died. The waiter that would look leaves just then, and the last has not heard of it.
macro_rules! next_looks {
    ($test:ident, $kind:ident, $lock:ident) => {
        #[tokio::test]
        async fn $test() {
            for server in servers() {
                let connect = async || Client::connect(&server.url()).await.unwrap();
                let (holder, leaves, last) = (connect().await, connect().await, connect().await);
                let held = holder.$kind("name").fixed_lease(LONG).$lock();
                let held = held.await.unwrap();
                let gives_up = tokio::spawn(leaves.$kind("name").$lock());
                until_in_line(&leaves).await;
                let waits = tokio::spawn(last.$kind("name").$lock());
                until_in_line(&last).await;
                assert_eq!(int(&server, &["DEL", "name"]), 1); // as if its lease had ended
                let since = Instant::now();
                gives_up.abort();
                drop(soon("the last", waits).await.unwrap().unwrap());
                let late = since.elapsed();
                assert!(late < AT_MOST, "{}: {late:?}", server.flavor());
                drop(held);
            }
        }
    };
}

next_looks!(the_next_looks_when_one_leaves_a_free_mutex, mutex, lock);
next_looks!(
    the_next_looks_when_one_leaves_a_free_fenced_mutex,
    fenced_mutex,
    lock
);
next_looks!(
    the_next_looks_when_one_leaves_a_free_plain_mutex,
    plain_mutex,
    lock
);
next_looks!(
    the_next_looks_when_one_leaves_a_free_rw_lock,
    rw_lock,
    write
);

/// The first of them finds the name free, by itself: no release lets in the others.
#[tokio::test]
async fn all_readers_get_in_behind_a_writer_that_died() {
    for world in World::all() {
        let mut clients = Vec::new();
        for _ in 0..10 {
            clients.push(world.client().await);
        }
        let held = clients[0].rw_lock("name").fixed_lease(LONG).write();
        let held = held.await.unwrap();
        let dies = tokio::spawn(clients[1].rw_lock("name").fixed_lease(SHORT).write());
        until_in_line(&clients[1]).await;
        let mut readers = Vec::new();
        for client in &clients[2..] {
            readers.push(tokio::spawn(client.rw_lock("name").read()));
            until_in_line(client).await;
        }
        held.release().await.unwrap();
        drop(soon("its turn", dies).await.unwrap().unwrap().detach());
        let since = Instant::now();
        let mut guards = Vec::new();
        for reader in readers {
            guards.push(soon("a reader", reader).await.unwrap().unwrap());
        }
        let late = since.elapsed();
        assert!(late < AT_MOST, "{}: {late:?}", world.name());
    }
}

/// Its place is still in the queue when it finds the lock free: the server refuses its subscription since.
#[tokio::test]
async fn a_reader_that_is_not_heard_any_more_is_not_taken_out_by_its_own_place() {
    for server in servers() {
        let deaf = ["-subscribe", "-ssubscribe", "-psubscribe"];
        let user = ["ACL", "SETUSER", "w", "on", ">p", "~*", "&*", "+@all"];
        server.cli(&[&user[..], &["-pubsub"]].concat());
        let url = server.url().replace("redis://", "redis://w:p@");
        let connect = async |url: &str| Client::connect(url).await.unwrap();
        let (dies, waits) = (connect(&url).await, connect(&url).await);
        let other = connect(&server.url()).await;
        // Long enough that the reader is in line before its end, on a busy machine, too.
        let held = dies.rw_lock("name").fixed_lease(5 * SHORT).write();
        let held = held.await.unwrap();
        let reads = tokio::spawn(waits.rw_lock("name").read());
        until_in_line(&waits).await;
        drop(held.detach());
        server.cli(&[&user[..3], &deaf].concat());
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        let reads = soon("the reader", reads).await.unwrap().unwrap();
        let writes = other.rw_lock("name").try_write().await.unwrap();
        assert!(reads.is_valid());
        assert!(writes.is_none(), "{}: S1", server.flavor());
    }
}

#[tokio::test]
async fn readers_get_in_behind_a_reader_also_past_a_dead_writer() {
    for server in servers() {
        let connect = async || Client::connect(&server.url()).await.unwrap();
        let (holder, waits, comes) = (connect().await, connect().await, connect().await);
        let held = holder.rw_lock("name").fixed_lease(LONG).write();
        let held = held.await.unwrap();
        let last = tokio::spawn(waits.rw_lock("name").read());
        until_in_line(&waits).await;
        let queue = queue_of(&server, "name");
        server.cli(&["LPUSH", &queue, "dead:17:write 30000 1"]);
        assert_eq!(int(&server, &["DEL", "name"]), 1); // as if its lease had ended
        let since = Instant::now();
        let first = comes.rw_lock("name").read().await.unwrap();
        let last = soon("the other reader", last).await.unwrap().unwrap();
        let late = since.elapsed();
        assert!(late < AT_MOST, "{}: {late:?}", server.flavor());
        drop((first, last, held));
    }
}

/// Whoever may not tell others of their turn leaves them their places.
#[tokio::test]
async fn a_reader_that_may_tell_none_leaves_the_queue_as_it_is() {
    for server in servers() {
        let user = ["ACL", "SETUSER", "w", "on", ">p", "~*", "&*", "+@all"];
        server.cli(&[&user[..], &["-publish"]].concat());
        let url = server.url().replace("redis://", "redis://w:p@");
        let connect = async |url: &str| Client::connect(url).await.unwrap();
        let mute = connect(&url).await;
        let holder = connect(&server.url()).await;
        let held = holder.rw_lock("name").fixed_lease(LONG).write();
        let held = held.await.unwrap();
        let (mut clients, mut waits) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let client = connect(&server.url()).await;
            waits.push(tokio::spawn(client.rw_lock("name").read()));
            until_in_line(&client).await;
            clients.push(client);
        }
        let queue = queue_of(&server, "name");
        assert_eq!(int(&server, &["DEL", "name"]), 1); // as if its lease had ended
        let reads = mute.rw_lock("name").read().await.unwrap();
        assert!(reads.is_valid());
        assert_eq!(int(&server, &["LLEN", &queue]), 3, "{}", server.flavor());
        for wait in waits {
            wait.abort();
        }
        drop(held);
    }
}
