//! P3: how often does one name change hands within one process?
//!
//! Unit: acquisitions per second of 8, 32 and 128 tasks, as a multiple of the pairs per second of one task alone;
//! commands per acquisition; Jain's index over the tasks; the longest wait of any task, the median over the rounds.

use std::time::Duration;

use crate::{
    contend::{alone, contend, per_acquisition},
    float::{jain, largest, median, millis},
    stage::{self, Stage},
    table::{Aim, Table},
};

const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_secs(2);

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    for tasks in [8, 32, 128] {
        one_size(stage, table, tasks);
    }
}

fn one_size(stage: &Stage, table: &mut Table, tasks: usize) {
    let runtime = stage::one_thread();
    let client = runtime.block_on(stage::connect(&stage.url()));
    let mutex = client.mutex(format!("bench:p3:{tasks}"));
    let time = stage.time(TIME);
    let (mut gains, mut rates, mut references) = (Vec::new(), Vec::new(), Vec::new());
    let (mut commands, mut fair, mut longest) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=stage.rounds(ROUNDS) {
        let (ask, client) = (mutex.clone(), client.clone());
        let one = stage::on(&runtime, async move { alone(&client, time / 4).await });
        let before = stage.commands();
        let outcome = stage::on(&runtime, async move { contend(&ask, tasks, 0, time).await });
        let sent = stage.commands() - before;
        // The first round warms up.
        if round > 0 {
            let rate = stage::rate(outcome.sum(), time);
            gains.push(rate / one);
            rates.push(rate);
            references.push(one);
            commands.push(per_acquisition(sent, outcome.sum()));
            fair.push(jain(&outcome.counts));
            longest.push(millis(outcome.longest));
        }
    }
    let who = format!("one name, {tasks} tasks, 1 process");
    table.row(
        "P3",
        format!("{who}: acquisitions/s ÷ one task's"),
        (median(&gains), "×"),
        Aim::AtLeast(50.0),
        format!(
            "{:.0}/s, one task {:.0}/s",
            median(&rates),
            median(&references)
        ),
    );
    table.row(
        "P3",
        format!("{who}: commands per acquisition"),
        (median(&commands), ""),
        Aim::AtMost(0.05),
        "one task: 2",
    );
    table.row(
        "P3",
        format!("{who}: Jain over tasks"),
        (median(&fair), ""),
        Aim::AtLeast(0.99),
        format!(
            "all the same: 1, one has all: {:.3}",
            1.0 / crate::float::float(tasks as u64)
        ),
    );
    table.row(
        "P3",
        format!("{who}: longest wait"),
        (median(&longest), "ms"),
        Aim::AtMost(20.0),
        format!("worst round {:.1} ms", largest(&longest)),
    );
}
