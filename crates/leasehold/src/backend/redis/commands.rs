//! The lane for commands: one multiplexed connection, replaced when it breaks.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, RedisError, RedisResult, RetryMethod,
    ServerErrorKind, Value, aio::MultiplexedConnection,
};
use tokio::sync::Notify;

use super::{
    script::{self, Call},
    target::Target,
};
use crate::{
    backend::Failure,
    config::Config,
    error::{Cause, Error},
};

/// So many unanswered commands in a row, and the connection is taken for dead: a half-open socket never says so.
const SILENT: u32 = 2;

/// Between attempts to reconnect: this, doubled up to the most.
const RECONNECT_FIRST: Duration = Duration::from_millis(20);
const RECONNECT_MOST: Duration = Duration::from_secs(1);

pub(super) struct Commands {
    shared: Arc<Shared>,
}

struct Shared {
    target: Arc<Target>,
    /// Under which name `CLIENT LIST` shows us.
    name: String,
    connect_timeout: Duration,
    operation_timeout: Duration,
    lane: RwLock<Lane>,
    changed: Notify,
    /// Commands in a row without an answer.
    silent: AtomicU32,
}

enum Lane {
    Up {
        connection: MultiplexedConnection,
        /// Tells a broken connection from the one that has replaced it already.
        number: u64,
    },
    /// A task is at work on it; `cause` is why its last attempt failed.
    Down { number: u64, cause: Cause },
}

impl Commands {
    pub(super) async fn connect(
        target: Arc<Target>,
        name: String,
        config: &Config,
    ) -> Result<Commands, Error> {
        let doing = format!("connect to {target}");
        let mut shared = Shared {
            target,
            name,
            connect_timeout: config.connect_timeout,
            operation_timeout: config.operation_timeout,
            lane: RwLock::new(Lane::Down {
                number: 0,
                cause: Arc::new(NotYet),
            }),
            changed: Notify::new(),
            silent: AtomicU32::new(0),
        };
        match shared.dial().await {
            Ok(connection) => {
                *shared.lane.get_mut() = Lane::Up {
                    connection,
                    number: 1,
                };
                Ok(Commands {
                    shared: Arc::new(shared),
                })
            }
            Err(failure) => Err(failure.into_error(doing, Duration::ZERO)),
        }
    }

    /// Calls a script. Every outcome comes within the operation timeout, and says what the server may hold.
    pub(super) async fn call(&self, call: Call) -> Result<Value, Failure> {
        let sent = match call.behind_another() {
            None => self.send(call.by_hash()).await,
            Some(both) => self.send_second(&both).await,
        };
        match sent {
            Err(Sent::Failed(error)) if script::is_unknown(&error) => {
                self.send(&call.by_text()).await.map_err(Sent::failure)
            }
            other => other.map_err(Sent::failure),
        }
    }

    /// Sends a plain command.
    pub(super) async fn command(&self, command: &redis::Cmd) -> Result<Value, Failure> {
        self.send(command).await.map_err(Sent::failure)
    }

    async fn send(&self, command: &redis::Cmd) -> Result<Value, Sent> {
        let (mut connection, number) = self.shared.connection().await?;
        let answer = connection.send_packed_command(command).await;
        self.answered(answer, number)
    }

    /// Sends both and returns the answer to the second.
    async fn send_second(&self, both: &redis::Pipeline) -> Result<Value, Sent> {
        let (mut connection, number) = self.shared.connection().await?;
        let answers = connection.send_packed_commands(both, 1, 1).await;
        // A missing one is refused as unexpected by whoever reads it.
        let answer = answers.map(|mut answers| answers.pop().unwrap_or(Value::Nil));
        self.answered(answer, number)
    }

    fn answered(&self, answer: RedisResult<Value>, number: u64) -> Result<Value, Sent> {
        match answer {
            Ok(value) => {
                self.shared.silent.store(0, Ordering::Relaxed);
                value
                    .extract_error()
                    .map_err(|error| self.failed(error, number))
            }
            Err(error) => Err(self.failed(error, number)),
        }
    }

    fn failed(&self, error: RedisError, number: u64) -> Sent {
        let silent = if error.is_timeout() {
            self.shared.silent.fetch_add(1, Ordering::Relaxed) + 1 >= SILENT
        } else {
            false
        };
        if silent || needs_new_connection(&error) {
            Shared::replace(&self.shared, number, Arc::new(error.clone()));
        }
        Sent::Failed(error)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("not connected yet")]
struct NotYet;

/// What became of one command.
enum Sent {
    Not(Cause),
    Failed(RedisError),
}

impl Sent {
    fn failure(self) -> Failure {
        match self {
            Sent::Not(cause) => Failure::NotSent(cause),
            Sent::Failed(error) => classify(error),
        }
    }
}

/// What the server may hold after this error.
fn classify(error: RedisError) -> Failure {
    let passing = matches!(
        error.kind(),
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
                | ServerErrorKind::ReadOnly
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::TryAgain
        )
    ) || matches!(error.code(), Some("BUSY" | "OOM"));
    let answered = matches!(
        error.kind(),
        ErrorKind::Server(_)
            | ErrorKind::Extension
            | ErrorKind::AuthenticationFailed
            | ErrorKind::UnexpectedReturnType
    );
    let cause = Arc::new(error);
    if passing {
        Failure::NotNow(cause)
    } else if answered {
        Failure::Rejected(cause)
    } else {
        Failure::Ambiguous(cause)
    }
}

/// Whether the next command is better sent on another connection. A server that has become a replica keeps
/// its connections, and says READONLY for ever.
fn needs_new_connection(error: &RedisError) -> bool {
    matches!(
        error.retry_method(),
        RetryMethod::Reconnect | RetryMethod::ReconnectFromInitialConnections
    ) || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
}

impl Shared {
    /// The connection; if there is none, waits for one as long as a command may take.
    async fn connection(&self) -> Result<(MultiplexedConnection, u64), Sent> {
        if let Some(up) = self.up() {
            return Ok(up);
        }
        let deadline = tokio::time::Instant::now() + self.operation_timeout;
        loop {
            let changed = self.changed.notified();
            if let Some(up) = self.up() {
                return Ok(up);
            }
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                let cause = match &*self.lane.read() {
                    Lane::Down { cause, .. } => Arc::clone(cause),
                    Lane::Up { .. } => continue,
                };
                return Err(Sent::Not(cause));
            }
        }
    }

    fn up(&self) -> Option<(MultiplexedConnection, u64)> {
        match &*self.lane.read() {
            Lane::Up { connection, number } => Some((connection.clone(), *number)),
            Lane::Down { .. } => None,
        }
    }

    /// The connection `number` is broken: drops it and reconnects in the background. Once per connection.
    fn replace(self: &Arc<Self>, number: u64, cause: Cause) {
        let mut lane = self.lane.write();
        match &*lane {
            Lane::Up {
                number: present, ..
            } if *present == number => {}
            _ => return, // somebody else was faster
        }
        tracing::warn!(server = %self.target, %cause, "connection lost, reconnecting");
        *lane = Lane::Down { number, cause };
        drop(lane);
        self.silent.store(0, Ordering::Relaxed);
        tokio::spawn(Shared::reconnect(Arc::downgrade(self)));
    }

    /// Ends when there is a connection, or nobody who wants one.
    async fn reconnect(shared: Weak<Shared>) {
        let mut pause = RECONNECT_FIRST;
        loop {
            let Some(strong) = shared.upgrade() else {
                return;
            };
            match strong.dial().await {
                Ok(connection) => {
                    let mut lane = strong.lane.write();
                    let number = match &*lane {
                        Lane::Down { number, .. } | Lane::Up { number, .. } => number + 1,
                    };
                    *lane = Lane::Up { connection, number };
                    drop(lane);
                    strong.changed.notify_waiters();
                    tracing::info!(server = %strong.target, "connected again");
                    return;
                }
                Err(failure) => {
                    if let Lane::Down { cause, .. } = &mut *strong.lane.write() {
                        *cause = Arc::clone(failure.cause());
                    }
                }
            }
            drop(strong);
            tokio::time::sleep(pause / 2 + pause.mul_f64(fastrand::f64() / 2.0)).await;
            pause = (pause * 2).min(RECONNECT_MOST);
        }
    }

    /// One attempt to connect, log in, and be recognised as a Redis server's client.
    async fn dial(&self) -> Result<MultiplexedConnection, Failure> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.operation_timeout));
        let dialling = async {
            let client = Client::open(self.target.info.clone())?;
            let mut connection = client
                .get_multiplexed_async_connection_with_config(&config)
                .await?;
            let mut name = redis::cmd("CLIENT");
            name.arg("SETNAME").arg(&self.name);
            let named = connection.send_packed_command(&name).await;
            match named.and_then(Value::extract_error) {
                // A server that forbids CLIENT is a Redis server all the same; one that wants a password first
                // refuses everything.
                Err(error)
                    if error.code() == Some("NOAUTH")
                        || !matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) =>
                {
                    Err(error)
                }
                _ => Ok(connection),
            }
        };
        // The login is part of it, and has no timeout of its own.
        match tokio::time::timeout(self.connect_timeout, dialling).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) if error.kind() == ErrorKind::Parse => {
                Err(Failure::Rejected(Arc::new(NotRedis(error))))
            }
            Ok(Err(error)) if error.is_timeout() => {
                Err(Failure::NotSent(Arc::new(Silent(self.connect_timeout))))
            }
            Ok(Err(error)) if error.is_io_error() => Err(Failure::NotSent(Arc::new(error))),
            Ok(Err(error)) => Err(match classify(error) {
                Failure::Ambiguous(cause) => Failure::NotSent(cause),
                other => other,
            }),
            Err(_) => Err(Failure::NotSent(Arc::new(Silent(self.connect_timeout)))),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("whoever listens there does not speak Redis' protocol; check host and port")]
struct NotRedis(#[source] RedisError);

#[derive(Debug, thiserror::Error)]
#[error("no answer within {0:?}; check host and port, or raise the connect timeout")]
struct Silent(Duration);
