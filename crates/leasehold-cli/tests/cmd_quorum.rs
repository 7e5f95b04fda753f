//! `--url redlock://…`: the command on a majority of several servers.

mod common;

use common::{Process, SOON, code, leasehold, run, stderr, stdout};
use leasehold_testkit::{Flavor, Primaries, wait_until};
use serde_json::Value;

/// All of them in one URL.
fn url(servers: &Primaries) -> String {
    let hosts = servers.servers().iter().map(|it| it.addr().to_string());
    format!("redlock://{}/", hosts.collect::<Vec<_>>().join(","))
}

#[test]
fn a_command_runs_on_a_majority_and_status_shows_each_vote() {
    let mut servers = Primaries::start(3, Flavor::available()[0]);
    let url = url(&servers);
    let _holder = Process::start(&mut run(&url, &["--persistent-servers"], "sleep 60"));
    let ask = |args: &[&str]| {
        let mut status = leasehold(&url);
        let status = status.args(["status", "--persistent-servers", "job"]);
        status.args(args).output().unwrap()
    };
    let look = || serde_json::from_str::<Value>(&stdout(&ask(&["--json"]))).unwrap();
    wait_until(SOON, "it is held", || look()["held"] == true);
    servers.kill(1);
    let status = look();
    assert_eq!(status["held"], true, "{status}");
    let votes = status["votes"].as_array().unwrap();
    assert_eq!(votes.len(), 3);
    for (at, vote) in votes.iter().enumerate() {
        let (holder, trouble) = (&vote["holder"]["owner"], &vote["trouble"]);
        if at == 1 {
            assert!(trouble.is_string(), "{vote}");
        } else {
            assert_eq!(*holder, status["holder"]["owner"], "{vote}");
        }
    }
    let text = stdout(&ask(&[]));
    assert_eq!(text.matches("for the holder").count(), 2, "{text}");
    assert_eq!(text.matches("no answer").count(), 1, "{text}");
    let flags = ["--persistent-servers", "--wait", "0s"];
    let second = run(&url, &flags, "true").output().unwrap();
    assert_ne!(code(second.status), 0, "{}", stderr(&second));
}

#[test]
fn servers_that_were_just_started_say_why_there_is_no_lock() {
    let servers = Primaries::start(3, Flavor::available()[0]);
    let refused = run(&url(&servers), &["--wait", "100ms"], "true").output();
    let refused = refused.unwrap();
    assert_ne!(code(refused.status), 0);
    let said = stderr(&refused);
    assert!(said.contains("has no vote for"), "{said}");
}

/// Shorter than the lease that a client takes where none is said, which is 30 s.
#[test]
fn a_longest_lease_of_seconds_gives_servers_that_were_just_started_their_votes_soon() {
    let servers = Primaries::start(3, Flavor::available()[0]);
    let flags = ["--longest-lease", "3s", "--lease", "2s", "--wait", "20s"];
    let ran = run(&url(&servers), &flags, "true").output().unwrap();
    let said = stderr(&ran);
    assert_eq!(code(ran.status), 0, "{said}");
    assert!(said.contains("3 of 3 servers have restarted"), "{said}");
    let flags = ["--longest-lease", "3s", "--lease", "4s", "--wait", "10s"];
    let refused = run(&url(&servers), &flags, "true").output().unwrap();
    let said = stderr(&refused);
    assert!(said.contains("lease") && said.contains("3s"), "{said}");
}
