//! P7: what does it cost to wait?
//!
//! Unit: commands per ten seconds, name and process, of a process whose tasks wait for names that another one
//! holds under a fixed lease of ten minutes, which sends nothing; and the CPU time of that process.

use std::{thread, time::Duration};

use crate::{
    float::float,
    stage::{self, Stage, cpu_time, percent},
    table::{Aim, Table},
    worker::{self, Worker},
};

const NAMES: u32 = 10;
const TASKS_PER_NAME: u32 = 3;
/// Three times the interval at which a waiter asks again, which is stretched by up to a fifth.
const TIME: Duration = Duration::from_secs(36);
/// Until all waiters stand in the queue.
const SETTLE: Duration = Duration::from_secs(1);

fn name(number: u32) -> String {
    format!("bench:p7:{number}")
}

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let runtime = stage::one_thread();
    let guards = runtime.block_on(async {
        let client = stage::connect(&stage.url()).await;
        let mut guards = Vec::new();
        for number in 0..NAMES {
            let mutex = client
                .mutex(name(number))
                .fixed_lease(Duration::from_secs(600));
            guards.push(mutex.lock().await.expect("a guard"));
        }
        guards
    });
    let waiter = Worker::start(&format!("idle {}", stage.url()));
    thread::sleep(SETTLE);
    // A short run must still see one interval.
    let time = stage.time(TIME).max(TIME / 3);
    let (sent, cpu) = (stage.commands(), cpu_time(waiter.pid()));
    thread::sleep(time);
    let (sent, cpu) = (
        stage.commands() - sent,
        cpu_time(waiter.pid()).saturating_sub(cpu),
    );
    let periods = time.as_secs_f64() / 10.0;
    table.row(
        "P7",
        "idle waiters: commands per 10 s, name and process",
        (float(sent) / periods / f64::from(NAMES), ""),
        // The holder's process and the waiters' write their labels, too.
        Aim::AtMost(1.0 + 2.0 / f64::from(NAMES)),
        format!(
            "{sent} commands in {time:?} for {NAMES} names with {TASKS_PER_NAME} waiters each; a watchdog's: 1, and 1 for the label of each process"
        ),
    );
    table.row(
        "P7",
        "idle waiters: CPU of their process",
        (percent(cpu, time), "% of a core"),
        // Less than the kernel's clock can tell from nothing.
        Aim::AtMost(0.1),
        format!("{cpu:?} in {time:?}"),
    );
    runtime.block_on(async {
        drop(waiter);
        for guard in guards {
            guard.release().await.expect("the server answers");
        }
    });
}

/// A process that waits for names which it never gets.
pub(crate) async fn work(url: &str, _: &[&str]) {
    let client = stage::connect(url).await;
    for number in 0..NAMES {
        for _ in 0..TASKS_PER_NAME {
            let mutex = client.mutex(name(number));
            tokio::spawn(async move { mutex.lock().await });
        }
    }
    worker::say("ready");
    // No order comes; this is the end of the parent.
    let _ = worker::heard().await;
}
