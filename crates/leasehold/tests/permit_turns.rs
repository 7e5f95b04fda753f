//! Permits are raced for: a client that has just given some back leaves them to others for a moment.

mod common;

use std::time::{Duration, Instant};

use common::servers;
use futures_util::future::join_all;
use leasehold::Client;

const TIME: Duration = Duration::from_secs(2);
const HELD: Duration = Duration::from_millis(3);

/// Takes the one permit again and again: how often.
macro_rules! contend {
    ($client:expr, $kind:ident, $end:expr) => {{
        let semaphore = $client.$kind("name");
        let end = $end;
        tokio::spawn(async move {
            let mut taken = 0_u32;
            while Instant::now() < end {
                let guard = semaphore.acquire().await.unwrap();
                tokio::time::sleep(HELD).await;
                guard.release().await.unwrap();
                taken += 1;
            }
            taken
        })
    }};
}

/// How often eight tasks of a client got the one permit, and how often one task of another client.
macro_rules! shares {
    ($server:expr, $kind:ident) => {{
        let many = Client::connect(&$server.url()).await.unwrap();
        let single = Client::connect(&$server.url()).await.unwrap();
        let semaphore = many.$kind("name");
        assert!(semaphore.try_set_permits(1).await.unwrap());
        let end = Instant::now() + TIME;
        let one = contend!(single, $kind, end);
        let eight = join_all((0..8).map(|_| contend!(many, $kind, end))).await;
        let one = one.await.unwrap();
        let eight: u32 = eight.into_iter().map(Result::unwrap).sum();
        println!(
            "{} {}: eight tasks {eight}, one of another client {one}",
            $server.flavor(),
            stringify!($kind)
        );
        (eight, one)
    }};
}

/// Before, the one got none at all in ten runs of twelve: the message that a permit is free wakes the client that sent it, too.
#[tokio::test]
async fn a_client_with_many_tasks_does_not_starve_another_of_permits() {
    for server in servers() {
        let (eight, one) = shares!(server, semaphore);
        assert!(one >= eight / 40, "{one} beside {eight}");
    }
    for server in servers() {
        let (eight, one) = shares!(server, leased_semaphore);
        assert!(one >= eight / 40, "{one} beside {eight}");
    }
}
