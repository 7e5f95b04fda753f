//! How a client finds the primary: what it asks sentinels, what it says when they do not help, and what it leaves them alone with.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, ErrorKind, Sentinel};
use leasehold_testkit::{Flavor, Proxy, SentinelGroup, SentinelSettings, Server, wait_until_async};

use crate::common::{SOON, keys, late::unless_late_async, soon, until_waiting_here};

/// How long a sentinel may take to answer a question.
const ANSWER: Duration = Duration::from_millis(300);

/// The sentinels, as the builder is given them.
fn given(group: &SentinelGroup) -> Sentinel {
    Sentinel::new(group.sentinel_addrs().iter().map(ToString::to_string))
}

async fn refusal(connecting: impl Future<Output = Result<Client, Error>>) -> Error {
    match soon("an answer", connecting).await {
        Ok(_) => panic!("connected"),
        Err(error) => error,
    }
}

async fn locks(client: &Client, server: &Server) {
    let guard = client.mutex("order:42").lock().await.unwrap();
    assert!(keys(server).contains(&"order:42".to_owned()));
    guard.release().await.unwrap();
}

/// A single group for all of this, since each takes seconds to come up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_name_the_primary_and_what_is_wrong_is_said() {
    for flavor in Flavor::available() {
        let mut group = SentinelGroup::start(flavor);
        let client = Client::connect(&group.url()).await.unwrap();
        locks(&client, group.server(group.primary())).await;
        let built = Client::builder().sentinel(given(&group).master(group.master()));
        locks(
            &built.connect().await.unwrap(),
            group.server(group.primary()),
        )
        .await;

        // A name that they do not know.
        let wrong = group.url().replace("master=main", "master=mian");
        let error = refusal(Client::connect(&wrong)).await;
        assert_eq!(error.kind(), ErrorKind::Rejected);
        let said = error.to_string();
        assert!(
            said.contains("know no primary \"mian\", but \"main\""),
            "{said}"
        );
        let error = refusal(Client::builder().sentinel(given(&group)).connect()).await;
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("Sentinel::master"), "{error}");
        let both = Client::builder()
            .url(group.url())
            .sentinel(given(&group).master("main"));
        assert_eq!(refusal(both.connect()).await.kind(), ErrorKind::Invalid);

        // A server of data is no sentinel, and a sentinel is no server of data.
        let addr = group.server(0).addr();
        let error = refusal(Client::connect(&format!(
            "redis-sentinel://{addr}/?master=main"
        )))
        .await;
        assert!(error.to_string().contains("it is no sentinel"), "{error}");
        let addr = group.sentinel_addrs()[0];
        let error = refusal(Client::connect(&format!("redis://{addr}/"))).await;
        let says = format!("redis-sentinel://{addr}/?master=NAME");
        assert!(error.to_string().contains(&says), "{error}");

        // Where a single sentinel is left, new clients find the primary by it, whether their URL names it alone or all three.
        let one = format!(
            "redis-sentinel://{}/?master=main",
            group.sentinel_addrs()[0]
        );
        group.kill_sentinel(1);
        group.kill_sentinel(2);
        locks(
            &Client::connect(&group.url()).await.unwrap(),
            group.server(group.primary()),
        )
        .await;
        let last = Client::connect(&one).await.unwrap();
        locks(&last, group.server(group.primary())).await;
        group.kill_sentinel(0);
        // The client knows where the primary was.
        group
            .server(group_primary())
            .cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        locks(&last, group.server(group_primary())).await;
        let began = Instant::now();
        let error = refusal(Client::connect(&group.url())).await;
        assert_eq!(error.kind(), ErrorKind::NotSent);
        assert!(
            error.to_string().contains("the sentinel at 127.0.0.1:"),
            "{error}"
        );
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "{:?}",
            began.elapsed()
        );
    }
}

/// The first, until another takes its place.
fn group_primary() -> usize {
    0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logins_of_sentinels_and_of_the_primary_are_apart_and_shown_nowhere() {
    let flavor = Flavor::available()[0];
    let settings = SentinelSettings::new()
        .user("orders", "hush")
        .sentinel_password("whist");
    let group = SentinelGroup::start_with(flavor, settings);
    let primary = group.server(group.primary());
    let url = |pass: &str| format!("{}{pass}", group.url());

    let client = Client::connect(&url("&sentinel_pass=whist")).await.unwrap();
    locks(&client, primary).await;
    let sentinel = given(&group).master("main").password("whist");
    assert!(!format!("{sentinel:?}").contains("whist"));
    let builder = Client::builder()
        .sentinel(sentinel)
        .username("orders")
        .password("hush");
    assert!(!format!("{builder:?}").contains("hush"));
    locks(&builder.connect().await.unwrap(), primary).await;

    for (pass, says) in [
        (
            "&sentinel_pass=hush",
            "refuses the user name or the password",
        ),
        ("", "wants a password"),
    ] {
        let began = Instant::now();
        let error = refusal(Client::connect(&url(pass))).await;
        assert_eq!(error.kind(), ErrorKind::Rejected);
        let said = error.to_string();
        assert!(
            said.contains("the sentinel at 127.0.0.1:") && said.contains(says),
            "{said}"
        );
        assert!(said.contains("sentinel_pass"), "{said}");
        assert!(!said.contains("hush") && !said.contains("whist"), "{said}");
        assert!(began.elapsed() < Duration::from_secs(5));
    }
    let wrong = url("&sentinel_pass=whist").replace("orders:hush", "orders:whist");
    let error = refusal(Client::connect(&wrong)).await;
    assert_eq!(error.kind(), ErrorKind::Rejected);
    assert!(!error.to_string().contains("the sentinel at"), "{error}");
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_speak_tls() {
    use leasehold::Tls;
    use leasehold_testkit::{Authority, TlsFiles};

    let authority = Authority::new("the authority");
    let tls = TlsFiles::new(authority.signs(&["127.0.0.1"]), &authority);
    let group = SentinelGroup::start_with(Flavor::Redis, SentinelSettings::new().tls(tls));
    let trusts = || Tls::new().root_pem(authority.pem());
    let client = Client::builder()
        .url(group.url())
        .tls(trusts())
        .connect()
        .await
        .unwrap();
    locks(&client, group.server(group.primary())).await;
    let sentinel = given(&group).master("main").tls(trusts());
    let client = Client::builder()
        .sentinel(sentinel)
        .tls(trusts())
        .connect()
        .await
        .unwrap();
    locks(&client, group.server(group.primary())).await;
}

/// A connection for each sentinel, on which nothing is said. While a lock is held or waited for there is another, on which each is asked every 2 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_client_that_holds_or_waits_asks_a_sentinel() {
    // A sentinel that answers late is left for a new connection, by a client and by other sentinels.
    let played = unless_late_async("questions", ANSWER, asks_while_it_holds_or_waits);
    played.await;
}

async fn asks_while_it_holds_or_waits() -> Result<(), String> {
    let group = SentinelGroup::start(Flavor::available()[0]);
    let client = Client::connect(&group.url()).await.unwrap();
    locks(&client, group.server(group.primary())).await;
    for sentinel in group.sentinels() {
        wait_until_async(SOON, "it is heard", || !watchers(sentinel).is_empty()).await;
    }
    let is_asked = |sentinel: &Server| !questions(sentinel).is_empty();
    // Not only as the watcher began.
    let is_asked_again = |sentinel: &Server| {
        let asked = questions(sentinel);
        asked.iter().any(|line| seconds(line, "age=") > idle(line))
    };
    let guard = client.mutex("name").lock().await.unwrap();
    let waiters: Vec<_> = (0..10)
        .map(|_| tokio::spawn(client.mutex("name").lock()))
        .collect();
    until_waiting_here(&client, 10).await;
    let all_asked = || group.sentinels().iter().all(is_asked_again);
    wait_until_async(SOON, "each is asked again", all_asked).await;
    let connections = || {
        let received = group.sentinels().iter().map(Server::connections_received);
        received.collect::<Vec<_>>()
    };
    let before = connections();
    // Time is the subject.
    tokio::time::sleep(Duration::from_secs(3)).await;
    for sentinel in group.sentinels() {
        let asked = questions(sentinel);
        assert!(asked.len() == 1 && idle(&asked[0]) <= 2, "{asked:?}");
    }
    for waiter in &waiters {
        waiter.abort();
    }
    drop(guard);
    let none_asked = || !group.sentinels().iter().any(is_asked);
    wait_until_async(SOON, "none is asked", none_asked).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    for sentinel in group.sentinels() {
        for line in watchers(sentinel) {
            assert!(idle(&line) >= 3, "{line}");
        }
        let asked = questions(sentinel);
        assert!(asked.is_empty(), "{asked:?}");
    }
    let after = connections();
    if after != before {
        return Err(format!("{before:?} connections, and {after:?} later"));
    }
    Ok(())
}

/// The lines of a sentinel's `CLIENT LIST` that belong to connections on which a client of ours asks again and again.
fn questions(sentinel: &Server) -> Vec<String> {
    let list: String = redis::from_redis_value(sentinel.cli(&["CLIENT", "LIST"])).unwrap();
    let asks = |line: &&str| line.contains(" cmd=sentinel|get-master-addr-by-name ");
    list.lines().filter(asks).map(str::to_owned).collect()
}

/// For how many seconds nothing was said on this connection.
fn idle(line: &str) -> u32 {
    seconds(line, "idle=")
}

fn seconds(line: &str, of: &str) -> u32 {
    let seconds = line.split(' ').find_map(|word| word.strip_prefix(of));
    seconds.unwrap().parse().unwrap()
}

/// The lines of a sentinel's `CLIENT LIST` that belong to a watcher.
fn watchers(sentinel: &Server) -> Vec<String> {
    let list: String = redis::from_redis_value(sentinel.cli(&["CLIENT", "LIST"])).unwrap();
    let subscribes = |line: &&str| line.contains(" sub=4 ");
    list.lines().filter(subscribes).map(str::to_owned).collect()
}

/// A sentinel is heard once, though it is given by name and the others tell of it by number. A sentinel that may not be heard is asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_has_one_connection_and_one_that_cannot_be_heard_is_asked() {
    let group = SentinelGroup::start(Flavor::available()[0]);
    let named = group.url().replace("127.0.0.1", "localhost");
    let client = Client::connect(&named).await.unwrap();
    locks(&client, group.server(group.primary())).await;
    for sentinel in group.sentinels() {
        wait_until_async(SOON, "it is heard", || !watchers(sentinel).is_empty()).await;
    }
    // Time is the subject: each has told of the others, and no second connection comes.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for sentinel in group.sentinels() {
        let all = watchers(sentinel);
        assert_eq!(all.len(), 1, "{all:?}");
    }
    drop(client);

    for sentinel in group.sentinels() {
        let user =
            "ACL SETUSER deaf on >secret resetchannels +ping +sentinel|master +sentinel|sentinels";
        sentinel.cli(&user.split(' ').collect::<Vec<_>>());
    }
    let deaf = format!("{}&sentinel_user=deaf&sentinel_pass=secret", group.url());
    let client = Client::connect(&deaf).await.unwrap();
    locks(&client, group.server(group.primary())).await;
    let new = group.failover();
    let is_there = || {
        let list = group.server(new).cli(&["CLIENT", "LIST"]);
        let list: String = redis::from_redis_value(list).unwrap();
        list.contains(client.id())
    };
    // Before the old primary is made a replica, which takes ten seconds, and closes its connections.
    let limit = Duration::from_secs(8);
    wait_until_async(limit, "it has left the old primary", is_there).await;
    locks(&client, group.server(new)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_and_sentinels_are_reached_where_the_client_is_told() {
    let mut group = SentinelGroup::start(Flavor::available()[0]);
    let all = group.servers().iter().chain(group.sentinels());
    let proxies: Vec<Proxy> = all.map(|server| Proxy::start(server.addr())).collect();
    let (servers, sentinels) = proxies.split_at(3);
    // The others are told of by this one, at their own addresses.
    let mut given = Sentinel::new([sentinels[0].addr().to_string()]).master("main");
    for (server, proxy) in group
        .servers()
        .iter()
        .chain(group.sentinels())
        .zip(&proxies)
    {
        given = given.reached_at(server.addr().to_string(), proxy.addr().to_string());
    }
    let client = Client::builder().sentinel(given).connect().await.unwrap();
    let old = group.primary();
    locks(&client, group.server(old)).await;
    assert!(servers[old].accepted() > 0);
    wait_until_async(SOON, "all sentinels are heard", || {
        sentinels.iter().all(|proxy| proxy.accepted() > 0)
    })
    .await;
    let new = group.failover();
    // The word of the switch has both addresses.
    wait_until_async(SOON, "it is at the new primary", || {
        servers[new].connections() > 0
    })
    .await;
    group.settle();
    locks(&client, group.server(new)).await;
    // Nothing went by.
    for server in &proxies {
        server.refuse(true);
        server.cut();
    }
    let error = client.mutex("order:42").try_lock().await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");

    for says in ["10.0.0.1", ":6379", "[::1]"] {
        let given = Sentinel::new(["localhost"])
            .master("main")
            .reached_at(says, "localhost:1");
        let error = refusal(Client::builder().sentinel(given).connect()).await;
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("a host and a port"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_names_the_primary_that_was_tried() {
    let mut group = SentinelGroup::start(Flavor::available()[0]);
    let primary = group.server(0).addr();
    group.kill_sentinel(1);
    group.kill_sentinel(2);
    group.kill(0);
    let error = refusal(Client::connect(&group.url())).await;
    assert_eq!(error.kind(), ErrorKind::NotSent);
    let says = format!("redis://{primary}/0, which the sentinels name as the primary: ");
    assert!(error.to_string().contains(&says), "{error}");
}
