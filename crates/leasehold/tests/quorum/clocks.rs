//! Clocks of servers that jump, in memory and in virtual time: by up to the margin they break nothing (S1).

use std::time::Duration;

use leasehold::{Client, MemoryServer};
use tokio::time::{Instant, sleep, sleep_until};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn three() -> [MemoryServer; 3] {
    std::array::from_fn(|_| MemoryServer::new())
}

async fn client(servers: &[MemoryServer]) -> Client {
    let builder = Client::builder().quorum_memory(servers);
    builder.connect().await.unwrap()
}

/// A bare majority holds for ten seconds, one server's clock jumps ahead so long after the start, and a rival asks all the time. Whether
/// two were valid.
async fn two_hold(jumps: usize, after: Duration, ahead: Duration) -> bool {
    let servers = three();
    let (holder, rival) = (client(&servers).await, client(&servers).await);
    servers[2].cut(true);
    let began = Instant::now();
    let mutex = holder.mutex("name").fixed_lease(10 * SECOND);
    let guard = mutex.lock().await.unwrap();
    servers[2].cut(false);
    sleep(3 * SECOND).await; // what waited there has been carried out
    servers[2].expire("name");
    let mutex = rival.mutex("name");
    sleep(after).await;
    servers[jumps].step_clock(ahead);
    // Nothing ends before that.
    sleep_until(began + 9 * SECOND).await;
    loop {
        if let Some(second) = mutex.try_lock().await.unwrap() {
            return second.is_valid() && guard.is_valid();
        }
        sleep(MS).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_jumps_by_a_hundredth_of_the_lease_gives_no_second_holder() {
    for jumps in 0..3 {
        for after in 0..10 {
            let after = after * 500 * MS;
            let two = two_hold(jumps, after, 100 * MS).await;
            assert!(!two, "server {jumps}, after {after:?}");
        }
    }
}

/// So that the test above can see it.
#[tokio::test(start_paused = true)]
async fn a_clock_that_jumps_by_more_than_the_margin_gives_a_second_holder() {
    let mut found = 0;
    for jumps in [0, 1] {
        for after in 0..5 {
            let two = two_hold(jumps, after * SECOND, 500 * MS).await;
            found += u32::from(two);
        }
    }
    assert!(found > 0);
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_renews_keeps_its_lock_while_a_clock_jumps_once_in_each_lease() {
    let lease = 3 * SECOND;
    let servers = three();
    let (holder, rival) = (client(&servers).await, client(&servers).await);
    let guard = holder.mutex("name").lease(lease).lock().await.unwrap();
    for round in 0..50 {
        sleep(lease).await;
        servers[round % 3].step_clock(lease / 100);
        assert!(rival.mutex("name").try_lock().await.unwrap().is_none());
        assert!(guard.is_valid(), "round {round}");
    }
    guard.release().await.unwrap();
}
