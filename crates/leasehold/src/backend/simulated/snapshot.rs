//! The state of a server, as the simulation sees it from outside.

use std::{sync::Arc, time::Duration};

use crate::kind::Access;

/// A hold on a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The name.
    pub name: Arc<str>,
    /// The holder's client.
    pub client: Arc<str>,
    /// Its lease id.
    pub lease: u64,
    /// How it shares its name with others.
    pub access: Access,
    /// How often it has entered.
    pub holds: u32,
    /// When its lease ends, on the server's clock.
    pub ends: Duration,
}

/// The locks of a server, and who waits for them and listens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The holders, by name.
    pub held: Vec<Held>,
    /// Entries in queues: name, client, lease id; next first.
    pub queued: Vec<(Arc<str>, Arc<str>, u64)>,
    /// The entries that are passed over, since their clients are not there.
    pub passed_over: Vec<(Arc<str>, Arc<str>, u64)>,
    /// The clients that listen: name, client.
    pub listeners: Vec<(Arc<str>, Arc<str>)>,
    /// How many tombstones there are.
    pub tombstones: usize,
}
