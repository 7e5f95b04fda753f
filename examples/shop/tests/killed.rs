//! The lock server is killed at each moment of a purchase: no umbrella is sold twice, and no sale is reported as failed.

mod common;

use std::{sync::Arc, time::Duration};

use axum::{Router, http::StatusCode};
use common::{Answer, Gate, Shelf, buy, quick_bank};
use leasehold::Client;
use leasehold_testkit::{Flavor, Server, wait_until_async};

const LOCK: &str = "stock:umbrella";
const SOON: Duration = Duration::from_secs(20);

struct Street {
    server: Server,
    shelf: Shelf,
    gate: Arc<Gate>,
    /// A process of the shop, whose payments wait at the gate.
    here: Router,
    /// Another process, whose payments do not.
    there: Router,
    answers: Vec<Answer>,
}

impl Street {
    async fn open() -> Street {
        let server = Server::start(Flavor::Redis);
        let (shelf, gate) = (Shelf::new(), Gate::new());
        let client = async || Client::connect(&server.url()).await.unwrap();
        let here = shelf.open(&client().await, &gate.bank());
        let there = shelf.open(&client().await, &quick_bank());
        Street {
            server,
            shelf,
            gate,
            here,
            there,
            answers: Vec::new(),
        }
    }

    /// Ada comes here, and her purchase goes as far as the bank.
    async fn ada_is_at_the_bank(&self) -> tokio::task::JoinHandle<Answer> {
        let here = self.here.clone();
        let ada = tokio::spawn(async move { buy(&here, "ada").await });
        self.gate.arrived().await;
        ada
    }

    fn hear(&mut self, answer: Answer) -> bool {
        let sold = answer.sold();
        assert!(
            sold || answer.status == StatusCode::SERVICE_UNAVAILABLE,
            "{answer:?}"
        );
        self.answers.push(answer);
        self.shelf.assert_honest(&self.answers);
        sold
    }

    /// A new server is there, which knows of no lock, and buyers come to both processes until each has sold one more.
    async fn business_goes_on(mut self) {
        self.server.restart();
        for (shop, is_here) in [(self.here.clone(), true), (self.there.clone(), false)] {
            let begun = std::time::Instant::now();
            for number in 0.. {
                assert!(begun.elapsed() < SOON, "{:?}", self.answers);
                if is_here {
                    self.gate.open();
                }
                let answer = buy(&shop, &format!("{is_here} {number}")).await;
                if self.hear(answer) {
                    break;
                }
            }
        }
    }
}

#[tokio::test]
async fn killed_before_the_request_nothing_is_sold() {
    let mut street = Street::open().await;
    street.server.kill();
    let bob = buy(&street.there, "bob").await;
    assert!(!street.hear(bob));
    street.business_goes_on().await;
}

#[tokio::test]
async fn killed_while_a_buyer_waits_for_the_lock_nothing_is_sold() {
    let mut street = Street::open().await;
    let rival = Client::connect(&street.server.url()).await.unwrap();
    let guard = rival.fenced_mutex(LOCK).lock().await.unwrap();
    let there = street.there.clone();
    let bob = tokio::spawn(async move { buy(&there, "bob").await });
    let queue = format!("leasehold:{{{LOCK}}}:fenced:queue");
    wait_until_async(SOON, "bob waits", || {
        street.server.cli(&["EXISTS", &queue]) == redis::Value::Int(1)
    })
    .await;
    street.server.kill();
    assert!(!street.hear(bob.await.unwrap()));
    drop(guard);
    street.business_goes_on().await;
}

#[tokio::test]
async fn killed_during_the_work_the_sale_is_made_and_reported() {
    let mut street = Street::open().await;
    let ada = street.ada_is_at_the_bank().await;
    street.server.kill();
    street.gate.open();
    assert!(street.hear(ada.await.unwrap()));
    street.business_goes_on().await;
}

/// The server forgets that Ada has the lock, and another buyer gets it: the database decides by the tokens which of them buys.
#[tokio::test]
async fn killed_and_started_anew_during_the_work_the_same_umbrella_is_not_sold_to_both() {
    let mut street = Street::open().await;
    let ada = street.ada_is_at_the_bank().await;
    street.server.restart();
    let mut bought = false;
    for number in 0..20 {
        let bob = buy(&street.there, &format!("bob {number}")).await;
        bought = street.hear(bob);
        if bought {
            break;
        }
    }
    assert!(bought, "{:?}", street.answers);
    street.gate.open();
    assert!(
        !street.hear(ada.await.unwrap()),
        "bob has looked at the stock after her"
    );
    street.business_goes_on().await;
}

/// Stopped before the work ends and killed after it: the release is sent, and never carried out.
#[tokio::test]
async fn killed_between_the_work_and_the_release_the_sale_is_made_and_reported() {
    let mut street = Street::open().await;
    let ada = street.ada_is_at_the_bank().await;
    street.server.freeze();
    street.gate.open();
    assert!(street.hear(ada.await.unwrap()));
    street.server.kill();
    street.business_goes_on().await;
}

#[tokio::test]
async fn killed_after_the_release_the_sale_stays_and_the_next_buyer_is_refused() {
    let mut street = Street::open().await;
    let ada = street.ada_is_at_the_bank().await;
    street.gate.open();
    assert!(street.hear(ada.await.unwrap()));
    wait_until_async(SOON, "the lock is free", || {
        street.server.cli(&["EXISTS", LOCK]) == redis::Value::Int(0)
    })
    .await;
    street.server.kill();
    let bob = buy(&street.there, "bob").await;
    assert!(!street.hear(bob));
    street.business_goes_on().await;
}
