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
        scripts.any(|script| script.text.contains(&format!("'{command}'")))
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.args().take(self.keys)
    }

    /// The keys, and the arguments behind them.
    fn args(&self) -> impl Iterator<Item = &[u8]> {
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
        command.arg("EVAL").arg(self.script.text).arg(self.keys);
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
        (self.script.text, self.args().map(<[u8]>::to_vec).collect())
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
    let reply = format!("{reply:?}");
    RedisError::from((
        ErrorKind::UnexpectedReturnType,
        "not an answer of this script",
        reply,
    ))
}
