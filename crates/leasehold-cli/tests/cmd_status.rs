//! `leasehold status` and `leasehold unlock`.

mod common;

use common::{Notes, Process, code, leasehold, run, stderr, stdout};
use leasehold_testkit::{Flavor, Server};
use serde_json::Value;

fn json(server: &Server, words: &[&str]) -> Value {
    let output = leasehold(&server.url())
        .args(words)
        .arg("--json")
        .output()
        .unwrap();
    assert_eq!(code(output.status), 0, "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_free_name_has_no_holder() {
    let server = Server::start(Flavor::Redis);
    let status = json(&server, &["status", "job"]);
    assert_eq!(
        (&status["held"], &status["holder"]),
        (&false.into(), &Value::Null)
    );
    let output = leasehold(&server.url())
        .args(["status", "job"])
        .output()
        .unwrap();
    assert!(
        stdout(&output).contains("nobody holds it"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn the_holder_is_named_with_its_process_and_what_is_left_of_its_lease() {
    let (server, notes) = (Server::start(Flavor::Redis), Notes::new());
    let script = format!("echo >{}; sleep 100", notes.sh("up"));
    let holder = Process::start(&mut run(&server.url(), &["--lease", "20s"], &script));
    notes.wait("up");
    let status = json(&server, &["status", "job"]);
    let left = status["holder"]["remaining_ms"].as_u64().unwrap();
    assert!((10_000..=20_000).contains(&left), "{left}");
    let pid = format!(":{}", holder.pid().as_raw_pid());
    assert!(status["holder"]["label"].as_str().unwrap().ends_with(&pid));
    let output = leasehold(&server.url())
        .args(["status", "job"])
        .output()
        .unwrap();
    assert!(stdout(&output).contains(&pid), "{}", stdout(&output));
}

#[test]
fn unlock_takes_a_name_away_only_when_forced_and_says_whose_it_was() {
    let (server, notes) = (Server::start(Flavor::Redis), Notes::new());
    let script = format!("echo >{}; sleep 100", notes.sh("up"));
    let _holder = Process::start(&mut run(&server.url(), &["--lease", "20s"], &script));
    notes.wait("up");

    let output = leasehold(&server.url())
        .args(["unlock", "job"])
        .output()
        .unwrap();
    assert_eq!(code(output.status), 64);
    assert!(stderr(&output).contains("--force"), "{}", stderr(&output));
    assert_eq!(server.cli(&["EXISTS", "job"]), redis::Value::Int(1));

    let answer = json(&server, &["unlock", "--force", "job"]);
    assert_eq!(
        (&answer["unlocked"], &answer["before"]["held"]),
        (&true.into(), &true.into())
    );
    assert_eq!(server.cli(&["EXISTS", "job"]), redis::Value::Int(0));

    let answer = json(&server, &["unlock", "--force", "job"]);
    assert_eq!(answer["unlocked"], false);
}

#[test]
fn failures_are_json_too_when_asked() {
    let output = leasehold("redis://127.0.0.1:1/")
        .args(["status", "--json", "job"])
        .output()
        .unwrap();
    assert_eq!(code(output.status), 69);
    let failure: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(failure["exit"], 69);
}

#[tokio::test]
async fn every_kind_is_looked_at_and_taken_away() {
    let server = Server::start(Flavor::Redis);
    let client = || async { leasehold::Client::connect(&server.url()).await.unwrap() };
    let (one, other) = (client().await, client().await);
    let readers = [
        one.rw_lock("catalogue").read().await.unwrap(),
        other.rw_lock("catalogue").read().await.unwrap(),
    ];
    let semaphore = one.leased_semaphore("reports");
    semaphore.try_set_permits(5).await.unwrap();
    let permits = semaphore.acquire_many(2).await.unwrap();
    let fenced = one.fenced_mutex("ledger").lock().await.unwrap();
    let plain = one.mutex("job").lock().await.unwrap();

    let status = json(&server, &["status", "catalogue"]);
    assert_eq!(status["kind"], "rw_lock");
    assert_eq!(status["holders"].as_array().unwrap().len(), 2, "{status}");
    assert_eq!(status["holders"][0]["access"], "shared");
    let status = json(&server, &["status", "--kind", "semaphore", "reports"]);
    assert_eq!(
        (
            &status["available"],
            &status["holders"][0]["access"]["permits"]
        ),
        (&3.into(), &2.into())
    );
    let output = leasehold(&server.url())
        .args(["status", "reports"])
        .output()
        .unwrap();
    assert!(
        stdout(&output).contains("3 are free"),
        "{}",
        stdout(&output)
    );

    let status = json(&server, &["status", "ledger"]);
    assert_eq!(status["kind"], "fenced_mutex");
    assert_eq!(status["token"], fenced.token() + 64, "with those reserved");
    let status = json(&server, &["status", "job"]);
    assert_eq!(
        (&status["kind"], &status["token"]),
        (&"mutex".into(), &Value::Null)
    );

    for (kind, name) in [
        ("rw", "catalogue"),
        ("semaphore", "reports"),
        ("fenced", "ledger"),
        ("mutex", "job"),
    ] {
        let answer = json(&server, &["unlock", "--force", name]);
        assert_eq!(answer["unlocked"], true, "{answer}");
        let answer = json(&server, &["unlock", "--force", "--kind", kind, name]);
        assert_eq!(answer["unlocked"], false, "{answer}");
    }
    assert!(permits.verify().await.is_err());
    assert!(fenced.verify().await.is_err());
    assert!(plain.verify().await.is_err());
    for reader in readers {
        assert!(reader.verify().await.is_err());
    }
    assert_eq!(semaphore.available_permits().await.unwrap(), 5);
}

#[tokio::test]
async fn a_lock_of_another_library_is_found_and_taken_away() {
    let server = Server::start(Flavor::Redis);
    // As redis-py and others do; a token may be a number.
    for token in ["f3Q=/+token", "1"] {
        server.cli(&["SET", "job", token, "NX", "PX", "60000"]);
        let status = json(&server, &["status", "job"]);
        assert_eq!(
            (&status["kind"], &status["holder"]["owner"]),
            (&"plain_mutex".into(), &token.into())
        );
        let output = leasehold(&server.url())
            .args(["status", "job"])
            .output()
            .unwrap();
        let said = stdout(&output);
        assert!(said.contains("another library, token"), "{said}");
        let answer = json(&server, &["unlock", "--force", "job"]);
        assert_eq!(answer["unlocked"], true, "{answer}");
        assert_eq!(server.cli(&["EXISTS", "job"]), redis::Value::Int(0));
        let answer = json(&server, &["unlock", "--force", "--kind", "plain", "job"]);
        assert_eq!(answer["unlocked"], false, "{answer}");
    }
    // Ours is shown with its process, as every kind.
    let client = leasehold::Client::connect(&server.url()).await.unwrap();
    let guard = client.plain_mutex("job").lock().await.unwrap();
    let status = json(&server, &["status", "job"]);
    assert_eq!(status["holder"]["client"], client.id());
    assert!(status["holder"]["label"].is_string(), "{status}");
    drop(guard);
}
