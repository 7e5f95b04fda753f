//! `leasehold run` as users of `flock` call it, and how long it waits.

mod common;

use std::{process::Output, time::Duration};

use common::{Notes, Process, code, leasehold, run, stderr, stdout};
use leasehold_testkit::{Flavor, Proxy, Server};

fn server() -> Server {
    Server::start(Flavor::Redis)
}

fn start(url: &str, words: &[&str]) -> Output {
    leasehold(url).arg("run").args(words).output().unwrap()
}

/// A process that holds the name as long as it is kept.
fn holder(server: &Server) -> Process {
    let notes = Notes::new();
    let script = format!("echo >{}; sleep 100", notes.sh("up"));
    let holder = Process::start(&mut run(&server.url(), &[], &script));
    notes.wait("up");
    holder
}

#[test]
fn a_command_needs_no_dashes_before_it_and_keeps_its_own_flags() {
    let server = server();
    for words in [
        &["job", "echo", "--json", "-n", "--", "-c"][..],
        &["job", "--", "echo", "--json", "-n", "--", "-c"],
    ] {
        let output = start(&server.url(), words);
        assert_eq!(
            (code(output.status), stdout(&output).as_str()),
            (0, "--json -n -- -c\n"),
            "{words:?}: {}",
            stderr(&output)
        );
    }
    // A name was forgotten.
    let output = start(&server.url(), &["ls", "-la"]);
    assert_eq!(code(output.status), 64, "{}", stderr(&output));
}

#[test]
fn a_shell_string_is_run_by_the_shell_and_its_status_passed_on() {
    let server = server();
    for words in [
        &["job", "-c", "echo $LEASEHOLD_NAME | tr a-z A-Z; exit 4"][..],
        &["-c", "echo $LEASEHOLD_NAME | tr a-z A-Z; exit 4", "job"],
    ] {
        let output = start(&server.url(), words);
        assert_eq!(
            (code(output.status), stdout(&output).as_str()),
            (4, "JOB\n"),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn without_waiting_a_held_name_is_busy_and_a_free_one_is_taken() {
    let server = server();
    let _holder = holder(&server);
    for flags in [&["-n"][..], &["--nonblock"], &["-w", "0"], &["-w", "0.2"]] {
        let held = start(&server.url(), &[flags, &["job", "echo", "ran"]].concat());
        assert_eq!((code(held.status), stdout(&held).as_str()), (75, ""));
        assert!(stderr(&held).contains("\"job\""), "{}", stderr(&held));
        let free = start(&server.url(), &[flags, &["other", "echo", "ran"]].concat());
        assert_eq!((code(free.status), stdout(&free).as_str()), (0, "ran\n"));
    }
}

/// A replica is asked for two seconds, since it may become a primary. Who does not wait is not said to wait for the name.
#[test]
fn a_run_that_does_not_wait_says_that_the_server_has_not_answered() {
    let server = server();
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    for flags in ["-n", "--skip-if-held", "-w0"] {
        let output = start(&server.url(), &[flags, "job", "true"]);
        let said = stderr(&output);
        assert_eq!(code(output.status), 77, "{flags}: {said}");
        assert!(said.contains("READONLY"), "{flags}: {said}");
        assert!(!said.contains("waiting for \"job\""), "{flags}: {said}");
    }
}

#[test]
fn a_duration_that_is_none_is_refused_with_the_reason() {
    for (words, reason) in [
        (&["-w", "-1"][..], "-1 is negative"),
        (&["--wait", "-0.5s"], "-0.5s is negative"),
        (&["--lease", "-5s"], "-5s is negative"),
        (&["--grace", "-5s"], "-5s is negative"),
        (&["--at-least", "-5s"], "-5s is negative"),
        (&["--connect-timeout", "-5s"], "-5s is negative"),
        (&["-w", "NaN"], "write it like 30s"),
    ] {
        let output = start("redis://127.0.0.1:1/", &[words, &["job", "true"]].concat());
        let said = stderr(&output);
        assert_eq!(code(output.status), 64, "{words:?}: {said}");
        assert!(said.contains(reason), "{words:?}: {said}");
    }
}

/// Cron mails every line that a command prints.
#[test]
fn a_quiet_run_says_nothing_of_a_held_name_and_everything_else() {
    let server = server();
    let _holder = holder(&server);
    for (flags, status) in [(["-q", "--skip-if-held"], 0), (["--quiet", "-n"], 75)] {
        let held = start(
            &server.url(),
            &[&flags[..], &["job", "echo", "ran"]].concat(),
        );
        assert_eq!(
            (code(held.status), stdout(&held), stderr(&held)),
            (status, String::new(), String::new())
        );
    }
    let output = start(&server.url(), &["-q", "other", "/nonexistent/program"]);
    assert_eq!(code(output.status), 127);
    assert!(stderr(&output).contains("/nonexistent/program"));
}

/// A wait that is shorter than an answer takes is no trouble with the server.
#[test]
fn a_wait_that_is_shorter_than_a_round_trip_still_tells_held_from_free() {
    let server = server();
    let _holder = holder(&server);
    let proxy = Proxy::start(server.addr());
    proxy.delay(Duration::from_millis(60));
    for wait in ["1ms", "10ms", "100ms"] {
        let held = start(&proxy.url(), &["--wait", wait, "job", "echo", "ran"]);
        assert_eq!(code(held.status), 75, "{wait}: {}", stderr(&held));
        let free = start(&proxy.url(), &["--wait", wait, "other", "echo", "ran"]);
        assert_eq!(code(free.status), 0, "{wait}: {}", stderr(&free));
    }
    // A server that does not answer is.
    proxy.delay(Duration::ZERO);
    proxy.black_hole(None);
    let output = start(&proxy.url(), &["--wait", "10ms", "job", "echo", "ran"]);
    assert_eq!(code(output.status), 69, "{}", stderr(&output));
}

#[test]
fn a_lease_that_is_too_short_for_the_network_is_told_and_a_long_one_is_not() {
    let server = server();
    let proxy = Proxy::start(server.addr());
    proxy.delay(Duration::from_millis(20));
    let said = |flags: &[&str]| {
        let output = run(&proxy.url(), flags, "true").output().unwrap();
        assert_eq!(code(output.status), 0, "{}", stderr(&output));
        stderr(&output)
    };
    let short = said(&["--lease", "500ms"]);
    for word in [
        "a lease of 500 ms is short",
        "a round trip takes",
        "--lease should be",
    ] {
        assert!(short.contains(word), "no {word:?} in {short}");
    }
    assert_eq!(said(&["--lease", "20s"]), "");
    assert_eq!(said(&[]), "");
}

#[test]
fn what_happens_is_told_when_it_is_asked_for() {
    let server = server();
    let said = |flags: &[&str]| {
        let output = leasehold(&server.url()).args(flags).output().unwrap();
        assert_eq!(code(output.status), 3, "{}", stderr(&output));
        (stdout(&output), stderr(&output))
    };
    assert_eq!(
        said(&["run", "job", "-c", "exit 3"]),
        (String::new(), String::new())
    );
    for flags in [
        &["-v", "run", "job", "-c", "exit 3"][..],
        &["run", "-v", "job", "-c", "exit 3"],
        &["run", "-vv", "job", "-c", "exit 3"],
    ] {
        let (out, said) = said(flags);
        assert_eq!(out, "");
        let steps = [
            "connected to the server",
            "granted",
            "the command runs",
            "the command has ended",
            "released",
        ];
        let mut rest = said.as_str();
        for step in steps {
            let at = rest
                .find(step)
                .unwrap_or_else(|| panic!("no {step:?} in its turn in\n{said}"));
            rest = &rest[at..];
        }
        // Without a terminal, no colours.
        assert!(!said.contains('\x1b'), "{said:?}");
    }
}

/// Users of the command line have options, and no methods.
#[test]
fn no_error_speaks_of_the_library() {
    let server = server();
    let url = server.url();
    server.cli(&["RPUSH", "list", "a"]);
    let long = "x".repeat(1025);
    for words in [
        &["run", "", "true"][..],
        &["run", "a{b", "true"],
        &["run", &long, "true"],
        &["run", "--lease", "2ms", "job", "true"],
        &["run", "--lease", "400days", "job", "true"],
        &["run", "--url", "nonsense", "job", "true"],
        &["run", "--url", "http://127.0.0.1/", "job", "true"],
        &["run", "--url", "redis-sentinel://127.0.0.1/", "job", "true"],
        &["run", "--url", "redis://127.0.0.1:0/", "job", "true"],
        &["run", "--url", "redis://127.0.0.1:1/", "job", "true"],
        &["run", "--url", "memory:", "job", "true"],
        &["run", "--kind", "leased", "job", "true"],
        &["run", "--kind", "leased", "list", "true"],
        &["run", "list", "true"],
        &["run", "--lease", "3ms", "job", "sleep", "1"],
        &["status", "list"],
        &["unlock", "--force", "list"],
    ] {
        let output = leasehold(&url).args(words).output().unwrap();
        let said = stderr(&output);
        assert_ne!(code(output.status), 0, "{words:?}");
        for word in [
            "guard",
            "fixed_lease",
            "(d)",
            "mutex.",
            "builder",
            "url is",
            "NotSent",
            "or memory",
        ] {
            // The guardian is a process.
            let said = said.replace("guardian", "");
            assert!(!said.contains(word), "{words:?}: {word} in {said}");
        }
    }
    let url = [
        "status",
        "--url",
        "redis-sentinel://:s3cret-word@127.0.0.1:1/",
        "job",
    ];
    let said = stderr(&leasehold("").args(url).output().unwrap());
    assert!(said.contains("?master=main"), "{said}");
    assert!(!said.contains("s3cret-word"), "{said}");
}

#[test]
fn a_server_that_was_not_named_is_asked_for() {
    let nowhere = |flags: &[&str], ours: Option<&str>| {
        let mut command = leasehold("");
        command
            .env_remove("LEASEHOLD_URL")
            .envs(ours.map(|url| ("LEASEHOLD_URL", url)));
        stderr(
            &command
                .args(["status", "job"])
                .args(flags)
                .output()
                .unwrap(),
        )
    };
    // Where the default server is there, it answers.
    let said = nowhere(&[], None);
    assert!(
        said.is_empty() || said.contains("say which with --url"),
        "{said}"
    );
    let url = "redis://127.0.0.1:1/";
    for said in [nowhere(&["--url", url], None), nowhere(&[], Some(url))] {
        assert!(!said.contains("say which"), "{said}");
    }
}
