//! Beside the real Redisson's `RFairLock`, on the JVM: both wait in one queue, and are served in its order.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::common;
use crate::common::{
    SOON, assert_nothing_left, flavors, int,
    process::{Job, Process, hear, job, say},
    redisson::Redisson,
    servers, soon, wait_until_idle,
    wire::{Monitor, script_calls},
};
use futures_util::future::join_all;
use leasehold::{Client, FairMutex, FairMutexGuard, LostReason, Released};
use leasehold_testkit::{Server, wait_until_async};
use tokio::task::JoinHandle;

const LEASE: Duration = Duration::from_secs(30);
/// Each is told by the other; neither waits for a poll.
const TOLD: Duration = Duration::from_millis(500);
const NAME: &str = "name";

async fn client_of(server: &Server) -> Client {
    Client::connect(&server.url()).await.unwrap()
}

fn line(server: &Server) -> Vec<String> {
    let line = server.cli(&["LRANGE", "redisson_lock_queue:{name}", "0", "-1"]);
    redis::from_redis_value(line).expect("a list")
}

async fn until_in_line(server: &Server, waiters: usize) {
    wait_until_async(SOON, "they stand in the queue", || {
        line(server).len() == waiters
    })
    .await;
}

/// Until each of them hears: a client of Redisson's takes its place before it subscribes.
async fn until_heard(server: &Server, java: &[String]) {
    let channels: Vec<String> = java
        .iter()
        .map(|owner| format!("redisson_lock__channel:{{name}}:{owner}"))
        .collect();
    wait_until_async(SOON, "Redisson's waiters listen", || {
        let there = common::channels(server);
        channels.iter().all(|channel| there.contains(channel))
    })
    .await;
}

type Waiting = JoinHandle<Result<FairMutexGuard, leasehold::Error>>;

async fn wait_in(server: &Server, lock: &FairMutex) -> Waiting {
    let before = line(server).len();
    let waiting = tokio::spawn(lock.lock());
    until_in_line(server, before + 1).await;
    waiting
}

#[tokio::test]
async fn each_is_locked_out_by_the_other_and_told_when_it_is_free() {
    for server in servers() {
        let client = client_of(&server).await;
        let mut java = Redisson::start(&server, LEASE).await;
        let lock = client.fair_mutex(NAME);

        let guard = lock.lock().await.unwrap();
        assert_eq!(java.obey("fair try name 0").await, "false");
        assert_eq!(java.obey("fair try name 100").await, "false");
        // Our hold is an RLock to Redisson.
        assert_eq!(java.obey("try name 0").await, "false");
        java.order("fair lock name");
        until_in_line(&server, 1).await;
        until_heard(&server, &line(&server)).await;
        let freed = Instant::now();
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        assert_eq!(java.answer().await, "locked");
        assert!(freed.elapsed() < TOLD, "{:?}", freed.elapsed());

        assert!(lock.try_lock().await.unwrap().is_none());
        let waiting = wait_in(&server, &lock).await;
        until_heard(&server, &line(&server)).await;
        let status = lock.status().await.unwrap();
        assert_eq!(status.holder().expect("it is held").holds, 1);
        assert_eq!((status.waiting_clients, status.waiting_here), (1, 1));
        client.heard().await;
        let freed = Instant::now();
        assert_eq!(java.obey("fair unlock name").await, "unlocked");
        let guard = soon("its turn", waiting).await.unwrap().unwrap();
        assert!(freed.elapsed() < TOLD, "{:?}", freed.elapsed());

        // By force, which no watchdog survives. It tells only the thread that is next, on a channel that ours do not hear: at its next
        // look the next in the queue has it.
        let poll = Duration::from_secs(1);
        let waiter = Client::builder().url(server.url()).poll_every(poll);
        let waiter = waiter.connect().await.unwrap();
        let next = wait_in(&server, &waiter.fair_mutex(NAME)).await;
        let freed = Instant::now();
        assert_eq!(java.obey("fair force name").await, "true");
        assert!(guard.verify().await.is_err());
        assert_eq!(guard.lost().await, LostReason::Replaced);
        let guard = soon("the next", next).await.unwrap().unwrap();
        let at_most = poll.mul_f64(1.2) + TOLD;
        assert!(freed.elapsed() < at_most, "{:?}", freed.elapsed());
        drop(guard);
        wait_until_idle(&client).await;
        wait_until_idle(&waiter).await;
        assert_nothing_left(&server, "a fair lock beside Redisson").await;
    }
}

/// Writes its label behind the others, as Redisson's threads do.
async fn sign(lock: FairMutex, file: PathBuf, label: String) {
    use std::io::Write;
    let guard = lock.lock().await.unwrap();
    let file = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(file);
    file.unwrap()
        .write_all(format!("{label}\n").as_bytes())
        .unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
}

/// Adds one to the number in the file, as Redisson's threads do.
async fn count(lock: FairMutex, file: PathBuf, times: usize) {
    for _ in 0..times {
        let guard = lock.lock().await.unwrap();
        let number: u64 = std::fs::read_to_string(&file).unwrap().parse().unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await; // the window in which an update would be lost
        std::fs::write(&file, (number + 1).to_string()).unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
    }
}

/// A process with this library that obeys as one with Redisson does: `line FILE LABEL`, `served`, `count FILE TASKS TIMES`.
async fn obey(lock: FairMutex) {
    let mut line = Vec::new();
    while let Some(order) = tokio::task::spawn_blocking(hear).await.unwrap() {
        let words: Vec<&str> = order.split(' ').collect();
        match words[..] {
            ["line", file, label] => {
                let waits = sign(lock.clone(), file.into(), label.to_owned());
                line.push(tokio::spawn(waits));
            }
            ["served"] => {
                for task in line.drain(..) {
                    task.await.unwrap();
                }
                say("served");
            }
            ["count", file, tasks, times] => {
                let times = times.parse().unwrap();
                let tasks = 0..tasks.parse().unwrap();
                let tasks = tasks.map(|_| count(lock.clone(), file.into(), times));
                for task in join_all(tasks.map(tokio::spawn)).await {
                    task.unwrap();
                }
                say("counted");
            }
            _ => panic!("there is no order {order}"),
        }
    }
}

fn process(server: &Server, what: &str) -> Process {
    Process::start(&Job {
        what: what.to_owned(),
        url: server.url(),
        name: NAME.to_owned(),
        lease: LEASE,
    })
}

async fn until_said(process: &Process, word: &str) {
    let mut said = None;
    wait_until_async(Duration::from_secs(60), word, || {
        said = process.try_next();
        said.is_some()
    })
    .await;
    assert_eq!(said.as_deref(), Some(word));
}

async fn one_round(
    server: &Server,
    holder: &FairMutex,
    (rust, java): (&mut [Process; 2], &mut [Redisson; 2]),
    file: &Path,
    round: usize,
) {
    let _ = std::fs::remove_file(file);
    let holder = holder.lock().await.unwrap();
    for number in 0..12 {
        let process = number / 2 % 2;
        let order = format!("{} {number}", file.display());
        if number % 2 == round % 2 {
            let order = format!("fair line name {order}");
            assert_eq!(java[process].obey(&order).await, "waits");
        } else {
            rust[process].tell(&format!("line {order}"));
        }
        until_in_line(server, number + 1).await;
    }
    assert_eq!(holder.release().await.unwrap(), Released::Freed);
    for process in rust {
        process.tell("served");
        until_said(process, "served").await;
    }
    for jvm in java {
        assert_eq!(jvm.obey("fair served").await, "served");
    }
    let signed = std::fs::read_to_string(file).unwrap();
    let order: Vec<usize> = signed.lines().map(|line| line.parse().unwrap()).collect();
    let expected: Vec<usize> = (0..12).collect();
    assert_eq!(order, expected, "round {round}");
}

#[tokio::test]
async fn twelve_waiters_of_both_kinds_are_served_in_the_order_of_their_requests() {
    for server in servers() {
        let file = server.dir().join("served");
        let client = client_of(&server).await;
        let holder = client.fair_mutex(NAME);
        let mut rust = [process(&server, "obey"), process(&server, "obey")];
        let mut java = [
            Redisson::start(&server, LEASE).await,
            Redisson::start(&server, LEASE).await,
        ];
        for round in 0..20 {
            let both = (&mut rust, &mut java);
            one_round(&server, &holder, both, &file, round).await;
        }
        wait_until_idle(&client).await;
        assert_nothing_left(&server, "twenty rounds beside Redisson").await;
    }
}

#[tokio::test]
async fn no_update_is_lost_between_two_processes_of_each_kind() {
    const THREADS: usize = 3;
    const PLACES: &str = "leasehold:{name}:fair:places";
    let times = common::of_the_whole(500);
    for server in flavors(0).into_iter().map(Server::start) {
        let file = server.dir().join("number");
        let mut rust = [process(&server, "obey"), process(&server, "obey")];
        let mut java = [
            Redisson::start(&server, LEASE).await,
            Redisson::start(&server, LEASE).await,
        ];
        std::fs::write(&file, "0").unwrap();
        let begun = Instant::now();
        let count = format!("{} {THREADS} {times}", file.display());
        for jvm in &mut java {
            jvm.order(&format!("fair count name {count}"));
        }
        for process in &mut rust {
            process.tell(&format!("count {count}"));
        }
        for process in &rust {
            until_said(process, "counted").await;
        }
        for jvm in &mut java {
            assert_eq!(jvm.answer().await, "counted");
        }
        let counted = std::fs::read_to_string(&file).unwrap();
        println!("{counted} in {:?}", begun.elapsed());
        assert_eq!(counted, (4 * THREADS * times).to_string());
        // Since when a thread of Redisson's was silent may be left, and ends within the hour: no script of ours runs when it goes.
        let silent: Vec<String> = redis::from_redis_value(server.cli(&["HKEYS", PLACES])).unwrap();
        assert!(
            silent.iter().all(|field| field.starts_with('?')),
            "{silent:?}"
        );
        let hour = int(&server, &["PTTL", PLACES]);
        assert!((-2..=3_600_000).contains(&hour) && hour != -1, "{hour}");
        server.cli(&["DEL", PLACES]);
        assert_nothing_left(&server, "counting beside Redisson").await;
    }
}

#[tokio::test]
async fn three_killed_waiters_of_redisson_cost_the_next_five_seconds_in_all() {
    for server in servers() {
        let (holder, waiter) = (client_of(&server).await, client_of(&server).await);
        let guard = holder.fair_mutex(NAME).lock().await.unwrap();
        let mut dead = Vec::new();
        for number in 1..=3 {
            let mut jvm = Redisson::start(&server, LEASE).await;
            jvm.order("fair lock name");
            until_in_line(&server, number).await;
            dead.push(jvm);
        }
        until_heard(&server, &line(&server)).await;
        let waiting = wait_in(&server, &waiter.fair_mutex(NAME)).await;
        dead.iter_mut().for_each(Redisson::kill);
        let (released, before) = (Instant::now(), script_calls(&server));
        guard.release().await.unwrap();
        drop(waiting.await.unwrap().unwrap());
        let (late, asked) = (released.elapsed(), script_calls(&server) - before);
        println!("{late:?}, {asked} requests");
        assert!(late < Duration::from_millis(5_200), "{late:?}");
        // It waits for the time that they have left, and does not ask all the time.
        assert!(asked <= 10, "{asked} requests");
    }
}

#[tokio::test]
async fn killed_waiters_of_redisson_cost_no_more_when_redisson_releases() {
    for server in flavors(1).into_iter().map(Server::start) {
        let waiter = client_of(&server).await;
        let mut java = Redisson::start(&server, LEASE).await;
        assert_eq!(java.obey("fair lock name").await, "locked");
        let mut dead = Redisson::start(&server, LEASE).await;
        dead.order("fair lock name");
        until_in_line(&server, 1).await;
        until_heard(&server, &line(&server)).await;
        let waiting = wait_in(&server, &waiter.fair_mutex(NAME)).await;
        dead.kill();
        let released = Instant::now();
        assert_eq!(java.obey("fair unlock name").await, "unlocked");
        drop(waiting.await.unwrap().unwrap());
        let late = released.elapsed();
        println!("{late:?}");
        assert!(late < Duration::from_millis(7_700), "{late:?}");
    }
}

/// A waiter of this library in a process of its own.
#[test]
#[ignore = "a process that other tests start"]
fn child() {
    let Some(job) = job() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = Client::connect(&job.url).await.unwrap();
        let lock = client.fair_mutex(&job.name);
        if job.what == "obey" {
            return obey(lock).await;
        }
        let _guard = lock.lock().await.unwrap();
    });
}

#[tokio::test]
async fn our_killed_waiters_cost_redissons_next_nothing() {
    for server in servers() {
        let holder = client_of(&server).await;
        let guard = holder.fair_mutex(NAME).lock().await.unwrap();
        let mut dead = Vec::new();
        for number in 1..=3 {
            dead.push(process(&server, "wait"));
            until_in_line(&server, number).await;
        }
        let mut java = Redisson::start(&server, LEASE).await;
        java.order("fair lock name");
        until_in_line(&server, 4).await;
        until_heard(&server, &line(&server)[3..]).await;
        dead.iter_mut().for_each(Process::kill);
        let released = Instant::now();
        guard.release().await.unwrap();
        assert_eq!(java.answer().await, "locked");
        let late = released.elapsed();
        assert!(late < Duration::from_millis(200), "{late:?}");
    }
}

#[tokio::test]
async fn a_live_waiter_of_redisson_keeps_its_place_though_its_deadline_is_over() {
    for server in servers() {
        let client = client_of(&server).await;
        let file = server.dir().join("served");
        let mut java = Redisson::start(&server, LEASE).await;
        let lock = client.fair_mutex(NAME);
        let guard = lock.lock().await.unwrap();
        let mut monitor = Monitor::start(&server);
        let order = format!("fair line name {} java", file.display());
        assert_eq!(java.obey(&order).await, "waits");
        until_in_line(&server, 1).await;
        // It asks once more when it has subscribed, and then sleeps.
        let owner = line(&server).remove(0);
        wait_until_async(SOON, "it sleeps", || {
            let mut its = monitor
                .seen()
                .iter()
                .filter(|sent| sent.join(" ").contains(&owner));
            its.any(|sent| sent[0] == "SUBSCRIBE") && its.any(|sent| sent[0] == "EVALSHA")
        })
        .await;
        // As after a hold of more than five minutes.
        server.cli(&["ZADD", "redisson_lock_timeout:{name}", "1000", &owner]);
        let ours = sign(lock.clone(), file.clone(), "ours".to_owned());
        let task = tokio::spawn(ours);
        until_in_line(&server, 2).await;
        guard.release().await.unwrap();
        soon("ours", task).await.unwrap();
        assert_eq!(java.obey("fair served").await, "served");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "java\nours\n");
    }
}

#[tokio::test]
async fn the_name_of_a_killed_jvm_is_free_when_its_lease_ends() {
    const SHORT: Duration = Duration::from_secs(2);
    for server in servers() {
        let client = client_of(&server).await;
        let mut java = Redisson::start(&server, SHORT).await;
        assert_eq!(java.obey("fair lock name").await, "locked");
        let waiting = wait_in(&server, &client.fair_mutex(NAME)).await;
        java.kill();
        let killed = Instant::now();
        drop(waiting.await.unwrap().unwrap());
        let late = killed.elapsed();
        assert!(late < SHORT + Duration::from_millis(300), "{late:?}");
        wait_until_idle(&client).await;
    }
}
