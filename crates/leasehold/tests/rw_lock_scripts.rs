//! Schedules of the read-write lock's scripts that no person thought of. Three clients ask, downgrade, release and send late
//! copies at random; after each step what the server has is compared with what the clients believe.
//!
//! No lease ends in an episode, so nothing depends on a clock, and a seed gives the same episode each time. For other seeds:
//! `LEASEHOLD_SEEDS=1000..21000 cargo test -p leasehold --features tls,serde --test rw_lock_scripts`.

mod common;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    mem,
    ops::Range,
    time::{Duration, Instant},
};

use common::{
    rw_beliefs::{
        Access::{self, Read, Write},
        Beliefs, CLIENTS, Id,
        State::{Holds, Over, Waits},
    },
    rw_scripts::{ACQUIRE, COUNT, Checked, DOWNGRADE, EXTEND, Played, RELEASE, RENEW},
    servers,
};

const SEEDS: Range<u64> = 0..500;
/// No episode outlasts them. They differ, so that one that is shortened shows.
const LEASES: [u64; 4] = [100_000, 200_000, 300_000, 400_000];
const EXTENSIONS: [u64; 3] = [50_000, 250_000, 500_000];
/// For the queue and for tombstones.
const LONG: &str = "900000";

struct Episode<'a> {
    played: &'a mut Played,
    /// How often holds began in each way, and what else is rare.
    tried: &'a mut BTreeMap<&'static str, u64>,
    random: fastrand::Rng,
    known: Beliefs,
    /// Which clients have their subscriptions.
    hears: [bool; 3],
}

impl Episode<'_> {
    fn play(&mut self) -> Checked {
        for client in 0..CLIENTS.len() {
            self.turn_inbox(client)?;
        }
        for _ in 0..self.random.u8(40..60) {
            // At times it has not the right to, as an operator takes it away and gives it back.
            let refuses = self.chance(8);
            if refuses {
                self.played.may_publish(false);
            }
            self.step()?;
            if refuses {
                self.played.may_publish(true);
            }
            for client in 0..CLIENTS.len() {
                // Or it hears that later.
                if self.chance(60) {
                    let messages = self.played.inboxes[client].say("");
                    self.hear(client, &messages)?;
                }
            }
            self.known.check(self.played)?;
        }
        Ok(())
    }

    fn step(&mut self) -> Checked {
        if self.chance(20) && self.release_revived()? {
            return Ok(());
        }
        let client = self.random.usize(..CLIENTS.len());
        let holds = |id: &Id| id.state == Holds;
        let waits = |id: &Id| id.state == Waits;
        match self.random.u8(..100) {
            0..25 => {
                if self.known.ids.iter().filter(|id| waits(id)).count() < 6 {
                    let kinds = [Read, Read, Read, Write, Write];
                    let access = kinds[self.random.usize(..kinds.len())];
                    let id = self.new_id(client, access);
                    return self.ask(id);
                }
            }
            25..38 => {
                if let Some(id) = self.one(waits) {
                    return self.ask(id);
                }
            }
            38..54 => {
                if let Some(id) = self.one(holds) {
                    return self.release(id);
                }
            }
            54..67 => {
                // Of a recent one rather than of an old one.
                let all = self.played.sent.len();
                let from = [0, all.saturating_sub(8)][self.random.usize(..2)];
                if let Some(copy) = self.random.choice(from..all) {
                    return self.played.send_copy(copy);
                }
            }
            67..80 => {
                if let Some(id) = self.one(|id| holds(id) && id.form == Write) {
                    *self.tried.entry("downgrade").or_default() += 1;
                    self.known.ids[id].form = Read;
                    let owner = self.known.ids[id].owner();
                    let (channel, grants) = self.played.channels();
                    let args = [owner.clone(), channel, grants, "1".to_owned()];
                    if self.call(DOWNGRADE, args)? != [1] {
                        return Err(format!("S2: {owner} is lost"));
                    }
                }
            }
            80..88 => {
                if let Some(id) = self.one(holds) {
                    return self.lengthen(id);
                }
            }
            88..90 if self.hears[client] => return self.turn_inbox(client),
            90..95 if !self.hears[client] => return self.turn_inbox(client),
            95 => {
                // However it came there: a place of one that holds, or was given up, counts for nothing (B4).
                let buried = self.played.buried.clone();
                let in_vain =
                    |id: &Id| buried.contains(&id.owner()) || holds(id) && id.form != id.access;
                if let Some(id) = self.one(in_vain) {
                    let id = &self.known.ids[id];
                    let (owner, field, lease_ms) = (id.owner(), id.field(id.access), id.lease_ms);
                    if self.known.planted.insert(owner) {
                        self.played.plant(&format!("{field} {lease_ms} 1"), LONG);
                    }
                }
            }
            _ => {
                if let Some(id) = self.one(waits) {
                    return self.release(id);
                }
            }
        }
        Ok(())
    }

    /// What a late copy brought back is in the way of all others: then a release comes once more.
    fn release_revived(&mut self) -> Checked<bool> {
        let over = |id: &&Id| id.state == Over && self.known.holders.contains_key(&id.owner());
        let owners: Vec<String> = self.known.ids.iter().filter(over).map(Id::owner).collect();
        let Some(owner) = self.random.choice(owners) else {
            return Ok(false);
        };
        let release =
            |(script, args): &(usize, Vec<String>)| *script == RELEASE && args[0] == owner;
        let Some(copy) = self.played.sent.iter().rposition(release) else {
            return Err(format!("B4: {owner} was never released, and is over"));
        };
        *self.tried.entry("revived").or_default() += 1;
        self.played.send_copy(copy).map(|()| true)
    }

    fn chance(&mut self, percent: u8) -> bool {
        self.random.u8(..100) < percent
    }

    /// One of the ids of which that is true.
    fn one(&mut self, wanted: impl Fn(&Id) -> bool) -> Option<usize> {
        let of = |n: &usize| wanted(&self.known.ids[*n]);
        let found: Vec<usize> = (0..self.known.ids.len()).filter(of).collect();
        self.random.choice(found)
    }

    fn new_id(&mut self, client: usize, access: Access) -> usize {
        let lease_ms = LEASES[self.random.usize(..LEASES.len())];
        self.known.add(client, access, lease_ms)
    }

    /// The client's subscriptions come, or go.
    fn turn_inbox(&mut self, client: usize) -> Checked {
        self.hears[client] = !self.hears[client];
        let word = ["UNSUBSCRIBE", "SUBSCRIBE"][usize::from(self.hears[client])];
        let (channel, grants) = self.played.channels();
        let command = format!("{word} {grants}{} {channel}", CLIENTS[client]);
        let _ = writeln!(self.played.log, "{} {word}", CLIENTS[client]);
        let messages = self.played.inboxes[client].say(&command);
        self.hear(client, &messages)
    }

    fn call(&mut self, script: usize, args: impl Into<Vec<String>>) -> Checked<Vec<i64>> {
        let turn = self.random.u32(..);
        self.played.call(script, args.into(), turn)
    }

    /// The number of the ask, and its words for a place or for none.
    fn place(&mut self, id: usize) -> (usize, [String; 2]) {
        self.known.ids[id].asks.push(Instant::now());
        let ask = self.known.ids[id].asks.len();
        // One that hears nothing takes none.
        let words = if self.hears[self.known.ids[id].client] && self.chance(80) {
            [ask.to_string(), LONG.to_owned()]
        } else {
            ["0", "0"].map(str::to_owned)
        };
        (ask, words)
    }

    fn ask(&mut self, n: usize) -> Checked {
        let (ask, [number, keep]) = self.place(n);
        let id = self.known.ids[n].clone();
        let (field, lease) = (id.field(id.access), id.lease_ms.to_string());
        let (channel, grants) = self.played.channels();
        let args = [field, lease, number, keep, grants, channel];
        match self.call(ACQUIRE, args)?[..] {
            [1] => return self.believe(n, ask, id.lease_ms.cast_signed(), "asked"),
            [1, left] => return self.believe(n, ask, left, "asked"),
            [2, _] => return Err(format!("B4: {} was not given up", id.owner())),
            _ => {}
        }
        Ok(())
    }

    fn release(&mut self, n: usize) -> Checked {
        self.known.give_up(n);
        let client = self.known.ids[n].client;
        let goes_on = |id: &Id| id.client == client;
        let next = match self.random.u8(..5) {
            0 => {
                let access = [Read, Write][self.random.usize(..2)];
                Some(self.new_id(client, access))
            }
            1 => self.one(|id| id.state == Waits && goes_on(id)),
            2 => self.one(|id| id.state == Holds && goes_on(id)),
            _ => None,
        };
        let gone = if self.chance(30) { LONG } else { "0" };
        self.send_release(n, gone, next)
    }

    fn send_release(&mut self, n: usize, gone: &str, next: Option<usize>) -> Checked {
        let id = &self.known.ids[n];
        let listens = u8::from(self.hears[id.client]).to_string();
        let (channel, grants) = self.played.channels();
        let mut args = vec![id.owner(), channel, grants, gone.to_owned(), listens];
        let Some(next) = next else {
            args.extend(["", "0", "0", "0", "0", ""].map(str::to_owned));
            return self.call(RELEASE, args).map(drop);
        };
        let (ask, [number, keep]) = self.place(next);
        let [stays, holds] = [2, 3].map(|most| self.random.u8(..most).to_string());
        let id = &self.known.ids[next];
        let (field, lease) = (id.field(id.access), id.lease_ms.to_string());
        args.extend([field, lease, stays, number, keep, holds]);
        if let [3, left] = self.call(RELEASE, args)?[..] {
            return self.believe(next, ask, left, "kept");
        }
        Ok(())
    }

    /// Renews a hold, or extends it: the lease of one that is renewed has one length (B2). Or counts those who share it.
    fn lengthen(&mut self, n: usize) -> Checked {
        let id = self.known.ids[n].clone();
        // The request may have been made before its form changed.
        let field = id.field(if self.chance(40) { id.access } else { id.form });
        let sent = Instant::now();
        let left = if self.chance(25) {
            let holds = self.random.u8(1..4).to_string();
            let listens = u8::from(self.hears[id.client]).to_string();
            let reads = self.random.u8(..2).to_string();
            let (channel, grants) = self.played.channels();
            let reply = self.call(COUNT, [field, holds, channel, grants, listens, reads])?;
            i64::from(reply != [0])
        } else if id.lease.is_multiple_of(2) {
            let reply = self.call(RENEW, [id.lease_ms.to_string(), "1".to_owned(), field])?;
            i64::from(reply.is_empty()) * id.lease_ms.cast_signed()
        } else {
            let lease_ms = EXTENSIONS[self.random.usize(..EXTENSIONS.len())];
            let reply = self.call(EXTEND, [field, lease_ms.to_string()])?;
            reply.first().copied().unwrap_or(0)
        };
        let left = u64::try_from(left).unwrap_or(0);
        if left == 0 {
            return Err(format!("S2: {} is lost", id.owner()));
        }
        self.known.ids[n].until = id.until.max(sent + Duration::from_millis(left));
        Ok(())
    }

    fn believe(&mut self, n: usize, ask: usize, left_ms: i64, how: &'static str) -> Checked {
        *self.tried.entry(how).or_default() += 1;
        self.known.believe(n, ask, left_ms)
    }

    fn hear(&mut self, client: usize, messages: &[String]) -> Checked {
        for message in messages {
            let words: Vec<&str> = message.split(' ').collect();
            let [field, lease_ms, ask] = words[..] else {
                continue;
            };
            let _ = writeln!(self.played.log, "{} hears {message}", CLIENTS[client]);
            let (lease_ms, ask): (i64, usize) = (lease_ms.parse().unwrap(), ask.parse().unwrap());
            let mut ids = self.known.ids.iter();
            let n = ids.position(|id| id.field(id.access) == field);
            let n = n.ok_or_else(|| format!("a grant for no id: {message}"))?;
            match self.known.ids[n].state {
                Waits => self.believe(n, ask, lease_ms, "heard")?,
                Holds => {}
                Over => self.send_release(n, "0", None)?,
            }
        }
        Ok(())
    }
}

/// The steps of an episode, and what was wrong after the last.
fn play(
    played: &mut Played,
    tried: &mut BTreeMap<&'static str, u64>,
    seed: u64,
) -> (String, Checked) {
    played.begin(format!("name{seed}"));
    let mut episode = Episode {
        played,
        tried,
        random: fastrand::Rng::with_seed(seed),
        known: Beliefs::default(),
        hears: [false; 3],
    };
    let outcome = episode.play();
    (mem::take(&mut played.log), outcome)
}

fn seeds() -> Range<u64> {
    let Ok(wanted) = std::env::var("LEASEHOLD_SEEDS") else {
        return SEEDS;
    };
    let (first, last) = wanted.split_once("..").expect("first..last");
    first.parse().unwrap()..last.parse().unwrap()
}

#[test]
fn whatever_comes_when_no_two_hold_what_they_may_not_and_no_hold_is_lost() {
    for server in servers() {
        let mut played = Played::on(&server);
        let mut tried = BTreeMap::new();
        let began = Instant::now();
        for seed in seeds() {
            let (steps, outcome) = play(&mut played, &mut tried, seed);
            if let Err(what) = outcome {
                panic!("{}, seed {seed}: {what}, after\n{steps}", server.flavor());
            }
        }
        let (flavor, refused, took) = (server.flavor(), played.refused, began.elapsed());
        println!("{flavor}: {tried:?} and {refused} refused in {took:?}");
        let ways = ["asked", "heard", "kept", "downgrade", "revived"];
        let rare: Vec<_> = ways
            .iter()
            .filter(|way| !tried.contains_key(*way))
            .collect();
        assert!(rare.is_empty() && refused > 0, "never tried: {rare:?}");
        let first = play(&mut played, &mut tried, seeds().start);
        let again = play(&mut played, &mut tried, seeds().start);
        assert_eq!(first, again, "the same seed, the same episode");
    }
}
