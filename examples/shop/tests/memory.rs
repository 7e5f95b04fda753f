//! The shop without a server, on a paused clock: seconds of waiting take none.

mod common;

use std::{sync::Arc, time::Duration};

use axum::http::StatusCode;
use common::{Gate, Shelf, UMBRELLAS, buy, buy_once, quick_bank};
use futures_util::{FutureExt, future::join_all};
use leasehold::{Client, MemoryServer};
use leasehold_testkit::wait_until_async;
use tokio::time::{Instant, sleep};

const LOCK: &str = "stock:umbrella";

async fn client(server: &MemoryServer) -> Client {
    Client::builder().memory(server).connect().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn thirty_buyers_in_three_processes_buy_ten_umbrellas() {
    let (server, shelf) = (MemoryServer::new(), Shelf::new());
    let bank: leasehold_shop::Bank =
        Arc::new(|_| sleep(Duration::from_millis(100)).map(|()| true).boxed());
    let mut shops = Vec::new();
    for _ in 0..3 {
        shops.push(shelf.open(&client(&server).await, &bank));
    }
    let buyers = (0..30).map(async |number| buy(&shops[number % 3], &number.to_string()).await);
    let answers = join_all(buyers).await;

    shelf.assert_honest(&answers);
    let count = |status| {
        answers
            .iter()
            .filter(|answer| answer.status == status)
            .count()
    };
    assert_eq!(count(StatusCode::OK), UMBRELLAS as usize);
    assert_eq!(count(StatusCode::GONE), 20);
}

#[tokio::test(start_paused = true)]
async fn a_buyer_waits_two_seconds_for_a_turn_and_no_longer() {
    let (server, shelf) = (MemoryServer::new(), Shelf::new());
    let shop = shelf.open(&client(&server).await, &quick_bank());
    let rival = client(&server).await;
    let guard = rival.fenced_mutex(LOCK).lock().await.unwrap();

    let begun = Instant::now();
    let answer = buy(&shop, "ada").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.body, "not sold, try again");
    assert!((2..3).contains(&begun.elapsed().as_secs()));

    drop(guard);
    assert!(buy(&shop, "ada").await.sold());
}

#[tokio::test(start_paused = true)]
async fn a_bank_that_does_not_answer_keeps_the_lock_for_five_seconds() {
    let (server, shelf) = (MemoryServer::new(), Shelf::new());
    let client = client(&server).await;
    let (slow, quick) = (Gate::new(), quick_bank());
    let (slow, quick) = (
        shelf.open(&client, &slow.bank()),
        shelf.open(&client, &quick),
    );

    let begun = Instant::now();
    let answer = buy(&slow, "ada").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{answer:?}");
    assert_eq!(begun.elapsed().as_secs(), 5);
    let bob = buy(&quick, "bob").await;
    shelf.assert_honest(&[answer, bob]);
}

/// A holder that is cut off cannot know whether the lock is still its own, and stops before another buyer has it.
#[tokio::test(start_paused = true)]
async fn a_payment_is_cut_short_before_the_lock_is_lost() {
    let (server, shelf, gate) = (MemoryServer::new(), Shelf::new(), Gate::new());
    let lease = Duration::from_secs(3);
    let builder = Client::builder().memory(&server).lease(lease);
    let shop = shelf.open(&builder.connect().await.unwrap(), &gate.bank());

    let ada = tokio::spawn(async move { buy(&shop, "ada").await });
    gate.arrived().await;
    server.cut(true);
    let answer = ada.await.unwrap();
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(server.names(), [LOCK], "no other buyer can have it yet");
    shelf.assert_honest(&[answer]);
}

#[tokio::test(start_paused = true)]
async fn a_buyer_that_hangs_up_cuts_no_sale_in_half() {
    let (server, shelf, gate) = (MemoryServer::new(), Shelf::new(), Gate::new());
    let shop = shelf.open(&client(&server).await, &gate.bank());

    let mut ada = Box::pin(buy(&shop, "ada"));
    tokio::select! {
        answer = &mut ada => panic!("{answer:?}"),
        () = gate.arrived() => {}
    }
    drop(ada);
    gate.open();
    wait_until_async(Duration::from_secs(9), "the sale is made", || {
        server.names().is_empty()
    })
    .await;
    assert_eq!(shelf.books(), (vec![(10, "ada".to_owned())], 9));
}

#[tokio::test(start_paused = true)]
async fn a_request_with_a_key_is_carried_out_once_in_all_processes() {
    let (server, shelf, gate) = (MemoryServer::new(), Shelf::new(), Gate::new());
    let here = shelf.open(&client(&server).await, &gate.bank());
    let there = shelf.open(&client(&server).await, &gate.bank());
    let first = tokio::spawn({
        let here = here.clone();
        async move { buy_once(&here, "ada", "a-1").await }
    });
    gate.arrived().await;
    // While the first runs.
    let (again, wait) = buy_once(&there, "ada", "a-1").await;
    assert_eq!(
        (again.status, wait.as_deref()),
        (StatusCode::CONFLICT, Some("1"))
    );
    gate.open();
    let (first, _) = first.await.unwrap();
    assert!(first.sold(), "{first:?}");
    // And later: the same answer, and no second sale.
    for shop in [&here, &there] {
        let (again, _) = buy_once(shop, "ada", "a-1").await;
        assert_eq!((again.status, &again.body), (first.status, &first.body));
    }
    let (bad, _) = buy_once(&here, "ada", "{ada}").await;
    assert_eq!(bad.status, StatusCode::BAD_REQUEST);
    shelf.assert_honest(&[first]);
}

/// A caller that hangs up gives its key back no earlier than its sale is made.
#[tokio::test(start_paused = true)]
async fn a_buyer_that_hangs_up_and_asks_again_buys_once() {
    let (server, shelf, gate) = (MemoryServer::new(), Shelf::new(), Gate::new());
    let shop = shelf.open(&client(&server).await, &gate.bank());
    let hangs_up = tokio::spawn({
        let shop = shop.clone();
        async move { buy_once(&shop, "ada", "a-1").await }
    });
    gate.arrived().await;
    hangs_up.abort();
    assert!(hangs_up.await.is_err());
    let (again, _) = buy_once(&shop, "ada", "a-1").await;
    assert_eq!(again.status, StatusCode::CONFLICT);
    gate.open();
    let sold = loop {
        let (again, _) = buy_once(&shop, "ada", "a-1").await;
        if again.status != StatusCode::CONFLICT {
            break again;
        }
        sleep(Duration::from_millis(10)).await;
    };
    assert!(sold.sold(), "{sold:?}");
    shelf.assert_honest(&[sold]);
}
