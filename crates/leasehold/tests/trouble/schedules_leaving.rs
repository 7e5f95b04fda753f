//! Waiters that leave, or are served in memory, while their driver is at work: bugs 91, 93 to 95. Each test failed before its fix.

use std::{
    future::Future,
    sync::Arc,
    task::{Context, Wake, Waker},
    time::Duration,
};

use crate::common::{SOON, channels, int, servers};
use leasehold::{Client, Mutex};
use leasehold_testkit::{Proxy, Server, wait_until_async};
use tokio::task::{JoinHandle, yield_now};

const MS: Duration = Duration::from_millis(1);

/// A waiter that is not told of anything waits for ten seconds.
const AT_ONCE: Duration = Duration::from_secs(3);

async fn until_driver_waits(client: &Client) {
    wait_until_async(SOON, "the driver sleeps", || client.footprint().waiting > 0).await;
}

async fn until_driver_asks(client: &Client) {
    wait_until_async(SOON, "the driver asks", || client.footprint().waiting == 0).await;
}

/// In line as soon as it was polled, which is when this task lets it.
async fn in_line<T: Send + 'static>(
    waiter: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let task = tokio::spawn(waiter);
    for _ in 0..3 {
        yield_now().await;
    }
    task
}

async fn at_once<T>(what: &str, task: JoinHandle<T>) -> T {
    let told = tokio::time::timeout(AT_ONCE, task).await;
    told.unwrap_or_else(|_| panic!("{what} sleeps")).unwrap()
}

/// A client whose driver asks the server, and has no answer for a tenth of a second.
async fn slow_ask(server: &Server, proxy: &Proxy, client: &Client, channel: &str) {
    until_driver_waits(client).await;
    proxy.delay(100 * MS);
    let _ = int(server, &["PUBLISH", channel, "0"]);
    until_driver_asks(client).await;
}

#[tokio::test]
async fn a_reader_behind_a_writer_that_left_and_a_try_write_does_not_sleep_beside_a_reader() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let other = Client::connect(&server.url()).await.unwrap();
        let client = Client::connect(&proxy.url()).await.unwrap();
        let held = other.rw_lock("name").read().await.unwrap();
        let lock = client.rw_lock("name");
        let writer = in_line(lock.write()).await;
        slow_ask(&server, &proxy, &client, "redisson_rwlock:{name}").await;
        let once = in_line(lock.try_write()).await;
        let reader = in_line(lock.read()).await;
        writer.abort();
        assert!(once.await.unwrap().unwrap().is_none());
        let read = at_once("the reader", reader).await.unwrap();
        let third = other.rw_lock("name").try_read().await.unwrap();
        assert!(third.is_some(), "no writer keeps others out");
        assert!(held.is_valid() && read.is_valid());
    }
}

#[tokio::test]
async fn a_small_request_behind_a_big_one_that_left_and_a_big_try_does_not_sleep_beside_free_permits()
 {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let other = Client::connect(&server.url()).await.unwrap();
        let client = Client::connect(&proxy.url()).await.unwrap();
        let semaphore = other.leased_semaphore("name");
        semaphore.try_set_permits(4).await.unwrap();
        let held = semaphore.acquire().await.unwrap();
        let semaphore = client.leased_semaphore("name");
        let big = in_line(semaphore.acquire_many(4)).await;
        slow_ask(&server, &proxy, &client, "redisson_sc:{name}").await;
        let once = in_line(semaphore.try_acquire_many(4)).await;
        let small = in_line(semaphore.acquire()).await;
        big.abort();
        assert!(once.await.unwrap().unwrap().is_none());
        let permit = at_once("the small request", small).await.unwrap();
        assert!(held.is_valid() && permit.is_valid());
    }
}

/// `other` holds the name, two tasks of `client` wait, and the first of them gets it.
async fn first_of_two(
    other: &Mutex,
    client: &Client,
) -> (
    leasehold::MutexGuard,
    JoinHandle<Result<leasehold::MutexGuard, leasehold::Error>>,
) {
    let held = other.lock().await.unwrap();
    let mutex = client.mutex("name");
    let first = in_line(mutex.lock()).await;
    until_driver_waits(client).await;
    let second = in_line(mutex.lock()).await;
    held.release().await.unwrap();
    (at_once("the first", first).await.unwrap(), second)
}

async fn until_nobody_listens(server: &Server) {
    let nobody = || channels(server).is_empty();
    wait_until_async(SOON, "no subscription without a waiter", nobody).await;
}

#[tokio::test]
async fn no_subscription_is_left_when_the_last_waiter_beside_a_holder_leaves() {
    for server in servers() {
        let other = Client::connect(&server.url()).await.unwrap().mutex("name");
        let client = Client::connect(&server.url()).await.unwrap();
        let (guard, second) = first_of_two(&other, &client).await;
        second.abort();
        until_nobody_listens(&server).await;
        assert!(guard.is_valid());
    }
}

#[tokio::test]
async fn no_subscription_is_left_when_the_last_waiter_is_served_in_memory() {
    for server in servers() {
        let other = Client::connect(&server.url()).await.unwrap().mutex("name");
        let client = Client::connect(&server.url()).await.unwrap();
        let (first, second) = first_of_two(&other, &client).await;
        first.release().await.unwrap();
        let second = at_once("the second", second).await.unwrap();
        until_nobody_listens(&server).await;
        assert!(second.is_valid());
    }
}

#[tokio::test]
async fn a_waiter_that_comes_during_a_release_to_another_process_has_a_place_on_the_server() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let other = Client::connect(&server.url()).await.unwrap();
        let client = Client::connect(&proxy.url()).await.unwrap();
        let (first, second) = first_of_two(&other.mutex("name"), &client).await;
        first.release().await.unwrap();
        let second = at_once("the second", second).await.unwrap();
        let third = Client::connect(&server.url()).await.unwrap();
        let next = in_line(third.mutex("name").lock()).await;
        until_driver_waits(&third).await;
        proxy.delay(100 * MS);
        let release = in_line(second.release()).await;
        let waiter = in_line(client.mutex("name").lock()).await;
        release.await.unwrap().unwrap();
        let next = at_once("the next", next).await.unwrap();
        let has_place = || int(&server, &["LLEN", "leasehold:{name}:queue"]) == 1;
        wait_until_async(AT_ONCE, "a place", has_place).await;
        drop(next);
        drop(at_once("the waiter", waiter).await.unwrap());
    }
}

/// A waker whose drop takes time, as any caller may be stopped there.
struct SlowToGo;

impl Wake for SlowToGo {
    fn wake(self: Arc<Self>) {}
}

impl Drop for SlowToGo {
    fn drop(&mut self) {
        std::thread::sleep(400 * MS);
    }
}

#[tokio::test]
async fn a_reader_behind_a_writer_that_is_slow_to_leave_does_not_sleep_beside_a_reader() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let other = Client::connect(&server.url()).await.unwrap();
        let client = Client::connect(&proxy.url()).await.unwrap();
        let held = other.rw_lock("name").read().await.unwrap();
        let mut writer = Box::pin(client.rw_lock("name").write());
        let in_time = tokio::time::timeout(100 * MS, &mut writer).await;
        assert!(in_time.is_err());
        let slow = Waker::from(Arc::new(SlowToGo));
        let polled = writer.as_mut().poll(&mut Context::from_waker(&slow));
        assert!(polled.is_pending());
        drop(slow);
        let reader = in_line(client.rw_lock("name").read()).await;
        slow_ask(&server, &proxy, &client, "redisson_rwlock:{name}").await;
        let leaving = tokio::task::spawn_blocking(move || drop(writer));
        leaving.await.unwrap();
        let read = at_once("the reader", reader).await.unwrap();
        assert!(held.is_valid() && read.is_valid());
    }
}
