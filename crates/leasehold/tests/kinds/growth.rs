//! The cost of a request to the server beside many that wait, or hold. A bound is a ratio to the same beside few, taken in turns with it.

use std::{
    any::Any,
    time::{Duration, Instant},
};

use crate::common::{SOON, few_or, int, keys, servers, soon, wait_until_idle};
use futures_util::future::join_all;
use leasehold::Client;
use leasehold_testkit::{Server, wait_until_async};

const MS: Duration = Duration::from_millis(1);

/// The queue of a mutex and of a read-write lock, and what stands behind an owner that waits in it.
const QUEUES: [(&str, &str); 2] = [("queue", ""), ("rw:queue", ":write")];

fn key(name: &str, end: &str) -> String {
    format!("leasehold:{{{name}}}:{end}")
}

/// Lets so many wait for `name` that no client knows.
fn let_wait(server: &Server, name: &str, (queue, form): (&str, &str), waiting: usize) {
    let mut places = vec!["RPUSH".to_owned(), key(name, queue)];
    let owner = |n| format!("00000000-0000-4000-8000-{n:012}:57000000000000{form} 30000 1");
    places.extend((0..waiting).map(owner));
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    server.cli(&places);
}

/// A guard of the kind that has this queue.
async fn hold(client: &Client, name: &str, queue: &str) -> Box<dyn Any> {
    if queue == "queue" {
        Box::new(client.mutex(name).lock().await.unwrap())
    } else {
        Box::new(client.rw_lock(name).write().await.unwrap())
    }
}

async fn until_waiting(server: &Server, name: &str, queue: &str, waiting: usize) {
    let key = key(name, queue);
    wait_until_async(SOON, &format!("{waiting} wait for {name}"), || {
        usize::try_from(int(server, &["LLEN", &key])).unwrap() == waiting
    })
    .await;
}

/// The time that the server has spent on scripts, in µs.
fn spent(server: &Server) -> f64 {
    let info: String = redis::from_redis_value(server.cli(&["INFO", "commandstats"])).unwrap();
    let of = |line: &str| {
        let line = line.strip_prefix("cmdstat_evalsha:calls=")?;
        let usec = line.split("usec=").nth(1)?.split(',').next()?;
        usec.parse::<f64>().ok()
    };
    info.lines().find_map(of).unwrap_or(0.0)
}

fn least(costs: &[f64]) -> f64 {
    costs.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Waits for the name, takes its place, and leaves it.
async fn comes_and_goes(
    server: &Server,
    client: &Client,
    name: &'static str,
    queue: &str,
    waiting: usize,
) {
    let (mutex, lock) = (client.mutex(name), client.rw_lock(name));
    let waits = if queue == "queue" {
        tokio::spawn(async move { drop(mutex.lock().await) })
    } else {
        tokio::spawn(async move { drop(lock.write().await) })
    };
    until_waiting(server, name, queue, waiting + 1).await;
    waits.abort();
    until_waiting(server, name, queue, waiting).await;
}

#[tokio::test]
async fn a_request_costs_no_more_where_many_wait() {
    const BESIDE: [(&str, usize); 2] = [("few", 64), ("many", 1_000)];
    for server in servers() {
        let builder = Client::builder().url(server.url());
        let holder = builder.clone().connect().await.unwrap();
        let client = builder.connect().await.unwrap();
        for of in QUEUES {
            let mut held = Vec::new();
            for (name, waiting) in BESIDE {
                held.push(hold(&holder, name, of.0).await);
                let_wait(&server, name, of, waiting);
            }
            let mut costs = [Vec::new(), Vec::new()];
            for round in 0..5 {
                for (costs, (name, waiting)) in costs.iter_mut().zip(BESIDE) {
                    let before = spent(&server);
                    for _ in 0..15 {
                        comes_and_goes(&server, &client, name, of.0, waiting).await;
                    }
                    if round > 0 {
                        costs.push(spent(&server) - before);
                    }
                }
            }
            let [few, many] = costs.map(|costs| least(&costs));
            println!("{} {of:?}: {few} µs, {many} µs", server.flavor());
            assert!(
                many <= 2.0 * few,
                "{} {of:?}: 64 wait {few} µs, 1,000 wait {many} µs",
                server.flavor()
            );
            server.cli(&["FLUSHALL"]);
        }
    }
}

/// The hash beside a long queue is made anew where it is lost; and where an older client, which knows of none, has taken a place out.
#[tokio::test]
async fn a_place_stands_once_whatever_becomes_of_the_hash_beside_it() {
    for server in servers() {
        for of in QUEUES {
            let (name, places) = ("name", of.0.replace("queue", "places"));
            let (queue, places) = (key(name, of.0), key(name, &places));
            let builder = Client::builder().url(server.url()).poll_every(50 * MS);
            let (holder, client) = (
                builder.clone().connect().await.unwrap(),
                builder.connect().await.unwrap(),
            );
            let _held = hold(&holder, name, of.0).await;
            let_wait(&server, name, of, 40);
            let (lock, rw) = (client.mutex(name), client.rw_lock(name));
            let waits = if of.0 == "queue" {
                tokio::spawn(async move { drop(lock.lock().await) })
            } else {
                tokio::spawn(async move { drop(rw.write().await) })
            };
            let own = || -> Vec<String> {
                let all: Vec<String> =
                    redis::from_redis_value(server.cli(&["LRANGE", &queue, "0", "-1"])).unwrap();
                let own = all.into_iter();
                own.filter(|place| !place.starts_with("00000000-"))
                    .collect()
            };
            let asked = |place: &str| place.rsplit(' ').next().unwrap().parse::<u32>().unwrap();
            let newest = || own().iter().map(|place| asked(place)).max().unwrap_or(0);
            let until_asked = async |what: &str| {
                let asks = newest();
                wait_until_async(SOON, what, || newest() > asks + 2).await;
                assert_eq!(own().len(), 1, "{what}: {:?}", own());
            };
            until_asked("it asks").await;
            assert!(keys(&server).contains(&places), "{:?}", keys(&server));
            assert!(int(&server, &["PTTL", &places]) > 0, "it has an end");
            server.cli(&["DEL", &places]);
            until_asked("the hash was lost").await;
            server.cli(&["HDEL", &places, ""]);
            until_asked("the hash was made in part").await;
            let place = own().remove(0);
            server.cli(&["LREM", &queue, "0", &place]);
            until_asked("its place was taken out").await;
            // The queue is short, and long again.
            server.cli(&["LTRIM", &queue, "20", "-1"]);
            until_asked("the queue is short").await;
            let_wait(&server, name, of, 40);
            until_asked("the queue is long").await;
            waits.abort();
            wait_until_async(SOON, "it leaves", || own().is_empty()).await;
            wait_until_idle(&client).await;
            server.cli(&["FLUSHALL"]);
        }
    }
}

/// With `LEASEHOLD_FULL=1` ten thousand readers.
#[tokio::test]
async fn a_reader_leaves_and_a_writer_asks_at_no_more_cost_beside_many() {
    let many = few_or(1_500, 10_000);
    for server in servers() {
        let watchdog = 120_000 * MS; // leases of their own lengths are believed
        let builder = Client::builder()
            .url(server.url())
            .redisson_watchdog(watchdog);
        let client = builder.connect().await.unwrap();
        let elsewhere = Client::builder().url(server.url()).connect().await.unwrap();
        let read = async |name: &str, readers: usize| {
            // Readers under the same terms would share a hold.
            let locks: Vec<_> = (0..readers)
                .map(|n| {
                    client
                        .rw_lock(name)
                        .lease(MS * u32::try_from(40_000 + n).unwrap())
                })
                .collect();
            let guards = join_all(locks.iter().map(leasehold::RwLock::read)).await;
            let guards: Result<Vec<_>, _> = guards.into_iter().collect();
            let holds = int(&server, &["HLEN", name]);
            assert!(usize::try_from(holds).unwrap() > readers, "a hold each");
            guards.unwrap()
        };
        let mut all = read("many", many).await;
        let mut costs = [Vec::new(), Vec::new()];
        for _ in 0..5 {
            let mut few = read("few", 31).await;
            for (costs, guards) in costs.iter_mut().zip([&mut few, &mut all]) {
                let before = spent(&server);
                for guard in guards.drain(..30) {
                    guard.release().await.unwrap();
                }
                costs.push(spent(&server) - before);
            }
            few.remove(0).release().await.unwrap();
        }
        let [few, beside_many] = costs.map(|costs| least(&costs));
        println!("{}: {few} µs, {beside_many} µs", server.flavor());
        assert!(
            beside_many <= 2.5 * few,
            "{}: beside 30 {few} µs, beside {many} {beside_many} µs",
            server.flavor()
        );
        let few_read = read("few", 31).await;
        let mut costs = [Vec::new(), Vec::new()];
        for _ in 0..5 {
            for (costs, name) in costs.iter_mut().zip(["few", "many"]) {
                let before = spent(&server);
                for _ in 0..30 {
                    let asks = elsewhere.rw_lock(name).try_write().await.unwrap();
                    assert!(asks.is_none(), "others read");
                }
                costs.push(spent(&server) - before);
            }
        }
        let [few, beside_many] = costs.map(|costs| least(&costs));
        println!(
            "{}: a writer asks, {few} µs, {beside_many} µs",
            server.flavor()
        );
        assert!(
            beside_many <= 2.5 * few,
            "{}: a writer asks beside 31 {few} µs, beside {many} {beside_many} µs",
            server.flavor()
        );
        drop(few_read);
        let began = Instant::now();
        let released = join_all(all.into_iter().map(leasehold::Guard::release)).await;
        let took = began.elapsed();
        println!("{} readers left in {took:?}", released.len());
        assert!(released.iter().all(Result::is_ok));
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert_eq!(int(&server, &["EXISTS", "many"]), 0);
        wait_until_idle(&client).await;
    }
}

/// A writer is not let in beside the one reader that lives among many that have died, wherever it stands in the hash (S1).
#[tokio::test]
async fn no_writer_comes_in_beside_a_reader_that_is_hard_to_find() {
    for server in servers() {
        let builder = Client::builder().url(server.url());
        let client = builder
            .redisson_watchdog(120_000 * MS)
            .connect()
            .await
            .unwrap();
        let elsewhere = Client::builder().url(server.url()).connect().await.unwrap();
        // Under other terms than the other, so that they do not share a hold.
        let (lock, other) = (
            client.rw_lock("name"),
            client.rw_lock("name").lease(60_000 * MS),
        );
        for round in 0..10 {
            let lives = lock.read().await.unwrap();
            let mut dead = vec!["HSET".to_owned(), "name".to_owned()];
            for n in 0..2_000 {
                dead.push(format!("00000000-0000-4000-8000-{n:012}:57000000000000"));
                dead.push("1".to_owned());
            }
            let dead: Vec<&str> = dead.iter().map(String::as_str).collect();
            server.cli(&dead);
            let asks = elsewhere.rw_lock("name");
            assert!(asks.try_write().await.unwrap().is_none(), "round {round}");
            server.cli(&dead);
            let leaves = other.read().await.unwrap();
            assert_ne!(leaves.owner(), lives.owner());
            leaves.release().await.unwrap();
            assert_eq!(int(&server, &["HEXISTS", "name", &lives.owner()]), 1);
            let left = int(&server, &["PTTL", "name"]);
            assert!(left > 25_000, "round {round}: it lasts for {left} ms");
            assert!(lock.try_write().await.unwrap().is_none(), "round {round}");
            lives.release().await.unwrap();
            let writes = soon("it is free", lock.try_write()).await.unwrap();
            writes.expect("no reader lives").release().await.unwrap();
            // Only dead ones are left: a writer that asks finds out, for it asks about all.
            let lives = lock.read().await.unwrap();
            server.cli(&dead);
            server.cli(&["HDEL", "name", &lives.owner()]);
            let writes = asks.try_write().await.unwrap();
            writes.expect("no reader lives").release().await.unwrap();
            drop(lives);
            wait_until_idle(&client).await;
        }
    }
}

/// How many arguments each script had that the server ran, and how many µs it took.
fn scripts(server: &Server) -> Vec<(usize, u64)> {
    type Entry = (i64, i64, u64, Vec<String>, String, String);
    let log: Vec<Entry> =
        redis::from_redis_value(server.cli(&["SLOWLOG", "GET", "-1"])).expect("a slow log");
    let scripts = log.into_iter().filter(|(_, _, _, words, ..)| {
        words[0].eq_ignore_ascii_case("evalsha") || words[0].eq_ignore_ascii_case("eval")
    });
    let told = scripts.map(|(_, _, took, words, ..)| {
        let more = words.last().unwrap().strip_prefix("... (");
        let more = more.and_then(|rest| rest.split(' ').next()?.parse().ok());
        (words.len() + more.unwrap_or(0), took)
    });
    told.collect()
}

/// With `LEASEHOLD_FULL=1` three thousand waiters, and no script takes 5 ms.
#[tokio::test]
async fn a_fair_mutex_keeps_many_places_in_parts() {
    let waiters = few_or(500, 3_000);
    let queue = "redisson_lock_queue:{name}";
    for server in servers() {
        let builder = Client::builder().url(server.url()).poll_every(1_000 * MS);
        let client = builder.connect().await.unwrap();
        let lock = client.fair_mutex("name");
        let guard = lock.lock().await.unwrap();
        server.cli(&["CONFIG", "SET", "slowlog-max-len", "100000"]);
        server.cli(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
        let tasks: Vec<_> = (0..waiters)
            .map(|_| {
                let lock = lock.clone();
                tokio::spawn(async move { lock.lock().await.unwrap().release().await.unwrap() })
            })
            .collect();
        let in_line = || usize::try_from(int(&server, &["LLEN", queue])).unwrap();
        wait_until_async(3 * SOON, "all wait", || in_line() == waiters).await;
        let deadlines = || -> Vec<(String, f64)> {
            let all = [
                "ZRANGE",
                "redisson_lock_timeout:{name}",
                "0",
                "-1",
                "WITHSCORES",
            ];
            let mut all: Vec<(String, f64)> = redis::from_redis_value(server.cli(&all)).unwrap();
            all.sort_by(|a, b| a.0.cmp(&b.0));
            all
        };
        let before = deadlines();
        assert_eq!(before.len(), waiters);
        wait_until_async(SOON, "all places are kept", || {
            let now = deadlines();
            let kept = now.iter().zip(&before).filter(|(now, then)| now > then);
            kept.count() == waiters
        })
        .await;
        // The waiter behind all others has lost its place: it is told so when its part is kept, and takes another.
        let last =
            redis::from_redis_value::<Vec<String>>(server.cli(&["LRANGE", queue, "-1", "-1"]))
                .unwrap()
                .remove(0);
        server.cli(&["LREM", queue, "0", &last]);
        server.cli(&["ZREM", "redisson_lock_timeout:{name}", &last]);
        wait_until_async(SOON, "it takes another place", || in_line() == waiters).await;
        let ran = scripts(&server);
        let (words, slowest) = (
            ran.iter().map(|(words, _)| *words).max().unwrap(),
            ran.iter().map(|(_, took)| *took).max().unwrap(),
        );
        println!("{}: {words} arguments, {slowest} µs", server.flavor());
        assert!(words < 16 + 3 * 200, "one request had {words} arguments");
        assert!(words > 500, "and named 200 waiters");
        assert!(few_or(true, slowest < 5_000), "{slowest} µs");
        guard.release().await.unwrap();
        for task in tasks {
            let served = tokio::time::timeout(6 * SOON, task).await;
            served.expect("each has its turn").unwrap();
        }
        wait_until_idle(&client).await;
    }
}
