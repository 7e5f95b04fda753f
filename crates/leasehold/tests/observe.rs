//! Events that observers hear, and what the metrics say, whatever happens to calls and locks. `LEASEHOLD_FULL=1` makes four times as many
//! calls.
#![allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use common::{
    World,
    kinds::{AnyGuard, ROWS, Row},
    soon,
};
use futures_util::{FutureExt, future::join_all};
use leasehold::{
    Client, Event, EventKind, LockKind, LostReason, MemoryServer, Outcome, Shutdown,
    metrics::{BUCKETS, Metrics},
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

const MS: Duration = Duration::from_millis(1);

/// Counts what an observer hears, and checks the order while it does.
#[derive(Default)]
struct Heard {
    asked: u64,
    answered: BTreeMap<&'static str, u64>,
    waiting: BTreeMap<(LockKind, Arc<str>), i64>,
    held: BTreeMap<u64, i64>,
    starts: u64,
    ends: u64,
    lost: u64,
}

impl Heard {
    fn hear(&mut self, event: &Event) {
        let waiting = self.waiting.entry((event.lock, Arc::clone(&event.name)));
        let waiting = waiting.or_default();
        match event.kind {
            EventKind::Asked => {
                assert_eq!(event.lease, 0);
                self.asked += 1;
                *waiting += 1;
            }
            EventKind::Answered { outcome, .. } => {
                assert_eq!(event.lease != 0, outcome == Outcome::Granted);
                *waiting -= 1;
                assert!(*waiting >= 0, "an answer before its call: {event:?}");
                *self.answered.entry(outcome.as_str()).or_default() += 1;
            }
            kind if kind.wait().is_some() => {
                self.starts += 1;
                *self.held.entry(event.lease).or_default() += 1;
            }
            kind if kind.held().is_some() => {
                self.ends += 1;
                self.lost += u64::from(matches!(kind, EventKind::Lost { .. }));
                *self.held.entry(event.lease).or_default() -= 1;
            }
            _ => {}
        }
    }

    fn check(&self, case: &str) {
        let answered: u64 = self.answered.values().sum();
        assert_eq!(self.asked, answered, "{case}: {:?}", self.answered);
        assert_eq!(self.starts, self.ends, "{case}");
        let open: Vec<_> = self.held.iter().filter(|(_, held)| **held != 0).collect();
        assert!(open.is_empty(), "{case}: {open:?}");
        let waiting = self.waiting.iter().filter(|(_, waiting)| **waiting != 0);
        assert_eq!(waiting.count(), 0, "{case}");
    }
}

/// A call of any kind, which is dropped somewhere, times out, or gets its guard, and holds it for a while.
async fn call(client: &Client, server: Option<&MemoryServer>, random: &mut fastrand::Rng) {
    let row = ROWS[random.usize(..ROWS.len())];
    let kind = match row {
        Row::Read | Row::Write => "rw".to_owned(),
        Row::Multi | Row::Spin => "Mutex".to_owned(),
        other => format!("{other:?}"),
    };
    let name = format!("{kind}:{}", random.u8(..4));
    let mut lock = row.lock(client, &name);
    lock = match random.u8(..8) {
        0 => lock.fixed_lease(random.u32(5..40) * MS),
        1 => lock.max_hold(random.u32(5..40) * MS),
        _ => lock.lease(200 * MS),
    };
    let got = match random.u8(..4) {
        0 => lock.try_lock().await.ok().flatten(),
        1 => lock
            .try_lock_for(random.u32(1..4) * MS)
            .await
            .ok()
            .flatten(),
        2 => {
            let mut asks = Box::pin(lock.lock());
            let mut got = None;
            for _ in 0..random.u8(..4) {
                got = asks.as_mut().now_or_never();
                if got.is_some() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            got.and_then(Result::ok)
        }
        _ => {
            let asks = tokio::time::timeout(random.u32(1..3) * MS, lock.lock());
            asks.await.ok().and_then(Result::ok)
        }
    };
    match (random.u16(..2000), server) {
        (0, Some(server)) => drop(server.expire(&name)),
        (1, Some(server)) => server.fail(1),
        (2, _) => drop(lock.force_unlock().await),
        _ => {}
    }
    let Some(guard) = got else { return };
    match random.u8(..64) {
        0 => tokio::time::sleep(random.u32(..3) * MS).await,
        1..8 => tokio::task::yield_now().await,
        _ => {}
    }
    match (random.u8(..10), guard) {
        (0, guard) => drop(guard.detach()),
        (1..4, guard) => drop(guard),
        (4, guard) => drop(guard.release().now_or_never()),
        (5, AnyGuard::Write(guard)) => {
            let _ = tokio::time::timeout(2 * MS, guard.downgrade()).await;
        }
        (_, guard) => drop(guard.release().await),
    }
}

/// So many calls by 32 tasks.
async fn calls(client: &Client, server: Option<&MemoryServer>, calls: u64) {
    for number in 0..4 {
        let permits = client.leased_semaphore(format!("Permit:{number}"));
        let _ = permits.try_set_permits(2).await;
        let permits = client.semaphore(format!("Count:{number}"));
        let _ = permits.try_set_permits(2).await;
    }
    let tasks = (0..32_u64).map(|task| {
        let (client, server) = (client.clone(), server.cloned());
        tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(task);
            for _ in 0..calls.div_ceil(32) {
                call(&client, server.as_ref(), &mut random).await;
            }
        })
    });
    for done in join_all(tasks).await {
        done.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_call_is_answered_once_though_futures_are_dropped_everywhere() {
    for world in World::all() {
        let heard = Arc::new(Mutex::new(Heard::default()));
        let listener = Arc::clone(&heard);
        let client = world
            .builder()
            .operation_timeout(300 * MS)
            .poll_every(50 * MS)
            .observe(move |event: &Event| listener.lock().unwrap().hear(event))
            .connect()
            .await
            .unwrap();
        let (server, so_many) = match &world {
            World::Memory(server) => (Some(server), 10_000),
            World::Server(_) => (None, 3_000),
        };
        calls(&client, server, so_many).await;
        client.shutdown(Shutdown::ReleaseAll { grace: MS }).await;
        let heard = heard.lock().unwrap();
        heard.check(&world.name());
        assert!(heard.asked >= so_many, "{}", heard.asked);
        for outcome in ["granted", "busy", "given_up"] {
            assert!(
                heard.answered[outcome] > so_many / 100,
                "{:?}",
                heard.answered
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_tells_its_answer_and_how_long_it_waited_for_that() {
    let server = MemoryServer::new();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&heard);
    let observe = move |event: &Event| {
        if let EventKind::Answered { outcome, wait } = event.kind {
            listener.lock().unwrap().push((outcome, wait));
        }
    };
    let builder = Client::builder()
        .memory(&server)
        .operation_timeout(100 * MS);
    let client = builder.observe(observe).connect().await.unwrap();
    let told = || std::mem::take(&mut *heard.lock().unwrap());
    let mutex = client.mutex("name");
    let guard = mutex.lock().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    assert!(mutex.try_lock_for(70 * MS).await.unwrap().is_none());
    drop(tokio::time::timeout(30 * MS, mutex.lock()).await);
    let zero = Duration::ZERO;
    assert_eq!(
        told(),
        [
            (Outcome::Granted, zero),
            (Outcome::Busy, zero),
            (Outcome::Busy, 70 * MS),
            (Outcome::GivenUp, 30 * MS)
        ]
    );
    drop(mutex.lock()); // never polled: it has asked for nothing
    client.mutex("").lock().await.map(drop).unwrap_err(); // nor has this
    assert_eq!(told(), []);
    let multi = client.multi_lock(["name", "other"]);
    assert!(multi.try_lock().await.unwrap().is_none());
    assert_eq!(told(), [(Outcome::Busy, zero); 2], "one for each part");
    guard.release().await.unwrap();
    client.mutex("name").run(async {}).await.unwrap();
    assert_eq!(told(), [(Outcome::Granted, zero)]);
    server.cut(true);
    mutex.try_lock().await.map(drop).unwrap_err();
    let [(Outcome::Failed, wait)] = told()[..] else {
        panic!("not failed");
    };
    assert!(wait >= 100 * MS);
}

/// The rightmost sign of trouble before a loss: how much was left when a renewal landed.
#[tokio::test(start_paused = true)]
async fn a_server_that_answers_late_moves_what_is_left_before_anything_is_lost() {
    let server = MemoryServer::new();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&heard);
    let observe = move |event: &Event| {
        assert!(!matches!(event.kind, EventKind::Lost { .. }));
        if let EventKind::Renewed { left, lease } = event.kind {
            listener
                .lock()
                .unwrap()
                .push(left.as_secs_f64() / lease.as_secs_f64());
        }
    };
    let builder = Client::builder().memory(&server).observe(observe);
    let client = builder.connect().await.unwrap();
    let guard = client.mutex("name").lease(900 * MS).lock().await.unwrap();
    let mut events = client.events();
    let mut until_renewed = async || {
        while !matches!(events.recv().await.unwrap().kind, EventKind::Renewed { .. }) {}
        heard.lock().unwrap().pop().unwrap()
    };
    for _ in 0..3 {
        let left = until_renewed().await;
        assert!((0.6..0.7).contains(&left), "{left}");
    }
    server.delay(2_000 * MS);
    tokio::time::sleep(600 * MS).await;
    server.delay(Duration::ZERO);
    let left = until_renewed().await;
    assert!(left < 0.34, "{left}");
    assert!(guard.is_valid());
}

#[tokio::test]
async fn an_observer_that_panics_harms_no_lock_and_goes_on_hearing() {
    let heard = Arc::new(AtomicU64::new(0));
    let listener = Arc::clone(&heard);
    let (second, other) = (Arc::new(AtomicU64::new(0)), MemoryServer::new());
    let after = Arc::clone(&second);
    let client = Client::builder()
        .memory(&other)
        .observe(move |_: &Event| {
            listener.fetch_add(1, Ordering::Relaxed);
            panic!("on purpose");
        })
        .observe(move |_: &Event| {
            after.fetch_add(1, Ordering::Relaxed);
        })
        .connect()
        .await
        .unwrap();
    for _ in 0..2 {
        let waits = tokio::spawn(client.mutex("name").lock());
        let guard = soon("the lock", waits).await.unwrap().unwrap();
        guard.release().await.unwrap();
    }
    // Where a panic takes long to print, the rest is told on a thread.
    for heard in [heard, second] {
        let all = || heard.load(Ordering::Relaxed) == 8;
        leasehold_testkit::wait_until_async(common::SOON, "all is heard", all).await;
    }
}

/// It may not block, since it may run on the thread that renews. While it runs on a caller's, renewals go on, and their events wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_that_blocks_a_caller_costs_no_lease() {
    for server in common::servers() {
        let renewed = Arc::new(AtomicU64::new(0));
        let counts = Arc::clone(&renewed);
        let observe = move |event: &Event| match event.kind {
            EventKind::Asked if &*event.name == "slow" => std::thread::sleep(500 * MS),
            EventKind::Renewed { .. } => _ = counts.fetch_add(1, Ordering::Relaxed),
            EventKind::Lost { .. } => panic!("{event:?}"),
            _ => {}
        };
        let client = Client::builder().url(server.url()).observe(observe);
        let client = client.connect().await.unwrap();
        let held = (0..20).map(|name| client.mutex(name.to_string()).lease(600 * MS).lock());
        let held: Vec<_> = join_all(held)
            .await
            .into_iter()
            .map(Result::unwrap)
            .collect();
        for _ in 0..3 {
            drop(
                tokio::spawn(client.mutex("slow").lock())
                    .await
                    .unwrap()
                    .unwrap(),
            );
        }
        assert!(
            held.iter().all(leasehold::Guard::is_valid),
            "{}",
            server.flavor()
        );
        // 20 leases, each renewed every 200 ms. The last events may still be on their way.
        let are_told = || renewed.load(Ordering::Relaxed) >= 60;
        leasehold_testkit::wait_until_async(common::SOON, "renewals are told", are_told).await;
    }
}

/// A caller pays 5 ms for it at most, and memory has an end. `LEASEHOLD_FULL=1` plays for a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_that_is_slow_keeps_no_caller_and_no_memory() {
    let heard = Arc::new(Mutex::new(Heard::default()));
    let notes = Arc::clone(&heard);
    let observe = move |event: &Event| {
        std::thread::sleep(MS);
        notes.lock().unwrap().hear(event);
    };
    let server = &common::servers()[0];
    let client = Client::builder().url(server.url()).observe(observe);
    let client = client.connect().await.unwrap();
    let time = common::few_or(1500 * MS, 60_000 * MS);
    // Waits that have nothing to do with locks, on the same threads.
    let control = common::late::Control::start();
    let ends = tokio::time::Instant::now() + time;
    let calls = (0..16).map(|task| {
        let mutex = client
            .mutex(format!("hot:{}", task % 4))
            .handoff(leasehold::Handoff::off());
        tokio::spawn(async move {
            let (mut longest, mut calls) = (Duration::ZERO, 0_u64);
            while tokio::time::Instant::now() < ends {
                let began = std::time::Instant::now();
                let _ = mutex.try_lock().await.unwrap();
                longest = longest.max(began.elapsed());
                calls += 1;
                // An answer from memory gives the others no turn.
                tokio::task::yield_now().await;
            }
            (longest, calls)
        })
    });
    let (mut longest, mut made) = (Duration::ZERO, 0);
    for ended in join_all(calls).await {
        let (its, calls) = ended.unwrap();
        longest = longest.max(its);
        made += calls;
    }
    let late = control.end();
    assert!(
        longest < 100 * MS + late,
        "{longest:?}, and the machine was late by {late:?}"
    );
    // The rest is told by a thread.
    drop(client);
    let balance = || {
        let heard = heard.lock().unwrap();
        heard.asked > 0
            && heard.asked == heard.answered.values().sum::<u64>()
            && heard.starts == heard.ends
    };
    let told = 4096 * 3 * MS; // what waits, and the sleeps of a slow machine
    leasehold_testkit::wait_until_async(told, "what was told adds up", balance).await;
    let heard = heard.lock().unwrap();
    heard.check("slow");
    println!(
        "{made} calls, of which {} were told; the longest {longest:?}",
        heard.asked
    );
    assert!(made > 2 * heard.asked, "it is no slow observer");
}

/// The recipe of docs/metrics.md.
fn install() -> PrometheusHandle {
    let mut builder = PrometheusBuilder::new();
    for (metric, buckets) in BUCKETS {
        let matcher = Matcher::Full((*metric).to_owned());
        builder = builder.set_buckets_for_metric(matcher, buckets).unwrap();
    }
    builder.install_recorder().unwrap()
}

/// The series that begin with `leasehold_`: each with its labels, and its value.
fn scrape(handle: &PrometheusHandle) -> BTreeMap<String, f64> {
    let text = handle.render();
    let lines = text.lines().filter(|line| line.starts_with("leasehold_"));
    let series = lines.map(|line| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        (series.to_owned(), value.parse().unwrap())
    });
    series.collect()
}

/// The sum of the series of a metric that have all of these labels.
fn sum(scraped: &BTreeMap<String, f64>, metric: &str, labels: &[&str]) -> f64 {
    let of = scraped.iter().filter(|(series, _)| {
        let (name, rest) = series.split_once('{').unwrap_or((series, ""));
        name == metric && labels.iter().all(|label| rest.contains(label))
    });
    of.map(|(_, value)| value).sum()
}

/// The metrics of the table in docs/metrics.md.
fn documented() -> BTreeSet<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = std::fs::read_to_string(page).unwrap();
    // The metrics of `leasehold serve` stand below, and have a test of their own.
    let own = page.split("\n## What the server shows").next().unwrap();
    let rows = own
        .lines()
        .filter_map(|line| line.strip_prefix("| `leasehold_"));
    rows.map(|row| format!("leasehold_{}", row.split('`').next().unwrap()))
        .collect()
}

/// The metrics have counted since `begun` what an observer has heard since then.
fn compare(heard: &Heard, begun: &BTreeMap<String, f64>, scraped: &BTreeMap<String, f64>) {
    let told =
        |metric: &str, labels: &[&str]| sum(scraped, metric, labels) - sum(begun, metric, labels);
    for (outcome, count) in &heard.answered {
        let counted = told(
            "leasehold_acquires_total",
            &[&format!("outcome=\"{outcome}\"")],
        );
        assert!(
            counted.eq(&(*count as f64)),
            "{outcome}: {counted}, {count}"
        );
    }
    assert!(told("leasehold_hold_seconds_count", &[]).eq(&(heard.ends as f64)));
    let granted = heard.answered["granted"] as f64;
    assert!(told("leasehold_wait_seconds_count", &[]).eq(&granted));
    assert!(told("leasehold_lost_total", &[]).eq(&(heard.lost as f64)));
    assert!(heard.lost > 20, "{}", heard.lost);
    for gauge in ["leasehold_waiting", "leasehold_held"] {
        let all = scraped
            .iter()
            .filter(|(series, _)| series.starts_with(gauge));
        let left: Vec<_> = all.filter(|(_, value)| !value.eq(&&0.0)).collect();
        assert!(left.is_empty(), "{left:?}");
    }
    for (metric, label) in [
        ("leasehold_handovers_total", ""),
        ("leasehold_renewals_total", "outcome=\"renewed\""),
        ("leasehold_renewals_total", "outcome=\"unanswered\""),
        ("leasehold_renewal_left_ratio_count", ""),
        ("leasehold_releases_total", "freed"),
        ("leasehold_releases_total", "detached"),
    ] {
        assert!(told(metric, &[label]) > 0.0, "{metric} {label}");
    }
}

/// The page names what is there, and all of it.
fn check_page(scraped: &BTreeMap<String, f64>) {
    let shown = documented();
    assert_eq!(shown.len(), 12, "{shown:?}");
    for metric in &shown {
        let is_histogram = BUCKETS.iter().any(|(name, _)| name == metric);
        let series = if is_histogram {
            format!("{metric}_bucket{{")
        } else if metric == "leasehold_events_dropped_total" {
            metric.clone() // the client's, without labels
        } else {
            format!("{metric}{{")
        };
        assert!(
            scraped.keys().any(|key| key.starts_with(&series)),
            "{series}"
        );
    }
    for series in scraped.keys() {
        let name = series.split('{').next().unwrap();
        let parts = ["_bucket", "_sum", "_count"];
        let metric = parts.iter().find_map(|part| name.strip_suffix(part));
        assert!(shown.contains(metric.unwrap_or(name)), "{series}");
        assert!(!series.contains("quantile"), "{series}");
    }
}

/// The alerts and the dashboard ask for series that are there, and the page for operators has each alert.
fn check_alerts(scraped: &BTreeMap<String, f64>) {
    let read = |file| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        std::fs::read_to_string(root.join(file)).unwrap()
    };
    let (alerts, page) = (read("ops/alerts.yml"), read("docs/operating.md"));
    for asked in [&alerts, &read("ops/grafana.json")] {
        let words = asked.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let series: BTreeSet<&str> = words.filter(|it| it.starts_with("leasehold_")).collect();
        assert!(series.len() > 6, "{series:?}");
        for name in series {
            let is_it = |series: &String| series.split('{').next() == Some(name);
            assert!(scraped.keys().any(is_it), "{name} is in no scrape");
        }
    }
    let named = alerts.lines();
    let named = named.filter_map(|line| line.trim().strip_prefix("- alert: "));
    for alert in named {
        let has_part = |line: &str| line.starts_with("### ") && line.contains(alert);
        assert!(page.lines().any(has_part), "{alert} is not on the page");
        let anchor = format!("operating.md#{}", alert.to_lowercase());
        assert!(
            alerts.contains(&anchor) || alerts.contains(&format!("-{}", alert.to_lowercase())),
            "{alert} does not name its part of the page"
        );
    }
}

/// A single test for all: a program has one recorder.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_metrics_agree_with_the_events_and_with_their_page() {
    let server = MemoryServer::new();
    let heard = Arc::new(Mutex::new(Heard::default()));
    let listener = Arc::clone(&heard);
    let is_on = Arc::new(AtomicU64::new(0));
    let counts = Arc::clone(&is_on);
    // First the client.
    let client = Client::builder()
        .memory(&server)
        .operation_timeout(300 * MS)
        .poll_every(50 * MS)
        .metrics(Metrics::new().class("Mutex:").class("rw:"))
        .observe(move |event: &Event| {
            if counts.load(Ordering::Relaxed) == 1 {
                listener.lock().unwrap().hear(event);
            }
        })
        .connect()
        .await
        .unwrap();
    let before = client.fenced_mutex("Mutex:before").lock().await.unwrap();
    // Then the recorder; then a lock.
    let handle = install();
    assert!(scrape(&handle).is_empty());
    let first = client.fenced_mutex("Mutex:first").lock().await.unwrap();
    let labels = ["kind=\"fenced_mutex\"", "class=\"Mutex:\""];
    let scraped = scrape(&handle);
    let granted = sum(
        &scraped,
        "leasehold_acquires_total",
        &["granted", labels[0], labels[1]],
    );
    assert!(granted.eq(&1.0), "{scraped:#?}");
    let held = sum(&scraped, "leasehold_held", &labels);
    assert!(held.eq(&2.0), "the one from before, too: {held}");
    before.release().await.unwrap();
    first.release().await.unwrap();
    let leads = || sum(&scrape(&handle), "leasehold_leader", &["\"Mutex:lead\""]);
    let term = client.election("Mutex:lead").campaign().await.unwrap();
    assert!(leads().eq(&1.0));
    term.resign().await.unwrap();
    assert!(leads().eq(&0.0));
    let begun = scrape(&handle);
    assert!(sum(&begun, "leasehold_held", &[]).eq(&0.0));

    is_on.store(1, Ordering::Relaxed);
    let so_many = common::of_the_whole(100_000) as u64;
    calls(&client, Some(&server), so_many).await;
    // How many of those were lost depends on the machine. These are, each of them.
    for number in 0..21 {
        let lock = client.mutex(format!("Mutex:short:{number}"));
        let short = lock.fixed_lease(10 * MS).lock().await.unwrap();
        assert_eq!(soon("the end", short.lost()).await, LostReason::Expired);
    }
    // Its renewals are late, and its end is a loss.
    let long = client.mutex("other").lease(900 * MS).lock().await.unwrap();
    let mut events = client.events();
    let renewed = async || {
        while !matches!(events.recv().await.unwrap().kind, EventKind::Renewed { .. }) {}
    };
    soon("a renewal", { renewed }()).await;
    server.cut(true);
    assert_eq!(soon("the loss", long.lost()).await, LostReason::Expired);
    client
        .mutex("other")
        .try_lock()
        .await
        .map(drop)
        .unwrap_err();
    server.cut(false);
    drop(long);
    client
        .shutdown(Shutdown::ReleaseAll { grace: 10 * MS })
        .await;
    let heard = std::mem::take(&mut *heard.lock().unwrap());
    heard.check("metrics");
    assert!(heard.asked >= so_many);
    let scraped = scrape(&handle);
    compare(&heard, &begun, &scraped);
    check_page(&scraped);
    check_alerts(&scraped);

    // A name is no label.
    let all = scraped.len();
    let client = Client::builder()
        .memory(&server)
        .metrics(Metrics::new().class("Mutex:"));
    let client = client.connect().await.unwrap();
    for number in 0..10_000 {
        drop(
            client
                .mutex(format!("Mutex:{number}"))
                .try_lock()
                .await
                .unwrap(),
        );
    }
    assert_eq!(scrape(&handle).len(), all);

    // The second replaces the first: two would count each call twice.
    let (first, second) = (Metrics::new(), Metrics::new().class("twice:"));
    let twice = Client::builder()
        .memory(&server)
        .metrics(first)
        .metrics(second);
    let twice = twice.connect().await.unwrap();
    twice.mutex("twice:1").run(async {}).await.unwrap();
    let granted = |class| sum(&scrape(&handle), "leasehold_acquires_total", &[class]);
    assert!(granted("class=\"twice:\"").eq(&1.0));
}

#[tokio::test]
async fn a_class_that_leaves_open_where_a_name_belongs_is_refused() {
    for (classes, limit) in [
        (&[""][..], "at least one character"),
        (
            &["order:", "order:4"],
            "no beginning of the class \"order:4\"",
        ),
        (
            &["order:4", "order:"],
            "no beginning of the class \"order:4\"",
        ),
        (
            &["order:", "order:"],
            "no beginning of the class \"order:\"",
        ),
        (&["other"], "another word than \"other\""),
    ] {
        let metrics = classes
            .iter()
            .fold(Metrics::new(), |all, class| all.class(*class));
        let builder = Client::builder()
            .url("redis://127.0.0.1:1/")
            .metrics(metrics);
        let refused = builder.connect_lazily().unwrap_err().to_string();
        assert!(refused.contains(limit), "{refused}");
    }
}
