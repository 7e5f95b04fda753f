//! Which commands of our scripts the server refuses to the user of a connection.
//!
//! A script is not rolled back: one that is refused a command halfway could leave a name without a holder until its lease ends. So a
//! server is asked when a connection is made, and a script that calls such a command is not sent. A user that loses a right later
//! is refused by the server, in the middle of a step.

use std::sync::Arc;

use parking_lot::RwLock;
use redis::{Cmd, RedisError, Value};

use super::{failure::RIGHTS, script::text};
use crate::{backend::Failure, name::label_key};

const ASK: &str = include_str!("scripts/rights.lua");

/// Every command that a script calls, but `PUBLISH`, since rights to channels go by the name of a lock, and `PUBSUB`, which may be
/// left out. In one argument: a server takes but ten of one that has not logged in.
const COMMANDS: &str = "DEL EXISTS GET GETRANGE HDEL HEXISTS HGET HGETALL HKEYS HLEN HRANDFIELD HSET HSTRLEN INCRBY LINDEX \
    LINSERT LLEN LPOP LPUSH LRANGE LREM LSET PERSIST PEXPIRE PEXPIREAT PTTL RPUSH SCAN SET TIME TYPE \
    ZADD ZCARD ZCOUNT ZRANGE ZRANGEBYSCORE ZREM ZREMRANGEBYRANK ZREMRANGEBYSCORE ZSCORE";

/// What a server has refused on the latest connection.
#[derive(Default)]
pub(super) struct Rights {
    refused: RwLock<Vec<String>>,
}

impl Rights {
    /// The question to the server.
    pub(super) fn question() -> Cmd {
        let mut ask = redis::cmd("EVAL");
        ask.arg(ASK).arg(0).arg(label_key("rights")).arg(COMMANDS);
        ask
    }

    /// The server's answer. Where it does not tell, each script is sent.
    pub(super) fn learn(&self, answer: Result<Value, RedisError>) {
        let refused = match answer {
            Ok(Value::Array(refused)) => refused.iter().filter_map(text).collect(),
            _ => Vec::new(),
        };
        *self.refused.write() = refused;
    }

    /// Refuses a script with this text that calls a command which the user may not.
    pub(super) fn check(&self, script: &str) -> Result<(), Failure> {
        let refused = self.refused.read();
        let calls = |command: &&String| script.contains(&format!("'{command}'"));
        let lacks: Vec<_> = refused.iter().filter(calls).cloned().collect();
        if lacks.is_empty() {
            return Ok(());
        }
        Err(Failure::Rejected(Arc::new(Lacking(lacks))))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the server's user lacks a right: it may not call {}; add {} to its rules; {RIGHTS}", .0.join(", "), rules(.0))]
struct Lacking(Vec<String>);

fn rules(lacks: &[String]) -> String {
    let rules: Vec<_> = lacks
        .iter()
        .map(|command| format!("+{}", command.to_lowercase()))
        .collect();
    rules.join(" ")
}
