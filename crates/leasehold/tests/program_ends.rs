//! The end of a program: its guard goes out of scope, `main` returns, and the process is gone. The name is free then.

mod common;

use std::{
    process::exit,
    time::{Duration, Instant},
};

use common::{
    few_or, keys, late,
    process::{Job, Process, hear, job, say},
    servers,
};
use futures_util::FutureExt as _;
use leasehold::{Client, Error};
use leasehold_testkit::{Flavor, Proxy, Server};

const MS: Duration = Duration::from_millis(1);

// ---- the programs ----

#[test]
#[ignore = "a process of its own, started by the other tests"]
fn child() {
    let Some(job) = job() else { return };
    let (runtime, program) = job.what.split_once(' ').unwrap();
    let runtime = match runtime {
        "current_thread" => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    }
    .enable_all()
    .build()
    .unwrap();
    // As `#[tokio::main]` does it.
    let ended = runtime.block_on(async {
        match program {
            "natural" => natural(&job).await,
            "waits" => waits(&job).await,
            "hasty" => hasty(&job).await,
            "returned" => returned(&job).await,
            "spawned" => spawned(&job).await,
            "after" => Ok(Instant::now()),
            "all kinds" => all_kinds(&job).await,
            "panics" => panics(&job).await,
            "in line" => in_line(&job).await,
            "gives up" => gives_up(&job).await,
            "gives a permit up" => gives_a_permit_up(&job).await,
            "does not wait" => does_not_wait(&job).await,
            other => panic!("no program {other}"),
        }
    });
    let kept = (program == "after").then(|| runtime.block_on(guard(&job)).unwrap());
    drop(runtime);
    let ended = match kept {
        Some(_guard) => Instant::now(), // dropped outside of any runtime
        None => ended.unwrap(),
    };
    say(&ended.elapsed().as_micros().to_string());
    exit(0); // as the return of `main` does
}

async fn natural(job: &Job) -> Result<Instant, Error> {
    let client = Client::connect(&job.url).await?;
    let mutex = client.mutex(&job.name);
    let _guard = mutex.lock().await?;
    Ok(Instant::now())
}

/// The same, with work that takes as long as the parent says.
async fn waits(job: &Job) -> Result<Instant, Error> {
    let client = Client::connect(&job.url).await?;
    let _guard = client.mutex(&job.name).lock().await?;
    say("held");
    hear();
    Ok(Instant::now())
}

/// The same, of a client that is told not to wait.
async fn hasty(job: &Job) -> Result<Instant, Error> {
    let builder = Client::builder().url(&job.url).linger(Duration::ZERO);
    let client = builder.connect().await?;
    let _guard = client.mutex(&job.name).lock().await?;
    say("held");
    hear();
    Ok(Instant::now())
}

/// Its client is gone when it returns.
async fn guard(job: &Job) -> Result<leasehold::MutexGuard, Error> {
    let client = Client::connect(&job.url).await?;
    client.mutex(&job.name).lock().await
}

/// The guard is the last of its client.
async fn returned(job: &Job) -> Result<Instant, Error> {
    let _guard = guard(job).await?;
    Ok(Instant::now())
}

/// The guard goes with its task, which goes with the runtime.
async fn spawned(job: &Job) -> Result<Instant, Error> {
    let client = Client::connect(&job.url).await?;
    let mutex = client.mutex(&job.name);
    let (told, held) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let _guard = mutex.lock().await;
        told.send(()).unwrap();
        std::future::pending::<()>().await;
    });
    held.await.unwrap();
    Ok(Instant::now())
}

/// Guards of all sorts, and a wait that is given up.
async fn all_kinds(job: &Job) -> Result<Instant, Error> {
    let client = Client::connect(&job.url).await?;
    let name = |kind: &str| format!("{}:{kind}", job.name);
    let lock = client.rw_lock(name("rw"));
    let _both = client.multi_lock([name("b"), name("a")]).lock().await?;
    let _writes = lock.write().await?;
    let _fenced = client.fenced_mutex(name("fenced")).lock().await?;
    let _plain = client.plain_mutex(name("plain")).lock().await?;
    let _fair = client.fair_mutex(name("fair")).lock().await?;
    let semaphore = client.semaphore(name("semaphore"));
    semaphore.add_permits(2).await?;
    let _permit = semaphore.acquire().await?;
    let patience = Duration::from_millis(20);
    let given_up = tokio::time::timeout(patience, lock.read()).await;
    assert!(given_up.is_err());
    Ok(Instant::now())
}

/// It has waited, and its subscription is kept for the next that does.
async fn in_line(job: &Job) -> Result<Instant, Error> {
    let builder = Client::builder().url(&job.url);
    let client = builder.linger(Duration::from_secs(10)).connect().await?;
    let waited = client.fair_mutex(&job.name).try_lock_for(500 * MS).await?;
    assert!(waited.is_none());
    Ok(Instant::now())
}

/// Its requests are under way on the runtime that ends.
async fn gives_up(job: &Job) -> Result<Instant, Error> {
    let client = Client::connect(&job.url).await?;
    let locked = tokio::time::timeout(3 * MS, client.mutex(&job.name).lock());
    assert!(locked.await.is_err());
    Ok(Instant::now())
}

async fn gives_a_permit_up(job: &Job) -> Result<Instant, Error> {
    let client = Client::connect(&job.url).await?;
    let semaphore = client.semaphore("semaphore");
    semaphore.add_permits(2).await?;
    let acquired = tokio::time::timeout(3 * MS, semaphore.acquire());
    assert!(acquired.await.is_err());
    Ok(Instant::now())
}

async fn does_not_wait(job: &Job) -> Result<Instant, Error> {
    let client = Client::connect(&job.url).await?;
    let guard = client.mutex(&job.name).lock().await?;
    assert!(guard.release().now_or_never().is_none());
    Ok(Instant::now())
}

async fn panics(job: &Job) -> Result<Instant, Error> {
    let began = Instant::now();
    let spawned = tokio::spawn(natural_and_then_panic(Job {
        what: job.what.clone(),
        url: job.url.clone(),
        name: job.name.clone(),
        lease: job.lease,
    }));
    assert!(spawned.await.unwrap_err().is_panic());
    Ok(began)
}

async fn natural_and_then_panic(job: Job) {
    let _guard = guard(&job).await.unwrap();
    // Without a word on standard error.
    std::panic::resume_unwind(Box::new("the work has failed"));
}

// ---- the tests ----

/// For how long the end of a program waits for its releases.
const LINGERS: Duration = Duration::from_millis(100);

const RUNTIMES: [&str; 2] = ["current_thread", "multi_thread"];

/// Starts a program, and returns by how much its end was late.
fn run(what: &str, url: &str, name: &str) -> Duration {
    let mut program = start(what, url, name);
    late(&mut program)
}

fn start(what: &str, url: &str, name: &str) -> Process {
    Process::start(&Job {
        what: what.to_owned(),
        url: url.to_owned(),
        name: name.to_owned(),
        lease: Duration::from_secs(30),
    })
}

fn late(program: &mut Process) -> Duration {
    let late = Duration::from_micros(program.next().parse().unwrap());
    assert!(program.ended().success());
    late
}

fn none_left(left: &[String]) -> Result<(), String> {
    if left.is_empty() {
        return Ok(());
    }
    Err(format!("{left:?} are left"))
}

fn natural_programs(runtime: &str) {
    let servers = servers();
    for round_trip_ms in [0, 1, 20] {
        let mut latest = Duration::ZERO;
        let of = few_or(4, 40);
        for (time, server) in (0..of).zip(servers.iter().cycle()) {
            let proxy = Proxy::start(server.addr());
            proxy.delay(Duration::from_micros(500) * round_trip_ms);
            let name = format!("{round_trip_ms}:{time}");
            let what = format!("{runtime}, {round_trip_ms} ms away");
            late::unless_late(&what, LINGERS, || {
                server.cli(&["FLUSHALL"]);
                latest = latest.max(run(&format!("{runtime} natural"), &proxy.url(), &name));
                none_left(&keys(server))
            });
        }
        println!("{runtime}, {round_trip_ms} ms: {of} are free, {latest:?} late at most");
    }
}

#[test]
fn the_natural_program_gives_its_name_back_on_a_runtime_of_one_thread() {
    natural_programs("current_thread");
}

#[test]
fn the_natural_program_gives_its_name_back_on_a_runtime_of_many_threads() {
    natural_programs("multi_thread");
}

#[test]
fn so_does_one_whose_guard_goes_last_or_with_a_task_or_after_its_runtime_or_by_a_panic() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        proxy.delay(Duration::from_millis(5));
        for program in ["returned", "spawned", "after", "panics"] {
            for runtime in RUNTIMES {
                let what = format!("{runtime} {program}");
                late::unless_late(&what, LINGERS, || {
                    server.cli(&["FLUSHALL"]);
                    run(&what, &proxy.url(), "name");
                    none_left(&keys(&server))
                });
            }
        }
    }
}

#[test]
fn guards_of_all_kinds_are_given_back_and_places_in_queues() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        proxy.delay(Duration::from_millis(2));
        for runtime in RUNTIMES {
            late::unless_late(runtime, LINGERS, || {
                server.cli(&["FLUSHALL"]);
                run(&format!("{runtime} all kinds"), &proxy.url(), "name");
                let mut left = keys(&server);
                let stays = |key: &str| {
                    key.ends_with(":semaphore") || key.contains(":gone:") || key.contains("token")
                };
                left.retain(|key| !stays(key));
                none_left(&left)?;
                match redis::from_redis_value(server.cli(&["GET", "name:semaphore"])) {
                    Ok(2) => Ok(()),
                    other => Err(format!("{other:?} permits of 2")),
                }
            });
        }
    }
}

/// A runtime of one thread, which the last drop blocks, carries no answer any more.
#[test]
fn a_request_that_is_under_way_at_the_end_takes_nothing_and_is_carried_out() {
    for server in servers() {
        let proxy = Proxy::start(server.addr());
        // From here on the server knows the scripts, and carries them out at the first asking.
        for first in ["natural", "all kinds"] {
            run(&format!("current_thread {first}"), &proxy.url(), "first");
        }
        server.cli(&["FLUSHALL"]);
        proxy.delay(3 * MS);
        for program in ["gives up", "gives a permit up", "does not wait"] {
            for runtime in RUNTIMES {
                let what = format!("{runtime} {program}, {}", server.flavor());
                late::unless_late(&what, LINGERS, || {
                    server.cli(&["FLUSHALL"]);
                    let late = run(&format!("{runtime} {program}"), &proxy.url(), "name");
                    println!("{what}: {late:?} late");
                    if keys(&server).contains(&"name".to_owned()) {
                        return Err("the name is taken".to_owned());
                    }
                    if program == "gives a permit up" {
                        let permits = server.cli(&["GET", "semaphore"]);
                        let permits = redis::from_redis_value::<u32>(permits);
                        if permits != Ok(2) {
                            return Err(format!("{permits:?} permits of 2"));
                        }
                    }
                    Ok(())
                });
            }
        }
    }
}

#[test]
fn a_program_that_has_waited_in_line_ends_when_it_has_left_the_line() {
    for server in servers() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _guard = runtime.block_on(async {
            let holder = Client::connect(&server.url()).await.unwrap();
            holder.fair_mutex("name").lock().await.unwrap()
        });
        for of in RUNTIMES {
            late::unless_late(of, LINGERS, || {
                let late = run(&format!("{of} in line"), &server.url(), "name");
                late::in_time(late, LINGERS)
            });
        }
    }
}

#[test]
fn with_a_dead_server_the_end_of_the_program_is_late_by_a_tenth_of_a_second() {
    for flavor in Flavor::available() {
        for runtime in RUNTIMES {
            // Gone without a word, and gone.
            for silent in [true, false] {
                late::unless_late(runtime, 3 * LINGERS, || {
                    let mut server = Server::start(flavor);
                    let proxy = Proxy::start(server.addr());
                    let mut program = start(&format!("{runtime} waits"), &proxy.url(), "name");
                    program.wait_for("held");
                    if silent {
                        proxy.black_hole(None);
                    } else {
                        server.kill();
                    }
                    program.tell("go on");
                    let late = late(&mut program);
                    assert!(
                        late > Duration::from_millis(95),
                        "{late:?}: it did not wait"
                    );
                    late::in_time(late, 3 * LINGERS)
                });
            }
        }
    }
}

#[test]
fn a_client_that_is_told_so_does_not_wait() {
    let server = Server::start(Flavor::Redis);
    let proxy = Proxy::start(server.addr());
    for runtime in RUNTIMES {
        late::unless_late(runtime, 90 * MS, || {
            server.cli(&["FLUSHALL"]);
            let mut program = start(&format!("{runtime} hasty"), &proxy.url(), "name");
            program.wait_for("held");
            proxy.black_hole(None);
            program.tell("go on");
            let late = late(&mut program);
            proxy.heal();
            late::in_time(late, 90 * MS)
        });
    }
}

/// How long a drop takes.
fn timed<T>(dropped: T) -> Duration {
    let began = Instant::now();
    drop(dropped);
    began.elapsed()
}

const AT_ONCE: Duration = Duration::from_millis(50);

#[tokio::test]
async fn only_the_last_handle_waits_and_only_for_what_is_under_way() {
    for server in servers() {
        late::unless_late_async("a handle that goes", AT_ONCE, async || {
            server.cli(&["FLUSHALL"]);
            let proxy = Proxy::start(server.addr());
            let client = Client::connect(&proxy.url()).await.unwrap();
            let (one, two) = (client.mutex("one"), client.mutex("two"));
            let (first, second) = (one.lock().await.unwrap(), two.lock().await.unwrap());
            let store = client.fenced_store("store");
            let wait = one.lock();
            proxy.stall(Some(leasehold_testkit::Way::ToServer));
            // Not the last handle; and a future is a handle, too.
            for late in [
                timed(first),
                timed(client),
                timed((one, two)),
                timed(store),
                timed(wait),
            ] {
                late::in_time(late, AT_ONCE)?;
            }
            let late = timed(second);
            assert!(
                late > Duration::from_millis(95),
                "{late:?}: it did not wait"
            );
            proxy.heal();
            common::soon("the names are free", async {
                while !keys(&server).is_empty() {
                    tokio::task::yield_now().await;
                }
            })
            .await;

            // Nothing is under way: the server is not asked for anything, and may be gone.
            let client = Client::connect(&proxy.url()).await.unwrap();
            let mutex = client.mutex("name");
            common::release(mutex.lock().await.unwrap()).await;
            common::wait_until_idle(&client).await;
            proxy.black_hole(None);
            late::in_time(timed((client, mutex)), AT_ONCE)
        })
        .await;
    }
}

/// Its background runtime is the one that drops it, so that nothing would be done meanwhile.
#[tokio::test]
async fn a_client_in_memory_never_waits() {
    let server = leasehold::MemoryServer::new();
    late::unless_late_async("the last handle", AT_ONCE, async || {
        let client = Client::builder().memory(&server).connect().await.unwrap();
        let guard = client.mutex("name").lock().await.unwrap();
        drop(client);
        late::in_time(timed(guard), AT_ONCE)
    })
    .await;
    common::soon("the name is free", async {
        while !server.names().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_multi_guard_that_goes_last_gives_all_of_its_parts_back() {
    for server in servers() {
        late::unless_late_async("three parts", LINGERS, async || {
            server.cli(&["FLUSHALL"]);
            let proxy = Proxy::start(server.addr());
            let client = Client::connect(&proxy.url()).await.unwrap();
            // They do not go together: each is given back by a request of its own.
            let parts = ["a", "b", "c"].map(|name| client.fair_mutex(name));
            let guard = client.multi_lock(parts).lock().await.unwrap();
            drop(client);
            proxy.delay(Duration::from_millis(5));
            drop(guard);
            none_left(&keys(&server))
        })
        .await;
    }
}
