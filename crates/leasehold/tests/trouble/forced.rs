//! A hold that another process ends by force, while a task of the holder's own process waits for the lock: both are told at once.

use leasehold::Client;
use leasehold_testkit::Server;

use crate::common::{
    few_or,
    forced::{both, told_in_time},
    servers,
};

/// By a handle of the same kind, and by the name alone.
macro_rules! kind {
    ($server:expr, $kind:ident, $take:ident, $next:ident, $force:expr) => {{
        let client = &Client::connect(&$server.url()).await.unwrap();
        let other = &Client::connect(&$server.url()).await.unwrap();
        let what = concat!(
            stringify!($kind),
            " ",
            stringify!($take),
            " ",
            stringify!($force)
        );
        let what = format!("{}, {what}", $server.flavor());
        told_in_time(&what, (client, other), async || {
            let lock = client.$kind("name");
            let guard = lock.$take().await.unwrap();
            let next = async move {
                let next = lock.$next().await.unwrap();
                drop(next);
            };
            let lost = async move { guard.lost().await };
            let force = $force;
            both(lost, next, force(other.clone())).await
        })
        .await;
    }};
}

async fn by_name(other: Client) -> bool {
    other.force_unlock("name").await.unwrap()
}

macro_rules! by_handle {
    ($kind:ident) => {
        async |other: Client| other.$kind("name").force_unlock().await.unwrap()
    };
}

async fn each_kind(server: &Server) {
    kind!(server, mutex, lock, lock, by_handle!(mutex));
    kind!(server, mutex, lock, lock, by_name);
    kind!(server, fenced_mutex, lock, lock, by_handle!(fenced_mutex));
    kind!(server, plain_mutex, lock, lock, by_handle!(plain_mutex));
    kind!(server, spin_mutex, lock, lock, by_handle!(spin_mutex));
    kind!(server, spin_mutex, lock, lock, by_name);
    kind!(server, fair_mutex, lock, lock, by_handle!(fair_mutex));
    kind!(server, fair_mutex, lock, lock, by_name);
    kind!(server, rw_lock, write, write, by_handle!(rw_lock));
    kind!(server, rw_lock, write, read, by_handle!(rw_lock));
    kind!(server, rw_lock, read, write, by_handle!(rw_lock));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_holder_and_the_next_of_its_process_are_told_at_once_of_each_kind() {
    for server in few_or(servers().into_iter().take(1).collect(), servers()) {
        each_kind(&server).await;
        let client = &Client::connect(&server.url()).await.unwrap();
        let other = &Client::connect(&server.url()).await.unwrap();
        told_in_time("permits", (client, other), async || {
            let semaphore = client.leased_semaphore("permits").permits(1);
            let guard = semaphore.acquire().await.unwrap();
            let next = async move { drop(semaphore.acquire().await.unwrap()) };
            let lost = async move { guard.lost().await };
            let force = async {
                let semaphore = other.leased_semaphore("permits").permits(1);
                semaphore.force_unlock().await.unwrap()
            };
            both(lost, next, force).await
        })
        .await;
    }
}
