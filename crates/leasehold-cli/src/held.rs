//! A hold on a lock of any kind.

use std::{
    pin::Pin,
    time::{Duration, Instant},
};

use leasehold::{Error, FencedMutexGuard, Guard, LostReason, Released};

/// A hold, and what the supervisor needs of its guard.
pub(crate) struct Held {
    guard: Box<dyn AnyGuard>,
    /// The fencing token, of a kind that has one.
    pub(crate) token: Option<u64>,
}

impl Held {
    pub(crate) fn new<K: 'static>(guard: Guard<K>) -> Held {
        Held {
            guard: Box::new(guard),
            token: None,
        }
    }

    pub(crate) fn fenced(guard: FencedMutexGuard) -> Held {
        Held {
            token: Some(guard.token()),
            ..Held::new(guard)
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.guard.name()
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    pub(crate) async fn lost(&self) -> LostReason {
        self.guard.lost().await
    }

    /// Makes a fixed lease last at least this long from now.
    pub(crate) async fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.guard.extend(lease).await
    }

    pub(crate) async fn release(self) -> Result<Released, Error> {
        self.guard.release().await
    }

    /// Leaves the name held on the server, until its lease ends.
    pub(crate) fn detach(self) {
        self.guard.detach();
    }
}

/// How long a lease to ask for, and how long to wait for it: `None` for as long as it takes, zero to ask once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) lease: Duration,
    /// The lease is not renewed.
    pub(crate) fixed: bool,
    pub(crate) wait: Option<Duration>,
    /// Of a semaphore: how many permits it has, where no client has set that.
    pub(crate) permits: Option<u32>,
}

/// A server that is up answers within this time. A wait that is shorter would end before the first answer now and then,
/// and an answer that is late says nothing of the name.
const ANSWER: Duration = Duration::from_secs(2);

impl Ask {
    /// The two verbs of a lock as one. Neither begins before it is polled.
    pub(crate) async fn with<G, F>(
        self,
        forever: impl Future<Output = Result<G, Error>>,
        at_most: impl Fn(Duration) -> F,
    ) -> Result<Option<G>, Error>
    where
        F: Future<Output = Result<Option<G>, Error>>,
    {
        let Some(wait) = self.wait else {
            return forever.await.map(Some);
        };
        if wait >= ANSWER {
            return at_most(wait).await;
        }
        // First once: for as long as the server takes to answer, however short the wait is.
        let began = Instant::now();
        if let Some(guard) = at_most(Duration::ZERO).await? {
            return Ok(Some(guard));
        }
        let left = wait.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Ok(None);
        }
        match at_most(left).await {
            // It was held when the server answered last.
            Err(error) if error.is_unreachable() => Ok(None),
            answer => answer,
        }
    }
}

type Later<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Methods that all guards have.
trait AnyGuard {
    fn name(&self) -> &str;
    fn remaining(&self) -> Duration;
    fn lost(&self) -> Later<'_, LostReason>;
    fn extend(&self, lease: Duration) -> Later<'_, Result<(), Error>>;
    fn release(self: Box<Self>) -> Later<'static, Result<Released, Error>>;
    fn detach(self: Box<Self>);
}

impl<K: 'static> AnyGuard for Guard<K> {
    fn name(&self) -> &str {
        self.name()
    }

    fn remaining(&self) -> Duration {
        self.remaining()
    }

    fn lost(&self) -> Later<'_, LostReason> {
        Box::pin(self.lost())
    }

    fn extend(&self, lease: Duration) -> Later<'_, Result<(), Error>> {
        Box::pin(self.extend(lease))
    }

    fn release(self: Box<Self>) -> Later<'static, Result<Released, Error>> {
        Box::pin(Guard::release(*self))
    }

    fn detach(self: Box<Self>) {
        Guard::detach(*self);
    }
}
