use super::*;
use crate::{
    backend::{EpochChange, Sink, WakeUp, redis::target::Login},
    name::LockId,
};

#[derive(Debug)]
struct UntoldSink;

impl Sink for UntoldSink {
    fn wake(&self, _id: &LockId, _wake_up: WakeUp) {}

    fn epoch(&self, _change: EpochChange) {}
}

/// Of which each node has a half of the slots. Whether one may have forgotten.
fn told(nodes: &Nodes, halves: [u16; 2]) -> bool {
    told_beside(nodes, halves, &[]).forgotten
}

/// The same, and these nodes say that they have slots of their own.
fn told_beside(nodes: &Nodes, halves: [u16; 2], stand: &[u16]) -> TableChange {
    let stand = stand.iter().map(|port| nodes.at(at(*port)).number);
    nodes.told(ranges(halves), &stand.collect())
}

fn ranges(halves: [u16; 2]) -> Vec<SlotRange> {
    let ranges = halves.iter().zip([(0, 8191), (8192, 16_383)]);
    let ranges = ranges.map(|(port, (first, last))| SlotRange {
        first,
        last,
        owner: (*port != 0).then(|| at(*port)),
        ids: Vec::new(),
    });
    ranges.collect()
}

/// The ports of the nodes that are to be asked before these words count.
fn disputed(nodes: &Nodes, halves: [u16; 2]) -> Vec<u16> {
    let disputed = nodes.disputed(&ranges(halves));
    disputed.iter().map(|node| node.address.1).collect()
}

fn at(port: u16) -> Address {
    ("127.0.0.1".to_owned(), port)
}

fn nodes() -> Nodes {
    let given = GivenCluster::parse("redis-cluster://127.0.0.1:1", &Login::default());
    let home = Home::here();
    let make = move |server, _| {
        let (config, sink) = (Config::default(), Arc::new(UntoldSink));
        Redis::new(server, &"client".into(), "", &config, sink, &home)
    };
    Nodes::new(given.unwrap().unwrap(), Box::new(make))
}

#[tokio::test]
async fn a_node_that_was_replaced_has_its_slots_again_when_its_successor_does_not_answer() {
    let nodes = nodes();
    let owner = |slot| nodes.owner(slot).unwrap();
    told(&nodes, [1, 2]);
    assert_eq!(disputed(&nodes, [3, 2]), [0; 0]);
    assert!(told(&nodes, [3, 2]), "a replica was promoted");
    assert_eq!(disputed(&nodes, [1, 2]), [3]);
    let kept = told_beside(&nodes, [1, 2], &[3]);
    assert_eq!(kept, TableChange::default(), "its successor is well");
    assert_eq!(owner(0).address, at(3));
    assert!(told(&nodes, [1, 2]), "its successor is silent");
    assert_eq!(owner(0).address, at(1));
}

#[tokio::test]
async fn a_slot_of_a_node_that_is_out_of_reach_may_be_forgotten() {
    let nodes = nodes();
    told(&nodes, [1, 2]);
    // A slot that moves between primaries is where any node says.
    let moved = told_beside(&nodes, [2, 2], &[]);
    assert_eq!(
        moved,
        TableChange {
            any: true,
            forgotten: false
        }
    );
    told(&nodes, [1, 2]);
    nodes.owner(0).unwrap().is_asked(true);
    assert!(told(&nodes, [2, 2]), "it has not answered");
    told(&nodes, [1, 2]);
    // No server listens there.
    assert!(nodes.owner(0).unwrap().redis.show(1).await.is_err());
    assert!(told(&nodes, [2, 2]), "there is no connection");
}

#[tokio::test]
async fn a_node_that_was_replaced_has_its_slots_again_when_its_successor_says_so() {
    let nodes = nodes();
    let owner = |slot| nodes.owner(slot).unwrap().address.1;
    assert!(!told(&nodes, [1, 2]), "the first table");
    assert!(told(&nodes, [3, 2]), "a replica was promoted");
    // Of a node that has not heard of it.
    told_beside(&nodes, [1, 2], &[3]);
    assert_eq!([0, 8191, 8192].map(owner), [3, 3, 2]);
    assert!(
        !told(&nodes, [3, 3]),
        "the second has lost all of its slots"
    );
    assert_eq!(disputed(&nodes, [2, 3]), [3]);
    told_beside(&nodes, [2, 3], &[3]);
    assert_eq!(owner(0), 3);
    // The successor says so, of one slot, and of all.
    nodes.moved(0, at(1));
    assert_eq!([0, 1].map(owner), [1, 3]);
    assert_eq!(disputed(&nodes, [1, 3]), [0; 0]);
    assert!(told(&nodes, [1, 3]), "of all slots of its own, not of one");
    assert_eq!([0, 8191, 8192].map(owner), [1, 1, 3]);
}

#[tokio::test]
async fn a_node_that_is_listed_without_an_address_is_where_it_was_if_it_answers_there() {
    let nodes = nodes();
    let owner = |slot| nodes.owner(slot).map(|node| node.address.1);
    told(&nodes, [1, 2]);
    assert_eq!(told_beside(&nodes, [0, 2], &[]), TableChange::default());
    assert_eq!(owner(0), Some(1));
    nodes.owner(0).unwrap().is_asked(true);
    assert!(told_beside(&nodes, [0, 2], &[]).any);
    assert_eq!([0, 8191, 8192].map(owner), [None, None, Some(2)]);
    assert_eq!(
        [0, 8191, 8192].map(|slot| nodes.is_unnamed(slot)),
        [true, true, false]
    );
    told(&nodes, [1, 2]);
    assert!(!nodes.is_unnamed(0));
}
