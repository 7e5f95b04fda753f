//! The blocking API: where it waits, where it refuses to, and what each kind promises through it.

/// The promises of the kinds, with each verb on a thread of its own.
#[path = "conformance.rs"]
mod conformance;
#[allow(unreachable_pub, reason = "as in common")]
#[path = "common/kinds_blocking.rs"]
mod kinds;

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use conformance::common::{self, SOON, World};
use leasehold::{
    Error, ErrorKind, Invalid, LostReason, MemoryServer, Owner, Released, Shutdown,
    blocking::{Client, scope},
};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::{LocalSet, coop, spawn_blocking},
};

const MS: Duration = Duration::from_millis(1);

/// A wait that is too short for a holder, and long enough for an answer of the server on a busy machine.
const SHORT: Duration = Duration::from_millis(200);

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn two_threads() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

fn connect(world: &World) -> Client {
    Client::connect_with(world.builder()).unwrap()
}

/// The result of a thread in time, or it has hung.
#[track_caller]
fn in_time<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (told, heard) = mpsc::channel();
    let thread = thread::spawn(move || drop(told.send(work())));
    let Ok(done) = heard.recv_timeout(3 * SOON) else {
        assert!(thread.is_finished(), "{what}: it hangs");
        panic!("{what}: it panicked");
    };
    done
}

/// A pair, a wait behind another holder that only its release ends, and a wait whose time is up.
fn locks_and_waits(client: &Client, name: &str) {
    let mutex = client.mutex(name);
    let guard = mutex.lock().unwrap();
    assert!(mutex.try_lock_for(SHORT).unwrap().is_none());
    let holder = thread::spawn(move || {
        thread::sleep(20 * MS);
        guard.release().unwrap()
    });
    let guard = mutex.lock().unwrap();
    assert_eq!(holder.join().unwrap(), Released::Freed);
    assert_eq!(guard.release().unwrap(), Released::Freed);
}

/// At once, with nothing sent, and with what to do instead.
fn refuses(client: &Client, place: &str) {
    let begun = Instant::now();
    let mutex = client.mutex("refused");
    let errors = [
        mutex.lock().map(drop).unwrap_err(),
        mutex.try_lock().map(drop).unwrap_err(),
        mutex.run(|_| panic!("{place}: it ran")).unwrap_err(),
        client.status("refused").map(drop).unwrap_err(),
        client.shutdown(Shutdown::LetExpire).unwrap_err(),
        client.events().recv().map(drop).unwrap_err(),
        Client::connect("memory:").map(drop).unwrap_err(),
    ];
    assert!(begun.elapsed() < SOON / 10, "{place}: at once");
    for error in errors {
        let Error::Invalid(Invalid { remedy, .. }) = &error else {
            panic!("{place}: {error}");
        };
        assert!(remedy.contains("spawn_blocking"), "{place}: {error}");
    }
}

/// Refuses, or tells, when it is dropped.
struct AtDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for AtDrop<F> {
    fn drop(&mut self) {
        self.0();
    }
}

#[test]
fn it_is_refused_where_a_scheduler_polls() {
    for world in World::all() {
        for (flavor, runtime) in [("one thread", one_thread()), ("two threads", two_threads())] {
            let client = connect(&world);
            let at = move |place: &str| format!("{place}, {flavor}");
            in_time(&at("all places"), move || {
                // 1. block_on, 2. a task, 3. a branch of a join, 4. a task of a LocalSet, 5. the drop of a value of a task.
                runtime.block_on(async { refuses(&client, &at("block_on")) });
                let (in_task, named) = (client.clone(), at("a task"));
                let task = runtime.spawn(async move { refuses(&in_task, &named) });
                runtime.block_on(task).unwrap();
                let branches = async {
                    let branch = async { refuses(&client, &at("a branch")) };
                    tokio::join!(branch, tokio::task::yield_now());
                };
                runtime.block_on(branches);
                let (in_local, named) = (client.clone(), at("a LocalSet"));
                let set = LocalSet::new();
                let local = set.spawn_local(async move { refuses(&in_local, &named) });
                runtime.block_on(set.run_until(local)).unwrap();
                let (in_drop, named) = (client.clone(), at("a drop"));
                let value = AtDrop(move || refuses(&in_drop, &named));
                runtime
                    .block_on(runtime.spawn(async move { drop(value) }))
                    .unwrap();
                // 6. Handle::block_on on a thread that might wait.
                let (handle, in_handle) = (runtime.handle().clone(), client.clone());
                let named = at("Handle::block_on");
                let blocked = runtime.spawn_blocking(move || {
                    handle.block_on(async { refuses(&in_handle, &named) });
                });
                runtime.block_on(blocked).unwrap();
                // A guard may go anywhere.
                let guard = client.mutex("anywhere").lock().unwrap();
                runtime.block_on(async move { drop(guard) });
                assert!(
                    client
                        .mutex("anywhere")
                        .try_lock_for(SOON)
                        .unwrap()
                        .is_some()
                );
                assert_eq!(client.status("refused").unwrap().holders, []);
            });
        }
    }
}

/// How much may still be done before the scheduler's turn.
fn budget_left() -> usize {
    let mut cx = Context::from_waker(Waker::noop());
    let taken = std::iter::from_fn(|| match coop::poll_proceed(&mut cx) {
        Poll::Ready(taken) => {
            taken.made_progress();
            Some(())
        }
        Poll::Pending => None,
    });
    taken.take(1000).count()
}

#[test]
fn a_refusal_takes_nothing_of_the_budget_of_its_task() {
    let client = Client::connect("memory:").unwrap();
    let refused = async || client.mutex("name").lock().map(drop).unwrap_err();
    let runtime = one_thread();
    let before = runtime.block_on(async { budget_left() });
    let (error, after) = runtime.block_on(async { (refused().await, budget_left()) });
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(after, before);
    assert!((1..1000).contains(&before), "{before}");
    // A task with none left is polled all the same.
    let error = runtime.block_on(async {
        budget_left();
        refused().await
    });
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn it_waits_where_a_thread_may() {
    for world in World::all() {
        let world = Arc::new(world);
        for (flavor, runtime) in [("one thread", one_thread()), ("two threads", two_threads())] {
            let client = connect(&world);
            let name = world.name();
            in_time(&format!("all places, {flavor}, {name}"), move || {
                // 7. a plain thread, 8. spawn_blocking, 9. block_in_place, 10. entered: driven, and not.
                locks_and_waits(&client, "plain");
                let there = client.clone();
                let blocking = runtime.spawn_blocking(move || locks_and_waits(&there, "blocking"));
                runtime.block_on(blocking).unwrap();
                if flavor == "two threads" {
                    let there = client.clone();
                    let in_place = runtime.spawn(async move {
                        tokio::task::block_in_place(|| locks_and_waits(&there, "in place"));
                    });
                    runtime.block_on(in_place).unwrap();
                    runtime.block_on(async {
                        tokio::task::block_in_place(|| locks_and_waits(&client, "in block_on"));
                    });
                }
                {
                    // A runtime of one thread is not driven here.
                    let _entered = runtime.enter();
                    locks_and_waits(&client, "entered");
                    let there = Client::connect("memory:").unwrap();
                    locks_and_waits(&there, "entered, memory");
                }
                let (told, heard) = mpsc::channel();
                let driven = thread::spawn(move || {
                    told.send(runtime.handle().clone()).unwrap();
                    runtime.block_on(async { tokio::time::sleep(100 * MS).await });
                    runtime
                });
                let handle: Handle = heard.recv().unwrap();
                let entered = handle.enter();
                locks_and_waits(&client, "entered and driven");
                drop((entered, driven.join().unwrap()));
            });
        }
    }
}

#[test]
fn a_thread_and_a_task_exclude_each_other() {
    for world in World::all() {
        let runtime = two_threads();
        let asynchronous = runtime.block_on(world.client());
        let client = Client::from(asynchronous.clone());
        assert_eq!(client.id(), asynchronous.id());
        let inside = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (mutex, inside) = (client.mutex("name"), Arc::clone(&inside));
                thread::spawn(move || {
                    for _ in 0..100 {
                        let alone = mutex.run(|guard| {
                            let there = inside.fetch_add(1, Ordering::SeqCst);
                            thread::yield_now();
                            inside.fetch_sub(1, Ordering::SeqCst);
                            there == 0 && guard.is_valid()
                        });
                        assert!(alone.unwrap());
                    }
                })
            })
            .collect();
        let (mutex, of_tasks) = (asynchronous.mutex("name"), Arc::clone(&inside));
        let task = runtime.spawn(async move {
            for _ in 0..100 {
                let guard = mutex.lock().await.unwrap();
                assert_eq!(of_tasks.fetch_add(1, Ordering::SeqCst), 0);
                tokio::task::yield_now().await;
                of_tasks.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        });
        in_time("the threads", move || {
            for thread in threads {
                thread.join().unwrap();
            }
        });
        runtime.block_on(task).unwrap();
        let back: leasehold::Client = client.into();
        assert_eq!(back.id(), asynchronous.id());
    }
}

#[test]
fn work_that_loses_its_lease_is_told_when_it_returns() {
    for world in World::all() {
        let client = connect(&world);
        let short = client.mutex("name").fixed_lease(2 * SHORT);
        let mut told = None;
        let ran = short.run(|guard| {
            told = Some(guard.lost());
            assert!(guard.ensure(MS).is_err());
            42
        });
        assert_eq!(told.unwrap().unwrap(), LostReason::Expired);
        assert_eq!(ran.unwrap_err().kind(), ErrorKind::Lost);
        let next = client.mutex("name").run_for(SOON, |_| 42).unwrap();
        assert_eq!(next, Some(42));
        let guard = client.mutex("name").lock().unwrap();
        assert_eq!(client.mutex("name").run_for(SHORT, |_| 42).unwrap(), None);
        drop(guard);
    }
}

#[test]
fn work_that_panics_gives_the_lock_back() {
    for world in World::all() {
        let client = connect(&world);
        let mutex = client.mutex("name");
        let panics = thread::spawn({
            let mutex = mutex.clone();
            move || mutex.run(|_| panic!("on purpose"))
        });
        assert!(panics.join().is_err());
        assert!(mutex.try_lock_for(SOON).unwrap().is_some());
    }
}

#[test]
fn a_lease_is_renewed_while_its_thread_is_at_work() {
    thread::scope(|side_by_side| {
        for world in World::all() {
            side_by_side.spawn(move || {
                let lease = 1000 * MS; // a loaded machine renews in that time
                let mutex = connect(&world).mutex("name").lease(lease);
                let valid = mutex.run(|guard| {
                    thread::sleep(2 * lease); // time is the subject
                    guard.is_valid()
                });
                assert!(valid.unwrap());
            });
        }
    });
}

#[test]
fn an_owner_enters_again_on_its_thread() {
    let client = Client::connect("memory:").unwrap();
    let mutex = client.mutex("name");
    let inner = scope(&Owner::new(), || {
        let _outer = mutex.lock().unwrap();
        mutex.try_lock().unwrap().is_some()
    });
    assert!(inner);
    let _outer = mutex.lock().unwrap();
    assert!(mutex.try_lock().unwrap().is_none());
}

#[test]
fn a_shutdown_ends_the_wait_of_a_thread() {
    for world in World::all() {
        let client = connect(&world);
        let guard = client.mutex("name").lock().unwrap();
        let waits = thread::spawn({
            let mutex = client.mutex("name");
            move || mutex.lock().map(drop)
        });
        while client.status("name").unwrap().waiting_here == 0 {
            thread::yield_now();
        }
        client.shutdown(Shutdown::LetExpire).unwrap();
        let error = in_time("the wait", move || waits.join().unwrap().unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Closed);
        drop(guard);
    }
}

#[test]
fn a_wait_takes_no_token_of_the_users_own_park() {
    let client = Client::connect_with(leasehold::Client::builder().memory(&MemoryServer::new()));
    let client = client.unwrap();
    in_time("its own park", move || {
        thread::current().unpark();
        locks_and_waits(&client, "name");
        thread::park(); // the token is still there
    });
}

type Call = Box<dyn FnMut()>;

#[test]
fn a_thread_that_ends_is_told_so() {
    thread_local! {
        static LAST: RefCell<Option<AtDrop<Call>>> = const { RefCell::new(None) };
    }
    for world in World::all() {
        let client = connect(&world);
        in_time("a thread that ends", move || {
            let (told, heard) = mpsc::channel();
            let ends = thread::spawn(move || {
                // Made before that of tokio, and so dropped after it.
                LAST.with_borrow_mut(|last| {
                    let call = move || drop(told.send(client.mutex("name").lock().map(drop)));
                    *last = Some(AtDrop(Box::new(call)));
                });
                let _ = Handle::try_current();
            });
            let last = heard.recv().expect("it does not panic");
            assert!(last.is_ok() || last.unwrap_err().kind() == ErrorKind::Invalid);
            ends.join().unwrap();
        });
    }
}

/// Verbs that the suite does not ask.
#[test]
fn the_other_verbs_answer_too() {
    for world in World::all() {
        let client = connect(&world);

        let lock = client.rw_lock("rw");
        let writes = lock.write().unwrap();
        let beside = writes.read().unwrap();
        let reads = writes.downgrade().unwrap();
        drop((beside, lock.try_read().unwrap().expect("they share it")));
        assert_eq!(reads.release().unwrap(), Released::Freed);

        let permits = client.leased_semaphore("permits");
        assert!(permits.try_set_permits(3).unwrap());
        permits.set_permits(4).unwrap();
        assert_eq!(permits.add_permits(1).unwrap(), 5);
        let many = permits.acquire_many(4).unwrap();
        assert_eq!(many.permits(), 4);
        assert!(permits.try_acquire_many(2).unwrap().is_none());
        assert!(permits.try_acquire_many_for(2, SHORT).unwrap().is_none());
        assert_eq!(permits.drain_permits().unwrap(), 1);
        assert_eq!(permits.available_permits().unwrap(), 0);
        drop(many);

        let count = client.semaphore("count").permits(2);
        assert!(count.try_set_permits(2).unwrap());
        let two = count.acquire_many(2).unwrap();
        assert!(count.try_acquire_for(SHORT).unwrap().is_none());
        assert_eq!((two.permits(), count.add_permits(1).unwrap()), (2, 1));
        assert_eq!(count.drain_permits().unwrap(), 1);
        two.release().unwrap();

        let latch = client.latch("latch");
        assert!(latch.try_set_count(3).unwrap());
        assert_eq!(latch.count_down().unwrap(), 2);
        assert!(!latch.wait_for(SHORT).unwrap());
        let opens = thread::spawn({
            let latch = latch.clone();
            move || latch.count_down_by(2)
        });
        latch.wait().unwrap();
        assert_eq!(opens.join().unwrap().unwrap(), 0);
        assert_eq!(latch.count().unwrap(), 0);
        assert!(!latch.delete().unwrap());

        let store = client.fenced_store("fenced");
        let tokens = client.fenced_mutex("fenced").run(|guard| {
            store.set("key", "value", guard.token())?;
            store.set_field("hash", "field", "value", guard.token())?;
            Ok::<u64, Error>(guard.token())
        });
        let token = tokens.unwrap().unwrap();
        assert_eq!(store.get("key").unwrap().unwrap(), b"value");
        assert_eq!(store.get_field("hash", "field").unwrap().unwrap(), b"value");
        assert!(store.set("key", "late", token - 1).is_err());
        store.delete_field("hash", "field", token).unwrap();
        store.delete("key", token).unwrap();
        assert_eq!(store.get("key").unwrap(), None);

        // Parts of several kinds, blocking or not.
        let asynchronous: leasehold::Client = client.clone().into();
        let fenced = client.fenced_mutex("part");
        let parts = [
            fenced.into(),
            lock.read_part(),
            asynchronous.mutex("other").into(),
        ];
        let moved = client.multi_lock(parts).run_for(SOON, |guard| {
            assert!(client.mutex("other").try_lock().unwrap().is_none());
            guard.token("part").is_some()
        });
        assert_eq!(moved.unwrap(), Some(true));

        let mut events = client.events();
        let guard = client.mutex("found").fixed_lease(SOON).lock().unwrap();
        assert_eq!(&*events.recv().unwrap().unwrap().name, "found");
        guard.extend(2 * SOON).unwrap();
        guard.at_risk(2 * SOON).unwrap();
        assert!(guard.verify().unwrap() > SOON);
        let (mut find, mut found) = (client.find("foun*"), 0);
        while let Some(page) = find.next().unwrap() {
            found += page.len();
        }
        assert_eq!((found, find.progress().to_bits()), (1, 1.0_f64.to_bits()));
        assert!(client.force_unlock("found").unwrap());
        assert_eq!(guard.lost().unwrap(), LostReason::Replaced);
    }
}

#[test]
fn a_client_may_connect_when_it_is_first_used() {
    let settings = leasehold::Client::builder()
        .url("redis://127.0.0.1:1/")
        .operation_timeout(50 * MS);
    let client = Client::connect_lazily(settings).unwrap();
    let error = client.mutex("name").try_lock().unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    let memory = leasehold::Client::builder().memory(&MemoryServer::new());
    locks_and_waits(&Client::connect_lazily(memory).unwrap(), "name");
    let invalid = Client::connect("http://127.0.0.1/").unwrap_err();
    assert_eq!(invalid.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_client_of_an_async_program_blocks_in_spawn_blocking() {
    for world in World::all() {
        let client = Client::from(world.client().await);
        let done = spawn_blocking(move || locks_and_waits(&client, "name"));
        common::soon("it waits", done).await.unwrap();
    }
}

/// The library's own runtime renews all leases: what a user spawns would hold it up.
#[tokio::test]
async fn what_work_spawns_is_a_task_of_its_callers_runtime() {
    for world in World::all() {
        let client = Client::from(world.client().await);
        let ours = tokio::runtime::Handle::current().id();
        let done = spawn_blocking(move || {
            let here = || tokio::runtime::Handle::current().id();
            let mutex = client.mutex("name");
            assert_eq!(mutex.run(|_| here()).unwrap(), ours);
            assert_eq!(
                mutex.run_once_per(60 * MS * 1000, here).unwrap(),
                Some(ours)
            );
        });
        done.await.unwrap();
    }
}

#[leasehold::locked("counter", blocking, wait = "10s", client = client, guard = guard)]
fn count(client: &leasehold::Client, inside: &AtomicUsize) -> Result<u64, Error> {
    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
    guard.ensure(MS)?;
    thread::sleep(5 * MS);
    inside.fetch_sub(1, Ordering::SeqCst);
    if inside.load(Ordering::SeqCst) > 0 {
        return Ok(0);
    }
    Ok(1)
}

#[leasehold::locked("counter", blocking, client = client)]
fn count_inside(client: &leasehold::Client, inside: &AtomicUsize) -> Result<u64, Error> {
    count(client, inside)
}

#[leasehold::locked("hourly", blocking, once_per = "1h", failed = |_| 0, client = client)]
fn hourly(client: &leasehold::Client) -> u32 {
    7
}

/// `#[locked(…, blocking)]` on plain functions.
#[test]
fn a_locked_function_that_blocks_runs_alone_and_not_where_a_scheduler_polls() {
    for world in World::all() {
        let client: leasehold::Client = connect(&world).into();
        let inside = Arc::new(AtomicUsize::new(0));
        let threads = [0, 1, 2, 3].map(|_| {
            let (client, inside) = (client.clone(), Arc::clone(&inside));
            thread::spawn(move || count(&client, &inside).unwrap())
        });
        let counted: u64 = threads.map(|thread| thread.join().unwrap()).iter().sum();
        assert_eq!(counted, 4, "{}", world.name());
        let error = count_inside(&client, &inside).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Reentered, "{error}");
        let error = one_thread().block_on(async { count(&client, &inside).unwrap_err() });
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!((hourly(&client), hourly(&client)), (7, 0));
    }
}

/// A client of memory lives on the runtime that connected it.
#[test]
fn a_client_of_memory_whose_runtime_has_ended_is_an_error() {
    for runtime in [one_thread(), two_threads()] {
        let server = MemoryServer::new();
        let builder = leasehold::Client::builder().memory(&server);
        let asynchronous = runtime.block_on(builder.connect()).unwrap();
        let guard = runtime.block_on(asynchronous.mutex("held").lock()).unwrap();
        let client = Client::from(asynchronous);
        // A call that waits by a timer, and a call after it.
        let (waits, (begins, begun)) = (client.clone(), mpsc::channel());
        let wait = thread::spawn(move || {
            begins.send(()).unwrap();
            waits.mutex("held").try_lock_for(3 * SOON).map(drop)
        });
        begun.recv().unwrap();
        while client.mutex("held").status().unwrap().waiting_here == 0 {
            runtime.block_on(tokio::task::yield_now());
        }
        drop(runtime);
        let waited = in_time("a wait", || wait.join().unwrap());
        assert_eq!(waited.unwrap_err().kind(), ErrorKind::ThreadGone);
        let asked = in_time("a call", move || client.mutex("name").lock().map(drop));
        assert_eq!(asked.unwrap_err().kind(), ErrorKind::ThreadGone);
        drop(guard);
    }
}
