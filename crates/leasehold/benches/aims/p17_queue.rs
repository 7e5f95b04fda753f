//! P17: what does a hand-over cost the server, where many wait?
//!
//! Unit: the server's time for a release of a mutex that gives the name to the first of 2, 64 and 1,000 clients in its queue (`INFO commandstats`),
//! as a ratio to that with two. The script is ours, sent by the redis crate; the clients are inboxes of one connection.

use redis::{Commands as _, Connection};

use crate::{
    float::median,
    raw::RELEASE,
    stage::Stage,
    table::{Aim, Table},
};

const ROUNDS: usize = 7;
/// Hand-overs a round.
const MANY: usize = 500;
const NAME: &str = "bench:p17";

fn owner(client: usize) -> String {
    format!("00000000-0000-4000-8000-{client:012}:57000000000000")
}

fn usec_per_call(connection: &mut Connection) -> f64 {
    let info: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(connection)
        .expect("an answer");
    let of_evalsha = info.lines().find(|line| line.contains("_evalsha:"));
    let figure = of_evalsha.and_then(|line| line.split("usec_per_call=").nth(1));
    let figure = figure.and_then(|rest| rest.split(',').next()?.parse().ok());
    figure.expect("a figure")
}

/// The server's µs for one hand-over with so many in the queue.
fn round(stage: &Stage, waiting: usize) -> f64 {
    let client = redis::Client::open(stage.url()).expect("the kit's URL");
    let connect = || client.get_connection().expect("our own server takes us");
    let (mut connection, mut inboxes) = (connect(), connect());
    let mut inboxes = inboxes.as_pubsub();
    let queue = format!("leasehold:{{{NAME}}}:queue");
    for client in 0..=waiting {
        let owner = owner(client);
        let (client, _) = owner.split_once(':').expect("it has a lease id");
        let inbox = format!("leasehold:{{{NAME}}}:grant:{client}");
        inboxes.subscribe(inbox).expect("room");
    }
    let () = connection.del(&[NAME, &queue]).expect("an answer");
    let () = connection.hset(NAME, owner(0), 1).expect("room");
    for client in 1..=waiting {
        let () = connection
            .rpush(&queue, format!("{} 30000 1", owner(client)))
            .expect("room");
    }
    let load = redis::cmd("SCRIPT").arg("LOAD").arg(RELEASE).to_owned();
    let hash: String = load.query(&mut connection).expect("a hash");
    let mut reset = redis::cmd("CONFIG");
    let () = reset
        .arg("RESETSTAT")
        .query(&mut connection)
        .expect("an answer");
    for number in 0..MANY {
        let holder = owner(number % (waiting + 1));
        let mut release = redis::cmd("EVALSHA");
        release.arg(&hash).arg(2).arg(NAME).arg(&queue);
        release
            .arg(&holder)
            .arg(format!("redisson_lock__channel:{{{NAME}}}"));
        let given: (i64, i64) = release.query(&mut connection).expect("an answer");
        assert_eq!(given, (2, 30_000), "given to the next");
        let () = connection
            .rpush(&queue, format!("{holder} 30000 1"))
            .expect("room");
    }
    let cost = usec_per_call(&mut connection);
    let () = connection.del(&[NAME, &queue]).expect("an answer");
    cost
}

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let waiting = [2, 64, 1_000];
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
    for (at, most) in [(1, 1.2), (2, 2.0)] {
        table.row(
            "P17",
            format!(
                "hand-over with {} waiting: the server's time ÷ that with 2",
                waiting[at]
            ),
            (costs[at] / costs[0], "×"),
            Aim::AtMost(most),
            format!("{:.1} µs, with two {:.1} µs", costs[at], costs[0]),
        );
    }
}
