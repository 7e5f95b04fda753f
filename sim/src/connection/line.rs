//! The socket in memory and the server behind it. It looks at each byte that it is offered.

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use leasehold::sim::{AnswerForm, Value};
use parking_lot::Mutex;
use redis::Pipeline;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::dice::mix;

/// A request as it was asked, and its fate.
pub struct Played {
    pub form: AnswerForm,
    pub commands: Pipeline,
    bytes: Vec<u8>,
    /// Where each of its commands ends in it.
    ends: Vec<usize>,
    /// Where it begins in what the socket was offered, and when that was.
    pub offered: Option<(usize, Duration)>,
    /// Its caller has gone.
    pub is_dropped: bool,
    /// Where the last byte of its answer stands in all that the server has said.
    pub answered: Option<usize>,
    /// The reader has ended by itself, and this answer had come.
    pub is_owed: bool,
}

/// How the connection ends for those who read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineEnd {
    /// Behind all that was said.
    Closed,
    /// The client loses all that it has not read.
    Reset,
}

/// How the socket refuses what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// By an error; so many bytes have left all the same, as TLS does it.
    Error(usize),
    /// It takes no byte, and says so.
    Zero,
    /// By an error when it is flushed.
    Flush,
}

#[derive(Default)]
pub struct Line {
    pub now: Duration,
    pub played: Vec<Played>,
    /// All bytes that were ever offered, how many of them the socket took, and how many have left.
    stream: Vec<u8>,
    pub taken: usize,
    pub left: usize,
    /// The requests in them, and where each of their commands ends: number, command, end.
    pub offered: Vec<usize>,
    pub commands: Vec<(usize, usize, usize)>,
    /// So many of these commands the server has carried out.
    pub executed: usize,
    /// So many bytes more are taken.
    pub room: usize,
    /// Bytes leave when they are flushed, as with TLS.
    pub is_buffered: bool,
    pub refusal: Option<Refusal>,
    /// A write has failed. Behind this byte the client cannot know what has left.
    pub failed: Option<usize>,
    /// The server has said this; so much of it has come, and was read; and here the answers of each request end, in order.
    said: Vec<u8>,
    pub come: usize,
    read: usize,
    pub answers: Vec<usize>,
    /// So long is the text of an answer.
    padding: usize,
    pub end: Option<LineEnd>,
    reads: Option<Waker>,
    writes: Option<Waker>,
    /// The promise, and how it was broken.
    pub breach: Option<(&'static str, String)>,
}

/// What the server answers to this command, and each answer is another.
fn answer(number: usize, at: usize, padding: usize) -> String {
    let text = format!("{number}.{at}{}", ".".repeat(padding));
    match mix(number as u64, at as u64) % 6 {
        0 => format!("-ERR {text}\r\n"),
        1 => format!(":{}\r\n", number * 16 + at),
        2 => format!("*2\r\n:{number}\r\n${}\r\n{text}\r\n", text.len()),
        3 => format!("+{text}\r\n"),
        _ => format!("${}\r\n{text}\r\n", text.len()),
    }
}

impl Line {
    pub fn new(is_buffered: bool, padding: usize) -> Line {
        Line {
            room: usize::MAX,
            is_buffered,
            padding,
            ..Line::default()
        }
    }

    /// Notes a request that is about to be asked. Returns its number.
    pub fn asks(&mut self, form: AnswerForm, commands: usize, padding: usize) -> usize {
        let number = self.played.len();
        let mut pipeline = redis::pipe();
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for at in 0..commands {
            let mut command = redis::cmd("ECHO");
            command.arg(format!("{number}.{at}{}", ".".repeat(padding)));
            bytes.extend(command.get_packed_command());
            ends.push(bytes.len());
            pipeline.add_command(command);
        }
        self.played.push(Played {
            form,
            commands: pipeline,
            bytes,
            ends,
            offered: None,
            is_dropped: false,
            answered: None,
            is_owed: false,
        });
        number
    }

    /// The only right answer to this request.
    pub fn right_answer(&self, number: usize) -> Value {
        let one = |at| {
            let said = answer(number, at, self.padding);
            redis::parse_redis_value(said.as_bytes()).expect("a server's words")
        };
        let played = &self.played[number];
        match played.form {
            AnswerForm::First => one(0),
            AnswerForm::Second => one(1),
            AnswerForm::All => Value::Array((0..played.ends.len()).map(one).collect()),
        }
    }

    pub fn breach(&mut self, promise: &'static str, what: impl Into<String>) {
        self.breach.get_or_insert((promise, what.into()));
    }

    /// All that was offered, in order: whole requests, each once, none of a caller who had gone before.
    fn offer(&mut self, rest: &[u8]) {
        let known = self.stream.len() - self.taken;
        if rest.len() < known || rest[..known] != self.stream[self.taken..] {
            return self.breach("bytes", "other bytes are offered than before");
        }
        let mut new = &rest[known..];
        while !new.is_empty() {
            let Some(number) = number_of(new).filter(|it| *it < self.played.len()) else {
                return self.breach("bytes", "a request begins in the middle of another");
            };
            if self.offered.last().is_some_and(|last| *last >= number) {
                return self.breach("bytes", "a request is written twice or too late");
            }
            let (now, begins) = (self.now, self.stream.len());
            let played = &mut self.played[number];
            if !new.starts_with(&played.bytes) {
                return self.breach("bytes", "a request is not written as it was asked");
            }
            if played.is_dropped {
                return self.breach("B5", "a request is sent whose caller had gone before");
            }
            played.offered = Some((begins, now));
            let ends = played.ends.iter().enumerate();
            self.commands
                .extend(ends.map(|(at, end)| (number, at, begins + end)));
            self.offered.push(number);
            self.stream.extend(&played.bytes);
            new = &new[played.bytes.len()..];
        }
    }

    /// No byte is on its way between the client and the socket.
    pub fn is_idle(&self) -> bool {
        self.left == self.stream.len()
    }

    /// The server carries out so many of the commands that have wholly come, and answers them.
    pub fn execute(&mut self, most: usize) -> usize {
        let mut done = 0;
        while done < most
            && let Some(&(number, at, end)) = self.commands.get(self.executed)
            && end <= self.left
        {
            self.said
                .extend(answer(number, at, self.padding).as_bytes());
            let played = &mut self.played[number];
            if at + 1 == played.ends.len() {
                played.answered = Some(self.said.len());
                self.answers.push(self.said.len());
            }
            self.executed += 1;
            done += 1;
        }
        done
    }

    /// The server says something of itself.
    pub fn say(&mut self, words: &str) {
        self.said.extend(words.as_bytes());
    }

    /// So many bytes more of what the server has said come.
    pub fn deliver(&mut self, most: usize) -> usize {
        let before = self.come;
        if self.end.is_none() {
            self.come = self.said.len().min(self.come.saturating_add(most));
        }
        self.come - before
    }

    /// So many answers have wholly come, by the order of requests.
    pub fn whole(&self) -> usize {
        let come = if self.end == Some(LineEnd::Reset) {
            self.read
        } else {
            self.come
        };
        self.answers.partition_point(|end| *end <= come)
    }

    /// Those to be woken since the socket has changed.
    pub fn wakers(&mut self) -> impl Iterator<Item = Waker> + use<> {
        let reads = (self.come > self.read || self.end.is_some()).then(|| self.reads.take());
        let writes = (self.room > 0 || self.refusal.is_some()).then(|| self.writes.take());
        [reads.flatten(), writes.flatten()].into_iter().flatten()
    }

    fn write(&mut self, bytes: &[u8]) -> Option<io::Result<usize>> {
        if self.failed.is_some() {
            self.breach("bytes", "something is written after a failure");
        }
        self.offer(bytes);
        match self.refusal {
            Some(Refusal::Error(left)) => {
                self.failed = Some(self.taken);
                self.left = self.left.max(self.taken + left.min(bytes.len()));
                return Some(Err(io::ErrorKind::ConnectionReset.into()));
            }
            Some(Refusal::Zero) => {
                self.failed = Some(usize::MAX);
                return Some(Ok(0));
            }
            _ => {}
        }
        let many = bytes.len().min(self.room);
        if many == 0 {
            return None;
        }
        self.room -= if self.room == usize::MAX { 0 } else { many };
        self.taken += many;
        if !self.is_buffered {
            self.left = self.taken;
        }
        Some(Ok(many))
    }

    fn flush(&mut self) -> Option<io::Result<()>> {
        if self.refusal == Some(Refusal::Flush) {
            self.failed = Some(usize::MAX);
            return Some(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if self.left < self.taken && self.room == 0 {
            return None;
        }
        self.left = self.taken;
        Some(Ok(()))
    }
}

/// The number of the request that begins with these bytes.
fn number_of(bytes: &[u8]) -> Option<usize> {
    let begin = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]);
    let rest = begin.strip_prefix("*2\r\n$4\r\nECHO\r\n$")?;
    let (_, text) = rest.split_once("\r\n")?;
    text.split_once('.')?.0.parse().ok()
}

/// The client's end of it.
pub struct PlayedSocket {
    pub line: Arc<Mutex<Line>>,
    /// It is asked for its end before a write, after a pause.
    pub descriptor: UnixStream,
    pub is_closed: Arc<AtomicBool>,
}

impl Drop for PlayedSocket {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }
}

impl AsFd for PlayedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsyncRead for PlayedSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut line = self.line.lock();
        let many = (line.come - line.read).min(buffer.remaining());
        match line.end {
            Some(LineEnd::Reset) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            None if many == 0 => {
                line.reads = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => {
                buffer.put_slice(&line.said[line.read..line.read + many]);
                line.read += many;
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncWrite for PlayedSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut line = self.line.lock();
        let written = line.write(bytes);
        if written.is_none() {
            line.writes = Some(cx.waker().clone());
        }
        written.map_or(Poll::Pending, Poll::Ready)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut line = self.line.lock();
        let flushed = line.flush();
        if flushed.is_none() {
            line.writes = Some(cx.waker().clone());
        }
        flushed.map_or(Poll::Pending, Poll::Ready)
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
