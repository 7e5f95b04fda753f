//! The promises of a mutex, on every backend.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::common;
use crate::common::{World, wait_until_idle};
use leasehold::{Client, ErrorKind, Handoff, LostReason, Owner, Released, Shutdown};
use leasehold_testkit::wait_until_async;
use tokio::sync::Barrier;

const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_held_name_is_refused_and_a_released_one_is_granted() {
    for world in World::all() {
        let (a, b) = (world.client().await, world.client().await);
        let guard = a.mutex("name").lock().await.unwrap();
        assert!(guard.is_valid());
        assert!(
            a.mutex("name").try_lock().await.unwrap().is_none(),
            "{}",
            world.name()
        );
        assert!(
            b.mutex("name").try_lock().await.unwrap().is_none(),
            "{}",
            world.name()
        );
        let wait = Duration::from_millis(50);
        assert!(b.mutex("name").try_lock_for(wait).await.unwrap().is_none());
        assert!(b.mutex("other").try_lock().await.unwrap().is_some());
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        let guard = b
            .mutex("name")
            .try_lock()
            .await
            .unwrap()
            .expect("it is free");
        drop(guard);
        // A drop is on its way; the next of the same client waits for it.
        assert!(b.mutex("name").try_lock().await.unwrap().is_some());
        wait_until_idle(&a).await;
        wait_until_idle(&b).await;
        assert_eq!(world.held(), [""; 0], "{}", world.name());
    }
}

#[tokio::test]
async fn a_waiter_of_another_client_gets_the_name_when_it_is_released() {
    for world in World::all() {
        let (a, b) = (world.client().await, world.client().await);
        let guard = a.mutex("name").lock().await.unwrap();
        let waiter = tokio::spawn({
            let mutex = b.mutex("name");
            async move { mutex.lock().await }
        });
        wait_until_listening(&a, 1).await;
        drop(guard);
        let guard = tokio::time::timeout(Duration::from_secs(2), waiter)
            .await
            .expect("woken long before the poll")
            .unwrap()
            .unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        wait_until_idle(&b).await;
    }
}

/// The name is given for as long as was asked for, not for what is left of that since the waiter got in line.
#[tokio::test]
async fn a_wait_longer_than_the_lease_ends_with_a_whole_lease() {
    const LEASE: Duration = Duration::from_millis(600);
    for world in World::all() {
        let (a, b) = (world.client().await, world.client().await);
        let guard = a.mutex("name").lock().await.unwrap();
        let waiter = tokio::spawn(b.mutex("name").fixed_lease(LEASE).lock());
        wait_until_listening(&a, 1).await;
        tokio::time::sleep(2 * LEASE).await; // the time itself is what is tested
        drop(guard);
        let guard = waiter.await.unwrap().unwrap();
        let left = guard.remaining();
        assert!(left > LEASE * 3 / 4, "{}: {left:?} left", world.name());
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        wait_until_idle(&b).await;
    }
}

async fn wait_until_listening(client: &Client, clients: u64) {
    let deadline = tokio::time::Instant::now() + SOON;
    while client.status("name").await.unwrap().waiting_clients != clients {
        assert!(
            tokio::time::Instant::now() < deadline,
            "{clients} clients never listened"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Read, pause, write: loses updates unless the lock excludes.
async fn contend(
    world: &World,
    clients: usize,
    tasks: usize,
    rounds: u64,
    handoff: Handoff,
    lock: bool,
) -> u64 {
    let counter = Arc::new(AtomicU64::new(0));
    // Or a busy machine runs them one after another.
    let together = Arc::new(Barrier::new(clients * tasks));
    let mut running = Vec::new();
    for _ in 0..clients {
        let client = world.builder().handoff(handoff).connect().await.unwrap();
        for _ in 0..tasks {
            let (counter, client) = (Arc::clone(&counter), client.clone());
            let together = Arc::clone(&together);
            running.push(tokio::spawn(async move {
                together.wait().await;
                for _ in 0..rounds {
                    let guard = if lock {
                        Some(client.mutex("counter").lock().await.unwrap())
                    } else {
                        None
                    };
                    let seen = counter.load(Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    counter.store(seen + 1, Ordering::Relaxed);
                    drop(guard);
                }
            }));
        }
    }
    for task in running {
        task.await.unwrap();
    }
    counter.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contenders_exclude_each_other() {
    for world in World::all() {
        for handoff in [Handoff::default(), Handoff::off(), Handoff::new(3, SOON)] {
            let count = contend(&world, 4, 8, 25, handoff, true).await;
            assert_eq!(count, 4 * 8 * 25, "{} {handoff:?}", world.name());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contention_test_notices_a_lock_that_does_nothing() {
    for world in World::all() {
        let count = contend(&world, 4, 8, 25, Handoff::default(), false).await;
        assert!(count < 4 * 8 * 25, "no update was lost without a lock");
    }
}

#[tokio::test]
async fn waiters_of_one_process_are_served_in_order() {
    for world in World::all() {
        for handoff in [Handoff::default(), Handoff::off()] {
            let client = world.builder().handoff(handoff).connect().await.unwrap();
            let first = client.mutex("name").lock().await.unwrap();
            let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
            let mut tasks = Vec::new();
            for number in 0..20 {
                let (mutex, order) = (client.mutex("name"), Arc::clone(&order));
                tasks.push(tokio::spawn(async move {
                    let _guard = mutex.lock().await.unwrap();
                    order.lock().push(number);
                }));
                let waiting = || async { client.status("name").await.unwrap().waiting_here };
                while waiting().await <= number {
                    tokio::task::yield_now().await;
                }
            }
            drop(first);
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(
                *order.lock(),
                (0..20).collect::<Vec<_>>(),
                "{} {handoff:?}",
                world.name()
            );
        }
    }
}

#[tokio::test]
async fn an_owner_enters_again_and_the_server_counts() {
    for world in World::all() {
        let client = world.client().await;
        let owner = Owner::new();
        let mutex = client.mutex("name").owned_by(&owner);
        let holds = || async {
            client
                .status("name")
                .await
                .unwrap()
                .holder()
                .cloned()
                .map_or(0, |h| h.holds)
        };
        let outer = mutex.lock().await.unwrap();
        assert_eq!(holds().await, 1);
        let inner = mutex.lock().await.unwrap();
        assert_eq!(holds().await, 2);
        let memory = inner.reenter().unwrap();
        assert_eq!(holds().await, 2, "reenter counts in memory");
        assert!(
            client.mutex("name").try_lock().await.unwrap().is_none(),
            "another owner"
        );
        assert_eq!(
            outer.release().await.unwrap(),
            Released::StillHeld { holds: 2 }
        );
        assert_eq!(
            inner.release().await.unwrap(),
            Released::StillHeld { holds: 1 }
        );
        assert!(memory.is_valid());
        assert_eq!(memory.release().await.unwrap(), Released::Freed);
        assert_eq!(holds().await, 0);
        wait_until_idle(&client).await;
    }
}

#[tokio::test]
async fn a_scope_is_an_owner_and_refused_re_entry_says_where() {
    for world in World::all() {
        let client = world.client().await;
        let owner = Owner::new();
        owner
            .scope(async {
                let outer = client.mutex("name").lock().await.unwrap();
                let inner = client.mutex("name").lock().await.unwrap();
                let refused = client
                    .mutex("name")
                    .reentrant(false)
                    .lock()
                    .await
                    .unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Reentered);
                assert!(
                    refused.to_string().contains("tests/kinds/mutex.rs"),
                    "{refused}"
                );
                drop((inner, outer));
            })
            .await;
        let plain = client.mutex("name").reentrant(false).lock().await.unwrap();
        assert_eq!(plain.reenter().unwrap_err().kind(), ErrorKind::Reentered);
    }
}

#[tokio::test]
async fn two_branches_of_a_join_with_one_owner_do_not_wait_for_each_other() {
    for world in World::all() {
        let client = world.client().await;
        let owner = Owner::new();
        let mutex = client.mutex("name").owned_by(&owner);
        let (a, b) = tokio::join!(mutex.lock(), mutex.lock());
        let (a, b) = (a.unwrap(), b.unwrap());
        assert_eq!(a.owner(), b.owner());
        drop(a);
        assert_eq!(b.release().await.unwrap(), Released::Freed);
    }
}

#[tokio::test]
async fn a_watchdog_lease_outlives_itself_and_a_fixed_one_does_not() {
    for world in World::all() {
        let client = world.client().await;
        let lease = Duration::from_secs(1);
        let renewed = client.mutex("renewed").lease(lease).lock().await.unwrap();
        let fixed = client
            .mutex("fixed")
            .fixed_lease(lease)
            .lock()
            .await
            .unwrap();
        assert_eq!(fixed.lost().await, LostReason::Expired);
        assert!(!fixed.is_valid() && renewed.is_valid());
        common::assert_lost(fixed.release().await, LostReason::Expired);
        tokio::time::sleep(lease * 3 / 2).await; // the time itself is what is tested
        assert!(renewed.is_valid());
        assert_eq!(renewed.release().await.unwrap(), Released::Freed);
    }
}

#[tokio::test]
async fn max_hold_ends_a_renewed_lease() {
    for world in World::all() {
        let client = world.client().await;
        let most = Duration::from_millis(500);
        let mutex = client
            .mutex("name")
            .lease(Duration::from_millis(200))
            .max_hold(most);
        let began = std::time::Instant::now();
        let guard = mutex.lock().await.unwrap();
        assert_eq!(guard.lost().await, LostReason::MaxHold);
        let held = began.elapsed();
        assert!(
            held + Duration::from_millis(10) >= most && held < most * 2,
            "{held:?}"
        );
        let next = client.mutex("name").try_lock_for(SOON).await.unwrap();
        assert!(next.is_some());
        common::assert_lost(guard.release().await, LostReason::MaxHold);
        assert!(
            next.unwrap().is_valid(),
            "the stale guard's release does not touch the successor"
        );
    }
}

#[tokio::test]
async fn a_fixed_lease_is_extended_and_never_shortened() {
    for world in World::all() {
        let client = world.client().await;
        let guard = client
            .mutex("name")
            .fixed_lease(Duration::from_millis(500))
            .lock()
            .await
            .unwrap();
        guard.extend(Duration::from_secs(2)).await.unwrap();
        assert!(guard.remaining() > Duration::from_secs(1));
        guard.extend(Duration::from_millis(300)).await.unwrap();
        assert!(guard.remaining() > Duration::from_secs(1), "B2");
        assert_eq!(guard.lost().await, LostReason::Expired);
        let watchdog = client.mutex("other").lock().await.unwrap();
        let error = watchdog.extend(Duration::from_secs(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}

#[tokio::test]
async fn force_unlock_is_noticed_by_verify() {
    for world in World::all() {
        let (a, b) = (world.client().await, world.client().await);
        let guard = a.mutex("name").lock().await.unwrap();
        assert!(guard.verify().await.unwrap() > Duration::from_secs(20));
        assert!(b.force_unlock("name").await.unwrap());
        assert!(!b.force_unlock("name").await.unwrap());
        let next = b.mutex("name").try_lock().await.unwrap().expect("free");
        assert_eq!(guard.verify().await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(guard.lost().await, LostReason::Replaced);
        common::assert_lost(guard.release().await, LostReason::Replaced);
        assert!(next.verify().await.is_ok());
    }
}

#[tokio::test]
async fn status_tells_who_since_when_and_how_many_wait() {
    for world in World::all() {
        let client = world.builder().label("worker-7").connect().await.unwrap();
        assert_eq!(client.status("name").await.unwrap().holder(), None);
        let before = std::time::SystemTime::now() - Duration::from_millis(2);
        let guard = client.mutex("name").lock().await.unwrap();
        let status = client.status("name").await.unwrap();
        let holder = status.holder().cloned().unwrap();
        assert_eq!(holder.owner, guard.owner());
        assert_eq!(holder.client, client.id());
        assert_eq!(holder.label.as_deref(), Some("worker-7"));
        let since = holder.since.unwrap();
        assert!(since >= before && since <= std::time::SystemTime::now());
        assert!(holder.remaining.unwrap() > Duration::from_secs(28));
    }
}

#[tokio::test]
async fn a_detached_name_stays_held_until_its_lease_ends() {
    for world in World::all() {
        let client = world.client().await;
        let guard = client
            .mutex("name")
            .fixed_lease(Duration::from_millis(200))
            .lock()
            .await
            .unwrap();
        let detached = guard.detach();
        assert!(detached.remaining > Duration::from_millis(50));
        assert!(client.mutex("name").try_lock().await.unwrap().is_none());
        let again = client.mutex("name").try_lock_for(SOON).await.unwrap();
        assert!(again.is_some());
    }
}

#[tokio::test]
async fn shutdown_releases_all_and_guards_learn_it() {
    for world in World::all() {
        let (a, b) = (world.client().await, world.client().await);
        let guard = a.mutex("name").lock().await.unwrap();
        let waiter = tokio::spawn(a.mutex("name").lock());
        wait_until_async(SOON, "the waiter to wait", || a.footprint().queues == 1).await;
        tokio::task::yield_now().await;
        a.shutdown(Shutdown::ReleaseAll {
            grace: Duration::from_millis(50),
        })
        .await;
        assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(guard.lost().await, LostReason::ClientShutdown);
        assert!(!guard.is_valid());
        assert!(b.mutex("name").try_lock().await.unwrap().is_some());
        assert_eq!(
            a.mutex("name").lock().await.unwrap_err().kind(),
            ErrorKind::Closed
        );
        drop(guard);
        wait_until_idle(&a).await;
    }
}

#[tokio::test]
async fn shutdown_that_lets_expire_leaves_the_name_held() {
    for world in World::all() {
        let (a, b) = (world.client().await, world.client().await);
        let guard = a
            .mutex("name")
            .lease(Duration::from_millis(300))
            .lock()
            .await
            .unwrap();
        a.shutdown(Shutdown::LetExpire).await;
        assert_eq!(guard.lost().await, LostReason::ClientShutdown);
        assert!(b.mutex("name").try_lock().await.unwrap().is_none());
        assert!(b.mutex("name").try_lock_for(SOON).await.unwrap().is_some());
    }
}

#[test]
fn a_guard_dropped_after_its_runtime_has_ended_does_not_panic() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let guard = runtime.block_on(async {
        let client = Client::connect("memory:").await.unwrap();
        client.mutex("name").lock().await.unwrap()
    });
    drop(runtime);
    drop(guard);
}

#[tokio::test]
async fn a_guard_dropped_on_a_plain_thread_is_released() {
    for world in World::all() {
        let client = world.client().await;
        let guard = client.mutex("name").lock().await.unwrap();
        std::thread::spawn(move || drop(guard)).join().unwrap();
        assert!(client.mutex("name").try_lock().await.unwrap().is_some());
    }
}

/// Each guard of a lease that is over says so, not only the last one: another may have the name.
#[tokio::test]
async fn no_guard_of_a_lost_lease_says_that_others_still_hold_it() {
    const SHORT: Duration = Duration::from_millis(100);
    for world in World::all() {
        let client = world.client().await;
        let mutex = client.mutex("inner").fixed_lease(SHORT);
        let outer = mutex.lock().await.unwrap();
        let inner = outer.reenter().unwrap();
        outer.lost().await;
        let error = inner.release().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Lost, "inner: {error}");
        let error = outer.release().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Lost, "outer: {error}");

        let lock = client.rw_lock("readers").fixed_lease(SHORT);
        let first = lock.read().await.unwrap();
        let second = lock.read().await.unwrap();
        first.lost().await;
        second.lost().await;
        let error = first.release().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Lost, "first reader: {error}");
        let error = second.release().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Lost, "last reader: {error}");
    }
}
