//! Keys that a cluster cannot keep together, and servers that are not what the URL says.

use std::time::Instant;

use leasehold::{Client, ClusterNodes, Error, ErrorKind};
use leasehold_testkit::{Cluster, ClusterSettings, Flavor, Server, wait_until_async};

use super::{flavors, names_at};
use crate::common::{self, SOON};

async fn refused(url: &str) -> String {
    let error = Client::connect(url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    error.to_string()
}

#[tokio::test]
async fn a_url_of_the_other_kind_is_answered_with_the_right_one() {
    for flavor in Flavor::available() {
        let (cluster, server) = (Cluster::start(flavor), Server::start(flavor));
        let node = cluster.addr(0);
        let said = refused(&format!("redis://{node}/")).await;
        assert!(said.contains(&format!("redis-cluster://{node}")), "{said}");
        let said = refused(&format!("redis-cluster://{}", server.addr())).await;
        assert!(
            said.contains(&format!("redis://{}", server.addr())),
            "{said}"
        );
    }
}

#[tokio::test]
async fn what_would_be_in_two_slots_is_refused_before_it_is_sent() {
    for flavor in flavors() {
        let cluster = Cluster::start(flavor);
        let client = Client::connect(&cluster.url()).await.unwrap();
        let error = client.latch("jobs:{42}").count().await.unwrap_err();
        assert!(
            matches!(error, Error::Invalid(_)) && error.to_string().contains("hash tag"),
            "{error}"
        );
        client.latch("jobs:42").count().await.unwrap();

        let store = client.fenced_store("ledger");
        let guard = client.fenced_mutex("ledger").lock().await.unwrap();
        let error = store.set("balance", "7", guard.token()).await.unwrap_err();
        let (of_name, of_key) = (
            cluster.slot("ledger").to_string(),
            cluster.slot("balance").to_string(),
        );
        let said = error.to_string();
        assert!(
            matches!(error, Error::Invalid(_)) && said.contains(&of_name) && said.contains(&of_key),
            "{said}"
        );
        store
            .set("balance:{ledger}", "7", guard.token())
            .await
            .unwrap();
        assert_eq!(store.get("balance:{ledger}").await.unwrap().unwrap(), b"7");
    }
}

#[tokio::test]
async fn a_node_that_is_out_of_reach_is_named() {
    let mut cluster = Cluster::start(common::flavors(1)[0]);
    let builder = Client::builder().url(cluster.url());
    let client = builder
        .operation_timeout(SOON / 50)
        .connect()
        .await
        .unwrap();
    let name = &names_at(&cluster, 0, 1)[0];
    client.mutex(name).run(async {}).await.unwrap();
    cluster.kill(cluster.partner(0));
    cluster.kill(0);
    // It may find that its connection has ended, and not yet that no other comes about.
    let _ = client.status(name).await;
    let found = async || {
        let mut pages = client.find("*");
        while pages.next().await?.is_some() {}
        Ok::<(), Error>(())
    };
    for error in [
        client.status(name).await.unwrap_err(),
        found().await.unwrap_err(),
        client.mutex(name).try_lock().await.unwrap_err(),
    ] {
        let said = error.to_string();
        assert!(said.contains(&cluster.addr(0).to_string()), "{said}");
    }
}

/// A dead node hides no lock of the others, whichever it is.
#[tokio::test]
async fn the_locks_of_the_others_are_found_where_a_node_is_dead() {
    let settings = ClusterSettings::new().args(&["--cluster-require-full-coverage", "no"]);
    let mut cluster = Cluster::start_with(common::flavors(1)[0], settings);
    let holder = Client::connect(&cluster.url()).await.unwrap();
    let names = [0, 1, 2].map(|node| names_at(&cluster, node, 3));
    let mut guards = Vec::new();
    for name in names.iter().flatten() {
        guards.push(holder.mutex(name).lock().await.unwrap());
    }
    let looks = Client::builder().url(cluster.url());
    let looks = looks.operation_timeout(SOON / 50).connect().await.unwrap();
    let mut lost = Vec::new();
    for node in [0, 1] {
        cluster.kill(cluster.partner(node));
        cluster.kill(node);
        lost.push(cluster.addr(node).to_string());
        let (mut find, mut found, mut failed) = (looks.find("*"), Vec::new(), Vec::new());
        loop {
            let before = find.progress();
            match find.next().await {
                Ok(Some(page)) => found.extend(page.into_iter().map(|lock| lock.name)),
                Ok(None) => break,
                Err(error) => failed.push(error.to_string()),
            }
            assert!(find.progress() > before, "{failed:?}");
        }
        found.sort();
        let mut left = names[node + 1..].concat();
        left.sort();
        assert_eq!(found, left, "{failed:?}");
        assert_eq!(failed.len(), lost.len(), "each once: {failed:?}");
        for at in &lost {
            let says = |error: &String| error.contains(at) && error.contains("in its 546");
            assert!(failed.iter().any(says), "{at}: {failed:?}");
        }
        assert_eq!(find.next().await.unwrap(), None);
    }
}

#[tokio::test]
async fn locks_of_all_nodes_are_found_and_nodes_are_reached_where_a_program_says() {
    for flavor in flavors() {
        let cluster = Cluster::start(flavor);
        // Nodes that say that they are at 127.0.0.1 are reached by name.
        let mut nodes = ClusterNodes::new([cluster.addr(0).to_string()]);
        for node in 0..6 {
            let port = cluster.addr(node).port();
            nodes = nodes.reached_at(format!("127.0.0.1:{port}"), format!("localhost:{port}"));
        }
        let client = Client::builder().cluster(nodes).connect().await.unwrap();
        let mut guards = Vec::new();
        for i in 0..30 {
            guards.push(client.mutex(format!("order:{i}")).lock().await.unwrap());
        }
        let (mut find, mut found, mut progress) = (client.find("order:*"), 0, 0.0);
        while let Some(page) = find.next().await.unwrap() {
            found += page.len();
            assert!(find.progress() >= progress);
            progress = find.progress();
        }
        assert_eq!((found, progress), (30, 1.0));
    }
}

/// It has another id since, as one that restarts without its `nodes.conf`: the others do not know any more where the one is that they knew.
#[tokio::test]
async fn a_node_that_the_cluster_lists_without_an_address_is_said_so() {
    for flavor in common::flavors(1) {
        let settings = ClusterSettings::new().args(&["--cluster-require-full-coverage", "no"]);
        let mut cluster = Cluster::start_with(flavor, settings);
        let name = names_at(&cluster, 0, 1).remove(0);
        let others = [1, 2].map(|node| cluster.addr(node).to_string());
        let connect = async || {
            let builder = Client::builder().cluster(ClusterNodes::new(others.clone()));
            let builder = builder.operation_timeout(SOON / 50);
            builder.connect().await.unwrap()
        };
        let from_before = connect().await;
        // A look leaves no keys, with which the node would refuse what follows.
        from_before.status(&name).await.unwrap();
        cluster.kill(cluster.partner(0));
        cluster.command(0, &["CLUSTER", "RESET", "HARD"]);
        let unknown = |node| {
            let nodes = cluster.command(node, &["CLUSTER", "NODES"]);
            let nodes: String = redis::from_redis_value(nodes).unwrap();
            nodes.contains("noaddr")
        };
        wait_until_async(SOON, "its address is lost", || unknown(1) && unknown(2)).await;
        // The one goes on where the node was, which is there and serves nothing. The other has never known where.
        for client in [from_before, connect().await] {
            let began = Instant::now();
            let said = loop {
                let error = client.mutex(&name).try_lock().await.unwrap_err();
                let said = error.to_string();
                if said.contains("without an address") {
                    break said;
                }
                // Until it has heard the new table.
                assert!(began.elapsed() < SOON, "{flavor}: {said}");
            };
            assert!(said.contains("cluster-announce-ip"), "{flavor}: {said}");
            assert!(!said.contains(":0/"), "{flavor}: {said}");
        }
    }
}
