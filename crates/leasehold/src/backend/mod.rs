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

    /// Gives a lease id up for good: takes it out of the queue, and passes the name on if it holds it.
    fn release(&self, step: Release) -> Reply<ReleaseReply>;

    /// Extends leases that are still ours. One answer per entry, in order.
    fn renew(&self, batch: &[Renew<'_>]) -> Reply<Vec<Renewal>>;

    /// Lets a lease end at least `lease_ms` from now. What is left of it then; `None` if the name is not ours.
    fn extend(&self, name: Name, lease: LeaseId, lease_ms: u64) -> Reply<Option<Duration>>;

    /// Writes how often the owner has entered. `false` if the name is not ours.
    fn count(&self, name: Name, lease: LeaseId, holds: u32) -> Reply<bool>;

    /// Reads who holds the name.
    fn inspect(&self, name: Name) -> Reply<Inspection>;

    /// Takes the name from its holder and passes it on. The owner fields that held it; none if it was free.
    fn force_unlock(&self, name: Name) -> Reply<Vec<String>>;

    /// Starts to hear wake-ups for the name. When this is answered, none is missed any more.
    fn listen(&self, name: Name) -> Reply<()>;

    /// Stops hearing wake-ups for the name. Asked for at once, whether or not the reply is waited for.
    fn unlisten(&self, name: &Name) -> Reply<()>;

    /// For tests: answered when all wake-ups are heard that the server has sent until now.
    fn heard(&self) -> Reply<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Leases are held that will have to be renewed from home: what that needs may be made ready.
    fn prepare(&self) {}
}

/// Asks for a name.
#[derive(Clone, Debug)]
pub(crate) struct Acquire {
    pub(crate) name: Name,
    pub(crate) lease: LeaseId,
    /// The same in each request for this lease id.
    pub(crate) lease_ms: u64,
    /// Take a place in the queue if the name is held; only for those who listen.
    pub(crate) place: Option<Place>,
}

/// A place in the queue of waiting clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The number of the ask that makes or finds the place. A grant repeats the latest (B3).
    pub(crate) ask: u32,
    /// How long the queue outlives its last visitor.
    pub(crate) keep_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// Ours, and this is what is left of it (B1).
    Granted { remaining: Duration },
    /// Another owner's. `None`: it has no end (its TTL was removed).
    Held { ttl: Option<Duration> },
    /// The lease id was given up before this copy of the request arrived.
    GivenUp,
}

/// Gives a lease id up for good.
#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) name: Name,
    pub(crate) lease: LeaseId,
    /// If other tasks of this client wait: how the client goes on.
    pub(crate) next: Option<Next>,
    /// Leave a tombstone for so long: a copy of a request for this lease id may still be under way (B4).
    pub(crate) tombstone_ms: Option<u64>,
    /// This client hears the wake-ups itself, and must not count itself as a waiter.
    pub(crate) listening: bool,
}

/// How a client goes on that gives back a name its own tasks wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) lease: LeaseId,
    pub(crate) lease_ms: u64,
    /// Go on under the next lease id if no other client waits.
    pub(crate) keep: bool,
    /// Take a place in the queue if other clients wait; only for those who listen.
    pub(crate) place: Option<Place>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseReply {
    /// The name is free; `others` clients besides us were told.
    Freed { others: u64 },
    /// The next client in the queue holds it now, for this long unless it renews it.
    Granted { lease: Duration },
    /// It is ours under the next lease id, and this is what is left of it (B1).
    Kept { remaining: Duration },
    /// The lease id did not hold it.
    NotOurs,
}

/// Extends one lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renew<'a> {
    pub(crate) name: &'a Name,
    pub(crate) lease: LeaseId,
    /// Zero: only look whether it is still ours.
    pub(crate) lease_ms: u64,
}

/// What became of one renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// Still ours, and extended if that was asked for: at least the length asked for was left then (B1).
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
    /// The server gave the name to one of our lease ids.
    Granted(Grant),
    /// Wake-ups are not heard any more: the server refused to subscribe this client again.
    Deaf,
}

/// A late reply to one ask: the name is ours since some time after that ask was sent (B3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) lease: LeaseId,
    pub(crate) lease_ms: u64,
    pub(crate) ask: u32,
}

/// Why a step has no answer, and so what the server may hold.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The request did not leave; the server is as it was. Worth another try.
    NotSent(Cause),
    /// The server said: not now (it loads, is busy, full, or a replica). It is as it was. Worth another try.
    NotNow(Cause),
    /// The server said no. Another try gets the same.
    Rejected(Cause),
    /// The request may or may not have been carried out. The same request may be sent again.
    Ambiguous(Cause),
}

impl Failure {
    pub(crate) fn cause(&self) -> &Cause {
        match self {
            Failure::NotSent(cause)
            | Failure::NotNow(cause)
            | Failure::Rejected(cause)
            | Failure::Ambiguous(cause) => cause,
        }
    }

    /// Whether another try gets the same.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Failure::Rejected(_))
    }

    /// The public error, in the words of what was being done.
    pub(crate) fn into_error(self, doing: impl Into<Box<str>>, free_within: Duration) -> Error {
        let doing = doing.into();
        match self {
            Failure::Rejected(source) if source.is::<ThreadGone>() => Error::ThreadGone,
            Failure::NotSent(source) => Error::NotSent { doing, source },
            Failure::NotNow(source) | Failure::Rejected(source) => {
                Error::Rejected { doing, source }
            }
            Failure::Ambiguous(source) => Error::Ambiguous {
                doing,
                free_within,
                source,
            },
        }
    }
}

/// Where a backend says what it hears. It is given one, and knows no more of who listens.
pub(crate) trait Sink: fmt::Debug + Send + Sync {
    /// A hint: it may be lost, late, or for a lease that is no more.
    fn wake(&self, name: &Name, wake_up: WakeUp);
}
