//! P17: what does a lock cost the server, where many wait?
//!
//! Unit: the server's time (`INFO commandstats`) for all calls of a cycle of a mutex that 2, 64 or 300 clients wait for: a release that gives the
//! name to the first in the queue, the next task of its client, which takes a place, a waiter that asks again, and a client that takes a place and
//! leaves. The scripts are ours, sent by the redis crate; the clients are inboxes of one connection.

use redis::{Commands as _, Connection, Value};

use crate::{
    float::{float, median},
    raw::{ACQUIRE, RELEASE},
    stage::Stage,
    table::{Aim, Table},
};

const ROUNDS: usize = 7;
/// Cycles a round.
const MANY: usize = 300;
const NAME: &str = "bench:p17";
const LEASE_MS: i64 = 30_000;

/// Lease `lease` of a client.
fn owner(client: usize, lease: usize) -> String {
    format!(
        "00000000-0000-4000-8000-{client:012}:{}",
        57_000_000_000_000 + lease
    )
}

/// The time that the server has spent on scripts, in µs.
fn spent(connection: &mut Connection) -> u64 {
    let info: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(connection)
        .expect("an answer");
    let of_evalsha = info.lines().find(|line| line.contains("_evalsha:"));
    let figure = of_evalsha.and_then(|line| line.split(",usec=").nth(1));
    let figure = figure.and_then(|rest| rest.split(',').next()?.parse().ok());
    figure.expect("a figure")
}

/// The scripts on one connection.
struct Scripts {
    connection: Connection,
    acquire: String,
    release: String,
    queue: String,
}

impl Scripts {
    fn run(&mut self, hash: &str, args: &[&str]) -> Value {
        let mut call = redis::cmd("EVALSHA");
        call.arg(hash).arg(2).arg(NAME).arg(&self.queue).arg(args);
        call.query(&mut self.connection).expect("an answer")
    }

    fn ask(&mut self, owner: &str, ask: usize) -> Value {
        let (hash, lease_ms) = (self.acquire.clone(), LEASE_MS.to_string());
        self.run(&hash, &[owner, &lease_ms, &ask.to_string(), &lease_ms])
    }

    /// Gives the name back, or a place.
    fn leave(&mut self, owner: &str) -> Value {
        let channel = format!("redisson_lock__channel:{{{NAME}}}");
        let hash = self.release.clone();
        self.run(&hash, &[owner, &channel, "0", "1"])
    }
}

/// The server's µs for one cycle with so many in the queue.
pub(crate) fn round(stage: &Stage, waiting: usize) -> f64 {
    let client = redis::Client::open(stage.url()).expect("the kit's URL");
    let connect = || client.get_connection().expect("our own server takes us");
    let (mut connection, mut inboxes) = (connect(), connect());
    let mut inboxes = inboxes.as_pubsub();
    let own = format!("leasehold:{{{NAME}}}:");
    for client in 0..=waiting {
        let owner = owner(client, 0);
        let (client, _) = owner.split_once(':').expect("it has a lease id");
        inboxes
            .subscribe(format!("{own}grant:{client}"))
            .expect("room");
    }
    let (queue, places) = (format!("{own}queue"), format!("{own}places"));
    let () = connection.del(&[NAME, &queue, &places]).expect("an answer");
    let mut load = |script| -> String {
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(script).to_owned();
        load.query(&mut connection).expect("a hash")
    };
    let (acquire, release) = (load(ACQUIRE), load(RELEASE));
    let mut scripts = Scripts {
        connection,
        acquire,
        release,
        queue,
    };
    let mut leases = vec![0; waiting + 1];
    for client in 0..=waiting {
        scripts.ask(&owner(client, 0), 1);
    }
    let before = spent(&mut scripts.connection);
    for number in 0..MANY {
        let holder = number % (waiting + 1);
        let left = owner(holder, leases[holder]);
        leases[holder] = number + 1;
        let given = scripts.leave(&left);
        let expected = [Value::Int(2), Value::Int(LEASE_MS)];
        assert_eq!(given, Value::Array(expected.into()), "given to the next");
        scripts.ask(&owner(holder, leases[holder]), 1);
        let asks = (holder + 1 + waiting.div_ceil(2)) % (waiting + 1);
        scripts.ask(&owner(asks, leases[asks]), 2 + number);
        let comes = owner(999_999, number);
        scripts.ask(&comes, 1);
        scripts.leave(&comes);
    }
    let cost = spent(&mut scripts.connection) - before;
    let keys = [NAME, &scripts.queue, &places];
    let () = scripts.connection.del(&keys).expect("an answer");
    float(cost) / float(MANY as u64)
}

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let waiting = [2, 64, 300];
    let mut costs = waiting.map(|_| Vec::new());
    for number in 0..=stage.rounds(ROUNDS) {
        let now = waiting.map(|waiting| round(stage, waiting));
        // The first round warms up.
        if number > 0 {
            for (costs, now) in costs.iter_mut().zip(now) {
                costs.push(now);
            }
        }
    }
    let costs = costs.map(|costs| median(&costs));
    for (beside, at, most) in [(0, 1, 1.5), (1, 2, 1.3)] {
        table.row(
            "P17",
            format!(
                "all calls of a cycle with {} waiting: the server's time ÷ that with {}",
                waiting[at], waiting[beside]
            ),
            (costs[at] / costs[beside], "×"),
            Aim::AtMost(most),
            format!(
                "{:.1} µs, with {} {:.1} µs",
                costs[at], waiting[beside], costs[beside]
            ),
        );
    }
}
