//! The faults, their targets, times and lengths: a function of the seed and of nothing else.

use std::time::Duration;

use fastrand::Rng;

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
}

/// The target of a fault. Each target has at most one fault at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    Server,
    Process(usize),
    Network(usize),
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
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Server,
    Process,
    Network,
}

type Row = (Fault, &'static str, u32, At, Lasts);

/// One row per fault: its name, how often it is drawn compared to others, where, and for how long.
#[rustfmt::skip]
const TABLE: &[Row] = {
    use {At::{Network, Process, Server}, Fault as F, Lasts::{Lease, Long, No, Shortly}};
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
    ]
};

impl Fault {
    pub(crate) fn all() -> Vec<Fault> {
        TABLE.iter().map(|row| row.0).collect()
    }

    /// Those that a proxy does.
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

    fn row(self) -> &'static Row {
        TABLE
            .iter()
            .find(|row| row.0 == self)
            .expect("it has a row")
    }
}

/// One fault that is to happen.
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
            _ => Duration::ZERO,
        }
    }
}

/// All faults in order, without end.
pub(crate) struct Schedule {
    rng: Rng,
    faults: Vec<Fault>,
    processes: usize,
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
            lease,
            now: lease,
            busy: Vec::new(),
        }
    }

    fn draw_fault(&mut self) -> Fault {
        let total: u32 = self.faults.iter().map(|fault| fault.row().2).sum();
        let mut left = self.rng.u32(0..total);
        for &fault in &self.faults {
            let weight = fault.row().2;
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
            At::Server => Target::Server,
            At::Process => Target::Process(one),
            At::Network => Target::Network(one),
        }
    }

    fn draw_duration(&mut self, lasts: Lasts) -> Duration {
        let part = self.rng.f64();
        match lasts {
            Lasts::No => Duration::ZERO,
            Lasts::Shortly => self.lease.mul_f64(0.05 + 0.45 * part),
            Lasts::Long => self.lease.mul_f64(1.2 + 1.3 * part),
            Lasts::Lease => match self.rng.u32(0..10) {
                0..=2 => self.lease.mul_f64(0.05 + 0.85 * part),
                3..=7 => self.lease.mul_f64(0.9 + 0.8 * part),
                _ => self.lease.mul_f64(1.7 + 1.5 * part),
            },
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
            if self.busy.iter().any(|(busy, _)| *busy == target) {
                continue;
            }
            // A little longer than it lasts, so that it is over when the next begins.
            self.busy.push((target, now + lasts + self.lease / 10));
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

    fn plans(seed: u64) -> Vec<Plan> {
        let lease = Duration::from_secs(1);
        Schedule::new(seed, Fault::all(), 5, lease)
            .take(2_000)
            .collect()
    }

    #[test]
    fn the_seed_alone_decides() {
        assert_eq!(plans(7), plans(7));
        assert_ne!(plans(7), plans(8));
    }

    #[test]
    fn every_fault_has_a_row_a_name_and_its_turn() {
        let plans = plans(1);
        for fault in Fault::all() {
            assert_eq!(Fault::named(fault.name()), Some(fault));
            assert!(plans.iter().any(|plan| plan.fault == fault), "{fault:?}");
        }
    }

    #[test]
    fn a_target_has_one_fault_at_a_time() {
        let plans = plans(3);
        for (i, plan) in plans.iter().enumerate() {
            let later = plans[i + 1..].iter();
            let mut meeting = later.take_while(|other| other.at < plan.at + plan.lasts);
            assert!(meeting.all(|other| other.target != plan.target), "{plan:?}");
        }
    }
}
