//! `leasehold doctor`: each fault of a real server is named, with its remedy, and a server without one passes.

mod common;

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Output, Stdio},
    thread,
    time::Duration,
};

use common::{Process, SOON, code, leasehold, stderr, stdout};
use leasehold_testkit::{
    Cluster, ClusterSettings, Flavor, Primaries, Proxy, SentinelGroup, SentinelSettings, Server,
    wait_until,
};
use rustix::process::Signal;
use serde_json::Value;

const MB_LIMIT: [&str; 2] = ["--maxmemory", "64mb"];

fn doctor(url: &str, args: &[&str]) -> Output {
    let mut command = leasehold(url);
    command.arg("doctor").args(args).output().unwrap()
}

/// The exit status, and the findings that are faults: their levels and words, the worst first.
fn faults(url: &str, args: &[&str]) -> (i32, Vec<String>) {
    let output = doctor(url, &[args, &["--json"]].concat());
    let said: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}{}", stdout(&output), stderr(&output)));
    let findings = said["findings"].as_array().unwrap();
    let faults = findings.iter().filter_map(|it| {
        let (level, word) = (it["level"].as_str()?, it["word"].as_str()?);
        if level == "good" {
            return None;
        }
        assert!(level == "not allowed" || it["leads_to"] != "", "{it}");
        assert!(it["remedy"] != "" || level == "not allowed", "{it}");
        Some(format!("{level}: {word}"))
    });
    (code(output.status), faults.collect())
}

fn keys(server: &Server) -> Vec<String> {
    let mut keys: Vec<String> = redis::from_redis_value(server.cli(&["KEYS", "*"])).unwrap();
    // The label of a client, which ends by itself.
    keys.retain(|key| !key.starts_with("leasehold:client:"));
    keys
}

/// Writes each change to disk.
const ALWAYS: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

#[test]
fn a_healthy_server_passes_in_few_lines_and_keeps_nothing() {
    for flavor in Flavor::available() {
        let server = Server::start_with(flavor, &ALWAYS);
        let output = doctor(&server.url(), &["--strict"]);
        let said = stdout(&output);
        assert_eq!(code(output.status), 0, "{said}{}", stderr(&output));
        assert!(said.contains("was woken in"), "{said}");
        assert!(said.ends_with("no danger, no warning\n"), "{said}");
        assert!(
            said.lines().all(|line| line.starts_with(['✓', 'n'])),
            "{said}"
        );
        assert_eq!(keys(&server), [""; 0]);
    }
}

#[test]
fn eviction_without_persistence_is_a_danger_and_a_warning_and_both_can_be_accepted() {
    for flavor in Flavor::available() {
        let policy = ["--maxmemory-policy", "allkeys-lru"];
        let server = Server::start_with(flavor, &[&MB_LIMIT[..], &policy].concat());
        let found = ["danger: eviction", "warning: persistence"];
        assert_eq!(
            faults(&server.url(), &[]),
            (1, found.map(str::to_owned).to_vec())
        );
        let said = stdout(&doctor(&server.url(), &[]));
        assert!(said.contains("allkeys-lru"), "{said}");
        assert!(said.contains("maxmemory-policy noeviction"), "{said}");
        assert!(
            said.contains(
                "1 danger, 1 warning; to accept them: --allow eviction --allow persistence"
            ),
            "{said}"
        );
        let accepted = doctor(&server.url(), &["--allow", "eviction"]);
        assert_eq!(code(accepted.status), 0, "{}", stdout(&accepted));
        let strict = ["--allow", "eviction", "--strict"];
        assert_eq!(code(doctor(&server.url(), &strict).status), 1);
        let strict = [&strict[..], &["--allow", "persistence"]].concat();
        assert_eq!(code(doctor(&server.url(), &strict).status), 0);
    }
}

/// A server on which a user may do all but this.
fn without(server: &Server, rules: &[&str]) -> String {
    let user = [
        "ACL", "SETUSER", "app", "reset", "on", ">pw", "~*", "&*", "+@all",
    ];
    server.cli(&[&user[..], rules].concat());
    format!("redis://app:pw@{}/", server.addr())
}

#[test]
fn a_right_that_is_missing_is_named_with_the_rule_to_add() {
    let server = Server::start_with(Flavor::Redis, &ALWAYS);
    let url = without(&server, &["-publish"]);
    let (status, found) = faults(&url, &[]);
    assert_eq!(
        (status, &found[..]),
        (1, &["danger: permissions".to_owned()][..])
    );
    // Of one key pattern: the name that is tried is in another.
    let url = without(&server, &["resetkeys", "~app:*", "~leasehold:*"]);
    let (status, found) = faults(&url, &[]);
    assert_eq!(
        (status, &found[..1]),
        (1, &["danger: permissions".to_owned()][..])
    );
    let (_, found) = faults(&url, &["--name", "app:doctor"]);
    assert!(
        !found.contains(&"danger: permissions".to_owned()),
        "{found:?}"
    );
    // A right that no lock needs is no fault.
    let url = without(&server, &["-config", "-slowlog", "-client"]);
    let unknown = ["slow", "timeout"].map(|word| format!("not allowed: {word}"));
    assert_eq!(faults(&url, &["--strict"]), (0, unknown.to_vec()));
    let said = stdout(&doctor(&url, &[]));
    assert!(said.contains("add +slowlog|get"), "{said}");
}

#[test]
fn a_waiter_that_is_not_woken_is_found() {
    let server = Server::start_with(Flavor::Redis, &ALWAYS);
    let url = without(&server, &["-subscribe"]);
    let (status, found) = faults(&url, &[]);
    assert_eq!(
        (status, found),
        (0, vec!["warning: permissions".to_owned()])
    );
}

#[test]
fn a_full_server_and_a_replica_and_slow_ones_are_named() {
    let full = Server::start_with(Flavor::Redis, &ALWAYS);
    full.cli(&["SET", "data", &"x".repeat(100_000)]);
    full.cli(&["CONFIG", "SET", "maxmemory", "100kb"]);
    let (status, found) = faults(&full.url(), &[]);
    assert_eq!(status, 1, "{found:?}");
    let memory = ["danger: locking", "warning: memory"];
    assert_eq!(found, memory);

    let primary = Server::start_with(Flavor::Redis, &ALWAYS);
    let replica = Server::start_with(Flavor::Redis, &ALWAYS);
    replica.cli(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    let (status, found) = faults(&replica.url(), &[]);
    assert_eq!(status, 1, "{found:?}");
    assert!(found.contains(&"danger: server".to_owned()), "{found:?}");

    let server = Server::start_with(Flavor::Redis, &ALWAYS);
    let busy = "for i = 1, 1e8 do end"; // some half a second
    server.cli(&["EVAL", busy, "0"]);
    let proxy = Proxy::start(server.addr());
    proxy.delay(Duration::from_millis(100));
    let (status, found) = faults(&proxy.url(), &[]);
    assert_eq!(
        (status, found),
        (
            0,
            ["warning: latency", "warning: slow"]
                .map(str::to_owned)
                .to_vec()
        )
    );
}

#[test]
fn a_lock_without_an_end_is_listed() {
    let server = Server::start_with(Flavor::Redis, &ALWAYS);
    let uuid = "0d4f0f4e-8f2c-4c2b-9f43-4dbd9bb9f1b6";
    server.cli(&["HSET", "legacy:sync", &format!("{uuid}:1"), "1"]);
    let output = doctor(&server.url(), &[]);
    let said = stdout(&output);
    assert_eq!(code(output.status), 0, "{said}");
    assert!(said.contains("locks without an end: legacy:sync"), "{said}");
}

#[test]
fn a_cluster_with_an_open_slot_and_a_dead_node_and_a_majority_without_one_server() {
    let mut cluster = Cluster::start(Flavor::available()[0]);
    let said = stdout(&doctor(&cluster.url(), &[]));
    assert!(said.contains("all 16384 slots are served"), "{said}");
    let slot = cluster.slot("name");
    let from = cluster.primary_of(slot);
    let to = cluster
        .primaries()
        .into_iter()
        .find(|node| *node != from)
        .unwrap();
    cluster.open(slot, to);
    let said = stdout(&doctor(&cluster.url(), &[]));
    assert!(
        said.contains("slots that are open between two nodes: 1"),
        "{said}"
    );
    cluster.give_up(slot);
    let partner = cluster.partner(from);
    cluster.kill(partner);
    let named = || stdout(&doctor(&cluster.url(), &[])).contains("does not answer the others");
    leasehold_testkit::wait_until(common::SOON, "its death is known", named);

    let mut servers = Primaries::start_with(3, Flavor::available()[0], &ALWAYS);
    let hosts = servers.servers().iter().map(|it| it.addr().to_string());
    let url = format!("redlock://{}/", hosts.collect::<Vec<_>>().join(","));
    servers.kill(1);
    let (status, found) = faults(&url, &["--persistent-servers"]);
    let reach = ["warning: reach", "not allowed: endless"].map(str::to_owned);
    assert_eq!((status, found), (0, reach.to_vec()));
    // Servers that were just started have no vote yet.
    let (status, found) = faults(&url, &[]);
    assert_eq!(
        (status, found),
        (
            1,
            ["danger: locking", "warning: reach", "not allowed: endless"]
                .map(str::to_owned)
                .to_vec()
        )
    );
}

/// A dead node hides no fault of the others.
#[test]
fn a_lock_without_an_end_is_found_beside_a_node_that_is_dead() {
    let args = [&["--cluster-require-full-coverage", "no"], &ALWAYS[..]].concat();
    let settings = ClusterSettings::new().args(&args);
    let mut cluster = Cluster::start_with(Flavor::Redis, settings);
    let name = |i: &u32| format!("legacy:{i}");
    let left = (0..100).find(|i| cluster.primary_of(cluster.slot(&name(i))) != 0);
    let left = name(&left.unwrap());
    let node = cluster.primary_of(cluster.slot(&left));
    let owner = "0d4f0f4e-8f2c-4c2b-9f43-4dbd9bb9f1b6:1";
    cluster.command(node, &["HSET", &left, owner, "1"]);
    cluster.kill(cluster.partner(0));
    cluster.kill(0);
    let said = stdout(&doctor(
        &cluster.url(),
        &["--name", &left.replace("legacy", "free")],
    ));
    assert!(
        said.contains(&format!("locks without an end: {left}")),
        "{said}"
    );
}

/// Each sentinel is asked, and those that say something else are named.
#[test]
fn sentinels_that_are_not_at_one_are_named() {
    let settings = SentinelSettings::new().args(&ALWAYS);
    let mut group = SentinelGroup::start_with(Flavor::Redis, settings);
    let url = group.url();
    assert_eq!(faults(&url, &[]), (0, vec![]), "all are at one");

    // Their epoch is above zero from here on.
    group.failover();
    group.settle();
    assert_eq!(faults(&url, &[]), (0, vec![]), "after a failover");

    let at = |i: usize| group.sentinel_addrs()[i].to_string();
    let (first, second) = (at(0), at(1));
    group.forget_primary(1);
    let said = stdout(&doctor(&url, &[]));
    let unknown = format!("the sentinel {second} does not know this group");
    assert!(said.contains(&unknown), "{said}");

    group.kill_sentinel(0);
    let (status, found) = faults(&url, &[]);
    let both = ["warning: sentinels", "warning: sentinels"];
    assert_eq!((status, &found[..]), (0, &both.map(str::to_owned)[..]));
    let said = stdout(&doctor(&url, &[]));
    assert!(
        said.contains(&format!("the sentinel at {first}: no server listens")),
        "{said}"
    );
}

#[test]
fn sentinels_with_different_primaries_are_a_danger() {
    let group = SentinelGroup::start(Flavor::Redis);
    let primary = group.primary();
    let other = (primary + 1) % group.servers().len();
    (0..3).for_each(|i| group.forget_primary(i));
    group.promote_by_hand(other);
    for (i, watches) in [other, primary, primary].into_iter().enumerate() {
        group.set_anew(i, watches);
    }
    let output = doctor(&group.url(), &[]);
    let said = stdout(&output);
    assert_eq!(code(output.status), 1, "{said}");
    assert!(
        said.contains("the sentinels name different primaries"),
        "{said}"
    );
    let allowed = doctor(&group.url(), &["--allow", "sentinels"]);
    assert_eq!(code(allowed.status), 0, "{}", stdout(&allowed));
}

/// A way to a server that answers `TIME` with a clock that is so far ahead.
fn with_clock_ahead(server: &Server, by: u64) -> String {
    let (listener, to) = (TcpListener::bind("127.0.0.1:0").unwrap(), server.addr());
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let far = TcpStream::connect(to).unwrap();
            let (mut from_near, mut to_far) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut from_near, &mut to_far));
            thread::spawn(move || set_ahead(far, near, by));
        }
    });
    url
}

fn set_ahead(mut far: TcpStream, mut near: TcpStream, by: u64) {
    const TIME: &[u8] = b"*2\r\n$10\r\n";
    let mut buffer = [0; 16_384];
    while let Ok(read @ 1..) = far.read(&mut buffer) {
        let answer = &mut buffer[..read];
        if answer.starts_with(TIME) {
            let secs = &mut answer[TIME.len()..][..10];
            let ahead = str::from_utf8(secs).unwrap().parse::<u64>().unwrap() + by;
            secs.copy_from_slice(ahead.to_string().as_bytes());
        }
        if near.write_all(answer).is_err() {
            return;
        }
    }
}

#[test]
fn a_clock_that_is_ahead_is_told_with_the_difference() {
    let server = Server::start_with(Flavor::Redis, &ALWAYS);
    let url = with_clock_ahead(&server, 100);
    assert_eq!(faults(&url, &[]), (0, vec!["warning: clock".to_owned()]));
    let said = stdout(&doctor(&url, &[]));
    assert!(said.contains("s ahead of this machine's"), "{said}");
    let by = said.split("its clock is ").nth(1).unwrap();
    assert!(by.starts_with("1m 39s") || by.starts_with("1m 40s"), "{by}");
}

/// A waiter that was killed stands in the queue until the next release.
#[test]
fn a_waiter_whose_client_has_ended_is_found_and_one_that_waits_is_not() {
    let server = Server::start_with(Flavor::Redis, &ALWAYS);
    let run = |words: &[&str]| {
        let mut run = leasehold(&server.url());
        let run = run.arg("run").args(words);
        Process::start(run.stdout(Stdio::null()).stderr(Stdio::null()))
    };
    let queued = |many: usize| {
        let status = leasehold(&server.url())
            .args(["status", "--json", "job"])
            .output();
        let status: Value = serde_json::from_slice(&status.unwrap().stdout).unwrap();
        status["queue"].as_array().unwrap().len() == many
    };
    let holder = run(&["job", "sleep", "100"]);
    wait_until(SOON, "it is held", || common::pttl(&server, "job") > 0);
    let mut waiter = run(&["job", "true"]);
    wait_until(SOON, "it waits", || queued(1));
    assert_eq!(faults(&server.url(), &[]), (0, vec![]));
    waiter.signal(Signal::KILL);
    waiter.code();
    assert!(queued(1));
    let output = doctor(&server.url(), &[]);
    let said = stdout(&output);
    assert_eq!(code(output.status), 0, "{said}");
    assert!(
        said.contains("1 waiter in the queue of job, whose client has ended"),
        "{said}"
    );
    drop(holder);
}

#[test]
fn without_a_server_or_a_password_the_status_says_so() {
    let mut server = Server::start_with(Flavor::Redis, &["--requirepass", "pw"]);
    let wrong = format!("redis://:wrong@{}/", server.addr());
    assert_eq!(code(doctor(&wrong, &[]).status), 77);
    let url = server.url();
    server.kill();
    assert_eq!(
        code(doctor(&url, &["--connect-timeout", "500ms"]).status),
        69
    );
    assert_eq!(code(doctor("memory:", &[]).status), 64);
}

#[test]
fn a_name_in_use_and_a_wrong_one_are_no_faults_of_the_server() {
    let server = Server::start_with(Flavor::Redis, &ALWAYS);
    server.cli(&["RPUSH", "list", "a"]);
    let name = |name: &str| code(doctor(&server.url(), &["--name", name]).status);
    assert_eq!((name("list"), name("leasehold:x"), name("")), (75, 64, 64));
    assert_eq!(
        code(doctor(&server.url(), &["--allow", "persistance"]).status),
        64
    );
    // A channel of readers alone is missing: nothing else is blamed for it.
    let channels = ["resetchannels", "&redisson_lock__channel:*", "&leasehold:*"];
    let url = without(&server, &channels);
    let (_, found) = faults(&url, &["--name", "free"]);
    assert_eq!(found, ["not allowed: permissions"]);
}
