//! Each fault of the proxy, seen from a client of a real server behind it.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use leasehold_testkit::{Flavor, Lane, Proxy, Server, Way, wait_until, wait_until_async};
use redis::Value;

const SOON: Duration = Duration::from_secs(10);
/// Long enough for a reply to arrive that is not held back.
const A_WHILE: Duration = Duration::from_millis(100);

fn server_and_proxy() -> (Server, Proxy) {
    let server = Server::start(Flavor::Redis);
    let proxy = Proxy::start(server.addr());
    (server, proxy)
}

/// A client that sees every byte.
struct Raw(TcpStream);

impl Raw {
    fn connect(proxy: &Proxy) -> Raw {
        let stream = TcpStream::connect(proxy.addr()).expect("the proxy accepts");
        stream.set_read_timeout(Some(SOON)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        Raw(stream)
    }

    fn send(&mut self, command: &str) {
        let words: Vec<&str> = command.split(' ').collect();
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            write!(bytes, "${}\r\n{word}\r\n", word.len()).expect("memory takes all");
        }
        self.0.write_all(&bytes).expect("sent");
    }

    fn expect(&mut self, reply: &str) {
        let mut bytes = vec![0; reply.len()];
        self.0
            .read_exact(&mut bytes)
            .unwrap_or_else(|error| panic!("{reply:?} expected: {error}"));
        assert_eq!(String::from_utf8_lossy(&bytes), reply);
    }

    /// Nothing comes, and the connection stays open.
    fn expect_silence(&mut self) {
        self.0.set_read_timeout(Some(A_WHILE)).expect("a timeout");
        let read = self.0.read(&mut [0; 64]).map_err(|error| error.kind());
        assert!(
            matches!(read, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut)),
            "{read:?}"
        );
        self.0.set_read_timeout(Some(SOON)).expect("a timeout");
    }

    fn expect_reset(&mut self) {
        let read = self.0.read(&mut [0; 64]).map_err(|error| error.kind());
        assert_eq!(read, Err(ErrorKind::ConnectionReset));
    }

    fn expect_end(&mut self) {
        let read = self.0.read(&mut [0; 64]).map_err(|error| error.kind());
        assert_eq!(read, Ok(0));
    }

    fn expect_answer(&mut self) {
        self.send("PING");
        self.expect("+PONG\r\n");
    }
}

fn exists(server: &Server, key: &str) -> bool {
    server.cli(&["EXISTS", key]) == Value::Int(1)
}

/// How many clients the server has, the one that asks included.
fn clients(server: &Server) -> usize {
    let Value::BulkString(list) = server.cli(&["CLIENT", "LIST"]) else {
        panic!("a list is text")
    };
    String::from_utf8_lossy(&list).lines().count()
}

#[test]
fn without_a_fault_bytes_pass_and_are_counted() {
    let (server, proxy) = server_and_proxy();
    let mut client = Raw::connect(&proxy);
    client.expect_answer();
    assert_eq!(proxy.bytes_to_server(), "*1\r\n$4\r\nPING\r\n".len() as u64);
    assert_eq!(proxy.bytes_to_client(), "+PONG\r\n".len() as u64);
    assert_eq!((proxy.connections(), proxy.accepted()), (1, 1));
    drop(client);
    proxy.wait_for_connections(0, SOON);
    wait_until(SOON, "the server has seen the client go", || {
        clients(&server) == 1
    });
}

#[test]
fn large_replies_arrive_whole() {
    let (server, proxy) = server_and_proxy();
    let value = "x".repeat(8 << 20);
    let mut connection = redis::Client::open(proxy.url())
        .unwrap()
        .get_connection()
        .unwrap();
    redis::cmd("SET")
        .arg("large")
        .arg(&value)
        .exec(&mut connection)
        .unwrap();
    let read: String = redis::cmd("GET")
        .arg("large")
        .query(&mut connection)
        .unwrap();
    assert!(read == value);
    drop(server);
}

#[test]
fn cut_resets_what_is_open_and_nothing_more() {
    let (server, proxy) = server_and_proxy();
    let (mut one, mut other) = (Raw::connect(&proxy), Raw::connect(&proxy));
    one.expect_answer();
    other.expect_answer();
    proxy.cut();
    assert_eq!(proxy.connections(), 0);
    one.expect_reset();
    other.expect_reset();
    wait_until(SOON, "the server has seen both go", || {
        clients(&server) == 1
    });
    Raw::connect(&proxy).expect_answer();
}

#[test]
fn refuse_closes_new_connections_and_leaves_the_open() {
    let (_server, proxy) = server_and_proxy();
    let mut open = Raw::connect(&proxy);
    open.expect_answer();
    proxy.refuse(true);
    Raw::connect(&proxy).expect_reset();
    open.expect_answer();
    proxy.refuse(false);
    Raw::connect(&proxy).expect_answer();
}

#[test]
fn a_black_hole_swallows_both_ways_and_tells_nobody() {
    let (server, proxy) = server_and_proxy();
    let (mut sends, mut idle, mut leaves) = (
        Raw::connect(&proxy),
        Raw::connect(&proxy),
        Raw::connect(&proxy),
    );
    for client in [&mut sends, &mut idle, &mut leaves] {
        client.expect_answer();
    }
    proxy.black_hole(None);
    sends.send("SET name ours");
    sends.expect_silence();
    let mut new = Raw::connect(&proxy);
    new.send("SET name ours");
    new.expect_silence();
    drop(leaves);
    assert!(!exists(&server, "name"));
    assert_eq!(
        clients(&server),
        3 + 1,
        "the server does not know that one has left"
    );
    assert_eq!(proxy.connections(), 4);

    proxy.heal();
    sends.expect_reset();
    new.expect_reset();
    idle.expect_answer();
    assert!(!exists(&server, "name"), "what was swallowed is lost");
    wait_until(SOON, "the server has seen them go", || {
        clients(&server) == 1 + 1
    });
}

#[test]
fn a_black_hole_one_way_lets_the_other_pass() {
    let (server, proxy) = server_and_proxy();
    let mut client = Raw::connect(&proxy);
    client.expect_answer();
    proxy.black_hole(Some(Way::ToClient));
    client.send("SET name ours");
    wait_until(SOON, "the command ran", || exists(&server, "name"));
    let mut new = Raw::connect(&proxy);
    new.send("SET other ours");
    wait_until(SOON, "the command of a new connection ran", || {
        exists(&server, "other")
    });
    client.expect_silence();
    proxy.heal();
    client.expect_reset();

    let mut subscriber = Raw::connect(&proxy);
    subscriber.send("SUBSCRIBE news");
    subscriber.expect("*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
    proxy.black_hole(Some(Way::ToServer));
    server.cli(&["PUBLISH", "news", "hello"]);
    subscriber.expect("*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$5\r\nhello\r\n");
}

#[test]
fn a_black_hole_hides_that_the_server_has_died() {
    let (mut server, proxy) = server_and_proxy();
    let mut client = Raw::connect(&proxy);
    client.expect_answer();
    proxy.black_hole(None);
    server.kill();
    client.expect_silence();
    proxy.heal();
    client.expect_reset();
    Raw::connect(&proxy).expect_reset();
    proxy.black_hole(Some(Way::ToClient));
    let mut new = Raw::connect(&proxy);
    new.expect_silence();
    proxy.heal();
    new.expect_reset();
    server.restart();
    Raw::connect(&proxy).expect_answer();
}

#[test]
fn a_stall_holds_back_and_loses_nothing() {
    let (server, proxy) = server_and_proxy();
    let mut client = Raw::connect(&proxy);
    client.expect_answer();
    proxy.stall(None);
    client.send("INCR count");
    client.send("INCR count");
    let mut new = Raw::connect(&proxy);
    new.send("INCR count");
    client.expect_silence();
    assert!(!exists(&server, "count"));
    proxy.heal();
    // All three ran, in whichever order of the two connections.
    wait_until(SOON, "all have run", || {
        server.cli(&["GET", "count"]) == Value::BulkString(b"3".to_vec())
    });
    let mut replies = [0; 8];
    client.0.read_exact(&mut replies).expect("two replies");
    client.expect_answer();
}

#[test]
fn a_stall_of_one_lane_leaves_the_other_alone() {
    let (_server, proxy) = server_and_proxy();
    let mut subscriber = Raw::connect(&proxy);
    subscriber.send("SUBSCRIBE news");
    subscriber.expect("*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
    let mut client = Raw::connect(&proxy);

    proxy.stall_lane(Lane::Subscriptions, Some(Way::ToClient));
    client.send("PUBLISH news one");
    client.expect(":1\r\n");
    subscriber.expect_silence();
    proxy.heal();
    subscriber.expect("*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$3\r\none\r\n");

    proxy.stall_lane(Lane::Commands, None);
    client.send("PUBLISH news two");
    client.expect_silence();
    subscriber.send("SUBSCRIBE other");
    subscriber.expect("*3\r\n$9\r\nsubscribe\r\n$5\r\nother\r\n:2\r\n");
    proxy.heal();
    client.expect(":1\r\n");
    subscriber.expect("*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$3\r\ntwo\r\n");

    proxy.cut_lane(Lane::Subscriptions);
    assert_eq!(proxy.connections(), 1);
    client.send("PING");
    client.expect("+PONG\r\n");
}

#[test]
fn a_stall_to_the_client_lets_the_command_run() {
    let (server, proxy) = server_and_proxy();
    let mut client = Raw::connect(&proxy);
    proxy.stall(Some(Way::ToClient));
    client.send("SET name ours");
    wait_until(SOON, "the command ran", || exists(&server, "name"));
    client.expect_silence();
    proxy.heal();
    client.expect("+OK\r\n");
}

#[test]
fn a_delay_counts_once_for_all_that_is_pipelined() {
    let (_server, proxy) = server_and_proxy();
    let mut client = Raw::connect(&proxy);
    client.expect_answer();
    let delay = Duration::from_millis(100);
    proxy.delay(delay);
    let started = Instant::now();
    for _ in 0..20 {
        client.send("PING");
        // So that the proxy does not read several at once.
        std::thread::sleep(Duration::from_millis(2));
    }
    for _ in 0..20 {
        client.expect("+PONG\r\n");
    }
    let took = started.elapsed();
    assert!(took >= 2 * delay, "there and back took {took:?}");
    assert!(
        took < 10 * delay,
        "twenty delays in a row would take 4 s; this took {took:?}"
    );
    proxy.heal();
    let started = Instant::now();
    client.expect_answer();
    assert!(started.elapsed() < 2 * delay);
}

#[test]
fn a_reply_is_cut_at_the_byte() {
    let (server, proxy) = server_and_proxy();
    let (mut client, mut other) = (Raw::connect(&proxy), Raw::connect(&proxy));
    client.expect_answer();
    other.expect_answer();
    proxy.cut_reply_after(3);
    client.send("SET name ours");
    client.expect("+OK");
    client.expect_end();
    assert_eq!(proxy.struck(), 1);
    assert!(exists(&server, "name"));
    other.expect_answer();

    proxy.cut_reply_after(0);
    other.send("SET other ours");
    other.expect_end();
    assert!(exists(&server, "other"));

    let mut client = Raw::connect(&proxy);
    proxy.cut_reply_after(10);
    client.expect_answer();
    client.send("PING");
    client.expect("+PO");
    client.expect_end();
    Raw::connect(&proxy).expect_answer();
}

#[test]
fn a_lost_reply_is_that_of_a_command_that_ran() {
    let (server, proxy) = server_and_proxy();
    for round in 1..=50 {
        let mut client = Raw::connect(&proxy);
        client.expect_answer();
        proxy.lose_replies(b"INCR", 1);
        client.expect_answer();
        // In one write: what is behind the command must not reach the server.
        client
            .0
            .write_all(b"PING\r\nINCR count\r\nINCR beyond\r\n")
            .expect("sent");
        client.expect_end_after_at_most("+PONG\r\n");
        let count = server.cli(&["GET", "count"]);
        assert_eq!(count, Value::BulkString(round.to_string().into_bytes()));
        assert_eq!(proxy.struck(), round);
        assert!(!exists(&server, "beyond"));
    }
    Raw::connect(&proxy).expect_answer();
}

#[test]
fn a_lost_request_never_runs() {
    let (server, proxy) = server_and_proxy();
    proxy.lose_requests(b"name", 2);
    for _ in 0..2 {
        let mut client = Raw::connect(&proxy);
        client.send("SET before ours");
        client.send("SET name ours");
        client.expect_end_after_at_most("+OK\r\n");
    }
    assert_eq!(proxy.struck(), 2);
    wait_until(SOON, "what came before ran", || exists(&server, "before"));
    assert!(!exists(&server, "name"));
    let mut client = Raw::connect(&proxy);
    client.send("SET name ours");
    client.expect("+OK\r\n");
}

impl Raw {
    fn expect_end_after_at_most(&mut self, reply: &str) {
        let mut bytes = Vec::new();
        // A reset is an end here, when it overtakes what we sent too much.
        let _ = self.0.read_to_end(&mut bytes);
        assert!(
            reply.as_bytes().starts_with(&bytes),
            "{:?}",
            String::from_utf8_lossy(&bytes)
        );
    }
}

#[test]
fn a_server_that_is_not_there_is_a_reset() {
    let (mut server, proxy) = server_and_proxy();
    server.kill();
    Raw::connect(&proxy).expect_reset();
    proxy.wait_for_connections(0, SOON);
}

#[test]
fn dropping_the_proxy_closes_everything() {
    let (server, proxy) = server_and_proxy();
    let mut client = Raw::connect(&proxy);
    client.expect_answer();
    drop(proxy);
    client.expect_end();
    wait_until(SOON, "the server has seen the client go", || {
        clients(&server) == 1
    });
}

#[tokio::test(start_paused = true)]
async fn the_clock_of_the_test_is_not_the_clock_of_the_proxy() {
    let (_server, proxy) = server_and_proxy();
    let client = redis::Client::open(proxy.url()).expect("a url");
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    let mut connection = connection.await.expect("a connection");
    proxy.delay(Duration::from_millis(20));
    redis::cmd("PING")
        .exec_async(&mut connection)
        .await
        .expect("an answer");
    tokio::time::resume();
    drop(connection);
    wait_until_async(SOON, "the proxy has seen it go", || {
        proxy.connections() == 0
    })
    .await;
}

#[test]
fn a_connection_that_another_has_accepted_is_carried_with_all_faults() {
    let (_server, proxy) = server_and_proxy();
    let front = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let client = TcpStream::connect(front.local_addr().expect("it is bound")).expect("accepted");
    client.set_read_timeout(Some(SOON)).expect("a timeout");
    proxy.carry(front.accept().expect("it was connected to").0);
    let mut client = Raw(client);
    client.send("PING");
    client.expect("+PONG\r\n");
    proxy.stall(Some(Way::ToClient));
    client.send("PING");
    client.expect_silence();
    proxy.heal();
    client.expect("+PONG\r\n");
    proxy.cut();
    client.expect_reset();
}
