//! `leasehold run --kind`: the promises of `run` for every kind of lock.

mod common;

use std::{fs::File, thread};

use common::{Notes, Process, SOON, code, is_there, leasehold, run, stderr, stdout};
use leasehold_testkit::{Flavor, Proxy, Server, wait_until};
use rustix::process::Signal;
use serde_json::Value;

/// How each kind is asked for.
const KINDS: [&[&str]; 8] = [
    &["--kind", "mutex"],
    &["--kind", "fenced"],
    &["--kind", "plain"],
    &["--kind", "spin"],
    &["--kind", "fair"],
    &["--kind", "read"],
    &["--kind", "write"],
    &["--kind", "leased", "--permits", "1"],
];

/// Kinds that one holder keeps for itself.
fn exclusive() -> impl Iterator<Item = &'static [&'static str]> {
    KINDS.into_iter().filter(|flags| flags[1] != "read")
}

/// For each kind a server and notes of its own, all at once.
fn for_each(
    kinds: impl Iterator<Item = &'static [&'static str]>,
    test: impl Fn(&[&str], &Server, &Notes) + Sync,
) {
    let test = &test;
    thread::scope(|scope| {
        for flags in kinds {
            scope.spawn(move || {
                println!("{flags:?}");
                test(flags, &Server::start(Flavor::Redis), &Notes::new());
            });
        }
    });
}

/// A command that says it is there and stays until the test writes `go`.
fn stay(notes: &Notes, up: &str) -> String {
    format!(
        "echo $$ >{up}; until [ -e {go} ]; do sleep 0.02; done",
        up = notes.sh(up),
        go = notes.sh("go")
    )
}

/// A command that hears SIGTERM and goes on.
fn stubborn(notes: &Notes) -> String {
    let pid = notes.sh("pid");
    format!("trap : TERM; echo $$ >{pid}; while :; do sleep 0.02; done")
}

fn with<'a>(flags: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [flags, more].concat()
}

/// Whether it gets in at once.
fn gets_in(server: &Server, flags: &[&str]) -> bool {
    let flags = with(flags, &["--wait", "0"]);
    let output = run(&server.url(), &flags, "echo in").output().unwrap();
    match (code(output.status), stdout(&output).as_str()) {
        (0, "in\n") => true,
        (75, "") => false,
        other => panic!("{other:?}: {}", stderr(&output)),
    }
}

fn status(server: &Server, flags: &[&str]) -> Value {
    let mut command = leasehold(&server.url());
    command.args(["status", "--json"]).args(&flags[..2]);
    let output = command.arg("job").output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_second_run_waits_until_the_first_has_ended() {
    for_each(exclusive(), |flags, server, notes| {
        let mut first = Process::start(&mut run(&server.url(), flags, &stay(notes, "first")));
        notes.wait("first");
        assert!(!gets_in(server, flags), "{flags:?}");

        let script = format!("echo $$ >{}", notes.sh("second"));
        let said = File::create(notes.path("said")).unwrap();
        let mut second = Process::start(run(&server.url(), flags, &script).stderr(said));
        let waits = notes.wait("said");
        assert!(waits.contains("waiting for \"job\": "), "{waits}");
        assert_eq!(notes.read("second"), "", "{flags:?}");
        notes.write("go", "");
        assert_eq!((first.code(), second.code()), (0, 0), "{flags:?}");
        notes.wait("second");
        assert!(gets_in(server, flags), "{flags:?}");
    });
}

#[test]
fn readers_run_beside_each_other_and_a_writer_alone() {
    let (server, notes) = (Server::start(Flavor::Redis), Notes::new());
    let (read, write) = (&["--kind", "read"], &["--kind", "write"]);
    let start =
        |kind: &[&str], up| Process::start(&mut run(&server.url(), kind, &stay(&notes, up)));
    let mut readers = [start(read, "one"), start(read, "two")];
    notes.wait("one");
    notes.wait("two");
    assert_eq!(
        status(&server, read)["holders"].as_array().unwrap().len(),
        2
    );
    assert!(gets_in(&server, read));
    assert!(!gets_in(&server, write));
    notes.write("go", "");
    assert_eq!(readers.each_mut().map(Process::code), [0, 0]);

    std::fs::remove_file(notes.path("go")).unwrap();
    let mut writer = start(write, "three");
    notes.wait("three");
    assert!(!gets_in(&server, read));
    assert!(!gets_in(&server, write));
    notes.write("go", "");
    assert_eq!(writer.code(), 0);
}

#[test]
fn a_semaphore_of_two_lets_two_in_and_no_third() {
    let (server, notes) = (Server::start(Flavor::Redis), Notes::new());
    let two = ["--kind", "leased", "--permits", "2"];
    let start = |up| Process::start(&mut run(&server.url(), &two, &stay(&notes, up)));
    let mut holders = [start("one"), start("two")];
    notes.wait("one");
    notes.wait("two");
    assert!(!gets_in(&server, &two));
    // They were set before, and are not set again.
    assert!(!gets_in(&server, &["--kind", "leased", "--permits", "9"]));
    notes.write("go", "");
    assert_eq!(holders.each_mut().map(Process::code), [0, 0]);
    assert_eq!(status(&server, &two)["available"], 2);
    assert!(gets_in(&server, &two[..2]));
}

/// It has set them once, and says them again with each of its requests.
#[test]
fn a_run_that_waits_for_a_permit_gets_it_from_a_server_that_restarts_empty() {
    let (mut server, notes) = (Server::start(Flavor::Redis), Notes::new());
    let one = ["--kind", "leased", "--permits", "1"];
    let _holder = Process::start(&mut run(&server.url(), &one, &stay(&notes, "one")));
    notes.wait("one");
    let mut waits = Process::start(&mut run(&server.url(), &one, "true"));
    wait_until(SOON, "it waits", || {
        status(&server, &one)["waiting_clients"] == 1
    });
    server.restart();
    assert_eq!(waits.code(), 0);
}

#[test]
fn a_number_of_permits_that_changes_nothing_is_said() {
    let server = Server::start(Flavor::Redis);
    let said = |permits: &str| {
        let flags = ["--kind", "leased", "--permits", permits];
        let output = run(&server.url(), &flags, "true").output().unwrap();
        assert_eq!(code(output.status), 0, "{}", stderr(&output));
        stderr(&output)
    };
    assert_eq!(said("2"), "");
    assert_eq!(said("2"), "", "as they are");
    let other = said("5");
    assert!(
        other.contains("has 2 permits; --permits 5 changes nothing"),
        "{other}"
    );
}

/// It would wait for ever, and with `--skip-if-held` never run.
#[test]
fn a_semaphore_without_permits_is_refused() {
    let server = Server::start(Flavor::Redis);
    for more in [&[][..], &["--skip-if-held"], &["--wait", "1m"]] {
        let flags = with(&["--kind", "leased"], more);
        let output = run(&server.url(), &flags, "echo ran").output().unwrap();
        assert_eq!((code(output.status), stdout(&output)), (77, String::new()));
        assert!(stderr(&output).contains("--permits"), "{}", stderr(&output));
    }
}

#[test]
fn a_kind_that_cannot_be_held_is_usage() {
    for flags in [
        &["--kind", "rw"][..],
        &["--kind", "mutex", "--permits", "2"],
    ] {
        let output = run("redis://127.0.0.1:1/", flags, "true").output().unwrap();
        assert_eq!(code(output.status), 64, "{}", stderr(&output));
    }
}

#[test]
fn the_fencing_token_is_passed_on_and_grows() {
    let server = Server::start(Flavor::Redis);
    let said = |flags: &[&str], script: &str| {
        let mut command = run(&server.url(), flags, script);
        // The token of another lock, as it is inside another `leasehold run`.
        let output = command.env("LEASEHOLD_TOKEN", "1").output().unwrap();
        assert_eq!(code(output.status), 0, "{}", stderr(&output));
        (stdout(&output).trim().to_owned(), stderr(&output))
    };
    let mut last = 1;
    for _ in 0..3 {
        let script = "echo $LEASEHOLD_TOKEN";
        let (token, report) = said(&["--kind", "fenced", "--json"], script);
        let token: u64 = token.parse().unwrap();
        assert!(token > last, "{token} after {last}");
        last = token;
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(
            (&report["token"], &report["kind"]),
            (&token.into(), &"fenced_mutex".into())
        );
    }
    let (none, report) = said(
        &["--kind", "plain", "--json"],
        "echo ${LEASEHOLD_TOKEN-none}",
    );
    assert_eq!(none, "none");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["token"], Value::Null);
}

#[test]
fn a_lease_that_is_renewed_outlives_itself() {
    for_each(KINDS.into_iter(), |flags, server, _| {
        let flags = with(flags, &["--lease", "600ms", "--json"]);
        let output = run(&server.url(), &flags, "sleep 2").output().unwrap();
        assert_eq!(code(output.status), 0, "{}", stderr(&output));
        let report: Value = serde_json::from_slice(&output.stderr).unwrap();
        assert!(report["renewals"].as_u64().unwrap() >= 3, "{report}");
    });
}

#[test]
fn a_lock_that_is_taken_away_kills_the_command() {
    for_each(KINDS.into_iter(), |flags, server, notes| {
        let flags = with(flags, &["--lease", "2s"]);
        let mut command = run(&server.url(), &flags, &stubborn(notes));
        let mut holder = Process::start_captured(&mut command);
        let victim = notes.wait_pid("pid");
        let mut unlock = leasehold(&server.url());
        unlock.args(["unlock", "--force"]).args(&flags[..2]);
        assert!(unlock.arg("job").status().unwrap().success());
        let (code, said) = holder.end();
        assert_eq!(code, 76, "{said}");
        assert!(!is_there(victim));
    });
}

#[test]
fn a_server_that_does_not_answer_ends_the_command_before_the_lock_is_free() {
    for_each(KINDS.into_iter(), |flags, server, notes| {
        let proxy = Proxy::start(server.addr());
        let flags = with(flags, &["--lease", "3s", "--grace", "500ms"]);
        let mut command = run(&proxy.url(), &flags, &stubborn(notes));
        let mut holder = Process::start_captured(&mut command);
        let victim = notes.wait_pid("pid");
        proxy.black_hole(None);
        wait_until(SOON, "the command is dead", || !is_there(victim));
        is_still_held(server, &flags);
        let (code, said) = holder.end();
        assert_eq!(code, 76, "{said}");
    });
}

/// The guardian has the deadline.
#[test]
fn a_stopped_supervisor_cannot_keep_the_command_alive() {
    for_each(KINDS.into_iter(), |flags, server, notes| {
        let flags = with(flags, &["--lease", "3s", "--grace", "500ms"]);
        let mut holder = Process::start(&mut run(&server.url(), &flags, &stubborn(notes)));
        let victim = notes.wait_pid("pid");
        holder.signal(Signal::STOP);
        wait_until(SOON, "the command is dead", || !is_there(victim));
        is_still_held(server, &flags);
        holder.signal(Signal::CONT);
        assert_eq!(holder.code(), 76);
    });
}

/// By the lease of the holder whose command has just ended.
/// Asked on a connection that is open: a program would start for as long as the grace lasts, on a busy machine.
#[track_caller]
fn is_still_held(server: &Server, flags: &[&str]) {
    const LEFT: &str = "
        local ends = redis.call('ZREVRANGE', '{job}:timeout', 0, 0, 'WITHSCORES')[2]
        if not ends then
            return redis.call('PTTL', 'job')
        end
        local now = redis.call('TIME')
        return ends - now[1] * 1000 - math.floor(now[2] / 1000)";
    let left = server.cli(&["EVAL", LEFT, "0"]);
    assert!(
        matches!(left, redis::Value::Int(1..)),
        "{flags:?}: {left:?}"
    );
}
