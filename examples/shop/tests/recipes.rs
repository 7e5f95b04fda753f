//! The recipes of the README: what stands there stands here as well (`tests/house/links.rs` of the library compares them), and does what it
//! says.

use std::{
    future::pending,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    http::{Request, StatusCode},
    routing::post,
};
use leasehold::{Client, Error, Term};
use tower::ServiceExt;

async fn memory() -> Result<Client, Error> {
    let server = leasehold::MemoryServer::new();
    let client = Client::builder().memory(&server).connect().await?;
    Ok(client)
}

// One at a time per order, in axum.

static AT_ONCE: AtomicUsize = AtomicUsize::new(0);

async fn charge(id: u64) -> String {
    assert_eq!(AT_ONCE.fetch_add(1, SeqCst), 0, "two at once");
    tokio::time::sleep(Duration::from_secs(4)).await;
    AT_ONCE.fetch_sub(1, SeqCst);
    format!("order {id} is paid")
}

async fn pay(State(locks): State<Client>, Path(id): Path<u64>) -> Result<String, StatusCode> {
    let order = locks.mutex(format!("order:{id}"));
    let paid = order.run_for(Duration::from_secs(5), charge(id)).await;
    paid.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?
        .ok_or(StatusCode::CONFLICT)
}

#[tokio::test(start_paused = true)]
async fn an_order_is_paid_by_one_request_at_a_time() {
    let app = Router::new()
        .route("/pay/{id}", post(pay))
        .with_state(memory().await.unwrap());
    let ask = || async {
        let request = Request::post("/pay/42").body(Body::empty()).unwrap();
        app.clone().oneshot(request).await.unwrap().status()
    };
    // The second waits for 4 s. The third would have to wait for 8.
    let answers = tokio::join!(ask(), ask(), ask());
    assert_eq!(
        answers,
        (StatusCode::OK, StatusCode::OK, StatusCode::CONFLICT)
    );
}

// One line that locks.

#[derive(Debug, PartialEq)]
enum Sold {
    One,
    TryLater,
}

async fn take(_id: u64) -> Result<Sold, Error> {
    tokio::time::sleep(Duration::from_secs(6)).await;
    Ok(Sold::One)
}

#[leasehold::locked("order:{id}", wait = "5s", busy = Ok(Sold::TryLater))]
async fn sell(id: u64) -> Result<Sold, Error> {
    take(id).await
}

#[tokio::test(start_paused = true)]
async fn what_is_sold_by_another_for_longer_than_the_wait_is_tried_later() {
    let client = memory().await.unwrap();
    let both = async { tokio::join!(sell(42), sell(42)) };
    let (one, other) = client.scope(both).await;
    assert_eq!((one.unwrap(), other.unwrap()), (Sold::One, Sold::TryLater));
}

// A leader.

static TERMS: AtomicUsize = AtomicUsize::new(0);

async fn schedule(term: Term) {
    assert!(term.is_valid());
    TERMS.fetch_add(1, SeqCst);
    pending::<()>().await;
}

async fn lead(client: Client) -> Result<(), Error> {
    let election = client.election("scheduler").value("10.0.0.7:8080");
    election.run(schedule).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_has_lost_its_lease_stands_again() {
    let client = memory().await.unwrap();
    let leader = tokio::spawn(lead(client.clone()));
    for term in 1..=3 {
        while TERMS.load(SeqCst) < term {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let name = client.fenced_mutex("scheduler");
        assert!(name.force_unlock().await.unwrap());
    }
    leader.abort();
}

// Two exports at a time.

async fn export(client: &Client) -> Result<leasehold::PermitGuard, Error> {
    let exports = client.leased_semaphore("exports").permits(2);
    let permit = exports.acquire().await?;
    Ok(permit)
}

#[tokio::test(start_paused = true)]
async fn two_export_at_a_time() {
    let client = memory().await.unwrap();
    let (_one, two) = (
        export(&client).await.unwrap(),
        export(&client).await.unwrap(),
    );
    let third = tokio::time::timeout(Duration::from_secs(60), export(&client)).await;
    assert!(third.is_err());
    two.release().await.unwrap();
    drop(export(&client).await.unwrap());
}
