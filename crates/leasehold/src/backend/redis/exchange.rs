//! Requests and answers on one connection, with a writer and a reader of our own.
//!
//! A request is written by its caller, if that runs on the connection's runtime and nothing is under way to the socket; else it waits, and
//! what waits is written in one go. The answers that have come are given out in portions: the tasks that have theirs ask again before the
//! next portion is read out, so server and client work side by side, and not by turns.
//!
//! A connection knows which bytes it has handed to the kernel. A request that has left none of its own there was never sent (B5).

use std::{
    collections::VecDeque,
    future::poll_fn,
    io,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use parking_lot::Mutex;
use redis::{Parser, RedisConnectionInfo, RedisError, RedisResult, Value};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    runtime::{Handle, Id},
    sync::oneshot,
    time::Instant, // a simulation moves it
};
use tokio_util::sync::CancellationToken;

use super::link::{self, Link, Seen, Socket};

/// So many tasks have their answers before they may write, and the next are read out; of very many, so many that it takes few turns.
const PORTION: usize = 8;
const TURNS: usize = 16;

/// Behind a request that has waited so long all answers are given out at once: a runtime that was blocked, or has more to do than it can,
/// has timers that are due soon, and each of these would else be faster than an answer that has come.
const STALE: Duration = Duration::from_millis(50);

/// So much is gathered for one write.
const GATHERED: usize = 64 * 1024;

/// No answer of a server to us is longer: its longest string, and some more.
const LONGEST: usize = 513 * 1024 * 1024;

/// A reader that comes back later than this gives out all answers, too: its runtime has much to do in between.
const AWAY: Duration = Duration::from_millis(2);

/// Room for so many requests is kept, after a burst of more.
const KEPT: usize = 256;

/// A connection for commands. The last copy ends it.
#[derive(Clone)]
pub(super) struct Connection(Arc<ConnectionOwner>);

struct ConnectionOwner(Arc<Exchange>);

impl Drop for ConnectionOwner {
    fn drop(&mut self) {
        self.0.end(&closed());
    }
}

/// A connection that lasts no longer than the requests on it.
pub(super) struct WeakConnection(Weak<ConnectionOwner>);

impl WeakConnection {
    /// See [`Connection::void`].
    pub(super) fn void(&self) {
        if let Some(owner) = self.0.upgrade() {
            owner.0.void();
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// Commands that are sent together, and how many answers are to be read.
pub(super) struct Packed {
    bytes: Vec<u8>,
    /// The first answers, which tell nothing.
    skipped: usize,
    /// `None`: the answer behind them is the answer to all.
    all: Option<usize>,
}

impl Packed {
    pub(super) fn command(command: &redis::Cmd) -> Packed {
        Packed {
            bytes: command.get_packed_command(),
            skipped: 0,
            all: None,
        }
    }

    /// The answer is that to the last of two commands.
    pub(super) fn second(both: &redis::Pipeline) -> Packed {
        Packed {
            bytes: both.get_packed_pipeline(),
            skipped: 1,
            all: None,
        }
    }

    /// The answer is an array of all answers, of which errors are values.
    pub(super) fn all(commands: &redis::Pipeline) -> Packed {
        Packed {
            bytes: commands.get_packed_pipeline(),
            skipped: 0,
            all: Some(commands.len()),
        }
    }
}

/// Why a request has no answer.
#[derive(Clone, Debug)]
pub(super) struct Unanswered {
    pub(super) error: RedisError,
    /// No byte of it was handed to the kernel.
    pub(super) is_unsent: bool,
}

impl From<Unanswered> for RedisError {
    fn from(unanswered: Unanswered) -> RedisError {
        unanswered.error
    }
}

impl Connection {
    /// Logs in on `stream`. The connection lives on the runtime that polls this.
    pub(super) async fn new(
        login: &RedisConnectionInfo,
        stream: Box<dyn Socket>,
    ) -> RedisResult<Connection> {
        let link = link::logged_in(login, stream).await?;
        let exchange = Arc::new(Exchange::on(link, Handle::current().id()));
        tokio::spawn(Reader::new(Arc::clone(&exchange)).run());
        Ok(Connection(Arc::new(ConnectionOwner(exchange))))
    }

    /// Sends these commands by the first poll. Dropped before their bytes were taken to be written, they are not sent.
    pub(super) async fn ask(&self, packed: Packed) -> Result<Value, Unanswered> {
        self.0.0.ask(packed).await
    }

    /// The same of a plain command, and its answer as the server gave it.
    pub(super) async fn command(&self, command: &redis::Cmd) -> RedisResult<Value> {
        Ok(self.ask(Packed::command(command)).await?)
    }

    /// The same of several commands, with an answer for each.
    pub(super) async fn commands(&self, commands: &redis::Pipeline) -> RedisResult<Vec<Value>> {
        match self.ask(Packed::all(commands)).await? {
            Value::Array(answers) => Ok(answers),
            other => Ok(vec![other]),
        }
    }

    /// How often something was written.
    pub(super) fn writes(&self) -> u64 {
        self.0.0.seen.writes()
    }

    /// When the server last said anything.
    pub(super) fn heard(&self) -> std::time::Instant {
        self.0.0.seen.heard()
    }

    /// Ends it, also where nothing polls its reader any more. A request that waits for its answer learns at once that there is none.
    pub(super) fn close(&self) {
        self.0.0.end(&closed());
    }

    /// Ends it, and takes back what it has answered and no caller has read yet.
    pub(super) fn void(&self) {
        self.0.0.void();
    }

    /// To be voided by those that have replaced it, while requests are still under way on it.
    pub(super) fn downgrade(&self) -> WeakConnection {
        WeakConnection(Arc::downgrade(&self.0))
    }

    /// For a task that is not to keep it open.
    pub(super) fn borrow(&self) -> Arc<Exchange> {
        Arc::clone(&self.0.0)
    }

    pub(super) fn is_void(&self) -> bool {
        self.0.0.is_void.load(Ordering::Acquire)
    }

    /// Completes when the connection has ended: the server, the network or this process has closed it.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        self.0.0.ended.clone().cancelled_owned()
    }
}

fn closed() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

type AnswerTo = oneshot::Sender<Result<Value, Unanswered>>;

/// Shared by the callers and the reader of a connection.
pub(super) struct Exchange {
    runtime: Id,
    /// A fork has copies of all this, and must leave the parent's socket alone.
    process: u32,
    seen: Arc<Seen>,
    traffic: Mutex<Traffic>,
    ended: CancellationToken,
    /// It leads to a server that is not to be believed any more.
    is_void: AtomicBool,
}

struct Traffic {
    /// `Err`: it has ended, and why.
    link: Result<Link<Box<dyn Socket>>, RedisError>,
    /// Why nothing more is written. The reader gives out what has come, and ends the connection.
    failed: Option<RedisError>,
    /// Requests of which nothing is in `out` yet.
    waiting: VecDeque<(Packed, AnswerTo)>,
    /// To be written, and how much of it was.
    out: Vec<u8>,
    written: usize,
    /// The requests in `out`, and those that are written, oldest first.
    sent: VecDeque<SentRequest>,
    /// So many bytes were taken into `out`, ever.
    taken: u64,
    /// The reader writes next, soon, as it has said at this time.
    comes_back: Option<Instant>,
    reader: Waker,
    /// Of callers that have gone: dropped outside of the lock, since a waker may go with them.
    gone: Vec<AnswerTo>,
}

struct SentRequest {
    at: Instant,
    /// How many bytes had been taken before its own.
    begins: u64,
    skipped: usize,
    all: Option<usize>,
    answers: Vec<Value>,
    to: AnswerTo,
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // As in `end`: a fork closes nothing, not even with the last that it has of this.
        if self.is_in_fork() {
            let traffic = self.traffic.get_mut();
            std::mem::forget(std::mem::replace(&mut traffic.link, Err(closed())));
        }
    }
}

impl Exchange {
    fn on(link: Link<Box<dyn Socket>>, runtime: Id) -> Exchange {
        Exchange {
            runtime,
            process: std::process::id(),
            seen: link.seen(),
            traffic: Mutex::new(Traffic {
                link: Ok(link),
                failed: None,
                waiting: VecDeque::new(),
                out: Vec::new(),
                written: 0,
                sent: VecDeque::new(),
                taken: 0,
                comes_back: None,
                reader: Waker::noop().clone(),
                gone: Vec::new(),
            }),
            ended: CancellationToken::new(),
            is_void: AtomicBool::new(false),
        }
    }

    /// See [`Connection::ask`].
    pub(super) async fn ask(&self, packed: Packed) -> Result<Value, Unanswered> {
        let (to, answer) = oneshot::channel();
        self.begin(packed, to);
        // The sender goes only with an answer, or by `end`.
        let gone = |_| {
            Err(Unanswered {
                error: closed(),
                is_unsent: false,
            })
        };
        answer.await.unwrap_or_else(gone)
    }

    fn begin(&self, packed: Packed, to: AnswerTo) {
        if self.is_in_fork() {
            let _ = to.send(Err(unsent(closed())));
            return;
        }
        let is_here = self.is_here();
        let mut traffic = self.traffic.lock();
        if let Err(error) = &traffic.link {
            let unsent = unsent(error.clone());
            drop(traffic);
            let _ = to.send(Err(unsent));
            return;
        }
        traffic.waiting.push_back((packed, to));
        // The reader comes to it, or waits for room in the socket.
        if traffic.comes_back.is_some() || !traffic.out.is_empty() {
            return;
        }
        // Where the socket is full the reader is woken, and waits for room.
        let is_written = is_here
            && traffic
                .write(&mut Context::from_waker(Waker::noop()))
                .is_ready();
        let is_done = is_written && traffic.failed.is_none();
        let reader = (!is_done).then(|| traffic.reader.clone());
        let gone = std::mem::take(&mut traffic.gone);
        drop(traffic);
        drop(gone);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Whether the caller runs on the connection's runtime. Any other leaves the socket to the reader.
    fn is_here(&self) -> bool {
        Handle::try_current().is_ok_and(|here| here.id() == self.runtime)
    }

    fn is_in_fork(&self) -> bool {
        self.process != std::process::id()
    }

    fn void(&self) {
        self.is_void.store(true, Ordering::Release);
        // The flag first: a caller that is woken by the end looks at it, and believes no answer from before (S1).
        self.end(&closed());
    }

    /// Closes the socket, and tells all that wait for an answer. Any thread may call it; the first call counts.
    fn end(&self, error: &RedisError) {
        // The parent may have held the lock at the fork, and shares its epoll with the child: to close the socket here would deafen it there.
        if self.is_in_fork() {
            return;
        }
        let mut traffic = self.traffic.lock();
        if traffic.link.is_err() {
            return;
        }
        let link = std::mem::replace(&mut traffic.link, Err(error.clone()));
        let left = traffic.taken - (traffic.out.len() - traffic.written) as u64;
        let (sent, waiting) = (
            std::mem::take(&mut traffic.sent),
            std::mem::take(&mut traffic.waiting),
        );
        let reader = std::mem::replace(&mut traffic.reader, Waker::noop().clone());
        drop(traffic);
        // Closed before a caller hears of the end: nothing of what it had sent arrives later than what it sends elsewhere, as far as
        // this process decides (B4).
        drop(link);
        let unanswered = |is_unsent| {
            let error = error.clone();
            Err(Unanswered { error, is_unsent })
        };
        for sent in sent {
            let _ = sent.to.send(unanswered(sent.begins >= left));
        }
        for (_, to) in waiting {
            let _ = to.send(unanswered(true));
        }
        self.ended.cancel();
        reader.wake();
    }
}

impl Traffic {
    /// Writes what waits, as far as the socket takes it. Ready: all of it, or it has failed.
    fn write(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.failed.is_some() {
            return Poll::Ready(());
        }
        if let Err(error) = ready!(self.try_write(cx)) {
            if self.link.as_ref().is_ok_and(Link::may_have_written) {
                // TLS may have sent a part of it before the error.
                self.written = self.out.len();
            }
            self.failed = Some(error.into());
        }
        Poll::Ready(())
    }

    fn try_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let Ok(link) = &mut self.link else {
                return Poll::Ready(Ok(()));
            };
            while self.written < self.out.len() {
                let rest = &self.out[self.written..];
                match ready!(Pin::new(&mut *link).poll_write(cx, rest))? {
                    0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    written => self.written += written,
                }
            }
            // TLS keeps back what is not flushed.
            ready!(Pin::new(link).poll_flush(cx))?;
            self.out.clear();
            self.written = 0;
            if !self.gather() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Takes requests that wait. Whether there is anything to write.
    fn gather(&mut self) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let at = Instant::now();
        while self.out.len() < GATHERED
            && let Some((packed, to)) = self.waiting.pop_front()
        {
            // Its caller has gone before a byte of it was written: it was never sent.
            if to.is_closed() {
                self.gone.push(to);
                continue;
            }
            self.out.extend_from_slice(&packed.bytes);
            self.sent.push_back(SentRequest {
                at,
                begins: self.taken,
                skipped: packed.skipped,
                all: packed.all,
                answers: Vec::new(),
                to,
            });
            self.taken += packed.bytes.len() as u64;
        }
        !self.out.is_empty()
    }

    /// To so many requests the reader gives the answers now, before their tasks may write.
    fn portion(&mut self) -> usize {
        let is_late = self
            .comes_back
            .take()
            .is_some_and(|at| at.elapsed() >= AWAY);
        let oldest = self.sent.front();
        let is_stale = oldest.is_some_and(|sent| sent.at.elapsed() >= STALE);
        if is_late || is_stale {
            usize::MAX
        } else {
            PORTION.max(self.sent.len() / TURNS)
        }
    }

    /// A value has come. Returns the request to which it is the last of the answer.
    fn answered(&mut self, value: Value) -> RedisResult<Option<(AnswerTo, Value)>> {
        // It answers nothing: the server says by itself what this client has not asked to be told.
        if matches!(value, Value::Push { .. }) {
            return Ok(None);
        }
        let Some(first) = self.sent.front_mut() else {
            return Err(unasked(&value));
        };
        if first.skipped > 0 {
            first.skipped -= 1;
            return Ok(None);
        }
        let value = match first.all {
            None => value,
            Some(all) => {
                first.answers.push(value);
                if first.answers.len() < all {
                    return Ok(None);
                }
                Value::Array(std::mem::take(&mut first.answers))
            }
        };
        let answered = self.sent.pop_front();
        if self.sent.is_empty() {
            self.sent.shrink_to(KEPT);
            self.waiting.shrink_to(KEPT);
        }
        Ok(answered.map(|sent| (sent.to, value)))
    }
}

fn unsent(error: RedisError) -> Unanswered {
    Unanswered {
        error,
        is_unsent: true,
    }
}

fn unasked(value: &Value) -> RedisError {
    let said: String = format!("{value:?}").chars().take(80).collect();
    let words = format!("an answer to no request: {said}");
    // As of a connection that broke: the next may be in order.
    io::Error::new(io::ErrorKind::ConnectionAborted, words).into()
}

/// The task of a connection.
struct Reader {
    exchange: Arc<Exchange>,
    parser: Parser,
    /// So many bytes were read since the last whole value, of at most so many.
    unread: usize,
    longest: usize,
    portion: Vec<(AnswerTo, Value)>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        // With its runtime, too: then nothing will read any answer.
        self.exchange.end(&closed());
    }
}

impl Reader {
    fn new(exchange: Arc<Exchange>) -> Reader {
        Reader {
            exchange,
            parser: Parser::new(),
            unread: 0,
            longest: LONGEST,
            portion: Vec::new(),
        }
    }

    async fn run(mut self) {
        let error = poll_fn(|cx| self.poll(cx)).await;
        self.exchange.end(&error);
    }

    /// Ready with the end of the connection.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RedisError> {
        let (most, failed, gone) = {
            let mut traffic = self.exchange.traffic.lock();
            if let Err(error) = &traffic.link {
                return Poll::Ready(error.clone());
            }
            traffic.reader.clone_from(cx.waker());
            let most = traffic.portion();
            // Reading goes on while writing has to wait: else two full buffers would wait for each other.
            let _ = traffic.write(cx);
            let failed = traffic.failed.clone();
            (most, failed, std::mem::take(&mut traffic.gone))
        };
        drop(gone);
        let read = self.read(cx, if failed.is_some() { usize::MAX } else { most });
        let error = match &read {
            Poll::Ready(Err(error)) => Some(error.clone()),
            _ => failed,
        };
        // A portion's tasks ask again before this task is back, which then writes all of it at once. A single one writes by itself.
        if error.is_none() && (read.is_ready() || self.portion.len() > 1) {
            self.exchange.traffic.lock().comes_back = Some(Instant::now());
            cx.waker().wake_by_ref();
        }
        for (to, value) in self.portion.drain(..) {
            let _ = to.send(Ok(value));
        }
        self.portion.shrink_to(KEPT);
        error.map_or(Poll::Pending, Poll::Ready)
    }

    /// Reads the answers to so many requests. Pending: no more has come.
    fn read(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<RedisResult<()>> {
        while self.portion.len() < most {
            let mut arrived = Arrived {
                exchange: &self.exchange,
                cx,
                unread: (&mut self.unread, self.longest),
                is_empty: false,
            };
            match self.parser.parse_value(&mut arrived) {
                Ok(value) => {
                    self.unread = 0;
                    match self.exchange.traffic.lock().answered(value) {
                        Ok(answer) => self.portion.extend(answer),
                        Err(error) => return Poll::Ready(Err(error)),
                    }
                }
                // The parser goes on from here when there is more.
                Err(_) if arrived.is_empty => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// The bytes that have come, for a parser that does not wait.
struct Arrived<'a, 'b> {
    exchange: &'a Exchange,
    cx: &'a mut Context<'b>,
    unread: (&'a mut usize, usize),
    is_empty: bool,
}

impl io::Read for Arrived<'_, '_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(into);
        let mut traffic = self.exchange.traffic.lock();
        let Ok(link) = &mut traffic.link else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        match Pin::new(link).poll_read(self.cx, &mut buffer) {
            Poll::Ready(Ok(())) => {
                let (unread, longest) = &mut self.unread;
                **unread += buffer.filled().len();
                if **unread > *longest {
                    let long = format!("an answer of more than {longest} bytes");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, long));
                }
                Ok(buffer.filled().len())
            }
            Poll::Ready(Err(error)) => Err(error),
            Poll::Pending => {
                self.is_empty = true;
                Err(io::ErrorKind::WouldBlock.into())
            }
        }
    }
}

#[cfg(feature = "sim")]
pub(super) mod simulated;
#[cfg(test)]
mod tests;
