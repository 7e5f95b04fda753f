//! A client that starts before its server does: `connect_lazily`.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::common::{SOON, int, release, servers, soon, until_listening, without_runtime};
use leasehold::{Client, ClientBuilder, Error, ErrorKind, MemoryServer, Shutdown};
use leasehold_testkit::{Flavor, Server};

/// The operation timeout of these tests.
const ANSWER: Duration = Duration::from_millis(300);

/// Longer than it takes to find out that a server is not there, shorter than a test may take.
const A_WHILE: Duration = Duration::from_secs(1);

fn builder(server: &Server) -> ClientBuilder {
    Client::builder()
        .url(server.url())
        .operation_timeout(ANSWER)
}

#[track_caller]
fn assert_kind<T>(result: Result<T, Error>, kind: ErrorKind) -> String {
    let Err(error) = result else {
        panic!("no error where it was to be {kind:?}")
    };
    assert_eq!(error.kind(), kind, "{error}");
    error.to_string()
}

#[tokio::test]
async fn nothing_is_sent_before_the_first_use() {
    for server in servers() {
        let before = server.connections_received();
        let client = builder(&server).connect_lazily().unwrap();
        let mutex = client.mutex("name");
        assert_eq!(server.connections_received(), before, "{}", server.flavor());
        release(mutex.lock().await.unwrap()).await;
        assert!(
            server.connections_received() > before,
            "{}",
            server.flavor()
        );
    }
}

#[tokio::test]
async fn a_server_that_never_starts_is_told_as_each_verb_promises() {
    let mut server = Server::start(Flavor::Redis);
    server.kill();
    let client = builder(&server).connect_lazily().unwrap();
    let mutex = client.mutex("name");

    let begin = Instant::now();
    let said = assert_kind(mutex.try_lock().await, ErrorKind::NotSent);
    assert!(said.contains("name"), "{said}");
    let took = begin.elapsed();
    assert!(took >= ANSWER && took < ANSWER * 5, "{took:?}: {said}");

    let begin = Instant::now();
    assert_kind(mutex.try_lock_for(A_WHILE).await, ErrorKind::NotSent);
    let took = begin.elapsed();
    assert!(took >= A_WHILE && took < A_WHILE * 5, "{took:?}");

    assert_kind(mutex.status().await, ErrorKind::NotSent);
    assert_kind(client.latch("count").count().await, ErrorKind::NotSent);
    let waits = tokio::time::timeout(A_WHILE, mutex.lock()).await;
    assert!(waits.is_err(), "lock() waits for the server");
    let shutdown = Shutdown::ReleaseAll { grace: SOON };
    soon("the shutdown", client.shutdown(shutdown)).await;
}

#[tokio::test]
async fn a_server_that_is_not_ready_is_told_as_each_verb_promises() {
    for server in servers() {
        // A replica of none: it answers, and takes no writes.
        server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
        let client = builder(&server).connect_lazily().unwrap();
        let mutex = client.mutex("name");

        let begin = Instant::now();
        let told = mutex.try_lock().await.map(drop).unwrap_err();
        assert!(begin.elapsed() >= ANSWER, "{told}");
        assert!(!told.is_unreachable(), "{told}");
        let said = assert_kind(Err::<(), _>(told), ErrorKind::Rejected);
        assert!(said.contains("replica"), "{said}");

        let begin = Instant::now();
        assert_kind(mutex.try_lock_for(A_WHILE).await, ErrorKind::Rejected);
        assert!(begin.elapsed() >= A_WHILE);

        let lock = tokio::spawn(mutex.lock());
        tokio::time::sleep(ANSWER * 2).await;
        assert!(!lock.is_finished(), "lock() waits for the server");
        server.cli(&["REPLICAOF", "NO", "ONE"]);
        release(soon("the lock", lock).await.unwrap().unwrap()).await;
    }
}

#[tokio::test]
async fn a_server_that_starts_later_is_found_by_all_that_wait() {
    let mut server = Server::start(Flavor::Redis);
    server.kill();
    // Longer than `ANSWER`: once the server is there, a machine with much to do may take that long for a renewal.
    let lazy = || builder(&server).operation_timeout(A_WHILE).connect_lazily();
    let (one, two) = (lazy().unwrap(), lazy().unwrap());
    let first = tokio::spawn(one.mutex("name").lock());
    let patient = tokio::spawn(two.fair_mutex("other").try_lock_for(SOON));
    // Both have asked by then, and found nothing.
    assert_kind(one.mutex("name").status().await, ErrorKind::NotSent);
    server.restart();
    let guard = soon("the lock", first).await.unwrap().unwrap();
    let other = soon("the fair lock", patient).await.unwrap().unwrap();
    release(other.expect("it is free")).await;
    // From here on as every client: it waits, is woken, and its lease is renewed.
    let waiter = tokio::spawn(two.mutex("name").lock());
    until_listening(&one, 1).await;
    guard.verify().await.unwrap();
    release(guard).await;
    release(soon("the waiter", waiter).await.unwrap().unwrap()).await;
}

#[tokio::test]
async fn a_refusal_is_told_by_the_operation_that_finds_it_and_not_waited_for() {
    for server in servers() {
        server.cli(&["CONFIG", "SET", "requirepass", "right"]);
        let client = builder(&server).password("wrong-and-hush");
        let client = client.connect_lazily().unwrap();
        let begin = Instant::now();
        let said = assert_kind(client.mutex("name").try_lock().await, ErrorKind::Rejected);
        assert!(said.contains("assword") && !said.contains("hush"), "{said}");
        assert!(begin.elapsed() < ANSWER, "it waits for no timeout");
        let lock = client.rw_lock("name").write();
        assert_kind(soon("the lock", lock).await, ErrorKind::Rejected);
        let latch = client.latch("count");
        assert_kind(soon("the latch", latch.wait()).await, ErrorKind::Rejected);
        // Many at once: each is told.
        let together = (0..20).map(|_| tokio::spawn(client.mutex("name").lock()));
        for one in together.collect::<Vec<_>>() {
            assert_kind(soon("the lock", one).await.unwrap(), ErrorKind::Rejected);
        }
        // Without a runtime it is the thread of the library that asks.
        let lock = client.mutex("name").lock();
        let told = std::thread::spawn(|| without_runtime(lock).map(drop));
        let told = tokio::task::spawn_blocking(|| told.join().unwrap()).await;
        assert_kind(told.unwrap(), ErrorKind::Rejected);
        // It is no final word.
        server.cli(&["CONFIG", "SET", "requirepass", "wrong-and-hush"]);
        release(soon("the lock", client.mutex("name").lock()).await.unwrap()).await;
    }
}

#[tokio::test]
async fn a_node_of_a_cluster_is_told_by_the_operation_that_finds_it() {
    let server = Server::start_with(Flavor::Redis, &["--cluster-enabled", "yes"]);
    let client = builder(&server).connect_lazily().unwrap();
    let said = assert_kind(client.mutex("name").lock().await, ErrorKind::Rejected);
    assert!(said.contains("cluster"), "{said}");
}

#[tokio::test]
async fn a_client_that_was_connected_waits_for_a_server_that_refuses_it() {
    let server = Server::start(Flavor::Redis);
    let client = builder(&server).connect_lazily().unwrap();
    release(client.mutex("name").lock().await.unwrap()).await;
    server.cli(&["CONFIG", "SET", "requirepass", "another"]);
    int(&server, &["CLIENT", "KILL", "TYPE", "normal"]);
    let waiting = tokio::spawn(client.mutex("name").lock());
    let said = loop {
        // The first may find that its connection is gone.
        match client.mutex("other").try_lock().await {
            Err(error) if error.to_string().contains("AUTH") => break error,
            Err(_) => {}
            Ok(_) => panic!("it was locked out"),
        }
    };
    assert!(said.is_unreachable(), "{said}");
    assert!(!waiting.is_finished());
    server.cli(&["CONFIG", "SET", "requirepass", ""]);
    release(soon("the lock", waiting).await.unwrap().unwrap()).await;
}

/// A server that closes each connection as soon as it is there, and counts them.
struct Closes {
    url: String,
    attempts: Arc<AtomicUsize>,
}

impl Closes {
    fn start() -> Closes {
        Closes::at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
    }

    fn at(address: SocketAddr) -> Closes {
        let listener = TcpListener::bind(address).unwrap();
        let url = format!("redis://{}/", listener.local_addr().unwrap());
        let attempts = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&attempts);
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                counted.fetch_add(1, Ordering::SeqCst);
                drop(stream);
            }
        });
        Closes { url, attempts }
    }

    fn client(&self) -> Client {
        Client::builder()
            .url(self.url.as_str())
            .operation_timeout(ANSWER)
            .connect_lazily()
            .unwrap()
    }

    /// How many attempts come in this time.
    async fn attempts_in(&self, time: Duration) -> usize {
        let before = self.attempts.load(Ordering::SeqCst);
        tokio::time::sleep(time).await;
        self.attempts.load(Ordering::SeqCst) - before
    }
}

#[tokio::test]
async fn a_client_that_never_had_a_connection_owes_nothing_and_ends() {
    const A_YEAR: Duration = Duration::from_secs(366 * 86_400);
    let server = Closes::start();
    let (one, two, three, four, five) = (
        server.client(),
        server.client(),
        server.client(),
        server.client(),
        server.client(),
    );
    let year = one.mutex("name").fixed_lease(A_YEAR);
    assert_kind(year.try_lock().await, ErrorKind::NotSent);
    let permit = two.semaphore("name").try_acquire().await;
    assert_kind(permit, ErrorKind::NotSent);
    let several = three.multi_lock(["a", "b"]);
    assert_kind(several.try_lock().await, ErrorKind::NotSent);
    // Dropped while it waits for the first answer, and later.
    for wait in [ANSWER / 10, ANSWER * 2] {
        let lock = tokio::time::timeout(wait, four.mutex("name").lock());
        assert!(lock.await.is_err());
        let fair = four.fair_mutex("name").lock();
        assert!(tokio::time::timeout(wait, fair).await.is_err());
        let latch = four.latch("name");
        let _ = tokio::time::timeout(wait, latch.wait()).await;
    }
    let release_all = Shutdown::ReleaseAll {
        grace: Duration::ZERO,
    };
    assert_kind(five.mutex("name").try_lock().await, ErrorKind::NotSent);
    five.shutdown(release_all).await;
    drop((year, several, one, two, three, four));
    tokio::time::sleep(ANSWER * 4).await;
    // Also of the one that was shut down and is kept.
    assert_eq!(server.attempts_in(ANSWER * 4).await, 0);
    assert_kind(five.mutex("name").status().await, ErrorKind::NotSent);
    drop(five);
}

#[tokio::test]
async fn a_client_for_which_no_request_waits_dials_seldom() {
    let server = Closes::start();
    let client = server.client();
    assert_kind(client.mutex("name").try_lock().await, ErrorKind::NotSent);
    tokio::time::sleep(Duration::from_secs(4)).await;
    let seldom = server.attempts_in(Duration::from_secs(6)).await;
    assert!((1..=3).contains(&seldom), "{seldom} attempts in 6 s");
    // A call that comes to wait does not wait for the end of such a pause.
    let lock = client.mutex("name").try_lock_for(Duration::from_secs(3));
    let (often, lock) = tokio::join!(server.attempts_in(Duration::from_secs(3)), lock);
    assert_kind(lock, ErrorKind::NotSent);
    assert!(often >= 3, "{often} attempts in 3 s");
}

/// It goes on giving back what an ask without an answer may have taken: of a semaphore, for a day.
#[tokio::test]
async fn a_client_that_was_shut_down_with_a_pending_release_dials_seldom() {
    let mut server = Server::start(Flavor::Redis);
    let operator = Client::connect(&server.url()).await.unwrap();
    operator.semaphore("name").try_set_permits(1).await.unwrap();
    // Most of the time it pauses between two requests about its pending release.
    let client = builder(&server).operation_timeout(ANSWER / 10);
    let client = client.connect().await.unwrap();
    server.freeze();
    let permit = client.semaphore("name").try_acquire().await;
    assert_kind(permit, ErrorKind::Ambiguous);
    let address = server.addr();
    // While it stands still: else it gives the permit back before it ends.
    server.kill();
    let server = Closes::at(address);
    client.shutdown(Shutdown::LetExpire).await;
    // Until its pauses have grown.
    let _ = server.attempts_in(Duration::from_secs(3)).await;
    let attempts = server.attempts_in(Duration::from_secs(6)).await;
    assert!((1..=12).contains(&attempts), "{attempts} attempts in 6 s");
}

/// Its server is gone, and the request was not sent: the name is not to be given back.
#[tokio::test]
async fn a_request_that_was_not_sent_leaves_no_pending_release() {
    let mut server = Server::start(Flavor::Redis);
    let client = builder(&server).connect_lazily().unwrap();
    release(client.mutex("name").lock().await.unwrap()).await;
    server.kill();
    // Finds that the connection is gone.
    let _ = client.mutex("name").status().await;
    assert_kind(client.mutex("name").try_lock().await, ErrorKind::NotSent);
    tokio::time::sleep(ANSWER).await;
    assert_eq!(client.footprint().tasks, 0);
}

static SERVER: LazyLock<Server> = LazyLock::new(|| Server::start(Flavor::Redis));
static CLIENT: LazyLock<Client> = LazyLock::new(|| {
    Client::builder()
        .url(SERVER.url())
        .connect_lazily()
        .unwrap()
});

#[test]
fn settings_are_checked_at_once_and_no_runtime_is_needed() {
    for (builder, what) in [
        (Client::builder().url("http://127.0.0.1/"), "url"),
        (Client::builder().lease(Duration::ZERO), "lease"),
        (Client::builder().label("two words"), "label"),
    ] {
        let said = assert_kind(builder.connect_lazily(), ErrorKind::Invalid);
        assert!(said.contains(what), "{said}");
    }
    let guard = without_runtime(CLIENT.mutex("name").lock()).unwrap();
    without_runtime(guard.release()).unwrap();
}

#[tokio::test]
async fn memory_is_there_at_once() {
    let server = MemoryServer::new();
    let client = Client::builder().memory(&server).connect_lazily().unwrap();
    release(client.mutex("name").lock().await.unwrap()).await;
}
