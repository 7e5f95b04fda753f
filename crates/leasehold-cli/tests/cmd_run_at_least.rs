//! `leasehold run --at-least`: the name stays taken for that long, whatever becomes of the command and of this process.

mod common;

use std::{
    thread,
    time::{Duration, Instant},
};

use common::{Notes, Process, SOON, code, is_there, leasehold, pttl, run, stderr, stdout};
use leasehold_testkit::{Flavor, Proxy, Server, Way, wait_until};
use rustix::process::Signal;
use serde_json::Value;

const KINDS: [&[&str]; 7] = [
    &["--kind", "mutex"],
    &["--kind", "fenced"],
    &["--kind", "plain"],
    &["--kind", "spin"],
    &["--kind", "fair"],
    &["--kind", "write"],
    &["--kind", "leased", "--permits", "1"],
];

fn server() -> Server {
    Server::start(Flavor::Redis)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn is_taken(server: &Server) -> bool {
    server.cli(&["EXISTS", "job"]) == redis::Value::Int(1)
}

fn report(output: &std::process::Output) -> Value {
    serde_json::from_slice(&output.stderr).unwrap_or_else(|_| panic!("{}", stderr(output)))
}

/// A fifth shorter than the crontab of the help would have it: 5 s, and 0.3, 1 and 4 s apart.
#[test]
fn of_two_hosts_whose_clocks_differ_one_runs_the_report() {
    let server = &server();
    thread::scope(|scope| {
        for apart in [240, 800, 3_200].map(ms) {
            scope.spawn(move || {
                let (notes, name) = (Notes::new(), format!("nightly-{}", apart.as_millis()));
                let write = format!("echo report >>{}", notes.sh("reports"));
                let host = || {
                    let mut command = leasehold(&server.url());
                    command
                        .args(["run", "--at-least", "4s", "--skip-if-held", &name])
                        .args(["--", "sh", "-c", &write]);
                    command.output().unwrap()
                };
                let began = Instant::now();
                assert_eq!(code(host().status), 0);
                thread::sleep(apart.saturating_sub(began.elapsed()));
                let second = host();
                assert_eq!(code(second.status), 0);
                assert!(stderr(&second).contains("skipped"), "{apart:?} apart");
                assert_eq!(notes.read("reports"), "report\n", "{apart:?} apart");
                // And the next time it runs again.
                wait_until(SOON, "the name is free", || {
                    server.cli(&["EXISTS", &name]) == redis::Value::Int(0)
                });
                assert!(began.elapsed() >= ms(4_000), "{:?}", began.elapsed());
                assert_eq!(code(host().status), 0);
                assert_eq!(notes.read("reports"), "report\nreport\n");
            });
        }
    });
}

#[test]
fn the_process_ends_with_its_command_and_the_name_is_free_when_it_is_time() {
    thread::scope(|scope| {
        for kind in KINDS {
            scope.spawn(move || {
                let server = server();
                let flags = [kind, &["--at-least", "3s", "--json"]].concat();
                let began = Instant::now();
                let output = run(&server.url(), &flags, "echo ran; exit 3")
                    .output()
                    .unwrap();
                // Another would be let in: so nothing but the server keeps the name.
                let again = || {
                    let flags = [kind, &["-n"]].concat();
                    let output = run(&server.url(), &flags, "true").output().unwrap();
                    code(output.status)
                };
                assert_eq!(again(), 75, "{kind:?}");
                assert_eq!(
                    (code(output.status), stdout(&output).as_str()),
                    (3, "ran\n")
                );
                let report = report(&output);
                assert_eq!(report["released"], false, "{kind:?}");
                let left = report["free_within_ms"].as_u64().unwrap();
                assert!((1_000..=3_000).contains(&left), "{report}");

                wait_until(SOON, "the name is free", || again() == 0);
                assert!(
                    began.elapsed() >= ms(3_000),
                    "{kind:?}: {:?}",
                    began.elapsed()
                );
            });
        }
    });
}

#[test]
fn a_command_that_takes_longer_keeps_its_name_and_is_released_at_its_end() {
    let (server, notes) = (server(), Notes::new());
    let script = format!(
        "echo >{}; until [ -e {} ]; do sleep 0.02; done",
        notes.sh("up"),
        notes.sh("go")
    );
    let flags = ["--at-least", "2s", "--lease", "1500ms", "--json"];
    let mut process = Process::start_captured(&mut run(&server.url(), &flags, &script));
    notes.wait("up");
    // Four times the lease, and well after the time for which it stays taken anyway.
    let until = Instant::now() + ms(6_000);
    while Instant::now() < until {
        assert!(pttl(&server, "job") > 0);
        thread::sleep(ms(20));
    }
    notes.write("go", "");
    let (code, said) = process.end();
    assert_eq!(code, 0, "{said}");
    assert!(!is_taken(&server), "released");
    let report: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(report["released"], true, "{report}");
    assert!(report["renewals"].as_u64().unwrap() >= 8, "{report}");
}

/// It ends after its lease had to be extended, which would last for too long now.
#[test]
fn the_process_waits_if_the_lease_would_last_for_longer() {
    let server = server();
    let flags = ["--at-least", "3s", "--grace", "1500ms", "--json"];
    let began = Instant::now();
    let output = run(&server.url(), &flags, "sleep 1.5; exit 3")
        .output()
        .unwrap();
    assert!(began.elapsed() >= ms(3_000), "{:?}", began.elapsed());
    assert_eq!(code(output.status), 3);
    assert!(!is_taken(&server), "released");
    let report = report(&output);
    assert_eq!(report["released"], true, "{report}");
    assert_eq!(report["renewals"], 1, "{report}");
}

/// The reply to the extension is on its way when the command ends: the server keeps the name for longer than the process knows.
#[test]
fn an_extension_without_an_answer_does_not_keep_the_name_for_longer() {
    let (server, notes) = (server(), Notes::new());
    let proxy = Proxy::start(server.addr());
    let script = format!(
        "echo $$ >{}; until [ -e {} ]; do sleep 0.02; done; exit 3",
        notes.sh("pid"),
        notes.sh("go")
    );
    // Once before, so that the server knows the script, and carries it out at the first request.
    let flags = ["--at-least", "1500ms"];
    assert!(
        run(&server.url(), &flags, "sleep 1.2")
            .status()
            .unwrap()
            .success()
    );

    let flags = ["--at-least", "6s", "--lease", "20s", "--grace", "2s"];
    let began = Instant::now();
    let mut process = Process::start(&mut run(&proxy.url(), &flags, &script));
    let command = notes.wait_pid("pid");
    proxy.stall(Some(Way::ToClient));
    wait_until(SOON, "the lease was extended", || {
        pttl(&server, "job") > 10_000
    });
    notes.write("go", "");
    wait_until(SOON, "the command has been collected", || {
        !is_there(command)
    });
    proxy.heal();
    assert_eq!(process.code(), 3);
    assert!(began.elapsed() >= ms(6_000), "{:?}", began.elapsed());
    assert!(!is_taken(&server), "released");
}

#[test]
fn a_process_that_waits_and_is_told_to_end_ends_and_leaves_the_name_taken() {
    let (server, notes) = (server(), Notes::new());
    let script = format!("sleep 1.5; echo >{}; exit 3", notes.sh("done"));
    let flags = ["--at-least", "6s", "--grace", "3s"];
    let mut process = Process::start(&mut run(&server.url(), &flags, &script));
    notes.wait("done");
    // Until the command has been collected: a signal before that would be passed on to it.
    thread::sleep(ms(500));
    let told = Instant::now();
    process.signal(Signal::TERM);
    assert_eq!(process.code(), 3);
    assert!(told.elapsed() < ms(3_000), "{:?}", told.elapsed());
    assert!(pttl(&server, "job") > 4_000);
}

#[test]
fn a_crash_of_this_process_does_not_free_the_name_before() {
    let (server, notes) = (server(), Notes::new());
    let script = format!("echo $$ >{}; sleep 100", notes.sh("pid"));
    let flags = ["--at-least", "20s", "--lease", "500ms"];
    let mut process = Process::start(&mut run(&server.url(), &flags, &script));
    let command = notes.wait_pid("pid");
    process.signal(Signal::KILL);
    assert_eq!(process.code(), 137);
    wait_until(SOON, "the guardian has ended the command", || {
        !is_there(command)
    });
    let left = pttl(&server, "job");
    assert!((5_000..=20_000).contains(&left), "{left}");
}

#[test]
fn a_name_that_was_waited_for_stays_taken_from_then_on() {
    let (server, notes) = (server(), Notes::new());
    let stay = format!(
        "echo >{}; until [ -e {} ]; do sleep 0.02; done",
        notes.sh("up"),
        notes.sh("go")
    );
    let mut first = Process::start(&mut run(&server.url(), &[], &stay));
    notes.wait("up");
    let script = format!("echo >{}", notes.sh("second"));
    let mut second = Process::start(&mut run(&server.url(), &["--at-least", "9s"], &script));
    // Long enough for a place in the queue to be as old as it gets.
    thread::sleep(ms(1_500));
    assert_eq!(notes.read("second"), "");
    notes.write("go", "");
    assert_eq!((first.code(), second.code()), (0, 0));
    notes.wait("second");
    let left = pttl(&server, "job");
    assert!((5_000..=9_000).contains(&left), "{left}");
}

#[test]
fn a_command_that_could_not_be_started_frees_the_name() {
    let server = server();
    let mut command = leasehold(&server.url());
    command.args(["run", "--at-least", "20s", "job", "/nonexistent/program"]);
    assert_eq!(code(command.output().unwrap().status), 127);
    assert!(!is_taken(&server));
}

#[test]
fn a_lock_that_was_taken_away_meanwhile_is_told() {
    let (server, notes) = (server(), Notes::new());
    let script = format!(
        "echo >{}; until [ -e {} ]; do sleep 0.02; done",
        notes.sh("up"),
        notes.sh("go")
    );
    let mut command = run(&server.url(), &["--at-least", "60s"], &script);
    let mut process = Process::start_captured(&mut command);
    notes.wait("up");
    let mut unlock = leasehold(&server.url());
    assert!(
        unlock
            .args(["unlock", "--force", "job"])
            .status()
            .unwrap()
            .success()
    );
    notes.write("go", "");
    let (code, said) = process.end();
    assert_eq!(code, 76, "{said}");
    assert!(said.contains("taken away"), "{said}");
    assert!(!is_taken(&server));
}

#[test]
fn what_would_not_keep_the_next_run_out_is_usage() {
    for flags in [
        &["--at-least", "5s", "--kind", "read"][..],
        &["--at-least", "0"],
        &["--at-least", "0s"],
        &["--at-least", "400days"],
        &["--at-least", "2s", "--grace", "2s"],
    ] {
        let output = run("redis://127.0.0.1:1/", flags, "true").output().unwrap();
        assert_eq!(code(output.status), 64, "{flags:?}: {}", stderr(&output));
        assert!(
            stderr(&output).contains("--at-least"),
            "{}",
            stderr(&output)
        );
    }
}
