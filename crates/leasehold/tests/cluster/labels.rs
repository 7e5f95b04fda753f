//! The labels of a cluster's clients: each is at the node of its own slot, and read there.

use std::time::Duration;

use leasehold::{Client, Status};
use leasehold_testkit::{Cluster, wait_until_async};

use super::{flavors, names_at};
use crate::common::{
    SOON,
    process::{Job, Process, hear, job, say},
    soon,
};

#[test]
#[ignore = "a process of its own, started by the other tests"]
fn child() {
    let Some(job) = job() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = Client::builder().url(&job.url).label("the-holder");
        let client = client.lease(job.lease).connect().await.unwrap();
        let mut guards = Vec::new();
        for name in job.name.split(' ') {
            guards.push(client.mutex(name).lock().await.unwrap());
        }
        say("held");
        hear();
    });
    std::process::exit(0);
}

/// The labels that the cluster has.
fn labels(cluster: &Cluster) -> Vec<String> {
    let at = |node: &usize| {
        let keys = cluster.command(*node, &["KEYS", "leasehold:client:*"]);
        let keys: Vec<String> = redis::from_redis_value(keys).unwrap();
        let value = |key: &String| {
            let value = cluster.command(*node, &["GET", key]);
            redis::from_redis_value::<String>(value).unwrap()
        };
        keys.iter().map(value).collect::<Vec<_>>()
    };
    cluster.primaries().iter().flat_map(at).collect()
}

/// Else a reader takes a holder that has died for one whose connections have no names.
#[tokio::test]
async fn a_label_says_that_connections_have_names_at_a_node_that_had_none_yet() {
    for flavor in flavors() {
        let cluster = Cluster::start(flavor);
        // Of so many clients some have their labels at the nodes to which they send nothing else.
        let mut holders = Vec::new();
        for (i, name) in names_at(&cluster, 0, 10).iter().enumerate() {
            let client = Client::builder()
                .url(cluster.url())
                .label(format!("of-{i}"));
            let client = client.connect().await.unwrap();
            let guard = client.mutex(name).lock().await.unwrap();
            holders.push((client, guard));
        }
        wait_until_async(SOON, "their labels are there", || {
            labels(&cluster).len() == 10
        })
        .await;
        for label in labels(&cluster) {
            assert!(label.starts_with("leasehold:"), "{flavor}: {label}");
        }
    }
}

async fn found(client: &Client) -> Vec<Status> {
    let (mut pages, mut found) = (client.find("order:*"), Vec::new());
    while let Some(page) = pages.next().await.unwrap() {
        found.extend(page);
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_holder_is_named_and_known_to_be_gone_whichever_node_has_its_label() {
    for flavor in flavors() {
        let cluster = Cluster::start(flavor);
        let names: Vec<String> = (0..3).flat_map(|at| names_at(&cluster, at, 2)).collect();
        let mut holder = Process::start(&Job {
            what: "hold".into(),
            url: cluster.url(),
            name: names.join(" "),
            lease: Duration::from_secs(30),
        });
        holder.wait_for("held");
        wait_until_async(SOON, "its label is there", || labels(&cluster).len() == 1).await;
        let client = Client::connect(&cluster.url()).await.unwrap();
        for name in &names {
            let status = client.status(name).await.unwrap();
            let holder = status.holder().expect("it is held");
            assert_eq!(holder.connected, Some(true), "{flavor}, {holder:?}");
            assert_eq!(
                holder.label.as_deref(),
                Some("the-holder"),
                "{flavor}, {holder:?}"
            );
        }
        // A client that waits at a node where it has no label.
        let waits = Client::builder().url(cluster.url()).label("the-waiter");
        let waits = waits.connect().await.unwrap();
        let mutexes: Vec<_> = names.iter().map(|name| waits.mutex(name)).collect();
        for mutex in &mutexes {
            tokio::spawn(mutex.lock());
        }
        soon("they stand in line", async {
            for name in &names {
                loop {
                    let queue = client.status(name).await.unwrap().queue;
                    if queue
                        .iter()
                        .any(|it| it.label.as_deref() == Some("the-waiter"))
                    {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        })
        .await;
        holder.kill();
        for name in &names {
            // For a moment a server may not say which connections it has.
            let began = std::time::Instant::now();
            let status = loop {
                let status = client.status(name).await.unwrap();
                let is_known = status
                    .holder()
                    .is_some_and(|it| it.connected == Some(false));
                if is_known || began.elapsed() > SOON {
                    break status;
                }
            };
            let holder = status.holder().expect("its lease lasts");
            let case = format!("{flavor}, {name}: {holder:?}");
            assert_eq!(holder.label.as_deref(), Some("the-holder"), "{case}");
            assert_eq!(holder.client.len(), 36, "{case}");
            assert_eq!(holder.connected, Some(false), "{case}");
        }
        let found = found(&client).await;
        assert_eq!(found.len(), names.len());
        for status in &found {
            let holder = status.holder().expect("its lease lasts");
            assert_eq!(
                holder.label.as_deref(),
                Some("the-holder"),
                "{flavor}: {holder:?}"
            );
        }
    }
}
