//! Who holds a name, put into words.

use std::time::{Duration, SystemTime};

use crate::{backend::Inspection, name::Name, owner::LeaseId};

/// Who holds a name, and how many wait.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The name.
    pub name: String,
    /// Who holds it; `None` if it is free.
    pub holder: Option<Holder>,
    /// How many clients listen for it to become free, Redisson's included.
    pub waiting_clients: u64,
    /// How many tasks of this client wait for it.
    pub waiting_here: usize,
}

/// The holder of a name, as the server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner field: `<client uuid>:<lease id>`, or `<client uuid>:<thread id>` for Redisson.
    pub owner: String,
    /// The client's uuid.
    pub client: String,
    /// What the client calls itself (`host:pid` unless told otherwise); `None` for Redisson, a client that is
    /// gone, or where `CLIENT LIST` is not permitted.
    pub label: Option<String>,
    /// How often the owner has entered.
    pub holds: u64,
    /// Since when, by the clock of the client that asked for the lease; `None` for Redisson.
    pub since: Option<SystemTime>,
    /// What is left of the lease; `None` if somebody removed its end.
    pub remaining: Option<Duration>,
}

impl Status {
    /// What the server says of a name for which so many tasks of this client wait.
    pub(crate) fn new(name: &Name, found: Inspection, waiting_here: usize) -> Status {
        let holder = found.owners.into_iter().next().map(|(owner, holds)| {
            let (client, number) = owner.split_once(':').unwrap_or((&owner, ""));
            let number = number.parse::<u64>().ok().map(LeaseId::from);
            Holder {
                client: client.to_owned(),
                label: found.label,
                holds,
                since: number.and_then(LeaseId::made_at),
                remaining: found.ttl,
                owner,
            }
        });
        Status {
            name: name.as_str().to_owned(),
            holder,
            waiting_clients: found.listeners,
            waiting_here,
        }
    }
}
