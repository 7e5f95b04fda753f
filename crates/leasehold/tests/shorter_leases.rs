//! A holder that a release has chosen may die at once, under a lease that is over sooner than the one before it would have been. Those
//! that wait were told of that one (L1).

mod common;

use std::time::{Duration, Instant};

use common::{World, soon};
use leasehold::{Client, Status};

const LONG: Duration = Duration::from_secs(25);
const SHORT: Duration = Duration::from_millis(400);

/// Far from the poll interval, which is 10 s and more.
const AT_MOST: Duration = Duration::from_millis(1_500);

async fn until_waiting(clients: u64, look: impl AsyncFn() -> Status) {
    soon("they wait", async {
        while look().await.waiting_clients < clients {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// `$first` holds for long; `$next` is to die; `$last` waits behind it. All as expressions of a client.
macro_rules! last_is_served {
    ($world:expr, $status:ident, $first:expr, $next:expr, $last:expr) => {{
        let connect = async || $world.builder().connect().await.unwrap();
        let clients: [Client; 3] = [connect().await, connect().await, connect().await];
        let look = async || clients[0].$status("name").status().await.unwrap();
        let first = $first(&clients[0]).await.unwrap();
        let next = tokio::spawn($next(&clients[1]));
        until_waiting(1, look).await;
        let last = tokio::spawn($last(&clients[2]));
        until_waiting(2, look).await;
        first.release().await.unwrap();
        let dead = soon("the next has it", next).await.unwrap().unwrap();
        drop(dead.detach()); // as if its process had died: nobody gives it back
        let since = Instant::now();
        let last = soon("the last has it", last).await.unwrap().unwrap();
        let late = since.elapsed();
        println!("{} {}: {late:?}", $world.name(), stringify!($status));
        assert!(late < AT_MOST, "{}: {late:?}", $world.name());
        last.release().await.unwrap();
    }};
}

macro_rules! kind {
    ($test:ident, $kind:ident) => {
        #[tokio::test]
        async fn $test() {
            for world in World::all() {
                last_is_served!(
                    world,
                    $kind,
                    |client: &Client| client.$kind("name").fixed_lease(LONG).lock(),
                    |client: &Client| client.$kind("name").fixed_lease(SHORT).lock(),
                    |client: &Client| client.$kind("name").lock()
                );
            }
        }
    };
}

kind!(who_waits_for_a_mutex_hears_of_a_shorter_lease, mutex);
kind!(who_waits_for_a_fenced_mutex_hears_of_it, fenced_mutex);
kind!(who_waits_for_a_plain_mutex_hears_of_it, plain_mutex);
kind!(who_waits_for_a_fair_mutex_hears_of_it, fair_mutex);

#[tokio::test]
async fn a_writer_hears_of_a_reader_with_a_shorter_lease() {
    for world in World::all() {
        last_is_served!(
            world,
            rw_lock,
            |client: &Client| client.rw_lock("name").fixed_lease(LONG).write(),
            |client: &Client| client.rw_lock("name").fixed_lease(SHORT).read(),
            |client: &Client| client.rw_lock("name").write()
        );
    }
}

#[tokio::test]
async fn a_reader_hears_of_a_writer_with_a_shorter_lease() {
    for world in World::all() {
        last_is_served!(
            world,
            rw_lock,
            |client: &Client| client.rw_lock("name").fixed_lease(LONG).write(),
            |client: &Client| client.rw_lock("name").fixed_lease(SHORT).write(),
            |client: &Client| client.rw_lock("name").read()
        );
    }
}

#[tokio::test]
async fn a_writer_hears_of_a_reader_that_leaves_one_with_a_shorter_lease() {
    for world in World::all() {
        let connect = async || world.builder().connect().await.unwrap();
        let clients: [Client; 3] = [connect().await, connect().await, connect().await];
        let lock = clients.each_ref().map(|client| client.rw_lock("name"));
        let long = lock[0].clone().fixed_lease(LONG).read().await.unwrap();
        let short = lock[1].clone().fixed_lease(SHORT).read().await.unwrap();
        let last = tokio::spawn(lock[2].write());
        until_waiting(1, async || lock[0].status().await.unwrap()).await;
        drop(short.detach());
        let since = Instant::now();
        long.release().await.unwrap();
        let last = soon("the last has it", last).await.unwrap().unwrap();
        assert!(
            since.elapsed() < AT_MOST,
            "{}: {:?}",
            world.name(),
            since.elapsed()
        );
        drop(last);
    }
}

#[tokio::test]
async fn who_waits_hears_of_it_when_the_name_was_unlocked_by_force() {
    for world in World::all() {
        let connect = async || world.builder().connect().await.unwrap();
        let clients: [Client; 3] = [connect().await, connect().await, connect().await];
        let mutex = clients.each_ref().map(|client| client.mutex("name"));
        let look = async || mutex[0].status().await.unwrap();
        let first = mutex[0].clone().fixed_lease(LONG).lock().await.unwrap();
        let next = tokio::spawn(mutex[1].clone().fixed_lease(SHORT).lock());
        until_waiting(1, look).await;
        let last = tokio::spawn(mutex[2].lock());
        until_waiting(2, look).await;
        assert!(mutex[2].force_unlock().await.unwrap());
        let dead = soon("the next has it", next).await.unwrap().unwrap();
        drop(dead.detach());
        let since = Instant::now();
        let last = soon("the last has it", last).await.unwrap().unwrap();
        assert!(
            since.elapsed() < AT_MOST,
            "{}: {:?}",
            world.name(),
            since.elapsed()
        );
        drop((first, last));
    }
}
