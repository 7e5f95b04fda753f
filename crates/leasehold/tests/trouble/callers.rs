//! Work that callers may do in their own wakers without harm to the others.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Wake, Waker},
};

use crate::common::{
    SOON, World, release, servers, soon, until_listening, until_waiting_here, wait_until_idle,
};
use leasehold::Client;

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
