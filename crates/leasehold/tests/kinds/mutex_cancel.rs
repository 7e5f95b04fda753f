//! A dropped future leaves nothing behind, whenever it is dropped.

use std::{task::Poll, time::Duration};

use crate::common;
use crate::common::{ByHand, World, assert_nothing_left, wait_until_idle};
use leasehold::{Client, Footprint, Guard, Released};
use leasehold_testkit::wait_until_async;

const SOON: Duration = Duration::from_secs(10);

/// More polls than any `lock()` takes.
const MANY: usize = 100;

/// Polls a `lock()` up to `most` times, each time it wants to be; stops when it is ready.
async fn poll_up_to<F, E>(lock: &mut ByHand<F>, most: usize) -> (usize, Option<Guard>)
where
    F: Future<Output = Result<Guard, E>>,
    E: std::fmt::Debug,
{
    for polls in 0..most {
        if polls > 0 {
            lock.woken().await;
        }
        if let Poll::Ready(guard) = lock.poll() {
            return (polls + 1, Some(guard.unwrap()));
        }
    }
    (most, None)
}

async fn wait_until_waiting(client: &Client, name: &str, clients: u64) {
    let deadline = std::time::Instant::now() + SOON;
    while client.status(name).await.unwrap().waiting_clients != clients {
        assert!(std::time::Instant::now() < deadline, "it never listened");
        tokio::task::yield_now().await;
    }
}

async fn until_woken_or_waiting<F: Future>(lock: &ByHand<F>, client: &Client) {
    let deadline = std::time::Instant::now() + SOON;
    while !lock.is_woken() && client.status("name").await.unwrap().waiting_clients == 0 {
        assert!(std::time::Instant::now() < deadline, "it never listened");
        tokio::task::yield_now().await;
    }
}

/// Neither the clients nor the server keep anything.
async fn assert_clean(world: &World, clients: &[&Client], after: &str) {
    for client in clients {
        wait_until_idle(client).await;
        assert_eq!(client.footprint(), Footprint::default(), "{after}");
    }
    assert_eq!(world.held(), [""; 0], "{after}");
    match world {
        World::Server(server) => assert_nothing_left(server, after).await,
        World::Memory(_) => {
            let status = clients[0].status("name").await.unwrap();
            assert_eq!(status.waiting_clients, 0, "{after}");
        }
    }
}

#[tokio::test]
async fn a_lock_on_a_free_name_may_be_dropped_after_any_poll() {
    for world in World::all() {
        let client = world.client().await;
        let mutex = client.mutex("name");
        let mut lock = ByHand::new(mutex.lock());
        let (polls, guard) = poll_up_to(&mut lock, MANY).await;
        assert_eq!(guard.unwrap().release().await.unwrap(), Released::Freed);
        for drop_after in 0..=polls {
            let mut lock = ByHand::new(mutex.lock());
            let (_, guard) = poll_up_to(&mut lock, drop_after).await;
            drop((lock, guard));
            let after = format!("{}: dropped after {drop_after} polls", world.name());
            assert_clean(&world, &[&client], &after).await;
        }
    }
}

#[tokio::test]
async fn a_lock_on_a_held_name_may_be_dropped_after_any_poll() {
    for world in World::all() {
        let (holder, waiter) = (world.client().await, world.client().await);
        for released_first in [false, true] {
            let mut drop_after = 0;
            // Until the last time got the guard by itself, so that every number before was tried.
            loop {
                let guard = holder.mutex("name").lock().await.unwrap();
                let mut lock = ByHand::new(waiter.mutex("name").lock());
                let mut polls = 0;
                let mut ready = None;
                let mut holding = Some(guard);
                while polls < drop_after && ready.is_none() {
                    if polls > 0 {
                        if !released_first {
                            // Only once the waiter is subscribed, or has something to do.
                            until_woken_or_waiting(&lock, &holder).await;
                        }
                        if released_first || !lock.is_woken() {
                            drop(holding.take());
                        }
                        lock.woken().await;
                    }
                    polls += 1;
                    if let Poll::Ready(guard) = lock.poll() {
                        ready = Some(guard.unwrap());
                    }
                }
                let done = ready.is_some();
                drop((lock, ready));
                drop(holding);
                let after = format!(
                    "{}: dropped after {drop_after} polls, released first: {released_first}",
                    world.name()
                );
                assert_clean(&world, &[&holder, &waiter], &after).await;
                if done {
                    break;
                }
                drop_after += 1;
                assert!(drop_after < MANY, "never ready");
            }
            assert!(drop_after >= 2, "a contended lock takes some polls");
        }
    }
}

/// The moments between polls: how long the runtime turns, not how often the future is polled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_lock_may_be_dropped_at_any_moment_around_the_release() {
    for world in World::all() {
        let (holder, waiter) = (world.client().await, world.client().await);
        for round in 0..60_u32 {
            let guard = holder.mutex("name").lock().await.unwrap();
            let lock = tokio::spawn(waiter.mutex("name").lock());
            let local = tokio::spawn(holder.mutex("name").lock());
            wait_until_waiting(&holder, "name", 1).await;
            drop(guard);
            let pause = Duration::from_micros(u64::from(round) * 20);
            let until = std::time::Instant::now() + pause;
            while std::time::Instant::now() < until {
                tokio::task::yield_now().await;
            }
            lock.abort();
            local.abort();
            let _ = tokio::join!(lock, local);
            let after = format!("{}: aborted {pause:?} after the release", world.name());
            assert_clean(&world, &[&holder, &waiter], &after).await;
        }
    }
}

#[tokio::test]
async fn a_release_that_is_dropped_after_any_poll_is_carried_out() {
    for world in World::all() {
        let (client, other) = (world.client().await, world.client().await);
        for drop_after in 0..3 {
            let guard = client.mutex("name").lock().await.unwrap();
            let mut release = ByHand::new(guard.release());
            for poll in 0..drop_after {
                if poll > 0 {
                    release.woken().await;
                }
                if release.poll().is_ready() {
                    break;
                }
            }
            drop(release);
            let after = format!("{}: dropped after {drop_after} polls", world.name());
            assert_clean(&world, &[&client, &other], &after).await;
        }
    }
}

#[tokio::test]
async fn a_lock_dropped_while_its_answer_is_on_the_way_gives_the_name_back() {
    for server in common::servers() {
        let proxy = leasehold_testkit::Proxy::start(server.addr());
        let builder = || Client::builder().url(proxy.url());
        let client = builder().connect().await.unwrap();
        drop(client.mutex("name").lock().await.unwrap());
        wait_until_idle(&client).await;
        proxy.stall(Some(leasehold_testkit::Way::ToClient));
        let mut lock = ByHand::new(client.mutex("name").lock());
        assert!(lock.poll().is_pending());
        wait_until_async(SOON, "the server grants it", || {
            common::int(&server, &["EXISTS", "name"]) == 1
        })
        .await;
        drop(lock);
        proxy.heal();
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "its answer came after the drop").await;
    }
}

#[tokio::test]
async fn a_waiter_that_gives_up_leaves_neither_line_nor_subscription() {
    for world in World::all() {
        let (holder, waiter) = (world.client().await, world.client().await);
        let guard = holder.mutex("name").lock().await.unwrap();
        let wait = Duration::from_millis(50);
        let gave_up = waiter.mutex("name").try_lock_for(wait).await.unwrap();
        assert!(gave_up.is_none());
        wait_until_idle(&waiter).await;
        let status = holder.status("name").await.unwrap();
        assert_eq!(status.waiting_clients, 0, "{}", world.name());
        if let World::Server(server) = &world {
            let line = "leasehold:{name}:queue";
            assert_eq!(common::int(server, &["EXISTS", line]), 0, "{line} is left");
        }
        drop(guard);
        assert_clean(&world, &[&holder, &waiter], &world.name()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_aborted_locks_leave_nothing() {
    for world in World::all() {
        let clients = [world.client().await, world.client().await];
        for batch in 0..20 {
            let mut tasks = Vec::new();
            for number in 0..500 {
                let mutex = clients[number % 2].mutex(format!("name:{}", number % 7));
                tasks.push(tokio::spawn(mutex.lock()));
            }
            for (number, task) in tasks.iter().enumerate() {
                if (number + batch) % 3 == 0 {
                    tokio::task::yield_now().await;
                }
                task.abort();
            }
            for task in tasks {
                let _ = task.await;
            }
        }
        assert_clean(&world, &[&clients[0], &clients[1]], &world.name()).await;
    }
}
