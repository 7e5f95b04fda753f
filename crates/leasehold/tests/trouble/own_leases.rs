//! `None` says that another has the name. A client that lost an answer, and gives up the lease that it may have brought, is no other.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use crate::common::{
    SOON, few_or, flavors,
    kinds::{AnyGuard, ROWS},
    late::unless_late_async,
    wait_until_idle,
};
use leasehold::{Client, ClientBuilder, Error, MemoryServer};
use leasehold_testkit::{Proxy, Server, Way};

/// Asks once, and gives back what it gets. Whether it got it; `None`: it was told that the name is held.
type Asks = Box<dyn Fn() -> Asked + Send>;

type Asked = Pin<Box<dyn Future<Output = Result<Option<()>, Error>> + Send>>;

async fn given_back(
    asked: impl Future<Output = Result<Option<AnyGuard>, Error>>,
) -> Result<Option<()>, Error> {
    let Some(guard) = asked.await? else {
        return Ok(None);
    };
    drop(guard.release().await);
    Ok(Some(()))
}

/// A way to ask once, by a client of its own.
struct Asker {
    way: String,
    client: Client,
    asks: Asks,
}

/// All ways, each for a name of its own.
async fn askers(builder: &ClientBuilder, most: Duration) -> Vec<Asker> {
    let mut askers = Vec::new();
    let client = || async { builder.clone().connect().await.unwrap() };
    for row in ROWS {
        for waits in [false, true] {
            let client = client().await;
            let way = format!("{row:?}, waits: {waits}");
            row.prepare(&client, &way).await;
            let lock = row.lock(&client, &way);
            let asks = move || -> Asked {
                let lock = lock.clone();
                if waits {
                    Box::pin(async move { given_back(lock.try_lock_for(most)).await })
                } else {
                    Box::pin(async move { given_back(lock.try_lock()).await })
                }
            };
            let asks = Box::new(asks);
            askers.push(Asker { way, client, asks });
        }
    }
    // A new name each time that it got one.
    let (jobs, number) = (client().await, Arc::<AtomicUsize>::default());
    let (client, first) = (jobs.clone(), fastrand::u64(..));
    let asks = move || -> Asked {
        let number = Arc::clone(&number);
        let job = jobs.mutex(format!("job {first}, {}", number.load(Ordering::Relaxed)));
        Box::pin(async move {
            let ran = job.run_once_per(Duration::from_secs(1), async {}).await?;
            number.fetch_add(ran.map_or(0, |()| 1), Ordering::Relaxed);
            Ok(ran)
        })
    };
    let (way, asks) = ("run_once_per".to_owned(), Box::new(asks));
    askers.push(Asker { way, client, asks });
    askers
}

/// Asks until it gets the name, and counts how often it was told that another has it.
async fn until_taken(asks: &Asks) -> usize {
    let mut told_held = 0;
    loop {
        let began = Instant::now();
        match asks().await {
            Ok(Some(())) => return told_held,
            Ok(None) => {
                told_held += 1;
                sleep(Duration::from_millis(1)).await;
            }
            Err(error) => {
                assert!(error.is_unreachable(), "{error}");
                // Time stands still where nothing waits.
                if began.elapsed().is_zero() {
                    sleep(Duration::from_millis(1)).await;
                }
            }
        }
    }
}

/// A pause of the server begins, all ask, and it ends. Which of them were told that the name is held.
async fn pause_beside(askers: &[Asker], pause: Duration, ends: impl FnOnce()) -> Vec<String> {
    let asked = join_all(askers.iter().map(|asker| until_taken(&asker.asks)));
    let asked = async {
        let asked = timeout(10 * pause + SOON, asked).await;
        asked.expect("the server goes on")
    };
    let ((), asked) = tokio::join!(
        async {
            sleep(pause).await;
            ends();
        },
        asked,
    );
    let told = askers
        .iter()
        .zip(asked)
        .filter(|(_, told_held)| *told_held > 0);
    told.map(|(Asker { way, .. }, times)| format!("{way}: {times} times after {pause:?}"))
        .collect()
}

/// In a fifth of a second what the operation timeout is by default.
const SHORT: Duration = Duration::from_millis(200);

/// A job was skipped by it: a pause of the server, an error, another try, and `None`.
#[tokio::test]
async fn a_name_that_only_its_client_uses_is_not_held_by_another_after_a_pause_of_the_server() {
    let (rounds, operation_timeout) = few_or((4, SHORT), (20, 10 * SHORT));
    for flavor in flavors(257) {
        let server = Server::start(flavor);
        let builder = Client::builder().url(server.url());
        let builder = builder.operation_timeout(operation_timeout);
        let askers = askers(&builder, operation_timeout / 2).await;
        // The scripts are there.
        for Asker { asks, .. } in &askers {
            until_taken(asks).await;
        }
        let mut wrong = Vec::new();
        for _ in 0..rounds {
            let pause = operation_timeout.mul_f64(0.25 + 2.75 * fastrand::f64());
            server.freeze();
            wrong.extend(pause_beside(&askers, pause, || server.thaw()).await);
        }
        let all = rounds * askers.len();
        assert!(
            wrong.is_empty(),
            "{flavor}, {} of {all}: {wrong:?}",
            wrong.len()
        );
    }
}

/// More are settled at once then than are told of at once.
#[tokio::test]
async fn nor_is_any_of_many_names_of_one_client() {
    let (names, rounds) = few_or((300, 2), (1_000, 20));
    for flavor in flavors(257) {
        let server = Server::start(flavor);
        let client = Client::builder().url(server.url()).operation_timeout(SHORT);
        let client = client.connect().await.unwrap();
        let mut askers = Vec::new();
        for name in 0..names {
            let (way, mutex) = (format!("name {name}"), client.mutex(format!("{name}")));
            let asks = move || -> Asked {
                let mutex = mutex.clone();
                Box::pin(async move {
                    let asked = if name % 2 == 0 {
                        mutex.try_lock().await
                    } else {
                        mutex.try_lock_for(SHORT / 2).await
                    };
                    let Some(guard) = asked? else {
                        return Ok(None);
                    };
                    drop(guard.release().await);
                    Ok(Some(()))
                })
            };
            let (client, asks) = (client.clone(), Box::new(asks));
            askers.push(Asker { way, client, asks });
        }
        let mut wrong = Vec::new();
        for _ in 0..rounds {
            let pause = SHORT.mul_f64(0.25 + 2.75 * fastrand::f64());
            server.freeze();
            wrong.extend(pause_beside(&askers, pause, || server.thaw()).await);
        }
        let all = rounds * names;
        assert!(
            wrong.is_empty(),
            "{flavor}, {} of {all}: {wrong:?}",
            wrong.len()
        );
    }
}

/// The same, with more pauses, and answers that are lost.
#[tokio::test(start_paused = true)]
async fn nor_after_answers_that_were_lost_or_late() {
    let (mut wrong, mut all) = (Vec::new(), 0);
    for round in 0..few_or(20, 200) {
        let server = MemoryServer::new();
        let builder = Client::builder().memory(&server);
        let most = Duration::from_millis(fastrand::u64(1..4_000));
        let askers = askers(&builder, most).await;
        all += askers.len();
        let pause = Duration::from_millis(fastrand::u64(500..6_000));
        match round % 3 {
            0 => server.drop_replies(usize::MAX),
            1 => server.delay(Duration::from_millis(fastrand::u64(800..2_200))),
            // The first requests come through, and no more.
            _ => {
                server.delay(Duration::from_millis(10));
                let server = server.clone();
                tokio::spawn(async move {
                    sleep(Duration::from_millis(15)).await;
                    server.cut(true);
                    server.drop_replies(usize::MAX);
                });
            }
        }
        let told = pause_beside(&askers, pause, || {
            server.drop_replies(0);
            server.delay(Duration::ZERO);
            server.cut(false);
        });
        wrong.extend(told.await);
        for Asker { client, .. } in &askers {
            wait_until_idle(client).await;
        }
    }
    assert!(wrong.is_empty(), "{} of {all}: {wrong:?}", wrong.len());
}

/// The time that a call adds to its bound until it has told its caller, on a machine that is not late itself.
const TELLS: Duration = Duration::from_millis(100);

/// The bounds that the pages of the verbs state, by a server that does not answer.
#[tokio::test]
async fn a_call_that_does_not_wait_for_a_holder_ends_in_its_time() {
    const WHY: Duration = Duration::from_millis(250);
    let server = Server::start(flavors(258)[0]);
    for fault in [
        "stands still",
        "hears and says nothing",
        "hangs up",
        "is gone",
        "says no",
    ] {
        let proxy = Proxy::start(server.addr());
        let builder = Client::builder().url(proxy.url()).operation_timeout(SHORT);
        let most = SHORT / 2;
        let askers = askers(&builder, most).await;
        for Asker { asks, .. } in &askers {
            until_taken(asks).await;
        }
        match fault {
            "stands still" => server.freeze(),
            "hears and says nothing" => proxy.black_hole(Some(Way::ToClient)),
            "hangs up" => proxy.lose_replies(b"EVALSHA", usize::MAX),
            "is gone" => {
                proxy.refuse(true);
                proxy.cut();
            }
            _ => drop(server.cli(&["REPLICAOF", "127.0.0.1", "1"])),
        }
        for round in 0..2 {
            let what = format!("{fault}, round {round}");
            unless_late_async(&what, TELLS, async || {
            let asked = askers.iter().map(|Asker { way, asks, .. }| async move {
                let bound = if way.contains("waits: true") { most } else { SHORT + WHY };
                // A multi-lock gives back the parts that it has.
                let more = if way.contains("Multi") { SHORT } else { Duration::ZERO };
                tokio::select! {
                    biased;
                    answer = asks() => answer.is_ok().then(|| format!("{fault}, {way}: {answer:?}")),
                    () = sleep(bound + more + TELLS) => Some(format!("{fault}, {way}: longer")),
                }
            });
            let late: Vec<_> = join_all(asked).await.into_iter().flatten().collect();
            late.is_empty().then_some(()).ok_or_else(|| format!("{late:#?}"))
            }).await;
        }
        if fault == "says no" {
            break;
        }
        server.thaw();
        proxy.heal();
        join_all(askers.iter().map(|asker| until_taken(&asker.asks))).await;
    }
}
