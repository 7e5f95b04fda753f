//! `leasehold unlock --if-gone`, `--if-owner` and `--force`, and how `status` and `ls` tell whether a holder lives.

mod common;

use std::{process::Output, time::Instant};

use common::{Notes, Process, SOON, code, leasehold, run, stderr, stdout};
use leasehold_testkit::{Flavor, Server, wait_until};
use rustix::process::Signal;
use serde_json::Value;

fn said(server: &Server, words: &[&str]) -> Output {
    leasehold(&server.url()).args(words).output().unwrap()
}

fn json(server: &Server, words: &[&str]) -> Value {
    let output = said(server, &[words, &["--json"]].concat());
    let text = stdout(&output);
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{}", stderr(&output)))
}

/// A process that holds `job`, whose label is on the server.
fn holder(server: &Server, flags: &[&str]) -> Process {
    let notes = Notes::new();
    let script = format!("echo >{}; sleep 100", notes.sh("up"));
    let holder = Process::start(&mut run(&server.url(), flags, &script));
    notes.wait("up");
    wait_until(SOON, "the server has its label", || {
        json(server, &["status", "job"])["holder"]["label"].is_string()
    });
    holder
}

fn state(server: &Server) -> Value {
    json(server, &["status", "job"])["holder"]["state"].clone()
}

#[test]
fn a_holder_that_stands_still_is_silent_before_its_lease_ends() {
    let server = Server::start(Flavor::Redis);
    let holder = holder(&server, &["--lease", "40s"]);
    assert_eq!(state(&server), "alive");
    holder.signal(Signal::STOP);
    let stopped = Instant::now();
    wait_until(SOON, "it is silent", || state(&server) == "silent");
    let shown = stdout(&said(&server, &["status", "job"]));
    println!("silent after {:?}\n{shown}", stopped.elapsed());
    assert!(
        shown.contains("silent: its client is connected, and has sent nothing for "),
        "{shown}"
    );
    // A renewal would have been due after a third of the lease, and a half.
    assert!(stopped.elapsed().as_secs() < 20, "{:?}", stopped.elapsed());
    // It may go on at any moment.
    let refused = said(&server, &["unlock", "--if-gone", "job"]);
    assert_eq!(code(refused.status), 75);
    assert!(
        stderr(&refused).contains("is silent, and connected"),
        "{}",
        stderr(&refused)
    );
    let listed = stdout(&said(&server, &["ls"]));
    assert!(
        listed.contains("? ") && listed.contains("1 whose holder is silent"),
        "{listed}"
    );
    holder.signal(Signal::CONT);
    wait_until(SOON, "it lives", || state(&server) != "silent");
}

#[test]
fn a_lock_is_taken_from_a_holder_that_is_gone_and_from_none_that_lives() {
    let server = Server::start(Flavor::Redis);
    let mut dead = holder(&server, &["--lease", "60s"]);
    let refused = said(&server, &["unlock", "--if-gone", "--json", "job"]);
    assert_eq!(code(refused.status), 75);
    let told: Value = serde_json::from_str(&stdout(&refused)).unwrap();
    assert_eq!(told["unlocked"], false);
    assert!(
        stderr(&refused).contains("is alive: its client is connected"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(json(&server, &["status", "job"])["held"], true);

    dead.signal(Signal::KILL);
    dead.end();
    assert_eq!(state(&server), "gone");
    let listed = stdout(&said(&server, &["ls", "--gone"]));
    assert!(
        listed.contains("✗ ") && listed.contains("1 lock · 1 whose holder is gone"),
        "{listed}"
    );
    let since = Instant::now();
    let taken = said(&server, &["unlock", "--if-gone", "job"]);
    assert_eq!(code(taken.status), 0, "{}", stderr(&taken));
    assert!(
        since.elapsed().as_secs() >= 12,
        "it would have seen it come back"
    );
    assert!(
        stdout(&taken).contains("job was taken away from "),
        "{}",
        stdout(&taken)
    );
    assert_eq!(json(&server, &["status", "job"])["held"], false);
    let free = said(&server, &["unlock", "--if-gone", "job"]);
    assert_eq!(
        (code(free.status), &*stdout(&free)),
        (0, "job was free already\n")
    );
    let none = said(&server, &["ls", "--gone"]);
    assert!(
        stderr(&none).contains("no locks on redis://"),
        "{}",
        stderr(&none)
    );
    assert!(stderr(&none).contains("keys"), "{}", stderr(&none));
}

/// The holder's place is taken while `--if-gone` looks.
#[test]
fn a_lock_that_another_has_by_now_is_left_to_it() {
    let server = Server::start(Flavor::Redis);
    let mut dead = holder(&server, &["--lease", "60s"]);
    dead.signal(Signal::KILL);
    dead.end();
    let looks = || server.calls().get("client|list").copied();
    let before = looks();
    let mut unlock = leasehold(&server.url());
    let mut unlock = Process::start_captured(unlock.args(["unlock", "--if-gone", "job"]));
    wait_until(SOON, "it has looked once", || looks() > before);
    let owner = "79f0ed8b-09de-46ef-a0c4-2f29a1f5b3c1:7";
    let swap = "redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], ARGV[1], 1) return redis.call('PEXPIRE', KEYS[1], 50000)";
    server.cli(&["EVAL", swap, "1", "job", owner]);
    let (code, said) = unlock.end();
    assert_eq!(code, 75, "{said}");
    assert!(
        said.contains("another holder by now, a Java client, thread 7"),
        "{said}"
    );
    assert_eq!(json(&server, &["status", "job"])["holder"]["owner"], owner);
}

#[test]
fn a_lock_is_taken_from_the_owner_that_is_named_and_from_no_other() {
    let server = Server::start(Flavor::Redis);
    let holder = holder(&server, &[]);
    let owner = json(&server, &["status", "job"])["holder"]["owner"].clone();
    let owner = owner.as_str().unwrap();
    let shown = stdout(&said(&server, &["status", "job"]));
    assert!(shown.contains(&format!("owner      {owner}")), "{shown}");
    let another = format!("{owner}1");
    let refused = said(&server, &["unlock", "--if-owner", &another, "job"]);
    assert_eq!(code(refused.status), 75);
    assert!(
        stderr(&refused).contains(&format!("its owner is {owner}")),
        "{}",
        stderr(&refused)
    );
    assert_eq!(json(&server, &["status", "job"])["holder"]["owner"], owner);
    let taken = said(&server, &["unlock", "--if-owner", owner, "job"]);
    assert_eq!(code(taken.status), 0, "{}", stderr(&taken));
    assert_eq!(json(&server, &["status", "job"])["held"], false);
    drop(holder);
    for words in [
        &["unlock", "--if-gone", "--force", "job"][..],
        &["unlock", "--yes", "job"],
        &["unlock", "job"],
    ] {
        assert_eq!(code(said(&server, words).status), 64, "{words:?}");
    }
    server.cli(&["SET", "latch", "3"]);
    let latch = said(
        &server,
        &["unlock", "--kind", "latch", "--if-gone", "latch"],
    );
    assert_eq!(code(latch.status), 64);
    assert!(
        stderr(&latch).contains("has no holder"),
        "{}",
        stderr(&latch)
    );
}

#[test]
fn a_hold_that_is_kept_on_purpose_is_not_called_gone() {
    let server = Server::start(Flavor::Redis);
    let ended = said(&server, &["run", "--at-least", "60s", "job", "--", "true"]);
    assert_eq!(code(ended.status), 0, "{}", stderr(&ended));
    wait_until(SOON, "its client is not connected", || {
        state(&server) == "kept"
    });
    let shown = stdout(&said(&server, &["status", "job"]));
    assert!(
        shown.contains("kept: `run --at-least` has ended, or was killed"),
        "{shown}"
    );
    let refused = said(&server, &["unlock", "--if-gone", "job"]);
    assert_eq!(code(refused.status), 75);
    assert!(
        stderr(&refused).contains("--at-least"),
        "{}",
        stderr(&refused)
    );
}
