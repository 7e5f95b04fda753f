//! Which channels wake-ups travel on: those of a whole server or cluster, or, in a cluster, those that have a slot as keys have.
//!
//! Who listens to the one sort hears nothing of the other, so all clients of a cluster must choose alike. They choose as Redisson does.

use std::sync::{Arc, OnceLock};

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};

use super::failure::refuses_all;

/// The sort of channels that a client uses for all its names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sharding {
    /// `PUBLISH` and `SUBSCRIBE`: on any server outside of a cluster, and in one before Redis 7.
    #[default]
    Classic,
    /// `SPUBLISH` and `SSUBSCRIBE`.
    Sharded,
}

/// The words of a script that differ: classic, sharded.
const WORDS: [(&str, &str); 2] = [("'PUBLISH'", "'SPUBLISH'"), ("'NUMSUB'", "'SHARDNUMSUB'")];

impl Sharding {
    pub(super) fn of_setting(is_sharded: bool) -> Sharding {
        if is_sharded {
            Sharding::Sharded
        } else {
            Sharding::Classic
        }
    }

    /// The question to a node, to choose as Redisson does. Never without an argument: one managed server hangs then (redisson #6487).
    pub(super) fn question() -> Cmd {
        let mut ask = redis::cmd("PUBSUB");
        ask.arg("SHARDNUMSUB").arg("0");
        ask
    }

    /// From the node's answer: a refusal of any sort means classic. Unless it refuses every request for now, or has not answered.
    pub(super) fn of(answer: Result<Value, RedisError>) -> Result<Sharding, RedisError> {
        match answer {
            Ok(_) => Ok(Sharding::Sharded),
            Err(error) if is_refusal(&error) && !refuses_all(&error) => Ok(Sharding::Classic),
            Err(error) => Err(error),
        }
    }

    /// A script with the words for these channels.
    ///
    /// They are exchanged in the text. Words in variables in front of the scripts would cost each release 2 % of the server's time.
    pub(super) fn in_words(self, script: &str) -> String {
        let mut text = script.to_owned();
        if self == Sharding::Sharded {
            for (classic, sharded) in WORDS {
                // With the quotes of a command. A test of the scripts makes sure that neither word stands there without them.
                text = text.replace(classic, sharded);
            }
        }
        text
    }

    pub(super) fn subscribe(self) -> &'static str {
        match self {
            Sharding::Classic => "SUBSCRIBE",
            Sharding::Sharded => "SSUBSCRIBE",
        }
    }

    pub(super) fn unsubscribe(self) -> &'static str {
        match self {
            Sharding::Classic => "UNSUBSCRIBE",
            Sharding::Sharded => "SUNSUBSCRIBE",
        }
    }
}

/// The choice of one client, for all nodes of a cluster. Classic until it is made; then it stays, so that scripts and subscriptions are alike.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chosen(Arc<OnceLock<Sharding>>);

impl Chosen {
    /// By the settings. `None` is auto: the first node that is connected is asked.
    pub(super) fn by(setting: Option<Sharding>) -> Chosen {
        let chosen = Chosen::default();
        if let Some(setting) = setting {
            chosen.choose(setting);
        }
        chosen
    }

    /// Counts once.
    pub(super) fn choose(&self, sharding: Sharding) {
        // Two nodes may be asked at once. The first answer stays: scripts and subscriptions would else use different channels.
        let _ = self.0.set(sharding);
    }

    pub(super) fn is_made(&self) -> bool {
        self.0.get().is_some()
    }

    pub(super) fn get(&self) -> Sharding {
        self.0.get().copied().unwrap_or_default()
    }
}

/// The server has said no, on a connection that goes on.
fn is_refusal(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}

/// The server says that another node has the slot, or that none has it now: what was refused may be had elsewhere, or soon.
pub(super) fn is_elsewhere(error: &RedisError) -> bool {
    use ServerErrorKind::{ClusterDown, MasterDown, Moved};
    matches!(
        error.kind(),
        ErrorKind::Server(Moved | ClusterDown | MasterDown)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_sharded_where_the_server_knows_the_question_and_may_answer_it() {
        let chosen = |line: &str| {
            let answer = redis::parse_redis_value(line.as_bytes());
            Sharding::of(answer.and_then(Value::extract_error)).ok()
        };
        for (line, says) in [
            ("*2\r\n$1\r\n0\r\n:0\r\n", Some(Sharding::Sharded)),
            (
                "-ERR Unknown PUBSUB subcommand or wrong number of arguments for 'SHARDNUMSUB'\r\n",
                Some(Sharding::Classic),
            ),
            (
                "-NOPERM User x has no permissions to run the 'pubsub|shardnumsub' command\r\n",
                Some(Sharding::Classic),
            ),
            ("-LOADING Redis is loading the dataset in memory\r\n", None),
        ] {
            assert_eq!(chosen(line), says, "{line}");
        }
        let cut = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert!(Sharding::of(Err(cut)).is_err());
        assert_eq!(
            Sharding::question().get_packed_command(),
            b"*3\r\n$6\r\nPUBSUB\r\n$11\r\nSHARDNUMSUB\r\n$1\r\n0\r\n"
        );
    }
}
