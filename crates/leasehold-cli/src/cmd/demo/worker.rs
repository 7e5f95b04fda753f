//! The steps of one worker: ask, enter, work, leave.

use std::{fs::File, io, os::unix::fs::FileExt, path::Path, time::Duration};

use leasehold::{Client, Error, Guard, Handoff, LeasedSemaphore, Mutex, RwLock};
use tokio::time::sleep;

use super::{
    host::Reporter,
    record::What,
    story::{self, Kind, Part, Role},
};

/// How long a sale takes, in ms: longer than two draws of the picture are apart.
const SALE: std::ops::Range<u64> = 90..160;
/// How long a buyer thinks before the next ticket, in ms.
const PAUSE: std::ops::Range<u64> = 20..260;

/// A lock as one worker takes it.
pub(super) enum Lock {
    Mutex(Mutex),
    Read(RwLock),
    Write(RwLock),
    Permit(LeasedSemaphore),
}

impl Lock {
    pub(super) fn new(client: &Client, kind: Kind, name: &str, role: Role) -> Lock {
        let lease = story::LEASE;
        match kind {
            Kind::Mutex => Lock::Mutex(client.mutex(name).lease(lease)),
            Kind::RwLock => {
                let lock = client.rw_lock(name).lease(lease);
                // The budget of this demo would let readers of one process in for two seconds, past a writer.
                let lock = lock.handoff(Handoff::default());
                match role {
                    Role::Reader { .. } => Lock::Read(lock),
                    _ => Lock::Write(lock),
                }
            }
            Kind::Semaphore(_) => Lock::Permit(client.leased_semaphore(name).lease(lease)),
        }
    }
}

/// A worker, ready to play.
pub(super) struct Worker {
    /// `None` plays without the lock.
    pub(super) lock: Option<Lock>,
    pub(super) stock: Stock,
    pub(super) random: fastrand::Rng,
    pub(super) report: Reporter,
}

impl Worker {
    pub(super) async fn play(mut self, part: Part) -> Result<(), Failed> {
        match part.role {
            Role::Buyer => self.buy().await,
            Role::Holder { after, hold } | Role::Reader { after, hold } => {
                sleep(after).await;
                // The pause begins when it is first polled, which is after entering.
                self.within(async { sleep(hold).await }).await?;
                Ok(())
            }
        }
    }

    async fn buy(&mut self) -> Result<(), Failed> {
        let mut sold_out = false;
        while !sold_out {
            sleep(Duration::from_millis(self.random.u64(PAUSE))).await;
            let (takes, stock) = (self.random.u64(SALE), self.stock.clone());
            let report = self.report.clone();
            let sale = self.within(async move {
                let left = stock.read()?;
                if left <= 0 {
                    return Ok(true);
                }
                // Here another sale would read the same number, if the lock let it.
                sleep(Duration::from_millis(takes)).await;
                stock.write(left - 1)?;
                report.tell(What::Sold);
                Ok::<bool, io::Error>(false)
            });
            sold_out = match sale.await? {
                Some(result) => result?,
                None => false,
            };
        }
        Ok(())
    }

    /// Does the work while holding the lock. `None` if the lock was lost meanwhile.
    async fn within<T>(&self, work: impl Future<Output = T>) -> Result<Option<T>, Failed> {
        self.report.tell(What::Asked);
        match &self.lock {
            None => {
                self.report.tell(What::Entered);
                let done = work.await;
                self.report.tell(What::Left);
                Ok(Some(done))
            }
            Some(Lock::Mutex(mutex)) => self.under(mutex.lock().await?, work).await,
            Some(Lock::Read(lock)) => self.under(lock.read().await?, work).await,
            Some(Lock::Write(lock)) => self.under(lock.write().await?, work).await,
            Some(Lock::Permit(semaphore)) => self.under(semaphore.acquire().await?, work).await,
        }
    }

    async fn under<K, T>(
        &self,
        guard: Guard<K>,
        work: impl Future<Output = T>,
    ) -> Result<Option<T>, Failed> {
        self.report.tell(What::Entered);
        match guard.run(work).await {
            Ok(done) => {
                self.report.tell(What::Left);
                guard.release().await?;
                Ok(Some(done))
            }
            Err(Error::Lost { .. }) => {
                self.report.tell(What::LostIt);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The number of tickets left, in a plain file: reading and writing are two steps.
#[derive(Clone, Debug)]
pub(super) struct Stock(std::sync::Arc<File>);

impl Stock {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Stock(std::sync::Arc::new(file)))
    }

    pub(super) fn read(&self) -> io::Result<i64> {
        let mut digits = [0; 8];
        self.0.read_exact_at(&mut digits, 0)?;
        std::str::from_utf8(&digits)
            .ok()
            .and_then(|digits| digits.trim().parse().ok())
            .ok_or_else(|| io::Error::other("the stock is no number"))
    }

    pub(super) fn write(&self, left: i64) -> io::Result<()> {
        self.0.write_all_at(format!("{left:8}").as_bytes(), 0)
    }
}

/// Why a worker had to give up.
#[derive(Debug)]
pub(super) struct Failed(pub(super) String);

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Failed(error.to_string())
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Failed(format!("the file with the stock: {error}"))
    }
}
