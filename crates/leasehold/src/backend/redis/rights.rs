//! Which commands of our scripts the server refuses to the user of a connection.
//!
//! A script is not rolled back: one that is refused a command halfway could leave a name without a holder until its lease ends. So a
//! server is asked when a connection is made, and a script that calls such a command is not sent. Rights may differ from key to key:
//! before a script is refused, the server is asked again, about the keys of that script. A command that is permitted there is not suspected
//! again until the next connection is made. So a user that may do less with other keys, or loses a right later, is refused by the server, in
//! the middle of a step.

use std::sync::Arc;

use parking_lot::RwLock;
use redis::{Cmd, RedisError, Value};

use super::{
    failure::RIGHTS,
    script::{Call, texts},
};
use crate::{backend::Failure, name::label_key};

const ASK: &str = include_str!("scripts/rights.lua");

/// Every command that a script calls, but `PUBLISH`, since rights to channels go by the name of a lock, and `PUBSUB` and
/// `DBSIZE`, which may be left out. In one argument: a server takes but ten of one that has not logged in.
const COMMANDS: &str = "DEL EXISTS GET GETRANGE HDEL HEXISTS HGET HGETALL HKEYS HLEN HMGET HRANDFIELD HSET HSTRLEN INCRBY LINDEX \
    LINSERT LLEN LPOP LPUSH LRANGE LREM LSET PERSIST PEXPIRE PEXPIREAT PTTL RPUSH SCAN SET TIME TYPE \
    ZADD ZCARD ZCOUNT ZRANGE ZRANGEBYSCORE ZREM ZREMRANGEBYRANK ZREMRANGEBYSCORE ZSCORE";

/// The commands that a server has refused on the latest connection.
#[derive(Default)]
pub(super) struct Rights {
    refused: RwLock<Forbidden>,
}

/// Commands that may not be called, as far as was asked.
#[derive(Clone, Debug, Default)]
pub(super) struct Forbidden {
    by_rules: Vec<String>,
    /// Of these the server has none, under these names.
    unknown: Vec<String>,
}

impl Rights {
    /// The question to the server, with a key that most users may touch.
    pub(super) fn question() -> Cmd {
        let mut ask = redis::cmd("EVAL");
        // Not as a key: a server refuses a script that names one which the user may not touch, and the question with it.
        ask.arg(ASK).arg(0).arg(COMMANDS).arg(label_key("rights"));
        ask
    }

    /// The question about what is refused so far, with the keys of this call.
    pub(super) fn question_about(&self, call: &Call) -> Cmd {
        let keys: Vec<_> = call.keys().collect();
        let refused = self.refused.read();
        // Both lists, since the answer takes the place of both (`learn`).
        let commands = [&refused.by_rules[..], &refused.unknown].concat().join(" ");
        let mut ask = redis::cmd("EVAL");
        ask.arg(ASK).arg(keys.len()).arg(keys).arg(commands);
        ask
    }

    /// Notes the server's answer, for this connection. Where the server does not tell, each script is sent.
    pub(super) fn learn(&self, answer: Result<Value, RedisError>) -> Forbidden {
        let refused = answer.ok().as_ref().and_then(Forbidden::of);
        let refused = refused.unwrap_or_default();
        self.refused.write().clone_from(&refused);
        refused
    }

    /// Whether this call would be refused a command, as far as is known.
    pub(super) fn check(&self, call: &Call) -> Result<(), Failure> {
        self.refused.read().check(call)
    }
}

impl Forbidden {
    fn of(answer: &Value) -> Option<Forbidden> {
        let Value::Array(lists) = answer else {
            return None;
        };
        let [by_rules, unknown] = lists.as_slice() else {
            return None;
        };
        Some(Forbidden {
            by_rules: texts(by_rules)?,
            unknown: texts(unknown)?,
        })
    }

    /// Refuses a call that needs a command which may not be called.
    pub(super) fn check(&self, call: &Call) -> Result<(), Failure> {
        let needed = |refused: &[String]| -> Vec<String> {
            let refused = refused.iter().filter(|command| call.needs(command));
            refused.cloned().collect()
        };
        let lacks = Forbidden {
            by_rules: needed(&self.by_rules),
            unknown: needed(&self.unknown),
        };
        if lacks.by_rules.is_empty() && lacks.unknown.is_empty() {
            return Ok(());
        }
        Err(Failure::Rejected(Arc::new(Lacking(lacks))))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{}", words(.0))]
struct Lacking(Forbidden);

fn words(Forbidden { by_rules, unknown }: &Forbidden) -> String {
    let mut words = Vec::new();
    if !unknown.is_empty() {
        let unknown = unknown.join(", ");
        words.push(format!(
            "the server does not know {unknown}; give that name back (rename-command in its configuration)"
        ));
    }
    if !by_rules.is_empty() {
        let rules: Vec<_> = by_rules
            .iter()
            .map(|command| format!("+{}", command.to_lowercase()))
            .collect();
        words.push(format!(
            "the server's user lacks a right: it may not call {}; add {} to its rules; {RIGHTS}",
            by_rules.join(", "),
            rules.join(" ")
        ));
    }
    words.join("; ")
}
