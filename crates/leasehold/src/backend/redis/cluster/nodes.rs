//! The nodes of a cluster that this client knows, and which of them has each slot.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};

use super::{
    given::GivenCluster,
    slots::{SLOTS, SlotRange},
};
use crate::{
    backend::{
        ServerLink,
        redis::{
            Redis,
            finder::{Address, GivenServer},
        },
    },
    config::Config,
    home::Home,
};

/// A node, with connections of its own, made when they are first needed.
pub(super) struct Node {
    pub(super) address: Address,
    pub(super) redis: Redis,
    /// Tells nodes apart.
    pub(super) number: u32,
    /// It has slots, as far as is known.
    owns: AtomicBool,
}

/// What a change of the table means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TableChange {
    /// A slot has another owner.
    pub(super) owners: bool,
    /// A node has slots that had none: most likely it was a replica, and may not know all that its primary knew.
    pub(super) promoted: bool,
}

/// Makes the connections of one node, given its number.
type Make = dyn Fn(GivenServer, u32) -> Redis + Send + Sync;

pub(super) struct Nodes {
    given: GivenCluster,
    make: Box<Make>,
    numbers: AtomicU32,
    map: RwLock<NodeMap>,
    /// The smallest of the ids of all nodes.
    id: Mutex<Option<String>>,
    is_shut: AtomicBool,
}

#[derive(Default)]
struct NodeMap {
    known: HashMap<Address, Arc<Node>>,
    /// By slot; empty: no node has been asked yet.
    owners: Vec<Option<Arc<Node>>>,
}

impl Nodes {
    pub(super) fn new(given: GivenCluster, make: Box<Make>) -> Nodes {
        Nodes {
            given,
            make,
            numbers: AtomicU32::new(0),
            map: RwLock::default(),
            id: Mutex::default(),
            is_shut: AtomicBool::new(false),
        }
    }

    /// The node that has the slot, as far as is known.
    pub(super) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        self.map.read().owners.get(usize::from(slot))?.clone()
    }

    /// Whether a node has said who has which slot.
    pub(super) fn has_table(&self) -> bool {
        !self.map.read().owners.is_empty()
    }

    /// All nodes that are known.
    pub(super) fn all(&self) -> Vec<Arc<Node>> {
        self.map.read().known.values().cloned().collect()
    }

    /// Those that have slots, in the order of their addresses.
    pub(super) fn primaries(&self) -> Vec<Arc<Node>> {
        let mut primaries = self.all();
        primaries.retain(|node| node.owns.load(Ordering::Acquire));
        primaries.sort_by(|a, b| a.address.cmp(&b.address));
        primaries
    }

    /// The nodes that were given.
    pub(super) fn seeds(&self) -> Vec<Arc<Node>> {
        let seeds = self.given.seeds.iter();
        seeds.map(|address| self.at(address.clone())).collect()
    }

    /// One of them.
    pub(super) fn any(&self) -> Arc<Node> {
        self.at(self.given.seeds[0].clone())
    }

    /// The node that says that it is there.
    pub(super) fn named(&self, address: Address) -> Arc<Node> {
        self.at(self
            .given
            .elsewhere
            .get(&address)
            .cloned()
            .unwrap_or(address))
    }

    fn at(&self, address: Address) -> Arc<Node> {
        if let Some(node) = self.map.read().known.get(&address) {
            return Arc::clone(node);
        }
        let mut map = self.map.write();
        let entry = map.known.entry(address.clone());
        let node = entry.or_insert_with(|| {
            let number = self.numbers.fetch_add(1, Ordering::Relaxed);
            let target = self.given.target.at(&address);
            let redis = (self.make)(GivenServer::from(target), number);
            if self.is_shut.load(Ordering::Relaxed) {
                redis.shut();
            }
            Arc::new(Node {
                address,
                redis,
                number,
                owns: AtomicBool::new(false),
            })
        });
        Arc::clone(node)
    }

    /// A node says that another has this slot.
    pub(super) fn moved(&self, slot: u16, address: Address) -> TableChange {
        let owner = self.named(address);
        let mut map = self.map.write();
        let Some(before) = map.owners.get_mut(usize::from(slot)) else {
            return TableChange::default();
        };
        let owners = before
            .as_ref()
            .is_none_or(|before| !Arc::ptr_eq(before, &owner));
        *before = Some(Arc::clone(&owner));
        TableChange {
            owners,
            promoted: !owner.owns.swap(true, Ordering::AcqRel),
        }
    }

    /// A node has said who has which slot. Nodes that have lost all of theirs are left.
    pub(super) fn told(&self, ranges: Vec<SlotRange>) -> TableChange {
        let ids = ranges.iter().flat_map(|range| &range.ids);
        if let Some(smallest) = ids.min() {
            *self.id.lock() = Some(smallest.clone());
        }
        let mut owners = vec![None; SLOTS];
        for SlotRange {
            first, last, owner, ..
        } in ranges
        {
            let owner = self.named(owner);
            owners[usize::from(first)..=usize::from(last)].fill(Some(owner));
        }
        let mut changed = TableChange::default();
        let mut left = Vec::new();
        {
            let mut map = self.map.write();
            let had_table = !map.owners.is_empty();
            let number = |node: &Option<Arc<Node>>| node.as_ref().map(|node| node.number);
            changed.owners =
                had_table && !map.owners.iter().map(number).eq(owners.iter().map(number));
            let before = std::mem::replace(&mut map.owners, owners);
            let mut last = None;
            for owner in map.owners.iter().flatten() {
                if last.replace(owner.number) != Some(owner.number) {
                    changed.promoted |= !owner.owns.swap(true, Ordering::AcqRel) && had_table;
                }
            }
            let owning: Vec<u32> = map
                .owners
                .iter()
                .filter_map(number)
                .collect::<std::collections::BTreeSet<_>>()
                .into_iter()
                .collect();
            map.known.retain(|_, node| {
                let stays = owning.binary_search(&node.number).is_ok()
                    || !node.owns.load(Ordering::Acquire);
                if !stays {
                    left.push(Arc::clone(node));
                }
                stays
            });
            drop(before);
        }
        for node in left {
            node.redis.abandon();
        }
        changed
    }

    /// The same for all clients of the cluster, as long as the node with this id is in it.
    pub(super) fn id(&self) -> Option<String> {
        self.id.lock().clone()
    }

    pub(super) fn shut(&self) {
        self.is_shut.store(true, Ordering::Relaxed);
        self.all().iter().for_each(|node| node.redis.shut());
    }
}

/// What a node is made with, but for its place.
pub(super) struct NodeSettings {
    pub(super) client: Arc<str>,
    pub(super) label: String,
    pub(super) config: Config,
    pub(super) home: Home,
}
