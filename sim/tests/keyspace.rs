//! The keys of the simulation answer as real servers do, to random commands of scripts, and make the same of Lua's values.
//!
//! `KEYSPACE_COMMANDS` says to how many; `LEASEHOLD_FULL=1`: a million.

use std::{
    env,
    io::{BufReader, Write},
    net::TcpStream,
    sync::Arc,
    time::{Duration, SystemTime},
};

use fastrand::Rng;
use leasehold::sim::ScriptServer;
use leasehold_sim::keys::Keyspace;
use leasehold_testkit::{Flavor, Server};
use redis::{Parser, Value};

const CALL: &str = "return redis.call(unpack(ARGV))";

/// So many are sent at once.
const BATCH: usize = 500;

/// Ends of keys are as far apart, in ms, and far away: both clocks go on meanwhile.
const APART: i64 = 100_000_000;

/// What both are asked.
#[derive(Debug)]
struct Asked {
    script: &'static str,
    args: Vec<String>,
}

impl Asked {
    fn command(words: &[&str]) -> Asked {
        Asked {
            script: CALL,
            args: words.iter().map(|word| (*word).to_owned()).collect(),
        }
    }
}

fn count() -> usize {
    let given = env::var("KEYSPACE_COMMANDS").ok();
    let given = given.and_then(|count| count.parse().ok());
    given.unwrap_or(if env::var_os("LEASEHOLD_FULL").is_some() {
        1_000_000
    } else {
        20_000
    })
}

fn one<'a>(r: &mut Rng, of: &[&'a str]) -> &'a str {
    of[r.usize(..of.len())]
}

#[allow(clippy::too_many_lines, reason = "one line for each command")]
fn command(r: &mut Rng, now: i64) -> Asked {
    let keys = ["a", "b", "c", "d", "e", "f"];
    let words = ["x", "y", "z", "", "12", "-3", "long and with blanks", "x"];
    let (k, k2) = (one(r, &keys), one(r, &keys));
    let (v, v2, v3) = (one(r, &words), one(r, &words), one(r, &words));
    let index = r.i64(-5..6).to_string();
    let other = r.i64(-5..6).to_string();
    let number = if r.u8(..20) == 0 {
        "no".to_owned()
    } else {
        r.i64(-9..10).to_string()
    };
    let (score, more) = (r.i64(-4..5).to_string(), r.i64(-4..5).to_string());
    let from = one(r, &["-inf", "(0", "(-2", "0", "-1", "x"]);
    let to = one(r, &["+inf", "3", "(3", "inf", "1", "y"]);
    let lasts = (APART * r.i64(1..9)).to_string();
    // No two of them are one, between which the clocks would tell.
    let any = r.i64(APART..9 * APART).to_string();
    let ends = match r.u8(..12) {
        0 => "0".to_owned(),
        1 => "-5".to_owned(),
        2 => "no".to_owned(),
        _ => lasts.clone(),
    };
    let till = match r.u8(..8) {
        0 => "1000".to_owned(),
        _ => (now + APART * r.i64(1..9)).to_string(),
    };
    let words: Vec<&str> = match r.u8(..65) {
        0 | 1 => vec!["DEL", k],
        2 => vec!["DEL", k, k2],
        3 => vec!["EXISTS", k],
        4 => vec!["EXISTS", k, k2, k],
        5 => vec!["GET", k],
        6 => vec!["GETRANGE", k, &index, &other],
        7 => vec!["HDEL", k, v],
        8 => vec!["HDEL", k, v, v2],
        9 => vec!["HEXISTS", k, v],
        10 => vec!["HGET", k, v],
        11 => vec!["HGETALL", k],
        12 => vec!["HINCRBY", k, v, &number],
        13 => vec!["HKEYS", k],
        14 => vec!["HLEN", k],
        15 => vec!["HRANDFIELD", k, "100"],
        16 | 17 => vec!["HSET", k, v, v2],
        18 => vec!["HSET", k, v, v2, v3, v],
        19 => vec!["HSTRLEN", k, v],
        20 => vec!["HMGET", k, v, v2],
        21 => vec!["HSETNX", k, v, v2],
        22 | 23 => vec!["INCRBY", k, &number],
        24 => vec!["INCRBY", k, "9223372036854775807"],
        25 => vec!["LINDEX", k, &index],
        26 => vec!["LINSERT", k, one(r, &["BEFORE", "after", "by"]), v, v2],
        27 => vec!["LLEN", k],
        28 => vec!["LPOP", k],
        29 => vec!["LPOP", k, &index],
        30 => vec!["RPOP", k],
        31 => vec!["LPUSH", k, v],
        32 | 33 => vec!["RPUSH", k, v, v2],
        34 => vec!["LRANGE", k, &index, &other],
        35 => vec!["LREM", k, &index, v],
        36 => vec!["LSET", k, &index, v],
        37 => vec!["PERSIST", k],
        38 => vec!["PEXPIRE", k, &ends],
        39 => vec!["PEXPIRE", k, &any, one(r, &["NX", "XX", "GT", "LT", "no"])],
        40 => vec!["PEXPIREAT", k, &till],
        41 | 42 => vec!["PTTL", k],
        43 => vec!["PUBLISH", one(r, &["heard", "unheard"]), v],
        44 => vec!["PUBSUB", "NUMSUB", "heard", "unheard"],
        45 => vec![
            "SCAN",
            "0",
            "MATCH",
            one(r, &["*", "a", "[a-c]*", "?", "x*"]),
            "COUNT",
            "1000",
        ],
        46 => vec!["SET", k, v],
        47 => vec!["SET", k, &number, one(r, &["NX", "XX", "KEEPTTL", "GET?"])],
        48 => vec!["SET", k, v, "PX", &ends],
        49 => vec!["SET", k, v, "NX", "PX", &lasts],
        50 => vec!["TYPE", k],
        51 => vec!["ZADD", k, &score, v],
        52 => vec!["ZADD", k, &score, v, &more, v2],
        53 => vec![
            "ZADD",
            k,
            one(r, &["XX", "NX", "GT", "LT", "CH"]),
            &score,
            v,
        ],
        54 => vec!["ZCARD", k],
        55 => vec!["ZCOUNT", k, from, to],
        56 => vec!["ZRANGE", k, &index, &other, "WITHSCORES"],
        57 => vec!["ZRANGEBYSCORE", k, from, to],
        58 => vec![
            "ZRANGEBYSCORE",
            k,
            from,
            to,
            "WITHSCORES",
            "LIMIT",
            &index,
            &other,
        ],
        59 => vec!["ZREM", k, v, v2],
        60 => vec!["ZREMRANGEBYSCORE", k, from, to],
        61 => vec!["ZREMRANGEBYRANK", k, &index, &other],
        62 => vec!["HRANDFIELD", k, "100", one(r, &["withvalues", "values"])],
        63 => vec!["ZADD", k, "XX", "CH", &score, v, &more, v2],
        _ => vec!["ZSCORE", k, v],
    };
    Asked::command(&words)
}

/// An expression of Lua, of a few levels.
fn expression(r: &mut Rng, depth: u8) -> String {
    let key = one(r, &["a", "b", "c"]);
    match r.u8(..if depth == 0 { 10 } else { 17 }) {
        0 => "nil".to_owned(),
        1 => "true".to_owned(),
        2 => "false".to_owned(),
        3 => r.i64(-1_000_000..1_000_000).to_string(),
        4 => format!("{}", f64::from(r.i32(-10_000..10_000)) / 8.0),
        5 => format!("'{}'", one(r, &["", "words", "3.7", "-2"])),
        6 => format!("redis.call('TYPE', '{key}')"),
        7 => format!("redis.pcall('GET', '{key}')"),
        8 => format!("redis.pcall('PTTL', '{key}') < 0"),
        9 => format!("#'{key}'"),
        10 => {
            let items: Vec<_> = (0..r.u8(..4)).map(|_| expression(r, depth - 1)).collect();
            format!("{{{}}}", items.join(", "))
        }
        11 => format!("{{ok = '{}'}}", one(r, &["OK", "fine", ""])),
        12 => format!("{{err = '{}'}}", one(r, &["ODD thing", "MY own words"])),
        13 => format!("redis.error_reply('{}')", one(r, &["ODD thing", "ODD"])),
        14 => format!("redis.status_reply('{}')", one(r, &["OK", "fine"])),
        15 => format!("{} .. ''", r.i64(-1_000_000..1_000_000)),
        _ => format!(
            "redis.call('HSET', 'h', 'f', {}) and redis.call('HGET', 'h', 'f')",
            f64::from(r.i32(-10_000..10_000)) / 8.0
        ),
    }
}

fn snippet(r: &mut Rng) -> Asked {
    let text = format!("return {}", expression(r, 2));
    Asked {
        script: Box::leak(text.into_boxed_str()),
        args: Vec::new(),
    }
}

fn now() -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.expect("it is after 1970")
}

/// An answer, with its error as the code alone: scripts look at no other word of it.
fn plain(answer: Result<Value, String>) -> Result<Value, String> {
    match answer {
        Ok(Value::Array(values)) => {
            let values = values.into_iter().map(|value| match plain(Ok(value)) {
                Ok(value) => value,
                Err(code) => Value::SimpleString(format!("-{code}")),
            });
            Ok(Value::Array(values.collect()))
        }
        Ok(Value::SimpleString(words)) if words.starts_with('-') => Err(words
            .trim_start_matches('-')
            .split(' ')
            .next()
            .unwrap_or_default()
            .to_owned()),
        Ok(value) => value
            .extract_error()
            .map_err(|error| error.code().unwrap_or_default().to_owned()),
        Err(words) => Err(words.split(' ').next().unwrap_or_default().to_owned()),
    }
}

fn same(asked: &Asked, here: &Result<Value, String>, there: &Result<Value, String>) -> bool {
    match (asked.args.first().map(String::as_str), here, there) {
        // Each has its own clock.
        (Some("PTTL"), Ok(Value::Int(here)), Ok(Value::Int(there))) if *here >= 0 => {
            *there >= 0 && (here - there).abs() < APART / 2
        }
        (Some("SCAN"), Ok(Value::Array(here)), Ok(Value::Array(there))) => {
            let sorted = |page: &[Value]| {
                let mut keys: Vec<String> = match page.get(1) {
                    Some(Value::Array(keys)) => keys.iter().map(|key| format!("{key:?}")).collect(),
                    _ => Vec::new(),
                };
                keys.sort();
                keys
            };
            sorted(here) == sorted(there)
        }
        _ => here == there,
    }
}

fn compare(flavor: Flavor, seed: u64) {
    let server = Server::start(flavor);
    let mut connection = TcpStream::connect(server.addr()).expect("it listens");
    let mut answers = BufReader::new(connection.try_clone().expect("a copy"));
    let mut listener = TcpStream::connect(server.addr()).expect("it listens");
    let mut heard = BufReader::new(listener.try_clone().expect("a copy"));
    listener
        .write_all(&redis::cmd("SUBSCRIBE").arg("heard").get_packed_command())
        .expect("it reads");
    Parser::new().parse_value(&mut heard).expect("an answer");

    let mut keys = Keyspace::default();
    keys.subscribe(&Arc::from("A"), "heard");
    let mut r = Rng::with_seed(seed);
    let (mut parser, mut done) = (Parser::new(), 0);
    while done < count() {
        let began = now();
        keys.set_clock(began);
        let ms = i64::try_from(began.as_millis()).expect("a few digits");
        let batch: Vec<Asked> = (0..BATCH)
            .map(|_| {
                if r.u8(..40) == 0 {
                    snippet(&mut r)
                } else {
                    command(&mut r, ms)
                }
            })
            .collect();
        let mut bytes = Vec::new();
        for asked in &batch {
            let mut eval = redis::cmd("EVAL");
            eval.arg(asked.script).arg(0).arg(&asked.args);
            bytes.extend(eval.get_packed_command());
        }
        connection.write_all(&bytes).expect("it reads");
        for asked in &batch {
            let there = parser.parse_value(&mut answers);
            let there = plain(there.map_err(|error| error.to_string()));
            let args: Vec<Vec<u8>> = asked.args.iter().map(|arg| arg.clone().into()).collect();
            let here = plain(keys.call(asked.script, &[], &args));
            assert!(
                same(asked, &here, &there),
                "seed {seed}, after {done}: {asked:?}\nhere  {here:?}\n{flavor:?} {there:?}"
            );
            done += 1;
        }
        keys.take_messages();
    }
}

#[test]
fn the_keys_of_the_simulation_answer_as_servers_do() {
    let seed = env::var("KEYSPACE_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok());
    let flavors = Flavor::available();
    assert!(!flavors.is_empty(), "no server is installed");
    for flavor in flavors {
        compare(flavor, seed.unwrap_or(1));
    }
}
