//! The promises of docs/rules.md, each looked at from outside in a file of its own.

pub mod answer;
pub mod b1;
pub mod b3;
pub mod b6;
pub mod busy;
pub mod l1;
pub mod l2;
pub mod l3;
pub mod l4;
pub mod latch;
pub mod none;
pub mod order;
pub mod permits;
pub mod release;
pub mod run;
pub mod s1;
pub mod s2;
pub mod tokens;

use std::collections::{BTreeMap, BTreeSet};

use leasehold::{
    LockKind,
    sim::{Answer, Held, Hint, Kind, Snapshot},
};
use parking_lot::Mutex;

use crate::{
    config::{Config, MS, SECOND},
    process::{Life, Process},
    shared::{Breach, LETTERS, NAMES, Shared, Visible, number_of},
    wire::Asked as Request,
    world::{Event, World, settle},
};

/// Which promises are asked about; empty: all.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pub only: Vec<String>,
    pub not: Vec<String>,
    /// Kinds of breaches that are known and not asked about, by any part of `promise: kind`.
    pub ignored: Vec<String>,
}

impl Asked {
    /// Whether this breach is one that is asked about.
    pub fn counts(&self, breach: &Breach) -> bool {
        let kind = format!("{}: {}", breach.promise, breach.kind);
        !self.ignored.iter().any(|part| kind.contains(part.as_str()))
    }

    pub fn about(&self, promise: &str) -> bool {
        let is = |name: &String| name.eq_ignore_ascii_case(promise);
        (self.only.is_empty() || self.only.iter().any(is)) && !self.not.iter().any(is)
    }
}

/// The memory of the checks.
pub struct Watch {
    asked: Asked,
    /// Until when two holders are no breach, by name: the server forgot one, or was told to.
    pub forgiven: Vec<u64>,
    /// The last message that each client heard about each of its leases.
    pub heard: BTreeMap<(u8, u64), String>,
    /// The server's last action on each name.
    pub done: Vec<String>,
    /// When the lease granted or renewed last ends, by name.
    pub granted_until: Vec<u64>,
    /// Holds without a guard: name, client, lease id, and since when.
    pub orphans: BTreeMap<(u8, u8, u64), u64>,
    /// Leases that a node has again which took the place of another, and lagged behind: client, lease id.
    pub rewound: BTreeSet<(u8, u64)>,
    /// Leases for which a copy was carried out that outlived its tombstone: client, lease id. It may cost a lease.
    pub outlived: BTreeSet<(u8, u64)>,
    /// Leases whose grant was lost on the way, or answered a copy: client, lease id. The name may be held without a guard until
    /// they end (L1).
    pub unheard: BTreeSet<(u8, u64)>,
    /// Grants that a client has heard, and done nothing about: client, lease id; and since when, and for which name.
    pub granted: BTreeMap<(u8, u64), (u64, u8)>,
    /// Holds that the server took from their clients, by force or because it lost its data: client, lease id.
    pub taken: BTreeSet<(u8, u64)>,
    /// Leases that a copy of their acquisition took when they had ended: client, lease id. Their holders have been told so, and
    /// rightly.
    pub brought_back: BTreeSet<(u8, u64)>,
    /// Leases that a release has said to be free, and from when on: client, lease id. And whether it was sure.
    pub free: BTreeMap<(u8, u64), (u64, bool)>,
    /// Leases that were renewed after faults had ended: a client believes in them. Client, lease id.
    pub renewed: BTreeSet<(u8, u64)>,
    /// Leases that were left to expire, and until when the server had them: client, lease id.
    pub detached: BTreeMap<(u8, u64), u64>,
    /// The permits without leases that are out: name, client, lease id; and when a request about them was carried out last.
    pub out: BTreeMap<(u8, u8, u64), (Held, u64)>,
    /// Requests that have changed the count of a latch, and when: client, number.
    pub counted: BTreeMap<(u8, u64), u64>,
    /// Since when the count of a latch is zero, by name.
    pub zero_since: Vec<Option<u64>>,
    pub longest: u64,
    pub all_done_at: Option<u64>,
    /// Of each name: see [`tokens`].
    pub tokens: Vec<tokens::Largest>,
    /// The last guard whose token was looked at.
    pub looked_at: u64,
    /// When a client last had a name on a server, or stood in its queue: name, client.
    pub used: BTreeMap<(u8, u8), u64>,
    /// The server before the last step, if the order counts: see [`order`].
    pub before: Snapshot,
    heal_planned: bool,
}

impl Watch {
    pub fn new(config: &Config, asked: &Asked) -> Watch {
        let names = usize::from(config.names);
        Watch {
            asked: asked.clone(),
            forgiven: vec![0; names],
            heard: BTreeMap::new(),
            done: vec![String::new(); names],
            granted_until: vec![0; names],
            orphans: BTreeMap::new(),
            rewound: BTreeSet::new(),
            outlived: BTreeSet::new(),
            unheard: BTreeSet::new(),
            granted: BTreeMap::new(),
            taken: BTreeSet::new(),
            brought_back: BTreeSet::new(),
            free: BTreeMap::new(),
            renewed: BTreeSet::new(),
            detached: BTreeMap::new(),
            out: BTreeMap::new(),
            counted: BTreeMap::new(),
            zero_since: vec![None; names],
            longest: config.lease,
            all_done_at: None,
            tokens: vec![(0, (0, 0)); names],
            looked_at: 0,
            used: BTreeMap::new(),
            before: Snapshot::default(),
            heal_planned: false,
        }
    }

    pub fn counts(&self, breach: &Breach) -> bool {
        self.asked.counts(breach)
    }

    pub fn asks(&self, promise: &str) -> bool {
        self.asked.about(promise)
    }

    /// Until this hold has ended, its guard may believe in a name that the server has given away.
    pub fn forgive(&mut self, held: &Held) {
        let name = NAMES.iter().position(|name| **name == *held.name);
        if let Some(name) = name {
            let until = nanos(held);
            self.forgiven[name] = self.forgiven[name].max(until);
        }
    }

    /// The server took this hold from its client.
    /// A copy of an acquisition was carried out; `before`: the holders of its names until then.
    pub fn brings_back(&mut self, asked: &Request, before: &[Vec<Held>]) {
        for ((_, lease), before) in asked.about.iter().zip(before) {
            let mut before = before.iter();
            if !before.any(|held| {
                number_of(&LETTERS, &held.client) == asked.client && held.lease == *lease
            }) {
                self.brought_back.insert((asked.client, *lease));
            }
        }
    }

    pub fn taken(&mut self, held: &Held) {
        self.taken
            .insert((number_of(&LETTERS, &held.client), held.lease));
    }

    pub fn sent(
        &mut self,
        client: u8,
        now: u64,
        processes: &mut [Process],
        shared: &Mutex<Shared>,
    ) {
        if self.asks("busy") {
            busy::sent(&mut processes[usize::from(client)], now, shared);
        }
    }

    pub fn executed(&mut self, asked: &Request, answer: &Answer, shared: &Mutex<Shared>) {
        for (name, _) in &asked.about {
            self.done[usize::from(*name)] = format!("{:?}", asked.kind);
        }
        let text = format!("{:?}", answer.text);
        let mut shared = shared.lock();
        if asked.kind == Kind::Renew && shared.healed {
            let leases = asked.about.iter().map(|(_, lease)| (asked.client, *lease));
            self.renewed.extend(leases);
        }
        match asked.kind {
            Kind::Release if text.contains("Kept") => shared.count("seen: release answered kept"),
            Kind::Release if text.contains("Granted") => {
                shared.count("seen: release gave the name to the next in line");
            }
            Kind::Release if text.contains("NotOurs") => {
                shared.count("seen: release answered not ours");
            }
            Kind::Acquire if text.contains("GivenUp") => {
                shared.count("seen: acquire met a tombstone");
            }
            Kind::Acquire if text.contains("Held") => shared.count("seen: acquire found it held"),
            Kind::Renew if text.contains("Lost") => shared.count("seen: renewal answered lost"),
            _ => {}
        }
    }

    /// A reply reaches its client; `true` if it says that another owner holds the name.
    pub fn heard(&mut self, asked: &Request, answer: &Answer) -> bool {
        let text = format!("{:?}", answer.text);
        let text: String = text.chars().take_while(|c| *c != '{').collect();
        for (_, lease) in &asked.about {
            let heard = format!("{:?} {}", asked.kind, text.trim());
            self.heard.insert((asked.client, *lease), heard);
        }
        asked.kind == Kind::Acquire && text.contains("Held")
    }

    pub fn woken(&mut self, client: u8, hint: &Hint, now: u64) {
        if let Some(lease) = hint.granted {
            self.heard
                .insert((client, lease), "grant by wake-up".to_owned());
            let name = number_of(&NAMES, &hint.name);
            self.granted.insert((client, lease), (now, name));
        }
    }

    /// The last message that the client heard of this lease.
    pub fn last_heard(&self, client: u8, lease: u64) -> &str {
        self.heard
            .get(&(client, lease))
            .map_or("nothing", String::as_str)
    }
}

/// When a hold ends on the server.
pub fn nanos(held: &Held) -> u64 {
    u64::try_from(held.ends.as_nanos()).unwrap_or(u64::MAX)
}

/// After each step.
pub fn after_step(world: &mut World) {
    run::check(world);
    s1::check(world);
    tokens::check(world);
    order::check(world);
    b1::check(world);
    b3::check(world);
    b6::check(world);
    s2::told_in_error(world);
    s2::detached(world);
    release::check(world);
    latch::check(world);
    l2::no_wait(world);
    none::check(world);
    if world.healed_at.is_none() && !world.watch.heal_planned {
        let idle = world.shared.lock().doing.is_empty();
        let born = world.processes.iter().all(|p| p.client.is_some());
        if idle && born {
            // No task wants a name any more: a little longer, for messages under way.
            world.watch.heal_planned = true;
            let time = world.now + world.config.lease.min(SECOND);
            world.at(time, Event::Heal);
        }
    }
}

const LOOK_EVERY: u64 = SECOND / 4;

impl World {
    /// Now and then, when faults have ended.
    pub fn look(&mut self) {
        let Some(healed) = self.healed_at else { return };
        let settled = healed + settle(&self.config);
        if self.now >= settled {
            self.give_back_lost();
            latch::open(self);
            latch::waits(self, settled);
            l3::orphans(self);
            l1::check(self, settled);
            l2::check(self, settled);
            if self.watch.all_done_at.is_none() && self.shared.lock().doing.is_empty() {
                self.watch.all_done_at = Some(self.now);
            }
            if self
                .watch
                .all_done_at
                .is_some_and(|at| self.now >= at + SECOND)
            {
                l3::check(self);
                self.over = true;
                return;
            }
        }
        self.at(self.now + LOOK_EVERY, Event::Look);
    }
}

impl World {
    /// An operator gives back the permits of holders that never will: those of the dead, and those left to no guard.
    fn give_back_lost(&mut self) {
        if self.config.kind != LockKind::Semaphore {
            return;
        }
        for held in self.held() {
            let id = (number_of(&LETTERS, &held.client), held.lease);
            let is_dead = self.processes[usize::from(id.0)].life == Life::Dead;
            let name = number_of(&NAMES, &held.name);
            let shared = self.shared.lock();
            let is_its = |guard: &Visible| (guard.client, guard.probe.lease()) == id;
            let has_guard = shared.guards.iter().any(is_its);
            let is_unheard = !has_guard && self.is_forgotten((name, id.0, id.1));
            // A copy has taken them; not the request whose answer is on its way.
            let is_copy = !has_guard
                && self.watch.outlived.contains(&id)
                && self.taken_for((name, id.0, id.1)) > settle(&self.config);
            let is_detached = shared.detached.contains_key(&id);
            drop(shared);
            if is_dead || is_unheard || is_detached || is_copy {
                self.watch.taken(&held);
                // A dead process believes in nothing.
                let mut shared = self.shared.lock();
                shared.guards.retain(|guard| !is_its(guard));
                drop(shared);
                self.watch.out.remove(&(name, id.0, id.1));
                for hint in self.server().give_back(&held) {
                    self.send_hint(0, hint);
                }
            }
        }
    }
}

/// The grace after the end of a lease: the 200 ms of the promise, and the interval between looks.
pub const GRACE: u64 = 200 * MS + LOOK_EVERY;
