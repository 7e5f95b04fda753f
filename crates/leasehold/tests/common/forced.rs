//! Rounds in which a lock is unlocked by force while a task of its holder's process waits for it.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use leasehold::{Client, LostReason};

use super::{few_or, soon};

/// In so long both are told.
const AIM: Duration = Duration::from_millis(100);

/// The others' task has waited for so long, and its process listens.
const A_WHILE: Duration = Duration::from_millis(1300);

/// How long it takes until the holder is told, and until the next has it.
pub async fn both(
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

/// How long a release in the same moment takes until a client that waits for it has the name.
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

/// Plays rounds, and repeats one in which the control was late, too.
pub async fn told_in_time(
    what: &str,
    (client, other): (&Client, &Client),
    mut round: impl AsyncFnMut() -> [Duration; 2],
) {
    for _ in 0..few_or(1, 20) {
        let mut tries = 0;
        loop {
            let machine = super::late::Control::start();
            let (took, control) = tokio::join!(round(), control(client, other));
            let late = machine.end();
            println!("{what}: {took:?}, control {control:?}");
            if took.iter().all(|took| *took < AIM) {
                break;
            }
            tries += 1;
            assert!(
                control.max(late) > AIM / 10 && tries < 5,
                "{what}: the holder and the next after {took:?}, a release after {control:?}, the machine late by {late:?}"
            );
        }
    }
}
