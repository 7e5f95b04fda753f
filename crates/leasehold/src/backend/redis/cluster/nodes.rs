//! The nodes of a cluster that this client knows, and which of them has each slot.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
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
            discovery::{Address, GivenServer},
        },
    },
    background::BackgroundRuntime,
    clock::Instant,
    config::Config,
};

/// A node, with connections of its own, made when they are first needed.
pub(super) struct Node {
    pub(super) address: Address,
    pub(super) redis: Redis,
    /// Tells nodes apart.
    pub(super) number: u32,
    /// It has slots, as far as is known.
    owns: AtomicBool,
    made: Instant,
    /// When it was asked for its table, in milliseconds since it was made; zero: it has answered.
    asked: AtomicU64,
}

/// A node that did not answer is asked again after so long: it may have been slow for a moment, and nothing else is sent to an idle one.
const SILENT_MOST: u64 = 5_000;

impl Node {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_millis())
            .unwrap_or(u64::MAX)
            // Counted from one, since zero says that the node has answered.
            .saturating_add(1)
    }

    pub(super) fn is_silent(&self) -> bool {
        // Relaxed: a reading that is late only moves the moment at which the node counts as out of reach.
        let asked = self.asked.load(Ordering::Relaxed);
        asked != 0 && self.now_ms().saturating_sub(asked) < SILENT_MOST
    }

    /// Whether an answer of it is under way.
    pub(super) fn is_asked(&self, is_asked: bool) {
        let asked = if is_asked { self.now_ms() } else { 0 };
        self.asked.store(asked, Ordering::Relaxed);
    }

    /// It has answered something else.
    pub(super) fn note_answer(&self) {
        if self.asked.load(Ordering::Relaxed) != 0 {
            self.is_asked(false);
        }
    }

    /// It has no connection, or answers nothing.
    fn is_out_of_reach(&self) -> bool {
        self.is_silent() || self.redis.is_in_trouble()
    }
}

/// For so long after a node was replaced another may not have heard of it, and name the old one. Not believed while its successor is well.
const STALE: Duration = Duration::from_secs(5);

/// The change that a table has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TableChange {
    /// A slot has another owner.
    pub(super) any: bool,
    /// The new owner of a slot may not know all that the one before knew: it had no slots, so it was a replica, or the one before cannot be
    /// reached, so it did not hand over its keys.
    pub(super) forgotten: bool,
}

/// Makes the connections of one node, given its number.
type Make = dyn Fn(GivenServer, u32) -> Redis + Send + Sync;

pub(super) struct Nodes {
    given: GivenCluster,
    make: Box<Make>,
    numbers: AtomicU32,
    /// How often a node has taken the place of another, for a slot or more, and may know less.
    changes: AtomicU64,
    map: RwLock<NodeMap>,
    /// The smallest of the ids of all nodes.
    id: Mutex<Option<String>>,
    is_shut: AtomicBool,
}

#[derive(Default)]
struct NodeMap {
    /// In the same order each time: a simulation must be able to replay it.
    known: BTreeMap<Address, Arc<Node>>,
    /// By slot; empty: no node has been asked yet.
    owners: Vec<Option<Arc<Node>>>,
    /// Slots whose owner the cluster lists without an address.
    unnamed: Vec<RangeInclusive<usize>>,
    /// Nodes that have lost all of their slots, and when.
    replaced: BTreeMap<Address, Instant>,
}

impl NodeMap {
    /// Compares a new table with this one. A node that was replaced a moment ago is named by those that have not heard of it yet: while
    /// its successor is well, the successor stays the owner.
    fn pass_over_stale(
        &self,
        owners: &mut [Option<Arc<Node>>],
        unreached: &BTreeSet<u32>,
    ) -> TableChange {
        let mut change = TableChange::default();
        // The first table has nothing to be compared with, and so tells of no change.
        for (owner, before) in owners.iter_mut().zip(&self.owners) {
            match (&*owner, before) {
                // By pointer, not by address: a node that was left and came back has other connections, and those of before are shut.
                (Some(now), Some(before)) if Arc::ptr_eq(now, before) => {}
                (Some(now), Some(before))
                    if self.replaced.contains_key(&now.address)
                        && !unreached.contains(&before.number) =>
                {
                    *owner = Some(Arc::clone(before));
                }
                (Some(_), Some(before)) => {
                    change.any = true;
                    change.forgotten |= unreached.contains(&before.number);
                }
                // No node had the slot: a node that had it before has handed its keys to no other (bug 237).
                (Some(_), None) => {
                    change = TableChange {
                        any: true,
                        forgotten: true,
                    }
                }
                (None, before) => change.any |= before.is_some(),
            }
        }
        change
    }
}

impl Nodes {
    pub(super) fn new(given: GivenCluster, make: Box<Make>) -> Nodes {
        Nodes {
            given,
            make,
            numbers: AtomicU32::new(0),
            changes: AtomicU64::new(0),
            map: RwLock::default(),
            id: Mutex::default(),
            is_shut: AtomicBool::new(false),
        }
    }

    /// How often something may have been forgotten. It has risen before the new owner is asked.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The node that has the slot, as far as is known.
    pub(super) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        self.map.read().owners.get(usize::from(slot))?.clone()
    }

    /// Whether the cluster lists the node that has this slot without an address.
    pub(super) fn is_unnamed(&self, slot: u16) -> bool {
        let map = self.map.read();
        map.unnamed
            .iter()
            .any(|slots| slots.contains(&usize::from(slot)))
    }

    /// Whether a node has said who has which slot.
    pub(super) fn has_table(&self) -> bool {
        !self.map.read().owners.is_empty()
    }

    /// All nodes that are known.
    pub(super) fn all(&self) -> Vec<Arc<Node>> {
        self.map.read().known.values().cloned().collect()
    }

    /// The nodes that have slots, in the order of their addresses.
    pub(super) fn primaries(&self) -> Vec<Arc<Node>> {
        let mut primaries = self.all();
        primaries.retain(|node| node.owns.load(Ordering::Acquire));
        primaries.sort_by(|a, b| a.address.cmp(&b.address));
        primaries
    }

    /// How many slots this node has, as far as is known.
    pub(super) fn slots_of(&self, node: &Arc<Node>) -> usize {
        let map = self.map.read();
        let owners = map.owners.iter().flatten();
        owners.filter(|owner| Arc::ptr_eq(owner, node)).count()
    }

    /// The nodes that were given.
    pub(super) fn seeds(&self) -> Vec<Arc<Node>> {
        let seeds = self.given.seeds.iter();
        seeds.map(|address| self.at(address.clone())).collect()
    }

    /// Any node that was given.
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
        // Looked for again under the write lock: each address is to have one number, and one set of connections.
        let entry = map.known.entry(address.clone());
        let node = entry.or_insert_with(|| {
            let number = self.numbers.fetch_add(1, Ordering::Relaxed);
            let target = self.given.target.at(&address);
            let redis = (self.make)(GivenServer::from(target), number);
            // Under the map's lock, which `shut` takes after it has said so: it finds this node in the map, or is seen here.
            if self.is_shut.load(Ordering::Relaxed) {
                redis.shut();
            }
            Arc::new(Node {
                address,
                redis,
                number,
                owns: AtomicBool::new(false),
                made: Instant::now(),
                asked: AtomicU64::new(0),
            })
        });
        Arc::clone(node)
    }

    /// A node says that another has this slot. The next table tells whether that one may have forgotten, since what was given back in its
    /// other slots still counts as theirs who had them.
    pub(super) fn moved(&self, slot: u16, address: Address) {
        let owner = self.named(address);
        let mut map = self.map.write();
        // A node that is named as the owner is in office again, however it lost it (bug 243).
        map.replaced.remove(&owner.address);
        if let Some(before) = map.owners.get_mut(usize::from(slot)) {
            self.changes.fetch_add(1, Ordering::AcqRel);
            // For this slot alone: `owns` stays as it is, so the next table finds that the node had none (bug 245).
            *before = Some(owner);
        }
    }

    /// A node has said who has which slot. Nodes that have lost all of theirs are left.
    pub(super) fn told(&self, ranges: Vec<SlotRange>) -> TableChange {
        let ids = ranges.iter().flat_map(|range| &range.ids);
        if let Some(smallest) = ids.min() {
            *self.id.lock() = Some(smallest.clone());
        }
        let (mut owners, mut unnamed) = (vec![None; SLOTS], Vec::new());
        for SlotRange {
            first, last, owner, ..
        } in ranges
        {
            let slots = usize::from(first)..=usize::from(last);
            match owner {
                Some(owner) => owners[slots].fill(Some(self.named(owner))),
                None => unnamed.push(slots),
            }
        }
        // Before the map is locked: a connection has locks of its own.
        let all = self.all().into_iter();
        let unreached: BTreeSet<u32> = all
            .filter(|node| node.is_out_of_reach())
            .map(|node| node.number)
            .collect();
        let mut change;
        let mut left = Vec::new();
        {
            let mut map = self.map.write();
            let map = &mut *map;
            map.replaced.retain(|_, since| since.elapsed() < STALE);
            let had_table = !map.owners.is_empty();
            // Where the node was before, it may be still.
            for slot in unnamed.iter().cloned().flatten() {
                let before = map.owners.get(slot).cloned().flatten();
                owners[slot] = before.filter(|before| !unreached.contains(&before.number));
            }
            map.unnamed = unnamed;
            // First: a stale owner is a node made anew, and would else count below as one that had no slots, and so may know less.
            change = map.pass_over_stale(&mut owners, &unreached);
            let mut owning = BTreeSet::new();
            for owner in owners.iter().flatten() {
                if owning.insert(owner.number) {
                    change.forgotten |= !owner.owns.swap(true, Ordering::AcqRel) && had_table;
                }
            }
            // Before the owners are exchanged: a step that is sent to a new one must find the change counted (bug 295).
            if change.forgotten {
                self.changes.fetch_add(1, Ordering::AcqRel);
            }
            let before = std::mem::replace(&mut map.owners, owners);
            let successor_of = |node: &Arc<Node>| {
                let mut slots = before.iter().zip(&map.owners);
                let of_it = |owner: &Arc<Node>| Arc::ptr_eq(owner, node);
                let slot = slots.find(|(before, _)| before.as_ref().is_some_and(of_it));
                slot.and_then(|(_, now)| now.clone())
            };
            map.known.retain(|address, node| {
                // A node that never had a slot stays: it may be a seed, or the target of an ASK. A node that is left keeps `owns` set.
                let stays = owning.contains(&node.number) || !node.owns.load(Ordering::Acquire);
                if !stays {
                    map.replaced.insert(address.clone(), Instant::now());
                    left.push((Arc::clone(node), successor_of(node)));
                }
                stays
            });
        }
        // Outside of the lock: requests that wait there ask for the owner at once.
        for (node, successor) in left {
            node.redis.abandon(successor.as_ref().map(|it| &it.redis));
        }
        change
    }

    /// The same for all clients of this database of the cluster, as long as the node with this id is in it.
    pub(super) fn id(&self) -> Option<String> {
        let id = self.id.lock().clone()?;
        Some(match self.given.target.database() {
            0 => id,
            database => format!("{id}/{database}"),
        })
    }

    pub(super) fn shut(&self) {
        self.is_shut.store(true, Ordering::Relaxed);
        self.all().iter().for_each(|node| node.redis.shut());
    }
}

/// The settings that a node is made with, but for its place.
pub(super) struct NodeSettings {
    pub(super) client: Arc<str>,
    pub(super) label: String,
    pub(super) config: Config,
    pub(super) background: BackgroundRuntime,
}

#[cfg(test)]
mod tests;
