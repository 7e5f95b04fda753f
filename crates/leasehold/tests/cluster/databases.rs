//! Numbered databases, which a cluster of Valkey 9 has if it is told to.

use std::time::{Duration, Instant};

use leasehold::{Client, ClusterNodes, ErrorKind};
use leasehold_testkit::{Cluster, ClusterSettings, Flavor};

use super::names_at;
use crate::common::{SOON, soon};

/// How many keys a node has in a database.
fn keys(cluster: &Cluster, node: usize, database: u32) -> u32 {
    let info = cluster.command(node, &["INFO", "keyspace"]);
    let info: String = redis::from_redis_value(info).unwrap();
    let keys = info.split_once(&format!("db{database}:keys="));
    let keys = keys.and_then(|(_, rest)| rest.split(',').next());
    keys.map_or(0, |keys| keys.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_numbered_database_of_a_cluster_has_locks_of_its_own_where_the_cluster_has_it() {
    if !Flavor::available().contains(&Flavor::Valkey) {
        return;
    }
    let settings = ClusterSettings::new().args(&["--cluster-databases", "4"]);
    let cluster = Cluster::start_with(Flavor::Valkey, settings);
    let name = names_at(&cluster, 0, 1).remove(0);
    let (url, node) = (cluster.url(), cluster.addr(0).to_string());
    let of_url = Client::connect(&format!("{url}/3")).await.unwrap();
    let of_nodes = Client::builder().cluster(ClusterNodes::new([node.clone()]));
    let of_nodes = of_nodes.database(3).connect().await.unwrap();
    let zero = Client::connect(&url).await.unwrap();
    let guard = of_url.mutex(&name).lock().await.unwrap();
    let other = zero.mutex(&name).try_lock().await.unwrap();
    let other = other.expect("it is another lock in database 0");
    assert!(of_nodes.mutex(&name).try_lock().await.unwrap().is_none());
    assert!(keys(&cluster, 0, 3) > 0);
    for (client, expected) in [(&of_nodes, &guard), (&zero, &other)] {
        let status = client.status(&name).await.unwrap();
        assert_eq!(status.holder().unwrap().owner, expected.owner());
        assert!(status.holder().unwrap().label.is_some());
        let mut found = client.find("order:*");
        let page = async { found.next().await.unwrap() };
        assert_eq!(page.await.map_or(0, |page| page.len()), 1);
    }
    // Channels have no database: the other's release wakes nobody here, and the own one does.
    let waiter = tokio::spawn(of_nodes.mutex(&name).lock());
    while of_url.status(&name).await.unwrap().queue.is_empty() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    other.release().await.unwrap();
    guard.verify().await.unwrap();
    let released = Instant::now();
    guard.release().await.unwrap();
    let guard = soon("it is woken", waiter).await.unwrap().unwrap();
    assert!(released.elapsed() < SOON / 10, "{:?}", released.elapsed());
    // Also at a node that has never heard of the client.
    let after = cluster.fail_over(0);
    guard.verify().await.unwrap();
    assert!(zero.mutex(&name).try_lock().await.unwrap().is_some());
    assert!(keys(&cluster, after, 3) > 0);
    guard.release().await.unwrap();
    // A node is named with the database.
    let error = Client::connect(&format!("redis://{node}/3"))
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains(&format!("redis-cluster://{node}/3")),
        "{error}"
    );
    drop(cluster);
}

#[tokio::test]
async fn a_database_that_the_cluster_has_not_is_refused_when_the_client_connects() {
    for flavor in Flavor::available() {
        let cluster = Cluster::start(flavor);
        let url = format!("{}/3", cluster.url());
        let error = Client::connect(&url).await.unwrap_err();
        let said = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{said}");
        assert!(
            said.contains("no database 3") && said.contains("cluster-databases"),
            "{said}"
        );
        println!("{flavor}: {said}");
        let lazy = Client::builder().url(&url).connect_lazily().unwrap();
        let error = lazy.mutex("order:1").try_lock().await.unwrap_err();
        assert!(error.to_string().contains("no database 3"), "{error}");
        let stats = cluster.command(0, &["INFO", "commandstats"]);
        let stats: String = redis::from_redis_value(stats).unwrap();
        assert!(!stats.contains("cmdstat_evalsha"), "{stats}");
    }
}
