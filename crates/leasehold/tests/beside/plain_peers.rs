//! Beside libraries that take a name with `SET name token NX PX`: redis-py's `Lock` and node-redlock, each in a process of its
//! own. They look by themselves, and are told nothing; so do we beside them.

use std::{
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use crate::common::{
    SOON, assert_nothing_left, attempts, int, peer::Peer, release, servers, soon, wait_until_idle,
};
use futures_util::future::join_all;
use leasehold::{Client, LostReason, PlainMutex, Released};
use leasehold_testkit::{Server, wait_until_async};

/// Both look after a few tenths of a second at the latest.
const LOOKED: Duration = Duration::from_secs(2);

/// The libraries that play.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Library {
    /// On several servers it is pottery.
    RedisPy,
    NodeRedlock,
    /// By hand only.
    Redsync,
}

pub(crate) const LIBRARIES: [Library; 2] = [Library::RedisPy, Library::NodeRedlock];

impl Library {
    async fn start(self, server: &Server) -> Peer {
        self.start_on(&[server.url()]).await
    }

    /// A majority of several servers decides.
    pub(crate) async fn start_on(self, urls: &[String]) -> Peer {
        let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let installed = root.join("target/plain");
        assert!(
            installed.join("pottery").exists() && installed.join("node_modules/redlock").exists(),
            "redis-py, pottery and node-redlock are not installed: run scripts/test --setup"
        );
        let url = urls.join(",").replace("valkey:", "redis:");
        let peers = root.join("interop/plain");
        Peer::of(&mut match self {
            Library::RedisPy => {
                let mut python = Command::new("python3");
                python.env("PYTHONPATH", installed);
                python.arg(peers.join("peer.py")).arg(url);
                python
            }
            Library::NodeRedlock => {
                let mut node = Command::new("node");
                node.arg(peers.join("peer.mjs")).arg(url);
                // It finds its modules as this file does.
                node.arg(installed.canonicalize().unwrap().join("package.json"));
                node
            }
            Library::Redsync => {
                let mut redsync = Command::new(installed.join("redsync"));
                redsync.arg(url);
                redsync
            }
        })
        .await
    }
}

async fn client_of(server: &Server) -> Client {
    Client::connect(&server.url()).await.unwrap()
}

#[tokio::test]
async fn each_is_refused_by_the_other_and_gets_the_name_when_it_is_free() {
    for server in servers() {
        for library in LIBRARIES {
            let case = format!("{library:?} on {}", server.flavor());
            let client = client_of(&server).await;
            let mut peer = library.start(&server).await;
            let lock = client.plain_mutex("name");

            assert_eq!(peer.obey("lock name 60000").await, "locked", "{case}");
            assert!(lock.try_lock().await.unwrap().is_none(), "{case}");
            let status = lock.status().await.unwrap();
            let there = status.holder().expect("it is held");
            let left = there.remaining.expect("its lease is seen");
            assert!(left > Duration::from_secs(50), "{case}: {left:?}");
            assert!(there.since.is_none() && there.client.is_empty(), "{case}");
            let waiting = tokio::spawn(lock.lock());
            wait_until_async(SOON, "it waits", || {
                int(&server, &["LLEN", "leasehold:{name}:plain:queue"]) == 1
            })
            .await;
            let freed = Instant::now();
            assert_eq!(peer.obey("unlock name").await, "unlocked", "{case}");
            let guard = soon(&case, waiting).await.unwrap().unwrap();
            assert!(freed.elapsed() < LOOKED, "{case}: {:?}", freed.elapsed());

            assert_eq!(peer.obey("try name 60000 0").await, "false", "{case}");
            assert_eq!(peer.obey("try name 60000 300").await, "false", "{case}");
            let before = attempts(&server);
            peer.order("lock name 60000");
            wait_until_async(SOON, "it asks", || attempts(&server) >= before + 2).await;
            let freed = Instant::now();
            release(guard).await;
            assert_eq!(peer.answer().await, "locked", "{case}");
            assert!(freed.elapsed() < LOOKED, "{case}: {:?}", freed.elapsed());
            // It extends what is its own, and we see that.
            assert_eq!(peer.obey("extend name 90000").await, "extended", "{case}");
            let status = lock.status().await.unwrap();
            let left = status.holder().and_then(|there| there.remaining);
            assert!(left > Some(Duration::from_secs(80)), "{case}: {left:?}");
            assert_eq!(peer.obey("unlock name").await, "unlocked", "{case}");
            wait_until_idle(&client).await;
            assert_nothing_left(&server, &case).await;
        }
    }
}

/// A holder that has lost the name takes it from no other.
#[tokio::test]
async fn the_release_of_a_lease_that_is_over_takes_nothing_from_the_next_holder() {
    const SHORT: Duration = Duration::from_millis(300);
    for server in servers() {
        for library in LIBRARIES {
            let case = format!("{library:?} on {}", server.flavor());
            let client = client_of(&server).await;
            let mut peer = library.start(&server).await;
            let lock = client.plain_mutex("name");
            let guard = lock.fixed_lease(SHORT).lock().await.unwrap();
            assert_eq!(peer.obey("lock name 60000").await, "locked", "{case}");
            assert_eq!(guard.lost().await, LostReason::Expired);
            drop(guard);
            wait_until_idle(&client).await;
            assert!(lock.try_lock().await.unwrap().is_none(), "{case}");
            assert_eq!(peer.obey("unlock name").await, "unlocked", "{case}");

            assert_eq!(peer.obey("lock name 300").await, "locked", "{case}");
            let guard = soon(&case, lock.lock()).await.unwrap();
            let answer = peer.obey("unlock name").await;
            assert!(answer.starts_with("failed"), "{case}: {answer}");
            guard.verify().await.unwrap();
            release(guard).await;
            wait_until_idle(&client).await;
            assert_nothing_left(&server, &case).await;
        }
    }
}

/// Adds one to the number in the file, as the peers do.
async fn count(lock: PlainMutex, file: PathBuf, times: usize) {
    for _ in 0..times {
        let guard = lock.lock().await.unwrap();
        let number: u64 = std::fs::read_to_string(&file).unwrap().parse().unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await; // the window in which an update would be lost
        std::fs::write(&file, (number + 1).to_string()).unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
    }
}

/// Two processes of each library, and two clients of ours with two tasks each. Ours go first; the others get their turns.
#[tokio::test]
async fn no_update_is_lost_between_the_processes_of_three_libraries() {
    const TIMES: usize = 100;
    for server in servers() {
        let file = server.dir().join("number");
        std::fs::write(&file, "0").unwrap();
        let clients = [client_of(&server).await, client_of(&server).await];
        let mut peers = Vec::new();
        for library in [LIBRARIES, LIBRARIES].concat() {
            peers.push(library.start(&server).await);
        }
        for peer in &mut peers {
            peer.order(&format!("count name {} {TIMES}", file.display()));
        }
        let tasks = clients.iter().cycle().take(4);
        let tasks = tasks.map(|client| count(client.plain_mutex("name"), file.clone(), TIMES));
        join_all(tasks.map(tokio::spawn))
            .await
            .into_iter()
            .for_each(Result::unwrap);
        for peer in &mut peers {
            assert_eq!(peer.answer().await, "counted");
        }
        let counted = std::fs::read_to_string(&file).unwrap();
        assert_eq!(counted, (8 * TIMES).to_string());
        for client in &clients {
            wait_until_idle(client).await;
        }
        assert_nothing_left(&server, "counting beside other libraries").await;
    }
}
