//! Events balance: each hold has one start and one end, in this order, at this client; whatever happens to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::common;
use crate::common::{
    World,
    kinds::{AnyGuard, ROWS, Row},
    servers, soon,
};
use futures_util::{FutureExt, future::join_all};
use leasehold::{
    Client, Event, EventKind, EventListener, Handoff, LostReason, MemoryServer, Owner, Released,
    Shutdown,
};
use leasehold_testkit::Proxy;
use tokio::sync::broadcast::error::RecvError;

const MS: Duration = Duration::from_millis(1);

/// The name of an event's kind.
fn word(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Acquired { .. } => "acquired",
        EventKind::TakenOver { .. } => "taken over",
        EventKind::Renewed { .. } => "renewed",
        EventKind::RenewalFailed => "renewal failed",
        EventKind::HandedOver { .. } => "handed over",
        EventKind::Released { .. } => "released",
        EventKind::Unconfirmed { .. } => "unconfirmed",
        EventKind::Detached { .. } => "detached",
        EventKind::Lost { .. } => "lost",
        EventKind::Asked => "asked",
        EventKind::Answered { .. } => "answered",
        other => panic!("{other:?} is new: is it a start, an end, or neither?"),
    }
}

/// Whether it tells of a hold, and not of a call.
fn is_of_hold(event: &Event) -> bool {
    !matches!(event.kind, EventKind::Asked | EventKind::Answered { .. })
}

/// The words of the events that are there.
fn told(events: &mut EventListener) -> Vec<&'static str> {
    std::iter::from_fn(|| events.try_recv().ok())
        .filter(is_of_hold)
        .map(|event| word(event.kind))
        .collect()
}

/// Until an end is told.
async fn end(events: &mut EventListener) -> EventKind {
    loop {
        let event = soon("an end", events.recv()).await.unwrap();
        if event.kind.held().is_some() {
            return event.kind;
        }
    }
}

/// Hears all events of a client until that is gone.
async fn hear_all(mut events: EventListener) -> Vec<Event> {
    let mut all = Vec::new();
    loop {
        match events.recv().await {
            Ok(event) => all.push(event),
            Err(RecvError::Closed) => return all,
            Err(RecvError::Lagged(missed)) => panic!("{missed} events were missed"),
        }
    }
}

/// Starts and ends alternate on each lease, with renewals between them only, and none is left open.
fn check(events: &[Event], case: &str) {
    let mut open: BTreeMap<(u64, &str), bool> = BTreeMap::new();
    let (mut starts, mut ends) = (0, 0);
    let calls = |is: fn(EventKind) -> bool| events.iter().filter(|event| is(event.kind)).count();
    let asked = calls(|kind| kind == EventKind::Asked);
    let answered = calls(|kind| matches!(kind, EventKind::Answered { .. }));
    assert_eq!(asked, answered, "{case}: calls and answers");
    for (at, event) in events.iter().enumerate() {
        if !is_of_hold(event) {
            continue;
        }
        let is_open = open.entry((event.lease, &*event.name)).or_default();
        let story = || {
            let of_lease = events.iter().filter(|one| one.lease == event.lease);
            let words: Vec<_> = of_lease.map(|one| word(one.kind)).collect();
            format!("{case}: event {at} of {:?}: {words:?}", event.name)
        };
        if event.kind.wait().is_some() {
            assert!(!*is_open, "a second start, {}", story());
            (*is_open, starts) = (true, starts + 1);
        } else if event.kind.held().is_some() {
            assert!(*is_open, "an end without a start, {}", story());
            (*is_open, ends) = (false, ends + 1);
        } else {
            assert!(*is_open, "outside of a hold, {}", story());
        }
    }
    let left: Vec<_> = open.iter().filter(|(_, open)| **open).collect();
    assert!(left.is_empty(), "{case}: without an end: {left:?}");
    assert_eq!(starts, ends, "{case}");
}

#[tokio::test(start_paused = true)]
async fn a_hold_says_how_long_it_was_waited_for_and_held() {
    let client = Client::connect("memory:").await.unwrap();
    let mut events = client.events();
    let mutex = client.mutex("name").handoff(Handoff::off());
    let first = mutex.lock().await.unwrap();
    let second = tokio::spawn(mutex.lock());
    tokio::time::sleep(70 * MS).await;
    first.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    tokio::time::sleep(30 * MS).await;
    second.release().await.unwrap();
    let all = std::iter::from_fn(|| events.try_recv().ok());
    let all: Vec<Event> = all.filter(is_of_hold).collect();
    let told: Vec<EventKind> = all.iter().map(|event| event.kind).collect();
    assert_eq!(
        told,
        [
            EventKind::Acquired {
                wait: Duration::ZERO
            },
            EventKind::Released { held: 70 * MS },
            EventKind::Acquired { wait: 70 * MS },
            EventKind::Released { held: 30 * MS },
        ]
    );
    let of = |event: &Event| (event.name.to_string(), event.lock);
    assert!(
        all.iter()
            .all(|event| of(event) == ("name".into(), leasehold::LockKind::Mutex))
    );
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_in_memory_ends_one_hold_and_starts_the_next() {
    let client = Client::connect("memory:").await.unwrap();
    let mut events = client.events();
    let mutex = client.mutex("name");
    let first = mutex.lock().await.unwrap();
    let second = tokio::spawn(mutex.lock());
    tokio::time::sleep(10 * MS).await;
    first.release().await.unwrap();
    second.await.unwrap().unwrap().release().await.unwrap();
    let words = told(&mut events);
    assert_eq!(words, ["acquired", "handed over", "taken over", "released"]);
}

#[tokio::test(start_paused = true)]
async fn guards_that_share_a_hold_are_one() {
    let client = Client::connect("memory:").await.unwrap();
    let mut events = client.events();
    let lock = client.rw_lock("readers");
    let readers = [lock.read().await.unwrap(), lock.read().await.unwrap()];
    for reader in readers {
        reader.release().await.unwrap();
    }
    assert_eq!(told(&mut events), ["acquired", "released"], "readers");

    let mutex = client.mutex("entries").owned_by(&Owner::new());
    let outer = mutex.lock().await.unwrap();
    let inner = (mutex.lock().await.unwrap(), outer.reenter().unwrap());
    outer.release().await.unwrap();
    assert_eq!(told(&mut events), ["acquired"], "re-entries");
    drop(inner);
    assert!(matches!(end(&mut events).await, EventKind::Released { .. }));

    let writes = lock.write().await.unwrap();
    let reads = writes.downgrade().await.unwrap();
    reads.release().await.unwrap();
    assert_eq!(told(&mut events), ["acquired", "released"], "downgrades");

    let semaphore = client.leased_semaphore("permits");
    semaphore.try_set_permits(5).await.unwrap();
    let permits = [
        semaphore.acquire_many(3).await.unwrap(),
        semaphore.acquire().await.unwrap(),
    ];
    for permit in permits {
        permit.release().await.unwrap();
    }
    let words = told(&mut events);
    assert_eq!(words, ["acquired", "acquired", "released", "released"]);

    let both = client.multi_lock(["one", "other"]).lock().await.unwrap();
    both.release().await.unwrap();
    let words = told(&mut events);
    assert_eq!(words, ["acquired", "acquired", "released", "released"]);
}

#[tokio::test(start_paused = true)]
async fn each_way_out_is_one_end_that_names_it() {
    let server = MemoryServer::new();
    let client = Client::builder()
        .memory(&server)
        .operation_timeout(50 * MS)
        .connect()
        .await
        .unwrap();
    let mut events = client.events();
    let mutex = client.mutex("name");

    drop(mutex.lock().await.unwrap());
    assert!(matches!(end(&mut events).await, EventKind::Released { .. }));

    drop(mutex.fixed_lease(50 * MS).lock().await.unwrap().detach());
    assert!(matches!(end(&mut events).await, EventKind::Detached { .. }));

    let guard = mutex.fixed_lease(50 * MS).lock().await.unwrap();
    let reason = LostReason::Expired;
    let ended = end(&mut events).await;
    assert!(matches!(ended, EventKind::Lost { reason: told, .. } if told == reason));
    drop(guard);

    let guard = mutex.max_hold(20 * MS).lock().await.unwrap();
    let reason = LostReason::MaxHold;
    let ended = end(&mut events).await;
    assert!(matches!(ended, EventKind::Lost { reason: told, .. } if told == reason));
    drop(guard);

    // The server has forgotten it, and only the release finds that.
    let guard = mutex.lock().await.unwrap();
    assert!(server.expire("name"));
    common::assert_lost(guard.release().await, LostReason::Replaced);
    let ended = end(&mut events).await;
    assert!(matches!(ended, EventKind::Lost { reason, .. } if reason == LostReason::Replaced));

    // The server does not answer, and does so later.
    let guard = mutex.lock().await.unwrap();
    server.cut(true);
    let released = guard.release().await.unwrap();
    assert!(matches!(released, Released::Unconfirmed { .. }));
    let ended = end(&mut events).await;
    assert!(matches!(ended, EventKind::Unconfirmed { .. }));
    server.cut(false);
    common::wait_until_idle(&client).await;
    assert_eq!(told(&mut events), [""; 0], "and no second end");

    let guard = mutex.lock().await.unwrap();
    client.shutdown(Shutdown::LetExpire).await;
    let reason = LostReason::ClientShutdown;
    let ended = end(&mut events).await;
    assert!(matches!(ended, EventKind::Lost { reason: told, .. } if told == reason));
    drop(guard);
    assert_eq!(told(&mut events), [""; 0], "each once");
}

#[tokio::test(start_paused = true)]
async fn a_listener_counts_waits_from_when_it_came_and_costs_nothing_once_it_has_gone() {
    let client = Client::connect("memory:").await.unwrap();
    let mutex = client.mutex("name").handoff(Handoff::off());
    let first = mutex.lock().await.unwrap();
    let second = tokio::spawn(mutex.lock());
    tokio::time::sleep(50 * MS).await;
    let mut events = client.events();
    tokio::time::sleep(20 * MS).await;
    first.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    let kinds: Vec<_> = std::iter::from_fn(|| events.try_recv().ok())
        .filter(is_of_hold)
        .map(|event| event.kind)
        .collect();
    let held = EventKind::Released { held: 70 * MS };
    assert_eq!(kinds, [held, EventKind::Acquired { wait: 20 * MS }]);
    drop(events);
    second.release().await.unwrap();
    mutex.lock().await.unwrap().release().await.unwrap();
    let mut events = client.events();
    assert_eq!(told(&mut events), [""; 0]);
    mutex.lock().await.unwrap().release().await.unwrap();
    assert_eq!(told(&mut events), ["acquired", "released"]);
}

/// The words of the events that random runs have told.
type Told = BTreeSet<&'static str>;

/// The work of a task: it takes locks at random, and lets go of them in every way there is.
async fn work(world: &World, clients: &[Client], seed: u64, steps: u32) {
    let mut random = fastrand::Rng::with_seed(seed);
    let owner = Owner::new();
    for _ in 0..steps {
        let client = &clients[random.usize(..clients.len())];
        let row = ROWS[random.usize(..ROWS.len())];
        let kind = match row {
            Row::Read | Row::Write => "rw".to_owned(),
            // Names that they share.
            Row::Multi | Row::Spin => "Mutex".to_owned(),
            other => format!("{other:?}"),
        };
        let name = format!("{kind}:{}", random.u8(..2));
        let mut lock = row.lock(client, &name);
        lock = match random.u8(..8) {
            0 => lock.fixed_lease(random.u32(5..40) * MS),
            1 => lock.max_hold(random.u32(5..40) * MS),
            2 => lock.lease(random.u32(10..40) * MS),
            3 => lock.clone().owned_by(&owner).unwrap_or(lock),
            _ => lock.lease(100 * MS),
        };
        let patience = random.u32(1..60) * MS;
        let got = match random.u8(..4) {
            0 => lock.try_lock().await.ok().flatten(),
            1 => lock.try_lock_for(patience).await.ok().flatten(),
            // Dropped where it stands, at times.
            _ => match tokio::time::timeout(patience, lock.lock()).await {
                Ok(got) => got.ok(),
                Err(_) => None,
            },
        };
        if random.u8(..20) == 0 {
            fault(world, &name, &mut random);
        }
        let Some(guard) = got else { continue };
        let again = (random.u8(..6) == 0).then(|| guard.reenter());
        match random.u8(..4) {
            0 => {}
            1 => tokio::task::yield_now().await,
            _ => tokio::time::sleep(random.u32(..15) * MS).await,
        }
        if random.u8(..12) == 0 {
            let _ = lock.force_unlock().await;
        }
        match (random.u8(..10), guard) {
            (0, guard) => drop(guard.detach()),
            (1, guard) => {
                let _ = tokio::time::timeout(200 * MS, guard.lost()).await;
                let _ = guard.release().await;
            }
            (2..5, guard) => drop(guard),
            (5, guard) => drop(guard.release().now_or_never()), // begun, and dropped
            (6, AnyGuard::Write(guard)) => {
                let _ = tokio::time::timeout(patience, guard.downgrade()).await;
            }
            (_, guard) => drop(guard.release().await),
        }
        drop(again);
    }
}

fn fault(world: &World, name: &str, random: &mut fastrand::Rng) {
    match world {
        World::Memory(server) => match random.u8(..3) {
            0 => server.drop_replies(1),
            1 => server.fail(1),
            _ => drop(server.expire(name)),
        },
        World::Server(server) => drop(server.cli(&["DEL", name])),
    }
}

/// Plays it with two clients, ends them in one of the two ways, and checks what each was told.
async fn play(world: &World, url: Option<String>, seed: u64, tasks: u64, steps: u32) -> Told {
    let direct = world.client().await;
    for number in 0..2 {
        let permits = direct.leased_semaphore(format!("Permit:{number}"));
        permits.try_set_permits(2).await.unwrap();
        let permits = direct.semaphore(format!("Count:{number}"));
        permits.try_set_permits(2).await.unwrap();
    }
    let mut clients = Vec::new();
    while clients.len() < 2 {
        let builder = world.builder().operation_timeout(100 * MS);
        let builder = match &url {
            Some(url) => builder.url(url.clone()),
            None => builder,
        };
        // A connection may be cut before it is there.
        clients.extend(builder.poll_every(50 * MS).connect().await);
    }
    let heard: Vec<_> = clients
        .iter()
        .map(|client| tokio::spawn(hear_all(client.events())))
        .collect();
    let working = (0..tasks).map(|task| work(world, &clients, seed * 1000 + task, steps));
    join_all(working).await;
    let how = match seed % 3 {
        0 => Shutdown::LetExpire,
        _ => Shutdown::ReleaseAll { grace: 20 * MS },
    };
    for client in clients {
        client.shutdown(how).await;
    }
    let mut all = Told::new();
    for (number, heard) in heard.into_iter().enumerate() {
        let events = tokio::time::timeout(Duration::from_secs(120), heard).await;
        let events = events.expect("the client is gone").unwrap();
        let case = format!("seed {seed} on {}, client {number}", world.name());
        assert!(!events.is_empty(), "{case}");
        check(&events, &case);
        all.extend(events.iter().map(|event| word(event.kind)));
    }
    all
}

#[tokio::test(start_paused = true)]
async fn on_memory_every_start_has_its_end_whatever_happens() {
    let mut all = Told::new();
    for seed in 0..40 {
        let world = World::Memory(MemoryServer::new());
        all.extend(play(&world, None, seed, 6, 40).await);
    }
    // Or the test has not looked at them.
    let wanted = [
        "acquired",
        "detached",
        "handed over",
        "lost",
        "released",
        "renewal failed",
        "renewed",
        "taken over",
    ];
    for word in wanted {
        assert!(all.contains(word), "no run had: {word}");
    }
}

/// Tasks on several threads: a holder may be gone before the thread that gave it the lock goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_a_server_every_start_has_its_end_though_connections_break() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let world = World::Server(Box::new(server));
        let over = Arc::new(AtomicBool::new(false));
        let cuts = AtomicU64::new(0);
        let breaks = async {
            while !over.load(Ordering::SeqCst) {
                tokio::time::sleep(150 * MS).await;
                proxy.cut();
                cuts.fetch_add(1, Ordering::SeqCst);
            }
        };
        let plays = async {
            for seed in 0..3 {
                play(&world, Some(proxy.url()), seed, 6, 25).await;
            }
            over.store(true, Ordering::SeqCst);
        };
        tokio::join!(breaks, plays);
        assert!(cuts.load(Ordering::SeqCst) > 0);
    }
}

/// Guards that are taken and dropped on several threads as fast as they can: starts come before ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_start_comes_before_its_end_though_both_are_told_by_different_threads() {
    let client = Client::connect("memory:").await.unwrap();
    let heard = tokio::spawn(hear_all(client.events()));
    let tasks = (0..8).map(|_| {
        let mutex = client.mutex("name");
        tokio::spawn(async move {
            for _ in 0..200 {
                drop(mutex.lock().await.unwrap());
            }
        })
    });
    for done in join_all(tasks).await {
        done.unwrap();
    }
    client
        .shutdown(Shutdown::ReleaseAll { grace: 1000 * MS })
        .await;
    drop(client);
    let events = soon("the end", heard).await.unwrap();
    let starts = events.iter().filter(|event| event.kind.wait().is_some());
    assert_eq!(starts.count(), 8 * 200);
    check(&events, "eight tasks");
}
