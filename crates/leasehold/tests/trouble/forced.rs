//! A hold that another process ends by force, while a task of the holder's own process waits for the lock: both are told at once.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use leasehold::{Client, LostReason};
use leasehold_testkit::Server;

use crate::common::{few_or, servers, soon};

/// In so long both are told.
const AIM: Duration = Duration::from_millis(100);

/// The others' task has waited for so long, and its process listens.
const A_WHILE: Duration = Duration::from_millis(150);

/// How long it takes until the holder is told, and until the next has it.
async fn both(
    lost: impl Future<Output = LostReason> + Send + 'static,
    next: impl Future<Output = ()> + Send + 'static,
    force: impl Future<Output = bool>,
) -> [Duration; 2] {
    let next = tokio::spawn(async move {
        next.await;
        Instant::now()
    });
    let lost = tokio::spawn(async move { (lost.await, Instant::now()) });
    tokio::time::sleep(A_WHILE).await;
    let began = Instant::now();
    assert!(force.await, "it was held");
    let (reason, told) = soon("the holder is told", lost).await.unwrap();
    let has_it = soon("the next has it", next).await.unwrap();
    assert_eq!(reason, LostReason::Replaced);
    [told, has_it].map(|at| at.saturating_duration_since(began))
}

/// What a release in the same moment takes until a client that waits for it has the name.
async fn control(client: &Client, other: &Client) -> Duration {
    let guard = client.mutex("control").lock().await.unwrap();
    let next = other.mutex("control");
    let next = tokio::spawn(async move {
        drop(next.lock().await.unwrap());
        Instant::now()
    });
    tokio::time::sleep(A_WHILE).await;
    let began = Instant::now();
    guard.release().await.unwrap();
    let has_it = soon("the next has it", next).await.unwrap();
    has_it.saturating_duration_since(began)
}

/// Repeats a round in which the control was late, too.
macro_rules! told_in_time {
    ($what:expr, $client:expr, $other:expr, $round:expr) => {
        for _ in 0..few_or(1, 20) {
            let mut tries = 0;
            loop {
                let (took, control) = tokio::join!($round, control($client, $other));
                println!("{}: {took:?}, control {control:?}", $what);
                if took.iter().all(|took| *took < AIM) {
                    break;
                }
                tries += 1;
                assert!(
                    control > AIM / 4 && tries < 5,
                    "{}: the holder and the next after {took:?}, a release after {control:?}",
                    $what
                );
            }
        }
    };
}

/// By a handle of the same kind, and by the name alone.
macro_rules! kind {
    ($server:expr, $kind:ident, $take:ident, $next:ident, $force:expr) => {{
        let client = &Client::connect(&$server.url()).await.unwrap();
        let other = &Client::connect(&$server.url()).await.unwrap();
        let what = concat!(stringify!($kind), " ", stringify!($take), " ", stringify!($force));
        let what = format!("{}, {what}", $server.flavor());
        told_in_time!(what, client, other, async {
            let lock = client.$kind("name");
            let guard = lock.$take().await.unwrap();
            let next = async move {
                let next = lock.$next().await.unwrap();
                drop(next);
            };
            let lost = async move { guard.lost().await };
            let force = $force;
            both(lost, next, force(other.clone())).await
        });
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
        told_in_time!("permits", client, other, async {
            let semaphore = client.leased_semaphore("permits").permits(1);
            let guard = semaphore.acquire().await.unwrap();
            let next = async move { drop(semaphore.acquire().await.unwrap()) };
            let lost = async move { guard.lost().await };
            let force = async {
                let semaphore = other.leased_semaphore("permits").permits(1);
                semaphore.force_unlock().await.unwrap()
            };
            both(lost, next, force).await
        });
    }
}
