//! The faults, their targets, times and lengths: a function of the seed and of nothing else.

use std::time::Duration;

use fastrand::Rng;

use crate::{ops::LONGEST_LEASE, topology::Topology};

/// Something that can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    StopWorker,
    /// When a stopped process goes on, its commands get through somewhat before the wake-ups that came meanwhile: it asks anew, and
    /// then hears what answers an older ask (B3).
    WakeUpsAfterStop,
    KillWorker,
    StopServer,
    RestartServer,
    PauseClients,
    PauseWrites,
    DebugSleep,
    FlushScripts,
    KillNormal,
    KillPubsub,
    Cut,
    CutSubscriptions,
    CutCommands,
    StallRequests,
    StallReplies,
    StallBoth,
    StallSubscriptions,
    StallWakeUps,
    /// Nothing gets through, and commands go on somewhat before wake-ups do: the wake-ups heard last are older than the last
    /// answers (B3).
    WakeUpsLast,
    StallCommandReplies,
    StallCommandRequests,
    BlackHole,
    LoseRequests,
    LoseReplies,
    CutReply,
    Delay,
    Refuse,
    /// Of a quorum: the server has forgotten all.
    RestartEmpty,
    /// Planned: `SENTINEL FAILOVER`.
    Failover,
    /// It comes back empty, as a replica, or saying that it is a primary.
    KillPrimary,
    /// The primary's last writes have reached no replica.
    KillUnreplicated,
    /// For long enough that another takes its place.
    FreezePrimary,
    KillSentinel,
    FreezeSentinel,
    /// The primary of a pair, for too short a time to be replaced, or for a longer one.
    StandStill,
    FreezeReplica,
    /// By `SETSLOT` and `MIGRATE`, and open meanwhile.
    MoveSlot,
    /// As it is on Valkey 9.
    MoveAtomically,
}

/// The target of a fault. Each target has at most one fault at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// Of a Sentinel group there is one: its primary of the moment.
    Server(usize),
    Process(usize),
    Network(usize),
    /// A Sentinel group: the roles in it.
    Group,
    /// A pair of a cluster's nodes: the roles in it.
    Pair(usize),
    /// The ways from all workers to both nodes of a pair.
    Way(usize),
    /// Which pair has which slot.
    Slots,
}

/// How long a fault lasts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lasts {
    /// It has happened as soon as it is done.
    No,
    /// A part of a lease, about one lease, or more.
    Lease,
    /// More than one lease.
    Long,
    /// At most half a lease, since it hits all processes.
    Shortly,
    /// As long as sentinels take to have a new primary, however short leases are.
    Failover,
    /// Less than a cluster takes to have a new primary, as long, or longer.
    Standstill,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Server,
    Process,
    Network,
    Group,
    Slots,
}

/// Sentinels refuse another failover so soon after the last.
const GROUP_RESTS: Duration = Duration::from_millis(3_500);

/// By then one that comes back has heard who has its place.
const PAIR_RESTS: Duration = Duration::from_secs(2);

/// An uptime is told in whole seconds.
const UPTIME: Duration = Duration::from_secs(2);

/// For so long a server that has restarted has no vote.
pub(crate) fn quarantine(lease: Duration) -> Duration {
    lease * LONGEST_LEASE + UPTIME
}

type Row = (Fault, &'static str, u32, At, Lasts);

/// A row per fault: its name, how often it is drawn compared to others, where, and for how long.
#[rustfmt::skip]
const TABLE: &[Row] = {
    use {At::{Group, Network, Process, Server, Slots}, Fault as F, Lasts::{Failover, Lease, Long, No, Shortly, Standstill}};
    &[
        (F::StopWorker, "stop-worker", 24, Process, Lease),
        (F::WakeUpsAfterStop, "wake-ups-after-stop", 24, Process, Long),
        (F::KillWorker, "kill-worker", 4, Process, Shortly),
        (F::StopServer, "stop-server", 3, Server, Shortly),
        (F::RestartServer, "restart-server", 1, Server, Shortly),
        (F::PauseClients, "pause-clients", 2, Server, Shortly),
        (F::PauseWrites, "pause-writes", 2, Server, Shortly),
        (F::DebugSleep, "debug-sleep", 2, Server, Shortly),
        (F::FlushScripts, "flush-scripts", 3, Server, No),
        (F::KillNormal, "kill-normal", 3, Server, No),
        (F::KillPubsub, "kill-pubsub", 4, Server, No),
        (F::Cut, "cut", 3, Network, No),
        (F::CutSubscriptions, "cut-subscriptions", 3, Network, No),
        (F::CutCommands, "cut-commands", 3, Network, No),
        (F::StallRequests, "stall-requests", 3, Network, Lease),
        (F::StallReplies, "stall-replies", 3, Network, Lease),
        (F::StallBoth, "stall-both", 2, Network, Lease),
        (F::StallSubscriptions, "stall-subscriptions", 4, Network, Lease),
        (F::StallWakeUps, "stall-wake-ups", 10, Network, Lease),
        (F::WakeUpsLast, "wake-ups-last", 24, Network, Long),
        (F::StallCommandReplies, "stall-command-replies", 4, Network, Lease),
        (F::StallCommandRequests, "stall-command-requests", 4, Network, Lease),
        (F::BlackHole, "black-hole", 3, Network, Lease),
        (F::LoseRequests, "lose-requests", 3, Network, Shortly),
        (F::LoseReplies, "lose-replies", 4, Network, Shortly),
        (F::CutReply, "cut-reply", 2, Network, Shortly),
        (F::Delay, "delay", 3, Network, Lease),
        (F::Refuse, "refuse", 2, Network, Shortly),
        (F::RestartEmpty, "restart-empty", 1, Server, Shortly),
        (F::Failover, "failover", 3, Group, Failover),
        (F::KillPrimary, "kill-primary", 2, Group, Failover),
        (F::KillUnreplicated, "kill-unreplicated", 2, Group, Failover),
        (F::FreezePrimary, "freeze-primary", 2, Group, Failover),
        (F::KillSentinel, "kill-sentinel", 1, Group, Failover),
        (F::FreezeSentinel, "freeze-sentinel", 1, Group, Failover),
        (F::StandStill, "stand-still", 3, Group, Standstill),
        (F::FreezeReplica, "freeze-replica", 1, Group, Standstill),
        (F::MoveSlot, "move-slot", 12, Slots, Shortly),
        (F::MoveAtomically, "move-atomically", 6, Slots, Shortly),
    ]
};

impl Fault {
    pub(crate) fn all() -> Vec<Fault> {
        TABLE.iter().map(|row| row.0).collect()
    }

    /// The faults that a proxy makes.
    pub(crate) fn of_networks() -> Vec<Fault> {
        let rows = TABLE.iter().filter(|row| row.3 == At::Network);
        rows.map(|row| row.0).collect()
    }

    pub(crate) fn named(name: &str) -> Option<Fault> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    pub(crate) fn name(self) -> &'static str {
        self.row().1
    }

    /// Whether it can happen there.
    pub(crate) fn suits(self, topology: Topology) -> bool {
        use Fault as F;
        match (topology, self.row().3) {
            (Topology::Sentinel, At::Group) => !matches!(self, F::StandStill | F::FreezeReplica),
            (Topology::Cluster, At::Group) => {
                !matches!(self, F::FreezePrimary | F::KillSentinel | F::FreezeSentinel)
            }
            // No worker has a network of its own there, whose wake-ups could come late.
            (Topology::Cluster, At::Process) => self != F::WakeUpsAfterStop,
            (_, At::Process) | (Topology::Cluster, At::Network | At::Slots) => true,
            // Sentinels give all clients one address, so no proxy stands before the primary.
            (Topology::Sentinel, At::Network) => {
                matches!(self, F::Cut | F::CutSubscriptions | F::CutCommands)
            }
            // A primary that dies or stands still has a successor: these are the group's, or the pair's.
            (Topology::Sentinel | Topology::Cluster, At::Server) => {
                !matches!(self, F::StopServer | F::RestartServer | F::RestartEmpty)
            }
            (_, At::Group | At::Slots) => false,
            // A single server that forgets promises nothing.
            (Topology::Single, _) => self != F::RestartEmpty,
            (Topology::Quorum3 | Topology::Quorum5, _) => true,
        }
    }

    fn row(self) -> &'static Row {
        TABLE
            .iter()
            .find(|row| row.0 == self)
            .expect("it has a row")
    }
}

/// A fault that is to happen.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// When, from the start.
    pub(crate) at: Duration,
    pub(crate) fault: Fault,
    pub(crate) target: Target,
    pub(crate) lasts: Duration,
    /// More chance, for the other parameters of the fault.
    pub(crate) draw: u32,
}

impl Plan {
    /// How long before its end a fault of two stages is in its second.
    pub(crate) fn second_stage(&self) -> Duration {
        match self.fault {
            Fault::WakeUpsAfterStop => self.lasts * (1 + self.draw % 10) / 100,
            Fault::WakeUpsLast => self.lasts * (self.draw % 32) / 128,
            // Unreplicated for 300 ms or longer, as more time goes by until the replicas are frozen.
            Fault::KillUnreplicated => self.lasts.saturating_sub(Duration::from_millis(300)),
            _ => Duration::ZERO,
        }
    }

    /// On the ways to which of the servers a fault of a network happens: most often to one, sometimes to a minority, rarely to all.
    pub(crate) fn ways_to(&self, servers: usize) -> impl Iterator<Item = usize> {
        let count = match self.draw >> 12 & 7 {
            0 => servers,
            1 | 2 => servers / 2,
            _ => 1,
        };
        let first = (self.draw >> 16) as usize;
        (first..first + count.max(1)).map(move |at| at % servers)
    }
}

/// All faults in order, without end.
pub(crate) struct Schedule {
    rng: Rng,
    faults: Vec<Fault>,
    processes: usize,
    topology: Topology,
    servers: usize,
    lease: Duration,
    now: Duration,
    /// Until when a target has a fault.
    busy: Vec<(Target, Duration)>,
}

impl Schedule {
    pub(crate) fn new(seed: u64, faults: Vec<Fault>, processes: usize, lease: Duration) -> Self {
        Schedule {
            rng: Rng::with_seed(seed),
            faults,
            processes,
            topology: Topology::Single,
            servers: 1,
            lease,
            now: lease,
            busy: Vec::new(),
        }
    }

    /// Of the faults that happen there.
    pub(crate) fn on(mut self, topology: Topology) -> Self {
        self.topology = topology;
        self.servers = topology.servers();
        self.faults.retain(|fault| fault.suits(topology));
        self
    }

    /// Each server has as many as one would have alone.
    fn weight(&self, fault: Fault) -> u32 {
        let &(_, _, weight, at, _) = fault.row();
        match at {
            At::Server | At::Group => weight * u32::try_from(self.servers).unwrap_or(1),
            At::Process | At::Network | At::Slots => weight,
        }
    }

    fn draw_fault(&mut self) -> Fault {
        let total: u32 = self.faults.iter().map(|fault| self.weight(*fault)).sum();
        let mut left = self.rng.u32(0..total);
        for &fault in &self.faults {
            let weight = self.weight(fault);
            if left < weight {
                return fault;
            }
            left -= weight;
        }
        unreachable!("the weights add up to the total")
    }

    fn draw_target(&mut self, at: At) -> Target {
        let one = self.rng.usize(0..self.processes);
        match at {
            At::Server if self.servers > 1 => Target::Server(self.rng.usize(0..self.servers)),
            At::Server => Target::Server(0),
            At::Process => Target::Process(one),
            At::Network if self.topology == Topology::Cluster => {
                Target::Way(self.rng.usize(0..self.servers))
            }
            At::Network => Target::Network(one),
            At::Group if self.topology == Topology::Cluster => {
                Target::Pair(self.rng.usize(0..self.servers))
            }
            At::Group => Target::Group,
            At::Slots => Target::Slots,
        }
    }

    fn draw_duration(&mut self, lasts: Lasts) -> Duration {
        let part = self.rng.f64();
        match lasts {
            Lasts::No => Duration::ZERO,
            Lasts::Shortly => self.lease.mul_f64(0.05 + 0.45 * part),
            Lasts::Failover => Duration::from_secs_f64(3.0 + 1.5 * part),
            Lasts::Standstill => Duration::from_secs_f64(0.2 + 4.0 * part),
            Lasts::Long => self.lease.mul_f64(1.2 + 1.3 * part),
            Lasts::Lease => match self.rng.u32(0..10) {
                0..=2 => self.lease.mul_f64(0.05 + 0.85 * part),
                3..=7 => self.lease.mul_f64(0.9 + 0.8 * part),
                _ => self.lease.mul_f64(1.7 + 1.5 * part),
            },
        }
    }

    /// A majority is left, most of the time.
    fn spares(&mut self, target: Target) -> bool {
        let is_server = |(busy, _): &&(Target, Duration)| matches!(busy, Target::Server(_));
        let away = self.busy.iter().filter(is_server).count();
        let is_minority = away < self.servers.saturating_sub(1) / 2;
        self.servers == 1
            || !matches!(target, Target::Server(_))
            || is_minority
            || self.rng.u32(0..8) == 0
    }

    /// How long a target has no other fault after this one.
    fn rest(&self, fault: Fault, target: Target) -> Duration {
        match (fault, target) {
            (_, Target::Group) => GROUP_RESTS,
            (_, Target::Pair(_)) => PAIR_RESTS,
            (Fault::RestartServer | Fault::RestartEmpty, _) if self.topology.is_quorum() => {
                quarantine(self.lease)
            }
            // So that it is over when the next begins.
            _ => self.lease / 10,
        }
    }
}

impl Iterator for Schedule {
    type Item = Plan;

    fn next(&mut self) -> Option<Plan> {
        if self.faults.is_empty() {
            return None;
        }
        loop {
            // Close together or far apart; a breath now and then lets all tasks queue.
            let wild = [0.3, 0.65, 1.0, 1.35][self.rng.usize(0..4)];
            let breath = if self.rng.u32(0..12) == 0 { 1.0 } else { 0.0 };
            let gap = self.lease.mul_f64(0.4 * wild * self.rng.f64() + breath);
            self.now += gap + Duration::from_millis(5);
            let now = self.now;
            self.busy.retain(|(_, until)| *until > now);
            let fault = self.draw_fault();
            let &(_, _, _, at, lasts) = fault.row();
            let target = self.draw_target(at);
            let lasts = self.draw_duration(lasts);
            let draw = self.rng.u32(..);
            if self.busy.iter().any(|(busy, _)| *busy == target) || !self.spares(target) {
                continue;
            }
            let rest = self.rest(fault, target);
            self.busy.push((target, now + lasts + rest));
            return Some(Plan {
                at: now,
                fault,
                target,
                lasts,
                draw,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Topology; 4] = [
        Topology::Single,
        Topology::Sentinel,
        Topology::Cluster,
        Topology::Quorum5,
    ];

    fn plans_on(topology: Topology, seed: u64) -> Vec<Plan> {
        let lease = Duration::from_secs(1);
        let schedule = Schedule::new(seed, Fault::all(), 5, lease).on(topology);
        schedule.take(2_000).collect()
    }

    fn plans(seed: u64) -> Vec<Plan> {
        plans_on(Topology::Single, seed)
    }

    #[test]
    fn the_seed_alone_decides() {
        assert_eq!(plans(7), plans(7));
        assert_ne!(plans(7), plans(8));
    }

    #[test]
    fn every_fault_has_a_row_a_name_and_its_turn() {
        for fault in Fault::all() {
            assert_eq!(Fault::named(fault.name()), Some(fault));
            assert!(ALL.into_iter().any(|topology| fault.suits(topology)));
        }
        for topology in ALL {
            let plans = plans_on(topology, 1);
            for fault in Fault::all() {
                let comes = plans.iter().any(|plan| plan.fault == fault);
                assert_eq!(comes, fault.suits(topology), "{fault:?} on {topology}");
            }
        }
    }

    #[test]
    fn a_majority_of_servers_is_left_most_of_the_time() {
        let plans = plans_on(Topology::Quorum5, 4);
        let is_at_server = |plan: &&Plan| matches!(plan.target, Target::Server(_));
        let faults: Vec<&Plan> = plans.iter().filter(is_at_server).collect();
        let too_many = faults.iter().filter(|plan| {
            let begins = |other: &&&Plan| other.at <= plan.at && plan.at < other.at + other.lasts;
            faults.iter().filter(begins).count() > 2
        });
        assert!(too_many.count() * 20 < faults.len());
        let all = |plan: &&Plan| plan.ways_to(5).count() == 5;
        assert!(plans.iter().filter(all).count() * 4 < plans.len());
        assert!(plans.iter().all(|plan| plan.ways_to(1).eq([0])));
    }

    #[test]
    fn a_target_has_one_fault_at_a_time() {
        let plans = ALL.map(|topology| plans_on(topology, 3));
        for (plans, (i, plan)) in plans
            .iter()
            .flat_map(|plans| plans.iter().enumerate().map(move |each| (plans, each)))
        {
            let later = plans[i + 1..].iter();
            let mut meeting = later.take_while(|other| other.at < plan.at + plan.lasts);
            assert!(meeting.all(|other| other.target != plan.target), "{plan:?}");
        }
    }
}
