//! The service without a lock server: locks in memory, a real database, and a clock that is paused where time is to pass.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, to_bytes},
    http::{Request, StatusCode, header::RETRY_AFTER},
};
use futures_util::FutureExt;
use leasehold::{Client, MemoryServer};
use leasehold_service::{App, Bank, data, jobs};
use leasehold_testkit::wait_until_async;
use tempfile::TempDir;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinHandle,
    time::{pause, resume, sleep, timeout},
};
use tower::ServiceExt;

/// Shared by all processes of the service: a lock server, and a database.
struct Shared {
    server: MemoryServer,
    dir: TempDir,
}

impl Shared {
    fn new() -> Shared {
        Shared {
            server: MemoryServer::new(),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// A process of the service.
    async fn process(&self, bank: &Bank) -> App {
        let locks = Client::builder().memory(&self.server).connect();
        let database = self.dir.path().join("service.sqlite");
        App {
            locks: locks.await.unwrap(),
            db: data::open(&database).await.unwrap(),
            bank: Arc::clone(bank),
        }
    }
}

/// A bank that answers when the test lets it.
struct Gate {
    arrived: Semaphore,
    open: Semaphore,
}

impl Gate {
    fn new() -> Arc<Gate> {
        Arc::new(Gate {
            arrived: Semaphore::new(0),
            open: Semaphore::new(0),
        })
    }

    fn bank(self: &Arc<Gate>) -> Bank {
        let gate = Arc::clone(self);
        Arc::new(move |_| {
            let gate = Arc::clone(&gate);
            async move {
                gate.arrived.add_permits(1);
                gate.open.acquire().await.unwrap().forget();
            }
            .boxed()
        })
    }

    /// Until one more payment waits here.
    async fn arrived(&self) {
        self.arrived.acquire().await.unwrap().forget();
    }

    /// Lets one payment through.
    fn open(&self) {
        self.open.add_permits(1);
    }
}

fn quick_bank() -> Bank {
    Arc::new(|_| async {}.boxed())
}

/// The answer to `POST /orders/{id}/pay`.
#[derive(Debug, PartialEq)]
struct Answer {
    status: StatusCode,
    retry_after: Option<String>,
    body: String,
}

impl Answer {
    fn ok(body: &str) -> Answer {
        Answer {
            status: StatusCode::OK,
            retry_after: None,
            body: body.to_owned(),
        }
    }

    fn later(status: StatusCode, body: &str) -> Answer {
        Answer {
            status,
            retry_after: Some("1".to_owned()),
            body: body.to_owned(),
        }
    }
}

async fn pay(app: &App, id: i64) -> Answer {
    let request = Request::post(format!("/orders/{id}/pay")).body(Body::empty());
    let router = app.clone().router();
    let response = router.oneshot(request.unwrap()).await.unwrap();
    let retry_after = response.headers().get(RETRY_AFTER);
    Answer {
        status: response.status(),
        retry_after: retry_after.map(|value| value.to_str().unwrap().to_owned()),
        body: {
            let body = to_bytes(response.into_body(), 4096).await.unwrap();
            String::from_utf8(body.into()).unwrap()
        },
    }
}

fn pay_beside(app: &App, id: i64) -> JoinHandle<Answer> {
    let app = app.clone();
    tokio::spawn(async move { pay(&app, id).await })
}

async fn paid(app: &App) -> i64 {
    let count = sqlx::query_scalar("SELECT count(*) FROM orders");
    count.fetch_one(&app.db).await.unwrap()
}

/// Waits until an order is shipped; says in which term.
async fn shipped(app: &App, id: i64) -> i64 {
    let look = "SELECT shipped_in_term FROM orders WHERE id = $1";
    let shipped = async {
        loop {
            let term = sqlx::query_scalar(look).bind(id).fetch_one(&app.db);
            if let Some(term) = term.await.unwrap() {
                return term;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    let most = Duration::from_secs(20);
    timeout(most, shipped).await.expect("it is shipped")
}

/// Lets time pass at once. A paused clock does not wait for a database, so no query may be under way.
async fn pass(time: Duration) {
    pause();
    sleep(time).await;
    resume();
}

#[tokio::test]
async fn of_two_requests_at_once_one_pays() {
    let (shared, gate) = (Shared::new(), Gate::new());
    let here = shared.process(&gate.bank()).await;
    let there = shared.process(&gate.bank()).await;

    let first = pay_beside(&here, 42);
    gate.arrived().await;
    let busy = Answer::later(StatusCode::CONFLICT, "being paid already\n");
    assert_eq!(pay(&there, 42).await, busy);

    gate.open();
    assert_eq!(first.await.unwrap(), Answer::ok("order 42 is paid\n"));
    let again = Answer::ok("order 42 was paid before\n");
    assert_eq!(pay(&there, 42).await, again);
    assert_eq!(paid(&here).await, 1);
}

#[tokio::test]
async fn a_payment_stops_before_its_lock_is_lost() {
    let (shared, gate) = (Shared::new(), Gate::new());
    let mut app = shared.process(&gate.bank()).await; // opens the pool, while the clock runs
    let lease = Duration::from_secs(3); // less than the bank may take
    let locks = Client::builder().memory(&shared.server).lease(lease);
    app.locks = locks.connect().await.unwrap();

    let payment = pay_beside(&app, 42);
    gate.arrived().await;
    shared.server.cut(true); // from here on no renewal gets through
    pause();
    let answer = payment.await.unwrap();
    let names = shared.server.names();
    resume();

    let failed = Answer::later(StatusCode::SERVICE_UNAVAILABLE, "try again\n");
    assert_eq!(answer, failed);
    assert_eq!(names, ["order:42"], "no other process can have it yet");
    assert_eq!(paid(&app).await, 0);
}

/// axum drops the handler then, and the caller may ask again.
#[tokio::test]
async fn a_caller_that_hangs_up_gives_the_lock_back() {
    let (shared, gate) = (Shared::new(), Gate::new());
    let app = shared.process(&gate.bank()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serve = axum::serve(listener, app.clone().router());
    let serve = tokio::spawn(serve.into_future());

    let mut caller = TcpStream::connect(address).await.unwrap();
    let request = b"POST /orders/42/pay HTTP/1.1\r\nhost: service\r\n\r\n";
    caller.write_all(request).await.unwrap();
    gate.arrived().await;
    drop(caller);
    let free = || shared.server.names().is_empty();
    let soon = Duration::from_secs(4); // before the bank's time is up
    wait_until_async(soon, "the lock is free", free).await;

    gate.open();
    assert_eq!(pay(&app, 42).await, Answer::ok("order 42 is paid\n"));
    serve.abort();
}

#[tokio::test]
async fn the_database_refuses_a_holder_that_comes_too_late() {
    let shared = Shared::new();
    let (late_bank, next_bank) = (Gate::new(), Gate::new());
    let late = shared.process(&late_bank.bank()).await;
    let next = shared.process(&next_bank.bank()).await;

    let late = pay_beside(&late, 42);
    late_bank.arrived().await;
    assert!(shared.server.expire("order:42")); // the server forgets the holder, as at a failover
    let payment = pay_beside(&next, 42);
    next_bank.arrived().await;

    late_bank.open(); // and the first one writes before the second
    let failed = Answer::later(StatusCode::SERVICE_UNAVAILABLE, "try again\n");
    assert_eq!(late.await.unwrap(), failed);
    assert_eq!(paid(&next).await, 0);
    next_bank.open();
    assert_eq!(payment.await.unwrap(), Answer::ok("order 42 is paid\n"));
}

#[tokio::test]
async fn one_process_writes_the_report_of_each_hour() {
    let (shared, bank) = (Shared::new(), quick_bank());
    let here = shared.process(&bank).await;
    let there = shared.process(&bank).await;

    assert_eq!(jobs::report(&here).await.unwrap(), Some(0));
    pay(&here, 42).await;
    assert_eq!(jobs::report(&there).await.unwrap(), None);
    pass(Duration::from_hours(1)).await;
    assert_eq!(jobs::report(&there).await.unwrap(), Some(1));
    assert_eq!(jobs::report(&here).await.unwrap(), None);
}

#[tokio::test]
async fn one_process_ships_and_another_takes_over() {
    let (shared, bank) = (Shared::new(), quick_bank());
    let here = shared.process(&bank).await;
    let there = shared.process(&bank).await;

    let leader = tokio::spawn(jobs::ship(here.clone()));
    pay(&there, 42).await;
    let first = shipped(&there, 42).await;
    let standby = tokio::spawn(jobs::ship(there.clone()));
    pay(&here, 43).await;
    assert_eq!(shipped(&here, 43).await, first, "in the same term");

    leader.abort(); // its lead is given back
    pay(&there, 44).await;
    assert!(shipped(&there, 44).await > first);
    standby.abort();
}
