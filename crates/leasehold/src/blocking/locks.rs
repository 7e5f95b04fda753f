//! The table of the locks: each row a verb, a setting or a view of the async type of the same name.

use std::time::Duration;

use super::{
    Guard, MultiGuard,
    table::{blocking, rows},
};
use crate::{
    Durability, Exclusive, Fair, Fenced, Handoff, Owner, Part, Permit, Plain, PlainPermit, Read,
    Spin, Status, Write,
};

/// The rows of every kind that is held under a lease.
macro_rules! lease_rows {
    ($($kind:ident)*) => {
        $(impl $kind {
            rows!($kind:
                plain name() -> &str, "The name.";
                setting lease(lease: Duration), "The same with a lease of this length, renewed as long as the guard lives.";
                setting fixed_lease(lease: Duration), "The same with a fixed lease: it ends after `lease`, and is not renewed.";
                setting max_hold(most: Duration), "The same with an end to its renewals: no holder keeps it longer than this.";
                setting handoff(handoff: Handoff), "The same with another budget for passing a lease on in memory.";
                setting durability(policy: Durability), "The same, which `policy` must have before its holder goes on.";
                verb status() -> Status, "The holders, and how many wait.";
            );
        })*
    };
}
lease_rows!(Mutex FencedMutex FairMutex PlainMutex SpinMutex RwLock LeasedSemaphore);

/// The rows of kinds whose owner may enter again.
macro_rules! owner_rows {
    ($($kind:ident)*) => {
        $(impl $kind {
            rows!($kind:
                setting reentrant(reentrant: bool), "The same, which refuses re-entry if `false`.";
                setting owned_by(owner: &Owner), "The same, taken by this owner, which may enter it again.";
            );
        })*
    };
}
owner_rows!(Mutex FencedMutex FairMutex PlainMutex SpinMutex RwLock MultiLock);

/// The rows of locks that are held in one way only, whose work may run under them.
macro_rules! run_rows {
    ($($kind:ident $guard:ty;)*) => {
        $(impl $kind {
            rows!($kind:
                verb lock() -> $guard, "Waits for the lock, as long as it takes, and returns the guard that holds it.";
                verb try_lock() -> Option<$guard>, "Takes the lock if it is free now; `None` if it is held. It answers within the operation timeout and a quarter of a second, whatever the server does.";
                verb try_lock_for(wait: Duration) -> Option<$guard>, "Waits for the lock, up to `wait`; `None` if it was held all the time. It answers when `wait` is over, whatever the server does.";
                verb force_unlock() -> bool, "Takes the lock from its holder. `false` if it was free.";
            );

            /// Waits for the lock, runs `work` under it on this thread, and gives the lock back. Returns the output of `work`.
            ///
            /// The lease is renewed meanwhile (unless it is fixed). A loss does not stop a thread: long work asks
            /// `guard.ensure(…)` before each step that counts.
            ///
            /// If `work` panics, the lock is given back in the background. A server that does not answer the release, or says that it
            /// has forgotten the lock, changes nothing of the output:
            #[doc = concat!("see [`leasehold::", stringify!($kind), "::run`](crate::", stringify!($kind), "::run).")]
            ///
            /// # Errors
            /// - [`Error::Lost`](crate::Error::Lost): the lease was lost before `work` had returned. All of `work` was done, maybe not
            ///   alone, and its output is dropped.
            /// - Any other, as `lock`: `work` did not run.
            #[track_caller]
            pub fn run<T>(&self, work: impl FnOnce(&$guard) -> T) -> Result<T, crate::Error> {
                self.lock()?.run_to_end(work)
            }

            /// Waits for the lock, up to `wait`, and goes on as [`run`](Self::run). `None` if it was held all the time: then `work`
            /// did not run.
            ///
            /// `wait` does not bound the work. [`Duration::ZERO`] asks once.
            ///
            /// # Errors
            /// As [`run`](Self::run); and when `wait` is over, an error if the server could not be asked.
            #[track_caller]
            pub fn run_for<T>(
                &self,
                wait: Duration,
                work: impl FnOnce(&$guard) -> T,
            ) -> Result<Option<T>, crate::Error> {
                let locked = self.try_lock_for(wait)?;
                locked.map(|guard| guard.run_to_end(work)).transpose()
            }
        })*
    };
}
run_rows!(
    Mutex Guard<Exclusive>;
    FencedMutex Guard<Fenced>;
    FairMutex Guard<Fair>;
    PlainMutex Guard<Plain>;
    SpinMutex Guard<Spin>;
    MultiLock MultiGuard;
);

/// The rows of locks whose work may run once per interval.
macro_rules! once_rows {
    ($($kind:ident)*) => {
        $(impl $kind {
            /// Runs `work` on this thread at most once per `interval`, counted from its start; `None` if the name is taken. It stays taken
            /// for the interval, after success, `Err`, panic and crash.
            ///
            #[doc = concat!("See [`leasehold::", stringify!($kind), "::run_once_per`](crate::", stringify!($kind), "::run_once_per).")]
            /// A task that `work` spawns by `tokio::spawn` runs on the caller's runtime. On a thread without a runtime it
            /// runs on the library's, on the thread that renews all leases: it must not block there.
            ///
            /// # Errors
            /// As there; and [`Error::Invalid`](crate::Error::Invalid), with nothing sent, where a tokio scheduler polls.
            #[track_caller]
            pub fn run_once_per<T>(&self, interval: Duration, work: impl FnOnce() -> T) -> Result<Option<T>, crate::Error> {
                // The caller's runtime polls the work: in ours a task that it spawns could hold up all renewals (bug 213).
                super::wait::wait(&self.background, self.inner.run_once_per(interval, super::wait::on_this_runtime(work)))?
            }
        })*
    };
}
once_rows!(Mutex FencedMutex PlainMutex);

/// Each may be a part of a multi-lock.
macro_rules! part_rows {
    ($($kind:ident)*) => {
        $(impl From<&$kind> for Part {
            fn from(lock: &$kind) -> Part {
                Part::from(&lock.inner)
            }
        }

        impl From<$kind> for Part {
            fn from(lock: $kind) -> Part {
                Part::from(lock.inner)
            }
        })*
    };
}
// A read-write lock and a leased semaphore are not here: their parts say how they are held (`read_part`, `part(permits)`).
part_rows!(Mutex FencedMutex FairMutex PlainMutex SpinMutex);

blocking! {
    /// [`leasehold::Mutex`](crate::Mutex) for threads: a re-entrant mutual exclusion lock on a name.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), leasehold::Error> {
    /// use std::time::Duration;
    /// use leasehold::{Released, blocking::Client};
    ///
    /// let client = Client::connect("memory:")?; // or redis://127.0.0.1/
    /// let mutex = client.mutex("order:42").lease(Duration::from_secs(10)); // a handle; no I/O
    /// let charged = mutex.run(|guard| guard.ensure(Duration::from_secs(1)).map(|()| 42))?;
    /// assert_eq!(charged?, 42);
    ///
    /// let guard = mutex.lock()?;
    /// assert!(mutex.try_lock_for(Duration::from_millis(10))?.is_none()); // another thread gets it later
    /// assert_eq!(guard.release()?, Released::Freed);
    /// # Ok(()) }
    /// ```
    Mutex {}
}

blocking! {
    /// [`leasehold::FencedMutex`](crate::FencedMutex) for threads: a mutex whose guards carry fencing tokens.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let store = client.fenced_store("ledger");
    /// let wrote = client.fenced_mutex("ledger").run(|guard| store.set("balance", "42", guard.token()))?;
    /// assert!(wrote.is_ok());
    /// assert_eq!(store.get("balance")?.as_deref(), Some(&b"42"[..]));
    /// # Ok(()) }
    /// ```
    FencedMutex {}
}

blocking! {
    /// [`leasehold::FairMutex`](crate::FairMutex) for threads: its waiters are served in the order in which they asked.
    FairMutex {}
}

blocking! {
    /// [`leasehold::PlainMutex`](crate::PlainMutex) for threads: the lock that many libraries share.
    PlainMutex {
        setting backoff(first: Duration, most: Duration), "The same with other pauses between attempts beside holders that tell no waiter.";
    }
}

blocking! {
    /// [`leasehold::SpinMutex`](crate::SpinMutex) for threads: its waiters ask again and again.
    SpinMutex {
        setting backoff(first: Duration, most: Duration), "The same with other pauses between attempts.";
    }
}

blocking! {
    /// [`leasehold::RwLock`](crate::RwLock) for threads: many readers or one writer.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let prices = client.rw_lock("prices");
    /// let (one, other) = (prices.read()?, prices.read()?);
    /// assert!(prices.try_write()?.is_none());
    /// drop((one, other));
    /// let writes = prices.write()?;
    /// let reads = writes.downgrade()?; // no other writes in between
    /// assert!(reads.is_valid());
    /// # Ok(()) }
    /// ```
    RwLock {
        verb read() -> Guard<Read>, "Waits until no holder writes, as long as it takes, and reads.";
        verb try_read() -> Option<Guard<Read>>, "Reads if no holder writes now; `None` if one does. It answers within the operation timeout and a quarter of a second, whatever the server does.";
        verb try_read_for(wait: Duration) -> Option<Guard<Read>>, "Waits until no holder writes, up to `wait`. It answers when `wait` is over, whatever the server does.";
        verb write() -> Guard<Write>, "Waits until no other holds it, as long as it takes, and writes.";
        verb try_write() -> Option<Guard<Write>>, "Writes if no other holds it now; `None` if one does. It answers within the operation timeout and a quarter of a second, whatever the server does.";
        verb try_write_for(wait: Duration) -> Option<Guard<Write>>, "Waits until no other holds it, up to `wait`. It answers when `wait` is over, whatever the server does.";
        verb force_unlock() -> bool, "Takes the lock from its holders. `false` if it was free.";
        plain read_part() -> Part, "A reader, as a part of a multi-lock.";
        plain write_part() -> Part, "The writer, as a part of a multi-lock.";
    }
}

blocking! {
    /// [`leasehold::LeasedSemaphore`](crate::LeasedSemaphore) for threads: permits, each held under a lease.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let exports = client.leased_semaphore("exports").permits(2);
    /// let both = exports.acquire_many(2)?;
    /// assert!(exports.try_acquire()?.is_none());
    /// assert_eq!(both.permits(), 2);
    /// # Ok(()) }
    /// ```
    LeasedSemaphore {
        setting permits(permits: u32), "The same with this many permits, where no client has set how many there are.";
        setting permits_exactly(permits: u32), "The same with this many permits from each of its requests on.";
        verb acquire() -> Guard<Permit>, "Waits for a permit, as long as it takes.";
        verb try_acquire() -> Option<Guard<Permit>>, "Takes a permit if one is free now. It answers within the operation timeout and a quarter of a second, whatever the server does.";
        verb try_acquire_for(wait: Duration) -> Option<Guard<Permit>>, "Waits for a permit, up to `wait`. It answers when `wait` is over, whatever the server does.";
        verb acquire_many(permits: u32) -> Guard<Permit>, "Waits for so many permits, all or none.";
        verb try_acquire_many(permits: u32) -> Option<Guard<Permit>>, "Takes so many permits if they are free now. It answers within the operation timeout and a quarter of a second, whatever the server does.";
        verb try_acquire_many_for(permits: u32, wait: Duration) -> Option<Guard<Permit>>, "Waits for so many permits, up to `wait`. It answers when `wait` is over, whatever the server does.";
        verb try_set_permits(permits: u32) -> bool, "Says how many permits there are, if no client has said so.";
        verb set_permits(permits: u32) -> (), "Changes how many permits there are.";
        verb add_permits(permits: i32) -> i64, "Adds permits, or takes some away.";
        verb drain_permits() -> u32, "Takes all free permits away, for ever.";
        verb available_permits() -> i64, "How many permits are free.";
        verb force_unlock() -> bool, "Takes the permits from their holders. `false` if none was out.";
        plain part(permits: u32) -> Part, "So many permits, as a part of a multi-lock.";
    }
}

blocking! {
    /// [`leasehold::Semaphore`](crate::Semaphore) for threads: permits without a lease; a crash loses those of its process.
    Semaphore {
        // Without leases, and without `set_permits` and `force_unlock`: the server keeps Redisson's number, and knows no holders.
        plain name() -> &str, "The name.";
        setting handoff(handoff: Handoff), "The same with another budget for passing permits on in memory.";
        setting permits(permits: u32), "The same with this many permits, where no client has set how many there are.";
        verb acquire() -> Guard<PlainPermit>, "Waits for a permit, as long as it takes.";
        verb try_acquire() -> Option<Guard<PlainPermit>>, "Takes a permit if one is free now. It answers within the operation timeout and a quarter of a second, whatever the server does.";
        verb try_acquire_for(wait: Duration) -> Option<Guard<PlainPermit>>, "Waits for a permit, up to `wait`. It answers when `wait` is over, whatever the server does.";
        verb acquire_many(permits: u32) -> Guard<PlainPermit>, "Waits for so many permits, all or none.";
        verb try_acquire_many(permits: u32) -> Option<Guard<PlainPermit>>, "Takes so many permits if they are free now. It answers within the operation timeout and a quarter of a second, whatever the server does.";
        verb try_acquire_many_for(permits: u32, wait: Duration) -> Option<Guard<PlainPermit>>, "Waits for so many permits, up to `wait`. It answers when `wait` is over, whatever the server does.";
        verb try_set_permits(permits: u32) -> bool, "Says how many permits there are, if no client has said so.";
        verb add_permits(permits: i32) -> i64, "Adds permits, or takes some away.";
        verb drain_permits() -> u32, "Takes all free permits away, for ever.";
        verb available_permits() -> i64, "How many permits are free.";
        verb status() -> Status, "How many permits are free, and how many wait.";
    }
}

blocking! {
    /// [`leasehold::Latch`](crate::Latch) for threads: a count that they wait for until it is zero.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let shards = client.latch("shards");
    /// assert!(shards.try_set_count(2)?);
    /// let counts = std::thread::spawn({
    ///     let shards = shards.clone();
    ///     move || shards.count_down_by(2)
    /// });
    /// shards.wait()?;
    /// # counts.join().unwrap()?;
    /// # Ok(()) }
    /// ```
    Latch {
        plain name() -> &str, "The name.";
        verb try_set_count(count: u32) -> bool, "Sets the count, if there is none.";
        verb count_down() -> u64, "Counts down by one, and says what is left.";
        verb count_down_by(by: u32) -> u64, "Counts down by so many, and says what is left.";
        verb count() -> u64, "The count.";
        verb wait() -> (), "Waits until the count is zero, as long as it takes.";
        verb wait_for(wait: Duration) -> bool, "Waits until the count is zero, up to `wait`; `false` if it is not.";
        verb delete() -> bool, "Deletes the count, and lets all waiters go on.";
        verb status() -> Status, "The count, and how many wait.";
    }
}

blocking! {
    /// [`leasehold::MultiLock`](crate::MultiLock) for threads: several names at once, all or nothing.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let both = client.multi_lock(["account:7", "account:3"]);
    /// let moved = both.run(|guard| guard.names().len())?;
    /// assert_eq!(moved, 2);
    /// # Ok(()) }
    /// ```
    MultiLock {
        plain names() -> Vec<&str>, "The names, in the order in which they are taken.";
        setting lease(lease: Duration), "The same with leases of this length for all parts, renewed as long as the guard lives.";
        setting fixed_lease(lease: Duration), "The same with fixed leases for all parts.";
        setting max_hold(most: Duration), "The same with an end to renewals.";
        setting handoff(handoff: Handoff), "The same with another budget for passing leases on in memory.";
        verb status() -> Vec<Status>, "The holders of each part, and how many wait for it.";
    }
}

blocking! {
    /// [`leasehold::FencedStore`](crate::FencedStore) for threads: data that is written under fencing tokens.
    FencedStore {
        plain name() -> &str, "The name whose tokens count.";
        verb set(key: impl AsRef<str>, value: impl AsRef<[u8]>, token: u64) -> (), "Sets a key.";
        verb set_for(key: impl AsRef<str>, value: impl AsRef<[u8]>, time: Duration, token: u64) -> (), "Sets a key that ends after `time`.";
        verb delete(key: impl AsRef<str>, token: u64) -> (), "Deletes a key.";
        verb set_field(key: impl AsRef<str>, field: impl AsRef<str>, value: impl AsRef<[u8]>, token: u64) -> (), "Sets a field of a hash.";
        verb delete_field(key: impl AsRef<str>, field: impl AsRef<str>, token: u64) -> (), "Deletes a field of a hash.";
        verb get(key: impl AsRef<str>) -> Option<Vec<u8>>, "Reads a key; `None` if it is not there.";
        verb get_field(key: impl AsRef<str>, field: impl AsRef<str>) -> Option<Vec<u8>>, "Reads a field of a hash; `None` if it is not there.";
    }
}
