//! A lease whose end someone has removed (`PERSIST`): its holder believes in an end, and a request of its own must not bring the lock's
//! before that (B2).

use std::time::{Duration, Instant};

use crate::common::{
    SOON, int, keys, servers, soon,
    wire::{Monitor, send_copy},
};
use leasehold::Client;
use leasehold_testkit::Server;

const SHORT: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(60);

/// Removes the ends of all keys of the lock, and says how many there were.
fn persist(server: &Server) -> usize {
    let keys = keys(server);
    let with_an_end = keys
        .iter()
        .filter(|key| int(server, &["PERSIST", key]) == 1);
    with_an_end.count()
}

/// The keys that end.
fn ending(server: &Server) -> Vec<String> {
    let ends = |key: &String| int(server, &["PTTL", key]) != -1;
    keys(server).into_iter().filter(ends).collect()
}

/// The guard has extended its lease. Then it asks for less, or its first request comes once more.
macro_rules! keeps_its_end {
    ($test:ident, $kind:ident, $lock:ident) => {
        #[tokio::test]
        async fn $test() {
            for server in servers() {
                for copy in [false, true] {
                    let case = format!("{}, a copy: {copy}", server.flavor());
                    let builder = Client::builder().url(server.url());
                    let mine = builder.redisson_watchdog(LONG).connect().await.unwrap();
                    let mut monitor = Monitor::start(&server);
                    let lock = mine.$kind("name").fixed_lease(SHORT);
                    let guard = lock.$lock().await.unwrap();
                    let asked = monitor.calls(mine.id()).into_iter();
                    let asked = asked.chain(monitor.calls(&guard.owner())).next();
                    guard.extend(LONG).await.unwrap();
                    assert!(persist(&server) > 0, "{case}");
                    let before = ending(&server);
                    if copy {
                        send_copy(&server, &asked.expect("it asked"));
                    } else {
                        guard.extend(SHORT).await.unwrap();
                    }
                    let left = guard.verify().await.unwrap();
                    assert!(left > LONG / 2, "{case}: {left:?}");
                    assert_eq!(ending(&server), before, "{case}");
                    assert!(guard.remaining() > LONG / 2, "{case}");
                    guard.release().await.unwrap();
                    assert_eq!(int(&server, &["EXISTS", "name"]), 0, "{case}");
                }
            }
        }
    };
}

keeps_its_end!(of_a_mutex, mutex, lock);
keeps_its_end!(of_a_fenced_mutex, fenced_mutex, lock);
keeps_its_end!(of_a_plain_mutex, plain_mutex, lock);
keeps_its_end!(of_a_fair_mutex, fair_mutex, lock);
keeps_its_end!(of_a_reader, rw_lock, read);
keeps_its_end!(of_a_writer, rw_lock, write);

/// A multi-lock asks for the names of one server in one request.
#[tokio::test]
async fn of_several_names() {
    for server in servers() {
        let mine = Client::connect(&server.url()).await.unwrap();
        let mut monitor = Monitor::start(&server);
        let names = ["a", "b"].map(|name| mine.mutex(name).fixed_lease(SHORT));
        let guard = mine.multi_lock(names).lock().await.unwrap();
        let all = monitor.seen().to_vec();
        let asked = all
            .iter()
            .find(|words| words[0] == "EVALSHA" || words[0] == "EVAL");
        assert!(persist(&server) > 0);
        send_copy(&server, asked.expect("it asked"));
        assert_eq!(ending(&server), [""; 0], "{}", server.flavor());
        drop(guard);
    }
}

/// A reader needs two keys, of which one has an end still.
#[tokio::test]
async fn a_reader_whose_own_key_has_no_end_outlasts_by_the_other() {
    for server in servers() {
        for copy in [false, true] {
            let builder = Client::builder().url(server.url());
            let mine = builder.redisson_watchdog(LONG).connect().await.unwrap();
            let mut monitor = Monitor::start(&server);
            let lock = mine.rw_lock("name").fixed_lease(SHORT);
            let guard = lock.read().await.unwrap();
            let asked = monitor.calls(&guard.owner()).remove(0);
            let key = format!("{{name}}:{}:rwlock_timeout:1", guard.owner());
            assert_eq!(int(&server, &["PERSIST", &key]), 1);
            if copy {
                send_copy(&server, &asked);
            } else {
                guard.extend(LONG).await.unwrap();
            }
            let (left, least) = (int(&server, &["PTTL", "name"]), guard.remaining());
            let case = format!("{}, a copy: {copy}", server.flavor());
            assert!(
                left >= i64::try_from(least.as_millis()).unwrap(),
                "{case}: {left} ms"
            );
            guard.release().await.unwrap();
        }
    }
}

/// Nor does an answer, or a waiter, count on more than the other key lasts.
#[tokio::test]
async fn no_answer_counts_on_a_readers_own_key_alone() {
    for server in servers() {
        let connect = async || Client::connect(&server.url()).await.unwrap();
        let (mine, other) = (connect().await, connect().await);
        let mut monitor = Monitor::start(&server);
        let lock = mine.rw_lock("name");
        let writes = lock.write().await.unwrap();
        let owner = writes.owner();
        let owner = owner.trim_end_matches(":write");
        let waits = tokio::spawn(lock.clone().fixed_lease(2 * SHORT).read());
        let deadline = Instant::now() + SOON;
        while lock.status().await.unwrap().waiting_here != 1 {
            assert!(Instant::now() < deadline, "it never waited");
        }
        let before = monitor.calls(owner).len();
        writes.release().await.unwrap();
        let reads = soon("the reader", waits).await.unwrap().unwrap();
        let release = monitor.calls(owner).split_off(before).remove(0);
        let key = format!("{{name}}:{}:rwlock_timeout:1", reads.owner());
        assert_eq!(int(&server, &["PERSIST", &key]), 1);
        let answer = send_copy(&server, &release);
        let (kept, left): (i64, i64) = redis::from_redis_value(answer).unwrap();
        let case = server.flavor();
        assert_eq!(kept, 3, "{case}: the reader has it");
        assert!((1..=2_000).contains(&left), "{case}: {left} ms");
        let (since, ends) = (Instant::now(), reads.remaining());
        drop(reads.detach());
        let writes = soon("the writer", other.rw_lock("name").write()).await;
        let late = since.elapsed().saturating_sub(ends);
        drop(writes.unwrap());
        assert!(late < SHORT, "{case}: {late:?}");
    }
}
