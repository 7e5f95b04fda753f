//! Sentinels that are set anew: an operator has them watch another server, and they count their epochs from zero. Nothing is announced as a
//! switch.

use std::time::{Duration, Instant};

use leasehold::{Client, LostReason};
use leasehold_testkit::{SentinelGroup, wait_until_async};

use super::sentinel_failover::again;
use crate::common::{few_or, flavors, keys, soon};

/// By then the client is gone from the old primary, counted from the word of the second of three sentinels.
const AIM: Duration = Duration::from_secs(3);

/// The fate of the old primary.
#[derive(Clone, Copy, Debug)]
enum Old {
    Alive,
    Dead,
    Replica,
}

/// A connection of this client is there.
pub(super) fn is_at(group: &SentinelGroup, server: usize, client: &Client) -> bool {
    let list = again(group.server(server)).try_cli(&["CLIENT", "LIST"]);
    let list = list.map(redis::from_redis_value::<String>);
    matches!(list, Ok(Ok(list)) if list.contains(client.id()))
}

/// A user of the sentinels that may hear switches, and nothing of a sentinel that is set anew.
const DEAF: &str = "ACL SETUSER deaf on >secret resetchannels &+switch-master +ping +subscribe +sentinel|master +sentinel|sentinels \
                    +sentinel|masters +sentinel|get-master-addr-by-name +sentinel|myid";

/// The group, as a client of that user finds it.
pub(super) fn deaf_url(group: &SentinelGroup) -> String {
    for sentinel in group.sentinels() {
        sentinel.cli(&DEAF.split_whitespace().collect::<Vec<_>>());
    }
    format!("{}&sentinel_user=deaf&sentinel_pass=secret", group.url())
}

/// A replacement by hand; how long after the word of the second sentinel the client was at the new primary, and at the old one no more.
async fn replaced(group: &mut SentinelGroup, becomes: Old, url: &str) -> Duration {
    // The epoch of all is higher than that with which they begin anew.
    group.failover();
    group.settle();
    let old = group.primary();
    let new = (old + 1) % 3;
    let client = Client::connect(url).await.unwrap();
    let lease = Duration::from_secs(600);
    let mutex = client.mutex("order:42").lease(lease);
    let held = mutex.lock().await.unwrap();

    (0..3).for_each(|sentinel| group.forget_primary(sentinel));
    // The new one does not know of this hold: a new client may have it there.
    group.promote_by_hand(new);
    again(group.server(new)).cli(&["FLUSHALL"]);
    match becomes {
        Old::Alive => {}
        Old::Dead => group.kill(old),
        Old::Replica => {
            let port = group.server(new).port().to_string();
            group.server(old).cli(&["REPLICAOF", "127.0.0.1", &port]);
        }
    }
    group.set_anew(0, new);
    // A single sentinel of three moves no client. Time is the subject.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!is_at(group, new, &client), "moved by one sentinel");
    if matches!(becomes, Old::Alive) {
        let other = client.mutex("other").lock().await.unwrap();
        assert!(keys(group.server(old)).contains(&"other".to_owned()));
        other.release().await.unwrap();
        assert!(held.is_valid());
    }
    if matches!(becomes, Old::Replica) {
        let says = "is a replica, and another server is named as the primary by 1 of 3 sentinels";
        let is_said = async {
            // Until its connection is broken, the replica says only that it takes no writes.
            let other = client.mutex("other");
            while !other
                .try_lock()
                .await
                .unwrap_err()
                .to_string()
                .contains(says)
            {}
        };
        soon("the sentinels are counted", is_said).await;
    }
    group.set_anew(1, new);
    let word = Instant::now();
    let is_gone = || is_at(group, new, &client) && !is_at(group, old, &client);
    wait_until_async(Duration::from_secs(30), "it is at the new primary", is_gone).await;
    let took = word.elapsed();
    assert_eq!(soon("the loss", held.lost()).await, LostReason::Failover);
    group.set_anew(2, new);
    let guard = soon("a lock at the new primary", mutex.lock()).await;
    assert!(keys(group.server(new)).contains(&"order:42".to_owned()));
    guard.unwrap().release().await.unwrap();
    group.settle();
    took
}

async fn all_replaced(becomes: Old, flavor: usize, url: fn(&SentinelGroup) -> String) {
    for flavor in flavors(flavor) {
        let mut group = SentinelGroup::start(flavor);
        let url = url(&group);
        for round in 0..few_or(1, 10) {
            let took = replaced(&mut group, becomes, &url).await;
            println!("{flavor}, {becomes:?}, round {round}: {took:?}");
            assert!(took < AIM, "{flavor}, {becomes:?}: after {took:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn most_sentinels_set_anew_move_the_client_from_a_primary_that_goes_on() {
    all_replaced(Old::Alive, 0, SentinelGroup::url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_may_not_hear_of_sentinels_set_anew_asks_them() {
    all_replaced(Old::Alive, 1, deaf_url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn most_sentinels_set_anew_move_the_client_from_a_primary_that_is_dead() {
    all_replaced(Old::Dead, 1, SentinelGroup::url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn most_sentinels_set_anew_move_the_client_from_a_primary_that_is_a_replica_now() {
    all_replaced(Old::Replica, 0, SentinelGroup::url).await;
}

/// Its epoch is not lower where there was no failover yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_sentinels_set_anew_moves_no_client() {
    for flavor in flavors(0) {
        let group = SentinelGroup::start(flavor);
        let (old, new) = (0, 1);
        let client = Client::connect(&group.url()).await.unwrap();
        let held = client.mutex("order:42").lock().await.unwrap();
        group.promote_by_hand(new);
        group.set_anew(0, new);
        // It is asked once more when it is heard again.
        group.sentinel(0).cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        // Time is the subject: it is also asked every 2 s.
        let until = Instant::now() + Duration::from_millis(2_500);
        while Instant::now() < until {
            assert!(is_at(&group, old, &client), "it has left");
            assert!(!is_at(&group, new, &client), "moved by one sentinel");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        held.verify().await.unwrap();
    }
}
