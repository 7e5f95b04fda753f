//! A lock of whichever kind a world is about, with the verbs of a mutex.

use std::{future::Future, pin::Pin, time::Duration};

use leasehold::{
    Client, Error, FairMutex, FencedMutex, Guard, Handoff, LeasedSemaphore, LockKind, Mutex, Owner,
    Part, PlainMutex, RwLock, Semaphore, SpinMutex, Status,
};

/// A lock, and the operation on it.
#[derive(Clone)]
pub enum Lock {
    Mutex(Mutex),
    Fenced(FencedMutex),
    Read(RwLock),
    Write(RwLock),
    Permits(LeasedSemaphore, u32),
    Plain(PlainMutex),
    Spin(SpinMutex),
    Count(Semaphore, u32),
    Fair(FairMutex),
}

type Asking<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

macro_rules! each {
    ($lock:expr, $inner:ident => $changed:expr) => {
        match $lock {
            Lock::Mutex($inner) => Lock::Mutex($changed),
            Lock::Fenced($inner) => Lock::Fenced($changed),
            Lock::Read($inner) => Lock::Read($changed),
            Lock::Write($inner) => Lock::Write($changed),
            Lock::Permits($inner, count) => Lock::Permits($changed, count),
            Lock::Plain($inner) => Lock::Plain($changed),
            Lock::Spin($inner) => Lock::Spin($changed),
            // It has no lease to set.
            Lock::Count(lock, count) => Lock::Count(lock, count),
            Lock::Fair($inner) => Lock::Fair($changed),
        }
    };
}

impl Lock {
    /// `want` chooses: to read or to write, or how many of so many permits.
    pub fn of(client: &Client, kind: LockKind, name: &str, want: u32, permits: u32) -> Lock {
        match kind {
            LockKind::RwLock => {
                let lock = client.rw_lock(name);
                match want {
                    0 | 3 | 6 => Lock::Write(lock),
                    _ => Lock::Read(lock),
                }
            }
            LockKind::LeasedSemaphore => {
                Lock::Permits(client.leased_semaphore(name), 1 + want % permits)
            }
            LockKind::Mutex => Lock::Mutex(client.mutex(name)),
            LockKind::FencedMutex => Lock::Fenced(client.fenced_mutex(name)),
            LockKind::PlainMutex => Lock::Plain(client.plain_mutex(name)),
            LockKind::SpinMutex => Lock::Spin(client.spin_mutex(name)),
            LockKind::Semaphore => Lock::Count(client.semaphore(name), 1 + want % permits),
            LockKind::FairMutex => Lock::Fair(client.fair_mutex(name)),
            other => unreachable!("no world is about a {other}"),
        }
    }

    pub fn in_words(&self) -> String {
        match self {
            Lock::Mutex(_) | Lock::Fenced(_) | Lock::Plain(_) | Lock::Spin(_) | Lock::Fair(_) => {
                String::new()
            }
            Lock::Read(_) => ", to read".to_owned(),
            Lock::Write(_) => ", to write".to_owned(),
            Lock::Permits(_, count) | Lock::Count(_, count) => format!(", {count} permits"),
        }
    }

    #[must_use]
    pub fn lease(self, lease: Duration) -> Lock {
        each!(self, lock => lock.lease(lease))
    }

    #[must_use]
    pub fn fixed_lease(self, lease: Duration) -> Lock {
        each!(self, lock => lock.fixed_lease(lease))
    }

    #[must_use]
    pub fn max_hold(self, most: Duration) -> Lock {
        each!(self, lock => lock.max_hold(most))
    }

    #[must_use]
    pub fn handoff(self, handoff: Handoff) -> Lock {
        match self {
            Lock::Count(lock, count) => Lock::Count(lock.handoff(handoff), count),
            lock => each!(lock, lock => lock.handoff(handoff)),
        }
    }

    /// As one of several.
    pub fn part(&self) -> Part {
        match self {
            Lock::Mutex(lock) => lock.into(),
            Lock::Fenced(lock) => lock.into(),
            Lock::Read(lock) => lock.read_part(),
            Lock::Write(lock) => lock.write_part(),
            Lock::Permits(lock, count) => lock.part(*count),
            Lock::Count(..) => unreachable!("no part is a semaphore without leases"),
            Lock::Plain(lock) => lock.into(),
            Lock::Spin(lock) => lock.into(),
            Lock::Fair(lock) => lock.into(),
        }
    }

    /// Permits have no owner.
    pub fn owned_by(self, owner: &Owner) -> Option<Lock> {
        match self {
            Lock::Mutex(lock) => Some(Lock::Mutex(lock.owned_by(owner))),
            Lock::Fenced(lock) => Some(Lock::Fenced(lock.owned_by(owner))),
            Lock::Read(lock) => Some(Lock::Read(lock.owned_by(owner))),
            Lock::Write(lock) => Some(Lock::Write(lock.owned_by(owner))),
            Lock::Plain(lock) => Some(Lock::Plain(lock.owned_by(owner))),
            Lock::Spin(lock) => Some(Lock::Spin(lock.owned_by(owner))),
            Lock::Fair(lock) => Some(Lock::Fair(lock.owned_by(owner))),
            Lock::Permits(..) | Lock::Count(..) => None,
        }
    }

    pub fn lock(&self) -> Asking<Guard> {
        match self.clone() {
            Lock::Mutex(lock) => Box::pin(lock.lock()),
            Lock::Fenced(lock) => Box::pin(async move { lock.lock().await.map(Guard::erased) }),
            Lock::Read(lock) => Box::pin(async move { lock.read().await.map(Guard::erased) }),
            Lock::Write(lock) => Box::pin(async move { lock.write().await.map(Guard::erased) }),
            Lock::Permits(lock, count) => {
                Box::pin(async move { lock.acquire_many(count).await.map(Guard::erased) })
            }
            Lock::Plain(lock) => Box::pin(async move { lock.lock().await.map(Guard::erased) }),
            Lock::Spin(lock) => Box::pin(async move { lock.lock().await.map(Guard::erased) }),
            Lock::Count(lock, count) => {
                Box::pin(async move { lock.acquire_many(count).await.map(Guard::erased) })
            }
            Lock::Fair(lock) => Box::pin(async move { lock.lock().await.map(Guard::erased) }),
        }
    }

    pub fn try_lock(&self) -> Asking<Option<Guard>> {
        match self.clone() {
            Lock::Mutex(lock) => Box::pin(lock.try_lock()),
            Lock::Fenced(lock) => Box::pin(async move { erased(lock.try_lock().await) }),
            Lock::Read(lock) => Box::pin(async move { erased(lock.try_read().await) }),
            Lock::Write(lock) => Box::pin(async move { erased(lock.try_write().await) }),
            Lock::Permits(lock, count) => {
                Box::pin(async move { erased(lock.try_acquire_many(count).await) })
            }
            Lock::Plain(lock) => Box::pin(async move { erased(lock.try_lock().await) }),
            Lock::Spin(lock) => Box::pin(async move { erased(lock.try_lock().await) }),
            Lock::Count(lock, count) => {
                Box::pin(async move { erased(lock.try_acquire_many(count).await) })
            }
            Lock::Fair(lock) => Box::pin(async move { erased(lock.try_lock().await) }),
        }
    }

    pub fn try_lock_for(&self, wait: Duration) -> Asking<Option<Guard>> {
        match self.clone() {
            Lock::Mutex(lock) => Box::pin(lock.try_lock_for(wait)),
            Lock::Fenced(lock) => Box::pin(async move { erased(lock.try_lock_for(wait).await) }),
            Lock::Read(lock) => Box::pin(async move { erased(lock.try_read_for(wait).await) }),
            Lock::Write(lock) => Box::pin(async move { erased(lock.try_write_for(wait).await) }),
            Lock::Permits(lock, count) => {
                Box::pin(async move { erased(lock.try_acquire_many_for(count, wait).await) })
            }
            Lock::Plain(lock) => Box::pin(async move { erased(lock.try_lock_for(wait).await) }),
            Lock::Spin(lock) => Box::pin(async move { erased(lock.try_lock_for(wait).await) }),
            Lock::Count(lock, count) => {
                Box::pin(async move { erased(lock.try_acquire_many_for(count, wait).await) })
            }
            Lock::Fair(lock) => Box::pin(async move { erased(lock.try_lock_for(wait).await) }),
        }
    }

    pub async fn status(&self) -> Result<Status, Error> {
        match self {
            Lock::Mutex(lock) => lock.status().await,
            Lock::Fenced(lock) => lock.status().await,
            Lock::Read(lock) | Lock::Write(lock) => lock.status().await,
            Lock::Permits(lock, _) => lock.status().await,
            Lock::Plain(lock) => lock.status().await,
            Lock::Spin(lock) => lock.status().await,
            Lock::Count(lock, _) => lock.status().await,
            Lock::Fair(lock) => lock.status().await,
        }
    }

    pub async fn force_unlock(&self) -> Result<bool, Error> {
        match self {
            Lock::Mutex(lock) => lock.force_unlock().await,
            Lock::Fenced(lock) => lock.force_unlock().await,
            Lock::Read(lock) | Lock::Write(lock) => lock.force_unlock().await,
            Lock::Permits(lock, _) => lock.force_unlock().await,
            Lock::Plain(lock) => lock.force_unlock().await,
            Lock::Spin(lock) => lock.force_unlock().await,
            // The server knows no holders.
            Lock::Count(..) => Ok(false),
            Lock::Fair(lock) => lock.force_unlock().await,
        }
    }
}

fn erased<K>(got: Result<Option<Guard<K>>, Error>) -> Result<Option<Guard>, Error> {
    got.map(|guard| guard.map(Guard::erased))
}
