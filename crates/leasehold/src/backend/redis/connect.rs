//! Makes connections to a [`Target`]: over TCP, a Unix socket, or TLS.
//!
//! The redis crate can speak TLS, too. It takes the cryptography that the program has installed, and panics if there is none or a
//! choice of two; it reads the system's roots at each reconnect; and its errors do not say what was wrong. So it is given a
//! stream on which TLS is spoken already.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use redis::{
    ConnectionAddr, ErrorKind, RedisConnectionInfo, RedisError,
    io::tcp::socket2::{SockRef, TcpKeepalive},
};
use tokio::net::{TcpStream, UnixStream};

#[cfg(feature = "tls")]
use super::tls_trouble::TlsTrouble;
use super::{
    exchange::Connection,
    failure::{classify, has_no_database, in_words, is_full, of_this_process},
    hang_up::HangsUpAt,
    link::{self, Link, Socket},
    target::Target,
};
use crate::{backend::Failure, connection::ConnectionSettings, durations::humane, error::Cause};

/// How long a server may be silent in the TLS handshake until it is asked whether it speaks TLS at all.
#[cfg(feature = "tls")]
const PLAIN_WORDS_AFTER: Duration = Duration::from_secs(1);

/// A connection for subscriptions, on which the client has logged in.
pub(super) type SubscriptionLink = Link<Box<dyn Socket>>;

/// How far an attempt has come, for those that give up on it.
#[derive(Default)]
pub(super) struct DialProgress {
    /// It waits for the server's part of the TLS handshake.
    shaking_hands: AtomicBool,
    /// It waits for the program's provider of credentials.
    asking: AtomicBool,
}

impl DialProgress {
    /// Why an attempt was given up after so long.
    pub(super) fn silent(&self, after: Duration) -> Cause {
        if self.asking.load(Ordering::Relaxed) {
            Arc::new(SilentProvider(after))
        } else if self.shaking_hands.load(Ordering::Relaxed) {
            Arc::new(SilentInHandshake(after))
        } else {
            Arc::new(Silent(after))
        }
    }

    /// The answer of the provider. Until then it is the provider that is waited for.
    pub(super) async fn of_provider<T>(&self, answer: impl Future<Output = T>) -> T {
        // A caller that gives up in the middle drops this future and leaves the flag set: the provider is then named as what was silent.
        self.asking.store(true, Ordering::Relaxed);
        let answer = answer.await;
        self.asking.store(false, Ordering::Relaxed);
        answer
    }
}

/// Why there is no connection.
pub(super) enum NoConnection {
    Redis(RedisError),
    #[cfg(feature = "tls")]
    Tls(TlsTrouble),
    /// The program's provider gave no login.
    NoCredentials(Cause),
    /// The target is not what a client can use.
    Unfit(Cause),
    /// It closes connections at this command.
    HangsUpAt(&'static str),
}

impl From<RedisError> for NoConnection {
    fn from(error: RedisError) -> Self {
        NoConnection::Redis(error)
    }
}

impl Target {
    /// A connection for commands, with this login, which lives on the runtime that polls this.
    pub(super) async fn commands(
        &self,
        login: &RedisConnectionInfo,
        progress: &DialProgress,
    ) -> Result<Connection, NoConnection> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let stream = self.shake_hands(tls, progress).await?;
            // Kept, since the redis crate takes the stream: `after_handshake` asks for the error of TLS when the login has failed.
            let broken = Arc::clone(&stream.broken);
            return Connection::new(login, Box::new(stream))
                .await
                .map_err(|error| {
                    let tls = tls.after_handshake(&broken, &error);
                    tls.map_or(NoConnection::Redis(error), NoConnection::Tls)
                });
        }
        let _ = progress;
        Ok(Connection::new(login, self.plain().await?).await?)
    }

    /// A connection for subscriptions, and when the next is to take its place: its login ends, and cannot be renewed on it.
    pub(super) async fn subscriptions(
        &self,
        progress: &DialProgress,
    ) -> Result<(SubscriptionLink, Option<Instant>), NoConnection> {
        let mut login = self.login(progress).await?;
        let mut made = self.subscriptions_as(&login.settings, progress).await;
        // A password may be changed between the provider's answer and the login: it is asked once more, and then the refusal stands.
        if self.may_be_outdated(&made) {
            login = self.login(progress).await?;
            made = self.subscriptions_as(&login.settings, progress).await;
        }
        Ok((made?, login.renew_at))
    }

    async fn subscriptions_as(
        &self,
        login: &RedisConnectionInfo,
        progress: &DialProgress,
    ) -> Result<SubscriptionLink, NoConnection> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let stream = self.shake_hands(tls, progress).await?;
            let broken = Arc::clone(&stream.broken);
            let made = link::logged_in(login, Box::new(stream)).await;
            return made.map_err(|error| {
                let tls = tls.after_handshake(&broken, &error);
                tls.map_or(NoConnection::Redis(error), NoConnection::Tls)
            });
        }
        let _ = progress;
        Ok(link::logged_in(login, self.plain().await?).await?)
    }

    /// Without TLS.
    pub(super) async fn plain(&self) -> Result<Box<dyn Socket>, RedisError> {
        Ok(match self.info.addr() {
            ConnectionAddr::Unix(path) => Box::new(UnixStream::connect(path).await?),
            _ => Box::new(self.tcp().await?),
        })
    }

    #[cfg(feature = "tls")]
    pub(super) async fn shake_hands(
        &self,
        tls: &super::tls::TlsDialler,
        progress: &DialProgress,
    ) -> Result<super::tls::TlsLink, NoConnection> {
        let stream = self.tcp().await.map_err(RedisError::from)?;
        progress.shaking_hands.store(true, Ordering::Relaxed);
        let link = tokio::select! {
            // In this order: a handshake that has succeeded counts, no matter what came on the other connection.
            biased;
            link = tls.shake_hands(stream) => link,
            () = self.speaks_plainly() => Err(TlsTrouble::NotTls),
        };
        progress.shaking_hands.store(false, Ordering::Relaxed);
        link.map_err(NoConnection::Tls)
    }

    /// Completes if the server answers to plain words. Redis takes the first bytes of a TLS client for the beginning of a command, and
    /// waits in silence for its end: so a server that has said nothing for a while is asked on another connection.
    #[cfg(feature = "tls")]
    async fn speaks_plainly(&self) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};

        tokio::time::sleep(PLAIN_WORDS_AFTER).await;
        if let Ok(mut stream) = self.tcp().await
            && stream.write_all(b"PING\r\n").await.is_ok()
            // A status or an error.
            && let Ok(b'+' | b'-') = stream.read_u8().await
        {
            return;
        }
        // No plain word: the TLS handshake alone decides, up to the caller's timeout.
        std::future::pending::<()>().await;
    }

    /// The first of the host's addresses that answers.
    async fn tcp(&self) -> std::io::Result<TcpStream> {
        use std::io;

        let ConnectionAddr::Tcp(host, port) = self.info.addr() else {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        };
        let found = tokio::net::lookup_host((host.as_str(), *port)).await?;
        // All addresses are dialled at once: the first may swallow packets, and would cost the whole connect timeout.
        let attempts: Vec<_> = found
            .map(|address| Box::pin(TcpStream::connect(address)))
            .collect();
        if attempts.is_empty() {
            let nothing = format!("{host} has no address");
            return Err(io::Error::other(nothing));
        }
        let (stream, _) = futures_util::future::select_ok(attempts).await?;
        set_up(&stream, &self.connection)?;
        Ok(stream)
    }

    /// The failure of an attempt to connect: whether it may pass, and its cause in words that say what to do.
    pub(super) fn failure(
        &self,
        error: NoConnection,
        timeout: Duration,
        progress: &DialProgress,
    ) -> Failure {
        let error = match error {
            NoConnection::Redis(error) => error,
            #[cfg(feature = "tls")]
            NoConnection::Tls(trouble) if trouble.may_pass() => {
                return Failure::NotSent(Arc::new(trouble));
            }
            #[cfg(feature = "tls")]
            NoConnection::Tls(trouble) => return Failure::Rejected(Arc::new(trouble)),
            NoConnection::NoCredentials(cause) => return Failure::NotSent(cause),
            NoConnection::Unfit(cause) => return Failure::Rejected(cause),
            // So may a server that ends, but for a moment.
            NoConnection::HangsUpAt(command) => {
                return Failure::NotSent(Arc::new(HangsUpAt(command)));
            }
        };
        if self.in_cluster && self.database() != 0 && has_no_database(&error) {
            return Failure::Rejected(Arc::new(NoDatabase(self.database())));
        }
        // Before the server is blamed: a process without free files has asked it nothing (bug 135).
        if let Some(own) = of_this_process(&error) {
            Failure::NotSent(Arc::new(own))
        } else if error.kind() == ErrorKind::Parse && self.may_need_tls() {
            Failure::Rejected(Arc::new(NotRedisOrTlsOnly))
        } else if error.kind() == ErrorKind::Parse {
            Failure::Rejected(Arc::new(NotRedis))
        } else if error.is_timeout() {
            // The login has no timeout of its own, so this is the kernel's word that the server is silent.
            Failure::NotSent(progress.silent(timeout))
        } else if error.is_connection_refusal() && self.is_unix() {
            Failure::NotSent(Arc::new(NoSocket))
        } else if self.may_need_tls() && is_hang_up(&error) {
            Failure::NotSent(Arc::new(HungUp))
        } else if error.is_io_error() || is_full(&error) {
            Failure::NotSent(in_words(error))
        } else {
            // A handshake changes nothing.
            classify(error).into_unsent()
        }
    }

    /// It is reached over TCP, and without TLS.
    fn may_need_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        if self.tls.is_some() {
            return false;
        }
        matches!(self.info.addr(), ConnectionAddr::Tcp(..))
    }

    /// The host and the port, if it is reached over TCP.
    pub(super) fn address(&self) -> Option<(String, u16)> {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) => Some((host.clone(), *port)),
            _ => None,
        }
    }

    /// The same login, and TLS if this speaks it, at another address.
    pub(super) fn at(&self, (host, port): &(String, u16)) -> Target {
        let address = ConnectionAddr::Tcp(host.clone(), *port);
        Target {
            info: self.info.clone().set_addr(address),
            provider: self.provider.clone(),
            connection: self.connection.clone(),
            in_cluster: self.in_cluster,
            #[cfg(feature = "tls")]
            tls: self.tls.as_ref().map(|tls| tls.of_host(host)),
        }
    }

    pub(super) fn database(&self) -> i64 {
        self.info.redis_settings().db()
    }

    pub(super) fn speaks_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        let speaks = self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        let speaks = matches!(self.info.addr(), ConnectionAddr::TcpTls { .. });
        speaks
    }

    fn is_unix(&self) -> bool {
        matches!(self.info.addr(), ConnectionAddr::Unix(_))
    }
}

/// Sets up a socket that has just been connected.
pub(super) fn set_up(stream: &TcpStream, settings: &ConnectionSettings) -> std::io::Result<()> {
    let socket = SockRef::from(stream);
    // The redis crate sets up the sockets that it opens itself, and this one it is given.
    socket.set_tcp_nodelay(settings.nodelay)?;
    if let Some(keepalive) = settings.keepalive {
        let probes = TcpKeepalive::new()
            .with_time(keepalive.idle)
            .with_interval(keepalive.interval)
            .with_retries(keepalive.probes);
        socket.set_tcp_keepalive(&probes)?;
    }
    // A connection that is closed discards what it has not sent (B4).
    socket.set_linger(Some(Duration::ZERO))?;
    // Without it the kernel repeats what has no acknowledgement for about a quarter of an hour before it gives the server up.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(settings.user_timeout)?;
    Ok(())
}

/// The server was there, and has gone without a word.
pub(super) fn is_hang_up(error: &RedisError) -> bool {
    error.is_connection_dropped() && !error.is_connection_refusal()
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the server at this address is not Redis or Valkey, or speaks TLS only; check host and port, or use rediss:// for TLS"
)]
struct NotRedisOrTlsOnly;

#[derive(Debug, thiserror::Error)]
#[error("the server at this address is not Redis or Valkey; check the URL")]
struct NotRedis;

#[derive(Debug, thiserror::Error)]
#[error(
    "the cluster has no database {0}: a cluster has 0 alone, unless its nodes are Valkey 9 or later with more cluster-databases; leave \
     the number out, or set cluster-databases above {0} on each node"
)]
struct NoDatabase(i64);

#[derive(Debug, thiserror::Error)]
#[error("no server listens there; start it, or check the path")]
struct NoSocket;

#[derive(Debug, thiserror::Error)]
#[error(
    "the server closed the connection before it answered; if it speaks TLS at this port, use rediss://"
)]
pub(super) struct HungUp;

#[derive(Debug, thiserror::Error)]
#[error("the credentials provider has not answered within {}; make it faster, or wait longer, with connect_timeout", humane(*.0))]
struct SilentProvider(Duration);

#[derive(Debug, thiserror::Error)]
#[error("no answer within {}; check host and port, or wait longer, with connect_timeout or --connect-timeout", humane(*.0))]
struct Silent(Duration);

#[derive(Debug, thiserror::Error)]
#[error(
    "no answer to the TLS handshake within {}; check that the server speaks TLS at this port, or wait longer, with connect_timeout or --connect-timeout",
    humane(*.0)
)]
struct SilentInHandshake(Duration);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_set_up_as_the_settings_say() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let settings = ConnectionSettings::new()
            .keepalive(Duration::from_secs(60), Duration::from_secs(10), 4)
            .user_timeout(Some(Duration::from_secs(20)))
            .nodelay(false);
        set_up(&stream, &settings).unwrap();
        let socket = SockRef::from(&stream);
        assert!(!socket.tcp_nodelay().unwrap());
        assert_eq!(
            socket.tcp_keepalive_time().unwrap(),
            Duration::from_secs(60)
        );
        assert_eq!(
            socket.tcp_keepalive_interval().unwrap(),
            Duration::from_secs(10)
        );
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 4);
        assert_eq!(socket.linger().unwrap(), Some(Duration::ZERO));
        #[cfg(target_os = "linux")]
        assert_eq!(
            socket.tcp_user_timeout().unwrap(),
            Some(Duration::from_secs(20))
        );

        let stream = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        set_up(&stream, &ConnectionSettings::new().no_keepalive()).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.tcp_nodelay().unwrap() && !socket.keepalive().unwrap());
    }
}
