//! `leasehold run`: what passes through, and the exit codes.

mod common;

use std::{
    ffi::OsStr,
    io::{self, Write},
    os::unix::{ffi::OsStrExt, net::UnixStream},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use common::{Notes, Process, SOON, code, is_there, leasehold, run, stderr, stdout};
use leasehold_testkit::{Flavor, Server, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

fn server() -> Server {
    Server::start(Flavor::Redis)
}

/// A command that says it is there and stays until the test writes `go`.
fn stay(notes: &Notes) -> String {
    format!(
        "echo $$ >{pid}; until [ -e {go} ]; do sleep 0.02; done",
        pid = notes.sh("pid"),
        go = notes.sh("go")
    )
}

#[test]
fn output_and_exit_status_pass_through() {
    let server = server();
    let output = run(&server.url(), &[], "echo out; echo err >&2; exit 7")
        .output()
        .unwrap();
    assert_eq!(code(output.status), 7);
    assert_eq!(stdout(&output), "out\n");
    assert_eq!(stderr(&output), "err\n");
    assert_eq!(
        server.cli(&["EXISTS", "job"]),
        redis::Value::Int(0),
        "released"
    );
}

#[test]
fn standard_input_passes_through() {
    let server = server();
    let mut child = leasehold(&server.url())
        .args(["run", "job", "--", "tr", "a-z", "A-Z"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"hello").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (code(output.status), stdout(&output)),
        (0, "HELLO".to_owned())
    );
}

#[test]
fn a_command_ended_by_a_signal_becomes_128_and_the_signal() {
    let server = server();
    let status = run(&server.url(), &[], "kill -9 $$").status().unwrap();
    assert_eq!(status.code(), Some(137));
}

#[test]
fn the_command_starts_with_no_signal_blocked() {
    let server = server();
    // Not through a shell, which would unblock them itself.
    let output = leasehold(&server.url())
        .args(["run", "job", "--", "grep", "SigBlk", "/proc/self/status"])
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "SigBlk:\t0000000000000000\n");
}

#[test]
fn the_command_finds_name_and_deadline_in_its_environment() {
    let server = server();
    let before = unix_ms();
    let script = "echo $LEASEHOLD_NAME $LEASEHOLD_VALID_UNTIL";
    let output = run(&server.url(), &["--lease", "20s"], script)
        .output()
        .unwrap();
    let text = stdout(&output);
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(words[0], "job");
    let until: u64 = words[1].parse().unwrap();
    // Less the margin for the drift of clocks.
    assert!(
        (before + 19_000..=unix_ms() + 20_000).contains(&until),
        "{until}"
    );
}

fn unix_ms() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

#[test]
fn the_name_is_held_while_the_command_runs_and_free_afterwards() {
    let (server, notes) = (server(), Notes::new());
    let mut holder = Process::start(&mut run(&server.url(), &[], &stay(&notes)));
    notes.wait("pid");
    assert_eq!(server.cli(&["EXISTS", "job"]), redis::Value::Int(1));
    notes.write("go", "");
    assert_eq!(holder.code(), 0);
    assert_eq!(server.cli(&["EXISTS", "job"]), redis::Value::Int(0));
}

#[test]
fn signals_reach_the_command() {
    let (server, notes) = (server(), Notes::new());
    // Under `nohup` the command would ignore HUP. A signal that this process catches is as usual in its children.
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    let _caught = runtime.block_on(async { signal(SignalKind::hangup()).unwrap() });
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::ALARM, "ALRM"),
        (Signal::WINCH, "WINCH"),
    ] {
        let ready = format!("ready-{name}");
        let script = format!(
            "trap 'echo got {name}; exit 9' {name}; echo $$ >{}; while :; do sleep 0.02; done",
            notes.sh(&ready)
        );
        let mut command = run(&server.url(), &[], &script);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        notes.wait(&ready);
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        wait_until(SOON, "the command has ended", || {
            child.try_wait().unwrap().is_some()
        });
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (code(output.status), stdout(&output)),
            (9, format!("got {name}\n"))
        );
    }
}

#[test]
fn a_hangup_that_was_ignored_before_stays_ignored() {
    let (server, notes) = (server(), Notes::new());
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            "trap '' HUP; exec \"$@\"",
            "sh",
            env!("CARGO_BIN_EXE_leasehold"),
        ])
        .args(["run", "job", "--", "sh", "-c", &stay(&notes)])
        .env("LEASEHOLD_URL", server.url());
    let mut process = Process::start(&mut command);
    notes.wait("pid");
    process.signal(Signal::HUP);
    // TERM comes after it and is not ignored.
    process.signal(Signal::TERM);
    assert_eq!(process.code(), 143);
}

#[test]
fn without_a_terminal_a_stopped_command_keeps_its_lock_and_goes_on_when_told() {
    let (server, notes) = (server(), Notes::new());
    // A single process: a shell that starts another one by vfork when both are stopped is never seen as stopped.
    let script = format!(
        "mkfifo {go}; exec 3<>{go}; echo $$ >{pid}; read line <&3",
        pid = notes.sh("pid"),
        go = notes.sh("go")
    );
    let mut process = Process::start(&mut run(&server.url(), &["--lease", "900ms"], &script));
    let pid = notes.wait_pid("pid");
    process.signal(Signal::TSTP);
    wait_until(SOON, "the command has stopped", || state(pid) == 'T');
    notes.write("go", "\n");
    let renewed = |before| common::pttl(&server, "job") > before;
    let before = common::pttl(&server, "job");
    wait_until(SOON, "the lease was renewed meanwhile", || renewed(before));
    assert_eq!(state(pid), 'T');
    process.signal(Signal::CONT);
    assert_eq!(process.code(), 0);
}

#[test]
fn a_parent_that_ignores_the_end_of_its_children_does_not_hide_how_the_command_ended() {
    let server = server();
    let mut command = Command::new("sh");
    command
        .args(["-c", "trap '' CHLD; exec \"$@\"", "sh"])
        .args([env!("CARGO_BIN_EXE_leasehold"), "run", "job", "--"])
        .args(["sh", "-c", "exit 3"])
        .env("LEASEHOLD_URL", server.url());
    assert_eq!(Process::start(&mut command).code(), 3);
}

fn state(pid: rustix::process::Pid) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid()));
    let stat = stat.unwrap_or_default();
    stat.rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next())
        .unwrap_or('-')
}

#[test]
fn what_the_command_leaves_behind_is_gone_before_the_release() {
    let (server, notes) = (server(), Notes::new());
    let script = format!(
        "(trap '' TERM; while :; do sleep 0.02; done) & echo $! >{}; exit 3",
        notes.sh("pid")
    );
    let flags = ["--lease", "5s", "--grace", "200ms"];
    let mut first = Process::start_captured(&mut run(&server.url(), &flags, &script));
    let left = notes.wait_pid("pid");
    // The next holder must not meet it.
    let meet = format!("kill -0 {} && exit 55; exit 0", left.as_raw_pid());
    assert_eq!(
        code(
            run(&server.url(), &[], &meet)
                .stderr(Stdio::null())
                .status()
                .unwrap()
        ),
        0
    );
    let (code, said) = first.end();
    assert_eq!(code, 3);
    assert!(said.contains("left processes behind"), "{said}");
    assert!(!is_there(left));
}

#[test]
fn a_name_that_is_not_free_in_time_is_busy() {
    let (server, notes) = (server(), Notes::new());
    let _holder = Process::start(&mut run(&server.url(), &[], &stay(&notes)));
    notes.wait("pid");
    for wait in ["100ms", "0"] {
        let output = run(&server.url(), &["--wait", wait], "echo ran")
            .output()
            .unwrap();
        assert_eq!(code(output.status), 75);
        assert_eq!(stdout(&output), "");
        assert!(stderr(&output).contains("\"job\""), "{}", stderr(&output));
    }
    let output = run(&server.url(), &["--wait", "0", "--json"], "echo ran")
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(
        (&report["outcome"], &report["exit"]),
        (&"busy".into(), &75.into())
    );
}

#[test]
fn skip_if_held_does_not_run_the_command_and_is_content() {
    let (server, notes) = (server(), Notes::new());
    let mut holder = Process::start(&mut run(&server.url(), &[], &stay(&notes)));
    notes.wait("pid");
    let skip = || {
        run(&server.url(), &["--skip-if-held"], "echo ran")
            .output()
            .unwrap()
    };
    let output = skip();
    assert_eq!((code(output.status), stdout(&output)), (0, String::new()));
    assert!(stderr(&output).contains("skipped"), "{}", stderr(&output));

    notes.write("go", "");
    holder.code();
    let output = skip();
    assert_eq!(
        (code(output.status), stdout(&output)),
        (0, "ran\n".to_owned())
    );
}

#[test]
fn the_worst_of_a_server_is_told_once_and_by_no_line_of_json() {
    let limit = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let evicts = Server::start_with(Flavor::Redis, &limit);
    let output = run(&evicts.url(), &[], "true").output().unwrap();
    let told = stderr(&output);
    assert_eq!(
        (code(output.status), told.lines().count()),
        (0, 1),
        "{told}"
    );
    assert!(
        told.starts_with("leasehold: the server deletes keys") && told.contains("allkeys-lru"),
        "{told}"
    );
    let json = run(&evicts.url(), &["--json"], "true").output().unwrap();
    let json = stderr(&json);
    assert!(json.lines().count() == 1 && json.starts_with('{'), "{json}");

    let (deaf, notes) = (server(), Notes::new());
    deaf.cli(&[
        "ACL",
        "SETUSER",
        "deaf",
        "on",
        ">secret",
        "~*",
        "&*",
        "+@all",
        "-subscribe",
    ]);
    let mut holder = Process::start(&mut run(&deaf.url(), &[], &stay(&notes)));
    notes.wait("pid");
    let url = deaf.url().replace("redis://", "redis://deaf:secret@");
    let output = run(&url, &["--wait", "3s"], "true").output().unwrap();
    let told = stderr(&output);
    assert_eq!(
        told.matches("cannot hear when the name is free").count(),
        1,
        "{told}"
    );
    notes.write("go", "");
    holder.code();
}

#[test]
fn a_waiting_run_that_is_told_to_end_ends_and_leaves_nothing_behind() {
    let (server, notes) = (server(), Notes::new());
    let mut holder = Process::start(&mut run(&server.url(), &[], &stay(&notes)));
    notes.wait("pid");
    for (signal, status) in [(Signal::TERM, 143), (Signal::ALARM, 142)] {
        let mut waiter = Process::start_captured(&mut run(&server.url(), &[], "echo ran"));
        // The subscription shows that it waits; it also shows that its handlers are in place.
        wait_until(SOON, "it waits", || waiting(&server) == 1);
        waiter.signal(signal);
        assert_eq!(waiter.code(), status);
        wait_until(SOON, "nobody waits", || waiting(&server) == 0);
    }
    notes.write("go", "");
    assert_eq!(holder.code(), 0);
    assert_eq!(server.cli(&["EXISTS", "job"]), redis::Value::Int(0));
}

#[test]
#[cfg(target_os = "linux")]
fn a_waiting_run_whose_remark_is_not_read_runs_its_command_when_its_turn_comes() {
    let (server, notes) = (server(), Notes::new());
    let mut holder = Process::start(&mut run(&server.url(), &[], &stay(&notes)));
    notes.wait("pid");
    let script = format!("echo yes >{}", notes.sh("ran"));
    let (waiter, reader) = Process::start_unread(&mut run(&server.url(), &[], &script));
    wait_until(SOON, "it says what it waits for", || {
        waiter.waits_for_its_reader()
    });

    notes.write("go", "");
    assert_eq!(holder.code(), 0);
    assert_eq!(notes.wait("ran"), "yes");
    wait_until(SOON, "the name is free", || {
        server.cli(&["EXISTS", "job"]) == redis::Value::Int(0)
    });
    assert_eq!(ends_once_it_is_read(waiter, reader), 0);
}

#[test]
#[cfg(target_os = "linux")]
fn a_waiting_run_whose_remark_is_not_read_ends_when_it_is_told_to() {
    let (server, notes) = (server(), Notes::new());
    let _holder = Process::start(&mut run(&server.url(), &[], &stay(&notes)));
    notes.wait("pid");
    let (mut waiter, _reader) = Process::start_unread(&mut run(&server.url(), &[], "true"));
    wait_until(SOON, "it says what it waits for", || {
        waiter.waits_for_its_reader()
    });
    waiter.signal(Signal::TERM);
    assert_eq!(waiter.code(), 143);
}

/// As remarks, as JSON, and as a failure.
#[test]
#[cfg(target_os = "linux")]
fn what_is_said_at_the_end_and_not_read_keeps_neither_the_name_nor_the_process() {
    let server = server();
    for (flags, script, code) in [
        (&["--grace", "0s"][..], "sleep 100 & exit 3", 3),
        (&["--json"], "exit 3", 3),
        // Its guardian is its parent.
        (&[], "kill -9 $PPID; sleep 100", 70),
    ] {
        let (mut process, _reader) = Process::start_unread(&mut run(&server.url(), flags, script));
        wait_until(SOON, "it says how it went", || {
            process.waits_for_its_reader()
        });
        wait_until(SOON, "the name is free", || {
            server.cli(&["EXISTS", "job"]) == redis::Value::Int(0)
        });
        process.signal(Signal::TERM);
        assert_eq!(process.code(), code, "{flags:?}");
    }
}

/// How it ends, which it does not before.
#[cfg(target_os = "linux")]
fn ends_once_it_is_read(mut process: Process, mut reader: UnixStream) -> i32 {
    assert!(!process.has_ended());
    let reader = thread::spawn(move || io::copy(&mut reader, &mut io::sink()));
    let code = process.code();
    reader.join().unwrap().unwrap();
    code
}

fn waiting(server: &Server) -> u64 {
    let output = leasehold(&server.url())
        .args(["status", "--json", "job"])
        .output()
        .unwrap();
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    status["waiting_clients"].as_u64().unwrap()
}

#[test]
fn a_command_that_cannot_be_run_is_126_or_127_as_in_a_shell() {
    let (server, notes) = (server(), Notes::new());
    notes.write("text", "not a program\n");
    let start = |program: &str| {
        let mut command = leasehold(&server.url());
        command
            .args(["run", "job", "--", program])
            .output()
            .unwrap()
    };
    let output = start("/nonexistent/program");
    assert_eq!(code(output.status), 127);
    assert!(
        stderr(&output).contains("/nonexistent/program"),
        "{}",
        stderr(&output)
    );
    assert_eq!(code(start(&notes.sh("text")).status), 126);
    assert_eq!(
        server.cli(&["EXISTS", "job"]),
        redis::Value::Int(0),
        "released"
    );
}

#[test]
fn a_server_that_is_not_there_is_69() {
    let output = run("redis://127.0.0.1:1/", &[], "echo ran")
        .output()
        .unwrap();
    assert_eq!((code(output.status), stdout(&output)), (69, String::new()));
}

#[test]
fn a_wrong_password_is_77_and_not_printed() {
    let server = Server::start_with(Flavor::Redis, &["--requirepass", "right"]);
    let url = format!("redis://:s3cret-word@{}/", server.addr());
    for flags in [&[][..], &["--json"]] {
        let output = run(&url, flags, "echo ran").output().unwrap();
        assert_eq!((code(output.status), stdout(&output)), (77, String::new()));
        assert!(
            !stderr(&output).contains("s3cret-word"),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn a_key_of_another_type_is_77_and_says_which() {
    let server = server();
    server.cli(&["SET", "job", "a string"]);
    let output = run(&server.url(), &[], "echo ran").output().unwrap();
    assert_eq!((code(output.status), stdout(&output)), (77, String::new()));
    assert!(stderr(&output).contains("job"), "{}", stderr(&output));
}

#[test]
fn a_signal_that_tells_to_end_is_passed_on_once_in_a_second() {
    let (server, notes) = (server(), Notes::new());
    let [told, mark] = ["told", "mark"].map(|name| notes.sh(name));
    let script = format!(
        "trap 'echo told >>{told}' TERM; trap 'echo mark >>{mark}' USR1; echo up >{mark}; while :; do sleep 0.02; done"
    );
    let run = Process::start(&mut run(&server.url(), &[], &script));
    let lines = |name: &str| notes.read(name).lines().count();
    notes.wait("mark");
    loop {
        let (before, began) = (lines("told"), Instant::now());
        run.signal(Signal::TERM);
        wait_until(SOON, "the command was told", || lines("told") > before);
        run.signal(Signal::TERM);
        // Two: the first may be carried out before a signal that came earlier.
        for _ in 0..2 {
            let marks = lines("mark");
            run.signal(Signal::USR1);
            wait_until(SOON, "the command heard", || lines("mark") > marks);
        }
        // Else this machine was too slow to tell.
        let was_in_time = began.elapsed() < Duration::from_millis(900);
        if was_in_time {
            assert_eq!(lines("told"), before + 1);
            break;
        }
        thread::sleep(Duration::from_millis(1_100));
    }
    thread::sleep(Duration::from_millis(1_100));
    let before = lines("told");
    run.signal(Signal::TERM);
    wait_until(SOON, "the command was told again", || {
        lines("told") > before
    });
}

/// Process 1 of a container gets the orphans of all others there. These are children of a shell that becomes this process.
#[cfg(target_os = "linux")]
#[test]
fn children_of_others_are_collected_and_the_exit_status_is_that_of_the_command() {
    let (server, notes) = (server(), Notes::new());
    let [up, end] = ["up", "end"].map(|name| notes.sh(name));
    let binary = env!("CARGO_BIN_EXE_leasehold");
    let script = format!(
        "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do (while [ ! -e {up} ]; do sleep 0.02; done) & done; \
         exec {binary} run job -- sh -c 'echo up >{up}; while [ ! -e {end} ]; do sleep 0.02; done; exit 7'"
    );
    let mut command = Command::new("sh");
    command
        .args(["-c", &script])
        .env("LEASEHOLD_URL", server.url());
    let mut run = Process::start(&mut command);
    notes.wait("up");
    let children = || {
        let of = format!("/proc/{0}/task/{0}/children", run.pid().as_raw_pid());
        let children = std::fs::read_to_string(of).unwrap();
        children.split_whitespace().count()
    };
    // The guardian is left.
    wait_until(SOON, "the children were collected", || children() == 1);
    notes.write("end", "");
    assert_eq!(run.code(), 7);
}

/// Where this user may make one, which root may.
#[cfg(target_os = "linux")]
#[test]
fn process_1_of_a_pid_namespace_runs_its_command_and_collects_the_orphans_of_others() {
    let namespace = |command: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "--mount-proc", "sh", "-c", command]);
        unshare
    };
    if !namespace("true")
        .output()
        .is_ok_and(|made| made.status.success())
    {
        return;
    }
    let (server, notes) = (server(), Notes::new());
    let [up, ended, out] = ["up", "ended", "out"].map(|name| notes.sh(name));
    let binary = env!("CARGO_BIN_EXE_leasehold");
    // Beside it, 20 processes lose their parent, and end.
    let others = format!(
        "until [ -e {up} ]; do sleep 0.02; done; \
         for i in $(seq 20); do ((sleep 0.1; echo >>{ended}) & exec true); done"
    );
    let dead = "ls -d /proc/[0-9]* | while read p; do grep -s '^State:.Z' $p/status; done | wc -l";
    let script = format!(
        "echo up >{up}; for i in $(seq 200); do \
           [ $(cat {ended} 2>/dev/null | wc -l) = 20 ] && [ $({dead}) = 0 ] && echo none >{out} && break; sleep 0.1; \
         done; exit 7"
    );
    let command = format!(
        "({others}) & exec {binary} run job -- sh -c '{}'",
        script.replace('\'', "'\\''")
    );
    let output = namespace(&command)
        .env("LEASEHOLD_URL", server.url())
        .output()
        .unwrap();
    assert_eq!(code(output.status), 7, "{}", stderr(&output));
    assert_eq!(notes.read("out"), "none\n");
}

#[test]
fn usage_is_64_and_a_password_in_it_is_not_quoted() {
    let server = server();
    for words in [
        &["run"][..],
        &["run", "job"],
        &["run", "job", "-c"],
        &["run", "job", "-c", "true", "true"],
        &["run", "-n", "-w", "5", "job", "--", "true"],
        &["run", "--lease", "0s", "job", "--", "true"],
        &["run", "--lease=-1s", "job", "--", "true"],
        &["run", "--lease", "0.001", "job", "--", "true"],
        &["run", "--lease", "2ms", "job", "--", "true"],
        &["run", "--lease", "400days", "job", "--", "true"],
        &["run", "--lease", "4s", "--grace", "3s", "job", "--", "true"],
        &["run", "", "--", "true"],
        &["run", "--url", "memory:", "job", "--", "true"],
        &["run", "--url", "MEMORY:", "job", "--", "true"],
        &["run", "--url", "nonsense", "job", "--", "true"],
        &["status", "job", "redis://:s3cret-word@db/"],
        &["status", "job", "redis://:'s3cret-word@db/"],
        &["status", "job", "redis://:/s3cret-word@db/"],
        &["status", "job", "redis+unix:///r.sock?pass=s3cret-word"],
        &["status", "job", "redis+unix:///r.sock?pass=a&s3cret-word"],
        &[
            "status",
            "job",
            "--url",
            "redis+unix:///r.sock?pass=a&s3cret-word",
        ],
        &["unlock", "job"],
        &["unheard-of"],
    ] {
        let output = leasehold(&server.url()).args(words).output().unwrap();
        assert_eq!(code(output.status), 64, "{words:?}: {}", stderr(&output));
        assert!(
            !stderr(&output).contains("s3cret-word"),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn a_name_that_a_terminal_would_obey_is_escaped_in_the_story_of_its_lock() {
    let server = server();
    let mut command = leasehold(&server.url());
    let output = command.args(["run", "-v", "a\nb\u{9b}", "--", "true"]);
    let said = stderr(&output.output().unwrap());
    assert!(said.contains(r"name=a\u{a}b\u{9b}"), "{said}");
    let is_of_the_story = |line: &str| line.contains("DEBUG");
    assert!(said.lines().all(is_of_the_story), "{said}");
}

#[test]
fn the_url_comes_from_the_flag_or_else_the_environment() {
    let server = server();
    let nowhere = "redis://127.0.0.1:1/";
    let run = |flag: Option<&str>, ours: Option<&str>, redis: Option<&str>| {
        let mut command = leasehold("");
        command
            .arg("run")
            .args(flag.map(|url| format!("--url={url}")));
        command.args(["job", "--", "true"]).stderr(Stdio::null());
        command
            .env_remove("LEASEHOLD_URL")
            .envs(ours.map(|url| ("LEASEHOLD_URL", url)));
        command.envs(redis.map(|url| ("REDIS_URL", url)));
        code(command.status().unwrap())
    };
    let url = server.url();
    assert_eq!(run(Some(&url), Some(nowhere), Some(nowhere)), 0);
    assert_eq!(run(None, Some(&url), Some(nowhere)), 0);
    assert_eq!(run(None, None, Some(&url)), 0);
    assert_eq!(run(None, Some(nowhere), Some(&url)), 69);
}

/// It does not count as absent: the lock would be taken on another server.
#[test]
fn a_url_variable_that_is_not_utf8_is_refused_and_not_passed_over() {
    let server = server();
    let broken = OsStr::from_bytes(b"redis://:s3cret-word@127.0.0.1:1/\xff");
    for (ours, redis, named) in [
        (broken, OsStr::new(&server.url()), "LEASEHOLD_URL"),
        (OsStr::new(""), broken, "REDIS_URL"),
    ] {
        for words in [&["run", "job", "echo", "ran"][..], &["status", "job"]] {
            let mut command = leasehold("");
            command.env("LEASEHOLD_URL", ours).env("REDIS_URL", redis);
            let output = command.args(words).output().unwrap();
            assert_eq!((code(output.status), stdout(&output).as_str()), (64, ""));
            let said = stderr(&output);
            assert!(said.contains(named) && said.contains("--url"), "{said}");
            assert!(!said.contains("s3cret-word"), "{said}");
        }
    }
    let mut command = leasehold("");
    command.env("LEASEHOLD_URL", broken);
    let output = command.args(["status", "--url", &server.url(), "job"]);
    assert_eq!(code(output.status().unwrap()), 0, "the option is enough");
}

/// A library that this program uses panics where it cannot open its files.
#[test]
fn without_room_for_files_it_fails_in_words() {
    for most in 5..19 {
        let script = format!("ulimit -n {most}; exec \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_leasehold")]);
        command.args(["run", "--url", "redis://127.0.0.1:1/", "job", "true"]);
        let output = command.output().unwrap();
        let said = stderr(&output);
        assert_eq!(code(output.status), 70, "{most}: {said}");
        assert!(said.starts_with("leasehold: could not"), "{most}: {said}");
        assert!(said.contains("ulimit"), "{most}: {said}");
    }
}

#[test]
fn json_reports_what_happened_in_one_line() {
    let server = server();
    let output = run(&server.url(), &["--json"], "exit 4").output().unwrap();
    let report: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(report["outcome"], "ran");
    assert_eq!(report["exit"], 4);
    assert_eq!(report["command"]["exited"], 4);
    assert_eq!(report["released"], true);
}

/// The string at the name may be a session, or a password: only what other libraries' tokens look like may be told from it, and they
/// look like passwords.
#[test]
fn the_value_of_another_programs_string_is_not_told() {
    let server = Server::start(Flavor::Redis);
    for (end, says) in [(None, "may be data"), (Some("60000"), "another library")] {
        let value = ["SET", "session", "s3cret-word"];
        let end: Vec<&str> = end.iter().flat_map(|end| ["PX", *end]).collect();
        server.cli(&[&value[..], &end].concat());
        for wait in ["0", "2100ms"] {
            let mut command = leasehold(&server.url());
            command.args(["run", "--kind", "plain", "--wait", wait, "session", "true"]);
            let output = command.output().unwrap();
            assert_eq!(code(output.status), 75);
            let said = stderr(&output);
            assert!(said.contains(says) && !said.contains("s3cret"), "{said}");
        }
    }
}
