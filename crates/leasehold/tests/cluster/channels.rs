//! On which channels waiters listen: sharded ones, or those of the whole cluster.

use std::time::{Duration, Instant};

use leasehold::{Client, ClientBuilder};
use leasehold_testkit::{Cluster, wait_until_async};

use super::{channel, flavors, listeners, slot};
use crate::common::{SOON, refused, wire::documented_rules};

const NAME: &str = "order:1";

/// Where the waiter is counted, on sharded and on classic channels; it is woken there.
async fn waits_on(cluster: &Cluster, builder: &ClientBuilder) -> [u64; 2] {
    let (holds, waits) = (builder.clone().connect(), builder.clone().connect());
    let (holds, waits) = (holds.await.unwrap(), waits.await.unwrap());
    let guard = holds.mutex(NAME).lock().await.unwrap();
    let mutex = waits.mutex(NAME);
    let waiter =
        tokio::spawn(async move { mutex.lock().await.map(|guard| (guard, Instant::now())) });
    let owner = cluster.primary_of(slot(cluster, NAME));
    let counts = || [true, false].map(|sharded| listeners(cluster, owner, &channel(NAME), sharded));
    wait_until_async(SOON, "it listens", || counts() != [0, 0]).await;
    let counted = counts();
    // It may still be on its way from there to its place in the queue.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    let woken = tokio::time::timeout(SOON, waiter).await.unwrap().unwrap();
    let (guard, woken) = woken.unwrap();
    let took = woken - released;
    assert!(took < Duration::from_millis(300), "{took:?}");
    guard.release().await.unwrap();
    wait_until_async(SOON, "nobody listens", || counts() == [0, 0]).await;
    counted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_listen_on_the_channels_that_are_set_or_on_those_that_the_nodes_know() {
    for flavor in flavors() {
        let cluster = Cluster::start(flavor);
        let builder = Client::builder().url(cluster.url());
        assert_eq!(waits_on(&cluster, &builder).await, [1, 0], "{flavor}: auto");
        let on = builder.clone().sharded_channels(true);
        assert_eq!(waits_on(&cluster, &on).await, [1, 0], "{flavor}: on");
        let off = builder.sharded_channels(false);
        assert_eq!(waits_on(&cluster, &off).await, [0, 1], "{flavor}: off");
    }
}

/// The rights of docs/keys.md, by themselves. Without those to sharded channels the others are chosen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_rights_suffice_and_without_those_to_sharded_channels_none_is_used() {
    let documented = include_str!("../../../../docs/keys.md");
    let of_cluster = ["+cluster|slots", "+asking"];
    let sharded = "+spublish +ssubscribe +sunsubscribe +pubsub|shardnumsub";
    for rights in of_cluster.iter().chain([&sharded]) {
        assert!(documented.contains(rights), "{rights}");
    }
    for flavor in flavors() {
        let cluster = Cluster::start(flavor);
        let set = |rights: &[&str]| {
            for node in cluster.nodes() {
                let command = ["ACL", "SETUSER", "worker"];
                node.cli(&[&command, rights].concat());
            }
        };
        set(&documented_rules()
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>());
        set(&of_cluster);
        for node in cluster.nodes() {
            // As the documentation says; Redis 7.0 does not know it.
            let _ = node.try_cli(&["ACL", "SETUSER", "worker", "+client|setinfo"]);
        }
        let url = cluster.url().replace("://", "://worker:secret@");
        let builder = Client::builder().url(url);
        assert_eq!(waits_on(&cluster, &builder).await, [0, 1], "{flavor}");
        for node in cluster.nodes() {
            node.cli(&["ACL", "LOG", "RESET"]);
        }
        set(&sharded.split(' ').collect::<Vec<_>>());
        assert_eq!(waits_on(&cluster, &builder).await, [1, 0], "{flavor}");
        for node in cluster.nodes() {
            assert_eq!(refused(node), [], "refused by the rules");
        }
    }
}
