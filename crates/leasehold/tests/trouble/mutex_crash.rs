//! Holders that die or stand still: processes of their own, with real signals.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::common::{
    int,
    process::{Job, Process, hear, job, say},
    servers, wait_until_idle,
};
use leasehold::{Client, Guard, Released};
use leasehold_testkit::{Server, wait_until};

/// The time that the promise allows on top of the lease.
const GRACE: Duration = Duration::from_millis(200);

const SOON: Duration = Duration::from_secs(20);

// ---- what the other processes do ----

#[test]
#[ignore = "a process of its own, started by the other tests"]
fn child() {
    let Some(job) = job() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let client = Client::builder()
            .url(&job.url)
            .lease(job.lease)
            .connect()
            .await
            .unwrap();
        match job.what.as_str() {
            "hold" => {
                let guard = client.mutex(&job.name).lock().await.unwrap();
                say("held");
                hear();
                say(&format!("{:?}", guard.release().await.unwrap()));
            }
            "wait" => {
                say("waiting");
                let guard = client.mutex(&job.name).lock().await.unwrap();
                say("held");
                hear();
                drop(guard);
            }
            "contend" => {
                let got = contend(&client, &job.name, 32);
                say("contending");
                // The first word asks for the count until now, the second for the end.
                hear();
                let before = got.load(Ordering::Relaxed);
                say("counting");
                hear();
                say(&(got.load(Ordering::Relaxed) - before).to_string());
                hear();
            }
            "look" => {
                let guard = client.mutex(&job.name).lock().await.unwrap();
                let looks = std::thread::spawn(move || first_look_after_a_pause(&guard));
                let seen = tokio::task::spawn_blocking(|| looks.join().unwrap()).await;
                say(&seen.unwrap());
                hear();
            }
            other => panic!("{other} is no job"),
        }
    });
    // Tasks that still run end with the process.
    std::process::exit(0);
}

/// So many tasks that take turns at one name, and how often they have got it.
fn contend(client: &Client, name: &str, tasks: usize) -> Arc<AtomicU64> {
    let got = Arc::new(AtomicU64::new(0));
    for _ in 0..tasks {
        let (mutex, got) = (client.mutex(name), Arc::clone(&got));
        tokio::spawn(async move {
            loop {
                let guard = mutex.lock().await.unwrap();
                got.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_micros(200)).await;
                drop(guard);
            }
        });
    }
    got
}

/// Looks all the time, and tells what the first look after a long pause has seen. On a thread of its own,
/// so that no task of the runtime is needed to notice the end of the lease.
fn first_look_after_a_pause(guard: &Guard) -> String {
    assert!(guard.is_valid());
    let mut last = Instant::now();
    say("looking");
    loop {
        // The time first: a pause between the two is then seen by the next look.
        let now = Instant::now();
        let valid = guard.is_valid();
        if now - last > Duration::from_millis(300) {
            return format!("valid: {valid}, remaining: {:?}", guard.remaining());
        }
        last = now;
        std::thread::sleep(Duration::from_millis(1));
    }
}

// ---- the tests ----

fn start(what: &str, server: &Server, name: &str, lease: Duration) -> Process {
    Process::start(&Job {
        what: what.to_owned(),
        url: server.url(),
        name: name.to_owned(),
        lease,
    })
}

/// How long the key lives on, if it is not renewed any more.
fn left(server: &Server, name: &str) -> Duration {
    Duration::from_millis(u64::try_from(int(server, &["PTTL", name])).unwrap_or(0))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_gets_the_name_within_a_lease_of_the_last_renewal_of_a_killed_holder() {
    let lease = Duration::from_secs(1);
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        for round in 0..4_u32 {
            let mut holder = start("hold", &server, "name", lease);
            holder.wait_for("held");
            let waiter = tokio::spawn(client.mutex("name").lock());
            // Killed at another phase of its renewals each time.
            tokio::time::sleep(lease / 3 + lease / 12 * round).await;
            let connections = format!(":{} ", holder.id());
            holder.kill();
            // Its requests have been carried out once the server has seen its connections end.
            wait_until(SOON, "the server has seen its end", || {
                let list = server.cli(&["CLIENT", "LIST"]);
                let list: String = redis::from_redis_value(list).expect("a list");
                !list.contains(&connections)
            });
            let (killed, left) = (Instant::now(), left(&server, "name"));
            assert!(left <= lease && !left.is_zero(), "{left:?}");
            let guard = tokio::time::timeout(SOON, waiter).await.expect("granted");
            let guard = guard.unwrap().unwrap();
            let took = killed.elapsed();
            assert!(took <= left + GRACE, "{took:?}, {left:?} were left");
            assert!(
                took + Duration::from_millis(5) >= left,
                "{took:?} is too early"
            );
            assert_eq!(guard.release().await.unwrap(), Released::Freed);
        }
        wait_until_idle(&client).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_process_gets_the_name_of_a_killed_one() {
    let lease = Duration::from_secs(1);
    for server in servers() {
        let mut holder = start("hold", &server, "name", lease);
        holder.wait_for("held");
        let waiter = start("wait", &server, "name", lease);
        waiter.wait_for("waiting");
        tokio::time::sleep(lease / 2).await;
        holder.kill();
        let (killed, left) = (Instant::now(), left(&server, "name"));
        waiter.wait_for("held");
        let took = killed.elapsed();
        assert!(took <= left + GRACE, "{took:?}, {left:?} were left");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_death_of_a_process_in_the_middle_of_hand_offs_costs_one_lease() {
    let lease = Duration::from_secs(1);
    for server in servers() {
        for round in 0..5_u64 {
            let name = format!("name:{round}");
            let client = Client::builder()
                .url(server.url())
                .lease(lease)
                .connect()
                .await
                .unwrap();
            let mut other = start("contend", &server, &name, lease);
            other.wait_for("contending");
            let got = contend(&client, &name, 4);
            // Both are at it.
            let both = got.load(Ordering::Relaxed) + 20;
            leasehold_testkit::wait_until_async(SOON, "both contend", || {
                got.load(Ordering::Relaxed) > both
            })
            .await;
            tokio::time::sleep(Duration::from_millis(37 * round)).await;
            other.kill();
            let (killed, before) = (Instant::now(), got.load(Ordering::Relaxed));
            leasehold_testkit::wait_until_async(SOON, "it goes on", || {
                got.load(Ordering::Relaxed) > before + 1
            })
            .await;
            let took = killed.elapsed();
            assert!(took <= lease + GRACE, "round {round}: {took:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_was_stopped_past_its_lease_knows_at_its_first_look() {
    let lease = Duration::from_secs(1);
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        let holder = start("look", &server, "name", lease);
        holder.wait_for("looking");
        holder.freeze();
        let guard = tokio::time::timeout(SOON, client.mutex("name").lock()).await;
        let guard = guard.expect("the name is free").unwrap();
        holder.thaw();
        assert_eq!(holder.next(), "valid: false, remaining: 0ns");
        assert!(
            guard.verify().await.is_ok(),
            "what it does then is without effect"
        );
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
    }
}

#[test]
fn two_processes_with_many_waiters_each_get_their_share_for_few_commands() {
    let lease = Duration::from_secs(10);
    for server in servers() {
        let mut pair = [0, 1].map(|_| start("contend", &server, "name", lease));
        for process in &pair {
            process.wait_for("contending");
        }
        std::thread::sleep(Duration::from_millis(300));
        for process in &mut pair {
            process.tell("count");
        }
        for process in &pair {
            process.wait_for("counting");
        }
        let (commands, calls) = (server.commands_processed(), server.calls());
        std::thread::sleep(Duration::from_secs(2));
        for process in &mut pair {
            process.tell("stop");
        }
        let got = pair
            .each_ref()
            .map(|process| process.next().parse::<u64>().unwrap());
        let commands = server.commands_processed() - commands;
        let after = server.calls();
        let of = |name: &str| after.get(name).unwrap_or(&0) - calls.get(name).unwrap_or(&0);
        let scripts = of("evalsha") + of("eval");
        let all = got[0] + got[1];
        let report = format!(
            "{}: {got:?}, {commands} commands, {scripts} scripts",
            server.flavor()
        );
        eprintln!("{report}");
        assert!(all > 200, "{report}");
        for mine in got {
            assert!(mine * 10 >= all * 4 && mine * 10 <= all * 6, "{report}");
        }
        // Were each release to wake all waiters, each acquisition would cost some thirty.
        assert!(scripts <= all, "{report}");
    }
}
