//! Sends a script: by its hash, and with its text to a server that does not know it (yet, or any more).

use std::{fmt::Display, sync::LazyLock};

use redis::{
    Cmd, ErrorKind, Pipeline, RedisError, RedisWrite, ServerErrorKind, ToRedisArgs, Value,
};

/// A `.lua` file and its hash.
pub(super) struct Script {
    text: &'static str,
    hash: String,
}

impl Script {
    pub(super) fn new(text: &'static str) -> Script {
        let hash = redis::Script::new(text).get_hash().to_owned();
        Script { text, hash }
    }
}

/// A script of the server's files, made when it is first used.
pub(super) type Lazy = LazyLock<Script>;

/// One call of a script. Keys first, then arguments, in the order of the script's header.
pub(super) struct Call {
    script: &'static Script,
    by_hash: Cmd,
    keys: usize,
    answer_last: bool,
    only_reads: bool,
    undone_by: Option<&'static Script>,
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
            only_reads: false,
            undone_by: None,
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

    /// It takes what only this other script gives back: a user that may not call that one is to take nothing.
    pub(super) fn undone_by(mut self, script: &'static Script) -> Call {
        self.undone_by = Some(script);
        self
    }

    /// The texts that must not be refused halfway.
    pub(super) fn changes(&self) -> impl Iterator<Item = &'static str> {
        let own = (!self.only_reads).then_some(self.script);
        own.into_iter()
            .chain(self.undone_by)
            .map(|script| script.text)
    }

    pub(super) fn by_hash(&self) -> &Cmd {
        &self.by_hash
    }

    /// The call with something to be answered before it. Skip the first answer; it may be a refusal.
    pub(super) fn behind_another(&self) -> Option<Pipeline> {
        self.answer_last.then(|| {
            let mut both = Pipeline::with_capacity(2);
            both.cmd("PING").add_command(self.by_hash.clone());
            both
        })
    }

    /// The same call with the text of the script, which the server keeps from then on.
    pub(super) fn by_text(&self) -> Cmd {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(self.script.text).arg(self.keys);
        for arg in self.by_hash.args_iter().skip(3) {
            if let redis::Arg::Simple(arg) = arg {
                command.arg(arg);
            }
        }
        command
    }
}

/// In a simulation: what is called.
#[cfg(feature = "sim")]
impl Call {
    pub(super) fn keys(&self) -> usize {
        self.keys
    }

    /// The text of the script, and its keys and arguments.
    pub(super) fn parts(&self) -> (&'static str, Vec<Vec<u8>>) {
        let args = self.by_hash.args_iter().skip(3);
        let args = args.filter_map(|arg| match arg {
            redis::Arg::Simple(arg) => Some(arg.to_vec()),
            _ => None,
        });
        (self.script.text, args.collect())
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

/// A reply that no script of ours gives.
pub(super) fn unexpected(reply: &Value) -> RedisError {
    let reply = format!("{reply:?}");
    RedisError::from((
        ErrorKind::UnexpectedReturnType,
        "not an answer of this script",
        reply,
    ))
}
