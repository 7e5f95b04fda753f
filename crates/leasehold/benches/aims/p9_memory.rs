//! P9: what does a held name weigh?
//!
//! Unit: bytes per held name, on the client (growth of its anonymous resident memory over 100,000 guards, the guards
//! and the allocator's waste included) and on the server (growth of `used_memory`); tasks and timers per guard;
//! entries per handle that holds nothing.

use std::{thread, time::Duration};

use crate::{
    float::float,
    stage::Stage,
    table::{Aim, Table},
    worker::Worker,
};

const NAMES: u64 = 100_000;

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let mut holder = Worker::start(&format!("hold {} bench:p9", stage.url()));
    // The warm-up of the holder is released in the background.
    thread::sleep(Duration::from_millis(500));
    holder.order(&format!("handles {NAMES}"));
    let entries: u64 = holder.answer().parse().expect("a number");
    let before = used_memory(stage);
    holder.order(&format!("take {NAMES}"));
    let client: u64 = holder.answer().parse().expect("a number of bytes");
    let server = used_memory(stage).saturating_sub(before);
    holder.order("tasks");
    let tasks: u64 = holder.answer().parse().expect("a number");
    table.row(
        "P9",
        "client memory per held name",
        (float(client) / float(NAMES), "B"),
        Aim::AtMost(512.0),
        format!("{:.1} MB for {NAMES} guards", float(client) / 1e6),
    );
    table.row(
        "P9",
        "server memory per held name",
        (float(server) / float(NAMES), "B"),
        Aim::AtMost(200.0),
        format!("{:.1} MB of used_memory", float(server) / 1e6),
    );
    table.row(
        "P9",
        "tasks and timers for all guards together",
        (float(tasks), ""),
        Aim::AtMost(0.0),
        format!("{NAMES} guards held; one watchdog for the client"),
    );
    table.row(
        "P9",
        "entries for handles that hold nothing",
        (float(entries), ""),
        Aim::AtMost(0.0),
        format!("{NAMES} idle handles"),
    );
}

fn used_memory(stage: &Stage) -> u64 {
    let info = stage.server.cli(&["INFO", "memory"]);
    let info: String = redis::from_redis_value(info).expect("text");
    let used = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"))
        .expect("INFO memory tells it");
    used.parse().expect("a number of bytes")
}
