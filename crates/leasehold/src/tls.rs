//! How a client and its server prove to each other over TLS who they are.

use std::{fmt, path::PathBuf};

/// How a client checks its server over TLS, and proves to it who it is. Feature `tls`.
///
/// A URL that begins with `rediss://` or `valkeys://` speaks TLS 1.2 or 1.3. Without these settings the server's certificate must
/// be signed by an authority that this system trusts (the file in `SSL_CERT_FILE`, if that is set), and be for the host of the URL.
/// There is no setting that leaves the check out; [`pinned`](Tls::pinned) checks the server's key instead.
///
/// Everything is read and checked once, when the client connects ([`connect_lazily`](crate::ClientBuilder::connect_lazily)
/// included): a key that does not belong to its certificate, for instance, is an [`Error::Invalid`](crate::Error::Invalid), and
/// nothing was sent. A file that changes later counts for clients that connect later.
///
/// # Examples
/// ```no_run
/// # async fn example() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, Tls};
///
/// // An authority of your own, and a client that must show a certificate.
/// let tls = Tls::new()
///     .root_file("/etc/redis/ca.pem")
///     .client_cert_file("/etc/redis/worker.pem", "/etc/redis/worker-key.pem");
/// let client = Client::builder().url("rediss://cache.internal/").tls(tls).connect().await?;
/// # drop(client); Ok(()) }
/// ```
///
/// From texts, such as a secret store gives; and by an address that the certificate does not name:
/// ```no_run
/// # fn secret(_name: &str) -> String { String::new() }
/// let tls = leasehold::Tls::new()
///     .root_pem(secret("ca"))
///     .client_cert_pem(secret("certificate"), secret("key"))
///     .server_name("cache.internal");
/// ```
#[derive(Clone, Default)]
#[must_use = "give it to ClientBuilder::tls"]
pub struct Tls {
    /// In place of the system's; empty: the system's.
    pub(crate) roots: Vec<Pem>,
    /// The chain of certificates, and the key of the first of them.
    pub(crate) client_cert: Option<(Pem, Pem)>,
    /// The SHA-256 of keys, of which the server must have one; as they were given.
    pub(crate) pins: Vec<Vec<u8>>,
    /// In place of the URL's host.
    pub(crate) server_name: Option<String>,
}

/// Certificates or a key.
#[derive(Clone)]
pub(crate) enum Pem {
    Text(Vec<u8>),
    File(PathBuf),
}

impl Tls {
    /// The system's authorities, and no client certificate.
    pub fn new() -> Tls {
        Tls::default()
    }

    /// Trusts the authorities in this PEM, in place of the system's. Each further one adds to them.
    ///
    /// A text may hold several certificates. The certificate of a server that signed its own is not an authority's: make one
    /// authority, and let it sign the server's, or name its key with [`pinned`](Tls::pinned).
    pub fn root_pem(mut self, certificates: impl Into<Vec<u8>>) -> Tls {
        self.roots.push(Pem::Text(certificates.into()));
        self
    }

    /// [`root_pem`](Tls::root_pem), from a file.
    pub fn root_file(mut self, path: impl Into<PathBuf>) -> Tls {
        self.roots.push(Pem::File(path.into()));
        self
    }

    /// Believes a server whose public key has this SHA-256, and nothing else of its certificate: no authority, no name and no dates. For
    /// certificates that no client can check, such as `openssl req -x509` makes, and those of some hosted servers.
    ///
    /// Several calls name several keys, of which the server must have one: name the next one before the server gets it. The
    /// handshake proves that the server has the key, and not just its certificate. A key stays the same when its certificate is renewed, if that is made
    /// with the same key.
    ///
    /// The SHA-256 is that of the `SubjectPublicKeyInfo`, as 32 bytes, as hexadecimal text, or as base64, which may begin with
    /// `sha256//`. This prints it:
    /// ```sh
    /// openssl s_client -connect cache.internal:6379 </dev/null 2>/dev/null | openssl x509 -noout -pubkey |
    ///     openssl pkey -pubin -outform der | openssl dgst -sha256
    /// ```
    /// Run it where no other server can answer, such as on the server itself, with `openssl x509 -in server.pem -noout -pubkey`.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) on connecting: it is no SHA-256, or there are authorities, too, which would not be asked.
    /// [`Error::Rejected`](crate::Error::Rejected): the server has another key; the error says both.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, Tls};
    ///
    /// let tls = Tls::new()
    ///     .pinned("5d41402abc4b2a76b9719d911017c592ae1b6e1d5c6f1f7d0a7e4c2d8b3f9a10")
    ///     .pinned("sha256//YLh1dUR9y6Kja30RrAn7JKnbQG/uEtLMkBgFF2Fuihg="); // the next one
    /// let client = Client::builder().url("rediss://cache.hosted/").tls(tls).connect().await?;
    /// # drop(client); Ok(()) }
    /// ```
    ///
    /// # Source
    /// curl `--pinnedpubkey`; RFC 7469, section 2.4.
    #[doc(alias("pinnedpubkey", "fingerprint", "insecure"))]
    pub fn pinned(mut self, sha256: impl AsRef<[u8]>) -> Tls {
        self.pins.push(sha256.as_ref().to_vec());
        self
    }

    /// The certificate that this client shows to a server that asks for one, and its private key, both in PEM.
    ///
    /// The certificate comes first in its text, and the certificates that lead to the authority follow. The key is RSA, ECDSA or
    /// Ed25519, and not encrypted; it is never shown in a log, a `Debug` or an error.
    pub fn client_cert_pem(
        mut self,
        certificates: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Tls {
        self.client_cert = Some((Pem::Text(certificates.into()), Pem::Text(key.into())));
        self
    }

    /// [`client_cert_pem`](Tls::client_cert_pem), from two files.
    pub fn client_cert_file(
        mut self,
        certificates: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Tls {
        self.client_cert = Some((Pem::File(certificates.into()), Pem::File(key.into())));
        self
    }

    /// The name that the server's certificate must be for, in place of the URL's host: for a server that is reached by a tunnel
    /// or an address that its certificate does not know.
    pub fn server_name(mut self, name: impl Into<String>) -> Tls {
        self.server_name = Some(name.into());
        self
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not what is in it: that may be a key.
        f.debug_struct("Tls")
            .field("roots", &self.roots.len())
            .field("pins", &self.pins.len())
            .field("client_cert", &self.client_cert.is_some())
            .field("server_name", &self.server_name)
            .finish()
    }
}
