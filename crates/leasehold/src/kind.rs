//! The kinds of locks, and how a hold shares its name with others.

use std::fmt;

/// A kind of lock.
///
/// Locks of different kinds do not exclude each other: all clients that contend for one name must use one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LockKind {
    /// [`Mutex`](crate::Mutex), Redisson's `RLock`.
    Mutex,
    /// [`FencedMutex`](crate::FencedMutex), Redisson's `RFencedLock`.
    FencedMutex,
    /// [`RwLock`](crate::RwLock), Redisson's `RReadWriteLock`.
    RwLock,
    /// [`LeasedSemaphore`](crate::LeasedSemaphore), Redisson's `RPermitExpirableSemaphore`.
    LeasedSemaphore,
    /// [`PlainMutex`](crate::PlainMutex), the `SET name token NX PX` of many libraries.
    PlainMutex,
    /// [`SpinMutex`](crate::SpinMutex), Redisson's `RSpinLock`. To the server it is a mutex.
    SpinMutex,
    /// [`Semaphore`](crate::Semaphore), Redisson's `RSemaphore`.
    Semaphore,
    /// [`Latch`](crate::Latch), Redisson's `RCountDownLatch`. It is waited for, and held by no client.
    Latch,
    /// [`FairMutex`](crate::FairMutex), Redisson's `RFairLock`.
    FairMutex,
}

impl LockKind {
    /// All of them.
    pub const ALL: [LockKind; 9] = [
        LockKind::Mutex,
        LockKind::FencedMutex,
        LockKind::RwLock,
        LockKind::LeasedSemaphore,
        LockKind::PlainMutex,
        LockKind::SpinMutex,
        LockKind::Semaphore,
        LockKind::Latch,
        LockKind::FairMutex,
    ];

    /// As it is called in code: `client.rw_lock(name)`.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(leasehold::LockKind::RwLock.as_str(), "rw_lock");
    /// ```
    pub const fn as_str(self) -> &'static str {
        match self {
            LockKind::Mutex => "mutex",
            LockKind::FencedMutex => "fenced_mutex",
            LockKind::RwLock => "rw_lock",
            LockKind::LeasedSemaphore => "leased_semaphore",
            LockKind::PlainMutex => "plain_mutex",
            LockKind::SpinMutex => "spin_mutex",
            LockKind::Semaphore => "semaphore",
            LockKind::Latch => "latch",
            LockKind::FairMutex => "fair_mutex",
        }
    }

    /// Whether the server knows a number and no holders: nothing frees what a client holds that has died.
    pub(crate) const fn never_ends(self) -> bool {
        matches!(self, LockKind::Semaphore)
    }

    /// As the server knows it: a spin mutex is a mutex whose waiters do not listen.
    pub(crate) const fn on_server(self) -> LockKind {
        match self {
            LockKind::SpinMutex => LockKind::Mutex,
            other => other,
        }
    }
}

impl fmt::Display for LockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a hold shares its name with others of its kind. The engine knows nothing else of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Access {
    /// A single hold at a time.
    Exclusive,
    /// Together with others that share it; the callers of one process share one hold.
    Shared,
    /// This many permits.
    Permits(u16),
}

impl Access {
    /// Whether it cannot be had where `asked` cannot.
    pub(crate) fn wants_no_less_than(self, asked: Access) -> bool {
        match (self, asked) {
            (Access::Permits(count), Access::Permits(asked)) => count >= asked,
            (Access::Exclusive, _) => true,
            (Access::Shared, asked) => asked == Access::Shared,
            _ => false,
        }
    }

    pub(crate) fn is_exclusive(self) -> bool {
        self == Access::Exclusive
    }
}
