//! Logins that a provider gives: they change, end, fail and are late, and their secrets are not shown.

mod common;

use std::{
    io,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use common::{SOON, of_the_whole, release, servers, soon};
use leasehold::{
    Client, ClientBuilder, ConnectionSettings, Credentials, CredentialsProvider, Error, ErrorKind,
    Protocol,
};
#[cfg(feature = "tls")]
use leasehold_testkit::{Authority, TlsFiles};
use leasehold_testkit::{Flavor, Server, wait_until_async};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// The beginning of every password here.
const HUSH: &str = "hush-";

/// Knows the password of the server's user, gives it to clients, and changes it.
#[derive(Clone)]
struct Vault(Arc<Inside>);

struct Inside {
    server: Server,
    /// Changed under its lock, so that a client is never given one that the server has not.
    number: Mutex<usize>,
    asked: AtomicUsize,
    is_sealed: AtomicBool,
    good_for: Option<Duration>,
}

impl Vault {
    fn new(server: Server, good_for: Option<Duration>) -> Vault {
        server.cli(&["ACL", "SETUSER", "worker", "on", "~*", "&*", "+@all"]);
        let vault = Vault(Arc::new(Inside {
            server,
            number: Mutex::new(0),
            asked: AtomicUsize::new(0),
            is_sealed: AtomicBool::new(false),
            good_for,
        }));
        vault.change();
        vault
    }

    fn server(&self) -> &Server {
        &self.0.server
    }

    /// The server knows the new password alone.
    fn change(&self) {
        let mut number = self.0.number.lock().unwrap();
        *number += 1;
        let password = format!(">{HUSH}{}", *number);
        let user = ["ACL", "SETUSER", "worker", "resetpass", &password];
        self.server().cli(&user);
    }

    /// A new password, and for a moment the old one, too: a login may be under way.
    async fn rotate(&self) {
        let old = {
            let mut number = self.0.number.lock().unwrap();
            *number += 1;
            let [old, new] = [*number - 1, *number].map(|number| format!("{HUSH}{number}"));
            self.server()
                .cli(&["ACL", "SETUSER", "worker", &format!(">{new}")]);
            old
        };
        tokio::time::sleep(300 * MS).await;
        self.server()
            .cli(&["ACL", "SETUSER", "worker", &format!("<{old}")]);
    }

    fn seal(&self, is_sealed: bool) {
        self.0.is_sealed.store(is_sealed, Ordering::SeqCst);
    }

    fn asked(&self) -> usize {
        self.0.asked.load(Ordering::SeqCst)
    }

    fn builder(&self) -> ClientBuilder {
        Client::builder()
            .url(self.server().url())
            .credentials(self.clone())
            // Longer than any of these tests waits for anything.
            .poll_every(Duration::from_secs(60))
    }

    /// How often a client has logged in anew on a connection that it had.
    fn calls(&self, command: &str) -> u64 {
        self.server().calls().get(command).copied().unwrap_or(0)
    }

    /// The ages of the worker's connections, in seconds: for commands, and for wake-ups.
    fn ages(&self) -> (Vec<u64>, Vec<u64>) {
        let list = self.server().cli(&["CLIENT", "LIST"]);
        let list: String = redis::from_redis_value(list).unwrap();
        let ours = list.lines().filter(|line| line.contains(" user=worker "));
        let (wake_ups, commands): (Vec<&str>, _) = ours.partition(|line| !line.contains(" sub=0 "));
        let age = |line: &str| {
            let mut words = line.split(' ');
            let age = words.find_map(|word| word.strip_prefix("age=")).unwrap();
            age.parse().unwrap()
        };
        let ages = |lines: Vec<&str>| lines.into_iter().map(age).collect();
        (ages(commands), ages(wake_ups))
    }

    fn cut(&self) {
        self.server().cli(&["CLIENT", "KILL", "USER", "worker"]);
    }
}

impl CredentialsProvider for Vault {
    async fn credentials(&self) -> Result<Credentials, Box<dyn std::error::Error + Send + Sync>> {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        if self.0.is_sealed.load(Ordering::SeqCst) {
            return Err("the vault is sealed".into());
        }
        let credentials =
            Credentials::new("worker", format!("{HUSH}{}", self.0.number.lock().unwrap()));
        Ok(match self.0.good_for {
            Some(time) => credentials.good_for(time),
            None => credentials,
        })
    }
}

/// All that is told to `tracing` by any library in this process.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lines() -> Lines {
    static LINES: LazyLock<Lines> = LazyLock::new(|| {
        let lines = Lines::default();
        let writer = lines.clone();
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .init();
        lines
    });
    LINES.clone()
}

impl Lines {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

/// Changes the password each two seconds for a while, under clients that fight for a name and one that holds another.
async fn no_caller_notices(vault: Vault, builder: ClientBuilder) {
    let (one, other) = (
        builder.clone().connect().await.unwrap(),
        builder.connect().await.unwrap(),
    );
    let kept = one.mutex("kept").lease(3 * SECOND).lock().await.unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..8)
        .map(|i| {
            let client = if i % 2 == 0 { &one } else { &other };
            let (mutex, is_over) = (client.mutex("name"), Arc::clone(&is_over));
            tokio::spawn(async move {
                let mut turns = 0;
                while !is_over.load(Ordering::SeqCst) {
                    let guard = soon("lock()", mutex.lock()).await.unwrap();
                    tokio::time::sleep(5 * MS).await;
                    release(guard).await;
                    turns += 1;
                }
                turns
            })
        })
        .collect();
    let end = Instant::now() + Duration::from_secs(of_the_whole(60).try_into().unwrap());
    while Instant::now() < end {
        tokio::time::sleep(2 * SECOND).await;
        vault.rotate().await;
        let (_, wake_ups) = vault.ages();
        assert!(
            wake_ups.iter().all(|age| *age <= 3),
            "{wake_ups:?} s old, good for 2 s"
        );
    }
    assert!(kept.is_valid());
    let (commands, _) = vault.ages();
    assert!(
        commands.iter().any(|age| *age > 8),
        "{commands:?} s: all were made anew"
    );
    is_over.store(true, Ordering::SeqCst);
    for task in tasks {
        assert!(task.await.unwrap() > 10);
    }
    release(kept).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_changes_each_two_seconds_is_noticed_by_no_caller() {
    let lines = lines();
    let mut worlds = Vec::new();
    for server in servers() {
        let vault = Vault::new(server, Some(2 * SECOND));
        let builder = vault.builder();
        worlds.push(tokio::spawn(no_caller_notices(vault, builder)));
    }
    #[cfg(feature = "tls")]
    {
        let authority = Authority::new("the authority");
        let files = TlsFiles::new(authority.signs(&["localhost"]), &authority);
        let server = Server::start_with_tls(Flavor::Redis, &files, &[]);
        let url = server.tls_url("localhost");
        let vault = Vault::new(server, Some(2 * SECOND));
        let tls = leasehold::Tls::new().root_pem(authority.pem());
        let builder = vault.builder().url(url).tls(tls);
        worlds.push(tokio::spawn(no_caller_notices(vault, builder)));
    }
    for world in worlds {
        world.await.unwrap();
    }
    let text = lines.text();
    assert!(
        text.contains("login renewed"),
        "nothing was renewed:\n{text}"
    );
    // Another test of this program seals its vault.
    let in_vain =
        |line: &&str| line.contains("not renewed") && !line.contains("the vault is sealed");
    let in_vain: Vec<_> = text.lines().filter(in_vain).collect();
    assert!(in_vain.is_empty(), "{in_vain:#?}");
    assert!(!text.contains(HUSH), "a secret is told:\n{text}");
}

#[tokio::test]
async fn a_lock_waits_while_the_provider_fails_and_errors_have_its_words() {
    for server in servers() {
        let vault = Vault::new(server, None);
        vault.seal(true);
        let is_named = |error: Error| {
            let said = format!("{error} {error:?}");
            assert!(error.is_unreachable(), "{said}");
            assert!(
                said.contains("the credentials provider failed: the vault is sealed"),
                "{said}"
            );
            assert!(!said.contains(HUSH), "{said}");
        };
        let error = vault.builder().connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotSent);
        is_named(error);
        // Longer than the pause between two attempts to connect.
        let builder = vault.builder().operation_timeout(1500 * MS);
        assert!(!format!("{builder:?}").contains(HUSH));
        let client = builder.connect_lazily().unwrap();
        let waiting = tokio::spawn(client.mutex("name").lock());
        is_named(client.mutex("name").try_lock().await.unwrap_err());
        assert!(!waiting.is_finished());
        vault.seal(false);
        let guard = soon("after the vault was opened", waiting)
            .await
            .unwrap()
            .unwrap();

        // The same again, for a client that was connected. A request that meets the end of its connection is ambiguous.
        vault.change();
        vault.seal(true);
        vault.cut();
        let other = client.mutex("other");
        let waiting = tokio::spawn(other.lock());
        is_named(client.mutex("third").try_lock().await.unwrap_err());
        assert!(guard.is_valid() && !waiting.is_finished());
        vault.seal(false);
        release(
            soon("after the vault was opened again", waiting)
                .await
                .unwrap()
                .unwrap(),
        )
        .await;
        release(guard).await;
    }
}

#[tokio::test]
async fn a_login_that_is_not_renewed_costs_nothing_while_the_server_keeps_it() {
    let vault = Vault::new(Server::start(Flavor::Redis), Some(500 * MS));
    let client = vault.builder().connect().await.unwrap();
    vault.seal(true);
    let asked = vault.asked();
    wait_until_async(SOON, "the provider has failed some times", || {
        vault.asked() > asked + 2
    })
    .await;
    release(client.mutex("name").try_lock().await.unwrap().unwrap()).await;
    let before = vault.calls("auth");
    vault.change();
    vault.seal(false);
    wait_until_async(SOON, "the login is renewed", || {
        vault.calls("auth") > before + 1
    })
    .await;
    release(client.mutex("name").try_lock().await.unwrap().unwrap()).await;
}

#[tokio::test]
async fn a_login_that_was_changed_after_it_was_given_is_asked_for_once_more() {
    for server in servers() {
        let vault = Vault::new(server, None);
        let (outdated, first) = (vault.clone(), Arc::new(AtomicBool::new(true)));
        let provider = move || {
            let (vault, is_first) = (outdated.clone(), first.swap(false, Ordering::SeqCst));
            async move {
                let given = vault.credentials().await;
                if is_first {
                    vault.change();
                }
                given
            }
        };
        let url = vault.server().url();
        let client = Client::builder()
            .url(url)
            .credentials(provider)
            .connect()
            .await
            .unwrap();
        assert_eq!(vault.asked(), 2);
        release(client.mutex("name").try_lock().await.unwrap().unwrap()).await;

        let wrong = || async { Ok::<_, String>(Credentials::new("worker", "hush-wrong")) };
        let refused = Client::builder()
            .url(vault.server().url())
            .credentials(wrong);
        let error = refused.connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        assert!(!format!("{error} {error:?}").contains(HUSH), "{error:?}");
    }
}

#[tokio::test]
async fn a_provider_that_does_not_answer_is_named() {
    let server = Server::start(Flavor::Redis);
    let silent = std::future::pending::<Result<Credentials, String>>;
    let builder = Client::builder().url(server.url()).credentials(silent);
    let error = builder
        .connect_timeout(100 * MS)
        .connect()
        .await
        .unwrap_err();
    let said = error.to_string();
    assert_eq!(error.kind(), ErrorKind::NotSent, "{said}");
    assert!(
        said.contains("provider has not answered within 100ms"),
        "{said}"
    );
}

#[tokio::test]
async fn a_password_alone_is_that_of_the_user_in_the_url() {
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let vault = Vault::new(Server::start(Flavor::Redis), None);
        let url = format!("redis://worker@{}/", vault.server().addr());
        let provider =
            || async { Ok::<_, String>(Credentials::password("hush-1").good_for(200 * MS)) };
        let client = Client::builder()
            .url(url)
            .credentials(provider)
            .connection(ConnectionSettings::new().protocol(protocol))
            .connect()
            .await
            .unwrap();
        let before = vault.calls("auth");
        wait_until_async(SOON, "the login is renewed", || {
            vault.calls("auth") > before
        })
        .await;
        release(client.mutex("name").try_lock().await.unwrap().unwrap()).await;
        let list = vault.server().cli(&["CLIENT", "LIST"]);
        let list: String = redis::from_redis_value(list).unwrap();
        let ours: Vec<&str> = list
            .lines()
            .filter(|line| line.contains(" user=worker "))
            .collect();
        let speaks = if protocol == Protocol::Resp3 {
            "resp=3"
        } else {
            "resp=2"
        };
        assert!(
            !ours.is_empty() && ours.iter().all(|line| line.contains(speaks)),
            "{list}"
        );
    }
}

#[cfg(feature = "redis-1")]
#[tokio::test]
async fn what_the_redis_crate_has_parsed_is_a_server_too() {
    use redis::{ConnectionAddr, IntoConnectionInfo};

    let server = Server::start(Flavor::Redis);
    let of = |url: &str| url.into_connection_info().unwrap();
    let info = of(&format!("redis://{}/3", server.addr()));
    let client = Client::builder()
        .redis_info(info.clone())
        .connect()
        .await
        .unwrap();
    let guard = client.mutex("name").lock().await.unwrap();
    let keyspace: String = redis::from_redis_value(server.cli(&["INFO", "keyspace"])).unwrap();
    assert!(keyspace.contains("db3:"), "{keyspace}");
    release(guard).await;

    let with_tls = info.clone().set_addr(ConnectionAddr::TcpTls {
        host: "localhost".to_owned(),
        port: 1,
        insecure: false,
        tls_params: None,
    });
    for (builder, says) in [
        (
            Client::builder().redis_info(with_tls),
            "ConnectionAddr::Tcp",
        ),
        (
            Client::builder().redis_info(info).url("redis://127.0.0.1/"),
            "leave the URL out",
        ),
    ] {
        let error = builder.connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[tokio::test]
async fn settings_that_no_kernel_takes_are_refused_before_anything_is_sent() {
    let settings = ConnectionSettings::new().keepalive(Duration::ZERO, SECOND, 1);
    let builder = Client::builder()
        .url("redis://127.0.0.1:1/")
        .connection(settings);
    let error = builder.connect_lazily().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("keepalive"), "{error}");
}
