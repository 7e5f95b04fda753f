//! A connection that only subscribes, with a reader of our own: the redis crate's knows no sharded channels outside of its cluster client,
//! and takes a `sunsubscribe` that the server sends unasked for the answer to what was asked last.
//!
//! On sharded channels each request is followed by a `PING` with a number, its *fence*: what comes before that number comes back, and names
//! a channel of the request, is its answer. On classic ones nothing comes unasked, so the confirmations are counted.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use redis::{ErrorKind, Parser, PushKind, RedisError, RedisResult, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::sharding::Sharding;

/// A word of the server, in the order in which it came. `R` is the caller's word for a request.
#[derive(Debug, PartialEq)]
pub(super) enum Received<R> {
    Message {
        channel: String,
        payload: Vec<u8>,
    },
    /// The answer to a request; an error is what the server said.
    Answer(R, RedisResult<()>),
    /// The server has ended the subscription to this channel by itself: its slot has moved, or the server is a replica now.
    Unasked(String),
}

/// The kind of a request to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Subscribe,
    Unsubscribe,
    /// Nothing: the answer comes behind all that the server has sent until then.
    Mark,
}

pub(super) struct PubSub<S, R> {
    stream: S,
    parser: Parser,
    sharding: Sharding,
    /// To be written, and how much of it was.
    out: Vec<u8>,
    written: usize,
    requests: Requests<R>,
}

impl<S: AsyncRead + AsyncWrite + Unpin, R> PubSub<S, R> {
    /// On a stream on which the client has logged in.
    pub(super) fn new(stream: S, sharding: Sharding) -> PubSub<S, R> {
        PubSub {
            stream,
            parser: Parser::new(),
            sharding,
            out: Vec::new(),
            written: 0,
            requests: Requests::default(),
        }
    }

    /// Asks for these channels, which are of one slot. It is written, and answered, while [`next`](PubSub::next) is awaited.
    pub(super) fn ask(&mut self, ask: Ask, channels: Vec<String>, request: R) {
        let words = match ask {
            Ask::Subscribe => Some(self.sharding.subscribe()),
            Ask::Unsubscribe => Some(self.sharding.unsubscribe()),
            Ask::Mark => None,
        };
        let is_fenced = words.is_none() || self.sharding == Sharding::Sharded;
        if let Some(words) = words {
            let packed = redis::cmd(words).arg(&channels).get_packed_command();
            self.out.extend(packed);
        }
        let fence = self.requests.add(ask, channels, request, is_fenced);
        if let Some(fence) = fence {
            let packed = redis::cmd("PING").arg(fence).get_packed_command();
            self.out.extend(packed);
        }
    }

    /// How many requests have no answer yet.
    pub(super) fn asked(&self) -> usize {
        self.requests.pending.len()
    }

    /// The next that the server sends. An error is the end of the connection. Dropped before it is ready, it takes nothing with it.
    pub(super) async fn next(&mut self) -> RedisResult<Received<R>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<RedisResult<Received<R>>> {
        // Reading goes on while writing has to wait: else two full buffers would wait for each other.
        if let Poll::Ready(Err(error)) = self.poll_write(cx) {
            return Poll::Ready(Err(error.into()));
        }
        loop {
            let mut stream = WithoutWaiting {
                stream: &mut self.stream,
                cx,
                is_empty: false,
            };
            match self.parser.parse_value(&mut stream) {
                Ok(value) => {
                    if let Some(heard) = self.requests.sort(value)? {
                        return Poll::Ready(Ok(heard));
                    }
                }
                // The parser goes on from here when there is more.
                Err(_) if stream.is_empty => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.out.len() {
            let rest = &self.out[self.written..];
            match ready!(Pin::new(&mut self.stream).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                // Counted here and not in the future, which may be dropped in the middle of a command.
                written => self.written += written,
            }
        }
        self.out.clear();
        self.written = 0;
        // TLS keeps back what is not flushed.
        Pin::new(&mut self.stream).poll_flush(cx)
    }
}

/// The bytes that a stream has at this moment, for a parser that does not wait.
struct WithoutWaiting<'a, 'b, S> {
    stream: &'a mut S,
    cx: &'a mut Context<'b>,
    is_empty: bool,
}

impl<S: AsyncRead + Unpin> io::Read for WithoutWaiting<'_, '_, S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(into);
        match Pin::new(&mut *self.stream).poll_read(self.cx, &mut buffer) {
            Poll::Ready(read) => read.map(|()| buffer.filled().len()),
            Poll::Pending => {
                self.is_empty = true;
                Err(io::ErrorKind::WouldBlock.into())
            }
        }
    }
}

/// The requests without an answer, oldest first.
struct Requests<R> {
    pending: VecDeque<Pending<R>>,
    fences: u64,
}

struct Pending<R> {
    request: R,
    ask: Ask,
    /// And whether the server has confirmed it.
    channels: Vec<(String, bool)>,
    refused: Option<RedisError>,
    fence: Option<u64>,
}

impl<R> Pending<R> {
    fn is_confirmed(&self) -> bool {
        self.channels.iter().all(|(_, confirmed)| *confirmed)
    }
}

impl<R> Default for Requests<R> {
    fn default() -> Self {
        Requests {
            pending: VecDeque::new(),
            fences: 0,
        }
    }
}

impl<R> Requests<R> {
    /// Returns the number of its fence, if it has one.
    fn add(&mut self, ask: Ask, channels: Vec<String>, request: R, is_fenced: bool) -> Option<u64> {
        self.fences += u64::from(is_fenced);
        let fence = is_fenced.then_some(self.fences);
        self.pending.push_back(Pending {
            request,
            ask,
            channels: channels.into_iter().map(|name| (name, false)).collect(),
            refused: None,
            fence,
        });
        fence
    }

    /// `None`: it tells the caller nothing.
    fn sort(&mut self, value: Value) -> RedisResult<Option<Received<R>>> {
        let said = match value {
            Value::ServerError(error) => return Ok(self.refused(error.into())),
            value => Pushed::of(value)?,
        };
        Ok(match said {
            Pushed::Message(channel, payload) => Some(Received::Message { channel, payload }),
            Pushed::Subscribed(channel) => self.confirmed(Ask::Subscribe, &channel),
            Pushed::Unsubscribed(channel) if self.accounts_for(&channel) => {
                self.confirmed(Ask::Unsubscribe, &channel)
            }
            Pushed::Unsubscribed(channel) => Some(Received::Unasked(channel)),
            Pushed::Pong(number) => {
                let first = self.pending.front();
                let is_first = first.is_some_and(|first| first.fence == Some(number));
                is_first.then(|| self.answer()).flatten()
            }
            Pushed::Nothing => None,
        })
    }

    /// Whether a request accounts for the end of a subscription: one to end it, or one to begin it that is not confirmed: its answer is still
    /// to come, and this is about an earlier subscription.
    fn accounts_for(&self, channel: &str) -> bool {
        self.pending.iter().any(|request| {
            let mut channels = request.channels.iter();
            channels.any(|(asked, confirmed)| {
                asked == channel && (request.ask == Ask::Unsubscribe || !confirmed)
            })
        })
    }

    fn confirmed(&mut self, ask: Ask, channel: &str) -> Option<Received<R>> {
        // The server answers in order, so only the oldest request can be meant.
        let first = self.pending.front_mut().filter(|first| first.ask == ask)?;
        for (asked, confirmed) in &mut first.channels {
            *confirmed |= asked == channel;
        }
        let is_whole = first.fence.is_none() && first.is_confirmed();
        is_whole.then(|| self.answer()).flatten()
    }

    fn refused(&mut self, error: RedisError) -> Option<Received<R>> {
        let first = self.pending.front_mut()?;
        // Behind the answer it is the fence that is refused: this user may not call `PING`.
        if first.refused.is_some() || first.is_confirmed() {
            return self.answer();
        }
        first.refused = Some(error);
        if first.fence.is_none() {
            return self.answer();
        }
        None
    }

    fn answer(&mut self) -> Option<Received<R>> {
        let first = self.pending.pop_front()?;
        let answer = first.refused.map_or(Ok(()), Err);
        Some(Received::Answer(first.request, answer))
    }
}

/// A word that a server sends.
enum Pushed {
    Message(String, Vec<u8>),
    Subscribed(String),
    Unsubscribed(String),
    Pong(u64),
    Nothing,
}

impl Pushed {
    fn of(value: Value) -> RedisResult<Pushed> {
        let (kind, data) = match value {
            // RESP3.
            Value::Push { kind, data } => (kind, data),
            // RESP2.
            Value::Array(mut data) if !data.is_empty() => {
                let kind = text(data.remove(0))?;
                (kind_of(&kind), data)
            }
            // To a `PING` in RESP3, or before the first subscription.
            Value::BulkString(number) => return pong(number),
            Value::SimpleString(_) | Value::Okay => return Ok(Pushed::Nothing),
            _ => return Err(unexpected()),
        };
        let mut data = data.into_iter();
        let mut next = || data.next().ok_or_else(unexpected);
        Ok(match kind {
            PushKind::Message | PushKind::SMessage => {
                Pushed::Message(text(next()?)?, bytes(next()?)?)
            }
            PushKind::Subscribe | PushKind::SSubscribe => Pushed::Subscribed(text(next()?)?),
            PushKind::Unsubscribe | PushKind::SUnsubscribe => match next()? {
                // The server names no channel where a request to end all subscriptions found none. This client always names its own.
                Value::Nil => Pushed::Nothing,
                channel => Pushed::Unsubscribed(text(channel)?),
            },
            // In RESP2 a subscriber's `PING` is answered in the form of a message.
            PushKind::Other(kind) if kind == "pong" => return pong(bytes(next()?)?),
            _ => Pushed::Nothing,
        })
    }
}

fn kind_of(kind: &str) -> PushKind {
    match kind {
        "message" => PushKind::Message,
        "smessage" => PushKind::SMessage,
        "subscribe" => PushKind::Subscribe,
        "ssubscribe" => PushKind::SSubscribe,
        "unsubscribe" => PushKind::Unsubscribe,
        "sunsubscribe" => PushKind::SUnsubscribe,
        other => PushKind::Other(other.to_owned()),
    }
}

fn pong(number: Vec<u8>) -> RedisResult<Pushed> {
    let number = String::from_utf8(number).map_err(|_| unexpected())?;
    number.parse().map(Pushed::Pong).map_err(|_| unexpected())
}

fn bytes(value: Value) -> RedisResult<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::Int(number) => Ok(number.to_string().into_bytes()),
        Value::SimpleString(text) => Ok(text.into_bytes()),
        _ => Err(unexpected()),
    }
}

fn text(value: Value) -> RedisResult<String> {
    let text = String::from_utf8(bytes(value)?);
    text.map_err(|_| unexpected())
}

fn unexpected() -> RedisError {
    (ErrorKind::Parse, "not what a subscriber is sent").into()
}

#[cfg(test)]
mod tests;
