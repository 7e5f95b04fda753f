//! A cluster comes up, its slots move, its primaries are replaced, and it comes to terms again.

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_testkit::{
    Authority, Cluster, ClusterSettings, Failover, Flavor, Lane, TlsFiles, Way, wait_until,
};
use redis::Value;

const SOON: Duration = Duration::from_secs(20);

/// Each test runs on one cluster of each flavor at once, which all tests share; one test at a time.
fn on_each(test: impl Fn(&mut Cluster) + Sync) {
    let mut clusters = shared();
    std::thread::scope(|both| {
        for cluster in clusters.iter_mut() {
            both.spawn(|| {
                cluster.settle();
                test(cluster);
            });
        }
    });
}

fn shared() -> MutexGuard<'static, Vec<Cluster>> {
    static SHARED: LazyLock<Mutex<Vec<Cluster>>> = LazyLock::new(|| {
        let flavors = Flavor::available().into_iter();
        let start = |flavor| std::thread::spawn(move || Cluster::behind_proxies(flavor));
        let started: Vec<_> = flavors.map(start).collect();
        let up = started.into_iter().map(std::thread::JoinHandle::join);
        Mutex::new(up.map(|cluster| cluster.expect("it is up")).collect())
    });
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error that a node answers with.
fn refusal(cluster: &Cluster, node: usize, command: &[&str]) -> String {
    let error = cluster.node(node).try_cli(command).expect_err("refused");
    error.to_string()
}

fn exists(cluster: &Cluster, node: usize, key: &str) -> bool {
    cluster.command(node, &["EXISTS", key]) == Value::Int(1)
}

fn client(cluster: &Cluster, node: usize) -> redis::Connection {
    let url = format!("redis://{}/", cluster.addr(node));
    let client = redis::Client::open(url).expect("a url");
    let connection = client.get_connection_with_timeout(SOON);
    connection.expect("a connection")
}

#[test]
fn a_cluster_of_each_flavor_is_whole_and_known_by_the_addresses_of_its_proxies() {
    on_each(|cluster| {
        assert_eq!(cluster.slot("foo"), 12_182, "as in the specification");
        let primary = cluster.primary_of(12_182);
        assert_eq!(cluster.primaries().len(), 3);
        cluster.command(primary, &["SET", "foo", "ours"]);
        let other = cluster.primary_of(0);
        let moved = refusal(cluster, other, &["GET", "foo"]);
        let proxy = cluster.addr(primary);
        assert_eq!(proxy, cluster.proxy(primary).addr());
        assert!(moved.contains(&proxy.to_string()), "{moved}");
        let url = cluster.url();
        assert!(url.starts_with("redis-cluster://127.0.0.1:"), "{url}");
        assert!(url.contains(&proxy.to_string()), "{url}");
        assert_eq!(url.split(',').count(), 6);
    });
}

#[test]
fn a_slot_moves_with_its_keys_and_all_primaries_know() {
    on_each(|cluster| {
        let slot = cluster.slot("{moved}");
        let from = cluster.primary_of(slot);
        for key in 0..250 {
            cluster.command(from, &["SET", &format!("{{moved}}:{key}"), "ours"]);
        }
        let primaries = cluster.primaries();
        for to in primaries.iter().filter(|&&to| to != from).chain([&from]) {
            cluster.migrate(slot, *to);
            assert_eq!(cluster.primary_of(slot), *to);
            assert!(exists(cluster, *to, "{moved}:249"));
            for other in primaries.iter().filter(|&other| other != to) {
                let moved = refusal(cluster, *other, &["GET", "{moved}"]);
                let right = cluster.addr(*to).to_string();
                assert!(moved.contains(&right), "{moved}, not {right}");
            }
        }
    });
}

#[test]
fn a_slot_left_open_sends_clients_on_and_can_be_closed_or_given_up() {
    on_each(|cluster| {
        let slot = cluster.slot("{open}");
        let from = cluster.primary_of(slot);
        let to = cluster.primaries().into_iter().find(|&to| to != from);
        let to = to.expect("another primary");
        for key in ["{open}:1", "{open}:2", "{open}:3"] {
            cluster.command(from, &["SET", key, "ours"]);
        }
        cluster.open(slot, to);
        assert_eq!(cluster.opened(slot), Some((from, to)));
        assert_eq!(cluster.primary_of(slot), from);
        assert_eq!(cluster.move_keys(slot, 2), 2);
        let ask = refusal(cluster, from, &["GET", "{open}:4"]);
        assert!(ask.contains(&cluster.addr(to).to_string()), "{ask}");
        let torn = ["MGET", "{open}:1", "{open}:2", "{open}:3"];
        let torn = refusal(cluster, from, &torn);
        assert!(torn.contains("TryAgain"), "{torn}");

        cluster.give_up(slot);
        assert_eq!(cluster.opened(slot), None);
        let count = ["EXISTS", "{open}:1", "{open}:2", "{open}:3"];
        assert_eq!(cluster.command(from, &count), Value::Int(3));

        cluster.open(slot, to);
        cluster.close(slot);
        assert_eq!(cluster.opened(slot), None);
        assert_eq!(cluster.command(to, &count), Value::Int(3));
        cluster.migrate_slowly(slot, from, Duration::from_millis(50));
        assert_eq!(cluster.primary_of(slot), from);
    });
}

#[test]
fn slots_move_at_once_where_the_server_can() {
    on_each(|cluster| {
        if cluster.node(0).flavor() != Flavor::Valkey {
            return;
        }
        let slot = cluster.slot("{atomic}");
        let from = cluster.primary_of(slot);
        let to = cluster.primaries().into_iter().find(|&to| to != from);
        let to = to.expect("another primary");
        cluster.command(from, &["SET", "{atomic}", "ours"]);
        for end in [to, from] {
            cluster.migrate_atomically(slot..=slot + 3, end);
            assert_eq!(cluster.primary_of(slot + 3), end);
            assert!(exists(cluster, end, "{atomic}"));
        }
    });
}

#[test]
fn a_replica_takes_over_as_planned_and_by_force() {
    on_each(|cluster| {
        for how in [Failover::Planned, Failover::Force, Failover::Takeover] {
            let old = cluster.primary_of(0);
            let new = cluster.fail_over_by(old, how);
            assert_eq!(new, cluster.partner(old), "{how:?}");
            assert_eq!(cluster.primary_of(0), new, "{how:?}");
            cluster.settle();
            assert_eq!(cluster.primary_of(0), new, "{how:?}");
        }
    });
}

#[test]
fn what_was_written_while_the_replica_was_cut_off_dies_with_the_primary() {
    on_each(|cluster| {
        let primary = cluster.primary_of(cluster.slot("{lag}"));
        cluster.command(primary, &["SET", "{lag}:before", "ours"]);
        cluster.command(primary, &["WAIT", "1", "5000"]);
        let replica = cluster.cut_off(primary);
        cluster.command(primary, &["SET", "{lag}:after", "ours"]);
        assert_eq!(
            cluster.command(primary, &["WAIT", "1", "50"]),
            Value::Int(0)
        );
        cluster.kill(primary);
        cluster.thaw(replica);
        assert_eq!(cluster.wait_for_successor(primary), replica);
        assert!(exists(cluster, replica, "{lag}:before"));
        assert!(!exists(cluster, replica, "{lag}:after"));
        cluster.settle();
        assert_eq!(cluster.primary_of(cluster.slot("{lag}")), replica);
    });
}

#[test]
fn a_frozen_primary_is_replaced_and_becomes_a_replica_when_thawed() {
    on_each(|cluster| {
        let primary = cluster.primary_of(0);
        cluster.freeze(primary);
        let new = cluster.wait_for_successor(primary);
        assert_eq!(cluster.primary_of(0), new);
        cluster.thaw(primary);
        cluster.settle();
        assert_eq!(cluster.primary_of(0), new);
    });
}

#[test]
fn one_node_is_cut_off_from_its_clients_and_no_other() {
    on_each(|cluster| {
        let (hit, other) = (cluster.primary_of(0), cluster.primary_of(16_383));
        let mut to_hit = client(cluster, hit);
        let mut to_other = client(cluster, other);
        to_hit
            .set_read_timeout(Some(Duration::from_millis(100)))
            .expect("a limit");
        cluster.proxy(hit).black_hole(Some(Way::ToClient));
        let ping = redis::cmd("PING");
        assert!(ping.exec(&mut to_hit).is_err());
        assert!(ping.exec(&mut to_other).is_ok());
        cluster.settle();
        assert_eq!(cluster.primary_of(0), hit);
        assert!(ping.exec(&mut client(cluster, hit)).is_ok());
    });
}

#[test]
fn listeners_are_counted_at_each_node_and_are_a_lane_of_its_proxy() {
    on_each(|cluster| {
        let slot = cluster.slot("{heard}");
        let node = cluster.primary_of(slot);
        let other = cluster.primaries().into_iter().find(|&i| i != node);
        let other = other.expect("another primary");
        let mut sharded = client(cluster, node);
        let mut classic = client(cluster, other);
        let mut ask = redis::cmd("SSUBSCRIBE");
        sharded
            .send_packed_command(&ask.arg("{heard}").get_packed_command())
            .expect("sent");
        classic
            .send_packed_command(&redis::cmd("SUBSCRIBE").arg("{heard}").get_packed_command())
            .expect("sent");
        wait_until(SOON, "both are counted", || {
            cluster.shard_subscribers(node, "{heard}") == 1
                && cluster.subscribers(other, "{heard}") == 1
        });
        assert_eq!(cluster.subscribers(node, "{heard}"), 0);
        cluster.proxy(node).cut_lane(Lane::Subscriptions);
        wait_until(SOON, "it is gone", || {
            cluster.shard_subscribers(node, "{heard}") == 0
        });
    });
}

#[test]
fn logins_and_tls_keep_strangers_out_and_the_cluster_together() {
    let _alone = shared();
    let authority = Authority::new("the test's");
    let tls = TlsFiles::new(authority.signs(&["localhost", "127.0.0.1"]), &authority);
    let settings = ClusterSettings::new().user("worker", "hush").tls(tls);
    let cluster = Cluster::start_with(Flavor::Redis, settings.behind_proxies());
    let begins = "rediss-cluster://worker:hush@127.0.0.1:";
    assert!(cluster.url().starts_with(begins), "{}", cluster.url());
    let (slot, from) = (
        cluster.slot("name"),
        cluster.primary_of(cluster.slot("name")),
    );
    cluster.command(from, &["SET", "name", "ours"]);
    let to = (from + 1) % 3;
    cluster.migrate(slot, to);
    assert!(exists(&cluster, to, "name"));
    let new = cluster.fail_over(to);
    assert!(exists(&cluster, new, "name"));
}
