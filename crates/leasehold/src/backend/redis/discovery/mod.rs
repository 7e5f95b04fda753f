//! Where the server is: at one address, or where its sentinels say. Asked before each attempt to connect.

mod group;
mod known;
mod majority;
mod question;
mod sentinels;

use std::{fmt, sync::Arc};

use group::Group;
pub(super) use majority::Tally;
use sentinels::Sentinels;

use super::{
    connect::HungUp,
    restart::RestartLog,
    target::{Login, Target},
};
use crate::{
    backend::{Failure, report::SentinelReport},
    background::BackgroundRuntime,
    error::{Cause, Error},
    sentinel::Sentinel,
};

/// How the URL of a group begins.
const SCHEMES: [&str; 4] = [
    "redis-sentinel",
    "rediss-sentinel",
    "valkey-sentinel",
    "valkeys-sentinel",
];

/// A host and a port.
pub(super) type Address = (String, u16);

/// A server as it was given, before anything is asked.
pub(crate) enum GivenServer {
    At(Box<Target>),
    Named(Box<Group>),
}

impl From<Target> for GivenServer {
    fn from(target: Target) -> Self {
        GivenServer::At(Box::new(target))
    }
}

impl GivenServer {
    /// From a URL, of a server or of its sentinels.
    pub(crate) fn parse(given: &str, login: &Login) -> Result<GivenServer, Error> {
        let scheme = given.split_once("://").map(|(scheme, _)| scheme);
        // Without regard to case, as the parser of URLs reads the schemes of single servers.
        let scheme = scheme.unwrap_or_default().to_ascii_lowercase();
        if SCHEMES.contains(&&*scheme) {
            return Group::parse(given, login)
                .map(Box::new)
                .map(GivenServer::Named);
        }
        Target::parse(given, login).map(GivenServer::from)
    }

    /// By what another library has parsed.
    #[cfg(feature = "redis-1")]
    pub(crate) fn of_info(info: redis::ConnectionInfo, login: &Login) -> Result<Self, Error> {
        Target::of_info(info, login).map(GivenServer::from)
    }

    /// From the settings of a program.
    pub(crate) fn named_by(sentinel: &Sentinel, login: &Login) -> Result<GivenServer, Error> {
        Group::of(sentinel, login)
            .map(Box::new)
            .map(GivenServer::Named)
    }
}

/// Where to connect to.
pub(super) struct Found {
    pub(super) target: Arc<Target>,
    /// How often it had become another by then.
    pub(super) switches: u64,
}

/// Finds the server.
pub(super) enum Discovery {
    At(Arc<Target>),
    Sentinels(Arc<Sentinels>),
}

impl Discovery {
    /// Asks nothing yet.
    pub(super) fn new(
        place: GivenServer,
        background: &BackgroundRuntime,
        restarts: &Arc<RestartLog>,
    ) -> Arc<Discovery> {
        Arc::new(match place {
            // No name is looked up yet: each attempt does that, so an address that leads elsewhere by then is followed.
            GivenServer::At(target) => Discovery::At(Arc::from(target)),
            GivenServer::Named(group) => {
                Discovery::Sentinels(Sentinels::new(*group, background, restarts))
            }
        })
    }

    /// The server to connect to now.
    pub(super) async fn find(&self) -> Result<Found, Failure> {
        match self {
            Discovery::At(target) => Ok(Found {
                target: Arc::clone(target),
                // Only sentinels report switches (`RestartLog::switched`).
                switches: 0,
            }),
            Discovery::Sentinels(sentinels) => sentinels.find().await,
        }
    }

    /// Who may be asked now and then whether the server is another by now; `None`: it is at one address.
    pub(super) fn poller(&self) -> Option<SentinelPoller> {
        let Discovery::Sentinels(sentinels) = self else {
            return None;
        };
        Some(SentinelPoller(Arc::clone(sentinels)))
    }

    /// The answer of each sentinel; empty where no sentinel is asked.
    pub(super) async fn views(&self) -> Vec<SentinelReport> {
        match self {
            Discovery::At(_) => Vec::new(),
            Discovery::Sentinels(sentinels) => sentinels.views().await,
        }
    }

    /// Has the sentinels put another server in the place of the primary.
    pub(super) async fn fail_over(&self) -> Result<(), Failure> {
        match self {
            Discovery::At(_) => Ok(()),
            Discovery::Sentinels(sentinels) => sentinels.fail_over().await,
        }
    }

    /// How many sentinels name another primary than the one that is known.
    pub(super) fn tally(&self) -> Option<Tally> {
        match self {
            Discovery::At(_) => None,
            Discovery::Sentinels(sentinels) => Some(sentinels.tally()),
        }
    }

    /// Whether only a primary will do: a replica is then one that was, or is about to be.
    pub(super) fn wants_primary(&self) -> bool {
        matches!(self, Discovery::Sentinels(_))
    }

    /// There is a connection to this server, or none came about.
    pub(super) fn tried(&self, target: &Target, works: bool) {
        if let Discovery::Sentinels(sentinels) = self {
            sentinels.tried(target, works);
        }
    }

    /// Says at which server an attempt failed, where there are several: a reader looks at the others otherwise.
    pub(super) fn name_server(&self, target: &Target, failure: Failure) -> Failure {
        let part = match self {
            // Not a word of its end, which callers look for.
            _ if failure.cause().is::<HungUp>() => return failure,
            Discovery::Sentinels(_) => "which the sentinels name as the primary",
            Discovery::At(target) if target.in_cluster => "a node of the cluster",
            Discovery::At(_) => return failure,
        };
        let address = target.to_string();
        failure.reported_by(|cause| {
            Arc::new(AtServer {
                address,
                part,
                cause,
            })
        })
    }

    /// Whether the server is a node of a cluster.
    pub(super) fn is_node(&self) -> bool {
        matches!(self, Discovery::At(target) if target.in_cluster)
    }

    pub(super) fn database(&self) -> i64 {
        match self {
            Discovery::At(target) => target.database(),
            Discovery::Sentinels(sentinels) => sentinels.database(),
        }
    }

    /// The client is shut down: nothing is heard any more, and what is asked for is found by asking.
    pub(super) fn shut(&self) {
        if let Discovery::Sentinels(sentinels) = self {
            sentinels.shut();
        }
    }
}

/// Asks sentinels now and then, where messages are missed: of a user that may not hear them, or of a connection that is dead.
pub(super) struct SentinelPoller(Arc<Sentinels>);

impl SentinelPoller {
    pub(super) async fn poll(&self) {
        self.0.poll().await;
    }

    /// Nothing is asked for a while.
    pub(super) fn rest(&self) {
        self.0.rest();
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{address}, {part}: {cause}")]
struct AtServer {
    address: String,
    part: &'static str,
    cause: Cause,
}

/// Without secrets.
impl fmt::Display for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Discovery::At(target) => target.fmt(f),
            Discovery::Sentinels(sentinels) => sentinels.fmt(f),
        }
    }
}
