//! As `shorter_leases.rs` (L1): who must hear of it beside the first four that wait, and what may not hide them.

mod common;

use std::time::{Duration, Instant};

use common::{SOON, World, int, servers, soon};
use leasehold::{Client, MemoryServer};
use leasehold_testkit::{Server, wait_until_async};

const LONG: Duration = Duration::from_secs(25);
const SHORT: Duration = Duration::from_millis(400);

/// Far from the poll interval, which is 10 s and more.
const AT_MOST: Duration = Duration::from_millis(1_500);

/// Its drivers sleep: it has its places on the server, behind those that had theirs before.
async fn until_in_line(client: &Client) {
    let waits = || {
        let now = client.footprint();
        now.waiting > 0 && now.waiting == now.tasks && now.asking == 0
    };
    wait_until_async(SOON, "it is in line", waits).await;
}

/// The queue of this name that has a place in it.
fn queue_of(server: &Server, name: &str) -> String {
    let pattern = format!("leasehold:{{{name}}}:*queue");
    let queues: Vec<String> = redis::from_redis_value(server.cli(&["KEYS", &pattern])).unwrap();
    let [queue] = queues.try_into().expect("one queue");
    queue
}

/// How the schedule differs from one in which all is well.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hidden {
    Nothing,
    /// A client that waited in front of the next has been killed.
    BehindTheDead,
    /// The next one's lease is too long for our own waiters to be told.
    ByALongerLease,
    /// The name is taken by force.
    ByForce,
}

/// A waiter of Redisson's sleeps until the end of the long lease that it was told of. The name goes to one of ours with a shorter one.
macro_rules! redisson_hears {
    ($test:ident, $kind:ident, $lock:ident, $channel:literal) => {
        #[tokio::test]
        async fn $test() {
            for server in servers() {
                for hidden in [
                    Hidden::Nothing,
                    Hidden::BehindTheDead,
                    Hidden::ByALongerLease,
                    Hidden::ByForce,
                ] {
                    let connect = async || Client::connect(&server.url()).await.unwrap();
                    let (holder, next) = (connect().await, connect().await);
                    let lease = match hidden {
                        Hidden::ByALongerLease => Duration::from_secs(13),
                        _ => Duration::from_secs(5),
                    };
                    // By lot the name is freed instead, and all are told: then once more.
                    for round in 0.. {
                        assert!(round < 30, "{hidden:?}: always freed");
                        let name = format!("{hidden:?}{round}");
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
                        if hidden == Hidden::BehindTheDead {
                            let queue = queue_of(&server, &name);
                            server.cli(&["LPUSH", &queue, "dead:17 30000 1"]);
                        }
                        if hidden == Hidden::ByForce {
                            assert!(holder.$kind(&name).force_unlock().await.unwrap());
                        } else {
                            held.release().await.unwrap();
                        }
                        let guard = soon("its turn", waits).await.unwrap().unwrap();
                        let mut granted = false;
                        while let Ok(message) = inboxes.get_message() {
                            granted |= message.get_payload_bytes() != b"0";
                        }
                        let told = java.get_message().is_ok();
                        guard.release().await.unwrap();
                        if granted {
                            assert!(told, "{}, {hidden:?}", server.flavor());
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

/// Valkey 9.1 miscounts eight listeners: those of another kind were not told.
#[tokio::test]
async fn those_of_another_kind_hear_of_it_also_where_the_server_miscounts_them() {
    for server in servers() {
        let mut clients = Vec::new();
        for _ in 0..9 {
            clients.push(Client::connect(&server.url()).await.unwrap());
        }
        let held = clients[0].mutex("name").fixed_lease(LONG).lock();
        let held = held.await.unwrap();
        let next = tokio::spawn(clients[1].mutex("name").fixed_lease(SHORT).lock());
        until_in_line(&clients[1]).await;
        let mut others = tokio::task::JoinSet::new();
        for client in &clients[2..] {
            others.spawn(client.fenced_mutex("name").lock());
            until_in_line(client).await;
        }
        held.release().await.unwrap();
        let mut dies = tokio::task::JoinSet::new();
        dies.spawn(async move { drop(next.await.unwrap().unwrap().detach()) });
        let since = Instant::now();
        // Whichever the lot has chosen.
        let first = soon("one of them", others.join_next()).await;
        first.unwrap().unwrap().unwrap().release().await.unwrap();
        let late = since.elapsed();
        assert!(late < AT_MOST, "{}: {late:?}", server.flavor());
        others.shutdown().await;
        let _ = soon("it had it, too", dies.join_next()).await;
    }
}

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

/// The holder has died. Those that would look leave just then, and the last has not heard of it.
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

/// The same in virtual time: the four that were told give up at the very end of the lease.
#[tokio::test(start_paused = true)]
async fn the_fifth_looks_when_four_give_up_as_the_lease_ends() {
    for late_us in [0, 1_000, 1_500, 2_000, 2_900, 3_500] {
        let server = MemoryServer::new();
        let mut clients = Vec::new();
        for _ in 0..7 {
            clients.push(Client::builder().memory(&server).connect().await.unwrap());
        }
        let began = tokio::time::Instant::now();
        let turn =
            |at: usize| tokio::time::sleep_until(began + SHORT / 100 * u32::try_from(at).unwrap());
        let held = clients[0].mutex("name").fixed_lease(LONG).lock();
        let held = held.await.unwrap();
        let dies = tokio::spawn(clients[1].mutex("name").fixed_lease(SHORT).lock());
        turn(1).await;
        let end = 2 * SHORT;
        // From a millisecond before it on.
        let give_up = began + end - Duration::from_millis(1) + Duration::from_micros(late_us);
        for (client, at) in clients[2..6].iter().zip(2..) {
            let patience = give_up - tokio::time::Instant::now();
            let short = client.mutex("name").fixed_lease(SHORT);
            tokio::spawn(short.try_lock_for(patience));
            turn(at).await;
        }
        let last = tokio::spawn(clients[6].mutex("name").lock());
        turn(100).await;
        held.release().await.unwrap();
        drop(dies.await.unwrap().unwrap().detach());
        last.await.unwrap().unwrap().release().await.unwrap();
        let late = began.elapsed().saturating_sub(end);
        assert!(late < SHORT, "{late_us} µs: {late:?}");
    }
}

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
        let held = dies.rw_lock("name").fixed_lease(SHORT).write();
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
