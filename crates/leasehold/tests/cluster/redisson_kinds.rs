//! Each kind beside the real Redisson in cluster mode: both wake each other, on sharded channels and on classic ones.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use leasehold::Client;
use leasehold_testkit::{Cluster, Flavor, wait_until_async};

use super::{SHARDED, flavors, slot};
use crate::common::{
    SOON, few_or,
    kinds::{AnyLock, Row},
    late::unless_late_async,
    redisson::{AIM, HAND_OVERS, OLD, Redisson, in_time},
    soon, wait_until_idle,
};

/// Long enough that a waiter that is not woken is noticed.
const LEASE: Duration = Duration::from_secs(30);

const NAME: &str = "name";

/// Of two names for a multi-lock, in different slots.
const TOO: &str = "too";

/// The rows that our clients take, while Redisson writes where ours read. A spin lock's waiters are not told.
const WOKEN: [Row; 8] = [
    Row::Mutex,
    Row::Fenced,
    Row::Read,
    Row::Write,
    Row::Permit,
    Row::Count,
    Row::Multi,
    Row::Fair,
];

/// Three, of which one may be slow. Redisson loses a message while it subscribes anew, and a write lock's before its thread sleeps.
fn hand_overs() -> usize {
    few_or(3, HAND_OVERS)
}

/// How often a node has sent clients to another.
fn moved(cluster: &Cluster, node: usize) -> String {
    let stats = cluster.command(node, &["INFO", "errorstats"]);
    let stats: String = redis::from_redis_value(stats).unwrap();
    let line = stats.lines().find(|line| line.contains("MOVED"));
    line.unwrap_or_default().to_owned()
}

/// Until Redisson asks the new node at once, and so subscribes there.
async fn until_it_knows(cluster: &Cluster, before: usize, java: &mut Redisson) {
    super::redisson::until_it_follows(java).await;
    let began = Instant::now();
    loop {
        let sent_on = moved(cluster, before);
        super::redisson::until_it_follows(java).await;
        if moved(cluster, before) == sent_on {
            return;
        }
        assert!(began.elapsed() < SOON, "it still asks the old node");
    }
}

/// How Redisson is told to try, to lock and to unlock.
fn orders(row: Row) -> [&'static str; 3] {
    match row {
        Row::Mutex => ["try name 0", "lock name", "unlock name"],
        Row::Fenced => [
            "fenced name try 0",
            "fenced name lock",
            "fenced name unlock",
        ],
        Row::Read | Row::Write => ["write try name 0", "write lock name", "write unlock name"],
        Row::Permit => [
            "permits name try 1 0 30000",
            "permits name acquire 1 30000",
            "permits name release",
        ],
        Row::Count => [
            "semaphore name try 1 0",
            "semaphore name acquire 1",
            "semaphore name release 1",
        ],
        Row::Multi => [
            "multi try name,too 0",
            "multi lock name,too",
            "multi unlock name,too",
        ],
        Row::Fair => ["fair try name 0", "fair lock name", "fair unlock name"],
        Row::Spin => ["spin try name 0", "spin lock name", "spin unlock name"],
        Row::Plain => unreachable!("Redisson has none"),
    }
}

/// How the channels begin on which Redisson and ours hear that it is free.
fn channels(row: Row) -> &'static str {
    match row {
        Row::Read | Row::Write => "redisson_rwlock:{name}*",
        Row::Permit | Row::Count => "redisson_sc:{name}*",
        _ => "redisson_lock__channel:{name}*",
    }
}

struct Both<'a> {
    cluster: &'a Cluster,
    client: &'a Client,
    sharded: bool,
    /// `RFencedLock` came with 3.19.
    fenced: bool,
}

impl Both<'_> {
    fn lock(&self, row: Row) -> AnyLock {
        match row {
            Row::Multi => {
                let parts = self.client.multi_lock([NAME, TOO]);
                AnyLock::Multi(parts, self.client.mutex(NAME))
            }
            row => row.lock(self.client, NAME),
        }
    }

    /// Until somebody listens, or nobody, at any node: a replica hears as well.
    async fn until_heard(&self, channels: &str, is_heard: bool) {
        let of = if self.sharded {
            "SHARDCHANNELS"
        } else {
            "CHANNELS"
        };
        let heard = |node| {
            let there = self.cluster.command(node, &["PUBSUB", of, channels]);
            let there: Vec<String> = redis::from_redis_value(there).unwrap();
            !there.is_empty()
        };
        let what = format!("{channels} heard: {is_heard}");
        wait_until_async(SOON, &what, || (0..6).any(heard) == is_heard).await;
    }

    /// Ours is free, then Redisson's, and so on: how long each waits for the other.
    async fn pass(&self, when: &str, row: Row, java: &mut Redisson) {
        unless_late_async("a hand-over", AIM, async || {
            self.pass_once(when, row, java).await
        })
        .await;
    }

    async fn pass_once(&self, when: &str, row: Row, java: &mut Redisson) -> Result<(), String> {
        row.prepare(self.client, NAME).await;
        let (lock, [try_it, lock_it, unlock_it]) = (self.lock(row), orders(row));
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        let mut guard = lock.lock().await.unwrap();
        for _ in 0..hand_overs() {
            let refused = java.obey(try_it).await;
            assert!(["false", "none"].contains(&&*refused), "{row:?}: {refused}");
            self.until_heard(channels(row), false).await;
            java.order(lock_it);
            self.until_heard(channels(row), true).await;
            let freed = Instant::now();
            guard.release().await.unwrap();
            let answer = java.answer().await;
            theirs.push(freed.elapsed());
            assert!(!answer.starts_with("failed"), "{row:?}: {answer}");

            assert!(lock.try_lock().await.unwrap().is_none(), "{row:?}");
            self.until_heard(channels(row), false).await;
            let waiter = tokio::spawn(lock.lock());
            self.until_heard(channels(row), true).await;
            let freed = Instant::now();
            match row {
                Row::Permit => java.order(&format!("{unlock_it} {answer}")),
                _ => java.order(unlock_it),
            }
            guard = soon("its turn", waiter).await.unwrap().unwrap();
            ours.push(freed.elapsed());
            let answer = java.answer().await;
            assert!(!answer.starts_with("failed"), "{row:?}: {answer}");
        }
        guard.release().await.unwrap();
        self.forget().await;
        in_time(&format!("{when}, {row:?}, from us to Redisson"), theirs)?;
        in_time(&format!("{when}, {row:?}, from Redisson to us"), ours)
    }

    /// So that another kind may have the name.
    async fn forget(&self) {
        wait_until_idle(self.client).await;
        let owner = self.cluster.primary_of(slot(self.cluster, NAME));
        self.cluster.command(owner, &["DEL", NAME]);
    }

    async fn open(&self, when: &str, java: &mut Redisson) {
        unless_late_async("a latch", AIM, async || self.open_once(when, java).await).await;
    }

    async fn open_once(&self, when: &str, java: &mut Redisson) -> Result<(), String> {
        const CHANNEL: &str = "redisson_countdownlatch__channel__{name}";
        let latch = self.client.latch(NAME);
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..hand_overs() {
            assert!(latch.try_set_count(1).await.unwrap());
            java.order("latch name wait 30000");
            self.until_heard(CHANNEL, true).await;
            let opened = Instant::now();
            latch.count_down().await.unwrap();
            assert!(java.answer().await.starts_with("true"));
            theirs.push(opened.elapsed());
            self.until_heard(CHANNEL, false).await;

            assert_eq!(java.obey("latch name set 1").await, "true");
            let waiter = latch.clone();
            let waiter = tokio::spawn(async move { waiter.wait().await });
            self.until_heard(CHANNEL, true).await;
            let opened = Instant::now();
            java.order("latch name down");
            soon("it opens", waiter).await.unwrap().unwrap();
            ours.push(opened.elapsed());
            assert_eq!(java.answer().await, "counted down");
            self.until_heard(CHANNEL, false).await;
        }
        in_time(&format!("{when}, Latch, from us to Redisson"), theirs)?;
        in_time(&format!("{when}, Latch, from Redisson to us"), ours)
    }

    /// Each locks the other out; both look for themselves.
    async fn spin(&self, java: &mut Redisson) {
        let (lock, [try_it, lock_it, unlock_it]) = (self.lock(Row::Spin), orders(Row::Spin));
        let guard = lock.lock().await.unwrap();
        assert_eq!(java.obey(try_it).await, "false");
        java.order(lock_it);
        guard.release().await.unwrap();
        assert_eq!(java.answer().await, "locked");
        assert!(lock.try_lock().await.unwrap().is_none());
        let waiter = tokio::spawn(lock.lock());
        assert_eq!(java.obey(unlock_it).await, "unlocked");
        let guard = soon("its turn", waiter).await.unwrap().unwrap();
        guard.release().await.unwrap();
        self.forget().await;
    }

    async fn all(&self, when: &str, java: &mut Redisson) {
        let channels = if self.sharded { "sharded" } else { "classic" };
        let when = format!("{}, {channels}, {when}", self.cluster.node(0).flavor());
        for row in WOKEN {
            if row == Row::Fenced && !self.fenced {
                continue;
            }
            self.pass(&when, row, java).await;
        }
        self.open(&when, java).await;
        self.spin(java).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redisson_and_each_kind_of_ours_exclude_and_wake_each_other_and_so_they_do_where_the_slot_has_moved()
 {
    for flavor in flavors() {
        let cluster = Cluster::start(flavor);
        for sharded in SHARDED {
            let builder = Client::builder().url(cluster.url());
            let client = builder.sharded_channels(sharded).connect().await.unwrap();
            let mode = if sharded { "" } else { "classic" };
            let mut java = Redisson::start_on(&cluster, LEASE, mode).await;
            let both = Both {
                cluster: &cluster,
                client: &client,
                sharded,
                fenced: true,
            };
            both.all("before", &mut java).await;
            let slot = slot(&cluster, NAME);
            let before = cluster.primary_of(slot);
            cluster.migrate(slot, (before + 1) % 3);
            until_it_knows(&cluster, before, &mut java).await;
            both.all("after it moved", &mut java).await;
            wait_until_idle(&client).await;
        }
    }
}

/// On the channels that all versions have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_redissons_and_each_kind_of_ours_exclude_and_wake_each_other_on_classic_channels() {
    let cluster = Cluster::start(Flavor::Redis);
    let builder = Client::builder().url(cluster.url());
    let client = builder.sharded_channels(false).connect().await.unwrap();
    for version in OLD {
        let mode = if version == OLD[0] { "" } else { "classic" }; // it knows no other
        let mut java = Redisson::start_old_on(version, &cluster, LEASE, mode).await;
        let both = Both {
            cluster: &cluster,
            client: &client,
            sharded: false,
            fenced: version != OLD[0],
        };
        both.all(version, &mut java).await;
        wait_until_idle(&client).await;
    }
}

/// Takes it again and again, and keeps it for so long: how often.
async fn hold(lock: AnyLock, held: Duration, end: Instant) -> u64 {
    let mut holds = 0;
    while Instant::now() < end {
        let guard = lock.lock().await.unwrap();
        tokio::time::sleep(held).await;
        guard.release().await.unwrap();
        holds += 1;
    }
    holds
}

/// How many holds each side has when three tasks of each want the name.
async fn shares(lock: &AnyLock, java: &mut Redisson, kind: &str, time: u64) -> [u64; 2] {
    const TASKS: usize = 3;
    let held = Duration::from_micros(500);
    let (micros, end) = (
        held.as_micros(),
        Instant::now() + Duration::from_millis(time),
    );
    java.order(&format!("contend {kind} {NAME} {TASKS} {micros} {time}"));
    let tasks = (0..TASKS).map(|_| tokio::spawn(hold(lock.clone(), held, end)));
    let ours = join_all(tasks).await.into_iter().map(Result::unwrap).sum();
    let answer = java.answer().await;
    let (theirs, _) = answer.split_once(' ').expect("two numbers");
    [ours, theirs.parse().unwrap()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_a_redisson_that_listens_at_replicas_each_side_has_a_quarter_of_the_holds() {
    for flavor in flavors() {
        let cluster = Cluster::start(flavor);
        let client = Client::connect(&cluster.url()).await.unwrap();
        let mut java = Redisson::start_on(&cluster, LEASE, "slave").await;
        let both = Both {
            cluster: &cluster,
            client: &client,
            sharded: true,
            fenced: true,
        };
        both.all("at a replica", &mut java).await;
        for (row, kind) in [
            (Row::Mutex, "mutex"),
            (Row::Fenced, "fenced"),
            (Row::Write, "write"),
            (Row::Permit, "permits"),
            (Row::Count, "semaphore"),
        ] {
            row.prepare(&client, NAME).await;
            let what = format!("{flavor}, {kind}");
            let (lock, java) = (both.lock(row), &mut java);
            unless_late_async(&what, AIM, async || {
                let mut told = Vec::new();
                // Three times, and longer: a machine that stalls gives a side less.
                for longer in 1..=3 {
                    let time = longer * few_or(500, 3000);
                    let [ours, theirs] = shares(&lock, java, kind, time).await;
                    if 4 * ours.min(theirs) >= ours + theirs {
                        return Ok(());
                    }
                    told.push(format!("ours {ours}, theirs {theirs}"));
                }
                Err(told.join("; "))
            })
            .await;
            both.forget().await;
        }
    }
}
