//! A plain mutex on a majority of three servers, beside libraries that lock the same three (Redlock): node-redlock and pottery, and by hand redsync.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::plain_peers::{LIBRARIES, Library};
use crate::common::{SOON, keys, wait_until_idle};
use leasehold::{Client, PlainMutex, Released};
use leasehold_testkit::{Flavor, Primaries, wait_until_async};
use tokio::time::sleep;

/// pottery writes the first half of it before each name.
const NAME: &str = "redlock:name";

/// Adds one to the number in the file, as the peers do, until they are done. Returns how often. In between it does without the name: a
/// library that looks by itself seldom finds one free that ours want all the time (docs/rules.md, "Order").
async fn count(lock: PlainMutex, file: PathBuf, over: Arc<AtomicBool>) -> u64 {
    let mut times = 0;
    while !over.load(Ordering::SeqCst) {
        let guard = lock.lock().await.unwrap();
        let number: u64 = read(&file);
        sleep(Duration::from_millis(1)).await; // the window in which an update would be lost
        std::fs::write(&file, (number + 1).to_string()).unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        times += 1;
        sleep(Duration::from_millis(10)).await;
    }
    times
}

fn read(file: &Path) -> u64 {
    std::fs::read_to_string(file).unwrap().parse().unwrap()
}

/// A process of each library, and two clients of ours, which go on until the others have counted.
async fn contend(libraries: &[Library], flavor: Flavor) {
    const TIMES: u64 = 50;
    let servers = Primaries::start(3, flavor);
    let file = servers.server(0).dir().join("number");
    std::fs::write(&file, "0").unwrap();
    let mut peers = Vec::new();
    for library in libraries {
        peers.push(library.start_on(&servers.urls()).await);
    }
    let over = Arc::new(AtomicBool::new(false));
    let (mut clients, mut tasks) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let builder = Client::builder().quorum(servers.urls());
        // They were just started, and nothing is on them yet.
        let client = builder.persistent_servers(true).connect().await.unwrap();
        let counting = count(client.plain_mutex(NAME), file.clone(), Arc::clone(&over));
        tasks.push(tokio::spawn(counting));
        clients.push(client);
    }
    for peer in &mut peers {
        peer.order(&format!("count {NAME} {} {TIMES}", file.display()));
    }
    for (peer, library) in peers.iter_mut().zip(libraries) {
        assert_eq!(peer.answer().await, "counted", "{library:?} on {flavor}");
    }
    over.store(true, Ordering::SeqCst);
    let mut ours = Vec::new();
    for task in tasks {
        ours.push(task.await.unwrap());
    }
    println!("{flavor}: {TIMES} of each of {libraries:?}, ours {ours:?}");
    assert!(ours.iter().all(|times| *times > 0), "{flavor}: {ours:?}");
    let all = ours.iter().sum::<u64>() + TIMES * libraries.len() as u64;
    assert_eq!(read(&file), all, "{flavor}");
    for client in &clients {
        wait_until_idle(client).await;
    }
    // A key that a library has left at a minority ends with its lease.
    for server in servers.servers() {
        let is_free = || !keys(server).contains(&NAME.to_owned());
        wait_until_async(SOON, "nobody has the name", is_free).await;
    }
}

#[tokio::test]
async fn no_update_is_lost_beside_other_libraries_on_a_majority_and_each_side_makes_progress() {
    for flavor in Flavor::available() {
        contend(&LIBRARIES, flavor).await;
    }
}

/// By hand: `(cd interop/plain/redsync && go build -o ../../../target/plain/redsync .)`
#[tokio::test]
#[ignore = "needs Go"]
async fn no_update_is_lost_beside_redsync_and_node_redlock_on_a_majority() {
    for flavor in Flavor::available() {
        contend(&[Library::Redsync, Library::NodeRedlock], flavor).await;
    }
}
