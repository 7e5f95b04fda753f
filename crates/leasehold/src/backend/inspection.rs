//! A server's knowledge of a lock, its holders and its waiters, and of itself.

use std::{collections::HashMap, time::Duration};

use crate::{clock::Tick, kind::Access};

/// The holders of a lock, as the server sees it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inspection {
    pub(crate) owners: Vec<Owned>,
    /// Clients that listen for it.
    pub(crate) listeners: u64,
    /// How many permits are free, if it has any.
    pub(crate) available: Option<i64>,
    /// The last fencing token that was given or reserved, if there is one.
    pub(crate) token: Option<u64>,
    /// The clients that wait in our queue, or in that of a fair mutex, next first; at most [`QUEUED_MOST`].
    pub(crate) queue: Vec<QueuedOwner>,
    /// The server that was asked, by its address.
    pub(crate) server: String,
    /// When the answer was there.
    pub(crate) looked: Tick,
    /// It says that it is a replica of another.
    pub(crate) is_replica: bool,
    /// Of a quorum: the word of each server.
    pub(crate) votes: Vec<SeenVote>,
}

/// The word of one server of a quorum.
#[derive(Clone, Debug)]
pub(crate) struct SeenVote {
    pub(crate) server: String,
    /// Its holder; `None`: it is free there.
    pub(crate) answer: Result<Option<Owned>, String>,
    /// It may have forgotten locks, and has no vote for so long.
    pub(crate) quarantine: Option<Duration>,
}

/// How many places of a queue are listed; the scripts that list them say the same.
pub(crate) const QUEUED_MOST: usize = 100;

/// A place in a queue, as the server sees it.
#[derive(Clone, Debug)]
pub(crate) struct QueuedOwner {
    /// As of a holder.
    pub(crate) owner: String,
    pub(crate) access: Access,
    pub(crate) client: KnownClient,
}

/// A hold, as the server sees it.
#[derive(Clone, Debug)]
pub(crate) struct Owned {
    /// `<client uuid>:<lease id>`, or the field that Redisson writes.
    pub(crate) owner: String,
    pub(crate) access: Access,
    /// How often it has entered.
    pub(crate) holds: u64,
    /// The time left; `None` without an end.
    pub(crate) ttl: Option<Duration>,
    pub(crate) client: KnownClient,
}

/// A client, as far as the server knows it beside the owner fields.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownClient {
    /// Its uuid, if it has a label there.
    pub(crate) uuid: Option<String>,
    /// The label that it gave itself.
    pub(crate) label: Option<String>,
    /// Whether a connection of it is there; `None`: that cannot be told.
    pub(crate) connected: Option<bool>,
    /// Nothing has come on its connections for so long; `None` if none is known.
    pub(crate) idle: Option<Duration>,
    /// It has written, with its label, that its connections have names: one that has none is missed.
    pub(crate) is_named: bool,
}

/// The clients of the servers, by their connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectedClients {
    /// By uuid: nothing has come on its connections for so long.
    pub(crate) idle: HashMap<String, Duration>,
    /// Any client of ours that is connected is among them.
    pub(crate) all: bool,
}

/// Facts that a server has told of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerFacts {
    /// It was started by then, on the clock of this client; zero: it has never forgotten anything.
    pub(crate) started: Tick,
    pub(crate) is_replica: bool,
}
