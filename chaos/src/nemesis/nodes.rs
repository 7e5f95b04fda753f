//! A cluster: which node of each pair is its primary by now, which pair has which name, and the faults that change that.

use std::{
    io,
    time::{Duration, Instant},
};

use leasehold_testkit::{Cluster, ClusterSettings, Flavor, Proxy, Server};

use super::{
    moves::Move,
    roles::{Role, Roles, Switch, has_replica},
    schedule::{Fault, Plan},
};
use crate::clock::now;

/// A primary and its replica each, which take each other's place.
pub(crate) const PAIRS: usize = 3;

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A primary that comes back waits so long for its successor.
const SUCCESSOR_WITHIN: Duration = Duration::from_secs(15);

/// A node of Redis that was elected counts the same votes again until then, if it is to replace its primary once more.
const VOTES_ARE_VOID: Duration = Duration::from_millis(4_500);

/// Until then all nodes have heard who has a slot, or who is a primary.
const HEARD_WITHIN: Duration = Duration::from_millis(1_500);

struct Pair {
    roles: Roles,
    /// A fault is at work in it.
    is_hit: bool,
    /// Its replica was asked to take over as planned.
    is_planned: bool,
    /// The place of one that is dead, and when it is to come back.
    dead: Option<(usize, Option<Instant>)>,
    frozen: Option<usize>,
    /// When a node last came back or took over, or a slot arrived.
    changed: Instant,
}

impl Pair {
    fn new() -> Pair {
        Pair {
            roles: Roles::new(2, 0),
            is_hit: false,
            is_planned: false,
            dead: None,
            frozen: None,
            changed: Instant::now(),
        }
    }

    fn is_served(&self) -> bool {
        self.roles.primary().is_some() && self.frozen.is_none()
    }

    fn is_quiet(&self) -> bool {
        let is_well = (0..2).all(|place| !self.roles.is_away(place));
        !self.is_hit && is_well && self.changed.elapsed() > HEARD_WITHIN
    }
}

/// The number of the node at this place of a pair.
fn node(pair: usize, place: usize) -> usize {
    pair + place * PAIRS
}

/// The cluster, as the nemesis has brought it about.
pub(crate) struct Nodes {
    all: Cluster,
    pairs: Vec<Pair>,
    names: Vec<Name>,
    moving: Option<Move>,
    looked: (Instant, u64),
    pub(crate) switches: Vec<Switch>,
}

struct Name {
    slot: u16,
    pair: usize,
}

impl Nodes {
    /// With full coverage no node takes anything while a slot has no primary.
    pub(crate) fn start(flavor: Flavor, names: &[String], full_coverage: bool) -> Nodes {
        let covered = if full_coverage { "yes" } else { "no" };
        let args = [
            "--enable-debug-command",
            "yes",
            "--cluster-require-full-coverage",
            covered,
        ];
        let settings = ClusterSettings::new().behind_proxies().args(&args);
        let all = Cluster::start_with(flavor, settings);
        let name = |name: &String| {
            let slot = all.slot(name);
            let pair = all.primary_of(slot) % PAIRS;
            Name { slot, pair }
        };
        Nodes {
            names: names.iter().map(name).collect(),
            all,
            pairs: (0..PAIRS).map(|_| Pair::new()).collect(),
            moving: None,
            looked: (Instant::now(), now()),
            switches: Vec::new(),
        }
    }

    pub(crate) fn url(&self) -> String {
        self.all.url()
    }

    pub(crate) fn servers(&self) -> &[Server] {
        self.all.nodes()
    }

    /// The proxies in front of the nodes of a pair.
    pub(crate) fn proxies(&self, pair: usize) -> impl Iterator<Item = &Proxy> {
        (0..2).map(move |place| self.all.proxy(node(pair, place)))
    }

    /// The primary of a pair, if it is well.
    pub(crate) fn primary(&self, pair: usize) -> Option<&Server> {
        let place = self.pairs[pair].roles.primary()?;
        Some(self.all.node(node(pair, place)))
    }

    /// The numbers of the names that a pair has.
    pub(crate) fn names_of(&self, pair: usize) -> Vec<usize> {
        let names = self.names.iter().enumerate();
        let names = names.filter(|(_, name)| name.pair == pair);
        names.map(|(number, _)| number).collect()
    }

    /// How many clients listen to a channel at the node that has this name, and how many elsewhere.
    pub(crate) fn listeners(&self, name: usize, channel: &str) -> (u64, u64) {
        let owner = self.all.primary_of(self.names[name].slot);
        let count = |node| {
            let sharded = self.all.shard_subscribers(node, channel);
            sharded + self.all.subscribers(node, channel)
        };
        let others = (0..2 * PAIRS).filter(|node| *node != owner);
        (count(owner), others.map(count).sum())
    }

    /// Looks whether a replica has become a primary, has the dead come back, and goes on with a move. Most calls come too early.
    pub(crate) fn look(&mut self) {
        if self.looked.0.elapsed() < LOOK_EVERY {
            return;
        }
        let (after, before) = (self.looked.1, now());
        self.looked = (Instant::now(), before);
        for pair in 0..PAIRS {
            let all = &self.all;
            let it = &mut self.pairs[pair];
            if let Some(place) = it.roles.look(|place| all.node(node(pair, place))) {
                let knows_all = std::mem::take(&mut it.is_planned);
                it.changed = Instant::now();
                self.switched(pair, after, knows_all);
                eprintln!("chaos: node {} has become a primary", node(pair, place));
            }
            self.comes_back(pair);
        }
        self.go_on_moving();
    }

    fn switched(&mut self, pair: usize, after: u64, knows_all: bool) {
        self.switches.push(Switch {
            after,
            seen: now(),
            names: Some(self.names_of(pair)),
            knows_all,
        });
    }

    /// Starts a killed node again, once another has its place or has not taken it in time.
    fn comes_back(&mut self, pair: usize) {
        let it = &mut self.pairs[pair];
        let Some((place, Some(due))) = it.dead else {
            return;
        };
        let has_successor = it.roles.primary().is_some();
        if !has_successor && due.elapsed() < SUCCESSOR_WITHIN {
            return;
        }
        self.all.restart(node(pair, place));
        it.roles.goes_on(place);
        (it.dead, it.changed) = (None, Instant::now());
        if !has_successor {
            eprintln!("chaos: pair {pair} has found no successor in {SUCCESSOR_WITHIN:?}");
            // It has forgotten, as a successor would have that was told nothing.
            self.switched(pair, now(), false);
        }
    }

    pub(crate) fn begin(&mut self, pair: usize, plan: &Plan) -> io::Result<()> {
        let is_moving = (self.moving.as_ref()).is_some_and(|it| it.concerns(pair));
        if is_moving || self.pairs[pair].changed.elapsed() < HEARD_WITHIN {
            return Err(io::Error::other("not all have heard of its last change"));
        }
        // Only a majority of the primaries elects another.
        let others = (0..PAIRS).filter(|other| *other != pair);
        if plan.fault != Fault::FreezeReplica
            && !others.map(|it| &self.pairs[it]).all(Pair::is_served)
        {
            return Err(io::Error::other("another pair has no primary"));
        }
        let roles = &self.pairs[pair].roles;
        let primary = roles.primary().filter(|&place| {
            !roles.is_away(1 - place) && has_replica(self.all.node(node(pair, place)))
        });
        let Some(primary) = primary else {
            return Err(io::Error::other("there is no successor yet"));
        };
        let replica = 1 - primary;
        match plan.fault {
            Fault::Failover => {
                if self.pairs[pair].changed.elapsed() < VOTES_ARE_VOID {
                    return Err(io::Error::other("the last votes still count"));
                }
                let asked = self.all.node(node(pair, replica));
                let asked = asked.try_cli(&["CLUSTER", "FAILOVER"]);
                asked.map_err(io::Error::other)?;
                self.pairs[pair].is_planned = true;
            }
            Fault::KillPrimary => self.kill(pair, primary),
            Fault::KillUnreplicated => {
                self.freeze(pair, replica);
                let primary = self.all.node(node(pair, primary));
                let cut = primary.try_cli(&["CLIENT", "KILL", "TYPE", "replica"]);
                cut.map_err(io::Error::other)?;
            }
            Fault::StandStill => self.freeze(pair, primary),
            Fault::FreezeReplica => self.freeze(pair, replica),
            other => unreachable!("{} is no fault of a cluster", other.name()),
        }
        self.pairs[pair].is_hit = true;
        Ok(())
    }

    fn kill(&mut self, pair: usize, place: usize) {
        self.all.kill(node(pair, place));
        let it = &mut self.pairs[pair];
        it.roles.set(place, Role::Away);
        it.dead = Some((place, None));
    }

    fn freeze(&mut self, pair: usize, place: usize) {
        self.all.freeze(node(pair, place));
        let it = &mut self.pairs[pair];
        it.roles.set(place, Role::Away);
        it.frozen = Some(place);
    }

    fn thaw(&mut self, pair: usize) {
        let it = &mut self.pairs[pair];
        if let Some(place) = it.frozen.take() {
            self.all.thaw(node(pair, place));
            it.roles.goes_on(place);
            it.changed = Instant::now();
        }
    }

    /// More than once for each fault.
    pub(crate) fn second_stage(&mut self, pair: usize, plan: &Plan) {
        let it = &self.pairs[pair];
        if plan.fault == Fault::KillUnreplicated && it.frozen.is_some() {
            if let Some(primary) = it.roles.primary() {
                self.kill(pair, primary);
            }
            let replica = self.pairs[pair].frozen.expect("it is frozen");
            self.thaw(pair);
            // It is none before it has been elected.
            self.pairs[pair].roles.set(replica, Role::Replica);
        }
    }

    pub(crate) fn end(&mut self, pair: usize, plan: &Plan) {
        self.second_stage(pair, plan);
        self.thaw(pair);
        let it = &mut self.pairs[pair];
        it.is_hit = false;
        it.is_planned = false;
        if let Some((_, due)) = &mut it.dead {
            *due = Some(Instant::now());
        }
    }

    /// Begins to move the slot of a name to another pair.
    pub(crate) fn begin_move(&mut self, plan: &Plan) -> io::Result<()> {
        let slot = self.names[plan.draw as usize % self.names.len()].slot;
        let from = self.names.iter().find(|name| name.slot == slot);
        let from = from.expect("it is the slot of a name").pair;
        let to = (from + 1 + (plan.draw >> 16) as usize % (PAIRS - 1)) % PAIRS;
        if self.moving.is_some() || ![from, to].iter().all(|pair| self.pairs[*pair].is_quiet()) {
            return Err(io::Error::other("the nodes have other troubles"));
        }
        let primary = |pair: usize| Some(node(pair, self.pairs[pair].roles.primary()?));
        let (Some(from), Some(to)) = (primary(from), primary(to)) else {
            return Err(io::Error::other("there is no primary"));
        };
        let moving = Move::new(slot, from, to, plan);
        let begun = moving.begin(&self.all);
        self.moving = Some(moving);
        begun
    }

    pub(crate) fn end_move(&mut self) {
        if let Some(moving) = &mut self.moving {
            moving.is_due = true;
        }
        self.go_on_moving();
    }

    fn go_on_moving(&mut self) {
        let Some(moving) = self.moving.as_mut().filter(|it| it.is_due) else {
            return;
        };
        let primaries = self.pairs.iter().enumerate();
        let primaries = primaries.filter_map(|(pair, it)| Some(node(pair, it.roles.primary()?)));
        let primaries: Vec<usize> = primaries.collect();
        // A move that was refused or cut off is tried again.
        let Some(owner) = moving.end(&self.all, &primaries) else {
            return;
        };
        let moved = self.moving.take().expect("it is there");
        for pair in (0..PAIRS).filter(|pair| moved.concerns(*pair)) {
            self.pairs[pair].changed = Instant::now();
        }
        for name in &mut self.names {
            if name.slot == moved.slot {
                name.pair = owner % PAIRS;
            }
        }
    }

    /// No faults any more, and all are at one.
    pub(crate) fn settle(&mut self) {
        let is_over = |it: &Nodes| it.moving.is_none() && it.pairs.iter().all(|p| p.dead.is_none());
        let start = Instant::now();
        while !is_over(self) && start.elapsed() < SUCCESSOR_WITHIN * 2 {
            self.look();
            std::thread::sleep(LOOK_EVERY);
        }
        self.all.settle();
        std::thread::sleep(LOOK_EVERY);
        self.look();
        for name in &mut self.names {
            name.pair = self.all.primary_of(name.slot) % PAIRS;
        }
    }
}
