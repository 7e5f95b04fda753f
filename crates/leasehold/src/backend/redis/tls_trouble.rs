//! Why there is no connection over TLS, in words that say what to do.

use std::{io, time::Duration};

use rustls::{AlertDescription, CertificateError, pki_types::UnixTime};

/// Whether the server asked for the client's certificate, and was shown one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Showed {
    NotAsked,
    Nothing,
    Certificate,
}

/// The server has another key than those that are pinned.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "the SHA-256 of the server's public key is {is}, and {pinned} is pinned; if the server has a new key, pin that, with Tls::pinned or --tls-pin, else another stands between"
)]
pub(super) struct OtherKey {
    pub(super) is: String,
    pub(super) pinned: String,
}

/// Why the handshake failed, or what came after it.
#[derive(Debug, thiserror::Error)]
pub(super) enum TlsTrouble {
    #[error(
        "the server's certificate is for {presented}, and not for {expected}; put a name that it is for into the URL, or give that name with Tls::server_name or --tls-server-name"
    )]
    OtherName { expected: String, presented: String },
    #[error(
        "the server's certificate expired{since}; renew it on the server, or correct the clock of this machine"
    )]
    Expired { since: String },
    #[error(
        "the server's certificate is not valid yet{until}; correct the clock of this machine, or of the one where it was made"
    )]
    NotYetValid { until: String },
    #[error(
        "the server's certificate is signed by an authority that {} not trust; name the authority's certificate with Tls::root_file or --tls-ca",
        if *of_system { "this system does" } else { "the given root certificates do" }
    )]
    UnknownAuthority { of_system: bool },
    #[error(
        "the server's certificate cannot be trusted: {0}; give the server one that an authority has signed"
    )]
    BadCertificate(String),
    #[error("{0}")]
    OtherKey(String),
    #[error(
        "the server's certificate is of version 1, which is not accepted; make one of version 3, as openssl x509 does with -extfile"
    )]
    OldCertificate,
    #[error(
        "the server wants a client certificate, and none was given; give one and its key with Tls::client_cert_file, or --tls-cert and --tls-key"
    )]
    WantsCertificate,
    #[error(
        "the server refuses the client certificate: {0}; give one that its authority has signed and that has not expired"
    )]
    RefusesCertificate(String),
    #[error("the server refuses the TLS connection: {0}; its log says why")]
    Refuses(String),
    #[error(
        "the server does not speak TLS at this port; give its TLS port, or use redis:// for one without TLS"
    )]
    NotTls,
    #[error(
        "the server speaks no TLS that this client speaks, which is 1.2 and 1.3 with modern ciphers: {0}; allow one of these on the server"
    )]
    Incompatible(String),
    #[error("the TLS connection failed: {0}; the server's log may say why")]
    Failed(String),
    #[error(
        "the TLS connection failed: bytes came that are no TLS; the server's log, or that of a proxy before it, may say why"
    )]
    Garbled,
    #[error(
        "the server closed the connection in the TLS handshake; check that it speaks TLS at this port, and takes more clients (maxclients)"
    )]
    Closed(#[source] io::Error),
    #[error(
        "the server asked for a client certificate, and closed the connection after the TLS handshake without saying why: what stands behind it may not be ready, or it may want {}",
        match .0 {
            Showed::Certificate => "another client certificate",
            _ => "one, which Tls::client_cert_file, or --tls-cert and --tls-key, give",
        }
    )]
    ClosedAfterAsking(Showed),
}

impl TlsTrouble {
    /// Whether another attempt may succeed although nothing was repaired.
    pub(super) fn may_pass(&self) -> bool {
        // A TLS proxy hangs up so while the server behind it is not up yet (bug 123).
        matches!(
            self,
            TlsTrouble::Closed(_) | TlsTrouble::ClosedAfterAsking(_) | TlsTrouble::Garbled
        )
    }

    pub(super) fn of(cause: &rustls::Error) -> TlsTrouble {
        match cause {
            rustls::Error::InvalidCertificate(error) => TlsTrouble::of_certificate(error),
            rustls::Error::AlertReceived(alert) => TlsTrouble::of_alert(*alert, Showed::NotAsked),
            // In a handshake alone: where the server spoke TLS before, `TlsDialler` and `TlsLink` make `Garbled` of it first.
            rustls::Error::InvalidMessage(_) => TlsTrouble::NotTls,
            rustls::Error::PeerIncompatible(why) => TlsTrouble::Incompatible(format!("{why:?}")),
            other => TlsTrouble::Failed(other.to_string()),
        }
    }

    fn of_certificate(error: &CertificateError) -> TlsTrouble {
        match error {
            CertificateError::Other(other) if other.0.is::<OtherKey>() => {
                TlsTrouble::OtherKey(other.0.to_string())
            }
            CertificateError::NotValidForNameContext {
                expected,
                presented,
            } => TlsTrouble::OtherName {
                expected: expected.to_str().into_owned(),
                presented: names(presented),
            },
            CertificateError::ExpiredContext { time, not_after } => TlsTrouble::Expired {
                since: between(*not_after, *time)
                    .map_or(String::new(), |ago| format!(" {ago} ago")),
            },
            CertificateError::Expired => TlsTrouble::Expired {
                since: String::new(),
            },
            CertificateError::NotValidYetContext { time, not_before } => TlsTrouble::NotYetValid {
                until: between(*time, *not_before).map_or(String::new(), |left| {
                    format!(", it begins in {left} by this clock")
                }),
            },
            CertificateError::NotValidYet => TlsTrouble::NotYetValid {
                until: String::new(),
            },
            // Only the dialler knows whose roots were asked, and gives this answer itself in a handshake (`TlsDialler::trouble`).
            CertificateError::UnknownIssuer => TlsTrouble::UnknownAuthority { of_system: false },
            // A certificate of `openssl req -x509`, used as it is.
            // The type of this error is of webpki, which is no dependency of ours: its words tell it.
            CertificateError::Other(other)
                if format!("{other:?}").contains("CaUsedAsEndEntity") =>
            {
                TlsTrouble::BadCertificate(
                    "it is an authority's own, not a server's (openssl req -x509 makes one for a server with -addext basicConstraints=critical,CA:FALSE), unless its key is pinned, with Tls::pinned or --tls-pin"
                        .to_owned(),
                )
            }
            CertificateError::Other(other)
                if format!("{other:?}").contains("UnsupportedCertVersion") =>
            {
                TlsTrouble::OldCertificate
            }
            other => TlsTrouble::BadCertificate(other.to_string()),
        }
    }

    /// The server's last word.
    pub(super) fn of_alert(alert: AlertDescription, showed: Showed) -> TlsTrouble {
        use AlertDescription as Alert;
        match (alert, showed) {
            (Alert::CertificateRequired, _)
            // TLS 1.2 has no word of its own for it.
            | (Alert::HandshakeFailure | Alert::BadCertificate, Showed::Nothing) => {
                TlsTrouble::WantsCertificate
            }
            (
                Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied,
                Showed::Certificate,
            ) => TlsTrouble::RefusesCertificate(said(alert)),
            (Alert::ProtocolVersion | Alert::InsufficientSecurity, _) => {
                TlsTrouble::Incompatible(said(alert))
            }
            _ => TlsTrouble::Refuses(said(alert)),
        }
    }
}

fn said(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::UnknownCA => "it does not know its authority".to_owned(),
        AlertDescription::CertificateExpired => "it has expired".to_owned(),
        AlertDescription::CertificateRevoked => "it was revoked".to_owned(),
        AlertDescription::ProtocolVersion => "it speaks another version".to_owned(),
        other => format!("its alert is {other:?}"),
    }
}

/// The names of a certificate, as many as one reads.
fn names(presented: &[String]) -> String {
    const SHOWN: usize = 4;
    let plain = |name: &String| {
        // `DnsName("a.example")`, `IpAddress(127.0.0.1)`
        let inner = name
            .split_once('(')
            .and_then(|(_, rest)| rest.strip_suffix(')'));
        inner.unwrap_or(name).trim_matches('"').to_owned()
    };
    let shown: Vec<_> = presented.iter().take(SHOWN).map(plain).collect();
    match presented.len() {
        0 => "no name at all".to_owned(),
        all if all > SHOWN => format!("{} and {} more", shown.join(", "), all - SHOWN),
        _ => shown.join(", "),
    }
}

/// The time between two instants, in the largest unit of which there are two; `None` if it is negative.
fn between(from: UnixTime, to: UnixTime) -> Option<String> {
    const UNITS: [(u64, &str); 4] = [
        (86_400, "days"),
        (3_600, "hours"),
        (60, "minutes"),
        (1, "seconds"),
    ];
    let seconds = Duration::from_secs(to.as_secs().checked_sub(from.as_secs())?).as_secs();
    let (unit, name) = UNITS
        .iter()
        .find(|(unit, _)| seconds >= 2 * unit)
        .unwrap_or(&(1, "seconds"));
    Some(format!("{} {name}", seconds / unit))
}
