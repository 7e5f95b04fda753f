//! A slot of a cluster that is moved from one primary to another.

use std::{collections::HashMap, io};

use leasehold_testkit::{Cluster, Server};
use redis::{RedisResult, Value, from_redis_value};

use super::{
    nodes::PAIRS,
    schedule::{Fault, Plan},
};

/// How long a node may take to hand over its keys, in milliseconds.
const WITHIN: &str = "2000";

/// The most keys of a slot that are handed over at once: all that a name has.
const BATCH: &str = "1000";

pub(super) struct Move {
    pub(super) slot: u16,
    from: usize,
    to: usize,
    how: How,
    /// It is to come to its end.
    pub(super) is_due: bool,
    is_told: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    /// By `SETSLOT` and `MIGRATE`.
    Open,
    /// The same, but the slot stays where it is.
    GivenUp,
    Atomic,
}

impl Move {
    pub(super) fn new(slot: u16, from: usize, to: usize, plan: &Plan) -> Move {
        let how = match plan.fault {
            Fault::MoveAtomically => How::Atomic,
            _ if (plan.draw >> 8).is_multiple_of(8) => How::GivenUp,
            _ => How::Open,
        };
        Move {
            slot,
            from,
            to,
            how,
            is_due: false,
            is_told: false,
        }
    }

    pub(super) fn concerns(&self, pair: usize) -> bool {
        [self.from, self.to].iter().any(|node| node % PAIRS == pair)
    }

    pub(super) fn begin(&self, all: &Cluster) -> io::Result<()> {
        let slot = self.slot.to_string();
        let begun = if self.how == How::Atomic {
            let range = ["SLOTSRANGE", &slot, &slot, "NODE", all.id(self.to)];
            let command = [&["CLUSTER", "MIGRATESLOTS"], &range[..]].concat();
            all.node(self.from).try_cli(&command)
        } else {
            self.open(all)
        };
        begun.map(drop).map_err(io::Error::other)
    }

    fn open(&self, all: &Cluster) -> RedisResult<Value> {
        let from = ["IMPORTING", all.id(self.from)];
        self.set_slot(all.node(self.to), &from)?;
        self.set_slot(all.node(self.from), &["MIGRATING", all.id(self.to)])
    }

    /// Brings it to its end, and says which node has the slot. Nothing: it must be tried again.
    pub(super) fn end(&mut self, all: &Cluster, primaries: &[usize]) -> Option<usize> {
        let ended = match self.how {
            How::Atomic => self.has_arrived(all),
            How::GivenUp => self.give_up(all),
            How::Open => self.close(all, primaries),
        };
        match ended {
            Ok(()) => Some(all.primary_of(self.slot)),
            Err(error) => {
                if !std::mem::replace(&mut self.is_told, true) {
                    eprintln!("chaos: slot {} cannot be moved yet: {error}", self.slot);
                }
                None
            }
        }
    }

    /// The node moves it by itself, or not.
    fn has_arrived(&self, all: &Cluster) -> RedisResult<()> {
        let moves = all
            .node(self.from)
            .try_cli(&["CLUSTER", "GETSLOTMIGRATIONS"])?;
        let moves: Vec<HashMap<String, Value>> = from_redis_value(moves)?;
        let states = moves.into_iter().filter_map(|mut it| it.remove("state"));
        let states: Vec<String> = states.map(from_redis_value).collect::<Result<_, _>>()?;
        let ends = ["success", "failed", "cancel"];
        let is_over = |state: &String| ends.iter().any(|end| state.starts_with(end));
        if states.iter().all(is_over) {
            return Ok(());
        }
        Err(io::Error::other(format!("it is on its way: {states:?}")).into())
    }

    fn give_up(&self, all: &Cluster) -> RedisResult<()> {
        for node in [self.from, self.to] {
            self.set_slot(all.node(node), &["STABLE"])?;
        }
        Ok(())
    }

    fn close(&self, all: &Cluster, primaries: &[usize]) -> RedisResult<()> {
        let slot = self.slot.to_string();
        let from = all.node(self.from);
        if all.primary_of(self.slot) == self.from {
            self.open(all)?;
            loop {
                let keys = from.try_cli(&["CLUSTER", "GETKEYSINSLOT", &slot, BATCH])?;
                let keys: Vec<String> = from_redis_value(keys)?;
                if keys.is_empty() {
                    break;
                }
                let port = all.node(self.to).port().to_string();
                let to = ["MIGRATE", "127.0.0.1", &port, "", "0", WITHIN, "KEYS"];
                let keys = keys.iter().map(String::as_str);
                let command: Vec<&str> = to.into_iter().chain(keys).collect();
                from.try_cli(&command)?;
            }
        }
        let others = primaries.iter().copied();
        let others = others.filter(|node| ![self.from, self.to].contains(node));
        // The one that has it now comes first, lest there be none.
        for node in [self.to, self.from].into_iter().chain(others) {
            self.set_slot(all.node(node), &["NODE", all.id(self.to)])?;
        }
        Ok(())
    }

    fn set_slot(&self, node: &Server, what: &[&str]) -> RedisResult<Value> {
        let slot = self.slot.to_string();
        node.try_cli(&[&["CLUSTER", "SETSLOT", &slot], what].concat())
    }
}
