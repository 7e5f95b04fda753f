//! Servers start, answer, freeze, and are gone afterwards.

use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold_testkit::{Flavor, Server, wait_until};
use redis::Value;

const SOON: Duration = Duration::from_secs(10);

fn runs(pid: u32) -> bool {
    let pid = rustix::process::Pid::from_raw(pid.try_into().expect("a pid")).expect("a pid");
    rustix::process::test_kill_process(pid).is_ok()
}

#[test]
fn every_flavor_here_starts_answers_and_stops() {
    let flavors = Flavor::available();
    assert!(
        !flavors.is_empty(),
        "neither redis-server nor valkey-server is here"
    );
    for flavor in flavors {
        let server = Server::start(flavor);
        assert_eq!(
            server.cli(&["PING"]),
            Value::SimpleString("PONG".to_owned()),
            "{flavor}"
        );
        assert!(server.addr().ip().is_loopback());
        let Value::BulkString(info) = server.cli(&["INFO", "server"]) else {
            panic!("INFO is text")
        };
        let info = String::from_utf8(info).expect("text");
        assert!(
            info.contains(&format!("process_id:{}\r\n", server.pid())),
            "{flavor} is another"
        );
        assert_eq!(
            info.contains("server_name:valkey"),
            flavor == Flavor::Valkey,
            "{flavor}"
        );
        let (pid, dir) = (server.pid(), server.dir().to_owned());
        assert!(runs(pid));
        drop(server);
        assert!(!runs(pid), "{flavor} is still there");
        assert!(!dir.exists());
    }
}

#[test]
fn servers_do_not_share_data() {
    let (one, other) = (Server::start(Flavor::Redis), Server::start(Flavor::Redis));
    one.cli(&["SET", "name", "ours"]);
    assert_eq!(other.cli(&["EXISTS", "name"]), Value::Int(0));
}

#[test]
fn a_frozen_server_answers_after_the_thaw() {
    let server = Server::start(Flavor::Redis);
    let mut connection = server.connection();
    connection
        .set_read_timeout(Some(Duration::from_millis(50)))
        .expect("a timeout");
    server.freeze();
    let error = redis::cmd("PING")
        .exec(&mut connection)
        .expect_err("nobody answers");
    assert!(error.is_timeout(), "{error}");
    server.thaw();
    assert_eq!(server.cli(&["EXISTS", "name"]), Value::Int(0));
}

#[test]
fn a_frozen_server_can_be_killed() {
    let mut server = Server::start(Flavor::Redis);
    server.freeze();
    let pid = server.pid();
    server.kill();
    assert!(!runs(pid));
    assert!(server.try_cli(&["PING"]).is_err());
}

#[test]
fn a_restart_keeps_the_port_and_loses_the_data() {
    let mut server = Server::start(Flavor::Redis);
    server.cli(&["SET", "name", "ours"]);
    let (url, pid) = (server.url(), server.pid());
    server.restart();
    assert_eq!(server.url(), url);
    assert_ne!(server.pid(), pid);
    assert!(!runs(pid));
    assert_eq!(server.cli(&["EXISTS", "name"]), Value::Int(0));
}

#[test]
fn arguments_reach_the_server() {
    let args = ["--requirepass", "secret", "--unixsocket", "redis.sock"];
    let server = Server::start_with(Flavor::Redis, &args);
    assert_eq!(server.cli(&["EXISTS", "name"]), Value::Int(0));
    assert!(server.dir().join("redis.sock").exists());
    let stranger = redis::Client::open(format!("redis://{}/", server.addr())).expect("a url");
    let mut stranger = stranger.get_connection().expect("a connection");
    let error = redis::cmd("GET")
        .arg("name")
        .exec(&mut stranger)
        .expect_err("no password given");
    assert_eq!(error.code(), Some("NOAUTH"), "{error}");
}

#[test]
#[should_panic(expected = "its log:")]
fn what_the_server_says_against_its_arguments_is_shown() {
    Server::start_with(Flavor::Redis, &["--no-such-setting", "1"]);
}

#[test]
fn calls_are_counted_by_command() {
    let server = Server::start(Flavor::Redis);
    let processed = server.commands_processed();
    server.cli(&["SET", "name", "ours"]);
    server.cli(&["EVAL", "return redis.call('GET', KEYS[1])", "1", "name"]);
    assert_eq!(
        server.commands_processed() - processed,
        3 + 1,
        "SET, EVAL, GET and an INFO"
    );
    let calls = server.calls();
    let kits = calls
        .keys()
        .filter(|name| ["info", "ping"].contains(&name.as_str()))
        .count();
    assert_eq!((calls["set"], calls["eval"], calls["get"]), (1, 1, 1));
    assert_eq!(calls.len(), kits + 3, "{calls:?}");
}

#[tokio::test]
async fn a_server_starts_in_an_async_test() {
    let server = Server::start(Flavor::Redis);
    let client = redis::Client::open(server.url()).expect("a url");
    let mut connection = client
        .get_multiplexed_async_connection()
        .await
        .expect("a connection");
    redis::cmd("SET")
        .arg("name")
        .arg("ours")
        .exec_async(&mut connection)
        .await
        .expect("SET");
    assert_eq!(server.cli(&["EXISTS", "name"]), Value::Int(1));
}

const AS_CHILD: &str = "LEASEHOLD_TESTKIT_AS_CHILD";

/// Run by the next test in a process of its own, which that one kills.
#[test]
#[ignore = "for the next test only"]
fn child_with_a_server() {
    if std::env::var_os(AS_CHILD).is_none() {
        return;
    }
    let server = Server::start(Flavor::Redis);
    println!("\nserver {} in {}", server.pid(), server.dir().display());
    loop {
        std::thread::park();
    }
}

#[test]
fn a_server_does_not_outlive_a_killed_test() {
    use std::io::{BufRead as _, BufReader};

    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "child_with_a_server", "--ignored", "--nocapture"])
        .env(AS_CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let line = lines.find_map(|line| line.ok()?.strip_prefix("server ").map(str::to_owned));
    let line = line.expect("the child says which server it has");
    let (pid, dir) = line.split_once(" in ").expect("a pid and a directory");
    let pid = pid.parse().expect("a pid");
    assert!(runs(pid));
    child.kill().expect("the child is there");
    child.wait().expect("the child is ours");
    // Gone or, where no process adopts it, a zombie: in either case it has no port and no directory.
    wait_until(SOON, "the server's directory is gone", || {
        !std::path::Path::new(dir).exists()
    });
}
