//! A cluster in a simulation: which node has which slot, and what each node knows of that.
//!
//! All nodes share the keys: a slot moves with its data, at once. The simulation plays where requests and subscriptions go.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use redis::Value;

/// So many slots has each cluster.
const SLOTS: u16 = 16_384;

/// The port of the first node.
pub(crate) const PORT: u16 = 7000;

/// Who has which slot.
pub(crate) struct SlotOwners {
    nodes: u8,
    /// So many have slots at first; the others are replicas.
    primaries: u8,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Of the slots that have moved. All others are where they were made.
    moved: BTreeMap<u16, u8>,
    /// Who has the place of a primary, as that was at first.
    places: BTreeMap<u8, u8>,
    /// The owner in which a node still believes, by node and slot; and by node and primary.
    stale: BTreeMap<(u8, u16), u8>,
    stale_places: BTreeMap<(u8, u8), u8>,
    /// Slots that are being moved, to which node, and whether all of their keys are there.
    open: BTreeMap<u16, (u8, bool)>,
}

impl SlotOwners {
    pub(crate) fn new(nodes: u8, primaries: u8) -> SlotOwners {
        SlotOwners {
            nodes,
            primaries,
            state: Mutex::default(),
        }
    }

    /// Where a slot was made: as many are at each node.
    fn born_at(&self, slot: u16) -> u8 {
        let primaries = u32::from(self.primaries);
        u8::try_from(u32::from(slot) * primaries / u32::from(SLOTS)).unwrap_or(0)
    }

    pub(crate) fn owner(&self, slot: u16) -> u8 {
        let (state, born) = (self.state.lock(), self.born_at(slot));
        let place = || state.places.get(&born).copied().unwrap_or(born);
        state.moved.get(&slot).copied().unwrap_or_else(place)
    }

    /// Who has it, as this node knows.
    fn known_by(&self, node: u8, slot: u16) -> u8 {
        let state = self.state.lock();
        let mut known = state.stale.get(&(node, slot));
        if !state.moved.contains_key(&slot) {
            known = known.or_else(|| state.stale_places.get(&(node, self.born_at(slot))));
        }
        let known = known.copied();
        // `owner` locks the state as well.
        drop(state);
        known.unwrap_or_else(|| self.owner(slot))
    }

    /// Whether this node takes a slot for its own that is another's.
    pub(crate) fn believes(&self, node: u8, slot: u16) -> bool {
        self.owner(slot) != node && self.known_by(node, slot) == node
    }

    /// A node that has no slot.
    pub(crate) fn replicas(&self) -> impl Iterator<Item = u8> + use<'_> {
        let state = self.state.lock();
        let places = (0..self.primaries).map(|it| state.places.get(&it).copied().unwrap_or(it));
        let primaries: Vec<u8> = places.chain(state.moved.values().copied()).collect();
        (0..self.nodes).filter(move |node| !primaries.contains(node))
    }

    /// A replica takes the place of a node, with all of its slots. A node that does not know of it believes that they are where they were.
    pub(crate) fn replace(&self, node: u8, by: u8, know: impl Fn(u8) -> bool) {
        let open: Vec<u16> = self.state.lock().open.keys().copied().collect();
        let ended: Vec<u16> = open
            .into_iter()
            .filter(|it| self.owner(*it) == node)
            .collect();
        let state = &mut *self.state.lock();
        state.open.retain(|slot, _| !ended.contains(slot));
        let unaware: Vec<u8> = (0..self.nodes).filter(|it| !know(*it)).collect();
        for place in 0..self.primaries {
            let owner = state.places.entry(place).or_insert(place);
            if *owner == node {
                *owner = by;
                for it in &unaware {
                    state.stale_places.entry((*it, place)).or_insert(node);
                }
            }
        }
        for (slot, owner) in &mut state.moved {
            if *owner == node {
                *owner = by;
                for it in &unaware {
                    state.stale.entry((*it, *slot)).or_insert(node);
                }
            }
        }
    }

    /// A node answers so if it does not carry a request out; `None`: it does.
    pub(crate) fn refusal(&self, node: u8, slot: u16, asks: bool) -> Option<String> {
        let (owner, opens) = (self.owner(slot), self.state.lock().open.get(&slot).copied());
        match opens {
            Some((to, true)) if node == owner => {
                let port = PORT + u16::from(to);
                Some(format!("ASK {slot} 127.0.0.1:{port}"))
            }
            // Without ASKING the new node sends a client back to the old one: the last arm.
            Some((to, true)) if node == to && asks => None,
            // Some keys of a lock are here, and some are there, or were never made.
            Some((to, _)) if node == owner || node == to && asks => Some(format!(
                "TRYAGAIN Multiple keys request during rehashing of slot {slot}"
            )),
            _ if node == owner => None,
            // It was cut off from the others for as long as they needed to replace it.
            _ if self.believes(node, slot) => Some("CLUSTERDOWN The cluster is down".to_owned()),
            _ => {
                let port = PORT + u16::from(self.known_by(node, slot));
                Some(format!("MOVED {slot} 127.0.0.1:{port}"))
            }
        }
    }

    /// Moves a slot. A node that does not know of it believes that it is where it was.
    pub(crate) fn move_slot(&self, slot: u16, to: u8, know: impl Fn(u8) -> bool) {
        // Before the state is locked: `owner` locks it, too.
        let from = self.owner(slot);
        let mut state = self.state.lock();
        state.open.remove(&slot);
        for node in 0..self.nodes {
            if know(node) {
                state.stale.remove(&(node, slot));
            } else {
                // A node that has missed several moves believes in the owner of before the first.
                state.stale.entry((node, slot)).or_insert(from);
            }
        }
        state.moved.insert(slot, to);
    }

    /// A slot begins to be moved, and is at neither node as a whole; or all of its keys are there already.
    pub(crate) fn open(&self, slot: u16, to: u8, is_there: bool) {
        self.state.lock().open.insert(slot, (to, is_there));
    }

    /// A node hears of all that has changed.
    pub(crate) fn hears(&self, node: u8) {
        let mut state = self.state.lock();
        state.stale.retain(|(who, _), _| *who != node);
        state.stale_places.retain(|(who, _), _| *who != node);
    }

    /// Its answer to `CLUSTER SLOTS`.
    pub(crate) fn slots(&self, node: u8) -> Value {
        let known = |slot: u16| self.known_by(node, slot);
        let special: Vec<u16> = self.state.lock().moved.keys().copied().collect();
        // Ranges end where slots were made, and around each that has moved.
        let mut begins: Vec<u16> = (0..self.primaries)
            .map(|at| (u32::from(at) * u32::from(SLOTS)).div_ceil(u32::from(self.primaries)))
            .filter_map(|slot| u16::try_from(slot).ok())
            .chain(special.into_iter().flat_map(|slot| [slot, slot + 1]))
            .filter(|slot| *slot < SLOTS)
            .collect();
        begins.sort_unstable();
        begins.dedup();
        let ends = begins
            .iter()
            .skip(1)
            .map(|next| next - 1)
            .chain([SLOTS - 1]);
        let text = |text: String| Value::BulkString(text.into_bytes());
        let ranges = begins.iter().zip(ends).map(|(first, last)| {
            let owner = known(*first);
            let node = Value::Array(vec![
                text("127.0.0.1".to_owned()),
                Value::Int(i64::from(PORT + u16::from(owner))),
                text(format!("node-{owner}")),
            ]);
            Value::Array(vec![
                Value::Int(i64::from(*first)),
                Value::Int(i64::from(last)),
                node,
            ])
        });
        Value::Array(ranges.collect())
    }
}
