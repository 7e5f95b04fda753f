//! `leasehold demo`: passes with the lock, fails without it.

mod common;

use common::{Process, SOON, code, leasehold, stderr, stdout};
use leasehold_testkit::{Flavor, Server, wait_until};
use rustix::process::Signal;
use serde_json::Value;

/// The demo needs no server; this one would refuse.
const NOWHERE: &str = "redis://127.0.0.1:1/";

fn demo(flags: &[&str]) -> (i32, Value) {
    let output = leasehold(NOWHERE)
        .args(["demo", "--json"])
        .args(flags)
        .output()
        .unwrap();
    assert_eq!(stdout(&output).lines().count(), 1);
    let document = serde_json::from_slice(&output.stdout);
    (
        code(output.status),
        document.unwrap_or_else(|_| panic!("{}", stderr(&output))),
    )
}

#[test]
fn it_passes_in_memory_and_its_counts_agree_with_its_events() {
    let (code, document) = demo(&["--seed", "7"]);
    let verdict = &document["verdict"];
    assert_eq!((code, &verdict["ok"]), (0, &true.into()), "{verdict:#}");
    let events = document["events"].as_array().unwrap();
    let count = |what: &str| events.iter().filter(|event| event["what"] == what).count();
    let counts = &verdict["counts"];
    assert_eq!(counts["sold"], 20);
    assert_eq!(counts["sold"], count("sold"));
    assert_eq!(counts["acquisitions"], count("entered"));
    assert_eq!(counts["renewals"], count("renewed"));
    assert_eq!(counts["lost"], 1);
    assert!(counts["hand_overs"].as_u64().unwrap() > 0);
    assert!(counts["renewals"].as_u64().unwrap() >= 10);

    // The check of the crash is about the first waiter that had the name after it.
    let crash: Vec<&Value> = events.iter().filter(|event| event["act"] == 3).collect();
    let killed = crash.iter().position(|event| event["what"] == "killed");
    let mut after = crash[killed.unwrap()..].iter();
    let heir = after.find(|event| event["what"] == "entered").unwrap();
    let checks = verdict["checks"].as_array().unwrap();
    let check = checks
        .iter()
        .find(|it| it["what"] == "the crash freed the name");
    let detail = check.unwrap()["detail"].as_str().unwrap();
    let heir = heir["worker"].as_str().unwrap();
    assert!(
        detail.starts_with(&format!("{heir} had it after")),
        "{detail}"
    );
}

#[test]
fn it_passes_on_a_server_with_processes_that_are_really_killed() {
    let server = Server::start(Flavor::Redis);
    let (code, document) = demo(&["--url", &server.url()]);
    assert_eq!(code, 0, "{:#}", document["verdict"]);
    assert_eq!(document["backend"], "server");
    assert_eq!(locks(&server), [""; 0], "nothing is left");
}

/// The keys on the server, but for the labels of workers that were killed.
fn locks(server: &Server) -> Vec<String> {
    let mut keys: Vec<String> = redis::from_redis_value(server.cli(&["KEYS", "*"])).unwrap();
    keys.retain(|key| !key.starts_with("leasehold:client:"));
    keys
}

/// A semaphore has no end by itself.
#[test]
fn an_interrupted_demo_leaves_nothing_behind_either() {
    let server = Server::start(Flavor::Redis);
    let mut command = leasehold(NOWHERE);
    let mut demo = Process::start(command.args(["demo", "--json", "--url", &server.url()]));
    let there = |keys: &str| server.cli(&["KEYS", keys]) != redis::Value::Array(Vec::new());
    wait_until(SOON, "permits are out", || there("*encoders*:timeout"));
    demo.signal(Signal::INT);
    assert_eq!(demo.code(), 130);
    assert!(!there("*encoders*"));
    wait_until(SOON, "the leases have ended", || locks(&server).is_empty());
}

/// The control: workers that skip the lock must fail the check, or passing it means nothing.
#[test]
fn without_the_lock_the_check_fails() {
    let (code, document) = demo(&["--broken"]);
    let verdict = &document["verdict"];
    assert_eq!((code, &verdict["ok"]), (1, &false.into()));
    let checks = verdict["checks"].as_array().unwrap();
    for check in [
        "nothing overlapped",
        "nothing oversold",
        "readers shared, by turns",
        "the permits were shared",
    ] {
        let check = checks.iter().find(|it| it["what"] == check).unwrap();
        assert_eq!(check["ok"], false, "{check}");
    }
}

#[test]
fn without_a_terminal_the_picture_is_plain_text_of_eighty_columns_or_as_many_as_columns_says() {
    // Side by side, for each takes its time.
    let shown = |columns| {
        let mut demo = leasehold(NOWHERE);
        match columns {
            80 => demo.env_remove("COLUMNS"),
            _ => demo.env("COLUMNS", columns.to_string()),
        };
        (
            columns,
            std::thread::spawn(move || demo.arg("demo").output().unwrap()),
        )
    };
    for (columns, output) in [80, 45].map(shown) {
        let output = output.join().unwrap();
        let text = stdout(&output);
        assert_eq!(code(output.status), 0, "{text}");
        assert!(!text.contains('\x1b'));
        for line in text.lines() {
            assert!(line.chars().count() <= columns, "{line}");
        }
        for sign in [
            "buy 20 tickets",
            "Sold out: ",
            "▇",
            "▃",
            "┃",
            "✗",
            "░",
            "passed",
        ] {
            assert!(text.contains(sign), "no {sign} in\n{text}");
        }
    }
}
