//! The spin mutex's own promises: its waiters listen to nothing, and look by themselves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::common::{
    SOON, World, assert_nothing_left, channels, keys, owners, release, servers, soon,
    wait_until_idle, wire::script_calls,
};
use leasehold::{Client, SpinMutex};
use leasehold_testkit::Server;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

async fn client_of(server: &Server) -> Client {
    Client::connect(&server.url()).await.unwrap()
}

async fn until_waiting(lock: &SpinMutex, tasks: usize) {
    let deadline = Instant::now() + SOON;
    while lock.status().await.unwrap().waiting_here != tasks {
        assert!(Instant::now() < deadline, "{tasks} never waited");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_wait_leaves_the_hash_of_an_rlock_alone_and_makes_no_key_and_no_subscription() {
    for server in servers() {
        let (holder, waiter) = (client_of(&server).await, client_of(&server).await);
        let guard = holder.spin_mutex("name").lock().await.unwrap();
        let lock = waiter.spin_mutex("name");
        let waiting = tokio::spawn(lock.lock());
        until_waiting(&lock, 1).await;
        let before = script_calls(&server);
        while script_calls(&server) < before + 3 {
            tokio::task::yield_now().await; // it has looked a few times
        }
        assert_eq!(owners(&server, "name"), [(guard.owner(), 1)]);
        assert_eq!(keys(&server), ["name"]);
        assert_eq!(channels(&server), [""; 0]);
        release(guard).await;
        release(soon("its turn", waiting).await.unwrap().unwrap()).await;
        for client in [&holder, &waiter] {
            wait_until_idle(client).await;
        }
        assert_nothing_left(&server, "a wait").await;
    }
}

#[tokio::test]
async fn a_waiting_process_asks_after_its_pauses_however_many_wait_in_it() {
    for server in servers() {
        let (holder, waiter) = (client_of(&server).await, client_of(&server).await);
        let guard = holder.spin_mutex("name").lock().await.unwrap();
        let by_default = waiter.spin_mutex("name");
        // At most 128 ms, on average half of that; at the beginning some more.
        for (lock, least, most) in [
            (by_default.clone(), 12, 80),
            (by_default.backoff(200 * MS, 400 * MS), 3, 12),
        ] {
            let waiting: Vec<_> = (0..20).map(|_| tokio::spawn(lock.lock())).collect();
            until_waiting(&lock, 20).await;
            let before = script_calls(&server);
            tokio::time::sleep(2 * SECOND).await; // the time itself is what is tested
            let asked = script_calls(&server) - before;
            assert!((least..=most).contains(&asked), "{lock:?}: {asked}");
            for task in waiting {
                task.abort();
            }
            wait_until_idle(&waiter).await;
        }
        release(guard).await;
    }
}

/// To a server they are one kind, and the release of either tells those that listen.
#[tokio::test]
async fn a_mutex_and_a_spin_mutex_of_one_name_exclude_and_follow_each_other() {
    for world in World::all() {
        let builder = world.builder().poll_every(60 * SECOND);
        let (one, other) = (world.client().await, builder.connect().await.unwrap());
        for looker in [&one, &other] {
            let (spin, mutex) = (one.spin_mutex("name"), looker.mutex("name"));
            let guard = spin.lock().await.unwrap();
            assert!(mutex.try_lock().await.unwrap().is_none());
            let waiting = tokio::spawn(mutex.lock());
            while mutex.status().await.unwrap().waiting_clients != 1 {
                tokio::task::yield_now().await;
            }
            release(guard).await;
            let guard = soon("the mutex is told", waiting).await.unwrap().unwrap();
            assert!(spin.try_lock().await.unwrap().is_none());
            let waiting = tokio::spawn(spin.lock());
            until_waiting(&spin, 1).await;
            release(guard).await;
            let guard = soon("the spin mutex looks", waiting).await;
            release(guard.unwrap().unwrap()).await;
            assert!(!spin.force_unlock().await.unwrap());
        }
        for client in [&one, &other] {
            wait_until_idle(client).await;
        }
    }
}

/// A name that a release kept for its own process would be kept from the others for ever: the server does not see them.
#[tokio::test]
async fn a_process_whose_tasks_want_the_name_all_the_time_lets_others_in() {
    for world in World::all() {
        let (busy, other) = (world.client().await, world.client().await);
        let stop = Arc::new(AtomicBool::new(false));
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let (lock, stop) = (busy.spin_mutex("name"), Arc::clone(&stop));
                tokio::spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        let guard = lock.lock().await.unwrap();
                        tokio::time::sleep(MS).await;
                        release(guard).await;
                    }
                })
            })
            .collect();
        until_held(&busy).await;
        let lock = other.spin_mutex("name").backoff(MS, MS);
        for _ in 0..3 {
            let what = format!("its turn on {}", world.name());
            release(soon(&what, lock.lock()).await.unwrap()).await;
        }
        stop.store(true, Ordering::Relaxed);
        for task in tasks {
            soon("the last turns", task).await.unwrap();
        }
        for client in [&busy, &other] {
            wait_until_idle(client).await;
        }
    }
}

async fn until_held(client: &Client) {
    while client
        .spin_mutex("name")
        .status()
        .await
        .unwrap()
        .holder()
        .is_none()
    {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_lease_that_ends_is_looked_at_when_it_ends_however_long_the_pauses_are() {
    for world in World::all() {
        let (dead, waiter) = (world.client().await, world.client().await);
        let lease = 500 * MS;
        let guard = dead.spin_mutex("name").fixed_lease(lease).lock().await;
        guard.unwrap().detach();
        let begun = Instant::now();
        let lock = waiter.spin_mutex("name").backoff(20 * SECOND, 60 * SECOND);
        let guard = soon("the end of the lease", lock.lock()).await.unwrap();
        let took = begun.elapsed();
        assert!(took < lease + 400 * MS, "{}: {took:?}", world.name());
        release(guard).await;
        wait_until_idle(&waiter).await;
    }
}
