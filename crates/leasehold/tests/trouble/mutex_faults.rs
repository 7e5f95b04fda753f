//! Networks that swallow and break, servers that freeze and forget: the holder of a lease learns of its loss first, and
//! a waiter gets the name in the end.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::common;
use crate::common::{World, assert_nothing_left, int, owners, servers, wait_until_idle};
use futures_util::future::{join_all, try_join_all};
use leasehold::{Client, Error, EventKind, Guard, Handoff, LostReason, Part, Released};
use leasehold_testkit::{Proxy, Recorder, Server, Way, wait_until_async};

const SOON: Duration = Duration::from_secs(10);
const LEASE: Duration = Duration::from_secs(1);

async fn client_of(url: &str) -> Client {
    Client::builder().url(url).connect().await.unwrap()
}

/// The margin of the lease, 12 ms, is left on the server by then. A machine that stalls for as long does not show it.
#[tokio::test]
async fn work_is_dropped_before_the_name_is_free() {
    const TRIES: usize = 8;
    for server in servers() {
        let mut tries = 0;
        while !is_held_still_when_work_is_dropped(&server).await {
            tries += 1;
            assert!(tries < TRIES, "{}: never", server.flavor());
        }
    }
}

async fn is_held_still_when_work_is_dropped(server: &Server) -> bool {
    let proxy = Proxy::start(server.addr());
    let client = client_of(&proxy.url()).await;
    let guard = client.mutex("name").lease(LEASE).lock().await.unwrap();
    proxy.black_hole(None);
    let error = guard.run(std::future::pending::<()>()).await.unwrap_err();
    let is_held = int(server, &["PTTL", "name"]) > 0;
    let is_expired = matches!(
        error,
        Error::Lost {
            reason: LostReason::Expired,
            ..
        }
    );
    assert!(is_expired, "{error}");
    let at_risk = client_of(&server.url()).await;
    let next = at_risk.mutex("name").lock().await.unwrap();
    common::assert_lost(guard.release().await, LostReason::Expired);
    assert!(next.is_valid());
    next.release().await.unwrap();
    is_held
}

#[tokio::test]
async fn at_risk_comes_before_lost() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = client_of(&proxy.url()).await;
        let guard = client.mutex("name").lease(LEASE).lock().await.unwrap();
        proxy.black_hole(Some(Way::ToClient));
        guard.at_risk(LEASE / 4).await;
        let left = guard.remaining();
        assert!(!left.is_zero() && left <= LEASE / 4, "{left:?}");
        assert_eq!(guard.lost().await, LostReason::Expired);
    }
}

/// Renewals are carried out and answered, only too late to be believed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_answer_does_not_bring_a_lost_lease_back() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let mut clients = Vec::new();
        for number in 0..10 {
            let client = client_of(&proxy.url()).await;
            let mutex = client.mutex(format!("name:{number}"));
            let lease = Duration::from_millis(1_500);
            clients.push((client, mutex.lease(lease).lock().await.unwrap()));
        }
        proxy.stall(Some(Way::ToClient));
        for (_, guard) in &clients {
            assert_eq!(guard.lost().await, LostReason::Expired);
        }
        let before = proxy.bytes_to_client();
        proxy.heal();
        wait_until_async(SOON, "the answers are here", || {
            proxy.bytes_to_client() > before
        })
        .await;
        for (client, guard) in clients {
            // Messages that were under way when the lease ended have been heard once this is answered.
            let status = client.status(guard.name()).await.unwrap();
            assert!(!guard.is_valid(), "{status:?}");
            assert_eq!(guard.remaining(), Duration::ZERO);
            common::assert_lost(guard.release().await, LostReason::Expired);
            wait_until_idle(&client).await;
        }
        assert_nothing_left(&server, "late answers").await;
    }
}

#[tokio::test]
async fn a_network_that_comes_back_in_time_costs_no_lease() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = Client::builder()
            .url(proxy.url())
            .operation_timeout(Duration::from_millis(200))
            .connect()
            .await
            .unwrap();
        let mutex = client.mutex("name").lease(Duration::from_secs(3));
        let guard = mutex.lock().await.unwrap();
        let mut events = client.events();
        for _ in 0..3 {
            proxy.black_hole(None);
            tokio::time::sleep(Duration::from_millis(1300)).await; // a renewal falls into it
            proxy.heal();
            until_renewed(&mut events).await;
            assert!(guard.is_valid());
        }
        assert_eq!(owners(&server, "name"), [(guard.owner(), 1)]);
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
    }
}

async fn until_renewed(events: &mut leasehold::EventListener) {
    loop {
        let event = tokio::time::timeout(SOON, events.recv()).await;
        let event = event.unwrap_or_else(|_| panic!("no renewal")).unwrap();
        assert!(!matches!(event.kind, EventKind::Lost { .. }), "{event:?}");
        if matches!(event.kind, EventKind::Renewed { .. }) {
            return;
        }
    }
}

async fn wait_until_listening(client: &Client, clients: u64) {
    let deadline = std::time::Instant::now() + SOON;
    while client.status("name").await.unwrap().waiting_clients != clients {
        assert!(
            std::time::Instant::now() < deadline,
            "{clients} never listened"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_waiter_whose_connection_is_cut_gets_the_name_when_it_is_released() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let holder = client_of(&server.url()).await;
        for _ in 0..10 {
            let waiter = client_of(&proxy.url()).await;
            let guard = holder.mutex("name").lock().await.unwrap();
            let waiting = tokio::spawn(waiter.mutex("name").lock());
            wait_until_listening(&holder, 1).await;
            proxy.cut();
            wait_until_listening(&holder, 1).await;
            assert_eq!(guard.release().await.unwrap(), Released::Freed);
            // Long before it would ask by itself.
            let guard = tokio::time::timeout(Duration::from_secs(3), waiting).await;
            let guard = guard.expect("woken").unwrap().unwrap();
            assert_eq!(owners(&server, "name"), [(guard.owner(), 1)]);
            assert_eq!(guard.release().await.unwrap(), Released::Freed);
            wait_until_idle(&waiter).await;
        }
        wait_until_idle(&holder).await;
        assert_nothing_left(&server, "cut waiters").await;
    }
}

#[tokio::test]
async fn a_release_in_a_gap_of_the_subscription_is_not_missed() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let holder = client_of(&server.url()).await;
        for _ in 0..10 {
            let waiter = client_of(&proxy.url()).await;
            let guard = holder.mutex("name").lock().await.unwrap();
            let waiting = tokio::spawn(waiter.mutex("name").lock());
            wait_until_listening(&holder, 1).await;
            proxy.refuse(true);
            proxy.cut();
            wait_until_listening(&holder, 0).await;
            assert_eq!(guard.release().await.unwrap(), Released::Freed);
            proxy.heal();
            let guard = tokio::time::timeout(Duration::from_secs(5), waiting).await;
            let guard = guard
                .expect("it looked for itself after the gap")
                .unwrap()
                .unwrap();
            assert_eq!(guard.release().await.unwrap(), Released::Freed);
            wait_until_idle(&waiter).await;
        }
        assert_nothing_left(&server, "releases in a gap").await;
    }
}

/// The server gives the name to a waiter, and the waiter's connection breaks before the message is out.
#[tokio::test]
async fn a_grant_that_is_not_heard_is_found_after_the_gap() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let holder = client_of(&server.url()).await;
        let waiter = client_of(&proxy.url()).await;
        let guard = holder.mutex("name").lock().await.unwrap();
        let waiting = tokio::spawn(waiter.mutex("name").lock());
        let line = "leasehold:{name}:queue";
        wait_until_async(SOON, "it is in line", || int(&server, &["LLEN", line]) == 1).await;
        proxy.black_hole(Some(Way::ToClient));
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        assert_eq!(int(&server, &["EXISTS", "name"]), 1, "given to the waiter");
        proxy.heal(); // which resets what has lost something
        let guard = tokio::time::timeout(Duration::from_secs(3), waiting).await;
        let guard = guard.expect("found").unwrap().unwrap();
        assert_eq!(owners(&server, "name"), [(guard.owner(), 1)]);
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        wait_until_idle(&waiter).await;
        assert_nothing_left(&server, "an unheard grant").await;
    }
}

/// A line to `server` that lets replies through at 200 kB/s once it is slow.
fn slow_line(server: &Server, is_slow: &Arc<AtomicBool>) -> SocketAddr {
    let (upstream, is_slow) = (server.addr(), Arc::clone(is_slow));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let Ok(mut server) = TcpStream::connect(upstream) else {
                return; // the test is over
            };
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || {
                let _ = io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
            let is_slow = Arc::clone(&is_slow);
            thread::spawn(move || {
                let mut some = [0; 4000];
                while let Ok(read @ 1..) = server.read(&mut some)
                    && client.write_all(&some[..read]).is_ok()
                {
                    if is_slow.load(Ordering::Relaxed) {
                        thread::sleep(Duration::from_millis(20));
                    }
                }
                let _ = client.shutdown(Shutdown::Both);
            });
        }
    });
    addr
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_names_are_heard_again_over_a_slow_line() {
    const NAMES: usize = 800;
    for server in servers() {
        let is_slow = Arc::default();
        let url = format!("redis://{}/", slow_line(&server, &is_slow));
        let holder = client_of(&server.url()).await;
        let names = || (0..NAMES).map(|number| format!("name:{number}"));
        let held = names().map(|name| holder.mutex(&*name).lock());
        let held = try_join_all(held).await.unwrap();
        let builder = Client::builder().url(url).poll_every(6 * SOON);
        let builder = builder.operation_timeout(Duration::from_millis(400));
        let waiter = builder.connect().await.unwrap();
        let waiting: Vec<_> = names()
            .map(|name| waiter.mutex(&*name).lock())
            .map(tokio::spawn)
            .collect();
        let are_heard = || common::channels(&server).len() == 3 * NAMES;
        wait_until_async(SOON, "all are heard", are_heard).await;

        // Answers to all at once would take more than 600 ms.
        is_slow.store(true, Ordering::Relaxed);
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        wait_until_async(SOON, "all are heard again", are_heard).await;
        join_all(held.into_iter().map(Guard::release)).await;
        let given = tokio::time::timeout(SOON, join_all(waiting)).await;
        let given = given.unwrap_or_else(|_| panic!("{}: they are deaf", server.flavor()));
        assert!(given.iter().all(|given| given.as_ref().unwrap().is_ok()));
    }
}

#[tokio::test]
async fn an_idle_waiting_process_asks_once_per_poll_however_many_wait_in_it() {
    for server in servers() {
        let holder = client_of(&server.url()).await;
        let poll = Duration::from_millis(500);
        let builder = Client::builder().url(server.url()).poll_every(poll);
        let waiter = builder.connect().await.unwrap();
        let guard = holder.mutex("name").lock().await.unwrap();
        let waiting: Vec<_> = (0..50)
            .map(|_| tokio::spawn(waiter.mutex("name").lock()))
            .collect();
        wait_until_listening(&holder, 1).await;
        let calls = || server.calls().get("evalsha").copied().unwrap_or(0);
        let before = calls();
        tokio::time::sleep(4 * poll).await; // the time itself is what is tested
        let asked = calls() - before;
        assert!((2..=4).contains(&asked), "{asked} commands in 4 polls");
        guard.release().await.unwrap();
        for task in waiting {
            drop(task.await.unwrap().unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_hand_off_a_release_wakes_one_waiter_of_many() {
    const ROUNDS: u64 = 20;
    for server in servers() {
        let mut tasks = Vec::new();
        let before = server.calls();
        for _ in 0..2 {
            let builder = Client::builder().url(server.url());
            let client = builder.handoff(Handoff::off()).connect().await.unwrap();
            for _ in 0..32 {
                let mutex = client.mutex("name");
                tasks.push(tokio::spawn(async move {
                    for _ in 0..ROUNDS {
                        drop(mutex.lock().await.unwrap());
                    }
                }));
            }
        }
        for task in join_all(tasks).await {
            task.unwrap();
        }
        let after = server.calls();
        let of = |name: &str| {
            let count = |calls: &std::collections::BTreeMap<String, u64>| {
                calls.get(name).copied().unwrap_or(0)
            };
            count(&after) - count(&before)
        };
        // A release each, and the ask of its process for the next; were all woken, the other process would ask as well.
        let (scripts, messages, all) = (of("evalsha"), of("publish"), 2 * 32 * ROUNDS);
        assert!(
            scripts <= 2 * all + all / 4,
            "{scripts} scripts for {all} locks"
        );
        assert!(
            messages <= all + all / 4,
            "{messages} messages for {all} locks"
        );
    }
}

#[tokio::test]
async fn a_holder_whose_connection_is_cut_goes_on_renewing() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = client_of(&proxy.url()).await;
        let guards = join_all((0..50).map(|n| client.mutex(format!("n:{n}")).lease(LEASE).lock()));
        let guards: Vec<Guard> = guards.await.into_iter().map(Result::unwrap).collect();
        for _ in 0..25 {
            proxy.cut();
            tokio::time::sleep(LEASE / 5).await; // five leases in all
        }
        for guard in guards {
            assert!(guard.is_valid(), "{guard:?}");
            assert_eq!(guard.release().await.unwrap(), Released::Freed);
        }
        // They are renewed together, three times in a lease, and each time over a connection that was cut.
        let connections = proxy.accepted();
        assert!(connections > 10, "only {connections} connections");
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "cut holders").await;
    }
}

#[tokio::test]
async fn a_server_that_restarts_empty_tells_its_holders_and_serves_its_waiters() {
    for mut server in servers() {
        let (a, b) = (
            client_of(&server.url()).await,
            client_of(&server.url()).await,
        );
        let guard = a.mutex("name").lease(LEASE).lock().await.unwrap();
        let waiting = tokio::spawn(b.mutex("name").lock());
        wait_until_listening(&a, 1).await;
        server.restart();
        let next = tokio::time::timeout(SOON, waiting).await.expect("served");
        let next = next.unwrap().unwrap();
        assert_eq!(owners(&server, "name"), [(next.owner(), 1)]);
        // It verifies what it holds as soon as it is connected again.
        assert_eq!(guard.lost().await, LostReason::Failover);
        assert_eq!(next.release().await.unwrap(), Released::Freed);
        // The scripts that the server knew are gone, too; it is told again.
        let again = a.mutex("name").lock().await.unwrap();
        assert_eq!(again.release().await.unwrap(), Released::Freed);
    }
}

#[tokio::test]
async fn a_server_that_is_down_for_a_while_is_waited_for() {
    for mut server in servers() {
        let client = client_of(&server.url()).await;
        server.kill();
        let lock = tokio::spawn(client.mutex("name").lock());
        tokio::task::yield_now().await;
        server.restart();
        let guard = lock.await.unwrap().unwrap();
        assert_eq!(owners(&server, "name"), [(guard.owner(), 1)]);
        server.kill();
        let error = client.mutex("other").try_lock().await.unwrap_err();
        assert!(error.is_unreachable(), "{error}");
        assert!(guard.is_valid(), "a dead server gives the name to nobody");
    }
}

#[tokio::test]
async fn a_stale_guard_does_not_touch_its_successor() {
    for world in World::all() {
        for local in [false, true] {
            let a = world.client().await;
            let b = if local {
                a.clone()
            } else {
                world.client().await
            };
            let stale = a
                .mutex("name")
                .fixed_lease(Duration::from_millis(100))
                .lock()
                .await
                .unwrap();
            // Behind it from the start, and a lease that the first one's would serve.
            let waiter = tokio::spawn(b.mutex("name").lock());
            assert_eq!(stale.lost().await, LostReason::Expired);
            let next = waiter.await.unwrap().unwrap();
            let owner = next.owner();
            let reentered = stale.reenter().unwrap_err();
            assert!(matches!(reentered, Error::Lost { .. }), "{reentered}");
            assert!(stale.extend(SOON).await.is_err());
            assert!(stale.verify().await.is_err());
            common::assert_lost(stale.release().await, LostReason::Expired);
            wait_until_async(SOON, "the stale one is done", || a.footprint().tasks == 0).await;
            assert!(
                next.verify().await.is_ok(),
                "{} local: {local}",
                world.name()
            );
            let holder = a.status("name").await.unwrap().holder().cloned().unwrap();
            assert_eq!((holder.owner, holder.holds), (owner, 1));
            assert!(a.mutex("name").try_lock().await.unwrap().is_none());
            assert_eq!(next.release().await.unwrap(), Released::Freed);
            wait_until_idle(&a).await;
            wait_until_idle(&b).await;
        }
    }
}

#[tokio::test]
async fn force_unlock_lets_all_waiters_through_one_by_one() {
    for world in World::all() {
        let clients = [
            world.client().await,
            world.client().await,
            world.client().await,
        ];
        let guard = clients[0].mutex("name").lock().await.unwrap();
        let recorder = Recorder::in_memory();
        let waiters: Vec<_> = (0..12)
            .map(|number: usize| {
                let (mutex, recorder) = (clients[number % 3].mutex("name"), recorder.clone());
                tokio::spawn(async move {
                    let guard = mutex.lock().await.unwrap();
                    let who = format!("{number}");
                    recorder.acquired("name", &who);
                    tokio::task::yield_now().await;
                    recorder.released("name", &who);
                    guard.release().await.unwrap()
                })
            })
            .collect();
        let here = |n: usize| clients[n].status("name");
        let deadline = std::time::Instant::now() + SOON;
        while here(1).await.unwrap().waiting_here < 4 || here(2).await.unwrap().waiting_here < 4 {
            assert!(std::time::Instant::now() < deadline, "they never waited");
            tokio::task::yield_now().await;
        }
        assert!(clients[1].force_unlock("name").await.unwrap());
        for waiter in waiters {
            // Waiters of the holder's own client are called once it learns of its loss, or gives up its hold.
            if clients[0].footprint().watched > 0 {
                let _ = guard.verify().await;
            }
            let released = tokio::time::timeout(SOON, waiter).await.expect("through");
            assert_eq!(released.unwrap(), Released::Freed, "{}", world.name());
        }
        assert!(!guard.is_valid());
        let summary = recorder.history().unwrap().check().unwrap();
        assert_eq!(summary.acquisitions, 12);
        drop(guard);
        for client in &clients {
            wait_until_idle(client).await;
        }
        assert_eq!(world.held(), [""; 0]);
    }
}

/// Contends, and records what each holder believed.
async fn history(world: &World, locks: bool) -> leasehold_testkit::History {
    let recorder = Recorder::in_memory();
    let together = Arc::new(tokio::sync::Barrier::new(16));
    let mut tasks = Vec::new();
    for client in 0..2 {
        let connection = world.client().await;
        for task in 0..8 {
            let (mutex, recorder) = (connection.mutex("name"), recorder.clone());
            let (who, together) = (format!("{client}/{task}"), Arc::clone(&together));
            tasks.push(tokio::spawn(async move {
                together.wait().await;
                for _ in 0..20 {
                    let guard = if locks {
                        Some(mutex.lock().await.unwrap())
                    } else {
                        None
                    };
                    recorder.acquired("name", &who);
                    tokio::task::yield_now().await;
                    recorder.released("name", &who);
                    drop(guard);
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    recorder.history().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_holders_overlap_and_the_checker_would_see_it() {
    for world in World::all() {
        let summary = history(&world, true).await.check().unwrap();
        assert_eq!(summary.acquisitions, 2 * 8 * 20);
        // A lock that does nothing: the same checker must notice.
        let violations = history(&world, false).await.check().unwrap_err();
        assert!(
            violations
                .iter()
                .any(|v| matches!(v, leasehold_testkit::Violation::Overlap { .. })),
            "{violations:?}"
        );
    }
}

/// Contention through a network that keeps breaking: slower, never wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_holders_overlap_while_connections_are_cut() {
    for server in servers() {
        let recorder = Recorder::in_memory();
        let mut tasks = Vec::new();
        let proxies: Vec<Arc<Proxy>> = (0..3)
            .map(|_| Arc::new(Proxy::start(server.addr())))
            .collect();
        for (number, proxy) in proxies.iter().enumerate() {
            let client = client_of(&proxy.url()).await;
            for task in 0..6 {
                let mutex = client.mutex("name").lease(LEASE);
                let (recorder, who) = (recorder.clone(), format!("{number}/{task}"));
                tasks.push(tokio::spawn(async move {
                    for _ in 0..30 {
                        let guard = mutex.lock().await.unwrap();
                        recorder.acquired("name", &who);
                        let work = tokio::time::sleep(Duration::from_millis(1));
                        let done = guard.run(work).await;
                        // A lost hold is over as soon as run() says so.
                        recorder.released("name", &who);
                        done.ok();
                        drop(guard);
                    }
                }));
            }
        }
        let cutter = tokio::task::spawn_blocking(move || {
            for round in 0..30_u64 {
                std::thread::sleep(Duration::from_millis(40));
                let proxy = &proxies[usize::try_from(round).unwrap() % 3];
                match round % 4 {
                    0 => proxy.cut(),
                    1 => proxy.lose_replies(b"EVALSHA", 2),
                    2 => proxy.lose_requests(b"EVALSHA", 2),
                    _ => proxy.cut_reply_after(round),
                }
            }
            proxies
        });
        for task in tasks {
            task.await.unwrap();
        }
        let proxies = cutter.await.unwrap();
        assert!(proxies.iter().map(|proxy| proxy.struck()).sum::<u64>() > 0);
        let summary = recorder.history().unwrap().check();
        assert_eq!(summary.unwrap().acquisitions, 3 * 6 * 30);
    }
}

/// Ten batches, of which only the first is ever sent: the others must not wait for it until they are over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_one_of_many_losses_is_told_in_time_when_the_server_stands_still() {
    for server in servers() {
        let client = client_of(&server.url()).await;
        let locks = (0..2000).map(|n| client.mutex(format!("n:{n}")).lease(LEASE).lock());
        let guards = join_all(locks).await;
        server.freeze();
        tokio::time::sleep(LEASE / 4).await; // for answers of before, which are under way
        let losses = guards.into_iter().map(|guard| {
            let guard = guard.unwrap();
            let end = guard.valid_until(); // no renewal is answered any more
            let late = move || Instant::now().saturating_duration_since(end);
            let loss = tokio::spawn(async move { (guard.lost().await, late()) });
            // A timer of nobody's, on the same runtime: how late this machine is.
            let timer = tokio::spawn(async move {
                tokio::time::sleep_until(end.into()).await;
                late()
            });
            (loss, timer)
        });
        let (losses, timers): (Vec<_>, Vec<_>) = losses.unzip();
        let timers = join_all(timers).await.into_iter().map(Result::unwrap);
        let machine = timers.max().unwrap();
        for loss in join_all(losses).await {
            let (reason, late) = loss.unwrap();
            assert_eq!(reason, LostReason::Expired);
            // A batch that waited for those before it would be up to half a second late.
            assert!(late < machine + LEASE / 10, "{late:?}, a timer {machine:?}");
        }
        server.thaw();
    }
}

/// The name was held when the server last said so.
#[tokio::test]
async fn a_wait_whose_server_has_died_meanwhile_does_not_end_as_if_the_name_were_held() {
    const WAIT: Duration = Duration::from_secs(5);
    for mut server in servers() {
        let (holder, waiter) = (
            client_of(&server.url()).await,
            client_of(&server.url()).await,
        );
        macro_rules! waits {
            ($kind:ident) => {{
                let held = holder.$kind(stringify!($kind)).fixed_lease(20 * LEASE);
                let guard = held.lock().await.unwrap();
                let waits = waiter.$kind(stringify!($kind)).try_lock_for(WAIT);
                let waits = tokio::spawn(waits);
                while held.status().await.unwrap().waiting_clients == 0 {
                    assert!(!waits.is_finished(), "it ended before it was seen to wait");
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                waiter.heard().await;
                (guard, waits)
            }};
        }
        let (mutex, waits) = waits!(mutex);
        let (fair, waits_in_turn) = waits!(fair_mutex);
        server.kill();
        for waits in [
            waits.await.unwrap().map(drop),
            waits_in_turn.await.unwrap().map(drop),
        ] {
            let error = waits.unwrap_err();
            assert!(error.is_unreachable(), "{error}");
        }
        drop((mutex, fair));
    }
}

/// The server's end is known since the request, not since its answer.
#[tokio::test]
async fn a_holder_that_asks_from_far_away_is_not_told_of_more_than_is_left() {
    const WAY: Duration = Duration::from_millis(200);
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = client_of(&proxy.url()).await;
        let lock = client.mutex("name").fixed_lease(2 * LEASE);
        let guard = lock.lock().await.unwrap();
        proxy.delay(WAY);
        let said = guard.verify().await.unwrap();
        let left = int(&server, &["PTTL", "name"]);
        assert!(
            said.as_millis() <= u128::try_from(left).unwrap() + 1,
            "{said:?}, not {left} ms"
        );
        proxy.delay(Duration::ZERO);
    }
}

/// So was one of several names, and the count of a latch was not zero.
#[tokio::test]
async fn neither_does_a_wait_for_several_names_or_for_a_latch_whose_server_has_died_meanwhile() {
    const WAIT: Duration = Duration::from_secs(5);
    for mut server in servers() {
        let (holder, waiter) = (
            client_of(&server.url()).await,
            client_of(&server.url()).await,
        );
        let (x, z) = (holder.mutex("x"), holder.fair_mutex("z"));
        let guards = (
            x.fixed_lease(20 * LEASE).lock().await.unwrap(),
            z.fixed_lease(20 * LEASE).lock().await.unwrap(),
        );
        let latch = holder.latch("latch");
        latch.try_set_count(1).await.unwrap();
        let began = Instant::now();
        // By one request, and one by one.
        let together = waiter.multi_lock(["x", "y"]).try_lock_for(WAIT);
        let in_turn = waiter.multi_lock([Part::from("w"), waiter.fair_mutex("z").into()]);
        let in_turn = in_turn.try_lock_for(WAIT);
        let waits = [
            tokio::spawn(async { together.await.map(|_| ()) }),
            tokio::spawn(async { in_turn.await.map(|_| ()) }),
        ];
        let opens = waiter.latch("latch");
        let opens = tokio::spawn(async move { opens.wait_for(WAIT).await });
        loop {
            let waiting = [
                x.status().await.unwrap().waiting_clients,
                z.status().await.unwrap().waiting_clients,
                latch.status().await.unwrap().waiting_clients,
            ];
            if waiting == [1; 3] {
                break;
            }
            let ended =
                opens.is_finished() || waits.iter().any(tokio::task::JoinHandle::is_finished);
            let after = began.elapsed();
            assert!(
                !ended,
                "{waiting:?} wait: one ended after {after:?}, before all had begun"
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        waiter.heard().await;
        server.kill();
        for waits in waits {
            let error = waits.await.unwrap().unwrap_err();
            assert!(error.is_unreachable(), "{error}");
        }
        let error = opens.await.unwrap().unwrap_err();
        assert!(error.is_unreachable(), "{error}");
        drop(guards);
    }
}

/// The other name was held at first, was given back, and was taken.
#[tokio::test]
async fn a_wait_for_several_names_that_ends_with_a_server_that_is_silent_does_not_end_as_if_one_were_held()
 {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let (client, behind) = (
            client_of(&server.url()).await,
            client_of(&proxy.url()).await,
        );
        let holder = client_of(&server.url()).await;
        let held = holder.mutex("b").lock().await.unwrap();
        let names = [Part::from("a"), Part::from("b"), behind.mutex("c").into()];
        let waits = tokio::spawn(client.multi_lock(names).try_lock_for(2 * LEASE));
        while holder.status("b").await.unwrap().waiting_clients == 0 {
            assert!(!waits.is_finished(), "it ended before it was seen to wait");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        proxy.black_hole(None);
        held.release().await.unwrap();
        let error = waits.await.unwrap().map(drop).unwrap_err();
        assert!(error.is_unreachable(), "{error}");
        assert!(error.to_string().contains("\"c\""), "{error}");
    }
}
