//! What Redisson would see of a downgrade and of a read that may upgrade, and late copies of their requests. (`docs/keys.md`.
//! Redisson itself is played by the scripts of its source.)

mod common;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use common::{
    SOON, assert_nothing_left, int, keys, release, restricted,
    rw::{java_leaves, java_reads, java_writes, until_waiting_here},
    servers, soon, wait_until_idle,
    wire::{Monitor, documented_rules, send_copy},
};
use leasehold::{Client, RwPolicy};
use leasehold_testkit::{Proxy, Server, wait_until_async};

const CHANNEL: &str = "redisson_rwlock:{name}";
const QUEUE: &str = "leasehold:{name}:rw:queue";
const WOKEN: Duration = Duration::from_secs(2);

fn hash(server: &Server) -> BTreeMap<String, String> {
    redis::from_redis_value(server.cli(&["HGETALL", "name"])).unwrap()
}

fn fields<const N: usize>(fields: [(&str, &str); N]) -> BTreeMap<String, String> {
    fields.map(|(f, v)| (f.to_owned(), v.to_owned())).into()
}

fn lease_of(owner: &str) -> String {
    format!("{{name}}:{owner}:rwlock_timeout:1")
}

/// The owner field without what says that it writes, or may.
fn plain(owner: &str) -> &str {
    owner
        .trim_end_matches(":write")
        .trim_end_matches(":upgrade")
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
        let may = lock.upgradeable_read().await.unwrap();
        let upgradeable = may.owner();
        let owner = plain(&upgradeable).to_owned();
        assert_eq!(
            hash(&server),
            fields([("mode", "read"), (&format!("{owner}:upgrade"), "1")])
        );
        near(&server, &lease_of(&upgradeable), 50_000);
        near(&server, "name", 50_000);
        may.extend(Duration::from_secs(70)).await.unwrap();
        let writes = may.upgrade().await.unwrap();
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
        // The reader that may upgrade becomes one that may not.
        let may = lock.upgradeable_read().await.unwrap();
        let reads = may.downgrade().await.unwrap();
        let owner = reads.owner();
        assert_eq!(hash(&server), fields([("mode", "read"), (&owner, "1")]));
        near(&server, &lease_of(&owner), 50_000);
        release(reads).await;
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "all forms").await;
    }
}

#[tokio::test]
async fn redissons_readers_share_with_one_that_may_upgrade_and_are_waited_for() {
    for server in servers() {
        let (here, there) = (client_of(&server).await, client_of(&server).await);
        let may = here.rw_lock("name").upgradeable_read().await.unwrap();
        assert_eq!(java_reads(&server, "30000"), redis::Value::Nil);
        assert!(java_writes(&server, "30000") != redis::Value::Nil);
        // They leave, and tell no waiter: it looks.
        let upgrade = tokio::spawn(may.upgrade());
        until_queued(&server, 1).await;
        assert!(queue(&server)[0].contains(":upgrade:"));
        let newcomer = tokio::spawn(there.rw_lock("name").read());
        until_queued(&server, 2).await;
        let begun = Instant::now();
        assert_eq!(java_leaves(&server), redis::Value::Int(0));
        let writes = soon("the upgrade", upgrade).await.unwrap().unwrap();
        assert!(begun.elapsed() < WOKEN, "{:?}", begun.elapsed());
        assert!(java_reads(&server, "30000") != redis::Value::Nil);
        assert!(!newcomer.is_finished());
        // Redisson's readers hear of a downgrade.
        let mut ears = server.connection();
        let mut ears = ears.as_pubsub();
        ears.subscribe(CHANNEL).unwrap();
        let reads = writes.downgrade().await.unwrap();
        ears.set_read_timeout(Some(SOON)).unwrap();
        assert_eq!(ears.get_message().unwrap().get_payload_bytes(), b"1");
        let beside = soon("the newcomer", newcomer).await.unwrap().unwrap();
        assert_eq!(java_reads(&server, "30000"), redis::Value::Nil);
        release(beside).await;
        release(reads).await;
        assert_eq!(java_leaves(&server), redis::Value::Int(1));
        for client in [&here, &there] {
            wait_until_idle(client).await;
        }
        // The connection of `ears` listens still.
        assert_eq!(keys(&server), [""; 0]);
    }
}

/// B4: a late copy of an upgrade, of a downgrade, or of the request before them finds what came of it, and changes nothing.
#[tokio::test]
async fn a_late_copy_changes_nothing_of_what_came_of_the_hold() {
    for server in servers() {
        let (here, there) = (client_of(&server).await, client_of(&server).await);
        let mut monitor = Monitor::start(&server);
        let may = here.rw_lock("name").upgradeable_read().await.unwrap();
        let owner = plain(&may.owner()).to_owned();
        let upgradeable = may.owner();
        let taken = monitor.calls(&owner).last().unwrap().clone();
        let beside = there.rw_lock("name").read().await.unwrap();
        let upgrade = tokio::spawn(may.upgrade());
        until_queued(&server, 1).await;
        let asked = monitor.calls(":upgrade:").last().unwrap().clone();
        release(beside).await;
        let writes = soon("the upgrade", upgrade).await.unwrap().unwrap();
        let in_state = |state: &str, copies: &[&Vec<String>]| {
            for copy in copies {
                let before = hash(&server);
                send_copy(&server, copy);
                assert_eq!(hash(&server), before, "{state}: {copy:?}");
                assert_eq!(queue(&server), [""; 0], "{state}: {copy:?}");
            }
        };
        in_state("writes", &[&taken, &asked]);
        let reads = writes.downgrade().await.unwrap();
        let downgraded = monitor.calls(&owner).last().unwrap().clone();
        in_state("reads", &[&taken, &asked, &downgraded]);
        release(reads).await;
        let next = there.rw_lock("name").write().await.unwrap();
        // The first request would be queued, or hold again, but for a tombstone, which is left where a copy may be under way.
        in_state("the next writes", &[&asked, &downgraded]);
        next.verify().await.unwrap();
        release(next).await;
        in_state("free", &[&asked, &downgraded]);
        assert!(upgradeable.ends_with(":upgrade"));
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
        let may = lock.upgradeable_read().await.unwrap();
        let owner = plain(&may.owner()).to_owned();
        let calls = monitor.calls(&owner).len();
        // The second one: of the first, the server may not have known the script.
        let renewed = || monitor.calls(&owner).len() > calls + 1;
        wait_until_async(SOON, "renewals", renewed).await;
        let renewal = monitor.calls(&owner).last().unwrap().clone();
        let nothing = redis::Value::Array(Vec::new());
        let writes = may.upgrade().await.unwrap();
        assert_eq!(send_copy(&server, &renewal), nothing);
        let reads = writes.downgrade().await.unwrap();
        assert_eq!(send_copy(&server, &renewal), nothing);
        reads.verify().await.unwrap();
        release(reads).await;
        let lost = redis::Value::Array(vec![redis::Value::Int(1), redis::Value::Int(0)]);
        assert_eq!(send_copy(&server, &renewal), lost);
        assert_eq!(keys(&server), [""; 0]);
    }
}

/// An upgrade whose client hears nothing is passed over, and the hold reads on.
#[tokio::test]
async fn an_upgrade_of_a_client_that_hears_nothing_is_passed_over() {
    for server in servers() {
        let (here, there) = (client_of(&server).await, client_of(&server).await);
        let may = here.rw_lock("name").upgradeable_read().await.unwrap();
        let owner = plain(&may.owner()).to_owned();
        let (client, lease) = owner.split_once(':').unwrap();
        let beside = there.rw_lock("name").read().await.unwrap();
        let place = format!("{client}:7:upgrade:{lease}:write 30000 1");
        server.cli(&["RPUSH", QUEUE, &place]);
        let waiting = tokio::spawn(there.rw_lock("name").upgradeable_read());
        until_queued(&server, 2).await;
        release(beside).await;
        may.verify().await.unwrap();
        assert!(hash(&server).contains_key(&format!("{owner}:upgrade")));
        release(may).await;
        release(soon("the next", waiting).await.unwrap().unwrap()).await;
        assert_eq!(queue(&server), [""; 0]);
    }
}

/// A hold that dies while it waits for its upgrade keeps out no one for longer than its lease.
#[tokio::test]
async fn an_upgrade_whose_process_dies_is_over_with_its_lease() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let dies = Client::connect(&proxy.url()).await.unwrap();
        let (reader, next) = (client_of(&server).await, client_of(&server).await);
        let lock = dies.rw_lock("name").lease(Duration::from_millis(600));
        let may = lock.upgradeable_read().await.unwrap();
        let beside = reader.rw_lock("name").read().await.unwrap();
        let upgrade = tokio::spawn(may.upgrade());
        until_queued(&server, 1).await;
        let waiting = tokio::spawn(next.rw_lock("name").upgradeable_read());
        until_queued(&server, 2).await;
        proxy.refuse(true);
        proxy.cut();
        let error = soon("it is told", upgrade).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), leasehold::ErrorKind::Lost);
        let told = Instant::now();
        release(soon("the next", waiting).await.unwrap().unwrap()).await;
        assert!(told.elapsed() < WOKEN, "{:?}", told.elapsed());
        release(beside).await;
        proxy.heal();
        wait_until_idle(&next).await;
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
        let may = one.rw_lock("name").upgradeable_read().await.unwrap();
        let beside = two.rw_lock("name").read().await.unwrap();
        let upgrade = tokio::spawn(may.upgrade());
        until_queued(&server, 1).await;
        let waiting = two.rw_lock("name").policy(RwPolicy::PreferWriters).write();
        let waiting = tokio::spawn(waiting);
        until_waiting_here(&two, 1).await;
        release(beside).await;
        let writes = soon("the upgrade", upgrade).await.unwrap().unwrap();
        let reads = writes.downgrade().await.unwrap();
        release(reads).await;
        let writes = soon("the writer", waiting).await.unwrap().unwrap();
        let (early, late) = (one.rw_lock("name"), three.rw_lock("name"));
        let early = tokio::spawn(early.write());
        until_queued(&server, 1).await;
        let late = late.policy(RwPolicy::PreferReaders).read();
        let late = tokio::spawn(late);
        until_queued(&server, 2).await;
        assert!(!queue(&server)[0].contains(":write"), "in front");
        release(writes).await;
        release(soon("the reader", late).await.unwrap().unwrap()).await;
        release(soon("the writer", early).await.unwrap().unwrap()).await;
    }
}

/// A hold that was to be upgraded, whose client hears still: its process is stopped. Once the hold is over it keeps no reader out.
#[tokio::test]
async fn an_upgrade_whose_hold_is_over_keeps_no_reader_out() {
    for server in servers() {
        let (there, new) = (client_of(&server).await, client_of(&server).await);
        let beside = there.rw_lock("name").read().await.unwrap();
        let mut ears = server.connection();
        let mut ears = ears.as_pubsub();
        ears.subscribe("leasehold:{name}:rw:grant:stopped").unwrap();
        let place = "stopped:7:upgrade:3:write 30000 1";
        server.cli(&["RPUSH", QUEUE, place]);
        // It waits to write as long as there is a hold to upgrade.
        let (hold, lease) = ("stopped:3:upgrade", lease_of("stopped:3:upgrade"));
        server.cli(&["HSET", "name", hold, "1"]);
        server.cli(&["SET", &lease, "1", "PX", "60000"]);
        let early = new.rw_lock("name").try_read().await.unwrap();
        assert!(early.is_none(), "{}", server.flavor());
        assert_eq!(queue(&server), [place]);
        server.cli(&["DEL", &lease]);
        let late = new.rw_lock("name").try_read().await.unwrap();
        release(late.expect("it keeps readers out")).await;
        assert_eq!(queue(&server), [""; 0]);
        assert!(!hash(&server).contains_key(hold));
        release(beside).await;
    }
}

/// Readers that stood behind it are let in when its lease ends, and not at their poll.
#[tokio::test]
async fn readers_behind_a_stopped_upgrade_wait_for_the_end_of_its_lease() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let stops = Client::connect(&proxy.url()).await.unwrap();
        let (there, new) = (client_of(&server).await, client_of(&server).await);
        let beside = there.rw_lock("name").read().await.unwrap();
        let lock = stops.rw_lock("name").lease(Duration::from_secs(1));
        let may = lock.upgradeable_read().await.unwrap();
        let upgrade = tokio::spawn(may.upgrade());
        until_queued(&server, 1).await;
        let waiting = tokio::spawn(new.rw_lock("name").read());
        until_queued(&server, 2).await;
        proxy.stall(None);
        release(soon("the reader", waiting).await.unwrap().unwrap()).await;
        release(beside).await;
        proxy.heal();
        let error = soon("it is told", upgrade).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), leasehold::ErrorKind::Lost);
        for client in [&stops, &there, &new] {
            wait_until_idle(client).await;
        }
        drop(server);
    }
}
