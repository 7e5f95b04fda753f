//! A shop whose bank says yes when the test lets it.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]

use std::{path::PathBuf, sync::Arc};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, StatusCode},
};
use futures_util::FutureExt;
use leasehold::Client;
use leasehold_shop::{Bank, Shop, Stock};
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tower::ServiceExt;

/// How many umbrellas there are at first.
pub const UMBRELLAS: u32 = 10;

/// The database that all processes of a shop share.
pub struct Shelf(TempDir);

impl Shelf {
    pub fn new() -> Shelf {
        Shelf(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("shop.sqlite")
    }

    /// A further process of the shop.
    pub fn open(&self, client: &Client, bank: &Bank) -> Router {
        let stock = Stock::open(&self.path(), UMBRELLAS).unwrap();
        let (client, bank) = (client.clone(), Arc::clone(bank));
        Shop {
            client,
            stock,
            bank,
        }
        .router()
    }

    /// The umbrellas that were sold, with their buyers, and how many are left.
    pub fn books(&self) -> (Vec<(u32, String)>, u32) {
        let db = rusqlite::Connection::open(self.path()).unwrap();
        let mut sales = db.prepare("SELECT umbrella, buyer FROM sales").unwrap();
        let sales = sales.query_map((), |row| Ok((row.get(0)?, row.get(1)?)));
        let left = db.query_row("SELECT umbrellas FROM stock", (), |row| row.get(0));
        (sales.unwrap().map(Result::unwrap).collect(), left.unwrap())
    }

    /// No umbrella was sold twice, and the buyers who have one are those that were told so.
    pub fn assert_honest(&self, answers: &[Answer]) {
        let (sales, left) = self.books();
        let mut numbers: Vec<u32> = sales.iter().map(|sale| sale.0).collect();
        numbers.sort_unstable();
        let expected: Vec<u32> = (left + 1..=UMBRELLAS).collect();
        assert_eq!(
            numbers, expected,
            "each umbrella that is gone, once: {sales:?}"
        );
        let mut have: Vec<&str> = sales.iter().map(|sale| &*sale.1).collect();
        let told = answers.iter().filter(|answer| answer.sold());
        let mut told: Vec<&str> = told.map(|answer| &*answer.buyer).collect();
        have.sort_unstable();
        told.sort_unstable();
        assert_eq!(have, told, "{answers:?}");
    }
}

/// The answer of the shop to a buyer.
#[derive(Debug)]
pub struct Answer {
    pub buyer: String,
    pub status: StatusCode,
    pub body: String,
}

impl Answer {
    pub fn sold(&self) -> bool {
        self.status == StatusCode::OK
    }
}

/// `POST /buy`. Each buyer has a name of its own.
pub async fn buy(shop: &Router, buyer: &str) -> Answer {
    let request = Request::post("/buy").body(Body::from(buyer.to_owned()));
    let response = shop.clone().oneshot(request.unwrap()).await.unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), 4096).await.unwrap();
    Answer {
        buyer: buyer.to_owned(),
        status,
        body: String::from_utf8(body.into()).unwrap(),
    }
}

/// `POST /buy` with an `Idempotency-Key`: the answer, and its `Retry-After`.
pub async fn buy_once(shop: &Router, buyer: &str, key: &str) -> (Answer, Option<String>) {
    let request = Request::post("/buy").header("idempotency-key", key);
    let request = request.body(Body::from(buyer.to_owned()));
    let response = shop.clone().oneshot(request.unwrap()).await.unwrap();
    let status = response.status();
    let wait = response.headers().get("retry-after");
    let wait = wait.map(|wait| wait.to_str().unwrap().to_owned());
    let body = to_bytes(response.into_body(), 4096).await.unwrap();
    let answer = Answer {
        buyer: buyer.to_owned(),
        status,
        body: String::from_utf8(body.into()).unwrap(),
    };
    (answer, wait)
}

/// A bank at which payments wait until the test lets them through.
pub struct Gate {
    arrived: Semaphore,
    open: Semaphore,
}

impl Gate {
    pub fn new() -> Arc<Gate> {
        Arc::new(Gate {
            arrived: Semaphore::new(0),
            open: Semaphore::new(0),
        })
    }

    pub fn bank(self: &Arc<Self>) -> Bank {
        let gate = Arc::clone(self);
        Arc::new(move |_| {
            let gate = Arc::clone(&gate);
            async move {
                gate.arrived.add_permits(1);
                gate.open.acquire().await.unwrap().forget();
                true
            }
            .boxed()
        })
    }

    /// Until one more payment waits here.
    pub async fn arrived(&self) {
        self.arrived.acquire().await.unwrap().forget();
    }

    /// Lets one payment through.
    pub fn open(&self) {
        self.open.add_permits(1);
    }
}

/// A bank that says yes at once.
pub fn quick_bank() -> Bank {
    Arc::new(|_| async { true }.boxed())
}
