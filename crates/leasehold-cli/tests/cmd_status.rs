//! `leasehold status`, `leasehold ls` and `leasehold unlock`.

mod common;

use std::net::TcpListener;

use common::{Notes, Process, SOON, code, leasehold, run, stderr, stdout};
use leasehold_testkit::{Cluster, ClusterSettings, Flavor, Server, wait_until};
use rustix::process::Signal;
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
fn quiet_answers_with_the_exit_status_and_nothing_else() {
    let (server, notes) = (Server::start(Flavor::Redis), Notes::new());
    let look = |flags: &[&str]| {
        let mut command = leasehold(&server.url());
        let output = command.arg("status").args(flags).output().unwrap();
        (code(output.status), stdout(&output), stderr(&output))
    };
    let says = |code| (code, String::new(), String::new());
    assert_eq!(look(&["--quiet", "job"]), says(1));
    assert_eq!(
        look(&["job"]).0,
        0,
        "without --quiet a free name is no failure"
    );
    let script = format!("echo >{}; sleep 100", notes.sh("up"));
    let _holder = Process::start(&mut run(&server.url(), &[], &script));
    notes.wait("up");
    assert_eq!(look(&["-q", "job"]), says(0));
    assert_eq!(look(&["-q", "--kind", "mutex", "job"]), says(0));
    // A failure is no answer, and is told all the same.
    server.cli(&["RPUSH", "list", "a"]);
    let (code, out, err) = look(&["-q", "list"]);
    assert_eq!((code, out.as_str()), (77, ""));
    assert!(err.contains("list"), "{err}");
    assert_eq!(look(&["-q", "--json", "job"]).0, 64);
}

#[test]
fn a_prefix_stands_before_the_name_on_the_server_and_is_not_shown() {
    let (server, notes) = (Server::start(Flavor::Redis), Notes::new());
    let script = format!("echo $LEASEHOLD_NAME >{}; sleep 100", notes.sh("up"));
    let _holder = Process::start(&mut run(&server.url(), &["--prefix", "app:"], &script));
    assert_eq!(notes.wait("up").trim(), "job");
    assert!(common::pttl(&server, "app:job") > 0);
    assert!(json(&server, &["status", "app:job"])["held"] == true);
    assert!(json(&server, &["status", "job"])["held"] == false);
    let status = json(&server, &["status", "--prefix", "app:", "job"]);
    assert_eq!(
        (&status["name"], &status["held"]),
        (&"job".into(), &true.into())
    );

    let app = |words: &[&str]| {
        let mut command = leasehold(&server.url());
        let output = command.env("LEASEHOLD_PREFIX", "app:").args(words).output();
        let output = output.unwrap();
        (code(output.status), stdout(&output) + &stderr(&output))
    };
    let (code, said) = app(&["run", "-n", "job", "true"]);
    assert_eq!(code, 75, "{said}");
    assert!(said.contains("job") && !said.contains("app:"), "{said}");
    assert_eq!(
        app(&["status", "-q", "--prefix=", "job"]).0,
        1,
        "an option counts"
    );
    let (code, said) = app(&["unlock", "--force", "job"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("job") && !said.contains("app:"), "{said}");
    assert!(common::pttl(&server, "app:job") < 0);
    let (code, said) = app(&["status", "--prefix", "leasehold:", "job"]);
    assert_eq!(code, 64, "{said}");
    assert!(said.contains("the prefix (--prefix, "), "{said}");
}

/// On stdout for those that answer, on stderr for `run`, whose stdout is its command's.
#[test]
fn every_document_is_one_line_and_calls_the_kinds_by_the_same_words() {
    let server = Server::start(Flavor::Redis);
    let line = |text: String| -> Value {
        assert_eq!(text.lines().count(), 1, "{text}");
        serde_json::from_str(&text).unwrap()
    };
    let said = |words: &[&str]| leasehold(&server.url()).args(words).output().unwrap();
    for (kind, lock, access) in [
        ("mutex", "mutex", serde_json::json!("exclusive")),
        ("fenced", "fenced_mutex", serde_json::json!("exclusive")),
        ("read", "rw_lock", serde_json::json!("shared")),
        ("write", "rw_lock", serde_json::json!("exclusive")),
        (
            "leased",
            "leased_semaphore",
            serde_json::json!({ "permits": 1 }),
        ),
        ("plain", "plain_mutex", serde_json::json!("exclusive")),
    ] {
        let permits = ["--permits", "2"];
        let permits: &[&str] = if kind == "leased" { &permits } else { &[] };
        let inside = [
            &["run", "--json", "--kind", kind][..],
            permits,
            &[
                kind,
                env!("CARGO_BIN_EXE_leasehold"),
                "status",
                "--json",
                "--kind",
                kind,
                kind,
            ],
        ]
        .concat();
        let output = said(&inside);
        let (status, report) = (line(stdout(&output)), line(stderr(&output)));
        for document in [&status, &report] {
            assert_eq!(document["kind"], lock, "{document}");
        }
        assert_eq!(report["access"], access, "{report}");
        assert_eq!(status["holder"]["access"], access, "{status}");
        // It can be said back.
        let again = said(&["status", "--json", "--kind", lock, kind]);
        assert_eq!(line(stdout(&again))["kind"], lock);
        line(stdout(&said(&["unlock", "--json", "--force", kind])));
    }
    let failed = line(stderr(&said(&[
        "run",
        "--json",
        "job",
        "/nonexistent/program",
    ])));
    assert_eq!(failed["outcome"], "failed");
    assert_eq!(failed["exit"], 127);
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

#[test]
fn a_server_that_says_nothing_is_given_up_when_the_connect_timeout_is_over() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", silent.local_addr().unwrap());
    let ask = |most: &str| {
        let mut command = leasehold(&url);
        command.args(["status", "--connect-timeout", most, "job"]);
        command.output().unwrap()
    };
    let output = ask("120ms");
    assert_eq!(code(output.status), 69);
    let said = stderr(&output);
    assert!(
        said.contains("no answer within 120ms") && said.contains("--connect-timeout"),
        "{said}"
    );
    let output = ask("0s");
    assert_eq!(code(output.status), 64);
    assert!(
        stderr(&output).contains("--connect-timeout is 0s"),
        "{}",
        stderr(&output)
    );
}

#[tokio::test]
async fn a_number_may_be_of_three_kinds_and_the_others_are_named() {
    let server = Server::start(Flavor::Redis);
    let client = leasehold::Client::connect(&server.url()).await.unwrap();
    client.latch("rooms").try_set_count(2).await.unwrap();
    let shown = |words: &[&str]| stdout(&leasehold(&server.url()).args(words).output().unwrap());
    let guessed = shown(&["status", "rooms"]);
    assert!(guessed.contains("--kind latch"), "{guessed}");
    let said = shown(&["status", "rooms", "--kind", "latch"]);
    assert!(said.contains("count") && !said.contains("--kind"), "{said}");
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
    let counted = one.semaphore("downloads");
    counted.try_set_permits(4).await.unwrap();
    let three = counted.acquire_many(3).await.unwrap();
    let latch = one.latch("import");
    latch.try_set_count(7).await.unwrap();
    let waiting = tokio::spawn({
        let latch = other.latch("import");
        async move { latch.wait().await }
    });
    let fenced = one.fenced_mutex("ledger").lock().await.unwrap();
    let plain = one.mutex("job").lock().await.unwrap();

    let status = json(&server, &["status", "catalogue"]);
    assert_eq!(status["kind"], "rw_lock");
    assert_eq!(status["holders"].as_array().unwrap().len(), 2, "{status}");
    assert_eq!(status["holders"][0]["access"], "shared");
    let status = json(&server, &["status", "--kind", "leased", "reports"]);
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

    let status = json(&server, &["status", "--kind", "semaphore", "downloads"]);
    assert_eq!(
        (&status["kind"], &status["available"], &status["holder"]),
        (&"semaphore".into(), &1.into(), &Value::Null)
    );
    let output = leasehold(&server.url())
        .args(["unlock", "--force", "--kind", "semaphore", "downloads"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(64), "{}", stdout(&output));
    // Both are numbers: who waits tells one from the other.
    while latch.status().await.unwrap().waiting_clients == 0 {
        tokio::task::yield_now().await;
    }
    let status = json(&server, &["status", "import"]);
    assert_eq!(
        (&status["kind"], &status["count"]),
        (&"latch".into(), &7.into())
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
        ("leased", "reports"),
        ("latch", "import"),
        ("fenced", "ledger"),
        ("mutex", "job"),
    ] {
        let answer = json(&server, &["unlock", "--force", name]);
        assert_eq!(answer["unlocked"], true, "{answer}");
        let answer = json(&server, &["unlock", "--force", "--kind", kind, name]);
        assert_eq!(answer["unlocked"], false, "{answer}");
    }
    assert!(permits.verify().await.is_err());
    assert!(three.is_valid());
    waiting.await.unwrap().unwrap();
    assert!(fenced.verify().await.is_err());
    assert!(plain.verify().await.is_err());
    for reader in readers {
        assert!(reader.verify().await.is_err());
    }
    assert_eq!(semaphore.available_permits().await.unwrap(), 5);
}

/// It is at the key of a mutex, and told apart by the queue beside it.
#[tokio::test]
async fn a_fair_mutex_is_found_while_clients_wait_for_it() {
    let server = Server::start(Flavor::Redis);
    let client = || async { leasehold::Client::connect(&server.url()).await.unwrap() };
    let (one, other) = (client().await, client().await);
    let turnstile = one.fair_mutex("turnstile");
    let fair = turnstile.lock().await.unwrap();
    let status = json(&server, &["status", "--kind", "fair", "turnstile"]);
    assert_eq!(
        (&status["kind"], &status["waiting_clients"]),
        (&"fair_mutex".into(), &0.into())
    );
    let next = tokio::spawn(other.fair_mutex("turnstile").lock());
    while turnstile.status().await.unwrap().waiting_clients == 0 {
        tokio::task::yield_now().await;
    }
    let status = json(&server, &["status", "turnstile"]);
    assert_eq!(
        (&status["kind"], &status["waiting_clients"]),
        (&"fair_mutex".into(), &1.into())
    );
    let answer = json(&server, &["unlock", "--force", "turnstile"]);
    assert_eq!(answer["unlocked"], true, "{answer}");
    assert!(fair.verify().await.is_err());
    // It is the next one's.
    let next = next.await.unwrap().unwrap();
    let answer = json(
        &server,
        &["unlock", "--force", "--kind", "fair", "turnstile"],
    );
    assert_eq!(answer["unlocked"], true, "{answer}");
    assert!(next.verify().await.is_err());
    let answer = json(
        &server,
        &["unlock", "--force", "--kind", "fair", "turnstile"],
    );
    assert_eq!(answer["unlocked"], false, "{answer}");
}

/// `unlock` deletes the key: what may be data needs a user that says what it is.
#[test]
fn what_may_be_data_is_not_unlocked_without_its_kind_and_not_shown() {
    let server = Server::start(Flavor::Redis);
    server.cli(&["SET", "session", "{\"secret\":1}"]);
    server.cli(&["HSET", "user", "secret", "1"]);
    for name in ["session", "user"] {
        let output = leasehold(&server.url())
            .args(["unlock", "--force", name])
            .output()
            .unwrap();
        assert_eq!(code(output.status), 64, "{name}: {}", stderr(&output));
        has(&stderr(&output), "--kind");
        assert_eq!(server.cli(&["EXISTS", name]), redis::Value::Int(1));
    }
    for name in ["session", "user"] {
        let mut command = leasehold(&server.url());
        let output = command.args(["status", name]).output().unwrap();
        has(&stdout(&output), "may be data");
        assert!(!stdout(&output).contains("secret"), "{}", stdout(&output));
    }
    let mut command = leasehold(&server.url());
    let skipped = command.args(["run", "--skip-if-held", "user", "true"]);
    has(&stderr(&skipped.output().unwrap()), "may be data");
    let shown = json(&server, &["status", "session"]);
    assert_eq!(shown["holder"]["owner"], serde_json::Value::Null, "{shown}");
    let kind = ["unlock", "--force", "--kind", "plain", "session"];
    let answer = json(&server, &kind);
    assert_eq!(answer["unlocked"], true);
    assert!(!answer.to_string().contains("secret"), "{answer}");
    // With an end, as data in a cache has.
    server.cli(&["SET", "session", "{\"secret\":1}", "PX", "60000"]);
    for words in [
        &["status", "session"][..],
        &["status", "--json", "session"],
        &["unlock", "--force", "--kind", "plain", "session"],
    ] {
        let mut command = leasehold(&server.url());
        let output = command.args(words).output().unwrap();
        assert_eq!(code(output.status), 0, "{}", stderr(&output));
        assert!(!stdout(&output).contains("secret"), "{}", stdout(&output));
    }
}

#[track_caller]
fn has(said: &str, words: &str) {
    assert!(said.contains(words), "no {words:?} in\n{said}");
}

/// The words for people, for what is particular to a kind.
#[tokio::test]
async fn each_kind_is_described_in_its_own_words() {
    let server = Server::start(Flavor::Redis);
    let said = |words: &[&str]| {
        let output = leasehold(&server.url()).args(words).output().unwrap();
        assert_eq!(code(output.status), 0, "{}", stderr(&output));
        stdout(&output)
    };
    let client = leasehold::Client::connect(&server.url()).await.unwrap();
    let label = format!(":{}", std::process::id());

    let spin = client.spin_mutex("sequence").lock().await.unwrap();
    let shown = said(&["status", "--kind", "spin", "sequence"]);
    has(&shown, &label);
    has(&shown, "are not seen");
    let plain = client.plain_mutex("ours").lock().await.unwrap();
    has(
        &said(&["status", "ours"]),
        "those of other libraries are not seen",
    );

    // Whether it is read or written, it is looked at as one lock.
    let reader = client.rw_lock("catalogue").read().await.unwrap();
    for kind in ["rw", "read", "write", "rw_lock"] {
        has(&said(&["status", "--kind", kind, "catalogue"]), "read by");
    }
    let beside = leasehold::Client::connect(&server.url()).await.unwrap();
    let other = beside.rw_lock("catalogue").read().await.unwrap();
    has(
        &said(&["unlock", "--force", "catalogue"]),
        "and another, and is free",
    );

    let semaphore = ["status", "--kind", "leased", "reports"];
    let shown = said(&semaphore);
    has(&shown, "there are none");
    assert!(!shown.contains("nobody holds it"), "{shown}");
    let permits = client.leased_semaphore("reports");
    permits.set_permits(2).await.unwrap();
    has(&said(&semaphore), "2 are free");
    let permit = permits.acquire().await.unwrap();
    let shown = said(&semaphore);
    has(&shown, "1 is free");
    has(&shown, &format!("permit {}", permit.owner()));
    let last = permits.acquire().await.unwrap();
    has(&said(&semaphore), "none is free");
    permits.set_permits(1).await.unwrap();
    has(&said(&semaphore), "1 too many are out");
    has(&said(&["unlock", "--force", "reports"]), &label);
    drop((spin, plain, reader, other, permit, last));

    // No kind of lock.
    server.cli(&["RPUSH", "list", "a"]);
    let output = leasehold(&server.url())
        .args(["status", "list"])
        .output()
        .unwrap();
    assert_eq!(code(output.status), 77);
    has(&stderr(&output), "holds a list");
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

#[test]
fn memory_is_said_to_be_empty_and_the_demo_takes_it_without_a_word() {
    for words in [&["status", "job"][..], &["unlock", "--force", "job"]] {
        let output = leasehold("memory:").args(words).output().unwrap();
        assert_eq!(code(output.status), 0, "{}", stderr(&output));
        let said = stderr(&output);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(
            said.contains("memory: is empty") && said.contains("--url"),
            "{said}"
        );
    }
    let demo = ["demo", "--json", "--url", "memory:"];
    let output = leasehold("redis://127.0.0.1:1/")
        .args(demo)
        .output()
        .unwrap();
    assert_eq!(code(output.status), 0, "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    assert!(
        stdout(&output).contains("\"memory\""),
        "{}",
        stdout(&output)
    );
}

#[tokio::test]
async fn a_holder_that_was_killed_is_named_until_its_lease_ends() {
    let (server, notes) = (Server::start(Flavor::Redis), Notes::new());
    let script = format!("echo >{}; sleep 100", notes.sh("up"));
    for kind in ["mutex", "leased", "write", "plain"] {
        let flags = match kind {
            "leased" => &["--lease", "20s", "--kind", kind, "--permits", "1"][..],
            _ => &["--lease", "20s", "--kind", kind],
        };
        let mut holder = Process::start(&mut run(&server.url(), flags, &script));
        notes.wait("up");
        let label = format!(":{}", holder.pid().as_raw_pid());
        let said = |words: &[&str]| leasehold(&server.url()).args(words).output().unwrap();
        wait_until(SOON, "the server has its label", || {
            server.cli(&["KEYS", "leasehold:client:*"]) != redis::Value::Array(Vec::new())
        });
        holder.signal(Signal::KILL);
        holder.end();
        let shown = stdout(&said(&["status", "job"]));
        has(&shown, &label);
        has(&shown, "gone: its client is not connected; free in ");
        has(&shown, " unless it comes back");
        has(&shown, &format!("server     redis://{}/0", server.addr()));
        let ask = ["run", "--kind", kind, "-n", "job", "true"];
        for (options, word) in [
            (&ask[..], "is taken"),
            (
                &["run", "--skip-if-held", "--kind", kind, "job", "true"],
                "skipped",
            ),
        ] {
            let told = stderr(&said(options));
            has(&told, word);
            has(&told, &label);
            has(&told, "; its client is not connected: free in ");
        }
        server.cli(&["FLUSHALL"]);
    }
}

#[test]
fn the_queue_is_shown_in_its_order_and_redissons_by_their_threads() {
    let server = Server::start(Flavor::Redis);
    let uuid = "79f0ed8b-09de-46ef-a0c4-2f29a1f5b3c1";
    server.cli(&["HSET", "job", &format!("{uuid}:57"), "1"]);
    server.cli(&["PEXPIRE", "job", "30000"]);
    for waiter in [format!("{uuid}:58"), format!("{uuid}:59")] {
        server.cli(&["RPUSH", "redisson_lock_queue:{job}", &waiter]);
    }
    let status = json(&server, &["status", "job"]);
    assert_eq!(
        (&status["holder"]["thread"], &status["kind"]),
        (&57.into(), &"fair_mutex".into())
    );
    let waiting: Vec<_> = status["queue"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["thread"])
        .collect();
    assert_eq!(waiting, [&Value::from(58), &59.into()]);
    let output = leasehold(&server.url()).args(["status", "job"]).output();
    let shown = stdout(&output.unwrap());
    has(
        &shown,
        &format!("held by    a Java client, thread 57  (client {uuid})"),
    );
    has(
        &shown,
        "next       a Java client, thread 58\n  then       a Java client, thread 59\n",
    );
    has(&shown, "unless it is renewed");
}

#[tokio::test]
async fn a_living_holder_is_told_as_one_that_may_go_on() {
    let server = Server::start(Flavor::Redis);
    let client = leasehold::Client::connect(&server.url()).await.unwrap();
    let guard = client.mutex("job").lock().await.unwrap();
    let run = |words: &[&str]| leasehold(&server.url()).args(words).output().unwrap();
    has(
        &stdout(&run(&["status", "job"])),
        "renews it as a rule; else free in ",
    );
    let busy = run(&["run", "-n", "job", "true"]);
    let busy = String::from_utf8(busy.stderr).unwrap();
    has(&busy, "\"job\" is taken: ");
    has(&busy, " has had it for ");
    has(&busy, " or less\n");
    let unlocked = stdout(&run(&["unlock", "--force", "job"]));
    has(
        &unlocked,
        "its holder is alive, and learns it when it renews, within ",
    );
    has(&unlocked, "two may be inside");
    drop(guard);
}

#[tokio::test]
async fn a_replica_is_told_and_misses_no_client() {
    let (server, replica) = (Server::start(Flavor::Redis), Server::start(Flavor::Redis));
    let client = leasehold::Client::connect(&server.url()).await.unwrap();
    let guard = client.mutex("job").lock().await.unwrap();
    let port = server.addr().port().to_string();
    replica.cli(&["REPLICAOF", "127.0.0.1", &port]);
    wait_until(SOON, "it has the name and the label", || {
        replica.cli(&["DBSIZE"]) == redis::Value::Int(2)
    });
    let status = json(&replica, &["status", "job"]);
    assert_eq!(
        (&status["replica"], &status["holder"]["connected"]),
        (&true.into(), &Value::Null)
    );
    assert!(status["holder"]["label"].is_string(), "{status}");
    let output = leasehold(&replica.url()).args(["status", "job"]).output();
    let shown = stdout(&output.unwrap());
    has(&shown, ", a replica: it may not know yet");
    has(&shown, "unless it is renewed");
    guard.release().await.unwrap();
}

/// The output of `leasehold ls`.
fn ls(server: &Server, words: &[&str]) -> String {
    let mut command = leasehold(&server.url());
    let output = command.arg("ls").args(words).output().unwrap();
    assert_eq!(code(output.status), 0, "{}", stderr(&output));
    assert_eq!(stderr(&output), "", "{words:?}");
    stdout(&output)
}

const REPORT: &str = "report\u{1b}[2J";

/// A lock of Java's that would never end; and one that a client of ours took ten minutes and a bit ago, before it went.
fn let_others_lock(server: &Server) {
    let client = "79f0ed8b-09de-46ef-a0c4-2f29a1f5b3c1";
    server.cli(&["HSET", "legacy:sync", &format!("{client}:57"), "1"]);
    // 11 bits under the milliseconds since 2026.
    let since = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
    let lease = (u64::try_from(since).unwrap() - 1_767_225_600_000 - 610_000) << 11;
    server.cli(&["HSET", REPORT, &format!("{client}:{lease}"), "1"]);
    server.cli(&["PEXPIRE", REPORT, "9000"]);
}

#[tokio::test]
async fn ls_lists_every_lock_in_a_table_and_as_lines_of_json() {
    let server = Server::start(Flavor::Redis);
    let said = |words: &[&str]| {
        let output = leasehold(&server.url()).args(words).output().unwrap();
        assert_eq!((code(output.status), stdout(&output)), (0, String::new()));
        stderr(&output)
    };
    let url = server.url();
    let none = format!("leasehold: no locks on {url} among its 0 keys (pattern *)\n");
    assert_eq!(said(&["ls"]), none);
    let prefixed = format!(
        "leasehold: no locks on {url} among its 0 keys (pattern a* under the prefix app:)\n"
    );
    assert_eq!(said(&["ls", "--prefix", "app:", "a*"]), prefixed);
    assert_eq!(ls(&server, &["--json"]), "");
    let client = leasehold::Client::connect(&server.url()).await.unwrap();
    let other = leasehold::Client::connect(&server.url()).await.unwrap();
    let plain = client.mutex("order:42").lock().await.unwrap();
    let reader = client.rw_lock("order:catalogue").read().await.unwrap();
    let beside = other.rw_lock("order:catalogue").read().await.unwrap();
    let fenced = client.fenced_mutex("ledger").lock().await.unwrap();
    let waits = tokio::spawn(other.fenced_mutex("ledger").lock());
    while client.status("ledger").await.unwrap().waiting_clients == 0 {
        tokio::task::yield_now().await;
    }
    let_others_lock(&server);
    server.cli(&["HSET", "data", "price", "10"]);

    let shown = ls(&server, &[]);
    let row = |line: &str| -> Vec<String> {
        let cells = line.split("  ").filter(|cell| !cell.is_empty());
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    let rows: Vec<Vec<String>> = shown.lines().map(row).collect();
    let heads = [
        "NAME",
        "KIND",
        "HOLDER",
        "HELD FOR ≤",
        "LEASE LEFT",
        "WAITING",
    ];
    assert_eq!(rows[0], heads);
    assert_eq!(
        shown.lines().last(),
        Some("5 locks · 1 with waiters · 1 without an end !")
    );
    let rows = &rows[..rows.len() - 1];
    let names: Vec<&str> = rows[1..].iter().map(|row| row[0].as_str()).collect();
    let expected = [
        "ledger",
        "legacy:sync",
        "order:42",
        "order:catalogue",
        r"report\u{1b}[2J",
    ];
    assert_eq!(names, expected, "{shown}");
    let [_, ledger, legacy, order, catalogue, report] = rows else {
        panic!("{shown}");
    };
    assert_eq!((ledger[1].as_str(), ledger[5].as_str()), ("fenced", "1"));
    let java = [
        "mutex",
        "a Java client, thread 57",
        "–",
        "never ends !",
        "–",
    ];
    assert_eq!(legacy[1..], java);
    let label = format!(":{}", std::process::id());
    assert!(order[2].ends_with(&label), "{shown}");
    assert!(order[4].ends_with(" s"), "{shown}");
    assert_eq!(catalogue[1], "read");
    assert!(catalogue[2].ends_with("and another"), "{shown}");
    assert!(report[3].starts_with("10 min 1"), "{shown}");
    let none = "leasehold: 5 locks match *, but none is as --kind, --older or --gone ask for\n";
    assert_eq!(said(&["ls", "--kind", "latch"]), none);

    // Each line is what `status` says.
    let line: Value = serde_json::from_str(ls(&server, &["ledger", "--json"]).trim()).unwrap();
    let mut status = json(&server, &["status", "ledger"]);
    for holder in ["/holder", "/holders/0"] {
        let left = format!("{holder}/remaining_ms");
        *status.pointer_mut(&left).unwrap() = line.pointer(&left).unwrap().clone();
    }
    // Only `status` looks at the connections of those that wait.
    let connected = status.pointer_mut("/queue/0/connected");
    assert_eq!(connected.unwrap().take(), true);
    assert_eq!(line, status);
    waits.abort();
    drop((plain, reader, beside, fenced));
}

#[tokio::test]
async fn ls_lists_those_that_are_asked_for_in_the_order_that_is_asked_for() {
    let server = Server::start(Flavor::Redis);
    let client = leasehold::Client::connect(&server.url()).await.unwrap();
    let plain = client.mutex("order:42").lock().await.unwrap();
    let reader = client.rw_lock("order:catalogue").read().await.unwrap();
    let waits = tokio::spawn(client.rw_lock("order:catalogue").write());
    while client
        .rw_lock("order:catalogue")
        .status()
        .await
        .unwrap()
        .waiting_clients
        == 0
    {
        tokio::task::yield_now().await;
    }
    let_others_lock(&server);
    let names = |words: &[&str]| -> Vec<String> {
        let lines = ls(&server, &[words, &["--json"]].concat());
        let name = |line| {
            let line: Value = serde_json::from_str(line).unwrap();
            line["name"].as_str().unwrap().to_owned()
        };
        lines.lines().map(name).collect()
    };
    assert_eq!(names(&["order:*"]), ["order:42", "order:catalogue"]);
    assert_eq!(names(&["--kind", "rw"]), ["order:catalogue"]);
    assert_eq!(names(&["--kind", "spin", "order:*"]), ["order:42"]);
    assert_eq!(names(&["--older", "5m"]), [REPORT]);
    let (by_held, by_left) = (names(&["--sort", "held"]), names(&["--sort", "left"]));
    assert_eq!((by_held[0].as_str(), by_left[0].as_str()), (REPORT, REPORT));
    // A lock that tells no time comes last.
    assert_eq!(
        (by_held.last(), by_left.last()),
        (
            Some(&"legacy:sync".to_owned()),
            Some(&"legacy:sync".to_owned())
        )
    );
    assert_eq!(names(&["--sort", "waiting"])[0], "order:catalogue");
    waits.abort();
    drop((plain, reader));
}

#[test]
fn a_pattern_that_is_given_to_status_is_told_from_a_name_and_sent_to_ls() {
    let server = Server::start(Flavor::Redis);
    for name in ["order:*", "order:4?", "order:[12]"] {
        let mut command = leasehold(&server.url());
        let output = command.args(["status", name]).output().unwrap();
        assert_eq!(code(output.status), 0);
        has(&stderr(&output), &format!("leasehold ls '{name}'"));
        has(&stderr(&output), "one name");
        let mut command = leasehold(&server.url());
        let output = command.args(["status", "-q", name]).output().unwrap();
        assert_eq!((code(output.status), stderr(&output)), (1, String::new()));
        // It is a name all the same.
        let java = "79f0ed8b-09de-46ef-a0c4-2f29a1f5b3c1:57";
        server.cli(&["HSET", name, java, "1"]);
        let mut command = leasehold(&server.url());
        let output = command.args(["status", name]).output().unwrap();
        assert_eq!(stderr(&output), "");
    }
}

/// The rest is listed, and the part that is missing is told with its node and its slots.
#[test]
fn ls_lists_the_rest_of_a_cluster_whose_node_is_dead() {
    let settings = ClusterSettings::new().args(&["--cluster-require-full-coverage", "no"]);
    let mut cluster = Cluster::start_with(Flavor::Redis, settings);
    let url = cluster.url();
    let names: Vec<String> = (0..8).map(|i| format!("order:{i}")).collect();
    let mut holders = Vec::new();
    for name in &names {
        let mut run = leasehold(&url);
        let run = run.args(["run", name, "sleep", "100"]);
        holders.push(Process::start(run));
    }
    let listed = |args: &[&str]| leasehold(&url).arg("ls").args(args).output().unwrap();
    wait_until(SOON, "all are held", || {
        stdout(&listed(&["--json"])).lines().count() == names.len()
    });
    let primary = |name: &String| cluster.primary_of(cluster.slot(name));
    let left: Vec<_> = names.iter().filter(|name| primary(name) != 0).collect();
    assert!(!left.is_empty() && left.len() < names.len(), "{left:?}");
    let left: std::collections::BTreeSet<String> = left.into_iter().cloned().collect();
    cluster.kill(cluster.partner(0));
    cluster.kill(0);
    let node = cluster.addr(0).to_string();
    let output = listed(&["--json"]);
    let said = stderr(&output);
    assert_eq!(code(output.status), 69, "{said}");
    let found = stdout(&output);
    let found = found.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        line["name"].as_str().unwrap().to_owned()
    });
    assert_eq!(found.collect::<std::collections::BTreeSet<_>>(), left);
    let failure: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(failure["exit"], 69);
    let text = listed(&[]);
    assert_eq!(code(text.status), 69);
    let shown = stdout(&text);
    assert!(left.iter().all(|name| shown.contains(name)), "{shown}");
    for said in [failure["error"].as_str().unwrap(), &stderr(&text)] {
        assert!(
            said.contains(&node) && said.contains("of 16384 slots"),
            "{said}"
        );
    }
}
