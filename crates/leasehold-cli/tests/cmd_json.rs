//! The command says to programs what docs/command.md says.

mod common;

use std::{collections::BTreeSet, path::Path};

use common::{Notes, Process, SOON, leasehold, run, stderr, stdout};
use leasehold_testkit::{Flavor, Server, wait_until};
use rustix::process::Signal;
use serde_json::Value;

/// The text under this heading, up to the next.
fn section(heading: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/command.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once(&format!("{heading}\n")).expect(heading);
    section.split("\n#").next().unwrap().to_owned()
}

/// The fields that the tables under this heading name.
fn documented(heading: &str) -> BTreeSet<String> {
    let section = section(heading);
    let rows = section.lines().filter_map(|row| row.strip_prefix("| `"));
    let first = rows.filter_map(|row| row.split(" |").next());
    let names = first.flat_map(|cell| cell.split(','));
    names
        .map(|name| name.trim_matches([' ', '`']).to_owned())
        .collect()
}

fn fields(document: &Value) -> BTreeSet<String> {
    document.as_object().unwrap().keys().cloned().collect()
}

fn read(line: &str) -> Value {
    serde_json::from_str(line.trim()).unwrap_or_else(|_| panic!("{line:?} is one line of JSON"))
}

#[test]
fn a_doctor_s_findings_have_the_documented_fields() {
    let server = Server::start(Flavor::Redis);
    let output = leasehold(&server.url()).args(["doctor", "--json"]).output();
    let said = read(&stdout(&output.unwrap()));
    assert_eq!(fields(&said), documented("## `leasehold doctor --json`"));
    assert!(said["dangers"] == 0, "{said}");
    for finding in said["findings"].as_array().unwrap() {
        assert_eq!(fields(finding), documented("### A finding"));
    }
}

#[test]
fn a_drill_has_the_documented_fields() {
    let server = Server::start(Flavor::Redis);
    let words = ["drill", "--only", "2", "--json"];
    let output = leasehold(&server.url()).args(words).output();
    let said = read(&stdout(&output.unwrap()));
    assert_eq!(fields(&said), documented("## `leasehold drill --json`"));
    assert_eq!(fields(&said["rows"][0]), documented("### A row"));
}

#[test]
fn a_status_has_the_documented_fields_and_so_have_its_holders() {
    let server = Server::start(Flavor::Redis);
    let script = "$0 status job --json; $0 ls --json; $0 unlock job --force --json";
    let mut held = run(&server.url(), &["--kind", "fenced"], script);
    let output = held.arg(env!("CARGO_BIN_EXE_leasehold")).output().unwrap();
    let text = stdout(&output);
    let [status, listed, unlock] = text.lines().collect::<Vec<_>>()[..] else {
        panic!("{text}{}", stderr(&output));
    };
    let (status, listed, unlock) = (read(status), read(listed), read(unlock));
    let documented_status = documented("## `leasehold status NAME --json`");
    assert_eq!(fields(&status), documented_status);
    assert_eq!(fields(&listed), documented_status);
    assert_eq!(fields(&status["holder"]), documented("### A holder"));
    assert_eq!(status["server"], format!("redis://{}/0", server.addr()));
    assert_eq!(
        fields(&unlock),
        documented("## `leasehold unlock NAME --json`")
    );
    assert_eq!(fields(&unlock["before"]), documented_status);
}

#[test]
fn a_run_has_the_documented_fields() {
    let server = Server::start(Flavor::Redis);
    let ran = run(&server.url(), &["--json"], "true").output().unwrap();
    let script = "$0 run --json --wait 0s job -- true";
    let mut held = run(&server.url(), &[], script);
    let busy = held.arg(env!("CARGO_BIN_EXE_leasehold")).output().unwrap();
    let mut failed = leasehold("redis://127.0.0.1:1/");
    let failed = failed.args(["run", "--json", "job", "--", "true"]);
    let failed = failed.output().unwrap();
    let all = [ran, busy, failed].map(|output| fields(&read(&stderr(&output))));
    let begun = ["name", "kind", "access", "outcome", "exit"].map(str::to_owned);
    assert_eq!(all[1], BTreeSet::from(begun));
    let said: BTreeSet<String> = all.into_iter().flatten().collect();
    assert_eq!(said, documented(RUN));
}

const RUN: &str = "## `leasehold run --json NAME CMD`";

/// The outcomes that the page has.
fn documented_outcomes() -> BTreeSet<String> {
    let section = section(RUN);
    let row = section.lines().find(|row| row.starts_with("| `outcome`"));
    let words = row.unwrap().split("`\"").skip(1);
    words
        .map(|word| word.split('"').next().unwrap().to_owned())
        .collect()
}

#[test]
fn a_run_has_the_documented_outcomes_and_help_names_them_too() {
    let server = Server::start(Flavor::Redis);
    let leasehold = env!("CARGO_BIN_EXE_leasehold");
    let outcome = |flags: &[&str], script: &str| {
        let mut command = run(&server.url(), &[&["--json"], flags].concat(), script);
        let output = command.arg(leasehold).output().unwrap();
        read(&stderr(&output))["outcome"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let unlock = "$0 unlock --force job";
    let mut said = BTreeSet::from([
        outcome(&[], "true"),
        outcome(&[], unlock),
        outcome(&["--url", "redis://127.0.0.1:1/"], "true"),
    ]);
    let notes = Notes::new();
    let script = format!("echo >{}; sleep 100", notes.sh("up"));
    let _holder = Process::start(&mut run(&server.url(), &[], &script));
    notes.wait("up");
    said.insert(outcome(&["-n"], "true"));
    said.insert(outcome(&["--skip-if-held"], "true"));
    let mut waiter = run(&server.url(), &["--json"], "true");
    let mut waiter = Process::start_captured(&mut waiter);
    wait_until(SOON, "it waits", || {
        let mut status = common::leasehold(&server.url());
        let status = status.args(["status", "--json", "job"]).output().unwrap();
        let status = read(&stdout(&status));
        let place = status["queue"].get(0).map(fields);
        assert!(place.is_none_or(|place| place == documented("### One that waits")));
        status["waiting_clients"] == 1
    });
    waiter.signal(Signal::TERM);
    let (code, line) = waiter.end();
    let interrupted = read(&line);
    assert_eq!((code, &interrupted["exit"]), (143, &143.into()));
    said.insert(interrupted["outcome"].as_str().unwrap().to_owned());

    assert_eq!(said, documented_outcomes());
    let help = common::leasehold("").args(["run", "--help"]).output();
    let help = stdout(&help.unwrap());
    let (_, listed) = help.split_once("outcome is ").unwrap();
    let listed = listed.split(';').next().unwrap();
    let words = listed.split(|c: char| !c.is_alphabetic());
    let words = words.filter(|word| !["", "or"].contains(word));
    assert_eq!(words.map(str::to_owned).collect::<BTreeSet<_>>(), said);
}
