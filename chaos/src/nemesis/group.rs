//! A Sentinel group: who is its primary by now, and the faults that change that.

use std::{
    io,
    time::{Duration, Instant},
};

use leasehold_testkit::{Flavor, SentinelGroup, SentinelSettings, Server};
use redis::from_redis_value;

use super::{
    roles::{Role, Roles, Switch, has_replica},
    schedule::{Fault, Plan},
};
use crate::clock::now;

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A primary that comes back waits so long for its successor.
const SUCCESSOR_WITHIN: Duration = Duration::from_secs(15);

/// The group, as the nemesis has brought it about.
pub(crate) struct Group {
    all: SentinelGroup,
    roles: Roles,
    /// Frozen while the primary goes on.
    unreplicated: Vec<(usize, Role)>,
    /// The primary that a fault has killed or frozen.
    hit: Option<usize>,
    looked: (Instant, u64),
    pub(crate) switches: Vec<Switch>,
}

impl Group {
    pub(crate) fn start(flavor: Flavor) -> Group {
        let settings = SentinelSettings::new().args(&["--enable-debug-command", "yes"]);
        let group = SentinelGroup::start_with(flavor, settings);
        let roles = Roles::new(group.servers().len(), group.primary());
        Group {
            all: group,
            roles,
            unreplicated: Vec::new(),
            hit: None,
            looked: (Instant::now(), now()),
            switches: Vec::new(),
        }
    }

    pub(crate) fn url(&self) -> String {
        self.all.url()
    }

    pub(crate) fn servers(&self) -> &[Server] {
        self.all.servers()
    }

    pub(crate) fn sentinels(&self) -> &[Server] {
        self.all.sentinels()
    }

    /// The primary, if it is well.
    pub(crate) fn primary(&self) -> Option<&Server> {
        let place = self.roles.primary()?;
        Some(self.all.server(place))
    }

    /// Looks whether a replica has become the primary. Most calls come too early to look.
    pub(crate) fn look(&mut self) {
        if self.looked.0.elapsed() < LOOK_EVERY {
            return;
        }
        let (after, before) = (self.looked.1, now());
        self.looked = (Instant::now(), before);
        let all = &self.all;
        if let Some(place) = self.roles.look(|place| all.server(place)) {
            self.switched(after);
            eprintln!("chaos: server {place} has become the primary");
        }
    }

    fn switched(&mut self, after: u64) {
        self.switches.push(Switch {
            after,
            seen: now(),
            names: None,
            knows_all: false,
        });
    }

    /// Whether one could take the primary's place.
    fn has_successor(&self) -> bool {
        self.primary().is_some_and(has_replica)
    }

    pub(crate) fn begin(&mut self, plan: &Plan) -> io::Result<()> {
        let sentinel = plan.draw as usize % self.all.sentinels().len();
        match plan.fault {
            Fault::KillSentinel => self.all.kill_sentinel(sentinel),
            Fault::FreezeSentinel => self.all.sentinel(sentinel).freeze(),
            _ if !self.has_successor() => {
                return Err(io::Error::other("there is no successor yet"));
            }
            Fault::Failover => {
                let ask = ["SENTINEL", "FAILOVER", self.all.master()];
                let asked = self.all.sentinel(sentinel).try_cli(&ask);
                asked.map_err(io::Error::other)?;
            }
            Fault::KillPrimary => self.kill_primary(),
            Fault::KillUnreplicated => {
                for place in self.all.freeze_replicas() {
                    let before = self.roles.set(place, Role::Away);
                    self.unreplicated.push((place, before));
                }
            }
            Fault::FreezePrimary => {
                let primary = self.roles.primary().expect("it has a successor");
                self.all.server(primary).freeze();
                self.roles.set(primary, Role::Away);
                self.hit = Some(primary);
            }
            other => unreachable!("{} is no fault of a group", other.name()),
        }
        Ok(())
    }

    fn kill_primary(&mut self) {
        if let Some(primary) = self.roles.primary() {
            self.all.kill(primary);
            self.roles.set(primary, Role::Away);
            self.hit = Some(primary);
        }
    }

    /// More than once for each fault.
    pub(crate) fn second_stage(&mut self, plan: &Plan) {
        let replicas = std::mem::take(&mut self.unreplicated);
        if plan.fault == Fault::KillUnreplicated && !replicas.is_empty() {
            self.kill_primary();
            for (place, before) in replicas {
                self.all.thaw_replicas(&[place]);
                self.roles.set(place, before);
            }
        }
    }

    pub(crate) fn end(&mut self, plan: &Plan) {
        let sentinel = plan.draw as usize % self.all.sentinels().len();
        match plan.fault {
            Fault::KillSentinel => self.all.restart_sentinel(sentinel),
            Fault::FreezeSentinel => self.all.sentinel(sentinel).thaw(),
            _ => {
                self.second_stage(plan);
                if let Some(hit) = self.hit.take() {
                    self.comes_back(hit, plan);
                }
            }
        }
    }

    fn comes_back(&mut self, hit: usize, plan: &Plan) {
        let start = Instant::now();
        while self.roles.primary().is_none() && start.elapsed() < SUCCESSOR_WITHIN {
            self.look();
            std::thread::sleep(LOOK_EVERY / 2);
        }
        let has_successor = self.roles.primary().is_some();
        if plan.fault == Fault::FreezePrimary {
            self.all.server(hit).thaw();
        } else if has_successor && plan.draw & 4096 == 0 && self.all.primary() != hit {
            self.all.restart_as_replica(hit);
        } else {
            self.all.restart_empty(hit);
        }
        if has_successor {
            self.roles.set(hit, Role::Former);
            return;
        }
        eprintln!("chaos: the sentinels have found no successor in {SUCCESSOR_WITHIN:?}");
        self.roles.set(hit, Role::Primary);
        if plan.fault != Fault::FreezePrimary {
            // It has forgotten, as a successor would have that was told nothing.
            self.switched(now());
        }
    }

    /// No faults any more, and all are at one.
    pub(crate) fn settle(&mut self) {
        self.all.settle();
        std::thread::sleep(LOOK_EVERY);
        self.look();
    }

    /// Cuts what leads from a process to the primary: all of it, or its connections for wake-ups, or the others.
    pub(crate) fn cut(&self, pid: u32, fault: Fault) -> io::Result<()> {
        let Some(primary) = self.primary() else {
            return Ok(());
        };
        let list = primary.try_cli(&["CLIENT", "LIST"]);
        let list: String =
            from_redis_value(list.map_err(io::Error::other)?).map_err(io::Error::other)?;
        let label = format!(":{pid}");
        for line in list.lines() {
            let field = |name: &str| line.split(' ').find_map(|field| field.strip_prefix(name));
            if !field("name=").is_some_and(|name| name.ends_with(&label)) {
                continue;
            }
            let hears = field("sub=") != Some("0");
            let is_meant = match fault {
                Fault::CutSubscriptions => hears,
                Fault::CutCommands => !hears,
                _ => true,
            };
            if let (Some(id), true) = (field("id="), is_meant) {
                // It may have ended by itself.
                let _ = primary.try_cli(&["CLIENT", "KILL", "ID", id]);
            }
        }
        Ok(())
    }
}
