//! P4: how often does one name change hands among four processes of 32 tasks each, and do they share?
//! P5: and without the hand-off in memory, every release on the server?
//!
//! Unit: acquisitions per second of all processes together, as a multiple of the pairs per second of one task alone;
//! commands per acquisition; how far a process is from a quarter of the acquisitions (P4), Jain's index over
//! the tasks (P5); the longest wait of any task, the median over the rounds.

use std::time::Duration;

use leasehold::Client;
use tokio::runtime::Runtime;

use crate::{
    contend::{self, Outcome, alone, per_acquisition},
    float::{float, jain, largest, median, millis},
    stage::{self, Stage},
    table::{Aim, Table},
    worker::Worker,
};

const PROCESSES: usize = 4;
const TASKS: usize = 32;
const ROUNDS: usize = 7;
const TIME: Duration = Duration::from_secs(2);
/// From the order to the start, so that all begin together.
const LEAD: Duration = Duration::from_millis(50);

/// The figures of the rounds.
#[derive(Default)]
struct Rounds {
    gains: Vec<f64>,
    rates: Vec<f64>,
    references: Vec<f64>,
    commands: Vec<f64>,
    fair: Vec<f64>,
    off_share: Vec<f64>,
    longest: Vec<f64>,
}

pub(crate) fn with_handoff(stage: &Stage, table: &mut Table) {
    let rounds = measure(stage, true);
    let who = "one name, 4 processes × 32 tasks";
    speed(table, "P4", who, &rounds, 25.0, 0.2);
    table.row(
        "P4",
        format!("{who}: farthest process from its share"),
        (median(&rounds.off_share), "%"),
        Aim::AtMost(10.0),
        format!(
            "worst round {:.1} %; Jain over tasks {:.3}",
            largest(&rounds.off_share),
            median(&rounds.fair)
        ),
    );
    table.row(
        "P4",
        format!("{who}: longest wait"),
        (median(&rounds.longest), "ms"),
        Aim::AtMost(50.0),
        format!("worst round {:.1} ms", largest(&rounds.longest)),
    );
}

pub(crate) fn without_handoff(stage: &Stage, table: &mut Table) {
    let rounds = measure(stage, false);
    let who = "hand-off off, 4 processes × 32 tasks";
    speed(table, "P5", who, &rounds, 1.5, 4.5);
    table.row(
        "P5",
        format!("{who}: Jain over tasks"),
        (median(&rounds.fair), ""),
        Aim::AtLeast(0.99),
        format!(
            "farthest process {:.1} % from its share; longest wait {:.1} ms",
            median(&rounds.off_share),
            median(&rounds.longest)
        ),
    );
}

fn speed(
    table: &mut Table,
    aim: &'static str,
    who: &str,
    rounds: &Rounds,
    gain: f64,
    commands: f64,
) {
    table.row(
        aim,
        format!("{who}: acquisitions/s ÷ one task's"),
        (median(&rounds.gains), "×"),
        Aim::AtLeast(gain),
        format!(
            "{:.0}/s, one task {:.0}/s",
            median(&rounds.rates),
            median(&rounds.references)
        ),
    );
    table.row(
        aim,
        format!("{who}: commands per acquisition"),
        (median(&rounds.commands), ""),
        Aim::AtMost(commands),
        "one task: 2",
    );
}

fn measure(stage: &Stage, handoff: bool) -> Rounds {
    let runtime = stage::one_thread();
    let client = runtime.block_on(stage::connect(&stage.url()));
    let name = if handoff { "bench:p4" } else { "bench:p5" };
    let role = contend::role(&stage.url(), name, TASKS, handoff);
    let mut workers: Vec<Worker> = (0..PROCESSES).map(|_| Worker::start(&role)).collect();
    let mut rounds = Rounds::default();
    let time = stage.time(TIME);
    for round in 0..=stage.rounds(ROUNDS) {
        let one = reference(&runtime, &client, time / 4);
        let before = stage.commands();
        let processes = one_round(&mut workers, time);
        let sent = stage.commands() - before;
        // The first round warms up.
        if round > 0 {
            rounds.add(&processes, sent, time, one);
        }
    }
    rounds
}

fn reference(runtime: &Runtime, client: &Client, time: Duration) -> f64 {
    let client = client.clone();
    stage::on(runtime, async move { alone(&client, time).await })
}

fn one_round(workers: &mut [Worker], time: Duration) -> Vec<Outcome> {
    let lead = u64::try_from(LEAD.as_nanos()).expect("a moment");
    let order = format!("{} {}", stage::monotonic() + lead, time.as_nanos());
    for worker in workers.iter_mut() {
        worker.order(&order);
    }
    workers
        .iter_mut()
        .map(|worker| contend::outcome(&worker.answer()))
        .collect()
}

impl Rounds {
    fn add(&mut self, processes: &[Outcome], sent: u64, time: Duration, one: f64) {
        let sums: Vec<u64> = processes.iter().map(Outcome::sum).collect();
        let all: u64 = sums.iter().sum();
        let rate = stage::rate(all, time);
        let share = float(all) / float(sums.len() as u64);
        let off = sums
            .iter()
            .map(|&sum| (float(sum) / share - 1.0).abs() * 100.0);
        let tasks: Vec<u64> = processes.iter().flat_map(|p| p.counts.clone()).collect();
        let longest = processes
            .iter()
            .map(|p| p.longest)
            .max()
            .unwrap_or_default();
        self.gains.push(rate / one);
        self.rates.push(rate);
        self.references.push(one);
        self.commands.push(per_acquisition(sent, all));
        self.fair.push(jain(&tasks));
        self.off_share.push(off.fold(0.0, f64::max));
        self.longest.push(millis(longest));
    }
}
