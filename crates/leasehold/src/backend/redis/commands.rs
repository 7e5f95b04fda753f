//! Sends commands. The result of each says what the server may hold.

use std::{io, pin::pin, sync::Arc, time::Duration};

use redis::{RedisError, RedisResult, RetryMethod, Value};

use super::{
    connections::{Connections, Dialler, NoWay},
    discovery::Discovery,
    exchange::{Packed, Unanswered},
    failure::{classify, in_words, is_read_only, refuses_all},
    handshake::ServerId,
    restart::RestartLog,
    script::{self, Call},
    sharding::Sharding,
};
use crate::{
    backend::Failure, background::BackgroundRuntime, config::Config, durations::humane,
    outage::Outage,
};

pub(super) struct Commands {
    pub(super) connections: Arc<Connections>,
    outage: Arc<Outage>,
    background: BackgroundRuntime,
    /// For a connection, and again for the answer.
    timeout: Duration,
}

impl Commands {
    /// Sends nothing yet.
    pub(super) fn new(
        lead: (Arc<Discovery>, Arc<RestartLog>),
        name: String,
        config: &Config,
        background: &BackgroundRuntime,
        outage: Arc<Outage>,
    ) -> Commands {
        let dialler = Dialler::new(lead, name, config, Arc::clone(&outage));
        Commands {
            connections: Connections::new(dialler, background),
            outage,
            background: background.clone(),
            timeout: config.operation_timeout,
        }
    }

    /// Whether the server shows our connections under their name. It says so to a connection, which is made first if there was none.
    pub(super) async fn is_named(&self) -> Result<bool, Failure> {
        let way = self.connections.way(self.timeout).await;
        way.map_err(|none| SendFailure::from(none).failure())?;
        Ok(self.connections.is_named())
    }

    /// Asks the server which one it is.
    pub(super) async fn identify(&self) -> Result<(), Failure> {
        let mut info = redis::cmd("INFO");
        let answer = match self.send(Request::Command(info.arg("server"))).await {
            Ok(info) => Ok(info),
            Err(SendFailure::Failed(error)) => Err(classify(error)),
            Err(other) => return Err(other.failure()),
        };
        // A server that is not ready says nothing about the right to `INFO`: the caller asks again. A final refusal is an answer.
        let later = answer.as_ref().err().filter(|failure| !failure.is_final());
        let later = later.cloned();
        self.connections.learn(ServerId::of(answer));
        later.map_or(Ok(()), Err)
    }

    /// Asks a node of a cluster on which channels its clients wake each other.
    pub(super) async fn sharding(&self) -> Result<Sharding, Failure> {
        let answer = match self.send(Request::Command(&Sharding::question())).await {
            // Kept as an error: `Sharding::of` takes a refusal for an answer, which means classic channels.
            Err(SendFailure::Failed(error)) => Err(error),
            answer => Ok(answer.map_err(SendFailure::failure)?),
        };
        Sharding::of(answer).map_err(classify)
    }

    /// Calls a script. Every outcome comes within twice the operation timeout, and says what the server may hold.
    pub(super) async fn call(&self, call: Call) -> Result<Value, Failure> {
        let rights = self.connections.rights();
        if rights.check(&call).is_err() {
            // It may be permitted with the keys of this call, or have been given since.
            let answer = self.command(&rights.question_about(&call)).await?;
            rights.learn(Ok(answer)).check(&call)?;
        }
        let sent = match call.behind_another() {
            None => self.send(Request::Command(call.by_hash())).await,
            Some(both) => self.send(Request::Second(&both)).await,
        };
        match sent {
            // The server has run nothing, so the text is no second copy. `EVAL` has it kept, for one round trip less than `SCRIPT LOAD`.
            Err(SendFailure::Failed(error)) if script::is_unknown(&error) => {
                let sent = match call.by_text_behind_another() {
                    None => self.send(Request::Command(&call.by_text())).await,
                    Some(both) => self.send(Request::Second(&both)).await,
                };
                sent.map_err(SendFailure::failure)
            }
            other => other.map_err(SendFailure::failure),
        }
    }

    /// Calls these scripts, and then sends a command, in one write. Each has an answer of its own, or all have none.
    pub(super) async fn all(
        &self,
        calls: &[Call],
        last: &redis::Cmd,
    ) -> Result<Vec<RedisResult<Value>>, Failure> {
        let answers = self
            .each(calls, last, |call| call.by_hash().clone())
            .await?;
        let is_unknown =
            |answer: &RedisResult<Value>| answer.as_ref().is_err_and(script::is_unknown);
        if answers.iter().any(is_unknown) {
            // All are sent again, also those that ran: renewals commute (B2), and `WAIT` needs a write just before it on its own
            // connection.
            return self.each(calls, last, Call::by_text).await;
        }
        Ok(answers)
    }

    async fn each(
        &self,
        calls: &[Call],
        last: &redis::Cmd,
        command: impl Fn(&Call) -> redis::Cmd,
    ) -> Result<Vec<RedisResult<Value>>, Failure> {
        let mut all = redis::Pipeline::with_capacity(calls.len() + 1);
        for call in calls {
            if call.is_asking() {
                all.cmd("ASKING").ignore();
            }
            all.add_command(command(call));
        }
        all.add_command(last.clone());
        let sent = self.send(Request::All(&all)).await;
        let Value::Array(answers) = sent.map_err(SendFailure::failure)? else {
            return Ok(Vec::new());
        };
        let mut answers = answers.into_iter();
        let of_calls = calls.iter().map(Call::is_asking).chain([false]);
        // The answer to an `ASKING` says nothing of the call behind it.
        let of_calls = of_calls.filter_map(|asks| answers.nth(usize::from(asks)));
        Ok(of_calls.map(Value::extract_error).collect())
    }

    /// Sends a plain command.
    pub(super) async fn command(&self, command: &redis::Cmd) -> Result<Value, Failure> {
        let sent = self.send(Request::Command(command)).await;
        sent.map_err(SendFailure::failure)
    }

    /// A request that has not left this process, because its connection had ended before it, goes on the next connection.
    async fn send(&self, request: Request<'_>) -> Result<Value, SendFailure> {
        let mut again = true;
        loop {
            match self.send_once(request).await {
                Err(SendFailure::Unwritten(_)) if again => again = false,
                other => return other,
            }
        }
    }

    async fn send_once(&self, request: Request<'_>) -> Result<Value, SendFailure> {
        let way = self.connections.way(self.timeout).await?;
        let answer = {
            let asking = pin!(way.connection.ask(request.packed()));
            self.background.within_here(self.timeout, asking).await
        };
        let mut each = None;
        let answer = match answer {
            // A late word of a server that is the primary no more: the request is repeated to the one that is.
            Some(Ok(_)) if way.connection.is_void() => {
                Err(io::Error::from(io::ErrorKind::ConnectionAborted).into())
            }
            Some(Ok(value)) => {
                each = matches!(request, Request::All(_)).then(|| value.clone());
                value.extract_error()
            }
            // Nothing of it has left, so it may be sent once more as if it had never been (B5).
            Some(Err(Unanswered {
                error,
                is_unsent: true,
            })) => {
                way.ended();
                return Err(SendFailure::Unwritten(error));
            }
            Some(Err(Unanswered { error, .. })) => {
                way.broken(&error);
                Err(error)
            }
            None => {
                let late = format!("no answer within {}", humane(self.timeout));
                let late = io::Error::new(io::ErrorKind::TimedOut, late);
                let late = RedisError::from(late);
                way.silent(&late, self.timeout).await;
                self.outage.goes_on(&in_words(late.clone()));
                // A timeout is ambiguous: the server may carry the request out yet.
                return Err(SendFailure::Failed(late));
            }
        };
        if answer.is_ok() {
            self.outage.is_over();
        }
        let answer = answer.map_err(|error| {
            self.is_refused(&error);
            // A timeout that is not this library's is the kernel's, which has given the peer up.
            if needs_new_connection(&error) || error.is_timeout() {
                way.broken(&error);
            } else if is_read_only(&error) {
                // A server that has become a replica keeps its connections, and says so for ever.
                way.unsuitable(&error);
            }
            SendFailure::Failed(error)
        });
        // An error among several answers says nothing of the others.
        each.map_or(answer, Ok)
    }
}

impl Commands {
    /// Notes what a failed request says of the server. A connection that broke says nothing yet: the next attempt to connect does.
    fn is_refused(&self, error: &RedisError) {
        match classify(error.clone()) {
            // To those that run the program a server that refuses every request is an outage, although it answers (bug 191).
            Failure::NotNow(cause) if refuses_all(error) => self.outage.goes_on(&cause),
            Failure::NotNow(cause) => self.outage.refuses(&cause),
            // A server that refuses a request for good has answered it, so it can be used.
            Failure::Rejected(_) => self.outage.is_over(),
            Failure::NotSent(_) | Failure::Ambiguous(_) => {}
        }
    }
}

/// The commands that are sent together.
#[derive(Clone, Copy)]
enum Request<'a> {
    Command(&'a redis::Cmd),
    /// Two commands; the answer is that to the second.
    Second(&'a redis::Pipeline),
    /// The answer is all of theirs.
    All(&'a redis::Pipeline),
}

impl Request<'_> {
    fn packed(self) -> Packed {
        match self {
            Request::Command(command) => Packed::command(command),
            // The skipped answer is passed over also if it is an error, as of a user that may not call `PING`.
            Request::Second(both) => Packed::second(both),
            Request::All(all) => Packed::all(all),
        }
    }
}

/// Why one command has no answer.
enum SendFailure {
    No(NoWay),
    /// The connection had ended before anything of it was written.
    Unwritten(RedisError),
    Failed(RedisError),
}

impl From<NoWay> for SendFailure {
    fn from(none: NoWay) -> Self {
        SendFailure::No(none)
    }
}

impl SendFailure {
    fn failure(self) -> Failure {
        match self {
            SendFailure::No(NoWay::Down(cause)) => Failure::NotSent(cause),
            SendFailure::No(NoWay::Refused(cause)) => Failure::Rejected(cause),
            // Another try gets the same.
            SendFailure::No(NoWay::Gone(gone)) => Failure::Rejected(Arc::new(gone)),
            SendFailure::Unwritten(error) => Failure::NotSent(in_words(error)),
            SendFailure::Failed(error) => classify(error),
        }
    }
}

/// Whether the next command is better sent on another connection.
fn needs_new_connection(error: &RedisError) -> bool {
    matches!(
        error.retry_method(),
        RetryMethod::Reconnect | RetryMethod::ReconnectFromInitialConnections
    )
}
