//! Java unlocks a lock of ours by force, while a task of the holder's own process waits for it: both are told at once.

use std::time::Duration;

use leasehold::Client;

use crate::common::{
    few_or,
    forced::{both, told_in_time},
    redisson::Redisson,
    servers,
};

const LEASE: Duration = Duration::from_secs(30);

macro_rules! kind {
    ($server:expr, $java:expr, $kind:ident, $take:ident, $order:expr) => {{
        let client = &Client::connect(&$server.url()).await.unwrap();
        let other = &Client::connect(&$server.url()).await.unwrap();
        told_in_time($order, (client, other), async || {
            let lock = client.$kind("name");
            let guard = lock.$take().await.unwrap();
            let next = async move { drop(lock.$take().await.unwrap()) };
            let lost = async move { guard.lost().await };
            both(lost, next, async { $java.obey($order).await == "true" }).await
        })
        .await;
    }};
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_holder_and_the_next_of_its_process_are_told_at_once_of_each_kind() {
    for server in few_or(servers().into_iter().take(1).collect(), servers()) {
        let mut java = Redisson::start(&server, LEASE).await;
        kind!(server, java, mutex, lock, "force name");
        kind!(server, java, fenced_mutex, lock, "fenced name force");
        kind!(server, java, spin_mutex, lock, "spin force name");
        kind!(server, java, rw_lock, write, "write force name");
        kind!(server, java, fair_mutex, lock, "fair force name");
    }
}
