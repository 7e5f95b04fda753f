use leasehold_testkit::Authority;
use rustls::{ServerConfig, pki_types::pem::PemObject, server::WebPkiClientVerifier};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

use super::*;

/// A server's side of TLS, and an authority that signed its certificate. Clients must show one, if it is `strict`.
fn acceptor(strict: bool) -> (TlsAcceptor, Authority) {
    let authority = Authority::new("the authority");
    let own = authority.signs(&["localhost"]);
    let chain = CertificateDer::pem_slice_iter(own.pem.as_bytes());
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let server = if strict {
        let roots = Arc::new(roots(&Tls::new().root_pem(authority.pem())).unwrap());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
        server.with_client_cert_verifier(verifier.build().unwrap())
    } else {
        server.with_no_client_auth()
    };
    let server = server.with_single_cert(chain, key).unwrap();
    (TlsAcceptor::from(Arc::new(server)), authority)
}

/// A server that says `+OK`, and then dies without a goodbye: what is after that on its socket is `last`.
async fn link_to_a_dying_server(last: &'static [u8]) -> TlsLink {
    let (acceptor, authority) = acceptor(false);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = acceptor.accept(stream).await.unwrap();
        stream.write_all(b"+OK").await.unwrap();
        stream.flush().await.unwrap();
        stream.get_mut().0.write_all(last).await.unwrap();
    });
    let tls = Tls::new().root_pem(authority.pem());
    let dialler = TlsDialler::new("localhost", &tls).unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    dialler.shake_hands(stream).await.unwrap()
}

/// With TLS 1.3 the handshake is over for the client before the server has looked at its certificate.
#[tokio::test]
async fn a_refused_certificate_is_told_although_the_connection_is_gone_before_the_first_request() {
    let (acceptor, authority) = acceptor(true);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let refusing = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        // It closes as a server does that has not read everything.
        super::super::connect::set_up(&stream, &crate::connection::ConnectionSettings::new())
            .unwrap();
        assert!(acceptor.accept(stream).await.is_err());
    });
    let tls = Tls::new().root_pem(authority.pem());
    let dialler = TlsDialler::new("localhost", &tls).unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let mut link = dialler.shake_hands(stream).await.unwrap();
    refusing.await.unwrap();
    let error = link.write_all(b"PING\r\n").await.unwrap_err();
    let broken = Arc::clone(&link.broken);
    let trouble = dialler.after_handshake(&broken, &RedisError::from(error));
    assert!(
        matches!(trouble, Some(TlsTrouble::WantsCertificate)),
        "{trouble:?}"
    );
}

#[tokio::test]
async fn a_server_that_dies_without_a_goodbye_ends_the_stream_as_without_tls() {
    let mut link = link_to_a_dying_server(b"").await;
    let mut said = Vec::new();
    link.read_to_end(&mut said).await.unwrap();
    assert_eq!(said, b"+OK");
}

#[tokio::test]
async fn bytes_that_are_no_tls_break_the_connection_and_are_told_in_our_words() {
    let mut link = link_to_a_dying_server(b"-ERR no TLS here\r\n").await;
    let error = link.read_to_end(&mut Vec::new()).await.unwrap_err();
    // With this kind the redis crate gives the connection up.
    assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    assert!(
        error.to_string().contains("bytes came that are no TLS"),
        "{error}"
    );
    assert!(link.broken.get().is_some());
}
