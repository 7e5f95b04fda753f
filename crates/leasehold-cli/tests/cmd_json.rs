//! What the command says to programs is what docs/command.md says.

mod common;

use std::{collections::BTreeSet, path::Path};

use common::{leasehold, run, stderr, stdout};
use leasehold_testkit::{Flavor, Server};
use serde_json::Value;

/// The fields that the tables under this heading name.
fn documented(heading: &str) -> BTreeSet<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/command.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once(&format!("{heading}\n")).expect(heading);
    let section = section.split("\n#").next().unwrap();
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
fn a_status_has_the_documented_fields_and_so_have_its_holders() {
    let server = Server::start(Flavor::Redis);
    let script = "$0 status job --json; $0 unlock job --force --json";
    let mut held = run(&server.url(), &["--kind", "fenced"], script);
    let output = held.arg(env!("CARGO_BIN_EXE_leasehold")).output().unwrap();
    let text = stdout(&output);
    let [status, unlock] = text.lines().collect::<Vec<_>>()[..] else {
        panic!("{text}{}", stderr(&output));
    };
    let (status, unlock) = (read(status), read(unlock));
    let documented_status = documented("## `leasehold status NAME --json`");
    assert_eq!(fields(&status), documented_status);
    assert_eq!(fields(&status["holder"]), documented("### A holder"));
    assert_eq!(
        fields(&unlock),
        documented("## `leasehold unlock NAME --force --json`")
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
    assert_eq!(said, documented("## `leasehold run --json NAME CMD`"));
}
