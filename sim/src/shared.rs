//! The state that the world and the tasks of its clients share: the time, the dice, the guards, the trace.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use leasehold::{Released, sim::Probe};
use parking_lot::Mutex;

use crate::{config::Config, dice::Dice};

/// A guard that a task can see.
#[derive(Clone, Debug)]
pub struct Visible {
    pub id: u64,
    /// Since when: it came then, or was downgraded.
    pub since: u64,
    pub writes: bool,
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

/// A name that a task asks for.
#[derive(Clone, Debug)]
pub struct Wait {
    pub how: Waits,
    pub client: u8,
    pub task: u8,
    pub name: u8,
    pub since: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// `lock()`
    Forever,
    /// `try_lock()`
    Once,
    /// For a time; or as an owner that may hold it.
    Somehow,
}

/// The result of a `release()`.
#[derive(Clone, Debug)]
pub struct GivenBack {
    pub client: u8,
    pub name: u8,
    pub lease: u64,
    /// Whether the guard was valid when the release was begun.
    pub was_valid: bool,
    /// Whether it was over then. At the last microseconds of a lease neither is sure.
    pub was_over: bool,
    /// Whether the hold is valid now: it has passed to another task of the same client.
    pub is_valid: bool,
    pub answer: Result<Released, String>,
}

/// A task that waits for a latch.
#[derive(Clone, Copy, Debug)]
pub struct LatchWait {
    pub name: u8,
    pub since: u64,
}

/// The last effect of work inside `run` under a name. Only holders that exclude all others write to it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cell {
    pub version: u64,
    pub holder: u64,
    pub client: u8,
    pub at: u64,
}

/// Something about `run` that is a breach, unless the server forgot a hold.
#[derive(Clone, Debug)]
pub struct Stray {
    /// Work had an effect beside another holder: of which name, and when both were there.
    pub beside: Option<(u8, u64)>,
    pub kind: &'static str,
    pub what: String,
}

#[derive(Debug)]
pub struct Shared {
    pub config: Config,
    pub now: u64,
    pub dice: Dice,
    pub guards: Vec<Visible>,
    /// Leases of which there was a guard: client, lease id.
    pub guarded: BTreeSet<(u8, u64)>,
    /// By name.
    pub cells: Vec<Cell>,
    pub strays: Vec<Stray>,
    pub waits: BTreeMap<u64, Wait>,
    /// The present operation of each task of each client; gone when it is done.
    pub doing: BTreeMap<(u8, u8), String>,
    /// Tasks that take several names, and may have some of them already.
    pub taking: BTreeMap<(u8, u8), Vec<u8>>,
    /// The leases that were given back since the promises were checked last.
    pub given_back: Vec<GivenBack>,
    /// The answers "another has it" since the promises were checked last: client, name, and since when it was asked.
    pub nones: Vec<(u8, u8, u64)>,
    /// Leases that were left to expire, and of which name: client, lease id.
    pub detached: BTreeMap<(u8, u64), u8>,
    /// When the name last had a holder, by name.
    pub last_seen: Vec<u64>,
    /// When a client last got an answer that it waited for, by client and name.
    pub last_answer: BTreeMap<(u8, u8), u64>,
    /// Clients whose shutdown has returned.
    pub closed: BTreeSet<u8>,
    /// When a client last went on after it was frozen.
    pub last_stop: BTreeMap<u8, u64>,
    /// When a client last could not send.
    pub last_refusal: BTreeMap<u8, u64>,
    /// The tasks that wait for a latch, by client and number.
    pub latch_waits: BTreeMap<(u8, u8), LatchWait>,
    /// When the count of a latch was last zero, by name.
    pub zero_at: Vec<u64>,
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
            guarded: BTreeSet::new(),
            cells: vec![Cell::default(); usize::from(config.names)],
            strays: Vec::new(),
            waits: BTreeMap::new(),
            doing: BTreeMap::new(),
            taking: BTreeMap::new(),
            given_back: Vec::new(),
            nones: Vec::new(),
            detached: BTreeMap::new(),
            last_seen: vec![0; usize::from(config.names)],
            last_answer: BTreeMap::new(),
            closed: BTreeSet::new(),
            last_stop: BTreeMap::new(),
            last_refusal: BTreeMap::new(),
            latch_waits: BTreeMap::new(),
            zero_at: vec![0; usize::from(config.names)],
            breaches: Vec::new(),
            trace: traced.then(Vec::new),
            coverage: BTreeMap::new(),
            healed: false,
            next: 0,
            config,
        }
    }

    /// Whether a task of a client asks for a name.
    pub fn wants(&self, client: u8, name: u8) -> bool {
        let mut waits = self.waits.values();
        waits.any(|wait| (wait.client, wait.name) == (client, name))
    }

    /// Whether a task, of this client if there is one, takes several names, this among them.
    pub fn takes(&self, client: Option<u8>, name: u8) -> bool {
        let mut taking = self.taking.iter();
        taking.any(|((who, _), names)| client.is_none_or(|c| c == *who) && names.contains(&name))
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

/// The number of a letter or a name.
pub fn number_of(known: &[&str], of: &str) -> u8 {
    let at = known.iter().position(|known| *known == of);
    at.and_then(|at| u8::try_from(at).ok()).unwrap_or(0)
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
