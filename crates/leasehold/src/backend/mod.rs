//! Where leases live.
//!
//! A backend carries out single steps on a server: each is one atomic operation there, each may be sent
//! twice without harm (the lease id is fixed before the first send), and none decides anything. When to take
//! which step is up to the layers above.

pub(crate) mod memory;
pub(crate) mod redis;

use std::{fmt, future::Future, pin::Pin, time::Duration};

use crate::{
    error::{Cause, Error},
    home::ThreadGone,
    name::Name,
    owner::LeaseId,
};

/// An answer on its way. Dropping it does not take the request back.
pub(crate) type Reply<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// The steps of a mutex on a server, for one client.
pub(crate) trait Backend: fmt::Debug + Send + Sync {
    /// Takes the name if it is free, or finds that it is ours already.
    fn acquire(&self, step: Acquire) -> Reply<Acquired>;

    /// Gives the name back, to the next client in line if there is one.
    fn release(&self, step: Release) -> Reply<Released>;

    /// Makes sure that a lease id neither holds the name nor ever will.
    fn abandon(&self, step: Abandon) -> Reply<()>;

    /// Extends leases that are still ours. One answer per entry, in order.
    fn renew(&self, batch: &[Renew<'_>]) -> Reply<Vec<Renewal>>;

    /// Writes how often the owner has entered. `false` if the name is not ours.
    fn count(&self, name: Name, lease: LeaseId, holds: u32) -> Reply<bool>;

    /// Reads who holds the name.
    fn inspect(&self, name: Name) -> Reply<Inspection>;

    /// Frees the name, whoever holds it. `false` if nobody did.
    fn force_unlock(&self, name: Name) -> Reply<bool>;

    /// Starts to hear wake-ups for the name. When this is answered, none is missed any more.
    fn listen(&self, name: Name) -> Reply<()>;

    /// Stops hearing wake-ups for the name.
    fn unlisten(&self, name: &Name);

    /// Leases are held that will have to be renewed from home: what that needs may be made ready.
    fn prepare(&self) {}
}

/// Asks for a name.
#[derive(Clone, Debug)]
pub(crate) struct Acquire {
    pub(crate) name: Name,
    pub(crate) lease: LeaseId,
    pub(crate) lease_ms: u64,
    /// Get in line if the name is held; only for those who listen.
    pub(crate) line: Option<Line>,
}

/// A place in the line of waiting clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// The length of the lease the server gives when our turn comes.
    pub(crate) lease_ms: u64,
    /// How long the line outlives its last visitor.
    pub(crate) keep_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// Ours, for `lease_ms` from now on the server.
    Granted,
    /// Somebody else's. `None`: it has no end (somebody removed its TTL).
    Held { ttl: Option<Duration> },
    /// The lease id was abandoned before this copy of the request arrived.
    Abandoned,
}

/// Gives a name back.
#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) name: Name,
    pub(crate) lease: LeaseId,
    /// If other tasks of this client wait: how the client goes on.
    pub(crate) next: Option<Next>,
    /// Leave a tombstone: the acquisition of this lease was sent more than once.
    pub(crate) tombstone_ms: Option<u64>,
    /// This client hears the wake-ups itself, and must not count itself as a waiter.
    pub(crate) listening: bool,
}

/// How a client goes on that gives back a name its own tasks wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) lease: LeaseId,
    pub(crate) lease_ms: u64,
    /// Go on under the next lease if no other client waits.
    pub(crate) keep: bool,
    /// Get in line if other clients wait; only for those who listen.
    pub(crate) line: Option<Line>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// Nobody holds the name now; `others` clients besides us were told.
    Freed { others: u64 },
    /// The next client in line holds it now, for this long unless it renews it.
    Granted { lease: Duration },
    /// No other client waits: it is ours under the next lease.
    Kept,
    /// It was not ours.
    NotOurs,
}

/// Gives up a lease id for good.
#[derive(Clone, Debug)]
pub(crate) struct Abandon {
    pub(crate) name: Name,
    pub(crate) lease: LeaseId,
    /// The place in line to give up, as it was taken.
    pub(crate) line: Option<Line>,
    pub(crate) tombstone_ms: u64,
}

/// Extends one lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renew<'a> {
    pub(crate) name: &'a Name,
    pub(crate) lease: LeaseId,
    pub(crate) lease_ms: u64,
}

/// What became of one renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// The server extended the lease.
    Extended,
    /// The server says that the name is not ours.
    Lost,
    /// This entry could not be looked at (somebody wrote another type under the name).
    Unknown,
}

/// Who holds a name, as the server sees it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inspection {
    /// Owner fields with their hold counts. More than one only if somebody mixes kinds of locks.
    pub(crate) owners: Vec<(String, u64)>,
    /// What is left; `None` without an end.
    pub(crate) ttl: Option<Duration>,
    /// Clients that listen for the name.
    pub(crate) listeners: u64,
    /// What the holder's client calls itself.
    pub(crate) label: Option<String>,
}

/// A hint from the server to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeUp {
    /// The name was freed, or messages may have been missed.
    TryAgain,
    /// The server gave the name to this lease of ours.
    Granted(LeaseId),
}

/// Why a step has no answer, and so what the server may hold.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The request did not leave, or was refused for now; the server is as it was. Worth another try.
    NotSent(Cause),
    /// The server said no. Another try gets the same.
    Rejected(Cause),
    /// The request may or may not have been carried out. The same request may be sent again.
    Ambiguous(Cause),
}

impl Failure {
    /// The public error, in the words of what was being done.
    pub(crate) fn into_error(self, doing: impl Into<Box<str>>, free_within: Duration) -> Error {
        let doing = doing.into();
        match self {
            Failure::Rejected(source) if source.is::<ThreadGone>() => Error::ThreadGone,
            Failure::NotSent(source) => Error::NotSent { doing, source },
            Failure::Rejected(source) => Error::Rejected { doing, source },
            Failure::Ambiguous(source) => Error::Ambiguous {
                doing,
                free_within,
                source,
            },
        }
    }
}
