//! The identity of a lease's holder.
//!
//! The field in Redisson's hash is `<client uuid>:<number>`. This library chooses the number, one per lease: never a
//! thread, never a task, since the branches of one `join!` share both.

use std::{
    fmt,
    future::Future,
    num::NonZeroU64,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// The id of a lease: unique within its client, and never used again after its release.
///
/// The upper bits are the wall-clock milliseconds of its making, so that a reader of the hash can tell
/// since when the name is held without a key that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LeaseId(u64);

/// 2^11 leases a millisecond before the numbers run ahead of the clock; they stay unique even then.
const SEQUENCE_BITS: u32 = 11;

/// 2026-01-01, in milliseconds since 1970. Counting from here keeps the numbers within 15 digits until 2041, and with
/// them the whole hash in an allocation of 64 bytes on the server.
const EPOCH_MS: u64 = 1_767_225_600_000;

impl LeaseId {
    /// A lease id later than every earlier one of this process.
    pub(crate) fn next() -> LeaseId {
        static LAST: AtomicU64 = AtomicU64::new(0);
        #[cfg(feature = "sim")]
        if let Some(number) = crate::world::next_lease() {
            return LeaseId(number);
        }
        let clock = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(0))
            .saturating_sub(EPOCH_MS)
            << SEQUENCE_BITS;
        // A wall clock that is set back repeats no id: they go on from the last one of this process.
        let bump = |last: u64| Some(clock.max(last + 1));
        let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, bump);
        // `fetch_update` returns the number before, so what it has stored is worked out once more.
        LeaseId(clock.max(last.unwrap_or(0) + 1))
    }

    pub(crate) fn get(self) -> u64 {
        self.0
    }

    /// When the lease was made, by the wall clock of its client.
    ///
    /// `None` for a number that is no lease of ours: Redisson writes thread ids, which are small, or a number that its
    /// user passed.
    pub(crate) fn made_at(self) -> Option<SystemTime> {
        const DAY_MS: u64 = 24 * 3600 * 1000;
        let millis = self.0 >> SEQUENCE_BITS;
        // Later than any thread id, earlier than most random numbers.
        (100 * DAY_MS..36_500 * DAY_MS)
            .contains(&millis)
            .then(|| UNIX_EPOCH + Duration::from_millis(EPOCH_MS + millis))
    }
}

impl From<u64> for LeaseId {
    fn from(number: u64) -> Self {
        LeaseId(number)
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A new client's uuid (version 4), the first half of each of its owner fields.
pub(crate) fn client_uuid() -> String {
    #[cfg(feature = "sim")]
    if let Some(uuid) = crate::world::uuid() {
        return uuid.to_string();
    }
    let mut bytes = [0_u8; 16];
    if getrandom::fill(&mut bytes).is_err() {
        // No entropy from the system: the hasher's keys, the time and the pid still make it unique.
        bytes = fastrand::Rng::new().u128(..).to_ne_bytes();
    }
    // Version 4 and its variant, so that an owner field has the shape of Redisson's.
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let n = u128::from_be_bytes(bytes);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        n >> 96,
        (n >> 80) & 0xffff,
        (n >> 64) & 0xffff,
        (n >> 48) & 0xffff,
        n & 0xffff_ffff_ffff
    )
}

/// An owner, which may enter the same lock again.
///
/// Each `lock()` is a new owner, so a second `lock()` waits for the first guard. Code that must enter a lock it may
/// already hold names its owner: [`Mutex::owned_by`](crate::Mutex::owned_by), or [`Owner::scope`] around code
/// that cannot be handed a value. Clones are the same owner.
///
/// An owner is one flow of control. Two branches of a `join!` that share an owner share its locks: both are
/// inside at once.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, Owner, Released};
///
/// let client = Client::connect("memory:").await?;
/// let owner = Owner::new();
/// let mutex = client.mutex("order:42").owned_by(&owner);
/// let outer = mutex.lock().await?;
/// let inner = mutex.lock().await?; // enters again
/// assert_eq!(mutex.status().await?.holders[0].holds, 2);
/// assert_eq!(inner.release().await.unwrap(), Released::StillHeld { holds: 1 });
/// assert_eq!(outer.release().await.unwrap(), Released::Freed);
/// # Ok(()) }
/// ```
///
/// # Source
/// Redisson's `RLock` counts holds of a thread; a thread is no owner in async code (redisson#6878).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner(OwnerId);

/// The number of an [`Owner`] within its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnerId(NonZeroU64);

impl OwnerId {
    pub(crate) fn get(self) -> u64 {
        self.0.get()
    }
}

tokio::task_local! {
    static SCOPE: OwnerId;
}

impl Owner {
    /// A new owner, different from all others of this process.
    #[allow(clippy::new_without_default, reason = "a default is no identity")]
    pub fn new() -> Owner {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        #[cfg(feature = "sim")]
        let number = crate::world::next_owner().unwrap_or(number);
        Owner(OwnerId(NonZeroU64::new(number).unwrap_or(NonZeroU64::MAX)))
    }

    /// Runs `future` as this owner: every lock taken inside without an owner of its own is taken by this one.
    ///
    /// Tasks spawned inside are not included. Branches of a `join!` inside are, and share what they lock.
    ///
    /// # Cancel safety
    /// As cancel safe as `future`.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, Error, Owner};
    ///
    /// async fn post(client: &Client) -> Result<(), Error> {
    ///     let _guard = client.mutex("ledger").lock().await?; // enters again, if its caller is inside
    ///     Ok(())
    /// }
    ///
    /// let client = Client::connect("memory:").await?;
    /// let posted: Result<(), Error> = Owner::new()
    ///     .scope(async {
    ///         let _guard = client.mutex("ledger").lock().await?;
    ///         post(&client).await
    ///     })
    ///     .await;
    /// posted
    /// # }
    /// ```
    pub async fn scope<F: Future>(&self, future: F) -> F::Output {
        SCOPE.scope(self.0, future).await
    }

    /// The same for work of a thread.
    #[cfg(feature = "blocking")]
    pub(crate) fn scope_here<T>(&self, work: impl FnOnce() -> T) -> T {
        SCOPE.sync_scope(self.0, work)
    }

    pub(crate) fn id(&self) -> OwnerId {
        self.0
    }
}

/// The owner of the [`Owner::scope`] around the caller.
pub(crate) fn scoped() -> Option<OwnerId> {
    SCOPE.try_with(|owner| *owner).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_ids_grow_and_tell_when_they_were_made() {
        let before = SystemTime::now();
        let (first, second) = (LeaseId::next(), LeaseId::next());
        assert!(second > first);
        let made = second.made_at().expect("a lease id of ours has a time");
        let millisecond = Duration::from_millis(1);
        assert!(made + millisecond >= before && made <= SystemTime::now() + millisecond);
        assert_eq!(LeaseId::from(42).made_at(), None, "a Java thread id");
        assert_eq!(
            LeaseId::from(u64::MAX / 3).made_at(),
            None,
            "a random number"
        );
    }

    #[test]
    fn a_client_uuid_has_redissons_shape() {
        let uuid = client_uuid();
        let groups: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(groups, [8, 4, 4, 4, 12]);
        assert_eq!(&uuid[14..15], "4");
        assert_ne!(uuid, client_uuid());
    }

    #[test]
    fn the_hash_of_a_lease_fits_into_64_bytes_on_the_server() {
        // With more than 52 bytes the listpack needs more than 64.
        assert!(client_uuid().len() + 1 + LeaseId::next().to_string().len() <= 52);
    }
}
