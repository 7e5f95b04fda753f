//! Finding locks: all that are held or waited for are found, ours and Redisson's, and none is invented.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::common::{
    SOON, World, int,
    kinds::{ROWS, Row},
    redisson::Redisson,
    refused, servers, soon,
    wire::{Network, documented_rules, more_rules},
};
use leasehold::{Client, Error, Find, LockKind, Status};
use leasehold_testkit::{Server, wait_until_async};

/// All that is found, by name.
async fn all(mut find: Find) -> BTreeMap<String, Status> {
    let (mut found, mut done) = (BTreeMap::new(), 0.0);
    while let Some(page) = soon("a page", find.next()).await.unwrap() {
        for lock in page {
            let twice = found.insert(lock.name.clone(), lock);
            assert!(twice.is_none(), "{twice:?} was found twice");
        }
        assert!((done..=1.0).contains(&find.progress()));
        done = find.progress();
    }
    assert_eq!(find.next().await.unwrap(), None, "there is nothing more");
    found
}

fn kinds(found: &BTreeMap<String, Status>) -> Vec<(&str, LockKind)> {
    let kinds = found.iter().map(|(name, lock)| (&**name, lock.kind));
    kinds.collect()
}

/// The time left goes on between two looks, and `find` does not look at connections.
fn without_time(mut status: Status) -> Status {
    for holder in &mut status.holders {
        holder.remaining = holder.remaining.map(|_| Duration::ZERO);
        (holder.connected, holder.idle) = (None, None);
    }
    for queued in &mut status.queue {
        queued.connected = None;
    }
    status
}

async fn until_waiting(client: &Client, tasks: usize) {
    let what = format!("{tasks} tasks wait");
    wait_until_async(SOON, &what, || client.footprint().waiting >= tasks).await;
}

/// Writes what looks like a lock at first sight, and is none; `many` keys of each sort.
fn fill(server: &Server, many: usize) {
    const FILL: &str = r"
        for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
          redis.call('SET', 'counter:' .. i, i)
          redis.call('SET', 'rate:' .. i, i, 'EX', 3600)
          redis.call('HSET', 'user:' .. i, 'name', 'ada' .. i, 'mode', 'read', 'age', 4)
          redis.call('HSET', 'data:' .. i, 'price', 10)
          redis.call('SET', 'page:' .. i, string.rep('x1', 300), 'EX', 3600)
          redis.call('SET', 'doc:' .. i, '{' .. string.rep('1', 30) .. '}', 'EX', 3600)
          redis.call('SET', 'secret:' .. i, '0123456789abcdef0123456789abcdef')
          redis.call('RPUSH', 'list:' .. i, 'a', 'b')
          redis.call('ZADD', '{zset:' .. i .. '}:timeout', 1, 'a')
          redis.call('SET', 'leasehold:client:' .. i, '0123456789abcdef0123456789abcdef', 'EX', 3600)
          redis.call('SET', 'redisson_x:' .. i, '0123456789abcdef0123456789abcdef', 'EX', 3600)
          redis.call('SET', '{book}:79f0ed8b-09de-46ef-a0c4-2f29a1f5b3c1:' .. i .. ':rwlock_timeout:1', 1)
        end";
    for from in (0..many).step_by(1000) {
        let to = (from + 999).min(many - 1);
        server.cli(&["EVAL", FILL, "0", &from.to_string(), &to.to_string()]);
    }
}

#[tokio::test]
async fn every_kind_is_found_with_what_its_status_says() {
    for world in World::all() {
        let case = world.name();
        let (client, other) = (world.client().await, world.client().await);
        if let World::Server(server) = &world {
            fill(server, 20);
        }
        let mut held = Vec::new();
        let mut expected = BTreeMap::new();
        for name in ["a", "b:{c}"] {
            for row in ROWS.into_iter().filter(|row| row.has_lease()) {
                let name = format!("{row:?}:{name}");
                row.prepare(&client, &name).await;
                let lock = row.lock(&client, &name);
                held.push(lock.lock().await.unwrap());
                expected.insert(name, lock.status().await);
            }
        }
        for name in ["Multi:a, too", "Multi:b:{c}, too"] {
            let status = client.status(name).await.unwrap();
            expected.insert(name.to_owned(), status);
        }
        // Names that a client waits for.
        let queued = client.fair_mutex("queued").lock().await.unwrap();
        let fair = tokio::spawn(other.fair_mutex("queued").lock());
        assert!(client.latch("latch").try_set_count(2).await.unwrap());
        let latch = other.latch("latch");
        let opened = tokio::spawn(async move { latch.wait().await });
        let empty = client.semaphore("empty").permits(1);
        empty.try_set_permits(1).await.unwrap();
        empty.drain_permits().await.unwrap();
        let permit = tokio::spawn(other.semaphore("empty").acquire());
        until_waiting(&other, 3).await;
        // And names of which nothing is held, and which no client waits for.
        assert!(client.latch("alone").try_set_count(2).await.unwrap());
        client.semaphore("free").try_set_permits(5).await.unwrap();
        let free = client.leased_semaphore("free, too");
        free.try_set_permits(5).await.unwrap();
        let gone = client.fenced_mutex("gone").lock().await.unwrap();
        gone.release().await.unwrap();

        for (name, status) in [
            ("queued", client.fair_mutex("queued").status().await),
            ("latch", client.latch("latch").status().await),
            ("empty", client.semaphore("empty").status().await),
        ] {
            expected.insert(name.to_owned(), status.unwrap());
        }
        for (name, status) in &mut expected {
            let is_shown_as_mutex = match status.kind {
                // Only the waiters of a spin mutex differ, and a server sees a fair one by its queue.
                LockKind::SpinMutex => true,
                LockKind::FairMutex => !matches!(world, World::Memory(_)) && name != "queued",
                _ => false,
            };
            if is_shown_as_mutex {
                *status = client.status(name).await.unwrap();
            }
            // Its client writes its label in the background, and until then a permit's id does not tell who that is.
            while status.kind == LockKind::LeasedSemaphore && status.holders[0].label.is_none() {
                *status = client.leased_semaphore(&**name).status().await.unwrap();
            }
        }
        let found = all(client.find("*")).await;
        assert_eq!(kinds(&found), kinds(&expected), "{case}");
        for (name, status) in found {
            let expected = expected.remove(&name).unwrap();
            assert_eq!(without_time(status), without_time(expected), "{case}");
        }
        // Another client's tasks wait, and are its own to count.
        assert_eq!(all(other.find("queued")).await["queued"].waiting_here, 1);

        queued.release().await.unwrap();
        drop(soon("the next", fair).await.unwrap().unwrap());
        client.latch("latch").count_down_by(2).await.unwrap();
        soon("it is open", opened).await.unwrap().unwrap();
        permit.abort();
        drop(held);
    }
}

/// A second look leaves out what would not be found any more.
#[tokio::test]
async fn locks_that_are_none_any_more_are_left_out_by_a_second_look() {
    for world in World::all() {
        let case = world.name();
        let (client, other) = (world.client().await, world.client().await);
        let stays = client.mutex("stays").lock().await.unwrap();
        let freed = client.mutex("freed").lock().await.unwrap();
        let replaced = client.mutex("another kind").lock().await.unwrap();
        let permits = ["back", "out"].map(|name| client.leased_semaphore(name).permits(2));
        let mut out = Vec::new();
        for permits in &permits {
            permits.try_set_permits(2).await.unwrap();
            out.push(permits.acquire().await.unwrap());
        }
        let mut waits = Vec::new();
        for name in ["no waiter left", "waited for"] {
            assert!(client.latch(name).try_set_count(2).await.unwrap());
            let latch = other.latch(name);
            waits.push(tokio::spawn(async move { latch.wait().await }));
        }
        until_waiting(&other, 2).await;
        let mut found: Vec<Status> = all(client.find("*")).await.into_values().collect();
        assert_eq!(found.len(), 7, "{case}: {found:?}");
        client.look_again(&mut found).await.unwrap();
        assert_eq!(found.len(), 7, "{case}: {found:?}");

        freed.release().await.unwrap();
        out.remove(0).release().await.unwrap();
        replaced.release().await.unwrap();
        let replaced = client.rw_lock("another kind").write().await.unwrap();
        waits.remove(0).abort();
        let left = async {
            loop {
                let mut again = found.clone();
                client.look_again(&mut again).await.unwrap();
                let names: Vec<String> = again.into_iter().map(|it| it.name).collect();
                // The server is told a moment later that a client does not listen any more.
                if names == ["out", "stays", "waited for"] {
                    return;
                }
                println!("{case}: {names:?}");
                tokio::task::yield_now().await;
            }
        };
        soon("the others are left out", left).await;
        waits.remove(0).abort();
        drop((stays, replaced, out));
    }
}

#[tokio::test]
async fn a_pattern_is_read_as_a_server_reads_it() {
    for world in World::all() {
        let client = world.client().await;
        let mut held = Vec::new();
        for name in ["order:1", "order:2", "order:10", "orders", "a*b", "a-b"] {
            held.push(client.mutex(name).lock().await.unwrap());
        }
        for (pattern, expected) in [
            ("order:*", &["order:1", "order:10", "order:2"][..]),
            ("order:?", &["order:1", "order:2"]),
            ("order:[13]", &["order:1"]),
            ("order[^:]", &["orders"]),
            (r"a\*b", &["a*b"]),
            ("order", &[]),
        ] {
            let found = all(client.find(pattern)).await;
            let names: Vec<&str> = found.keys().map(String::as_str).collect();
            assert_eq!(names, expected, "{pattern} on {}", world.name());
        }
        for bad in [String::new(), "*".repeat(1025)] {
            let refused = client.find(&bad).next().await.unwrap_err();
            assert!(matches!(refused, Error::Invalid(_)), "{refused}");
        }
    }
}

/// A client with a prefix finds the names under it, without the prefix. The prefix is no pattern.
#[tokio::test]
async fn a_client_with_a_prefix_finds_its_own_names() {
    for world in World::all() {
        let plain = world.client().await;
        let of = async |prefix| {
            let builder = world.builder().name_prefix(prefix);
            builder.connect().await.unwrap()
        };
        let (prefixed, like) = (of("a*[b]?\\:").await, of("axb1:").await);
        let one = prefixed.mutex("order:42").lock().await.unwrap();
        let other = like.rw_lock("order:42").read().await.unwrap();
        let case = world.name();
        let found = |locks: BTreeMap<String, Status>| locks.into_keys().collect::<Vec<_>>();
        assert_eq!(found(all(prefixed.find("*")).await), ["order:42"], "{case}");
        assert_eq!(
            found(all(like.find("order:4?")).await),
            ["order:42"],
            "{case}"
        );
        assert_eq!(found(all(prefixed.find("a*")).await), [""; 0], "{case}");
        let everywhere = found(all(plain.find("a*order:42")).await);
        assert_eq!(everywhere, ["a*[b]?\\:order:42", "axb1:order:42"], "{case}");
        drop((one, other));
    }
}

#[tokio::test]
async fn the_locks_of_redisson_are_found_and_told_apart() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        let mut java = Redisson::start(&server, Duration::from_secs(30)).await;
        for (order, answer) in [
            ("lock java:mutex", "locked"),
            ("spin lock java:spin", "locked"),
            ("fair lock java:fair", "locked"),
            ("read lock java:read", "locked"),
            ("write lock java:write", "locked"),
            ("write lock java:both", "locked"),
            ("read lock java:both", "locked"),
            ("multi lock java:one,java:other", "locked"),
            ("fenced java:fenced lock", "1"),
            ("permits java:permits set 3", "true"),
            ("permits java:free set 3", "true"),
            ("semaphore java:count set 1", "true"),
            ("semaphore java:count acquire 1", "acquired"),
            ("latch java:latch set 2", "true"),
            ("latch java:alone set 2", "true"),
        ] {
            assert_eq!(java.obey(order).await, answer, "{order}");
        }
        java.obey("permits java:permits acquire 2 30000").await;
        let waits = tokio::spawn(client.fair_mutex("java:fair").lock());
        let permit = tokio::spawn(client.semaphore("java:count").acquire());
        java.order("latch java:latch wait 60000");
        until_waiting(&client, 2).await;
        wait_until_async(SOON, "Java waits", || {
            let channel = "redisson_countdownlatch__channel__{java:latch}";
            let heard: (String, i64) =
                redis::from_redis_value(server.cli(&["PUBSUB", "NUMSUB", channel])).unwrap();
            heard.1 == 1
        })
        .await;
        let found = all(client.find("java:*")).await;
        let expected = [
            ("java:both", LockKind::RwLock),
            ("java:count", LockKind::Semaphore),
            ("java:fair", LockKind::FairMutex),
            ("java:fenced", LockKind::FencedMutex),
            ("java:latch", LockKind::Latch),
            ("java:mutex", LockKind::Mutex),
            ("java:one", LockKind::Mutex),
            ("java:other", LockKind::Mutex),
            ("java:permits", LockKind::LeasedSemaphore),
            ("java:read", LockKind::RwLock),
            ("java:spin", LockKind::Mutex),
            ("java:write", LockKind::RwLock),
        ];
        assert_eq!(kinds(&found), expected, "{}", server.flavor());
        for lock in found.values() {
            let is_held = !matches!(lock.kind, LockKind::Latch | LockKind::Semaphore);
            assert_eq!(!lock.holders.is_empty(), is_held, "{lock:?}");
        }
        waits.abort();
        permit.abort();
    }
}

/// `SET NAME TOKEN NX PX`, as other libraries write it.
#[tokio::test]
async fn another_librarys_lock_is_found_by_its_end_and_its_token() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        let tokens = [
            ("redis-py", "0f81d8a2c86b11f0b1d60242ac120002"),
            ("node-redlock", "8a8f1b1f4bd2a0f1c0e7ad8f6b3d2c11"),
            ("redsync", "Xa0PZ5bq7qKxkq2b8mZr1A=="),
            ("spring", "6b0f7a5e-4e06-4a5b-9d19-2f6f3c1d7f10"),
            ("shedlock", "ADDED:2026-11-23T15:04:38.123Z@host"),
        ];
        for (name, token) in tokens {
            server.cli(&["SET", name, token, "NX", "PX", "60000"]);
            let data = format!("{name}, without an end");
            server.cli(&["SET", &data, token]);
        }
        for (name, value) in [
            ("flag", "1"),
            ("word", "active"),
            ("text", "some words with 1 number"),
            ("json", r#"{"user":4242,"name":"ada"}"#),
            ("short", "ab12"),
            ("letters", "abcdefghijklmnopqrst"),
        ] {
            server.cli(&["SET", name, value, "EX", "60"]);
        }
        let found = all(client.find("*")).await;
        let mut expected = tokens.map(|(name, _)| (name, LockKind::PlainMutex));
        expected.sort_unstable();
        assert_eq!(kinds(&found), expected, "{}", server.flavor());
    }
}

/// 20,000 keys; with `LEASEHOLD_FULL` a million, and then what the server spends on them is said.
#[tokio::test]
async fn locks_are_found_among_many_other_keys_and_no_call_is_long() {
    const LOCKS: usize = 300;
    let is_full = std::env::var_os("LEASEHOLD_FULL").is_some();
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        fill(&server, if is_full { 100_000 } else { 1_700 });
        let mut held = Vec::new();
        let names = (0..LOCKS).map(|i| format!("lock:{i:03}"));
        for (i, name) in names.clone().enumerate() {
            let row = ROWS[i % ROWS.len()];
            let is_one = row.has_lease() && row != Row::Multi;
            let row = if is_one { row } else { Row::Mutex };
            row.prepare(&client, &name).await;
            held.push(row.lock(&client, &name).lock().await.unwrap());
        }
        // Data with long values, of which none is read.
        server.cli(&["HSET", "page", "body", &"x".repeat(1_000_000)]);
        server.cli(&["HSET", "book", "mode", &"x".repeat(1_000_000), "body", "x"]);
        server.cli(&["CONFIG", "SET", "slowlog-log-slower-than", "5000"]);
        server.cli(&["SLOWLOG", "RESET"]);
        server.cli(&["CONFIG", "RESETSTAT"]);
        let began = Instant::now();
        let (mut find, mut found) = (client.find("*"), Vec::new());
        let mut new = 0;
        while let Some(page) = find.next().await.unwrap() {
            found.extend(page.into_iter().map(|lock| lock.name));
            if !is_full && new < 200 {
                // The server's table of keys grows meanwhile.
                for _ in 0..200 {
                    new += 1;
                    server.cli(&["SET", &format!("new:{new}"), "1"]);
                }
            }
        }
        found.sort_unstable();
        assert_eq!(found, names.collect::<Vec<_>>(), "{}", server.flavor());
        // It takes the longer, the more connections there are.
        let calls = server.calls();
        assert_eq!((calls.get("client|list"), calls.get("hscan")), (None, None));
        if is_full {
            let slow = int(&server, &["SLOWLOG", "LEN"]);
            let stats = server.cli(&["INFO", "commandstats"]);
            let stats: String = redis::from_redis_value(stats).unwrap();
            let stats = stats.lines().filter(|line| line.contains("evalsha"));
            let keys = int(&server, &["DBSIZE"]);
            eprintln!(
                "{}: {keys} keys in {:?}, {:?}; {slow} calls took longer than 5 ms",
                server.flavor(),
                began.elapsed(),
                stats.collect::<Vec<_>>(),
            );
        }
    }
}

#[tokio::test]
async fn a_page_whose_answer_was_lost_is_asked_for_again() {
    for world in World::all() {
        let network = Network::to(&world);
        let guard = world.client().await.mutex("name").lock().await.unwrap();
        let builder = network
            .builder()
            .operation_timeout(Duration::from_millis(200));
        let mut find = builder.connect().await.unwrap().find("name");
        network.go_down();
        assert!(find.next().await.unwrap_err().is_unreachable());
        network.heal();
        let found = soon("an answer", async {
            loop {
                match find.next().await {
                    Ok(page) => break page.unwrap(),
                    Err(error) => assert!(error.is_unreachable(), "{error}"),
                }
            }
        });
        assert_eq!(found.await.len(), 1, "{}", world.name());
        assert_eq!(find.next().await.unwrap(), None);
        drop(guard);
    }
}

/// The user of docs/keys.md whose line begins with `user <name> `.
fn let_in(server: &Server, name: &str, rules: &[String]) {
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    server.cli(&[&["ACL", "SETUSER", name], &rules[..]].concat());
    // As the documentation says; Redis 7.0 does not know it.
    let _ = server.try_cli(&["ACL", "SETUSER", name, "+client|setinfo"]);
}

#[tokio::test]
async fn a_tenant_finds_its_own_locks_and_a_watcher_finds_all() {
    for server in servers() {
        let mut rules = documented_rules();
        rules.extend(more_rules("finding locks"));
        let_in(&server, "worker", &rules);
        let keys = include_str!("../../../../docs/keys.md");
        let (_, rules) = keys.split_once("user watcher ").unwrap();
        let rules = rules.lines().next().unwrap().split(' ');
        let rules: Vec<String> = rules.map(str::to_owned).collect();
        let_in(&server, "watcher", &rules);
        let client = async |user| {
            let builder = Client::builder().url(server.url());
            let builder = builder.username(user).password("secret");
            builder.connect().await.unwrap()
        };
        let (worker, watcher) = (client("worker").await, client("watcher").await);
        let other = Client::connect(&server.url()).await.unwrap();
        let mut held = Vec::new();
        for name in ["order:1", "order:{2}", "other:1"] {
            for row in ROWS.into_iter().filter(|row| row.has_lease()) {
                let name = format!("{name}:{row:?}");
                row.prepare(&other, &name).await;
                held.push(row.lock(&other, &name).lock().await.unwrap());
            }
            server.cli(&["SET", &format!("{name}:number"), "4"]);
        }
        let of_all = all(watcher.find("*")).await;
        let each = ROWS.len(); // a number is found by who waits
        assert_eq!(of_all.len(), 3 * each, "{of_all:?}");
        let found = all(worker.find("order:*")).await;
        assert_eq!(found.len(), 2 * each, "{found:?}");
        assert_eq!(refused(&server), [], "{}", server.flavor());
        let found = all(worker.find("*")).await;
        assert!(found.keys().all(|name| name.starts_with("order:")));
        assert_eq!(found.len(), 2 * each, "{found:?}");
        // A right that is missing is no reason to find less.
        for right in ["scan", "getrange", "type"] {
            server.cli(&["ACL", "SETUSER", "worker", &format!("-{right}")]);
            let error = worker.find("order:*").next().await.unwrap_err();
            assert!(error.to_string().contains("lacks a right"), "{error}");
            server.cli(&["ACL", "SETUSER", "worker", &format!("+{right}")]);
        }
        drop(held);
    }
}
