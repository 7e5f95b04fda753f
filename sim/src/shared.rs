//! What the world and the tasks of its clients both see: the time, the dice, the guards, the trace.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use leasehold::sim::Probe;
use parking_lot::Mutex;

use crate::{config::Config, dice::Dice};

/// A guard that a task can see.
#[derive(Clone, Debug)]
pub struct Visible {
    pub id: u64,
    pub since: u64,
    pub name: u8,
    pub client: u8,
    /// Guards of one holder do not exclude each other.
    pub holder: u64,
    pub probe: Probe,
}

/// Something that must never happen.
#[derive(Clone, Debug)]
pub struct Breach {
    /// Which promise.
    pub promise: &'static str,
    pub at: u64,
    pub what: String,
    /// Tells this kind of breach from others.
    pub kind: String,
}

/// A `lock()`, or a `try_lock()` without an owner, that a task waits for.
#[derive(Clone, Debug)]
pub struct Wait {
    pub once: bool,
    pub client: u8,
    pub name: u8,
    pub since: u64,
}

#[derive(Debug)]
pub struct Shared {
    pub config: Config,
    pub now: u64,
    pub dice: Dice,
    pub guards: Vec<Visible>,
    /// Something about the guards has changed since they were last looked at.
    pub touched: bool,
    pub waits: BTreeMap<u64, Wait>,
    /// What each task of each client does at the moment; gone when it is done.
    pub doing: BTreeMap<(u8, u8), String>,
    /// Leases that were left to expire: client, lease id.
    pub detached: BTreeSet<(u8, u64)>,
    /// When somebody last had the name, by name.
    pub last_seen: Vec<u64>,
    /// When a client last got an answer that it waited for, by client and name.
    pub last_answer: BTreeMap<(u8, u8), u64>,
    /// When a client last could not send.
    pub last_refusal: BTreeMap<u8, u64>,
    pub breaches: Vec<Breach>,
    pub trace: Option<Vec<String>>,
    pub coverage: BTreeMap<&'static str, u64>,
    pub healed: bool,
    next: u64,
}

pub type World = Arc<Mutex<Shared>>;

pub const LETTERS: [&str; 8] = ["A", "B", "C", "D", "E", "F", "G", "H"];
pub const NAMES: [&str; 3] = ["x", "y", "z"];

impl Shared {
    pub fn new(config: Config, dice: Dice, traced: bool) -> Shared {
        Shared {
            now: 0,
            dice,
            guards: Vec::new(),
            touched: false,
            waits: BTreeMap::new(),
            doing: BTreeMap::new(),
            detached: BTreeSet::new(),
            last_seen: vec![0; usize::from(config.names)],
            last_answer: BTreeMap::new(),
            last_refusal: BTreeMap::new(),
            breaches: Vec::new(),
            trace: traced.then(Vec::new),
            coverage: BTreeMap::new(),
            healed: false,
            next: 0,
            config,
        }
    }

    /// A number that was not given before.
    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn say(&mut self, line: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{}  {}", stamp(now), line()));
        }
    }

    pub fn count(&mut self, what: &'static str) {
        *self.coverage.entry(what).or_default() += 1;
    }

    pub fn breach(&mut self, promise: &'static str, kind: impl Into<String>, what: String) {
        let at = self.now;
        self.say(|| format!("BREACH of {promise}: {what}"));
        self.breaches.push(Breach {
            promise,
            at,
            what,
            kind: kind.into(),
        });
    }
}

/// `12.034567 s`
pub fn stamp(nanos: u64) -> String {
    format!(
        "{:>4}.{:06} s",
        nanos / 1_000_000_000,
        nanos / 1_000 % 1_000_000
    )
}

/// A length of time, as short as it can be said.
pub fn span(nanos: u64) -> String {
    format!(
        "{:?}",
        std::time::Duration::from_nanos(nanos / 1_000 * 1_000)
    )
}
