//! `leasehold serve`: the page's data, the metrics, and who may ask.
#![cfg(feature = "serve")]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    io::{BufRead, BufReader, Read, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::Duration,
};

use common::{Notes, Process, SOON, code, leasehold, stderr, stdout};
use leasehold_testkit::{Cluster, ClusterSettings, Flavor, Server, wait_until};
use serde_json::{Value, json};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A running `serve`.
struct Page {
    at: String,
    /// By which locks may be taken away.
    unlock: String,
    process: Process,
}

impl Page {
    fn start(server: &Server, words: &[&str]) -> Page {
        Page::start_at(&server.url(), words)
    }

    fn start_at(url: &str, words: &[&str]) -> Page {
        let mut command = leasehold(url);
        command.args(["serve", "--listen", "127.0.0.1:0"]);
        let notes = Notes::new();
        let said = fs::File::create(notes.path("said")).unwrap();
        let process = Process::start(command.args(words).stderr(said));
        let lines = 1 + usize::from(words.contains(&"--allow-unlock"));
        wait_until(SOON, "it listens", || {
            notes.read("said").lines().count() == lines
        });
        let said = notes.read("said");
        let part = |from: &str, to: char| {
            let (_, rest) = said.split_once(from)?;
            Some(rest.split(to).next()?.trim().to_owned())
        };
        Page {
            at: part("http://", '/').unwrap(),
            unlock: part("#unlock=", '\n').unwrap_or_default(),
            process,
        }
    }

    fn open(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
        let mut request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            let _ = write!(request, "Host: {}\r\n", self.at);
        }
        for (name, value) in headers {
            let _ = write!(request, "{name}: {value}\r\n");
        }
        let _ = write!(request, "Content-Length: {}\r\n\r\n{body}", body.len());
        let mut stream = TcpStream::connect(&self.at).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    /// The status, and the whole answer.
    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
        let mut answer = String::new();
        let mut stream = self.open(method, path, headers, body);
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer)
    }

    fn get(&self, path: &str) -> (u16, String) {
        self.ask("GET", path, &[], "")
    }

    /// The documents that a page gets, for as long as this lives.
    fn live(&self, query: &str) -> Live {
        let stream = self.open("GET", &format!("/live?{query}"), &[], "");
        Live(BufReader::new(stream))
    }

    fn unlock(&self, headers: &[(&str, &str)], asked: &Value) -> (u16, String) {
        let json = [("Content-Type", "application/json")];
        self.ask(
            "POST",
            "/unlock",
            &[&json, headers].concat(),
            &asked.to_string(),
        )
    }

    /// The metrics by their series.
    fn scrape(&self) -> BTreeMap<String, f64> {
        let (status, text) = self.get("/metrics");
        assert_eq!(status, 200, "{text}");
        let lines = text.lines().filter(|line| line.starts_with("leasehold_"));
        let value = |line: &str| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), value.parse().unwrap())
        };
        lines.map(value).collect()
    }
}

struct Live(BufReader<TcpStream>);

impl Live {
    fn next(&mut self) -> Value {
        loop {
            let mut line = String::new();
            assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "the stream ended");
            if let Some(data) = line.strip_prefix("data: ") {
                return serde_json::from_str(data).unwrap();
            }
        }
    }

    /// The first that is as wanted, and the number of those before it.
    #[track_caller]
    fn until(&mut self, mut is: impl FnMut(&Value) -> bool) -> (Value, usize) {
        for before in 0..40 {
            let document = self.next();
            if is(&document) {
                return (document, before);
            }
        }
        panic!("none of 40 is so");
    }
}

fn names(list: &Value) -> BTreeSet<String> {
    let rows = list["rows"].as_array().unwrap().iter();
    rows.map(|row| row["name"].as_str().unwrap().to_owned())
        .collect()
}

/// A process that holds `name` as one of this kind.
fn holder(server: &Server, kind: &str, name: &str) -> Process {
    let notes = Notes::new();
    let script = format!("echo >{}; sleep 100", notes.sh("up"));
    let mut command = leasehold(&server.url());
    command.args([
        "run",
        "--kind",
        kind,
        "--permits",
        "2",
        name,
        "sh",
        "-c",
        &script,
    ]);
    if kind != "leased" {
        command = leasehold(&server.url());
        command.args(["run", "--kind", kind, name, "sh", "-c", &script]);
    }
    let holder = Process::start(&mut command);
    notes.wait("up");
    holder
}

#[test]
fn a_page_sees_a_lock_come_and_go_within_two_looks() {
    let server = Server::start(Flavor::Redis);
    let page = Page::start(&server, &[]);
    let mut live = page.live("");
    let first = live.next();
    assert_eq!(
        (&first["locks"], &first["trouble"]),
        (&json!(0), &Value::Null)
    );
    let mut held = holder(&server, "mutex", "order:42");
    // Looks that were under way when it was taken are not counted: they were read before.
    let (list, _) = live.until(|list| list["locks"] == 1);
    let row = &list["rows"][0];
    assert_eq!(
        (&row["name"], &row["kind"]),
        (&json!("order:42"), &json!("mutex"))
    );
    assert!(row["held_ms"].is_u64(), "{row}");
    live.until(|list| list["rows"][0]["holder"]["state"] == "alive");
    let mut one = page.live("name=order:42");
    let shown = one.next();
    assert_eq!(shown["status"]["name"], "order:42", "{shown}");
    assert_eq!(shown["keys"][0]["key"], "order:42", "{shown}");
    held.signal(rustix::process::Signal::TERM);
    held.code();
    let (free, looks) = one.until(|one| one["status"].is_null());
    assert!(looks <= 2, "{looks}");
    let past = &free["history"][0];
    assert!(
        past["until_ms"].as_u64() >= past["since_ms"].as_u64(),
        "{past}"
    );
    let (_, looks) = live.until(|list| list["locks"] == 0);
    assert!(looks <= 2, "{looks}");
}

#[test]
fn a_list_is_narrowed_by_what_is_asked_for() {
    let server = Server::start(Flavor::Redis);
    let page = Page::start(&server, &[]);
    let _held: Vec<_> = [
        ("mutex", "order:1"),
        ("fenced", "order:2"),
        ("mutex", "stock:<img onerror=x>"),
    ]
    .map(|(kind, name)| holder(&server, kind, name))
    .into();
    let mut waiter = leasehold(&server.url());
    let _waiter = Process::start(waiter.args(["run", "order:1", "true"]));
    let all = page
        .live("")
        .until(|list| list["locks"] == 3 && list["waited_for"] == 1)
        .0;
    assert_eq!(all["matching"], 3);
    for (query, found) in [
        ("search=order", vec!["order:1", "order:2"]),
        ("search=order:*&kind=fenced", vec!["order:2"]),
        ("waited=1", vec!["order:1"]),
        ("gone=1", vec![]),
        ("search=%3Cimg", vec!["stock:<img onerror=x>"]),
    ] {
        let list = page.live(query).next();
        assert_eq!(
            names(&list),
            found.iter().map(|it| (*it).to_owned()).collect(),
            "{query}"
        );
        assert_eq!(
            (&list["locks"], &list["matching"]),
            (&json!(3), &json!(found.len()))
        );
    }
}

/// A JVM with Redisson in it, which obeys lines.
struct Java {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Java {
    fn start(server: &Server) -> Java {
        let built = Path::new(ROOT).join("target/redisson").canonicalize();
        let built = built.expect("Redisson is built by scripts/test --setup");
        let classes = format!("{0}/redisson-peer-0.jar:{0}/lib/*", built.display());
        let mut java = Command::new("java");
        java.args([
            "-Xmx256m",
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            "-cp",
        ]);
        java.args([
            &classes,
            "leasehold.Peer",
            &server.url().replace("valkey:", "redis:"),
            "30000",
        ]);
        java.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = java.spawn().unwrap();
        let orders = process.stdin.take().unwrap();
        let mut answers = BufReader::new(process.stdout.take().unwrap());
        answers.read_line(&mut String::new()).unwrap(); // it is ready
        Java {
            process,
            orders,
            answers,
        }
    }

    /// Its answer, behind what it says of itself.
    fn obey(&mut self, order: &str, answer: &str) {
        writeln!(self.orders, "{order}").unwrap();
        let mut said = String::new();
        loop {
            let read = self.answers.read_line(&mut said).unwrap();
            assert!(read > 0 && !said.contains("failed: "), "{order}: {said}");
            if said.contains(answer) {
                return;
            }
        }
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn the_page_the_metrics_top_and_ls_agree_on_locks_of_every_kind_and_of_redisson() {
    let server = Server::start(Flavor::Redis);
    let mut java = Java::start(&server);
    java.obey("lock java:mutex", "locked");
    java.obey("fair lock java:fair", "locked");
    java.obey("fenced java:fenced lock", "1");
    java.obey("read lock java:read", "locked");
    java.obey("write lock java:write", "locked");
    java.obey("permits java:permits set 2", "true");
    java.obey("permits java:permits acquire 1 60000", "\n");
    let kinds = [
        "mutex", "fenced", "read", "write", "leased", "plain", "spin", "fair",
    ];
    let _held: Vec<_> = kinds
        .map(|kind| holder(&server, kind, &format!("ours:{kind}")))
        .into();
    for data in 0..1000 {
        server.cli(&["SET", &format!("data:{data}"), "some value"]);
    }
    server.cli(&[
        "HSET",
        "endless",
        "79f0ed8b-09de-46ef-a0c4-2f29a1f5b3c1:7",
        "1",
    ]);
    let of_java = ["mutex", "fair", "fenced", "read", "write", "permits"];
    let made: BTreeSet<String> = kinds
        .map(|kind| format!("ours:{kind}"))
        .into_iter()
        .chain(of_java.map(|kind| format!("java:{kind}")))
        .chain(["endless".to_owned()])
        .collect();

    let said = |words: &[&str]| stdout(&leasehold(&server.url()).args(words).output().unwrap());
    let ls: Vec<Value> = said(&["ls", "--json"])
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(names(&json!({ "rows": ls })), made);
    let shown = said(&["top", "--once"]);
    if cfg!(feature = "top") {
        for name in &made {
            assert!(
                shown.lines().any(|line| line.starts_with(name)),
                "{name}\n{shown}"
            );
        }
    }
    let page = Page::start(&server, &["--class", "java:", "--class", "ours:"]);
    let (list, _) = page
        .live("")
        .until(|list| list["round_ms"].is_u64() && list["locks"] == made.len());
    assert_eq!(names(&list), made);
    for row in list["rows"].as_array().unwrap() {
        let of_ls = ls.iter().find(|lock| lock["name"] == row["name"]).unwrap();
        assert_eq!(row["kind"], of_ls["kind"]);
        assert_eq!(row["holder"]["owner"], of_ls["holder"]["owner"]);
        // Also of Redisson's, which do not tell: since the page looks.
        let is_told = row["held_ms"].is_u64();
        let is_ours = row["holder"]["since_ms"].is_u64();
        assert!(is_told && row["held_is_least"] == !is_ours, "{row}");
    }
    let scraped = page.scrape();
    let locks = scraped
        .iter()
        .filter(|(series, _)| series.starts_with("leasehold_server_locks{"));
    let count = |class: &str| -> f64 {
        let of = format!("class=\"{class}\"");
        locks
            .clone()
            .filter(|(series, _)| series.contains(&of))
            .map(|(_, count)| count)
            .sum()
    };
    let counts = [count("ours:"), count("java:"), count("other")];
    assert_eq!(
        counts.map(|count| format!("{count}")),
        ["8", "6", "1"],
        "{scraped:#?}"
    );
    let endless: f64 = scraped
        .iter()
        .filter(|(it, _)| it.starts_with("leasehold_server_endless"))
        .map(|it| it.1)
        .sum();
    assert!(endless.eq(&1.0), "{scraped:#?}");
    check_pages(&scraped);
}

/// The alerts ask for series that are there, each has its part of the page for operators, and each series its row in docs/metrics.md.
fn check_pages(scraped: &BTreeMap<String, f64>) {
    let read = |file: &str| fs::read_to_string(Path::new(ROOT).join(file)).unwrap();
    let (alerts, metrics, page) = (
        read("ops/serve.yml"),
        read("docs/metrics.md"),
        read("docs/operating.md"),
    );
    let series = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words
            .filter(|it| it.starts_with("leasehold_server_"))
            .map(str::to_owned)
            .collect()
    };
    let there: BTreeSet<String> = scraped
        .keys()
        .map(|it| it.split('{').next().unwrap().to_owned())
        .collect();
    assert!(
        series(&alerts).len() > 4 && series(&alerts).is_subset(&there),
        "{there:#?}"
    );
    assert_eq!(
        series(&metrics),
        there,
        "docs/metrics.md has a row of each, and of no other"
    );
    for alert in alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
    {
        let has_part = |line: &str| line.starts_with("### ") && line.contains(alert);
        assert!(page.lines().any(has_part), "{alert} is not on the page");
        assert!(
            alerts.contains(&alert.to_lowercase()),
            "{alert} does not name its part"
        );
    }
}

#[test]
fn nothing_is_asked_while_no_page_is_open() {
    let server = Server::start(Flavor::Redis);
    let page = Page::start(&server, &[]);
    let mut live = page.live("");
    live.next();
    drop(live);
    // The look that was under way may still end.
    let asked = || {
        server
            .calls()
            .iter()
            .filter(|(name, _)| *name != "info" && !name.starts_with("config"))
            .map(|it| it.1)
            .sum::<u64>()
    };
    let mut before = asked();
    wait_until(SOON, "it has stopped", || {
        thread::sleep(Duration::from_millis(1100)); // two looks would fit into it
        let now = asked();
        std::mem::replace(&mut before, now) == now
    });
    // The next page is told of what is there now, and not of what was.
    let _held = holder(&server, "mutex", "order:42");
    let list = page.live("").next();
    assert_eq!(names(&list), BTreeSet::from(["order:42".to_owned()]));
}

/// A look at all keys of this server takes some ten seconds.
fn large() -> Server {
    let server = Server::start(Flavor::Redis);
    let fill = "for i = 1, 40000 do redis.call('SET', 'data:' .. i, 'some value') end";
    server.cli(&["EVAL", fill, "0"]);
    server
}

#[test]
fn one_lock_is_seen_at_once_also_where_a_look_at_all_keys_takes_long() {
    let server = large();
    let page = Page::start(&server, &[]);
    let mut held = holder(&server, "mutex", "order:42");
    let mut list = page.live("");
    let mut one = page.live("name=order:42&kind=mutex");
    assert_eq!(one.next()["status"]["name"], "order:42");
    held.signal(rustix::process::Signal::TERM);
    held.code();
    let (_, looks) = one.until(|one| one["status"].is_null());
    assert!(looks <= 3, "{looks}");
    // Taken again, by another.
    let _held = holder(&server, "mutex", "order:42");
    let (again, looks) = one.until(|one| one["status"].is_object());
    assert!(looks <= 3, "{looks}");
    assert_eq!(again["history"].as_array().unwrap().len(), 2, "{again}");
    assert!(
        list.next()["round_ms"].is_null(),
        "the first round is under way"
    );
}

#[test]
fn a_server_whose_first_round_takes_long_is_up_and_no_sum_is_too_small() {
    let server = large();
    let page = Page::start(&server, &[]);
    let _held = holder(&server, "mutex", "order:42");
    let short = [("X-Prometheus-Scrape-Timeout-Seconds", "2")];
    let (status, text) = page.ask("GET", "/metrics", &short, "");
    let series = |text: &str| {
        text.lines()
            .filter(|it| it.starts_with("leasehold"))
            .count()
    };
    assert!(
        status == 200 && text.contains("leasehold_server_up 1"),
        "{text}"
    );
    assert_eq!(series(&text), 1, "{text}");
}

#[test]
fn a_holder_that_let_go_and_ended_is_not_gone_for_longer_than_two_looks() {
    let server = large();
    let page = Page::start(&server, &[]);
    let mut held = holder(&server, "mutex", "order:42");
    // On no screen: only the metrics, and the list's counts, tell of it.
    let mut live = page.live("search=other");
    live.until(|list| list["locks"] == 1);
    held.signal(rustix::process::Signal::TERM);
    held.code();
    let mut gone = 0;
    live.until(|list| {
        gone += usize::from(list["gone"] == 1);
        list["locks"] == 0
    });
    assert!(gone <= 2, "{gone}");
}

#[test]
fn a_lock_is_taken_away_only_from_the_holder_that_is_meant() {
    let server = Server::start(Flavor::Redis);
    let page = Page::start(&server, &["--allow-unlock"]);
    let _held = holder(&server, "mutex", "order:42");
    let list = page.live("").until(|list| list["locks"] == 1).0;
    assert_eq!(list["may_unlock"], true);
    let owner = &list["rows"][0]["holder"]["owner"];
    let token = [("X-Leasehold-Token", page.unlock.as_str())];
    let meant = json!({ "name": "order:42", "kind": "mutex", "owners": [owner] });
    let other = json!({ "name": "order:42", "kind": "mutex", "owners": ["another"] });
    let free = json!({ "name": "order:43", "kind": "mutex", "owners": [owner] });
    let with = |more: (&'static str, &'static str)| [token[0], more];

    let refused = page.unlock(&with(("Origin", "http://evil.example")), &meant);
    assert_eq!(refused.0, 403, "{}", refused.1);
    assert_eq!(page.unlock(&with(("Host", "evil.example")), &meant).0, 403);
    assert_eq!(page.unlock(&[], &meant).0, 401);
    assert_eq!(
        page.unlock(&[("X-Leasehold-Token", "0123456789abcdef")], &meant)
            .0,
        401
    );
    let plain = [token[0], ("Content-Type", "text/plain")];
    assert_eq!(
        page.ask("POST", "/unlock", &plain, &meant.to_string()).0,
        415
    );
    let (status, text) = page.unlock(&token, &other);
    assert!(
        status == 409 && text.contains(owner.as_str().unwrap()),
        "{text}"
    );
    assert_eq!(page.unlock(&token, &free).0, 404);
    assert_eq!(page.get("/unlock").0, 405);
    assert_eq!(
        names(&page.live("").next()).len(),
        1,
        "it is held as before"
    );

    let origin = format!("http://{}", page.at);
    let (status, text) = page.unlock(&[token[0], ("Origin", &origin)], &meant);
    assert_eq!(status, 200, "{text}");
    page.live("").until(|list| list["locks"] == 0);

    let only_shows = Page::start(&server, &[]);
    assert_eq!(only_shows.unlock(&token, &meant).0, 403);
}

#[test]
fn a_foreign_host_and_a_request_without_the_token_get_nothing() {
    let server = Server::start(Flavor::Redis);
    let page = Page::start(
        &server,
        &["--token", "0123456789abcdef", "--host", "locks.example.org"],
    );
    for path in ["/", "/live", "/metrics"] {
        assert_eq!(
            page.ask("GET", path, &[("Host", "evil.example")], "").0,
            403,
            "{path}"
        );
    }
    let foreign = [("Sec-Fetch-Site", "cross-site")];
    assert_eq!(page.ask("GET", "/live", &foreign, "").0, 403);
    for path in ["/live", "/metrics"] {
        let (status, text) = page.get(path);
        assert!(
            status == 401 && text.contains("www-authenticate: Bearer"),
            "{text}"
        );
    }
    let (status, text) = page.get("/");
    assert!(
        status == 200 && text.contains("content-security-policy: default-src 'none'"),
        "{text}"
    );
    let given = [
        ("Host", "locks.example.org"),
        ("Authorization", "Bearer 0123456789abcdef"),
    ];
    assert_eq!(page.ask("GET", "/metrics", &given, "").0, 200);
    let near = [("Authorization", "Bearer 0123456789abcdeg")];
    assert_eq!(page.ask("GET", "/metrics", &near, "").0, 401);
}

#[test]
fn a_server_that_is_away_is_told_and_its_return_seen() {
    let mut server = Server::start(Flavor::Redis);
    let mut page = Page::start(&server, &[]);
    let mut live = page.live("");
    assert_eq!(live.next()["trouble"], Value::Null);
    server.kill();
    let (list, _) = live.until(|list| list["trouble"].is_string());
    println!("{}", list["trouble"]);
    let scraped = page.scrape();
    assert!(
        scraped["leasehold_server_up"].eq(&0.0) && scraped.len() == 1,
        "{scraped:?}"
    );
    server.restart();
    live.until(|list| list["trouble"].is_null());
    assert!(page.scrape()["leasehold_server_up"].eq(&1.0));
    page.process.signal(rustix::process::Signal::TERM);
    assert_eq!(page.process.code(), 143);
}

#[test]
fn a_dead_node_of_a_cluster_hides_no_lock_of_the_others() {
    let settings = ClusterSettings::new().args(&["--cluster-require-full-coverage", "no"]);
    let mut cluster = Cluster::start_with(Flavor::Redis, settings);
    let url = cluster.url();
    let names: Vec<String> = (0..8).map(|i| format!("order:{i}")).collect();
    let mut hold = |name: &String| {
        let mut run = leasehold(&url);
        Process::start(run.args(["run", name, "sleep", "100"]))
    };
    let _held: Vec<Process> = names.iter().map(&mut hold).collect();
    let page = Page::start_at(&url, &[]);
    let mut live = page.live("");
    live.until(|list| list["locks"] == names.len());
    let primary = |name: &&String| cluster.primary_of(cluster.slot(name));
    let left = names.iter().filter(|name| primary(name) != 0).count();
    assert!(left > 0 && left < names.len(), "{left}");
    cluster.kill(cluster.partner(0));
    cluster.kill(0);
    let node = cluster.addr(0).to_string();
    let is_told = |list: &Value| {
        list["trouble"]
            .as_str()
            .is_some_and(|it| it.contains(&node))
    };
    live.until(is_told);
    let scraped = page.scrape();
    assert!(scraped["leasehold_server_up"].eq(&0.0), "{scraped:?}");
    let locks = scraped
        .iter()
        .find(|(name, _)| name.starts_with("leasehold_server_locks{"));
    let locks = locks.map(|(_, count)| *count);
    // The dead node's locks count until their leases have ended.
    let least = u32::try_from(left).unwrap();
    assert!(
        locks.is_some_and(|it| it >= f64::from(least)),
        "{scraped:?}"
    );
}

#[test]
fn bad_input_is_refused_before_it_listens() {
    let server = Server::start(Flavor::Redis);
    let page = Page::start(&server, &[]);
    let said = |words: &[&str]| {
        let output = leasehold(&server.url())
            .arg("serve")
            .args(words)
            .output()
            .unwrap();
        (code(output.status), stderr(&output))
    };
    let (status, text) = said(&["--listen", "0.0.0.0:0"]);
    assert!(status == 64 && text.contains("--token"), "{text}");
    let (status, text) = said(&["--token", "short"]);
    assert!(status == 64 && text.contains("at least 16"), "{text}");
    let (status, text) = said(&["--listen", &page.at]);
    assert!(status == 69 && text.contains(&page.at), "{text}");
    let (status, text) = said(&["--listen", "nowhere"]);
    assert!(status == 64, "{text}");
}
