//! The rows of `kinds.rs`, each verb through `leasehold::blocking` on a thread of its own.

use std::{
    any::TypeId,
    future::Future,
    ops::Deref,
    pin::Pin,
    sync::{Arc, Mutex as Std},
    thread,
    time::Duration,
};

use leasehold::{
    Client, Detached, Error, LostReason, Owner, Read, Released, Status,
    blocking::{self, Guard},
};
use tokio::sync::oneshot;

use crate::common::kinds;
pub use crate::common::{World, wire::Network};

/// The wait of a thread has no future to drop.
pub const MAY_BE_DROPPED: bool = false;

/// A row of the table, whose locks block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row(kinds::Row);

#[allow(non_upper_case_globals, reason = "they stand for the variants")]
impl Row {
    pub const Read: Row = Row(kinds::Row::Read);
    pub const Write: Row = Row(kinds::Row::Write);
    pub const Permit: Row = Row(kinds::Row::Permit);
    pub const Count: Row = Row(kinds::Row::Count);
}

pub const ROWS: [Row; kinds::ROWS.len()] = {
    let mut rows = [Row::Read; kinds::ROWS.len()];
    let mut at = 0;
    while at < rows.len() {
        rows[at] = Row(kinds::ROWS[at]);
        at += 1;
    }
    rows
};

impl Deref for Row {
    type Target = kinds::Row;

    fn deref(&self) -> &kinds::Row {
        &self.0
    }
}

type Asking<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Begins when it is polled, and goes on if it is dropped.
fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Asking<T> {
    Box::pin(async move {
        let (told, heard) = oneshot::channel();
        thread::spawn(move || drop(told.send(work())));
        heard.await.expect("the thread does not panic")
    })
}

/// The threads of one hold share it.
#[derive(Debug)]
pub struct AnyGuard(Arc<dyn Hold>, IsShared);

/// Whether others of its kind hold the name beside it.
type IsShared = bool;

/// Methods that every guard has.
trait Hold: std::fmt::Debug + Send + Sync {
    fn is_valid(&self) -> bool;
    fn remaining(&self) -> Duration;
    fn owner(&self) -> String;
    fn lost(&self) -> Result<LostReason, Error>;
    fn verify(&self) -> Result<Duration, Error>;
    fn extend(&self, lease: Duration) -> Result<(), Error>;
    fn reenter(&self) -> Result<AnyGuard, Error>;
    fn release(&self) -> Result<Released, Error>;
    fn detach(&self) -> Detached;
}

/// A guard that is taken out to be released.
type Slot<G> = Std<Option<Arc<G>>>;

macro_rules! hold {
    ($guard:ty, $($generic:ident)?, $it:ident => $owner:expr, $detached:ident => $first:expr) => {
        impl<$($generic: 'static)?> Hold for Slot<$guard> {
            fn is_valid(&self) -> bool {
                inside(self).is_valid()
            }
            fn remaining(&self) -> Duration {
                inside(self).remaining()
            }
            fn owner(&self) -> String {
                let $it = inside(self);
                $owner
            }
            fn lost(&self) -> Result<LostReason, Error> {
                inside(self).lost()
            }
            fn verify(&self) -> Result<Duration, Error> {
                inside(self).verify()
            }
            fn extend(&self, lease: Duration) -> Result<(), Error> {
                inside(self).extend(lease)
            }
            fn reenter(&self) -> Result<AnyGuard, Error> {
                Ok(any(inside(self).reenter()?))
            }
            fn release(&self) -> Result<Released, Error> {
                taken(self).release()
            }
            fn detach(&self) -> Detached {
                let mut $detached = taken(self).detach();
                $first
            }
        }
    };
}
hold!(Guard<K>, K, guard => guard.owner(), detached => { let _ = &mut detached; detached });
hold!(blocking::MultiGuard, , guard => guard.owners().remove(0), detached => detached.remove(0));

fn inside<G>(slot: &Slot<G>) -> Arc<G> {
    let guard = slot.lock().unwrap();
    Arc::clone(guard.as_ref().expect("it was not released"))
}

fn taken<G>(slot: &Slot<G>) -> G {
    let guard = slot.lock().unwrap().take().expect("it was not released");
    Arc::into_inner(guard).expect("no other thread asks")
}

fn any<G: 'static>(guard: G) -> AnyGuard
where
    Slot<G>: Hold + 'static,
{
    let is_shared = TypeId::of::<G>() == TypeId::of::<Guard<Read>>();
    AnyGuard(Arc::new(Std::new(Some(Arc::new(guard)))), is_shared)
}

impl AnyGuard {
    fn on_a_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Hold) -> T + Send + 'static,
    ) -> Asking<T> {
        let hold = Arc::clone(&self.0);
        on_a_thread(move || work(&*hold))
    }

    pub fn is_shared(&self) -> bool {
        self.1
    }

    pub fn is_valid(&self) -> bool {
        self.0.is_valid()
    }

    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    pub fn owner(&self) -> String {
        self.0.owner()
    }

    pub async fn lost(&self) -> LostReason {
        self.on_a_thread(|hold| hold.lost()).await.unwrap()
    }

    pub async fn verify(&self) -> Result<Duration, Error> {
        self.on_a_thread(|hold| hold.verify()).await
    }

    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.on_a_thread(move |hold| hold.extend(lease)).await
    }

    pub fn reenter(&self) -> Result<AnyGuard, Error> {
        self.0.reenter()
    }

    pub fn detach(self) -> Detached {
        self.0.detach()
    }

    pub async fn release(self) -> Result<Released, Error> {
        self.on_a_thread(|hold| hold.release()).await
    }
}

/// A lock of any kind that blocks, with the verbs of a mutex.
#[derive(Clone, Debug)]
pub enum AnyLock {
    Mutex(blocking::Mutex),
    Fenced(blocking::FencedMutex),
    Read(blocking::RwLock),
    Write(blocking::RwLock),
    Permit(blocking::LeasedSemaphore),
    Plain(blocking::PlainMutex),
    Spin(blocking::SpinMutex),
    /// With its first part, which it waits for, and which is looked at.
    Multi(blocking::MultiLock, blocking::Mutex),
    Count(blocking::Semaphore),
    Fair(blocking::FairMutex),
}

impl Row {
    pub fn lock(self, client: &Client, name: &str) -> AnyLock {
        let client = blocking::Client::from(client.clone());
        match self.0 {
            kinds::Row::Mutex => AnyLock::Mutex(client.mutex(name)),
            kinds::Row::Fenced => AnyLock::Fenced(client.fenced_mutex(name)),
            kinds::Row::Read => AnyLock::Read(client.rw_lock(name)),
            kinds::Row::Write => AnyLock::Write(client.rw_lock(name)),
            kinds::Row::Permit => AnyLock::Permit(client.leased_semaphore(name)),
            kinds::Row::Plain => AnyLock::Plain(client.plain_mutex(name)),
            kinds::Row::Spin => AnyLock::Spin(client.spin_mutex(name)),
            kinds::Row::Multi => {
                let names = [name, &format!("{name}, too")];
                AnyLock::Multi(client.multi_lock(names), client.mutex(name))
            }
            kinds::Row::Count => AnyLock::Count(client.semaphore(name)),
            kinds::Row::Fair => AnyLock::Fair(client.fair_mutex(name)),
        }
    }

    pub fn rival(self, client: &Client, name: &str) -> AnyLock {
        match self {
            Row::Read => Row::Write.lock(client, name),
            Row::Write => Row::Read.lock(client, name),
            _ => self.lock(client, name),
        }
    }

    pub fn providing(self, client: &Client, name: &str, permits: u32) -> Option<AnyLock> {
        match self.lock(client, name) {
            AnyLock::Permit(lock) => Some(AnyLock::Permit(lock.permits(permits))),
            AnyLock::Count(lock) => Some(AnyLock::Count(lock.permits(permits))),
            _ => None,
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

/// Asks on a thread, by the verb of a mutex, of a reader, of a writer, or of permits.
macro_rules! ask {
    ($lock:expr, $mutex:ident $read:ident $write:ident $permit:ident ($($arg:expr)?), $guard:ident => $any:expr) => {{
        let lock = $lock.clone();
        on_a_thread(move || match lock {
            AnyLock::Mutex(lock) => lock.$mutex($($arg)?).map(|$guard| $any),
            AnyLock::Fenced(lock) => lock.$mutex($($arg)?).map(|$guard| $any),
            AnyLock::Read(lock) => lock.$read($($arg)?).map(|$guard| $any),
            AnyLock::Write(lock) => lock.$write($($arg)?).map(|$guard| $any),
            AnyLock::Permit(lock) => lock.$permit($($arg)?).map(|$guard| $any),
            AnyLock::Plain(lock) => lock.$mutex($($arg)?).map(|$guard| $any),
            AnyLock::Spin(lock) => lock.$mutex($($arg)?).map(|$guard| $any),
            AnyLock::Multi(lock, _) => lock.$mutex($($arg)?).map(|$guard| $any),
            AnyLock::Count(lock) => lock.$permit($($arg)?).map(|$guard| $any),
            AnyLock::Fair(lock) => lock.$mutex($($arg)?).map(|$guard| $any),
        })
    }};
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
        Some(match self {
            AnyLock::Mutex(lock) => AnyLock::Mutex(lock.owned_by(owner)),
            AnyLock::Fenced(lock) => AnyLock::Fenced(lock.owned_by(owner)),
            AnyLock::Read(lock) => AnyLock::Read(lock.owned_by(owner)),
            AnyLock::Write(lock) => AnyLock::Write(lock.owned_by(owner)),
            AnyLock::Plain(lock) => AnyLock::Plain(lock.owned_by(owner)),
            AnyLock::Spin(lock) => AnyLock::Spin(lock.owned_by(owner)),
            AnyLock::Multi(lock, first) => AnyLock::Multi(lock.owned_by(owner), first),
            AnyLock::Fair(lock) => AnyLock::Fair(lock.owned_by(owner)),
            AnyLock::Permit(_) | AnyLock::Count(_) => return None,
        })
    }

    pub fn lock(&self) -> Asking<Result<AnyGuard, Error>> {
        ask!(self, lock read write acquire (), guard => any(guard))
    }

    pub fn try_lock(&self) -> Asking<Result<Option<AnyGuard>, Error>> {
        ask!(self, try_lock try_read try_write try_acquire (), guard => guard.map(any))
    }

    pub fn try_lock_for(&self, wait: Duration) -> Asking<Result<Option<AnyGuard>, Error>> {
        ask!(self, try_lock_for try_read_for try_write_for try_acquire_for (wait), guard => guard.map(any))
    }

    pub async fn status(&self) -> Status {
        let lock = self.clone();
        let status = on_a_thread(move || match lock {
            AnyLock::Mutex(lock) | AnyLock::Multi(_, lock) => lock.status(),
            AnyLock::Fenced(lock) => lock.status(),
            AnyLock::Read(lock) | AnyLock::Write(lock) => lock.status(),
            AnyLock::Permit(lock) => lock.status(),
            AnyLock::Plain(lock) => lock.status(),
            AnyLock::Spin(lock) => lock.status(),
            AnyLock::Count(lock) => lock.status(),
            AnyLock::Fair(lock) => lock.status(),
        });
        status.await.unwrap()
    }

    pub async fn force_unlock(&self) -> Result<bool, Error> {
        let lock = self.clone();
        let freed = on_a_thread(move || match lock {
            AnyLock::Mutex(lock) => lock.force_unlock(),
            AnyLock::Fenced(lock) => lock.force_unlock(),
            AnyLock::Read(lock) | AnyLock::Write(lock) => lock.force_unlock(),
            AnyLock::Permit(lock) => lock.force_unlock(),
            AnyLock::Plain(lock) => lock.force_unlock(),
            AnyLock::Spin(lock) => lock.force_unlock(),
            AnyLock::Multi(lock, _) => lock.force_unlock(),
            AnyLock::Count(_) => Ok(false), // the server knows no holders
            AnyLock::Fair(lock) => lock.force_unlock(),
        });
        freed.await
    }
}
