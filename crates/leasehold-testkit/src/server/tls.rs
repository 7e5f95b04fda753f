//! Certificates for a test: an authority, and what it signs.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};

/// An authority that signs certificates, trusted by nothing but what is given its [`pem`](Authority::pem).
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct Certificate {
    /// The certificate.
    pub pem: String,
    /// Its private key.
    pub key: String,
}

/// The files and options that a server needs to speak TLS.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    certificate: Certificate,
    /// Whose client certificates it takes.
    authority: String,
    wants_client_certificate: bool,
    protocols: &'static str,
}

impl Authority {
    /// A new one.
    ///
    /// # Panics
    /// When there is no randomness.
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        Authority {
            pem: certificate.pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// Its own certificate: the root that a client trusts.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Its own certificate and key, as a server would show them that signs for itself.
    pub fn own(&self) -> Certificate {
        Certificate {
            pem: self.pem.clone(),
            key: self.issuer.key().serialize_pem(),
        }
    }

    /// A certificate for these host names and addresses.
    pub fn signs(&self, names: &[&str]) -> Certificate {
        self.sign(names, |_| {})
    }

    /// A certificate that ended on the first day of the year 2001.
    pub fn signs_expired(&self, names: &[&str]) -> Certificate {
        self.sign(names, |params| {
            params.not_before = date_time_ymd(2000, 1, 1);
            params.not_after = date_time_ymd(2001, 1, 1);
        })
    }

    /// A certificate that begins in the year 2100.
    pub fn signs_for_later(&self, names: &[&str]) -> Certificate {
        self.sign(names, |params| {
            params.not_before = date_time_ymd(2100, 1, 1);
        })
    }

    fn sign(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Certificate {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).expect("host names and addresses");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, "a test's own");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.issuer).expect("a certificate");
        Certificate {
            pem: signed.pem(),
            key: key.serialize_pem(),
        }
    }
}

impl Certificate {
    /// Writes both into files below `dir`: their paths.
    ///
    /// # Panics
    /// When they cannot be written.
    pub fn write(&self, dir: &Path, name: &str) -> (PathBuf, PathBuf) {
        let (pem, key) = (
            dir.join(format!("{name}.pem")),
            dir.join(format!("{name}-key.pem")),
        );
        fs::write(&pem, &self.pem).expect("a certificate is written");
        fs::write(&key, &self.key).expect("a key is written");
        (pem, key)
    }
}

impl TlsFiles {
    /// A server with this certificate, which asks its clients for none.
    pub fn new(certificate: Certificate, authority: &Authority) -> TlsFiles {
        TlsFiles {
            certificate,
            authority: authority.pem().to_owned(),
            wants_client_certificate: false,
            protocols: "TLSv1.2 TLSv1.3",
        }
    }

    /// The server wants its clients to show a certificate of the authority.
    #[must_use]
    pub fn wants_client_certificate(mut self) -> TlsFiles {
        self.wants_client_certificate = true;
        self
    }

    /// The server speaks these versions: `TLSv1.2`, `TLSv1.3` or both.
    #[must_use]
    pub fn protocols(mut self, protocols: &'static str) -> TlsFiles {
        self.protocols = protocols;
        self
    }

    /// The arguments of a server that runs in `dir`.
    pub(super) fn args(&self, port: u16, dir: &Path) -> Vec<String> {
        let (certificate, key) = self.certificate.write(dir, "server");
        let authority = dir.join("authority.pem");
        fs::write(&authority, &self.authority).expect("a certificate is written");
        let path = |path: PathBuf| path.display().to_string();
        let wants = if self.wants_client_certificate {
            "yes"
        } else {
            "no"
        };
        [
            ("--tls-port", port.to_string()),
            ("--tls-cert-file", path(certificate)),
            ("--tls-key-file", path(key)),
            ("--tls-ca-cert-file", path(authority)),
            ("--tls-auth-clients", wants.to_owned()),
            ("--tls-protocols", self.protocols.to_owned()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect()
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").finish_non_exhaustive()
    }
}
