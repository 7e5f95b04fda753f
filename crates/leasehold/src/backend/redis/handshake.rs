//! The handshake of a new connection: the server learns who the client is, and says what it is itself.

use std::{fmt, sync::Arc, time::Duration};

use redis::{ErrorKind, RedisConnectionInfo, RedisError, Value};

use super::{
    connect::{DialProgress, NoConnection, is_hang_up},
    exchange::Connection,
    failure::{classify, refuses_all},
    restart::ServerIds,
    rights::Rights,
    target::Target,
};
use crate::{
    address::shown,
    backend::{Failure, report::field},
};

/// The id that tells a server apart from others for all processes, whichever address they use.
#[derive(Clone, Debug)]
pub(super) enum ServerId {
    /// It has not been asked, or could not say it just then.
    NotYet,
    /// Each start of a server makes a new one.
    RunId(String),
    /// It does not say: our user may not ask.
    Refused,
}

impl ServerId {
    /// From the answer to `INFO`.
    pub(super) fn of(info: Result<Value, Failure>) -> ServerId {
        let info = match info {
            Ok(info) => text(info),
            Err(failure) if failure.is_final() => return ServerId::Refused,
            Err(_) => return ServerId::NotYet,
        };
        let id = field(&info, "run_id");
        id.map_or(ServerId::Refused, |id| ServerId::RunId(id.to_owned()))
    }
}

/// The answers of a server in the handshake.
pub(super) struct Handshake {
    pub(super) identity: ServerId,
    /// `None`: it does not say.
    pub(super) ids: Option<ServerIds>,
    /// For how long it has been up, in whole seconds.
    pub(super) up: Option<Duration>,
    /// It takes its data from another.
    pub(super) is_replica: bool,
    /// Its answer to `INFO replication`; empty: none.
    pub(super) replication: String,
    pub(super) outlook: Outlook,
    /// The connection has the name that the client gave it.
    pub(super) is_named: bool,
    /// Which commands it refuses to the user.
    pub(super) rights: Result<Value, RedisError>,
    /// It refuses every request, for now.
    pub(super) refuses_all: bool,
}

/// Whether a server keeps the locks that it was told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    /// It was not asked, or has not said.
    Unknown,
    Good,
    Bad(Danger),
}

/// Why a server may forget locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Danger {
    /// It deletes keys when its memory is full, by this policy.
    Evicts(String),
    /// It is a replica of this primary.
    Replica { of: String, takes_writes: bool },
}

impl Danger {
    /// From the answers to `INFO memory` and `INFO replication`.
    fn of(memory: &str, replication: &str) -> Option<Danger> {
        if field(replication, "role") == Some("slave") {
            let of = |name| field(replication, name).unwrap_or("?");
            return Some(Danger::Replica {
                of: format!("{}:{}", of("master_host"), of("master_port")),
                takes_writes: field(replication, "slave_read_only") == Some("0"),
            });
        }
        let policy = field(memory, "maxmemory_policy")?;
        // Without a limit it never evicts.
        let is_limited = field(memory, "maxmemory").is_some_and(|most| most != "0");
        // The keys of locks have an end, so the policies for such keys find them, too.
        (is_limited && policy != "noeviction").then(|| Danger::Evicts(policy.to_owned()))
    }
}

impl fmt::Display for Danger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Danger::Evicts(policy) => write!(
                f,
                "the server deletes keys when its memory is full (maxmemory-policy {policy}), and a lock whose key it deletes \
                 may have two holders; set maxmemory-policy noeviction, or use a server of its own for locks"
            ),
            Danger::Replica {
                of,
                takes_writes: false,
            } => write!(
                f,
                "the server is a replica of {of}, which takes no locks and forgets what its primary forgets; connect to the \
                 primary"
            ),
            Danger::Replica {
                of,
                takes_writes: true,
            } => write!(
                f,
                "the server is a replica of {of} that takes writes, and loses them when it follows its primary again, so a lock \
                 may have two holders; connect to the primary"
            ),
        }
    }
}

/// The first questions on a connection, and how many answers there will be.
fn questions(name: &str, asks_for_danger: bool) -> redis::Pipeline {
    let mut questions = redis::pipe();
    questions.cmd("CLIENT").arg("SETNAME").arg(name);
    // A server outside of a cluster, or one that forbids it, answers with an error.
    questions.cmd("CLUSTER").arg("MYID");
    // Redis 6.2 tells one section at a time, or all.
    questions.cmd("INFO").arg("server");
    questions.cmd("INFO").arg("replication");
    questions.add_command(Rights::question());
    if asks_for_danger {
        questions.cmd("INFO").arg("memory");
    }
    questions
}

impl Target {
    /// A connection after its handshake: under this name the client stands in `CLIENT LIST`.
    pub(super) async fn handshake(
        &self,
        name: &str,
        asks_for_danger: bool,
        progress: &DialProgress,
    ) -> Result<(Connection, Handshake), NoConnection> {
        match self.try_handshake(name, asks_for_danger, progress).await {
            // A server that ends hangs up as a proxy does that does not know a command: only a search tells them apart (bug 282).
            Err(NoConnection::Redis(error)) if is_hang_up(&error) => {
                let why = self.why_hung_up(progress).await;
                Err(why.unwrap_or_else(|| error.into()))
            }
            handshake => handshake,
        }
    }

    async fn try_handshake(
        &self,
        name: &str,
        asks_for_danger: bool,
        progress: &DialProgress,
    ) -> Result<(Connection, Handshake), NoConnection> {
        let mut login = self.login(progress).await?;
        let mut made = self.commands(&login.settings, progress).await;
        // Once more, and not a third time: the provider may have answered just before the password was changed.
        if self.may_be_outdated(&made) {
            login = self.login(progress).await?;
            made = self.commands(&login.settings, progress).await;
        }
        let connection = match made {
            Err(NoConnection::Redis(error)) if is_answer(&error) => {
                // A Sentinel has no databases, and mostly other users than its servers.
                if self.is_sentinel(progress).await {
                    return Err(NoConnection::Unfit(Arc::new(self.sentinel())));
                }
                return Err(error.into());
            }
            other => other?,
        };
        let questions = questions(name, asks_for_danger);
        let answers = connection.commands(&questions).await?;
        let mut answers = answers.into_iter();
        // A question that was not asked reads as nil here, which is no refusal.
        let mut next = || answers.next().unwrap_or(Value::Nil).extract_error();
        let (named, cluster, server) = (next(), next(), next());
        let (replication, rights, memory) = (next(), next(), next());
        if !self.in_cluster && matches!(cluster, Ok(Value::BulkString(_))) {
            return Err(NoConnection::Unfit(Arc::new(self.in_cluster())));
        }
        // Only by these words: a node refuses `CLUSTER MYID` to a user without the right to it as well.
        if self.in_cluster && cluster.as_ref().is_err_and(says_alone) {
            return Err(NoConnection::Unfit(Arc::new(self.alone())));
        }
        if server.as_ref().is_ok_and(says_sentinel) {
            return Err(NoConnection::Unfit(Arc::new(self.sentinel())));
        }
        let first = [&named, &cluster, &server];
        let refuses_all = first
            .iter()
            .any(|answer| answer.as_ref().is_err_and(refuses_all));
        let is_named = named.is_ok();
        match named {
            // A server that forbids CLIENT is a Redis server all the same; one that wants a password first
            // refuses everything.
            Err(error) if error.code() == Some("NOAUTH") || !is_answer(&error) => Err(error.into()),
            _ => {
                let said = |answer: &Result<Value, _>| answer.clone().map(text);
                let about = said(&replication).unwrap_or_default();
                let of_server = said(&server).unwrap_or_default();
                // Every version of Redis and of Valkey says `slave` here.
                let is_replica = field(&about, "role") == Some("slave");
                let outlook = match (memory, replication) {
                    // A node may become a replica, and is then left.
                    (Ok(memory), Ok(_)) if asks_for_danger && !(self.in_cluster && is_replica) => {
                        Danger::of(&text(memory), &about).map_or(Outlook::Good, Outlook::Bad)
                    }
                    _ => Outlook::Unknown,
                };
                let up = field(&of_server, "uptime_in_seconds");
                let handshake = Handshake {
                    ids: ServerIds::of(&of_server, &about),
                    up: up.and_then(|up| up.parse().ok()).map(Duration::from_secs),
                    is_replica,
                    replication: about,
                    identity: ServerId::of(server.map_err(classify)),
                    outlook,
                    is_named,
                    rights,
                    refuses_all,
                };
                // Only now: a connection that the handshake has refused is dropped, and needs no new login.
                self.keep_logged_in(&connection, &login);
                Ok((connection, handshake))
            }
        }
    }

    /// The refusal of a node of a cluster, with the URL that finds the others.
    fn in_cluster(&self) -> InCluster {
        InCluster(self.url("-cluster"))
    }

    /// The refusal of a server that is in no cluster, with its URL.
    fn alone(&self) -> OutsideCluster {
        OutsideCluster(self.url(""))
    }

    /// Without its login, which stands before the host.
    fn url(&self, topology: &str) -> String {
        let scheme = if self.speaks_tls() { "rediss" } else { "redis" };
        let address = shown(&self.address().unwrap_or_default());
        let database = match self.database() {
            0 => String::new(),
            database => format!("/{database}"),
        };
        format!("{scheme}{topology}://{address}{database}")
    }

    /// The refusal of a Sentinel, with the URL that asks it.
    fn sentinel(&self) -> IsSentinel {
        let address = self.address().unwrap_or_default();
        IsSentinel {
            scheme: if self.speaks_tls() { "rediss" } else { "redis" },
            address: shown(&address),
        }
    }

    /// Whether a server that has refused the login is a Sentinel, which says so without one.
    async fn is_sentinel(&self, progress: &DialProgress) -> bool {
        let no_login = RedisConnectionInfo::default();
        let Ok(connection) = self.commands(&no_login, progress).await else {
            return false;
        };
        let mut info = redis::cmd("INFO");
        let said = connection.command(info.arg("server")).await;
        said.is_ok_and(|info| says_sentinel(&info))
    }
}

/// Whether the server has said it, in answer to a command.
fn is_answer(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed
    )
}

/// It was started without `cluster-enabled`.
fn says_alone(error: &RedisError) -> bool {
    error
        .detail()
        .unwrap_or_default()
        .contains("cluster support disabled")
}

fn says_sentinel(info: &Value) -> bool {
    let info = text(info.clone());
    // Redis' name of it, and Valkey's.
    ["redis_mode", "server_mode"]
        .iter()
        .any(|mode| field(&info, mode) == Some("sentinel"))
}

/// An answer to `INFO`.
pub(super) fn text(info: Value) -> String {
    redis::from_redis_value(info).unwrap_or_default()
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the server is a node of a cluster; give {0}, with one or more of its nodes, and it is asked for the others"
)]
struct InCluster(String);

#[derive(Debug, thiserror::Error)]
#[error("the server is in no cluster; give its own URL, {0}")]
struct OutsideCluster(String);

#[derive(Debug, thiserror::Error)]
#[error(
    "the server is a Sentinel, which keeps no locks; give {scheme}-sentinel://{address}/?master=NAME, with the name of the primary, and \
     it is asked where that is"
)]
struct IsSentinel {
    scheme: &'static str,
    address: String,
}
