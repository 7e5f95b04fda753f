use std::collections::VecDeque;

use futures_util::FutureExt;

use super::*;

/// A stream that has these pieces to read, and nothing between two of them at first. Takes what is written.
#[derive(Default)]
struct Canned {
    pieces: VecDeque<Vec<u8>>,
    is_dry: bool,
    written: Vec<u8>,
}

impl AsyncRead for Canned {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.is_dry = !self.is_dry;
        let has_more = !self.is_dry;
        match self.pieces.front_mut() {
            Some(piece) if has_more => {
                let rest = piece.split_off(piece.len().min(buffer.remaining()));
                buffer.put_slice(piece);
                *piece = rest;
                if piece.is_empty() {
                    self.pieces.pop_front();
                }
                Poll::Ready(Ok(()))
            }
            Some(_) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            None => Poll::Pending,
        }
    }
}

impl AsyncWrite for Canned {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        // A full stream takes a little at a time.
        let few = bytes.len().min(7);
        self.written.extend(&bytes[..few]);
        Poll::Ready(Ok(few))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

type Connection = PubSub<Canned, &'static str>;

fn connection(sharding: Sharding) -> Connection {
    PubSub::new(Canned::default(), sharding)
}

impl Connection {
    fn subscribe(&mut self, channels: &[&str], request: &'static str) {
        self.ask(Ask::Subscribe, names(channels), request);
    }

    fn unsubscribe(&mut self, channels: &[&str], request: &'static str) {
        self.ask(Ask::Unsubscribe, names(channels), request);
    }

    fn sends(&mut self, bytes: &str) {
        self.stream.pieces.push_back(bytes.into());
    }

    /// All that there is to hear now.
    fn hears(&mut self) -> Vec<Received<&'static str>> {
        let mut heard = Vec::new();
        loop {
            match self.next().now_or_never() {
                Some(next) => heard.push(next.unwrap()),
                None if self.stream.pieces.is_empty() => return heard,
                None => {}
            }
        }
    }
}

fn names(channels: &[&str]) -> Vec<String> {
    channels.iter().map(|&name| name.to_owned()).collect()
}

/// Words as a server sends them in RESP3: a push.
fn push(words: &[&str]) -> String {
    format!(">{}\r\n{}", words.len(), strings(words))
}

/// The same in RESP2.
fn array(words: &[&str]) -> String {
    format!("*{}\r\n{}", words.len(), strings(words))
}

/// The last of a confirmation is how many channels are heard.
fn strings(words: &[&str]) -> String {
    let words = words.iter().map(|word| match word.strip_prefix(':') {
        Some(number) => format!(":{number}\r\n"),
        None => format!("${}\r\n{word}\r\n", word.len()),
    });
    words.collect()
}

fn pong(number: u64) -> String {
    strings(&[&number.to_string()])
}

fn message(channel: &str, payload: &str) -> Received<&'static str> {
    Received::Message {
        channel: channel.to_owned(),
        payload: payload.into(),
    }
}

fn yes(request: &'static str) -> Received<&'static str> {
    Received::Answer(request, Ok(()))
}

fn unasked(channel: &str) -> Received<&'static str> {
    Received::Unasked(channel.to_owned())
}

fn codes(heard: &[Received<&'static str>]) -> Vec<Option<String>> {
    let codes = heard.iter().map(|heard| match heard {
        Received::Answer(_, Err(error)) => error.code().map(str::to_owned),
        _ => None,
    });
    codes.collect()
}

#[test]
fn each_request_is_written_in_one_piece_with_its_fence() {
    let mut sharded = connection(Sharding::Sharded);
    sharded.subscribe(&["{a}1", "{a}2"], "first");
    sharded.unsubscribe(&["{a}1"], "second");
    sharded.ask(Ask::Mark, Vec::new(), "third");
    assert!(sharded.hears().is_empty());
    let sent = [
        array(&["SSUBSCRIBE", "{a}1", "{a}2"]),
        array(&["PING", "1"]),
        array(&["SUNSUBSCRIBE", "{a}1"]),
        array(&["PING", "2"]),
        array(&["PING", "3"]),
    ];
    assert_eq!(
        String::from_utf8_lossy(&sharded.stream.written),
        sent.concat()
    );

    let mut classic = connection(Sharding::Classic);
    classic.subscribe(&["a"], "first");
    classic.unsubscribe(&["a"], "second");
    assert!(classic.hears().is_empty());
    let sent = [array(&["SUBSCRIBE", "a"]), array(&["UNSUBSCRIBE", "a"])];
    assert_eq!(
        String::from_utf8_lossy(&classic.stream.written),
        sent.concat(),
        "without a fence, which would be a command more"
    );
}

#[test]
fn what_a_server_sends_is_read_wherever_it_is_cut() {
    for (of, words) in [
        ("RESP3", push as fn(&[&str]) -> String),
        ("RESP2", array as fn(&[&str]) -> String),
    ] {
        // In RESP2 a subscriber is answered in an array.
        let pong = |number: u64| match of {
            "RESP3" => pong(number),
            _ => array(&["pong", &number.to_string()]),
        };
        let sent = [
            words(&["ssubscribe", "a", ":1"]),
            words(&["smessage", "a", "one\r\n"]),
            words(&["ssubscribe", "b", ":2"]),
            pong(1),
            words(&["smessage", "b", ""]),
            words(&["sunsubscribe", "b", ":1"]),
            words(&["smessage", "a", "three"]),
            pong(2),
        ]
        .concat();
        let expected = [
            message("a", "one\r\n"),
            yes("first"),
            message("b", ""),
            unasked("b"),
            message("a", "three"),
            yes("second"),
        ];
        for size in 1..=sent.len() {
            let mut sharded = connection(Sharding::Sharded);
            sharded.subscribe(&["a", "b"], "first");
            sharded.ask(Ask::Mark, Vec::new(), "second");
            for piece in sent.as_bytes().chunks(size) {
                sharded.stream.pieces.push_back(piece.to_vec());
            }
            assert_eq!(sharded.hears(), expected, "{of}, {size} bytes at a time");
        }
    }
}

#[test]
fn an_unasked_end_beside_a_subscription_in_flight_is_not_its_answer() {
    let mut sharded = connection(Sharding::Sharded);
    sharded.subscribe(&["a"], "first");
    sharded.sends(&push(&["ssubscribe", "a", ":1"]));
    sharded.sends(&pong(1));
    assert_eq!(sharded.hears(), [yes("first")]);
    // The slot of `a` goes while `b` is asked for.
    sharded.subscribe(&["b"], "second");
    sharded.sends(&push(&["sunsubscribe", "a", ":0"]));
    assert_eq!(sharded.hears(), [unasked("a")]);
    sharded.sends(&push(&["ssubscribe", "b", ":1"]));
    assert!(sharded.hears().is_empty());
    sharded.sends(&pong(2));
    assert_eq!(sharded.hears(), [yes("second")]);
}

#[test]
fn an_end_between_the_confirmation_and_the_fence_is_told_before_the_answer() {
    let mut sharded = connection(Sharding::Sharded);
    sharded.subscribe(&["a"], "first");
    sharded.sends(&push(&["ssubscribe", "a", ":1"]));
    sharded.sends(&push(&["sunsubscribe", "a", ":0"]));
    sharded.sends(&pong(1));
    assert_eq!(sharded.hears(), [unasked("a"), yes("first")]);
}

#[test]
fn an_end_of_an_earlier_subscription_does_not_end_the_one_that_is_asked_for() {
    let mut sharded = connection(Sharding::Sharded);
    sharded.subscribe(&["a"], "again");
    sharded.sends(&push(&["sunsubscribe", "a", ":0"]));
    sharded.sends(&push(&["ssubscribe", "a", ":1"]));
    sharded.sends(&pong(1));
    assert_eq!(sharded.hears(), [yes("again")]);
}

#[test]
fn an_end_that_was_asked_for_is_not_told_as_unasked_though_both_come() {
    let mut sharded = connection(Sharding::Sharded);
    sharded.subscribe(&["a"], "first");
    sharded.sends(&push(&["ssubscribe", "a", ":1"]));
    sharded.sends(&pong(1));
    assert_eq!(sharded.hears(), [yes("first")]);
    sharded.unsubscribe(&["a"], "end");
    sharded.subscribe(&["a"], "again");
    // The slot's, and the answer.
    sharded.sends(&push(&["sunsubscribe", "a", ":0"]));
    sharded.sends(&push(&["sunsubscribe", "a", ":0"]));
    assert!(sharded.hears().is_empty());
    sharded.sends(&pong(2));
    sharded.sends("-MOVED 1 127.0.0.1:2\r\n");
    sharded.sends(&pong(3));
    let heard = sharded.hears();
    assert_eq!(heard[0], yes("end"));
    assert_eq!(codes(&heard), [None, Some("MOVED".to_owned())]);
}

#[test]
fn a_refusal_is_the_answer_to_its_own_request_alone() {
    let mut sharded = connection(Sharding::Sharded);
    for (channel, request) in [("a", "first"), ("b", "second"), ("c", "third")] {
        sharded.subscribe(&[channel], request);
    }
    sharded.sends(&[&push(&["ssubscribe", "a", ":1"]), &*pong(1)].concat());
    sharded.sends(&["-MOVED 1 127.0.0.1:2\r\n", &pong(2)].concat());
    sharded.sends(&[&push(&["ssubscribe", "c", ":2"]), &*pong(3)].concat());
    let heard = sharded.hears();
    assert_eq!((&heard[0], &heard[2]), (&yes("first"), &yes("third")));
    let Received::Answer("second", Err(error)) = &heard[1] else {
        panic!("{:?}", heard[1]);
    };
    assert_eq!(error.redirect_node(), Some(("127.0.0.1:2", 1)));
}

#[test]
fn a_user_who_may_not_ping_is_answered_all_the_same() {
    let mut sharded = connection(Sharding::Sharded);
    for (channel, request) in [("a", "first"), ("b", "second")] {
        sharded.subscribe(&[channel], request);
    }
    let refused = "-NOPERM User x has no permissions to run the 'ping' command\r\n";
    sharded.sends(&[&push(&["ssubscribe", "a", ":1"]), refused].concat());
    sharded.sends(&["-MOVED 1 127.0.0.1:2\r\n", refused].concat());
    let heard = sharded.hears();
    assert_eq!(heard[0], yes("first"));
    assert_eq!(codes(&heard), [None, Some("MOVED".to_owned())]);
}

#[test]
fn classic_requests_are_answered_when_all_their_channels_are_confirmed() {
    let mut classic = connection(Sharding::Classic);
    classic.subscribe(&["a", "b"], "first");
    classic.unsubscribe(&["a"], "second");
    classic.subscribe(&["c"], "third");
    classic.ask(Ask::Mark, Vec::new(), "fourth");
    classic.sends(&array(&["subscribe", "a", ":1"]));
    assert!(classic.hears().is_empty());
    classic.sends(&array(&["subscribe", "b", ":2"]));
    classic.sends(&array(&["message", "a", "0"]));
    classic.sends(&array(&["unsubscribe", "a", ":1"]));
    classic.sends("-NOPERM no such channel\r\n");
    classic.sends(&array(&["pong", "1"]));
    let heard = classic.hears();
    assert_eq!(heard[..3], [yes("first"), message("a", "0"), yes("second")]);
    let noperm = Some("NOPERM".to_owned());
    assert_eq!(codes(&heard), [None, None, None, noperm, None]);
    assert_eq!(heard[4], yes("fourth"));
}

#[test]
fn what_no_subscriber_is_sent_ends_the_connection() {
    for garbled in [
        "*1\r\n*0\r\n",
        ":1\r\n",
        "HTTP/1.1 400\r\n",
        "$3\r\nabc\r\n",
    ] {
        let mut sharded = connection(Sharding::Sharded);
        sharded.sends(garbled);
        let next = loop {
            if let Some(next) = sharded.next().now_or_never() {
                break next;
            }
        };
        assert!(next.is_err(), "{garbled:?}");
    }
}
