//! Slots that move from one primary to another.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::thread::sleep;
use std::time::Duration;

use redis::Value;

use super::{CLUSTER_DEADLINE, Cluster};
use crate::look::{look, pause};
use crate::server::Server;
use crate::wait::wait_until;

/// How many keys are moved at once.
const BATCH: usize = 100;

/// How long a node may take to hand over a batch, in milliseconds.
const BATCH_WITHIN: &str = "5000";

impl Cluster {
    /// Moves a slot with its keys to another primary, by the old protocol (`SETSLOT` and `MIGRATE`), and blocks until all primaries know.
    /// It does nothing if the slot is there.
    ///
    /// # Panics
    /// When a node refuses.
    #[track_caller]
    pub fn migrate(&self, slot: u16, to: usize) {
        self.migrate_slowly(slot, to, Duration::ZERO);
    }

    /// [`migrate`](Cluster::migrate), and leaves the slot open for so long before the first key is moved.
    ///
    /// # Panics
    /// As [`migrate`](Cluster::migrate).
    #[track_caller]
    pub fn migrate_slowly(&self, slot: u16, to: usize, stays_open: Duration) {
        if self.primary_of(slot) != to {
            self.open(slot, to);
            sleep(stays_open);
            self.close(slot);
        }
    }

    /// Begins to move a slot to another primary, and leaves it open: until [`close`](Cluster::close), keys are created there.
    ///
    /// # Panics
    /// When a node refuses: `to` is no primary, or the replica of one of the two is frozen and the server Valkey, which wants its word.
    #[track_caller]
    pub fn open(&self, slot: u16, to: usize) {
        let from = self.primary_of(slot);
        assert_ne!(from, to, "slot {slot} is at node {to} already");
        self.set_slot(to, slot, &["IMPORTING", &self.ids[from]]);
        self.set_slot(from, slot, &["MIGRATING", &self.ids[to]]);
    }

    /// From which node to which an open slot is being moved.
    pub fn opened(&self, slot: u16) -> Option<(usize, usize)> {
        let views = self.views();
        let own = views.iter().flatten();
        let own = own.filter(|member| member.own && member.primary);
        let end = own.into_iter().find_map(|member| {
            let at = |ends: &[(u16, String)]| {
                let end = ends.iter().find(|(open, _)| *open == slot);
                end.map(|(_, id)| id.clone())
            };
            let comes = at(&member.coming).map(|_| member.id.clone());
            comes.or_else(|| at(&member.leaving))
        })?;
        Some((self.owner(&views, slot)?, self.known(&end)?))
    }

    /// Moves so many keys of an open slot, or all if it has fewer, and says how many.
    ///
    /// # Panics
    /// When the slot is not open, or a node refuses.
    #[track_caller]
    pub fn move_keys(&self, slot: u16, most: usize) -> usize {
        let (from, to) = self.ends(slot);
        let mut moved = 0;
        while moved < most {
            let keys = self.keys_in(from, slot, BATCH.min(most - moved));
            if keys.is_empty() {
                break;
            }
            self.hand_over(from, to, &keys);
            moved += keys.len();
        }
        moved
    }

    /// Moves all keys that are left of an open slot, and then the slot itself; blocks until all primaries know.
    ///
    /// # Panics
    /// As [`move_keys`](Cluster::move_keys).
    #[track_caller]
    pub fn close(&self, slot: u16) {
        let (from, to) = self.ends(slot);
        self.move_keys(slot, usize::MAX);
        // The one that has it now comes first, lest there be none.
        let primaries = self.primaries();
        let others = primaries.into_iter().filter(|i| ![from, to].contains(i));
        for node in [to, from].into_iter().chain(others) {
            self.set_slot(node, slot, &["NODE", &self.ids[to]]);
        }
        assert_eq!(self.primary_of(slot), to, "slot {slot} was moved");
    }

    /// Takes back an [`open`](Cluster::open): moves keys back that were moved, and leaves the slot where it was.
    ///
    /// # Panics
    /// As [`move_keys`](Cluster::move_keys).
    #[track_caller]
    pub fn give_up(&self, slot: u16) {
        let (from, to) = self.ends(slot);
        // The source takes back what it finds at the other only as one that does not give it away.
        self.set_slot(from, slot, &["STABLE"]);
        loop {
            let keys = self.keys_in(to, slot, BATCH);
            if keys.is_empty() {
                break;
            }
            self.hand_over(to, from, &keys);
        }
        self.set_slot(to, slot, &["STABLE"]);
    }

    /// Moves slots of one primary at once to another, as Valkey 9 does (`CLUSTER MIGRATESLOTS`), and blocks until they are there.
    ///
    /// # Panics
    /// When the server is none that can, the slots are not of one primary, or the move fails.
    #[track_caller]
    pub fn migrate_atomically(&self, slots: RangeInclusive<u16>, to: usize) {
        let from = self.primary_of(*slots.start());
        let views = self.views();
        let strange = (slots.clone()).find(|&slot| self.owner(&views, slot) != Some(from));
        assert_eq!(strange, None, "this slot is not at node {from}");
        let node = &self.nodes[from];
        let before = moves(node);
        let (first, last) = (slots.start().to_string(), slots.end().to_string());
        let range = ["SLOTSRANGE", &first, &last, "NODE", &self.ids[to]];
        node.cli(&[&["CLUSTER", "MIGRATESLOTS"], &range[..]].concat());
        wait_until(CLUSTER_DEADLINE, "the slots have moved", || {
            let moves = moves(node);
            let mut new = moves.iter().filter(|(name, _)| !before.contains_key(*name));
            let state = new.next().map(|(_, state)| state.as_str());
            let failed = state.is_some_and(|state| state.starts_with("failed"));
            assert!(!failed, "the slots were not moved: {state:?}");
            let done = state.is_some_and(|state| state.starts_with("success"));
            done && slots.clone().all(|slot| self.primary_of(slot) == to) || pause()
        });
    }

    #[track_caller]
    fn ends(&self, slot: u16) -> (usize, usize) {
        let ends = self.opened(slot);
        ends.unwrap_or_else(|| panic!("slot {slot} is not open; open it first"))
    }

    #[track_caller]
    fn set_slot(&self, node: usize, slot: u16, what: &[&str]) {
        let slot = slot.to_string();
        self.nodes[node].cli(&[&["CLUSTER", "SETSLOT", &slot], what].concat());
    }

    #[track_caller]
    fn keys_in(&self, node: usize, slot: u16, most: usize) -> Vec<Vec<u8>> {
        let (slot, most) = (slot.to_string(), most.to_string());
        let keys = self.nodes[node].cli(&["CLUSTER", "GETKEYSINSLOT", &slot, &most]);
        redis::from_redis_value(keys).expect("a list of keys")
    }

    #[track_caller]
    fn hand_over(&self, from: usize, to: usize, keys: &[Vec<u8>]) {
        let (from, to) = (&self.nodes[from], &self.nodes[to]);
        let mut migrate = redis::cmd("MIGRATE");
        migrate.arg("127.0.0.1").arg(to.peer_port()).arg("").arg(0);
        migrate.arg(BATCH_WITHIN);
        let login = &self.settings.login;
        match (&login.user, &login.password) {
            (Some(user), Some(password)) => migrate.arg("AUTH2").arg(user).arg(password),
            (None, Some(password)) => migrate.arg("AUTH").arg(password),
            (_, None) => &mut migrate,
        };
        let moved = migrate.arg("KEYS").arg(keys).exec(&mut from.connection());
        moved.unwrap_or_else(|error| panic!("{} keys were not moved: {error}", keys.len()));
    }
}

/// The moves that a node knows of, by name: the state of each, and why.
fn moves(node: &Server) -> HashMap<String, String> {
    let moves: Option<Vec<HashMap<String, Value>>> = look(node, &["CLUSTER", "GETSLOTMIGRATIONS"]);
    let text = |fields: &HashMap<String, Value>, field: &str| {
        let value = fields.get(field)?.clone();
        redis::from_redis_value::<String>(value).ok()
    };
    let read = |fields: &HashMap<String, Value>| {
        let why = text(fields, "message").unwrap_or_default();
        Some((text(fields, "name")?, text(fields, "state")? + " " + &why))
    };
    moves.iter().flatten().filter_map(read).collect()
}
