//! Many tasks that want one name, with nothing to do while they hold it: the workload of P3, P4 and P5.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold::{Client, Handoff, Mutex};
use tokio::{sync::Barrier, task::JoinSet};

use crate::{float::float, stage, worker};

/// The figures of one round.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Acquisitions within the round, by task.
    pub(crate) counts: Vec<u64>,
    pub(crate) longest: Duration,
}

impl Outcome {
    pub(crate) fn sum(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Pairs per second that one task makes when no other task wants a name: the reference for them all.
pub(crate) async fn alone(client: &Client, time: Duration) -> f64 {
    let mutex = client.mutex("bench:alone");
    let began = Instant::now();
    let mut pairs = 0;
    while began.elapsed() < time {
        pair(&mutex).await;
        pairs += 1;
    }
    stage::rate(pairs, began.elapsed())
}

pub(crate) async fn pair(mutex: &Mutex) {
    let guard = mutex.lock().await.expect("a guard");
    guard.release().await.expect("the server answers");
}

/// So many tasks take the name and give it back, over and over, from `start` on ([`stage::monotonic`]).
pub(crate) async fn contend(mutex: &Mutex, tasks: usize, start: u64, time: Duration) -> Outcome {
    let barrier = Arc::new(Barrier::new(tasks));
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let (mutex, barrier) = (mutex.clone(), Arc::clone(&barrier));
        running.spawn(async move {
            barrier.wait().await;
            let early = Duration::from_nanos(start.saturating_sub(stage::monotonic()));
            tokio::time::sleep(early).await;
            let end = Instant::now() + time;
            let (mut count, mut longest) = (0, Duration::ZERO);
            loop {
                let asked = Instant::now();
                let guard = mutex.lock().await.expect("a guard");
                let now = Instant::now();
                longest = longest.max(now - asked);
                guard.release().await.expect("the server answers");
                if now > end {
                    return (count, longest);
                }
                count += 1;
            }
        });
    }
    let mut outcome = Outcome::default();
    while let Some(task) = running.join_next().await {
        let (count, longest) = task.expect("the task does not panic");
        outcome.counts.push(count);
        outcome.longest = outcome.longest.max(longest);
    }
    outcome
}

/// The words of [`Worker::start`](worker::Worker::start) for a process that contends.
pub(crate) fn role(url: &str, name: &str, tasks: usize, handoff: bool) -> String {
    format!("contend {url} {name} {tasks} {handoff}")
}

/// A process that contends. Order: start and length in nanoseconds. Answer: the longest wait in nanoseconds, then
/// the counts.
pub(crate) async fn work(url: &str, words: &[&str]) {
    let [name, tasks, handoff] = words else {
        panic!("contend: name, tasks, hand-off");
    };
    let tasks = tasks.parse().expect("a number of tasks");
    let client = stage::connect(url).await;
    let mut mutex = client.mutex(name);
    if *handoff == "false" {
        mutex = mutex.handoff(Handoff::off());
    }
    worker::say("ready");
    while let Some(order) = worker::heard().await {
        let (start, time) = order.split_once(' ').expect("start and length");
        let time = Duration::from_nanos(time.parse().expect("a length"));
        let start = start.parse().expect("a start");
        let outcome = contend(&mutex, tasks, start, time).await;
        let mut answer = outcome.longest.as_nanos().to_string();
        for count in outcome.counts {
            answer.push(' ');
            answer.push_str(&count.to_string());
        }
        worker::say(&answer);
    }
}

/// The answer of a process that contended.
pub(crate) fn outcome(answer: &str) -> Outcome {
    let mut numbers = answer
        .split(' ')
        .map(|number| number.parse().expect("a number"));
    Outcome {
        longest: Duration::from_nanos(numbers.next().expect("the longest wait")),
        counts: numbers.collect(),
    }
}

/// Commands per acquisition.
pub(crate) fn per_acquisition(commands: u64, acquisitions: u64) -> f64 {
    float(commands) / float(acquisitions)
}
