//! The stream below a connection. It knows what the redis crate does not tell: whether anything was written, when the connection
//! ends, and what the server said before it answered.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::AsFd,
    pin::{Pin, pin},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use parking_lot::Mutex;
use redis::{
    AsyncConnectionConfig, RedisConnectionInfo, RedisError, RedisResult, Value,
    aio::MultiplexedConnection, io::tcp::socket2::SockRef,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

/// After such a pause the socket is asked for its end before anything is written: a runtime that was blocked meanwhile has not
/// looked.
const PAUSE: Duration = Duration::from_millis(100);

/// The words of a server to a client that is one too many, in place of its first answer, before it closes the connection.
const TOO_MANY: &[u8] = b"-ERR max number of clients reached";

/// A connection with a server.
pub(super) trait Socket: AsyncRead + AsyncWrite + AsFd + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + AsFd + Unpin + Send> Socket for S {}

/// A connection for commands. The last copy takes its task with it.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) multiplexed: MultiplexedConnection,
    task: Arc<ConnectionTask>,
}

struct ConnectionTask {
    seen: Arc<Seen>,
    ended: CancellationToken,
    is_closed: AtomicBool,
    /// It leads to a server that is not to be believed any more.
    is_void: AtomicBool,
    driver: AbortOnDropHandle<()>,
}

impl ConnectionTask {
    fn close(&self) {
        // The task may be writing at this moment: see `may_have_written`.
        self.is_closed.store(true, Ordering::Relaxed);
        self.driver.abort();
        self.ended.cancel();
    }

    fn void(&self) {
        self.is_void.store(true, Ordering::Release);
        // The flag first: a caller that is woken by the end looks at it, and believes no answer from before (S1).
        self.close();
    }
}

/// A connection that lasts no longer than the requests on it.
pub(super) struct WeakConnection(Weak<ConnectionTask>);

impl WeakConnection {
    /// See [`Connection::void`].
    pub(super) fn void(&self) {
        if let Some(task) = self.0.upgrade() {
            task.void();
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl Connection {
    /// Logs in on `stream`. The connection lives on the runtime that polls this.
    pub(super) async fn new(
        login: &RedisConnectionInfo,
        stream: impl Socket + 'static,
    ) -> RedisResult<Connection> {
        // The caller times the answers that it waits for: a timer of the redis crate belongs to the runtime that
        // polls first, and a request outlives that one.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let (link, seen) = Link::new(stream);
        let made = MultiplexedConnection::new_with_config(login, link, config).await;
        let (multiplexed, driver) = made.map_err(|error| seen.cause(error))?;
        let ended = CancellationToken::new();
        // A guard, so that the end is told as well when the task is aborted, or dropped with its runtime.
        let end = ended.clone().drop_guard();
        let driver = tokio::spawn(async move {
            let _end = end;
            driver.await;
        });
        Ok(Connection {
            multiplexed,
            task: Arc::new(ConnectionTask {
                seen,
                ended,
                is_closed: AtomicBool::new(false),
                is_void: AtomicBool::new(false),
                driver: AbortOnDropHandle::new(driver),
            }),
        })
    }

    /// How often something was written.
    pub(super) fn writes(&self) -> u64 {
        self.task.seen.writes.load(Ordering::Relaxed)
    }

    /// When the server last said anything.
    pub(super) fn heard(&self) -> Instant {
        self.task.seen.heard()
    }

    /// Whether a request may have left this process that has failed with its connection, `writes` having been there before it (B5).
    pub(super) fn may_have_written(&self, writes: u64) -> bool {
        self.task.is_closed.load(Ordering::Relaxed) || self.writes() != writes
    }

    /// The answer to what `send` sends. The redis crate tells nothing to a request that is queued in the instant the connection
    /// ends, so this listens for the end, too. A request that was answered before the end has its answer.
    pub(super) async fn answer<'a, F>(
        &'a mut self,
        send: impl FnOnce(&'a mut MultiplexedConnection) -> F,
    ) -> RedisResult<Value>
    where
        F: Future<Output = RedisResult<Value>> + 'a,
    {
        let mut answer = pin!(send(&mut self.multiplexed));
        tokio::select! {
            biased;
            answer = &mut answer => answer,
            // The task of the connection is over, and writes nothing any more, unless it was closed from here.
            () = self.task.ended.cancelled() => answer.now_or_never().unwrap_or_else(|| {
                Err(io::Error::from(io::ErrorKind::BrokenPipe).into())
            }),
        }
    }

    /// Ends it, also where nothing polls its task any more. Who waits for an answer learns at once that there is none.
    pub(super) fn close(&self) {
        self.task.close();
    }

    /// Ends it, and takes back what it has answered and no caller has read yet.
    pub(super) fn void(&self) {
        self.task.void();
    }

    /// To be voided by those that have replaced it, while requests are still under way on it.
    pub(super) fn downgrade(&self) -> WeakConnection {
        WeakConnection(Arc::downgrade(&self.task))
    }

    pub(super) fn is_void(&self) -> bool {
        self.task.is_void.load(Ordering::Acquire)
    }

    /// Completes when the connection has ended: the server, the network or this process has closed it.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        self.task.ended.clone().cancelled_owned()
    }
}

/// A stream for a reader of this crate's, on which the redis crate has logged in.
pub(super) async fn logged_in(
    login: &RedisConnectionInfo,
    stream: Box<dyn Socket>,
) -> RedisResult<Link<Box<dyn Socket>>> {
    let (link, seen) = Link::new(stream);
    let link = Arc::new(Mutex::new(link));
    let lent = Lent(Arc::clone(&link));
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let made = MultiplexedConnection::new_with_config(login, lent, config).await;
    // It has read the answers to what it has asked, and a server says nothing else yet.
    drop(made.map_err(|error| seen.cause(error))?);
    let link = Arc::into_inner(link).map(Mutex::into_inner);
    // A copy that is left would be the redis crate's, which could then read what is for the caller.
    link.ok_or_else(|| io::Error::from(io::ErrorKind::Interrupted).into())
}

/// A stream that the redis crate has for a while.
struct Lent<S>(Arc<Mutex<S>>);

impl<S: AsyncRead + Unpin> AsyncRead for Lent<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Lent<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.lock()).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_shutdown(cx)
    }
}

struct Seen {
    writes: AtomicU64,
    began: Instant,
    /// When something was read last: nanoseconds since it began.
    heard: AtomicU64,
    is_too_many: AtomicBool,
}

impl Seen {
    fn hear(&self) {
        // As a number since then: an instant does not fit into an atomic, and each read comes here.
        let since = self.began.elapsed().as_nanos();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        self.heard.store(since, Ordering::Release);
    }

    fn heard(&self) -> Instant {
        self.began + Duration::from_nanos(self.heard.load(Ordering::Acquire))
    }

    /// Why there is no connection. The redis crate reads answers to all that it has sent, finds the end behind the first, and
    /// tells the end alone.
    fn cause(&self, error: RedisError) -> RedisError {
        if !self.is_too_many.load(Ordering::Relaxed) {
            return error;
        }
        let said = String::from_utf8_lossy(&TOO_MANY["-ERR ".len()..]).into_owned();
        redis::make_extension_error("ERR".to_owned(), Some(said))
    }
}

pub(super) struct Link<S> {
    stream: S,
    seen: Arc<Seen>,
    /// When something was written last.
    written: Instant,
    has_read: bool,
}

impl<S: AsFd> Link<S> {
    fn new(stream: S) -> (Link<S>, Arc<Seen>) {
        let began = Instant::now();
        let seen = Arc::new(Seen {
            writes: AtomicU64::new(0),
            began,
            heard: AtomicU64::new(0),
            is_too_many: AtomicBool::new(false),
        });
        let link = Link {
            stream,
            seen: Arc::clone(&seen),
            written: began,
            has_read: false,
        };
        (link, seen)
    }

    /// Says so if the other side has closed the connection.
    fn check(&self) -> io::Result<()> {
        let mut byte = [MaybeUninit::uninit()];
        // Bytes that wait there are for the redis crate to read.
        match SockRef::from(&self.stream).peek(&mut byte) {
            Ok(1) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            // No byte is the end. By TLS the server's goodbye waits here as bytes, so that end is not seen (docs/bugs.md, *Open*).
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Link<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        // Also an end or an error: a connection that has ended is not silent.
        if read.is_ready() {
            self.seen.hear();
        }
        if !self.has_read && read.is_ready() {
            self.has_read = true;
            let is_too_many = buffer.filled()[before..].starts_with(TOO_MANY);
            self.seen.is_too_many.store(is_too_many, Ordering::Relaxed);
        }
        read
    }
}

impl<S: AsyncWrite + AsFd + Unpin> AsyncWrite for Link<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let now = Instant::now();
        if now.duration_since(self.written) >= PAUSE {
            self.check()?;
        }
        self.written = now;
        // Also if it fails: TLS may have written a part.
        self.seen.writes.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
