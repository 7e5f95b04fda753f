use super::*;
use crate::{
    backend::{Restarted, Sink, WakeUp, redis::target::Login},
    name::LockId,
};

#[derive(Debug)]
struct IgnoringSink;

impl Sink for IgnoringSink {
    fn wake(&self, _id: &LockId, _wake_up: WakeUp) {}

    fn restarted(&self, _change: Restarted) {}
}

/// Of which each node has a half of the slots; port 0: it is listed without an address.
fn told(nodes: &Nodes, halves: [u16; 2]) -> TableChange {
    let ranges = halves.iter().zip([(0, 8191), (8192, 16_383)]);
    let ranges = ranges.map(|(port, (first, last))| SlotRange {
        first,
        last,
        owner: (*port != 0).then(|| at(*port)),
        ids: Vec::new(),
    });
    nodes.told(ranges.collect())
}

fn forgets(nodes: &Nodes, halves: [u16; 2]) -> bool {
    told(nodes, halves).forgotten
}

fn at(port: u16) -> Address {
    ("127.0.0.1".to_owned(), port)
}

fn nodes() -> Nodes {
    let given = GivenCluster::parse("redis-cluster://127.0.0.1:1", &Login::default());
    let background = BackgroundRuntime::here();
    let make = move |server, _| {
        let (config, sink) = (Config::default(), Arc::new(IgnoringSink));
        Redis::new(server, &"client".into(), "", &config, sink, &background)
    };
    Nodes::new(given.unwrap().unwrap(), Box::new(make))
}

#[tokio::test]
async fn a_node_that_was_replaced_has_its_slots_again_when_its_successor_cannot_be_reached() {
    let nodes = nodes();
    let owner = |slot| nodes.owner(slot).unwrap();
    told(&nodes, [1, 2]);
    assert!(forgets(&nodes, [3, 2]), "a replica was promoted");
    let kept = told(&nodes, [1, 2]);
    assert_eq!(kept, TableChange::default(), "its successor is well");
    // No server listens there.
    assert!(owner(0).redis.show(1).await.is_err());
    assert!(forgets(&nodes, [1, 2]));
    assert_eq!(owner(0).address, at(1));
}

#[tokio::test]
async fn a_node_that_was_replaced_has_its_slots_again_when_its_successor_says_so() {
    let nodes = nodes();
    let owner = |slot| nodes.owner(slot).unwrap().address.1;
    assert!(!forgets(&nodes, [1, 2]), "the first table");
    assert!(forgets(&nodes, [3, 2]), "a replica was promoted");
    // Of a node that has not heard of it.
    assert!(!forgets(&nodes, [1, 2]));
    assert_eq!([0, 8191, 8192].map(owner), [3, 3, 2]);
    // A slot that moves between primaries is where any node says.
    assert!(!forgets(&nodes, [3, 3]) && !forgets(&nodes, [2, 3]));
    assert_eq!(owner(0), 3, "the second has lost all of its slots");
    // The successor says so.
    nodes.moved(0, at(1));
    assert_eq!([0, 1].map(owner), [1, 3]);
    assert!(
        forgets(&nodes, [1, 3]),
        "of all slots of its own, not of one"
    );
    assert_eq!([0, 8191, 8192].map(owner), [1, 1, 3]);
}

#[tokio::test]
async fn what_a_node_had_that_is_silent_may_be_forgotten() {
    let nodes = nodes();
    told(&nodes, [1, 2]);
    let moved = TableChange {
        any: true,
        forgotten: false,
    };
    assert_eq!(told(&nodes, [2, 2]), moved);
    let nodes = self::nodes();
    told(&nodes, [1, 2]);
    nodes.owner(0).unwrap().is_asked(true);
    assert!(forgets(&nodes, [2, 2]));
}

#[tokio::test]
async fn a_node_that_is_listed_without_an_address_is_where_it_was_if_it_answers_there() {
    let nodes = nodes();
    let owner = |slot| nodes.owner(slot).map(|node| node.address.1);
    told(&nodes, [1, 2]);
    assert_eq!(told(&nodes, [0, 2]), TableChange::default());
    assert_eq!(owner(0), Some(1));
    nodes.owner(0).unwrap().is_asked(true);
    assert!(told(&nodes, [0, 2]).any);
    assert_eq!([0, 8191, 8192].map(owner), [None, None, Some(2)]);
    assert_eq!([0, 8192].map(|slot| nodes.is_unnamed(slot)), [true, false]);
    told(&nodes, [1, 2]);
    assert!(!nodes.is_unnamed(0));
}
