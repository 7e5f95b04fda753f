//! A group under sentinels comes up, fails over, and comes to terms again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_testkit::{Authority, Flavor, SentinelGroup, SentinelSettings, TlsFiles, wait_until};
use redis::Value;

const SOON: Duration = Duration::from_secs(20);

/// At most one group at a time: each is six processes.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn has(group: &SentinelGroup, server: usize, key: &str) -> bool {
    group.server(server).cli(&["EXISTS", key]) == Value::Int(1)
}

fn says_primary(group: &SentinelGroup, server: usize) -> bool {
    let role: Vec<Value> =
        redis::from_redis_value(group.server(server).cli(&["ROLE"])).expect("a list");
    role[0] == Value::BulkString(b"master".to_vec())
}

#[test]
fn a_group_of_each_flavor_fails_over_as_planned_and_settles() {
    let _alone = alone();
    for flavor in Flavor::available() {
        let mut group = SentinelGroup::start(flavor);
        assert_eq!(group.primary(), 0, "{flavor}");
        assert!(group.url().ends_with("/0?master=main"), "{}", group.url());
        for _ in 0..2 {
            let old = group.primary();
            let new = group.failover();
            assert_ne!(new, old, "{flavor}");
            assert!(says_primary(&group, new), "{flavor}");
            group.settle();
            assert_eq!(group.primary(), new, "{flavor}");
            assert!(!says_primary(&group, old), "{flavor}");
        }
        group.server(group.primary()).cli(&["SET", "name", "ours"]);
        for server in 0..3 {
            wait_until(SOON, "it is everywhere", || has(&group, server, "name"));
        }
    }
}

#[test]
fn a_killed_primary_is_replaced_and_comes_back_empty_as_a_primary() {
    let _alone = alone();
    let mut group = SentinelGroup::start(Flavor::Redis);
    group.server(0).cli(&["SET", "name", "ours"]);
    group.server(0).cli(&["WAIT", "2", "5000"]);
    assert_eq!(group.kill_primary(), 0);
    let new = group.wait_for_successor(0);
    assert!(has(&group, new, "name"));
    group.restart_empty(0);
    assert!(says_primary(&group, 0), "until the sentinels have seen it");
    assert!(!has(&group, 0, "name"));
    assert_eq!(group.primary(), new);
    group.settle();
    assert!(has(&group, 0, "name"), "it was sent to it again");
    let other = 3 - new;
    group.restart_as_replica(other);
    assert!(!says_primary(&group, other));
    group.settle();
}

#[test]
fn a_frozen_primary_is_replaced_and_a_majority_of_sentinels_is_enough() {
    let _alone = alone();
    let mut group = SentinelGroup::start(Flavor::Redis);
    group.kill_sentinel(0);
    group.server(0).freeze();
    let new = group.wait_for_successor(0);
    assert_ne!(new, 0);
    group.server(0).thaw();
    assert!(says_primary(&group, 0), "nobody has told it yet");
    group.settle();
    assert!(!says_primary(&group, 0));
    assert_eq!(group.primary(), new);
}

#[test]
fn what_is_written_while_replicas_are_frozen_dies_with_the_primary() {
    let _alone = alone();
    let mut group = SentinelGroup::start(Flavor::Redis);
    group.server(0).cli(&["SET", "before", "ours"]);
    group.server(0).cli(&["WAIT", "2", "5000"]);
    let replicas = group.freeze_replicas();
    assert_eq!(replicas, [1, 2]);
    group.server(0).cli(&["SET", "after", "ours"]);
    group.kill_primary();
    group.thaw_replicas(&replicas);
    let new = group.wait_for_successor(0);
    assert!(has(&group, new, "before"));
    assert!(!has(&group, new, "after"));
}

#[test]
fn a_replica_that_was_promoted_by_hand_has_another_history() {
    let _alone = alone();
    let group = SentinelGroup::start(Flavor::Redis);
    group.promote_by_hand(1);
    assert!(says_primary(&group, 1));
    assert_eq!(group.primary(), 0, "the sentinels were not asked");
    group.server(0).cli(&["SET", "name", "ours"]);
    group.server(0).cli(&["WAIT", "1", "5000"]);
    assert!(has(&group, 2, "name"));
    assert!(!has(&group, 1, "name"));
}

#[test]
fn logins_and_tls_keep_strangers_out_and_the_group_together() {
    let _alone = alone();
    let authority = Authority::new("the test's");
    let tls = TlsFiles::new(authority.signs(&["localhost", "127.0.0.1"]), &authority);
    let settings = SentinelSettings::new()
        .user("worker", "hush")
        .sentinel_password("sesame")
        .tls(tls);
    let mut group = SentinelGroup::start_with(Flavor::Redis, settings);
    let begins = "rediss-sentinel://worker:hush@127.0.0.1:";
    assert!(group.url().starts_with(begins), "{}", group.url());
    let refused = |addr: std::net::SocketAddr| {
        let client = redis::Client::open(format!("redis://{addr}/")).expect("a url");
        let mut stranger = client.get_connection().expect("a connection");
        let error = redis::cmd("INFO").exec(&mut stranger).expect_err("refused");
        error.code() == Some("NOAUTH")
    };
    assert!(refused(group.server(0).addr()));
    assert!(refused(group.sentinel(0).addr()));
    let new = group.failover();
    group.settle();
    assert_eq!(group.primary(), new);
}
