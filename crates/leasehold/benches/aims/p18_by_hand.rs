//! P18: what does a lock cost beside the least that two commands can do?
//!
//! Unit: pairs per second of 100 tasks, each on a name of its own, through one client, as a ratio to `SET NX PX` and a script that compares and
//! deletes, on one connection of the redis crate alone: what is written by hand where no library is used.

use std::time::{Duration, Instant};

use redis::{IntoConnectionInfo as _, aio::MultiplexedConnection, io::tcp::TcpSettings};
use tokio::task::JoinSet;

use crate::{
    float::median,
    p2_many_names::sum,
    stage::{self, Stage},
    table::{Aim, Table},
};

const ROUNDS: usize = 7;
const TIME: Duration = Duration::from_millis(800);
const TASKS: usize = 100;

const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// So many tasks do what `pair` does with a name of each, over and over.
async fn at_once<F: Future<Output = ()> + Send + 'static>(
    time: Duration,
    pair: impl Fn(String) -> F + Clone + Send + 'static,
) -> f64 {
    let mut running = JoinSet::new();
    let end = Instant::now() + time;
    for task in 0..TASKS {
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
    stage::rate(pairs, time)
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
    let time = stage.time(TIME);
    let (mut rates, mut ratios) = ([(); 3].map(|()| Vec::new()), [(); 2].map(|()| Vec::new()));
    for round in 0..=stage.rounds(ROUNDS) {
        let mut now = [0.0; 3];
        // The sides take turns to go first.
        for turn in 0..3 {
            let side = (round + turn) % 3;
            let (client, connection, hash) = (client.clone(), connection.clone(), hash.clone());
            now[side] = stage::on(&runtime, async move {
                match side {
                    0 => {
                        let pair = move |name| by_hand(connection.clone(), hash.clone(), name);
                        at_once(time, pair).await
                    }
                    1 => {
                        let pair = move |name: String| {
                            let mutex = client.mutex(name);
                            async move {
                                let guard = mutex.lock().await.expect("a guard");
                                guard.release().await.expect("the server answers");
                            }
                        };
                        at_once(time, pair).await
                    }
                    _ => {
                        let pair = move |name: String| {
                            let mutex = client.plain_mutex(name);
                            async move {
                                let guard = mutex.lock().await.expect("a guard");
                                guard.release().await.expect("the server answers");
                            }
                        };
                        at_once(time, pair).await
                    }
                }
            });
        }
        // The first round warms up.
        if round > 0 {
            for (rates, now) in rates.iter_mut().zip(now) {
                rates.push(now);
            }
            for (ratios, ours) in ratios.iter_mut().zip(&now[1..]) {
                ratios.push(ours / now[0]);
            }
        }
    }
    let rates = rates.map(|rates| median(&rates));
    for (kind, at, least) in [("mutex", 0, 0.65), ("plain mutex", 1, 0.7)] {
        table.row(
            "P18",
            format!("100 names: pairs/s of a {kind} ÷ `SET NX PX` and compare-and-delete by hand"),
            (median(&ratios[at]), "×"),
            Aim::AtLeast(least),
            format!("ours {:.0}/s, by hand {:.0}/s", rates[at + 1], rates[0]),
        );
    }
}
