//! A process with the real Redisson in it: `interop/redisson`, which `scripts/test` builds.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use leasehold::{Client, Handoff, MutexGuard, Released};
use leasehold_testkit::{Cluster, SentinelGroup, Server, wait_until_async};

use super::{SOON, of_the_whole, peer::Peer, soon};

/// Where the setup puts the newest Redisson that is tested.
const NEWEST: &str = "lib";

/// The versions that most shops run: the oldest that is tested, and one of 3.x from before its watchdog left other readers alone (4.4.0).
pub const OLD: [&str; 2] = ["3.16.4", "3.38.0"];

/// A running JVM. Dropping it kills it.
pub type Redisson = Peer;

impl Peer {
    /// Starts a JVM, with a watchdog that keeps its leases so long.
    pub async fn start(server: &Server, lease: Duration) -> Redisson {
        Peer::jvm(NEWEST, &server.url(), lease).await
    }

    /// The same with an older Redisson, one of [`OLD`].
    pub async fn start_old(version: &str, server: &Server, lease: Duration) -> Redisson {
        Peer::jvm(version, &server.url(), lease).await
    }

    /// The same, which asks the sentinels for the primary.
    pub async fn start_in(group: &SentinelGroup, lease: Duration) -> Redisson {
        Peer::jvm(NEWEST, &group.url(), lease).await
    }

    /// The same, which asks the nodes of the cluster who has which slot. `mode` is `classic` for channels that are not sharded, `slave` for
    /// subscriptions at replicas, or nothing.
    pub async fn start_on(cluster: &Cluster, lease: Duration, mode: &str) -> Redisson {
        Peer::start_old_on(NEWEST, cluster, lease, mode).await
    }

    /// The same with an older Redisson, one of [`OLD`].
    pub async fn start_old_on(
        version: &str,
        cluster: &Cluster,
        lease: Duration,
        mode: &str,
    ) -> Redisson {
        let mode = if mode.is_empty() {
            String::new()
        } else {
            format!("?{mode}")
        };
        Peer::jvm(version, &(cluster.url() + &mode), lease).await
    }

    async fn jvm(version: &str, url: &str, lease: Duration) -> Redisson {
        let built = PathBuf::from(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../target/redisson"
        ));
        assert!(
            built.join("classes/leasehold/Peer.class").exists() && built.join(version).exists(),
            "Redisson is not built: run scripts/test --setup"
        );
        // As `keep_loaded_classes` of scripts/test writes it, or the JVM leaves its archive alone.
        let built = built.canonicalize().unwrap();
        let class_path = format!("{0}/redisson-peer-0.jar:{0}/{version}/*", built.display());
        let mut java = Command::new("java");
        // Small and quick to start; the tests do not need it to be fast.
        java.args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
        let archive = built.join("lib.jsa");
        if version == NEWEST && archive.exists() {
            // Not a word of an archive that is of another JVM: its standard output is the peer's answers.
            java.arg(format!("-XX:SharedArchiveFile={}", archive.display()))
                .arg("-Xlog:disable");
        }
        java.args(["-cp", &class_path, "leasehold.Peer"])
            .arg(url.replace("valkey:", "redis:"))
            .arg(lease.as_millis().to_string());
        Peer::of(&mut java).await
    }
}

/// Adds one to the number in the file, so often, as Redisson's threads do under the mutex `name`. Returns how long the longest wait was.
pub async fn count(client: Client, handoff: Handoff, file: PathBuf, times: usize) -> Duration {
    let mutex = client.mutex("name").handoff(handoff);
    let mut longest = Duration::ZERO;
    for _ in 0..times {
        let asked = Instant::now();
        let guard = mutex.lock().await.unwrap();
        longest = longest.max(asked.elapsed());
        let number: u64 = std::fs::read_to_string(&file).unwrap().parse().unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await; // the window in which an update would be lost
        std::fs::write(&file, (number + 1).to_string()).unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
    }
    longest
}

/// Of 50 hand-overs half are quicker.
pub const AIM: Duration = Duration::from_millis(100);
pub const HAND_OVERS: usize = 50;

/// Tasks that count, on each side.
const TASKS: usize = 3;

/// How many processes listen for the name `name`.
type Listeners<'a> = &'a dyn Fn() -> u64;

async fn until_heard_by(listeners: Listeners<'_>, count: u64) {
    let what = format!("{count} processes listen");
    wait_until_async(SOON, &what, || listeners() == count).await;
}

/// From our release to Redisson's hold.
async fn to_redisson(listeners: Listeners<'_>, guard: MutexGuard, java: &mut Redisson) -> Duration {
    assert_eq!(java.obey("try name 0").await, "false");
    until_heard_by(listeners, 0).await;
    java.order("lock name");
    until_heard_by(listeners, 1).await;
    let freed = Instant::now();
    guard.release().await.unwrap();
    assert_eq!(java.answer().await, "locked");
    freed.elapsed()
}

/// From the order to unlock to our hold.
async fn to_us(
    listeners: Listeners<'_>,
    client: &Client,
    java: &mut Redisson,
) -> (MutexGuard, Duration) {
    let mutex = client.mutex("name");
    assert!(mutex.try_lock().await.unwrap().is_none());
    until_heard_by(listeners, 0).await;
    let waiter = tokio::spawn(mutex.lock());
    until_heard_by(listeners, 1).await;
    let freed = Instant::now();
    java.order("unlock name");
    let guard = soon("its turn", waiter).await.unwrap().unwrap();
    let took = freed.elapsed();
    assert_eq!(java.answer().await, "unlocked");
    (guard, took)
}

/// Prints it, and whether half took longer.
pub fn in_time(what: &str, mut took: Vec<Duration>) -> Result<(), String> {
    took.sort_unstable();
    let (half, most) = (took[took.len() / 2], took[took.len() - 1]);
    println!("{what}: p50 {half:?}, longest {most:?}");
    if half < AIM {
        return Ok(());
    }
    Err(format!("{what}: p50 {half:?}"))
}

/// Each locks the other out and wakes it, and what both count together is exact.
pub async fn share(
    when: &str,
    listeners: Listeners<'_>,
    dir: &Path,
    client: &Client,
    java: &mut Redisson,
) {
    let mut guard = client.mutex("name").lock().await.unwrap();
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..HAND_OVERS {
        theirs.push(to_redisson(listeners, guard, java).await);
        let (next, took) = to_us(listeners, client, java).await;
        ours.push(took);
        guard = next;
    }
    guard.release().await.unwrap();
    in_time(&format!("{when}, from us to Redisson"), theirs).unwrap();
    in_time(&format!("{when}, from Redisson to us"), ours).unwrap();

    let times = of_the_whole(100);
    let file = dir.join("number");
    std::fs::write(&file, "0").unwrap();
    java.order(&format!("count name {} {TASKS} {times}", file.display()));
    let counts = (0..TASKS).map(|_| count(client.clone(), Handoff::default(), file.clone(), times));
    join_all(counts).await;
    assert_eq!(java.answer().await, "counted");
    let counted = std::fs::read_to_string(&file).unwrap();
    assert_eq!(counted, (2 * TASKS * times).to_string());
}
