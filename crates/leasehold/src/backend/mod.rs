//! Where leases live.
//!
//! A backend carries out single steps on a server: each is one atomic operation there, each may be sent twice without harm (the lease id is
//! fixed before the first send), and none decides anything. When to take which step is up to the layers above.

mod confirmation;
mod entries;
mod failure;
pub(crate) mod fenced;
pub(crate) mod find;
mod in_a_row;
mod inspection;
pub(crate) mod listening;
pub(crate) mod memory;
mod numbers;
pub(crate) mod quorum;
pub(crate) mod redis;
pub(crate) mod report;
#[cfg(feature = "sim")]
pub(crate) mod simulated;
mod sink;

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;

pub(crate) use confirmation::{Confirmation, Renew, Renewal, cannot_confirm};
pub(crate) use entries::{Keep, KeptEntries, KeptEntry};
pub(crate) use failure::Failure;
use fenced::{FencedRead, FencedWrite, Tokens, Written};
use find::{FindPage, FoundPage};
pub(crate) use in_a_row::InARow;
pub(crate) use inspection::{
    ConnectedClients, Inspection, KnownClient, Owned, QUEUED_MOST, QueuedOwner, SeenVote,
    ServerFacts,
};
pub(crate) use numbers::{Once, Permits};
use report::ServerReport;
pub(crate) use sink::{Restarted, Sink};

use crate::{
    durability::Durability,
    error::{Cause, Invalid},
    kind::{Access, LockKind},
    name::{LockId, Name},
    outage::Outage,
    owner::LeaseId,
};

/// An answer on its way. Dropping it does not take the request back.
pub(crate) type Reply<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// The steps of every kind of lock on a server, for one client. Each kind defines its steps on the wire.
pub(crate) trait Backend:
    LockSteps + WakeUpSteps + NumberSteps + FencedSteps + ServerLink + fmt::Debug + Send + Sync
{
}

impl<B> Backend for B where
    B: LockSteps + WakeUpSteps + NumberSteps + FencedSteps + ServerLink + fmt::Debug + Send + Sync
{
}

/// Steps on locks.
pub(crate) trait LockSteps {
    /// Takes the lock if it is free, or finds that this lease id holds it already.
    fn acquire(&self, step: Acquire) -> Reply<Acquired>;

    /// Gives a lease id up for good: takes it out of the queue, and passes its hold on.
    fn release(&self, step: Release) -> Reply<ReleaseReply>;

    /// Extends leases that are still ours. Answers each entry, in order.
    fn renew(&self, batch: Arc<[Renew]>) -> Reply<Vec<Renewal>>;

    /// Lets a lease end at least `lease_ms` from now. Returns how much of it is left then, at least; `None` if it is not ours.
    fn extend(&self, step: Extend) -> Reply<Option<Duration>>;

    /// Writes how often the owner has entered.
    fn count(&self, step: Count) -> Reply<Counted>;

    /// Lets a lease id that writes go on as a reader. `false` if it is not ours.
    fn downgrade(&self, step: Downgrade) -> Reply<bool>;

    /// Reads the holders of the lock.
    fn inspect(&self, id: LockId) -> Reply<Inspection>;

    /// Reads one page of the keys, and names the locks among them.
    fn find(&self, step: FindPage) -> Reply<FoundPage>;

    /// Reads the holders of several locks. Locks that are of another kind by now are left out.
    fn inspect_all(&self, ids: Vec<LockId>) -> Reply<Vec<(LockId, Inspection)>> {
        // All at once, for which a Redis would keep its other clients waiting: `redis/find.rs` asks for a few at a time.
        let inspections: Vec<_> = ids.iter().map(|id| self.inspect(id.clone())).collect();
        Box::pin(async move { find::all_of(&ids, inspections).await })
    }

    /// Takes the lock from its holders and passes it on. Returns the owner fields that held it; none if it was free, or is not as it was seen.
    fn force_unlock(&self, step: ForceUnlock) -> Reply<Vec<String>>;

    /// The owner field of a hold of this client on the server.
    fn owner(&self, kind: LockKind, access: Access, lease: LeaseId) -> String;

    /// Keeps the entries of waiting tasks alive, of a kind that has one for each.
    fn keep(&self, step: Keep) -> Reply<KeptEntries>;

    /// Whether this lock can be kept here; else why not. Asked before anything is sent.
    fn supports(&self, _id: &LockId) -> Result<(), Invalid> {
        Ok(())
    }

    /// Extends leases that are still ours, and waits until the replicas or the disk of the policy have them. Answers each entry, in order.
    fn confirm(&self, _batch: Arc<[Renew]>, _policy: Durability) -> Reply<Vec<Confirmation>> {
        Box::pin(std::future::ready(Err(cannot_confirm())))
    }

    /// Whether there are others here that could have a lock beside the server that answers; else why not. Asked before anything is sent.
    fn confirms(&self) -> Result<(), &'static str> {
        Err("a server in memory has neither replicas nor a disk")
    }

    /// Asks the server of this lock whether it can [`confirm`](LockSteps::confirm) so; once.
    fn can_confirm(&self, _id: &LockId, _policy: Durability) -> Reply<()> {
        Box::pin(std::future::ready(Err(cannot_confirm())))
    }

    /// The longest lease that may be asked for, if there is a limit.
    fn longest_lease(&self) -> Option<Duration> {
        None
    }

    /// How it stands with a lease id on which several servers vote; `None` where one server decides.
    fn voted(&self, _lease: LeaseId) -> Option<Voted> {
        None
    }
}

/// Steps by which a client hears of locks.
pub(crate) trait WakeUpSteps {
    /// Starts to hear wake-ups for the lock. When this is answered, none is missed any more.
    fn listen(&self, id: LockId) -> Reply<()>;

    /// Stops hearing wake-ups for the lock. Asked for at once, whether or not the reply is waited for.
    fn unlisten(&self, id: &LockId) -> Reply<()>;

    /// Whether they travel on sharded channels: who uses the classic ones is not woken by ours, and does not wake ours.
    fn is_sharded(&self) -> bool {
        false
    }

    /// How many clients listen on the classic channel of the lock.
    fn classic_listeners(&self, _id: &LockId) -> Reply<u64> {
        Box::pin(std::future::ready(Ok(0)))
    }

    /// For tests: answered when all wake-ups are heard that the server has sent until now.
    fn heard(&self) -> Reply<()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Steps on the numbers of semaphores and latches.
pub(crate) trait NumberSteps {
    /// Reads or changes how many permits a semaphore has, or the count of a latch. Returns how many are free afterwards, or the count;
    /// for [`Permits::TrySet`] and [`Permits::Delete`] 1 if that was done, else 0; for [`Permits::Drain`] how many were taken.
    fn permits(&self, id: LockId, step: Permits, once: Once) -> Reply<i64>;
}

/// Steps on data that fencing tokens guard.
pub(crate) trait FencedSteps {
    /// Whether the data of a name can be kept under this key; else why not. Asked before anything is sent.
    fn keeps_data(&self, _name: &Name, _key: &Name) -> Result<(), Invalid> {
        Ok(())
    }

    /// Writes data, if no newer fencing token has been seen there.
    fn write(&self, step: FencedWrite) -> Reply<Written>;

    /// Reads data that is written so; `None` if there is none.
    fn read(&self, step: FencedRead) -> Reply<Option<Vec<u8>>>;
}

/// The server, and the connections to it.
pub(crate) trait ServerLink {
    /// Writes the label of this client, which is there for so many milliseconds.
    fn show(&self, lasts_ms: u64) -> Reply<()>;

    /// Whether this client has ever been connected to the server.
    fn has_reached(&self) -> bool;

    /// Why there is no connection to the server, as long as there is none.
    fn trouble(&self) -> Option<Cause>;

    /// The same of the server that has this lock, where there are several.
    fn trouble_of(&self, _id: &LockId) -> Option<Cause> {
        self.trouble()
    }

    /// Whether the server can be used, and who has been told.
    fn outage(&self) -> &Outage;

    /// The server as it is told apart from others: its address, as it was given.
    fn server(&self) -> String;

    /// The same of the server that has this lock, where there are several.
    fn server_of(&self, _id: &LockId) -> String {
        self.server()
    }

    /// The server as all processes tell it apart from others, whichever address they use, as it said on the latest connection;
    /// `None`: it has not said so yet.
    fn identity(&self) -> Option<String> {
        // Of memory: a server there has no run id, and all of its clients call it alike.
        Some(self.server())
    }

    /// Which of several servers has the lock, where one that is silent is to delay no renewals at the others.
    fn shard(&self, _id: &LockId) -> Option<u32> {
        None
    }

    /// Which names of several one script can renew: those of one hash slot. `None`: all.
    fn hash_slot(&self, _id: &LockId) -> Option<u16> {
        None
    }

    /// Connects now.
    fn dial(&self) -> Reply<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Facts that the server has told of itself, on whichever of its connections is the latest.
    fn said(&self) -> ServerFacts {
        ServerFacts::default()
    }

    /// Asks the server which one it is. It has said so when this is `Ok`, and has a new identity after each restart.
    fn identify(&self) -> Reply<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Asks each of its servers about itself, and only reads; a server in memory has nothing to say.
    fn reports(&self) -> Vec<BoxFuture<'static, ServerReport>> {
        Vec::new()
    }

    /// Whether another server can be asked to take the place of the one that has a lock; else why not. Asked before anything is sent.
    fn can_fail_over(&self) -> Result<(), &'static str> {
        Err("a server in memory, which has no replica")
    }

    /// Where the primary of this lock is now; `asks`: one of its replicas is asked to take its place first.
    fn fail_over(&self, _id: &LockId, _asks: bool) -> Reply<String> {
        Box::pin(std::future::ready(Ok(self.server())))
    }

    /// Leases are held that will have to be renewed from the background runtime: the backend may make a connection ready for that.
    fn prepare(&self) {}

    /// No caller is left, and the last waits for what is under way. A request whose answer only that caller's runtime could take
    /// fails as with its connection, and goes on from the background runtime.
    fn move_to_background(&self) {}

    /// Asks each of its servers which clients are connected.
    fn connections(&self) -> Reply<ConnectedClients> {
        Box::pin(std::future::ready(Ok(ConnectedClients::default())))
    }

    /// The client is shut down: from here on the backend makes a connection only while a request waits for it.
    fn shut(&self) {}
}

/// Asks for a lock.
#[derive(Clone, Debug)]
pub(crate) struct Acquire {
    pub(crate) id: LockId,
    pub(crate) access: Access,
    pub(crate) lease: LeaseId,
    /// The same in each request for this lease id.
    pub(crate) lease_ms: u64,
    /// Take an entry in the queue if the name is held; only for a client that listens.
    pub(crate) entry: Option<QueueEntry>,
    /// How many permits there are from now on: [`Permits::TrySet`] or, of a leased semaphore, [`Permits::Set`].
    pub(crate) permits: Option<Permits>,
}

/// An entry in the queue of waiting clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueEntry {
    /// The number of the ask that makes or finds the entry. A grant repeats the latest (B3).
    pub(crate) ask: u32,
    /// How long the queue outlives its last visitor.
    pub(crate) keep_ms: u64,
}

/// A lease id on which several servers vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Voted {
    /// It may be asked for, and a minority may have it, too.
    Open,
    /// It is asked for no more (QB4). The backend settles what servers have of it.
    GivenUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// The lease id holds it; `remaining` of its lease is left (B1).
    Granted { remaining: Duration, tokens: Tokens },
    /// Another owner holds it, or has its turn first. `None`: its lease has no end (the TTL was removed). A `silent` one is no
    /// client of ours, and tells no waiter when it gives the lock back; of a fair mutex, only the one that is next. `unsettled`: that may be
    /// no other than this client, by a lease id that it was giving up when this was asked.
    Held {
        ttl: Option<Duration>,
        silent: bool,
        unsettled: bool,
    },
    /// The lease id was given up before this copy of the request arrived.
    GivenUp,
    /// No client has set how many permits there are.
    Unset,
}

impl Acquired {
    /// Whether "held" may speak of this very client.
    pub(crate) fn is_unsettled(&self) -> bool {
        matches!(
            self,
            Acquired::Held {
                unsettled: true,
                ..
            }
        )
    }

    /// Says of "held" that it may be no other than this client, where that is so.
    pub(crate) fn or_unsettled(mut self, may_be_ours: impl FnOnce() -> bool) -> Acquired {
        // Of "held" only: an own lease that is being given up is no other's, of which alone `None` may tell (bugs 257, 295).
        if let Acquired::Held { unsettled, .. } = &mut self {
            *unsettled |= may_be_ours();
        }
        self
    }
}

/// Gives a lease id up for good.
#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) id: LockId,
    pub(crate) access: Access,
    pub(crate) lease: LeaseId,
    /// If other tasks of this client wait: how the client goes on.
    pub(crate) next: Option<Next>,
    /// The client was told that the lease id holds it. (Only a kind whose server keeps no holders asks.)
    pub(crate) held: bool,
    /// Leave a tombstone for this long: a copy of a request for this lease id may still be under way (B4).
    pub(crate) tombstone_ms: Option<u64>,
    /// This client hears the wake-ups itself, and must not count itself as a waiter.
    pub(crate) listening: bool,
    /// How many holds it has had in a row, for which turns are left to Redisson's waiters. `None`: one, and it knows of no such waiter.
    pub(crate) holds: Option<InARow>,
}

impl Release {
    /// Of a lease id, and no more: the name is free then, as far as it was its.
    pub(crate) fn giving_back(id: &LockId, access: Access, lease: LeaseId) -> Release {
        Release {
            id: id.clone(),
            access,
            lease,
            next: None,
            held: false,
            tombstone_ms: None,
            listening: false,
            holds: None,
        }
    }
}

/// How a client goes on that gives back a name its own tasks wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) access: Access,
    pub(crate) lease: LeaseId,
    pub(crate) lease_ms: u64,
    /// The name stays with this client, if no other of ours waits and no turn is left to Redisson's waiters.
    pub(crate) stays: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseReply {
    /// The name is free; `others` clients besides us were told, and so many turns are left to Redisson's waiters.
    Freed { others: u64, turns: u32 },
    /// The next client in the queue holds it now, for this long unless it renews it.
    Granted { lease: Duration },
    /// The next lease id holds it; `remaining` of its lease is left (B1).
    Kept { remaining: Duration, tokens: Tokens },
    /// The lease id did not hold it.
    NotOurs,
}

/// Extends one lease.
#[derive(Clone, Debug)]
pub(crate) struct Extend {
    pub(crate) id: LockId,
    pub(crate) access: Access,
    pub(crate) lease: LeaseId,
    /// Zero: only look whether it is still ours.
    pub(crate) lease_ms: u64,
}

/// Writes how often the owner of a lease has entered.
#[derive(Clone, Debug)]
pub(crate) struct Count {
    pub(crate) id: LockId,
    pub(crate) access: Access,
    pub(crate) lease: LeaseId,
    pub(crate) holds: u32,
    /// So many of them only read, of a hold that writes.
    pub(crate) reads: u32,
    /// This client hears the wake-ups itself, and must not count itself as a waiter.
    pub(crate) listening: bool,
}

/// Takes a lock from its holders.
#[derive(Clone, Debug)]
pub(crate) struct ForceUnlock {
    pub(crate) id: LockId,
    /// Only from these holders, all of them, and if none was renewed since; empty: from any holder.
    pub(crate) seen: Arc<[SeenHolder]>,
}

/// A holder as a look at the lock showed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenHolder {
    pub(crate) owner: String,
    /// No more is left of its lease when the step arrives, unless it was renewed; `None`: it has no end.
    pub(crate) left: Option<Duration>,
}

impl ForceUnlock {
    /// Whether the lock is to be taken from these holders: each an owner field, and what is left of its lease.
    pub(crate) fn means(&self, holders: &[(String, Option<Duration>)]) -> bool {
        let is_seen = |(owner, left): &(String, Option<Duration>)| {
            let seen = self.seen.iter().find(|seen| seen.owner == *owner);
            seen.is_some_and(|seen| match (seen.left, left) {
                (Some(most), Some(left)) => *left <= most,
                (most, left) => most == *left,
            })
        };
        self.seen.is_empty() || holders.len() == self.seen.len() && holders.iter().all(is_seen)
    }
}

/// Lets a lease id go on as a reader like any other.
#[derive(Clone, Debug)]
pub(crate) struct Downgrade {
    pub(crate) id: LockId,
    pub(crate) lease: LeaseId,
    /// How many readers share the hold.
    pub(crate) holds: u32,
}

/// The result of writing a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    Written,
    /// Written, and a client waits that may not hold it together with this one: let no more in.
    OthersWait,
    NotOurs,
}

/// A hint from the server to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeUp {
    /// It was freed, or messages may have been missed.
    TryAgain,
    /// A client of ours has freed it, and leaves so many turns to Redisson's waiters.
    Turns(u32),
    /// This client is the first in the queue, and so watches the holder, whose lease ends in so long.
    Watch(Duration),
    /// The server gave it to one of our lease ids.
    Granted(Grant),
    /// It was unlocked by force.
    Forced,
    /// Wake-ups are not heard any more: the server refused to subscribe this client again.
    Deaf,
}

/// A late reply to one ask: the name is ours since some time after that ask was sent (B3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) access: Access,
    pub(crate) lease: LeaseId,
    pub(crate) lease_ms: u64,
    pub(crate) ask: u32,
    pub(crate) tokens: Tokens,
}
