//! Nodes that want a login and speak TLS, are behind proxies, or do not say where they are.

use std::time::Duration;

use futures_util::future::select_all;
use leasehold::{Client, ClientBuilder};
use leasehold_testkit::{Cluster, ClusterSettings};

use super::{flavors, names_at};
use crate::common::{SOON, soon};

/// Takes names of all primaries, one of them again after its slot has moved, and has a waiter of another client woken.
async fn works(cluster: &Cluster, builder: ClientBuilder) {
    let [one, other] = [builder.clone(), builder].map(ClientBuilder::connect);
    let (one, other) = (one.await.unwrap(), other.await.unwrap());
    for primary in 0..3 {
        let name = names_at(cluster, primary, 1).remove(0);
        let guard = one.mutex(&name).lock().await.unwrap();
        let waiter = other.mutex(&name);
        let waiter = tokio::spawn(async move { waiter.lock().await });
        cluster.migrate(cluster.slot(&name), (primary + 1) % 3);
        guard.verify().await.unwrap();
        guard.release().await.unwrap();
        let woken = tokio::time::timeout(SOON, waiter).await.unwrap().unwrap();
        woken.unwrap().release().await.unwrap();
    }
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_with_logins_and_tls_is_followed() {
    use leasehold::Tls;
    use leasehold_testkit::{Authority, Flavor, TlsFiles};

    let authority = Authority::new("the authority");
    let files = TlsFiles::new(authority.signs(&["localhost", "127.0.0.1"]), &authority);
    let settings = ClusterSettings::new().user("worker", "hush").tls(files);
    let cluster = Cluster::start_with(Flavor::Redis, settings.behind_proxies());
    let builder = Client::builder().url(cluster.url());
    works(&cluster, builder.tls(Tls::new().root_pem(authority.pem()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_without_a_host_are_where_the_one_is_that_names_them() {
    for flavor in flavors() {
        let args = ["--cluster-preferred-endpoint-type", "unknown-endpoint"];
        let cluster = Cluster::start_with(flavor, ClusterSettings::new().args(&args));
        let builder = Client::builder().url(cluster.url());
        works(&cluster, builder.lease(Duration::from_secs(10))).await;
    }
}

/// Where the server does not tell who listens, a release gives the name to no client: of two that wait one has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_that_may_not_count_listeners_waits_as_others_do() {
    for flavor in flavors() {
        let cluster = Cluster::start(flavor);
        let rules = [
            "ACL", "SETUSER", "worker", "on", ">pw", "~*", "&*", "+@all", "-pubsub",
        ];
        for node in 0..6 {
            cluster.command(node, &rules);
        }
        let url = cluster.url().replace("://", "://worker:pw@");
        let builder = Client::builder().url(url);
        works(&cluster, builder.clone()).await;

        // A waiter listens at the node that had the slot before, and the other at the node that has it.
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(builder.clone().connect().await.unwrap());
        }
        let name = names_at(&cluster, 0, 1).remove(0);
        let guard = clients[0].mutex(&name).lock().await.unwrap();
        let mut waiters = Vec::new();
        for (client, queued) in clients[1..].iter().zip(1..) {
            let mutex = client.mutex(&name);
            waiters.push(tokio::spawn(async move { mutex.lock().await }));
            soon("it stands in line", async {
                let mutex = clients[0].mutex(&name);
                while mutex.status().await.unwrap().queue.len() < queued {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            })
            .await;
            cluster.migrate(cluster.slot(&name), 1);
        }
        guard.release().await.unwrap();
        let (first, _, others) = soon("one has it", select_all(waiters)).await;
        let first = first.unwrap().unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(first.is_valid() && !others[0].is_finished());
        first.release().await.unwrap();
        for other in others {
            let last = soon("the other has it", other).await.unwrap().unwrap();
            last.release().await.unwrap();
        }
    }
}
