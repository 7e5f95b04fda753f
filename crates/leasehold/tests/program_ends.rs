//! The end of a program: its guard goes out of scope, `main` returns, and the process is gone. The name is free then.

mod common;

use std::{
    process::exit,
    time::{Duration, Instant},
};

use common::{
    few_or, keys,
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

fn natural_programs(runtime: &str) {
    let servers = servers();
    for round_trip_ms in [0, 1, 20] {
        let mut latest = Duration::ZERO;
        let mut free = 0;
        for (time, server) in (0..few_or(4, 40)).zip(servers.iter().cycle()) {
            let proxy = Proxy::start(server.addr());
            proxy.delay(Duration::from_micros(500) * round_trip_ms);
            let name = format!("{round_trip_ms}:{time}");
            latest = latest.max(run(&format!("{runtime} natural"), &proxy.url(), &name));
            free += usize::from(keys(server).is_empty());
            server.cli(&["FLUSHALL"]);
        }
        let of = few_or(4, 40);
        println!("{runtime}, {round_trip_ms} ms: {free} of {of} are free, {latest:?} late at most");
        assert_eq!(free, of, "{runtime}, {round_trip_ms} ms away");
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
                run(&format!("{runtime} {program}"), &proxy.url(), "name");
                assert_eq!(keys(&server), [""; 0], "{runtime} {program}");
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
            run(&format!("{runtime} all kinds"), &proxy.url(), "name");
            let mut left = keys(&server);
            let stays = |key: &str| {
                key.ends_with(":semaphore") || key.contains(":gone:") || key.contains("token")
            };
            left.retain(|key| !stays(key));
            assert_eq!(left, [""; 0], "{runtime}");
            let permits = server.cli(&["GET", "name:semaphore"]);
            assert_eq!(redis::from_redis_value::<u32>(permits).unwrap(), 2);
            server.cli(&["FLUSHALL"]);
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
                let late = run(&format!("{runtime} {program}"), &proxy.url(), "name");
                println!("{what}: {late:?} late");
                assert!(!keys(&server).contains(&"name".to_owned()), "{what}");
                if program == "gives a permit up" {
                    let permits = server.cli(&["GET", "semaphore"]);
                    assert_eq!(redis::from_redis_value::<u32>(permits), Ok(2), "{what}");
                }
                server.cli(&["FLUSHALL"]);
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
            let late = run(&format!("{of} in line"), &server.url(), "name");
            assert!(late < 100 * MS, "{of}: {late:?}");
        }
    }
}

#[test]
fn with_a_dead_server_the_end_of_the_program_is_late_by_a_tenth_of_a_second() {
    let mut latest = Duration::ZERO;
    for flavor in Flavor::available() {
        for runtime in RUNTIMES {
            // Gone without a word, and gone.
            for silent in [true, false] {
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
                latest = latest.max(late);
            }
        }
    }
    println!("a dead server: {latest:?} late at most");
    // This machine may be busy.
    assert!(latest < Duration::from_millis(300), "{latest:?}");
}

#[test]
fn a_client_that_is_told_so_does_not_wait() {
    let server = Server::start(Flavor::Redis);
    let proxy = Proxy::start(server.addr());
    for runtime in RUNTIMES {
        let mut program = start(&format!("{runtime} hasty"), &proxy.url(), "name");
        program.wait_for("held");
        proxy.black_hole(None);
        program.tell("go on");
        let late = late(&mut program);
        assert!(late < Duration::from_millis(90), "{late:?}");
        proxy.heal();
        server.cli(&["FLUSHALL"]);
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
        let proxy = Proxy::start(server.addr());
        let client = Client::connect(&proxy.url()).await.unwrap();
        let (one, two) = (client.mutex("one"), client.mutex("two"));
        let (first, second) = (one.lock().await.unwrap(), two.lock().await.unwrap());
        let store = client.fenced_store("store");
        let wait = one.lock();
        proxy.stall(Some(leasehold_testkit::Way::ToServer));
        for late in [timed(first), timed(client), timed((one, two)), timed(store)] {
            assert!(late < AT_ONCE, "{late:?}: not the last handle");
        }
        assert!(timed(wait) < AT_ONCE, "a future is a handle, too");
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
        let late = timed((client, mutex));
        assert!(late < AT_ONCE, "{late:?}: nothing was under way");
    }
}

/// Its home is the runtime that drops it, so that nothing would be done meanwhile.
#[tokio::test]
async fn a_client_in_memory_never_waits() {
    let server = leasehold::MemoryServer::new();
    let client = Client::builder().memory(&server).connect().await.unwrap();
    let guard = client.mutex("name").lock().await.unwrap();
    drop(client);
    let late = timed(guard);
    assert!(late < AT_ONCE, "{late:?}");
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
        let proxy = Proxy::start(server.addr());
        let client = Client::connect(&proxy.url()).await.unwrap();
        // They do not go together: each is given back by a request of its own.
        let parts = ["a", "b", "c"].map(|name| client.fair_mutex(name));
        let guard = client.multi_lock(parts).lock().await.unwrap();
        drop(client);
        proxy.delay(Duration::from_millis(5));
        drop(guard);
        assert_eq!(keys(&server), [""; 0]);
    }
}
