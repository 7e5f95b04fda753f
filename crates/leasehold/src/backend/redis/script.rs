//! Sends a script: by its hash, and with its text to a server that does not know it (yet, or any more).

use std::{
    borrow::Cow,
    fmt::Display,
    ptr,
    sync::{LazyLock, OnceLock},
};

use redis::{
    Cmd, ErrorKind, Pipeline, RedisError, RedisWrite, ServerErrorKind, ToRedisArgs, Value,
};

use super::sharding::Sharding;

/// A `.lua` file and its hash.
pub(super) struct Script {
    text: Cow<'static, str>,
    hash: String,
    /// The same for sharded channels; `None`: it names no channel.
    sharded: OnceLock<Option<Box<Script>>>,
}

impl Script {
    pub(super) fn new(text: &'static str) -> Script {
        Script::of(text.into())
    }

    fn of(text: Cow<'static, str>) -> Script {
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Script {
            text,
            hash,
            sharded: OnceLock::new(),
        }
    }

    /// The script for channels of this sort. The text for sharded ones is made when it is first used.
    fn on(&self, sharding: Sharding) -> &Script {
        if sharding == Sharding::Classic {
            return self;
        }
        let sharded = self.sharded.get_or_init(|| {
            let text = sharding.in_words(&self.text);
            (text != self.text).then(|| Box::new(Script::of(text.into())))
        });
        sharded.as_deref().unwrap_or(self)
    }
}

/// A script of the server's files, made when it is first used.
pub(super) type Lazy = LazyLock<Script>;

/// A call of a script. Keys first, then arguments, in the order of the script's header.
pub(super) struct Call {
    script: &'static Script,
    by_hash: Cmd,
    keys: usize,
    answer_last: bool,
    /// To a node of a cluster that is about to get the slot.
    asking: bool,
    only_reads: bool,
    /// It takes what only these keep and give back.
    kept_by: Option<[&'static Script; 2]>,
}

impl Call {
    /// A call with `keys` keys and `args` arguments, of about `bytes` bytes in all.
    pub(super) fn new(script: &'static Script, keys: usize, args: usize, bytes: usize) -> Call {
        let mut by_hash = Cmd::with_capacity(3 + keys + args, 64 + bytes);
        by_hash.arg("EVALSHA").arg(&script.hash).arg(keys);
        Call {
            script,
            by_hash,
            keys,
            answer_last: false,
            asking: false,
            only_reads: false,
            kept_by: None,
        }
    }

    /// The script's messages are to be heard before its answer: the waiter that they wake is in more of a hurry than the
    /// caller.
    ///
    /// A server that has output for several connections writes to them in the reverse order in which the output came
    /// about. So an answer to another command, just before, puts this one last. Only speed depends on it: with both clients
    /// on one core, the one that waits goes first instead of second.
    pub(super) fn answer_last(mut self, last: bool) -> Call {
        self.answer_last = last;
        self
    }

    /// It goes to a node of a cluster that has not got the slot yet, as its owner says.
    pub(super) fn asking(mut self) -> Call {
        self.asking = true;
        self
    }

    pub(super) fn is_asking(&self) -> bool {
        self.asking
    }

    /// The same on channels of this sort.
    pub(super) fn on(self, sharding: Sharding) -> Call {
        let script = self.script.on(sharding);
        if ptr::eq(script, self.script) {
            // The script names no channel, so its text and its hash are the same for both sorts.
            return self;
        }
        let mut by_hash = Cmd::with_capacity(self.by_hash.args_iter().count(), 256);
        by_hash.arg("EVALSHA").arg(&script.hash).arg(self.keys);
        for arg in self.args() {
            by_hash.arg(arg);
        }
        Call {
            script,
            by_hash,
            ..self
        }
    }

    /// The next key or argument.
    pub(super) fn arg(mut self, arg: impl ToRedisArgs) -> Call {
        self.by_hash.arg(arg);
        self
    }

    /// The next key or argument, written without a detour.
    pub(super) fn text(mut self, arg: impl Display) -> Call {
        self.by_hash.write_arg_fmt(arg);
        self
    }

    /// It changes nothing, so it may be refused anywhere.
    pub(super) fn only_reads(mut self) -> Call {
        self.only_reads = true;
        self
    }

    /// It takes what only these two scripts renew and give back: a user that may not call them is to take nothing.
    pub(super) fn kept_by(mut self, renew: &'static Script, release: &'static Script) -> Call {
        self.kept_by = Some([renew, release]);
        self
    }

    /// Whether the user must have the right to this command, since it could be refused halfway.
    pub(super) fn needs(&self, command: &str) -> bool {
        let own = (!self.only_reads).then_some(self.script);
        let mut scripts = own.into_iter().chain(self.kept_by.into_iter().flatten());
        // With its quotes, or `GET` would be found in `GETRANGE`.
        scripts.any(|script| script.text.contains(&format!("'{command}'")))
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.args().take(self.keys)
    }

    /// The keys, and the arguments behind them.
    fn args(&self) -> impl Iterator<Item = &[u8]> {
        // Behind `EVALSHA`, the hash, and the number of keys.
        let all = self.by_hash.args_iter().skip(3);
        all.filter_map(|arg| match arg {
            redis::Arg::Simple(arg) => Some(arg),
            _ => None,
        })
    }

    pub(super) fn by_hash(&self) -> &Cmd {
        &self.by_hash
    }

    /// The call with something to be answered before it. Skip the first answer; it may be a refusal.
    pub(super) fn behind_another(&self) -> Option<Pipeline> {
        let first = match (self.asking, self.answer_last) {
            // A node forgets `ASKING` with the next command, so no `PING` may come between.
            (true, _) => "ASKING",
            (_, true) => "PING",
            _ => return None,
        };
        let mut both = Pipeline::with_capacity(2);
        both.cmd(first).add_command(self.by_hash.clone());
        Some(both)
    }

    /// The same call with the text of the script, if it needs the word before it, too: a node forgets that with each command.
    pub(super) fn by_text_behind_another(&self) -> Option<Pipeline> {
        self.asking.then(|| {
            let mut both = Pipeline::with_capacity(2);
            both.cmd("ASKING").add_command(self.by_text());
            both
        })
    }

    /// The same call with the text of the script, which the server keeps from then on.
    pub(super) fn by_text(&self) -> Cmd {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(&*self.script.text).arg(self.keys);
        for arg in self.args() {
            command.arg(arg);
        }
        command
    }
}

/// In a simulation: what is called.
#[cfg(feature = "sim")]
impl Call {
    /// The text of the script, and its keys and arguments.
    pub(super) fn parts(&self) -> (&'static str, Vec<Vec<u8>>) {
        (&self.script.text, self.args().map(<[u8]>::to_vec).collect())
    }
}

/// Whether the server does not know the script.
pub(super) fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// A reply that is a text. Other clients may have written any bytes; invalid UTF-8 is replaced.
pub(super) fn text(reply: &Value) -> Option<String> {
    match reply {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}

pub(super) fn texts(reply: &Value) -> Option<Vec<String>> {
    match reply {
        Value::Array(texts) => texts.iter().map(text).collect(),
        _ => None,
    }
}

/// A reply that no script of ours gives.
pub(super) fn unexpected(reply: &Value) -> RedisError {
    // The beginning of a reply of megabytes says enough.
    let reply: String = format!("{reply:?}").chars().take(80).collect();
    RedisError::from((
        ErrorKind::UnexpectedReturnType,
        "not an answer of this script",
        reply,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    static PUBLISHES: Lazy =
        Lazy::new(|| Script::new("return redis.call('PUBLISH', KEYS[1], ARGV[1])"));
    static READS: Lazy = Lazy::new(|| Script::new("return redis.call('GET', KEYS[1])"));

    #[test]
    fn an_error_repeats_the_beginning_of_a_long_reply() {
        let reply = Value::BulkString(vec![b'x'; 1 << 20]);
        assert!(unexpected(&reply).to_string().len() < 200);
    }

    fn sent(command: &Cmd) -> Vec<String> {
        let args = command.args_iter().filter_map(|arg| match arg {
            redis::Arg::Simple(arg) => Some(String::from_utf8_lossy(arg).into_owned()),
            _ => None,
        });
        args.collect()
    }

    #[test]
    fn a_script_for_sharded_channels_differs_in_its_words_and_in_nothing_else() {
        let call = |sharding| Call::new(&PUBLISHES, 1, 1, 8).arg("x").text(7).on(sharding);
        let (classic, sharded) = (call(Sharding::Classic), call(Sharding::Sharded));
        let text = "return redis.call('SPUBLISH', KEYS[1], ARGV[1])";
        assert_eq!(sent(&sharded.by_text()), ["EVAL", text, "1", "x", "7"]);
        let hash = redis::Script::new(text).get_hash().to_owned();
        assert_eq!(sent(sharded.by_hash()), ["EVALSHA", &*hash, "1", "x", "7"]);
        assert_eq!(sent(&classic.by_text())[1], *PUBLISHES.text);
        assert_eq!(sent(classic.by_hash())[1], PUBLISHES.hash);
        let reads = Call::new(&READS, 1, 0, 8).arg("x").on(Sharding::Sharded);
        assert_eq!(sent(reads.by_hash())[1], READS.hash);
    }
}
