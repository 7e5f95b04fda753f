//! `leasehold drill`: each row passes on a server that keeps locks, and fails on one that forgets them.

mod common;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use common::{Process, SOON, code, leasehold, stderr, stdout};
use leasehold_testkit::{Cluster, Flavor, Primaries, SentinelGroup, Server, wait_until};
use rustix::process::Signal;
use serde_json::Value;

fn drill(url: &str, words: &[&str]) -> (i32, Value) {
    let output = leasehold(url)
        .args(["drill", "--json"])
        .args(words)
        .output()
        .unwrap();
    let document = serde_json::from_slice(&output.stdout);
    let document = document.unwrap_or_else(|_| panic!("{}", stderr(&output)));
    (code(output.status), document)
}

fn outcomes(document: &Value) -> Vec<(u64, &str)> {
    let rows = document["rows"].as_array().unwrap().iter();
    rows.map(|row| {
        (
            row["row"].as_u64().unwrap(),
            row["outcome"].as_str().unwrap(),
        )
    })
    .collect()
}

/// Keys that do not end.
fn endless(server: &Server) -> Vec<String> {
    let keys: Vec<String> = redis::from_redis_value(server.cli(&["KEYS", "*"])).unwrap();
    let ends = |key: &&String| common::pttl(server, key) < 0;
    keys.iter().filter(ends).cloned().collect()
}

#[test]
fn every_row_passes_and_leaves_nothing_that_does_not_end() {
    let files = tempfile::tempdir().unwrap();
    let report = files.path().join("drill.md");
    thread::scope(|scope| {
        for flavor in Flavor::available() {
            let report = report.with_extension(flavor.to_string());
            scope.spawn(move || {
                let server = Server::start(flavor);
                let words = ["--report", report.to_str().unwrap(), "--", "sleep", "3"];
                let (code, document) = drill(&server.url(), &words);
                let all: Vec<_> = (1..=8).map(|row| (row, "passed")).collect();
                assert_eq!(
                    (code, outcomes(&document)),
                    (0, all),
                    "{flavor}: {document:#}"
                );
                let text = std::fs::read_to_string(&report).unwrap();
                for says in [
                    "| 4 ✓ | kill -9 | the next holder within",
                    "run again: exit 0",
                ] {
                    assert!(text.contains(says), "{text}");
                }
                assert_eq!(endless(&server), [""; 0], "{flavor}");
            });
        }
    });
}

/// A way to one server can be cut, and no way to several.
#[test]
fn it_passes_on_a_cluster_and_behind_sentinels_and_on_a_majority_without_tokens() {
    let cluster = Cluster::start(Flavor::Valkey);
    let sentinels = SentinelGroup::start(Flavor::Redis);
    let majority = Primaries::start(3, Flavor::Redis);
    let hosts = (0..3).map(|at| majority.server(at).addr().to_string());
    let majority_url = format!("redlock://{}/", hosts.collect::<Vec<_>>().join(","));
    let passes = |url: &str, words: &[&str], skipped: &[u64]| {
        let words = [&["--only", "1,2,4,6,7"], words].concat();
        let (code, document) = drill(url, &words);
        let expected = [1, 2, 4, 6, 7].map(|row| {
            let outcome = if skipped.contains(&row) {
                "skipped"
            } else {
                "passed"
            };
            (row, outcome)
        });
        assert_eq!(
            (code, outcomes(&document)),
            (0, expected.to_vec()),
            "{url}: {document:#}"
        );
    };
    thread::scope(|scope| {
        scope.spawn(|| passes(&cluster.url(), &[], &[6]));
        scope.spawn(|| passes(&sentinels.url(), &[], &[6]));
        scope.spawn(|| passes(&majority_url, &["--persistent-servers"], &[6, 7]));
    });
}

/// The holder, and what the next sees, is told with its figures; the primary is another afterwards.
#[test]
fn a_failover_is_played_where_it_is_asked_for_and_can_be() {
    let cluster = Cluster::start(Flavor::Valkey);
    let mut sentinels = SentinelGroup::start(Flavor::Redis);
    let before = sentinels.primary();
    // A group that has just begun may be whole before its replicas have what is written next: its first failover would forget the lock.
    let primary = sentinels.server(before);
    primary.cli(&["SET", "probe", "1"]);
    primary.cli(&["DEL", "probe"]);
    assert_eq!(primary.cli(&["WAIT", "2", "5000"]), redis::Value::Int(2));
    let plays = |url: &str, holder: &str| {
        let (code, document) = drill(url, &["--only", "9", "--failover"]);
        let played = (code, outcomes(&document));
        assert_eq!(played, (0, vec![(9, "passed")]), "{url}: {document:#}");
        let figures = document["rows"][0]["figures"].as_str().unwrap().to_owned();
        println!("{url}: {figures}");
        let others = "4 others took";
        for says in ["127.0.0.1:", " → ", holder, "refused by its token", others] {
            assert!(figures.contains(says), "{figures}");
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| plays(&cluster.url(), "kept its lock"));
        scope.spawn(|| plays(&sentinels.url(), "kept its lock"));
    });
    let first = sentinels.primary();
    assert_ne!(first, before);
    // The next primary forgets what it was told.
    sentinels.settle();
    thread::scope(|scope| {
        scope.spawn(|| plays(&sentinels.url(), "did not know the lock"));
        wait_until(SOON, "another is the primary", || {
            sentinels.primary() != first
        });
        sentinels.server(sentinels.primary()).cli(&["FLUSHALL"]);
    });
    for at in 0..sentinels.servers().len() {
        assert_eq!(endless(sentinels.server(at)), [""; 0], "server {at}");
    }
}

/// It forgets each lock at once, as a server does that evicts all it has.
#[test]
fn rows_fail_on_a_server_that_forgets_and_its_policy_is_named() {
    let limit = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let server = Server::start_with(Flavor::Redis, &limit);
    let (url, ends) = (server.url(), AtomicBool::new(false));
    let (code, document) = thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                server.cli(&["FLUSHALL"]);
                thread::sleep(Duration::from_millis(2));
            }
        });
        let ended = thread::Builder::new().spawn_scoped(scope, || drill(&url, &["--only", "1,3"]));
        let ended = ended.unwrap().join();
        ends.store(true, Ordering::Relaxed);
        ended.unwrap()
    });
    assert_eq!(
        (code, outcomes(&document)),
        (1, vec![(1, "failed"), (3, "failed")]),
        "{document:#}"
    );
    let dangers = document["dangers"].to_string();
    assert!(dangers.contains("allkeys-lru"), "{document:#}");
}

/// With clients that do not exclude each other the rows that show an exclusion fail, and say by what.
#[test]
fn rows_fail_with_a_library_that_never_excludes() {
    let server = Server::start(Flavor::Redis);
    let (code, document) = drill(&server.url(), &["--broken", "--only", "1,3,5"]);
    let failed = [1, 3, 5].map(|row| (row, "failed")).to_vec();
    assert_eq!((code, outcomes(&document)), (1, failed), "{document:#}");
    for (row, says) in [
        (0, "two inside"),
        (1, "did not know the holder"),
        (2, "steps beside the next holder"),
    ] {
        let figures = document["rows"][row]["figures"].as_str().unwrap();
        assert!(figures.contains(says), "{figures}");
    }
    let mut marked = leasehold(&server.url());
    let marked = marked.args(["drill", "--broken", "--only", "3"]).output();
    let said = stdout(&marked.unwrap());
    assert!(said.contains("a server of its own"), "{said}");
}

#[test]
fn a_job_that_fails_the_second_time_fails_its_row_and_a_job_is_asked_for() {
    let server = Server::start(Flavor::Redis);
    let (code, document) = drill(
        &server.url(),
        &["--only", "8", "--", "sh", "-c", "echo out; exit 3"],
    );
    assert_eq!((code, outcomes(&document)), (1, vec![(8, "failed")]));
    let figures = document["rows"][0]["figures"].as_str().unwrap();
    assert!(
        figures.contains("ended by itself") && figures.ends_with("run again: exit 3"),
        "{figures}"
    );
    for words in [&["--only", "8"][..], &["--only", "8", "--", "true"]] {
        let (code, document) = drill(&server.url(), words);
        assert_eq!(
            (code, outcomes(&document)),
            (0, vec![(8, "skipped")]),
            "{words:?}"
        );
    }
}

#[test]
fn a_drill_that_cannot_be_is_refused_and_one_that_is_ended_leaves_no_lock() {
    let refused = |url: &str, words: &[&str]| {
        let output = leasehold(url).arg("drill").args(words).output().unwrap();
        (code(output.status), stdout(&output), stderr(&output))
    };
    assert_eq!(refused("memory:", &[]).0, 64);
    assert_eq!(refused("redis://127.0.0.1:1/", &["--only", "10"]).0, 64);
    for words in [&["--only", "9"][..], &["--failover", "--only", "1"]] {
        let (code, _, err) = refused("redis://127.0.0.1:1/", words);
        assert!(code == 64 && err.contains("--failover"), "{code}: {err}");
    }
    let majority = Primaries::start(3, Flavor::Redis);
    let hosts = (0..3).map(|at| majority.server(at).addr().to_string());
    let majority_url = format!("redlock://{}/", hosts.collect::<Vec<_>>().join(","));
    let single = majority.server(0).url();
    for (url, why) in [(&single, "one server"), (&majority_url, "a majority")] {
        let (code, out, err) = refused(url, &["--failover", "--persistent-servers"]);
        assert!(code == 64 && err.contains(why), "{code}: {out}{err}");
    }
    assert_eq!(
        refused("redis://127.0.0.1:1/", &["--only", "1", "--", "true"]).0,
        64
    );
    assert_eq!(
        refused("redis://127.0.0.1:1/", &["--report", "/nowhere/at/all"]).0,
        70
    );
    assert_eq!(
        refused("redis://127.0.0.1:1/", &["--connect-timeout", "1s"]).0,
        69
    );
    let (primary, replica) = (Server::start(Flavor::Redis), Server::start(Flavor::Redis));
    let port = primary.addr().port().to_string();
    replica.cli(&["REPLICAOF", "127.0.0.1", &port]);
    let (code, out, err) = refused(&replica.url(), &["--connect-timeout", "2s"]);
    assert!(code != 0 && err.contains("replica"), "{code}: {out}{err}");

    let mut drill = leasehold(&primary.url());
    let mut drill = Process::start(
        drill
            .args(["drill", "--only", "4"])
            .stdout(std::process::Stdio::null()),
    );
    let locks = || {
        let keys: Vec<String> =
            redis::from_redis_value(primary.cli(&["KEYS", "leasehold-drill:*"])).unwrap();
        keys.len()
    };
    wait_until(SOON, "a process of it holds", || locks() == 1);
    drill.signal(Signal::TERM);
    assert_eq!(drill.code(), 143);
    wait_until(SOON, "its lease has ended", || locks() == 0);
}

/// Its shell has a process of its own, as jobs have.
#[test]
fn a_drill_that_is_ended_takes_the_processes_of_the_job_along() {
    for signal in [Signal::TERM, Signal::HUP] {
        let (server, notes) = (Server::start(Flavor::Redis), common::Notes::new());
        let script = format!("sleep 100 & echo $! >{}; wait", notes.sh("pid"));
        let mut drill = leasehold(&server.url());
        let drill = drill.args(["drill", "--only", "8", "--", "sh", "-c", &script]);
        let mut drill = Process::start(drill.stdout(std::process::Stdio::null()));
        let job = notes.wait_pid("pid");
        drill.signal(signal);
        assert_eq!(drill.code(), 128 + signal.as_raw());
        wait_until(SOON, "the job's process is gone", || !common::is_there(job));
    }
}

/// Beside other traffic, each within a minute: `cargo test -p leasehold-cli --test cmd_drill -- --ignored twenty --nocapture`.
#[test]
#[ignore = "a quarter of an hour: twenty drills on each of six topologies, all of them at once"]
fn twenty_of_twenty_pass_on_each_topology() {
    let twenty = |which: &str, url: &str| {
        for nth in 1..=20 {
            let began = Instant::now();
            let (code, document) = drill(url, &["--", "sleep", "3"]);
            let took = began.elapsed();
            println!("{which}: {nth} of 20 in {:.1} s", took.as_secs_f64());
            let failed = outcomes(&document).iter().any(|row| row.1 == "failed");
            assert!(code == 0 && !failed, "{which}: {document:#}");
            assert!(took < Duration::from_secs(60), "{which}: {took:?}");
        }
    };
    let on = |flavor: Flavor| {
        let (server, cluster) = (Server::start(flavor), Cluster::start(flavor));
        let sentinels = SentinelGroup::start(flavor);
        let primary = sentinels.server(sentinels.primary());
        let is_over = AtomicBool::new(false);
        let traffic = |server: &Server| {
            while !is_over.load(Ordering::Relaxed) {
                server.cli(&["INCR", "other traffic"]);
                thread::sleep(Duration::from_millis(1));
            }
        };
        let (one, several, named) = (server.url(), cluster.url(), sentinels.url());
        thread::scope(|scope| {
            let played = [
                scope.spawn(|| twenty(&format!("{flavor}"), &one)),
                scope.spawn(|| twenty(&format!("{flavor}, a cluster"), &several)),
                scope.spawn(|| twenty(&format!("{flavor}, sentinels"), &named)),
            ];
            scope.spawn(|| traffic(&server));
            scope.spawn(|| traffic(primary));
            let played = played.map(|it| it.join().is_ok());
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(
                played, [true; 3],
                "{flavor}: a server, a cluster, sentinels"
            );
        });
    };
    thread::scope(|scope| {
        for flavor in Flavor::available() {
            scope.spawn(move || on(flavor));
        }
    });
}
