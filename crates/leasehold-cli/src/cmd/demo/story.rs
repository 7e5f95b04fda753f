//! The acts: the processes, their lock, and their work.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How many tickets there are to sell in the first act.
pub(super) const STOCK: i64 = 20;

/// Short, so that renewals and the end of a lease can be watched.
pub(super) const LEASE: Duration = Duration::from_secs(1);

/// A scene around a lock.
#[derive(Debug)]
pub(super) struct Act {
    pub(super) number: usize,
    pub(super) title: &'static str,
    pub(super) says: [&'static str; 2],
    /// Said when all is sold.
    pub(super) sold_out: &'static str,
    /// The last part of the lock's name.
    pub(super) lock: &'static str,
    pub(super) kind: Kind,
    /// The workers, by process.
    pub(super) cast: Vec<Vec<Part>>,
    /// Kill the first process this long after it got the lock.
    pub(super) kill_after: Option<Duration>,
    /// How long it takes, roughly: the length of the time axis.
    pub(super) about: Duration,
}

/// The kind of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    Mutex,
    /// [`Role::Reader`]s read, all others write.
    RwLock,
    /// So many permits; each worker takes one.
    Semaphore(u32),
}

/// A worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) role: Role,
}

/// How a worker uses the lock.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Role {
    /// Sells tickets until there are none.
    Buyer,
    /// Comes this late, then holds it this long, once.
    Holder { after: Duration, hold: Duration },
    /// The same, beside others that read.
    Reader { after: Duration, hold: Duration },
}

/// A worker's place: the process, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) host: usize,
    pub(super) part: usize,
}

impl Act {
    /// All workers, in the order they are drawn.
    pub(super) fn places(&self) -> impl Iterator<Item = (Place, &Part)> {
        self.cast.iter().enumerate().flat_map(|(host, parts)| {
            let place = move |(part, worker)| (Place { host, part }, worker);
            parts.iter().enumerate().map(place)
        })
    }
}

pub(super) fn acts() -> [Act; 5] {
    [
        Act {
            number: 1,
            title: "Six people buy 20 tickets",
            says: [
                "Each sale reads the stock, takes its time, and writes it back less one.",
                "Nothing but the lock keeps two sales from reading the same number.",
            ],
            sold_out: "Sold out: each buyer looks once more, and finds no ticket left.",
            lock: "tickets",
            kind: Kind::Mutex,
            cast: [["ada", "ben"], ["cyd", "dan"], ["eve", "fay"]]
                .iter()
                .map(|pair| pair.iter().map(|name| part(name, Role::Buyer)).collect())
                .collect(),
            kill_after: None,
            about: Duration::from_millis(3_500),
        },
        Act {
            number: 2,
            title: "A slow job on a short lease",
            says: [
                "The job takes 3.5 s, its lease lasts 1 s. The watchdog renews it three times",
                "a second while the job is at work; the others stay out until it is released.",
            ],
            sold_out: "",
            lock: "report",
            kind: Kind::Mutex,
            cast: vec![
                vec![holder("slow", 0, 3_500)],
                vec![holder("gus", 300, 400)],
                vec![holder("hal", 600, 400)],
            ],
            kill_after: None,
            about: Duration::from_millis(4_500),
        },
        Act {
            number: 3,
            title: "A crash while holding",
            says: [
                "The holder is killed: it releases nothing and renews no more. The name stays",
                "taken until its lease runs out (░). Then the first waiter to ask gets it.",
            ],
            sold_out: "",
            lock: "payout",
            kind: Kind::Mutex,
            cast: vec![
                vec![holder("doomed", 0, 60_000)],
                vec![holder("ian", 200, 500)],
                vec![holder("joy", 400, 400)],
            ],
            kill_after: Some(Duration::from_millis(1_150)),
            about: Duration::from_millis(3_200),
        },
        Act {
            number: 4,
            title: "Readers and a writer",
            says: [
                "Readers share the lock; the writer has it alone. It waits for the readers",
                "inside, and readers that come later wait for it: neither side starves.",
            ],
            sold_out: "",
            lock: "catalogue",
            kind: Kind::RwLock,
            cast: vec![
                vec![reader("ann", 0, 500), reader("cas", 450, 500)],
                vec![reader("bob", 100, 550), reader("dot", 520, 430)],
                vec![holder("edit", 250, 400)],
            ],
            kill_after: None,
            about: Duration::from_millis(1_600),
        },
        Act {
            number: 5,
            title: "Two permits for five jobs",
            says: [
                "A semaphore lets two in at a time. Each permit is a lease of its own: it is",
                "renewed like a lock, and is free again after the crash of its holder.",
            ],
            sold_out: "",
            lock: "encoders",
            kind: Kind::Semaphore(2),
            cast: vec![
                vec![holder("jo", 0, 500), holder("kim", 60, 400)],
                vec![holder("lee", 30, 600), holder("max", 90, 400)],
                vec![holder("nat", 120, 400)],
            ],
            kill_after: None,
            about: Duration::from_millis(1_600),
        },
    ]
}

fn part(name: &str, role: Role) -> Part {
    Part {
        name: name.to_owned(),
        role,
    }
}

fn holder(name: &str, after_ms: u64, hold_ms: u64) -> Part {
    let [after, hold] = [after_ms, hold_ms].map(Duration::from_millis);
    part(name, Role::Holder { after, hold })
}

fn reader(name: &str, after_ms: u64, hold_ms: u64) -> Part {
    let [after, hold] = [after_ms, hold_ms].map(Duration::from_millis);
    part(name, Role::Reader { after, hold })
}
