//! P18: what does a lock cost beside the least that two commands can do?
//!
//! Unit: pairs per second of 1, 10, 100 and 1,000 tasks, each on a name of its own, through one client, as a ratio to `SET NX PX` and a script
//! that compares and deletes, on one connection of the redis crate alone: what is written by hand where no library is used. And the
//! processor time of a pair, of this process and of the server, as ratios too.

use std::time::{Duration, Instant};

use leasehold::{Mutex, PlainMutex};
use redis::{IntoConnectionInfo as _, aio::MultiplexedConnection, io::tcp::TcpSettings};
use tokio::task::JoinSet;

use crate::{
    float::{float, median},
    p2_many_names::sum,
    stage::{self, Stage},
    table::{Aim, Table},
};

const ROUNDS: usize = 21;
const TIME: Duration = Duration::from_millis(400);

const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// The work of a side in its time.
#[derive(Clone, Copy, Default)]
struct Done {
    rate: f64,
    /// Processor time of a pair, in microseconds: here, and of the server.
    cpu: [f64; 2],
}

/// So many tasks do what `pair` does with a name of each, over and over.
async fn at_once<F: Future<Output = ()> + Send + 'static>(
    (tasks, time, server): (usize, Duration, u32),
    pair: impl Fn(String) -> F + Clone + Send + 'static,
) -> Done {
    let spent = || [std::process::id(), server].map(stage::cpu_time);
    let mut running = JoinSet::new();
    let (end, before) = (Instant::now() + time, spent());
    for task in 0..tasks {
        let pair = pair.clone();
        running.spawn(async move {
            let mut pairs = 0;
            while Instant::now() < end {
                pair(format!("bench:p18:{task}")).await;
                pairs += 1;
            }
            pairs
        });
    }
    let (pairs, time) = sum(running, time).await;
    let after = spent();
    let of_a_pair = |at: usize| {
        let spent = after[at].saturating_sub(before[at]);
        spent.as_secs_f64() * 1e6 / float(pairs.max(1))
    };
    Done {
        rate: stage::rate(pairs, time),
        cpu: [0, 1].map(of_a_pair),
    }
}

async fn by_hand(mut connection: MultiplexedConnection, hash: String, name: String) {
    let token = format!("{:032x}", fastrand::u128(..));
    let mut set = redis::cmd("SET");
    set.arg(&name).arg(&token).arg("NX").arg("PX").arg(30_000);
    let set: Option<String> = set.query_async(&mut connection).await.expect("an answer");
    assert!(set.is_some(), "the name was free");
    let mut delete = redis::cmd("EVALSHA");
    delete.arg(&hash).arg(1).arg(&name).arg(&token);
    let deleted: u8 = delete
        .query_async(&mut connection)
        .await
        .expect("an answer");
    assert_eq!(deleted, 1, "the name was ours");
}

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let runtime = stage::one_thread();
    let client = runtime.block_on(stage::connect(&stage.url()));
    let (connection, hash) = runtime.block_on(async {
        let info = stage.url().into_connection_info().expect("the kit's URL");
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let client = redis::Client::open(info).expect("the kit's URL");
        let connection = client.get_multiplexed_async_connection().await;
        let mut connection = connection.expect("our own server takes us");
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(COMPARE_AND_DELETE);
        let hash: String = load.query_async(&mut connection).await.expect("a hash");
        (connection, hash)
    });
    for (tasks, kinds) in [
        (1, &[("mutex", 0.85)][..]),
        (10, &[("mutex", 0.85)]),
        (100, &[("mutex", 0.78), ("plain mutex", 0.82)]),
        (1_000, &[("mutex", 0.75)]),
    ] {
        let terms = (tasks, stage.time(TIME), stage.server.pid());
        let mut rounds: Vec<Vec<Done>> = Vec::new();
        for round in 0..=stage.rounds(ROUNDS) {
            let sides = kinds.len() + 1;
            let mut now = vec![Done::default(); sides];
            // The sides take turns to go first.
            for side in (0..sides).map(|turn| (round + turn) % sides) {
                let (client, connection, hash) = (client.clone(), connection.clone(), hash.clone());
                let kind = side.checked_sub(1).map(|at| kinds[at].0);
                now[side] = stage::on(&runtime, async move {
                    match kind {
                        None => {
                            let pair = move |name| by_hand(connection.clone(), hash.clone(), name);
                            at_once(terms, pair).await
                        }
                        Some("mutex") => {
                            at_once(terms, move |name| mutex(client.mutex(name))).await
                        }
                        Some(_) => {
                            let pair = move |name| plain_mutex(client.plain_mutex(name));
                            at_once(terms, pair).await
                        }
                    }
                });
            }
            // The first round warms up.
            if round > 0 {
                rounds.push(now);
            }
        }
        for (at, (kind, least)) in kinds.iter().enumerate() {
            rows(table, (tasks, kind, *least), &rounds, at + 1);
        }
    }
}

fn rows(
    table: &mut Table,
    (tasks, kind, least): (usize, &str, f64),
    rounds: &[Vec<Done>],
    side: usize,
) {
    let of = |what: &dyn Fn(&Done, &Done) -> f64| {
        let each: Vec<f64> = rounds.iter().map(|it| what(&it[side], &it[0])).collect();
        median(&each)
    };
    let names = if tasks == 1 { "name" } else { "names" };
    table.row(
        "P18",
        format!("{tasks} {names}: pairs/s of a {kind} ÷ `SET NX PX` and compare-and-delete by hand"),
        (of(&|ours, hand| ours.rate / hand.rate), "×"),
        Aim::AtLeast(least),
        format!(
            "ours {:.0}/s, by hand {:.0}/s; CPU of a pair: client {:.1} µs, {:.2} of by hand; server {:.1} µs, {:.2}",
            of(&|ours, _| ours.rate),
            of(&|_, hand| hand.rate),
            of(&|ours, _| ours.cpu[0]),
            of(&|ours, hand| ours.cpu[0] / hand.cpu[0]),
            of(&|ours, _| ours.cpu[1]),
            of(&|ours, hand| ours.cpu[1] / hand.cpu[1]),
        ),
    );
}

async fn mutex(mutex: Mutex) {
    let guard = mutex.lock().await.expect("a guard");
    guard.release().await.expect("the server answers");
}

async fn plain_mutex(mutex: PlainMutex) {
    let guard = mutex.lock().await.expect("a guard");
    guard.release().await.expect("the server answers");
}
