//! Finding locks while primaries are replaced.

use std::collections::BTreeSet;

use leasehold::{Client, Find, MutexGuard};
use leasehold_testkit::Cluster;

use super::{flavors, names_at};
use crate::common::soon;

/// Holds some names at each of the three primaries.
async fn hold(cluster: &Cluster, each: usize) -> (BTreeSet<String>, Vec<MutexGuard>) {
    let client = Client::connect(&cluster.url()).await.unwrap();
    let (mut names, mut guards) = (BTreeSet::new(), Vec::new());
    for primary in cluster.primaries() {
        for name in names_at(cluster, primary, each) {
            guards.push(client.mutex(&name).lock().await.unwrap());
            names.insert(name);
        }
    }
    (names, guards)
}

/// All that is found from here on; an error ends it.
async fn rest(find: &mut Find, found: &mut BTreeSet<String>) -> Result<(), leasehold::Error> {
    while let Some(page) = find.next().await? {
        for lock in page {
            assert!(found.insert(lock.name.clone()), "{} twice", lock.name);
        }
    }
    Ok(())
}

/// No connection ends, and the client sends nothing else by which it would hear of the new primaries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_only_finds_learns_of_a_planned_failover() {
    for flavor in flavors() {
        let cluster = Cluster::start(flavor);
        let (names, guards) = hold(&cluster, 5).await;
        let looks = Client::connect(&cluster.url()).await.unwrap();
        let mut found = BTreeSet::new();
        rest(&mut looks.find("*"), &mut found).await.unwrap();
        assert_eq!(found, names, "{flavor}");
        for primary in cluster.primaries() {
            cluster.fail_over(primary);
        }
        let found_again = async {
            loop {
                let mut found = BTreeSet::new();
                match rest(&mut looks.find("*"), &mut found).await {
                    Ok(()) if found == names => return,
                    said => println!("{flavor}: {said:?}, {} of {}", found.len(), names.len()),
                }
                tokio::task::yield_now().await;
            }
        };
        soon("all locks are found again", found_again).await;
        drop(guards);
    }
}

/// The nodes stand in the order of their addresses, so another primary is at each place then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_node_is_passed_over_where_primaries_change_between_two_pages() {
    for flavor in flavors() {
        let cluster = Cluster::start(flavor);
        let (names, guards) = hold(&cluster, 5).await;
        let looks = Client::connect(&cluster.url()).await.unwrap();
        let (mut find, mut found) = (looks.find("*"), BTreeSet::new());
        let page = find.next().await.unwrap().unwrap();
        found.extend(page.into_iter().map(|lock| lock.name));
        assert!(
            find.progress() > 0.3,
            "{flavor}: the first node has one page"
        );
        let mut primaries = cluster.primaries();
        primaries.sort_by_key(|node| cluster.addr(*node));
        let replaced = primaries[0];
        let successor = cluster.fail_over(replaced);
        // Its requests tell the client of the new primary.
        let name = names_at(&cluster, successor, 1).remove(0);
        let at = cluster.addr(successor).to_string();
        let knows = async {
            loop {
                looks.status(&name).await.unwrap();
                let found = looks.examine().await.unwrap();
                if found.iter().any(|it| it.server.contains(&at)) {
                    return;
                }
            }
        };
        soon("the client knows the new primary", knows).await;
        rest(&mut find, &mut found).await.unwrap();
        assert_eq!(found, names, "{flavor}");
        assert!(
            find.keys().is_some_and(|keys| keys < 40),
            "{flavor}: {:?}",
            find.keys()
        );
        drop(guards);
    }
}
