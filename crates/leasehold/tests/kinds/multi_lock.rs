//! The multi-lock: several names at once, all or nothing, of any kinds and servers. The promises that it shares with every kind
//! stand in `conformance.rs`.

use std::{
    collections::BTreeSet,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::common::{
    SOON, World, assert_nothing_left, keys,
    late::{in_time, unless_late_async},
    restricted, servers, soon, wait_until_idle,
    wire::script_calls,
};
use futures_util::future::join_all;
use leasehold::{
    Client, Error, ErrorKind, EventKind, Handoff, LostReason, MemoryServer, MultiLock, Owner, Part,
    Released,
};
use leasehold_testkit::{Flavor, Proxy, Server, wait_until_async};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

async fn held(client: &Client, name: &str) -> bool {
    client.status(name).await.unwrap().holder().is_some()
}

async fn until_waiting(client: &Client, name: &str, tasks: usize) {
    let deadline = Instant::now() + SOON;
    while client.status(name).await.unwrap().waiting_here != tasks {
        assert!(Instant::now() < deadline, "{tasks} never waited for {name}");
        tokio::task::yield_now().await;
    }
}

async fn until_held(client: &Client, name: &str) {
    let deadline = Instant::now() + SOON;
    while !held(client, name).await {
        assert!(Instant::now() < deadline, "{name} was never taken");
        tokio::task::yield_now().await;
    }
}

async fn assert_clean(world: &World, clients: &[&Client], after: &str) {
    for client in clients {
        wait_until_idle(client).await;
    }
    match world {
        World::Server(server) => assert_nothing_left(server, after).await,
        World::Memory(server) => assert_eq!(server.names(), [""; 0], "{after}"),
    }
}

fn names(error: &Error) -> BTreeSet<String> {
    match error {
        Error::Lost { name, .. } => BTreeSet::from([name.to_string()]),
        Error::Several { errors } => errors.iter().flat_map(names).collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn five_names_of_one_server_are_taken_and_given_back_in_a_round_trip_each() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = Client::connect(&proxy.url()).await.unwrap();
        let multi = client.multi_lock(["e", "b", "a", "d", "c"]);
        multi.lock().await.unwrap().release().await.unwrap();
        // On each way.
        proxy.delay(150 * MS);
        let (mut to_lock, mut to_release) = (Duration::MAX, Duration::MAX);
        // The fastest of three counts: a busy machine makes none faster than its round trips.
        for _ in 0..3 {
            let before = script_calls(&server);
            let began = Instant::now();
            let guard = multi.lock().await.unwrap();
            to_lock = to_lock.min(began.elapsed());
            assert_eq!(script_calls(&server) - before, 5, "to lock");
            assert_eq!(guard.names(), ["a", "b", "c", "d", "e"]);
            let began = Instant::now();
            assert_eq!(guard.release().await.unwrap(), Released::Freed);
            to_release = to_release.min(began.elapsed());
            assert_eq!(script_calls(&server) - before, 10, "to release");
        }
        assert!(to_lock < 550 * MS, "to lock: {to_lock:?}");
        assert!(to_release < 550 * MS, "to release: {to_release:?}");
        let before = script_calls(&server);
        proxy.delay(Duration::ZERO);
        drop(multi.lock().await.unwrap());
        wait_until_idle(&client).await;
        assert_eq!(
            script_calls(&server) - before,
            10,
            "a guard that is dropped"
        );
        assert_nothing_left(&server, "releases").await;
        // The server forgets its scripts.
        server.cli(&["SCRIPT", "FLUSH"]);
        let guard = multi.lock().await.unwrap();
        server.cli(&["SCRIPT", "FLUSH"]);
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "flushed scripts").await;
    }
}

#[tokio::test]
async fn a_try_that_is_refused_keeps_nothing() {
    for world in World::all() {
        let (one, other) = (world.client().await, world.client().await);
        let middle = other.mutex("b").lock().await.unwrap();
        let multi = one.multi_lock(["a", "b", "c"]);
        // When it has its answer, the others are free again.
        for _ in 0..20 {
            assert!(multi.try_lock().await.unwrap().is_none());
            for free in ["a", "c"] {
                let taken = other.mutex(free).try_lock().await.unwrap();
                taken.expect(free).release().await.unwrap();
            }
        }
        // Held by another task of the same client.
        let here = other.multi_lock(["a", "b", "c"]);
        assert!(here.try_lock().await.unwrap().is_none());
        assert!(multi.try_lock_for(300 * MS).await.unwrap().is_none());
        for free in ["a", "c"] {
            assert!(other.mutex(free).try_lock().await.unwrap().is_some());
        }
        middle.release().await.unwrap();
        let guard = soon("all are free", multi.lock()).await.unwrap();
        assert!(guard.is_valid());
        guard.release().await.unwrap();
        assert_clean(&world, &[&one, &other], "tries").await;
    }
}

/// Names that are taken at the same time by different holders are different names.
#[derive(Default)]
struct Inside(Mutex<BTreeSet<usize>>);

impl Inside {
    fn enter(&self, names: &[usize]) {
        let mut inside = self.0.lock().unwrap();
        for name in names {
            assert!(inside.insert(*name), "two are inside {name}");
        }
    }

    fn leave(&self, names: &[usize]) {
        let mut inside = self.0.lock().unwrap();
        for name in names {
            assert!(inside.remove(name));
        }
    }
}

#[tokio::test]
async fn tasks_that_take_subsets_in_any_order_neither_overlap_nor_wait_in_a_circle() {
    const NAMES: usize = 4;
    let worlds = World::all().into_iter().map(|world| async move {
        let mut clients = Vec::new();
        for client in 0..3 {
            // With hand-off in memory and without.
            let handoff = [Handoff::default(), Handoff::off()][client % 2];
            let builder = world.builder().handoff(handoff);
            clients.push(builder.connect().await.unwrap());
        }
        let inside = Arc::new(Inside::default());
        let served = Arc::new(AtomicU64::new(0));
        let tasks = (0..9).map(|task| {
            let client = clients[task % 3].clone();
            let (inside, served) = (Arc::clone(&inside), Arc::clone(&served));
            tokio::spawn(async move {
                for _ in 0..60 {
                    let mut wanted: Vec<usize> = (0..NAMES).collect();
                    fastrand::shuffle(&mut wanted);
                    wanted.truncate(fastrand::usize(1..=NAMES));
                    let multi = client.multi_lock(wanted.iter().map(ToString::to_string));
                    let guard = match fastrand::u8(0..4) {
                        0 => multi.try_lock().await.unwrap(),
                        1 => match multi.try_lock_for(3 * MS).await {
                            // No answer in this time, on a machine with much to do.
                            Err(error) if error.kind() == ErrorKind::Ambiguous => None,
                            other => other.unwrap(),
                        },
                        _ => Some(multi.lock().await.unwrap()),
                    };
                    let Some(guard) = guard else { continue };
                    inside.enter(&wanted);
                    tokio::task::yield_now().await;
                    assert!(guard.is_valid());
                    inside.leave(&wanted);
                    served.fetch_add(1, Ordering::Relaxed);
                    if fastrand::bool() {
                        guard.release().await.unwrap();
                    }
                }
            })
        });
        let tasks = join_all(tasks.collect::<Vec<_>>());
        let all = tokio::time::timeout(3 * SOON, tasks).await;
        let all = all.unwrap_or_else(|_| panic!("{}: they wait for each other", world.name()));
        all.into_iter().for_each(Result::unwrap);
        assert!(served.load(Ordering::Relaxed) > 200);
        let clients: Vec<&Client> = clients.iter().collect();
        assert_clean(&world, &clients, "subsets").await;
    });
    join_all(worlds).await;
}

#[tokio::test]
async fn a_caller_that_waits_holds_what_comes_before_and_nothing_behind_and_gives_it_back_if_it_leaves()
 {
    for world in World::all() {
        let (one, other) = (world.client().await, world.client().await);
        let middle = other.mutex("b").lock().await.unwrap();
        let multi = one.multi_lock(["c", "b", "a"]);
        let waiting = tokio::spawn(multi.lock());
        until_waiting(&one, "b", 1).await;
        assert!(held(&other, "a").await);
        assert!(!held(&other, "c").await);
        waiting.abort();
        assert!(waiting.await.is_err());
        let a = soon("given back", other.mutex("a").lock()).await.unwrap();
        a.release().await.unwrap();

        // Up to a time, and then nothing is held.
        assert!(multi.try_lock_for(300 * MS).await.unwrap().is_none());
        assert!(other.mutex("a").try_lock().await.unwrap().is_some());
        drop(middle);
        wait_until_idle(&other).await;
        drop(soon("all are free", multi.lock()).await.unwrap());
        assert_clean(&world, &[&one, &other], "waits").await;
    }
}

#[tokio::test]
async fn locks_of_all_kinds_go_together() {
    for world in World::all() {
        let (one, other) = (world.client().await, world.client().await);
        let (prices, slots) = (one.rw_lock("prices"), one.leased_semaphore("slots"));
        slots.try_set_permits(3).await.unwrap();
        let parts = || {
            [
                Part::from("order"),
                one.fenced_mutex("stock").into(),
                prices.read_part(),
                slots.part(2),
                one.plain_mutex("plain").into(),
                one.spin_mutex("spin").into(),
                one.fair_mutex("turnstile").into(),
            ]
        };
        let guard = one.multi_lock(parts()).lock().await.unwrap();
        assert_eq!(
            guard.names(),
            [
                "order",
                "plain",
                "prices",
                "slots",
                "spin",
                "stock",
                "turnstile"
            ]
        );
        assert!(guard.token("stock").is_some_and(|token| token > 0));
        assert_eq!(guard.token("order"), None);
        assert!(other.rw_lock("prices").try_read().await.unwrap().is_some());
        assert!(other.rw_lock("prices").try_write().await.unwrap().is_none());
        let permits = other.leased_semaphore("slots");
        assert!(permits.try_acquire().await.unwrap().is_some());
        assert!(permits.try_acquire_many(2).await.unwrap().is_none());
        let taken = [
            other.mutex("order").try_lock().await.unwrap().is_none(),
            other
                .fenced_mutex("stock")
                .try_lock()
                .await
                .unwrap()
                .is_none(),
            other
                .plain_mutex("plain")
                .try_lock()
                .await
                .unwrap()
                .is_none(),
            other.spin_mutex("spin").try_lock().await.unwrap().is_none(),
            other
                .fair_mutex("turnstile")
                .try_lock()
                .await
                .unwrap()
                .is_none(),
        ];
        assert_eq!(taken, [true; 5]);
        // The same parts by the same process: all or nothing.
        assert!(one.multi_lock(parts()).try_lock().await.unwrap().is_none());
        let left = guard.verify().await.unwrap();
        assert!(left > 20 * SECOND, "{left:?}");
        let writes = one.multi_lock([prices.write_part(), "order".into()]);
        let waiting = tokio::spawn(writes.lock());
        until_waiting(&one, "order", 1).await;
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        let guard = soon("its turn", waiting).await.unwrap().unwrap();
        assert!(other.rw_lock("prices").try_read().await.unwrap().is_none());
        guard.release().await.unwrap();
        slots.force_unlock().await.unwrap();
        for client in [&one, &other] {
            wait_until_idle(client).await;
        }
        let status = other.rw_lock("prices").status().await.unwrap();
        assert_eq!(status.holders, []);
        assert_eq!(permits.available_permits().await.unwrap(), 3);
        assert_eq!(one.multi_lock(parts()).status().await.unwrap().len(), 7);
    }
}

#[tokio::test]
async fn names_of_several_servers_go_together_and_each_name_may_be_on_each() {
    let real = servers();
    let (here, there) = (MemoryServer::new(), MemoryServer::new());
    let memory = |server: &MemoryServer| Client::builder().memory(server);
    let mut clients = vec![
        memory(&here).connect().await.unwrap(),
        memory(&there).connect().await.unwrap(),
    ];
    for server in &real {
        clients.push(Client::connect(&server.url()).await.unwrap());
    }
    // The same name on each, and one of its own on each.
    let parts = || {
        let each = clients.iter().enumerate();
        let each = each.flat_map(|(n, client)| {
            [client.mutex("same"), client.mutex(format!("own {n}"))].map(Part::from)
        });
        each.collect::<Vec<_>>()
    };
    let multi = clients[0].multi_lock(parts());
    let guard = multi.lock().await.unwrap();
    assert_eq!(guard.names().len(), 2 * clients.len());
    for client in &clients {
        assert!(client.mutex("same").try_lock().await.unwrap().is_none());
    }
    guard.release().await.unwrap();
    // A part that is held keeps the whole out, whichever it is.
    for client in &clients {
        let last = client.mutex("same").lock().await.unwrap();
        assert!(multi.try_lock().await.unwrap().is_none());
        for (n, other) in clients.iter().enumerate() {
            let own = other.mutex(format!("own {n}")).lock();
            drop(soon("it is free", own).await.unwrap());
        }
        let waiting = tokio::spawn(multi.lock());
        until_waiting(client, "same", 1).await;
        last.release().await.unwrap();
        let guard = soon("its turn", waiting).await.unwrap().unwrap();
        drop(guard);
        for client in &clients {
            wait_until_idle(client).await;
        }
    }
    // In opposite orders, by two processes of one server each.
    let mut backwards = parts();
    backwards.reverse();
    let backwards = clients[0].multi_lock(backwards);
    let turns = async |multi: &MultiLock| {
        for _ in 0..50 {
            multi.lock().await.unwrap().release().await.unwrap();
        }
    };
    let both = async { tokio::join!(turns(&multi), turns(&backwards)) };
    soon("both have their turns", both).await;
    for (n, server) in real.iter().enumerate() {
        wait_until_idle(&clients[2 + n]).await;
        assert_nothing_left(server, "several servers").await;
    }
}

#[tokio::test]
async fn a_name_twice_on_one_server_and_too_few_or_many_names_are_refused() {
    let server = MemoryServer::new();
    let one = Client::builder().memory(&server).connect().await.unwrap();
    let other = Client::builder().memory(&server).connect().await.unwrap();
    let twice = [
        one.multi_lock(["a", "b", "a"]),
        one.multi_lock([Part::from("a"), other.mutex("a").into()]),
        one.multi_lock([Part::from("a"), one.rw_lock("a").read_part()]),
    ];
    for multi in twice {
        let error = multi.lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("\"a\" twice"), "{error}");
        assert_eq!(multi.names(), [""; 0]);
    }
    let many = (0..101).map(|name| format!("{name}"));
    for (multi, says) in [
        (one.multi_lock(Vec::<Part>::new()), "names is 0"),
        (one.multi_lock(many), "names is 101"),
        (
            one.multi_lock([one.leased_semaphore("s").part(0)]),
            "permits is 0",
        ),
        (one.multi_lock(["a", "b{"]), "b{"),
    ] {
        let error = multi.try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(says), "{error}");
    }
    let most = one.multi_lock((0..100).map(|name| name.to_string()));
    let guard = most.lock().await.unwrap();
    assert_eq!(guard.names().len(), 100);
    guard.release().await.unwrap();
    assert_eq!(server.names(), [""; 0]);
}

/// Ways to two servers, such that one process has the first server's address before the second's, and another has it behind.
fn crossed_ways(first: &Server, second: &Server) -> [[Proxy; 2]; 2] {
    let between = Proxy::start(second.addr());
    let (mut before, mut behind) = (None, None);
    let mut others = Vec::new();
    while before.is_none() || behind.is_none() {
        let way = Proxy::start(first.addr());
        let place = if way.url() < between.url() {
            &mut before
        } else {
            &mut behind
        };
        others.extend(place.replace(way));
    }
    let between = [between, Proxy::start(second.addr())];
    // The second way to the second server is where the other one's comparison wants it, too.
    let [one, mut two] = between;
    let behind = behind.expect("just found");
    while two.url() > behind.url() {
        others.push(std::mem::replace(&mut two, Proxy::start(second.addr())));
    }
    [[before.expect("just found"), one], [behind, two]]
}

/// A name on two servers, which two processes call by different addresses: they wait for both in one order. Also if the servers
/// could not say which they are when these connected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_call_two_servers_differently_do_not_wait_in_a_circle() {
    for (flavor, busy) in [false, true]
        .into_iter()
        .flat_map(|busy| Flavor::available().into_iter().map(move |it| (it, busy)))
    {
        let (first, second) = (Server::start(flavor), Server::start(flavor));
        let ways = crossed_ways(&first, &second);
        let mut holds = Vec::new();
        for server in [&first, &second] {
            let client = Client::connect(&server.url()).await.unwrap();
            holds.push(client.mutex("name").lock().await.unwrap());
        }
        let mut multis = Vec::new();
        let mut clients = Vec::new();
        for way in &ways {
            let mut parts = Vec::new();
            for proxy in way {
                // It has not reached its server yet.
                let client = Client::builder().url(proxy.url()).connect_lazily().unwrap();
                parts.push(Part::from(client.mutex("name")));
                clients.push(client);
            }
            multis.push(clients[0].multi_lock(parts));
        }
        if busy {
            let scripts = [keep_busy(&first).await, keep_busy(&second).await];
            for client in &clients {
                let error = client.status("name").await.unwrap_err();
                assert!(error.to_string().contains("BUSY"), "{error}");
            }
            for (server, script) in [&first, &second].into_iter().zip(scripts) {
                server.cli(&["SCRIPT", "KILL"]);
                assert!(script.join().unwrap().is_err(), "it was killed");
            }
        }
        let waiting = multis.iter().map(|multi| {
            let takes = multi.lock();
            tokio::spawn(async move { drop(takes.await.unwrap()) })
        });
        let waiting: Vec<_> = waiting.collect();
        wait_until_async(SOON, "both wait", || {
            let waits = clients.iter().filter(|client| {
                let now = client.footprint();
                now.waiting > 0 && now.asking == 0
            });
            waits.count() == 2
        })
        .await;
        for held in holds {
            held.release().await.unwrap();
        }
        for waits in waiting {
            let case = format!("{flavor}, busy: {busy}: no circle");
            soon(&case, waits).await.unwrap();
        }
    }
}

/// Until it is told to end its script.
async fn keep_busy(server: &Server) -> std::thread::JoinHandle<redis::RedisResult<()>> {
    server.cli(&["CONFIG", "SET", "lua-time-limit", "10"]);
    let mut connection = server.connection();
    let script = std::thread::spawn(move || {
        let mut eval = redis::cmd("EVAL");
        eval.arg("while true do end").arg(0).exec(&mut connection)
    });
    wait_until_async(SOON, "it is busy", || {
        let asked = server.try_cli(&["GET", "x"]);
        asked.is_err_and(|error| error.code() == Some("BUSY"))
    })
    .await;
    script
}

fn run_id(server: &Server) -> String {
    let info: String = redis::from_redis_value(server.cli(&["INFO", "server"])).unwrap();
    let mut lines = info.lines();
    let id = lines.find_map(|line| line.strip_prefix("run_id:"));
    id.unwrap().to_owned()
}

/// A server behind which, or before which, each restart puts another with a fair chance.
fn of_the_middle(flavor: Flavor) -> Server {
    loop {
        let server = Server::start(flavor);
        if ("4".."c").contains(&run_id(&server).as_str()) {
            return server;
        }
    }
}

/// Restarts the first of the servers until it comes before the second, or behind it.
fn restart_until(first: &mut Server, second: &Server, comes_before: bool) {
    while (run_id(first) < run_id(second)) != comes_before {
        first.restart();
    }
}

/// A process that was connected before a server's restart turned the order, and one that has connected since.
#[tokio::test]
async fn a_restart_of_a_server_that_turns_the_order_makes_no_circle_of_old_and_new_clients() {
    for flavor in Flavor::available() {
        let (mut first, second) = (Server::start(flavor), of_the_middle(flavor));
        let old = [
            Client::connect(&first.url()).await.unwrap(),
            Client::connect(&second.url()).await.unwrap(),
        ];
        let both = |[one, other]: &[Client; 2]| {
            one.multi_lock([Part::from("name"), other.mutex("name").into()])
        };
        both(&old).lock().await.unwrap().release().await.unwrap();
        let came_before = run_id(&first) < run_id(&second);
        restart_until(&mut first, &second, !came_before);
        let new = [
            Client::connect(&first.url()).await.unwrap(),
            Client::connect(&second.url()).await.unwrap(),
        ];
        let mut holds = Vec::new();
        for server in [&first, &second] {
            let client = Client::connect(&server.url()).await.unwrap();
            holds.push(client.mutex("name").lock().await.unwrap());
        }
        let waiting = [&old, &new].map(|clients| {
            let takes = both(clients).lock();
            tokio::spawn(async move { drop(takes.await.unwrap()) })
        });
        for clients in [&old, &new] {
            wait_until_async(SOON, "it waits", || {
                let waits = |client: &Client| client.footprint().waiting > 0;
                clients.iter().any(waits)
            })
            .await;
        }
        for held in holds {
            held.release().await.unwrap();
        }
        for waits in waiting {
            soon(&format!("{flavor}: no circle"), waits).await.unwrap();
        }
    }
}

/// A process that waits while a server restarts, with the other server's lock in its hands, and one that comes afterwards.
#[tokio::test]
async fn a_restart_of_a_server_that_is_waited_for_makes_no_circle_either() {
    for flavor in Flavor::available() {
        let (mut first, second) = (Server::start(flavor), of_the_middle(flavor));
        restart_until(&mut first, &second, false);
        let way = Proxy::start(first.addr());
        let [old_first, new_first] = [way.url(), first.url()]
            .map(|url| Client::builder().url(url).connect_lazily().unwrap());
        let old_second = Client::connect(&second.url()).await.unwrap();
        let new_second = Client::connect(&second.url()).await.unwrap();
        let holder = Client::connect(&first.url()).await.unwrap();
        let held = holder.mutex("name").lock().await.unwrap();
        let both = |one: &Client, other: &Client| {
            let takes = one.multi_lock([Part::from("name"), other.mutex("name").into()]);
            let takes = takes.lock();
            tokio::spawn(async move { drop(takes.await.unwrap()) })
        };
        let old = both(&old_first, &old_second);
        until_held(&new_second, "name").await;
        until_waiting(&old_first, "name", 1).await;
        way.refuse(true);
        way.cut();
        restart_until(&mut first, &second, true);
        let new = both(&new_first, &new_second);
        until_waiting(&new_second, "name", 1).await;
        way.refuse(false);
        for waits in [old, new] {
            soon(&format!("{flavor}: no circle"), waits).await.unwrap();
        }
        drop(held);
    }
}

#[tokio::test]
async fn a_name_twice_on_one_server_is_refused_whatever_its_addresses() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let [one, other] = [server.url(), proxy.url()]
            .map(|url| Client::builder().url(url).connect_lazily().unwrap());
        let parts = [Part::from("a"), other.mutex("a").into()];
        let multi = one.multi_lock(parts);
        let error = soon("it waits for itself", multi.lock()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("\"a\" twice"), "{error}");
    }
}

/// A server that was never reached has not said which one it is: a multi-lock waits for that with nothing in its hands.
#[tokio::test]
async fn a_name_on_a_server_that_was_never_there_is_waited_for() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        proxy.refuse(true);
        let memory = Client::connect("memory:").await.unwrap();
        let late = Client::builder().url(proxy.url()).connect_lazily().unwrap();
        let both = memory.multi_lock([Part::from("name"), late.mutex("name").into()]);
        let error = both.try_lock_for(100 * MS).await.unwrap_err();
        assert!(error.is_unreachable(), "{error}");
        let mut waiting = pin!(both.lock());
        let early = tokio::time::timeout(300 * MS, &mut waiting).await;
        assert!(early.is_err(), "it waits");
        assert!(!held(&memory, "name").await);
        proxy.refuse(false);
        drop(soon("it is there", waiting).await.unwrap());
    }
}

#[tokio::test]
async fn a_hundred_names_are_taken_at_once_on_a_server() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        let multi = client.multi_lock((0..100).map(|name| name.to_string()));
        let guard = multi.lock().await.unwrap();
        assert_eq!(keys(&server).len(), 100);
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        assert_nothing_left(&server, "a hundred names").await;
    }
}

#[tokio::test]
async fn a_part_that_is_lost_loses_the_whole_and_a_release_goes_on_past_it() {
    for world in World::all() {
        let (one, other) = (world.client().await, world.client().await);
        let multi = one.multi_lock(["a", "b", "c"]);

        // A single part is lost.
        let guard = multi.lock().await.unwrap();
        assert!(other.force_unlock("b").await.unwrap());
        let error = guard.verify().await.unwrap_err();
        assert_eq!(names(&error), BTreeSet::from(["b".to_owned()]));
        assert!(!guard.is_valid());
        assert_eq!(guard.remaining(), Duration::ZERO);
        assert_eq!(guard.lost().await, LostReason::Replaced);
        let error = guard.run(async { 1 }).await.unwrap_err();
        assert_eq!(names(&error), BTreeSet::from(["b".to_owned()]));
        assert_eq!(guard.ensure(MS).unwrap_err().kind(), ErrorKind::Lost);
        assert!(guard.reenter().is_err());
        assert!(held(&other, "a").await && held(&other, "c").await);
        let error = guard.release().await.unwrap_err();
        assert_eq!(names(&error), BTreeSet::from(["b".to_owned()]));
        assert!(!held(&other, "a").await && !held(&other, "c").await);

        // Two parts, in front of a third; and work that is under way is dropped.
        let guard = multi.lock().await.unwrap();
        let work = guard.run(std::future::pending::<()>());
        let loss = async {
            for lost in ["a", "b"] {
                assert!(other.force_unlock(lost).await.unwrap());
            }
            guard.verify().await.unwrap_err()
        };
        let (stopped, both) = soon("it is told", async { tokio::join!(work, loss) }).await;
        assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(both.kind(), ErrorKind::Lost);
        let error = guard.release().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        let expected = ["a", "b"].map(str::to_owned);
        assert_eq!(names(&error), BTreeSet::from(expected));
        let said = error.to_string();
        assert!(said.contains("\"a\"") && said.contains("\"b\""), "{said}");
        assert!(!held(&other, "c").await, "behind the errors");
        assert_clean(&world, &[&one, &other], "losses").await;
    }
}

#[tokio::test]
async fn a_part_that_is_lost_while_another_is_waited_for_is_taken_again_or_waited_for() {
    for world in World::all() {
        let (one, other) = (world.client().await, world.client().await);
        let multi = one.multi_lock(["a", "b"]).lease(600 * MS);
        for taken_by_another in [false, true] {
            let last = other.mutex("b").lock().await.unwrap();
            let waiting = tokio::spawn(multi.lock());
            until_held(&other, "a").await;
            until_waiting(&one, "b", 1).await;
            let mut events = one.events();
            assert!(other.force_unlock("a").await.unwrap());
            let thief = if taken_by_another {
                Some(other.mutex("a").lock().await.unwrap())
            } else {
                None
            };
            let loss = async {
                while !matches!(events.recv().await.unwrap().kind, EventKind::Lost { .. }) {}
            };
            soon("a renewal finds that it is lost", loss).await;
            last.release().await.unwrap();
            if let Some(thief) = thief {
                until_waiting(&one, "a", 1).await;
                let freed = soon("given back", other.mutex("b").lock()).await;
                freed.unwrap().release().await.unwrap();
                thief.release().await.unwrap();
            }
            let guard = soon("its turn", waiting).await.unwrap().unwrap();
            assert!(guard.is_valid());
            assert!(guard.verify().await.unwrap() > Duration::ZERO);
            guard.release().await.unwrap();
        }
        assert_clean(&world, &[&one, &other], "losses in a wait").await;
    }
}

#[tokio::test]
async fn a_fixed_lease_is_kept_while_its_caller_waits_and_counts_from_the_last_name() {
    let lease = 400 * MS;
    for world in World::all() {
        unless_late_async(&world.name(), lease, async || {
            let (one, other) = (world.client().await, world.client().await);
            let multi = one.multi_lock(["a", "b"]).fixed_lease(lease);
            let last = other.mutex("b").lock().await.unwrap();
            let waiting = tokio::spawn(multi.lock());
            until_held(&other, "a").await;
            let until = Instant::now() + 3 * lease;
            let mut is_kept = true;
            while is_kept && Instant::now() < until {
                // No event tells that nothing happens: it is looked at now and then.
                is_kept = held(&other, "a").await;
                tokio::time::sleep(lease / 10).await;
            }
            last.release().await.unwrap();
            let guard = soon("its turn", waiting).await.unwrap().unwrap();
            let left = guard.remaining();
            assert_eq!(soon("its end", guard.lost()).await, LostReason::Expired);
            assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
            assert_clean(&world, &[&one, &other], "a fixed lease").await;
            if !is_kept {
                return Err("its name was free while its caller waited".to_owned());
            }
            in_time(lease.saturating_sub(left), lease / 4)
        })
        .await;
    }
}

#[tokio::test]
async fn an_owner_enters_parts_that_it_holds() {
    for world in World::all() {
        let (one, other) = (world.client().await, world.client().await);
        let owner = Owner::new();
        let outer = one.mutex("b").owned_by(&owner).lock().await.unwrap();
        let multi = one.multi_lock(["a", "b", "c"]);
        assert!(multi.try_lock().await.unwrap().is_none());
        let inner = owner.scope(multi.lock());
        let inner = soon("it enters", inner).await.unwrap();
        let again = inner.reenter().unwrap();
        drop(again);
        assert_eq!(
            inner.release().await.unwrap(),
            Released::StillHeld { holds: 1 }
        );
        assert!(!held(&other, "a").await);
        assert!(held(&other, "b").await);
        outer.release().await.unwrap();
        let refused = multi.reentrant(false).owned_by(&owner);
        let outer = refused.lock().await.unwrap();
        let error = refused.try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Reentered);
        drop(outer);
        assert_clean(&world, &[&one, &other], "re-entry").await;
    }
}

#[tokio::test]
async fn a_name_of_another_kind_is_refused_and_the_others_stay_free() {
    for world in World::all() {
        let (one, other) = (world.client().await, world.client().await);
        let reader = other.rw_lock("b").read().await.unwrap();
        let multi = one.multi_lock(["a", "b", "c"]);
        for _ in 0..2 {
            let error = soon("an answer", multi.lock()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
            assert!(error.to_string().contains("\"b\""), "{error}");
            let cause = error.to_string();
            let expected = "the name is held as a rw_lock, and not as a mutex";
            assert!(cause.contains(expected), "{cause}");
            wait_until_idle(&one).await;
            assert!(!held(&other, "a").await && !held(&other, "c").await);
        }
        drop(reader);
        wait_until_idle(&other).await;
        assert_clean(&world, &[&one, &other], "a refusal").await;
    }
}

/// A part that fails: what was taken before it is free when the caller hears of that.
#[tokio::test]
async fn nothing_is_held_when_an_error_has_come() {
    for world in World::all() {
        let (one, other) = (world.client().await, world.client().await);
        // No client has set its permits.
        let unset = one.leased_semaphore("unset").part(1);
        let multi = one.multi_lock([Part::from("a"), unset]);
        for _ in 0..50 {
            let error = multi.try_lock().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
            let free = other.mutex("a").try_lock().await.unwrap();
            let free = free.unwrap_or_else(|| panic!("{}: it is still held", world.name()));
            free.release().await.unwrap();
        }
        assert_clean(&world, &[&one, &other], "errors").await;
    }
}

#[tokio::test]
async fn leases_that_end_before_the_last_name_is_taken_are_an_error_and_no_endless_wait() {
    let server = MemoryServer::new();
    let client = Client::builder().memory(&server).connect().await.unwrap();
    let names: Vec<Part> = (0..8)
        .map(|n| client.fenced_mutex(n.to_string()).into())
        .collect();
    // Eight round trips of 20 ms one after the other would be too long.
    server.delay(10 * MS);
    let multi = client.multi_lock(names).fixed_lease(60 * MS);
    let error = soon("an answer", multi.lock()).await;
    server.delay(Duration::ZERO);
    if let Err(error) = error {
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    }
    wait_until_idle(&client).await;
    let what = "nothing is held";
    wait_until_async(SOON, what, || server.names().is_empty()).await;
}

/// The words of an error about a time that is too short.
fn too_short(error: &Error) -> String {
    assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    error.to_string()
}

#[tokio::test]
async fn a_max_hold_that_is_too_short_is_what_the_error_speaks_of() {
    let server = MemoryServer::new();
    let client = Client::builder().memory(&server).connect().await.unwrap();
    server.delay(10 * MS);
    // Over before the first answer is here, of one lock and of several.
    let parts: [Part; 2] = ["a".into(), client.rw_lock("b").write_part()];
    let multi = client.multi_lock(parts);
    let mutex = client.mutex("a");
    for (error, what) in [
        (mutex.max_hold(15 * MS).lock().await.err(), "max_hold"),
        (mutex.fixed_lease(15 * MS).lock().await.err(), "lease"),
        (multi.max_hold(15 * MS).lock().await.err(), "max_hold"),
        (multi.fixed_lease(15 * MS).lock().await.err(), "lease"),
    ] {
        let cause = too_short(&error.expect(what));
        let expected = format!("the {what} of 15ms was over when");
        assert!(cause.contains(&expected), "{cause}");
    }
    server.delay(Duration::ZERO);
    // The first is over each time before the last is free, which two others take in turns.
    let others = (0..2).map(|_| {
        let server = server.clone();
        tokio::spawn(async move {
            let other = Client::builder().memory(&server).connect().await.unwrap();
            loop {
                let guard = other.mutex("y").lock().await.unwrap();
                tokio::time::sleep(100 * MS).await;
                guard.release().await.unwrap();
            }
        })
    });
    let others: Vec<_> = others.collect();
    until_held(&client, "y").await;
    let multi = client.multi_lock(["x", "y"]).max_hold(60 * MS);
    let error = soon("an answer", multi.lock()).await.unwrap_err();
    others.iter().for_each(tokio::task::JoinHandle::abort);
    let cause = too_short(&error);
    assert!(
        cause.contains("max_hold of 60ms was over each time before"),
        "{cause}"
    );
    wait_until_idle(&client).await;
}

#[tokio::test]
async fn a_user_that_lacks_a_right_is_told_so_and_nothing_is_left() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        for lacks in ["-pexpire", "-hset"] {
            let rules = ["&*", "+@all", lacks];
            let client = restricted(&server, &proxy, &rules).await;
            let error = client.multi_lock(["a", "b"]).lock().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
            wait_until_idle(&client).await;
            assert_eq!(keys(&server), [""; 0], "{lacks}");
        }
        // A release that is refused: its names are free, or end by themselves.
        let client = restricted(&server, &proxy, &["&*", "+@all"]).await;
        let multi = client.multi_lock(["a", "b"]).lease(500 * MS);
        let guard = multi.lock().await.unwrap();
        server.cli(&["ACL", "SETUSER", "worker", "-publish"]);
        guard.release().await.unwrap();
        let held = || keys(&server).iter().any(|key| !key.contains(":gone:"));
        wait_until_async(SOON, "they end", || !held()).await;
    }
}
