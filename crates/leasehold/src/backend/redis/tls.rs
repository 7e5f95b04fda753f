//! TLS: what a client trusts, the certificate that it shows, and the handshake.
//!
//! Settings are read once, so that a reconnect reads no file, and resumes the session where the server allows that.

mod pins;

use std::{
    borrow::Cow,
    fmt, fs, io,
    os::fd::{AsFd, BorrowedFd},
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use redis::RedisError;
use rustls::{
    CertificateError, ClientConfig, InconsistentKeys, RootCertStore, SignatureScheme,
    client::ResolvesClientCert,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    sign::CertifiedKey,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use self::pins::Pins;
use super::tls_trouble::{Showed, TlsTrouble};
use crate::{
    error::{Error, Invalid},
    tls::{Pem, Tls},
};

/// Shakes hands with one server.
pub(super) struct TlsDialler {
    connector: TlsConnector,
    server_name: ServerName<'static>,
    /// The settings say it, for any host.
    is_named: bool,
    identity: Arc<Identity>,
    /// The settings name the authorities.
    has_own_roots: bool,
}

impl TlsDialler {
    pub(super) fn new(host: &str, tls: &Tls) -> Result<TlsDialler, Error> {
        let name = tls.server_name.as_deref().unwrap_or(host);
        let server_name = ServerName::try_from(name.to_owned()).map_err(|_| {
            Invalid::new(
                "the server's name for TLS",
                format!("{name:?}"),
                "a host name or an IP address",
            )
            .remedy("correct the URL's host, or what Tls::server_name or --tls-server-name says")
        })?;
        // Named here: the default of the process may be missing, or another's, and rustls panics where it cannot choose.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let identity = Arc::new(Identity {
            key: match &tls.client_cert {
                Some((certificates, key)) => Some(certified(certificates, key, &provider)?),
                None => None,
            },
            asked: AtomicBool::new(false),
        });
        if !tls.pins.is_empty() && !tls.roots.is_empty() {
            let limit = "one of both: a pinned key is believed without an authority";
            let invalid = Invalid::new("tls", "with pinned keys and with authorities", limit);
            return Err(invalid
                .remedy("leave the authorities out, or the pins")
                .into());
        }
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| Invalid::new("tls", error.to_string(), "able to speak TLS"))?;
        let config = if tls.pins.is_empty() {
            config.with_root_certificates(roots(tls)?)
        } else {
            let pins = Arc::new(Pins::new(&tls.pins, &provider)?);
            config.dangerous().with_custom_certificate_verifier(pins)
        };
        let config =
            config.with_client_cert_resolver(Arc::clone(&identity) as Arc<dyn ResolvesClientCert>);
        Ok(TlsDialler {
            connector: Arc::new(config).into(),
            server_name,
            is_named: tls.server_name.is_some(),
            identity,
            has_own_roots: !tls.roots.is_empty(),
        })
    }

    /// The same for a server on another host.
    pub(super) fn of_host(&self, host: &str) -> TlsDialler {
        let of_host = ServerName::try_from(host.to_owned()).ok();
        // A name of the settings is that of every certificate, wherever sentinels or nodes say that a server is.
        let of_host = of_host.filter(|_| !self.is_named);
        TlsDialler {
            // Shared, and with it the sessions that may be resumed, which rustls keeps by the server's name.
            connector: self.connector.clone(),
            server_name: of_host.unwrap_or_else(|| self.server_name.clone()),
            is_named: self.is_named,
            identity: Arc::clone(&self.identity),
            has_own_roots: self.has_own_roots,
        }
    }

    pub(super) async fn shake_hands(&self, stream: TcpStream) -> Result<TlsLink, TlsTrouble> {
        let name = self.server_name.clone();
        match self.connector.connect(name, stream).await {
            Ok(stream) => Ok(TlsLink {
                stream: Box::new(stream),
                kept: Vec::new(),
                broken: Arc::default(),
            }),
            // Without an error of TLS in it the server hung up, and sent no alert: only its question for a certificate hints at why.
            Err(error) => Err(match cause(&error) {
                Some(cause) => self.trouble(cause),
                None => match self.showed() {
                    Showed::NotAsked => TlsTrouble::Closed(error),
                    showed => TlsTrouble::ClosedAfterAsking(showed),
                },
            }),
        }
    }

    /// Why the server ended a connection between the handshake and its first answer: with TLS 1.3 it looks at the client's
    /// certificate only then, and says so in an alert if it refuses it. `None`: for a reason that has nothing to do with TLS.
    pub(super) fn after_handshake(
        &self,
        broken: &OnceLock<rustls::Error>,
        error: &RedisError,
    ) -> Option<TlsTrouble> {
        if let Some(cause) = broken.get() {
            return Some(match cause {
                // It spoke TLS before.
                rustls::Error::InvalidMessage(_) => TlsTrouble::Garbled,
                cause => self.trouble(cause),
            });
        }
        if !error.is_connection_dropped() {
            return None;
        }
        // So does a proxy whose server is not up yet.
        match self.showed() {
            Showed::NotAsked => None,
            showed => Some(TlsTrouble::ClosedAfterAsking(showed)),
        }
    }

    fn showed(&self) -> Showed {
        match self.identity.key {
            _ if !self.identity.asked.load(Ordering::Relaxed) => Showed::NotAsked,
            None => Showed::Nothing,
            Some(_) => Showed::Certificate,
        }
    }

    fn trouble(&self, cause: &rustls::Error) -> TlsTrouble {
        match cause {
            rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
                TlsTrouble::UnknownAuthority {
                    of_system: !self.has_own_roots,
                }
            }
            rustls::Error::AlertReceived(alert) => TlsTrouble::of_alert(*alert, self.showed()),
            cause => TlsTrouble::of(cause),
        }
    }
}

/// The error of the TLS library in an I/O error.
fn cause(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// The certificate that is shown to a server that asks, and whether it has asked.
struct Identity {
    key: Option<Arc<CertifiedKey>>,
    asked: AtomicBool,
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        // Also without a certificate to show: an error is told in other words where the server has asked for one.
        self.asked.store(true, Ordering::Relaxed);
        self.key.clone()
    }

    fn has_certs(&self) -> bool {
        self.key.is_some()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

impl Pem {
    /// Never the text: it may be a key.
    fn shown(&self) -> String {
        match self {
            Pem::Text(text) => format!("a text of {} bytes", text.len()),
            // The text itself, where its path belongs.
            Pem::File(path) if path.to_string_lossy().contains('\n') => {
                "a text in place of a file's name".to_owned()
            }
            Pem::File(path) => path.display().to_string(),
        }
    }

    fn read(&self, what: &'static str) -> Result<Cow<'_, [u8]>, Invalid> {
        match self {
            Pem::Text(text) => Ok(Cow::Borrowed(text)),
            Pem::File(path) => fs::read(path).map(Cow::Owned).map_err(|error| {
                let limit = format!("a file that can be read: {error}");
                Invalid::new(what, self.shown(), limit)
                    .remedy("check the path, and the rights of this process")
            }),
        }
    }

    fn certificates(&self, what: &'static str) -> Result<Vec<CertificateDer<'static>>, Invalid> {
        let text = self.read(what)?;
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        match read {
            Ok(certificates) if !certificates.is_empty() => Ok(certificates),
            _ => Err(Invalid::new(what, self.shown(), "certificates in PEM")
                .remedy("each begins with -----BEGIN CERTIFICATE-----")),
        }
    }
}

const ROOT: &str = "the root certificate for TLS";
const CERTIFICATE: &str = "the client certificate for TLS";
const KEY: &str = "the client key for TLS";

fn roots(tls: &Tls) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    if tls.roots.is_empty() {
        let found = rustls_native_certs::load_native_certs();
        // A certificate of the system that cannot be read is passed over. In a file of the settings it is an error, below.
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            let why = found.errors.first();
            let why = why.map_or_else(|| "there are none".to_owned(), ToString::to_string);
            return Err(
                Invalid::new(ROOT, format!("not on this system ({why})"), "there")
                    .remedy("install the package ca-certificates, or name a file with Tls::root_file or --tls-ca")
                    .into(),
            );
        }
    }
    for pem in &tls.roots {
        for certificate in pem.certificates(ROOT)? {
            roots.add(certificate).map_err(|error| {
                Invalid::new(
                    ROOT,
                    pem.shown(),
                    format!("the certificate of an authority: {error}"),
                )
            })?;
        }
    }
    Ok(roots)
}

fn certified(
    certificates: &Pem,
    key: &Pem,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, Error> {
    let chain = certificates.certificates(CERTIFICATE)?;
    let text = key.read(KEY)?;
    let limit = "a private key in PEM, not encrypted: RSA, ECDSA or Ed25519";
    let unfit = |remedy: &str| Invalid::new(KEY, key.shown(), limit).remedy(remedy);
    let der = PrivateKeyDer::from_pem_slice(&text).map_err(|_| {
        // The word stands in the PEM headers of both forms, PKCS #8 and the older one with `Proc-Type`.
        let encrypted = "ENCRYPTED".as_bytes();
        if text.windows(encrypted.len()).any(|part| part == encrypted) {
            unfit("decrypt it with `openssl pkey -in FILE`")
        } else {
            unfit("it begins with -----BEGIN PRIVATE KEY-----")
        }
    })?;
    match CertifiedKey::from_der(chain, der, provider) {
        Ok(certified) => Ok(Arc::new(certified)),
        Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            let limit = format!(
                "the key of the first certificate in {}",
                certificates.shown()
            );
            Err(Invalid::new(KEY, key.shown(), limit)
                .remedy("give the key that the certificate was made with")
                .into())
        }
        Err(rustls::Error::InvalidCertificate(_)) => {
            let limit = "an X.509 certificate of version 3";
            Err(Invalid::new(CERTIFICATE, certificates.shown(), limit)
                .remedy("make one as openssl x509 does with -extfile")
                .into())
        }
        Err(_) => Err(unfit("make one with `openssl genpkey -algorithm ed25519`").into()),
    }
}

/// A connection after its handshake. Errors of the TLS library end it, as errors of the socket would.
pub(super) struct TlsLink {
    stream: Box<TlsStream<TcpStream>>,
    /// Read in the search for the cause of an end, and not given out yet.
    kept: Vec<u8>,
    /// Why it ended, if TLS knows.
    pub(super) broken: Arc<OnceLock<rustls::Error>>,
}

impl TlsLink {
    fn ended<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        polled.map_err(|error| match cause(&error) {
            Some(cause) => {
                // The first cause stays: the errors behind it only follow from it.
                let _ = self.broken.set(cause.clone());
                let trouble = match cause {
                    // It spoke TLS before.
                    rustls::Error::InvalidMessage(_) => TlsTrouble::Garbled,
                    cause => TlsTrouble::of(cause),
                };
                io::Error::new(io::ErrorKind::ConnectionAborted, trouble)
            }
            None => error,
        })
    }

    /// The same for what was sent. A server that refuses the client's certificate closes the connection while requests are on
    /// their way to it: its alert has come before the failure of the next write, and is still to be read.
    fn ended_at_write<T>(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &polled
            && cause(error).is_none()
        {
            let (mut byte, stream) = ([0], Pin::new(&mut self.stream));
            let mut buffer = ReadBuf::new(&mut byte);
            let last = stream.poll_read(cx, &mut buffer);
            // The byte of an answer, which the reader is still to read.
            self.kept.extend(buffer.filled());
            let _ = self.ended(last);
        }
        self.ended(polled)
    }
}

impl AsFd for TlsLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().0.as_fd()
    }
}

impl AsyncRead for TlsLink {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.kept.is_empty() && buffer.remaining() > 0 {
            let many = self.kept.len().min(buffer.remaining());
            buffer.put_slice(&self.kept.drain(..many).collect::<Vec<_>>());
            return Poll::Ready(Ok(()));
        }
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        match self.ended(read) {
            // A server that dies says no goodbye. A reply that was cut off is noticed as one: each says how long it is.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Poll::Ready(Ok(()))
            }
            read => read,
        }
    }
}

impl AsyncWrite for TlsLink {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.ended_at_write(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.ended_at_write(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.ended(shut)
    }
}

#[cfg(test)]
mod tests;
