//! A downgrade as Redisson would see it, and late copies of its requests. (`docs/keys.md`.
//! Redisson itself is played by the scripts of its source.)

use std::{collections::BTreeMap, time::Duration};

use crate::common::{
    SOON, assert_nothing_left, int, keys, release, restricted, servers, soon, wait_until_idle,
    wire::{Monitor, documented_rules, send_copy},
};
use leasehold::Client;
use leasehold_testkit::{Proxy, Server, wait_until_async};

const QUEUE: &str = "leasehold:{name}:rw:queue";

fn hash(server: &Server) -> BTreeMap<String, String> {
    redis::from_redis_value(server.cli(&["HGETALL", "name"])).unwrap()
}

fn fields<const N: usize>(fields: [(&str, &str); N]) -> BTreeMap<String, String> {
    fields.map(|(f, v)| (f.to_owned(), v.to_owned())).into()
}

fn lease_of(owner: &str) -> String {
    format!("{{name}}:{owner}:rwlock_timeout:1")
}

/// The owner field without what says that it writes.
fn plain(owner: &str) -> &str {
    owner.trim_end_matches(":write")
}

fn queue(server: &Server) -> Vec<String> {
    redis::from_redis_value(server.cli(&["LRANGE", QUEUE, "0", "-1"])).unwrap()
}

async fn client_of(server: &Server) -> Client {
    // Longer than any of these tests waits for anything: a waiter that is not woken is noticed.
    let builder = Client::builder().url(server.url());
    let builder = builder.poll_every(Duration::from_secs(60));
    builder.connect().await.unwrap()
}

async fn until_queued(server: &Server, places: usize) {
    let what = format!("{places} stand in the queue");
    wait_until_async(SOON, &what, || queue(server).len() == places).await;
}

fn near(server: &Server, key: &str, ms: i64) {
    let left = int(server, &["PTTL", key]);
    assert!((ms - 2000..=ms).contains(&left), "{key} has {left} of {ms}");
}

#[tokio::test]
async fn each_form_of_a_hold_is_redissons_reader_or_writer_and_keeps_its_end() {
    for server in servers() {
        let client = client_of(&server).await;
        let lock = client.rw_lock("name").fixed_lease(Duration::from_secs(50));
        let writes = lock.write().await.unwrap();
        let owner = plain(&writes.owner()).to_owned();
        near(&server, "name", 50_000);
        writes.extend(Duration::from_secs(70)).await.unwrap();
        assert_eq!(
            hash(&server),
            fields([("mode", "write"), (&format!("{owner}:write"), "1")])
        );
        assert_eq!(keys(&server), ["name"]);
        near(&server, "name", 70_000);
        let reads = writes.downgrade().await.unwrap();
        assert_eq!(hash(&server), fields([("mode", "read"), (&owner, "1")]));
        near(&server, &lease_of(&owner), 70_000);
        near(&server, "name", 70_000);
        let mut there = keys(&server);
        there.sort();
        assert_eq!(there, ["name".to_owned(), lease_of(&owner)]);
        release(reads).await;
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "all forms").await;
    }
}

/// B4: a late copy of a downgrade, or of the request before it, finds what came of it, and changes nothing.
#[tokio::test]
async fn a_late_copy_changes_nothing_of_what_came_of_the_hold() {
    for server in servers() {
        let (here, there) = (client_of(&server).await, client_of(&server).await);
        let mut monitor = Monitor::start(&server);
        let writes = here.rw_lock("name").write().await.unwrap();
        let owner = plain(&writes.owner()).to_owned();
        let taken = monitor.calls(&owner).last().unwrap().clone();
        let in_state = |state: &str, copies: &[&Vec<String>]| {
            for copy in copies {
                let before = hash(&server);
                send_copy(&server, copy);
                assert_eq!(hash(&server), before, "{state}: {copy:?}");
                assert_eq!(queue(&server), [""; 0], "{state}: {copy:?}");
            }
        };
        in_state("writes", &[&taken]);
        let reads = writes.downgrade().await.unwrap();
        let downgraded = monitor.calls(&owner).last().unwrap().clone();
        in_state("reads", &[&taken, &downgraded]);
        release(reads).await;
        let next = there.rw_lock("name").write().await.unwrap();
        // The first request would be queued, or hold again, but for a tombstone, which is left where a copy may be under way.
        in_state("the next writes", &[&downgraded]);
        next.verify().await.unwrap();
        release(next).await;
        in_state("free", &[&downgraded]);
        for client in [&here, &there] {
            wait_until_idle(client).await;
        }
        assert_nothing_left(&server, "late copies").await;
    }
}

/// Renewals and counts that were sent before a change arrive after it.
#[tokio::test]
async fn a_request_in_an_older_form_serves_the_hold_in_its_newer_form() {
    for server in servers() {
        let client = client_of(&server).await;
        let mut monitor = Monitor::start(&server);
        let lock = client.rw_lock("name").lease(Duration::from_millis(600));
        let writes = lock.write().await.unwrap();
        let owner = plain(&writes.owner()).to_owned();
        let calls = monitor.calls(&owner).len();
        // The second one: of the first, the server may not have known the script.
        let renewed = || monitor.calls(&owner).len() > calls + 1;
        wait_until_async(SOON, "renewals", renewed).await;
        let renewal = monitor.calls(&owner).last().unwrap().clone();
        let nothing = redis::Value::Array(Vec::new());
        let reads = writes.downgrade().await.unwrap();
        assert_eq!(send_copy(&server, &renewal), nothing);
        reads.verify().await.unwrap();
        release(reads).await;
        let lost = redis::Value::Array(vec![redis::Value::Int(1), redis::Value::Int(0)]);
        assert_eq!(send_copy(&server, &renewal), lost);
        assert_eq!(keys(&server), [""; 0]);
    }
}

#[tokio::test]
async fn a_user_with_the_documented_permissions_can_change_the_mode() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let rules = documented_rules();
        let rules: Vec<&str> = rules
            .iter()
            .map(String::as_str)
            .filter(|rule| rule.starts_with('+'))
            .chain(["&*"])
            .collect();
        let (one, two, three) = (
            restricted(&server, &proxy, &rules).await,
            restricted(&server, &proxy, &rules).await,
            restricted(&server, &proxy, &rules).await,
        );
        let beside = two.rw_lock("name").read().await.unwrap();
        let waiting = tokio::spawn(one.rw_lock("name").write());
        until_queued(&server, 1).await;
        let reads = tokio::spawn(three.rw_lock("name").read());
        until_queued(&server, 2).await;
        release(beside).await;
        let writes = soon("the writer", waiting).await.unwrap().unwrap();
        let after = writes.downgrade().await.unwrap();
        release(soon("the reader", reads).await.unwrap().unwrap()).await;
        release(after).await;
    }
}
