//! The simulated server runs scripts and turns their values into answers as Redis does, and it knows each command of the library's scripts.
//!
//! A program of its own: the tests of a library inside would compile it a second time.

use std::{fs, path::Path, time::Duration};

use leasehold::sim::ScriptServer;
use leasehold_sim::keys::{Answer, COMMANDS, Keyspace, Trouble};
use redis::Value;

fn run(keys: &mut Keyspace, script: &str, args: &[&str]) -> Answer {
    // As long as the scripts of the library live: the interpreter knows them by their address.
    let script = Box::leak(script.to_owned().into_boxed_str());
    let args: Vec<_> = args.iter().map(|arg| arg.as_bytes().to_vec()).collect();
    keys.call(script, &[b"x".to_vec(), b"y".to_vec()], &args)
}

fn int(number: i64) -> Value {
    Value::Int(number)
}

fn text(words: &str) -> Value {
    Value::BulkString(words.into())
}

#[test]
fn values_become_what_redis_makes_of_them() {
    let keys = &mut Keyspace::default();
    for (script, answer) in [
        ("return 3.99", Ok(int(3))),
        ("return -3.99", Ok(int(-3))),
        ("return true", Ok(int(1))),
        ("return false", Ok(Value::Nil)),
        ("return nil", Ok(Value::Nil)),
        (
            "return {1, 2, nil, 4}",
            Ok(Value::Array(vec![Value::Int(1), Value::Int(2)])),
        ),
        ("return {ok='fine'}", Ok(Value::SimpleString("fine".into()))),
        ("return redis.status_reply('OK')", Ok(Value::Okay)),
        ("return {err='ODD thing'}", Err("ODD thing".into())),
        (
            "return redis.error_reply('ODD thing')",
            Err("ODD thing".into()),
        ),
        ("return redis.error_reply('odd')", Err("ERR odd".into())),
        (
            "return type(redis.call('GET', KEYS[1]))",
            Ok(text("boolean")),
        ),
        (
            "return type(redis.call('PTTL', KEYS[1]))",
            Ok(text("number")),
        ),
        ("return redis.call('TYPE', KEYS[1]).ok", Ok(text("none"))),
        (
            "return redis.pcall('NOSUCH').err",
            Ok(text("ERR Unknown Redis command called from script")),
        ),
        ("return KEYS[2] .. ARGV[1] .. #ARGV", Ok(text("ya1"))),
    ] {
        assert_eq!(run(keys, script, &["a"]), answer, "{script}");
    }
}

#[test]
fn an_error_of_call_ends_the_script_and_one_of_pcall_is_returned() {
    let keys = &mut Keyspace::default();
    let wrong = "WRONGTYPE Operation against a key holding the wrong kind of value";
    let script = "redis.call('SET', KEYS[1], 'v') redis.call('LLEN', KEYS[1]) return 1";
    assert_eq!(run(keys, script, &[]), Err(wrong.to_owned()));
    let script =
        "local got = redis.pcall('LLEN', KEYS[1]) return {got.err, redis.call('GET', KEYS[1])}";
    let both = vec![
        Value::BulkString(wrong.into()),
        Value::BulkString("v".into()),
    ];
    assert_eq!(run(keys, script, &[]), Ok(Value::Array(both)));
    let script = "return redis.pcall('LLEN', KEYS[1])";
    assert_eq!(run(keys, script, &[]), Err(wrong.to_owned()));
    assert!(run(keys, "x = 1", &[]).is_err(), "no globals");
    assert!(run(keys, "return x", &[]).is_err(), "no globals");
}

#[test]
fn a_key_is_there_in_its_last_millisecond_and_not_after_it() {
    let keys = &mut Keyspace::default();
    let ms = Duration::from_millis;
    keys.set_clock(ms(1_000));
    assert!(run(keys, "return redis.call('SET', KEYS[1], 1, 'PX', 10)", &[]).is_ok());
    keys.set_clock(ms(1_010));
    assert_eq!(
        run(keys, "return redis.call('PTTL', KEYS[1])", &[]),
        Ok(int(0))
    );
    keys.set_clock(ms(1_011));
    assert_eq!(
        run(keys, "return redis.call('PTTL', KEYS[1])", &[]),
        Ok(int(-2))
    );
}

#[test]
fn a_full_server_refuses_until_the_script_has_written() {
    let keys = &mut Keyspace::default();
    keys.set_trouble(Trouble::Full);
    let refused = run(keys, "return redis.call('SET', KEYS[1], 1)", &[]);
    assert!(refused.is_err_and(|error| error.starts_with("OOM ")));
    let script = "redis.call('DEL', KEYS[1]) redis.call('SET', KEYS[1], 1) return 1";
    assert_eq!(run(keys, script, &[]), Ok(int(1)));
}

#[test]
fn a_command_is_refused_by_its_number() {
    let keys = &mut Keyspace::default();
    keys.set_trouble(Trouble::Refuses(1));
    let script = "redis.call('SET', KEYS[1], 1) redis.call('SET', KEYS[1], 2) return 1";
    assert!(run(keys, script, &[]).is_err_and(|error| error.starts_with("NOPERM ")));
    keys.set_trouble(Trouble::None);
    assert_eq!(
        run(keys, "return redis.call('GET', KEYS[1])", &[]),
        Ok(text("1"))
    );
}

#[test]
fn messages_reach_those_that_listen() {
    let keys = &mut Keyspace::default();
    let client = "A".into();
    keys.subscribe(&client, "c");
    assert_eq!(
        run(keys, "return redis.call('PUBLISH', 'c', 'hello')", &[]),
        Ok(int(1))
    );
    assert_eq!(keys.take_messages().len(), 1);
    assert_eq!(
        run(keys, "return redis.call('PUBSUB', 'NUMSUB', 'c')[2]", &[]),
        Ok(int(1))
    );
    keys.disconnect("A");
    assert_eq!(
        run(keys, "return redis.call('PUBLISH', 'c', 'hello')", &[]),
        Ok(int(0))
    );
}

fn names_in(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder of the repository") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            names_in(&path, found);
        } else {
            let text = fs::read_to_string(&path).expect("a script");
            let calls = text.split("call('").skip(1);
            found.extend(calls.filter_map(|call| Some(call.split_once('\'')?.0.to_owned())));
        }
    }
}

#[test]
fn each_command_of_the_scripts_is_there() {
    let scripts = "../crates/leasehold/src/backend/redis/scripts";
    let mut found = Vec::new();
    names_in(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join(scripts),
        &mut found,
    );
    assert!(found.len() > 50, "{found:?}");
    for name in found {
        let is_known = COMMANDS.iter().any(|(known, ..)| *known == name);
        assert!(is_known, "{name}");
    }
}
