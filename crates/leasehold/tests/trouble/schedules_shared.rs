//! Schedules in which waiters that want different things stand in one queue: readers and writers, few permits and many.

use std::time::{Duration, Instant};

use crate::common::{SOON, World, channels, servers, soon, wait_until_idle};
use leasehold::{Client, ErrorKind};
use leasehold_testkit::{Proxy, wait_until_async};
use tokio::task::JoinHandle;

/// How long a waiter with limited patience waits: the others line up meanwhile, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(2);
/// A waiter that only the poll interval wakes takes ten times as long.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Until so many tasks of the client wait for the lock, and its driver waits for a wake-up: it has asked, and stands where it
/// will stand.
async fn until_waiting(client: &Client, tasks: impl AsyncFn() -> usize, count: usize) {
    let deadline = Instant::now() + SOON;
    loop {
        let footprint = client.footprint();
        let rests = footprint.waiting > 0 && footprint.waiting == footprint.tasks;
        if rests && tasks().await == count {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{count} never wait: {footprint:?}"
        );
        tokio::task::yield_now().await;
    }
}

async fn until_reading(client: &Client, count: usize) {
    let lock = client.rw_lock("name");
    until_waiting(
        client,
        async || lock.status().await.unwrap().waiting_here,
        count,
    )
    .await;
}

async fn until_acquiring(client: &Client, count: usize) {
    let semaphore = client.leased_semaphore("name");
    let waiting = async || semaphore.status().await.unwrap().waiting_here;
    until_waiting(client, waiting, count).await;
}

async fn at_once<T>(what: &str, world: &World, task: JoinHandle<T>) -> T {
    let begun = Instant::now();
    let done = tokio::time::timeout(2 * SOON, task).await;
    let took = begun.elapsed();
    assert!(took < AT_ONCE, "{}: {what} after {took:?}", world.name());
    done.unwrap().unwrap()
}

/// Bug 84: between taking an old lease id out of the queue and giving it up, the driver looked at something else.
async fn nothing_is_left<F: Future<Output = ()> + Send>(
    use_it: impl Fn(Client) -> F + Copy + Send + 'static,
) {
    for world in World::all() {
        let clients = [world.client().await, world.client().await];
        let semaphore = clients[0].leased_semaphore("permits");
        semaphore.try_set_permits(3).await.unwrap();
        for _ in 0..3 {
            let until = Instant::now() + Duration::from_millis(500);
            let tasks = (0..10).map(|task| {
                let client = clients[usize::from(task >= 7_u8)].clone();
                tokio::spawn(async move {
                    while Instant::now() < until {
                        use_it(client.clone()).await;
                        if fastrand::u8(0..4) == 0 {
                            tokio::time::sleep(moment()).await;
                        }
                    }
                })
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await.unwrap();
            }
            for client in &clients {
                wait_until_idle(client).await;
            }
            let free = semaphore.available_permits().await.unwrap();
            assert_eq!(free, 3, "{}", world.name());
            let status = clients[0].rw_lock("rw").status().await.unwrap();
            assert!(status.holders.is_empty(), "{}: {status:?}", world.name());
        }
    }
}

fn moment() -> Duration {
    Duration::from_micros(fastrand::u64(0..2000))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_waits_for_permits_leave_none_out() {
    nothing_is_left(|client| async move {
        let (semaphore, count) = (client.leased_semaphore("permits"), fastrand::u32(1..=3));
        let guard = match fastrand::u8(0..3) {
            0 => semaphore.try_acquire_many(count).await,
            _ => semaphore.try_acquire_many_for(count, moment()).await,
        };
        drop(guard);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_waits_to_read_and_write_leave_no_holder() {
    nothing_is_left(|client| async move {
        let lock = client.rw_lock("rw");
        match fastrand::u8(0..5) {
            0 | 1 => drop(lock.try_read_for(moment()).await),
            2 => drop(lock.try_read().await),
            3 => drop(lock.try_write().await),
            _ => drop(lock.try_write_for(moment()).await),
        }
    })
    .await;
}

/// Bug 85: the driver went on waiting for what the first waiter had wanted, for up to the poll interval.
#[tokio::test]
async fn readers_behind_a_writer_that_gives_up_read_at_once() {
    for world in World::all() {
        let (a, b, c) = (
            world.client().await,
            world.client().await,
            world.client().await,
        );
        let held = a.rw_lock("name").read().await.unwrap();
        let writer = tokio::spawn(b.rw_lock("name").try_write_for(PATIENCE));
        until_reading(&b, 1).await;
        let here = tokio::spawn(b.rw_lock("name").read());
        let elsewhere = tokio::spawn(c.rw_lock("name").read());
        until_reading(&b, 2).await;
        until_reading(&c, 1).await;
        assert!(writer.await.unwrap().unwrap().is_none());
        let here = at_once("a reader of that process", &world, here).await;
        let elsewhere = at_once("a reader of another process", &world, elsewhere).await;
        drop((held, here, elsewhere));
    }
}

#[tokio::test]
async fn a_reader_behind_a_writer_that_leaves_reads_beside_its_own_process() {
    for world in World::all() {
        let client = world.client().await;
        let lock = client.rw_lock("name");
        let held = lock.read().await.unwrap();
        let writer = tokio::spawn(lock.write());
        until_reading(&client, 1).await;
        let reader = tokio::spawn(lock.read());
        until_reading(&client, 2).await;
        writer.abort();
        let reader = at_once("the reader", &world, reader).await;
        drop((held, reader));
    }
}

#[tokio::test]
async fn a_small_request_behind_a_big_one_that_leaves_is_served_at_once() {
    for world in World::all() {
        let client = world.client().await;
        let semaphore = client.leased_semaphore("name");
        semaphore.try_set_permits(4).await.unwrap();
        let held = semaphore.acquire_many(2).await.unwrap();
        let big = tokio::spawn(semaphore.acquire_many(4));
        until_acquiring(&client, 1).await;
        let small = tokio::spawn(semaphore.acquire());
        until_acquiring(&client, 2).await;
        big.abort();
        let small = at_once("the small request", &world, small).await;
        drop((held, small));
    }
}

/// Bug 86: the release of a writer put the reader of its own process behind others that read already.
#[tokio::test]
async fn a_reader_behind_its_own_writer_reads_together_with_others() {
    for world in World::all() {
        let (x, a, b) = (
            world.client().await,
            world.client().await,
            world.client().await,
        );
        let held = x.rw_lock("name").write().await.unwrap();
        let writer = tokio::spawn(a.rw_lock("name").write());
        until_reading(&a, 1).await;
        let reader = tokio::spawn(a.rw_lock("name").read());
        until_reading(&a, 2).await;
        let other = tokio::spawn(b.rw_lock("name").read());
        until_reading(&b, 1).await;
        held.release().await.unwrap();
        let written = at_once("the writer", &world, writer).await.unwrap();
        written.release().await.unwrap();
        let other = at_once("the other process", &world, other).await.unwrap();
        let reader = at_once("the reader", &world, reader).await.unwrap();
        drop((other, reader));
    }
}

/// Bug 87: "no" to one that asks once was the answer of all that ask once, whatever they asked for.
#[tokio::test]
async fn try_read_is_not_refused_because_try_write_is() {
    for world in World::all() {
        let (a, b) = (world.client().await, world.client().await);
        let held = a.rw_lock("name").read().await.unwrap();
        for round in 0..20 {
            let lock = b.rw_lock("name");
            let (write, read) = tokio::join!(lock.try_write(), lock.try_read());
            assert!(write.unwrap().is_none());
            let read = read.unwrap();
            assert!(read.is_some(), "{}, round {round}", world.name());
            read.unwrap().release().await.unwrap();
        }
        drop(held);
    }
}

#[tokio::test]
async fn a_request_for_one_permit_is_not_refused_because_one_for_many_is() {
    for world in World::all() {
        let (a, b) = (world.client().await, world.client().await);
        let all = a.leased_semaphore("name");
        all.try_set_permits(4).await.unwrap();
        let held = all.acquire().await.unwrap();
        for round in 0..20 {
            let semaphore = b.leased_semaphore("name");
            let (many, one) = tokio::join!(semaphore.try_acquire_many(4), semaphore.try_acquire());
            assert!(many.unwrap().is_none());
            let one = one.unwrap();
            assert!(one.is_some(), "{}, round {round}", world.name());
            one.unwrap().release().await.unwrap();
        }
        drop(held);
    }
}

/// Bug 88: the readers behind a writer that had died were not told.
#[tokio::test]
async fn a_newcomer_that_finds_a_writer_dead_lets_the_readers_behind_it_in() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let dies = Client::connect(&proxy.url()).await.unwrap();
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(Client::connect(&server.url()).await.unwrap());
        }
        let [a, c, newcomer] = &clients[..] else {
            unreachable!()
        };
        let held = a.rw_lock("name").read().await.unwrap();
        let writer = tokio::spawn(dies.rw_lock("name").write());
        until_reading(&dies, 1).await;
        let reader = tokio::spawn(c.rw_lock("name").read());
        until_reading(c, 1).await;
        proxy.refuse(true);
        proxy.cut();
        let heard = || {
            channels(&server)
                .iter()
                .any(|channel| channel.contains(dies.id()))
        };
        wait_until_async(SOON, "the server to know that it is gone", || !heard()).await;
        let newcomer = soon("the newcomer", newcomer.rw_lock("name").read()).await;
        let world = World::Server(Box::new(server));
        let reader = at_once("the reader behind it", &world, reader).await;
        writer.abort();
        drop((held, newcomer, reader));
    }
}

/// Bug 89: the mutex took a read-write lock by force, and neither showed that a name is the other's.
#[tokio::test]
async fn a_name_of_another_kind_is_refused_by_every_verb() {
    for world in World::all() {
        let client = world.client().await;
        let refused = |what: &str, error: leasehold::Error| {
            assert_eq!(error.kind(), ErrorKind::Rejected, "{what}: {error}");
            let said = error.to_string();
            assert!(
                said.contains("WRONGTYPE"),
                "{}: {what}: {said}",
                world.name()
            );
        };
        let written = client.rw_lock("rw").write().await.unwrap();
        refused("lock", client.mutex("rw").try_lock().await.unwrap_err());
        refused("force", client.force_unlock("rw").await.unwrap_err());
        refused("status", client.status("rw").await.unwrap_err());
        let semaphore = client.leased_semaphore("rw");
        refused("acquire", semaphore.try_acquire().await.unwrap_err());
        refused("permits", semaphore.try_set_permits(1).await.unwrap_err());
        written.verify().await.unwrap();

        let locked = client.mutex("mutex").lock().await.unwrap();
        let rw = client.rw_lock("mutex");
        refused("write", rw.try_write().await.unwrap_err());
        refused("read", rw.try_read().await.unwrap_err());
        refused("force", rw.force_unlock().await.unwrap_err());
        refused("status", rw.status().await.unwrap_err());
        locked.verify().await.unwrap();

        client
            .leased_semaphore("permits")
            .set_permits(2)
            .await
            .unwrap();
        refused(
            "lock",
            client.mutex("permits").try_lock().await.unwrap_err(),
        );
        refused(
            "read",
            client.rw_lock("permits").try_read().await.unwrap_err(),
        );
        refused("force", client.force_unlock("permits").await.unwrap_err());
    }
}
