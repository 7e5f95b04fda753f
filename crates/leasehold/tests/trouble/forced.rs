//! A hold that another process ends by force, while a task of the holder's own process waits for the lock: both are told at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Client, Event, EventKind, Handoff, LostReason, MemoryServer};
use leasehold_testkit::{Proxy, Server, wait_until_async};

use crate::common::{
    SOON, few_or,
    forced::{both, told_in_time},
    int, restricted, servers, soon, until_listening, until_waiting_here,
};

/// By a handle of the same kind, and by the name alone.
macro_rules! kind {
    ($server:expr, $kind:ident, $take:ident, $next:ident, $force:expr) => {{
        let client = &Client::connect(&$server.url()).await.unwrap();
        let other = &Client::connect(&$server.url()).await.unwrap();
        let what = concat!(
            stringify!($kind),
            " ",
            stringify!($take),
            " ",
            stringify!($force)
        );
        let what = format!("{}, {what}", $server.flavor());
        told_in_time(&what, (client, other), async || {
            let lock = client.$kind("name");
            let guard = lock.$take().await.unwrap();
            let next = async move {
                let next = lock.$next().await.unwrap();
                drop(next);
            };
            let lost = async move { guard.lost().await };
            let force = $force;
            both(lost, next, force(other.clone())).await
        })
        .await;
    }};
}

async fn by_name(other: Client) -> bool {
    other.force_unlock("name").await.unwrap()
}

macro_rules! by_handle {
    ($kind:ident) => {
        async |other: Client| other.$kind("name").force_unlock().await.unwrap()
    };
}

async fn each_kind(server: &Server) {
    kind!(server, mutex, lock, lock, by_handle!(mutex));
    kind!(server, mutex, lock, lock, by_name);
    kind!(server, fenced_mutex, lock, lock, by_handle!(fenced_mutex));
    kind!(server, plain_mutex, lock, lock, by_handle!(plain_mutex));
    kind!(server, spin_mutex, lock, lock, by_handle!(spin_mutex));
    kind!(server, spin_mutex, lock, lock, by_name);
    kind!(server, fair_mutex, lock, lock, by_handle!(fair_mutex));
    kind!(server, rw_lock, write, write, by_handle!(rw_lock));
    kind!(server, rw_lock, write, read, by_handle!(rw_lock));
    kind!(server, rw_lock, read, write, by_handle!(rw_lock));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_holder_and_the_next_of_its_process_are_told_at_once_of_each_kind() {
    for server in few_or(servers().into_iter().take(1).collect(), servers()) {
        each_kind(&server).await;
        let client = &Client::connect(&server.url()).await.unwrap();
        let other = &Client::connect(&server.url()).await.unwrap();
        told_in_time("permits", (client, other), async || {
            let semaphore = client.leased_semaphore("permits").permits(1);
            let guard = semaphore.acquire().await.unwrap();
            let next = async move { drop(semaphore.acquire().await.unwrap()) };
            let lost = async move { guard.lost().await };
            let force = async {
                let semaphore = other.leased_semaphore("permits").permits(1);
                semaphore.force_unlock().await.unwrap()
            };
            both(lost, next, force).await
        })
        .await;
    }
}

/// Bug 320: the first attempt to listen was the last.
#[tokio::test]
async fn a_process_that_cannot_listen_at_first_listens_while_its_task_waits() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = restricted(&server, &proxy, &["+@all"]).await;
        let other = Client::connect(&server.url()).await.unwrap();
        let mutex = client.mutex("name");
        let guard = mutex.lock().await.unwrap();
        server.cli(&["ACL", "LOG", "RESET"]);
        let waiter = tokio::spawn(mutex.lock());
        until_waiting_here(&client, 1).await;
        let is_refused = || server.cli(&["ACL", "LOG"]) != redis::Value::Array(Vec::new());
        wait_until_async(SOON, "it may hear nothing", is_refused).await;
        server.cli(&["ACL", "SETUSER", "worker", "&*"]);
        until_listening(&other, 1).await;
        guard.release().await.unwrap();
        drop(soon("the next", waiter).await.unwrap().unwrap());
    }
}

/// A client that counts how often its holds are renewed: so they are verified, too.
async fn counting(server: &Server) -> (Client, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    let observe = move |event: &Event| {
        let is_renewed = matches!(event.kind, EventKind::Renewed { .. });
        counter.fetch_add(usize::from(is_renewed), Ordering::Relaxed);
    };
    let builder = Client::builder().url(server.url()).observe(observe);
    (builder.connect().await.unwrap(), count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_messages_has_a_hold_verified_now_and_then_only() {
    for server in servers() {
        let (client, renewed) = counting(&server).await;
        let mutex = client.mutex("name");
        let guard = mutex.lock().await.unwrap();
        let waiter = tokio::spawn(async move { mutex.lock().await });
        let channel = "redisson_lock__channel:{name}";
        let is_heard = || int(&server, &["PUBLISH", channel, "0"]) > 0;
        wait_until_async(SOON, "it listens", is_heard).await;
        let began = Instant::now();
        let mut connection = server.connection();
        let mut messages = 0;
        // On a busy machine the first verification may take longer.
        let goes_on = || renewed.load(Ordering::Relaxed) == 0 && began.elapsed() < SOON;
        while began.elapsed() < Duration::from_millis(500) || goes_on() {
            let publish = redis::cmd("PUBLISH").arg(channel).arg("0").clone();
            let _: redis::Value = publish.query(&mut connection).unwrap();
            messages += 1;
        }
        client.heard().await;
        let renewed = renewed.load(Ordering::Relaxed);
        let most = usize::try_from(began.elapsed().as_millis() / 50).unwrap() + 3;
        println!("{messages} messages, {renewed} renewals");
        assert!((1..=most).contains(&renewed), "{renewed} of {most}");
        assert!(guard.is_valid() && messages > 100);
        drop(guard);
        drop(soon("the next", waiter).await.unwrap().unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_of_its_own_process_have_no_hold_verified() {
    for server in servers() {
        let (client, renewed) = counting(&server).await;
        let tasks = (0..20).map(|_| {
            let mutex = client.mutex("name").handoff(Handoff::off());
            tokio::spawn(async move {
                for _ in 0..10 {
                    let guard = mutex.lock().await.unwrap();
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    guard.release().await.unwrap();
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        let renewed = renewed.load(Ordering::Relaxed);
        // The first look of a process that begins to listen.
        assert!(renewed <= 3, "{renewed} of 200 holds");
    }
}

/// Each answer comes later than the watchdog waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_word_that_a_hold_is_gone_counts() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = Client::connect(&proxy.url()).await.unwrap();
        let mutex = client.mutex("name").lease(Duration::from_secs(3));
        let guard = mutex.lock().await.unwrap();
        server.cli(&["DEL", "name"]);
        // A renewal has a ninth of the lease.
        proxy.delay(Duration::from_millis(250));
        assert_eq!(guard.lost().await, LostReason::Replaced);
    }
}

/// A holder that comes back at the moment of the break: either it has renewed, and keeps the lock, or it learns that it has lost it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_break_and_a_renewal_at_the_same_moment_never_both_succeed() {
    for server in servers() {
        let holds = Client::connect(&server.url()).await.unwrap();
        let breaks = Client::connect(&server.url()).await.unwrap();
        let mut kept = 0;
        let times = few_or(200, 1000);
        for _ in 0..times {
            let mutex = holds.mutex("name").fixed_lease(SOON);
            let guard = soon("it is free", mutex.lock()).await.unwrap();
            let seen = breaks.status("name").await.unwrap();
            let pauses = [300, 900].map(|most| Duration::from_micros(fastrand::u64(0..most)));
            let renews = async {
                tokio::time::sleep(pauses[0]).await;
                guard.extend(2 * SOON).await.is_ok()
            };
            let takes = async {
                tokio::time::sleep(pauses[1]).await;
                breaks.force_unlock_if(&seen).await.unwrap()
            };
            let (is_renewed, is_broken) = tokio::join!(renews, takes);
            assert_ne!(is_renewed, is_broken, "{}: {pauses:?}", server.flavor());
            kept += usize::from(is_renewed);
            drop(guard);
        }
        println!("{}: {kept} of {times} renewed in time", server.flavor());
        assert!((1..times).contains(&kept), "one side was always first");
    }
}

/// A look that is older than the lease which it showed tells nothing of the present one.
#[tokio::test(start_paused = true)]
async fn a_look_counts_no_longer_than_the_lease_that_it_showed() {
    let server = MemoryServer::new();
    let connect = || Client::builder().memory(&server).connect();
    let (holds, breaks) = (connect().await.unwrap(), connect().await.unwrap());
    let lease = Duration::from_secs(3);
    let guard = holds.mutex("name").lease(lease).lock().await.unwrap();
    let seen = breaks.status("name").await.unwrap();
    // Both clocks may differ, so the bound of a look grows with its age: in the end all renewed leases would pass.
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(2_900)).await;
        assert!(!breaks.force_unlock_if(&seen).await.unwrap());
    }
    guard.verify().await.unwrap();
}
