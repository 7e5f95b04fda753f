//! What callers may do to their own futures and wakers without harm to the others: stop polling, and lock or panic while
//! they are woken.

mod common;

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use common::{
    ByHand, SOON, World, release, servers, soon, until_listening, until_waiting_here,
    wait_until_idle, without_runtime,
};
use leasehold::{Client, Handoff, Released, Shutdown};
use leasehold_testkit::{Proxy, wait_until};

/// Polls it to its end.
async fn output<F: Future>(future: &mut ByHand<F>) -> F::Output {
    loop {
        if let Poll::Ready(output) = future.poll() {
            return output;
        }
        future.woken().await;
    }
}

/// Bug 47: `select!` with `&mut lock` polls a `lock()` once and then leaves it alone. It may come to hold the name, but
/// a caller that does not want to wait must be told so.
#[tokio::test]
async fn a_lock_that_is_not_polled_any_more_keeps_nobody_from_an_answer() {
    for world in World::all() {
        let case = world.name();
        let client = world.client().await;
        let mutex = client.mutex("name");
        let mut parked = ByHand::new(mutex.lock());
        assert!(parked.poll().is_pending(), "{case}");
        let tried = soon(&case, mutex.try_lock()).await.unwrap();
        assert!(tried.is_none(), "{case}: the parked lock has the name");
        // Its work was done for it; what came of that is there when it looks.
        let guard = soon(&case, output(&mut parked)).await.unwrap();
        assert!(guard.is_valid(), "{case}");
        drop((guard, parked));
        release(soon(&case, mutex.lock()).await.unwrap()).await;
        wait_until_idle(&client).await;
    }
}

/// Bug 47: dropped instead of polled again, it gives the name back.
#[tokio::test]
async fn a_lock_that_is_dropped_after_its_work_was_done_for_it_gives_the_name_back() {
    for world in World::all() {
        let case = world.name();
        let client = world.client().await;
        let mutex = client.mutex("name");
        let mut parked = ByHand::new(mutex.lock());
        assert!(parked.poll().is_pending(), "{case}");
        assert!(
            soon(&case, mutex.try_lock()).await.unwrap().is_none(),
            "{case}"
        );
        drop(parked);
        release(soon(&case, mutex.lock()).await.unwrap()).await;
        wait_until_idle(&client).await;
    }
}

/// Bug 47: a release is carried out although its caller stopped polling it.
#[tokio::test]
async fn a_release_that_is_not_polled_any_more_lets_the_next_in() {
    for world in World::all() {
        for waits in [false, true] {
            let case = format!("{}, waits: {waits}", world.name());
            let client = world.client().await;
            let mutex = client.mutex("name").handoff(Handoff::off());
            let guard = mutex.lock().await.unwrap();
            let mut next = ByHand::new(mutex.lock());
            if waits {
                assert!(next.poll().is_pending(), "{case}");
                until_waiting_here(&client, 1).await;
            }
            let mut parked = ByHand::new(guard.release());
            assert!(parked.poll().is_pending(), "{case}");
            release(soon(&case, output(&mut next)).await.unwrap()).await;
            let released = soon(&case, output(&mut parked)).await;
            assert_eq!(released.unwrap(), Released::Freed, "{case}");
            drop(parked);
            wait_until_idle(&client).await;
        }
    }
}

/// What is taken home from a caller that waits in good faith wakes it at its end. (The first version did not.)
#[tokio::test]
async fn a_caller_whose_work_was_taken_home_is_woken_at_its_end() {
    for server in servers() {
        let case = server.flavor().to_string();
        let client = Client::connect(&server.url()).await.unwrap();
        let mutex = client.mutex("name").handoff(Handoff::off());
        let guard = mutex.lock().await.unwrap();
        let next = tokio::spawn(mutex.lock());
        until_waiting_here(&client, 1).await;
        server.freeze();
        let release = tokio::spawn(guard.release());
        tokio::time::sleep(Duration::from_millis(100)).await; // long enough for a request to be taken home
        server.thaw();
        let released = soon(&case, release).await.unwrap();
        assert_eq!(released.unwrap(), Released::Freed, "{case}");
        common::release(soon(&case, next).await.unwrap().unwrap()).await;
    }
}

/// Bug 47: what a caller has left alone does not hold up a shutdown.
#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_lock_that_is_not_polled_any_more() {
    for world in World::all() {
        let case = world.name();
        let builder = world.builder().operation_timeout(SOON * 6);
        let client = builder.connect().await.unwrap();
        let mut parked = ByHand::new(client.mutex("name").lock());
        assert!(parked.poll().is_pending(), "{case}");
        soon(&case, client.shutdown(Shutdown::LetExpire)).await;
    }
}

/// Runs something of the user's while it is woken, as an executor does that polls at once.
struct Inline<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Inline<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

fn waker(wake: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Inline(wake)))
}

/// Bug 48: no waker is called under the lock of the name's queue.
#[tokio::test]
async fn a_waker_may_ask_about_the_name_while_it_is_called() {
    for world in World::all() {
        let case = world.name();
        let client = world.client().await;
        let mutex = client.mutex("name");
        let guard = mutex.lock().await.unwrap();
        let mut lock = Box::pin(mutex.lock());
        let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let looks = client.clone();
        let runtime = tokio::runtime::Handle::current();
        let waker = waker(move || {
            let _here = runtime.enter();
            // Looks at the queue of the name in its first poll.
            let mut attempt = pin!(looks.mutex("name").try_lock());
            let _ = attempt
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            let _ = told.send(());
        });
        assert!(
            lock.as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        until_waiting_here(&client, 1).await;
        // On a thread of its own, which may hang.
        let handle = tokio::runtime::Handle::current();
        std::thread::spawn(move || {
            let _here = handle.enter();
            drop(guard); // hands over in memory, and wakes
        });
        if tokio::time::timeout(SOON, heard.recv()).await.is_err() {
            std::mem::forget(lock); // its drop would hang too
            panic!("{case}: the waker waits for the queue that calls it");
        }
        drop(lock);
        release(soon(&case, mutex.lock()).await.unwrap()).await;
        wait_until_idle(&client).await;
    }
}

/// Bug 48: a waker that panics is the trouble of its owner. The other names are still heard and renewed.
#[tokio::test]
async fn a_waker_that_panics_makes_no_other_name_deaf() {
    for server in servers() {
        let case = server.flavor().to_string();
        let builder = || Client::builder().url(server.url()).poll_every(SOON * 6);
        let client = builder().connect().await.unwrap();
        let other = builder().connect().await.unwrap();
        let first = other.mutex("name").lock().await.unwrap();
        let second = other.mutex("second").lock().await.unwrap();
        let mut bad = Box::pin(client.mutex("name").lock());
        let bad_waker = waker(|| panic!("a waker that panics on purpose"));
        while client.status("name").await.unwrap().waiting_clients == 0 {
            let mut cx = Context::from_waker(Waker::noop());
            assert!(bad.as_mut().poll(&mut cx).is_pending());
        }
        let mut cx = Context::from_waker(&bad_waker);
        assert!(bad.as_mut().poll(&mut cx).is_pending());
        let good = tokio::spawn(client.mutex("second").lock());
        soon(&case, async {
            while client.status("second").await.unwrap().waiting_clients != 1 {}
        })
        .await;
        release(first).await;
        // Until the panicking waker has been called.
        soon(&case, async {
            while other.status("name").await.unwrap().holder().is_none() {}
        })
        .await;
        until_listening(&other, 0).await;
        release(second).await;
        release(soon(&case, good).await.unwrap().unwrap()).await;
        drop(bad);
        wait_until_idle(&client).await;
    }
}

/// Bug 62: of several that wait for the loss of one hold, one with a waker that panics does not keep it from the others.
#[tokio::test]
async fn a_waker_that_panics_keeps_the_loss_from_no_other() {
    for server in servers() {
        let case = server.flavor().to_string();
        let client = Client::connect(&server.url()).await.unwrap();
        let guard = client.mutex("name").lock().await.unwrap();
        // One on each side, whichever is woken first.
        let mut bad = [Box::pin(guard.lost()), Box::pin(guard.lost())];
        let mut good = ByHand::new(guard.lost());
        let bad_waker = waker(|| panic!("a waker that panics on purpose"));
        let mut cx = Context::from_waker(&bad_waker);
        assert!(bad[0].as_mut().poll(&mut cx).is_pending());
        assert!(good.poll().is_pending());
        assert!(bad[1].as_mut().poll(&mut cx).is_pending());
        assert!(
            soon(&case, client.force_unlock("name")).await.unwrap(),
            "{case}"
        );
        // Its own timer would come 30 s later.
        soon(&case, good.woken()).await;
        assert!(good.poll().is_ready(), "{case}");
    }
}

/// Bug 47, again: neither does a release that is left alone after the shutdown began.
#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_release_that_is_not_polled_any_more() {
    for world in World::all() {
        let case = world.name();
        let builder = world.builder().operation_timeout(SOON * 6);
        let client = builder.connect().await.unwrap();
        let guard = client.mutex("name").lock().await.unwrap();
        let mut shutdown = ByHand::new(client.shutdown(Shutdown::ReleaseAll { grace: SOON * 6 }));
        assert!(shutdown.poll().is_pending(), "{case}");
        let mut parked = ByHand::new(guard.release());
        assert!(parked.poll().is_pending(), "{case}");
        soon(&case, output(&mut shutdown)).await;
    }
}

/// Bug 74: a waker that panics is called by the task of its connection, too. Neither that connection nor another ends with it.
#[test]
fn a_waker_that_panics_costs_no_connection() {
    for server in servers() {
        for at_home in [false, true] {
            let case = format!("{}, without a runtime: {at_home}", server.flavor());
            let proxy = Proxy::start(server.addr());
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let client = Client::builder().url(proxy.url()).connect();
            let client = runtime.block_on(client).unwrap();
            let _inside = (!at_home).then(|| runtime.enter());
            let renewed = without_runtime(client.mutex("renewed").lock()).unwrap();
            wait_until(SOON, "both lanes are there", || proxy.accepted() == 2);
            for name in ["one", "two", "three"] {
                let calls = Arc::new(AtomicUsize::new(0));
                let called = Arc::clone(&calls);
                let waker = waker(move || {
                    called.fetch_add(1, Ordering::SeqCst);
                    panic!("a waker that panics on purpose");
                });
                let mut lock = Box::pin(client.mutex(name).lock());
                let guard = loop {
                    let seen = calls.load(Ordering::SeqCst);
                    match lock.as_mut().poll(&mut Context::from_waker(&waker)) {
                        Poll::Ready(guard) => break guard.unwrap(),
                        Poll::Pending => {
                            wait_until(SOON, "it is woken", || calls.load(Ordering::SeqCst) > seen);
                        }
                    }
                };
                assert!(guard.is_valid(), "{case}");
            }
            without_runtime(release(renewed));
            wait_until(SOON, "all is given back", || client.footprint().queues == 0);
            assert_eq!(proxy.accepted(), 2, "{case}: it reconnected");
        }
    }
}
