//! What clients of a read-write lock believe of their lease ids, and whether the server has it so.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::rw_scripts::{Checked, Played};

pub const CLIENTS: [&str; 3] = ["a", "b", "c"];

/// What a lease may be short of when it is looked at: far less than leases differ.
const SLACK: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Access {
    Read,
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    Waits,
    Holds,
    Over,
}

use Access::{Read, Write};
use State::{Holds, Over, Waits};

/// A lease id, and what its client believes of it.
#[derive(Clone, Debug)]
pub struct Id {
    pub client: usize,
    pub lease: u64,
    pub access: Access,
    pub lease_ms: u64,
    /// When each ask was sent.
    pub asks: Vec<Instant>,
    pub state: State,
    /// In which it holds, until then.
    pub form: Access,
    pub until: Instant,
}

impl Id {
    pub fn owner(&self) -> String {
        format!("{}:{}", CLIENTS[self.client], self.lease)
    }

    pub fn field(&self, access: Access) -> String {
        let owner = self.owner();
        match access {
            Read => owner,
            Write => owner + ":write",
        }
    }
}

/// The owner in a field, or in a place.
fn owner_of(field: &str) -> String {
    let mut parts = field.split([':', ' ']);
    let (client, lease) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    format!("{client}:{lease}")
}

/// All that was believed since the beginning, and what the server had when they last looked.
#[derive(Default)]
pub struct Beliefs {
    pub ids: Vec<Id>,
    /// Who holds the name on the server: fields by owner.
    pub holders: BTreeMap<String, String>,
    /// Owners that have a place by the test's own hand, while they hold or after they were given up.
    pub planted: BTreeSet<String>,
    /// The fields of the places.
    queue: Vec<String>,
}

impl Beliefs {
    /// A lease id that waits.
    pub fn add(&mut self, client: usize, access: Access, lease_ms: u64) -> usize {
        let n = self.ids.len();
        self.ids.push(Id {
            client,
            // Redisson's have fewer digits.
            lease: 400_000_000_000 + n as u64,
            access,
            lease_ms,
            asks: Vec::new(),
            state: Waits,
            form: access,
            until: Instant::now(),
        });
        n
    }

    /// Its client relies on it no more.
    pub fn give_up(&mut self, n: usize) {
        self.ids[n].state = Over;
    }

    /// It holds the name, by the word of the server: for so long from this ask on (B1).
    pub fn believe(&mut self, n: usize, ask: usize, left_ms: i64) -> Checked {
        let id = &mut self.ids[n];
        let sent = ask.checked_sub(1).and_then(|ask| id.asks.get(ask));
        let sent = sent.ok_or_else(|| format!("B3: {} has not asked {ask} times", id.owner()))?;
        let until = *sent + Duration::from_millis(left_ms.unsigned_abs());
        if id.state == Waits {
            id.form = id.access;
        }
        id.until = id.until.max(until);
        id.state = Holds;
        Ok(())
    }

    /// What the server has is sound, and no less than what is believed.
    pub fn check(&mut self, played: &mut Played) -> Checked {
        let (hash, places, ends) = played.look();
        let (name, now) = (&played.name, Instant::now());
        if let Some((key, _)) = ends.iter().find(|(_, end)| **end == -1) {
            return Err(format!("L3: {key} has no end"));
        }
        let fail = |what: String| Err(format!("{what}: {hash:?}, {places:?}"));

        // Who holds the name on the server.
        self.holders.clear();
        let (mut mode, mut writers) = ("", 0);
        for (field, value) in &hash {
            if field == "mode" {
                mode = value;
                continue;
            }
            let owner = owner_of(field);
            let lease = format!("{{{name}}}:{field}:rwlock_timeout:1");
            let writer = format!("{field}:write");
            if !ends.contains_key(&lease) && hash.iter().any(|(other, _)| *other == writer) {
                continue; // a writer's own reads, for Redisson to see
            }
            writers += usize::from(field.ends_with(":write"));
            if self.holders.insert(owner, field.clone()).is_some() {
                return fail(format!("B4: {field} holds in two forms"));
            }
        }
        let all = self.holders.len();
        if writers > 0 && all > 1 || (mode == "write") != (writers > 0) {
            return fail("S1: not beside each other".to_owned());
        }

        // Who waits.
        let queue: Vec<String> = places
            .iter()
            .map(|place| place[..place.find(' ').unwrap()].to_owned())
            .collect();
        let mut waiting: Vec<String> = queue.iter().map(|field| owner_of(field)).collect();
        waiting.retain(|owner| !self.planted.contains(owner));
        waiting.sort();
        if waiting.windows(2).any(|two| two[0] == two[1]) {
            return fail("B3: two places of one id".to_owned());
        }
        if waiting.iter().any(|owner| self.holders.contains_key(owner)) {
            return fail("B4: a place of one that holds".to_owned());
        }
        let stayed = self.queue.iter().filter(|field| queue.contains(field));
        if !stayed.eq(queue.iter().filter(|field| self.queue.contains(field))) {
            return fail(format!("B3: another order than {:?}", self.queue));
        }
        self.queue = queue;

        // What the clients believe.
        for (n, id) in self.ids.iter().enumerate() {
            let field = self.holders.get(&id.owner());
            let who = id.field(id.form);
            if played.buried.contains(&id.owner())
                && (field.is_some() || waiting.contains(&id.owner()))
            {
                return fail(format!("B4: {who} is back"));
            }
            if id.state != Holds {
                continue;
            }
            let Some(field) = field.filter(|field| **field == who) else {
                return fail(format!("S2: {who} is lost"));
            };
            let lease = format!("{{{name}}}:{field}:rwlock_timeout:1");
            let of = |key: &str| ends.get(key).copied().unwrap_or(0);
            let left = if writers > 0 {
                of(name)
            } else {
                of(name).min(of(&lease))
            };
            let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
            let short = id.until.saturating_duration_since(now + left);
            if short > SLACK {
                return fail(format!("S2: {who} ends {short:?} too soon"));
            }
            let beside =
                |other: &Id| other.state == Holds && (id.form == Write || other.form == Write);
            if let Some(other) = self.ids[n + 1..].iter().find(|other| beside(other)) {
                return fail(format!("S1: {who} and {}", other.field(other.form)));
            }
        }
        Ok(())
    }
}
