//! `run` and `run_for`: lock, work, release. Finished work is never an error; a lease that is lost before cancels it.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::common;
use crate::common::{World, assert_nothing_left, servers, soon, wait_until_idle};
use leasehold::{Client, Error, ErrorKind, LostReason, Released};
use leasehold_testkit::{Proxy, Server, wait_until_async};
use tokio::sync::oneshot;

const MS: Duration = Duration::from_millis(1);
const OPERATION_TIMEOUT: Duration = Duration::from_millis(200);

/// The same for each kind of lock that has the verb.
macro_rules! for_each_kind {
    ($client:expr, $kind:ident, $lock:ident => $body:expr) => {
        for_each_kind!(@ $kind, $lock => $body;
            "mutex", $client.mutex("name");
            "fenced", $client.fenced_mutex("fenced");
            "plain", $client.plain_mutex("plain");
            "spin", $client.spin_mutex("spin");
            "fair", $client.fair_mutex("fair");
            "multi", $client.multi_lock(["one", "other"]))
    };
    (@ $kind:ident, $lock:ident => $body:expr; $($name:literal, $make:expr);+) => {
        $({
            let ($kind, $lock) = ($name, $make);
            $body;
        })+
    };
}

/// Work that says when it begins, and when it is dropped.
struct Work {
    began: Arc<AtomicBool>,
    gone: Arc<AtomicBool>,
}

impl Work {
    fn new() -> Work {
        Work {
            began: Arc::default(),
            gone: Arc::default(),
        }
    }

    /// Never ends by itself.
    async fn endless(self) {
        let _tells = Gone(self.gone);
        self.began.store(true, Ordering::SeqCst);
        pending::<()>().await;
    }

    fn signs(&self) -> (Arc<AtomicBool>, Arc<AtomicBool>) {
        (Arc::clone(&self.began), Arc::clone(&self.gone))
    }
}

struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

async fn until(what: &str, sign: &AtomicBool) {
    wait_until_async(common::SOON, what, || sign.load(Ordering::SeqCst)).await;
}

async fn client_of(server: &Server) -> Client {
    let builder = Client::builder().url(server.url());
    let builder = builder.operation_timeout(OPERATION_TIMEOUT);
    builder.connect().await.unwrap()
}

#[tokio::test]
async fn the_output_of_the_work_comes_back_and_the_name_is_free() {
    for world in World::all() {
        let (client, other) = (world.client().await, world.client().await);
        for_each_kind!(client, kind, lock => {
            let case = format!("{kind} on {}", world.name());
            let within = lock.clone();
            let work = async move { within.try_lock().await.unwrap().is_none() };
            let was_held = soon(&case, lock.run(work)).await.unwrap();
            assert!(was_held, "{case}: the work runs under the lock");
            let ran = soon(&case, lock.run_for(common::SOON, async { "again" })).await;
            assert_eq!(ran.unwrap(), Some("again"), "{case}");
        });
        for_each_kind!(other, kind, lock => {
            assert!(lock.try_lock().await.unwrap().is_some(), "{kind} on {}", world.name());
        });
    }
}

#[tokio::test]
async fn work_is_not_begun_while_another_holds_the_lock() {
    for world in World::all() {
        let (client, other) = (world.client().await, world.client().await);
        for_each_kind!(other, kind, rival => {
            let held = rival.lock().await.unwrap();
            for_each_kind!(client, same, lock => {
                if same == kind {
                    for wait in [Duration::ZERO, 200 * MS] {
                        let work = Work::new();
                        let (began, _) = work.signs();
                        let ran = lock.run_for(wait, work.endless()).await.unwrap();
                        assert!(ran.is_none(), "{kind} on {}, {wait:?}", world.name());
                        assert!(!began.load(Ordering::SeqCst), "{kind}");
                    }
                }
            });
            drop(held);
        });
    }
}

#[tokio::test]
async fn a_lease_that_ends_before_the_work_cancels_it() {
    for world in World::all() {
        let client = world.client().await;
        for_each_kind!(client, kind, lock => {
            let case = format!("{kind} on {}", world.name());
            let work = Work::new();
            let (began, gone) = work.signs();
            let lock = lock.fixed_lease(100 * MS);
            let error = soon(&case, lock.run(work.endless())).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Lost, "{case}: {error}");
            assert!(began.load(Ordering::SeqCst) && gone.load(Ordering::SeqCst), "{case}");
            let ran = soon(&case, lock.run(async { 7 })).await;
            assert_eq!(ran.unwrap(), 7, "{case}: the name is free again");
        });
    }
}

#[tokio::test]
async fn a_lock_that_is_taken_by_force_cancels_the_work() {
    for world in World::all() {
        let client = world.client().await;
        let (mutex, work) = (client.mutex("name"), Work::new());
        let (began, gone) = work.signs();
        let task = tokio::spawn(mutex.run(work.endless()));
        until("the work begins", &began).await;
        assert!(client.force_unlock("name").await.unwrap());
        match soon("the loss", task).await.unwrap() {
            Err(Error::Lost { reason, .. }) => assert_eq!(reason, LostReason::Replaced),
            other => panic!("{other:?}"),
        }
        assert!(gone.load(Ordering::SeqCst));
    }
}

/// The documented pattern, and `guard.run` with `release` after it.
#[tokio::test]
async fn work_during_which_the_server_is_killed_returns_its_result() {
    for mut server in servers() {
        let client = client_of(&server).await;
        let mut locked = Vec::new();
        for_each_kind!(client, kind, lock => {
            let (begun, begins) = oneshot::channel();
            let (go, gone) = oneshot::channel();
            let work = async move {
                begun.send(()).unwrap();
                gone.await.unwrap()
            };
            let task = tokio::spawn(lock.run(work));
            soon(kind, begins).await.unwrap();
            locked.push((kind, go, task));
        });
        let guard = client.mutex("by hand").lock().await.unwrap();
        server.kill();
        let killed = Instant::now();
        let mut tasks = Vec::new();
        for (kind, go, task) in locked {
            go.send(42).unwrap();
            tasks.push((kind, task));
        }
        for (kind, task) in tasks {
            let output = soon(kind, task).await.unwrap();
            assert_eq!(output.unwrap(), 42, "{kind}");
        }
        // Each has waited for its release for an operation timeout, and no longer.
        assert!(killed.elapsed() < 10 * OPERATION_TIMEOUT, "{killed:?}");
        assert_eq!(guard.run(async { 42 }).await.unwrap(), 42);
        let released = guard.release().await.unwrap();
        assert!(matches!(released, Released::Unconfirmed { .. }));
    }
}

/// `release` tells of a loss that `run` does not turn into an error.
#[tokio::test]
async fn work_during_which_the_server_forgets_the_lock_returns_its_result() {
    for server in servers() {
        let client = client_of(&server).await;
        let forget = async {
            server.cli(&["FLUSHALL"]);
            42
        };
        assert_eq!(client.mutex("name").run(forget).await.unwrap(), 42);
        let guard = client.mutex("name").lock().await.unwrap();
        let forget = async {
            server.cli(&["FLUSHALL"]);
        };
        guard.run(forget).await.unwrap();
        common::assert_lost(guard.release().await, LostReason::Replaced);
    }
}

#[tokio::test]
async fn a_dropped_run_leaves_nothing_wherever_it_stands() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let client = Client::connect(&proxy.url()).await.unwrap();
        let other = Client::connect(&server.url()).await.unwrap();

        // While it waits for the lock.
        let held = other.mutex("name").lock().await.unwrap();
        let work = Work::new();
        let (began, _) = work.signs();
        let task = tokio::spawn(client.mutex("name").run(work.endless()));
        common::until_listening(&other, 1).await;
        task.abort();
        assert!(soon("the abort", task).await.unwrap_err().is_cancelled());
        wait_until_idle(&client).await;
        assert!(!began.load(Ordering::SeqCst));
        common::release(held).await;

        // While the work is under way.
        let work = Work::new();
        let (began, gone) = work.signs();
        let task = tokio::spawn(client.mutex("name").run(work.endless()));
        until("the work begins", &began).await;
        task.abort();
        assert!(soon("the abort", task).await.unwrap_err().is_cancelled());
        assert!(gone.load(Ordering::SeqCst));
        let next = soon("the next holder", other.mutex("name").lock()).await;
        common::release(next.unwrap()).await;
        wait_until_idle(&client).await;

        // While the lock is given back.
        let worked = Arc::new(AtomicBool::new(false));
        let work = {
            let (worked, proxy) = (Arc::clone(&worked), &proxy);
            async move {
                proxy.stall(None);
                worked.store(true, Ordering::SeqCst);
            }
        };
        let mutex = client.mutex("name");
        let mut run = Box::pin(mutex.run(work));
        let stands = tokio::select! {
            _ = &mut run => false,
            () = async {
                until("the work is done", &worked).await;
                tokio::time::sleep(10 * MS).await;
            } => true,
        };
        assert!(stands, "the release has no answer");
        drop(run);
        proxy.heal();
        let next = soon("the next holder", other.mutex("name").lock()).await;
        common::release(next.unwrap()).await;
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "dropped runs").await;
    }
}

#[tokio::test]
async fn a_run_can_be_spawned_and_its_work_may_borrow() {
    let client = Client::connect("memory:").await.unwrap();
    let mutex = client.mutex("name");
    let mut sold = Vec::new();
    let borrows = mutex.run(async { sold.push(42) });
    borrows.await.unwrap();
    assert_eq!(sold, [42]);
    let spawned = tokio::spawn(mutex.run(async { 42 }));
    assert_eq!(spawned.await.unwrap().unwrap(), 42);
    // A panic of the work gives the name back as well.
    let panics = tokio::spawn(mutex.run(async { panic!("on purpose") }));
    assert!(panics.await.is_err());
    let next = soon("the next holder", mutex.lock()).await;
    common::release(next.unwrap()).await;
}

/// A caller of `run` waits for the lock as a caller of `lock` does, and its work is kept once, outside of the future.
#[tokio::test]
async fn a_run_is_no_larger_than_the_wait_for_the_lock() {
    let client = Client::connect("memory:").await.unwrap();
    let large = [0_u8; 8 * 1024];
    for_each_kind!(client, kind, lock => {
        let alone = size_of_val(&lock.lock());
        let work = async move {
            tokio::task::yield_now().await;
            large.len()
        };
        let run = size_of_val(&lock.run(work));
        assert!(run < alone + 1024, "{kind}: {run} bytes, {alone} alone");
    });
}
