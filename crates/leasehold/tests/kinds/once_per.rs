//! `run_once_per`: the name stays taken for the interval from its start, whatever becomes of the work.

use std::{
    future::pending,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::common::{
    SOON, World,
    late::unless_late_async,
    process::{Job, Process, job, say},
    servers, soon, wait_until_idle,
};
use futures_util::{FutureExt, future::join_all};
use leasehold::{Client, Error, ErrorKind, MemoryServer, Mutex, Owner, Shutdown};
use leasehold_testkit::{Proxy, wait_until_async};
use tokio::time::{Instant, sleep, sleep_until};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// How much sooner than the interval a name may be free: the server counts from its grant, a test from the answer.
const EARLY: Duration = Duration::from_millis(100);

/// On a busy machine.
const LATE: Duration = Duration::from_millis(700);

#[test]
#[ignore = "a process of its own, started by the other tests"]
fn child() {
    let Some(job) = job() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let client = Client::connect(&job.url).await.unwrap();
        let work = async {
            say("works");
            pending::<()>().await;
        };
        let ran = client.mutex(&job.name).run_once_per(job.lease, work).await;
        say(&format!("{ran:?}"));
    });
}

/// Asks again and again: how long after `since` work of another client began.
async fn next_run(mutex: &Mutex, since: Instant) -> Duration {
    let run = async {
        loop {
            let asked = mutex.run_once_per(SECOND, async { since.elapsed() });
            if let Some(at) = asked.await.unwrap() {
                return at;
            }
            sleep(5 * MS).await;
        }
    };
    soon("the next run", run).await
}

#[track_caller]
fn assert_after(at: Duration, least: Duration, case: &str) {
    assert!(at + EARLY >= least, "{case}: after {at:?}, too early");
    assert!(at <= least + LATE, "{case}: after {at:?}, too late");
}

#[tokio::test]
async fn a_name_stays_taken_for_the_interval_whatever_becomes_of_the_work() {
    for world in World::all() {
        let (client, other) = (world.client().await, world.client().await);
        let endings = ["done", "failed", "panicked", "dropped"].map(|ending| {
            let (mutex, next) = (client.mutex(ending), other.mutex(ending));
            async move {
                let since = Instant::now();
                let work = async {
                    assert!(ending != "panicked", "the work panics");
                    if ending == "dropped" {
                        pending::<()>().await;
                    }
                    if ending == "failed" {
                        Err("no paper")
                    } else {
                        Ok(42)
                    }
                };
                let run = AssertUnwindSafe(mutex.run_once_per(SECOND, work)).catch_unwind();
                match (ending, tokio::time::timeout(200 * MS, run).await) {
                    ("done", Ok(Ok(ran))) => assert_eq!(ran.unwrap(), Some(Ok(42))),
                    ("failed", Ok(Ok(ran))) => assert_eq!(ran.unwrap(), Some(Err("no paper"))),
                    ("panicked", Ok(Err(_))) | ("dropped", Err(_)) => {}
                    (_, Ok(Ok(ran))) => panic!("{ending}: {ran:?}"),
                    _ => panic!("{ending}"),
                }
                let again = mutex.run_once_per(SECOND, async {}).await.unwrap();
                assert!(again.is_none(), "{ending}: again, by the same client");
                assert_after(next_run(&next, since).await, SECOND, ending);
            }
        });
        join_all(endings).await;
        drop(other);
        wait_until_idle(&client).await;
    }
}

#[tokio::test]
async fn each_kind_with_the_verb_keeps_its_name() {
    for world in World::all() {
        let (client, other) = (world.client().await, world.client().await);
        macro_rules! check {
            ($($kind:ident),+) => {
                $({
                    let (one, two) = (client.$kind(stringify!($kind)), other.$kind(stringify!($kind)));
                    let ran = one.run_once_per(SECOND, async { 42 }).await.unwrap();
                    assert_eq!(ran, Some(42), "{}", one.name());
                    for lock in [one, two] {
                        let again = lock.run_once_per(SECOND, async {}).await.unwrap();
                        assert!(again.is_none(), "{}", lock.name());
                        let locked = lock.try_lock().await.unwrap();
                        assert!(locked.is_none(), "{}: other verbs, too", lock.name());
                    }
                })+
            };
        }
        check!(mutex, fenced_mutex, plain_mutex);
        let began = Instant::now();
        let guard = soon("the end of the interval", other.mutex("mutex").lock()).await;
        assert!(guard.is_ok());
        assert!(began.elapsed() < SECOND + LATE);
    }
}

#[test]
fn no_second_run_begins_in_the_interval_of_a_holder_that_was_killed() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for server in servers() {
        let mut process = Process::start(&Job {
            what: "run".to_owned(),
            url: server.url(),
            name: "report".to_owned(),
            lease: SECOND,
        });
        process.wait_for("works");
        runtime.block_on(async {
            let since = Instant::now();
            let client = Client::connect(&server.url()).await.unwrap();
            process.kill();
            let next = next_run(&client.mutex("report"), since).await;
            assert_after(next, SECOND, "killed");
        });
    }
}

#[tokio::test]
async fn work_that_takes_longer_is_never_beside_another_even_if_it_blocks_its_runtime() {
    for world in World::all() {
        let (client, other) = (world.client().await, world.client().await);
        let working = Arc::new(AtomicBool::new(false));
        let tells = Arc::clone(&working);
        let mutex = client.mutex("report").lease(600 * MS);
        let memory = matches!(world, World::Memory(_));
        let work = async move {
            tells.store(true, Ordering::SeqCst);
            let until = Instant::now() + 2500 * MS;
            if memory {
                sleep_until(until).await;
            } else {
                // Only real leases have a thread of their own.
                std::thread::sleep(until - Instant::now());
            }
            tells.store(false, Ordering::SeqCst);
        };
        let run = mutex.run_once_per(SECOND, work);
        let run = if memory {
            tokio::spawn(run)
        } else {
            let runtime = tokio::runtime::Handle::current();
            let apart = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.spawn_blocking(move || apart.unwrap().block_on(run))
        };
        let what = "the work begins";
        wait_until_async(SOON, what, || working.load(Ordering::SeqCst)).await;
        let mut asked = 0;
        let beside = loop {
            let look = async { working.load(Ordering::SeqCst) };
            asked += 1;
            let ran = other.mutex("report").run_once_per(SECOND, look).await;
            if let Some(beside) = ran.unwrap() {
                break beside;
            }
            sleep(10 * MS).await;
        };
        assert!(!beside, "{}: beside another", world.name());
        assert!(asked > 50, "{}: asked {asked} times", world.name());
        assert_eq!(run.await.unwrap().unwrap(), Some(()), "{}", world.name());
    }
}

#[tokio::test]
async fn work_that_ends_shortly_before_the_interval_frees_the_name_at_its_end() {
    for world in World::all() {
        let (client, other) = (world.client().await, world.client().await);
        let since = Instant::now();
        // Its lease is extended after 2/3 of a second, to 9 s.
        let mutex = client.mutex("report").lease(9 * SECOND);
        let ran = mutex.run_once_per(SECOND, sleep(900 * MS)).await.unwrap();
        assert!(ran.is_some() && since.elapsed() + EARLY >= SECOND);
        let next = next_run(&other.mutex("report"), since).await;
        assert_after(next, SECOND, &world.name());
    }
}

/// Three hosts whose clocks differ by `offsets` start a job each `period`: how often it ran in each round.
async fn rounds(clients: &[Client], offsets: [Duration; 3], interval: Duration, rounds: usize) {
    // As a cron job every minute says 50 s: longer than the clocks differ, shorter than the period.
    let period = interval / 10 * 12;
    let ran: Vec<AtomicUsize> = (0..rounds).map(|_| AtomicUsize::new(0)).collect();
    let start = Instant::now() + 10 * MS;
    let hosts = clients.iter().zip(offsets).map(|(client, offset)| {
        let (mutex, ran) = (client.mutex("report"), &ran);
        async move {
            for (round, ran) in (0..).zip(ran) {
                sleep_until(start + period * round + offset).await;
                let work = async {
                    ran.fetch_add(1, Ordering::SeqCst);
                };
                mutex.run_once_per(interval, work).await.unwrap();
            }
        }
    });
    join_all(hosts).await;
    let ran: Vec<_> = ran.iter().map(|ran| ran.load(Ordering::SeqCst)).collect();
    assert_eq!(ran, vec![1; rounds]);
}

#[tokio::test(start_paused = true)]
async fn three_processes_whose_clocks_differ_run_it_once_in_each_round() {
    let memory = World::Memory(MemoryServer::new());
    let clients = [
        memory.client().await,
        memory.client().await,
        memory.client().await,
    ];
    rounds(&clients, [300 * MS, SECOND, 4 * SECOND], 5 * SECOND, 20).await;
}

#[tokio::test]
async fn three_clients_of_a_server_run_it_once_in_each_round() {
    let servers = servers();
    let all = servers.iter().map(async |server| {
        let client = async || Client::connect(&server.url()).await;
        let clients = [
            client().await.unwrap(),
            client().await.unwrap(),
            client().await.unwrap(),
        ];
        rounds(&clients, [60 * MS, 200 * MS, 800 * MS], SECOND, 4).await;
    });
    join_all(all).await;
}

#[tokio::test(start_paused = true)]
async fn work_of_twelve_seconds_under_an_interval_of_five_is_never_beside_another() {
    let memory = World::Memory(MemoryServer::new());
    let inside = AtomicUsize::new(0);
    let runs = AtomicUsize::new(0);
    let until = Instant::now() + 60 * SECOND;
    let hosts = (0..3).map(async |_| {
        let mutex = memory.client().await.mutex("report");
        while Instant::now() < until {
            let work = async {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "beside another");
                sleep(12 * SECOND).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                runs.fetch_add(1, Ordering::SeqCst);
            };
            mutex.run_once_per(5 * SECOND, work).await.unwrap();
            sleep(100 * MS).await;
        }
    });
    join_all(hosts).await;
    let runs = runs.load(Ordering::SeqCst);
    assert!((4..=6).contains(&runs), "{runs} runs in a minute");
}

#[tokio::test]
async fn a_name_that_the_callers_owner_holds_is_taken_and_a_nested_call_does_not_run() {
    for world in World::all() {
        let client = world.client().await;
        let mutex = client.mutex("report");
        let asks = async {
            let guard = mutex.lock().await.unwrap();
            let nested = mutex.run_once_per(SECOND, async {}).await.unwrap();
            assert!(nested.is_none());
            guard.release().await.unwrap();
            let nested = async { mutex.run_once_per(SECOND, async {}).await };
            let ran = mutex.run_once_per(SECOND, nested).await.unwrap();
            assert_eq!(ran.unwrap().unwrap(), None);
        };
        Owner::new().scope(asks).await;
    }
}

#[tokio::test]
async fn work_whose_name_is_taken_away_is_dropped_and_says_so() {
    for world in World::all() {
        let (client, other) = (world.client().await, world.client().await);
        let mutex = client.mutex("report");
        let work = async {
            client.force_unlock("report").await.unwrap();
            pending::<()>().await;
        };
        let error = soon("the loss", mutex.run_once_per(SECOND, work)).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Lost);
        assert!(other.mutex("report").try_lock().await.unwrap().is_some());
    }
}

#[tokio::test]
async fn a_shutdown_frees_the_name_of_work_that_runs() {
    for world in World::all() {
        let (client, other) = (world.client().await, world.client().await);
        let mutex = client.mutex("report");
        let work = async {
            let grace = Duration::ZERO;
            client.shutdown(Shutdown::ReleaseAll { grace }).await;
        };
        let hour = 3600 * SECOND;
        let ran = soon("the shutdown", mutex.run_once_per(hour, work)).await;
        assert_eq!(ran.unwrap_err().kind(), ErrorKind::Lost);
        let free = soon("the name", other.mutex("report").lock()).await;
        assert!(free.is_ok());
    }
}

#[tokio::test]
async fn a_bad_interval_is_refused_with_the_value_the_limit_and_the_remedy() {
    for world in World::all() {
        let client = world.client().await;
        let mutex = client.mutex("report");
        let capped = mutex.max_hold(10 * SECOND);
        for (mutex, interval, words) in [
            (
                &mutex,
                Duration::ZERO,
                ["interval", "0s", "at least 1s", "run(work)"],
            ),
            (
                &mutex,
                999 * MS,
                ["interval", "999ms", "at least 1s", "run(work)"],
            ),
            (
                &mutex,
                86_400 * 367 * SECOND,
                ["interval", "367d", "366d", "shorter"],
            ),
            (
                &capped,
                11 * SECOND,
                ["max_hold", "10s", "11s", "leave it out"],
            ),
        ] {
            let work = async { unreachable!("it is refused") };
            let refused: Result<Option<()>, Error> = mutex.run_once_per(interval, work).await;
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            for word in words {
                assert!(error.to_string().contains(word), "{word:?} in {error}");
            }
        }
        assert!(world.held().is_empty(), "nothing was sent");
        let ran = capped.run_once_per(10 * SECOND, async {}).await.unwrap();
        assert!(ran.is_some(), "as long as max_hold allows");
    }
}

/// A round trip takes longer than the time after which the lease's extension is asked for once more.
#[tokio::test]
async fn work_that_takes_longer_goes_on_where_the_server_is_far_away() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        let builder = Client::builder().url(proxy.url());
        let client = builder.connect().await.unwrap();
        proxy.delay(70 * MS); // each way
        let mut names = 0..;
        unless_late_async("the lease", 400 * MS, async || {
            let mutex = client.mutex(format!("report {}", names.next().unwrap()));
            match mutex.run_once_per(SECOND, sleep(2 * SECOND)).await {
                Ok(Some(())) => Ok(()),
                failed => Err(format!("{failed:?}")),
            }
        })
        .await;
    }
}
