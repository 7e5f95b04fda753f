//! Keys that are pinned: the server must have one of them, and nothing else of its certificate is believed.
//!
//! The handshake proves that the server has the key: its signature is verified as ever.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use rustls::{
    CertificateError, DigitallySignedStruct, Error as TlsError, OtherError, SignatureScheme,
    SupportedCipherSuite,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{
        CryptoProvider, WebPkiSupportedAlgorithms,
        hash::{Hash, HashAlgorithm},
        verify_tls12_signature, verify_tls13_signature,
    },
    pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime, pem::PemObject},
    server::ParsedCertificate,
};

use crate::{backend::redis::tls_trouble::OtherKey, error::Invalid};

const BYTES: usize = 32;
type Pin = [u8; BYTES];

/// Believes a server that has a pinned key.
pub(super) struct Pins {
    keys: Vec<Pin>,
    sha256: &'static dyn Hash,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Pins {
    pub(super) fn new(given: &[Vec<u8>], provider: &CryptoProvider) -> Result<Pins, Invalid> {
        let pins = given.iter().map(|pin| {
            read(pin).ok_or_else(|| {
                let limit = "the SHA-256 of a public key: 32 bytes, 64 hexadecimal digits, or 44 characters of base64";
                Invalid::new("a pin for TLS", format!("{} bytes of something else", pin.len()), limit)
                    .remedy("openssl x509 -in server.pem -noout -pubkey | openssl pkey -pubin -outform der | openssl dgst -sha256 prints it")
            })
        });
        let keys = pins.collect::<Result<_, _>>()?;
        // The provider offers no hash by itself, so the hash of a cipher suite is taken.
        let hashes = provider
            .cipher_suites
            .iter()
            .filter_map(SupportedCipherSuite::tls13);
        let mut hashes = hashes.map(|suite| suite.common.hash_provider);
        let sha256 = hashes.find(|hash| hash.algorithm() == HashAlgorithm::SHA256);
        Ok(Pins {
            keys,
            sha256: sha256
                .ok_or_else(|| Invalid::new("tls", "without SHA-256", "able to compare keys"))?,
            algorithms: provider.signature_verification_algorithms,
        })
    }
}

/// A pin as it is given.
fn read(given: &[u8]) -> Option<Pin> {
    // 32 bytes are the hash itself: each of the forms in text is longer.
    // A text of 32 characters is none: an MD5, most likely.
    let is_text = given.iter().all(u8::is_ascii_graphic);
    if let (Ok(pin), false) = (given.try_into(), is_text) {
        return Some(pin);
    }
    let text = std::str::from_utf8(given).ok()?.trim();
    // As curl's --pinnedpubkey has it.
    let text = text.strip_prefix("sha256//").unwrap_or(text);
    let digits: Option<Vec<u8>> = text
        .chars()
        // `openssl dgst -c` writes colons between the bytes.
        .filter(|c| *c != ':')
        .map(|c| u8::try_from(c.to_digit(16)?).ok())
        .collect();
    match digits {
        Some(digits) if digits.len() == 2 * BYTES => {
            let bytes: Vec<_> = digits
                .chunks(2)
                .map(|pair| pair[0] << 4 | pair[1])
                .collect();
            bytes.try_into().ok()
        }
        _ if text.len() == 44 => {
            // The decoder of the TLS library reads PEM only.
            let pem = format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n");
            let decoded = SubjectPublicKeyInfoDer::from_pem_slice(pem.as_bytes()).ok()?;
            decoded.as_ref().try_into().ok()
        }
        _ => None,
    }
}

impl ServerCertVerifier for Pins {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let key = ParsedCertificate::try_from(certificate)?.subject_public_key_info();
        let is = self.sha256.hash(&key);
        if self.keys.iter().any(|pin| pin == is.as_ref()) {
            return Ok(ServerCertVerified::assertion());
        }
        let wrong = OtherKey {
            is: hex(is.as_ref()),
            pinned: self
                .keys
                .iter()
                .map(|pin| hex(pin))
                .collect::<Vec<_>>()
                .join(" or "),
        };
        Err(CertificateError::Other(OtherError(Arc::new(wrong))).into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl fmt::Debug for Pins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pins")
            .field("pins", &self.keys.len())
            .finish_non_exhaustive()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_read_as_bytes_hex_and_base64() {
        let pin: Pin = std::array::from_fn(|at| u8::try_from(at * 8).unwrap());
        let plain = hex(&pin);
        let colons: Vec<_> = plain
            .as_bytes()
            .chunks(2)
            .map(String::from_utf8_lossy)
            .collect();
        let colons = colons.join(":").to_uppercase();
        let base64 = "AAgQGCAoMDhASFBYYGhweICIkJigqLC4wMjQ2ODo8Pg=";
        for given in [
            &pin[..],
            plain.as_bytes(),
            colons.as_bytes(),
            base64.as_bytes(),
        ] {
            assert_eq!(read(given), Some(pin));
        }
        assert_eq!(read(format!(" sha256//{base64}\n").as_bytes()), Some(pin));
        for wrong in [
            "",
            "sha256",
            &plain[1..],
            &base64[1..],
            &format!("{plain}00"),
        ] {
            assert_eq!(read(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
