//! A server that has forgotten a lock, and replicas, or a disk, that acknowledge nothing from then on: its holder is told at once.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use leasehold::{Client, ClientBuilder, Durability, LostReason, MutexGuard, Unmet};
use leasehold_testkit::{Cluster, Flavor, Proxy, SentinelGroup, Server, wait_until};

use super::replicated::{Replicated, flavors, until_waiting};
use crate::common::{SOON, few_or, soon};

const MS: Duration = Duration::from_millis(1);
const ONE: Durability = Durability::Replicas(1);

/// A replica that is connected whenever its server is there, reads, and acknowledges nothing: as one that takes its time to come in sync.
struct MuteReplica {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MuteReplica {
    fn of(server: SocketAddr) -> MuteReplica {
        let ends = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let _ = follow(server, &end);
                std::thread::sleep(MS);
            }
        });
        MuteReplica {
            ends,
            thread: Some(thread),
        }
    }
}

impl Drop for MuteReplica {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

fn follow(server: SocketAddr, end: &AtomicBool) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(20 * MS))?;
    stream.write_all(b"PSYNC ? -1\r\n")?;
    let mut read = [0; 4096];
    while !end.load(Ordering::Relaxed) {
        match stream.read(&mut read) {
            Ok(0) => break,
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => break,
            _ => {}
        }
    }
    Ok(())
}

fn until_connected(server: &Server) {
    let is_there = || {
        let info = server.cli(&["INFO", "replication"]);
        let info: String = redis::from_redis_value(info).unwrap();
        info.contains("state=online")
    };
    wait_until(SOON, "the mute replica is connected", is_there);
}

/// The settings that the holder has asked for, and whether its client is busy besides.
#[derive(Clone, Copy, Debug)]
struct Case {
    policy: Durability,
    timeout: Duration,
    lease: Duration,
    unmet: Unmet,
    busy: bool,
}

const IDLE: Case = Case {
    policy: ONE,
    timeout: Duration::from_secs(5),
    lease: Duration::from_secs(30),
    unmet: Unmet::GiveBack,
    busy: false,
};

const BUSY: Case = Case {
    timeout: Duration::from_secs(1),
    busy: true,
    ..IDLE
};

/// Takes a lock, and has others be asked for meanwhile.
struct Holder {
    client: Client,
    guard: MutexGuard,
    load: Vec<tokio::task::JoinHandle<()>>,
}

impl Holder {
    async fn start(builder: ClientBuilder, case: Case) -> Holder {
        let builder = builder.durability_timeout(case.timeout).lease(case.lease);
        let client = builder.unmet(case.unmet).connect().await.unwrap();
        let mutex = client.mutex("name").durability(case.policy);
        let guard = soon("a replica acknowledges it", async {
            loop {
                if let Ok(guard) = mutex.lock().await {
                    return guard;
                }
            }
        });
        let guard = guard.await;
        Holder {
            client,
            guard,
            load: Vec::new(),
        }
    }

    /// Other tasks ask for locks that are not acknowledged, and for some that need not be.
    fn is_busy(&mut self, case: Case) {
        for task in 0..if case.busy { 8 } else { 0 } {
            let policy = if task < 6 {
                case.policy
            } else {
                Durability::Primary
            };
            let other = self.client.mutex(format!("other{task}{{name}}"));
            let other = other.durability(policy);
            self.load.push(tokio::spawn(async move {
                loop {
                    let _ = other.lock().await;
                    tokio::time::sleep(MS).await;
                }
            }));
        }
    }

    /// How long it takes from `since` until it is told of its loss.
    async fn told(self, since: Instant, case: Case) -> Duration {
        let lost = tokio::time::timeout(case.lease, self.guard.lost()).await;
        let took = since.elapsed();
        self.load.iter().for_each(tokio::task::JoinHandle::abort);
        assert_eq!(lost, Ok(LostReason::Failover), "{case:?}, after {took:?}");
        took
    }
}

async fn rival(url: &str) -> MutexGuard {
    let rival = Client::connect(url).await.unwrap();
    let locked = soon("the rival has it", rival.mutex("name").lock()).await;
    locked.unwrap()
}

/// The primary restarts empty.
async fn beside_a_primary(flavor: Flavor, case: Case) -> Duration {
    let mut group = match case.policy {
        Durability::Aof => Replicated {
            primary: Server::start_with(flavor, &["--appendonly", "yes"]),
            replicas: Vec::new(),
        },
        _ => Replicated::start(flavor, 1),
    };
    let proxy = Proxy::start(group.primary.addr());
    let mut holder = Holder::start(Client::builder().url(proxy.url()), case).await;
    group.freeze();
    holder.is_busy(case);
    if case.busy {
        until_waiting(&group.primary).await;
    }
    proxy.refuse(true);
    group.primary.restart_empty();
    let mute = (case.policy != Durability::Aof).then(|| MuteReplica::of(group.primary.addr()));
    if mute.is_some() {
        until_connected(&group.primary);
    } else {
        group.primary.cli(&["CONFIG", "SET", "appendfsync", "no"]);
    }
    let _rival = rival(&group.primary.url()).await;
    proxy.refuse(false);
    holder.told(Instant::now(), case).await
}

/// A replica without the lock is promoted.
async fn beside_sentinels(flavor: Flavor, case: Case) -> Duration {
    // The sentinels take the mute replica for one of theirs, and forget none.
    let mut group = SentinelGroup::start(flavor);
    let mut holder = Holder::start(Client::builder().url(group.url()), case).await;
    let primary = group.primary();
    let replicas: Vec<usize> = (0..3).filter(|i| *i != primary).collect();
    let replica = group.server(replicas[0]);
    replica.cli(&["CONFIG", "SET", "replica-read-only", "no"]);
    replica.cli(&["DEL", "name"]);
    let _mute = MuteReplica::of(replica.addr());
    group.kill(replicas[1]);
    holder.is_busy(case);
    tokio::task::block_in_place(|| group.failover());
    let _rival = rival(&group.url()).await;
    holder.told(Instant::now(), case).await
}

/// The primary of its slot restarts empty.
async fn in_a_cluster(cluster: &mut Cluster, case: Case) -> Duration {
    let mut holder = Holder::start(Client::builder().url(cluster.url()), case).await;
    let node = cluster.primary_of(cluster.slot("name"));
    cluster.lag(node);
    holder.is_busy(case);
    cluster.restart(node);
    let _mute = MuteReplica::of(cluster.node(node).addr());
    until_connected(cluster.node(node));
    let set = ["SET", "other{name}", "1", "PX", "1"];
    wait_until(SOON, "it takes writes", || {
        cluster.node(node).try_cli(&set).is_ok()
    });
    let _rival = rival(&cluster.url()).await;
    holder.told(Instant::now(), case).await
}

/// Both times, idle and busy.
fn cases() -> [Case; 4] {
    let (slow, quick) = (IDLE.timeout, BUSY.timeout);
    let timeout = |case, timeout| Case { timeout, ..case };
    [IDLE, BUSY, timeout(IDLE, quick), timeout(BUSY, slow)]
}

fn assert_in_time(flavor: Flavor, case: Case, took: &[Duration]) {
    println!("{flavor}, {case:?}: {took:?}");
    let longest = took.iter().max().unwrap();
    assert!(*longest < 1000 * MS, "{flavor}, {case:?}: {took:?}");
}

/// Redis waits for replicas also behind a script that has written nothing; Valkey if another of the batch has written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whom_a_restarted_primary_has_forgotten_is_told_at_once() {
    let short = Case {
        policy: Durability::Majority,
        lease: Duration::from_secs(3),
        ..BUSY
    };
    let accepts = Case {
        unmet: Unmet::Accept,
        ..IDLE
    };
    let on_disk = Case {
        policy: Durability::Aof,
        timeout: IDLE.timeout,
        ..BUSY
    };
    let cases = few_or(vec![IDLE, BUSY], cases().to_vec());
    for case in cases.into_iter().chain([short, accepts, on_disk]) {
        // Redis 7.0 cannot say what is on its disk.
        let nth = usize::from(case.policy == Durability::Aof) * (flavors().len() - 1);
        for flavor in few_or(vec![flavors()[nth]], flavors()) {
            if case.policy == Durability::Aof && flavor == Flavor::Redis {
                continue;
            }
            let mut took = Vec::new();
            for _ in 0..few_or(1, 20) {
                took.push(beside_a_primary(flavor, case).await);
            }
            assert_in_time(flavor, case, &took);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whom_a_promoted_replica_does_not_know_is_told_at_once() {
    for flavor in few_or(Vec::new(), flavors()) {
        for round in 0..20 {
            let case = cases()[round % 4];
            assert_in_time(flavor, case, &[beside_sentinels(flavor, case).await]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whom_a_restarted_node_has_forgotten_is_told_at_once() {
    for flavor in few_or(Vec::new(), flavors()) {
        let mut cluster = Cluster::start(flavor);
        for round in 0..20 {
            let case = cases()[round % 4];
            assert_in_time(flavor, case, &[in_a_cluster(&mut cluster, case).await]);
            cluster.settle();
        }
    }
}
