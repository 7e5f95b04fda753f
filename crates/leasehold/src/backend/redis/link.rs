//! The stream below a connection. It knows what the redis crate does not tell: when anything was written or heard, and what the
//! server said before it answered.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::AsFd,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redis::{
    AsyncConnectionConfig, RedisConnectionInfo, RedisError, RedisResult,
    aio::MultiplexedConnection, io::tcp::socket2::SockRef,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// After such a pause the socket is asked for its end before anything is written: a runtime that was blocked meanwhile has not
/// looked.
const PAUSE: Duration = Duration::from_millis(100);

/// The words of a server to a client that is one too many, in place of its first answer, before it closes the connection.
const TOO_MANY: &[u8] = b"-ERR max number of clients reached";

/// A connection with a server.
pub(super) trait Socket: AsyncRead + AsyncWrite + AsFd + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + AsFd + Unpin + Send> Socket for S {}

/// A stream for a reader of this crate's, on which the redis crate has logged in.
pub(super) async fn logged_in(
    login: &RedisConnectionInfo,
    stream: Box<dyn Socket>,
) -> RedisResult<Link<Box<dyn Socket>>> {
    let link = Link::new(stream);
    let seen = link.seen();
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

/// The signs of life of a stream.
pub(super) struct Seen {
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

    /// How often something was written.
    pub(super) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    /// When something was read last.
    pub(super) fn heard(&self) -> Instant {
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
    /// When something was written last, on a clock that a simulation moves.
    written: tokio::time::Instant,
    has_read: bool,
    /// The stream has refused to be written to.
    has_failed: bool,
}

impl<S: AsFd> Link<S> {
    pub(super) fn new(stream: S) -> Link<S> {
        let began = Instant::now();
        Link {
            stream,
            seen: Arc::new(Seen {
                writes: AtomicU64::new(0),
                began,
                heard: AtomicU64::new(0),
                is_too_many: AtomicBool::new(false),
            }),
            written: tokio::time::Instant::now(),
            has_read: false,
            has_failed: false,
        }
    }

    pub(super) fn seen(&self) -> Arc<Seen> {
        Arc::clone(&self.seen)
    }

    /// Whether the stream may have taken something of a write that has failed, as TLS may. It has not where the end was seen before.
    pub(super) fn may_have_written(&self) -> bool {
        self.has_failed
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
        let now = tokio::time::Instant::now();
        if now.duration_since(self.written) >= PAUSE {
            self.check()?;
        }
        self.written = now;
        self.seen.writes.fetch_add(1, Ordering::Relaxed);
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.has_failed |= matches!(written, Poll::Ready(Err(_)));
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
