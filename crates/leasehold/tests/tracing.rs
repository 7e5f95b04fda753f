//! `leasehold=trace` tells the story of a lock, in order; a span is around each wait for a lock and around each hold.

mod common;

use std::{
    io,
    path::Path,
    sync::{Arc, LazyLock, Mutex},
    time::Duration,
};

use common::{
    SOON, few_or,
    redisson::{OLD, Redisson},
    restricted, servers, soon,
};
use futures_util::future::join_all;
use leasehold::{Client, Durability, EventKind, Guard, MemoryServer, Part, Released, Unmet};
use leasehold_testkit::{Cluster, Flavor, Proxy, SentinelGroup, Server, wait_until_async};
use opentelemetry::trace::{Status, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tracing::Instrument;
use tracing_subscriber::{
    EnvFilter, Layer,
    filter::Targets,
    fmt::MakeWriter,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
};

const MS: Duration = Duration::from_millis(1);

/// Tests run in turn: `tracing` keeps for each place in the code whether any subscriber wants to hear of it, and subscribers of two
/// threads that come and go at once can leave that wrong.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Of a client of a real server, whose lines are told from the thread of the clients.
fn everywhere() -> Lines {
    static LINES: LazyLock<Lines> = LazyLock::new(|| {
        let lines = Lines::default();
        let subscriber = Lines::subscriber("leasehold=trace", &lines);
        tracing::subscriber::set_global_default(subscriber).unwrap();
        lines
    });
    LINES.0.lock().unwrap().clear();
    LINES.clone()
}

/// The lines that a subscriber has written.
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

impl MakeWriter<'_> for Lines {
    type Writer = Lines;

    fn make_writer(&self) -> Lines {
        self.clone()
    }
}

impl Lines {
    /// The lines that `filter` lets through, with the leases numbered from 1 in the order in which they come.
    fn hear(filter: &str) -> (Lines, tracing::subscriber::DefaultGuard) {
        let lines = Lines::default();
        let heard = tracing::subscriber::set_default(Lines::subscriber(filter, &lines));
        (lines, heard)
    }

    fn subscriber(filter: &str, lines: &Lines) -> impl tracing::Subscriber + use<> {
        tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(filter))
            .with_writer(lines.clone())
            .with_ansi(false)
            .without_time()
            .finish()
    }

    fn text(&self) -> String {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let mut leases: Vec<&str> = Vec::new();
        let mut told = String::new();
        for line in text.lines() {
            let mut parts = line.trim_start().split_inclusive("lease=");
            let parts = parts
                .by_ref()
                .flat_map(|part| part.split_inclusive("lock.owner=\""));
            let mut is_lease = false;
            for part in parts {
                let mut part = part;
                if is_lease {
                    // Of an owner the second half is the lease.
                    let digits = |c: char| !c.is_ascii_digit();
                    if let Some((_, lease)) = part.split_once(':').filter(|_| told.ends_with('"')) {
                        told += "…:";
                        part = lease;
                    }
                    let (lease, rest) = part.split_at(part.find(digits).unwrap_or(part.len()));
                    let known = leases.iter().position(|known| *known == lease);
                    let number = known.unwrap_or_else(|| {
                        leases.push(lease);
                        leases.len() - 1
                    });
                    told += &(number + 1).to_string();
                    part = rest;
                }
                told += part;
                is_lease = part.ends_with("lease=") || part.ends_with("lock.owner=\"");
            }
            told += "\n";
        }
        told
    }
}

/// A holder, a waiter behind it, and the lease passes on.
async fn story(client: &Client) {
    let mutex = client.mutex("order:42").lease(300 * MS);
    let first = mutex.lock().await.unwrap();
    let second = tokio::spawn(mutex.lock());
    tokio::time::sleep(5 * MS).await;
    first.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    let work = async {
        tracing::info!(target: "shop", "charging the card");
        tokio::time::sleep(150 * MS).await; // longer than the time to the next renewal
    };
    second.run(work).await.unwrap();
    drop(second);
    tokio::time::sleep(5 * MS).await;
}

/// The first block of code in this section of the page.
fn documented(section: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/observing.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once(&format!("## {section}\n")).unwrap();
    let (_, block) = section.split_once("```text\n").unwrap();
    block.split_once("```").unwrap().0.to_owned()
}

#[tokio::test(start_paused = true)]
async fn the_story_of_a_lock_is_told_in_order_and_as_documented() {
    let _alone = ALONE.lock().await;
    let client = Client::connect("memory:").await.unwrap();
    let (lines, _heard) = Lines::hear("leasehold=trace,shop=info");
    story(&client).await;
    assert_eq!(
        lines.text(),
        documented("The story of a lock"),
        "docs/observing.md"
    );
}

/// Once, however often it asks; and not one that is told by its answer.
#[tokio::test(start_paused = true)]
async fn one_that_waits_for_permits_that_no_client_has_set_is_warned_of_it() {
    let _alone = ALONE.lock().await;
    let client = Client::connect("memory:").await.unwrap();
    let (lines, _heard) = Lines::hear("leasehold=warn");
    let semaphore = client.leased_semaphore("encoders");
    semaphore.try_acquire().await.map(drop).unwrap_err();
    assert_eq!(lines.text(), "");
    let wait = 60_000 * MS;
    let error = semaphore.try_acquire_for(wait).await.map(drop).unwrap_err();
    assert_eq!(
        lines.text(),
        "WARN leasehold: waiting for a permit: the semaphore has no permits; set them: permits(n) does where no client has, or \
         call try_set_permits(n) name=encoders\n"
    );
    assert!(
        error.to_string().contains("no permits; set them"),
        "{error}"
    );
}

/// Others may have set more than its handle says, so it waits.
#[tokio::test(start_paused = true)]
async fn one_that_waits_for_more_permits_than_there_are_is_warned_of_it() {
    let _alone = ALONE.lock().await;
    let client = Client::connect("memory:").await.unwrap();
    let (lines, _heard) = Lines::hear("leasehold=warn");
    let (first, waits) = (
        client.leased_semaphore("encoders").permits(2),
        client.semaphore("numbers").permits(2),
    );
    let wait = 60_000 * MS;
    let two = first.try_acquire_many_for(2, wait).await.unwrap().unwrap();
    assert!(first.try_acquire_many_for(2, wait).await.unwrap().is_none());
    assert_eq!(lines.text(), "");
    drop(two);
    assert!(first.try_acquire_many_for(3, wait).await.unwrap().is_none());
    assert!(waits.try_acquire_many_for(3, wait).await.unwrap().is_none());
    let said = "waiting for more permits than permits(n) says there are: they come only if somebody adds permits";
    let told = lines.text();
    assert_eq!(told.matches(said).count(), 2, "{told}");
    assert!(told.contains("name=encoders wanted=3 said=2 at="), "{told}");
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_another_process_holds_is_waited_for_in_the_story() {
    let _alone = ALONE.lock().await;
    let server = MemoryServer::new();
    let builder = || Client::builder().memory(&server);
    let here = builder().connect().await.unwrap();
    let there = builder().connect().await.unwrap();
    let held = there.mutex("order:42").lock().await.unwrap();
    let (lines, _heard) = Lines::hear("leasehold=debug");
    let waits = tokio::spawn(here.mutex("order:42").lock());
    tokio::time::sleep(50 * MS).await;
    held.release().await.unwrap();
    let guard = waits.await.unwrap().unwrap();
    server.expire("order:42");
    assert!(guard.verify().await.is_err());
    drop(guard);
    common::wait_until_idle(&here).await;
    let lock = "lock{lock.name=order:42 lock.kind=mutex lock.access=Exclusive}: leasehold:";
    let expected = format!(
        r#"DEBUG {lock} asks for the lock name=order:42
DEBUG {lock} queued name=order:42 waits_for="the server"
DEBUG leasehold: granted name=order:42 kind=mutex lease=1 wait=50ms by="the server"
DEBUG leasehold: released name=order:42 kind=mutex lease=2 held=50ms
WARN hold{{lock.name=order:42 lock.kind=mutex lock.owner="…:1" otel.status_code="ERROR"}}: leasehold: lease lost name=order:42 reason=the server says that it is not ours any more
"#
    );
    assert_eq!(lines.text(), expected);
}

#[tokio::test(start_paused = true)]
async fn without_the_level_nothing_is_told() {
    let _alone = ALONE.lock().await;
    let client = Client::connect("memory:").await.unwrap();
    let (lines, _heard) = Lines::hear("leasehold=info,shop=info");
    story(&client).await;
    let inside = "INFO hold{lock.name=order:42 lock.kind=mutex lock.owner=\"…:1\"}: shop: charging the card\n";
    assert_eq!(lines.text(), inside, "the span of a hold is there");
}

/// The spans that are open, and those that were closed.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<(Vec<String>, Vec<String>)>>);

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(
        &self,
        span: &tracing::span::Attributes<'_>,
        _: &tracing::span::Id,
        _: Context<'_, S>,
    ) {
        assert_eq!(span.metadata().target(), "leasehold");
        self.0
            .lock()
            .unwrap()
            .0
            .push(span.metadata().name().to_owned());
    }

    fn on_close(&self, id: tracing::span::Id, context: Context<'_, S>) {
        let name = context.span(&id).unwrap().name().to_owned();
        let (open, closed) = &mut *self.0.lock().unwrap();
        open.remove(open.iter().position(|there| *there == name).unwrap());
        closed.push(name);
    }
}

impl Spans {
    fn open(&self) -> Vec<String> {
        self.0.lock().unwrap().0.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn a_span_is_open_as_long_as_a_caller_waits_and_another_as_long_as_its_guard_lives() {
    let _alone = ALONE.lock().await;
    let client = Client::connect("memory:").await.unwrap();
    let spans = Spans::default();
    let subscriber = tracing_subscriber::registry().with(spans.clone());
    let _heard = tracing::subscriber::set_default(subscriber);
    let mutex = client.mutex("name");
    let first = mutex.lock().await.unwrap();
    assert_eq!(spans.open(), ["hold"]);
    let waits = tokio::spawn(mutex.lock());
    tokio::time::sleep(MS).await;
    assert_eq!(spans.open(), ["hold", "lock"]);
    waits.abort();
    assert!(waits.await.is_err());
    assert_eq!(
        spans.open(),
        ["hold"],
        "a caller that gives up ends its span"
    );
    first.release().await.unwrap();
    assert!(spans.open().is_empty());

    let writer = client.rw_lock("lock").write().await.unwrap();
    let reader = writer.downgrade().await.unwrap();
    assert_eq!(spans.open(), ["hold"], "the hold goes on");
    drop(reader);
    let both = client.multi_lock(["one", "other"]);
    let both = both.lock().await.unwrap();
    assert_eq!(spans.open(), ["hold"], "one for all parts");
    drop(both);
    client.fair_mutex("fair").run(async {}).await.unwrap();
    assert!(
        client
            .fair_mutex("fair")
            .try_lock()
            .await
            .unwrap()
            .is_some()
    );
    assert!(spans.open().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_told_when_it_begins_and_when_it_ends_and_once_a_minute() {
    let _alone = ALONE.lock().await;
    let server = MemoryServer::new();
    let client = Client::builder().memory(&server).connect().await.unwrap();
    let (lines, _heard) = Lines::hear("leasehold=info");
    let (mutex, server) = (client.mutex("order:42"), &server);
    let outage = async || {
        server.fail(3);
        mutex.lock().await.unwrap().release().await.unwrap();
    };
    outage().await;
    let text = lines.text();
    let [begins, ends] = text.lines().collect::<Vec<_>>()[..] else {
        panic!("{text}");
    };
    for said in [
        "WARN leasehold: the server cannot be used, trying again",
        "server=memory",
        "cause=refused by MemoryServer::fail",
    ] {
        assert!(begins.contains(said), "{begins}");
    }
    assert!(
        ends.contains("INFO leasehold: the server can be used again"),
        "{ends}"
    );
    for _ in 0..5 {
        outage().await;
    }
    assert_eq!(lines.text(), text, "it flaps");
    tokio::time::sleep(60_000 * MS).await;
    outage().await;
    assert_eq!(lines.text().lines().count(), 4, "{}", lines.text());
}

/// An answer that is late for a short lease says nothing of the server: a request has a timeout of its own.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_late_for_a_short_lease_is_no_outage() {
    let _alone = ALONE.lock().await;
    let server = MemoryServer::new();
    let client = Client::builder().memory(&server).connect().await.unwrap();
    let (lines, _heard) = Lines::hear("leasehold=info");
    let mutex = client.mutex("order:42").lease(300 * MS);
    let guard = mutex.lock().await.unwrap();
    let mut events = client.events();
    server.delay(45 * MS);
    while events.recv().await.unwrap().kind != EventKind::RenewalFailed {}
    server.delay(Duration::ZERO);
    while !matches!(events.recv().await.unwrap().kind, EventKind::Renewed { .. }) {}
    assert!(guard.is_valid());
    assert_eq!(lines.text(), "");
}

/// Five leases, three waiters, an attempt: what they all find out is said once. Each loss is said, too, for each has its name.
#[tokio::test]
async fn an_outage_of_a_server_is_one_line_when_it_begins_and_one_when_it_ends() {
    let _alone = ALONE.lock().await;
    let lines = everywhere();
    for (mut server, is_killed) in servers().into_iter().flat_map(|server| {
        [true, false].map(|is_killed| (Server::start(server.flavor()), is_killed))
    }) {
        let case = format!("{}, killed: {is_killed}", server.flavor());
        let builder = || Client::builder().url(server.url());
        let other = builder().connect().await.unwrap();
        let (client, quick) = (builder().operation_timeout(450 * MS), 600 * MS);
        let client = client.lease(quick).connect().await.unwrap();
        let lock = |name: &str| client.mutex(name).lock();
        let held: Vec<_> = join_all(["a", "b", "c", "d", "e"].map(lock)).await;
        let held: Vec<Guard> = held.into_iter().map(Result::unwrap).collect();
        let mut waits = Vec::new();
        for name in ["x", "y", "z"] {
            let there = other.mutex(name).fixed_lease(3_000 * MS);
            let _ = there.lock().await.unwrap().detach();
            waits.push(tokio::spawn(lock(name)));
        }
        other.shutdown(leasehold::Shutdown::LetExpire).await; // whose connections are to tell nothing
        for name in ["x", "y", "z"] {
            let waits = async || client.status(name).await.unwrap().waiting_clients == 1;
            soon(&case, async { while !waits().await {} }).await;
        }
        let told = lines.text().len();
        if is_killed {
            server.kill();
        } else {
            server.freeze();
        }
        for guard in &held {
            soon(&case, guard.lost()).await;
        }
        client.mutex("f").try_lock().await.map(drop).unwrap_err();
        if is_killed {
            server.restart();
        } else {
            server.thaw();
        }
        for waits in waits {
            let guard = soon(&case, waits).await.unwrap().unwrap();
            guard.release().await.unwrap();
        }
        let text = lines.text();
        let lines: Vec<_> = text[told..]
            .lines()
            .filter(|line| line.starts_with("WARN") || line.starts_with("INFO"))
            .collect();
        let (lost, outage): (Vec<&str>, Vec<&str>) = lines
            .into_iter()
            .partition(|line| line.contains("lease lost"));
        assert_eq!(lost.len(), 5, "{case}: {lost:#?}");
        let [begins, ends] = outage[..] else {
            panic!("{case}: {outage:#?}");
        };
        let why = if is_killed {
            "cause=no server listens there; start it, or check host and port"
        } else {
            "cause=no answer within "
        };
        for said in ["WARN", "the server cannot be used, trying again", why] {
            assert!(begins.contains(said), "{case}: {begins}");
        }
        assert!(
            ends.contains("INFO leasehold: the server can be used again"),
            "{case}: {ends}"
        );
    }
}

#[tokio::test]
async fn an_outage_of_a_node_of_a_cluster_ends_when_another_has_its_slots() {
    let _alone = ALONE.lock().await;
    let lines = everywhere();
    let mut cluster = Cluster::start(common::flavors(1)[0]);
    let client = Client::builder().url(cluster.url());
    let client = client.connect().await.unwrap();
    let names = (0..).map(|i| format!("order:{i}"));
    let mut there = names.filter(|name| cluster.primary_of(cluster.slot(name)) == 0);
    let name = there.next().unwrap();
    client.mutex(&name).run(async {}).await.unwrap();
    cluster.kill(0);
    let guard = soon("a successor", client.mutex(&name).lock())
        .await
        .unwrap();
    let successor = cluster.addr(cluster.wait_for_successor(0));
    let text = lines.text();
    let outage: Vec<_> = text.lines().filter(|line| line.contains("can")).collect();
    let [begins, ends] = outage[..] else {
        panic!("{text}");
    };
    let server = format!("server=redis://{}/0", cluster.addr(0));
    let begin = ["WARN", "the server cannot be used, trying again", &server];
    let successor = format!("successor=\"redis://{successor}/0\"");
    let end = [
        "INFO",
        "can be used again, at another node",
        &server,
        &successor,
    ];
    assert!(begin.iter().all(|said| begins.contains(said)), "{begins}");
    assert!(end.iter().all(|said| ends.contains(said)), "{ends}");
    guard.release().await.unwrap();
}

/// Redisson before 3.22, and by luck to 3.27, knows no sharded channels, which ours take by default. Neither wakes the other.
#[tokio::test]
async fn a_redisson_on_classic_channels_that_holds_or_waits_is_warned_of_where_ours_are_sharded() {
    const WARNS: &str = "say sharded_channels(false)";
    let _alone = ALONE.lock().await;
    let lines = everywhere();
    let cluster = Cluster::start(Flavor::Redis);
    let mut java = Redisson::start_old_on(OLD[0], &cluster, 30_000 * MS, "").await;
    for (round, sharded) in (0..few_or(1, 10)).flat_map(|round| [(round, true), (round, false)]) {
        let case = format!("{round}, sharded: {sharded}");
        let client = async || {
            let builder = Client::builder().url(cluster.url()).poll_every(1_000 * MS);
            let builder = builder.sharded_channels(sharded).lease(3_000 * MS);
            builder.connect().await.unwrap()
        };
        let heard = |node| {
            let ask = ["PUBSUB", "CHANNELS", "redisson_lock__channel:*"];
            let channels: Vec<String> =
                redis::from_redis_value(cluster.command(node, &ask)).unwrap();
            !channels.is_empty()
        };
        let warned = |from: usize, sign: &str| {
            let text = &lines.text()[from..];
            text.contains(WARNS) && text.contains(sign)
        };
        let told = lines.text().len();
        let waited_for = client().await;
        let guard = waited_for.mutex("name").lock().await.unwrap();
        java.order("lock name");
        wait_until_async(SOON, "Redisson waits", || (0..3).any(heard)).await;
        guard.release().await.unwrap();
        let sign = "a client waits on a classic channel";
        if sharded {
            wait_until_async(SOON, &case, || warned(told, sign)).await;
        }
        assert_eq!(java.answer().await, "locked"); // at the end of our lease at the latest

        let told = lines.text().len();
        let waits = client().await;
        let waiter = tokio::spawn(waits.mutex("name").lock());
        common::until_waiting_here(&waits, 1).await;
        tokio::time::sleep(300 * MS).await; // it has asked, and listens
        assert_eq!(java.obey("unlock name").await, "unlocked");
        let guard = soon("its turn", waiter).await.unwrap().unwrap();
        let sign = "it became free without a message";
        if sharded {
            wait_until_async(SOON, &case, || warned(told, sign)).await;
        }
        guard.release().await.unwrap();
        let text = lines.text();
        assert!(sharded || !text[told..].contains(WARNS), "{text}");
    }
}

/// As a server that loads its data: it takes connections, and refuses every request. A connection that it takes is no end of the outage.
#[tokio::test]
async fn a_server_that_answers_and_refuses_every_request_cannot_be_used() {
    let _alone = ALONE.lock().await;
    let lines = everywhere();
    for server in servers() {
        let case = server.flavor().to_string();
        let builder = Client::builder().url(server.url());
        let client = builder.operation_timeout(450 * MS).connect().await.unwrap();
        server.cli(&["CONFIG", "SET", "lua-time-limit", "10"]);
        let mut connection = server.connection();
        let busy = std::thread::spawn(move || {
            let mut eval = redis::cmd("EVAL");
            eval.arg("while true do end").arg(0).exec(&mut connection)
        });
        let is_busy = || server.try_cli(&["GET", "name"]).is_err();
        wait_until_async(SOON, "the script runs", is_busy).await;
        let told = lines.text().len();
        let waits = tokio::spawn(client.mutex("order:42").lock());
        let said = || lines.text()[told..].contains("the server cannot be used");
        wait_until_async(SOON, "the outage is told", said).await;
        // From another runtime, and so on a connection of its own.
        let other = client.mutex("order:43");
        let asks = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            runtime.block_on(other.try_lock()).map(drop)
        });
        assert!(asks.join().unwrap().is_err());
        let text = lines.text();
        assert!(
            !text[told..].contains("can be used again"),
            "{case}: {text}"
        );
        server.cli(&["SCRIPT", "KILL"]);
        let guard = soon(&case, waits).await.unwrap().unwrap();
        guard.release().await.unwrap();
        assert!(busy.join().unwrap().is_err());
        let text = lines.text();
        let lines: Vec<_> = text[told..]
            .lines()
            .filter(|line| line.starts_with("WARN") || line.starts_with("INFO"))
            .collect();
        let [begins, ends] = lines[..] else {
            panic!("{case}: {lines:#?}");
        };
        assert!(begins.contains("(BUSY)"), "{case}: {begins}");
        assert!(ends.contains("can be used again"), "{case}: {ends}");
    }
}

/// As a server that comes back empty: nobody holds what its holder has let go meanwhile.
#[tokio::test(start_paused = true)]
async fn a_release_that_was_not_confirmed_is_no_loss_when_the_server_has_forgotten_it() {
    let _alone = ALONE.lock().await;
    let server = MemoryServer::new();
    let builder = Client::builder().memory(&server);
    let client = builder.operation_timeout(500 * MS).connect().await.unwrap();
    let (lines, _heard) = Lines::hear("leasehold=info");
    let guard = client.mutex("order:42").lock().await.unwrap();
    server.fail(usize::MAX);
    let released = guard.release().await;
    assert!(matches!(released, Ok(Released::Unconfirmed { .. })));
    server.restart_empty();
    server.fail(0);
    tokio::time::sleep(5_000 * MS).await;
    let text = lines.text();
    assert!(text.contains("the server can be used again"), "{text}");
    assert!(!text.contains("lease lost"), "{text}");
}

#[tokio::test]
async fn locks_that_are_held_without_their_durability_are_told_once_a_minute() {
    let _alone = ALONE.lock().await;
    let lines = everywhere();
    for server in servers() {
        let builder = Client::builder().url(server.url()).unmet(Unmet::Accept);
        let builder = builder.durability(Durability::Replicas(1));
        let client = builder.connect().await.unwrap();
        let told = lines.text().len();
        for name in ["a", "b"] {
            client.mutex(name).run(async {}).await.unwrap();
        }
        let text = lines.text();
        let warnings = text[told..].lines().filter(|line| line.contains("WARN"));
        let [warning] = warnings.collect::<Vec<_>>()[..] else {
            panic!("{text}");
        };
        for said in [
            "a lock is held without what its durability asks for name=a server=redis://",
            "cause=0 of 1 replicas are connected to the server",
        ] {
            assert!(warning.contains(said), "{warning}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_try_lock_says_where_it_is_held_and_for_how_long() {
    let _alone = ALONE.lock().await;
    let server = MemoryServer::new();
    let builder = || Client::builder().memory(&server);
    let here = builder().connect().await.unwrap();
    let there = builder().connect().await.unwrap();
    let held = here.mutex("here").lock().await.unwrap();
    let line = line!() - 1;
    let _held = there.mutex("there").lock().await.unwrap();
    tokio::time::sleep(2_500 * MS).await;
    let (lines, _heard) = Lines::hear("leasehold=debug");
    let is_none = |answer: Result<Option<_>, _>| assert!(answer.unwrap().is_none());
    is_none(here.mutex("here").try_lock().await);
    is_none(here.mutex("there").try_lock().await);
    is_none(here.mutex("there").try_lock_for(1_000 * MS).await);
    let text = lines.text();
    let busy: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_once("leasehold: busy "))
        .map(|(_, said)| said)
        .collect();
    let file = file!();
    let expected = [
        format!("name=here held=\"in this process\" held_at={file}:{line}:"),
        "name=there held=\"at the server\" lease_left=27.5s".to_owned(),
        "name=there held=\"at the server\"".to_owned(),
    ];
    for (said, expected) in busy.iter().zip(&expected) {
        assert!(said.starts_with(expected), "{text}");
    }
    assert_eq!(busy.len(), expected.len(), "{text}");
    assert!(busy[0].contains(" lease_left="), "{text}");
    drop(held);
}

/// Who waits polls, and its log is not a line for each look: one client has a line a minute, however many wait.
#[tokio::test]
async fn a_waiter_that_may_not_subscribe_is_told_of_once_and_polls() {
    let _alone = ALONE.lock().await;
    let lines = everywhere();
    for server in servers() {
        let case = server.flavor().to_string();
        let holder = Client::connect(&server.url()).await.unwrap();
        let proxy = Proxy::start(server.addr());
        for refused in [
            &["&*", "+@all", "-subscribe"][..],
            &["resetchannels", "+@all"],
        ] {
            let client = restricted(&server, &proxy, refused).await;
            let told = lines.text().len();
            let (mutex, fair) = (holder.mutex("order:42"), holder.fair_mutex("order:43"));
            let (guard, fair) = (mutex.lock().await.unwrap(), fair.lock().await.unwrap());
            let waiting = tokio::spawn(client.mutex("order:42").lock());
            let in_turn = tokio::spawn(client.fair_mutex("order:43").lock());
            wait_until_async(SOON, "both poll", || {
                let text = lines.text();
                let looks = |name| {
                    let mut held = text[told..]
                        .lines()
                        .filter(|line| line.contains("the server says: held"));
                    held.by_ref().filter(|line| line.contains(name)).count()
                };
                looks("order:42") >= 5 && looks("order:43") >= 5
            })
            .await;
            let text = lines.text();
            let warned: Vec<_> = text[told..]
                .lines()
                .filter(|line| line.starts_with("WARN"))
                .collect();
            let [line] = warned[..] else {
                panic!("{case} {refused:?}: {warned:#?}");
            };
            for said in [
                "cannot hear when the name is free, and polls",
                "order:4",
                "lacks a right",
            ] {
                assert!(line.contains(said), "{line}");
            }
            guard.release().await.unwrap();
            fair.release().await.unwrap();
            soon(&case, waiting)
                .await
                .unwrap()
                .unwrap()
                .release()
                .await
                .unwrap();
            soon(&case, in_turn)
                .await
                .unwrap()
                .unwrap()
                .release()
                .await
                .unwrap();
        }
    }
}

/// 300 guards of 200 permits each are a batch each, which is more than may be under way within a third of the interval.
#[tokio::test(start_paused = true)]
async fn renewals_that_cannot_come_in_time_are_told_once_with_the_remedy() {
    let _alone = ALONE.lock().await;
    let server = MemoryServer::new();
    let client = Client::builder().memory(&server).connect().await.unwrap();
    let permits = client.leased_semaphore("name").lease(1_200 * MS);
    permits.try_set_permits(60_000).await.unwrap();
    let taken = futures_util::future::join_all((0..300).map(|_| permits.acquire_many(200)));
    let guards: Vec<_> = taken.await.into_iter().map(Result::unwrap).collect();
    let (lines, _heard) = Lines::hear("leasehold=warn");
    server.delay(40 * MS);
    tokio::time::sleep(5_000 * MS).await;
    let told = lines.text();
    assert!(guards.iter().all(leasehold::Guard::is_valid), "{told}");
    let [line] = told.lines().collect::<Vec<_>>()[..] else {
        panic!("{told}");
    };
    let says = "leases cannot be renewed in time: take longer ones, hold fewer names per client,";
    assert!(
        line.contains(says) && line.contains("round_trip=80ms"),
        "{line}"
    );
}

/// Another process may call this server by another address, and so wait in another order.
#[tokio::test]
async fn a_client_that_may_not_ask_which_server_it_has_warns_once_if_a_multi_lock_is_ordered_by_that()
 {
    let _alone = ALONE.lock().await;
    for server in common::servers() {
        let proxy = leasehold_testkit::Proxy::start(server.addr());
        let client = common::restricted(&server, &proxy, &["&*", "+@all", "-info"]).await;
        let memory = [MemoryServer::new(), MemoryServer::new()];
        let [memory, other] = memory.map(|server| Client::builder().memory(&server));
        let (memory, other) = (
            memory.connect().await.unwrap(),
            other.connect().await.unwrap(),
        );
        let (lines, hears) = Lines::hear("leasehold=warn");
        let each = [client.mutex("own"), memory.mutex("another")];
        drop(
            client
                .multi_lock(each.map(Part::from))
                .lock()
                .await
                .unwrap(),
        );
        assert_eq!(lines.text(), "", "no name is on both");
        for _ in 0..3 {
            for with in [&memory, &other] {
                let multi = client.multi_lock([Part::from("name"), with.mutex("name").into()]);
                multi.lock().await.unwrap().release().await.unwrap();
            }
        }
        drop(hears);
        let said = lines.text();
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("INFO") && said.contains("address"), "{said}");
    }
}

/// A request on a new connection.
async fn reconnect(server: &Server, client: &Client) {
    server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    // The first one may find the old connection ended, and be lost with it.
    let asked = async { while client.status("order:42").await.is_err() {} };
    soon("it connects again", asked).await;
}

/// The lines that warn of the server, and not of its connections.
fn dangers(lines: &Lines) -> Vec<String> {
    let told = lines.text();
    let dangers = told.lines().filter(|line| line.contains("deletes keys"));
    dangers.map(str::to_owned).collect()
}

/// Once, and again when a server says something else.
#[tokio::test]
async fn a_server_that_deletes_keys_is_warned_of_once_in_each_client() {
    let _alone = ALONE.lock().await;
    for flavor in Flavor::available() {
        let limited = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
        let server = Server::start_with(flavor, &limited);
        let (lines, _heard) = Lines::hear("leasehold=warn");
        let unchecked = Client::builder().url(server.url()).check_server(false);
        unchecked.connect().await.unwrap();
        assert!(dangers(&lines).is_empty(), "it is turned off");

        let client = Client::connect(&server.url()).await.unwrap();
        let told = dangers(&lines);
        assert_eq!(told.len(), 1, "{told:?}");
        for says in [
            &*server.addr().to_string(),
            "allkeys-lru",
            "set maxmemory-policy noeviction",
        ] {
            assert!(told[0].contains(says), "{told:?}");
        }
        reconnect(&server, &client).await;
        assert_eq!(dangers(&lines), told, "it knows");
        // The keys of locks have an end.
        server.cli(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
        reconnect(&server, &client).await;
        let again = dangers(&lines);
        assert_eq!(again.len(), 2, "{again:?}");
        assert!(again[1].contains("volatile-ttl"), "{again:?}");
        for harmless in [["maxmemory-policy", "noeviction"], ["maxmemory", "0"]] {
            server.cli(&["CONFIG", "SET", harmless[0], harmless[1]]);
            reconnect(&server, &client).await;
            Client::connect(&server.url()).await.unwrap();
            server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lfu"]);
        }
        assert_eq!(dangers(&lines), again, "it deletes nothing now");
    }
}

#[tokio::test]
async fn a_replica_is_warned_of() {
    let _alone = ALONE.lock().await;
    for flavor in Flavor::available() {
        let (primary, replica) = (Server::start(flavor), Server::start(flavor));
        let port = primary.port().to_string();
        replica.cli(&["REPLICAOF", "127.0.0.1", &port]);
        let (lines, _heard) = Lines::hear("leasehold=warn");
        Client::connect(&replica.url()).await.unwrap();
        let told = lines.text();
        let of = format!("a replica of 127.0.0.1:{port}, which takes no locks");
        assert!(told.contains(&of), "{told}");
        replica.cli(&["CONFIG", "SET", "replica-read-only", "no"]);
        Client::connect(&replica.url()).await.unwrap();
        let told = lines.text();
        assert!(told.contains("that takes writes, and loses them"), "{told}");
        Client::connect(&primary.url()).await.unwrap();
        assert_eq!(lines.text(), told, "the primary keeps them");
    }
}

#[tokio::test(start_paused = true)]
async fn an_even_number_of_servers_is_warned_of_once() {
    let _alone = ALONE.lock().await;
    for of in 3..7 {
        let servers: Vec<MemoryServer> = (0..of).map(|_| MemoryServer::new()).collect();
        let (lines, _heard) = Lines::hear("leasehold=warn");
        let builder = Client::builder().quorum_memory(&servers);
        builder.connect().await.unwrap();
        let told = lines.text();
        let says = format!("a quorum of {of} servers survives no more failures than one of");
        let times = told.matches(&says).count();
        assert_eq!(times, usize::from(of % 2 == 0), "{of}: {told}");
    }
}

/// The recipe of docs/observing.md: what an exporter gets.
fn exported() -> (InMemorySpanExporter, tracing::subscriber::DefaultGuard) {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder();
    let provider = provider.with_simple_exporter(exporter.clone()).build();
    let heard = Targets::new().with_default(tracing::Level::INFO);
    let heard = heard.with_target("leasehold", tracing::Level::DEBUG);
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("shop"));
    let subscriber = tracing_subscriber::registry().with(layer.with_filter(heard));
    (exporter, tracing::subscriber::set_default(subscriber))
}

/// The value of an attribute, if the span has it.
fn attribute(span: &SpanData, key: &str) -> Option<String> {
    let of_key = |pair: &&opentelemetry::KeyValue| pair.key.as_str() == key;
    let found = span.attributes.iter().find(of_key);
    found.map(|pair| pair.value.to_string())
}

#[tokio::test(start_paused = true)]
async fn of_100_tasks_each_has_its_own_lock_and_hold_under_its_own_span_in_opentelemetry() {
    let _alone = ALONE.lock().await;
    let client = Client::builder().memory(&MemoryServer::new());
    let client = client.connect().await.unwrap();
    let (exporter, _heard) = exported();
    let tasks = (0..100).map(|number| {
        let mutex = client.fenced_mutex(format!("name:{}", number % 4));
        let order = tracing::info_span!(target: "shop", "order", number);
        let work = async move {
            mutex.run(tokio::time::sleep(MS)).await.unwrap();
        };
        tokio::spawn(work.instrument(order))
    });
    for done in join_all(tasks).await {
        done.unwrap();
    }
    common::wait_until_idle(&client).await;
    let spans = exporter.get_finished_spans().unwrap();
    assert_eq!(spans.len(), 300);
    let orders = spans.iter().filter(|span| span.name == "order");
    for order in orders {
        let number: u32 = attribute(order, "number").unwrap().parse().unwrap();
        let name = format!("name:{}", number % 4);
        let under = |span: &&SpanData| span.parent_span_id == order.span_context.span_id();
        let under: Vec<_> = spans.iter().filter(under).collect();
        let [lock, hold] = under[..] else {
            panic!("{under:?}");
        };
        assert_eq!((&*lock.name, &*hold.name), ("lock", "hold"));
        for span in under {
            assert_eq!(span.span_context.trace_id(), order.span_context.trace_id());
            assert_eq!(attribute(span, "lock.name").as_ref(), Some(&name));
            assert_eq!(attribute(span, "lock.kind").unwrap(), "fenced_mutex");
            assert_eq!(span.status, Status::Unset);
        }
        assert_eq!(attribute(lock, "lock.outcome").unwrap(), "granted");
        let wait: f64 = attribute(lock, "lock.wait_ms").unwrap().parse().unwrap();
        assert!(wait <= 60.0, "{wait}");
        assert!(attribute(hold, "lock.owner").unwrap().contains(':'));
        assert!(
            attribute(hold, "lock.token")
                .unwrap()
                .parse::<u64>()
                .unwrap()
                > 0
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_loss_and_a_failure_are_the_status_of_their_spans_and_a_missed_renewal_is_told_in_its_hold()
 {
    let _alone = ALONE.lock().await;
    let server = MemoryServer::new();
    let client = Client::builder().memory(&server).operation_timeout(50 * MS);
    let client = client.connect().await.unwrap();
    let (exporter, _heard) = exported();
    let spans = || {
        let spans = exporter.get_finished_spans().unwrap();
        exporter.reset();
        spans
    };
    let mutex = client.mutex("name").lease(300 * MS);
    let guard = mutex.lock().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    drop(tokio::time::timeout(20 * MS, mutex.lock()).await);
    let asked = spans();
    let outcome = |span| attribute(span, "lock.outcome").unwrap();
    let outcomes: Vec<_> = asked.iter().map(outcome).collect();
    assert_eq!(outcomes, ["granted", "busy", "given_up"]);
    let holder = attribute(&asked[1], "lock.held_by").unwrap();
    assert!(holder.contains("tests/tracing.rs:"), "{holder}");
    let wait = attribute(&asked[2], "lock.wait_ms").unwrap();
    assert_eq!(wait, "20");

    server.cut(true);
    client
        .mutex("other")
        .try_lock()
        .await
        .map(drop)
        .unwrap_err();
    guard.lost().await;
    server.cut(false);
    drop(guard);
    let [failed, hold] = &spans()[..] else {
        panic!("a lock that failed, and a hold that was lost");
    };
    assert_eq!(
        (outcome(failed), &*hold.name),
        ("failed".to_owned(), "hold")
    );
    for span in [failed, hold] {
        assert!(matches!(span.status, Status::Error { .. }), "{span:?}");
    }
    let told: Vec<_> = hold.events.iter().map(|event| &*event.name).collect();
    assert_eq!(told.last(), Some(&"lease lost"), "{told:?}");
    assert!(told.contains(&"at risk"), "{told:?}");
}

/// Each is asked again and again, and warned of once.
#[tokio::test]
async fn a_sentinel_that_cannot_be_heard_is_warned_of_once() {
    let _alone = ALONE.lock().await;
    let lines = everywhere();
    let group = SentinelGroup::start(Flavor::available()[0]);
    let user = "ACL SETUSER deaf on >hush resetchannels +ping +sentinel|master +sentinel|sentinels";
    for sentinel in group.sentinels() {
        sentinel.cli(&user.split(' ').collect::<Vec<_>>());
    }
    let url = format!("{}&sentinel_user=deaf&sentinel_pass=hush", group.url());
    let _client = Client::connect(&url).await.unwrap();
    let warnings = || {
        let text = lines.text();
        let warns = |line: &&str| line.contains("this sentinel cannot be heard");
        let warnings = text.lines().filter(warns).map(str::to_owned);
        warnings.collect::<Vec<_>>()
    };
    let asked = || -> u64 {
        let sentinels = group.sentinels().iter();
        sentinels.map(Server::connections_received).sum()
    };
    wait_until_async(SOON, "each is warned of", || warnings().len() == 3).await;
    let before = asked();
    wait_until_async(SOON, "each is asked again", || asked() > before + 12).await;
    let warnings = warnings();
    assert_eq!(warnings.len(), 3, "{warnings:#?}");
    for addr in group.sentinel_addrs() {
        let of = |line: &&String| line.contains(&format!("the sentinel at {addr}: "));
        assert_eq!(warnings.iter().filter(of).count(), 1, "{warnings:#?}");
    }
    assert!(!warnings.concat().contains("hush"));
}
