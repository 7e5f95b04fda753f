//! Wakers whose calls or drops panic: bugs 92, 96 and 97. The panic is their owner's trouble; each test failed before its fix.

mod common;

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Wake, Waker},
    time::Duration,
};

use common::{SOON, int, servers, soon};
use leasehold::{Client, EventKind, MemoryServer};
use leasehold_testkit::{Proxy, wait_until_async};

const MS: Duration = Duration::from_millis(1);

struct PanicsInDrop;

impl Wake for PanicsInDrop {
    fn wake(self: Arc<Self>) {}
}

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "a drop that panics on purpose");
    }
}

struct PanicsInWake;

impl Wake for PanicsInWake {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics on purpose");
    }
}

/// Polls it with a waker whose only reference left is the library's, and whose drop panics.
fn poll_with_bad_waker<F: Future>(future: Pin<&mut F>) {
    let waker = Waker::from(Arc::new(PanicsInDrop));
    assert!(future.poll(&mut Context::from_waker(&waker)).is_pending());
    drop(waker);
}

/// As an executor does that catches the panics of its tasks.
fn poll_again_and_drop<F: Future>(mut future: Pin<Box<F>>) {
    let mut context = Context::from_waker(Waker::noop());
    let _ = catch_unwind(AssertUnwindSafe(|| {
        future.as_mut().poll(&mut context).is_pending()
    }));
    let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
}

async fn client_behind(proxy: &Proxy) -> Client {
    let builder = Client::builder().url(proxy.url());
    let client = builder.lease(Duration::from_secs(2)).connect().await;
    let client = client.unwrap();
    // The name's scripts are there, and its connection.
    let guard = client.mutex("name").lock().await.unwrap();
    guard.release().await.unwrap();
    proxy.delay(100 * MS);
    client
}

#[tokio::test]
async fn a_waker_whose_drop_panics_during_an_attempt_leaves_the_name_to_others() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = client_behind(&proxy).await;
        let mut lock = Box::pin(client.mutex("name").lock());
        poll_with_bad_waker(lock.as_mut());
        poll_again_and_drop(lock);
        let next = soon("the next", client.mutex("name").lock()).await;
        assert!(next.unwrap().is_valid());
    }
}

#[tokio::test]
async fn a_waker_whose_drop_panics_during_a_release_leaves_the_name_to_others() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = client_behind(&proxy).await;
        let guard = client.mutex("name").lock().await.unwrap();
        let mut release = Box::pin(guard.release());
        poll_with_bad_waker(release.as_mut());
        poll_again_and_drop(release);
        let next = soon("the next", client.mutex("name").lock()).await;
        assert!(next.unwrap().is_valid());
    }
}

#[tokio::test]
async fn a_waiter_whose_wakers_drop_panics_leaves_the_queue() {
    for server in servers() {
        let other = Client::connect(&server.url()).await.unwrap();
        let client = Client::connect(&server.url()).await.unwrap();
        let held = other.rw_lock("name").read().await.unwrap();
        let mut writer = Box::pin(client.rw_lock("name").write());
        let in_time = tokio::time::timeout(100 * MS, &mut writer).await;
        assert!(in_time.is_err());
        poll_with_bad_waker(writer.as_mut());
        let _ = catch_unwind(AssertUnwindSafe(|| drop(writer)));
        let left = || int(&server, &["LLEN", "leasehold:{name}:rw:queue"]) == 0;
        wait_until_async(Duration::from_secs(3), "no place without a waiter", left).await;
        let read = other.rw_lock("name").try_read().await.unwrap();
        assert!(read.is_some(), "no writer keeps readers out");
        assert!(held.is_valid());
        let idle = || client.footprint().tasks == 0;
        wait_until_async(SOON, "no driver without a waiter", idle).await;
    }
}

#[tokio::test]
async fn a_listener_of_events_whose_waker_panics_keeps_them_from_no_other() {
    let builder = Client::builder().memory(&MemoryServer::new());
    let client = builder.connect().await.unwrap();
    let (mut first, mut second) = (client.events(), client.events());
    let mut bad = Box::pin(first.recv());
    let waker = Waker::from(Arc::new(PanicsInWake));
    let polled = bad.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    let told = tokio::spawn(async move { second.recv().await });
    tokio::task::yield_now().await; // it listens
    let guard = client.mutex("name").lock().await.unwrap();
    let event = soon("the second listener", told).await.unwrap().unwrap();
    assert!(
        matches!(event.kind, EventKind::Acquired { .. }),
        "{event:?}"
    );
    drop(guard);
}
