use std::{
    net::UdpSocket,
    os::fd::{AsFd, BorrowedFd},
    sync::LazyLock,
};

use futures_util::FutureExt;
use tokio::runtime::{EnterGuard, Runtime};

use super::*;

/// Payload the server has said, and what it was sent.
#[derive(Default)]
struct Wire {
    said: VecDeque<u8>,
    is_over: bool,
    heard: Vec<u8>,
    /// So many bytes more are taken.
    room: usize,
    /// The socket refuses every write, for good.
    is_broken: bool,
}

struct Canned {
    wire: Arc<Mutex<Wire>>,
    socket: UdpSocket,
}

impl AsFd for Canned {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsyncRead for Canned {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut wire = self.wire.lock();
        if wire.said.is_empty() && !wire.is_over {
            return Poll::Pending;
        }
        let many = wire.said.len().min(buffer.remaining());
        buffer.put_slice(&wire.said.drain(..many).collect::<Vec<_>>());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Canned {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut wire = self.wire.lock();
        let many = bytes.len().min(wire.room);
        if wire.is_broken {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if many == 0 {
            return Poll::Pending;
        }
        wire.room -= many;
        wire.heard.extend(&bytes[..many]);
        Poll::Ready(Ok(many))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

struct Pair {
    connection: Connection,
    reader: Reader,
    wire: Arc<Mutex<Wire>>,
    _here: EnterGuard<'static>,
}

/// The runtime of the connections. The tests poll by hand.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

type Asked = Pin<Box<dyn Future<Output = Result<Value, Unanswered>>>>;

fn canned(wire: &Arc<Mutex<Wire>>) -> Canned {
    Canned {
        wire: Arc::clone(wire),
        socket: UdpSocket::bind("127.0.0.1:0").unwrap(),
    }
}

fn pair() -> Pair {
    let wire = Arc::new(Mutex::new(Wire {
        room: usize::MAX,
        ..Wire::default()
    }));
    let exchange = Arc::new(Exchange::on(
        Link::new(Box::new(canned(&wire)) as _),
        RUNTIME.handle().id(),
    ));
    Pair {
        connection: Connection(Arc::new(ConnectionOwner(Arc::clone(&exchange)))),
        reader: Reader::new(exchange),
        wire,
        _here: RUNTIME.enter(),
    }
}

impl Pair {
    /// A request that has been polled once, and has no answer yet.
    fn asks(&self, packed: Packed) -> Asked {
        let exchange = self.connection.borrow();
        let mut asked: Asked = Box::pin(async move { exchange.ask(packed).await });
        assert!(asked.as_mut().now_or_never().is_none());
        asked
    }

    fn asks_many(&self, many: usize) -> Vec<Asked> {
        (0..many).map(|n| self.asks(echo(&n.to_string()))).collect()
    }

    fn says(&self, words: &str) {
        self.wire.lock().said.extend(words.bytes());
    }

    fn heard(&self) -> String {
        String::from_utf8(self.wire.lock().heard.clone()).unwrap()
    }

    /// The reader has one turn, and says whether the connection is over.
    fn turn(&mut self) -> Option<RedisError> {
        let turn = self.reader.poll(&mut Context::from_waker(Waker::noop()));
        match turn {
            Poll::Ready(error) => Some(error),
            Poll::Pending => None,
        }
    }
}

fn echo(word: &str) -> Packed {
    Packed::command(redis::cmd("ECHO").arg(word))
}

fn bytes(word: &str) -> String {
    let packed = redis::cmd("ECHO").arg(word).get_packed_command();
    String::from_utf8(packed).unwrap()
}

fn reply(number: usize) -> String {
    format!(":{number}\r\n")
}

fn replies(many: usize) -> String {
    (0..many).map(reply).collect()
}

/// The answers that there are by now, each of which must be its own number.
fn answered(asked: &mut [Asked]) -> usize {
    let mut many = 0;
    for (number, asked) in asked.iter_mut().enumerate() {
        match asked.as_mut().now_or_never() {
            Some(Ok(Value::Int(answer))) => {
                assert_eq!(answer, i64::try_from(number).unwrap());
                many += 1;
            }
            Some(other) => panic!("{number}: {other:?}"),
            None => {}
        }
    }
    many
}

#[test]
fn a_lone_request_is_written_by_its_caller() {
    let mut pair = pair();
    let mut asked = pair.asks(echo("hello"));
    assert_eq!(pair.heard(), bytes("hello"));
    pair.says("$5\r\nhel");
    assert!(pair.turn().is_none() && asked.as_mut().now_or_never().is_none());
    pair.says("lo\r\n");
    assert!(pair.turn().is_none());
    let answer = asked.now_or_never().unwrap().unwrap();
    assert_eq!(answer, Value::BulkString(b"hello".to_vec()));
}

#[test]
fn answers_are_given_out_in_portions_and_the_tasks_of_each_ask_again_in_one_write() {
    let mut pair = pair();
    let mut asked = pair.asks_many(20);
    pair.says(&replies(20));
    for already in [8, 16, 20] {
        assert!(pair.turn().is_none());
        let there = answered(&mut asked);
        assert_eq!(there, if already == 20 { 4 } else { 8 });
        for done in asked.iter_mut().take(already) {
            *done = Box::pin(std::future::pending());
        }
        // The reader comes back and writes what its tasks ask meanwhile.
        pair.wire.lock().heard.clear();
        let again = [pair.asks(echo("a")), pair.asks(echo("b"))];
        assert_eq!(pair.heard(), "", "after {already}");
        let mut cx = Context::from_waker(Waker::noop());
        assert!(pair.connection.0.0.traffic.lock().write(&mut cx).is_ready());
        assert_eq!(pair.heard(), bytes("a") + &bytes("b"));
        drop(again);
    }
}

#[test]
fn the_last_answers_leave_no_request_waiting() {
    let mut pair = pair();
    let mut asked = pair.asks_many(3);
    pair.says(&replies(3));
    assert!(pair.turn().is_none());
    assert_eq!(answered(&mut asked), 3);
    let again = pair.asks(echo("again"));
    // The turn that was asked for with the portion.
    pair.wire.lock().heard.clear();
    assert!(pair.turn().is_none());
    assert_eq!(pair.heard(), bytes("again"));
    // Nothing is under way to the socket any more: the next is written by its caller.
    let next = pair.asks(echo("next"));
    assert_eq!(pair.heard(), bytes("again") + &bytes("next"));
    drop((again, next));
}

#[test]
fn after_a_pause_all_answers_are_given_out_at_once() {
    let mut pair = pair();
    let mut asked = pair.asks_many(50);
    pair.says(&replies(50));
    std::thread::sleep(STALE);
    assert!(pair.turn().is_none());
    assert_eq!(answered(&mut asked), 50);
}

#[test]
fn a_request_says_whether_a_byte_of_it_was_written() {
    let (one, two) = (bytes("one").len(), bytes("two").len());
    for room in 0..=one + two {
        let pair = pair();
        pair.wire.lock().room = room;
        let asked = [
            pair.asks(echo("one")),
            pair.asks(echo("two")),
            pair.asks(echo("three")),
        ];
        // The socket takes what it has room for; the rest waits for the reader.
        pair.connection.close();
        let unsent = asked.map(|it| it.now_or_never().unwrap().unwrap_err().is_unsent);
        assert_eq!(unsent, [room == 0, room <= one, true], "{room} bytes");
    }
}

#[test]
fn a_request_whose_caller_has_gone_before_it_was_written_is_not_sent() {
    let mut pair = pair();
    let first = bytes("first").len();
    pair.wire.lock().room = first - 1;
    let asked = [pair.asks(echo("first")), pair.asks(echo("third"))];
    drop(pair.asks(echo("second")));
    pair.wire.lock().room = usize::MAX;
    assert!(pair.turn().is_none());
    assert_eq!(pair.heard(), bytes("first") + &bytes("third"));
    // The answers still belong to those that were sent.
    pair.says(&replies(2));
    assert!(pair.turn().is_none());
    assert_eq!(answered(&mut asked.into_iter().collect::<Vec<_>>()), 2);
}

#[test]
fn a_request_whose_caller_has_gone_after_it_was_written_keeps_its_answer_from_others() {
    let mut pair = pair();
    drop(pair.asks(echo("gone")));
    let mut next = pair.asks(echo("next"));
    pair.says(":1\r\n:2\r\n");
    assert!(pair.turn().is_none());
    assert_eq!(
        next.as_mut().now_or_never().unwrap().unwrap(),
        Value::Int(2)
    );
}

#[test]
fn several_commands_have_an_answer_each_and_a_skipped_one_has_none() {
    let mut pair = pair();
    let mut commands = redis::pipe();
    commands.cmd("PING").cmd("PING");
    let all = pair.asks(Packed::all(&commands));
    let second = pair.asks(Packed::second(&commands));
    pair.says("-NOPERM no\r\n:2\r\n-NOPERM no\r\n");
    assert!(pair.turn().is_none());
    let Value::Array(answers) = all.now_or_never().unwrap().unwrap() else {
        panic!("no array");
    };
    assert!(answers[0].clone().extract_error().is_err());
    assert_eq!(answers[1..], [Value::Int(2)]);
    let mut second = second;
    assert!(second.as_mut().now_or_never().is_none());
    // Of itself the server says what a client has asked to be told: it is no answer.
    pair.says(">2\r\n$10\r\ninvalidate\r\n*0\r\n:4\r\n");
    assert!(pair.turn().is_none());
    assert_eq!(second.now_or_never().unwrap().unwrap(), Value::Int(4));
}

#[test]
fn words_that_answer_nothing_end_the_connection() {
    for (words, error) in [
        (":1\r\n:2\r\n", "an answer to no request"),
        ("HTTP/1.1 400\r\n", ""),
    ] {
        let mut pair = pair();
        let asked = pair.asks(echo("x"));
        pair.says(words);
        let ended = pair.turn().unwrap();
        assert!(ended.to_string().contains(error), "{ended}");
        pair.connection.0.0.end(&ended);
        let answer = asked.now_or_never().unwrap();
        assert_eq!(answer.is_ok(), words.starts_with(':'), "{answer:?}");
        let next = pair.connection.ask(echo("y")).now_or_never().unwrap();
        assert!(next.unwrap_err().is_unsent);
    }
}

#[test]
fn an_answer_without_an_end_ends_the_connection() {
    let mut pair = pair();
    let asked = pair.asks(echo("x"));
    pair.reader.longest = 1 << 20;
    pair.says(&format!("${}\r\n", 2 * pair.reader.longest));
    pair.says(&"x".repeat(pair.reader.longest));
    let ended = pair.turn().unwrap();
    assert!(ended.to_string().contains("1048576 bytes"), "{ended}");
    drop(pair.reader);
    assert!(!asked.now_or_never().unwrap().unwrap_err().is_unsent);
}

#[test]
fn the_end_reaches_all_that_wait_with_the_answers_that_had_come() {
    let mut pair = pair();
    let mut asked = pair.asks_many(3);
    pair.says(&reply(0));
    pair.wire.lock().is_over = true;
    let error = pair.turn().unwrap();
    assert!(error.is_connection_dropped(), "{error:?}");
    drop(pair.reader);
    assert_eq!(answered(&mut asked[..1]), 1);
    for asked in &mut asked[1..] {
        let unanswered = asked.as_mut().now_or_never().unwrap().unwrap_err();
        assert!(!unanswered.is_unsent && unanswered.error.is_connection_dropped());
    }
    assert!(pair.connection.ended().now_or_never().is_some());
}

#[test]
fn a_caller_elsewhere_leaves_the_socket_to_the_reader() {
    let mut pair = pair();
    let connection = pair.connection.clone();
    let elsewhere = std::thread::spawn(move || {
        let mut asked: Pin<Box<dyn Future<Output = _> + Send>> =
            Box::pin(async move { connection.ask(echo("elsewhere")).await });
        assert!(asked.as_mut().now_or_never().is_none());
        asked
    });
    let asked = elsewhere.join().unwrap();
    assert_eq!(pair.heard(), "");
    assert!(pair.turn().is_none());
    assert_eq!(pair.heard(), bytes("elsewhere"));
    drop(asked);
}

#[test]
fn a_failed_write_leaves_the_answers_that_have_come() {
    let mut pair = pair();
    let mut asked = pair.asks_many(20);
    pair.says(&replies(10));
    assert!(pair.turn().is_none());
    // Some are read by now, and others wait in the socket.
    pair.says(&replies(20)[replies(10).len()..]);
    let late = pair.asks(echo("late"));
    pair.wire.lock().is_broken = true;
    let error = pair.turn().unwrap();
    assert!(error.is_connection_dropped(), "{error:?}");
    drop(pair.reader);
    assert_eq!(answered(&mut asked), 20);
    // Its bytes may have left, in a part.
    assert!(!late.now_or_never().unwrap().unwrap_err().is_unsent);
}

#[test]
fn a_fork_leaves_the_socket_of_its_parent_alone() {
    let pair = pair();
    let mut exchange = Exchange::on(
        Link::new(Box::new(canned(&pair.wire)) as _),
        Runtime::new().unwrap().handle().id(),
    );
    // As the child sees it, whose number is another.
    exchange.process += 1;
    let child = Connection(Arc::new(ConnectionOwner(Arc::new(exchange))));
    let unsent = child.ask(echo("x")).now_or_never().unwrap().unwrap_err();
    assert!(unsent.is_unsent);
    child.close();
    assert!(child.0.0.traffic.lock().link.is_ok());
    assert_eq!(pair.heard(), "");
}
