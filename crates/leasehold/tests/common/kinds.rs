//! The kinds of locks as rows of one table: how each is taken, and what a hold of it keeps out.

use std::{
    future::Future,
    pin::Pin,
    time::{Duration, Instant},
};

#[allow(unused_imports, reason = "for the suite, where it runs these rows")]
pub use super::{SOON, World, wire::Network};
use leasehold::{
    Client, Detached, Error, ErrorKind, FairMutex, FairMutexGuard, FencedMutex, FencedMutexGuard,
    LeasedSemaphore, LostReason, MultiGuard, MultiLock, Mutex, MutexGuard, Owner, PermitGuard,
    PlainMutex, PlainMutexGuard, ReadGuard, Released, RwLock, Semaphore, SemaphoreGuard, SpinMutex,
    SpinMutexGuard, Status, WriteGuard,
};

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    Mutex,
    Fenced,
    Read,
    Write,
    Permit,
    Plain,
    Spin,
    /// The name and another.
    Multi,
    /// A permit without a lease.
    Count,
    Fair,
}

/// Every kind is here, or it does not exist.
pub const ROWS: [Row; 10] = [
    Row::Mutex,
    Row::Fenced,
    Row::Read,
    Row::Write,
    Row::Permit,
    Row::Plain,
    Row::Spin,
    Row::Multi,
    Row::Count,
    Row::Fair,
];

/// Whether the wait for a lock ends when its future is dropped.
pub const MAY_BE_DROPPED: bool = true;

/// A lock of any kind, with the verbs of a mutex.
#[derive(Clone, Debug)]
pub enum AnyLock {
    Mutex(Mutex),
    Fenced(FencedMutex),
    Read(RwLock),
    Write(RwLock),
    Permit(LeasedSemaphore),
    Plain(PlainMutex),
    Spin(SpinMutex),
    /// With its first part, which it waits for, and which is looked at.
    Multi(MultiLock, Mutex),
    Count(Semaphore),
    Fair(FairMutex),
}

/// A guard of any kind.
#[derive(Debug)]
pub enum AnyGuard {
    Mutex(MutexGuard),
    Fenced(FencedMutexGuard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permit(PermitGuard),
    Plain(PlainMutexGuard),
    Spin(SpinMutexGuard),
    Multi(MultiGuard),
    Count(SemaphoreGuard),
    Fair(FairMutexGuard),
}

type Asking<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

impl Row {
    pub fn lock(self, client: &Client, name: &str) -> AnyLock {
        match self {
            Row::Mutex => AnyLock::Mutex(client.mutex(name)),
            Row::Fenced => AnyLock::Fenced(client.fenced_mutex(name)),
            Row::Read => AnyLock::Read(client.rw_lock(name)),
            Row::Write => AnyLock::Write(client.rw_lock(name)),
            Row::Permit => AnyLock::Permit(client.leased_semaphore(name)),
            Row::Plain => AnyLock::Plain(client.plain_mutex(name)),
            Row::Spin => AnyLock::Spin(client.spin_mutex(name)),
            Row::Multi => {
                let first = client.mutex(name);
                AnyLock::Multi(client.multi_lock([name, &format!("{name}, too")]), first)
            }
            Row::Count => AnyLock::Count(client.semaphore(name)),
            Row::Fair => AnyLock::Fair(client.fair_mutex(name)),
        }
    }

    /// A lock that a hold of this row keeps out.
    pub fn rival(self, client: &Client, name: &str) -> AnyLock {
        match self {
            Row::Read => Row::Write.lock(client, name),
            Row::Write => Row::Read.lock(client, name),
            _ => self.lock(client, name),
        }
    }

    /// A semaphore whose requests say how many permits there are.
    pub fn providing(self, client: &Client, name: &str, permits: u32) -> Option<AnyLock> {
        match self {
            Row::Permit => {
                let semaphore = client.leased_semaphore(name);
                Some(AnyLock::Permit(semaphore.permits(permits)))
            }
            Row::Count => Some(AnyLock::Count(client.semaphore(name).permits(permits))),
            _ => None,
        }
    }

    /// Sets the permits that must be there before it can be taken.
    pub async fn prepare(self, client: &Client, name: &str) {
        if self == Row::Permit {
            let semaphore = client.leased_semaphore(name);
            semaphore.try_set_permits(1).await.unwrap();
        }
        if self == Row::Count {
            let semaphore = client.semaphore(name);
            semaphore.try_set_permits(1).await.unwrap();
        }
    }

    /// Whether a hold has a lease, which ends by itself.
    pub fn has_lease(self) -> bool {
        self != Row::Count
    }

    /// Whether its waiters listen. (If not, no other client knows that they wait.)
    pub fn listens(self) -> bool {
        self != Row::Spin
    }

    /// Whether each waiting task has a place of its own on the server.
    pub fn has_place_per_task(self) -> bool {
        self == Row::Fair
    }

    /// Whether the server keeps how often its holder has entered.
    pub fn counts(self) -> bool {
        self != Row::Plain
    }

    /// Keys that stay when nothing is held.
    pub fn stays(self, key: &str, name: &str) -> bool {
        match self {
            Row::Permit | Row::Count => key == name,
            Row::Fenced => key.starts_with("redisson_lock_token:"),
            _ => false,
        }
    }
}

macro_rules! same {
    ($lock:expr, $inner:ident => $changed:expr) => {
        match $lock {
            AnyLock::Mutex($inner) => AnyLock::Mutex($changed),
            AnyLock::Fenced($inner) => AnyLock::Fenced($changed),
            AnyLock::Read($inner) => AnyLock::Read($changed),
            AnyLock::Write($inner) => AnyLock::Write($changed),
            AnyLock::Permit($inner) => AnyLock::Permit($changed),
            AnyLock::Plain($inner) => AnyLock::Plain($changed),
            AnyLock::Spin($inner) => AnyLock::Spin($changed),
            AnyLock::Multi($inner, first) => AnyLock::Multi($changed, first),
            // It has no lease to set.
            AnyLock::Count(lock) => AnyLock::Count(lock),
            AnyLock::Fair($inner) => AnyLock::Fair($changed),
        }
    };
}

impl AnyLock {
    pub fn lease(self, lease: Duration) -> AnyLock {
        same!(self, lock => lock.lease(lease))
    }

    pub fn fixed_lease(self, lease: Duration) -> AnyLock {
        same!(self, lock => lock.fixed_lease(lease))
    }

    pub fn max_hold(self, most: Duration) -> AnyLock {
        same!(self, lock => lock.max_hold(most))
    }

    /// A semaphore has no owners.
    pub fn owned_by(self, owner: &Owner) -> Option<AnyLock> {
        match self {
            AnyLock::Mutex(lock) => Some(AnyLock::Mutex(lock.owned_by(owner))),
            AnyLock::Fenced(lock) => Some(AnyLock::Fenced(lock.owned_by(owner))),
            AnyLock::Read(lock) => Some(AnyLock::Read(lock.owned_by(owner))),
            AnyLock::Write(lock) => Some(AnyLock::Write(lock.owned_by(owner))),
            AnyLock::Plain(lock) => Some(AnyLock::Plain(lock.owned_by(owner))),
            AnyLock::Spin(lock) => Some(AnyLock::Spin(lock.owned_by(owner))),
            AnyLock::Multi(lock, first) => Some(AnyLock::Multi(lock.owned_by(owner), first)),
            AnyLock::Fair(lock) => Some(AnyLock::Fair(lock.owned_by(owner))),
            AnyLock::Permit(_) | AnyLock::Count(_) => None,
        }
    }

    pub fn lock(&self) -> Asking<AnyGuard> {
        match self.clone() {
            AnyLock::Mutex(lock) => Box::pin(async move { lock.lock().await.map(AnyGuard::Mutex) }),
            AnyLock::Fenced(lock) => {
                Box::pin(async move { lock.lock().await.map(AnyGuard::Fenced) })
            }
            AnyLock::Read(lock) => Box::pin(async move { lock.read().await.map(AnyGuard::Read) }),
            AnyLock::Write(lock) => {
                Box::pin(async move { lock.write().await.map(AnyGuard::Write) })
            }
            AnyLock::Permit(lock) => {
                Box::pin(async move { lock.acquire().await.map(AnyGuard::Permit) })
            }
            AnyLock::Plain(lock) => Box::pin(async move { lock.lock().await.map(AnyGuard::Plain) }),
            AnyLock::Spin(lock) => Box::pin(async move { lock.lock().await.map(AnyGuard::Spin) }),
            AnyLock::Multi(lock, _) => {
                Box::pin(async move { lock.lock().await.map(AnyGuard::Multi) })
            }
            AnyLock::Count(lock) => {
                Box::pin(async move { lock.acquire().await.map(AnyGuard::Count) })
            }
            AnyLock::Fair(lock) => Box::pin(async move { lock.lock().await.map(AnyGuard::Fair) }),
        }
    }

    pub fn try_lock(&self) -> Asking<Option<AnyGuard>> {
        match self.clone() {
            AnyLock::Mutex(lock) => {
                Box::pin(async move { Ok(lock.try_lock().await?.map(AnyGuard::Mutex)) })
            }
            AnyLock::Fenced(lock) => {
                Box::pin(async move { Ok(lock.try_lock().await?.map(AnyGuard::Fenced)) })
            }
            AnyLock::Read(lock) => {
                Box::pin(async move { Ok(lock.try_read().await?.map(AnyGuard::Read)) })
            }
            AnyLock::Write(lock) => {
                Box::pin(async move { Ok(lock.try_write().await?.map(AnyGuard::Write)) })
            }
            AnyLock::Permit(lock) => {
                Box::pin(async move { Ok(lock.try_acquire().await?.map(AnyGuard::Permit)) })
            }
            AnyLock::Plain(lock) => {
                Box::pin(async move { Ok(lock.try_lock().await?.map(AnyGuard::Plain)) })
            }
            AnyLock::Spin(lock) => {
                Box::pin(async move { Ok(lock.try_lock().await?.map(AnyGuard::Spin)) })
            }
            AnyLock::Multi(lock, _) => {
                Box::pin(async move { Ok(lock.try_lock().await?.map(AnyGuard::Multi)) })
            }
            AnyLock::Count(lock) => {
                Box::pin(async move { Ok(lock.try_acquire().await?.map(AnyGuard::Count)) })
            }
            AnyLock::Fair(lock) => {
                Box::pin(async move { Ok(lock.try_lock().await?.map(AnyGuard::Fair)) })
            }
        }
    }

    pub fn try_lock_for(&self, wait: Duration) -> Asking<Option<AnyGuard>> {
        match self.clone() {
            AnyLock::Mutex(lock) => {
                Box::pin(async move { Ok(lock.try_lock_for(wait).await?.map(AnyGuard::Mutex)) })
            }
            AnyLock::Fenced(lock) => {
                Box::pin(async move { Ok(lock.try_lock_for(wait).await?.map(AnyGuard::Fenced)) })
            }
            AnyLock::Read(lock) => {
                Box::pin(async move { Ok(lock.try_read_for(wait).await?.map(AnyGuard::Read)) })
            }
            AnyLock::Write(lock) => {
                Box::pin(async move { Ok(lock.try_write_for(wait).await?.map(AnyGuard::Write)) })
            }
            AnyLock::Permit(lock) => {
                Box::pin(async move { Ok(lock.try_acquire_for(wait).await?.map(AnyGuard::Permit)) })
            }
            AnyLock::Plain(lock) => {
                Box::pin(async move { Ok(lock.try_lock_for(wait).await?.map(AnyGuard::Plain)) })
            }
            AnyLock::Spin(lock) => {
                Box::pin(async move { Ok(lock.try_lock_for(wait).await?.map(AnyGuard::Spin)) })
            }
            AnyLock::Multi(lock, _) => {
                Box::pin(async move { Ok(lock.try_lock_for(wait).await?.map(AnyGuard::Multi)) })
            }
            AnyLock::Count(lock) => {
                Box::pin(async move { Ok(lock.try_acquire_for(wait).await?.map(AnyGuard::Count)) })
            }
            AnyLock::Fair(lock) => {
                Box::pin(async move { Ok(lock.try_lock_for(wait).await?.map(AnyGuard::Fair)) })
            }
        }
    }

    pub async fn status(&self) -> Status {
        let asked = Instant::now();
        loop {
            match self.try_status().await {
                // The servers of a majority have a third of a second, and on a busy machine answer late. A question changes nothing.
                Err(error)
                    if error.kind() == ErrorKind::NotSent
                        && error.to_string().contains("server_timeout")
                        && asked.elapsed() < SOON => {}
                said => return said.unwrap(),
            }
        }
    }

    pub async fn try_status(&self) -> Result<Status, Error> {
        match self {
            AnyLock::Mutex(lock) => lock.status().await,
            AnyLock::Fenced(lock) => lock.status().await,
            AnyLock::Read(lock) | AnyLock::Write(lock) => lock.status().await,
            AnyLock::Permit(lock) => lock.status().await,
            AnyLock::Plain(lock) => lock.status().await,
            AnyLock::Spin(lock) => lock.status().await,
            AnyLock::Multi(_, first) => first.status().await,
            AnyLock::Count(lock) => lock.status().await,
            AnyLock::Fair(lock) => lock.status().await,
        }
    }

    pub async fn force_unlock(&self) -> Result<bool, Error> {
        match self {
            AnyLock::Mutex(lock) => lock.force_unlock().await,
            AnyLock::Fenced(lock) => lock.force_unlock().await,
            AnyLock::Read(lock) | AnyLock::Write(lock) => lock.force_unlock().await,
            AnyLock::Permit(lock) => lock.force_unlock().await,
            AnyLock::Plain(lock) => lock.force_unlock().await,
            AnyLock::Spin(lock) => lock.force_unlock().await,
            AnyLock::Multi(lock, _) => lock.force_unlock().await,
            AnyLock::Count(_) => Ok(false), // the server knows no holders
            AnyLock::Fair(lock) => lock.force_unlock().await,
        }
    }
}

macro_rules! each {
    ($guard:expr, $inner:ident => $done:expr) => {
        match $guard {
            AnyGuard::Mutex($inner) => $done,
            AnyGuard::Fenced($inner) => $done,
            AnyGuard::Read($inner) => $done,
            AnyGuard::Write($inner) => $done,
            AnyGuard::Permit($inner) => $done,
            AnyGuard::Plain($inner) => $done,
            AnyGuard::Spin($inner) => $done,
            AnyGuard::Multi($inner) => $done,
            AnyGuard::Count($inner) => $done,
            AnyGuard::Fair($inner) => $done,
        }
    };
}

impl AnyGuard {
    /// Whether others of its kind hold the name beside it.
    pub fn is_shared(&self) -> bool {
        matches!(self, AnyGuard::Read(_))
    }

    pub fn is_valid(&self) -> bool {
        each!(self, guard => guard.is_valid())
    }

    pub fn remaining(&self) -> Duration {
        each!(self, guard => guard.remaining())
    }

    pub fn owner(&self) -> String {
        match self {
            AnyGuard::Multi(guard) => guard.owners().remove(0),
            AnyGuard::Mutex(guard) => guard.owner(),
            AnyGuard::Fenced(guard) => guard.owner(),
            AnyGuard::Read(guard) => guard.owner(),
            AnyGuard::Write(guard) => guard.owner(),
            AnyGuard::Count(guard) => guard.owner(),
            AnyGuard::Permit(guard) => guard.owner(),
            AnyGuard::Plain(guard) => guard.owner(),
            AnyGuard::Spin(guard) => guard.owner(),
            AnyGuard::Fair(guard) => guard.owner(),
        }
    }

    pub async fn lost(&self) -> LostReason {
        each!(self, guard => guard.lost().await)
    }

    pub async fn verify(&self) -> Result<Duration, Error> {
        each!(self, guard => guard.verify().await)
    }

    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        each!(self, guard => guard.extend(lease).await)
    }

    pub fn reenter(&self) -> Result<AnyGuard, Error> {
        Ok(match self {
            AnyGuard::Mutex(guard) => AnyGuard::Mutex(guard.reenter()?),
            AnyGuard::Fenced(guard) => AnyGuard::Fenced(guard.reenter()?),
            AnyGuard::Read(guard) => AnyGuard::Read(guard.reenter()?),
            AnyGuard::Write(guard) => AnyGuard::Write(guard.reenter()?),
            AnyGuard::Permit(guard) => AnyGuard::Permit(guard.reenter()?),
            AnyGuard::Plain(guard) => AnyGuard::Plain(guard.reenter()?),
            AnyGuard::Spin(guard) => AnyGuard::Spin(guard.reenter()?),
            AnyGuard::Multi(guard) => AnyGuard::Multi(guard.reenter()?),
            AnyGuard::Count(guard) => AnyGuard::Count(guard.reenter()?),
            AnyGuard::Fair(guard) => AnyGuard::Fair(guard.reenter()?),
        })
    }

    pub fn detach(self) -> Detached {
        match self {
            AnyGuard::Multi(guard) => guard.detach().remove(0),
            AnyGuard::Mutex(guard) => guard.detach(),
            AnyGuard::Fenced(guard) => guard.detach(),
            AnyGuard::Read(guard) => guard.detach(),
            AnyGuard::Write(guard) => guard.detach(),
            AnyGuard::Count(guard) => guard.detach(),
            AnyGuard::Permit(guard) => guard.detach(),
            AnyGuard::Plain(guard) => guard.detach(),
            AnyGuard::Spin(guard) => guard.detach(),
            AnyGuard::Fair(guard) => guard.detach(),
        }
    }

    /// Zero of a kind that has none.
    pub fn token(&self) -> u64 {
        match self {
            AnyGuard::Fenced(guard) => guard.token(),
            _ => 0,
        }
    }

    pub async fn release(self) -> Result<Released, Error> {
        each!(self, guard => guard.release().await)
    }
}
